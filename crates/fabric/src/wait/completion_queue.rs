//! What all providers keep for a queue pair: operations under way, events not yet taken, and how it ended.

use super::CompletionChannel;
use crate::{Event, FabricError, Memory, Role, Verb};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

/// Batches that may be under way on a queue pair; further ones wait.
pub(crate) const MAX_OUTSTANDING: usize = 256;

/// Bytes of reads that may be under way on a queue pair (a single larger one may be alone), so that a target can always
/// buffer its replies.
pub(crate) const MAX_READING: usize = 64 << 20;

/// Events and bytes of messages that nobody has taken yet; the provider reads no further until they are taken.
pub(crate) const MAX_EVENTS: usize = 4096;
pub(crate) const MAX_EVENT_BYTES: usize = 4 << 20;

const INDEX_BITS: u32 = 8;
const _: () = assert!(MAX_OUTSTANDING == 1 << INDEX_BITS);

/// A pending operation: place in the table, and how often the place was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpId(pub(crate) u32);

impl OpId {
    fn index(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }
}

/// Memory that a pending operation fills.
struct Destination {
    /// First byte; null in memory that is not plainly mapped (a simulated pool).
    at: *mut u8,
    len: usize,
    /// So much has come already.
    done: usize,
    /// A `u64` (the result of an atomic) rather than bytes, and what was found.
    word: Option<u64>,
    /// Not lent by the caller, but a pool or buffer, from this offset on.
    memory: Option<(Memory, u64)>,
}

impl Destination {
    /// Whether so many bytes more may come.
    fn fits(&self, len: usize) -> bool {
        self.word.is_none() && len <= self.len - self.done
    }
}

/// Bytes of an answer that came while the caller's memory might not be touched: they wait for it here.
struct Part {
    which: usize,
    at: usize,
    bytes: Vec<u8>,
}

/// Whether what arrives can be brought to its destination now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// It can: the memory is a pool or buffer, or its caller is being polled; or the caller has gone, and it is discarded.
    Here,
    /// The caller is not being polled, so its memory may not be touched.
    Away,
}

#[derive(Default)]
enum State {
    #[default]
    Free,
    Pending,
    /// Its caller has gone; the place is free when the completion comes.
    Abandoned,
    Done(Result<(), FabricError>),
}

#[derive(Default)]
struct Op {
    generation: u32,
    state: State,
    reading: usize,
    destinations: Vec<Destination>,
    parts: Vec<Part>,
    sleeper: Option<usize>,
}

impl Op {
    /// Forgets the memory.
    fn clear(&mut self) {
        self.destinations.clear();
        self.parts.clear();
    }
}

/// Operations under way.
///
/// The memory that a caller lends is touched only while the caller's future is being polled (`present`, see [`Lending`]): a
/// future that is leaked is not polled any more, so nothing is written to memory that has been freed since.
#[derive(Default)]
struct Ops {
    table: Vec<Op>,
    free: Vec<u8>,
    /// Pending or abandoned.
    outstanding: usize,
    reading: usize,
}

/// An answer that belongs to no operation of ours: the peer is broken.
#[derive(Debug)]
pub(crate) struct NotOurs;

impl Ops {
    /// True if a batch that reads so many bytes may be posted.
    fn has_room(&self, reading: usize) -> bool {
        (!self.free.is_empty() || self.table.len() < MAX_OUTSTANDING)
            && (self.reading == 0 || reading == 0 || self.reading + reading <= MAX_READING)
    }

    /// What is under way is counted, and the places of all else are free or wait for who asked.
    fn check(&self) {
        let under_way = || {
            let is_under_way = |op: &&Op| matches!(op.state, State::Pending | State::Abandoned);
            self.table.iter().filter(is_under_way)
        };
        debug_assert_eq!(under_way().count(), self.outstanding, "operations under way");
        debug_assert_eq!(
            under_way().map(|op| op.reading).sum::<usize>(),
            self.reading,
            "bytes they read"
        );
        debug_assert_eq!(
            self.table.iter().filter(|op| matches!(op.state, State::Free)).count(),
            self.free.len(),
            "free places are in the list"
        );
        debug_assert!(
            self.free
                .iter()
                .all(|place| matches!(self.table[usize::from(*place)].state, State::Free)),
            "what is in the list is free"
        );
    }

