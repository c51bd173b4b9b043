//! One-sided operations addressed by GPA.

use crate::links::{fabric_error, in_vain};
use crate::{Link, Links, Timeouts};
use polvo_fabric::{FabricError, QueuePair, Remote, RemoteKey, Verb};
use polvo_format::{Gpa, NodeId, PAGE, PAGE_CHECKSUM_SIZE, RegionId, RegionOffset};
use polvo_proto::{FsError, Gate, SegmentMap, SegmentPlace};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;

/// A one-sided operation addressed by GPA.
pub enum RegionVerb<'a> {
    /// Read.
    Read {
        /// from
        at: Gpa,
        /// into
        into: &'a mut [u8],
    },
    /// Read of the checksums of the pages of data from an address on, 8 bytes each.
    ReadChecksums {
        /// the first page
        at: Gpa,
        /// into
        into: &'a mut [u8],
    },
    /// Write to delegated data space.
    WriteData {
        /// to
        at: Gpa,
        /// bytes
        bytes: &'a [u8],
    },
    /// Dispatch write (node key).
    WriteAny {
        /// to
        at: Gpa,
        /// bytes
        bytes: &'a [u8],
    },
    /// Compare-and-swap (node key).
    CompareSwap {
        /// at
        at: Gpa,
        /// expected
        expect: u64,
        /// new
        new: u64,
        /// old
        found: &'a mut u64,
    },
}

impl RegionVerb<'_> {
    fn at(&self) -> Gpa {
        match self {
            RegionVerb::Read { at, .. }
            | RegionVerb::ReadChecksums { at, .. }
            | RegionVerb::WriteData { at, .. }
            | RegionVerb::WriteAny { at, .. }
            | RegionVerb::CompareSwap { at, .. } => *at,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            RegionVerb::Read { into, .. } | RegionVerb::ReadChecksums { into, .. } => into.len(),
            RegionVerb::WriteData { bytes, .. } | RegionVerb::WriteAny { bytes, .. } => bytes.len(),
            RegionVerb::CompareSwap { .. } => 8,
        }
    }
}

/// What a batch is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Its completion.
    Complete,
    /// That it is on its way, where it has a way to go.
    Ahead,
    /// That it is on its way. Nobody repeats it.
    Posted,
}

/// Why verbs could not be made of operations.
enum Untranslatable {
    /// The map at hand of this region lacks a segment, or the key to write to it: the region has grown since.
    Unknown(RegionId),
    /// No map would do.
    Never(FsError),
}

/// Segment maps of the regions that a batch touches; nearly always one.
struct Maps {
    first: Rc<SegmentMap>,
    others: Vec<Rc<SegmentMap>>,
}

impl Maps {
    fn get(&self, region: RegionId) -> Option<&Rc<SegmentMap>> {
        std::iter::once(&self.first)
            .chain(&self.others)
            .find(|map| map.region == region)
    }
}

struct Translator<'v> {
    verbs: Vec<Verb<'v>>,
}

/// The place of a region offset and how many bytes follow it in its segment.
fn locate(map: &SegmentMap, offset: RegionOffset) -> Result<(&SegmentPlace, u64, usize), Untranslatable> {
    let (place, inner) = map.locate(offset).ok_or(Untranslatable::Unknown(map.region))?;
    assert!(inner < 1 << map.segment_shift, "a place lies in its segment");
    let room = (1u64 << map.segment_shift) - inner;
    Ok((place, inner, usize::try_from(room).unwrap_or(usize::MAX)))
}

impl<'v> Translator<'v> {
    /// Where an asker reads: anywhere in the pool, or in a segment that it may read.
    fn read_address(&self, map: &SegmentMap, place: &SegmentPlace, inner: u64) -> Result<Remote, Untranslatable> {
        match (map.read_key, place.read_key) {
            (0, 0) => Err(Untranslatable::Never(FsError::NotPermitted)),
            (0, key) => Ok(Remote {
                key: RemoteKey(key),
                offset: inner,
            }),
            (key, _) => self.pool_address(key, place, inner),
        }
    }

