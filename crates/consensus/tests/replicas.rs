//! A region's replicas with leases, writes and fail-overs, in all orders: time passes, beacons and records are late or lost, nodes
//! learn of changes late. The register is one here: `register.rs` is about it.
//!
//! Nobody who was answered loses anything, and no two nodes answer at a time. Each mistake that this is built to prevent is made
//! once, and found.

use polvo_consensus::lease::{Leases, Terms, Watch};
use polvo_consensus::replica_set::ReplicaSet;
use polvo_format::{Epoch, NodeId};
use stateright::{Checker, Model, Property};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Ticks.
const LEASE: u32 = 2;
const GRACE: u32 = 3;
/// Most changes of the set, and one.
const EPOCHS: u64 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// A mirror does not look at the beacon again when it has revoked its key.
    LooksBeforeItRevokes,
    /// The grace is over before the lease.
    ShortGrace,
    /// The primary answers without a lost mirror before the set is shrunk.
    AnswersBeforeItShrinks,
    /// The primary answers without leases.
    NoLease,
    /// A node is added as it is, before it has everything.
    AddedTooEarly,
}

struct Cluster {
    nodes: u16,
    mirrors: Vec<u16>,
    ticks: u32,
    writes: u8,
    mistake: Option<Mistake>,
}

/// What has been written: each write has a number.
type Log = Vec<u8>;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Node {
    /// the newest set that it knows
    set: ReplicaSet,
    log: Log,
    /// of the primary from which it has that
    log_epoch: Epoch,
    /// as a primary
    leases: Leases,
    /// as a primary: how much of its log others have
    mirrored: BTreeMap<NodeId, usize>,
    /// as a mirror
    watch: Watch,
    /// when it was posted
    beacon: u64,
    /// as a mirror: no beacon lands, and no record is taken
    revoked: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Record {
    to: NodeId,
    from: NodeId,
    epoch: Epoch,
    log: Log,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    now: u32,
    register: ReplicaSet,
    nodes: Vec<Node>,
    /// posted, by sender and receiver; the last one alone
    beacons: BTreeMap<(NodeId, NodeId), u32>,
    records: BTreeSet<Record>,
    written: u8,
    answered: Log,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Action {
    Tick,
    Write(NodeId),
    Answer(NodeId),
    Post(NodeId, NodeId),
    /// with or without the completion
    BeaconLands(NodeId, NodeId, bool),
    RecordLands(Record),
    Look(NodeId),
    Revoke(NodeId),
    TakeOver(NodeId),
    Drop(NodeId, NodeId),
    Add(NodeId, NodeId),
    Learn(NodeId),
}

fn at(ticks: u32) -> Duration {
    Duration::from_secs(ticks.into())
}

impl Cluster {
    fn terms(&self) -> Terms {
        Terms::new(at(LEASE), at(GRACE), 0).expect("the grace is longer")
    }

    /// Of a mirror.
    fn grace(&self) -> Terms {
        match self.mistake {
            Some(Mistake::ShortGrace) => Terms::new(at(0), at(1), 0).expect("the grace is longer"),
            _ => self.terms(),
        }
    }

    fn all(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes).map(NodeId)
    }

    /// Does it take itself for a primary that may answer?
    fn may_answer(&self, state: &State, id: NodeId) -> bool {
        let node = state.node(id);
        let mistake = matches!(self.mistake, Some(Mistake::NoLease | Mistake::AnswersBeforeItShrinks));
        node.set.primary() == id && (mistake || node.leases.may_answer(self.terms(), &node.set, at(state.now)))
    }

    /// Do all mirrors that count have its log?
    fn is_mirrored(&self, state: &State, id: NodeId) -> bool {
        let node = state.node(id);
        node.set.mirrors().all(|mirror| {
            let lost = self.mistake == Some(Mistake::AnswersBeforeItShrinks)
                && node
                    .leases
                    .lost(self.terms(), &node.set, at(state.now))
                    .any(|lost| lost == mirror);
            lost || node.mirrored.get(&mirror) == Some(&node.log.len())
        })
    }

    /// It sends what it has to all others: mirrors, and those who may become mirrors.
    fn send(&self, state: &mut State, id: NodeId) {
        let Node { set, log, .. } = state.node(id).clone();
        let record = |to| Record {
            to,
            from: id,
            epoch: set.epoch(),
            log: log.clone(),
        };
        state.records.extend(self.all().filter(|to| *to != id).map(record));
    }

    fn record_lands(&self, state: &mut State, record: &Record) {
        let to = state.node_mut(record.to);
        // a lane is of a primary and an epoch; what was sent earlier over it has landed earlier
        let is_open = record.epoch == to.set.epoch() && record.from == to.set.primary() && !to.revoked;
        let follows = record.epoch > to.log_epoch || record.log.len() >= to.log.len();
        if !is_open || !follows {
            return;
        }
        to.log = record.log.clone();
        to.log_epoch = record.epoch;
        let from = state.node_mut(record.from);
        if from.set.epoch() == record.epoch {
            from.mirrored.insert(record.to, record.log.len());
        }
    }

    fn learn(&self, state: &mut State, id: NodeId) {
        let (set, now) = (state.register.clone(), at(state.now));
        let node = state.node_mut(id);
        node.watch = Watch::begin(node.beacon, now);
        node.revoked = false;
        node.mirrored.clear();
        if set.primary() != id || node.set.primary() != id {
            node.leases = Leases::default();
        }
        node.set = set;
        if node.set.primary() == id {
            node.log_epoch = node.set.epoch();
            self.send(state, id);
        }
    }
}

impl State {
    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[usize::from(id.0)]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[usize::from(id.0)]
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let set = ReplicaSet::new(Epoch(1), NodeId(0), self.mirrors.iter().copied().map(NodeId));
        let node = Node {
            set: set.clone(),
            log: Vec::new(),
            log_epoch: Epoch(1),
            leases: Leases::default(),
            mirrored: BTreeMap::new(),
            watch: Watch::begin(0, at(0)),
            beacon: 0,
            revoked: false,
        };
        vec![State {
            now: 0,
            register: set,
            nodes: vec![node; usize::from(self.nodes)],
            beacons: BTreeMap::new(),
            records: BTreeSet::new(),
            written: 0,
            answered: Vec::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
        for id in self.all() {
            let node = state.node(id);
            if node.set != state.register {
                actions.push(Action::Learn(id));
            }
            if node.set.primary() == id {
                if state.written < self.writes && self.may_answer(state, id) {
                    actions.push(Action::Write(id));
                }
                if self.may_answer(state, id) && self.is_mirrored(state, id) {
                    actions.push(Action::Answer(id));
                }
                actions.extend(node.set.mirrors().map(|mirror| Action::Post(id, mirror)));
                let lost = node.leases.lost(self.terms(), &node.set, at(state.now));
                // a primary that has just begun has no lease yet, and gives others time
                actions.extend(
                    lost.filter(|_| state.now > LEASE)
                        .map(|mirror| Action::Drop(id, mirror)),
                );
                let others = self
                    .all()
                    .filter(|other| *other != id && !node.set.mirrors().any(|mirror| mirror == *other));
                let early = self.mistake == Some(Mistake::AddedTooEarly);
                let has_all = |other: &NodeId| early || node.mirrored.get(other) == Some(&node.log.len());
                actions.extend(others.filter(has_all).map(|other| Action::Add(id, other)));
            } else if node.set.mirrors().any(|mirror| mirror == id) {
                actions.push(Action::Look(id));
                if node.watch.is_over(self.grace(), at(state.now)) {
                    actions.push(if node.revoked {
                        Action::TakeOver(id)
                    } else {
                        Action::Revoke(id)
                    });
                }
            }
        }
        for (from, to) in state.beacons.keys() {
            actions.extend([true, false].map(|completed| Action::BeaconLands(*from, *to, completed)));
        }
        for record in &state.records {
            actions.push(Action::RecordLands(record.clone()));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let now = state.now;
        match action {
            Action::Tick => next.now += 1,
            Action::Write(id) => {
                next.written += 1;
                let written = next.written;
                next.node_mut(id).log.push(written);
                self.send(&mut next, id);
            }
            Action::Answer(id) => {
                let log = &state.node(id).log;
                if log.len() <= state.answered.len() && state.answered.starts_with(log) {
                    return None;
                }
                next.answered = log.clone();
            }
            Action::Post(from, to) => drop(next.beacons.insert((from, to), now)),
            Action::BeaconLands(from, to, completed) => {
                let posted = next.beacons.remove(&(from, to))?;
                let mirror = next.node_mut(to);
                // the key is the primary's of the set that the mirror knows
                if mirror.set.primary() == from && !mirror.revoked {
                    mirror.beacon = mirror.beacon.max(u64::from(posted) + 1);
                    if completed {
                        next.node_mut(from).leases.landed(to, at(posted));
                    }
                }
            }
            Action::RecordLands(record) => self.record_lands(&mut next, &record),
            Action::Look(id) => {
                let node = next.node_mut(id);
                if node.watch.look(node.beacon, at(now)) {
                    node.revoked = false;
                }
            }
            Action::Revoke(id) => {
                next.node_mut(id).revoked = true;
            }
            Action::TakeOver(id) => {
                let careless = self.mistake == Some(Mistake::LooksBeforeItRevokes);
                let node = next.node_mut(id);
                if !careless && node.watch.look(node.beacon, at(now)) {
                    node.revoked = false;
                    return Some(next);
                }
                if let Ok(set) = state.register.taken_over(state.node(id).set.epoch(), id) {
                    next.register = set;
                }
                self.learn(&mut next, id);
            }
            Action::Drop(id, mirror) => {
                if let Ok(set) = state.register.without_mirror(state.node(id).set.epoch(), id, mirror) {
                    next.register = set;
                }
                self.learn(&mut next, id);
            }
            Action::Add(id, other) => {
                if let Ok(set) = state.register.with_mirror(state.node(id).set.epoch(), id, other) {
                    next.register = set;
                }
                self.learn(&mut next, id);
            }
            Action::Learn(id) => self.learn(&mut next, id),
        }
        (next != *state).then_some(next)
    }

    /// A set may be changed for ever.
    fn within_boundary(&self, state: &State) -> bool {
        state.register.epoch().0 <= EPOCHS
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what was answered is kept", |_: &Cluster, state: &State| {
                let set = &state.register;
                let mut copies = set.mirrors().chain([set.primary()]);
                copies.all(|id| state.node(id).log.starts_with(&state.answered))
            }),
            Property::always("one answers", |cluster: &Cluster, state: &State| {
                cluster.all().filter(|id| cluster.may_answer(state, *id)).count() <= 1
            }),
            Property::sometimes("answered after a fail-over", |_: &Cluster, state: &State| {
                state.register.primary() != NodeId(0) && state.answered.len() > 1
            }),
        ]
    }
}

