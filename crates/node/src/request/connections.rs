//! The connections of a node, and for which session each of them speaks.
//!
//! Each belongs to one reactor, which alone has its queue pair; what is known of it is here, for all of them. Whoever wants one closed
//! says so to its reactor, and waits until that has done it: from then on nothing comes over it any more, and no request that has come
//! over it begins to be carried out.

use crate::request::sessions::{Party, Session};
use parking_lot::Mutex;
use polvo_format::{NodeId, SessionId};
use polvo_proto::FsError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 4096;
/// Of these, clients leave so many to nodes.
const CONNECTIONS_OF_NODES: usize = 256;
/// Most connections of one session: one for each thread of a client.
const SESSION_CONNECTIONS_MAX: usize = 512;
/// A connection over which no session has been attached for so long is closed.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// One of them.
pub(crate) struct Connection {
    pub number: u64,
    /// Which reactor has its queue pair.
    pub reactor: usize,
    pub party: Party,
    session: Mutex<Option<Arc<Session>>>,
    /// Which of the session's sets of links it belongs to.
    link_set: AtomicU64,
    /// How often the session had given operations up when it was attached (`Request::Attach`).
    fence: AtomicU64,
    since: Instant,
    is_closing: AtomicBool,
}

impl Connection {
    /// What comes over it must not take effect any more.
    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// It speaks for that session from now on.
    pub fn attach(&self, session: &Arc<Session>, link_set: u64, fence: u64) {
        let mut attached = self.session.lock();
        self.link_set.store(link_set, Ordering::Relaxed);
        self.fence.store(fence, Ordering::Relaxed);
        *attached = Some(session.clone());
    }

    pub fn fence(&self) -> u64 {
        self.fence.load(Ordering::Relaxed)
    }

    fn is_of(&self, session: SessionId) -> bool {
        self.session.lock().as_ref().is_some_and(|own| own.id == session)
    }

    /// The session of a connection; a caller who names another one than it attached gets nothing.
    pub fn attached(&self, claimed: SessionId) -> Result<Arc<Session>, FsError> {
        match &*self.session.lock() {
            None => Err(FsError::SessionExpired),
            Some(session) if session.id != claimed => Err(FsError::NotPermitted),
            Some(session) if session.is_ended() => Err(FsError::SessionExpired),
            Some(session) => {
                debug_assert!(
                    session.party == self.party,
                    "a session is attached by its own kind of peer"
                );
                Ok(session.clone())
            }
        }
    }

    /// A connection speaks for one session until that has ended: nobody makes up sessions by the thousand over one.
    pub fn may_speak_for(&self, claimed: SessionId) -> Result<(), FsError> {
        match &*self.session.lock() {
            Some(session) if session.id != claimed && !session.is_ended() => Err(FsError::NotPermitted),
            _ => Ok(()),
        }
    }
}

#[derive(Default)]
struct Live {
    next: u64,
    by_number: BTreeMap<u64, Arc<Connection>>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Connections(Mutex<Live>);

impl Connections {
    /// One more, at a reactor.
    pub fn add(&self, party: Party, reactor: usize) -> Arc<Connection> {
        let mut live = self.0.lock();
        let number = live.next;
        live.next += 1;
        let connection = Arc::new(Connection {
            number,
            reactor,
            party,
            session: Mutex::new(None),
            link_set: AtomicU64::new(0),
            fence: AtomicU64::new(0),
            since: Instant::now(),
            is_closing: AtomicBool::new(false),
        });
        let before = live.by_number.insert(number, connection.clone());
        assert!(before.is_none(), "a connection has a number of its own");
        assert!(live.by_number.len() <= CONNECTIONS_MAX, "room was made for one more");
        connection
    }

    /// One has ended.
    pub fn forget(&self, number: u64) {
        self.0.lock().by_number.remove(&number);
    }

    /// Is there room for one more, of a node or of a client? If not, the one that has been there longest without a session makes
    /// room: it is to be closed.
    ///
    /// # Errors
    /// There is none, and none can be made.
    pub fn make_room(&self, party: Party) -> Result<Option<Arc<Connection>>, ()> {
        let mut live = self.0.lock();
        let most = match party {
            Party::Node(_) => CONNECTIONS_MAX,
            Party::Client => CONNECTIONS_MAX - CONNECTIONS_OF_NODES,
        };
        if live.by_number.len() < most {
            return Ok(None);
        }
        let idle = live.by_number.values().find(|c| c.session.lock().is_none());
        let idle = idle.map(|connection| connection.number).ok_or(())?;
        let closed = live.by_number.remove(&idle);
        debug_assert!(live.by_number.len() < CONNECTIONS_MAX, "there is room for one more");
        closed.iter().for_each(|c| c.is_closing.store(true, Ordering::Release));
        Ok(closed)
    }

    /// How many each of so many reactors has.
    pub fn by_reactor(&self, reactors: usize) -> Vec<usize> {
        let mut counts = vec![0; reactors];
        for connection in self.0.lock().by_number.values() {
            counts[connection.reactor] += 1;
        }
        counts
    }

    /// A client has many threads, but does not take all the connections there are.
    pub fn may_attach(&self, connection: &Connection, session: SessionId) -> Result<(), FsError> {
        if connection.session.lock().is_some() {
            return Ok(());
        }
        let others = self.0.lock().by_number.values().filter(|c| c.is_of(session)).count();
        match others >= SESSION_CONNECTIONS_MAX {
            true => Err(FsError::Io(format!(
                "this client has {others} connections to this node already"
            ))),
            false => Ok(()),
        }
    }

    /// Those that are wanted take no effect from now on, and are to be closed.
    pub fn begin_closing(&self, wanted: impl Fn(&Connection) -> bool) -> Vec<Arc<Connection>> {
        let live = self.0.lock();
        let closing: Vec<Arc<Connection>> = live.by_number.values().filter(|c| wanted(c)).cloned().collect();
        closing.iter().for_each(|c| c.is_closing.store(true, Ordering::Release));
        closing
    }

    /// Those over which no session was attached in time.
    pub fn close_late(&self) -> Vec<Arc<Connection>> {
        self.begin_closing(|c| c.session.lock().is_none() && c.since.elapsed() >= ATTACH_TIMEOUT)
    }

    /// The session has ended: what it still sends must not take effect.
    pub fn close_session(&self, session: SessionId) -> Vec<Arc<Connection>> {
        self.begin_closing(|c| c.is_of(session))
    }

    /// The connections of a session that a newly attached one takes the place of: older ones of its set of links, and
    /// those from before the session last gave operations up. An `Attach` that comes late closes none that came after it.
    pub fn close_replaced(&self, session: &Arc<Session>, by: u64, link_set: u64, fence: u64) -> Vec<Arc<Connection>> {
        self.begin_closing(|c| {
            let its = c.session.lock();
            let is_its = || its.as_ref().is_some_and(|own| Arc::ptr_eq(own, session));
            let is_older = || c.link_set.load(Ordering::Relaxed) == link_set && c.fence() <= fence && c.number < by;
            c.number != by && (c.fence() < fence || is_older()) && is_its()
        })
    }

    /// All connections of a node.
    pub fn close_all_of(&self, node: NodeId) -> Vec<Arc<Connection>> {
        self.begin_closing(|c| c.party == Party::Node(node))
    }

    /// All connections of a node but one.
    pub fn close_others(&self, node: NodeId, keep: u64) -> Vec<Arc<Connection>> {
        self.begin_closing(|c| c.number != keep && c.party == Party::Node(node))
    }
}
