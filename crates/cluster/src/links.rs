//! A thread's links to all nodes: connections, and what is asked over them.

mod segments;
mod silence;

use self::segments::CachedSegments;
use crate::dial::addresses;
use crate::link::rpc_error;
use crate::shown_reads::ReadLeases;
use crate::{Link, LinkCounters, MapCell, SessionContext, Timeouts, join_all};
use polvo_fabric::{FabricError, Identity, connect};
use polvo_format::{NodeId, RegionId, SessionId};
use polvo_proto::{Answer, Ask, Call, Cred, FsError, PROTOCOL_VERSION, Reply, Request, ask, reply};
use polvo_rpc::RpcClient;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// Pauses between attempts to connect: the first, and the longest.
const CONNECT_PAUSE_MIN: Duration = Duration::from_millis(2);
const CONNECT_PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often a request follows a region that moves before the caller hears of it.
const MOVES_MAX: u32 = 4;

/// One node as this thread knows it.
#[derive(Default)]
struct Peer {
    link: RefCell<Option<Rc<Link>>>,
    /// Held while connecting, so that tasks of one thread share one attempt.
    connecting: tokio::sync::Mutex<()>,
}

impl Peer {
    fn live(&self) -> Option<Rc<Link>> {
        self.link.borrow().as_ref().filter(|link| !link.is_closed()).cloned()
    }
}

/// Why an attempt to reach a node failed.
enum Missed {
    /// It is away; another attempt may succeed.
    Now { error: FsError, since: Instant },
    /// Nobody waits for it any more, or it has answered and refuses us.
    ForGood(FsError),
}

/// A thread's links to all nodes, made on first use, made anew after a loss. While a node is away, who needs it waits for as
/// long as [`SessionContext::patience`] says. `!Send`.
pub struct Links {
    context: Arc<SessionContext>,
    /// Number of this set of links among those of the process: makes its request ids its own.
    number: u64,
    /// Nobody here waits for a node that is away.
    hasty: Cell<bool>,
    next_request: Cell<u64>,
    next_serial: Cell<u64>,
    /// In order, so that a simulated run repeats.
    peers: RefCell<BTreeMap<NodeId, Rc<Peer>>>,
    segments: RefCell<BTreeMap<RegionId, CachedSegments>>,
    /// Until when what is read of regions with copies may be believed.
    pub(crate) read_leases: ReadLeases,
    counters: Arc<LinkCounters>,
}

/// What a node says of itself, see [`Link`].
struct Greeted {
    needs_sync: bool,
    one_sided: bool,
    checksums: bool,
}

impl SessionContext {
    /// Links of the calling thread.
    pub fn links(self: &Arc<Self>) -> Rc<Links> {
        Rc::new(Links {
            context: self.clone(),
            number: self.map.number_link_set(),
            hasty: Cell::new(false),
            next_request: Cell::new(0),
            next_serial: Cell::new(0),
            peers: RefCell::default(),
            segments: RefCell::default(),
            read_leases: ReadLeases::default(),
            counters: self.counters.join(),
        })
    }
}

impl Links {
    /// Links of a session of their own; `name`, `home`: see `Request::Attach`. Threads of one session share counters
    /// and more when they take theirs from one [`SessionContext`].
    pub fn new(
        map: Arc<MapCell>,
        me: Identity,
        session: SessionId,
        name: String,
        home: Option<NodeId>,
        timeouts: Timeouts,
    ) -> Rc<Links> {
        SessionContext::new(map, me, session, name, home, timeouts, None).links()
    }

    /// What all threads of the session share.
    pub fn context(&self) -> &Arc<SessionContext> {
        &self.context
    }

    /// An envelope for a request of this session. Numbers are unique in the session: the upper bits tell its sets of
    /// links apart.
    pub fn make_call(&self, cred: Cred, request: impl Into<Request>) -> Call {
        Call {
            session: self.context.session,
            request_id: self.next_request_id(),
            again: false,
            epoch: self.context.map.epoch(),
            cred,
            request: request.into(),
        }
    }

