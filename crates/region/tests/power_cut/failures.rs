//! Regions half made, recoveries cut short, transactions of which one side fails.

use crate::harness::power::{CrashState, Scenario, collect_states, durable, go_on, recover_all, verify};
use crate::harness::snapshot::{Snapshot, snapshot};
use crate::harness::world::*;
use crate::{R0, R1, directory, file, pattern};
use polvo_format::{FileKind, RegionId};
use polvo_pmem::Pmem;
use polvo_pmem::sim::KeepAll;
use polvo_proto::*;
use polvo_region::*;

/// `Region::create` cut short: the region is there and empty, or it can be made.
pub fn making_a_region() {
    let pmem = Pmem::simulated(3 << 20);
    let identity = PoolIdentity {
        cluster: [1; 16],
        pool: [1; 16],
        node: polvo_format::NodeId(1),
    };
    PoolSpace::format(
        &pmem,
        &FormatParams {
            identity,
            segment_shift: Some(18),
            checksums: true,
        },
    )
    .unwrap();
    for id in [R0, RegionId(7)] {
        let shape = Shape {
            pool_len: 3 << 20,
            ..Shape::small()
        };
        let mut w = World {
            mirrors: None,
            shape: shape.clone(),
            pools: vec![PoolSpace::open(pmem.clone()).unwrap()],
            regions: vec![],
            now: START_NS,
        };
        let (mut states, region) = collect_states(&mut w, |w| Region::create(&w.pools[0], id, START_NS).unwrap());
        assert_eq!(region.id(), id);
        drop(region);
        states.push(CrashState::new(durable(&w), "after its end"));
        let mut recovered = 0;
        for state in &states {
            let pool = PoolSpace::open(Pmem::simulated_from_image(&state.images[0])).unwrap();
            let region = match Region::recover(&pool, id, &mut |_, _| ()) {
                Ok((region, _)) => {
                    recovered += 1;
                    region
                }
                Err(recover) => Region::create(&pool, id, START_NS)
                    .unwrap_or_else(|why| panic!("{}: {why}; recovery: {recover}", state.how)),
            };
            state.count();
            if id == R0 {
                finishing_cut_short(&shape, state);
                let mut w = World {
                    mirrors: None,
                    shape: shape.clone(),
                    pools: vec![pool],
                    regions: vec![region],
                    now: START_NS,
                };
                assert_eq!(snapshot(&mut w).unwrap().0.len(), 1);
                go_on(&mut w).unwrap_or_else(|why| panic!("{}: {why:?}", state.how));
            }
        }
        assert!(
            recovered > 0 && recovered < states.len(),
            "{recovered} of {}",
            states.len()
        );
    }
}

/// The recovery that finishes (or finds) the region of a crash state is cut short in its turn.
fn finishing_cut_short(shape: &Shape, state: &CrashState) {
    let pool = PoolSpace::open(Pmem::simulated_from_image(&state.images[0])).unwrap();
    if pool.regions().is_empty() {
        return; // there is nothing to finish
    }
    let mut w = World {
        mirrors: None,
        shape: shape.clone(),
        pools: vec![pool],
        regions: vec![],
        now: START_NS,
    };
    let (again, result) = collect_states(&mut w, |w| Region::recover(&w.pools[0], R0, &mut |_, _| ()).map(|_| ()));
    result.unwrap();
    let what = format!("finishing a region after {}", state.how);
    recover_all(&what, shape, START_NS, &again, |w, _| {
        let tree = snapshot(w).map_err(|why| why.to_string())?;
        if tree.0.len() != 1 {
            return Err(format!("{} inodes", tree.0.len()));
        }
        go_on(w).map_err(|why| format!("{why:?}"))
    });
}

