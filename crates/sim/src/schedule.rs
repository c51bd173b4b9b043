//! Everything about a run, drawn from its seed.

use crate::plant::Plant;
use crate::rng::Rng;
use polvo_client::{AccessTimeRule, Thresholds, Transfers};
use polvo_cluster::Timeouts;
use polvo_node::sim::ClusterOptions;
use polvo_node::{OneSided, ScrubPace, Transactions};
use polvo_proto::{Durability, RegionSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Delays of messages, unless the schedule has others: the network's own.
pub const USUAL_DELAY: RangeInclusive<Duration> = Duration::from_micros(20)..=Duration::from_millis(2);

/// Where a client lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// On a host of its own.
    Remote,
    /// Colocated with a node; it dies with it.
    Colocated(u16),
}

/// What may go wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, strum::Display, strum::VariantArray)]
#[repr(usize)]
pub enum Fault {
    /// Messages of different connections take very different times, so that they overtake each other.
    #[strum(to_string = "delays")]
    Delays,
    /// One host's messages take long.
    #[strum(to_string = "slow hosts")]
    SlowHost,
    /// All connections of a host are lost.
    #[strum(to_string = "lost connections")]
    LostConnections,
    /// Two hosts cannot reach each other.
    #[strum(to_string = "partitions")]
    Partition,
    /// One host's messages do not reach another.
    #[strum(to_string = "one-way partitions")]
    OneWayPartition,
    /// A node dies and comes back.
    #[strum(to_string = "crashes")]
    Crash,
    /// A node's machine loses power.
    #[strum(to_string = "power cuts")]
    PowerCut,
    /// All nodes die, or lose power, at once.
    #[strum(to_string = "all nodes at once")]
    AllNodes,
    /// A client dies with all it has open, in hand and under way.
    #[strum(to_string = "client deaths")]
    ClientDeath,
    /// A pool has no room left.
    #[strum(to_string = "full pools")]
    FullPool,
    /// A reader and a node are cut off from each other for longer than the lease on tokens.
    #[strum(to_string = "readers cut off")]
    ReaderCutOff,
    /// The node is killed meanwhile, and started anew before that lease is over.
    #[strum(to_string = "crashes behind a cut")]
    CrashBehindCut,
    /// No task of a mount runs, while its kernel goes on.
    #[strum(to_string = "mounts that stand still")]
    StandStill,
    /// Nothing of a node's process runs for a while, then it goes on.
    #[strum(to_string = "nodes that stand still")]
    NodeStandsStill,
    /// A node and all others do not hear each other, or in one direction; clients hear all.
    #[strum(to_string = "nodes cut off")]
    CutOff,
    /// No node hears another.
    #[strum(to_string = "clusters in pieces")]
    Apart,
    /// Nobody hears a node any more, nor does it hear anybody.
    #[strum(to_string = "nodes that fall silent")]
    Silence,
    /// A node dies while another one takes a dead one's place, or makes copies again.
    #[strum(to_string = "second deaths")]
    SecondDeath,
    /// A node dies and never comes back, nor does its pool.
    #[strum(to_string = "nodes lost for good")]
    Lost,
    /// The copies of a node that is away are made at other nodes.
    #[strum(to_string = "nodes replaced")]
    Replaced,
    /// Nodes measure leases by clocks that run up to 1 % too fast or too slow.
    #[strum(to_string = "clocks that drift")]
    Drift,
    /// A region is handed over to one of its mirrors.
    #[strum(to_string = "regions handed over")]
    HandOver,
    /// A region's copy is made at another node, in the stead of one that has one.
    #[strum(to_string = "copies moved")]
    MoveCopy,
    /// A node is added to the cluster.
    #[strum(to_string = "nodes added")]
    NodeAdded,
}

impl Fault {
    /// It is made only where regions have mirrors.
    pub fn is_of_replicas(self) -> bool {
        matches!(
            self,
            Fault::NodeStandsStill
                | Fault::CutOff
                | Fault::Apart
                | Fault::Silence
                | Fault::SecondDeath
                | Fault::Lost
                | Fault::Replaced
                | Fault::Drift
                | Fault::HandOver
                | Fault::MoveCopy
                | Fault::NodeAdded
        )
    }
}

