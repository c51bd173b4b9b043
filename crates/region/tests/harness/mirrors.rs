//! Mirrors: copies of all regions in the pools of other nodes, which follow by lanes. Either side loses its power, at every fence: the
//! mirrors then take the regions' place, with all that was answered and nothing half done; or they go on, and are equal again.

use super::power::{CrashState, collect_from, compare, go_on, no_findings};
use super::replicas::compare_bytes;
use super::snapshot::{Snapshot, snapshot};
use super::world::{Shape, World, place_in};
use polvo_format::{Change, Gpa, LANE_RING, Lsn, MirrorRecord, NodeId, PAGE, PAGE_CHECKSUM_SIZE, RegionId, SessionId};
use polvo_pmem::Pmem;
use polvo_pmem::sim::{CrashImage, KeepAll, LoseAll};
use polvo_proto::SegmentClass;
use polvo_region::{FormatParams, Lane, PoolIdentity, PoolSpace, Region, RegionError};
use std::sync::Arc;

/// Holds files without a name until those that had them open have come, which here nobody does.
const CLAIMS: SessionId = SessionId(0xc1a1_0000);

pub struct Mirrors {
    /// The copy of a region lies in the pool that has the number of the region's.
    pools: Vec<Arc<PoolSpace>>,
    /// by region
    lanes: Vec<Lane>,
    /// where the next record of a region goes in its ring
    tails: Vec<u32>,
    /// records that were sent, by region
    sent: Vec<Vec<u8>>,
}

impl Mirrors {
    /// Of a world as it is now, in which no transaction holds anything.
    pub fn of(world: &mut World) -> Mirrors {
        let pools = (0..world.pools.len()).map(|pool| {
            let pmem = Pmem::simulated(world.shape.pool_len + (8 << world.shape.segment_shift));
            let identity = PoolIdentity {
                cluster: [7; 16],
                pool: [0x80 | pool as u8; 16],
                node: NodeId(100 + pool as u16),
            };
            let params = FormatParams {
                identity,
                segment_shift: Some(world.shape.segment_shift),
                checksums: true,
            };
            PoolSpace::format(&pmem, &params).expect("it is large enough");
            PoolSpace::open(pmem).expect("it was just formatted")
        });
        let pools: Vec<_> = pools.collect();
        let home = world.shape.home.iter().enumerate();
        let lanes =
            home.map(|(region, pool)| Lane::create(&pools[*pool], RegionId(region as u16)).expect("there is room"));
        let mut mirrors = Mirrors {
            lanes: lanes.collect(),
            tails: vec![0; world.regions.len()],
            sent: vec![Vec::new(); world.regions.len()],
            pools,
        };
        for region in &mut world.regions {
            assert_eq!(region.reap(), [], "no transaction is under way");
            region.end_capture();
            region.capture(Lsn(0));
        }
        for region in 0..mirrors.lanes.len() {
            mirrors.fill(world, region);
        }
        mirrors
    }

    /// Copies all that a region has, as it is now.
    fn fill(&mut self, world: &World, region: usize) {
        let id = RegionId(region as u16);
        let (from, to) = (world.pool_of(id), self.pool(world, region));
        let segments: Vec<_> = from.segments_of(id).into_iter().collect();
        let held: Vec<(u32, u8)> = segments
            .iter()
            .map(|(index, _, class)| (*index, *class as u8))
            .collect();
        // refused where the copy is whole, as a planted bug has it
        drop(self.lanes[region].keep_only(0..=u32::MAX, &held));
        for (index, at, class) in segments {
            let (there, _) = self.lanes[region]
                .take_segments(&[(index, class as u8)])
                .expect("there is room")[0];
            let size = from.usage().segment_size;
            copy(from.pmem(), at, to.pmem(), there, size);
            if class == SegmentClass::Data {
                let words = size / PAGE as u64 * PAGE_CHECKSUM_SIZE;
                let [words_at, words_there] =
                    [(from, at), (&to, there)].map(|(pool, at)| pool.layout().checksum_offset(at));
                copy(from.pmem(), words_at, to.pmem(), words_there, words);
            }
        }
        self.lanes[region].finish();
    }

    /// What is no region any more may be anything.
    fn spoil(&self, world: &World, region: usize) {
        let pool = self.pool(world, region);
        for (_, at, _) in pool.segments_of(RegionId(region as u16)) {
            pool.pmem().write(at, &[0xff; PAGE]);
            pool.pmem().persist(at, PAGE as u64);
        }
    }

    fn pool(&self, world: &World, region: usize) -> Arc<PoolSpace> {
        self.pools[world.shape.home[region]].clone()
    }

    fn pmems(&self) -> Vec<Arc<Pmem>> {
        self.pools.iter().map(|pool| pool.pmem().clone()).collect()
    }

