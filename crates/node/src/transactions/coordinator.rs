//! Collect and decide (Octopus 3.3.2): one transaction of the regions that an operation concerns, coordinated by the
//! primary of the directory that gets or loses the name.

use crate::error::to_fs;
use crate::names::rename_lease::RenameLease;
use crate::node::Node;
use crate::region_service::{OnBehalf, RegionService};
use crate::request::context::RequestContext;
use crate::transactions::commit_protocol;
use crate::transactions::dispatch::{self, Dispatch};
use crate::transactions::probe::Phase;
use foldhash::HashSet;
use parking_lot::Mutex;
use polvo_format::{Ino, NodeId, RegionId, TxnId};
use polvo_proto::{Collected, FsError, InodeRef, Intent, Outcome, TxnState};
use polvo_region::planted::{Planted, planted};
use polvo_region::{CollectedPart, RedoId, Region, RegionError, RemotePart};
use std::sync::Arc;
use tokio::time::Instant;

/// How often a participant tries an inode that is locked again before it says so: whoever collects holds others.
const COLLECT_TRIES: u32 = 8;

/// What an operation wants of each region; the first part is the coordinator's own.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    parts: Vec<Part>,
}

impl Plan {
    pub fn new(own: RegionId) -> Plan {
        let mut parts = Vec::with_capacity(2);
        parts.push((own, Vec::with_capacity(2)));
        Plan { parts }
    }

    /// Adds an intent, after those that the region has already. The others' parts are in order of region, in which they
    /// are collected.
    pub fn want(&mut self, region: RegionId, intent: Intent) {
        match self.parts.iter_mut().find(|(r, _)| *r == region) {
            Some((_, intents)) => intents.push(intent),
            None => {
                let at = 1 + self.parts[1..].partition_point(|(other, _)| *other < region);
                self.parts.insert(at, (region, vec![intent]));
            }
        }
        debug_assert!(
            self.parts[1..].windows(2).all(|pair| pair[0].0 < pair[1].0),
            "participants in order of region, each once"
        );
    }
}

/// What became of the inodes.
#[derive(Default)]
pub(crate) struct Outcomes {
    all: Vec<Outcome>,
    /// The inode that was made, if one was.
    pub made: Option<Outcome>,
}

impl Outcomes {
    fn take(&mut self, intents: &[Intent], outcomes: &[Outcome]) {
        self.all.extend_from_slice(outcomes);
        if let Some(i) = intents.iter().position(Intent::makes_inode) {
            self.made = outcomes.get(i).copied();
        }
    }

    /// An inode after all changes.
    pub fn of(&self, ino: Ino) -> Result<Outcome, FsError> {
        let found = self.all.iter().rev().find(|outcome| outcome.attr.ino == ino);
        found
            .copied()
            .ok_or_else(|| FsError::Io(format!("a transaction says nothing about {ino:?}")))
    }
}

/// Why a transaction did not come about. Nothing has changed then.
pub(crate) enum Failure {
    /// Another transaction was in the way: try again, a little later.
    Conflict,
    /// The place chosen for the new inode cannot take it.
    NoRoom(NodeId, FsError),
    /// The answer.
    Fs(FsError),
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        match error {
            FsError::Retry => Failure::Conflict,
            error => Failure::Fs(error),
        }
    }
}

/// Transactions that this node coordinates and has not decided.
#[derive(Default)]
pub(crate) struct Undecided {
    running: Mutex<HashSet<TxnId>>,
}

struct Running<'a> {
    undecided: &'a Undecided,
    txn: TxnId,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let was_running = self.undecided.running.lock().remove(&self.txn);
        debug_assert!(was_running, "a transaction runs until its one guard goes");
    }
}

impl Undecided {
    fn begin(&self, txn: TxnId) -> Running<'_> {
        let is_new = self.running.lock().insert(txn);
        assert!(is_new, "two transactions have one number");
        Running { undecided: self, txn }
    }

    fn contains(&self, txn: TxnId) -> bool {
        self.running.lock().contains(&txn)
    }

    pub fn count(&self) -> usize {
        self.running.lock().len()
    }
}

