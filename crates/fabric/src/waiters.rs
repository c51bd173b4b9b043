//! Who sleeps on a queue pair, and who drives it meanwhile.
//!
//! A queue pair has no task of its own: the futures that wait on it drive it. The descriptor's readiness can wake only one
//! waker, so that one is the [`Hub`], which passes the wake-up on to one of the sleepers; that one drives the queue pair,
//! which wakes the others when what they wait for has come. The invariant that keeps anybody from being forgotten:
//! *while somebody sleeps, the hub is armed, or the thread's poller looks at the queue pair, or a sleeper has been woken and
//! not yet polled.* A sleeper that leaves without having armed the hub again therefore wakes another one.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};

#[derive(Default)]
struct Sleeper {
    waker: Option<Waker>,
    used: bool,
    events: bool,
    /// Waits for room to post; the smallest ticket is the first in line.
    room: Option<u64>,
}

#[derive(Default)]
struct Sleepers {
    slots: Vec<Sleeper>,
    free: Vec<usize>,
    next_ticket: u64,
}

/// The sleepers of one queue pair. `Sync` only because wakers have to be; all of it happens on one thread.
#[derive(Default)]
pub(crate) struct Hub {
    sleepers: Mutex<Sleepers>,
    armed: AtomicBool,
    polled: AtomicBool,
    /// Sleepers that wait for room.
    in_line: AtomicUsize,
}