    fn durable(&self) -> Vec<CrashImage> {
        self.pmems()
            .iter()
            .map(|pmem| pmem.sim().unwrap().image(&mut LoseAll))
            .collect()
    }

    /// What the regions have recorded goes to the lanes, as primaries send it: then it may be answered.
    pub fn send(&mut self, world: &mut World) {
        for region in 0..self.lanes.len() {
            let mut records = Vec::new();
            let last = world.regions[region]
                .take_records(&mut records)
                .expect("it is captured");
            MirrorRecord::seal(&mut records);
            self.put_all(world, region, &records);
            self.sent[region].extend(records);
            world.regions[region].set_mirrored(last);
        }
    }

    /// Sends those of some records that the lane does not have.
    fn put_all(&mut self, world: &World, region: usize, mut records: &[u8]) {
        while let Ok((record, len)) = MirrorRecord::decode(records) {
            if record.lsn > self.lanes[region].state().1.applied {
                self.put(world, region, &record, &records[..len]);
            }
            records = &records[len..];
        }
        assert!(records.is_empty(), "records of ours");
    }

    /// One record, behind the file data that it names; each write is durable before the next one.
    fn put(&mut self, world: &World, region: usize, record: &MirrorRecord<'_>, bytes: &[u8]) {
        let pool = self.pool(world, region);
        for change in record.changes() {
            match change {
                Change::Segment { index, class } => {
                    self.lanes[region]
                        .take_segments(&[(index, class)])
                        .expect("there is room");
                }
                Change::Run { at, len } => {
                    let gpa = Gpa::new(record.region, at);
                    let (from, offset) = world.locate(gpa);
                    copy(&from, offset, pool.pmem(), place_in(&pool, gpa), len.into());
                }
                _ => {}
            }
        }
        let lane = &mut self.lanes[region];
        let place = |lane: &Lane, tail| {
            let (ring, head) = lane.state();
            ring.place(head.position, tail, bytes.len() as u32)
        };
        let place = place(lane, self.tails[region]).unwrap_or_else(|| {
            lane.apply().expect("records of ours");
            place(lane, self.tails[region]).expect("there is room now")
        });
        let pmem = pool.pmem();
        pmem.write_streaming(lane.offset() + LANE_RING + u64::from(place), bytes);
        pmem.fence();
        self.tails[region] = place + bytes.len() as u32;
    }

    /// What has been written to their pools.
    pub fn written(&self) -> Vec<CrashImage> {
        let image = |pmem: &Arc<Pmem>| pmem.sim().unwrap().image(&mut KeepAll);
        self.pmems().iter().map(image).collect()
    }

    /// What has come is put in place.
    fn apply(&mut self) {
        self.lanes
            .iter_mut()
            .for_each(|lane| _ = lane.apply().expect("records of ours"));
    }

    /// The nodes of the mirrors have started again.
    fn open(shape: &Shape, images: &[CrashImage]) -> Result<Mirrors, RegionError> {
        let open = |image| PoolSpace::open(Pmem::simulated_from_image(image));
        let pools = images.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let mut lanes = Vec::new();
        for pool in &pools {
            for (region, lane) in Lane::open_all(pool) {
                lanes.push((region, lane?));
            }
        }
        lanes.sort_by_key(|(region, _)| *region);
        assert_eq!(lanes.len(), shape.home.len(), "there is a copy of each region");
        let lanes: Vec<Lane> = lanes.into_iter().map(|(_, lane)| lane).collect();
        Ok(Mirrors {
            tails: lanes.iter().map(|lane| lane.state().1.position).collect(),
            sent: vec![Vec::new(); lanes.len()],
            lanes,
            pools,
        })
    }

    /// The primaries send again what they have sent, to mirrors that have started again: these are equal to the regions then.
    fn catch_up(&self, world: &World, images: &[CrashImage]) -> Result<(), String> {
        let mut again = Mirrors::open(&world.shape, images).map_err(|why| format!("opening copies: {why}"))?;
        for (region, records) in self.sent.iter().enumerate() {
            again.put_all(world, region, records);
        }
        again.apply();
        for region in 0..again.lanes.len() {
            compare_bytes(world, RegionId(region as u16), &again.pool(world, region))?;
        }
        Ok(())
    }
}

fn copy(from: &Pmem, at: u64, to: &Pmem, there: u64, len: u64) {
    let mut bytes = vec![0; len as usize];
    from.read(at, &mut bytes);
    to.write_streaming(there, &bytes);
    to.fence();
}

