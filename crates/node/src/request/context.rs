//! One request being served: on whose behalf, by which thread, and how long it may wait.

use crate::backoff::Backoff;
use crate::error::to_fs;
use crate::node::Node;
use crate::region_service::RegionService;
use crate::request::sessions::{Party, Session};
use crate::tokens::Quieted;
use polvo_cluster::{Links, Timeouts};
use polvo_fabric::QueuePair;
use polvo_format::{Attr, Epoch, Ino, Origin, RegionId, SessionId, Tail, TxnId};
use polvo_proto::{Ask, Cred, DirEntry, FsError, InodeRef, ask, reply};
use polvo_region::planted::{Planted, planted};
use polvo_region::{Region, RegionError};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// After so long a wait for a locked inode, the coordinator of the transaction that has locked it is asked.
const ASK_AFTER: Duration = Duration::from_millis(50);

/// How long a call to another node may take on behalf of somebody who waits until `deadline`.
pub(crate) fn call_limit(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()) + Timeouts::CALL_SLACK
}

/// What is in the way for a moment.
enum Obstacle {
    /// A transaction that has locked the inode.
    Transaction(TxnId),
    /// A full redo log.
    Moment,
    /// There is no room here.
    NoRoom(FsError),
    /// Tokens of other sessions.
    Tokens(Ino),
}

/// That, or else what the caller gets to see.
fn obstacle(error: RegionError) -> Result<Obstacle, FsError> {
    match error {
        RegionError::Locked { txn, .. } => Ok(Obstacle::Transaction(txn)),
        RegionError::Fs(FsError::Retry) => Ok(Obstacle::Moment),
        RegionError::Fs(error @ (FsError::NoSpace | FsError::HeldBack)) => Ok(Obstacle::NoRoom(error)),
        RegionError::Watched(ino) => Ok(Obstacle::Tokens(ino)),
        error => Err(to_fs(error)),
    }
}

/// The regions that a request is in the middle of something in: they are not handed over before it is through.
#[derive(Default)]
struct Holding<'a> {
    /// The first one: most requests have no more.
    first: Cell<Option<&'a RegionService>>,
    more: RefCell<Vec<&'a RegionService>>,
}

impl<'a> Holding<'a> {
    /// Holds on to it. False: it is about to be handed over, or was.
    #[inline]
    fn hold(&self, service: &'a RegionService) -> bool {
        match self.first.get() {
            Some(first) if std::ptr::eq(first, service) => true,
            None => {
                let may_begin = service.begin_request();
                self.first.set(may_begin.then_some(service));
                may_begin
            }
            Some(_) => self.hold_another(service),
        }
    }

    #[cold]
    fn hold_another(&self, service: &'a RegionService) -> bool {
        let mut more = self.more.borrow_mut();
        if more.iter().any(|held| std::ptr::eq(*held, service)) {
            return true;
        }
        let may_begin = service.begin_request();
        more.extend(may_begin.then_some(service));
        may_begin
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        // where there is no first one there are no more
        if let Some(first) = self.first.get() {
            first.end_request();
            self.more.get_mut().drain(..).for_each(RegionService::end_request);
        }
    }
}

/// One request being served.
pub(crate) struct RequestContext<'a> {
    pub node: &'a Arc<Node>,
    /// The calling thread's links to the other nodes.
    pub links: &'a Rc<Links>,
    pub session: &'a Arc<Session>,
    /// Of the caller's cluster map.
    pub epoch: Epoch,
    pub cred: &'a Cred,
    /// The connection that the request came over, if it did.
    pub pair: Option<&'a QueuePair>,
    /// Under what its commit is to be found again, if it is to be.
    origin: Option<Origin>,
    /// When waiting ends; fixed by the first wait, so that a request that never waits reads no clock.
    deadline: Cell<Option<Instant>>,
    holding: Holding<'a>,
}