    /// Enters a batch: its destinations in the order of its verbs.
    fn begin(&mut self, verbs: &mut [Verb<'_>]) -> OpId {
        let index = match self.free.pop() {
            Some(index) => usize::from(index),
            None => {
                assert!(self.table.len() < MAX_OUTSTANDING, "whoever posts has asked for room");
                self.table.push(Op::default());
                self.table.len() - 1
            }
        };
        let op = &mut self.table[index];
        assert!(matches!(op.state, State::Free), "place {index} is free");
        // The largest id is no operation's (unsignaled batches travel with it).
        op.generation = (op.generation + 1) % (u32::MAX >> INDEX_BITS);
        op.state = State::Pending;
        op.sleeper = None;
        op.clear();
        op.destinations.extend(verbs.iter_mut().filter_map(destination));
        op.reading = op.destinations.iter().map(|destination| destination.len).sum();
        self.outstanding += 1;
        self.reading += op.reading;
        let id = OpId(op.generation << INDEX_BITS | index as u32);
        debug_assert!(id.index() == index && id.0 != u32::MAX, "{id:?}");
        self.check();
        id
    }

    fn get(&mut self, id: OpId) -> Option<&mut Op> {
        self.table
            .get_mut(id.index())
            .filter(|op| op.generation << INDEX_BITS == id.0 & !((1 << INDEX_BITS) - 1))
            .filter(|op| !matches!(op.state, State::Free))
    }

    /// The destination an answer names, and the parts that wait for it: `None` inside if the caller has gone (what arrives is to
    /// be discarded).
    fn destination(&mut self, id: OpId, which: usize) -> Result<Option<(&mut Destination, &mut Vec<Part>)>, NotOurs> {
        let op = self.get(id).ok_or(NotOurs)?;
        match op.state {
            State::Abandoned => Ok(None),
            State::Pending => {
                let destination = op.destinations.get_mut(which).ok_or(NotOurs)?;
                Ok(Some((destination, &mut op.parts)))
            }
            _ => Err(NotOurs),
        }
    }

    fn reach(&mut self, id: OpId, which: usize, present: Option<OpId>) -> Result<Reach, NotOurs> {
        Ok(match self.destination(id, which)? {
            Some((destination, _)) if destination.memory.is_none() && present != Some(id) => Reach::Away,
            _ => Reach::Here,
        })
    }

    /// Brings a part of an answer to its destination, keeps it for a caller that is away, or discards it if the caller has gone.
    fn fill(&mut self, id: OpId, which: usize, bytes: Cow<'_, [u8]>, present: Option<OpId>) -> Result<(), NotOurs> {
        let Some((destination, parts)) = self.destination(id, which)? else {
            return Ok(());
        };
        if !destination.fits(bytes.len()) {
            return Err(NotOurs);
        }
        let (at, len) = (destination.done, bytes.len());
        match &destination.memory {
            Some((memory, start)) => memory.write_part(start + at as u64, &bytes),
            // SAFETY: the range was just checked to lie within the destination, whose caller is being polled.
            None if present == Some(id) => unsafe { copy_to(destination, at, &bytes) },
            None => parts.push(Part {
                which,
                at,
                bytes: bytes.into_owned(),
            }),
        }
        destination.done += len;
        debug_assert!(destination.done <= destination.len, "no more comes than was asked for");
        Ok(())
    }

    /// Keeps the result of an atomic for the caller.
    fn fill_word(&mut self, id: OpId, which: usize, found: u64) -> Result<(), NotOurs> {
        let Some((destination, _)) = self.destination(id, which)? else {
            return Ok(());
        };
        match &mut destination.word {
            Some(word) if destination.done == 0 => *word = found,
            _ => return Err(NotOurs),
        }
        destination.done = destination.len;
        Ok(())
    }

    /// The completion has come. Returns the sleeper to be woken.
    fn complete(&mut self, id: OpId, result: Result<(), FabricError>) -> Result<Option<usize>, NotOurs> {
        let op = self.get(id).ok_or(NotOurs)?;
        let sleeper = match op.state {
            State::Pending => {
                if result.is_ok() && op.destinations.iter().any(|d| d.done != d.len) {
                    return Err(NotOurs);
                }
                match &result {
                    Ok(()) => op.destinations.iter_mut().for_each(persist),
                    Err(_) => op.clear(),
                }
                op.state = State::Done(result);
                op.sleeper.take()
            }
            State::Abandoned => {
                op.state = State::Free;
                self.free.push(id.index() as u8);
                None
            }
            _ => return Err(NotOurs),
        };
        let reading = self.table[id.index()].reading;
        self.outstanding = self.outstanding.checked_sub(1).expect("it was counted when it began");
        self.reading = self.reading.checked_sub(reading).expect("it was counted when it began");
        self.check();
        Ok(sleeper)
    }

    /// Takes the result, if it is there; what came while the caller was away goes to its memory.
    fn take(&mut self, id: OpId, present: Option<OpId>) -> Option<Result<(), FabricError>> {
        let op = self.get(id)?;
        if !matches!(op.state, State::Done(_)) {
            return None;
        }
        assert_eq!(present, Some(id), "whoever takes a result is being polled");
        let State::Done(result) = std::mem::take(&mut op.state) else {
            unreachable!("just matched")
        };
        debug_assert!(
            result.is_err() || op.destinations.iter().all(|d| d.done == d.len),
            "all that was asked for has come"
        );
        for part in &op.parts {
            // SAFETY: `fill` has checked that the part lies within the destination, whose caller is being polled.
            unsafe { copy_to(&op.destinations[part.which], part.at, &part.bytes) };
        }
        for destination in &op.destinations {
            if let Some(word) = destination.word {
                // SAFETY: the destination of a word is a word, and its caller is being polled.
                unsafe { copy_to(destination, 0, &word.to_ne_bytes()) };
            }
        }
        op.clear();
        self.free.push(id.index() as u8);
        self.check();
        Some(result)
    }

    fn sleep(&mut self, id: OpId, sleeper: usize) {
        if let Some(op) = self.get(id) {
            op.sleeper = Some(sleeper);
        }
    }

    fn abandon(&mut self, id: OpId) {
        let Some(op) = self.get(id) else { return };
        op.clear();
        op.sleeper = None;
        match op.state {
            State::Pending => op.state = State::Abandoned,
            State::Done(_) => {
                op.state = State::Free;
                self.free.push(id.index() as u8);
            }
            State::Free | State::Abandoned => {}
        }
        self.check();
    }

    fn fail_all(&mut self, error: &FabricError) {
        for (index, op) in self.table.iter_mut().enumerate() {
            match op.state {
                State::Pending => {
                    op.clear();
                    op.state = State::Done(Err(error.clone()));
                }
                State::Abandoned => {
                    op.clear();
                    op.state = State::Free;
                    self.free.push(index as u8);
                }
                // what has come for a caller that is away stays for it
                State::Free | State::Done(_) => {}
            }
        }
        self.outstanding = 0;
        self.reading = 0;
        self.check();
    }
}

/// The destination of what a verb brings back, if it brings anything.
fn destination(verb: &mut Verb<'_>) -> Option<Destination> {
    let mut destination = Destination {
        at: std::ptr::null_mut(),
        len: 0,
        done: 0,
        word: None,
        memory: None,
    };
    match verb {
        Verb::Read { into, .. } => (destination.at, destination.len) = (into.as_mut_ptr(), into.len()),
        Verb::ReadInto { into, .. } => {
            let first = |base: *mut u8| base.wrapping_add(into.offset as usize);
            destination.at = into.memory.mapped().map_or(std::ptr::null_mut(), first);
            destination.len = into.len as usize;
            destination.memory = Some((into.memory.clone(), into.offset));
        }
        Verb::CompareSwap { found, .. } | Verb::FetchAdd { found, .. } => {
            (destination.at, destination.len) = (std::ptr::from_mut::<u64>(found).cast(), 8);
            destination.word = Some(0);
        }
        _ => return None,
    }
    Some(destination)
}

/// All of it has come.
fn persist(destination: &mut Destination) {
    if let Some((memory, at)) = destination.memory.take() {
        memory.persist(at, destination.len as u64);
    }
}

/// # Safety
/// The range lies within the destination, whose memory its caller lends for as long as this takes (see [`Lending`]).
unsafe fn copy_to(destination: &Destination, at: usize, bytes: &[u8]) {
    debug_assert!(at + bytes.len() <= destination.len && !destination.at.is_null());
    // SAFETY: the caller's promise; `bytes` is memory of ours.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), destination.at.add(at), bytes.len()) }
}

/// What went over a queue pair so far, seen from this end as initiator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches posted.
    pub batches: u64,
    /// Verbs posted.
    pub verbs: u64,
    /// Bytes read by one-sided reads that were posted.
    pub bytes_read: u64,
    /// Bytes of writes and messages that were posted.
    pub bytes_written: u64,
    /// One-sided operations served to the peer (not with `shm`, where the peer serves itself).
    pub served: u64,
}

