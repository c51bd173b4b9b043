//! Which requests were carried out here, for those who ask again because the answer was lost with a connection, a session
//! or an incarnation of the node (the completion records of RIFL, SOSP 2015).
//!
//! The first entry of a commit carries the request that asked for it ([`Origin`]), durable with the commit and at no further
//! cost. Recovery reads every log and so finds the last ones of each session again; garbage collection keeps them
//! ([`Entry::Done`]). With an inode its log goes: whoever asks again then gets ESTALE or ENOENT, which says nothing about what
//! was done before.

use polvo_format::{Entry, Origin, Record, SessionId};
use polvo_proto::InodeRef;
use std::collections::{BTreeMap, VecDeque};

/// Requests remembered a session: those whose answers may be missing are among its last.
const REMEMBERED: usize = 128;
/// Sessions remembered.
const SESSIONS: usize = 4096;
/// How much older than the last one a request may be for garbage collection to keep it, in nanoseconds: whoever waits for its
/// answer for so long has been told that there is none.
const KEPT_NS: i64 = 120 * 1_000_000_000;

/// What a request did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// In whose log it is.
    pub inode: InodeRef,
    /// Where in the file its bytes went.
    pub offset: u64,
    /// The inode of the name that it made.
    pub target: Option<InodeRef>,
    /// When, in nanoseconds.
    pub time_ns: i64,
}

impl Done {
    /// What the first entry of a commit says about it.
    pub(crate) fn by(inode: InodeRef, entry: &Entry) -> Done {
        let (offset, target, time_ns) = match *entry {
            Entry::Write { offset, time_ns, .. } | Entry::Inline { offset, time_ns, .. } => (offset, None, time_ns),
            Entry::DentryAdd {
                target,
                generation,
                time_ns,
                ..
            } => (0, Some((target, generation)), time_ns),
            Entry::Done {
                offset,
                target,
                generation,
                time_ns,
            } => (offset, (target.0 != 0).then_some((target, generation)), time_ns),
            Entry::Truncate { time_ns, .. }
            | Entry::Hole { time_ns, .. }
            | Entry::SetXattr { time_ns, .. }
            | Entry::DelXattr { time_ns, .. }
            | Entry::DentryDel { time_ns, .. }
            | Entry::Links { time_ns, .. }
            | Entry::Parent { time_ns, .. }
            | Entry::Placement { time_ns, .. } => (0, None, time_ns),
            Entry::SetAttr(change) => (0, None, change.ctime_ns),
            Entry::Init(init) => (0, None, init.ctime_ns),
            Entry::Pad => (0, None, 0),
        };
        let target = target.map(|(ino, generation)| InodeRef { ino, generation });
        Done {
            inode,
            offset,
            target,
            time_ns,
        }
    }

    /// The entry that says the same when the one that did it is gone.
    fn entry(&self) -> Entry<'static> {
        let (target, generation) = self.target.map_or_else(Default::default, |t| (t.ino, t.generation));
        Entry::Done {
            offset: self.offset,
            target,
            generation,
            time_ns: self.time_ns,
        }
    }
}

/// The last requests of each session that changed something in a region.
#[derive(Default)]
pub(crate) struct Origins {
    /// in order of time
    by_session: BTreeMap<SessionId, VecDeque<(u64, Done)>>,
    last_ns: i64,
}

impl Origins {
    /// A request was carried out.
    pub fn note(&mut self, origin: Origin, done: Done) {
        self.last_ns = self.last_ns.max(done.time_ns);
        if self.by_session.len() == SESSIONS && !self.by_session.contains_key(&origin.session) {
            let last = |all: &VecDeque<(u64, Done)>| all.back().map_or(i64::MIN, |(_, done)| done.time_ns);
            let idle = self.by_session.iter().min_by_key(|(_, all)| last(all));
            if let Some(idle) = idle.map(|(session, _)| *session) {
                self.by_session.remove(&idle);
            }
        }
        let all = self.by_session.entry(origin.session).or_default();
        if all.len() == REMEMBERED {
            if all.front().is_some_and(|(_, oldest)| done.time_ns < oldest.time_ns) {
                return;
            }
            all.pop_front();
        }
        // nearly always the last one
        let behind = all.iter().rev().take_while(|(_, other)| other.time_ns > done.time_ns);
        let at = all.len() - behind.count();
        all.insert(at, (origin.request, done));
        debug_assert!(all.len() <= REMEMBERED, "{} requests of a session", all.len());
        debug_assert!(
            all.iter().is_sorted_by_key(|(_, done)| done.time_ns),
            "requests are in order of time"
        );
        debug_assert!(self.by_session.len() <= SESSIONS, "{} sessions", self.by_session.len());
    }