impl<'a> RequestContext<'a> {
    pub fn new(
        node: &'a Arc<Node>,
        links: &'a Rc<Links>,
        session: &'a Arc<Session>,
        epoch: Epoch,
        cred: &'a Cred,
    ) -> RequestContext<'a> {
        RequestContext {
            node,
            links,
            session,
            epoch,
            cred,
            pair: None,
            origin: None,
            deadline: Cell::new(None),
            holding: Holding::default(),
        }
    }

    /// A request that came over a connection, by its number in the session.
    pub fn over(self, pair: &'a QueuePair, request: u64) -> RequestContext<'a> {
        let session = self.session.id;
        RequestContext {
            pair: Some(pair),
            origin: Some(Origin { session, request }),
            ..self
        }
    }

    /// Under what its commit is to be found again, if it is to be.
    pub fn origin(&self) -> Option<Origin> {
        self.origin
    }

    /// What changes from here on is the session's doing.
    pub fn enters(&self, region: &mut Region) {
        let is_forgotten = self.pair.is_none() && planted(Planted::ColocatedForgotten);
        region.entered_for(match is_forgotten {
            true => SessionId(0),
            false => self.session.id,
        });
    }

    /// What `f` changes is the session's doing, and the request is found in what it commits.
    pub fn in_its_name<T>(&self, region: &mut Region, f: impl FnOnce(&mut Region) -> T) -> T {
        self.enters(region);
        if self.origin.is_none() {
            return f(region);
        }
        region.asked_by(self.origin);
        let done = f(region);
        region.asked_by(None);
        done
    }

    pub fn now_ns(&self) -> i64 {
        self.node.clock.now_ns()
    }

    pub fn deadline(&self) -> Instant {
        self.deadline.get().unwrap_or_else(|| {
            let deadline = Instant::now() + self.node.config.timeouts.held;
            self.deadline.set(Some(deadline));
            deadline
        })
    }

    /// How long a call to another node may take.
    pub fn call_limit(&self) -> Duration {
        call_limit(self.deadline())
    }

    /// A backoff whose jitter is this request's own.
    pub fn backoff(&self) -> Backoff {
        Backoff::new(self.node.next_jitter(), self.deadline())
    }

    /// A region served here; `WrongEpoch` tells the caller to ask for the map again: the region is elsewhere, or about to be, or has
    /// changed since the map that the caller goes by. It is not handed over before this request is through.
    pub fn service(&self, region: RegionId) -> Result<&'a Arc<RegionService>, FsError> {
        let is_known = |service: &&Arc<RegionService>| service.epoch <= self.epoch || planted(Planted::OldEpochServed);
        let service = self.node.service(region).filter(is_known);
        service.filter(|service| self.holds(service)).ok_or(FsError::WrongEpoch)
    }

    /// As [`Self::service`], where a transaction coordinated here takes part in a region of this node. None: it is elsewhere. `Retry`: it is
    /// about to be.
    pub fn participant_here(&self, region: RegionId) -> Result<Option<&'a Arc<RegionService>>, FsError> {
        match self.node.service(region) {
            Some(service) if !self.holds(service) => Err(FsError::Retry),
            service => Ok(service),
        }
    }

    /// Only a region that has copies can be handed over.
    #[inline]
    fn holds(&self, service: &'a RegionService) -> bool {
        service.replication().is_none() || self.holding.hold(service)
    }

    /// Does something in a region served here. While an inode it needs is locked by a transaction, or watched by another session,
    /// or the redo log is full, waits (bounded) and does it anew.
    /// Then it waits until that may be told ([`Self::answerable`]): what was found counts as much as what was done, since others may have
    /// done it a moment ago.
    pub async fn on<T>(
        &self,
        region: RegionId,
        mut f: impl FnMut(&mut Region) -> Result<T, RegionError>,
    ) -> Result<T, FsError> {
        let service = self.service(region)?;
        let mut f = |region: &mut Region| self.in_its_name(region, &mut f);
        let done = match self.node.enter_with_room(service, &mut f) {
            Ok(done) => Ok(done),
            Err(error) => Box::pin(self.wait_and_do(service, error, f)).await,
        };
        match self.may_tell(service) {
            true => done,
            false => Box::pin(self.told_when_answerable(service, done)).await,
        }
    }

    /// What was found or done, once it may be told.
    async fn told_when_answerable<T>(&self, service: &RegionService, done: Result<T, FsError>) -> Result<T, FsError> {
        self.answerable(service).await?;
        done
    }

    /// Is it found or done for another node, whose transaction goes by it?
    fn is_of_transaction(&self) -> bool {
        matches!(self.session.party, Party::Node(_)) && !planted(Planted::TransactionNotAwaited)
    }

    /// Need nobody wait before what was found or done by now is told?
    #[inline]
    pub fn may_tell(&self, service: &RegionService) -> bool {
        match self.is_of_transaction() {
            true => service.is_mirrored(),
            false => service.may_answer(),
        }
    }

    /// Waits until it may be told what was found or done in a region by now: when the region's mode says so; where another node asks,
    /// when every mirror has it, since a transaction goes by it that cannot be taken back.
    ///
    /// # Errors
    /// As [`Self::mirrored`].
    pub async fn answerable(&self, service: &RegionService) -> Result<(), FsError> {
        match self.is_of_transaction() {
            true => self.mirrored(service).await,
            false => service.answerable(self.links, || self.deadline()).await,
        }
    }

    /// Waits until every mirror has what was found or done in a region by now, in all modes.
    ///
    /// # Errors
    /// [`FsError::Unreachable`]: a mirror does not take it. It has happened, and may be found later.
    pub async fn mirrored(&self, service: &RegionService) -> Result<(), FsError> {
        if planted(Planted::TransactionNotAwaited) {
            return service.answerable(self.links, || self.deadline()).await;
        }
        service.mirrored(self.links, || self.deadline()).await
    }

    /// As `on`, for what a session gets: nothing once it has ended. Its end takes back what was given before, since
    /// both happen with the region entered.
    pub async fn on_for_session<T>(
        &self,
        region: RegionId,
        mut f: impl FnMut(&mut Region) -> Result<T, RegionError>,
    ) -> Result<T, FsError> {
        let session = self.session;
        self.on(region, move |r| {
            if session.is_ended() && !planted(Planted::EndedSessionServed) {
                Err(FsError::SessionExpired.into())
            } else {
                f(r)
            }
        })
        .await
    }

    /// As `on_for_session`, of what is taken and has to come back, which the caller sees to from then on: no mirror is waited for, or it
    /// would be lost when that fails.
    pub async fn take_for_session<T>(
        &self,
        region: RegionId,
        mut f: impl FnMut(&mut Region) -> Result<T, RegionError>,
    ) -> Result<T, FsError> {
        let (service, session) = (self.service(region)?, self.session);
        let mut f = |region: &mut Region| {
            self.in_its_name(region, |r| {
                match session.is_ended() && !planted(Planted::EndedSessionServed) {
                    true => Err(FsError::SessionExpired.into()),
                    false => f(r),
                }
            })
        };
        let taken = match self.node.enter_with_room(service, &mut f) {
            Ok(taken) => Ok(taken),
            Err(error) => Box::pin(self.wait_and_do(service, error, f)).await,
        };
        match taken {
            Ok(taken) => Ok(taken),
            // why not is told as what was found is: another node may serve the region by now
            refused => Box::pin(self.told_when_answerable(service, refused)).await,
        }
    }

    /// It failed: where that is for a moment only, waits and does it anew.
    #[cold]
    async fn wait_and_do<T>(
        &self,
        service: &Arc<RegionService>,
        error: RegionError,
        mut f: impl FnMut(&mut Region) -> Result<T, RegionError>,
    ) -> Result<T, FsError> {
        let mut in_the_way = obstacle(error)?;
        let mut backoff = Backoff::short(self.node.next_jitter(), self.deadline());
        let mut ask_at = Instant::now() + ASK_AFTER;
        let (mut quieted, mut room_sought) = (Vec::new(), None);
        loop {
            match in_the_way {
                Obstacle::NoRoom(ref error) => self.find_room(&mut room_sought, error).await?,
                Obstacle::Tokens(ino) => {
                    let quiet = self.node.quiet(service, ino, self.session.id, self.deadline());
                    quieted.push(quiet.await?);
                }
                Obstacle::Transaction(_) | Obstacle::Moment => backoff.wait().await?,
            }
            if service.has_ended() || service.is_closed() {
                return Err(FsError::WrongEpoch); // and nothing was done
            }
            if let Obstacle::Transaction(txn) = in_the_way
                && Instant::now() >= ask_at
            {
                self.node.resolve(self.links, service, txn).await;
                ask_at = Instant::now() + 2 * ASK_AFTER;
            }
            match self.node.enter_with_room(service, &mut f) {
                Ok(done) => return Ok(done),
                Err(error) => in_the_way = obstacle(error)?,
            }
        }
    }

    /// Before an inode that is served here is locked, or others are locked for what is done to it: asks for its tokens.
    pub async fn quiet(&self, inode: InodeRef) -> Result<Option<Quieted<'a>>, FsError> {
        let service = self.service(inode.ino.region())?;
        let session = self.session.id;
        match service.enter(|region| region.is_watched(inode.ino, session)) {
            false => Ok(None),
            true => Box::pin(self.node.quiet(service, inode.ino, session, self.deadline()))
                .await
                .map(Some),
        }
    }

    /// A request of this node's own to the primary of a region elsewhere. (What waits for another node has a box of its own, so
    /// that requests which ask nobody are small.)
    pub async fn ask_region<A: Ask>(&self, region: RegionId, ask: A) -> Result<A::Answer, FsError> {
        let limit = self.call_limit();
        Box::pin(self.links.call_region_within(region, Cred::Kernel, ask, limit)).await
    }

    /// Attributes of an inode, wherever it lies.
    pub async fn attr_of(&self, inode: InodeRef) -> Result<Attr, FsError> {
        Ok(self.attr_and_tail(inode).await?.0)
    }

    /// Attributes and log's tail of an inode, wherever it lies.
    pub async fn attr_and_tail(&self, inode: InodeRef) -> Result<(Attr, Tail), FsError> {
        let region = inode.ino.region();
        if self.node.serves(region) {
            return self.on(region, |r| r.attr(inode.ino, Some(inode.generation))).await;
        }
        let get_attr = ask::GetAttr {
            ino: inode.ino,
            generation: Some(inode.generation),
        };
        match self.ask_region(region, get_attr).await? {
            reply::Attr { attr, tail } if attr.ino == inode.ino => Ok((attr, tail)),
            other => Err(FsError::Io(format!(
                "the node that serves {:?} answered for {:?}",
                inode.ino, other.attr.ino
            ))),
        }
    }

    /// Finds a name, wherever its directory lies, and the directory's tail at that moment. `None` when there is none.
    pub async fn find(&self, dir: InodeRef, name: &[u8]) -> Result<Option<(DirEntry, Tail)>, FsError> {
        let region = dir.ino.region();
        let found = if self.node.serves(region) {
            self.on(region, |r| r.lookup(dir, name)).await
        } else {
            let name = name.to_vec();
            let found = self
                .ask_region(
                    region,
                    ask::Lookup {
                        dir,
                        name: name.clone(),
                    },
                )
                .await;
            found.map(|found| {
                let entry = DirEntry {
                    cookie: 0,
                    target: found.target,
                    kind: found.kind,
                    name,
                };
                (entry, found.dir_tail)
            })
        };
        match found {
            Ok(entry) => Ok(Some(entry)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A directory's parent, wherever it lies; every mirror knows of it, since what is moved goes by it.
    pub async fn parent_of(&self, dir: InodeRef) -> Result<InodeRef, FsError> {
        let region = dir.ino.region();
        if self.node.serves(region) {
            let parent = self.on(region, |r| r.parent(dir)).await?;
            self.mirrored(self.service(region)?).await?;
            return Ok(parent);
        }
        self.ask_region(region, ask::Parent { inode: dir }).await
    }
}
