//! The newest cluster map known to this process.

use parking_lot::{Mutex, RwLock};
use polvo_format::{Epoch, RegionId};
use polvo_proto::ClusterMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::watch;

/// The newest cluster map known to this process; `Send + Sync`.
pub struct MapCell {
    newest: RwLock<Arc<ClusterMap>>,
    /// Its epoch, which each request names: threads do not meet at the lock for it.
    epoch: AtomicU64,
    /// Any region has copies, so that threads need not look where none has.
    replicated: AtomicBool,
    link_sets: AtomicU64,
    /// How often regions have moved.
    moves: AtomicU64,
    hooks: Mutex<Vec<Hook>>,
    /// Told the epoch of each newer map.
    changes: watch::Sender<Epoch>,
}

/// What is told of regions that have moved: the maps before and after.
type Hook = Box<dyn Fn(&ClusterMap, &ClusterMap) + Send + Sync>;

impl MapCell {
    /// Starts with a map.
    pub fn new(map: ClusterMap) -> Arc<MapCell> {
        Arc::new(MapCell {
            epoch: AtomicU64::new(map.epoch.0),
            replicated: AtomicBool::new(map.is_replicated()),
            newest: RwLock::new(Arc::new(map)),
            link_sets: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            hooks: Mutex::default(),
            changes: watch::Sender::new(Epoch(0)),
        })
    }

    /// The newest.
    pub fn get(&self) -> Arc<ClusterMap> {
        self.newest.read().clone()
    }

    /// Epoch of the newest.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// How often any region has got another primary: what is known of where a region lies is void once that has changed, though it may be
    /// served by the same node again.
    #[inline]
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Has this region copies, one of which may take its primary's place?
    #[inline]
    pub fn has_copies(&self, region: RegionId) -> bool {
        self.replicated.load(Ordering::Acquire) && self.get().region(region).is_some_and(|info| info.replicas.len() > 1)
    }

    /// Takes a newer one. Older ones, and maps of another cluster, are ignored. On which host a node is, this process goes on to
    /// believe what it knew before: hosts are known by an identity that each start of a host draws anew, and not everybody knows it.
    pub fn offer(&self, mut map: ClusterMap) {
        // held while others are told, and not the map: they take locks under which somebody else may be asking for it
        let hooks = self.hooks.lock();
        let newest = self.get();
        if map.cluster != newest.cluster || map.epoch <= newest.epoch {
            return;
        }
        for node in &mut map.nodes {
            if let Some(known) = newest.node(node.id).filter(|known| !known.host.is_empty()) {
                node.host.clone_from(&known.host);
            }
        }
        let epoch = map.epoch;
        self.replicated.store(map.is_replicated(), Ordering::Release);
        let mut regions = map.regions.iter();
        let has_moved = regions.any(|region| newest.primary(region.id) != region.primary());
        if has_moved {
            self.moves.fetch_add(1, Ordering::AcqRel);
            // before anybody goes by the new map: what was had of the old primaries is gone
            hooks.iter().for_each(|hook| hook(&newest, &map));
        }
        *self.newest.write() = Arc::new(map);
        // last: who goes by the map from before does not name the epoch of this one
        self.epoch.store(epoch.0, Ordering::Release);
        drop(hooks);
        self.changes.send_replace(epoch);
    }

    /// Has this called whenever regions have other primaries than before, with the maps before and after, before anybody gets the
    /// latter. It must neither offer a map nor have others called.
    pub fn on_moves(&self, hook: impl Fn(&ClusterMap, &ClusterMap) + Send + Sync + 'static) {
        self.hooks.lock().push(Box::new(hook));
    }

    /// Waits until one of these regions has another primary than now.
    pub async fn moved(&self, regions: &[RegionId]) {
        let mut changes = self.changes.subscribe();
        let before = self.get();
        let has_moved = |_: &Epoch| {
            let now = self.get();
            regions
                .iter()
                .any(|region| now.primary(*region) != before.primary(*region))
        };
        // an error would mean that the cell is gone, which is borrowed here
        let _moved = changes.wait_for(has_moved).await;
    }

