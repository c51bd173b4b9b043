//! The check of a stopped cluster: every region is recovered and checked, and what the regions know of each other is
//! joined.

use super::finish::{Finished, Unknown};
use super::{Cluster, OfflinePool, Progress, in_words};
use crate::{PoolSpace, Region, RegionError};
use polvo_format::RegionId;
use polvo_proto::{CheckFacts, InodeFact, NameFact, join_facts};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Said of a pool that is lost where its node is not needed.
pub const NOTHING_LOST: &str = "nothing of its regions is lost: mirrors take their place when the other nodes start. Its node may then be \
                                started with a new pool, unless it votes (docs/operations.md, The cluster map)";

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// what is wrong, a line each
    pub findings: Vec<String>,
    /// what is not wrong, but worth knowing: what the nodes finish or put right by themselves when they start
    pub notes: Vec<String>,
    /// how the copies of each region stand, a line for each region that has some
    pub replicas: Vec<String>,
    /// a region is in none of the pools, and no mirror of it; or nobody knows which there are
    pub lacking: bool,
    /// regions checked
    pub regions: usize,
    /// inodes in use
    pub inodes: u64,
}

/// Checks the pools of a cluster. What a crash has left is finished in them. `data`: file data is compared with its
/// checksums, too.
///
/// # Errors
/// [`RegionError::Pool`] when a pool is none, or they do not belong together.
pub fn check(pools: &[OfflinePool], data: bool, progress: &mut Progress<'_>) -> Result<Checked, RegionError> {
    let (mut cluster, damage) = Cluster::open(pools)?;
    let mut checked = Checked {
        findings: damage,
        ..Checked::default()
    };
    checked.findings.extend(cluster.doubled.iter().cloned());
    for (name, space) in &cluster.pools {
        if space.regions().is_empty() && space.lanes().is_empty() {
            checked.notes.push(format!("{name} holds no region yet"));
        }
    }
    checked.notes.extend(cluster.superseded.iter().cloned());
    look_at_copies(&mut cluster, data, progress, &mut checked);
    let mut lost = cluster.roles.regions().filter(|id| !cluster.of_region.contains_key(id));
    checked.lacking = cluster.roles.is_unknown() || lost.next().is_some();
    if let Some(why) = cluster.unopened.first().filter(|_| checked.lacking) {
        return Err(RegionError::Pool(why.clone()));
    }
    let unopened = cluster.unopened.iter();
    checked
        .findings
        .extend(unopened.map(|why| format!("{why}; {NOTHING_LOST}")));
    let mut finished = Finished::default();
    cluster.dispatch_decided(&mut finished);
    cluster.let_go_undecided(Unknown::Report, &mut finished)?;
    checked.findings.append(&mut finished.findings);
    checked.notes.append(&mut finished.notes);

    let segments = |(region, at): (&RegionId, &usize)| cluster.pools[*at].1.segments_of(*region).len() as u64;
    // each is read twice: for recovery, and for the check
    let total = 2 * cluster.of_region.iter().map(segments).sum::<u64>();
    let mut before = 0;
    let mut facts = Vec::new();
    for (&id, &at) in &cluster.of_region {
        let what = format!("checking region {}", id.0);
        let space = &cluster.pools[at].1;
        let mut advance = |done: u64| progress(&what, before + done, total);
        facts.extend(check_region(space, id, data, &mut advance, &mut checked));
        before += 2 * space.segments_of(id).len() as u64;
    }
    checked.regions = facts.len();
    checked.inodes = facts.iter().map(|f| f.inodes.len() as u64).sum();
    checked.findings.extend(join_facts(&facts));
    let named = facts.iter().flat_map(|f| &f.names).map(|name| name.target.ino.region());
    let strangers: BTreeSet<u16> = named
        .filter(|region| !cluster.of_region.contains_key(region))
        .map(|region| region.0)
        .collect();
    if !strangers.is_empty() {
        checked.findings.push(format!(
            "names lead to regions {strangers:?}, whose pools were not named, or are too damaged to tell: links are not checked"
        ));
    }
    Ok(checked)
}

/// Checks the copies, before the regions are changed; one of a region whose node is not here is checked as the region.
fn look_at_copies(cluster: &mut Cluster, data: bool, progress: &mut Progress<'_>, checked: &mut Checked) {
    let mut copies = cluster.copies();
    let mut advance = |done, total| progress("checking copies", done, total);
    checked.replicas = cluster.check_copies(&mut copies, data, &mut advance);
    for copy in &copies {
        let node = cluster.pools[copy.at].1.identity().node.0;
        let found = copy.findings.iter();
        let line = |what: &String| format!("copy of region {} at node {node}: {what}", copy.region.0);
        checked.findings.extend(found.map(line));
    }
    let away: BTreeSet<RegionId> = cluster
        .roles
        .regions()
        .filter(|id| !cluster.of_region.contains_key(id))
        .collect();
    for id in away {
        if let Some(heir) = cluster.heir(&copies, id) {
            let (at, node) = (heir.at, cluster.pools[heir.at].1.identity().node.0);
            checked.notes.push(format!(
                "region {}: the node that serves it is not here: node {node} takes its place when the nodes start",
                id.0
            ));
            cluster.of_region.insert(id, at);
        }
    }
}

/// Recovers and checks one region; `None` when it cannot be recovered, which is a finding.
fn check_region(
    space: &Arc<PoolSpace>,
    id: RegionId,
    data: bool,
    advance: &mut dyn FnMut(u64),
    checked: &mut Checked,
) -> Option<CheckFacts> {
    let (mut region, recovery) = match Region::recover(space, id, &mut |done, _| advance(done)) {
        Ok(recovered) => recovered,
        Err(e) => {
            checked.findings.push(format!("region {}: {e}", id.0));
            return None;
        }
    };
    checked.notes.extend(recovery.mended.into_iter().map(in_words));
    let segments = space.segments_of(id).len() as u64;
    let report = region.check(&mut |done, _| advance(segments + done));
    if data {
        checked.findings.extend(region.scrub_all().iter().map(|damaged| {
            let (ino, end) = (damaged.inode.ino, damaged.offset + damaged.len);
            format!(
                "inode {ino:?}: bytes {} to {end} of the file are damaged",
                damaged.offset
            )
        }));
    }
    let inode = |(inode, kind, nlink)| InodeFact { inode, kind, nlink };
    let name = |(dir, target, kind)| NameFact { dir, target, kind };
    Some(CheckFacts {
        region: id,
        findings: report.findings.into_iter().map(in_words).collect(),
        inodes: report.inodes.into_iter().map(inode).collect(),
        names: report.names.into_iter().map(name).collect(),
        next: None,
    })
}
