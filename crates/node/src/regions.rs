//! The regions that a node serves. They come and go while it runs: a copy here takes the place of a primary that is dead, and a primary
//! that others take for dead ends serving.
//!
//! A request holds on to the service that it began with, and whoever asks for a region gets the one that serves it now. A service that has
//! ended stays where it is, refuses all, and goes with the node.

use crate::region_service::RegionService;
use parking_lot::Mutex;
use polvo_format::RegionId;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// One after the other, the services of a region in this incarnation of the node.
#[derive(Default)]
struct Terms {
    first: OnceLock<Box<Term>>,
}

struct Term {
    service: Arc<RegionService>,
    next: Terms,
}

impl Terms {
    /// The last one.
    fn last(&self) -> Option<&Arc<RegionService>> {
        let mut last = self.first.get()?;
        while let Some(next) = last.next.first.get() {
            last = next;
        }
        Some(&last.service)
    }

    fn add(&self, service: Arc<RegionService>) {
        let mut end = self;
        while let Some(term) = end.first.get() {
            end = &term.next;
        }
        let next = Terms::default();
        let set = end.first.set(Box::new(Term { service, next }));
        assert!(set.is_ok(), "who adds is alone");
    }
}

/// The regions that a node serves.
pub(crate) struct Regions {
    /// By number: all regions of the cluster.
    terms: Vec<Terms>,
    adding: Mutex<()>,
    /// One more is served since.
    pub begun: Notify,
}

impl Regions {
    /// None yet, of a cluster with so many.
    pub fn new(count: usize) -> Regions {
        Regions {
            terms: (0..count).map(|_| Terms::default()).collect(),
            adding: Mutex::new(()),
            begun: Notify::new(),
        }
    }

    /// The service of a region that is served here now.
    #[inline]
    pub fn get(&self, region: RegionId) -> Option<&Arc<RegionService>> {
        self.last(region).filter(|service| !service.has_ended())
    }

    /// The service of a region that is served here now, or was the last one.
    pub fn last(&self, region: RegionId) -> Option<&Arc<RegionService>> {
        self.terms.get(usize::from(region.0))?.last()
    }

    /// A region is served here from now on.
    ///
    /// # Panics
    /// When it is served already, or the cluster has no such region.
    pub fn begin(&self, service: Arc<RegionService>) {
        let _alone = self.adding.lock();
        assert!(self.get(service.id).is_none(), "region {} is served once", service.id.0);
        self.terms[usize::from(service.id.0)].add(service);
        self.begun.notify_waiters();
    }

    /// All that are served now, in order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<RegionService>> {
        let services = self.terms.iter().filter_map(Terms::last);
        services.filter(|service| !service.has_ended())
    }
}