fn check(cluster: Cluster) -> (usize, Option<String>, bool) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = cluster.checker().threads(threads).spawn_bfs().join();
    let found = ["what was answered is kept", "one answers"].map(|name| checker.discovery(name));
    let found = found.into_iter().flatten().next();
    (
        checker.unique_state_count(),
        found.map(|path| format!("{:?}", path.into_actions())),
        checker.discovery("answered after a fail-over").is_some(),
    )
}

fn two(mirrors: &[u16], ticks: u32, mistake: Option<Mistake>) -> Cluster {
    Cluster {
        nodes: 2,
        mirrors: mirrors.to_vec(),
        ticks,
        writes: 2,
        mistake,
    }
}

fn passes(cluster: Cluster) {
    let started = std::time::Instant::now();
    let (states, found, goes_on) = check(cluster);
    println!("{states} states, {:.1} s", started.elapsed().as_secs_f64());
    assert_eq!(found, None);
    assert!(goes_on, "nobody is answered after a fail-over");
}

#[test]
fn two_nodes() {
    passes(two(&[1], 4, None));
}

#[test]
fn each_mistake_is_found() {
    use Mistake::*;
    let both = &[1][..];
    for (mistake, mirrors) in [
        (LooksBeforeItRevokes, both),
        (ShortGrace, both),
        (AnswersBeforeItShrinks, both),
        (NoLease, both),
        (AddedTooEarly, &[]),
    ] {
        let (states, found, _) = check(two(mirrors, 3, Some(mistake)));
        println!("{mistake:?}: {states} states: {found:?}");
        assert!(found.is_some(), "{mistake:?} is not found");
    }
}