    fn next_request_id(&self) -> u64 {
        let n = self.next_request.get();
        self.next_request.set(n + 1);
        debug_assert!(
            Call::link_set(Call::request_id(self.number, n)) == self.number,
            "the numbers of a set of links are its own"
        );
        Call::request_id(self.number, n)
    }

    /// From now on nothing that is done over these links waits for a node that is away: for work beside the operations,
    /// which other nodes wait for.
    pub fn never_wait(&self) {
        self.hasty.set(true);
    }

    fn patience(&self) -> Duration {
        match self.hasty.get() {
            true => Duration::ZERO,
            false => self.context.patience(),
        }
    }

    /// The link to a region's primary, whoever that is by then: while it is away a copy may take its place.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] when it stays away for longer than this session waits.
    pub async fn to_primary(&self, region: RegionId) -> Result<Rc<Link>, FsError> {
        let mut away_since = None;
        loop {
            let node = self.primary(region)?;
            let link = self.to_its_primary(region, node).await;
            if !self.has_copies(region) || !matches!(link, Err(FsError::Unreachable { .. })) {
                return link;
            }
            if self.primary(region)? == node && !self.may_move(&mut away_since).await {
                return link;
            }
        }
    }

    /// The link to the node that is a region's primary. Waits for one that is away, unless the region has copies.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], also when another node serves the region meanwhile.
    pub(crate) async fn to_its_primary(&self, region: RegionId, node: NodeId) -> Result<Rc<Link>, FsError> {
        if let Some(link) = self.peer(node).live() {
            return Ok(link);
        }
        match self.has_copies(region) {
            true => Box::pin(self.unless_it_moves(region, node, self.at_once(node))).await,
            false => self.to(node).await,
        }
    }

    /// The link to a node. Waits for one that is away.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] when it stays away for longer than this session waits.
    pub async fn to(&self, node: NodeId) -> Result<Rc<Link>, FsError> {
        self.reach(node, self.patience()).await
    }

    /// As `to`, without waiting for a node that is away.
    ///
    /// # Errors
    /// [`FsError::Unreachable`].
    pub async fn at_once(&self, node: NodeId) -> Result<Rc<Link>, FsError> {
        self.reach(node, Duration::ZERO).await
    }

    /// As `at_once`, within a limit of its own.
    ///
    /// # Errors
    /// [`FsError::Unreachable`].
    pub async fn at_once_within(&self, node: NodeId, limit: Duration) -> Result<Rc<Link>, FsError> {
        if let Some(link) = self.peers.borrow().get(&node).and_then(|peer| peer.live()) {
            return Ok(link);
        }
        in_all(node, limit, self.at_once(node)).await
    }

