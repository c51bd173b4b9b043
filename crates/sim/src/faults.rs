//! What goes wrong while the clients work: drawn from the seed, made one after the other, undone at times of their own,
//! so that faults overlap.

use crate::actor::Shared;
use crate::rng::Rng;
use crate::schedule::{Fault, Home, USUAL_DELAY};
use crate::workload::Workload;
use polvo_cluster::{Links, MovedCopy};
use polvo_format::NodeId;
use polvo_node::sim::Cluster;
use polvo_proto::{Cred, FsError, RegionInfo, Replica, ReplicaRole, ask};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How often the faults poll whether the work is done.
const LOOK: Duration = Duration::from_millis(50);

/// How often a node is asked to hand a region over that is in the middle of something.
const HAND_OVERS_TRIED: u32 = 200;

/// What a fault has led to has come about when nothing has been wrong for so long.
const AFTERMATH: Duration = Duration::from_secs(10);

/// Nodes that others may not have heard of, by the faults of late: nobody takes the place of another one.
#[derive(Default)]
struct Suspects {
    nodes: BTreeSet<u16>,
    /// Something is wrong until then at least.
    until: Option<Instant>,
}

impl Suspects {
    fn wrong_until(&mut self, at: Instant) {
        self.until = self.until.max(Some(at));
    }

    fn forget_what_is_over(&mut self, now: Instant) {
        if self.until.is_none_or(|until| until + AFTERMATH < now) {
            self.nodes.clear();
        }
    }
}

/// The node of that host, if it is one's.
fn node_of(host: &str) -> Option<u16> {
    host.strip_prefix("node-")?.parse().ok()
}

/// What undoes a fault.
enum Remedy {
    Restart(u16),
    Revive(usize),
    Heal(String, String),
    Hasten(String),
    /// No remedy: the other half of a fault, a node that dies and starts again soon.
    Crash {
        node: u16,
        restart: Instant,
        fault: Fault,
    },
}

struct Faults<'a> {
    cluster: &'a mut Cluster,
    workload: &'a mut Workload,
    shared: Rc<Shared>,
    rng: Rng,
    /// Of cuts.
    cutting: Rng,
    /// Of mounts that stand still.
    stilling: Rng,
    /// Of faults that others take a node's place for.
    failing: Rng,
    /// Of regions that are handed over.
    handing: Rng,
    /// Of copies that are moved.
    moving: Rng,
    /// Who has nodes hand regions over, and copies made elsewhere.
    operator: Option<Rc<Links>>,
    under_way: JoinSet<()>,
    /// This node is to be lost for good, as soon as nothing else is wrong.
    to_lose: Option<u16>,
    remedies: Vec<(Instant, Remedy)>,
    suspects: Suspects,
}

