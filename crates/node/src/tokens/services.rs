//! Tokens, as clients ask for them.

use crate::clock::outlasted_by;
use crate::request::context::RequestContext;
use crate::tokens::{Holder, HolderState};
use polvo_cluster::Timeouts;
use polvo_format::RegionId;
use polvo_proto::{FsError, InodeRef, TOKENS_PAGE, Token, reply};
use polvo_region::TokenId;
use polvo_region::planted::{Planted, planted};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::Instant;

impl RequestContext<'_> {
    /// The session's tokens. What had run out is over.
    fn token_holder(&self) -> Result<Arc<Holder>, FsError> {
        // as long as its tokens are believed in, the session does not end
        self.session.renew(0);
        let holder = self.node.tokens.holder(self.session.id);
        self.node.lapse_late(&holder, Instant::now());
        // whoever ends the session ends what is here by now; what comes later is not given
        match self.session.is_ended() {
            true => {
                self.node.end_tokens_of(self.session.id);
                Err(FsError::SessionExpired)
            }
            false => Ok(holder),
        }
    }

    /// See [`polvo_proto::Request::TakeTokens`].
    pub async fn take_tokens(&self, inodes: &[InodeRef]) -> Result<reply::Taken, FsError> {
        let tokens = &self.node.tokens;
        if !tokens.is_noted.load(Relaxed) {
            self.node.open_to_changes_if_due();
            if tokens.believed_until.lock().is_none() {
                self.node.space.note_tokens_given(true);
                tokens.is_noted.store(true, Relaxed);
            }
        }
        let holder = self.token_holder()?;
        if !self.renew_tokens(&holder) {
            return Err(FsError::Busy); // an answer is overdue, or nothing may be promised just now
        }
        let now_ms = self.node.token_clock_ms();
        let taken = inodes.iter().map(|inode| self.take_token(&holder, *inode, now_ms));
        let taken: Vec<Option<Token>> = taken.collect();
        // what they are is told with them; who has been replaced while it waits tells nothing
        let given = inodes.iter().zip(&taken).filter(|(_, token)| token.is_some());
        let regions: BTreeSet<RegionId> = given.map(|(inode, _)| inode.ino.region()).collect();
        for region in regions {
            self.answerable(self.service(region)?).await?;
        }
        let lease = self.node.config.timeouts.token;
        let lease_ms = match planted(Planted::TokenLeaseInFull) {
            true => lease.as_millis(),
            false => outlasted_by(lease).as_millis(),
        };
        Ok(reply::Taken {
            lease_ms: u64::try_from(lease_ms).unwrap_or(u64::MAX),
            term: holder.state.lock().term,
            tokens: taken,
        })
    }

    /// Renews the lease, unless an answer is overdue, or others may have taken our place: who does waits for leases that were renewed
    /// before (`Node::promote`).
    fn renew_tokens(&self, holder: &Holder) -> bool {
        let may_promise = self.node.may_promise() || planted(Planted::TokensWithoutLease);
        let lease = self.node.clock.lasts(self.node.config.timeouts.token);
        may_promise && holder.state.lock().renew(Instant::now(), lease, lease / 2)
    }

    /// One of them, unless there is something in the way just now.
    fn take_token(&self, holder: &Holder, inode: InodeRef, now_ms: u64) -> Option<Token> {
        let tokens = &self.node.tokens;
        let service = self.service(inode.ino.region()).ok()?;
        service.enter(|region| {
            let mut state = holder.state.lock();
            if state.is_ended || service.is_leaving() || !tokens.is_noted.load(Relaxed) || !tokens.has_room(&state) {
                return None;
            }
            let number = tokens.next_number();
            let token = TokenId {
                session: holder.session,
                number,
            };
            let (given, before) = region.give_token(inode, token, now_ms).ok()??;
            state.held.insert(number, inode);
            match before.and_then(|before| state.held.remove(&before)) {
                Some(_) => state.asked.retain(|asked, _| Some(*asked) != before),
                None => _ = tokens.count.fetch_add(1, Relaxed),
            }
            state.check();
            Some(given)
        })
    }

    /// See [`polvo_proto::Request::Watch`].
    pub async fn watch(&self, term: u64, answered: &[u64], end: bool) -> Result<reply::Asked, FsError> {
        let holder = self.token_holder()?;
        let ended: Vec<(u64, InodeRef)> = {
            let mut state = holder.state.lock();
            match (state.term == term, end) {
                (true, true) => state.lapse(self.node.tokens.next_number()).into_iter().collect(),
                (true, false) => {
                    let ended = answered.iter().filter_map(|number| {
                        state.asked.remove(number);
                        Some((*number, state.held.remove(number)?))
                    });
                    ended.collect()
                }
                (false, _) => Vec::new(),
            }
        };
        holder.state.lock().check();
        self.node.end_tokens(holder.session, ended);
        let renewed = self.renew_tokens(&holder);
        let mut stopping = self.node.stopping.subscribe();
        let until = Instant::now() + Timeouts::WATCH;
        loop {
            let mut more = pin!(holder.asked.notified());
            more.as_mut().enable();
            {
                let state = holder.state.lock();
                if state.is_ended {
                    return Err(FsError::SessionExpired);
                }
                let now_asked = what_is_asked(&state);
                if !now_asked.is_empty() || state.term != term || end || Instant::now() >= until {
                    return Ok(reply::Asked {
                        term: state.term,
                        renewed,
                        asked: now_asked,
                    });
                }
            }
            tokio::select! {
                biased;
                () = more => {}
                () = tokio::time::sleep_until(until) => {}
                // an error means that the node is gone
                _ = stopping.wait_for(|stop| *stop) => return Err(self.node.stopping_error()),
            }
        }
    }
}

fn what_is_asked(state: &HolderState) -> Vec<(InodeRef, u64)> {
    let asked = state
        .asked
        .keys()
        .filter_map(|number| Some((*state.held.get(number)?, *number)));
    asked.take(TOKENS_PAGE).collect()
}
