//! The network: hosts, delays, faults, and the task that delivers messages.

use super::end::{End, Message};
use crate::handshake::Failure;
use crate::provider::Provider;
use crate::{Address, FabricError, Identity, MemoryRegions, Role};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Delay of a message unless set otherwise.
const DELAY: RangeInclusive<Duration> = Duration::from_micros(20)..=Duration::from_micros(2_000);

/// A connection across a partition is lost after this time, as TCP would give it up.
const LOST_AFTER: Duration = Duration::from_secs(15);

/// Between two attempts to connect across a partition.
const RETRY: Duration = Duration::from_millis(20);

thread_local! {
    static ENTERED: RefCell<Vec<Network>> = const { RefCell::new(Vec::new()) };
}

/// A simulated network. Cheap to clone; clones are the same network.
#[derive(Clone)]
pub struct Network {
    inner: Rc<Inner>,
}

/// While it lives, `sim://` addresses on this thread belong to its network.
#[must_use = "the network is left when this is dropped"]
pub struct Entered {
    _not_send: std::marker::PhantomData<Rc<()>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.with_borrow_mut(Vec::pop);
    }
}

type Pair = (Rc<str>, Rc<str>);

struct Host {
    listener: Weak<Inbox>,
    is_cut_off: bool,
}

/// Peers that have connected and were not accepted yet.
struct Inbox {
    me: Identity,
    regions: Arc<MemoryRegions>,
    peers: RefCell<VecDeque<Rc<End>>>,
    arrived: Notify,
}

/// A message on its way.
struct Flight {
    pair: Pair,
    to: Weak<End>,
    message: Message,
}

struct State {
    seed: u64,
    random: u64,
    delay: RangeInclusive<Duration>,
    delays: BTreeMap<Pair, RangeInclusive<Duration>>,
    hosts: BTreeMap<Rc<str>, Host>,
    /// Hosts of processes, by their memory regions (kept, so that an address means the same process for ever).
    places: Vec<(Arc<MemoryRegions>, Rc<str>)>,
    clients: usize,
    /// Blocked directions, and when they were blocked (counted, and by the clock).
    blocked: BTreeMap<Pair, (u64, Instant)>,
    blocks: u64,
    /// When connections across a block are given up.
    expiries: BTreeSet<(Instant, u64, Pair)>,
    /// By time of arrival and order of sending.
    flights: BTreeMap<(Instant, u64), Flight>,
    /// Held back by a block.
    held: BTreeMap<Pair, VecDeque<Flight>>,
    sent: u64,
    delivered: u64,
    ends: Vec<Weak<End>>,
}

struct Inner {
    state: RefCell<State>,
    /// Something is to be delivered earlier than the task knows.
    changed: Notify,
    has_task: Cell<bool>,
}

impl Network {
    /// A network without faults whose delays are drawn from `seed`.
    pub fn new(seed: u64) -> Network {
        let state = State {
            seed,
            random: seed,
            delay: DELAY,
            delays: BTreeMap::new(),
            hosts: BTreeMap::new(),
            places: Vec::new(),
            clients: 0,
            blocked: BTreeMap::new(),
            blocks: 0,
            expiries: BTreeSet::new(),
            flights: BTreeMap::new(),
            held: BTreeMap::new(),
            sent: 0,
            delivered: 0,
            ends: Vec::new(),
        };
        Network {
            inner: Rc::new(Inner {
                state: RefCell::new(state),
                changed: Notify::new(),
                has_task: Cell::new(false),
            }),
        }
    }

    /// Makes `sim://` addresses on this thread belong to this network until the guard is dropped.
    pub fn enter(&self) -> Entered {
        ENTERED.with_borrow_mut(|entered| entered.push(self.clone()));
        Entered {
            _not_send: std::marker::PhantomData,
        }
    }

    /// The seed it was made from.
    pub fn seed(&self) -> u64 {
        self.inner.state.borrow().seed
    }

    /// Messages delivered so far.
    pub fn delivered(&self) -> u64 {
        self.inner.state.borrow().delivered
    }