/// Makes the faults of the schedule while the clients work, and ends when their work is done and everything is undone.
///
/// # Errors
/// A node that does not start again, and why.
pub async fn run(cluster: &mut Cluster, workload: &mut Workload, shared: &Rc<Shared>) -> Result<(), String> {
    let schedule = &shared.schedule;
    let mut faults = Faults {
        cluster,
        workload,
        shared: shared.clone(),
        rng: Rng::new(schedule.seed, 2),
        cutting: Rng::new(schedule.seed, 10),
        stilling: Rng::new(schedule.seed, 12),
        failing: Rng::new(schedule.seed, 17),
        handing: Rng::new(schedule.seed, 49),
        moving: Rng::new(schedule.seed, 51),
        operator: None,
        under_way: JoinSet::new(),
        to_lose: schedule.loses,
        remedies: Vec::new(),
        suspects: Suspects::default(),
    };
    if let Some(delay) = &schedule.delay {
        faults.cluster.network().set_delay(delay.clone());
        shared.count(Fault::Delays);
    }
    if schedule.drift.iter().any(|drift| *drift != 0) {
        shared.count(Fault::Drift);
    }
    // as long as the work takes, roughly
    let span_us = u64::from(schedule.operations) * (schedule.pause_us / 2 + 3_000);
    let mut turns = [
        (Kind::Any, schedule.faults),
        (Kind::CutOff, schedule.cuts),
        (Kind::StandStill, schedule.stills),
        (Kind::FailOver, schedule.failovers),
        (Kind::HandOver, schedule.hand_overs),
        (Kind::MoveCopy, schedule.moved_copies),
    ]
    .map(|(kind, left)| Turns {
        kind,
        left,
        next: later(faults.numbers(kind), span_us / 3),
    });
    loop {
        let now = Instant::now();
        faults.remedy(now).await?;
        faults.restart_deposed().await?;
        if !faults.remedies.is_empty() {
            faults.suspects.wrong_until(now);
        }
        faults.suspects.forget_what_is_over(now);
        shared.look_for_losses(faults.cluster);
        if faults.workload.is_done() {
            break;
        }
        for turns in &mut turns {
            if turns.left > 0 && now >= turns.next {
                turns.left -= 1;
                match turns.kind {
                    Kind::Any => faults.make().await,
                    Kind::CutOff => faults.cut_reader_off(),
                    Kind::StandStill => faults.mount_stands_still(),
                    Kind::FailOver => faults.fail_over().await,
                    Kind::HandOver => faults.hand_over(),
                    Kind::MoveCopy => faults.move_copy().await?,
                }
                turns.next = later(faults.numbers(turns.kind), span_us / 3);
            }
        }
        if let Some(node) = faults.to_lose {
            faults.lose(node).await;
        }
        let due = turns.iter().filter(|turns| turns.left > 0).map(|turns| turns.next);
        let remedies = faults.remedies.iter().map(|(at, _)| *at);
        let wake = due.chain(remedies).fold(now + LOOK, Instant::min);
        tokio::time::sleep_until(wake.max(now + Duration::from_micros(1))).await;
    }
    faults.heal().await
}

/// Kinds of faults that come about independently of each other, each by numbers of its own: what a seed draws of one stays what it was,
/// whatever becomes of the others.
#[derive(Clone, Copy)]
enum Kind {
    /// Of a node, the network or a client.
    Any,
    /// A client that reads by itself.
    CutOff,
    /// A mount.
    StandStill,
    /// Others take a node's place.
    FailOver,
    /// A region is handed over.
    HandOver,
    /// A region's copy is made elsewhere.
    MoveCopy,
}

/// When faults of a kind come about.
struct Turns {
    kind: Kind,
    left: u32,
    next: Instant,
}

fn later(rng: &mut Rng, at_most_us: u64) -> Instant {
    Instant::now() + Duration::from_micros(rng.below(at_most_us + 1))
}

fn after(rng: &mut Rng, low_ms: u64, high_ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(rng.between(low_ms, high_ms))
}

