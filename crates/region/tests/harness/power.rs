//! Power cuts: at every fence of a change the media are left in many states; each is recovered and compared.

use super::replicas::Replicas;
use super::snapshot::{Snapshot, difference, snapshot};
use super::world::{ROOT_REGION, SESSION, Shape, World, new_file};
use parking_lot::Mutex;
use polvo_format::{FileKind, Tail};
use polvo_pmem::Pmem;
use polvo_pmem::sim::{Chooser, CrashImage, Fate, FencePoint, KeepAll, LoseAll, PendingLine, RandomLines, SomeLines};
use polvo_proto::{FsError, WriteAt};
use polvo_region::RegionError;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Crash states judged so far in this process: every choice of what survives, at every fence.
pub static STATES: AtomicU64 = AtomicU64::new(0);
/// How many of them were recovered and compared. The others were, byte for byte, one that the same change had left
/// already, so that the verdict is known.
pub static RECOVERED: AtomicU64 = AtomicU64::new(0);
/// Those that differ from all others of this process.
static DISTINCT: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// Seed of all random choices; `POLVO_SEED` sets another.
pub fn seed() -> u64 {
    std::env::var("POLVO_SEED")
        .ok()
        .map_or(1, |s| s.parse().expect("POLVO_SEED is a number"))
}

/// Multiplies the number of random states; `ROUNDS` sets it.
pub fn rounds() -> u64 {
    std::env::var("ROUNDS")
        .ok()
        .map_or(1, |s| s.parse().expect("ROUNDS is a number"))
}

/// What a power cut may leave, and how it came about.
pub struct CrashState {
    /// By pool.
    pub images: Vec<CrashImage>,
    /// The first way to it.
    pub how: String,
    /// Ways to it.
    pub times: u64,
}

impl CrashState {
    /// Reached in one way.
    pub fn new(images: Vec<CrashImage>, how: impl Into<String>) -> CrashState {
        let how = how.into();
        CrashState { images, how, times: 1 }
    }

    /// It has been recovered and compared.
    pub fn count(&self) {
        STATES.fetch_add(self.times, Relaxed);
        RECOVERED.fetch_add(1, Relaxed);
        let whole = self.images.iter().fold(0, |all: u64, image| {
            all.rotate_left(17).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ image.fingerprint()
        });
        DISTINCT.lock().insert(whole);
    }
}

/// Crash states judged so far: all, those recovered, those that differ from all others.
pub fn counted() -> String {
    let distinct = DISTINCT.lock().len();
    let (states, recovered) = (STATES.load(Relaxed), RECOVERED.load(Relaxed));
    format!("{states} crash states, {recovered} recovered, {distinct} distinct")
}

/// Decides for the lines that are on their way; those that are not (caches of what can be had elsewhere, most of them)
/// are all lost or all kept.
struct OnTheirWay<C> {
    choose: C,
    others: Fate,
}

impl<C: Chooser> Chooser for OnTheirWay<C> {
    fn choose(&mut self, line: PendingLine) -> Fate {
        if line.flushed {
            self.choose.choose(line)
        } else {
            self.others
        }
    }
}

/// All choices for one medium at one moment: every subset of few lines that are on their way, else none, all and random
/// ones; random ones with torn lines; and a single line torn at each of its words.
fn choices(point: &FencePoint<'_>) -> Vec<(String, Box<dyn Chooser>)> {
    let (pending, flushed, number) = (point.pending_lines(), point.flushed_lines(), point.number());
    let mut all: Vec<(String, Box<dyn Chooser>)> = vec![("nothing more survives".into(), Box::new(LoseAll))];
    if pending == 0 {
        return all;
    }
    all.push(("everything survives".into(), Box::new(KeepAll)));
    let others = |turn: u64| if turn.is_multiple_of(2) { Fate::LOST } else { Fate::KEPT };
    let mut random = 8;
    if flushed <= 3 {
        for bits in 0..1u64 << flushed {
            let (choose, others) = (SomeLines::new(bits), others(bits));
            all.push((
                format!("lines {bits:#b} survive"),
                Box::new(OnTheirWay { choose, others }),
            ));
        }
        random = 5;
    }
    if flushed == 1 {
        // a commit point: torn at each of its words
        for word in 0..8 {
            for (kept, rest) in [(usize::MAX, 0), (0, usize::MAX)] {
                let mut words = [rest; 8];
                words[word] = kept;
                let how = format!("word {word} {}", if kept == 0 { "is lost" } else { "alone survives" });
                let (choose, others) = (move |_: PendingLine| Fate::Words(words), others(word as u64));
                all.push((how, Box::new(OnTheirWay { choose, others })));
            }
        }
        random = 2;
    }
    for i in 0..random * rounds() {
        let seed = seed() << 40 ^ number << 10 ^ i;
        all.push((format!("random lines {seed:#x}"), Box::new(RandomLines::new(seed))));
    }
    all
}