impl Wake for Hub {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.armed.store(false, Ordering::Release);
        self.wake_one();
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().expect("nobody panics holding this lock")
    }

    /// To be called before the descriptor is asked to wake the hub.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::Release);
    }

    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Release);
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }

    /// The thread's poller looks at the queue pair, or does so no more; then somebody is to be woken.
    pub(crate) fn set_polled(&self, polled: bool) {
        self.polled.store(polled, Ordering::Release);
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Acquire)
    }

    fn is_anybody_in_line(&self) -> bool {
        self.in_line.load(Ordering::Relaxed) > 0
    }

    /// Somebody has to drive the queue pair.
    pub(crate) fn wake_one(&self) {
        let waker = self.lock().slots.iter().find_map(|sleeper| sleeper.waker.clone());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The queue pair is lost, or everybody has to look again for another reason.
    pub(crate) fn wake_all(&self) {
        let wakers: Vec<Waker> = self
            .lock()
            .slots
            .iter_mut()
            .filter_map(|sleeper| sleeper.waker.take())
            .collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// An event has come.
    pub(crate) fn wake_for_event(&self) {
        let waker = {
            let mut sleepers = self.lock();
            sleepers
                .slots
                .iter_mut()
                .find(|sleeper| sleeper.events && sleeper.waker.is_some())
                .and_then(|s| s.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// There is room to post.
    pub(crate) fn wake_for_room(&self) {
        let waker = {
            if !self.is_anybody_in_line() {
                return;
            }
            self.lock()
                .slots
                .iter_mut()
                .filter(|s| s.room.is_some())
                .min_by_key(|s| s.room)
                .and_then(|s| s.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes the sleeper with this number.
    pub(crate) fn wake(&self, place: usize) {
        let waker = self
            .lock()
            .slots
            .get_mut(place)
            .and_then(|sleeper| sleeper.waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A future's place among the sleepers.
pub(crate) struct Place<H: Deref<Target = Hub>> {
    hub: H,
    at: Option<usize>,
}

impl<H: Deref<Target = Hub>> Place<H> {
    pub(crate) fn new(hub: H) -> Place<H> {
        Place { hub, at: None }
    }

    /// The future is being polled, nobody need wake it. Its place in line for room stays.
    pub(crate) fn awake(&self) {
        if let Some(at) = self.at {
            self.hub.lock().slots[at].waker = None;
        }
    }

    /// The future goes to sleep. Returns the number by which it can be woken.
    pub(crate) fn sleep(&mut self, waker: &Waker, events: bool) -> usize {
        let mut sleepers = self.hub.lock();
        let at = *self.at.get_or_insert_with(|| {
            sleepers.free.pop().unwrap_or_else(|| {
                sleepers.slots.push(Sleeper::default());
                sleepers.slots.len() - 1
            })
        });
        let sleeper = &mut sleepers.slots[at];
        sleeper.used = true;
        sleeper.events = events;
        match &mut sleeper.waker {
            Some(old) => old.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        at
    }

    /// Gets in line for room to post; a place in `sleep` must have been taken.
    pub(crate) fn queue_for_room(&mut self) {
        if let Some(at) = self.at {
            let mut sleepers = self.hub.lock();
            if sleepers.slots[at].room.is_none() {
                let ticket = sleepers.next_ticket;
                sleepers.next_ticket += 1;
                sleepers.slots[at].room = Some(ticket);
                self.hub.in_line.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// True if nobody was in line before us.
    pub(crate) fn is_first_in_line(&self) -> bool {
        if !self.hub.is_anybody_in_line() {
            return true;
        }
        let sleepers = self.hub.lock();
        let ours = self.at.and_then(|at| sleepers.slots[at].room);
        ours.is_some() && ours == sleepers.slots.iter().filter_map(|sleeper| sleeper.room).min()
    }

    /// Leaves the line; the next one may find room as well.
    pub(crate) fn leave_line(&mut self) {
        if let Some(at) = self.at {
            let mut sleepers = self.hub.lock();
            if sleepers.slots[at].room.take().is_some() {
                self.hub.in_line.fetch_sub(1, Ordering::Relaxed);
                drop(sleepers);
                self.hub.wake_for_room();
            }
        }
    }

    /// The future has what it waited for, or is dropped.
    pub(crate) fn leave(&mut self) {
        self.leave_line();
        let Some(at) = self.at.take() else { return };
        {
            let mut sleepers = self.hub.lock();
            sleepers.slots[at] = Sleeper::default();
            sleepers.free.push(at);
        }
        if !self.hub.is_armed() && !self.hub.is_polled() {
            self.hub.wake_one();
        }
    }
}

impl<H: Deref<Target = Hub>> Drop for Place<H> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sleeper() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (count.clone(), Waker::from(count))
    }

    fn woken(count: &Count) -> usize {
        count.0.swap(0, Ordering::Relaxed)
    }

    #[test]
    fn a_woken_driver_that_leaves_hands_over() {
        let hub = Arc::new(Hub::default());
        let (first, first_waker) = sleeper();
        let (second, second_waker) = sleeper();
        let (mut a, mut b) = (Place::new(&*hub), Place::new(&*hub));
        a.sleep(&first_waker, false);
        b.sleep(&second_waker, true);
        hub.arm();
        Waker::from(hub.clone()).wake_by_ref();
        assert_eq!((woken(&first), woken(&second)), (1, 0));
        drop(a);
        assert_eq!(woken(&second), 1, "somebody must arm the hub again");
        hub.arm();
        let (_third, third_waker) = sleeper();
        let mut c = Place::new(&*hub);
        c.sleep(&third_waker, false);
        drop(c);
        assert_eq!(woken(&second), 0, "an armed hub needs nobody");
        hub.disarm();
        hub.set_polled(true);
        let mut d = Place::new(&*hub);
        d.sleep(&third_waker, false);
        drop(d);
        assert_eq!(woken(&second), 0, "nor does one that the poller looks at");
    }

    #[test]
    fn events_wake_those_who_wait_for_events() {
        let hub = Arc::new(Hub::default());
        let (first, first_waker) = sleeper();
        let (second, second_waker) = sleeper();
        let (mut a, mut b) = (Place::new(&*hub), Place::new(&*hub));
        a.sleep(&first_waker, false);
        b.sleep(&second_waker, true);
        hub.wake_for_event();
        assert_eq!((woken(&first), woken(&second)), (0, 1));
    }

    #[test]
    fn room_goes_to_who_came_first() {
        let hub = Arc::new(Hub::default());
        let (first, first_waker) = sleeper();
        let (second, second_waker) = sleeper();
        let (mut a, mut b) = (Place::new(&*hub), Place::new(&*hub));
        b.sleep(&second_waker, false);
        b.queue_for_room();
        a.sleep(&first_waker, false);
        a.queue_for_room();
        assert!(b.is_first_in_line() && !a.is_first_in_line());
        assert!(
            !Place::new(&*hub).is_first_in_line(),
            "who comes later does not overtake"
        );
        hub.wake_for_room();
        assert_eq!((woken(&first), woken(&second)), (0, 1));
        drop(b);
        assert_eq!(woken(&first), 1, "who leaves passes the room on");
        a.leave_line();
        assert!(Place::new(&*hub).is_first_in_line());
    }
}
