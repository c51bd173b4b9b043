//! What all providers keep for a queue pair: operations under way, events not yet taken, and how it ended.

use crate::waiters::Hub;
use crate::{Event, FabricError, Memory, Role, Verb};
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
pub(crate) struct Destination {
    /// First byte; null in memory that is not plainly mapped (a simulated pool).
    pub(crate) at: *mut u8,
    pub(crate) len: usize,
    /// So much is there already.
    pub(crate) done: usize,
    /// A `u64` (the result of an atomic) rather than bytes.
    pub(crate) is_word: bool,
    /// Not lent by the caller, but a pool or buffer, from this offset on.
    memory: Option<(Memory, u64)>,
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
    sleeper: Option<usize>,
}

/// Operations under way.
#[derive(Default)]
pub(crate) struct Ops {
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
    pub(crate) fn has_room(&self, reading: usize) -> bool {
        (!self.free.is_empty() || self.table.len() < MAX_OUTSTANDING)
            && (self.reading == 0 || reading == 0 || self.reading + reading <= MAX_READING)
    }

    /// True while completions are owed to us.
    pub(crate) fn any_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// Enters a batch: its destinations in the order of its verbs.
    pub(crate) fn begin(&mut self, verbs: &mut [Verb<'_>]) -> OpId {
        let index = match self.free.pop() {
            Some(index) => usize::from(index),
            None => {
                assert!(self.table.len() < MAX_OUTSTANDING, "whoever posts has asked for room");
                self.table.push(Op::default());
                self.table.len() - 1
            }
        };
        let op = &mut self.table[index];
        // The largest id is no operation's (unsignaled batches travel with it).
        op.generation = (op.generation + 1) % (u32::MAX >> INDEX_BITS);
        op.state = State::Pending;
        op.sleeper = None;
        op.destinations.clear();
        op.reading = 0;
        for verb in verbs {
            let mut memory = None;
            let (at, len, is_word) = match verb {
                Verb::Read { into, .. } => (into.as_mut_ptr(), into.len(), false),
                Verb::ReadInto { into, .. } => {
                    memory = Some((into.memory.clone(), into.offset));
                    let first = |base: *mut u8| base.wrapping_add(into.offset as usize);
                    (
                        into.memory.mapped().map_or(std::ptr::null_mut(), first),
                        into.len as usize,
                        false,
                    )
                }
                Verb::CompareSwap { found, .. } | Verb::FetchAdd { found, .. } => {
                    (std::ptr::from_mut::<u64>(found).cast(), 8, true)
                }
                _ => continue,
            };
            op.reading += len;
            op.destinations.push(Destination {
                at,
                len,
                done: 0,
                is_word,
                memory,
            });
        }
        self.outstanding += 1;
        self.reading += op.reading;
        OpId(op.generation << INDEX_BITS | index as u32)
    }

    fn get(&mut self, id: OpId) -> Option<&mut Op> {
        self.table
            .get_mut(id.index())
            .filter(|op| op.generation << INDEX_BITS == id.0 & !((1 << INDEX_BITS) - 1))
            .filter(|op| !matches!(op.state, State::Free))
    }

    /// The destination an answer names: `None` inside if the caller has gone (what arrives is to be discarded).
    pub(crate) fn destination(&mut self, id: OpId, which: usize) -> Result<Option<&mut Destination>, NotOurs> {
        let op = self.get(id).ok_or(NotOurs)?;
        match op.state {
            State::Abandoned => Ok(None),
            State::Pending => op.destinations.get_mut(which).map(Some).ok_or(NotOurs),
            _ => Err(NotOurs),
        }
    }

    /// Copies a part of an answer to the memory of the operation's caller; discards it if the caller has gone.
    pub(crate) fn fill(&mut self, id: OpId, which: usize, bytes: &[u8], is_word: bool) -> Result<(), NotOurs> {
        let Some(destination) = self.destination(id, which)? else {
            return Ok(());
        };
        if destination.is_word != is_word || bytes.len() > destination.len - destination.done {
            return Err(NotOurs);
        }
        match &destination.memory {
            Some((memory, at)) => memory.write_part(at + destination.done as u64, bytes),
            // SAFETY: the range was just checked to lie within the destination, which the caller lends us until the operation
            // is complete or abandoned (both clear the destinations); `bytes` is memory of a provider.
            None => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), destination.at.add(destination.done), bytes.len());
            },
        }
        destination.done += bytes.len();
        Ok(())
    }

    /// The completion has come. Returns the sleeper to be woken.
    pub(crate) fn complete(&mut self, id: OpId, result: Result<(), FabricError>) -> Result<Option<usize>, NotOurs> {
        let op = self.get(id).ok_or(NotOurs)?;
        let sleeper = match op.state {
            State::Pending => {
                if result.is_ok() && op.destinations.iter().any(|d| d.done != d.len) {
                    return Err(NotOurs);
                }
                for destination in op.destinations.drain(..) {
                    if let (Ok(()), Some((memory, at))) = (&result, destination.memory) {
                        memory.persist(at, destination.len as u64);
                    }
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
        self.outstanding -= 1;
        self.reading -= self.table[id.index()].reading;
        Ok(sleeper)
    }

    /// Takes the result, if it is there.
    fn take(&mut self, id: OpId) -> Option<Result<(), FabricError>> {
        let op = self.get(id)?;
        if !matches!(op.state, State::Done(_)) {
            return None;
        }
        let State::Done(result) = std::mem::take(&mut op.state) else {
            unreachable!("just matched")
        };
        self.free.push(id.index() as u8);
        Some(result)
    }

    fn sleep(&mut self, id: OpId, sleeper: usize) {
        if let Some(op) = self.get(id) {
            op.sleeper = Some(sleeper);
        }
    }

    /// The caller has gone; nothing of its memory is known any more.
    pub(crate) fn abandon(&mut self, id: OpId) {
        let Some(op) = self.get(id) else { return };
        op.destinations.clear();
        op.sleeper = None;
        match op.state {
            State::Pending => op.state = State::Abandoned,
            State::Done(_) => {
                op.state = State::Free;
                self.free.push(id.index() as u8);
            }
            State::Free | State::Abandoned => {}
        }
    }

    fn fail_all(&mut self, error: &FabricError) {
        for (index, op) in self.table.iter_mut().enumerate() {
            op.destinations.clear();
            match op.state {
                State::Pending => op.state = State::Done(Err(error.clone())),
                State::Abandoned => {
                    op.state = State::Free;
                    self.free.push(index as u8);
                }
                State::Free | State::Done(_) => {}
            }
        }
        self.outstanding = 0;
        self.reading = 0;
    }
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
    pub(crate) hub: Arc<Hub>,
    pub(crate) ops: RefCell<Ops>,
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
            hub: Arc::new(Hub::default()),
            ops: RefCell::default(),
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
        self.hub.wake_all();
        true
    }

    pub(crate) fn complete(&self, op: OpId, result: Result<(), FabricError>) -> Result<(), NotOurs> {
        let sleeper = self.ops.borrow_mut().complete(op, result)?;
        if let Some(sleeper) = sleeper {
            self.hub.wake(sleeper);
        }
        self.hub.wake_for_room();
        Ok(())
    }

    pub(crate) fn take(&self, op: OpId) -> Option<Result<(), FabricError>> {
        self.ops.borrow_mut().take(op)
    }

    pub(crate) fn sleep(&self, op: OpId, sleeper: usize) {
        self.ops.borrow_mut().sleep(op, sleeper);
    }

    /// False while so many events wait that no more should be received.
    pub(crate) fn has_room_for_events(&self) -> bool {
        self.events.borrow().len() < MAX_EVENTS && self.event_bytes.get() < MAX_EVENT_BYTES
    }

    pub(crate) fn push_event(&self, event: Event) {
        if let Event::Message(bytes) = &event {
            self.event_bytes.set(self.event_bytes.get() + bytes.len());
        }
        self.events.borrow_mut().push_back(event);
        self.hub.wake_for_event();
    }

    pub(crate) fn pop_event(&self) -> Option<Event> {
        let was_full = !self.has_room_for_events();
        let event = self.events.borrow_mut().pop_front()?;
        if let Event::Message(bytes) = &event {
            self.event_bytes.set(self.event_bytes.get() - bytes.len());
        }
        if was_full {
            // Reading stopped; somebody must look again.
            self.hub.disarm();
            self.hub.wake_one();
        }
        Some(event)
    }

    pub(crate) fn for_each_event(&self, what: impl FnMut(&Event)) {
        self.events.borrow().iter().for_each(what);
    }

    pub(crate) fn any_event(&self) -> bool {
        !self.events.borrow().is_empty()
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
