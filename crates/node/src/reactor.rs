//! Reactors: the threads that serve a node's connections.
//!
//! ```text
//!   reactor 0 (with `Node::serve`): listens; a peer that has proved who it is ---> the reactor that serves the fewest
//!   each reactor: its own runtime, poller and links to other nodes; queue pairs, which belong to it alone
//! ```
//!
//! A request is carried out by the reactor of its connection, from its first byte to its answer. Reactors meet in the node: at its
//! regions' locks, and in what sessions have asked for before ([`crate::request::replay`]). What is known of connections is
//! common to them ([`Connections`]); to close one is left to its reactor.

use crate::housekeeping;
use crate::housekeeping::scrub;
use crate::locks::deadlocks;
use crate::map;
use crate::node::Node;
use crate::replication::{keeper, leases, replace};
use crate::request::connections::{Connection, Connections};
use crate::request::context::RequestContext;
use crate::request::replay::Running;
use crate::request::sessions::Party;
use crate::transactions::dispatch;
use parking_lot::Mutex;
use polvo_cluster::{LinkTotals, Links, LocalFuture, Timeouts, join_all};
use polvo_fabric::{Accepted, Address, FabricError, Listener, QueuePair, Role, Sparing};
use polvo_format::NodeId;
use polvo_proto::{Answer, Ask, Call, FsError, Reply, Request, ask, encode_answer, reply};
use polvo_region::planted::{Planted, planted};
use polvo_rpc::MAX_REPLY;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, LocalSet};

/// How often a node that stops polls whether they have ended.
const DRAIN_POLL: Duration = Duration::from_millis(2);

fn party_of(role: &Role) -> Party {
    match role {
        Role::Node(id) => Party::Node(NodeId(*id)),
        Role::Client => Party::Client,
    }
}

/// What a reactor is told.
enum ToReactor {
    /// Serves this peer from now on, over the connection of that number.
    Serve(Box<Accepted>, Arc<Connection>),
    /// Closes these, and says so.
    Close(Vec<u64>, oneshot::Sender<()>),
    /// Ends, when the node has come to its end.
    End(oneshot::Sender<()>),
}

/// A node's reactors, and the connections that they serve.
pub(crate) struct Reactors {
    pub(crate) connections: Connections,
    /// What is in them is bounded by how many connections there may be, and by who waits for an answer.
    inboxes: Vec<mpsc::UnboundedSender<ToReactor>>,
    /// Of those that nobody runs yet.
    waiting: Mutex<Vec<(usize, mpsc::UnboundedReceiver<ToReactor>)>>,
}

impl Reactors {
    pub(crate) fn new(count: NonZeroUsize) -> Reactors {
        let (inboxes, waiting): (Vec<_>, Vec<_>) = (0..count.get())
            .map(|number| {
                let (inbox, messages) = mpsc::unbounded_channel();
                (inbox, (number, messages))
            })
            .unzip();
        Reactors {
            connections: Connections::default(),
            inboxes,
            waiting: Mutex::new(waiting),
        }
    }

    /// Has the reactors close connections that were marked for it. On return nothing comes over them any more, and whatever had begun
    /// before is known to its session ([`Replay`](crate::request::replay::Replay)).
    pub(crate) async fn close(&self, closing: Vec<Arc<Connection>>) {
        let mut numbers: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for connection in closing {
            debug_assert!(connection.is_closing(), "it is marked");
            numbers.entry(connection.reactor).or_default().push(connection.number);
        }
        let mut closed = Vec::with_capacity(numbers.len());
        for (reactor, numbers) in numbers {
            let (say, said) = oneshot::channel();
            if self.inboxes[reactor].send(ToReactor::Close(numbers, say)).is_ok() {
                closed.push(said);
            }
        }
        for said in closed {
            // one that ends closes all it has
            let _ = said.await;
        }
    }

