//! One-sided operations addressed by GPA.

use crate::links::fabric_error;
use crate::{Link, Links};
use polvo_fabric::{FabricError, Remote, RemoteKey, Verb};
use polvo_format::{Gpa, RegionId, RegionOffset};
use polvo_proto::{FsError, SegmentMap, SegmentPlace};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// A one-sided operation addressed by GPA.
pub enum RegionVerb<'a> {
    /// Read.
    Read {
        /// from
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
            | RegionVerb::WriteData { at, .. }
            | RegionVerb::WriteAny { at, .. }
            | RegionVerb::CompareSwap { at, .. } => *at,
        }
    }

    fn len(&self) -> usize {
        match self {
            RegionVerb::Read { into, .. } => into.len(),
            RegionVerb::WriteData { bytes, .. } | RegionVerb::WriteAny { bytes, .. } => bytes.len(),
            RegionVerb::CompareSwap { .. } => 8,
        }
    }
}

/// Why verbs could not be made of operations.
enum Untranslatable {
    /// The segment map at hand lacks a segment, or the key to write to it: it has grown since.
    Unknown,
    /// No map would do.
    Never(FsError),
}

struct Translator<'m, 'v> {
    map: &'m SegmentMap,
    verbs: Vec<Verb<'v>>,
}

impl<'m, 'v> Translator<'m, 'v> {
    /// The place of a region offset and how many bytes follow it in its segment.
    fn locate(&self, offset: RegionOffset) -> Result<(&'m SegmentPlace, u64, usize), Untranslatable> {
        let (place, inner) = self.map.locate(offset).ok_or(Untranslatable::Unknown)?;
        let room = (1u64 << self.map.segment_shift) - inner;
        Ok((place, inner, usize::try_from(room).unwrap_or(usize::MAX)))
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
    fn push(&mut self, op: &'v mut RegionVerb<'_>) -> Result<(), Untranslatable> {
        let mut offset = op.at().offset();
        match op {
            RegionVerb::Read { into, .. } => {
                let mut rest: &'v mut [u8] = into;
                while !rest.is_empty() {
                    let (place, inner, room) = self.locate(offset)?;
                    let from = self.pool_address(self.map.read_key, place, inner)?;
                    let (now, later) = rest.split_at_mut(room.min(rest.len()));
                    offset.0 += now.len() as u64;
                    self.verbs.push(Verb::Read { from, into: now });
                    rest = later;
                }
            }
            RegionVerb::WriteData { bytes, .. } => {
                let mut rest: &'v [u8] = bytes;
                while !rest.is_empty() {
                    let (place, inner, room) = self.locate(offset)?;
                    if place.write_key == 0 {
                        return Err(Untranslatable::Unknown);
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
                    let (place, inner, room) = self.locate(offset)?;
                    let to = self.pool_address(self.map.node_key, place, inner)?;
                    let (now, later) = rest.split_at(room.min(rest.len()));
                    offset.0 += now.len() as u64;
                    self.verbs.push(Verb::Write { to, bytes: now });
                    rest = later;
                }
            }
            RegionVerb::CompareSwap { expect, new, found, .. } => {
                let (place, inner, _) = self.locate(offset)?;
                let at = self.pool_address(self.map.node_key, place, inner)?;
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

fn translate<'v>(map: &SegmentMap, ops: &'v mut [RegionVerb<'_>]) -> Result<Vec<Verb<'v>>, Untranslatable> {
    let mut translator = Translator {
        map,
        verbs: Vec::with_capacity(ops.len()),
    };
    for op in ops {
        translator.push(op)?;
    }
    Ok(translator.verbs)
}

/// Runs a batch, bounded in time. One that completes at once (as over shared memory) costs no timer.
async fn execute(link: &Link, verbs: &mut [Verb<'_>], limit: Duration) -> Result<(), FabricError> {
    let mut batch = pin!(link.rpc.queue_pair().execute(verbs));
    let at_once = poll_fn(|cx| match batch.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => Poll::Ready(None),
    });
    if let Some(result) = at_once.await {
        return result;
    }
    tokio::time::timeout(limit, batch).await.unwrap_or_else(|_| {
        let ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        link.rpc.queue_pair().close(); // nothing of the batch may take effect after we have given it up
        Err(FabricError::TimedOut {
            peer: format!("node {}", link.node.0),
            ms,
        })
    })
}

impl Links {
    /// One batch of one-sided operations on one region, addressed by GPA, in order. Segments are looked up and the map
    /// refreshed on a miss or when the node knows a key no more. After a lost connection a batch is repeated once,
    /// unless it holds an atomic operation: then the caller must look first at what has happened.
    pub async fn one_sided(&self, region: RegionId, ops: &mut [RegionVerb<'_>]) -> Result<(), FsError> {
        if let Some(stranger) = ops.iter().find(|op| op.at().region() != region) {
            return Err(FsError::Invalid(format!(
                "{:?} is not in region {}",
                stranger.at(),
                region.0
            )));
        }
        let bytes = ops.iter().map(RegionVerb::len).sum();
        let repeatable = !ops.iter().any(|op| matches!(op, RegionVerb::CompareSwap { .. }));
        let limit = self.context().timeouts().rpc;
        let (mut refreshed, mut repeated) = (false, false);
        loop {
            let link = self.to(self.primary(region)?).await?;
            let map = match self.cached_segments(region, &link) {
                Some(map) => map,
                None => self.fetch_segments(region, &link, None).await?,
            };
            let mut verbs = match translate(&map, ops) {
                Ok(verbs) => verbs,
                Err(Untranslatable::Never(error)) => return Err(error),
                Err(Untranslatable::Unknown) if !refreshed => {
                    refreshed = true;
                    self.fetch_segments(region, &link, Some(map)).await?;
                    continue;
                }
                Err(Untranslatable::Unknown) => {
                    return Err(FsError::Invalid(format!(
                        "address outside the segments of region {}",
                        region.0
                    )));
                }
            };
            self.counters().count_batch(bytes);
            match execute(&link, &mut verbs, limit).await {
                Ok(()) => return Ok(()),
                Err(FabricError::BadKey { .. } | FabricError::Denied { .. }) if repeatable && !refreshed => {
                    refreshed = true;
                    self.forget_segments(region);
                }
                Err(FabricError::Disconnected { .. }) if repeatable && !repeated => repeated = true,
                Err(error) => {
                    self.forget_segments(region);
                    return Err(fabric_error(link.node, error));
                }
            }
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
        };
        SegmentMap {
            region: RegionId(3),
            epoch: Epoch(1),
            segment_shift: 12,
            read_key: 71,
            node_key: 0,
            segments: vec![place(0, 0x8000, 0), place(1, 0x2000, 72), place(2, 0x5000, 73)],
        }
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
        let Ok(verbs) = translate(&map(), &mut ops) else {
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
    fn data_is_written_under_the_key_of_its_segment() {
        let mut ops = [RegionVerb::WriteData {
            at: gpa(0x1010),
            bytes: &[1, 2, 3],
        }];
        let Ok(verbs) = translate(&map(), &mut ops) else {
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
                matches!(translate(&map(), &mut [op]), Err(Untranslatable::Unknown)),
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
            translate(&map(), &mut ops),
            Err(Untranslatable::Never(FsError::NotPermitted))
        ));
    }
}