    fn pool_address(&self, key: u64, place: &SegmentPlace, inner: u64) -> Result<Remote, Untranslatable> {
        match key {
            0 => Err(Untranslatable::Never(FsError::NotPermitted)),
            key => Ok(Remote {
                key: RemoteKey(key),
                offset: place.pool_offset + inner,
            }),
        }
    }

    /// Neighbours in a region need not be neighbours in the pool: what crosses segments becomes several verbs.
    fn push(&mut self, map: &SegmentMap, op: &'v mut RegionVerb<'_>) -> Result<(), Untranslatable> {
        let mut offset = op.at().offset();
        match op {
            RegionVerb::Read { into, .. } => {
                let mut rest: &'v mut [u8] = into;
                while !rest.is_empty() {
                    let (place, inner, room) = locate(map, offset)?;
                    let from = self.read_address(map, place, inner)?;
                    let (now, later) = rest.split_at_mut(room.min(rest.len()));
                    offset.0 += now.len() as u64;
                    self.verbs.push(Verb::Read { from, into: now });
                    rest = later;
                }
            }
            RegionVerb::ReadChecksums { into, .. } => {
                let mut rest: &'v mut [u8] = into;
                while !rest.is_empty() {
                    let (place, inner, room) = locate(map, offset)?;
                    let at = map.checksum_of(place, inner).filter(|_| map.read_key != 0);
                    let at = at.ok_or(Untranslatable::Never(FsError::NotPermitted))?;
                    let words = (room / PAGE * PAGE_CHECKSUM_SIZE as usize).max(PAGE_CHECKSUM_SIZE as usize);
                    let (now, later) = rest.split_at_mut(words.min(rest.len()));
                    debug_assert!(
                        now.len().is_multiple_of(PAGE_CHECKSUM_SIZE as usize),
                        "checksums of whole pages"
                    );
                    offset.0 += (now.len() / PAGE_CHECKSUM_SIZE as usize * PAGE) as u64;
                    let from = Remote {
                        key: RemoteKey(map.read_key),
                        offset: at,
                    };
                    self.verbs.push(Verb::Read { from, into: now });
                    rest = later;
                }
            }
            RegionVerb::WriteData { bytes, .. } => {
                let mut rest: &'v [u8] = bytes;
                while !rest.is_empty() {
                    let (place, inner, room) = locate(map, offset)?;
                    if place.write_key == 0 {
                        return Err(Untranslatable::Unknown(map.region));
                    }
                    let to = Remote {
                        key: RemoteKey(place.write_key),
                        offset: inner,
                    };
                    let (now, later) = rest.split_at(room.min(rest.len()));
                    offset.0 += now.len() as u64;
                    self.verbs.push(Verb::Write { to, bytes: now });
                    rest = later;
                }
            }
            RegionVerb::WriteAny { bytes, .. } => {
                let mut rest: &'v [u8] = bytes;
                while !rest.is_empty() {
                    let (place, inner, room) = locate(map, offset)?;
                    let to = self.pool_address(map.node_key, place, inner)?;
                    let (now, later) = rest.split_at(room.min(rest.len()));
                    offset.0 += now.len() as u64;
                    self.verbs.push(Verb::Write { to, bytes: now });
                    rest = later;
                }
            }
            RegionVerb::CompareSwap { expect, new, found, .. } => {
                let (place, inner, _) = locate(map, offset)?;
                let at = self.pool_address(map.node_key, place, inner)?;
                self.verbs.push(Verb::CompareSwap {
                    at,
                    expect: *expect,
                    new: *new,
                    found,
                });
            }
        }
        Ok(())
    }
}

fn translate<'v>(
    maps: &Maps,
    ops: &'v mut [RegionVerb<'_>],
    gate: Option<&'v mut [u8; Gate::SIZE]>,
) -> Result<Vec<Verb<'v>>, Untranslatable> {
    let mut translator = Translator {
        verbs: Vec::with_capacity(ops.len() + usize::from(gate.is_some())),
    };
    for op in ops {
        let region = op.at().region();
        let map = maps.get(region).ok_or(Untranslatable::Unknown(region))?;
        debug_assert!(
            map.region == region,
            "a segment map is of the region that was asked for"
        );
        translator.push(map, op)?;
    }
    if let Some(into) = gate {
        let (key, offset) = maps.first.gate;
        let key = RemoteKey(key);
        translator.verbs.push(Verb::Read {
            from: Remote { key, offset },
            into,
        });
    }
    Ok(translator.verbs)
}

