//! Asking for tokens: what a change does before it can be made.

use crate::node::Node;
use crate::region_service::RegionService;
use polvo_format::{Ino, SessionId};
use polvo_proto::FsError;
use polvo_region::TokenId;
use std::pin::pin;
use std::sync::Arc;
use tokio::time::Instant;

/// The other sessions' tokens of an inode were asked for and are no more; as long as this lasts nobody gets one.
pub(crate) struct Quieted<'a> {
    node: &'a Node,
    service: &'a RegionService,
    ino: Ino,
}

impl Drop for Quieted<'_> {
    fn drop(&mut self) {
        let now_ms = self.node.token_clock_ms();
        self.service.enter(|region| region.end_asking(self.ino, now_ms));
    }
}

impl Node {
    /// Has the other sessions that have tokens of an inode give them back, so that `session` may change it. Waits for those who
    /// do not answer until their lease is over.
    ///
    /// # Errors
    /// EBUSY when the deadline comes first; [`FsError::WrongEpoch`] when the region is served elsewhere meanwhile.
    pub(crate) async fn quiet<'a>(
        &'a self,
        service: &'a Arc<RegionService>,
        ino: Ino,
        session: SessionId,
        deadline: Instant,
    ) -> Result<Quieted<'a>, FsError> {
        let believed_until = *self.tokens.believed_until.lock();
        if let Some(until) = believed_until {
            tokio::time::sleep_until(until.min(deadline)).await;
            self.open_to_changes_if_due();
        }
        service.enter(|region| region.begin_asking(ino));
        let node = self;
        let quieted = Quieted { node, service, ino };
        let mut asked: Option<Vec<TokenId>> = None;
        loop {
            let mut changed = pin!(self.tokens.changed.notified());
            changed.as_mut().enable();
            let holders = service.enter(|region| region.token_holders(ino, session));
            debug_assert!(
                asked.is_none_or(|asked| holders.iter().all(|token| asked.contains(token))),
                "while it is asked for nobody gets one"
            );
            if service.has_ended() {
                return Err(FsError::WrongEpoch); // here nobody gives its tokens back any more, or opens the region to changes
            }
            if holders.is_empty() {
                return Ok(quieted);
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(FsError::Busy);
            }
            match self.ask_for(&holders, now) {
                Some(until) => drop(tokio::time::timeout_at(until.min(deadline), changed).await),
                None => tokio::task::yield_now().await,
            }
            asked = cfg!(debug_assertions).then_some(holders);
        }
    }

    /// Tells holders that their tokens are asked for. Those whose lease is over have none any more. Gives when the next lease is
    /// over; `None`: one was just now.
    fn ask_for(&self, holders: &[TokenId], now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut any_over = false;
        for token in holders {
            let Some(holder) = self.tokens.known_holder(token.session) else {
                any_over = true; // the session ends just now
                continue;
            };
            let lease_until = {
                let mut state = holder.state.lock();
                if state.lease_until > now && state.ask(token.number, now) {
                    holder.asked.notify_waiters();
                }
                state.lease_until
            };
            if lease_until <= now {
                self.lapse_late(&holder, now);
                any_over = true;
            }
            next = Some(next.map_or(lease_until, |next| next.min(lease_until)));
        }
        next.filter(|_| !any_over)
    }

    /// What an earlier incarnation has given is over: inodes may change, and new tokens are given.
    pub(crate) fn open_to_changes_if_due(&self) {
        let mut believed_until = self.tokens.believed_until.lock();
        if believed_until.is_none_or(|until| Instant::now() < until) {
            return;
        }
        for service in self.regions.all() {
            service.enter(|region| region.open_to_changes());
        }
        self.space.note_tokens_given(false);
        *believed_until = None;
    }
}
