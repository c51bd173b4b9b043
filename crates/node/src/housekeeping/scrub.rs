//! Scrubbing: file data compared with its checksums, and regions with their mirrors, whoever asks for it and, now and then, unasked.
//!
//! It is done in steps of some ten microseconds in the region, between which others enter it. What is damaged, and whole in a mirror in the
//! set, is taken from there; what is another in a mirror is sent to it ([`compare`](crate::replication::compare)).

use crate::node::Node;
use crate::region_service::RegionService;
use crate::replication::fill::FillCounters;
use polvo_cluster::Links;
use polvo_format::{Gpa, NodeId, RegionOffset};
use polvo_proto::{CopyPlace, DamagedData, FsError, ScrubPlace, Scrubbed, ScrubbedCopies};
use polvo_region::Reconciled;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bytes verified while the region is entered once.
const STEP_BYTES: u64 = 64 << 10;
/// Steps of one request.
const STEPS: u32 = 64;
/// Least pause between the steps of a scrub that nobody has asked for.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Damaged places that the log names in one scrub of a region.
const LOGGED_MAX: usize = 20;

/// What scrubs have found since the node was started.
#[derive(Default)]
pub(crate) struct ScrubCounters {
    pub bytes: AtomicU64,
    pub damaged: AtomicU64,
    /// Pages that were damaged and are what a copy has.
    pub mended: AtomicU64,
    /// Pages of copies that were others, and were sent to them.
    pub sent: AtomicU64,
    /// What was compared with copies.
    pub copies: FillCounters,
}

impl ScrubCounters {
    /// What a comparison with copies has found: counted, and logged.
    pub fn note_copies(&self, service: &RegionService, done: &ScrubbedCopies) {
        let region = service.id.0;
        self.mended.fetch_add(done.mended.len() as u64, Relaxed);
        self.sent.fetch_add(done.sent, Relaxed);
        for (inode, node) in &done.mended {
            tracing::warn!(region, ?inode, node = node.0, "a damaged page is repaired from a copy");
        }
        if done.sent > 0 {
            tracing::warn!(
                region,
                pages = done.sent,
                "pages of copies were others, and are repaired"
            );
        }
        if done.left > 0 {
            tracing::error!(
                region,
                pages = done.left,
                "pages differ from those of a copy, and are not repaired"
            );
        }
    }
}

impl Node {
    /// Verifies some of a region's data, from a place on.
    pub(crate) async fn scrub(&self, links: &Rc<Links>, service: &RegionService, from: ScrubPlace) -> Scrubbed {
        let mut all = Scrubbed {
            next: Some(from),
            ..Scrubbed::default()
        };
        for _ in 0..STEPS {
            let Some(from) = all.next else { break };
            let step = self.scrub_step(links, service, from).await;
            all.next = step.next;
            all.bytes += step.bytes;
            all.unknown += step.unknown;
            all.damaged.extend(step.damaged);
            all.mended.extend(step.mended);
            tokio::task::yield_now().await;
        }
        all
    }

    async fn scrub_step(&self, links: &Rc<Links>, service: &RegionService, from: ScrubPlace) -> Scrubbed {
        let mut step = service.enter(|region| region.scrub(from, STEP_BYTES));
        self.scrubbed.bytes.fetch_add(step.bytes, Relaxed);
        self.scrubbed.damaged.fetch_add(step.damaged.len() as u64, Relaxed);
        let mut taken = BTreeMap::new();
        for damaged in std::mem::take(&mut step.damaged) {
            match self.mend(links, service, &damaged, &mut taken).await {
                Some(node) => step.mended.push((damaged, node)),
                None => step.damaged.push(damaged),
            }
        }
        step
    }

    /// Takes the page of a damaged place from a mirror that has it whole; says which. `taken`: those of before.
    async fn mend(
        &self,
        links: &Rc<Links>,
        service: &RegionService,
        damaged: &DamagedData,
        taken: &mut BTreeMap<RegionOffset, NodeId>,
    ) -> Option<NodeId> {
        let replication = service.replication().filter(|replication| replication.is_confirmed())?;
        let page = service.enter(|region| region.page_of(damaged))?;
        if let Some(node) = taken.get(&page) {
            return Some(*node);
        }
        let mirrors = replication.feed().lock().await.mirrors();
        for mirror in mirrors {
            let mut done = replication.reconcile(mirror, links, service, &[page]).await;
            if done.is_err() {
                replication.reconnect(mirror, links, service).await;
                done = replication.reconcile(mirror, links, service, &[page]).await;
            }
            match done.as_deref() {
                Ok([Reconciled::Taken(_)]) => {
                    let (region, inode) = (service.id.0, damaged.inode.ino);
                    tracing::warn!(
                        region,
                        ?inode,
                        offset = damaged.offset,
                        node = mirror.0,
                        "damaged file data is repaired from a copy"
                    );
                    self.scrubbed.mended.fetch_add(1, Relaxed);
                    taken.insert(page, mirror);
                    return Some(mirror);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(region = service.id.0, node = mirror.0, %error, "a copy"),
            }
        }
        None
    }

    /// Whether bytes of a region served here are damaged, in the page that they lie in or in one of those. What is no file data has
    /// other checksums.
    pub fn is_damaged(&self, at: Gpa, len: usize) -> Result<bool, FsError> {
        let service = self.service(at.region()).ok_or(FsError::WrongEpoch)?;
        Ok(match service.locate_data(at, len)? {
            Some(offset) => self.space.damaged_page(offset, len as u64).is_some(),
            None => false,
        })
    }
}

/// Scrubs all regions again and again, as slowly as it may. Runs until it is dropped.
pub(crate) async fn run(node: Arc<Node>, links: Rc<Links>) {
    let Some(pace) = node.config.scrub else {
        return std::future::pending().await;
    };
    let pause = Duration::from_secs_f64(STEP_BYTES as f64 / pace.rate.max(1) as f64).max(PAUSE_MIN);
    loop {
        tokio::time::sleep(pace.every).await;
        for service in node.regions.all() {
            let (mut place, mut logged) = (Some(ScrubPlace::default()), 0);
            while let Some(from) = place {
                let step = node.scrub_step(&links, service, from).await;
                for damaged in step.damaged {
                    logged += 1;
                    if logged <= LOGGED_MAX {
                        tracing::error!(inode = ?damaged.inode.ino, offset = damaged.offset, len = damaged.len, "file data is damaged");
                    }
                }
                place = step.next;
                tokio::time::sleep(pause).await;
            }
            let mut place = Some(CopyPlace::default());
            while let Some(from) = place {
                let step = node.scrub_copies(&links, service, from).await.unwrap_or_default();
                place = step.next;
                let steps = (step.bytes / STEP_BYTES).max(1);
                tokio::time::sleep(pause * u32::try_from(steps).unwrap_or(u32::MAX)).await;
            }
            if logged > LOGGED_MAX {
                let region = service.id.0;
                tracing::error!(
                    region,
                    all = logged,
                    "more file data is damaged; `polvo scrub` names all of it"
                );
            }
        }
    }
}
