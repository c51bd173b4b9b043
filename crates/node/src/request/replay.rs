//! Answers already given: a request that comes again (its answer was lost with a connection) is not done again.

use foldhash::HashMap;
use parking_lot::Mutex;
use polvo_proto::Call;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Notify;

/// Answers remembered a session.
const REMEMBERED: usize = 128;

#[derive(Default)]
struct Inner {
    done: VecDeque<(u64, Arc<[u8]>)>,
    /// The highest number of them; what is above it was not answered before.
    newest: u64,
    /// Those under way, and the fence of the connection that each came over.
    running: HashMap<u64, u64>,
}

/// The changing requests of a session by their ids: those under way and the answers to the last ones.
#[derive(Default)]
pub(crate) struct Replay {
    inner: Mutex<Inner>,
    /// Tells repetitions that a request has ended.
    ended: Notify,
}

enum Begin {
    Done(Arc<[u8]>),
    Running,
    Fresh,
}

/// A request under way. Dropped without an answer, it was never done.
pub(crate) struct Running<'a> {
    replay: &'a Replay,
    request_id: u64,
}

impl Replay {
    /// Takes up a request, or gives the answer to the same request before, waiting for it if need be (as long as that
    /// takes, which is bounded by what the request itself waits for).
    pub async fn begin(&self, request_id: u64, fence: u64) -> Result<Running<'_>, Arc<[u8]>> {
        loop {
            // before the check, so that no end is missed in between
            let mut ended = pin!(self.ended.notified());
            match self.take_up(request_id, fence) {
                Begin::Done(answer) => return Err(answer),
                Begin::Fresh => {
                    return Ok(Running {
                        replay: self,
                        request_id,
                    });
                }
                Begin::Running => ended.as_mut().await,
            }
        }
    }

    fn take_up(&self, request_id: u64, fence: u64) -> Begin {
        let mut inner = self.inner.lock();
        if request_id <= inner.newest
            && let Some((_, answer)) = inner.done.iter().rev().find(|(id, _)| *id == request_id)
        {
            return Begin::Done(answer.clone());
        }
        match inner.running.entry(request_id) {
            Entry::Occupied(_) => Begin::Running,
            Entry::Vacant(place) => {
                place.insert(fence);
                Begin::Fresh
            }
        }
    }

    /// Is any under way?
    pub fn is_busy(&self) -> bool {
        !self.inner.lock().running.is_empty()
    }

    /// Waits until all that are under way have ended. (As long as they take, which is bounded by what they wait for.)
    pub async fn all_have_ended(&self) {
        loop {
            let mut ended = pin!(self.ended.notified());
            if !self.is_busy() {
                return;
            }
            ended.as_mut().await;
        }
    }

    /// Waits until requests of connections that another one has taken the place of have ended: those of its set of links, and
    /// those with a smaller fence. (As long as they take, which is bounded by what they wait for.)
    pub async fn replaced_have_ended(&self, link_set: u64, fence: u64) {
        loop {
            let mut ended = pin!(self.ended.notified());
            let replaced = |(id, of): (&u64, &u64)| Call::link_set(*id) == link_set || *of < fence;
            if !self.inner.lock().running.iter().any(replaced) {
                return;
            }
            ended.as_mut().await;
        }
    }
}

impl Running<'_> {
    /// The request is done and this is its answer.
    pub fn finish(self, answer: &[u8]) {
        let mut inner = self.replay.inner.lock();
        assert!(
            inner.running.contains_key(&self.request_id),
            "only a request under way ends"
        );
        debug_assert!(
            inner.done.iter().all(|(id, _)| *id != self.request_id),
            "a request has one answer"
        );
        debug_assert!(inner.done.len() <= REMEMBERED);
        if inner.done.len() == REMEMBERED {
            inner.done.pop_front();
        }
        inner.newest = inner.newest.max(self.request_id);
        inner.done.push_back((self.request_id, answer.into()));
        assert!(inner.done.len() <= REMEMBERED, "the oldest answer makes room");
        debug_assert!(
            inner.done.iter().all(|(id, _)| *id <= inner.newest),
            "no answer has a higher number than the newest"
        );
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let was_running = self.replay.inner.lock().running.remove(&self.request_id);
        debug_assert!(was_running.is_some(), "a request runs until its one guard goes");
        self.replay.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_repeated_request_gets_the_first_answer() {
        let replay = Replay::default();
        replay.begin(7, 0).await.ok().unwrap().finish(b"seven");
        assert_eq!(&*replay.begin(7, 0).await.err().unwrap(), b"seven");
        assert!(replay.begin(8, 0).await.is_ok(), "another request is done");
        assert!(
            replay.begin(8, 0).await.is_ok(),
            "one given up before its answer is done again"
        );
    }

    #[tokio::test]
    async fn a_repetition_waits_for_the_first_to_end() {
        let replay = Replay::default();
        let first = replay.begin(7, 0).await.ok().unwrap();
        let again = replay.begin(7, 0);
        let first_ends = async {
            tokio::task::yield_now().await;
            first.finish(b"seven");
        };
        let (again, ()) = tokio::join!(again, first_ends);
        assert_eq!(&*again.err().unwrap(), b"seven");
    }

    #[tokio::test]
    async fn a_repetition_takes_over_what_is_given_up() {
        let replay = Replay::default();
        let first = replay.begin(7, 0).await.ok().unwrap();
        let first_is_dropped = async {
            tokio::task::yield_now().await;
            drop(first);
        };
        let (again, ()) = tokio::join!(replay.begin(7, 0), first_is_dropped);
        assert!(again.is_ok());
    }

    #[tokio::test]
    async fn who_comes_after_an_end_waits_for_all_that_are_under_way() {
        let replay = Replay::default();
        replay.all_have_ended().await;
        let (first, second) = (replay.begin(7, 0).await.ok(), replay.begin(8, 3).await.ok());
        assert!(replay.is_busy() && first.is_some() && second.is_some());
        let end = async {
            drop(first);
            tokio::task::yield_now().await;
            drop(second);
        };
        tokio::join!(replay.all_have_ended(), end);
        assert!(!replay.is_busy());
    }

    #[tokio::test]
    async fn only_the_last_answers_are_kept() {
        let replay = Replay::default();
        for id in 0..=REMEMBERED as u64 {
            replay.begin(id, 0).await.ok().unwrap().finish(&id.to_le_bytes());
        }
        assert!(replay.begin(0, 0).await.is_ok());
        assert!(replay.begin(1, 0).await.is_err());
    }

    #[tokio::test]
    async fn a_connection_that_takes_the_place_of_others_waits_for_their_requests() {
        let replay = Replay::default();
        let id = Call::request_id;
        let of_older = replay.begin(id(1, 7), 2).await.ok().unwrap();
        let _of_another = replay.begin(id(2, 7), 3).await.ok().unwrap();
        replay.replaced_have_ended(3, 2).await;
        for (link_set, fence) in [(1, 0), (3, 3)] {
            let waiting = replay.replaced_have_ended(link_set, fence);
            let soon = tokio::time::timeout(std::time::Duration::from_millis(1), waiting);
            assert!(soon.await.is_err(), "set of links {link_set}, fence {fence}");
        }
        let fenced = replay.replaced_have_ended(3, 3);
        let ends = async {
            tokio::task::yield_now().await;
            of_older.finish(b"seven");
        };
        tokio::join!(fenced, ends);
    }
}