    /// Waits for a map that is newer than that of an epoch.
    pub async fn newer_than(&self, epoch: Epoch) {
        let mut changes = self.changes.subscribe();
        let _newer = changes.wait_for(|_| self.epoch() > epoch).await;
    }

    /// Number for one more set of links over this map.
    pub(crate) fn number_link_set(&self) -> u64 {
        self.link_sets.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_consensus::Voters;
    use polvo_format::NodeId;
    use polvo_proto::{NodeInfo, RegionInfo, RegionSet, Replica, ReplicaRole};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    fn map(cluster: u8, epoch: u64) -> ClusterMap {
        ClusterMap {
            cluster: [cluster; 16],
            epoch: Epoch(epoch),
            nodes: vec![],
            regions: vec![],
            voters: Voters::new([NodeId(0)]),
        }
    }

    #[test]
    fn only_newer_maps_of_the_same_cluster_are_taken() {
        let cell = MapCell::new(map(1, 5));
        for (offered, epoch_then) in [(map(1, 4), 5), (map(2, 9), 5), (map(1, 6), 6), (map(1, 6), 6)] {
            cell.offer(offered);
            assert_eq!((cell.get().cluster, cell.get().epoch), ([1; 16], Epoch(epoch_then)));
            assert_eq!(cell.epoch(), Epoch(epoch_then));
        }
    }

    #[test]
    fn a_host_that_is_known_stays_known() {
        let node = |id, host: &str| NodeInfo {
            id: NodeId(id),
            host: host.into(),
            addresses: vec![],
        };
        let with = |epoch, nodes: &[NodeInfo]| ClusterMap {
            nodes: nodes.to_vec(),
            ..map(1, epoch)
        };
        let cell = MapCell::new(with(1, &[node(0, "here"), node(1, "")]));
        cell.offer(with(2, &[node(0, "before"), node(1, "there"), node(2, "")]));
        assert_eq!(cell.get().nodes, [node(0, "here"), node(1, "there"), node(2, "")]);
    }

    /// Whoever is told that regions have moved takes locks, and who has one of them may be asking for the map.
    #[test]
    fn the_map_can_be_had_while_others_are_told_that_regions_have_moved() {
        let with = |epoch, primary| {
            let replicas = vec![Replica {
                node: NodeId(primary),
                role: ReplicaRole::Primary,
            }];
            let region = RegionInfo {
                id: RegionId(0),
                set: RegionSet::default(),
                epoch: Epoch(epoch),
                replicas,
            };
            ClusterMap {
                regions: vec![region],
                ..map(1, epoch)
            }
        };
        let cell = MapCell::new(with(1, 0));
        let theirs = Arc::new(Mutex::new(()));
        let (tells, told) = mpsc::channel();
        let lock = theirs.clone();
        cell.on_moves(move |before, now| {
            tells
                .send((before.primary(RegionId(0)), now.primary(RegionId(0))))
                .unwrap();
            drop(lock.lock());
        });
        let held = theirs.lock();
        let offering = {
            let cell = cell.clone();
            thread::spawn(move || cell.offer(with(2, 1)))
        };
        assert_eq!(told.recv().unwrap(), (Some(NodeId(0)), Some(NodeId(1))));
        let (gets, got) = mpsc::channel();
        let asking = cell.clone();
        thread::spawn(move || gets.send((asking.get().epoch, asking.epoch())));
        let seen = got.recv_timeout(Duration::from_secs(20));
        assert_eq!(
            seen,
            Ok((Epoch(1), Epoch(1))),
            "nobody goes by the new one before all are told"
        );
        drop(held);
        offering.join().unwrap();
        assert_eq!((cell.get().epoch, cell.epoch()), (Epoch(2), Epoch(2)));
    }
}
