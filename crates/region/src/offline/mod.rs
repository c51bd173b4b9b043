//! The pools of a stopped cluster, all at hand at once: what a crash has left is finished as the nodes would do it at
//! their start, everything is checked ([`check`]), and damage is repaired ([`repair`]).
//!
//! A region is what the node has that serves it by the newest cluster map in the pools; what others have of it is a copy, or what it was
//! once. Invariant: nobody writes to a copy here but what has come to its lane, so it is what its node would find at its start; but a
//! repair may say of one that it is not whole.
//!
//! Pools are given open and locked, so nobody else uses them. To look without touching, give private copies of them.

mod cluster_check;
mod copies;
mod finish;
mod name_tree;
mod repair;
mod restore;
mod rewrite;
mod roles;
mod salvage;
mod segments;

use crate::store::Store;
use crate::{Finding, Lane, PoolSpace, RegionError};
use polvo_format::{Gpa, NodeId, RegionId, SequenceLimit, TxnId};
use polvo_pmem::Pmem;
use polvo_proto::KeptMap;
use roles::Roles;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use cluster_check::{Checked, NOTHING_LOST, check};
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
    /// regions that are in more than one pool, and no map says which counts
    doubled: Vec<String>,
    /// what was a region once, and is served elsewhere now
    superseded: Vec<String>,
    roles: Roles,
    /// pools that are none, or too damaged to be opened, and why
    unopened: Vec<String>,
}

impl Cluster {
    /// Opens the pools for checking, and gives the damage found on the way, a line each.
    ///
    /// # Errors
    /// [`RegionError::Pool`], naming the pool, for what is not of this cluster, or of a node that has one already; and for what is no pool,
    /// unless regions have copies.
    fn open(pools: &[OfflinePool]) -> Result<(Cluster, Vec<String>), RegionError> {
        let mut cluster = Cluster {
            pools: Vec::new(),
            of_region: BTreeMap::new(),
            doubled: Vec::new(),
            superseded: Vec::new(),
            roles: Roles::default(),
            unopened: Vec::new(),
        };
        let mut damage = Vec::new();
        for OfflinePool { name, pmem } in pools {
            let refuse = |why: String| RegionError::Pool(format!("pool {name}: {why}"));
            let (space, findings) = match PoolSpace::open_for_check(pmem.clone()) {
                Ok(opened) => opened,
                Err(e) => {
                    cluster.unopened.push(format!("pool {name}: {e}"));
                    continue;
                }
            };
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
            cluster.roles.learn(&space);
            cluster.pools.push((name.clone(), space));
        }
        cluster.assign(&mut damage);
        match cluster
            .unopened
            .first()
            .filter(|_| !cluster.roles.regions().any(|id| cluster.roles.has_copies(id)))
        {
            Some(why) => Err(RegionError::Pool(why.clone())),
            None => Ok((cluster, damage)),
        }
    }

    /// Which pool has each region. A copy that its node has become primary of takes its place, as at the start of that node.
    fn assign(&mut self, damage: &mut Vec<String>) {
        let mut held: BTreeMap<RegionId, Vec<usize>> = BTreeMap::new();
        for (at, (_, space)) in self.pools.iter().enumerate() {
            space
                .regions()
                .into_iter()
                .for_each(|id| held.entry(id).or_default().push(at));
        }
        let known: BTreeSet<RegionId> = held.keys().copied().chain(self.roles.regions()).collect();
        for id in known {
            let held = held.get(&id).map_or(&[][..], Vec::as_slice);
            let primary = self.roles.primary(id);
            let named = primary.and_then(|node| self.pool_of(node));
            if let Some(at) = named.filter(|at| self.pools[*at].1.has_copy(id)) {
                match Lane::promote_in(&self.pools[at].1, id) {
                    Ok(_) => _ = self.of_region.insert(id, at),
                    Err(e) => damage.push(format!("region {}: its node has no more than a copy: {e}", id.0)),
                }
            } else if let Some(at) = named.filter(|at| held.contains(at)) {
                self.of_region.insert(id, at);
            } else if primary.is_none() || held.len() == 1 && !self.roles.has_copies(id) {
                held.iter().take(1).for_each(|at| _ = self.of_region.insert(id, *at));
            }
            let others = held.iter().filter(|at| self.of_region.get(&id) != Some(at));
            for (name, _) in others.map(|at| &self.pools[*at]) {
                match (primary, self.of_region.get(&id)) {
                    (Some(node), _) => self.superseded.push(format!(
                        "{name} has region {} as it was before node {} served it: it becomes a copy when the nodes start",
                        id.0, node.0
                    )),
                    (None, at) => {
                        let (first, _) = &self.pools[*at.expect("one of those that have it")];
                        self.doubled
                            .push(format!("region {} is in two pools, {first} and {name}", id.0));
                    }
                }
            }
        }
    }

    fn pool_of(&self, node: NodeId) -> Option<usize> {
        self.pools.iter().position(|(_, space)| space.identity().node == node)
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