impl Node {
    /// How a transaction of this coordinator stands. Participants hold locks from `begin` on at the earliest, and the
    /// record is in the log before `begin` is taken back, so "aborted" is never said of one that may still happen.
    pub(crate) fn txn_state(&self, txn: TxnId) -> TxnState {
        if self.undecided.contains(txn) {
            TxnState::Undecided
        } else if self.space.is_logged(txn) {
            TxnState::Committed
        } else {
            TxnState::Aborted
        }
    }

    /// Stages a participant's part in a region of this node. Waits only for moments, and for sessions that have tokens of what
    /// is to change: they are asked before it is locked.
    pub(crate) async fn collect_here(
        &self,
        service: &Arc<RegionService>,
        txn: TxnId,
        intents: &[Intent],
        on_behalf: &OnBehalf,
    ) -> Result<Collected, FsError> {
        let mut quieted = Vec::new();
        let mut tries = 0;
        while tries < COLLECT_TRIES {
            let collect = || service.collect(txn, intents, on_behalf, self.clock.now_ns());
            match self.with_room(collect) {
                Err(RegionError::Locked { .. }) => {
                    tries += 1;
                    tokio::task::yield_now().await;
                }
                Err(RegionError::Watched(ino)) => {
                    let deadline = Instant::now() + self.config.timeouts.held;
                    quieted.push(Box::pin(self.quiet(service, ino, on_behalf.session, deadline)).await?);
                }
                other => return other.map_err(to_fs),
            }
        }
        Err(FsError::Retry)
    }
}

/// Carries out a plan, all or nothing. With `open`, the caller's session holds open the inode that is made. With a
/// `lease`, nothing is decided unless the rename lock is still ours.
pub(crate) async fn transact(
    ctx: &RequestContext<'_>,
    plan: &Plan,
    open: bool,
    lease: Option<&RenameLease>,
) -> Result<Outcomes, Failure> {
    debug_assert!(
        plan.parts.iter().all(|(_, intents)| !intents.is_empty()),
        "a region without intents has no part"
    );
    match plan.parts.as_slice() {
        [] => Err(Failure::Fs(FsError::Invalid("a plan without a part".into()))),
        [(own, intents)] => local(ctx, *own, intents, open, lease).await,
        // what is done for one region only, which is most, is small
        [own, others @ ..] => Box::pin(distributed_in_room(ctx, own, others, open, lease)).await,
    }
}

/// As [`distributed`], and once more where there was no room and some may have come.
async fn distributed_in_room(
    ctx: &RequestContext<'_>,
    own: &Part,
    others: &[Part],
    open: bool,
    lease: Option<&RenameLease>,
) -> Result<Outcomes, Failure> {
    let mut room_sought = None;
    loop {
        match distributed(ctx, own, others, open, lease).await {
            Err(Failure::Fs(error @ (FsError::NoSpace | FsError::HeldBack))) => {
                ctx.find_room(&mut room_sought, &error).await?;
            }
            done => return done,
        }
    }
}

/// A region's part of a plan.
type Part = (RegionId, Vec<Intent>);