/// What is set from outside, to make a run smaller or to show that the simulator is not blind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Operations of each client.
    pub operations: Option<u32>,
    /// At most so many clients.
    pub clients: Option<usize>,
    /// At most so many faults.
    pub faults: Option<u32>,
    /// A misbehaviour put between the clients and the history.
    pub plant: Option<Plant>,
    /// How nodes carry out transactions.
    pub transactions: Transactions,
    /// Replicas of each region, as far as there are nodes.
    pub replicas: Option<u8>,
    /// When changes of regions with mirrors are answered.
    pub durability: Option<Durability>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The seed.
    pub seed: u64,
    /// What was set from outside.
    pub limits: Limits,
    /// Nodes.
    pub nodes: u16,
    /// Regions a node.
    pub regions_per_node: u16,
    /// Replicas of each region of the default set.
    pub replicas: u8,
    /// When changes of regions with mirrors are answered.
    pub durability: Durability,
    /// Further region sets, to which clients turn directories.
    pub sets: Vec<RegionSet>,
    /// Reactors a node.
    pub reactors: NonZeroUsize,
    /// Bytes of a pool.
    pub pool_bytes: u64,
    /// Pools are so small that they fill up.
    pub is_small: bool,
    /// Where the clients live.
    pub clients: Vec<Home>,
    /// Who moves the data of each remote client.
    pub transfers: Vec<Transfers>,
    /// To whom nodes give one-sided access to data.
    pub one_sided: OneSided,
    /// Pools have checksums of file data.
    pub checksums: bool,
    /// Whether nodes scrub meanwhile.
    pub scrub: Option<ScrubPace>,
    /// Which clients compare what they read with them.
    pub verifying: Vec<bool>,
    /// By which rule the reads of each client move access times; `None`: they do not.
    pub access_times: Vec<Option<AccessTimeRule>>,
    /// Which clients read files by way of their kernel's pages, if they are mounted: not where each read is to be seen.
    pub by_pages: Vec<bool>,
    /// Clients make and leave crowds of files, which fill more than a segment of inodes.
    pub is_crowded: bool,
    /// Clients take advisory locks.
    pub is_locking: bool,
    /// Clients make durable what was changed.
    pub is_syncing: bool,
    /// Pools are plain files, to which nothing is durable before that.
    pub needs_sync: bool,
    /// Which clients use tokens.
    pub tokens: Vec<bool>,
    /// Which clients only look, at few things again and again. They use tokens.
    pub readers: Vec<bool>,
    /// How often a reader is cut off from a node.
    pub cuts: u32,
    /// Which clients are mounted: a kernel keeps what they know by tokens.
    pub mounted: Vec<bool>,
    /// How often a mount stands still.
    pub stills: u32,
    /// Faults of nodes whose regions have copies elsewhere, which others may take the place of.
    pub failovers: u32,
    /// How often a region is to be handed over to one of its mirrors.
    pub hand_overs: u32,
    /// How often a region's copy is to be at another node.
    pub moved_copies: u32,
    /// A node is added before the first of them.
    pub grows: bool,
    /// All that goes wrong is that this node falls silent, once it has copies elsewhere: others take its place, and nobody waits for long.
    pub falls_silent: Option<u16>,
    /// Bytes that the lanes of mirrors take, if less than fit.
    pub lane_max: Option<u32>,
    /// Bytes of records that are kept for mirrors that are away, if less than there may be.
    pub backlog_max: Option<usize>,
    /// Slots of the redo log that nodes use, if not all.
    pub redo_slots: Option<usize>,
    /// When the copies of a node that is away are made elsewhere; `None`: never.
    pub replace_after: Option<Duration>,
    /// This node dies for good, and its copies are to be made elsewhere.
    pub loses: Option<u16>,
    /// By how many in a thousand the clock of each node runs too fast; none: all are right.
    pub drift: Vec<i32>,
    /// Operations of each client.
    pub operations: u32,
    /// Faults that are made while the clients work.
    pub faults: u32,
    /// Delays of messages; `None`: the network's own.
    pub delay: Option<RangeInclusive<Duration>>,
    /// Lease of a session.
    pub lease: Duration,
    /// Longest pause of a client between two operations, in microseconds.
    pub pause_us: u64,
    /// Most names in a directory.
    pub names: u8,
    /// Most bytes of a file that operations aim at.
    pub file_max: u64,
}