impl Faults<'_> {
    fn numbers(&mut self, kind: Kind) -> &mut Rng {
        match kind {
            Kind::Any => &mut self.rng,
            Kind::CutOff => &mut self.cutting,
            Kind::StandStill => &mut self.stilling,
            Kind::FailOver => &mut self.failing,
            Kind::HandOver => &mut self.handing,
            Kind::MoveCopy => &mut self.moving,
        }
    }

    fn note(&self, what: &str) {
        self.shared.history.note(&format!("*** {what}"));
    }

    /// How long a fault lasts: mostly short, now and then longer than a lease.
    fn duration(&mut self) -> Instant {
        let at_most_ms = match self.rng.below(10) {
            0..5 => 300,
            5..9 => 4_000,
            _ => 40_000,
        };
        later(&mut self.rng, at_most_ms * 1000)
    }

    fn host(&mut self) -> String {
        let nodes = u64::from(self.shared.schedule.nodes);
        let hosts = nodes + self.workload.members.len() as u64;
        match self.rng.below(hosts) {
            node if node < nodes => format!("node-{node}"),
            client => self.workload.members[(client - nodes) as usize].host(),
        }
    }

    fn other_than(&mut self, host: &str) -> Option<String> {
        (0..8).map(|_| self.host()).find(|other| other != host)
    }

    async fn make(&mut self) {
        let node = self.rng.below(u64::from(self.shared.schedule.nodes)) as u16;
        match self.rng.below(100) {
            0..15 => self.node_dies(node, false).await,
            15..30 => self.node_dies(node, true).await,
            30..40 => {
                let power = self.rng.percent(60);
                self.note("all nodes at once");
                self.shared.count(Fault::AllNodes);
                for node in 0..self.shared.schedule.nodes {
                    self.node_dies(node, power).await;
                }
            }
            40..54 => {
                let host = self.host();
                self.note(&format!("{host} loses its connections"));
                if !host.starts_with("node-") || self.is_up(&host) {
                    self.cluster.network().disconnect(&host);
                    self.cluster.network().reconnect(&host);
                    self.shared.count(Fault::LostConnections);
                }
            }
            54..66 => self.partition(false),
            66..76 => self.partition(true),
            76..86 => {
                let host = self.host();
                self.note(&format!("{host} is slow"));
                self.slow_down(&host);
                let until = self.duration();
                self.remedies.push((until, Remedy::Hasten(host)));
                self.shared.count(Fault::SlowHost);
            }
            _ => self.client_dies().await,
        }
    }

    fn is_up(&self, host: &str) -> bool {
        node_of(host).is_some_and(|node| self.cluster.is_running(node))
    }

    fn slow_down(&mut self, host: &str) {
        if node_of(host).is_some() {
            self.suspects.nodes.extend(0..self.shared.schedule.nodes);
        }
        self.set_delay(host, Duration::from_millis(5)..=Duration::from_millis(400));
    }

    fn set_delay(&self, host: &str, delay: std::ops::RangeInclusive<Duration>) {
        let nodes = (0..self.shared.schedule.nodes).map(|node| format!("node-{node}"));
        let clients = self.workload.members.iter().map(|member| member.host());
        for other in nodes.chain(clients) {
            self.cluster.network().set_delay_between(host, &other, delay.clone());
            self.cluster.network().set_delay_between(&other, host, delay.clone());
        }
    }

    fn usual_delay(&self) -> std::ops::RangeInclusive<Duration> {
        self.shared.schedule.delay.clone().unwrap_or(USUAL_DELAY)
    }

    fn partition(&mut self, one_way: bool) {
        let from = self.host();
        let Some(to) = self.other_than(&from) else { return };
        let until = self.duration();
        self.suspect_of(&from, &to);
        if one_way {
            self.note(&format!("{from} is not heard at {to}"));
            self.cluster.network().partition_one_way(&from, &to);
            self.shared.count(Fault::OneWayPartition);
        } else {
            self.note(&format!("{from} and {to} are cut off from each other"));
            self.cluster.network().partition(&from, &to);
            self.shared.count(Fault::Partition);
        }
        self.remedies.push((until, Remedy::Heal(from, to)));
    }

    /// Who is cut off from another node may not be heard of there; from a client, it is.
    fn suspect_of(&mut self, a: &str, b: &str) {
        if let (Some(a), Some(b)) = (node_of(a), node_of(b)) {
            self.suspects.nodes.extend([a, b]);
        }
    }

    /// A reader goes on believing what it knows by tokens, while others change it.
    fn cut_reader_off(&mut self) {
        let readers = self.workload.readers();
        let nodes = self.shared.schedule.nodes;
        if readers.is_empty() {
            return;
        }
        let host = self.workload.members[self.cutting.pick(&readers)].host();
        let node = self.cutting.below(u64::from(nodes)) as u16;
        if host == format!("node-{node}") || !self.cluster.is_running(node) {
            return;
        }
        self.note(&format!(
            "{host}, a reader, and node {node} are cut off from each other"
        ));
        let to = format!("node-{node}");
        self.suspect_of(&host, &to);
        self.cluster.network().partition(&host, &to);
        self.shared.count(Fault::ReaderCutOff);
        let until = after(&mut self.cutting, 2_500, 9_000);
        self.remedies.push((until, Remedy::Heal(host, to)));
        if self.cutting.percent(60) {
            let at = after(&mut self.cutting, 0, 400);
            let restart = at + Duration::from_millis(self.cutting.below(300));
            let fault = Fault::CrashBehindCut;
            self.remedies.push((at, Remedy::Crash { node, restart, fault }));
        }
    }

    fn mount_stands_still(&mut self) {
        let mounts = self.workload.mounts();
        if mounts.is_empty() {
            return;
        }
        let number = self.stilling.pick(&mounts);
        let until = after(&mut self.stilling, 50, 6_000);
        if self.workload.stand_still(number, until) {
            let host = self.workload.members[number].host();
            self.note(&format!("{host} stands still for {:?}", until - Instant::now()));
            self.shared.count(Fault::StandStill);
        }
    }

    /// Something for which others take the place of a node.
    async fn fail_over(&mut self) {
        let nodes = self.shared.schedule.nodes;
        if let Some(node) = self.shared.schedule.falls_silent {
            // nobody can take the place of one whose copies are not made yet, or find no room
            let until = Instant::now() + Duration::from_secs(5);
            while !self.cluster.is_mirrored() && Instant::now() < until {
                self.cluster.sleep(Duration::from_millis(20)).await;
            }
            if self.cluster.is_mirrored() {
                self.fall_silent(node);
            }
            return;
        }
        let node = self.failing.below(u64::from(nodes)) as u16;
        match self.failing.below(100) {
            0..34 => self.node_stands_still(node),
            34..40 => self.fall_silent(node),
            40..65 => self.cut_off(node),
            65..73 => {
                self.note("no node hears another");
                self.shared.count(Fault::Apart);
                let until = self.outage();
                for a in 0..nodes {
                    for b in a + 1..nodes {
                        self.cut(a, b, until);
                    }
                }
            }
            73..88 => self.second_death(node).await,
            _ => self.to_lose = Some(node),
        }
    }

    /// One of the mirrors of a region is to serve it from now on, whatever else is wrong.
    fn hand_over(&mut self) {
        let Some(map) = self.cluster.newest_map() else { return };
        let is_mirror = |replica: &&Replica| replica.role == ReplicaRole::Mirror;
        let mirrors = |info: &RegionInfo| {
            info.replicas
                .iter()
                .filter(is_mirror)
                .map(|replica| replica.node)
                .collect()
        };
        let all = map.regions.iter().map(|info| (info, mirrors(info)));
        let all: Vec<(&RegionInfo, Vec<NodeId>)> = all
            .filter(|(_, mirrors): &(_, Vec<NodeId>)| !mirrors.is_empty())
            .collect();
        let Some((info, mirrors)) = (!all.is_empty()).then(|| &all[self.handing.below(all.len() as u64) as usize])
        else {
            return;
        };
        let (region, to) = (info.id, self.handing.pick(mirrors));
        let Some(from) = info.primary() else { return };
        self.note(&format!(
            "region {} is to go from node {} to node {}",
            region.0, from.0, to.0
        ));
        let operator = self.operator();
        let shared = self.shared.clone();
        self.under_way.spawn_local(async move {
            for _ in 0..HAND_OVERS_TRIED {
                match operator
                    .call_node(from, Cred::Kernel, ask::HandOver { region, to })
                    .await
                {
                    Ok(()) => {
                        shared
                            .history
                            .note(&format!("*** region {} has gone to node {}", region.0, to.0));
                        shared.count(Fault::HandOver);
                        return;
                    }
                    Err(FsError::Retry) => tokio::time::sleep(LOOK).await,
                    Err(_) => return,
                }
            }
        });
    }

    fn operator(&mut self) -> Rc<Links> {
        let operator = self.operator.get_or_insert_with(|| self.cluster.client("operator"));
        operator.clone()
    }

    /// Another node is to have a copy in the stead of one that has it, whatever else is wrong; the cluster grows first, if it is to.
    async fn move_copy(&mut self) -> Result<(), String> {
        if self.shared.schedule.grows && self.cluster.nodes() == self.shared.schedule.nodes {
            self.add_node().await?;
        }
        let Some(map) = self.cluster.newest_map() else {
            return Ok(());
        };
        let is_copy = |replica: &&Replica| replica.role != ReplicaRole::Primary;
        let mut all: Vec<MovedCopy> = Vec::new();
        for info in &map.regions {
            let without = map
                .nodes
                .iter()
                .map(|node| node.id)
                .filter(|node| info.role(*node).is_none());
            let copies = info.replicas.iter().filter(is_copy).map(|replica| replica.node);
            all.extend(without.flat_map(|to| {
                let region = info.id;
                copies.clone().map(move |from| MovedCopy {
                    region,
                    from: Some(from),
                    to,
                })
            }));
        }
        if all.is_empty() {
            return Ok(());
        }
        let MovedCopy { region, from, to } = self.moving.pick(&all);
        self.note(&format!(
            "a copy of region {} is to go from {from:?} to node {}",
            region.0, to.0
        ));
        let (operator, shared) = (self.operator(), self.shared.clone());
        let others: Vec<NodeId> = map.nodes.iter().map(|node| node.id).collect();
        self.under_way.spawn_local(async move {
            for _ in 0..HAND_OVERS_TRIED {
                let Some(primary) = operator.context().map().get().primary(region) else {
                    return;
                };
                match operator
                    .call_node(primary, Cred::Kernel, ask::MoveCopy { region, from, to })
                    .await
                {
                    Ok(()) => {
                        let said = format!("*** the copy of region {} is at node {}", region.0, to.0);
                        shared.history.note(&said);
                        shared.count(Fault::MoveCopy);
                        return;
                    }
                    // the copy is being made; or others serve the region, and some node knows who
                    Err(FsError::Retry) => {}
                    Err(FsError::WrongEpoch | FsError::Unreachable { .. }) => {
                        for other in &others {
                            if let Ok(map) = operator.call_node_at_once(*other, Cred::Kernel, ask::Map).await {
                                operator.context().map().offer(map);
                            }
                        }
                    }
                    Err(_) => return,
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        Ok(())
    }

    /// A node comes, and is added: or the other way round.
    async fn add_node(&mut self) -> Result<(), String> {
        let operator = self.operator();
        let at = NodeId(self.moving.below(u64::from(self.shared.schedule.nodes)) as u16);
        let comes_first = self.moving.percent(30);
        let info = self.cluster.new_host();
        self.note(&format!(
            "node {} is to be added, by node {}; comes first: {comes_first}",
            info.id.0, at.0
        ));
        let node = info.id.0;
        if comes_first {
            self.restart_added(node).await?;
        }
        let added = operator
            .call_node_at_once(at, Cred::Kernel, ask::AddNode(Box::new(info)))
            .await;
        if !self.cluster.is_running(node) {
            self.restart_added(node).await?;
        }
        match added {
            Ok(_) => self.shared.count(Fault::NodeAdded),
            Err(error) => self.note(&format!("node {node} may not be added: {error}")),
        }
        Ok(())
    }

    async fn restart_added(&mut self, node: u16) -> Result<(), String> {
        let started = self.cluster.restart(node).await;
        started.map_err(|error| format!("node {node}, which is new, does not start: {error}"))
    }

    /// How long a node is away: mostly longer than it takes until others take its place.
    fn outage(&mut self) -> Instant {
        match self.failing.below(10) {
            0..2 => after(&mut self.failing, 50, 1_000),
            2..9 => after(&mut self.failing, 1_000, 6_000),
            _ => after(&mut self.failing, 6_000, 25_000),
        }
    }

    fn node_stands_still(&mut self, node: u16) {
        if !self.cluster.is_running(node) {
            return;
        }
        let until = self.outage();
        self.note(&format!("node {node} stands still for {:?}", until - Instant::now()));
        self.suspects.nodes.insert(node);
        self.suspects.wrong_until(until);
        self.cluster.stand_still(node, until);
        self.workload.stand_still_with(node, until);
        self.shared.count(Fault::NodeStandsStill);
    }

    fn cut(&mut self, a: u16, b: u16, until: Instant) {
        let (a, b) = (format!("node-{a}"), format!("node-{b}"));
        self.suspect_of(&a, &b);
        self.cluster.network().partition(&a, &b);
        self.remedies.push((until, Remedy::Heal(a, b)));
    }

    /// A node and all others, while clients hear them all.
    fn cut_off(&mut self, node: u16) {
        let nodes = self.shared.schedule.nodes;
        let until = self.outage();
        let direction = self.failing.below(10);
        let how = match direction {
            0..6 => "and all others do not hear each other",
            6..8 => "hears no other",
            _ => "is heard by no other",
        };
        self.note(&format!("node {node} {how}"));
        self.shared.count(Fault::CutOff);
        for other in (0..nodes).filter(|other| *other != node) {
            let (us, them) = (format!("node-{node}"), format!("node-{other}"));
            self.suspect_of(&us, &them);
            match direction {
                0..6 => self.cluster.network().partition(&us, &them),
                6..8 => self.cluster.network().partition_one_way(&them, &us),
                _ => self.cluster.network().partition_one_way(&us, &them),
            }
            self.remedies.push((until, Remedy::Heal(us, them)));
        }
    }

    /// A node, for all other hosts. Connections stay as they are.
    fn fall_silent(&mut self, node: u16) {
        let until = match self.shared.schedule.falls_silent {
            // for longer than anybody is to wait for it
            Some(_) => after(&mut self.failing, 12_000, 25_000),
            None => self.outage(),
        };
        let silent = format!("node-{node}");
        self.note(&format!("node {node} falls silent"));
        self.shared.count(Fault::Silence);
        let others = (0..self.shared.schedule.nodes).filter(|other| *other != node);
        let others = others.map(|other| format!("node-{other}"));
        let remote = self
            .workload
            .members
            .iter()
            .filter(|member| member.home == Home::Remote);
        for other in others.chain(remote.map(|member| member.host())).collect::<Vec<_>>() {
            self.suspect_of(&silent, &other);
            self.cluster.network().partition(&silent, &other);
            self.remedies.push((until, Remedy::Heal(silent.clone(), other)));
        }
    }

    /// A node dies, and another one while its place is taken, or while it gets its copies again.
    async fn second_death(&mut self, node: u16) {
        let nodes = u64::from(self.shared.schedule.nodes);
        let other = (u64::from(node) + 1 + self.failing.below(nodes.max(2) - 1)) % nodes;
        let other = other as u16;
        if other == node || !self.cluster.is_running(node) {
            return;
        }
        let power = self.failing.percent(50);
        self.kill_node(node, power).await;
        let back = self.outage();
        self.remedies.push((back, Remedy::Restart(node)));
        let second = match self.failing.percent(60) {
            true => after(&mut self.failing, 1_200, 2_500),
            false => back + Duration::from_millis(self.failing.below(1_500)),
        };
        let crash = Remedy::Crash {
            node: other,
            restart: second + Duration::from_millis(self.failing.below(4_000)),
            fault: Fault::SecondDeath,
        };
        self.remedies.push((second, crash));
    }

    /// A node and its pool are gone for good: where nothing else is wrong, mirrors have all that it serves, and the others can decide so.
    async fn lose(&mut self, node: u16) {
        let nodes = self.shared.schedule.nodes;
        let others = || (0..nodes).filter(|other| *other != node);
        if self.shared.schedule.sets.iter().any(|set| set.replicas == 1) {
            self.to_lose = None; // it may have what nobody else has
            return;
        }
        if self.shared.lost.get().is_some() || !(0..nodes).all(|node| self.cluster.is_running(node)) {
            return;
        }
        if !self.remedies.is_empty() || !self.cluster.is_calm() {
            return;
        }
        let map = self.cluster.node(node).map();
        let survive = |id: NodeId| others().any(|other| NodeId(other) == id);
        if !map.voters.are_majority(survive) {
            return;
        }
        self.to_lose = None;
        self.shared.lost.set(Some(node));
        self.shared.count(Fault::Lost);
        self.kill_node(node, true).await;
        self.workload.give_up(node);
        self.note(&format!("node {node} is gone for good"));
    }

    async fn node_dies(&mut self, node: u16, power: bool) {
        if !self.cluster.is_running(node) {
            return;
        }
        self.kill_node(node, power).await;
        let until = self.duration();
        self.remedies.push((until, Remedy::Restart(node)));
    }

    async fn kill_node(&mut self, node: u16, power: bool) {
        self.suspects.nodes.insert(node);
        self.suspects.wrong_until(Instant::now());
        let colocated = self.workload.colocated(node);
        let corpses: Vec<_> = colocated
            .iter()
            .filter_map(|number| self.workload.kill(*number))
            .collect();
        if power {
            self.note(&format!("node {node} loses power"));
            let seed = self.rng.below(1 << 40);
            self.cluster.power_cut(node, seed).await;
            self.shared.count(Fault::PowerCut);
        } else {
            self.note(&format!("node {node} crashes"));
            self.cluster.crash(node).await;
            self.shared.count(Fault::Crash);
        }
        for corpse in corpses {
            corpse.gone().await;
        }
    }

    /// A node that ended since others have taken its place is started anew, as its machine would do.
    async fn restart_deposed(&mut self) -> Result<(), String> {
        while let Some(node) = self.cluster.deposed() {
            let colocated = self.workload.colocated(node);
            let corpses: Vec<_> = colocated
                .iter()
                .filter_map(|number| self.workload.kill(*number))
                .collect();
            match self.cluster.ended(node).await {
                Err(FsError::Deposed { region }) if self.suspects.nodes.contains(&node) => {
                    self.note(&format!("node {node} gives way in region {region}"));
                }
                Err(FsError::Deposed { region }) => {
                    return Err(format!(
                        "others have taken the place of node {node} in region {region}, and nothing kept them from hearing of it"
                    ));
                }
                other => return Err(format!("node {node} ended with {other:?}")),
            }
            for corpse in corpses {
                corpse.gone().await;
            }
            self.restart(node).await?;
        }
        Ok(())
    }

    async fn client_dies(&mut self) {
        let running = self.workload.running();
        let remote: Vec<usize> = running
            .into_iter()
            .filter(|number| self.workload.members[*number].home == Home::Remote)
            .collect();
        if remote.is_empty() {
            return;
        }
        let number = self.rng.pick(&remote);
        let Some(corpse) = self.workload.kill(number) else {
            return;
        };
        self.cluster.network().disconnect(corpse.host());
        corpse.gone().await;
        self.shared.count(Fault::ClientDeath);
        let until = self.duration();
        self.remedies.push((until, Remedy::Revive(number)));
    }

    async fn remedy(&mut self, now: Instant) -> Result<(), String> {
        while let Some(due) = self.remedies.iter().position(|(at, _)| *at <= now) {
            let (_, remedy) = self.remedies.remove(due);
            match remedy {
                Remedy::Restart(node) => self.restart(node).await?,
                Remedy::Crash { node, restart, fault } if self.cluster.is_running(node) => {
                    self.kill_node(node, false).await;
                    self.shared.count(fault);
                    self.remedies.push((restart, Remedy::Restart(node)));
                }
                Remedy::Crash { .. } => {}
                Remedy::Revive(number) => self.workload.begin(self.cluster, number),
                Remedy::Heal(a, b) => {
                    self.note(&format!("{a} and {b} hear each other again"));
                    self.cluster.network().heal(&a, &b);
                }
                Remedy::Hasten(host) => {
                    self.note(&format!("{host} is no longer slow"));
                    self.set_delay(&host, self.usual_delay());
                }
            }
        }
        Ok(())
    }

    async fn restart(&mut self, node: u16) -> Result<(), String> {
        self.note(&format!("node {node} starts again"));
        let restarted = self.cluster.restart(node).await;
        restarted.map_err(|error| format!("node {node} does not start again: {error}"))?;
        for number in 0..self.workload.members.len() {
            if self.workload.members[number].home == Home::Colocated(node) {
                self.workload.begin(self.cluster, number);
            }
        }
        Ok(())
    }

    /// Undoes all that is left.
    async fn heal(mut self) -> Result<(), String> {
        self.note("all faults end");
        self.cluster.network().heal_all();
        for (_, remedy) in std::mem::take(&mut self.remedies) {
            match remedy {
                Remedy::Restart(node) => self.restart(node).await?,
                Remedy::Hasten(host) => self.set_delay(&host, self.usual_delay()),
                Remedy::Revive(_) | Remedy::Heal(..) | Remedy::Crash { .. } => {}
            }
        }
        self.restart_deposed().await
    }
}
