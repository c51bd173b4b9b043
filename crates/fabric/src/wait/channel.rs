//! The completion channel of a queue pair: who sleeps on it, who is to be notified, and whether its descriptors will notify it.
//!
//! The readiness of a descriptor can wake only one waker, so that one is the channel's, which passes it on to one of the sleepers;
//! that one polls the queue pair, which notifies the others when what they wait for has come. The invariant stands in the
//! [parent module](super); [`CompletionChannel::is_watched`] is what whoever goes to sleep asserts of it.

use super::Shared;
use crate::provider::Progress;
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Wake, Waker};

/// What a sleeper is notified of, beside what it has for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    /// A completion, or nothing: whoever finds it knows the slot.
    Own,
    /// Events, each of which goes to one.
    Events,
}

enum State<W> {
    Free,
    /// Its future runs, or has yielded and will.
    Awake,
    Asleep(W),
    /// It has been woken and has not run yet: then it will poll the queue pair.
    Notified,
}

struct Slot<W> {
    state: State<W>,
    interest: Interest,
    /// Waits for room to post; the smallest ticket is the first in line.
    room: Option<u64>,
}

impl<W> Slot<W> {
    fn is_asleep(&self) -> bool {
        matches!(self.state, State::Asleep(_))
    }

    /// What wakes it, if it sleeps.
    fn notify(&mut self) -> Option<W> {
        if !self.is_asleep() {
            return None;
        }
        match std::mem::replace(&mut self.state, State::Notified) {
            State::Asleep(waker) => Some(waker),
            _ => unreachable!("just matched"),
        }
    }
}

/// The subscribers of a channel. What wakes one of them is given out, to be used when this is no longer locked.
struct Subscribers<W> {
    slots: Vec<Slot<W>>,
    free: Vec<usize>,
    next_ticket: u64,
}

impl<W> Subscribers<W> {
    /// Slots are in use or free; who is in line has a slot, and a place of its own.
    fn check(&self, in_line: usize) {
        debug_assert_eq!(
            self.slots
                .iter()
                .filter(|slot| matches!(slot.state, State::Free))
                .count(),
            self.free.len(),
            "free slots are in the list"
        );
        debug_assert!(
            self.free
                .iter()
                .all(|at| matches!(self.slots[*at].state, State::Free) && self.slots[*at].room.is_none()),
            "what is in the list is free"
        );
        let tickets = || self.slots.iter().filter_map(|slot| slot.room);
        debug_assert_eq!(tickets().count(), in_line, "who waits for room is counted");
        debug_assert!(
            tickets().all(|ticket| ticket < self.next_ticket),
            "tickets are given in order"
        );
    }

    fn get(&mut self, at: usize) -> &mut Slot<W> {
        let slot = &mut self.slots[at];
        assert!(!matches!(slot.state, State::Free), "a subscription has its slot");
        slot
    }

    fn sleep(&mut self, at: Option<usize>, waker: W, interest: Interest) -> usize {
        let at = at.or_else(|| self.free.pop()).unwrap_or(self.slots.len());
        if at == self.slots.len() {
            self.slots.push(Slot {
                state: State::Free,
                interest,
                room: None,
            });
        }
        let slot = &mut self.slots[at];
        debug_assert!(!slot.is_asleep(), "who goes to sleep was awake");
        slot.state = State::Asleep(waker);
        slot.interest = interest;
        at
    }

    fn notify_one(&mut self) -> Option<W> {
        self.slots.iter_mut().find_map(Slot::notify)
    }

    fn notify_event(&mut self) -> Option<W> {
        let waits = |slot: &&mut Slot<W>| slot.interest == Interest::Events;
        let waker = self.slots.iter_mut().filter(waits).find_map(Slot::notify);
        debug_assert!(
            waker.is_some()
                || self
                    .slots
                    .iter()
                    .all(|slot| slot.interest != Interest::Events || !slot.is_asleep()),
            "somebody is notified unless nobody waits"
        );
        waker
    }

    /// The first in line, unless it is not asleep: then it asks for room by itself.
    fn notify_room(&mut self) -> Option<W> {
        let in_line = self.slots.iter_mut().filter(|slot| slot.room.is_some());
        in_line.min_by_key(|slot| slot.room).and_then(Slot::notify)
    }

