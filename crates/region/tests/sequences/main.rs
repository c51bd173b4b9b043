//! Power cuts at every fence of the last operation of every short sequence: all single operations, all pairs, and
//! triples drawn by seed, on one region and on two. What is recovered is the state before the last operation or the one
//! after it; a check finds nothing, and work goes on.
//!
//! In the manner of ACE and CrashMonkey (Mohan, Martinez, Ponnapalli, Raju, Chidambaram: Finding Crash-Consistency Bugs
//! with Bounded Black-Box Crash Testing, OSDI 2018): few operations on few names, one after the other, what an
//! operation needs made before it. Operations before the last have been cut as the last ones of shorter sequences. There
//! is no fsync among them: every operation is durable when it returns.
//!
//! Without libtest: sequences run side by side, a thread each, and the figures come last. Arguments: parts of names of
//! sequences to run (all without); what failed prints its name. `POLVO_SEED` draws other triples and other random
//! states, `ROUNDS` multiplies the number of both.

mod ground;
#[path = "../harness/mod.rs"]
mod harness;
mod operation;

use ground::{Ground, look, make, split};
use harness::mirrors::step_mirrored;
use harness::power::{STATES, Scenario, counted, cpus, rounds, seed, without_tails};
use harness::world::{World, new_file};
use operation::{OPERATIONS, Operation};
use parking_lot::Mutex;
use polvo_format::FileKind;
use polvo_proto::{FsError, NewFile};
use polvo_region::RegionError;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Triples of a round and ground.
const TRIPLES: u64 = 700;
/// Pairs of a ground that are run with mirrors, too; with `ROUNDS=5` all of them.
const MIRRORED_PAIRS: u64 = 100;
/// Fewest crash states of a default run: fewer would mean that sequences have lost their power cuts.
const STATES_MIN: u64 = 800_000;
/// Fewest of each kind of sequence on each ground.
const KIND_MIN: [u64; 3] = [1500, 55_000, 18_000];
/// Fewest of those with mirrors.
const MIRRORED_MIN: [u64; 2] = [4500, 6500];

fn file() -> NewFile {
    new_file(FileKind::File, 0o644)
}

fn directory() -> NewFile {
    new_file(FileKind::Directory, 0o755)
}

/// Bytes that tell where they were meant to go.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(seed * 2 + 7).wrapping_add(i >> 8) ^ seed) as u8 | 1)
        .collect()
}

struct Sequence<'a> {
    ground: &'a Ground,
    operations: Vec<&'static Operation>,
    /// The world has mirrors, which lose their power.
    mirrored: bool,
}

impl Sequence<'_> {
    fn name(&self) -> String {
        let names: Vec<&str> = self.operations.iter().map(|o| o.name).collect();
        let mirrored = if self.mirrored { "mirrored, " } else { "" };
        format!("{mirrored}{}: {}", self.ground.name, names.join("; "))
    }

    /// Crash states of the last operation.
    fn run(&self) -> u64 {
        match self.mirrored {
            true => self.run_mirrored(),
            false => self.run_alone(),
        }
    }

    /// Of the mirrors of its world, too.
    fn run_mirrored(&self) -> u64 {
        let (last, before) = self.operations.split_last().expect("a sequence is not empty");
        let mut world = self.ground.world();
        for operation in before {
            satisfy(&mut world, operation);
            expected(operation, (operation.run)(&mut world));
        }
        satisfy(&mut world, last);
        let seen = if last.unseen {
            without_tails
        } else {
            |snapshot| snapshot
        };
        let (result, states) = step_mirrored(&mut world, &self.name(), seen, before.is_empty(), last.run);
        expected(last, result);
        states
    }

    fn run_alone(&self) -> u64 {
        let (last, before) = self.operations.split_last().expect("a sequence is not empty");
        let mut s = Scenario::of(&self.name(), self.ground.world(), 1);
        for operation in before {
            satisfy(&mut s.world, operation);
            expected(operation, (operation.run)(&mut s.world));
        }
        satisfy(&mut s.world, last);
        let result = match last.unseen {
            true => s.unseen(last.name, last.run),
            false => s.step(last.name, last.run),
        };
        assert!(
            result.is_ok() || !s.changed,
            "{} fails and changes something",
            last.name
        );
        expected(last, result);
        s.states
    }
}

fn satisfy(w: &mut World, operation: &Operation) {
    for path in operation.needs {
        let there = look(w, path).ok();
        // a whiteout is none of the files and directories that operations are about
        let is_whiteout = there.is_some_and(|inode| w.attr(inode).is_ok_and(|attr| attr.kind == FileKind::CharDevice));
        if is_whiteout {
            let (dir, name) = split(w, path).expect("it was just looked up");
            w.unlink(dir, name).expect("it is there");
        }
        if there.is_none() || is_whiteout {
            make(w, path).expect("what an operation needs can be made");
        }
    }
}

