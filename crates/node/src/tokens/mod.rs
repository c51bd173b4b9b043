//! Tokens, as a node gives them and asks for them back (`region/tokens` has who has which).
//!
//! A session's tokens at this node share one lease, which each request about tokens renews, and one *term*: a lease that has run
//! out ends the term, and with it all tokens of it. So a change waits for a holder that is silent or dead until the holder's
//! lease is over, and no longer; the holder counts from when it sent what was answered, the node from when it received that, and
//! the holder is told a little less, by what clocks may drift apart: it has stopped believing before the node stops waiting. What a holder is asked for it hears by a request that
//! waits here (`Watch`) and answers with its next one; an answer that is lost is only asked for again. Who is there and does not
//! answer for half a lease has its lease renewed no more.
//!
//! Order of locks: a region, then a holder.

mod asking;
mod services;

pub(crate) use asking::Quieted;

use crate::clock::outlasting;
use crate::node::Node;
use crate::region_service::RegionService;
use crate::replication::gate::TOLD;
use parking_lot::Mutex;
use polvo_format::{RegionId, SessionId};
use polvo_proto::{InodeRef, TOKENS_MAX, TOKENS_PAGE};
use polvo_region::{Region, TokenId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Numbers of an incarnation begin with its own, which is below 2^48, and at least 2^20 above that of the previous one.
const NUMBERS_SHIFT: u32 = 16;
/// Most tokens of all sessions at a node.
const ALL_MAX: usize = 1 << 20;

/// A session's tokens at this node.
pub(crate) struct Holder {
    session: SessionId,
    state: Mutex<HolderState>,
    /// Something is asked for.
    asked: Notify,
}

struct HolderState {
    /// Another, and greater, after each lease that has run out; never 0.
    term: u64,
    lease_until: Instant,
    held: BTreeMap<u64, InodeRef>,
    /// Which of them are asked for, and since when.
    asked: BTreeMap<u64, Instant>,
    /// The session is gone: whoever still has this gives nothing more.
    is_ended: bool,
}

impl HolderState {
    /// Renews the lease, unless something is asked for since longer ago than `patience`: who does not answer is not believed in
    /// for ever.
    fn renew(&mut self, now: Instant, lease: Duration, patience: Duration) -> bool {
        let is_overdue = self.asked.values().any(|since| now.duration_since(*since) > patience);
        if !is_overdue {
            self.lease_until = now + lease;
        }
        !is_overdue
    }

    /// A token is asked for. False: it is already, or it is held no more, which the region is about to be told.
    fn ask(&mut self, number: u64, now: Instant) -> bool {
        if !self.held.contains_key(&number) || self.asked.contains_key(&number) {
            return false;
        }
        self.asked.insert(number, now);
        self.check();
        true
    }

    /// Begins another term. What was held is no more.
    fn lapse(&mut self, term: u64) -> BTreeMap<u64, InodeRef> {
        assert!(term > self.term, "terms grow");
        self.term = term;
        self.asked.clear();
        std::mem::take(&mut self.held)
    }

    /// What is asked for is held: nobody could answer for anything else, and an answer that is overdue ends the lease.
    fn check(&self) {
        debug_assert!(
            self.asked.keys().all(|number| self.held.contains_key(number)),
            "{:?} are asked for",
            self.asked
        );
        debug_assert!(self.held.len() <= TOKENS_MAX, "{} tokens of a session", self.held.len());
    }
}

/// All tokens of a node.
pub(crate) struct Tokens {
    holders: Mutex<BTreeMap<SessionId, Arc<Holder>>>,
    /// Of tokens and terms. Those of a later run are greater.
    numbers: AtomicU64,
    count: AtomicUsize,
    /// It is on the media that this incarnation has given some.
    is_noted: AtomicBool,
    /// A token is no more that somebody waits for, or a lease has run out.
    changed: Notify,
    /// Tokens of the previous incarnation may be believed until then.
    believed_until: Mutex<Option<Instant>>,
}

impl Tokens {
    /// Nobody has one yet. `incarnation`: of this incarnation of the node.
    pub fn new(incarnation: u64) -> Tokens {
        Tokens {
            holders: Mutex::default(),
            numbers: AtomicU64::new(incarnation << NUMBERS_SHIFT),
            count: AtomicUsize::new(0),
            is_noted: AtomicBool::new(false),
            changed: Notify::new(),
            believed_until: Mutex::default(),
        }
    }

    fn holder(&self, session: SessionId) -> Arc<Holder> {
        let mut holders = self.holders.lock();
        let new = || {
            Arc::new(Holder {
                session,
                state: Mutex::new(HolderState {
                    term: self.next_number(),
                    lease_until: Instant::now(),
                    held: BTreeMap::new(),
                    asked: BTreeMap::new(),
                    is_ended: false,
                }),
                asked: Notify::new(),
            })
        };
        holders.entry(session).or_insert_with(new).clone()
    }

    fn known_holder(&self, session: SessionId) -> Option<Arc<Holder>> {
        self.holders.lock().get(&session).cloned()
    }

    fn next_number(&self) -> u64 {
        1 + self.numbers.fetch_add(1, Relaxed)
    }

    /// How many tokens sessions have.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    fn has_room(&self, state: &HolderState) -> bool {
        state.held.len() < TOKENS_MAX && self.count() < ALL_MAX
    }
}