    /// Gives a peer to the reactor that has the fewest. False: there are too many.
    fn serve(&self, accepted: Accepted) -> bool {
        let party = party_of(accepted.peer());
        match self.connections.make_room(party) {
            Ok(None) => {}
            Ok(Some(idle)) => {
                // nobody needs to know when: it has no session
                let (say, _) = oneshot::channel();
                let _ = self.inboxes[idle.reactor].send(ToReactor::Close(vec![idle.number], say));
            }
            Err(()) => return false,
        }
        let counts = self.connections.by_reactor(self.inboxes.len());
        // not one that has ended before its time
        let running = (0..counts.len()).filter(|reactor| !self.inboxes[*reactor].is_closed());
        let Some(reactor) = running.min_by_key(|reactor| counts[*reactor]) else {
            return false;
        };
        let connection = self.connections.add(party, reactor);
        let number = connection.number;
        if self.inboxes[reactor]
            .send(ToReactor::Serve(Box::new(accepted), connection))
            .is_err()
        {
            self.connections.forget(number);
        }
        true
    }

    async fn end(&self) {
        let ends: Vec<_> = self
            .inboxes
            .iter()
            .filter_map(|inbox| {
                let (say, said) = oneshot::channel();
                inbox.send(ToReactor::End(say)).is_ok().then_some(said)
            })
            .collect();
        for end in ends {
            let _ = end.await;
        }
    }
}

/// One reactor of a node, to be run on a thread of its own or on a `LocalSet` with others. It ends with the node.
pub struct Reactor {
    node: Arc<Node>,
    number: usize,
    inbox: mpsc::UnboundedReceiver<ToReactor>,
}

impl Reactor {
    /// Runs it on a new thread.
    ///
    /// # Errors
    /// The system gives none.
    pub fn spawn(self) -> Result<(), FsError> {
        let failed = |error: std::io::Error| FsError::Io(format!("starting reactor {}: {error}", self.number));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let thread = std::thread::Builder::new().name(format!("reactor {}", self.number));
        let spawned = thread.spawn(move || LocalSet::new().block_on(&runtime, self.run()));
        spawned
            .map(drop)
            .map_err(|error| FsError::Io(format!("starting a reactor: {error}")))
    }

    /// Serves connections until the node ends. Runs on the current LocalSet. (Boxed: see [`Node::serve`].)
    pub fn run(self) -> LocalFuture<'static, ()> {
        Box::pin(self.run_alone())
    }

    async fn run_alone(self) {
        let mut poller = JoinSet::new();
        poller.spawn_local(polvo_fabric::poller());
        // the session that they share ends with the node
        let links = self.node.new_links();
        self.run_over(&links).await;
    }

    async fn run_over(mut self, links: &Rc<Links>) {
        let pairs: Rc<RefCell<BTreeMap<u64, QueuePair>>> = Rc::default();
        let mut serving = JoinSet::new();
        let mut end = None;
        while end.is_none()
            && let Some(message) = self.inbox.recv().await
        {
            while serving.try_join_next().is_some() {}
            match message {
                ToReactor::Serve(accepted, connection) => match accepted.queue_pair() {
                    Ok(pair) => {
                        pairs.borrow_mut().insert(connection.number, pair.clone());
                        let served = Served {
                            node: self.node.clone(),
                            links: links.clone(),
                            connection,
                            pair,
                        };
                        serving.spawn_local(serve(served, pairs.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "connection dropped");
                        self.node.reactors.connections.forget(connection.number);
                    }
                },
                ToReactor::Close(numbers, closed) => {
                    let pairs = pairs.borrow();
                    numbers
                        .iter()
                        .filter_map(|number| pairs.get(number))
                        .for_each(QueuePair::close);
                    let _ = closed.send(());
                }
                ToReactor::End(ended) => end = Some(ended),
            }
        }
        serving.shutdown().await;
        let _ = end.map(|ended| ended.send(()));
    }
}

/// Has a reactor run.
type Begin<'a> = Box<dyn FnMut(Reactor) -> Result<(), FsError> + 'a>;
/// Is told where the node listens.
type Ready<'a> = Box<dyn FnOnce(&[Address]) + 'a>;