/// In several regions: collect, decide, dispatch.
async fn distributed(
    ctx: &RequestContext<'_>,
    (own, own_intents): &Part,
    others: &[Part],
    open: bool,
    lease: Option<&RenameLease>,
) -> Result<Outcomes, Failure> {
    // asked before anything is locked elsewhere; what is staged here later finds nobody in the way
    let mut quieted = Vec::new();
    for inode in own_intents.iter().filter_map(Intent::inode) {
        quieted.extend(ctx.quiet(inode).await?);
    }
    let service = ctx.service(*own)?;
    let (txn, is_set_aside) = service.enter(|region| {
        let before = region.captured();
        (region.next_txn(), region.captured() != before)
    });
    if is_set_aside {
        // who takes over must not give these numbers again
        ctx.mirrored(service).await?;
    }
    let mut running = Some(ctx.node.undecided.begin(txn));
    let mut remote = Vec::with_capacity(others.len());
    let mut outcomes = Outcomes::default();
    for (region, intents) in others {
        match collect(ctx, txn, *region, intents, open).await {
            Ok((part, collected)) => {
                outcomes.take(intents, &collected);
                remote.push(part);
            }
            Err(error) => {
                abort(ctx, txn, &remote).await;
                return Err(place(ctx, *region, intents, error));
            }
        }
    }
    assert!(remote.len() == others.len(), "every participant has its part");
    debug_assert!(
        remote
            .iter()
            .zip(others)
            .all(|(part, (region, _))| part.region() == *region),
        "parts in the order of their regions"
    );
    if planted(Planted::ForgottenBeforeDecided) {
        running = None;
    }
    ctx.node.probe.reached(Phase::Collected).await;
    match decide(ctx, txn, *own, own_intents, &remote, &mut outcomes, lease).await {
        Ok(Some(record)) => {
            drop(running); // the log speaks for it from here on
            // a mirror that takes over knows of it before anybody hears of it
            let mirrored = ctx.mirrored(ctx.service(*own)?).await;
            dispatch::finish(ctx, Dispatch::new(txn, record, remote)).await?;
            mirrored?;
            Ok(outcomes)
        }
        Ok(None) => {
            abort(ctx, txn, &remote).await; // there was nothing to write, only locks to let go
            ctx.mirrored(ctx.service(*own)?).await?;
            Ok(outcomes)
        }
        Err(error) => {
            abort(ctx, txn, &remote).await;
            // what is in the way may be what mirrors do not have yet
            ctx.answerable(ctx.service(*own)?).await?;
            Err(Failure::from(error))
        }
    }
}

/// The commit point: everything collected and the own part in one redo record. `None`: no participant had anything to
/// change.
async fn decide(
    ctx: &RequestContext<'_>,
    txn: TxnId,
    own: RegionId,
    intents: &[Intent],
    remote: &[RemotePart],
    outcomes: &mut Outcomes,
    lease: Option<&RenameLease>,
) -> Result<Option<RedoId>, FsError> {
    if let Some(lease) = lease {
        lease.verify(ctx).await?;
    }
    let intents = completed(intents.to_vec(), outcomes);
    let now_ns = ctx.now_ns();
    let service = ctx.service(own)?;
    let decide = |region: &mut Region| ctx.in_its_name(region, |region| region.decide(txn, &intents, remote, now_ns));
    debug_assert!(
        ctx.node.undecided.contains(txn) || planted(Planted::ForgottenBeforeDecided),
        "a transaction is undecided until it is logged"
    );
    debug_assert!(
        remote.iter().all(|part| part.region() != own),
        "the coordinator is no participant"
    );
    let decided = ctx.node.enter_with_room(service, decide).map_err(to_fs)?;
    debug_assert!(
        decided.record.is_none() || ctx.node.space.is_logged(txn),
        "what is decided is in the log before anybody hears of it"
    );
    outcomes.take(&intents, &decided.outcomes);
    Ok(decided.record)
}

/// All in one region: one decision, no participants.
async fn local(
    ctx: &RequestContext<'_>,
    own: RegionId,
    intents: &[Intent],
    open: bool,
    lease: Option<&RenameLease>,
) -> Result<Outcomes, Failure> {
    if let Some(lease) = lease {
        lease.verify(ctx).await?;
    }
    let session = ctx.session.id;
    let decide = |region: &mut Region| {
        // nobody asks about it: what is in one region is done when it is in the log
        let decided = region.decide(TxnId::default(), intents, &[], ctx.now_ns())?;
        let mut outcomes = Outcomes::default();
        outcomes.take(intents, &decided.outcomes);
        if let (true, Some(made)) = (open, outcomes.made) {
            region.open_made(
                session,
                InodeRef {
                    ino: made.attr.ino,
                    generation: made.attr.generation,
                },
            )?;
        }
        Ok(outcomes)
    };
    ctx.on_for_session(own, decide).await.map_err(|error| match error {
        // no mirror has taken it in time: it has happened, and elsewhere it would happen again
        FsError::Unreachable { .. } => Failure::from(error),
        error => place(ctx, own, intents, error),
    })
}