    /// Names the host of the process with these memory regions.
    pub fn place(&self, regions: &Arc<MemoryRegions>, host: &str) {
        let mut state = self.inner.state.borrow_mut();
        let host = state.host(host);
        state.places.retain(|(of, _)| !Arc::ptr_eq(of, regions));
        state.places.push((regions.clone(), host));
    }

    /// Delays of messages between hosts for which nothing else is set.
    pub fn set_delay(&self, delay: RangeInclusive<Duration>) {
        self.inner.state.borrow_mut().delay = delay;
    }

    /// Delays of messages from one host to another.
    pub fn set_delay_between(&self, from: &str, to: &str, delay: RangeInclusive<Duration>) {
        let mut state = self.inner.state.borrow_mut();
        let pair = state.pair(from, to);
        state.delays.insert(pair, delay);
    }

    /// Blocks both directions between two hosts: messages are held back until it is healed; connections that stay blocked
    /// for 15 s are lost.
    pub fn partition(&self, a: &str, b: &str) {
        self.partition_one_way(a, b);
        self.partition_one_way(b, a);
    }

    /// Blocks one direction.
    pub fn partition_one_way(&self, from: &str, to: &str) {
        let mut state = self.inner.state.borrow_mut();
        let pair = state.pair(from, to);
        if state.blocked.contains_key(&pair) {
            return;
        }
        state.blocks += 1;
        let block = state.blocks;
        state.blocked.insert(pair.clone(), (block, Instant::now()));
        let crossing: Vec<_> = state
            .flights
            .iter()
            .filter(|(_, f)| f.pair == pair)
            .map(|(at, _)| *at)
            .collect();
        for at in crossing {
            let flight = state.flights.remove(&at).expect("just seen");
            state.held.entry(pair.clone()).or_default().push_back(flight);
        }
        state.expiries.insert((Instant::now() + LOST_AFTER, block, pair));
        drop(state);
        self.kick();
    }

    /// Ends a partition in both directions; what was held back arrives, though not at once: TCP sends what was not acknowledged
    /// again after pauses that grow with the outage, each connection for itself, whether or not its sender has closed it. New
    /// connections do not wait for that.
    pub fn heal(&self, a: &str, b: &str) {
        for (from, to) in [(a, b), (b, a)] {
            let mut state = self.inner.state.borrow_mut();
            let pair = state.pair(from, to);
            state.unblock(&pair);
        }
        self.kick();
    }

    /// Ends all partitions.
    pub fn heal_all(&self) {
        let mut state = self.inner.state.borrow_mut();
        for pair in state.blocked.keys().cloned().collect::<Vec<_>>() {
            state.unblock(&pair);
        }
        drop(state);
        self.kick();
    }

    /// Cuts a host off: all its connections are lost at both ends, new ones fail. Of the messages under way in each
    /// direction some (drawn from the seed, the earliest ones) still arrive.
    pub fn disconnect(&self, host: &str) {
        let (arriving, ends) = {
            let mut state = self.inner.state.borrow_mut();
            let host = state.host(host);
            state.hosts.get_mut(&host).expect("just entered").is_cut_off = true;
            let touches = |pair: &Pair| pair.0 == host || pair.1 == host;
            state.held.retain(|pair, _| !touches(pair));
            let mut under_way: BTreeMap<Pair, Vec<(Instant, u64)>> = BTreeMap::new();
            for (at, flight) in &state.flights {
                if touches(&flight.pair) {
                    under_way.entry(flight.pair.clone()).or_default().push(*at);
                }
            }
            let mut arriving = BTreeMap::new();
            for keys in under_way.into_values() {
                let kept = state.random(keys.len() as u64 + 1) as usize;
                for (index, at) in keys.into_iter().enumerate() {
                    let flight = state.flights.remove(&at).expect("just seen");
                    if index < kept {
                        arriving.insert(at, flight);
                    }
                }
            }
            let ends: Vec<Rc<End>> = state.ends.iter().filter_map(Weak::upgrade).collect();
            (
                arriving,
                ends.into_iter()
                    .filter(|end| *end.host == *host || *end.peer_host == *host)
                    .collect::<Vec<_>>(),
            )
        };
        for flight in arriving.into_values() {
            self.arrive(flight);
        }
        for end in ends {
            end.lose("host is cut off");
        }
    }