/// Runs `change` and collects what power cuts before each fence in any pool may leave. Where there are several pools
/// they lose power together; of the others survives nothing, everything or something not durable, in turn. What is
/// left twice is given once.
pub fn collect_states<R>(world: &mut World, change: impl FnOnce(&mut World) -> R) -> (Vec<CrashState>, R) {
    let pools: Vec<_> = world.pools.iter().map(|pool| pool.pmem().clone()).collect();
    collect_from(&pools, &[], || change(world))
}

/// The same for these pools; fences in `others` are moments, too, at which they lose power.
pub fn collect_from<R>(pools: &[Arc<Pmem>], others: &[Arc<Pmem>], change: impl FnOnce() -> R) -> (Vec<CrashState>, R) {
    let (mut change, mut result) = (Some(change), None);
    let states = collect(pools, others, &mut || result = change.take().map(|change| change()));
    (states, result.expect("it was called"))
}

/// Compiled once for all changes.
fn collect(pools: &[Arc<Pmem>], others: &[Arc<Pmem>], change: &mut dyn FnMut()) -> Vec<CrashState> {
    let found = Arc::new(Mutex::new(Found::default()));
    for pool in others {
        let (into, pools) = (found.clone(), pools.to_vec());
        pool.sim().unwrap().set_fence_hook(Box::new(move |point| {
            let image = |pool: &Arc<Pmem>| pool.sim().unwrap().image(&mut LoseAll);
            into.lock().add(pools.iter().map(image).collect(), || {
                format!("fence {} elsewhere", point.number())
            });
        }));
    }
    for (at, pool) in pools.iter().enumerate() {
        let into = found.clone();
        let others: Vec<_> = pools.to_vec();
        pool.sim().unwrap().set_fence_hook(Box::new(move |point| {
            for (turn, (how, mut chooser)) in choices(point).into_iter().enumerate() {
                let mut other: Box<dyn Chooser> = match turn % 3 {
                    0 => Box::new(LoseAll),
                    1 => Box::new(KeepAll),
                    _ => Box::new(RandomLines::new(turn as u64)),
                };
                let image = |(pool, pmem): (usize, &Arc<Pmem>)| match pool == at {
                    true => point.image(&mut *chooser),
                    false => pmem.sim().unwrap().image(&mut *other),
                };
                let images: Vec<CrashImage> = others.iter().enumerate().map(image).collect();
                into.lock()
                    .add(images, || format!("fence {} of pool {at}, {how}", point.number()));
            }
        }));
    }
    change();
    for pool in pools.iter().chain(others) {
        pool.sim().unwrap().clear_fence_hook();
    }
    std::mem::take(&mut found.lock().states)
}

/// What was left, each state once.
#[derive(Default)]
struct Found {
    states: Vec<CrashState>,
    known: HashMap<Vec<u64>, usize>,
}

impl Found {
    fn add(&mut self, images: Vec<CrashImage>, how: impl FnOnce() -> String) {
        let fingerprints: Vec<u64> = images.iter().map(CrashImage::fingerprint).collect();
        match self.known.entry(fingerprints) {
            Entry::Occupied(known) => self.states[*known.get()].times += 1,
            Entry::Vacant(fresh) => {
                fresh.insert(self.states.len());
                self.states.push(CrashState::new(images, how()));
            }
        }
    }
}

/// What the media hold after everything not durable is lost.
pub fn durable(world: &World) -> Vec<CrashImage> {
    world
        .pools
        .iter()
        .map(|pool| pool.pmem().sim().unwrap().image(&mut LoseAll))
        .collect()
}

/// The CPUs that there are, at most 8.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(8))
}

