//! The pools of a stopped cluster, all at hand at once: what a crash has left is finished as the nodes would do it at
//! their start, everything is checked ([`check`]), and damage is repaired ([`repair`]).
//!
//! Pools are given open and locked, so nobody else uses them. To look without touching, give private copies of them.

mod cluster_check;
mod finish;
mod name_tree;
mod repair;
mod rewrite;
mod salvage;
mod segments;

use crate::store::Store;
use crate::{Finding, PoolSpace, RegionError};
use polvo_format::{Gpa, RegionId, SequenceLimit, TxnId};
use polvo_pmem::Pmem;
use polvo_proto::KeptMap;
use std::collections::BTreeMap;
use std::sync::Arc;

pub use cluster_check::{Checked, check};
pub use repair::{Repaired, repair};

/// Where a long run is: what is being done, units done, units in all.
pub type Progress<'a> = dyn FnMut(&str, u64, u64) + 'a;

/// A pool and what to call it.
#[derive(Clone)]
pub struct OfflinePool {
    /// for messages, its path
    pub name: String,
    /// the pool
    pub pmem: Arc<Pmem>,
}

/// Pools that belong together, opened.
struct Cluster {
    pools: Vec<(String, Arc<PoolSpace>)>,
    /// which of them has a region
    of_region: BTreeMap<RegionId, usize>,
    /// regions that are in more than one pool
    doubled: Vec<String>,
}

impl Cluster {
    /// Opens the pools for checking, and gives the damage found on the way, a line each.
    ///
    /// # Errors
    /// [`RegionError::Pool`], naming the pool, for what is no pool, or not of this cluster, or of a node that has one
    /// already.
    fn open(pools: &[OfflinePool]) -> Result<(Cluster, Vec<String>), RegionError> {
        let mut cluster = Cluster {
            pools: Vec::new(),
            of_region: BTreeMap::new(),
            doubled: Vec::new(),
        };
        let mut damage = Vec::new();
        for OfflinePool { name, pmem } in pools {
            let refuse = |why: String| RegionError::Pool(format!("pool {name}: {why}"));
            let (space, findings) = PoolSpace::open_for_check(pmem.clone()).map_err(|e| refuse(e.to_string()))?;
            let id = space.identity();
            for (other, there) in &cluster.pools {
                let known = there.identity();
                if known.cluster != id.cluster {
                    return Err(refuse(format!("is of another cluster than {other}")));
                }
                if known.node == id.node {
                    return Err(refuse(format!("is of node {}, and so is {other}", id.node.0)));
                }
            }
            damage.extend(findings.into_iter().map(|f| format!("{name}: {}", f.what)));
            damage.extend(register_damage(&space).map(|what| format!("{name}: {what}")));
            let at = cluster.pools.len();
            for region in space.regions() {
                if let Some(other) = cluster.of_region.insert(region, at) {
                    let other = cluster.pools.get(other).map_or(name, |(other, _)| other);
                    let what = format!("region {} is in two pools, {other} and {name}", region.0);
                    cluster.doubled.push(what);
                }
            }
            cluster.pools.push((name.clone(), space));
        }
        Ok((cluster, damage))
    }

    fn space_of(&self, region: RegionId) -> Option<&Arc<PoolSpace>> {
        self.of_region.get(&region).map(|at| &self.pools[*at].1)
    }

    /// Is a record of this transaction in the redo log of its coordinator?
    fn is_logged(&self, txn: TxnId) -> bool {
        self.space_of(txn.region()).is_some_and(|space| space.is_logged(txn))
    }

    /// Where bytes at an address lie: the pool and the offset in it.
    fn locate(&self, gpa: Gpa, len: u64) -> Option<(&Arc<Pmem>, u64)> {
        let space = self.space_of(gpa.region())?;
        Some((space.pmem(), space.locate(gpa, len)?))
    }

    /// Could the coordinator of this transaction have begun it? `None` when its region is not here.
    fn was_begun(&self, txn: TxnId) -> Option<bool> {
        let store = Store::new(self.space_of(txn.region())?, txn.region()).ok()?;
        // a damaged word is mended before; without that all numbers may have been used
        let limit = store.read_sequence().unwrap_or(SequenceLimit(1 << 48));
        Some(TxnId::is_number(txn.sequence()) && txn.sequence() < limit.0)
    }
}

/// What is wrong with what a pool keeps of the cluster map. Nobody can make it anew: its node does not vote until it is replaced.
fn register_damage(space: &PoolSpace) -> Option<String> {
    match space.register() {
        Ok(None) => None,
        Ok(Some(bytes)) => KeptMap::decode(&bytes).err().map(|why| format!("register: {why}")),
        Err(error) => Some(error.to_string()),
    }
}

/// As a user reads it.
fn in_words(finding: Finding) -> String {
    match finding.ino {
        Some(ino) => format!("inode {ino:?}: {}", finding.what),
        None => finding.what,
    }
}