    /// The host can be reached again; its connections have to be made anew.
    pub fn reconnect(&self, host: &str) {
        let mut state = self.inner.state.borrow_mut();
        let host = state.host(host);
        state.hosts.get_mut(&host).expect("just entered").is_cut_off = false;
    }

    pub(super) fn send(&self, from: &Rc<str>, to: &Rc<str>, end: Weak<End>, message: Message) {
        let mut state = self.inner.state.borrow_mut();
        let pair = (from.clone(), to.clone());
        let flight = Flight {
            pair: pair.clone(),
            to: end,
            message,
        };
        if state.blocked.contains_key(&pair) {
            state.held.entry(pair).or_default().push_back(flight);
        } else {
            state.dispatch(flight, Duration::ZERO);
        }
        drop(state);
        self.kick();
    }

    fn arrive(&self, flight: Flight) {
        let mut state = self.inner.state.borrow_mut();
        state.delivered += 1;
        debug_assert!(state.delivered <= state.sent, "what is delivered was sent");
        drop(state);
        if let Some(end) = flight.to.upgrade() {
            end.receive(flight.message);
        }
    }

    /// Tells the task that delivers messages that there is something new.
    fn kick(&self) {
        self.inner.changed.notify_one();
    }

    /// Makes sure that the task that delivers messages runs; if it does not, on the current `LocalSet`. Nothing is delivered
    /// any more once that is gone, until the next connection is made.
    pub fn deliver_here(&self) {
        struct Running(Rc<Inner>);
        impl Drop for Running {
            fn drop(&mut self) {
                self.0.has_task.set(false);
            }
        }
        if self.inner.has_task.replace(true) {
            return;
        }
        let running = Running(self.inner.clone());
        tokio::task::spawn_local(async move {
            let network = Network {
                inner: running.0.clone(),
            };
            loop {
                let changed = network.inner.changed.notified();
                match network.deliver_due() {
                    Some(at) => drop(tokio::time::timeout_at(at, changed).await),
                    None => changed.await,
                }
            }
        });
    }

    /// Delivers what is due; returns when the next message is.
    fn deliver_due(&self) -> Option<Instant> {
        loop {
            let now = Instant::now();
            let mut state = self.inner.state.borrow_mut();
            let expiry = state.expiries.first().map(|(at, ..)| *at);
            let flight = state.flights.first_key_value().map(|((at, _), _)| *at);
            let next = expiry.into_iter().chain(flight).min()?;
            if next > now {
                return Some(next);
            }
            if flight == Some(next) {
                let ((due, _), flight) = state.flights.pop_first().expect("just seen");
                assert!(due <= now, "nothing arrives before its time");
                drop(state);
                self.arrive(flight);
            } else {
                let (_, block, pair) = state.expiries.pop_first().expect("just seen");
                if state.blocked.get(&pair).is_some_and(|(of, _)| *of == block) {
                    state.held.remove(&pair);
                    let ends: Vec<Rc<End>> = state.ends.iter().filter_map(Weak::upgrade).collect();
                    drop(state);
                    for end in ends {
                        let crosses = |from: &Rc<str>, to: &Rc<str>| *from == pair.0 && *to == pair.1;
                        if crosses(&end.host, &end.peer_host) || crosses(&end.peer_host, &end.host) {
                            end.lose("no acknowledgement from the peer's host");
                        }
                    }
                }
            }
        }
    }
}

impl State {
    /// A number below `below` (SplitMix64).
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    fn host(&mut self, name: &str) -> Rc<str> {
        if let Some((name, _)) = self.hosts.get_key_value(name) {
            return name.clone();
        }
        let name: Rc<str> = name.into();
        self.hosts.insert(
            name.clone(),
            Host {
                listener: Weak::new(),
                is_cut_off: false,
            },
        );
        name
    }