/// Runs a batch of a queue pair, bounded in time: when that is over the connection is closed. A batch that completes at once
/// (as over shared memory) costs no timer. Each poll polls the batch once, since it uses its turn to spin.
pub async fn within(
    pair: &QueuePair,
    limit: Duration,
    batch: impl Future<Output = Result<(), FabricError>>,
) -> Result<(), FabricError> {
    let mut batch = pin!(batch);
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|cx| {
        if let Poll::Ready(result) = batch.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(timer.as_mut().poll(cx));
        let ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        pair.close(); // nothing of the batch may take effect after we have given it up
        Poll::Ready(Err(FabricError::TimedOut {
            peer: pair.peer_name().to_owned(),
            ms,
        }))
    })
    .await
}

/// What a batch is made of.
pub(crate) struct Batch<'b, 'v> {
    /// One region of those that it touches.
    pub region: RegionId,
    pub ops: &'b mut [RegionVerb<'v>],
    /// The region's gate is read into this, behind all else.
    pub gate: Option<&'b mut [u8; Gate::SIZE]>,
    pub wait: Wait,
}

impl Batch<'_, '_> {
    fn is_repeatable(&self) -> bool {
        self.wait != Wait::Posted && !self.ops.iter().any(|op| matches!(op, RegionVerb::CompareSwap { .. }))
    }

    fn bytes(&self) -> usize {
        let gate = self.gate.as_ref().map_or(0, |gate| gate.len());
        self.ops.iter().map(RegionVerb::len).sum::<usize>() + gate
    }
}