    fn first_in_line(&self) -> Option<u64> {
        self.slots.iter().filter_map(|slot| slot.room).min()
    }

    fn release(&mut self, at: usize) {
        let slot = self.get(at);
        assert!(slot.room.is_none(), "who leaves has left the line");
        slot.state = State::Free;
        self.free.push(at);
    }
}

/// What descriptors are to tell of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Directions {
    /// Something can be read.
    pub(crate) read: bool,
    /// More can be written.
    pub(crate) write: bool,
}

const ARMED: u8 = 1;
const ARMED_TO_READ: u8 = 2;
const ARMED_TO_WRITE: u8 = 4;
/// The thread's poller polls the queue pair.
const POLLED: u8 = 8;
const ALL_ARMED: u8 = ARMED | ARMED_TO_READ | ARMED_TO_WRITE;

impl Directions {
    fn bits(self) -> u8 {
        ARMED | if self.read { ARMED_TO_READ } else { 0 } | if self.write { ARMED_TO_WRITE } else { 0 }
    }
}

/// `Sync` only because wakers have to be; all of it happens on one thread.
pub(crate) struct CompletionChannel {
    subscribers: Mutex<Subscribers<Waker>>,
    /// Who tells it that something has come: descriptors, the poller.
    watch: AtomicU8,
    /// Sleepers that wait for room.
    in_line: AtomicUsize,
}

impl Default for CompletionChannel {
    fn default() -> Self {
        CompletionChannel {
            subscribers: Mutex::new(Subscribers {
                slots: Vec::new(),
                free: Vec::new(),
                next_ticket: 0,
            }),
            watch: AtomicU8::new(0),
            in_line: AtomicUsize::new(0),
        }
    }
}

/// A descriptor is ready.
impl Wake for CompletionChannel {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        #[cfg(test)]
        if super::explorer::is_planted(super::explorer::Planted::ArmedForEver) {
            return self.notify_one();
        }
        self.disarm();
        self.notify_one();
    }
}

impl CompletionChannel {
    fn lock(&self) -> MutexGuard<'_, Subscribers<Waker>> {
        self.subscribers.lock().expect("nobody panics holding this lock")
    }

    fn watch(&self) -> u8 {
        self.watch.load(Ordering::Acquire)
    }

    /// To be called before the descriptors are asked to wake the channel.
    pub(crate) fn arm(&self, directions: Directions) {
        let watch = self.watch() & POLLED | directions.bits();
        self.watch.store(watch, Ordering::Release);
    }

    pub(crate) fn disarm(&self) {
        self.watch.store(self.watch() & POLLED, Ordering::Release);
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.watch() & ARMED != 0
    }

    fn is_armed_for(&self, directions: Directions) -> bool {
        self.watch() & directions.bits() == directions.bits()
    }

    /// The thread's poller polls the queue pair, or does so no more; then somebody is to be notified.
    pub(crate) fn set_polled(&self, polled: bool) {
        let watch = self.watch() & ALL_ARMED | if polled { POLLED } else { 0 };
        self.watch.store(watch, Ordering::Release);
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.watch() & POLLED != 0
    }

    /// Whether those who sleep will be notified: by a descriptor, by the poller, or by a sleeper that was notified and comes.
    pub(crate) fn is_watched(&self) -> bool {
        let is_notified = |slot: &Slot<Waker>| matches!(slot.state, State::Notified);
        self.watch() != 0 || self.lock().slots.iter().any(is_notified)
    }

    /// See [`Subscribers::check`].
    fn check(&self) {
        if cfg!(debug_assertions) {
            self.lock().check(self.in_line.load(Ordering::Relaxed));
        }
    }

    fn is_anybody_in_line(&self) -> bool {
        self.in_line.load(Ordering::Relaxed) > 0
    }

    fn wake(waker: Option<Waker>) {
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Somebody has to poll the queue pair.
    pub(crate) fn notify_one(&self) {
        let waker = self.lock().notify_one();
        CompletionChannel::wake(waker);
    }

    /// The queue pair is lost, or everybody has to poll it for another reason.
    pub(crate) fn notify_all(&self) {
        let wakers: Vec<Waker> = self.lock().slots.iter_mut().filter_map(Slot::notify).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// An event has come.
    pub(crate) fn notify_event(&self) {
        let waker = self.lock().notify_event();
        CompletionChannel::wake(waker);
    }

    /// There is room to post.
    pub(crate) fn notify_room(&self) {
        if self.is_anybody_in_line() {
            let waker = self.lock().notify_room();
            CompletionChannel::wake(waker);
        }
    }

    /// Notifies the sleeper of this slot.
    pub(crate) fn notify(&self, slot: usize) {
        let waker = self.lock().slots.get_mut(slot).and_then(Slot::notify);
        CompletionChannel::wake(waker);
    }

    /// The states of all slots, and whether anybody sleeps.
    #[cfg(test)]
    pub(super) fn describe(&self) -> (String, bool) {
        let subscribers = self.lock();
        let state = |slot: &Slot<Waker>| match slot.state {
            State::Free => '-',
            State::Awake => 'a',
            State::Asleep(_) => 's',
            State::Notified => 'n',
        };
        let slots: Vec<_> = subscribers
            .slots
            .iter()
            .map(|slot| (state(slot), slot.interest, slot.room))
            .collect();
        let sleeps = subscribers.slots.iter().any(Slot::is_asleep);
        (format!("{slots:?} {:?} {}", subscribers.free, self.watch()), sleeps)
    }
}

/// What has come of asking descriptors to wake a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// They will.
    Registered,
    /// One was ready, and what it told of has been done.
    Ready,
    /// There is more to do.
    More,
}