    fn pair(&mut self, from: &str, to: &str) -> Pair {
        (self.host(from), self.host(to))
    }

    fn host_of(&mut self, regions: &Arc<MemoryRegions>) -> Rc<str> {
        if let Some((_, host)) = self.places.iter().find(|(of, _)| Arc::ptr_eq(of, regions)) {
            return host.clone();
        }
        self.clients += 1;
        let host = self.host(&format!("client-{}", self.clients));
        self.places.push((regions.clone(), host.clone()));
        host
    }

    fn delay(&mut self, pair: &Pair) -> Duration {
        let range = self.delays.get(pair).unwrap_or(&self.delay).clone();
        let width = range.end().saturating_sub(*range.start()).as_nanos() as u64;
        *range.start() + Duration::from_nanos(self.random(width + 1))
    }

    /// Sends a message on its way, `after` a pause. It overtakes those of other connections, none of its own.
    fn dispatch(&mut self, flight: Flight, after: Duration) {
        let Some(end) = flight.to.upgrade() else { return };
        let earliest = Instant::now() + after + self.delay(&flight.pair);
        let arrives = end.latest.get().map_or(earliest, |latest| latest.max(earliest));
        debug_assert!(arrives >= Instant::now() && end.latest.get().is_none_or(|latest| latest <= arrives));
        debug_assert!(!self.blocked.contains_key(&flight.pair), "what is blocked is held back");
        end.latest.set(Some(arrives));
        self.sent += 1;
        let before = self.flights.insert((arrives, self.sent), flight);
        assert!(before.is_none(), "each message has a number");
    }

    fn unblock(&mut self, pair: &Pair) {
        let Some((_, since)) = self.blocked.remove(pair) else {
            return;
        };
        let longest = since.elapsed().min(LOST_AFTER).as_nanos() as u64;
        let mut pauses: Vec<(Weak<End>, Duration)> = Vec::new();
        for flight in self.held.remove(pair).unwrap_or_default() {
            let known = pauses.iter().find(|(end, _)| end.ptr_eq(&flight.to));
            let pause = match known {
                Some((_, pause)) => *pause,
                None => {
                    let pause = Duration::from_nanos(self.random(longest + 1));
                    pauses.push((flight.to.clone(), pause));
                    pause
                }
            };
            self.dispatch(flight, pause);
        }
    }
}

fn current(addr: &str) -> Result<Network, FabricError> {
    ENTERED
        .with_borrow(|entered| entered.last().cloned())
        .ok_or_else(|| FabricError::Address {
            addr: Address::Sim(addr.to_owned()).to_string(),
            why: "no simulated network was entered on this thread".into(),
        })
}

