//! The check of a stopped cluster, from its pools.
//!
//! First what a crash has left is finished, as the nodes would at their start: redo records are replayed (opening a pool
//! does that), decided transactions are dispatched to the other pools, undecided ones are let go. Then every region is
//! recovered and checked, and what the regions know of each other is joined.

use super::Findings;
use crate::{CliError, ClusterId, progress};
use indicatif::ProgressBar;
use polvo_format::{Gpa, NodeId, RegionId, TxnId};
use polvo_pmem::Pmem;
use polvo_proto::{CheckFacts, InodeFact, NameFact, join_facts};
use polvo_region::{Finding, PoolSpace, Region, RemotePart};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// What is to be checked.
pub struct OfflineCheck {
    /// The pools of all nodes.
    pub pools: Vec<PathBuf>,
    /// No progress bar.
    pub quiet: bool,
}

struct Pools {
    open: Vec<(PathBuf, Arc<PoolSpace>)>,
    /// Which of them has a region.
    of_region: BTreeMap<RegionId, usize>,
    found: Findings,
}

/// Checks the pools.
pub fn check_pools(check: &OfflineCheck) -> Result<Findings, CliError> {
    let mut pools = Pools::open(&check.pools)?;
    pools.dispatch_decided();
    let facts = pools.check_regions(check.quiet)?;
    let mut found = pools.found;
    found.regions = facts.len();
    found.inodes = Some(facts.iter().map(|f| f.inodes.len() as u64).sum());
    found.findings.extend(join_facts(&facts));
    Ok(found)
}

fn in_words(finding: Finding) -> String {
    match finding.ino {
        Some(ino) => format!("inode {ino:?}: {}", finding.what),
        None => finding.what,
    }
}

impl Pools {
    fn open(paths: &[PathBuf]) -> Result<Pools, CliError> {
        let mut pools = Pools {
            open: Vec::new(),
            of_region: BTreeMap::new(),
            found: Findings::default(),
        };
        for path in paths {
            let refuse = |why: String| CliError::Pool {
                pool: path.display().to_string(),
                why,
            };
            let pmem = Pmem::open(path, None).map_err(|e| CliError::pmem(path, e))?;
            let (space, findings) = PoolSpace::open_for_check(pmem).map_err(|e| CliError::region(path, e))?;
            let id = space.identity();
            for (other, there) in &pools.open {
                let known = there.identity();
                if known.cluster != id.cluster {
                    let (here, there) = (ClusterId(id.cluster), ClusterId(known.cluster));
                    return Err(refuse(format!(
                        "is of cluster {here}, but {} is of {there}",
                        other.display()
                    )));
                }
                if known.node == id.node {
                    return Err(refuse(format!(
                        "is of node {}, and so is {}",
                        id.node.0,
                        other.display()
                    )));
                }
            }
            pools.found.findings.extend(
                findings
                    .into_iter()
                    .map(|f| format!("{}: {}", path.display(), in_words(f))),
            );
            let index = pools.open.len();
            for region in space.regions() {
                if let Some(other) = pools.of_region.insert(region, index) {
                    let (here, there) = (path.display(), pools.open[other].0.display());
                    pools
                        .found
                        .findings
                        .push(format!("region {} is in two pools, {there} and {here}", region.0));
                }
            }
            if space.regions().is_empty() {
                pools
                    .found
                    .notes
                    .push(format!("{} holds no region yet", path.display()));
            }
            pools.open.push((path.clone(), space));
        }
        Ok(pools)
    }

    fn space_of(&self, region: RegionId) -> Option<&Arc<PoolSpace>> {
        self.of_region.get(&region).map(|at| &self.open[*at].1)
    }

    fn has_node(&self, node: NodeId) -> bool {
        self.open.iter().any(|(_, space)| space.identity().node == node)
    }

    /// Does for each decided transaction what its coordinator would do at its start (Octopus 3.3.2, dispatch).
    fn dispatch_decided(&mut self) {
        for at in 0..self.open.len() {
            let space = self.open[at].1.clone();
            for decided in space.undispatched() {
                let mut complete = true;
                for part in &decided.remote {
                    complete &= match self
                        .space_of(part.region)
                        .map(|target| dispatch(target, decided.txn, part))
                    {
                        Some(Ok(())) => true,
                        Some(Err(why)) => {
                            self.found
                                .findings
                                .push(format!("transaction {:?}: {why}", decided.txn));
                            false
                        }
                        None => {
                            self.found.notes.push(format!(
                                "transaction {:?} waits for region {}, whose pool was not named",
                                decided.txn, part.region.0
                            ));
                            false
                        }
                    };
                }
                if complete {
                    space.retire(decided.record);
                    self.found
                        .notes
                        .push(format!("transaction {:?} was decided and is now finished", decided.txn));
                }
            }
        }
    }