/// Sees to it that descriptors wake the channel when there is something to do; `More` if there is something already.
///
/// `wanted`: what they have to tell of now. `ask`: asks them, with the waker of the channel, and does what they tell of at once.
pub(crate) fn arm(
    shared: &Shared,
    channel_waker: &Waker,
    wanted: impl Fn() -> Directions,
    mut ask: impl FnMut(Directions, &mut Context<'_>) -> Asked,
) -> Progress {
    /// Each attempt either receives or sends something, or finds that the readiness that the runtime remembered is stale.
    const ATTEMPTS: usize = 8;
    let channel = &shared.channel;
    let mut cx = Context::from_waker(channel_waker);
    for _ in 0..ATTEMPTS {
        if shared.is_closed() {
            return Progress::Idle;
        }
        let directions = wanted();
        if channel.is_armed_for(directions) {
            return Progress::Idle;
        }
        // before asking, since the answer may come at once
        channel.arm(directions);
        match ask(directions, &mut cx) {
            Asked::Registered if channel.is_armed() => return Progress::Idle,
            Asked::Registered => {}
            Asked::Ready => channel.disarm(),
            Asked::More => {
                channel.disarm();
                return Progress::More;
            }
        }
    }
    Progress::More
}

/// A wait at a channel.
pub(crate) struct Subscription<C: Deref<Target = CompletionChannel>> {
    channel: C,
    slot: Option<usize>,
}

impl<C: Deref<Target = CompletionChannel>> Subscription<C> {
    pub(crate) fn new(channel: C) -> Subscription<C> {
        Subscription { channel, slot: None }
    }

    #[cfg(test)]
    pub(super) fn slot(&self) -> Option<usize> {
        self.slot
    }

    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// The future is being polled, nobody need wake it. Its place in line for room stays.
    pub(crate) fn wake_up(&self) {
        if let Some(at) = self.slot {
            self.channel.lock().get(at).state = State::Awake;
        }
    }

    /// The future goes to sleep. Returns the slot by which it can be notified.
    pub(crate) fn subscribe(&mut self, waker: &Waker, interest: Interest) -> usize {
        let at = self.channel.lock().sleep(self.slot, waker.clone(), interest);
        debug_assert!(self.slot.is_none_or(|slot| slot == at), "a subscription keeps its slot");
        self.slot = Some(at);
        self.channel.check();
        at
    }

    /// Gets in line for room to post; it must have subscribed.
    pub(crate) fn queue_for_room(&mut self) {
        let at = self.slot.expect("who waits for room has subscribed");
        let mut subscribers = self.channel.lock();
        if subscribers.get(at).room.is_none() {
            let ticket = subscribers.next_ticket;
            subscribers.next_ticket += 1;
            subscribers.get(at).room = Some(ticket);
            self.channel.in_line.fetch_add(1, Ordering::Relaxed);
        }
        drop(subscribers);
        self.channel.check();
    }

    /// True if nobody was in line before us.
    pub(crate) fn is_first_in_line(&self) -> bool {
        if !self.channel.is_anybody_in_line() {
            return true;
        }
        let mut subscribers = self.channel.lock();
        let ours = self.slot.and_then(|at| subscribers.get(at).room);
        ours.is_some() && ours == subscribers.first_in_line()
    }

    /// Leaves the line; the next one may find room as well.
    pub(crate) fn leave_line(&mut self) {
        let Some(at) = self.slot else { return };
        if self.channel.lock().get(at).room.take().is_some() {
            let before = self.channel.in_line.fetch_sub(1, Ordering::Relaxed);
            assert!(before > 0, "who leaves the line was counted");
            self.channel.check();
            #[cfg(test)]
            if super::explorer::is_planted(super::explorer::Planted::RoomNotPassedOn) {
                return;
            }
            self.channel.notify_room();
        }
    }

    /// The future has what it waited for, or is dropped.
    pub(crate) fn leave(&mut self) {
        self.leave_line();
        let Some(at) = self.slot.take() else { return };
        self.channel.lock().release(at);
        self.channel.check();
        #[cfg(test)]
        if super::explorer::is_planted(super::explorer::Planted::NoHandOver) {
            return;
        }
        if self.channel.watch() == 0 {
            self.channel.notify_one();
        }
    }
}

impl<C: Deref<Target = CompletionChannel>> Drop for Subscription<C> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Directions = Directions {
        read: true,
        write: true,
    };

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
        let channel = Arc::new(CompletionChannel::default());
        let (first, first_waker) = sleeper();
        let (second, second_waker) = sleeper();
        let (mut a, mut b) = (Subscription::new(&*channel), Subscription::new(&*channel));
        a.subscribe(&first_waker, Interest::Own);
        b.subscribe(&second_waker, Interest::Events);
        channel.arm(BOTH);
        Waker::from(channel.clone()).wake_by_ref();
        assert_eq!((woken(&first), woken(&second)), (1, 0));
        drop(a);
        assert_eq!(woken(&second), 1, "somebody must arm the channel again");
        channel.arm(BOTH);
        let (_third, third_waker) = sleeper();
        let mut c = Subscription::new(&*channel);
        c.subscribe(&third_waker, Interest::Own);
        drop(c);
        assert_eq!(woken(&second), 0, "an armed channel needs nobody");
        channel.disarm();
        channel.set_polled(true);
        let mut d = Subscription::new(&*channel);
        d.subscribe(&third_waker, Interest::Own);
        drop(d);
        assert_eq!(woken(&second), 0, "nor does one that the poller looks at");
    }

    #[test]
    fn events_wake_those_who_wait_for_events() {
        let channel = Arc::new(CompletionChannel::default());
        let (first, first_waker) = sleeper();
        let (second, second_waker) = sleeper();
        let (mut a, mut b) = (Subscription::new(&*channel), Subscription::new(&*channel));
        a.subscribe(&first_waker, Interest::Own);
        b.subscribe(&second_waker, Interest::Events);
        channel.notify_event();
        assert_eq!((woken(&first), woken(&second)), (0, 1));
    }

    #[test]
    fn room_goes_to_who_came_first() {
        let channel = Arc::new(CompletionChannel::default());
        let (first, first_waker) = sleeper();
        let (second, second_waker) = sleeper();
        let (mut a, mut b) = (Subscription::new(&*channel), Subscription::new(&*channel));
        b.subscribe(&second_waker, Interest::Own);
        b.queue_for_room();
        a.subscribe(&first_waker, Interest::Own);
        a.queue_for_room();
        assert!(b.is_first_in_line() && !a.is_first_in_line());
        assert!(
            !Subscription::new(&*channel).is_first_in_line(),
            "who comes later does not overtake"
        );
        channel.notify_room();
        assert_eq!((woken(&first), woken(&second)), (0, 1));
        drop(b);
        assert_eq!(woken(&first), 1, "who leaves passes the room on");
        a.leave_line();
        assert!(Subscription::new(&*channel).is_first_in_line());
    }
}