/// Mirrors take the place of all regions, be it for the second time, after they died while they did.
fn promoted(shape: &Shape, pmems: Vec<Arc<Pmem>>, now: i64) -> Result<World, RegionError> {
    let pools = pmems.into_iter().map(PoolSpace::open).collect::<Result<Vec<_>, _>>()?;
    for (region, home) in shape.home.iter().enumerate() {
        let region = RegionId(region as u16);
        if pools[*home].has_copy(region) {
            Lane::promote_in(&pools[*home], region)?;
        }
    }
    let recover = |pool: &Arc<PoolSpace>, region| Region::recover_to_claim(pool, region, CLAIMS, &mut |_, _| ());
    let mut world = World::serve(shape.clone(), pools, now, recover)?;
    world.regions.iter_mut().for_each(|region| region.end_session(CLAIMS));
    Ok(world)
}

/// A change, and what may be seen at a mirror that takes over.
struct Watched<'a> {
    what: &'a str,
    shape: Shape,
    now: i64,
    before: Snapshot,
    after: Snapshot,
    seen: fn(Snapshot) -> Snapshot,
    states: u64,
}

impl Watched<'_> {
    /// Promotes what each of these states has left. `ended`: from which one on what was done was answered.
    fn verify(
        &mut self,
        when: &str,
        states: &[CrashState],
        ended: usize,
        also: impl Fn(&CrashState) -> Result<(), String>,
    ) {
        for (number, state) in states.iter().enumerate() {
            let result = self.promote(state, number, number >= ended).and_then(|()| also(state));
            state.count();
            self.states += state.times;
            if let Err(why) = result {
                panic!("{}, {when}, {}: {why}", self.what, state.how);
            }
        }
    }

    fn promote(&self, state: &CrashState, number: usize, ended: bool) -> Result<(), String> {
        let pmems = state.images.iter().map(Pmem::simulated_from_image).collect();
        let mut world = promoted(&self.shape, pmems, self.now).map_err(|why| format!("taking over: {why}"))?;
        let now = (self.seen)(snapshot(&mut world).map_err(|why| format!("reading: {why}"))?);
        compare(&now, &self.before, &self.after, ended)?;
        no_findings(&mut world)?;
        match number % 5 {
            0 => go_on(&mut world).map_err(|why| format!("going on: {why:?}")),
            _ => Ok(()),
        }
    }
}

/// Runs a change of a world that has mirrors, with power cuts at all fences of both: while it is made and sent, while the mirrors put it in
/// place, while they take over, and (`anew`) while a copy is made anew. Gives the number of states, 0 where the world was started anew.
pub fn step_mirrored<R>(
    world: &mut World,
    what: &str,
    seen: fn(Snapshot) -> Snapshot,
    anew: bool,
    change: impl FnOnce(&mut World) -> R,
) -> (R, u64) {
    let before = seen(snapshot(world).expect("a world can be read"));
    let mirrors = Mirrors::of(world);
    let pmems = mirrors.pmems();
    world.mirrors = Some(Box::new(mirrors));
    let primaries: Vec<_> = world.pools.iter().map(|pool| pool.pmem().clone()).collect();
    let (mut states, result) = collect_from(&pmems, &primaries, || {
        let result = change(world);
        world.mirror();
        world.regions.iter_mut().for_each(|region| drop(region.reap()));
        world.mirror();
        result
    });
    let Some(mut mirrors) = world.mirrors.take() else {
        return (result, 0);
    };
    let mut watched = Watched {
        what,
        shape: world.shape.clone(),
        now: world.now,
        after: seen(snapshot(world).expect("a world can be read")),
        before,
        seen,
        states: 0,
    };
    let catches_up = |state: &CrashState| mirrors.catch_up(world, &state.images);
    let ended = states.len();
    states.push(CrashState::new(mirrors.durable(), "after its end"));
    watched.verify("while it is sent", &states, ended, catches_up);

    let (states, ()) = collect_from(&pmems, &[], || mirrors.apply());
    let catches_up = |state: &CrashState| mirrors.catch_up(world, &state.images);
    watched.verify("while it is put in place", &states, 0, catches_up);

    let images = mirrors.durable();
    let taking_over: Vec<_> = images.iter().map(Pmem::simulated_from_image).collect();
    let (states, succeeded) = collect_from(&taking_over, &[], || {
        promoted(&world.shape, taking_over.clone(), world.now)
    });
    drop(succeeded.expect("mirrors take over"));
    watched.verify("while it takes over", &states, 0, |_| Ok(()));

    if anew {
        let (mut states, ()) = collect_from(&pmems, &[], || {
            let applied = mirrors.lanes[0].state().1.applied;
            mirrors.lanes[0].restart(applied);
            mirrors.spoil(world, 0);
            mirrors.fill(world, 0);
        });
        // one that is not whole does not take over
        states.retain(|state| {
            Mirrors::open(&world.shape, &state.images).is_ok_and(|found| found.lanes[0].state().1.whole)
        });
        assert!(!states.is_empty(), "{what}: a copy that was made anew is whole");
        watched.verify("while a copy is made anew", &states, 0, |_| Ok(()));
    }
    (result, watched.states)
}
