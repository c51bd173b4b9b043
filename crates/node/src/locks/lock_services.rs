//! Advisory locks, as clients ask for them.

use crate::locks::lock_table::Asked;
use crate::names::permission::{self, READ, WRITE};
use crate::request::context::RequestContext;
use polvo_proto::{
    FsError, InodeRef, LOCK_CLAIMS_MAX, LOCK_WAIT_MAX_MS, LockAnswer, LockAsk, LockMode, LockRange, LockSeen, LockTerm,
    LockTicket, Locked,
};
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;

fn sane(range: LockRange) -> Result<(), FsError> {
    if range.is_sane() {
        Ok(())
    } else {
        Err(FsError::Invalid(
            "a range of no bytes, or beyond the largest file".into(),
        ))
    }
}

impl RequestContext<'_> {
    pub async fn lock(&self, inode: InodeRef, ask: &LockAsk, wait: Option<LockTicket>) -> Result<LockAnswer, FsError> {
        sane(ask.range)?;
        let wanted = match ask.mode {
            LockMode::Shared => READ,
            LockMode::Exclusive => WRITE,
        };
        self.on(inode.ino.region(), |r| {
            let (attr, _) = r.attr(inode.ino, Some(inode.generation))?;
            Ok(permission::access(
                self.cred,
                &attr,
                self.acl_here(r, inode)?.as_ref(),
                wanted,
            )?)
        })
        .await?;
        let limit = wait.map(|ticket| Duration::from_millis(ticket.wait_ms.min(LOCK_WAIT_MAX_MS).into()));
        if !self.grace_is_over(inode, limit).await? {
            return Ok(LockAnswer::Queued);
        }
        if self.pair.is_some_and(|pair| pair.is_closed()) {
            return Err(FsError::Unreachable {
                node: self.node.id().0,
                why: "the connection was lost before the lock was taken or refused".into(),
            });
        }
        let asked = self
            .node
            .locks
            .ask(self.session, inode, ask, wait.map(|ticket| ticket.number))?;
        let granted = LockAnswer::Granted(self.node.locks.term());
        let (Asked::Waits(waiter), Some(limit)) = (asked, limit) else {
            self.still_serves(inode).await?;
            return Ok(granted);
        };
        let mut stopping = self.node.stopping.subscribe();
        tokio::select! {
            outcome = waiter.wait(limit) => match outcome {
                None => Ok(LockAnswer::Queued),
                Some(outcome) => {
                    outcome?;
                    self.still_serves(inode).await?;
                    Ok(granted)
                }
            },
            // an error means that the node is gone
            _ = stopping.wait_for(|stop| *stop) => Err(self.node.stopping_error()),
        }
    }

    pub fn unlock(&self, inode: InodeRef, owner: u64, range: LockRange) -> Result<(), FsError> {
        sane(range)?;
        self.service(inode.ino.region())?;
        self.node.locks.unlock(self.session.id, inode, owner, range);
        Ok(())
    }

    /// Before somebody is told of locks: nobody else gives any of that inode.
    async fn still_serves(&self, inode: InodeRef) -> Result<(), FsError> {
        let service = self.service(inode.ino.region())?;
        match service.may_answer() {
            true => Ok(()),
            false => Box::pin(self.answerable(service)).await,
        }
    }

    /// Waits until locks of an inode may be given that nobody claims back; for so long at most. False: not yet.
    async fn grace_is_over(&self, inode: InodeRef, limit: Option<Duration>) -> Result<bool, FsError> {
        let locks = &self.node.locks;
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut stopping = self.node.stopping.subscribe();
        loop {
            let mut settled = pin!(locks.settled.notified());
            settled.as_mut().enable();
            let Some(grace) = locks.grace(inode) else {
                return Ok(true);
            };
            let until = deadline.map_or(grace, |deadline| grace.min(deadline));
            tokio::select! {
                biased;
                // an error means that the node is gone
                _ = stopping.wait_for(|stop| *stop) => return Err(self.node.stopping_error()),
                () = settled => {}
                () = tokio::time::sleep_until(until) => return Ok(locks.grace(inode).is_none()),
            }
        }
    }

    /// See [`polvo_proto::Request::ClaimLocks`].
    pub async fn claim_locks(
        &self,
        inode: InodeRef,
        owner: u64,
        term: LockTerm,
        ranges: &[Locked],
        whole: Option<Locked>,
    ) -> Result<Option<LockTerm>, FsError> {
        if ranges.len() > LOCK_CLAIMS_MAX {
            return Err(FsError::Invalid(format!(
                "more than {LOCK_CLAIMS_MAX} locks claimed in one request"
            )));
        }
        ranges.iter().chain(&whole).try_for_each(|locked| sane(locked.range))?;
        self.service(inode.ino.region())?;
        let claimed = self
            .node
            .locks
            .claim(self.session, (inode, owner), term, ranges, whole)?;
        self.still_serves(inode).await?;
        Ok(claimed)
    }

    pub async fn test_lock(&self, inode: InodeRef, ask: &LockAsk) -> Result<Option<LockSeen>, FsError> {
        sane(ask.range)?;
        self.grace_is_over(inode, None).await?;
        self.service(inode.ino.region())?;
        let seen = self.node.locks.test(self.session.id, inode, ask);
        self.still_serves(inode).await?;
        Ok(seen)
    }

    pub fn cancel_lock(&self, inode: InodeRef, ticket: u64) -> Result<(), FsError> {
        self.service(inode.ino.region())?;
        let why = FsError::Interrupted;
        self.node.locks.cancel(self.session.id, inode, ticket, why);
        Ok(())
    }
}
