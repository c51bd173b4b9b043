//! Advisory locks, as clients ask for them.

use crate::locks::lock_table::Asked;
use crate::names::permission::{self, READ, WRITE};
use crate::request::context::RequestContext;
use polvo_proto::{
    FsError, InodeRef, LOCK_WAIT_MAX_MS, LockAnswer, LockAsk, LockMode, LockRange, LockSeen, LockTicket,
};
use std::time::Duration;

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
        let (Asked::Waits(waiter), Some(ticket)) = (asked, wait) else {
            return Ok(LockAnswer::Granted);
        };
        let limit = Duration::from_millis(ticket.wait_ms.min(LOCK_WAIT_MAX_MS).into());
        let mut stopping = self.node.stopping.subscribe();
        tokio::select! {
            outcome = waiter.wait(limit) => match outcome {
                None => Ok(LockAnswer::Queued),
                Some(outcome) => outcome.map(|()| LockAnswer::Granted),
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

    pub fn test_lock(&self, inode: InodeRef, ask: &LockAsk) -> Result<Option<LockSeen>, FsError> {
        sane(ask.range)?;
        self.service(inode.ino.region())?;
        Ok(self.node.locks.test(self.session.id, inode, ask))
    }

    pub fn cancel_lock(&self, inode: InodeRef, ticket: u64) -> Result<(), FsError> {
        self.service(inode.ino.region())?;
        let why = FsError::Interrupted;
        self.node.locks.cancel(self.session.id, inode, ticket, why);
        Ok(())
    }
}
