//! Changes of one client, by when they are answered.

use super::data::Operation::{self, Append, LargeWrite, Overwrite};
use super::data::of_user;
use super::place::{FILE, User, places_in_modes, shown, top};
use crate::BenchError;
use crate::busy_polling::BusyPolling;
use crate::crowd::ops_of;
use crate::experiments::log_commits::ns_per_op;
use crate::report::Target::AtMost;
use crate::report::{Findings, Unit};
use crate::samples::each_in_turn;
use crate::suite::Context;
use polvo_client::OpenFile;
use polvo_proto::{Durability, FsError};
use polvo_testbed::cluster::new_file;
use polvo_testbed::cores::MEASURING;
use polvo_testbed::on_thread::OnThread;
use std::sync::Arc;

/// In the order in which they are measured.
const MODES: [Durability; 3] = [Durability::SyncFlush, Durability::Sync, Durability::Async];
/// What a change may take whose mirror is not waited for, beside one without copies.
const AHEAD: f64 = 1.1;
/// And one that does not wait for the mirror's flush, beside one that does.
const UNFLUSHED: f64 = 1.0;

const WRITES: [(Operation, &str); 3] = [
    (LargeWrite, "1 MiB write"),
    (Overwrite, "4 KiB overwrite"),
    (Append, "4 KiB append"),
];

/// Measures clients over the provider.
pub fn run(provider: &'static str, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let _budgets = BusyPolling::by_threads(if provider == "shm" { 2 } else { 3 });
    let here = OnThread::on_core(Some(MEASURING))?;
    let places = places_in_modes(context, &MODES, provider)?;
    let mut users = Vec::new();
    for place in &places {
        let (client, top) = (place.client(provider)?, top(place.primary())?);
        users.push(here.run(async {
            let user = User::new(client, top, "modes").await?;
            let file = user.big_file().await?;
            Ok::<_, FsError>((user, file))
        })?);
    }
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    for (operation, what) in WRITES {
        let ops = ops_of(operation.len(), ops, 4 * FILE);
        let samples = each_in_turn(rounds, &mut users, |(user, file)| {
            Ok([here.run(of_user(user, file, operation, ops))?])
        })?;
        beside_each_other(&format!("{provider} {what}"), &samples, found);
    }
    let samples = each_in_turn(rounds, &mut users, |(user, _)| {
        Ok([here.run(made_and_removed(user, ops))?])
    })?;
    beside_each_other(&format!("{provider} create and unlink"), &samples, found);
    for (user, file) in users {
        here.run(async {
            drop::<Arc<OpenFile>>(file);
            user.end();
        });
    }
    places.into_iter().try_for_each(super::place::Place::end)
}

/// Samples: without copies, and in each of the [`MODES`].
fn beside_each_other(what: &str, samples: &[[crate::samples::Samples; 1]], found: &mut Findings<'_>) {
    let row = |mode: Durability| format!("{what}, {}, {mode}", shown(2));
    let none = format!("{what}, {}, beside modes", shown(1));
    found.figure(&none, Unit::Ns, &samples[0][0]);
    for (mode, [samples]) in MODES.into_iter().zip(&samples[1..]) {
        let (base, target) = match mode {
            Durability::SyncFlush => (none.clone(), None),
            Durability::Sync => (row(Durability::SyncFlush), Some(AtMost(UNFLUSHED))),
            Durability::Async => (none.clone(), Some(AtMost(AHEAD))),
        };
        found.against(&row(mode), Unit::Ns, samples, &base, target);
    }
}

/// Nanoseconds that a file takes to be made and removed.
async fn made_and_removed(user: &User, ops: usize) -> Result<f64, BenchError> {
    ns_per_op(ops, async |n| {
        let name = format!("made-{n}");
        user.local.create(user.dir, name.as_bytes(), new_file()).await?;
        user.local.unlink(user.dir, name.as_bytes()).await
    })
    .await
}
