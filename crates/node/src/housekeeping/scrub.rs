//! Scrubbing: file data compared with its checksums, whoever asks for it and, now and then, unasked.
//!
//! It is done in steps of some ten microseconds in the region, between which others enter it.

use crate::node::Node;
use crate::region_service::RegionService;
use polvo_format::Gpa;
use polvo_proto::{FsError, ScrubPlace, Scrubbed};
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
}

impl Node {
    /// Verifies some of a region's data, from a place on.
    pub(crate) async fn scrub(&self, service: &RegionService, from: ScrubPlace) -> Scrubbed {
        let mut all = Scrubbed {
            next: Some(from),
            ..Scrubbed::default()
        };
        for _ in 0..STEPS {
            let Some(from) = all.next else { break };
            let step = self.scrub_step(service, from);
            all.next = step.next;
            all.bytes += step.bytes;
            all.unknown += step.unknown;
            all.damaged.extend(step.damaged);
            tokio::task::yield_now().await;
        }
        all
    }

    fn scrub_step(&self, service: &RegionService, from: ScrubPlace) -> Scrubbed {
        let step = service.enter(|region| region.scrub(from, STEP_BYTES));
        self.scrubbed.bytes.fetch_add(step.bytes, Relaxed);
        self.scrubbed.damaged.fetch_add(step.damaged.len() as u64, Relaxed);
        step
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
pub(crate) async fn run(node: Arc<Node>) {
    let Some(pace) = node.config.scrub else {
        return std::future::pending().await;
    };
    let pause = Duration::from_secs_f64(STEP_BYTES as f64 / pace.rate.max(1) as f64).max(PAUSE_MIN);
    loop {
        tokio::time::sleep(pace.every).await;
        for service in node.regions.all() {
            let (mut place, mut logged) = (Some(ScrubPlace::default()), 0);
            while let Some(from) = place {
                let step = node.scrub_step(service, from);
                for damaged in step.damaged {
                    logged += 1;
                    if logged <= LOGGED_MAX {
                        tracing::error!(inode = ?damaged.inode.ino, offset = damaged.offset, len = damaged.len, "file data is damaged");
                    }
                }
                place = step.next;
                tokio::time::sleep(pause).await;
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