/// State of one end of a queue pair that does not depend on the provider.
pub(crate) struct Shared {
    pub(crate) peer: Role,
    pub(crate) peer_name: String,
    pub(crate) channel: Arc<CompletionChannel>,
    ops: RefCell<Ops>,
    /// The operation whose caller is being polled: what it lends may be touched.
    present: Cell<Option<OpId>>,
    events: RefCell<VecDeque<Event>>,
    event_bytes: Cell<usize>,
    lost: RefCell<Option<FabricError>>,
    closed: Cell<bool>,
    pub(crate) counters: Cell<Counters>,
    /// Changes whenever anything moves between the peers.
    activity: Cell<u64>,
}

impl Shared {
    pub(crate) fn new(peer: Role, peer_name: String) -> Shared {
        Shared {
            peer,
            peer_name,
            channel: Arc::default(),
            ops: RefCell::default(),
            present: Cell::new(None),
            events: RefCell::default(),
            event_bytes: Cell::new(0),
            lost: RefCell::new(None),
            closed: Cell::new(false),
            counters: Cell::default(),
            activity: Cell::new(0),
        }
    }

    /// Something has moved between the peers.
    pub(crate) fn note_activity(&self) {
        self.activity.set(self.activity.get().wrapping_add(1));
    }

    pub(crate) fn activity(&self) -> u64 {
        self.activity.get()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// How the connection ended, if it has.
    pub(crate) fn lost(&self) -> Option<FabricError> {
        if self.closed.get() {
            self.lost.borrow().clone()
        } else {
            None
        }
    }

    /// The connection has ended: everything outstanding fails, everybody is woken. Returns false if that was known.
    pub(crate) fn lose(&self, why: &str) -> bool {
        if self.closed.replace(true) {
            return false;
        }
        let error = FabricError::Disconnected {
            peer: self.peer_name.clone(),
            why: why.to_owned(),
        };
        self.ops.borrow_mut().fail_all(&error);
        *self.lost.borrow_mut() = Some(error);
        debug_assert!(!self.any_outstanding(), "all that was under way has failed");
        self.channel.notify_all();
        true
    }

    /// To be held while the future of an operation is polled.
    pub(crate) fn lending(&self) -> Lending<'_> {
        Lending {
            present: &self.present,
            before: self.present.get(),
        }
    }