impl Node {
    /// Serves until `Shutdown` or `stop()`: listens, accepts, housekeeping (leases, ticks, transactions left over, re-dispatch, log GC).
    /// Runs on the current LocalSet, the first reactor with it. `begin` has the others run ([`Reactor::run`]). `ready` is called once
    /// every listener is bound, with the bound addresses.
    ///
    /// # Errors
    /// An address that is malformed or in use; [`FsError::SetBack`] when another node has seen a later copy of the pool; what `begin`
    /// says.
    ///
    /// Boxed, since the code of a future is otherwise made anew in every program and test that awaits it: all of the node, that is.
    pub fn serve<'a>(
        self: Arc<Self>,
        begin: impl FnMut(Reactor) -> Result<(), FsError> + 'a,
        ready: impl FnOnce(&[Address]) + 'a,
    ) -> LocalFuture<'a, Result<(), FsError>> {
        self.serve_with(Box::new(begin), Box::new(ready))
    }

    /// Not generic, and so compiled here.
    fn serve_with<'a>(self: Arc<Self>, begin: Begin<'a>, ready: Ready<'a>) -> LocalFuture<'a, Result<(), FsError>> {
        Box::pin(self.serve_all(begin, ready))
    }

    async fn serve_all(self: Arc<Self>, mut begin: Begin<'_>, ready: Ready<'_>) -> Result<(), FsError> {
        let mut stopping = self.stopping.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn_local(polvo_fabric::poller());
        let (links, watch_links) = (self.new_links(), self.watch_links());
        if let Err(error) = self.begin_era(&links).await {
            links.detach().await;
            return Err(error);
        }
        let mut listeners = Vec::with_capacity(self.config.listen.len());
        for address in &self.config.listen {
            let bound = Listener::bind(address, &self.config.identity, &self.memory).await;
            listeners.push(bound.map_err(|error| FsError::Invalid(error.to_string()))?);
        }
        let addresses: Vec<Address> = listeners.iter().map(Listener::local_addr).collect();
        *self.bound.lock() = addresses.clone();
        let reactors = std::mem::take(&mut *self.reactors.waiting.lock());
        for (number, inbox) in reactors {
            let node = self.clone();
            let reactor = Reactor { node, number, inbox };
            match number {
                0 => {
                    let links = links.clone();
                    tasks.spawn_local(async move { reactor.run_over(&links).await });
                }
                _ => begin(reactor)?,
            }
        }
        ready(&addresses);

        for listener in listeners {
            tasks.spawn_local(accept(self.clone(), listener));
        }
        tasks.spawn_local(map::follow_removals(self.clone()));
        tasks.spawn_local(housekeeping::return_to_restarted(self.clone(), links.clone()));
        tasks.spawn_local(deadlocks::run(self.clone(), links.clone()));
        tasks.spawn_local(scrub::run(self.clone(), links.clone()));
        tasks.spawn_local(housekeeping::run(self.clone()));
        tasks.spawn_local(housekeeping::resolve_left_over(self.clone(), links.clone()));
        tasks.spawn_local(housekeeping::meet_others(self.clone(), links.clone()));
        tasks.spawn_local(dispatch::dispatch_left_over(self.clone(), links.clone()));
        if self.map().is_replicated() {
            tasks.spawn_local(keeper::run(self.clone(), links.clone()));
            tasks.spawn_local(replace::give_back(self.clone(), links.clone()));
            tasks.spawn_local(leases::send_beacons(self.clone(), watch_links.clone()));
            tasks.spawn_local(leases::watch(self.clone(), watch_links.clone()));
            tasks.spawn_local(leases::give_way(self.clone()));
            tasks.spawn_local(keeper::confirm(self.clone(), links.clone()));
        } else {
            tasks.spawn_local(map::confirm_at_start(self.clone(), links.clone()));
        }

        // an error means that the node is gone, and with it the sender: then there is nothing to serve either; and what it gives is not
        // held, since it keeps others from asking again
        drop(stopping.wait_for(|stop| *stop).await);
        let drained = async {
            while self.counters.are_under_way() || self.dispatching.load(Relaxed) > 0 || self.has_undispatched() {
                tokio::time::sleep(DRAIN_POLL).await;
                dispatch::reap(&self, &links, Timeouts::DRAIN).await;
            }
        };
        if tokio::time::timeout(Timeouts::DRAIN, drained).await.is_err() {
            tracing::warn!("requests were under way when the time to stop was over");
        }
        let all = self.reactors.connections.begin_closing(|_| true);
        self.reactors.close(all).await;
        let refused = self.refusal();
        if refused.is_none() {
            self.catch_up(&links).await;
            self.end_era(&links).await;
        }
        self.reactors.end().await;
        tokio::join!(links.detach(), watch_links.detach());
        tasks.shutdown().await;
        refused.map_or(Ok(()), Err)
    }

    /// The mirrors of regions that are ahead of them get what they lack: nobody changes anything any more.
    async fn catch_up(&self, links: &Rc<Links>) {
        let ahead = self.regions.all().filter(|service| service.is_async());
        let caught_up = join_all(ahead.filter_map(|service| Some(service.replication()?.catch_up(service, links))));
        match tokio::time::timeout(Timeouts::DRAIN, caught_up).await {
            Ok(all) if all.iter().all(Result::is_ok) => {}
            _ => tracing::warn!("mirrors lack the last changes: whoever takes this node's place goes on without them"),
        }
    }

    /// Where this node listens.
    pub(crate) fn bound(&self) -> Vec<Address> {
        self.bound.lock().clone()
    }

    /// What this node itself sent to others.
    pub(crate) fn link_totals(&self) -> LinkTotals {
        self.context.totals()
    }
}