/// How clients and nodes move and check bytes. By numbers of its own, so that what else a seed draws stays what it was.
struct Data {
    one_sided: OneSided,
    transfers: Vec<Transfers>,
    checksums: bool,
    verifying: Vec<bool>,
    scrub: Option<ScrubPace>,
    access_times: Vec<Option<AccessTimeRule>>,
    by_pages: Vec<bool>,
}

impl Data {
    fn of(seed: u64, clients: usize) -> Data {
        let mut moving = Rng::new(seed, 4);
        let one_sided = match moving.percent(10) {
            true => OneSided::Nodes,
            false => OneSided::All,
        };
        let transfers = (0..clients).map(|_| transfers(&mut moving)).collect();
        let mut summing = Rng::new(seed, 5);
        let checksums = summing.percent(80);
        let verifying = (0..clients).map(|_| summing.percent(50)).collect();
        let scrub = summing.percent(30).then_some(ScrubPace {
            every: Duration::from_secs(1),
            rate: 1 << 20,
        });
        let mut reading = Rng::new(seed, 7);
        let access_times: Vec<_> = (0..clients).map(|_| access_times(&mut reading)).collect();
        let is_seen_each_time = |rule: &Option<AccessTimeRule>| rule.is_some_and(|rule| rule.strict);
        let by_pages = access_times.iter().map(|rule| !is_seen_each_time(rule)).collect();
        Data {
            one_sided,
            transfers,
            checksums,
            verifying,
            scrub,
            access_times,
            by_pages,
        }
    }
}

/// How many copies there are, and what becomes of who has them.
struct Copies {
    replicas: u8,
    durability: Durability,
    sets: Vec<RegionSet>,
    failovers: u32,
    replace_after: Option<Duration>,
    loses: Option<u16>,
    falls_silent: Option<u16>,
}

impl Copies {
    /// Draws them. `goes_wrong`: there are faults.
    fn of(seed: u64, nodes: u16, is_small: bool, goes_wrong: bool, limits: &Limits) -> Copies {
        let replicas = replicas(seed, nodes, is_small, limits);
        let (replace_after, loses) = replacing(seed, nodes, replicas, goes_wrong);
        let durability = durability(seed, limits);
        let own = RegionSet { replicas, durability };
        let sets = sets(seed, nodes, own, is_small, (replace_after, loses));
        let all: Vec<RegionSet> = sets.iter().copied().chain([own]).collect();
        Copies {
            replicas,
            durability,
            failovers: failovers(seed, replicas, goes_wrong),
            replace_after,
            loses,
            falls_silent: falls_silent(seed, nodes, &all, goes_wrong, loses),
            sets,
        }
    }
}

fn homes(rng: &mut Rng, clients: u64, nodes: u16) -> Vec<Home> {
    let home = |_| match rng.percent(35) {
        true => Home::Colocated(rng.below(u64::from(nodes)) as u16),
        false => Home::Remote,
    };
    (0..clients).map(home).collect()
}

/// Of a message, if it is another one than usual.
fn delay(rng: &mut Rng) -> Option<RangeInclusive<Duration>> {
    rng.percent(40).then(|| {
        let low = rng.between(1, 50);
        let high = rng.pick(&[100, 5_000, 60_000]);
        Duration::from_micros(low)..=Duration::from_micros(high)
    })
}

/// Of each client.
fn operations(rng: &mut Rng, alone: bool, limits: &Limits) -> u32 {
    match limits.operations {
        Some(operations) => operations,
        None if alone => 200,
        None if rng.percent(20) => rng.between(60, 150) as u32,
        None => rng.between(20, 50) as u32,
    }
}

/// Client-active two times of three; else server-directed, with sizes that let every way be taken.
fn transfers(rng: &mut Rng) -> Transfers {
    if rng.percent(66) {
        return Transfers::Client;
    }
    Transfers::Server(Thresholds {
        eager_write: rng.pick(&[0, 500, 4096]),
        eager_read: rng.pick(&[0, 500, 16_384]),
        pooled: rng.pick(&[0, 8192]),
    })
}

