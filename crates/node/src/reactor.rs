//! The reactor: listens, accepts, and serves each connection, all on one thread.

use crate::housekeeping;
use crate::housekeeping::scrub;
use crate::locks::deadlocks;
use crate::node::Node;
use crate::request::connections::{Connection, Connections, attached, begin, may_connect, other_session, party_of};
use crate::request::context::RequestContext;
use crate::request::replay::Running;
use crate::request::sessions::Party;
use crate::transactions::dispatch;
use polvo_cluster::{LinkTotals, Links, Timeouts};
use polvo_fabric::{Address, FabricError, Listener, Sparing};
use polvo_proto::{Answer, Ask, Call, FsError, Reply, Request, ask, encode_answer, reply};
use polvo_rpc::MAX_REPLY;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::JoinSet;

/// How often a node that stops polls whether they have ended.
const DRAIN_POLL: Duration = Duration::from_millis(2);
/// Pause after a listener failed (out of descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Node {
    /// Serves until `Shutdown` or `stop()`: listens, accepts, housekeeping (leases, ticks, transactions left over, re-dispatch, log GC).
    /// Runs on the current LocalSet. `ready` is called once every listener is bound, with the bound addresses.
    ///
    /// # Errors
    /// An address that is malformed or in use; [`FsError::SetBack`] when another node has seen a later copy of the pool.
    pub async fn serve(self: Arc<Self>, ready: impl FnOnce(&[Address])) -> Result<(), FsError> {
        let mut stopping = self.stopping.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn_local(polvo_fabric::poller());
        let links = self.new_links();
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
        ready(&addresses);

        let connections = Rc::new(Connections::default());
        for listener in listeners {
            tasks.spawn_local(accept(self.clone(), links.clone(), connections.clone(), listener));
        }
        tasks.spawn_local(housekeeping::return_to_restarted(self.clone(), links.clone()));
        tasks.spawn_local(deadlocks::run(self.clone(), links.clone()));
        tasks.spawn_local(scrub::run(self.clone()));
        tasks.spawn_local(housekeeping::run(self.clone(), links.clone(), connections.clone()));

        // an error means that the node is gone, and with it the sender: then there is nothing to serve either
        let _stopped = stopping.wait_for(|stop| *stop).await;
        let drained = async {
            while self.under_way.load(Relaxed) > 0
                || self.dispatching.load(Relaxed) > 0
                || !self.undispatched.lock().is_empty()
            {
                tokio::time::sleep(DRAIN_POLL).await;
                dispatch::reap(&self, &links, Timeouts::DRAIN).await;
            }
        };
        if tokio::time::timeout(Timeouts::DRAIN, drained).await.is_err() {
            tracing::warn!("requests were under way when the time to stop was over");
        }
        connections.close_where(|_, _| true);
        let refused = self.refused.lock().take();
        if refused.is_none() {
            self.end_era(&links).await;
        }
        links.detach().await;
        tasks.shutdown().await;
        refused.map_or(Ok(()), Err)
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

async fn accept(node: Arc<Node>, links: Rc<Links>, connections: Rc<Connections>, mut listener: Listener) {
    let mut serving = JoinSet::new();
    let mut warnings = Sparing::default();
    loop {
        let pair = match listener.accept().await {
            Ok(pair) => pair,
            Err(error) => {
                if let Some(more) = warnings.may_say() {
                    tracing::warn!(%error, more, "a listener failed");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while serving.try_join_next().is_some() {}
        if !connections.make_room(party_of(&pair)) {
            if let Some(more) = warnings.may_say() {
                tracing::warn!(more, "too many connections are open; one more was refused");
            }
            pair.close();
            continue;
        }
        let (connection, number) = begin(&connections, pair);
        serving.spawn_local(serve(
            node.clone(),
            links.clone(),
            connections.clone(),
            connection,
            number,
        ));
    }
}

/// Serves one connection until its end.
async fn serve(
    node: Arc<Node>,
    links: Rc<Links>,
    connections: Rc<Connections>,
    connection: Rc<Connection>,
    number: u64,
) {
    let (party, pair) = (connection.party, connection.pair.clone());
    let handler = {
        let (node, connections) = (node.clone(), connections.clone());
        move |request: Vec<u8>| {
            let (node, links) = (node.clone(), links.clone());
            let (connection, connections) = (connection.clone(), connections.clone());
            async move { answer(&node, &links, &connection, &connections, number, &request).await }
        }
    };
    let ended = polvo_rpc::serve(pair, &node.memory, handler).await;
    if let Err(error) = ended {
        let gone = matches!(error, polvo_rpc::RpcError::Fabric(FabricError::Disconnected { .. }));
        if !gone {
            tracing::warn!(?party, %error, "connection ended");
        }
    }
    connections.forget(number);
}

/// Counts a request while it is under way.
struct UnderWay<'a>(&'a Node);

impl<'a> UnderWay<'a> {
    fn new(node: &'a Node) -> Self {
        node.under_way.fetch_add(1, Relaxed);
        UnderWay(node)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let under_way = self.0.under_way.fetch_sub(1, Relaxed);
        debug_assert!(under_way > 0, "a request under way is counted");
    }
}

async fn answer(
    node: &Arc<Node>,
    links: &Rc<Links>,
    connection: &Connection,
    connections: &Connections,
    number: u64,
    request: &[u8],
) -> Vec<u8> {
    if connection.pair.is_closed() {
        return Vec::new(); // received before it was fenced off: it must not take effect any more
    }
    let call = match Call::decode(request) {
        Ok(call) => call,
        Err(error) => return encode(&Err(FsError::Invalid(error.to_string()))),
    };
    node.counters.count(&call.request);
    let _under_way = UnderWay::new(node);
    if let Request::Attach { .. } = call.request {
        return encode(&ask::Attach::reply(
            attach(node, connection, connections, number, call).await,
        ));
    }
    let session = match attached(connection, call.session) {
        Ok(session) => session,
        Err(error) => return encode(&Err(error)),
    };
    if call.request == Request::Fence {
        return encode(&fence(connection, connections, number));
    }
    let ctx =
        RequestContext::new(node, links, &session, call.epoch, &call.cred).over(&connection.pair, call.request_id);
    if !call.request.is_mutation() {
        return encode(&ctx.perform(call.request).await);
    }
    match session.replay.begin(call.request_id, connection.fence.get()).await {
        Ok(running) => change(&ctx, call.request, call.again, running).await,
        Err(answer) => answer.to_vec(),
    }
}

/// The first request over a connection: it speaks for that session from now on.
async fn attach(
    node: &Arc<Node>,
    connection: &Connection,
    connections: &Connections,
    number: u64,
    call: Call,
) -> Result<reply::Attached, FsError> {
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
    other_session(connection, call.session)?;
    may_connect(connection, connections, call.session)?;
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
    *connection.session.borrow_mut() = Some(session.clone());
    connection.link_set.set(link_set);
    connection.fence.set(fence);
    connections.close_replaced(&session, number, link_set, fence);
    session.replay.replaced_have_ended(link_set, fence).await;
    Ok(reply)
}

/// A node that was started anew has nothing of its older connections take effect any more.
fn fence(connection: &Connection, connections: &Connections, number: u64) -> Answer {
    match connection.party {
        Party::Node(peer) => {
            connections.close_others(peer, number);
            Ok(Reply::Done)
        }
        Party::Client => Err(FsError::NotPermitted),
    }
}

/// Does what changes something, once: its answer is kept for who asks again.
async fn change(ctx: &RequestContext<'_>, request: Request, again: bool, running: Running<'_>) -> Vec<u8> {
    let is_transfer = matches!(request, Request::WriteFrom { .. });
    let done = if again { ctx.done_before() } else { None };
    let answer = match (request, done) {
        (request, Some(done)) => Box::pin(ctx.answer_again(&request, done)).await,
        (Request::Withdraw, None) => Ok(Reply::Withdrawn),
        (request, None) => ctx.perform(request).await,
    };
    // also what was done before: it may be the sync that has failed
    let answer = durable(ctx, answer);
    let encoded = encode(&answer);
    // one that was cut off with its connection has changed nothing: repeated over another one it is done anew
    if !(is_transfer && matches!(answer, Err(FsError::Unreachable { .. }))) {
        running.finish(&encoded);
    }
    encoded
}

/// A session that does not ask for `Sync` is answered when its change is durable against power loss.
fn durable(ctx: &RequestContext<'_>, answer: Answer) -> Answer {
    if answer.is_ok() && !ctx.session.syncs() && ctx.node.needs_sync() {
        ctx.node.sync()?;
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