/// Connects to a simulated host; the caller bounds the time.
pub(crate) async fn connect(
    name: &str,
    me: &Identity,
    regions: &Arc<MemoryRegions>,
) -> Result<Rc<dyn Provider>, FabricError> {
    let network = current(name)?;
    network.deliver_here();
    let peer = Address::Sim(name.to_owned()).to_string();
    let failed = |why: &str| FabricError::Connect {
        peer: peer.clone(),
        why: why.to_owned(),
    };
    // There and back.
    for there in [true, false] {
        let delay = {
            let mut state = network.inner.state.borrow_mut();
            let (ours, theirs) = (state.host_of(regions), state.host(name));
            let pair = if there { (ours, theirs) } else { (theirs, ours) };
            state.delay(&pair)
        };
        tokio::time::sleep(delay).await;
    }
    loop {
        let (is_blocked, is_cut_off) = {
            let mut state = network.inner.state.borrow_mut();
            let (ours, theirs) = (state.host_of(regions), state.host(name));
            let is_blocked = [(ours.clone(), theirs.clone()), (theirs.clone(), ours.clone())]
                .iter()
                .any(|pair| state.blocked.contains_key(pair));
            (
                is_blocked,
                state.hosts[&ours].is_cut_off || state.hosts[&theirs].is_cut_off,
            )
        };
        if is_cut_off {
            return Err(failed("no route to host"));
        }
        if !is_blocked {
            break;
        }
        tokio::time::sleep(RETRY).await;
    }
    let mut state = network.inner.state.borrow_mut();
    let (ours, theirs) = (state.host_of(regions), state.host(name));
    let inbox = state.hosts[&theirs]
        .listener
        .upgrade()
        .ok_or_else(|| failed("connection refused"))?;
    let refused = |failure: Failure| {
        tracing::warn!(listener = %peer, from = %ours, why = %failure, "peer refused");
        FabricError::Refused {
            peer: peer.clone(),
            why: failure.to_string(),
        }
    };
    if inbox.me.cluster != me.cluster {
        return Err(refused(Failure::Cluster));
    }
    if inbox.me.secret != me.secret {
        return Err(refused(Failure::Secret));
    }
    let here = End::new(&network, &ours, &theirs, inbox.me.role.clone(), regions);
    let there = End::new(&network, &theirs, &ours, me.role.clone(), &inbox.regions);
    End::join(&here, &there);
    state.ends.retain(|end| end.strong_count() > 0);
    state.ends.push(Rc::downgrade(&here));
    state.ends.push(Rc::downgrade(&there));
    drop(state);
    inbox.peers.borrow_mut().push_back(there);
    inbox.arrived.notify_one();
    Ok(here)
}

/// A simulated host's listener.
pub(crate) struct SimListening {
    name: String,
    inbox: Rc<Inbox>,
}

impl SimListening {
    pub(crate) fn bind(name: &str, me: &Identity, regions: &Arc<MemoryRegions>) -> Result<SimListening, FabricError> {
        let network = current(name)?;
        network.deliver_here();
        network.place(regions, name);
        let mut state = network.inner.state.borrow_mut();
        let host = state.hosts.get_mut(name).expect("just placed");
        if host.listener.strong_count() > 0 {
            let addr = Address::Sim(name.to_owned()).to_string();
            return Err(FabricError::Address {
                addr,
                why: "already in use".into(),
            });
        }
        let inbox = Rc::new(Inbox {
            me: me.clone(),
            regions: regions.clone(),
            peers: RefCell::default(),
            arrived: Notify::new(),
        });
        host.listener = Rc::downgrade(&inbox);
        Ok(SimListening {
            name: name.to_owned(),
            inbox,
        })
    }

    pub(crate) fn local_addr(&self) -> Address {
        Address::Sim(self.name.clone())
    }

    pub(crate) async fn accept(&mut self) -> Arrived {
        loop {
            if let Some(peer) = self.inbox.peers.borrow_mut().pop_front() {
                return Arrived::new(peer);
            }
            self.inbox.arrived.notified().await;
        }
    }
}

thread_local! {
    /// Peers that were accepted and are served by nobody yet, by their numbers.
    static ARRIVED: RefCell<BTreeMap<u64, Rc<End>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A peer that was accepted. As those of other networks it may go to another thread; there it would be found nowhere, but all
/// hosts of a simulation are on one.
pub(crate) struct Arrived {
    number: u64,
    role: Role,
}

impl Arrived {
    fn new(end: Rc<End>) -> Arrived {
        let role = end.shared.peer.clone();
        ARRIVED.with_borrow_mut(|arrived| {
            let number = arrived.last_key_value().map_or(0, |(last, _)| last + 1);
            arrived.insert(number, end);
            Arrived { number, role }
        })
    }

    pub(crate) fn role(&self) -> &Role {
        &self.role
    }

    pub(crate) fn provider(self) -> Rc<dyn Provider> {
        let end = ARRIVED.with_borrow_mut(|arrived| arrived.remove(&self.number));
        end.expect("a simulation is one thread")
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        ARRIVED.with_borrow_mut(|arrived| arrived.remove(&self.number));
    }
}