/// Of messages that are slow: a delay beyond this.
const SLOW: Duration = Duration::from_millis(5);
/// So many runs of a hundred have crowds of files.
const CROWDED: u64 = 4;
/// And so many have locks,
const LOCKING: u64 = 30;
/// and so many have something made durable.
const SYNCING: u64 = 25;

/// In a third of the runs regions have mirrors; in half as many where pools are to fill up, and in none where participants log
/// themselves.
fn replicas(seed: u64, nodes: u16, is_small: bool, limits: &Limits) -> u8 {
    let mut rng = Rng::new(seed, 14);
    let drawn = match rng.percent(34) {
        true => rng.between(2, 3) as u8,
        false => 1,
    };
    let is_short = is_small && Rng::new(seed, 18).percent(50);
    match is_short || limits.transactions == Transactions::TwoPhaseCommit {
        true => 1,
        false => limits
            .replicas
            .unwrap_or(drawn)
            .clamp(1, nodes.min(u16::from(RegionSet::REPLICAS_MAX)) as u8),
    }
}

/// In a quarter of the runs in which regions have mirrors these are not waited for.
fn durability(seed: u64, limits: &Limits) -> Durability {
    let drawn = match Rng::new(seed, 42).percent(25) {
        true => Durability::Async,
        false => Durability::Sync,
    };
    limits.durability.unwrap_or(drawn)
}

/// In a third of the runs in which regions have mirrors there are others that have more, or fewer, as far as no node is lost with the only
/// one.
fn sets(
    seed: u64,
    nodes: u16,
    default: RegionSet,
    is_small: bool,
    (replace_after, loses): (Option<Duration>, Option<u16>),
) -> Vec<RegionSet> {
    let mut rng = Rng::new(seed, 43);
    if default.replicas == 1 || is_small || !rng.percent(34) {
        return Vec::new();
    }
    // what a lost node had is to be made elsewhere
    let least = if loses.is_some() { 2 } else { 1 };
    let most = nodes - u16::from(replace_after.is_some());
    let others = (least..=3_u8.min(most as u8)).filter(|replicas| *replicas != default.replicas);
    let others: Vec<u8> = others.collect();
    match others.is_empty() {
        true => Vec::new(),
        false => vec![RegionSet {
            replicas: rng.pick(&others),
            ..default
        }],
    }
}

/// In three of four runs in which regions have mirrors and something is to go wrong.
fn failovers(seed: u64, replicas: u8, faults: bool) -> u32 {
    let mut rng = Rng::new(seed, 15);
    match replicas > 1 && faults && rng.percent(75) {
        true => rng.between(1, 4) as u32,
        false => 0,
    }
}

/// In half of the runs in which regions have mirrors.
fn hand_overs(seed: u64, replicas: u8, faults: bool) -> u32 {
    let mut rng = Rng::new(seed, 48);
    match replicas > 1 && faults && rng.percent(50) {
        true => rng.between(1, 6) as u32,
        false => 0,
    }
}

/// In half of the runs in which regions have mirrors: copies that move, and whether a node is added for them.
fn moved_copies(seed: u64, replicas: u8, faults: bool) -> (u32, bool) {
    let mut rng = Rng::new(seed, 50);
    match replicas > 1 && faults && rng.percent(50) {
        true => (rng.between(1, 6) as u32, rng.percent(67)),
        false => (0, false),
    }
}

/// A node, in some of the runs in which others can take the place of whichever node, and something is to go wrong.
fn falls_silent(seed: u64, nodes: u16, all: &[RegionSet], goes_wrong: bool, loses: Option<u16>) -> Option<u16> {
    let mut rng = Rng::new(seed, 43);
    let is_succeeded = nodes > 2 && all.iter().all(|set| set.replicas > 1);
    (goes_wrong && is_succeeded && loses.is_none() && rng.percent(60)).then(|| rng.below(u64::from(nodes)) as u16)
}