async fn accept(node: Arc<Node>, mut listener: Listener) {
    let mut warnings = Sparing::default();
    loop {
        let accepted = listener.accept_peer().await;
        if !node.reactors.serve(accepted)
            && !node.is_stopping()
            && let Some(more) = warnings.may_say()
        {
            tracing::warn!(more, "too many connections are open; one more was refused");
        }
    }
}

/// A connection as its reactor has it.
#[derive(Clone)]
struct Served {
    node: Arc<Node>,
    links: Rc<Links>,
    connection: Arc<Connection>,
    pair: QueuePair,
}

/// Serves one connection until its end.
async fn serve(served: Served, pairs: Rc<RefCell<BTreeMap<u64, QueuePair>>>) {
    let (connection, pair, node) = (served.connection.clone(), served.pair.clone(), served.node.clone());
    let handler = move |request: Vec<u8>| {
        let served = served.clone();
        async move { answer(&served, &request).await }
    };
    let ended = polvo_rpc::serve(pair, &node.memory, handler).await;
    if let Err(error) = ended {
        let gone = matches!(error, polvo_rpc::RpcError::Fabric(FabricError::Disconnected { .. }));
        if !gone {
            tracing::warn!(party = ?connection.party, %error, "connection ended");
        }
    }
    pairs.borrow_mut().remove(&connection.number);
    node.reactors.connections.forget(connection.number);
}

async fn answer(served: &Served, request: &[u8]) -> Vec<u8> {
    let Served {
        node,
        links,
        connection,
        pair,
    } = served;
    if connection.is_closing() {
        pair.close(); // no later than it is told to; or who waits would take nothing for an answer
    }
    if pair.is_closed() {
        return Vec::new(); // received before it was fenced off: it must not take effect any more
    }
    let call = match Call::decode(request) {
        Ok(call) => call,
        Err(error) => return encode(&Err(FsError::Invalid(error.to_string()))),
    };
    let _under_way = node.counters.begin(&call.request);
    if let Request::Attach { .. } = call.request {
        return encode(&ask::Attach::reply(attach(node, connection, call).await));
    }
    let session = match connection.attached(call.session) {
        Ok(session) => session,
        Err(error) => return encode(&Err(error)),
    };
    if call.request == Request::Fence {
        return encode(&fence(node, connection).await);
    }
    let ctx = RequestContext::new(node, links, &session, call.epoch, &call.cred).over(pair, call.request_id);
    if !call.request.is_mutation() {
        return encode(&ctx.perform(call.request).await);
    }
    // from the look whether it is closing up to here nothing waits: who closes it finds the request under way, or it is not carried out
    match session.replay.begin(call.request_id, connection.fence()).await {
        Ok(running) => change(&ctx, call.request, call.again, running).await,
        Err(answer) => answer.to_vec(),
    }
}