impl Node {
    /// Milliseconds since the start.
    fn token_clock_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// What the previous incarnation has told is believed until its leases are over, and nothing changes before: tokens, and what was
    /// read behind its gates, which stay open for whoever has mapped them.
    pub(crate) fn mistrust_what_was_told_before(&self) {
        let tokens = self.space.tokens_given();
        let told = match tokens {
            true => self.config.timeouts.token.max(outlasting(TOLD)),
            false => outlasting(TOLD),
        };
        let has_gate = |service: &&Arc<RegionService>| service.replication().is_some_and(|r| !r.is_new());
        for service in self.regions.all().filter(|service| tokens || has_gate(service)) {
            *self.tokens.believed_until.lock() = Some(self.started + self.clock.lasts(told));
            service.enter(|region| region.close_to_changes());
        }
    }

    /// A region that is about to be served here was served elsewhere: nothing changes in it until the tokens given there are over.
    pub(crate) fn mistrust_tokens_until(&self, until: Instant, region: &mut Region) {
        let mut believed_until = self.tokens.believed_until.lock();
        *believed_until = Some(believed_until.map_or(until, |before| before.max(until)));
        region.close_to_changes();
    }

    /// Asks for all tokens of a region of which no more are given. Are there any yet? Those of who does not answer end with his lease.
    pub(crate) fn recall_tokens_of(&self, region: RegionId) -> bool {
        let now = Instant::now();
        if self.tokens.believed_until.lock().is_some_and(|until| now < until) {
            return true; // in those that were given before us
        }
        let all: Vec<Arc<Holder>> = self.tokens.holders.lock().values().cloned().collect();
        let mut are_any = false;
        for holder in all {
            let mut state = holder.state.lock();
            let of_region = state.held.iter().filter(|(_, inode)| inode.ino.region() == region);
            let numbers: Vec<u64> = of_region.map(|(number, _)| *number).collect();
            if numbers.is_empty() {
                continue;
            }
            let mut is_news = false;
            for number in numbers {
                is_news |= state.ask(number, now);
            }
            drop(state);
            if is_news {
                holder.asked.notify_waiters();
            }
            self.lapse_late(&holder, now);
            are_any = true;
        }
        are_any
    }

    /// Takes tokens out of the regions; whoever waits for one of them goes on.
    fn end_tokens(&self, session: SessionId, ended: impl IntoIterator<Item = (u64, InodeRef)>) {
        let mut is_asked = false;
        for (number, inode) in ended {
            let before = self.tokens.count.fetch_sub(1, Relaxed);
            debug_assert!(before > 0, "a token is counted");
            if let Some(service) = self.service(inode.ino.region()) {
                let token = TokenId { session, number };
                is_asked |= service.enter(|region| region.end_token(inode.ino, token));
            }
        }
        if is_asked {
            self.tokens.changed.notify_waiters();
        }
    }

    /// A session has ended, and with it its tokens.
    pub(crate) fn end_tokens_of(&self, session: SessionId) {
        let holder = self.tokens.holders.lock().remove(&session);
        if let Some(holder) = holder {
            let ended = {
                let mut state = holder.state.lock();
                state.is_ended = true;
                state.lapse(self.tokens.next_number())
            };
            self.end_tokens(session, ended);
            holder.asked.notify_waiters();
        }
    }

    /// Now and then: leases that have run out end, and what is of no use is forgotten.
    pub(crate) fn sweep_tokens(&self) {
        let now = Instant::now();
        let all: Vec<Arc<Holder>> = self.tokens.holders.lock().values().cloned().collect();
        for holder in all {
            self.lapse_late(&holder, now);
        }
        let now_ms = self.token_clock_ms();
        for service in self.regions.all() {
            service.enter(|region| region.sweep_tokens(now_ms));
        }
    }

    /// Ends a holder's term if its lease has run out.
    fn lapse_late(&self, holder: &Holder, now: Instant) {
        let ended = {
            let mut state = holder.state.lock();
            match state.lease_until <= now && !state.held.is_empty() {
                true => state.lapse(self.tokens.next_number()),
                false => return,
            }
        };
        tracing::debug!(session = %holder.session, tokens = ended.len(), "the lease on tokens is over");
        self.end_tokens(holder.session, ended);
    }
}

const _: () = assert!(TOKENS_PAGE < TOKENS_MAX && TOKENS_MAX < ALL_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino};

    #[test]
    fn a_session_gets_no_more_than_there_may_be() {
        let tokens = Tokens::new(1);
        let holder = tokens.holder(SessionId(7));
        let mut state = holder.state.lock();
        let inode = InodeRef {
            ino: Ino(1),
            generation: Generation(1),
        };
        state.held.extend((1..TOKENS_MAX as u64).map(|number| (number, inode)));
        assert!(tokens.has_room(&state));
        state.held.insert(0, inode);
        assert!(!tokens.has_room(&state));
        state.held.remove(&1);
        assert!(tokens.has_room(&state), "one has come back");
        tokens.count.store(ALL_MAX, Relaxed);
        assert!(!tokens.has_room(&state), "others have them all");
    }

    /// Between its holder's answer and the region's, another change may ask for a token: nobody would ever answer.
    #[tokio::test(start_paused = true)]
    async fn a_token_that_was_given_back_is_not_asked_for() {
        let holder = Tokens::new(1).holder(SessionId(7));
        let mut state = holder.state.lock();
        let inode = InodeRef {
            ino: Ino(1),
            generation: Generation(1),
        };
        state.held.insert(1, inode);
        let (now, lease) = (Instant::now(), Duration::from_secs(2));
        assert!(state.ask(1, now));
        assert!(!state.ask(1, now), "once is enough");
        assert!(!state.renew(now + lease, lease, lease / 2), "the answer is overdue");
        state.asked.remove(&1);
        state.held.remove(&1);
        assert!(!state.ask(1, now));
        assert!(state.renew(now + lease, lease, lease / 2), "all was answered");
    }
}
