//! Who is attached, and until when.

use crate::request::replay::Replay;
use parking_lot::Mutex;
use polvo_format::{NodeId, SessionId};
use polvo_proto::FsError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Most sessions a node keeps.
const SESSIONS_MAX: usize = 4096;

/// What kind of peer a session belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Party {
    /// A node of the cluster, or a client colocated with one.
    Node(NodeId),
    /// A client.
    Client,
}

/// A session at a node.
pub struct Session {
    pub(crate) id: SessionId,
    /// No other session here, of this incarnation or another, has that number; 0 until it is attached.
    pub(crate) number: u64,
    pub(crate) party: Party,
    pub(crate) name: String,
    pub(crate) home: Option<NodeId>,
    /// Answers to the last changing requests.
    pub(crate) replay: Replay,
    pub(crate) since: Instant,
    /// Newest grace tick after which the session has no read under way.
    tick: AtomicU64,
    seen: Mutex<Instant>,
    ended: AtomicBool,
    /// It asks for `Sync` where that is needed.
    syncs: AtomicBool,
}

impl Session {
    fn new(id: SessionId, number: u64, party: Party, name: String, home: Option<NodeId>, tick: u64) -> Session {
        assert!(tick > 0, "ticks of grace are counted from 1");
        let now = Instant::now();
        Session {
            id,
            number,
            party,
            name,
            home,
            replay: Replay::default(),
            since: now,
            tick: AtomicU64::new(tick),
            seen: Mutex::new(now),
            ended: AtomicBool::new(false),
            syncs: AtomicBool::new(true),
        }
    }

    /// False as long as all that is known of it is that another node made and opened a file here for it.
    fn is_attached(&self) -> bool {
        self.number != 0
    }

    /// Renews the lease; the session has no read under way that began before `tick`.
    pub(crate) fn renew(&self, tick: u64) {
        self.tick.fetch_max(tick, Ordering::Relaxed);
        *self.seen.lock() = Instant::now();
    }

    /// What is left of a lease of that length.
    pub(crate) fn lease_left(&self, lease: Duration) -> Duration {
        lease.saturating_sub(self.seen.lock().elapsed())
    }

    /// Whether it asks for `Sync`, as its latest connection has said.
    pub(crate) fn syncs(&self) -> bool {
        self.syncs.load(Ordering::Acquire)
    }

    pub(crate) fn set_syncs(&self, syncs: bool) {
        self.syncs.store(syncs, Ordering::Release);
    }

    /// True once it has been detached or has expired: it gets nothing any more.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// All sessions at this node; gone through in order, so that a simulated run repeats.
#[derive(Default)]
pub(crate) struct Sessions {
    by_id: Mutex<BTreeMap<SessionId, Arc<Session>>>,
    /// Those that have ended while requests of theirs were under way, which may do something yet.
    ending: Mutex<Vec<Arc<Session>>>,
}

impl Sessions {
    /// Opens a session, or rejoins it. `number` is for one that is opened.
    pub fn attach(
        &self,
        id: SessionId,
        number: impl FnOnce() -> u64,
        party: Party,
        name: String,
        home: Option<NodeId>,
        tick: u64,
    ) -> Result<Arc<Session>, FsError> {
        if id == SessionId(0) {
            return Err(FsError::Invalid("a session has a number other than 0".into()));
        }
        let mut by_id = self.by_id.lock();
        if let Some(known) = by_id.get(&id) {
            debug_assert!(known.id == id && !known.is_ended(), "an ended session is unknown");
            if known.is_attached() {
                if known.party != party {
                    return Err(FsError::NotPermitted);
                }
                known.renew(0);
                return Ok(known.clone());
            }
        } else if by_id.len() >= SESSIONS_MAX {
            return Err(FsError::Io(format!("this node serves {SESSIONS_MAX} sessions already")));
        }
        // What another node had made and opened here for it stays held. But whatever it had here itself, before this node
        // started, is gone, and so are the answers it was given: it is a new session that its client has to hear of
        let session = Arc::new(Session::new(id, number(), party, name, home, tick));
        assert!(session.is_attached(), "a session that is attached has a number");
        by_id.insert(id, session.clone());
        debug_assert!(by_id.len() <= SESSIONS_MAX);
        Ok(session)
    }

    /// Makes sure that a session for which something is held here is known, so that it can expire.
    pub fn ensure(&self, id: SessionId, tick: u64) -> Result<Arc<Session>, FsError> {
        let mut by_id = self.by_id.lock();
        if let Some(known) = by_id.get(&id) {
            return Ok(known.clone());
        }
        if by_id.len() >= SESSIONS_MAX {
            return Err(FsError::Io(format!("this node serves {SESSIONS_MAX} sessions already")));
        }
        let session = Arc::new(Session::new(id, 0, Party::Client, String::new(), None, tick));
        by_id.insert(id, session.clone());
        debug_assert!(by_id.len() <= SESSIONS_MAX);
        Ok(session)
    }

    /// A session that is attached.
    pub fn get(&self, id: SessionId) -> Result<Arc<Session>, FsError> {
        let by_id = self.by_id.lock();
        let session = by_id.get(&id).ok_or(FsError::SessionExpired)?;
        debug_assert!(session.id == id && !session.is_ended(), "an ended session is unknown");
        Ok(session.clone())
    }

    /// Ends a session: it is unknown from now on, and whoever still works for it finds it ended.
    pub fn end(&self, id: SessionId) -> Option<Arc<Session>> {
        let session = self.by_id.lock().remove(&id)?;
        let ended = session.ended.swap(true, Ordering::AcqRel);
        assert!(!ended, "a session ends once");
        debug_assert!(session.id == id, "a session is known by its id");
        let mut ending = self.ending.lock();
        ending.retain(|session| session.replay.is_busy());
        if session.replay.is_busy() {
            ending.push(session.clone());
        }
        Some(session)
    }

    /// Waits until nothing is done any more for sessions of that id which have ended: who asks again as a new one is told what they
    /// have done. (As long as that takes, which is bounded by what requests wait for.)
    pub async fn ended_are_over(&self, id: SessionId) {
        let of_id = |session: &&Arc<Session>| session.id == id;
        let ended: Vec<Arc<Session>> = self.ending.lock().iter().filter(of_id).cloned().collect();
        for session in ended {
            session.replay.all_have_ended().await;
        }
    }

    /// Sessions whose lease is over.
    pub fn expired(&self, lease: Duration) -> Vec<SessionId> {
        let by_id = self.by_id.lock();
        by_id
            .values()
            .filter(|s| s.lease_left(lease).is_zero())
            .map(|s| s.id)
            .collect()
    }

    /// The tick after which every session has been seen.
    pub fn oldest_tick(&self) -> Option<u64> {
        let oldest = self.by_id.lock().values().map(|s| s.tick.load(Ordering::Relaxed)).min();
        debug_assert!(oldest != Some(0), "ticks of grace are counted from 1");
        oldest
    }

    /// All, by time of attachment.
    pub fn list(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<_> = self.by_id.lock().values().cloned().collect();
        all.sort_by_key(|s| (s.since, s.id));
        all
    }
}
