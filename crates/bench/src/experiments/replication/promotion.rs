//! How long a mirror takes to serve its region once it has decided to.

use super::place::{User, top};
use crate::BenchError;
use crate::report::Target::AtMost;
use crate::report::{Findings, Unit};
use crate::samples::Samples;
use crate::suite::Context;
use polvo_proto::FsError;
use polvo_testbed::cluster::{BenchNode, ClusterPlan, PATIENT, new_file};
use polvo_testbed::on_thread::OnThread;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Metadata, Subscriber};

const MIB: usize = 1 << 20;
const FILES: usize = 8;
/// Of the eight files together, MiB.
const SIZES: [usize; 3] = [32, 128, 512];
/// Hydra, Table 2.
const MOST_MS: f64 = 250.0;
/// Not longer than for the smallest size by more than a tenth.
const FLAT: f64 = 1.1;
const SMALL_FILES: usize = 100_000;
const SMALL: usize = 100;
/// A mirror has taken the place by then.
const TAKEN: Duration = Duration::from_secs(120);

/// What is in the region.
#[derive(Clone, Copy)]
enum Holding {
    /// Eight files of so many MiB in all.
    Large(usize),
    /// So many files of [`SMALL`] bytes.
    Small(usize),
}

pub fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    // somebody who has set another one before has no figures of these
    tracing::subscriber::set_global_default(Promotions).map_err(|_| "somebody else reads the log")?;
    let mut figures = SIZES.map(|_| Vec::new());
    for _ in 0..context.effort.rounds {
        for (size, figures) in SIZES.into_iter().zip(&mut figures) {
            figures.push(promoted_ms(Holding::Large(size), context)?);
        }
    }
    let row = |size: usize| format!("promotion, {FILES} files of {size} MiB in all");
    for (size, figures) in SIZES.into_iter().zip(figures) {
        let samples = Samples::new(figures);
        found.bounded(&row(size), Unit::Ms, &samples, AtMost(MOST_MS));
        if size != SIZES[0] {
            found.against(&row(size), Unit::Ms, &samples, &row(SIZES[0]), Some(AtMost(FLAT)));
        }
    }
    let mut counts = vec![SMALL_FILES];
    counts.extend(Some(50 * context.effort.ops).filter(|count| *count > SMALL_FILES));
    for count in counts {
        let samples = Samples::exact(promoted_ms(Holding::Small(count), context)?);
        found.figure(
            &format!("promotion, {count} files of {SMALL} bytes"),
            Unit::Ms,
            &samples,
        );
    }
    Ok(())
}

/// Fills a region, stops its primary, and waits until the mirror has taken its place: milliseconds by its log.
fn promoted_ms(holding: Holding, context: &Context<'_>) -> Result<f64, BenchError> {
    let pool_len = match holding {
        Holding::Large(size) => (size * MIB * 2 + (256 << 20)) as u64,
        Holding::Small(count) => (count * 6144 + (256 << 20)) as u64,
    };
    let dir = context.scratch.join("promotion");
    std::fs::create_dir(&dir)?;
    let plan = ClusterPlan {
        nodes: 3,
        replicas: 2,
        provider: Some("shm"),
        timeouts: PATIENT,
        ..ClusterPlan::one_node(&dir, pool_len)
    };
    let mut nodes = plan.start()?;
    let primary = nodes.remove(0);
    primary.mirrored()?;
    let (here, client, top) = (OnThread::new()?, primary.internal(), top(&primary)?);
    client.start_maintenance();
    let filled = here.run(async {
        let user = User::new(client, top, "filled").await?;
        fill(&user, holding).await?;
        Ok::<_, FsError>(user)
    })?;
    let inode = filled.dir;
    here.run(async { filled.end() });
    primary.stop()?;
    let taken = Promotions::next()?;
    // of three nodes the next one has the copy
    is_served(&nodes[0], inode, holding)?;
    nodes.into_iter().try_for_each(BenchNode::stop)?;
    std::fs::remove_dir_all(&dir)?;
    Ok(taken.as_secs_f64() * 1e3)
}

fn name(n: usize) -> Vec<u8> {
    format!("file-{n}").into_bytes()
}

async fn fill(user: &User, holding: Holding) -> Result<(), FsError> {
    let (count, len, piece) = match holding {
        Holding::Large(size) => (FILES, size * MIB / FILES, MIB),
        Holding::Small(count) => (count, SMALL, SMALL),
    };
    let bytes = vec![7u8; piece];
    for n in 0..count {
        let (_, file) = user.local.create_open(user.dir, &name(n), new_file()).await?;
        for at in (0..len).step_by(piece) {
            user.local.write(&file, at as u64, &bytes).await?;
        }
    }
    Ok(())
}

/// All files are there, at their full length.
fn is_served(node: &BenchNode, dir: polvo_proto::InodeRef, holding: Holding) -> Result<(), BenchError> {
    let (last, len) = match holding {
        Holding::Large(size) => (FILES - 1, size * MIB / FILES),
        Holding::Small(count) => (count - 1, SMALL),
    };
    let client = node.internal();
    let attr = client.run(|c| async move { c.lookup(dir, &name(last)).await })?;
    client.shutdown();
    match attr.size == len as u64 {
        true => Ok(()),
        false => Err("a mirror that was promoted lacks something".into()),
    }
}

/// Reads in the log of the nodes in this process which regions were taken over, and how long that took.
struct Promotions;

static TAKEN_OVER: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

impl Promotions {
    /// The next one's time.
    fn next() -> Result<Duration, BenchError> {
        let begun = Instant::now();
        while begun.elapsed() < TAKEN {
            let taken = TAKEN_OVER.lock().ok().and_then(|mut taken| taken.pop());
            if let Some(taken) = taken {
                return Ok(taken);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("no mirror has taken the place of its primary".into())
    }
}

/// The field of that event.
const AFTER: &str = "after_us";

impl Subscriber for Promotions {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.fields().field(AFTER).is_some()
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut After);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct After;

impl Visit for After {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if let (AFTER, Ok(mut taken)) = (field.name(), TAKEN_OVER.lock()) {
            taken.push(Duration::from_micros(value));
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}