/// In half of the runs lanes are so small that they are full after some records, or after each.
fn lane_max(seed: u64) -> Option<u32> {
    let mut rng = Rng::new(seed, 16);
    rng.percent(50).then(|| rng.pick(&[0, 400, 3_000, 20_000]))
}

/// In a third of the runs a mirror that is away has soon missed so much that its copy is compared with the region.
fn backlog_max(seed: u64) -> Option<usize> {
    let mut rng = Rng::new(seed, 19);
    rng.percent(33).then(|| rng.pick(&[2_000, 20_000]))
}

/// In a third of the runs what is decided and not seen everywhere fills redo logs, at the nodes that decide it and at those that have copies
/// of their regions.
fn redo_slots(seed: u64) -> Option<usize> {
    let mut rng = Rng::new(seed, 47);
    rng.percent(33).then(|| rng.pick(&[4, 6, 12]))
}

/// In two of three runs in which there are nodes without a copy of a region, those that are away are soon replaced; and in half of
/// these, if something is to go wrong, one never comes back.
fn replacing(seed: u64, nodes: u16, replicas: u8, faults: bool) -> (Option<Duration>, Option<u16>) {
    let mut rng = Rng::new(seed, 42);
    if replicas < 2 || nodes <= u16::from(replicas) || !rng.percent(67) {
        return (None, None);
    }
    let after = Duration::from_millis(rng.pick(&[500, 2_000, 2_000, 6_000]));
    let loses = (faults && rng.percent(50)).then(|| rng.below(u64::from(nodes)) as u16);
    (Some(after), loses)
}

/// In two of three runs in which nodes fail for others to take their place: mostly as far apart as clocks may be.
fn drift(seed: u64, nodes: u16, failovers: u32) -> Vec<i32> {
    let mut rng = Rng::new(seed, 41);
    match failovers > 0 && rng.percent(67) {
        true => (0..nodes).map(|_| rng.pick(&[-10, -10, -3, 0, 3, 10, 10])).collect(),
        false => Vec::new(),
    }
}

/// Half of the clients keep access times, as mounts with `relatime` or `strictatime`, `nodiratime` or not.
fn access_times(rng: &mut Rng) -> Option<AccessTimeRule> {
    rng.percent(50).then(|| AccessTimeRule {
        of_directories: rng.percent(50),
        strict: rng.percent(50),
    })
}

/// Clients that believe what they know for a while, and what is done to them.
struct Believers {
    tokens: Vec<bool>,
    readers: Vec<bool>,
    cuts: u32,
    mounted: Vec<bool>,
    stills: u32,
}

impl Believers {
    /// Draws them. `faults`: any may be made.
    fn of(seed: u64, clients: usize, faults: bool) -> Believers {
        let mut watching = Rng::new(seed, 8);
        let drawn: Vec<bool> = (0..clients).map(|_| watching.percent(60)).collect();
        let mut looking = Rng::new(seed, 9);
        let readers = readers(&mut looking, clients);
        let cuts = match readers.contains(&true) && faults {
            true => looking.below(3) as u32,
            false => 0,
        };
        let tokens: Vec<bool> = drawn
            .iter()
            .zip(&readers)
            .map(|(uses, reads)| *uses || *reads)
            .collect();
        let mut mounting = Rng::new(seed, 11);
        let mounted: Vec<bool> = tokens.iter().map(|uses| mounting.percent(60) && *uses).collect();
        let stills = match mounted.contains(&true) && faults {
            true => mounting.below(3) as u32,
            false => 0,
        };
        Believers {
            tokens,
            readers,
            cuts,
            mounted,
            stills,
        }
    }
}

/// In half of the runs some of the clients are readers; the first one never is.
fn readers(rng: &mut Rng, clients: usize) -> Vec<bool> {
    let any = rng.percent(50);
    let mut readers: Vec<bool> = (0..clients).map(|_| any && rng.percent(50)).collect();
    readers[0] = false;
    readers
}