/// An operation may find that it cannot be done after those before it, and nothing worse.
fn expected(operation: &Operation, result: Result<(), RegionError>) {
    use FsError::*;
    match result {
        Ok(()) | Err(RegionError::Fs(Exists | NotFound | IsDirectory | NotDirectory | NotEmpty | NoAttribute)) => {}
        // a link to what an exchange has made a directory
        Err(RegionError::Fs(NotPermitted)) => {}
        Err(why) => panic!("{}: {why}", operation.name),
    }
}

/// All sequences, those of one kind together: singles, pairs, triples.
fn sequences(grounds: &[Ground]) -> Vec<Sequence<'_>> {
    let mut all = Vec::new();
    let mut add = |ground, operations: &[&'static Operation], mirrored| {
        let operations = operations.to_vec();
        all.push(Sequence {
            ground,
            operations,
            mirrored,
        });
    };
    let mut random = Random(seed());
    for ground in grounds {
        for one in OPERATIONS {
            add(ground, &[one], false);
            add(ground, &[one], true);
            for two in OPERATIONS {
                add(ground, &[one, two], false);
            }
        }
        for _ in 0..TRIPLES * rounds() {
            let mut any = || &OPERATIONS[random.below(OPERATIONS.len() as u64) as usize];
            add(ground, &[any(), any(), any()], false);
        }
        let mut pairs: Vec<_> = OPERATIONS
            .iter()
            .flat_map(|one| OPERATIONS.iter().map(move |two| [one, two]))
            .collect();
        let mut random = Random(seed() ^ 0x6d69_7272_6f72);
        for _ in 0..MIRRORED_PAIRS * (rounds() * rounds()) {
            if pairs.is_empty() {
                break;
            }
            let pair = pairs.swap_remove(random.below(pairs.len() as u64) as usize);
            add(ground, &pair, true);
        }
    }
    all
}

struct Random(u64);

impl Random {
    /// splitmix64, reduced.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.any(|argument| argument == "--list") {
        return;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let start = Instant::now();
    let grounds = Ground::all();
    let mut all = sequences(&grounds);
    all.retain(|s| wanted.is_empty() || wanted.iter().any(|wanted| s.name().contains(wanted)));
    assert!(!all.is_empty(), "no sequence has such a name");

    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some((number, sequence)) = Some(next.fetch_add(1, Relaxed)).and_then(|n| Some((n, all.get(n)?))) {
            let run = std::panic::AssertUnwindSafe(|| sequence.run());
            // not in one line with the lock, which would be held while the sequence runs
            let result = std::panic::catch_unwind(run).ok();
            results.lock().insert(number, result);
        }
    };
    std::thread::scope(|scope| (0..cpus()).for_each(|_| drop(scope.spawn(work))));

    let mut failed = Vec::new();
    let mut kinds: BTreeMap<(&str, bool, usize), (u64, u64)> = BTreeMap::new();
    for (number, result) in results.into_inner() {
        let sequence = &all[number];
        let (sequences, states) = kinds
            .entry((sequence.ground.name, sequence.mirrored, sequence.operations.len()))
            .or_default();
        *sequences += 1;
        match result {
            Some(found) => *states += found,
            None => failed.push(sequence.name()),
        }
    }
    for ((ground, mirrored, length), (sequences, states)) in &kinds {
        let mirrored = if *mirrored { ", mirrored" } else { "" };
        println!("{ground}{mirrored}, {length} operations: {sequences} sequences, {states} crash states");
    }
    println!(
        "sequences: {}, {:.1} s, seed {}",
        counted(),
        start.elapsed().as_secs_f64(),
        seed()
    );
    if !failed.is_empty() {
        let some = failed
            .iter()
            .take(20)
            .map(|name| format!("  {name}\n"))
            .collect::<String>();
        panic!(
            "POLVO_SEED={}: {} sequences failed, these among them:\n{some}",
            seed(),
            failed.len()
        );
    }
    if wanted.is_empty() {
        for ((ground, mirrored, length), (_, states)) in kinds {
            let least = if mirrored {
                MIRRORED_MIN[length - 1]
            } else {
                KIND_MIN[length - 1]
            };
            assert!(
                states >= least,
                "{ground}, mirrored: {mirrored}, {length} operations: {states} crash states"
            );
        }
        let states = STATES.load(Relaxed);
        assert!(states >= STATES_MIN, "{states} crash states, {STATES_MIN} are needed");
    }
}