impl Links {
    /// One batch of one-sided operations, addressed by GPA, in order, on one region and on others that the same node
    /// serves. Segments are looked up and the map refreshed on a miss or when the node knows a key no more. After a lost
    /// connection a batch is repeated once, unless it holds an atomic operation: then the caller must look first at what
    /// has happened.
    pub async fn one_sided(&self, region: RegionId, ops: &mut [RegionVerb<'_>]) -> Result<(), FsError> {
        self.one_sided_while(region, ops, || true).await
    }

    /// Posts one batch of writes and does not wait for it (Octopus, section 3.3.2: nobody waits for a dispatch): it takes effect
    /// as a whole and in order, and before whatever this thread asks of that node next, unless the connection is lost. It is
    /// never repeated. True if it has taken effect already.
    ///
    /// # Errors
    /// It could not be posted; it may have taken effect all the same, but nothing of it will from now on.
    pub async fn post_writes(&self, region: RegionId, writes: &mut [RegionVerb<'_>]) -> Result<bool, FsError> {
        let batch = Batch {
            region,
            ops: writes,
            gate: None,
            wait: Wait::Posted,
        };
        let link = self.batch(batch, || true).await?;
        Ok(link.rpc.queue_pair().is_immediate())
    }

    /// As [`Links::one_sided`], for writes to what a session was given: nothing is posted once it is not `ours` any more.
    /// Connecting may find out that the node was started anew, and knows nothing of what it had given to whom; the keys
    /// that it hands out then would open what it has given to others since.
    ///
    /// # Errors
    /// [`FsError::SessionExpired`] when it is not ours.
    pub async fn one_sided_while(
        &self,
        region: RegionId,
        ops: &mut [RegionVerb<'_>],
        ours: impl Fn() -> bool,
    ) -> Result<(), FsError> {
        let batch = Batch {
            region,
            ops,
            gate: None,
            wait: Wait::Complete,
        };
        self.batch(batch, ours).await.map(drop)
    }

    /// As [`Links::one_sided_while`], for writes that a request follows over the same connection ([`Links::call_behind`]):
    /// where they travel they are not waited for, which saves a round trip. Returns the connection that the request is to go over;
    /// `None`: any, since they are in place, and no copy takes the place of the pool that they went to.
    ///
    /// A queue pair executes what is posted on it in order, and nothing behind a write that fails.
    ///
    /// # Errors
    /// As [`Links::one_sided_while`].
    pub async fn write_ahead(
        &self,
        region: RegionId,
        writes: &mut [RegionVerb<'_>],
        ours: impl Fn() -> bool,
    ) -> Result<Option<Rc<Link>>, FsError> {
        let batch = Batch {
            region,
            ops: writes,
            gate: None,
            wait: Wait::Ahead,
        };
        let link = self.batch(batch, ours).await?;
        Ok((self.has_copies(region) || !link.rpc.queue_pair().is_immediate()).then_some(link))
    }

    /// Executes a batch, at another node where the region moves. Returns the connection over which it was.
    pub(crate) async fn batch(&self, mut batch: Batch<'_, '_>, ours: impl Fn() -> bool) -> Result<Rc<Link>, FsError> {
        let region = batch.region;
        let mut away_since = None;
        loop {
            let (mut lost, primary) = (None, self.primary(region)?);
            let done = self.try_batch(&mut batch, &ours, &mut lost).await;
            if let (Err(_), Some(node)) = (&done, lost) {
                self.context().give_up(node);
            }
            // a copy may take its place; what was to be written only once is for the caller to look at
            let is_gone = match &done {
                Err(FsError::Unreachable { .. }) => self.has_copies(region),
                // another region that it touches may be the one that has moved
                Err(FsError::WrongEpoch) => batch.ops.iter().any(|op| self.has_copies(op.at().region())),
                _ => false,
            };
            if !is_gone || !batch.is_repeatable() {
                return done;
            }
            self.ask_around(primary).await;
            if self.primary(region)? == primary && !self.may_move(&mut away_since).await {
                return done.map_err(|error| in_vain(error, primary, region));
            }
        }
    }

    /// As [`Links::batch`]. `lost`: the node at which some of it may still take effect, over a connection that is lost.
    async fn try_batch(
        &self,
        batch: &mut Batch<'_, '_>,
        ours: &impl Fn() -> bool,
        lost: &mut Option<NodeId>,
    ) -> Result<Rc<Link>, FsError> {
        let (region, bytes, repeatable) = (batch.region, batch.bytes(), batch.is_repeatable());
        let limit = match self.has_copies(region) {
            true => Timeouts::MIRROR,
            false => self.context().timeouts().rpc,
        };
        // each region's map is fetched again at most once
        let (mut refreshed, mut repeated) = (0, false);
        loop {
            let primary = self.primary(region)?;
            let link = self.to_its_primary(region, primary).await?;
            let maps = self.maps_of(&link, region, batch.ops).await?;
            // before anything is said of the addresses: those of space that is not ours any more may lie nowhere
            if !ours() {
                return Err(FsError::SessionExpired);
            }
            let mut verbs = match translate(&maps, batch.ops, batch.gate.as_deref_mut()) {
                Ok(verbs) => verbs,
                Err(Untranslatable::Never(error)) => return Err(error),
                Err(Untranslatable::Unknown(region)) if refreshed <= maps.others.len() => {
                    refreshed += 1;
                    debug_assert!(
                        refreshed <= maps.others.len() + 1,
                        "each region's map is fetched once more"
                    );
                    self.fetch_segments(region, &link, maps.get(region).cloned()).await?;
                    continue;
                }
                Err(Untranslatable::Unknown(region)) => {
                    return Err(FsError::Invalid(format!(
                        "address outside the segments of region {}",
                        region.0
                    )));
                }
            };
            debug_assert_eq!(maps.first.region, region, "the first map is the region's");
            self.counters().count_batch(bytes);
            let pair = link.rpc.queue_pair();
            let ended = match batch.wait {
                Wait::Ahead if !pair.is_immediate() => within(pair, limit, pair.execute_quietly(&mut verbs)).await,
                Wait::Complete | Wait::Ahead => within(pair, limit, pair.execute(&mut verbs)).await,
                Wait::Posted => within(pair, limit, pair.execute_deferred(&mut verbs)).await,
            };
            let is_lost = |error: &FabricError| {
                matches!(error, FabricError::Disconnected { .. } | FabricError::TimedOut { .. })
                    && batch.ops.iter().any(|op| !matches!(op, RegionVerb::Read { .. }))
            };
            if ended.as_ref().is_err_and(is_lost) {
                *lost = Some(link.node);
            }
            let error = match ended {
                Ok(()) => return Ok(link),
                Err(FabricError::Disconnected { .. }) if repeatable && !repeated => {
                    repeated = true;
                    continue;
                }
                Err(error) => error,
            };
            self.forget_segments(maps.first.region);
            maps.others.iter().for_each(|map| self.forget_segments(map.region));
            match error {
                FabricError::BadKey { .. } | FabricError::Denied { .. }
                    if repeatable && refreshed <= maps.others.len() =>
                {
                    refreshed = maps.others.len() + 1;
                }
                error => return Err(fabric_error(link.node, error)),
            }
        }
    }

    /// Segment maps of all regions that the operations touch.
    async fn maps_of(&self, link: &Rc<Link>, region: RegionId, ops: &[RegionVerb<'_>]) -> Result<Maps, FsError> {
        let mut maps = Maps {
            first: self.map_over(link, region).await?,
            others: Vec::new(),
        };
        for op in ops {
            let other = op.at().region();
            if maps.get(other).is_some() {
                continue;
            }
            if self.primary(other)? != link.node {
                return Err(FsError::Invalid(format!(
                    "{:?} is not at node {}",
                    op.at(),
                    link.node.0
                )));
            }
            let map = self.map_over(link, other).await?;
            debug_assert_eq!(map.region, other, "a region's map is its own");
            maps.others.push(map);
        }
        Ok(maps)
    }

    async fn map_over(&self, link: &Rc<Link>, region: RegionId) -> Result<Rc<SegmentMap>, FsError> {
        match self.cached_segments(region, link) {
            Some(map) => Ok(map),
            None => self.fetch_segments(region, link, None).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::Epoch;
    use polvo_proto::SegmentClass;

    fn map() -> SegmentMap {
        let place = |index, pool_offset, write_key| SegmentPlace {
            index,
            pool_offset,
            class: SegmentClass::Data,
            write_key,
            read_key: 0,
        };
        SegmentMap {
            region: RegionId(3),
            epoch: Epoch(1),
            segment_shift: 12,
            read_key: 71,
            node_key: 0,
            checksums: (0x400, 0x2000),
            gate: (74, 0x40),
            segments: vec![place(0, 0x8000, 0), place(1, 0x2000, 72), place(2, 0x5000, 73)],
        }
    }

    fn maps() -> Maps {
        let other = SegmentMap {
            region: RegionId(4),
            read_key: 81,
            ..map()
        };
        Maps {
            first: Rc::new(map()),
            others: vec![Rc::new(other)],
        }
    }

    #[test]
    fn regions_of_one_node_share_a_batch() {
        let (mut a, mut b) = ([0; 8], [0; 8]);
        let elsewhere = Gpa::new(RegionId(4), RegionOffset(0x1000));
        let mut ops = [
            RegionVerb::Read {
                at: gpa(0x10),
                into: &mut a,
            },
            RegionVerb::Read {
                at: elsewhere,
                into: &mut b,
            },
        ];
        let Ok(verbs) = translate(&maps(), &mut ops, None) else {
            panic!("all segments are known")
        };
        let keys: Vec<u64> = verbs
            .iter()
            .map(|v| match v {
                Verb::Read { from, .. } => from.key.0,
                _ => panic!("only reads were asked for"),
            })
            .collect();
        assert_eq!(keys, [71, 81]);
    }

    fn gpa(offset: u64) -> Gpa {
        Gpa::new(RegionId(3), RegionOffset(offset))
    }

    #[test]
    fn a_read_across_segments_becomes_one_verb_a_segment() {
        let mut into = [0u8; 0x1100];
        let mut ops = [RegionVerb::Read {
            at: gpa(0xf80),
            into: &mut into,
        }];
        let Ok(verbs) = translate(&maps(), &mut ops, None) else {
            panic!("all segments are known")
        };
        let parts: Vec<(u64, u64, usize)> = verbs
            .iter()
            .map(|v| match v {
                Verb::Read { from, into } => (from.key.0, from.offset, into.len()),
                _ => panic!("only reads were asked for"),
            })
            .collect();
        assert_eq!(parts, [(71, 0x8f80, 0x80), (71, 0x2000, 0x1000), (71, 0x5000, 0x80)]);
    }

    #[test]
    fn who_may_not_read_the_whole_pool_reads_the_segments_that_it_may() {
        let mut map = SegmentMap { read_key: 0, ..map() };
        map.segments[1].read_key = 75;
        let maps = Maps {
            first: Rc::new(map),
            others: Vec::new(),
        };
        let mut into = [0; 8];
        let mut ops = [RegionVerb::Read {
            at: gpa(0x1010),
            into: &mut into,
        }];
        let Ok(verbs) = translate(&maps, &mut ops, None) else {
            panic!("this segment may be read")
        };
        assert!(matches!(&verbs[..], [Verb::Read { from, .. }] if from.key.0 == 75 && from.offset == 0x10));
        let mut ops = [RegionVerb::Read {
            at: gpa(0x10),
            into: &mut into,
        }];
        assert!(matches!(
            translate(&maps, &mut ops, None),
            Err(Untranslatable::Never(FsError::NotPermitted))
        ));
    }

    #[test]
    fn checksums_lie_elsewhere_in_the_pool() {
        let mut words = [0; 16];
        // of the third page of the pool's segments, which begin at 0x2000, and those of a segment that lies elsewhere
        let mut both = [0; 16];
        let mut ops = [RegionVerb::ReadChecksums {
            at: gpa(0x1000),
            into: &mut both,
        }];
        let all = maps();
        let verbs = translate(&all, &mut ops, None).ok().expect("both are known");
        let read_from = |verb: &Verb<'_>| match verb {
            Verb::Read { from, into } => (from.key.0, from.offset, into.len()),
            _ => panic!("reads"),
        };
        let found: Vec<_> = verbs.iter().map(read_from).collect();
        assert_eq!(found, [(71, 0x400, 8), (71, 0x400 + 3 * 8, 8)]);
        let mut without = maps();
        let map = |checksums, read_key| SegmentMap {
            checksums,
            read_key,
            ..map()
        };
        for (checksums, read_key) in [((0, 0), 71), ((0x400, 0x2000), 0)] {
            without.first = Rc::new(map(checksums, read_key));
            let mut ops = [RegionVerb::ReadChecksums {
                at: gpa(0x1000),
                into: &mut words,
            }];
            assert!(matches!(
                translate(&without, &mut ops, None),
                Err(Untranslatable::Never(_))
            ));
        }
    }

    #[test]
    fn data_is_written_under_the_key_of_its_segment() {
        let mut ops = [RegionVerb::WriteData {
            at: gpa(0x1010),
            bytes: &[1, 2, 3],
        }];
        let Ok(verbs) = translate(&maps(), &mut ops, None) else {
            panic!("all segments are known")
        };
        assert!(matches!(
            &verbs[..],
            [Verb::Write {
                to: Remote {
                    key: RemoteKey(72),
                    offset: 0x10
                },
                bytes: [1, 2, 3]
            }]
        ));
    }

    #[test]
    fn what_the_map_lacks_asks_for_a_newer_map() {
        let cases: [(&str, RegionVerb<'_>); 2] = [
            (
                "segment beyond the map",
                RegionVerb::Read {
                    at: gpa(0x3000),
                    into: &mut [0; 8],
                },
            ),
            (
                "segment without a write key",
                RegionVerb::WriteData {
                    at: gpa(0x10),
                    bytes: &[1],
                },
            ),
        ];
        for (what, op) in cases {
            assert!(
                matches!(
                    translate(&maps(), &mut [op], None),
                    Err(Untranslatable::Unknown(RegionId(3)))
                ),
                "{what}"
            );
        }
    }

    #[test]
    fn a_client_has_no_key_for_metadata() {
        let mut ops = [RegionVerb::WriteAny {
            at: gpa(0x10),
            bytes: &[1],
        }];
        assert!(matches!(
            translate(&maps(), &mut ops, None),
            Err(Untranslatable::Never(FsError::NotPermitted))
        ));
    }
}
