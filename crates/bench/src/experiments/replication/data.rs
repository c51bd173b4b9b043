//! Reads and writes of one client.

use super::place::{FILE, Place, REPLICAS, User, shown, top};
use crate::BenchError;
use crate::baseline::memory::DurableMemory;
use crate::baseline::pages;
use crate::busy_polling::BusyPolling;
use crate::crowd::ops_of;
use crate::experiments::log_commits::ns_per_op;
use crate::report::Target::{self, AtMost};
use crate::report::{Findings, Unit};
use crate::requester::Requester;
use crate::samples::{Samples, Timed, each_in_turn};
use crate::suite::Context;
use polvo_client::OpenFile;
use polvo_cluster::RegionVerb;
use polvo_format::{Gpa, PAGE, RegionId};
use polvo_proto::{FsError, SetAttr, WriteAt, ask};
use polvo_testbed::cores::MEASURING;
use polvo_testbed::on_thread::OnThread;
use std::sync::Arc;

const MIB: usize = 1 << 20;
/// What a write inside a node may take beside the same without a copy: durable copies of as many bytes.
const DURABLE_COPIES: f64 = 1.5;
/// Pages that the one-sided writes go to, 1 MiB of them.
const PAGES: u32 = (MIB / PAGE) as u32;

/// Of 4 KiB unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Overwrite,
    Append,
    LargeWrite,
    Read,
    LargeRead,
}

use Operation::*;

/// The large ones first: later the file lies page by page here and there, and so does the space that is free.
const OPERATIONS: [(Operation, &str); 5] = [
    (LargeWrite, "1 MiB write"),
    (LargeRead, "1 MiB read"),
    (Overwrite, "4 KiB overwrite"),
    (Append, "4 KiB append"),
    (Read, "4 KiB read"),
];

impl Operation {
    fn is_write(self) -> bool {
        matches!(self, Overwrite | Append | LargeWrite)
    }

    pub(super) fn len(self) -> usize {
        match self {
            LargeWrite | LargeRead => MIB,
            Overwrite | Append | Read => PAGE,
        }
    }
}

/// Measures the places with clients of all kinds that go with the provider.
pub fn run(
    places: &[Place],
    provider: &'static str,
    context: &Context<'_>,
    found: &mut Findings<'_>,
) -> Result<(), BenchError> {
    match provider {
        "shm" => {
            by(places, "inside", context, found)?;
            by(places, provider, context, found)
        }
        _ => by(places, provider, context, found),
    }
}

/// Somebody who writes or reads.
enum Party<'a> {
    User(User, Arc<OpenFile>),
    /// One-sided writes to the pool of a node, or copies to a memory of its own: what a copy of the bytes takes at least.
    OneSided(OneSided),
    Copies(&'a DurableMemory),
}

fn by(places: &[Place], kind: &str, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let threads = match kind {
        "inside" => 1,
        "shm" => 2,
        _ => 3,
    };
    let _budgets = BusyPolling::by_threads(threads);
    let here = OnThread::on_core(Some(MEASURING))?;
    let memory = DurableMemory::new(context.scratch, FILE, None)?;
    let floor = match kind {
        "inside" => Party::Copies(&memory),
        provider => Party::OneSided(here.run(OneSided::new(&places[0], provider))?),
    };
    let mut parties = vec![floor];
    for place in places {
        let (client, top) = (place.client(kind)?, top(place.primary())?);
        let (user, file) = here.run(async {
            let user = User::new(client, top, kind).await?;
            let file = user.big_file().await?;
            Ok::<_, FsError>((user, file))
        })?;
        parties.push(Party::User(user, file));
    }
    for (operation, what) in OPERATIONS {
        // reads have no floor but what they take without copies
        let measured = if operation.is_write() {
            &mut parties[..]
        } else {
            &mut parties[1..]
        };
        let samples = each_in_turn(context.effort.rounds, measured, |party| {
            Ok([party.ns(operation, context.effort.ops, &here)?])
        })?;
        let samples: Vec<Samples> = samples.into_iter().map(|[samples]| samples).collect();
        match operation.is_write() {
            true => found_writes(operation, &format!("{kind} {what}"), kind, &samples, found),
            false => found_reads(&format!("{kind} {what}"), &samples, found),
        }
    }
    for party in parties {
        match party {
            Party::User(user, file) => {
                let (local, dir) = (user.local.clone(), user.dir);
                here.run(async {
                    drop(file);
                    local.unlink(dir, b"big").await
                })?;
                drop(local);
                here.run(async { user.end() });
            }
            Party::OneSided(one_sided) => here.run(async { one_sided.requester.close() }),
            Party::Copies(_) => {}
        }
    }
    Ok(())
}