/// Recovers all these states with all CPUs and hands each recovered world to `verify`. What fails (returns an error or
/// panics) is reported with the way to it.
pub fn recover_all(
    what: &str,
    shape: &Shape,
    now: i64,
    states: &[CrashState],
    verify: impl Fn(&mut World, usize) -> Result<(), String> + Sync,
) {
    recover_with(cpus(), what, shape, now, states, &verify);
}

/// The same, with so many threads; with one, on the caller's own.
fn recover_with(
    threads: usize,
    what: &str,
    shape: &Shape,
    now: i64,
    states: &[CrashState],
    verify: &(dyn Fn(&mut World, usize) -> Result<(), String> + Sync),
) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || {
        while let Some((number, state)) = Some(next.fetch_add(1, Relaxed)).and_then(|n| Some((n, states.get(n)?))) {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut world =
                    World::open_images(shape, &state.images, now).map_err(|why| format!("recovery: {why}"))?;
                verify(&mut world, number)
            }));
            let result = result.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                Err(format!(
                    "panic: {}",
                    text.or(panic.downcast_ref::<&str>().map(|s| s.to_string()))
                        .unwrap_or_default()
                ))
            });
            state.count();
            if let Err(why) = result {
                failures.lock().push(format!("{what}, {}: {why}", state.how));
            }
        }
    };
    if states.len() < 16 || threads == 1 {
        work();
    } else {
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    }
    let failures = failures.into_inner();
    if let Some(first) = failures.first() {
        panic!(
            "POLVO_SEED={}: {} of {} states are wrong, the first:\n{first}",
            seed(),
            failures.len(),
            states.len()
        );
    }
}

/// A world and a scenario's steps on it, each with power cuts at all its fences.
pub struct Scenario {
    pub name: String,
    pub world: World,
    /// Going on may fail for lack of space.
    pub full: bool,
    /// That recover what a step has left.
    pub threads: usize,
    /// The last step did.
    pub changed: bool,
    /// Crash states so far.
    pub states: u64,
    /// of the world as it was before the next step
    replicas: Option<Replicas>,
    steps: usize,
}

impl Scenario {
    pub fn new(name: &str, shape: Shape) -> Scenario {
        Scenario::of(name, World::new(shape), cpus())
    }

    /// Of a world that is there already.
    pub fn of(name: &str, world: World, threads: usize) -> Scenario {
        Scenario {
            name: name.to_string(),
            world,
            full: false,
            threads,
            changed: false,
            states: 0,
            replicas: None,
            steps: 0,
        }
    }

    /// Runs a change. Whatever a power cut leaves, one sees the state before or after it; and once it has returned,
    /// the state after it. The state is consistent, and work goes on.
    pub fn step<R>(&mut self, what: &str, change: impl FnOnce(&mut World) -> R) -> R {
        self.run(what, change, |snapshot| snapshot)
    }

    /// The same for a change that nobody sees (but in the tails of logs, which garbage collection moves one by one).
    pub fn unseen<R>(&mut self, what: &str, change: impl FnOnce(&mut World) -> R) -> R {
        let before = without_tails(snapshot(&mut self.world).unwrap());
        let result = self.run(what, change, without_tails);
        let after = without_tails(snapshot(&mut self.world).unwrap());
        assert!(before == after, "{what} is seen:\n{}", difference(&before, &after));
        result
    }

    fn run<R>(&mut self, what: &str, change: impl FnOnce(&mut World) -> R, seen: fn(Snapshot) -> Snapshot) -> R {
        let (mut change, mut result) = (Some(change), None);
        self.run_any(
            what,
            &mut |world| result = change.take().map(|change| change(world)),
            seen,
        );
        result.expect("it was called")
    }