    /// The operation that lends its memory now.
    pub(crate) fn present(&self) -> Option<OpId> {
        self.present.get()
    }

    /// True if a batch that reads so many bytes may be posted.
    pub(crate) fn has_room_for(&self, reading: usize) -> bool {
        self.ops.borrow().has_room(reading)
    }

    /// Enters a batch: its destinations in the order of its verbs.
    pub(crate) fn begin(&self, verbs: &mut [Verb<'_>]) -> OpId {
        self.ops.borrow_mut().begin(verbs)
    }

    /// True while completions are owed to us.
    pub(crate) fn any_outstanding(&self) -> bool {
        self.ops.borrow().outstanding > 0
    }

    /// Whether bytes of an answer can be brought to their destination now.
    pub(crate) fn reach(&self, op: OpId, which: usize) -> Result<Reach, NotOurs> {
        self.ops.borrow_mut().reach(op, which, self.present())
    }

    /// Where `len` bytes of an answer can be received without a copy, if that is now.
    pub(crate) fn place(&self, op: OpId, which: usize, len: usize) -> Result<Option<*mut u8>, NotOurs> {
        let mut ops = self.ops.borrow_mut();
        let is_here = ops.reach(op, which, self.present())? == Reach::Here;
        match ops.destination(op, which)? {
            None => Ok(None),
            Some((destination, _)) if !destination.fits(len) => Err(NotOurs),
            Some((destination, _)) => {
                let is_plain = is_here && !destination.at.is_null();
                Ok(is_plain.then(|| destination.at.wrapping_add(destination.done)))
            }
        }
    }

    /// So many bytes were received where `place` said.
    pub(crate) fn placed(&self, op: OpId, which: usize, len: usize) -> Result<(), NotOurs> {
        if let Some((destination, _)) = self.ops.borrow_mut().destination(op, which)? {
            destination.done += len;
            assert!(destination.done <= destination.len, "received within the destination");
        }
        Ok(())
    }

    /// Brings a part of an answer to its destination; it is kept while the caller is away, and discarded if that has gone.
    pub(crate) fn fill(&self, op: OpId, which: usize, bytes: Cow<'_, [u8]>) -> Result<(), NotOurs> {
        self.ops.borrow_mut().fill(op, which, bytes, self.present())
    }

    /// As [`Shared::fill`], for the result of an atomic.
    pub(crate) fn fill_word(&self, op: OpId, which: usize, found: u64) -> Result<(), NotOurs> {
        self.ops.borrow_mut().fill_word(op, which, found)
    }

    /// The caller is wanted: what comes next goes to or from memory that it lends.
    pub(crate) fn call(&self, op: OpId) {
        let sleeper = self.ops.borrow_mut().get(op).and_then(|op| op.sleeper);
        if let Some(sleeper) = sleeper {
            self.channel.notify(sleeper);
        }
    }

    /// The caller has gone; nothing of its memory is known any more.
    pub(crate) fn abandon(&self, op: OpId) {
        self.ops.borrow_mut().abandon(op);
    }

    pub(crate) fn complete(&self, op: OpId, result: Result<(), FabricError>) -> Result<(), NotOurs> {
        let sleeper = self.ops.borrow_mut().complete(op, result)?;
        if let Some(sleeper) = sleeper {
            self.channel.notify(sleeper);
        }
        self.channel.notify_room();
        Ok(())
    }

    pub(crate) fn take(&self, op: OpId) -> Option<Result<(), FabricError>> {
        self.ops.borrow_mut().take(op, self.present())
    }

    pub(crate) fn sleep(&self, op: OpId, sleeper: usize) {
        self.ops.borrow_mut().sleep(op, sleeper);
    }

    /// False while so many events wait that no more should be received.
    pub(crate) fn has_room_for_events(&self) -> bool {
        self.events.borrow().len() < MAX_EVENTS && self.event_bytes.get() < MAX_EVENT_BYTES
    }

    /// The bytes of messages that wait are counted.
    fn check_events(&self) {
        let bytes = |event: &Event| match event {
            Event::Message(bytes) => bytes.len(),
            Event::Immediate(_) => 0,
        };
        debug_assert_eq!(
            self.events.borrow().iter().map(bytes).sum::<usize>(),
            self.event_bytes.get(),
            "bytes of messages that wait"
        );
    }

    pub(crate) fn push_event(&self, event: Event) {
        if let Event::Message(bytes) = &event {
            self.event_bytes.set(self.event_bytes.get() + bytes.len());
        }
        self.events.borrow_mut().push_back(event);
        self.check_events();
        self.channel.notify_event();
    }

    pub(crate) fn pop_event(&self) -> Option<Event> {
        let was_full = !self.has_room_for_events();
        let event = self.events.borrow_mut().pop_front()?;
        if let Event::Message(bytes) = &event {
            let left = self.event_bytes.get().checked_sub(bytes.len());
            self.event_bytes.set(left.expect("they were counted when they came"));
        }
        self.check_events();
        if was_full {
            // Receiving had stopped; somebody must poll again.
            self.channel.disarm();
            self.channel.notify_one();
        }
        Some(event)
    }

    pub(crate) fn for_each_event(&self, what: impl FnMut(&Event)) {
        self.events.borrow().iter().for_each(what);
    }

    /// Whoever has taken one, or leaves, notifies another one of those that are left.
    pub(crate) fn pass_events_on(&self) {
        #[cfg(test)]
        if super::explorer::is_planted(super::explorer::Planted::EventsNotPassedOn) {
            return;
        }
        if self.any_event() {
            self.channel.notify_event();
        }
    }

    pub(crate) fn any_event(&self) -> bool {
        !self.events.borrow().is_empty()
    }

    /// Operations under way and events, as text.
    #[cfg(test)]
    pub(super) fn describe(&self) -> String {
        let ops = self.ops.borrow();
        let states = ops
            .table
            .iter()
            .map(|op| (std::mem::discriminant(&op.state), op.sleeper));
        format!(
            "{:?} {:?} {}",
            states.collect::<Vec<_>>(),
            ops.free,
            self.events.borrow().len()
        )
    }

    pub(crate) fn count(&self, verbs: &[Verb<'_>]) {
        let mut counters = self.counters.get();
        counters.batches += 1;
        counters.verbs += verbs.len() as u64;
        for verb in verbs {
            counters.bytes_read += verb.reading() as u64;
            match verb {
                Verb::WriteFrom { from, .. } => counters.bytes_written += from.len,
                Verb::Write { bytes, .. } | Verb::WriteImm { bytes, .. } | Verb::Send { bytes } => {
                    counters.bytes_written += bytes.len() as u64;
                }
                _ => {}
            }
        }
        self.counters.set(counters);
    }

    pub(crate) fn count_served(&self) {
        let mut counters = self.counters.get();
        counters.served += 1;
        self.counters.set(counters);
    }
}

/// Held while the future of an operation is polled: only meanwhile is the memory touched that it has borrowed.
pub(crate) struct Lending<'a> {
    present: &'a Cell<Option<OpId>>,
    /// Whose poll this one happens within, if a waker polls at once.
    before: Option<OpId>,
}

impl Lending<'_> {
    /// The memory of this operation's batch may be touched until this is dropped.
    ///
    /// # Safety
    /// The batch stays borrowed by the caller as long as this lives, and this is dropped, not leaked.
    pub(crate) unsafe fn lend(&self, op: OpId) {
        debug_assert!(
            self.before != Some(op),
            "the future of an operation is polled once at a time"
        );
        self.present.set(Some(op));
    }
}

impl Drop for Lending<'_> {
    fn drop(&mut self) {
        self.present.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Remote, RemoteKey};

    /// What has come for a caller that was away is there when it comes, even if the connection is lost in between.
    #[test]
    fn a_batch_that_is_complete_stays_so_when_the_connection_is_lost() {
        let shared = Shared::new(Role::Client, "peer".into());
        let (mut bytes, mut word) = ([0; 4], 0);
        let from = Remote {
            key: RemoteKey(1),
            offset: 0,
        };
        let mut batch = [
            Verb::Read { from, into: &mut bytes },
            Verb::FetchAdd {
                at: from,
                add: 1,
                found: &mut word,
            },
        ];
        let op = shared.begin(&mut batch);
        assert!(shared.fill(op, 0, b"data".into()).is_ok() && shared.fill_word(op, 1, 7).is_ok());
        assert!(shared.complete(op, Ok(())).is_ok());
        assert!(shared.lose("the peer died"));
        let lending = shared.lending();
        // SAFETY: the batch is borrowed until after the guard is dropped.
        unsafe { lending.lend(op) };
        assert_eq!(shared.take(op), Some(Ok(())));
        drop(lending);
        assert_eq!((&bytes, word), (b"data", 7));
    }
}
