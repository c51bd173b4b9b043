//! The connections of a reactor, and for which session each of them speaks.

use crate::request::sessions::{Party, Session};
use polvo_fabric::{QueuePair, Role};
use polvo_format::{NodeId, SessionId};
use polvo_proto::FsError;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
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
    pub party: Party,
    pub session: RefCell<Option<Arc<Session>>>,
    /// Which of the session's sets of links it belongs to.
    pub link_set: Cell<u64>,
    /// How often the session had given operations up when it was attached (`Request::Attach`).
    pub fence: Cell<u64>,
    pub since: Instant,
    pub pair: QueuePair,
}

/// The connections of this reactor.
#[derive(Default)]
pub(crate) struct Connections {
    next: Cell<u64>,
    live: RefCell<BTreeMap<u64, Rc<Connection>>>,
}

impl Connections {
    pub fn add(&self, connection: &Rc<Connection>) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        let mut live = self.live.borrow_mut();
        let before = live.insert(number, connection.clone());
        assert!(before.is_none(), "a connection has a number of its own");
        assert!(live.len() <= CONNECTIONS_MAX, "room was made for one more");
        number
    }

    /// One has ended.
    pub fn forget(&self, number: u64) {
        self.live.borrow_mut().remove(&number);
    }

    /// Is there room for one more, of a node or of a client? If not, the one that has been there longest without a session makes
    /// room.
    pub fn make_room(&self, party: Party) -> bool {
        let mut live = self.live.borrow_mut();
        let most = match party {
            Party::Node(_) => CONNECTIONS_MAX,
            Party::Client => CONNECTIONS_MAX - CONNECTIONS_OF_NODES,
        };
        if live.len() < most {
            return true;
        }
        let idle = live.iter().find(|(_, c)| c.session.borrow().is_none());
        let Some(idle) = idle.map(|(number, _)| *number) else {
            return false;
        };
        let closed = live.remove(&idle);
        debug_assert!(live.len() < CONNECTIONS_MAX, "there is room for one more");
        drop(live);
        if let Some(closed) = closed {
            closed.pair.close();
        }
        true
    }

    /// Closes those over which no session was attached in time.
    pub fn close_late(&self) {
        self.close_where(|_, c| c.session.borrow().is_none() && c.since.elapsed() >= ATTACH_TIMEOUT);
    }

    /// How many belong to that session.
    pub fn of_session(&self, session: SessionId) -> usize {
        let is_its = |c: &&Rc<Connection>| c.session.borrow().as_ref().is_some_and(|s| s.id == session);
        self.live.borrow().values().filter(is_its).count()
    }

    pub fn close_where(&self, wanted: impl Fn(u64, &Connection) -> bool) {
        let closing: Vec<Rc<Connection>> = self
            .live
            .borrow()
            .iter()
            .filter(|(number, c)| wanted(**number, c))
            .map(|(_, c)| c.clone())
            .collect();
        for connection in closing {
            connection.pair.close();
        }
    }

    /// The session has ended: what it still sends must not take effect.
    pub fn close_session(&self, session: SessionId) {
        self.close_where(|_, c| c.session.borrow().as_ref().is_some_and(|s| s.id == session));
    }

    /// Closes the connections of a session that a newly attached one takes the place of: older ones of its set of links, and
    /// those from before the session last gave operations up. An `Attach` that comes late closes none that came after it.
    pub fn close_replaced(&self, session: &Arc<Session>, by: u64, link_set: u64, fence: u64) {
        self.close_where(|number, c| {
            let is_its = || c.session.borrow().as_ref().is_some_and(|s| Arc::ptr_eq(s, session));
            let is_older = || c.link_set.get() == link_set && c.fence.get() <= fence && number < by;
            number != by && (c.fence.get() < fence || is_older()) && is_its()
        });
    }

    /// Closes all connections of a node but one.
    pub fn close_others(&self, node: NodeId, keep: u64) {
        self.close_where(|number, c| number != keep && c.party == Party::Node(node));
    }
}

pub(crate) fn party_of(pair: &QueuePair) -> Party {
    match pair.peer() {
        Role::Node(id) => Party::Node(NodeId(id)),
        Role::Client => Party::Client,
    }
}

/// Counts a connection from now on.
pub(crate) fn begin(connections: &Connections, pair: QueuePair) -> (Rc<Connection>, u64) {
    let party = party_of(&pair);
    let connection = Rc::new(Connection {
        party,
        session: RefCell::new(None),
        link_set: Cell::new(0),
        fence: Cell::new(0),
        since: Instant::now(),
        pair,
    });
    let number = connections.add(&connection);
    (connection, number)
}

/// A client has many threads, but does not take all the connections there are.
pub(crate) fn may_connect(
    connection: &Connection,
    connections: &Connections,
    session: SessionId,
) -> Result<(), FsError> {
    let others = connections.of_session(session);
    match connection.session.borrow().is_none() && others >= SESSION_CONNECTIONS_MAX {
        true => Err(FsError::Io(format!(
            "this client has {others} connections to this node already"
        ))),
        false => Ok(()),
    }
}

/// A connection speaks for one session until that has ended: nobody makes up sessions by the thousand over one.
pub(crate) fn other_session(connection: &Connection, claimed: SessionId) -> Result<(), FsError> {
    let attached = connection.session.borrow();
    match &*attached {
        Some(session) if session.id != claimed && !session.is_ended() => Err(FsError::NotPermitted),
        _ => Ok(()),
    }
}

/// The session of a connection; a caller who names another one than it attached gets nothing.
pub(crate) fn attached(connection: &Connection, claimed: SessionId) -> Result<Arc<Session>, FsError> {
    let attached = connection.session.borrow();
    match &*attached {
        None => Err(FsError::SessionExpired),
        Some(session) if session.id != claimed => Err(FsError::NotPermitted),
        Some(session) if session.is_ended() => Err(FsError::SessionExpired),
        Some(session) => {
            debug_assert!(
                session.party == connection.party,
                "a session is attached by its own kind of peer"
            );
            Ok(session.clone())
        }
    }
}