/// Power cuts while recovering from a power cut.
pub fn recovery_cut_short() {
    let mut s = Scenario::new("recovery cut short", Shape::two_pools());
    let root = s.world.root();
    let held = s.world.create(root, b"held", file(), R1).unwrap();
    s.world
        .commit(held, &[(0, pattern(1, 9000))], WriteAt::Offset(0))
        .unwrap();
    s.world.of(held).open(SESSION, held).unwrap();
    s.world.unlink(root, b"held").unwrap();
    let other = s.world.create(root, b"other", file(), R0).unwrap();
    s.world.write(other, WriteAt::Offset(0), b"other").unwrap();
    let before = snapshot(&mut s.world).unwrap();
    let (states, result) = collect_states(&mut s.world, |w| {
        w.create(root, b"new", directory(), R1)?;
        w.rename(root, b"other", root, b"renamed")
    });
    result.unwrap();
    let after = snapshot(&mut s.world).unwrap();
    let (shape, now) = (s.world.shape.clone(), s.world.now);
    for state in states.iter().step_by(7) {
        // not Scenario::step: the state before the recovery is one of three
        let mut w = World::open_images(&shape, &state.images, now).unwrap();
        let settled = snapshot(&mut w).unwrap();
        let pmems: Vec<_> = state.images.iter().map(Pmem::simulated_from_image).collect();
        let pools = pmems
            .iter()
            .cloned()
            .map(PoolSpace::open)
            .collect::<Result<Vec<_>, _>>()
            .unwrap();
        let mut starting = World {
            mirrors: None,
            shape: shape.clone(),
            pools,
            regions: vec![],
            now,
        };
        let (again, result) = collect_states(&mut starting, |w| {
            World::open(shape.clone(), pmems.clone(), w.now).map(|_| ())
        });
        result.unwrap();
        recover_all(&format!("recovery of {}", state.how), &shape, now, &again, |w, _| {
            verify(w, &settled, &settled, true)
        });
    }
    assert!(before != after);
}

/// A transaction across two pools: its name, and how it is collected.
type Change = fn(&mut World, InodeRef) -> Result<Collecting, RegionError>;

const CHANGES: [(&str, Change); 5] = [
    ("create", |w, root| w.collect_create(root, b"new", file(), R1)),
    ("mkdir", |w, root| w.collect_create(root, b"new", directory(), R1)),
    ("symlink", |w, root| {
        w.collect_create(root, b"new", symlink(&pattern(1, 4000)), R1)
    }),
    ("link", |w, root| {
        let inode = w.lookup(root, b"there")?.target;
        let add = Intent::AddName {
            dir: root,
            name: b"new".into(),
            target: Some(inode),
            kind: FileKind::File,
        };
        w.collect(R0, vec![(R0, add), (R1, Intent::AddLink { inode })])
    }),
    ("unlink", |w, root| {
        let target = w.lookup(root, b"there")?.target;
        let remove = Intent::RemoveName {
            dir: root,
            name: b"there".into(),
            target,
        };
        w.collect(R0, vec![(R0, remove), (R1, Intent::DropLink { inode: target })])
    }),
];

/// Before such a change: the root, and everything.
fn two_pools_with_a_file() -> (World, InodeRef, Snapshot) {
    let mut w = World::new(Shape::two_pools());
    let root = w.root();
    let there = w.create(root, b"there", file(), R1).unwrap();
    w.write(there, WriteAt::Offset(0), b"there").unwrap();
    let before = snapshot(&mut w).unwrap();
    (w, root, before)
}

