//! The newest cluster map known to this process.

use parking_lot::RwLock;
use polvo_format::Epoch;
use polvo_proto::ClusterMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The newest cluster map known to this process; `Send + Sync`.
pub struct MapCell {
    newest: RwLock<Arc<ClusterMap>>,
    /// Its epoch, which each request names: threads do not meet at the lock for it.
    epoch: AtomicU64,
    link_sets: AtomicU64,
}

impl MapCell {
    /// Starts with a map.
    pub fn new(map: ClusterMap) -> Arc<MapCell> {
        Arc::new(MapCell {
            epoch: AtomicU64::new(map.epoch.0),
            newest: RwLock::new(Arc::new(map)),
            link_sets: AtomicU64::new(0),
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

    /// Takes a newer one. Older ones, and maps of another cluster, are ignored.
    pub fn offer(&self, map: ClusterMap) {
        let mut newest = self.newest.write();
        if map.cluster == newest.cluster && map.epoch > newest.epoch {
            let epoch = map.epoch.0;
            *newest = Arc::new(map);
            // last: who goes by the map from before does not name the epoch of this one
            self.epoch.store(epoch, Ordering::Release);
        }
    }

    /// Number for one more set of links over this map.
    pub(crate) fn number_link_set(&self) -> u64 {
        self.link_sets.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(cluster: u8, epoch: u64) -> ClusterMap {
        ClusterMap {
            cluster: [cluster; 16],
            epoch: Epoch(epoch),
            nodes: vec![],
            regions: vec![],
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
}