/// Tells an error of the place that was chosen for a new inode from one of the operation.
fn place(ctx: &RequestContext<'_>, region: RegionId, intents: &[Intent], error: FsError) -> Failure {
    let elsewhere = matches!(
        error,
        FsError::NoSpace | FsError::HeldBack | FsError::Unreachable { .. }
    );
    match ctx.links.primary(region) {
        Ok(node) if elsewhere && intents.iter().any(Intent::makes_inode) => Failure::NoRoom(node, error),
        _ => Failure::from(error),
    }
}

async fn collect(
    ctx: &RequestContext<'_>,
    txn: TxnId,
    region: RegionId,
    intents: &[Intent],
    open: bool,
) -> Result<(RemotePart, Vec<Outcome>), FsError> {
    let open = open && intents.iter().any(Intent::makes_inode);
    if let Some(service) = ctx.participant_here(region)? {
        let on_behalf = OnBehalf {
            session: ctx.session.id,
            opens: open.then(|| ctx.session.clone()),
        };
        let collected = ctx.node.collect_here(service, txn, intents, &on_behalf).await;
        ctx.mirrored(service).await?;
        let (part, outcomes) = CollectedPart::new(region, collected?, intents.len())?;
        return Ok((RemotePart::Collected(part), outcomes));
    }
    commit_protocol::join(ctx, txn, region, intents, open).await
}

/// Own intents with what only the participants could say: which inode was made, of what type the linked one is.
fn completed(mut intents: Vec<Intent>, collected: &Outcomes) -> Vec<Intent> {
    for intent in &mut intents {
        let Intent::AddName { target, kind, .. } = intent else {
            continue;
        };
        let outcome = match target {
            Some(target) => collected.of(target.ino).ok(),
            None => collected.made,
        };
        if let Some(Outcome { attr, .. }) = outcome {
            *kind = attr.kind;
            *target = Some(InodeRef {
                ino: attr.ino,
                generation: attr.generation,
            });
        }
    }
    intents
}

/// Lets go of what was collected: best effort, since a participant that waits too long asks.
async fn abort(ctx: &RequestContext<'_>, txn: TxnId, remote: &[RemotePart]) {
    for part in remote {
        if let Err(error) = commit_protocol::abort(ctx, txn, part).await {
            tracing::debug!(?txn, region = part.region().0, %error, "a participant has to ask how the transaction ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_undecided_only_while_it_runs() {
        let undecided = Undecided::default();
        let running = undecided.begin(TxnId(9));
        assert!(undecided.contains(TxnId(9)) && undecided.count() == 1);
        drop(running);
        assert!(!undecided.contains(TxnId(9)) && undecided.count() == 0);
    }

    #[test]
    fn intents_of_one_region_stay_together_and_in_order() {
        let inode = |slot| InodeRef {
            ino: Ino::new(RegionId(0), slot),
            generation: polvo_format::Generation(1),
        };
        let mut plan = Plan::new(RegionId(3));
        for (region, slot) in [(1, 1), (3, 2), (1, 3)] {
            plan.want(RegionId(region), Intent::Touch { inode: inode(slot) });
        }
        let slots = |intents: &[Intent]| {
            intents
                .iter()
                .map(|i| {
                    if let Intent::Touch { inode } = i {
                        inode.ino.slot()
                    } else {
                        0
                    }
                })
                .collect::<Vec<_>>()
        };
        let parts: Vec<_> = plan
            .parts
            .iter()
            .map(|(region, intents)| (region.0, slots(intents)))
            .collect();
        assert_eq!(parts, [(3, vec![2]), (1, vec![1, 3])]);
    }
}