impl Schedule {
    /// Draws a run.
    pub fn of(seed: u64, limits: &Limits) -> Schedule {
        let mut rng = Rng::new(seed, 1);
        let alone = rng.percent(12);
        let nodes = rng.between(1, 4) as u16;
        let nodes = nodes.max(u16::from(limits.replicas.unwrap_or(1).min(4)));
        let is_small = rng.percent(12);
        let clients = if alone { 1 } else { rng.between(2, 5) };
        let homes = homes(&mut rng, clients, nodes);
        let quiet = rng.percent(if alone { 60 } else { 20 });
        let faults = if quiet { 0 } else { rng.between(1, 7) as u32 };
        let delay = delay(&mut rng);
        let operations = operations(&mut rng, alone, limits);
        let data = Data::of(seed, homes.len());
        let believers = Believers::of(seed, homes.len(), limits.faults != Some(0));
        let goes_wrong = faults > 0 && limits.faults != Some(0);
        let copies = Copies::of(seed, nodes, is_small, goes_wrong, limits);
        let (replicas, failovers, falls_silent) = (copies.replicas, copies.failovers, copies.falls_silent);
        let kept = limits.clients.unwrap_or(homes.len()).clamp(1, homes.len());
        // no power is lost there
        let needs_sync = falls_silent.is_some() && Rng::new(seed, 46).percent(50);
        // a copy out of the set that gets each record by itself, over such a network, is behind for as long as there are some
        let is_slow =
            lane_max(seed).is_some_and(|max| max < 3_000) && delay.as_ref().is_some_and(|delay| *delay.end() > SLOW);
        let goes_wrong_there = limits.faults != Some(0) && !is_slow;
        let (moved_copies, grows) = moved_copies(seed, replicas, goes_wrong_there);
        let unless_silent = |count: u32| if falls_silent.is_some() { 0 } else { count };
        Schedule {
            seed,
            limits: limits.clone(),
            nodes,
            regions_per_node: rng.between(1, 3) as u16,
            replicas,
            durability: copies.durability,
            sets: copies.sets,
            reactors: NonZeroUsize::new(Rng::new(seed, 13).between(1, 3) as usize).unwrap_or(NonZeroUsize::MIN),
            // a pool has others' regions, too
            pool_bytes: match (is_small, replicas) {
                (true, 1) => 8 << 20,
                (true, _) => 16 << 20,
                (false, _) => 32 << 20,
            },
            is_small,
            clients: homes[..kept].to_vec(),
            transfers: data.transfers,
            one_sided: data.one_sided,
            checksums: data.checksums,
            scrub: data.scrub,
            verifying: data.verifying,
            access_times: data.access_times,
            by_pages: data.by_pages,
            is_crowded: Rng::new(seed, 12).percent(CROWDED),
            is_locking: Rng::new(seed, 40).percent(LOCKING),
            is_syncing: needs_sync || Rng::new(seed, 45).percent(SYNCING),
            needs_sync,
            tokens: believers.tokens,
            readers: believers.readers,
            cuts: unless_silent(believers.cuts),
            mounted: believers.mounted,
            stills: unless_silent(believers.stills),
            failovers: if falls_silent.is_some() { 1 } else { failovers },
            hand_overs: unless_silent(hand_overs(seed, replicas, limits.faults != Some(0))),
            moved_copies: unless_silent(moved_copies),
            grows,
            falls_silent,
            lane_max: lane_max(seed).filter(|_| falls_silent.is_none()),
            backlog_max: backlog_max(seed),
            redo_slots: redo_slots(seed),
            replace_after: copies.replace_after,
            loses: copies.loses,
            drift: drift(seed, nodes, failovers),
            operations,
            faults: unless_silent(faults.min(limits.faults.unwrap_or(u32::MAX))),
            delay: delay.filter(|_| falls_silent.is_none()),
            lease: Duration::from_secs(rng.pick(&[6, 6, 30])),
            pause_us: rng.pick(&[1, 1_000, 20_000, 200_000]),
            names: rng.between(2, 5) as u8,
            file_max: rng.pick(&[600, 9_000, 40_000]),
        }
    }

    /// How long a message takes at most, where nothing goes wrong.
    pub fn longest_delay(&self) -> Duration {
        self.delay.as_ref().map_or(*USUAL_DELAY.end(), |delay| *delay.end())
    }