    fn check_regions(&mut self, quiet: bool) -> Result<Vec<CheckFacts>, CliError> {
        let regions: Vec<(RegionId, usize)> = self.of_region.iter().map(|(r, at)| (*r, *at)).collect();
        let segments: usize = regions
            .iter()
            .map(|(r, at)| self.open[*at].1.segments_of(*r).len())
            .sum();
        // Each is read twice: for recovery, and for the check.
        let bar = progress::count("checking", 2 * segments as u64, quiet);
        let mut all = Vec::new();
        for (id, at) in regions {
            bar.set_message(format!("checking region {}", id.0));
            all.extend(self.check_region(id, at, &bar));
        }
        bar.finish_and_clear();
        Ok(all)
    }

    /// Recovers and checks one region; `None` when it cannot be recovered, which is a finding.
    fn check_region(&mut self, id: RegionId, at: usize, bar: &ProgressBar) -> Option<CheckFacts> {
        let space = self.open[at].1.clone();
        let begin = bar.position();
        let mut advance = |done: u64, _total: u64| bar.set_position(begin + done);
        let (mut region, recovery) = match Region::recover(&space, id, &mut advance) {
            Ok(recovered) => recovered,
            Err(e) => {
                self.found.findings.push(format!("region {}: {e}", id.0));
                return None;
            }
        };
        for txn in recovery.held_by {
            if self.open.iter().any(|(_, space)| space.is_logged(txn)) {
                continue; // told when it could not be dispatched
            }
            if self.has_node(txn.node()) {
                region.abort(txn);
                self.found
                    .notes
                    .push(format!("transaction {txn:?} was not decided and is now given up"));
            } else {
                let node = txn.node().0;
                let note = format!(
                    "transaction {txn:?} holds inodes of region {}; node {node}'s pool was not named",
                    id.0
                );
                self.found.notes.push(note);
            }
        }
        let begin = bar.position();
        let report = region.check(&mut |done, _total| bar.set_position(begin + done));
        Some(CheckFacts {
            region: id,
            findings: report.findings.into_iter().map(in_words).collect(),
            inodes: report
                .inodes
                .into_iter()
                .map(|(inode, kind, nlink)| InodeFact { inode, kind, nlink })
                .collect(),
            names: report
                .names
                .into_iter()
                .map(|(dir, target, kind)| NameFact { dir, target, kind })
                .collect(),
            next: None,
        })
    }
}

/// Puts a participant's part in place. Locks are let go after all writes: where one is free, the writes are there already,
/// and others may have written since.
fn dispatch(target: &Arc<PoolSpace>, txn: TxnId, part: &RemotePart) -> Result<(), String> {
    let pmem = target.pmem();
    let segments = target.segments_of(part.region);
    let size = target.usage().segment_size;
    let place = |gpa: Gpa, len: u64| {
        let (index, within) = (gpa.offset().0 / size, gpa.offset().0 % size);
        let segment = segments.iter().find(|(i, _, _)| u64::from(*i) == index);
        match segment {
            Some((_, offset, _)) if gpa.region() == part.region && within + len <= size => Ok(offset + within),
            _ => Err(format!(
                "its record names {gpa:?}, which is not in region {}",
                part.region.0
            )),
        }
    };
    let locks = part
        .locks
        .iter()
        .map(|at| place(*at, 8))
        .collect::<Result<Vec<u64>, String>>()?;
    let writes = part
        .writes
        .iter()
        .map(|(at, bytes)| Ok((place(*at, bytes.len() as u64)?, bytes)))
        .collect::<Result<Vec<_>, String>>()?;
    if locks.iter().any(|at| !at.is_multiple_of(8)) {
        return Err("its record names a lock that is no word".into());
    }
    let held: Vec<u64> = locks.iter().copied().filter(|at| pmem.read_u64(*at) == txn.0).collect();
    if held.len() == locks.len() {
        for (at, bytes) in writes {
            pmem.write(at, bytes);
            pmem.flush(at, bytes.len() as u64);
        }
        pmem.fence();
    }
    for at in held {
        pmem.cas_u64(at, txn.0, 0);
        pmem.persist(at, 8);
    }
    Ok(())
}