/// Samples: of what the copies take at least, and with each number of replicas.
fn found_writes(operation: Operation, what: &str, kind: &str, samples: &[Samples], found: &mut Findings<'_>) {
    let (copy, none) = (&samples[0], &samples[1]);
    let copies = match kind {
        "inside" => "durable copy".to_owned(),
        provider => format!("{provider} one-sided write"),
    };
    found.figure(&format!("{copies}, beside {what}"), Unit::Ns, copy);
    let base = format!("{what}, {}", shown(1));
    found.figure(&base, Unit::Ns, none);
    let (floor, least) = match kind {
        "inside" => (
            format!("{base}, and {DURABLE_COPIES} durable copies"),
            none.median() + DURABLE_COPIES * copy.median(),
        ),
        _ => (format!("{base}, and a one-sided write"), none.median() + copy.median()),
    };
    found.figure(&floor, Unit::Ns, &Samples::exact(least));
    let (beside_none, beside_floor): (Option<Target>, Option<Target>) = match (kind, operation) {
        ("inside", LargeWrite) => (Some(AtMost(2.2)), None),
        ("inside", _) => (None, Some(AtMost(1.0))),
        (_, LargeWrite) => (Some(AtMost(2.2)), None),
        _ => (Some(AtMost(2.1)), Some(AtMost(1.25))),
    };
    let one = format!("{what}, {}", shown(REPLICAS[1]));
    found.against(&one, Unit::Ns, &samples[2], &base, beside_none);
    found.against(&one, Unit::Ns, &samples[2], &floor, beside_floor);
    let two = format!("{what}, {}", shown(REPLICAS[2]));
    let target = (operation != LargeWrite).then_some(AtMost(1.3));
    found.against(&two, Unit::Ns, &samples[3], &one, target);
}

fn found_reads(what: &str, samples: &[Samples], found: &mut Findings<'_>) {
    let base = format!("{what}, {}", shown(1));
    found.figure(&base, Unit::Ns, &samples[0]);
    for (replicas, samples) in REPLICAS.into_iter().zip(samples).skip(1) {
        found.against(&format!("{what}, {}", shown(replicas)), Unit::Ns, samples, &base, None);
    }
}

impl Party<'_> {
    /// Nanoseconds an operation.
    fn ns(&self, operation: Operation, ops: usize, here: &OnThread) -> Result<f64, BenchError> {
        let ops = ops_of(operation.len(), ops, 4 * FILE);
        match self {
            Party::Copies(memory) if operation == LargeWrite => Ok(MIB as f64 / memory.copy_to_sequentially()),
            Party::Copies(memory) => Ok(memory.copy_to_random_pages(ops)),
            Party::OneSided(one_sided) => here.run(one_sided.ns(operation.len(), ops)),
            Party::User(user, file) => here.run(of_user(user, file, operation, ops)),
        }
    }
}

pub(super) async fn of_user(
    user: &User,
    file: &Arc<OpenFile>,
    operation: Operation,
    ops: usize,
) -> Result<f64, BenchError> {
    let local = &user.local;
    let mut bytes = vec![9u8; operation.len()];
    let places: Vec<u64> = match operation.len() {
        PAGE => pages(FILE, ops).collect(),
        len => (0..FILE).step_by(len).collect(),
    };
    let at = |n: usize| places[n % places.len()];
    match operation {
        Overwrite | LargeWrite => ns_per_op(ops, async |n| local.write(file, at(n), &bytes).await.map(drop)).await,
        Append => {
            let (_, file) = local
                .create_open(user.dir, b"longer", polvo_testbed::cluster::new_file())
                .await?;
            let append = async |_| local.write_at(&file, WriteAt::End, &bytes).await.map(drop);
            let ns = ns_per_op(ops, append).await?;
            let empty = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            local.set_attr(file.inode(), empty).await?;
            drop(file);
            local.unlink(user.dir, b"longer").await?;
            Ok(ns)
        }
        Read | LargeRead => {
            let mut timed = Timed::new(ops);
            for n in timed.by_ref() {
                local.read(file, at(n), &mut bytes).await?;
            }
            Ok(timed.ns_per_op())
        }
    }
}

/// One-sided writes to the place without copies.
struct OneSided {
    requester: Requester,
    /// Of [`PAGES`] pages.
    at: Gpa,
}

impl OneSided {
    async fn new(place: &Place, provider: &str) -> Result<OneSided, BenchError> {
        let requester = Requester::remote(place.primary(), provider);
        let (region, pages) = (RegionId(0), PAGES);
        // what is free may lie in pieces, which come first
        for _ in 0..PAGES {
            let runs = requester.ask(ask::Delegate { region, pages }).await?;
            if let Some(whole) = runs.iter().find(|run| run.pages >= PAGES) {
                let at = whole.gpa;
                return Ok(OneSided { requester, at });
            }
        }
        Err("a pool that is nearly empty has no 1 MiB in one piece".into())
    }

    async fn ns(&self, len: usize, ops: usize) -> Result<f64, BenchError> {
        self.requester.renew().await;
        let bytes = vec![7u8; len];
        let pieces = MIB / len;
        let write = async |n: usize| {
            let at = Gpa(self.at.0 + (n % pieces * len) as u64);
            let mut write = [RegionVerb::WriteData { at, bytes: &bytes }];
            self.requester
                .links()
                .one_sided(RegionId(0), &mut write)
                .await
                .map(drop)
        };
        ns_per_op(ops, write).await
    }
}