/// The first request over a connection: it speaks for that session from now on.
async fn attach(node: &Arc<Node>, connection: &Connection, call: Call) -> Result<reply::Attached, FsError> {
    let Request::Attach {
        version,
        name,
        home,
        fence,
        syncs,
    } = call.request
    else {
        return Err(FsError::Invalid("not a request to attach".into()));
    };
    let connections = &node.reactors.connections;
    connection.may_speak_for(call.session)?;
    connections.may_attach(connection, call.session)?;
    let (session, reply) = node.attach(call.session, connection.party, version, name, home)?;
    let link_set = Call::link_set(call.request_id);
    assert!(
        session.party == connection.party,
        "a session is attached by its own kind of peer"
    );
    assert!(
        session.number == reply.number,
        "the answer says what number the session has"
    );
    session.set_syncs(syncs);
    connection.attach(&session, link_set, fence);
    let replaced = connections.close_replaced(&session, connection.number, link_set, fence);
    node.reactors.close(replaced).await;
    session.replay.replaced_have_ended(link_set, fence).await;
    node.sessions.ended_are_over(session.id).await;
    Ok(reply)
}

/// A node that was started anew has nothing of its older connections take effect any more.
async fn fence(node: &Node, connection: &Connection) -> Answer {
    match connection.party {
        Party::Node(peer) => {
            let others = node.reactors.connections.close_others(peer, connection.number);
            node.reactors.close(others).await;
            Ok(Reply::Done)
        }
        Party::Client => Err(FsError::NotPermitted),
    }
}

/// Does what changes something, once: its answer is kept for who asks again.
async fn change(ctx: &RequestContext<'_>, request: Request, again: bool, running: Running<'_>) -> Vec<u8> {
    let is_transfer = matches!(request, Request::WriteFrom { .. });
    // who asks again is told by the log whether it has happened
    let is_found_again =
        request.is_found_again() && ctx.node.regions.all().any(|region| region.replication().is_some());
    let done = match &request {
        // one that does not serve it knows nothing of it
        Request::Withdraw { region } if ctx.service(*region).is_err() => Err(FsError::WrongEpoch),
        _ if again && !planted(Planted::RepeatedElsewhere) => Box::pin(ctx.done_before()).await,
        _ => Ok(None),
    };
    let answer = match (request, done) {
        (_, Err(error)) => Err(error),
        (request, Ok(Some(done))) => Box::pin(ctx.answer_again(&request, done)).await,
        (Request::Withdraw { .. }, Ok(None)) => Ok(Reply::Withdrawn),
        (request, Ok(None)) => ctx.perform(request).await,
    };
    // also what was done before: it may be the sync that has failed
    let answer = durable(ctx, answer).await;
    let encoded = encode(&answer);
    // one that was cut off with its connection has changed nothing: repeated over another one it is done anew
    // (one that no mirror has taken in time is looked up, since mirrors may have it by then)
    let is_cut_off = (is_transfer || is_found_again) && matches!(answer, Err(FsError::Unreachable { .. }));
    // nor has one that was to be asked elsewhere, or by a newer map
    if !is_cut_off && !matches!(answer, Err(FsError::WrongEpoch)) {
        running.finish(&encoded);
    }
    encoded
}

/// A session that does not ask for `Sync` is answered when its change is as durable as that makes it.
async fn durable(ctx: &RequestContext<'_>, answer: Answer) -> Answer {
    if answer.is_ok() && !ctx.session.syncs() && ctx.node.needs_sync() {
        Box::pin(ctx.sync()).await?;
    }
    answer
}

fn encode(answer: &Answer) -> Vec<u8> {
    let bytes = encode_answer(answer);
    if bytes.len() <= MAX_REPLY {
        return bytes;
    }
    encode_answer(&Err(FsError::Io(format!(
        "an answer of {} bytes does not fit a message",
        bytes.len()
    ))))
}