    /// The cluster that it wants.
    pub fn cluster(&self) -> ClusterOptions {
        ClusterOptions {
            seed: self.seed,
            nodes: self.nodes,
            regions_per_node: self.regions_per_node,
            replicas: self.replicas,
            durability: self.durability,
            sets: self.sets.clone(),
            pool_bytes: self.pool_bytes,
            segment_shift: Some(18),
            checksums: self.checksums,
            scrub: self.scrub,
            reactors: self.reactors,
            timeouts: Timeouts {
                lease: self.lease,
                ..Timeouts::default()
            },
            one_sided: self.one_sided,
            transactions: self.limits.transactions,
            lane_max: self.lane_max,
            backlog_max: self.backlog_max,
            redo_slots: self.redo_slots,
            replace_after: self.replace_after,
            drift: self.drift.clone(),
        }
    }

    /// The command that repeats it.
    pub fn command(&self) -> String {
        let mut command = format!("{} --seed {}", program(), self.seed);
        let limits = &self.limits;
        let mut add = |option: &str, value: Option<String>| {
            if let Some(value) = value {
                command.push_str(&format!(" --{option} {value}"));
            }
        };
        add("operations", limits.operations.map(|n| n.to_string()));
        add("clients", limits.clients.map(|n| n.to_string()));
        add("faults", limits.faults.map(|n| n.to_string()));
        add("replicas", limits.replicas.map(|n| n.to_string()));
        add("durability", limits.durability.map(|mode| mode.to_string()));
        add("plant", limits.plant.map(|plant| plant.to_string()));
        if limits.transactions == Transactions::TwoPhaseCommit {
            command.push_str(" --two-phase");
        }
        command + " --trace"
    }
}

/// `polvo-sim` as it runs, or as `make sim` builds it where a test does.
fn program() -> String {
    let running = std::env::current_exe().ok();
    let running = running.filter(|path| path.file_name().is_some_and(|name| name == "polvo-sim"));
    let Some(path) = running else {
        return "target/sim/polvo-sim".into();
    };
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(&path).display().to_string()
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let homes: Vec<String> = self
            .clients
            .iter()
            .zip(&self.transfers)
            .map(|(home, transfers)| match (home, transfers) {
                (Home::Remote, Transfers::Client) => "remote".to_string(),
                (Home::Remote, Transfers::Server(_)) => "remote, server-directed".to_string(),
                (Home::Colocated(node), _) => format!("colocated with node {node}"),
            })
            .zip(&self.verifying)
            .map(|(client, verifies)| if *verifies { client + ", verifying" } else { client })
            .zip(&self.access_times)
            .map(|(client, rule)| match rule {
                None => client,
                Some(rule) if rule.strict => client + ", strictatime",
                Some(_) => client + ", relatime",
            })
            .zip(&self.tokens)
            .map(|(client, tokens)| if *tokens { client + ", tokens" } else { client })
            .zip(&self.mounted)
            .map(|(client, mounted)| if *mounted { client + ", mounted" } else { client })
            .zip(&self.readers)
            .map(|(client, reads)| if *reads { client + ", reader" } else { client })
            .collect();
        write!(
            f,
            "seed {}: {} nodes of {} MiB, {} regions (of {} replicas, {}, others: {:?}) and {} reactors each; clients {}; {} operations each; {} faults, {} cuts, {} stills, {} failovers, {} hand-overs, {} moved copies (grows: {}); falls silent: {:?}; replaced after {:?}, lost {:?}; lanes {:?}, backlogs {:?}, slots {:?}; drift {:?}; lease {} s; delays {:?}; one-sided access: {:?}; checksums: {}; made durable: {}, as it has to be: {}",
            self.seed,
            self.nodes,
            self.pool_bytes >> 20,
            self.regions_per_node,
            self.replicas,
            self.durability,
            self.sets,
            self.reactors,
            homes.join(", "),
            self.operations,
            self.faults,
            self.cuts,
            self.stills,
            self.failovers,
            self.hand_overs,
            self.moved_copies,
            self.grows,
            self.falls_silent,
            self.replace_after,
            self.loses,
            self.lane_max,
            self.backlog_max,
            self.redo_slots,
            self.drift,
            self.lease.as_secs(),
            self.delay,
            self.one_sided,
            self.checksums,
            self.is_syncing,
            self.needs_sync,
        )
    }
}