    fn run_any(&mut self, what: &str, change: &mut dyn FnMut(&mut World), seen: fn(Snapshot) -> Snapshot) {
        self.steps += 1;
        let what = format!("{}, step {} ({what})", self.name, self.steps);
        let before = seen(snapshot(&mut self.world).unwrap());
        let mut replicas = self.replicas();
        let (mut states, ()) = collect_states(&mut self.world, |world| {
            change(world);
            // as at a tick: participants learn how transactions have ended
            world.regions.iter_mut().for_each(|region| drop(region.reap()));
        });
        let after = snapshot(&mut self.world).unwrap();
        let last = states.len();
        states.push(CrashState::new(durable(&self.world), "after its end"));
        let (whole, after) = (after.clone(), seen(after));
        self.changed = before != after;
        self.states += states.iter().map(|state| state.times).sum::<u64>();
        let (full, threads, now) = (self.full, self.threads, self.world.now);
        recover_with(threads, &what, &self.world.shape, now, &states, &|world, number| {
            let now = seen(snapshot(world).map_err(|why| format!("reading: {why}"))?);
            compare(&now, &before, &after, number == last)?;
            no_findings(world)?;
            if number % 5 == 0 || number == last {
                match go_on(world) {
                    Err(GoOn::NoSpace) if full => no_findings(world)?,
                    Err(why) => return Err(format!("going on: {why:?}")),
                    Ok(()) => (),
                }
            }
            Ok(())
        });
        if replicas.follow(&mut self.world)
            && let Err(why) = replicas.compare(&self.world, &whole)
        {
            panic!("{what}: replicas differ: {why}");
        }
        self.replicas = Some(replicas);
    }
}

impl Scenario {
    /// Copies of the world as it is. They follow what was done between steps, too, unless the regions were started anew there.
    fn replicas(&mut self) -> Replicas {
        let kept = self.replicas.take();
        let kept = kept.and_then(|mut replicas| replicas.follow(&mut self.world).then_some(replicas));
        kept.unwrap_or_else(|| Replicas::of(&mut self.world))
    }
}

pub fn without_tails(mut snapshot: Snapshot) -> Snapshot {
    snapshot.0.values_mut().for_each(|node| node.tail = Tail::default());
    snapshot
}

pub fn compare(now: &Snapshot, before: &Snapshot, after: &Snapshot, ended: bool) -> Result<(), String> {
    if now == after || now == before && !ended {
        return Ok(());
    }
    if ended {
        return Err(format!("not the state after it:\n{}", difference(after, now)));
    }
    Err(format!(
        "neither the state before it:\n{}\nnor the one after it:\n{}",
        difference(before, now),
        difference(after, now)
    ))
}

pub fn no_findings(world: &mut World) -> Result<(), String> {
    let findings = world.check();
    if findings.is_empty() {
        Ok(())
    } else {
        Err(format!("check: {findings:?}"))
    }
}

/// The world is in the state before or (always, when `ended`) after a change, and consistent.
pub fn verify(world: &mut World, before: &Snapshot, after: &Snapshot, ended: bool) -> Result<(), String> {
    let now = snapshot(world).map_err(|why| format!("reading: {why}"))?;
    compare(&now, before, after, ended)?;
    no_findings(world)
}

/// Why work did not go on.
#[derive(Debug)]
pub enum GoOn {
    /// The pool is full.
    NoSpace,
    /// Anything else; damage in the end.
    Wrong(#[allow(dead_code)] String),
}

impl From<RegionError> for GoOn {
    fn from(why: RegionError) -> GoOn {
        match why {
            RegionError::Fs(FsError::NoSpace) => GoOn::NoSpace,
            why => GoOn::Wrong(format!("{why:?}")),
        }
    }
}

/// A few operations on a recovered world, each kind once; the world is as before afterwards, but for times.
pub fn go_on(world: &mut World) -> Result<(), GoOn> {
    let wrong = |what: &str| Err(GoOn::Wrong(what.into()));
    let root = world.root();
    let region = polvo_format::RegionId(world.shape.home.len() as u16 - 1);
    let dir = world.create(root, b"go-on", new_file(FileKind::Directory, 0o755), ROOT_REGION)?;
    let file = world.create(dir, b"file", new_file(FileKind::File, 0o644), region)?;
    world.write(file, WriteAt::Offset(0), b"small")?;
    world.commit(file, &[(3, vec![0x77; 9000])], WriteAt::Offset(0))?;
    let expected = [&b"sma"[..], &[0x77; 9000]].concat();
    if world.read(file, 0, 10_000)? != expected {
        return wrong("wrong bytes");
    }
    world.of(file).open(SESSION, file)?;
    world.rename(dir, b"file", root, b"go-on-file")?;
    world.unlink(root, b"go-on-file")?;
    if world.read(file, 0, 10_000)? != expected {
        return wrong("wrong bytes in a held file");
    }
    world.of(file).release(SESSION, file);
    world.rmdir(root, b"go-on")?;
    no_findings(world).map_err(GoOn::Wrong)
}