/// The coordinator fails while deciding. The participant lives: it takes over what is dispatched after the
/// restart, or lets go.
fn coordinator_fails(what: &str, change: Change, after: &Snapshot) {
    let count = {
        let (mut w, root, _) = two_pools_with_a_file();
        let collecting = change(&mut w, root).unwrap();
        collect_states(&mut w, |w| w.decide(&collecting).unwrap().record.unwrap())
            .0
            .len()
    };
    for number in 0..count {
        let (mut w, root, before) = two_pools_with_a_file();
        let collecting = change(&mut w, root).unwrap();
        let (cuts, _) = collect_states(&mut w, |w| w.decide(&collecting).unwrap().record.unwrap());
        let pool = PoolSpace::open(Pmem::simulated_from_image(&cuts[number].images[0])).unwrap();
        let decided = pool.is_logged(collecting.txn);
        assert_eq!(decided, !pool.undispatched().is_empty());
        w.regions[0] = Region::recover(&pool, R0, &mut |_, _| ()).unwrap().0;
        w.pools[0] = pool;
        w.redispatch();
        let open = w.region(R1).reap();
        if decided {
            assert_eq!(open, [], "{what}, {}", cuts[number].how);
        } else {
            assert_eq!(open, [collecting.txn], "{what}, {}", cuts[number].how);
            w.region(R1).abort(collecting.txn);
            assert_eq!(w.region(R1).reap(), []);
        }
        let expected = if decided { after } else { &before };
        verify(&mut w, expected, expected, true)
            .and_then(|()| go_on(&mut w).map_err(|why| format!("{why:?}")))
            .unwrap_or_else(|why| panic!("{what}, coordinator fails, {}: {why}", cuts[number].how));
        cuts[number].count();
    }
}

/// The participant fails after it has collected, before or while it is dispatched to; the coordinator lives.
fn participant_fails(what: &str, change: Change, after: &Snapshot) {
    for dispatched in 0.. {
        let (mut w, root, _) = two_pools_with_a_file();
        let collecting = change(&mut w, root).unwrap();
        let record = w.decide(&collecting).unwrap().record.unwrap();
        let (cuts, ()) = collect_states(&mut w, |w| w.dispatch(collecting.txn, &collecting.remote[0]));
        let Some(cut) = cuts.get(dispatched) else { break };
        let pool = PoolSpace::open(Pmem::simulated_from_image(&cut.images[1])).unwrap();
        let (region, recovery) = Region::recover(&pool, R1, &mut |_, _| ()).unwrap();
        assert!(recovery.held_by.iter().all(|&txn| txn == collecting.txn));
        w.regions[1] = region;
        w.pools[1] = pool;
        w.dispatch(collecting.txn, &collecting.remote[0]);
        w.pools[0].retire(record);
        assert_eq!(w.region(R1).reap(), []);
        verify(&mut w, after, after, true)
            .and_then(|()| go_on(&mut w).map_err(|why| format!("{why:?}")))
            .unwrap_or_else(|why| panic!("{what}, participant fails, {}: {why}", cut.how));
        cut.count();
    }
}

/// The participant fails while collecting: the coordinator hears nothing and gives up.
fn participant_fails_in_collect(what: &str, change: Change) {
    let (mut w, root, before) = two_pools_with_a_file();
    let (cuts, collecting) = collect_states(&mut w, |w| change(w, root).unwrap());
    let image = w.pools[0].pmem().sim().unwrap().image(&mut KeepAll);
    for cut in cuts {
        let images = [image.clone(), cut.images[1].clone()];
        let mut w = World::open_images(
            &Shape::two_pools(),
            &images,
            collecting.txn.sequence() as i64 + START_NS,
        )
        .unwrap();
        verify(&mut w, &before, &before, true)
            .and_then(|()| go_on(&mut w).map_err(|why| format!("{why:?}")))
            .unwrap_or_else(|why| panic!("{what}, participant fails in collect, {}: {why}", cut.how));
        cut.count();
    }
}

/// Transactions across two pools of which only one loses its power while the other's process lives on.
pub fn one_side_of_a_transaction_fails() {
    for (what, change) in CHANGES {
        let after = {
            let (mut w, root, _) = two_pools_with_a_file();
            let collecting = change(&mut w, root).unwrap();
            w.decide_and_dispatch(collecting).unwrap();
            snapshot(&mut w).unwrap()
        };
        coordinator_fails(what, change, &after);
        participant_fails(what, change, &after);
        participant_fails_in_collect(what, change);
    }
}