    /// Takes note of an entry read from a log.
    pub fn note_record(&mut self, inode: InodeRef, record: &Record) {
        if let Some(origin) = record.origin {
            self.note(origin, Done::by(inode, &record.entry));
        }
    }

    /// What a request did, if it is known to have been carried out.
    pub fn find(&self, origin: Origin) -> Option<Done> {
        let all = self.by_session.get(&origin.session)?;
        let found = all.iter().rev().find(|(request, _)| *request == origin.request);
        found.map(|(_, done)| *done)
    }

    /// What a compact log has to say of those that changed this inode.
    pub fn of(&self, inode: InodeRef) -> impl Iterator<Item = (Origin, Entry<'static>)> + '_ {
        let since = self.last_ns.saturating_sub(KEPT_NS);
        self.by_session.iter().flat_map(move |(session, all)| {
            let its = all
                .iter()
                .filter(move |(_, done)| done.inode == inode && done.time_ns >= since);
            its.map(|(request, done)| {
                let origin = Origin {
                    session: *session,
                    request: *request,
                };
                (origin, done.entry())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{Generation, Ino, RegionId};

    fn origin(session: u64, request: u64) -> Origin {
        Origin {
            session: SessionId(session),
            request,
        }
    }

    fn done(slot: u64, time_ns: i64) -> Done {
        Done {
            inode: InodeRef {
                ino: Ino::new(RegionId(1), slot),
                generation: Generation(1),
            },
            offset: slot,
            target: None,
            time_ns,
        }
    }

    #[test]
    fn the_last_requests_of_a_session_are_known_in_whatever_order_they_are_read() {
        let mut origins = Origins::default();
        let n = REMEMBERED as u64 + 10;
        for request in (0..n).rev() {
            origins.note(origin(7, request), done(1, request as i64));
        }
        for request in 0..n {
            let expected = (request >= 10).then(|| done(1, request as i64));
            assert_eq!(origins.find(origin(7, request)), expected, "{request}");
        }
        assert_eq!(origins.find(origin(8, n - 1)), None);
    }

    #[test]
    fn sessions_are_bounded_and_the_idlest_goes_first() {
        let mut origins = Origins::default();
        for session in 0..=SESSIONS as u64 {
            origins.note(origin(session, 1), done(1, 1000 - (session as i64).min(500)));
        }
        assert_eq!(origins.by_session.len(), SESSIONS);
        assert!(origins.find(origin(0, 1)).is_some());
        assert!(origins.find(origin(SESSIONS as u64, 1)).is_some());
        assert!(origins.find(origin(500, 1)).is_none());
    }

    #[test]
    fn a_compact_log_keeps_those_of_its_inode_that_are_not_long_ago() {
        let mut origins = Origins::default();
        let target = Some(done(9, 0).inode);
        let made = Done {
            target,
            ..done(1, KEPT_NS + 5)
        };
        origins.note(origin(7, 1), done(1, 4));
        origins.note(origin(7, 2), done(1, 5));
        origins.note(origin(7, 3), done(2, 6));
        origins.note(origin(7, 4), made);
        let kept: Vec<_> = origins.of(made.inode).collect();
        assert_eq!(kept.iter().map(|(o, _)| o.request).collect::<Vec<_>>(), [2, 4]);
        for ((_, entry), was) in kept.iter().zip([done(1, 5), made]) {
            assert_eq!(Done::by(made.inode, entry), was);
        }
    }
}