    /// As `to`, with a patience of its own. Whatever that is, a node that is not known to be away is tried once.
    async fn reach(&self, node: NodeId, patience: Duration) -> Result<Rc<Link>, FsError> {
        let peer = self.peer(node);
        if let Some(link) = peer.live() {
            return Ok(link);
        }
        let mut pause = CONNECT_PAUSE_MIN;
        loop {
            match self.try_to_reach(node, &peer, patience).await {
                Ok(link) => return Ok(link),
                Err(Missed::Now { since, .. }) if since.elapsed() + pause < patience => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(CONNECT_PAUSE_MAX);
                }
                Err(Missed::Now { error, .. } | Missed::ForGood(error)) => return Err(error),
            }
        }
    }

    /// One attempt, shared by the tasks of this thread. Who waits for the next one keeps nobody from going its way.
    async fn try_to_reach(&self, node: NodeId, peer: &Peer, patience: Duration) -> Result<Rc<Link>, Missed> {
        let _only_one = peer.connecting.lock().await;
        if let Some(link) = peer.live() {
            return Ok(link);
        }
        let absences = &self.context.absences;
        absences
            .may_try(node, patience, self.context.timeouts.connect)
            .map_err(Missed::ForGood)?;
        match self.connect(node).await {
            Ok(link) => {
                absences.back(node);
                let link = Rc::new(link);
                debug_assert!(link.node == node, "the node that was asked for");
                if let Some(before) = peer.link.replace(Some(link.clone())) {
                    assert!(before.serial < link.serial, "a later connection has a higher number");
                    debug_assert!(before.is_closed(), "a link that can be used is not made anew");
                    before.rpc.queue_pair().close();
                }
                Ok(link)
            }
            Err(error @ FsError::Unreachable { .. }) => {
                let since = absences.failed(node, &error);
                Err(Missed::Now { error, since })
            }
            Err(error) => Err(Missed::ForGood(error)),
        }
    }

    /// True when the node could not be reached the last time: a caller with a choice takes another one.
    pub fn is_suspect(&self, node: NodeId) -> bool {
        let live = || self.peers.borrow().get(&node).is_some_and(|peer| peer.live().is_some());
        self.context.absences.is_away(node) && !live()
    }

    fn peer(&self, node: NodeId) -> Rc<Peer> {
        if let Some(peer) = self.peers.borrow().get(&node) {
            return peer.clone();
        }
        self.peers.borrow_mut().entry(node).or_default().clone()
    }

    async fn connect(&self, node: NodeId) -> Result<Link, FsError> {
        let unreachable = |why: String| FsError::Unreachable { node: node.0, why };
        let context = &self.context;
        let map = context.map.get();
        let info = map
            .node(node)
            .ok_or_else(|| unreachable("it is not in the cluster map".into()))?;
        let mut failure = unreachable("none of its addresses can be used from here".into());
        for address in addresses(info, &context.host, context.provider.as_deref()) {
            let pair = match connect(&address, &context.me, &self.context.memory, context.timeouts.connect).await {
                Ok(pair) => pair,
                Err(error) => {
                    failure = unreachable(error.to_string());
                    continue;
                }
            };
            match RpcClient::establish(pair, &self.context.memory, context.timeouts.connect).await {
                Ok(rpc) => return self.attach(node, rpc).await,
                Err(error) => failure = rpc_error(node, error),
            }
        }
        Err(failure)
    }

    /// First call on a connection: makes the session known.
    async fn attach(&self, node: NodeId, rpc: RpcClient) -> Result<Link, FsError> {
        let serial = self.next_serial.get();
        self.next_serial.set(serial + 1);
        let given_up = self.context.given_up(node);
        let mut link = Link {
            node,
            rpc,
            fence: given_up.load(Ordering::Acquire),
            given_up,
            needs_sync: false,
            one_sided: true,
            checksums: false,
            serial,
            resets: Cell::new(0),
            tick: Cell::new(0),
            timeout: self.context.timeouts.rpc,
            counters: self.counters.clone(),
        };
        let greeted = self.greet(&link, self.context.timeouts.connect).await?;
        (link.needs_sync, link.one_sided, link.checksums) = (greeted.needs_sync, greeted.one_sided, greeted.checksums);
        Ok(link)
    }

    /// Says (again) over a link who we are.
    async fn greet(&self, link: &Link, limit: Duration) -> Result<Greeted, FsError> {
        let context = &self.context;
        let attach = ask::Attach {
            version: PROTOCOL_VERSION,
            name: context.name.clone(),
            home: context.home,
            fence: link.fence,
            syncs: context.syncs(),
        };
        let call = self.make_call(Cred::Kernel, attach);
        let known = context.pools.known(link.node);
        let reply::Attached {
            tick,
            map,
            node,
            number,
            needs_sync,
            one_sided,
            checksums,
            past,
            ..
        } = ask::Attach::answered(link.call_within(&call, limit).await, link.node)?;
        if node != link.node {
            let why = format!("node {} answers at its address", node.0);
            return Err(FsError::Unreachable { node: link.node.0, why });
        }
        context.pools.see_answer(node, known, &past)?;
        context.map.offer(*map);
        link.tick.set(tick);
        context.note_session(node, number);
        link.resets.set(context.resets(node));
        Ok(Greeted {
            needs_sync,
            one_sided,
            checksums,
        })
    }

    /// Sends a request to a node. A session that the node has forgotten is attached anew. A request cut off by a lost
    /// connection is repeated once where that does no harm: when it changes nothing, or when the node recognises the
    /// repetition, by what it knows of the session or by its logs.
    ///
    /// Over links that never wait ([`Links::never_wait`]) also where a node is silent that serves nothing any more: what is done beside
    /// the operations is not to keep them waiting for a node that others have taken the place of.
    pub async fn call_node<A: Ask>(&self, node: NodeId, cred: Cred, ask: A) -> Result<A::Answer, FsError> {
        let call = self.make_call(cred, ask);
        let sent = self.send(node, &call);
        let answer = match self.hasty.get() {
            true => Box::pin(self.while_it_serves(node, sent)).await,
            false => sent.await,
        };
        if self.hasty.get() && matches!(answer, Err(FsError::Unreachable { .. })) {
            // what may still be on its way there is not to take effect behind what comes next
            self.context.give_up(node);
        }
        A::answered(answer, node)
    }

    /// As `call_node`, bounded by `limit` in all, connecting and a second attempt included.
    pub async fn call_node_within<A: Ask>(
        &self,
        node: NodeId,
        cred: Cred,
        ask: A,
        limit: Duration,
    ) -> Result<A::Answer, FsError> {
        self.call_in_all(node, cred, ask, limit, self.patience()).await
    }

    /// As `call_node_within`, without waiting for a node that is away.
    pub async fn call_node_at_once_within<A: Ask>(
        &self,
        node: NodeId,
        cred: Cred,
        ask: A,
        limit: Duration,
    ) -> Result<A::Answer, FsError> {
        self.call_in_all(node, cred, ask, limit, Duration::ZERO).await
    }

    async fn call_in_all<A: Ask>(
        &self,
        node: NodeId,
        cred: Cred,
        ask: A,
        limit: Duration,
        patience: Duration,
    ) -> Result<A::Answer, FsError> {
        let call = self.make_call(cred, ask);
        let sent = in_all(node, limit, self.send_patiently(node, &call, limit, patience));
        A::answered(sent.await, node)
    }

    /// As `call_node`, without waiting for a node that is away.
    pub async fn call_node_at_once<A: Ask>(&self, node: NodeId, cred: Cred, ask: A) -> Result<A::Answer, FsError> {
        let (call, limit) = (self.make_call(cred, ask), self.context.timeouts.rpc);
        A::answered(self.send_patiently(node, &call, limit, Duration::ZERO).await, node)
    }

    /// As `call_node`, for a call that was made before.
    pub fn send(&self, node: NodeId, call: &Call) -> impl Future<Output = Answer> {
        self.send_within(node, call, self.context.timeouts.rpc)
    }

    /// As `send`, each attempt bounded by `limit`.
    fn send_within(&self, node: NodeId, call: &Call, limit: Duration) -> impl Future<Output = Answer> {
        self.send_patiently(node, call, limit, self.patience())
    }

    async fn send_patiently(&self, node: NodeId, call: &Call, limit: Duration, patience: Duration) -> Answer {
        let link = self.reach(node, patience).await?;
        match link.exchange(call, limit).await {
            Ok(Err(FsError::SessionExpired)) => {
                self.greet(&link, self.context.timeouts.connect).await?;
                let answer = link.exchange(call, limit).await;
                if answer.is_err() {
                    self.context.give_up(node);
                }
                answer?
            }
            Ok(answer) => answer,
            Err(error @ FsError::Unreachable { .. }) => {
                if !link.is_closed() {
                    // no answer in time: whoever asks next finds out quickly
                    self.give_up(&link, &error);
                    return Err(error);
                }
                let resets = link.resets.get();
                let link = self.reach(node, patience).await;
                let link = link.inspect_err(|_| self.context.give_up(node))?;
                let is_change = call.request.is_mutation();
                let anew = is_change && link.resets.get() != resets;
                if anew && !call.request.is_found_again() {
                    return Err(error);
                }
                let answer = match is_change {
                    true => link.exchange(&call.again(), limit).await,
                    false => link.exchange(call, limit).await,
                };
                if answer.is_err() {
                    self.context.give_up(node);
                }
                match answer? {
                    // it may have been done, and what it concerned be gone since with all that tells of it
                    Err(FsError::Stale | FsError::NotFound) if anew => Err(error),
                    answer => answer,
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a request about a region over one connection alone, behind what was posted there, which it finds in place
    /// ([`Links::write_ahead`]). `None`: it was not done and never will be, and of what was posted there nothing takes effect
    /// any more, or where nobody reads.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] when it cannot be said whether it was done; else what the node has answered.
    pub async fn call_behind<A: Ask>(
        &self,
        region: RegionId,
        link: &Link,
        cred: Cred,
        ask: A,
    ) -> Result<Option<A::Answer>, FsError> {
        let mut call = self.make_call(cred, ask);
        let (node, limit) = (link.node, self.context.timeouts.rpc);
        if self.has_copies(region) {
            let answer = Box::pin(self.send_behind_unless_it_moves(region, link, call)).await?;
            return answer.map(|(node, reply)| A::answered(Ok(reply), node)).transpose();
        }
        let error = match link.exchange(&call, limit).await {
            Ok(Err(FsError::WrongEpoch)) => return Ok(None),
            Ok(answer) => return A::answered(answer, node).map(Some),
            Err(error) => error,
        };
        if !matches!(error, FsError::Unreachable { .. }) {
            return Err(error);
        }
        if !link.is_closed() {
            self.give_up(link, &error);
            return Err(error);
        }
        let link = self.to(node).await.inspect_err(|_| self.context.give_up(node))?;
        call.request = Request::Withdraw { region };
        call.again = true;
        match link.exchange(&call, limit).await {
            Ok(Ok(Reply::Withdrawn)) => Ok(None),
            Ok(Ok(reply)) => A::answered(Ok(reply), node).map(Some),
            Ok(Err(FsError::SessionExpired)) => Err(error),
            Ok(Err(answer)) => Err(answer),
            Err(lost) => {
                self.give_up(&link, &lost);
                Err(lost)
            }
        }
    }

    /// As [`Links::call_behind`], where a copy may take the primary's place: what names places in one pool is asked of no other node.
    /// Whether it was done is known to whoever serves the region then.
    async fn send_behind_unless_it_moves(
        &self,
        region: RegionId,
        link: &Link,
        mut call: Call,
    ) -> Result<Option<(NodeId, Reply)>, FsError> {
        let limit = self.context.timeouts.rpc;
        let sent = async {
            let answer = link.exchange(&call, limit).await;
            if let Err(error @ FsError::Unreachable { .. }) = &answer
                && !link.is_closed()
            {
                self.give_up(link, error);
            }
            answer?
        };
        match self.unless_it_moves(region, link.node, sent).await {
            // also what is done at once, and then waits for mirrors in vain
            Err(FsError::Unreachable { .. } | FsError::WrongEpoch) => {}
            answer => return answer.map(|reply| Some((link.node, reply))),
        }
        call.request = Request::Withdraw { region };
        call.epoch = self.context.map.epoch();
        call.again = true;
        let (node, reply) = self.send_to_primary(region, call, limit).await?;
        Ok((reply != Reply::Withdrawn).then_some((node, reply)))
    }

    /// Drops a link over which a node did not answer; what was asked of it is about to be reported as failed.
    fn give_up(&self, link: &Link, error: &FsError) {
        self.context.give_up(link.node);
        link.rpc.queue_pair().close();
        self.context.absences.failed(link.node, error);
    }

    /// The node that serves a region.
    pub fn primary(&self, region: RegionId) -> Result<NodeId, FsError> {
        let map = self.context.map.get();
        map.primary(region)
            .ok_or_else(|| FsError::Io(format!("region {} has no primary", region.0)))
    }

    /// Sends a request to the primary of a region; refreshes the map on `WrongEpoch`.
    pub async fn call_region<A: Ask>(&self, region: RegionId, cred: Cred, ask: A) -> Result<A::Answer, FsError> {
        let limit = self.context.timeouts.rpc;
        let (node, reply) = self.send_to_primary(region, self.make_call(cred, ask), limit).await?;
        A::answered(Ok(reply), node)
    }

    /// As `call_region`, each attempt bounded by `limit`. What finds no room but for what is held back is asked again, but for a part
    /// of a transaction: others are locked meanwhile.
    pub async fn call_region_within<A: Ask>(
        &self,
        region: RegionId,
        cred: Cred,
        ask: A,
        limit: Duration,
    ) -> Result<A::Answer, FsError> {
        let (node, reply) = self.send_to_primary(region, self.make_call(cred, ask), limit).await?;
        A::answered(Ok(reply), node)
    }

    /// Sends a request to the primary of a region; says also which node has answered.
    pub(crate) async fn send_to_primary(
        &self,
        region: RegionId,
        mut call: Call,
        limit: Duration,
    ) -> Result<(NodeId, Reply), FsError> {
        let is_part = matches!(call.request, Request::Collect { .. } | Request::Prepare { .. });
        let mut short_since = None;
        let (mut moves, mut away_since) = (0, None);
        while moves < MOVES_MAX {
            let node = self.primary(region)?;
            let answer = match self.has_copies(region) {
                false => self.send_within(node, &call, limit).await,
                true => {
                    let sent = self.send_patiently(node, &call, limit, Duration::ZERO);
                    match Box::pin(self.unless_it_moves(region, node, sent)).await {
                        Err(FsError::Unreachable { .. }) if is_part && self.primary(region)? != node => {
                            return Err(FsError::Retry); // who takes over has locked what was collected there, or has not
                        }
                        Err(FsError::Unreachable { .. })
                            if self.primary(region)? != node || self.may_move(&mut away_since).await =>
                        {
                            call.epoch = self.context.map.epoch();
                            call.again = call.request.is_mutation();
                            continue;
                        }
                        answer => answer,
                    }
                }
            };
            match answer {
                Err(FsError::HeldBack) if !is_part && self.room_may_come(&mut short_since).await => {
                    call.request_id = self.next_request_id();
                }
                Err(FsError::WrongEpoch) => {
                    self.context
                        .map
                        .offer(self.call_node(node, Cred::Kernel, ask::Map).await?);
                    call.epoch = self.context.map.epoch();
                    call.again |= self.has_copies(region) && call.request.is_mutation();
                    // who is to take a primary's place needs a moment
                    let is_coming = self.primary(region)? == node && self.has_copies(region);
                    if !is_coming || !self.may_move(&mut away_since).await {
                        moves += 1;
                    }
                }
                answer => return answer.map(|reply| (node, reply)),
            }
        }
        let why = format!(
            "{MOVES_MAX} times a node did not serve region {} that served it by its map",
            region.0
        );
        Err(FsError::Io(why))
    }

    /// Has the region copies, one of which may take its primary's place?
    pub fn has_copies(&self, region: RegionId) -> bool {
        self.context.map.has_copies(region)
    }

    pub(crate) fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Renews the session's lease at every node that knows of it, all at a time, waiting for none that is away. Returns each
    /// node's answer.
    pub async fn renew(&self) -> Vec<(NodeId, Result<reply::Renewed, FsError>)> {
        let nodes = self.context.attached_nodes();
        join_all(
            nodes
                .into_iter()
                .map(|node| async move { (node, self.renew_at(node).await) }),
        )
        .await
    }

    /// Waits until a connection that this thread has now is lost, or any other of them; forever when it has none.
    pub async fn lost(&self) {
        let links: Vec<Rc<Link>> = self.peers.borrow().values().filter_map(|peer| peer.live()).collect();
        let mut waits: Vec<_> = links
            .iter()
            .map(|link| Box::pin(link.rpc.queue_pair().closed()))
            .collect();
        poll_fn(
            |cx| match waits.iter_mut().any(|wait| wait.as_mut().poll(cx).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            },
        )
        .await;
    }

    /// Asks nodes, all at a time, whether they are there and nobody can have taken their place, which renews the session's lease.
    /// Returns those that say so. One that is silent is waited for only as long as it is the primary of any region, as far as the
    /// others know.
    pub async fn look_after(&self, nodes: &[NodeId]) -> Vec<NodeId> {
        let asked = nodes.iter().map(|node| async move {
            let node = *node;
            // nothing is said of reads that are under way
            let heartbeat = ask::Heartbeat { tick: 0 };
            let answer = self.call_node_at_once(node, Cred::Kernel, heartbeat);
            match self.while_it_serves(node, answer).await {
                Ok(renewed) if renewed.serves => Some(node),
                _ => {
                    self.ask_around(node).await;
                    None
                }
            }
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    async fn renew_at(&self, node: NodeId) -> Result<reply::Renewed, FsError> {
        let renewed = async {
            let link = self.reach(node, Duration::ZERO).await?;
            let heartbeat = ask::Heartbeat { tick: link.tick.get() };
            let renewed = self.call_node_at_once(node, Cred::Kernel, heartbeat).await?;
            Ok((link, renewed))
        };
        let (link, renewed) = self.while_it_serves(node, renewed).await?;
        // reported only with the next renewal: by then no read begun before now is still under way
        link.tick.set(renewed.tick);
        Ok(renewed)
    }

    /// Ends the session at every node that knows of it (best effort), and closes all links.
    pub async fn detach(&self) {
        let nodes = self.context.attached_nodes();
        join_all(nodes.into_iter().map(|node| async move {
            if let Ok(link) = self.reach(node, Duration::ZERO).await {
                let call = self.make_call(Cred::Kernel, ask::Detach);
                let _best_effort = link.call_within(&call, self.context.timeouts.connect).await;
            }
            self.context.note_detached(node);
        }))
        .await;
        self.close();
    }

    /// Closes all links of this thread; the session goes on.
    pub fn close(&self) {
        for peer in self.peers.take().into_values() {
            if let Some(link) = peer.link.borrow_mut().take() {
                link.rpc.queue_pair().close();
            }
        }
        self.segments.borrow_mut().clear();
    }
}

/// An attempt at something with a node, bounded in time whatever it consists of.
async fn in_all<T>(
    node: NodeId,
    limit: Duration,
    attempt: impl Future<Output = Result<T, FsError>>,
) -> Result<T, FsError> {
    tokio::time::timeout(limit, attempt).await.unwrap_or_else(|_| {
        Err(FsError::Unreachable {
            node: node.0,
            why: format!("it did not answer within {} ms", limit.as_millis()),
        })
    })
}

impl Drop for Links {
    fn drop(&mut self) {
        self.close();
        self.context.counters.leave(&self.counters);
    }
}

pub(crate) fn fabric_error(node: NodeId, error: FabricError) -> FsError {
    match error {
        FabricError::OutOfRange { .. } => FsError::Io(error.to_string()),
        other => FsError::Unreachable {
            node: node.0,
            why: other.to_string(),
        },
    }
}

/// What is said where a region's primary was waited for, and did not come.
pub(crate) fn in_vain(error: FsError, node: NodeId, region: RegionId) -> FsError {
    match error {
        FsError::WrongEpoch => FsError::Unreachable {
            node: node.0,
            why: format!("it is to serve region {}, and does not yet", region.0),
        },
        error => error,
    }
}
