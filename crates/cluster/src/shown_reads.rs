//! One-sided reads of regions with copies, which must show nothing that a mirror lacks, and nothing of a primary whose place others have
//! taken: its memory can be read all the same.
//!
//! Behind what is read, in the same batch, the region's [`Gate`] is. What was read counts when
//!
//! - every mirror has the records that had begun by then (`mirrored >= begun`; else the gate is looked at again, for a commit needs a
//!   round trip to the mirrors and no more), and
//! - it is there before the lease is over that this thread knows of ([`ReadLease`]).
//!
//! Else the primary is asked, which waits for its mirrors and tells of its lease. So one who reads now and then asks, as often as it does so;
//! who reads several times a second asks once, and learns of later leases by the gates.

use crate::one_sided::{Batch, Wait};
use crate::{Link, Links, RegionVerb};
use polvo_format::{NodeId, RegionId, RegionOffset};
use polvo_proto::{Ask, Beat, Cred, EAGER_READ_MAX, FsError, Gate, READS_MAX, ask, reply};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How often a gate is looked at again that is closed: where that is a round trip, and where it is a load.
const LOOKS: u32 = 2;
const LOOKS_AT_ONCE: u32 = 64;
/// How often is read what no answer takes, before it is asked for piece by piece.
const TURNS: u32 = 8;

/// What a thread knows of a primary's lease on a region.
struct ReadLease {
    /// Whose.
    node: NodeId,
    /// It is not over before.
    until: Instant,
    /// The beat that was read last, over which connection, and when that read was posted.
    beat: Option<(u64, Beat, Instant)>,
}

impl ReadLease {
    /// A beat was read, by a read that was posted then.
    fn see(&mut self, serial: u64, beat: Beat, posted: Instant) {
        if beat == Beat::default() {
            return;
        }
        if let Some((over, before, read)) = self.beat
            && over == serial
            && before != beat
        {
            // it was shown after that
            self.until = self.until.max(read + beat.left());
        }
        self.beat = Some((serial, beat, posted));
    }
}

/// Of all regions with copies that a thread reads.
#[derive(Default)]
pub(crate) struct ReadLeases(RefCell<BTreeMap<RegionId, ReadLease>>);

impl ReadLeases {
    fn is_known(&self, region: RegionId, node: NodeId, now: Instant) -> bool {
        let leases = self.0.borrow();
        leases
            .get(&region)
            .is_some_and(|lease| lease.node == node && now < lease.until)
    }

    /// A node has answered what was asked then.
    fn told(&self, region: RegionId, node: NodeId, asked: Instant, left: Duration) {
        let until = asked + left;
        let mut leases = self.0.borrow_mut();
        match leases.get_mut(&region).filter(|lease| lease.node == node) {
            Some(lease) => lease.until = lease.until.max(until),
            None => {
                let beat = None;
                leases.insert(region, ReadLease { node, until, beat });
            }
        }
    }

    fn see(&self, region: RegionId, link: &Link, beat: Beat, posted: Instant) {
        let mut leases = self.0.borrow_mut();
        if let Some(lease) = leases.get_mut(&region).filter(|lease| lease.node == link.node) {
            lease.see(link.serial, beat, posted);
        }
    }
}

impl Links {
    /// One batch of one-sided reads of a region, in order, of which only what every replica has is shown.
    ///
    /// # Errors
    /// As [`Links::one_sided`]; [`FsError::Busy`] for checksums of a region that changes faster than mirrors follow.
    pub async fn read(&self, region: RegionId, ops: &mut [RegionVerb<'_>]) -> Result<(), FsError> {
        match self.has_copies(region) {
            false => self.one_sided(region, ops).await,
            true => Box::pin(self.read_shown(region, ops)).await,
        }
    }

    async fn read_shown(&self, region: RegionId, ops: &mut [RegionVerb<'_>]) -> Result<(), FsError> {
        let mut turns = 0;
        loop {
            let now = Instant::now();
            let is_leased = self.read_leases.is_known(region, self.primary(region)?, now);
            if is_leased && self.read_behind_gate(region, ops, now).await? {
                return Ok(());
            }
            turns += 1;
            let is_little = ops.iter().map(RegionVerb::len).sum::<usize>() <= EAGER_READ_MAX;
            match ops.iter().all(|op| matches!(op, RegionVerb::Read { .. })) {
                true if is_little || turns > TURNS => return self.read_by_request(region, ops).await,
                false if turns > TURNS => return Err(FsError::Busy),
                // read once more, after the primary has waited for its mirrors
                _ => self.ask_for_bytes(region, Vec::new()).await?,
            };
        }
    }

    /// True: what was read counts.
    async fn read_behind_gate(
        &self,
        region: RegionId,
        ops: &mut [RegionVerb<'_>],
        posted: Instant,
    ) -> Result<bool, FsError> {
        let (gate, link) = match self.look_at_gate(region, ops, posted).await {
            Ok(seen) => seen,
            // nothing lies there by what may not count
            Err(FsError::Invalid(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut mirrored = gate.mirrored;
        let mut looks = match link.rpc.queue_pair().is_immediate() {
            true => LOOKS_AT_ONCE,
            false => LOOKS,
        };
        while mirrored < gate.begun && looks > 0 && gate.beat != Beat::default() {
            looks -= 1;
            tokio::task::yield_now().await;
            let (again, over) = self.look_at_gate(region, &mut [], Instant::now()).await?;
            if over.serial != link.serial {
                return Ok(false);
            }
            mirrored = again.mirrored;
        }
        let counts = mirrored >= gate.begun && gate.beat != Beat::default();
        Ok(counts && self.read_leases.is_known(region, link.node, Instant::now()))
    }

    /// A batch, and the gate behind it.
    async fn look_at_gate(
        &self,
        region: RegionId,
        ops: &mut [RegionVerb<'_>],
        posted: Instant,
    ) -> Result<(Gate, std::rc::Rc<Link>), FsError> {
        let mut gate = [0; Gate::SIZE];
        let batch = Batch {
            region,
            ops,
            gate: Some(&mut gate),
            wait: Wait::Complete,
        };
        let link = self.batch(batch, || true).await?;
        let gate = Gate::decode(&gate);
        self.read_leases.see(region, &link, gate.beat, posted);
        Ok((gate, link))
    }

    /// Reads what the primary itself says is there to stay.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for other things than reads of bytes of this region; as [`Links::call_region`].
    pub async fn read_by_request(&self, region: RegionId, ops: &mut [RegionVerb<'_>]) -> Result<(), FsError> {
        let mut wanted: Vec<(RegionOffset, &mut [u8])> = Vec::new();
        for op in ops {
            let RegionVerb::Read { at, into } = op else {
                return Err(FsError::Invalid("the checksums of a region with copies".into()));
            };
            if at.region() != region {
                return Err(FsError::Invalid(format!("{at:?} is not of region {}", region.0)));
            }
            for (n, part) in into.chunks_mut(EAGER_READ_MAX).enumerate() {
                let offset = at.offset().0 + (n * EAGER_READ_MAX) as u64;
                wanted.push((RegionOffset(offset), part));
            }
        }
        let mut rest = &mut wanted[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fit = rest.iter().take(READS_MAX).take_while(|(_, part)| {
                bytes += part.len();
                bytes <= EAGER_READ_MAX
            });
            let count = fit.count();
            let (now, later) = rest.split_at_mut(count);
            let pieces = now.iter().map(|(offset, part)| (*offset, part.len() as u32)).collect();
            let read = self.ask_for_bytes(region, pieces).await?;
            let mut read = &read[..];
            for (_, part) in now {
                let Some((bytes, others)) = read.split_at_checked(part.len()) else {
                    return Err(FsError::Io(format!(
                        "fewer bytes of region {} than were asked for",
                        region.0
                    )));
                };
                part.copy_from_slice(bytes);
                read = others;
            }
            rest = later;
        }
        Ok(())
    }

    async fn ask_for_bytes(&self, region: RegionId, pieces: Vec<(RegionOffset, u32)>) -> Result<Vec<u8>, FsError> {
        let call = self.make_call(Cred::Kernel, ask::ReadBytes { region, pieces });
        let (asked, limit) = (Instant::now(), self.context().timeouts().rpc);
        let (node, reply) = self.send_to_primary(region, call, limit).await?;
        let reply::Shown { bytes, lease_ms } = ask::ReadBytes::answered(Ok(reply), node)?;
        self.read_leases
            .told(region, node, asked, Duration::from_millis(lease_ms.into()));
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_known_from_when_another_beat_was_read_before() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let leases = ReadLeases::default();
        let (region, node, other) = (RegionId(3), NodeId(1), NodeId(2));
        assert!(!leases.is_known(region, node, start));
        leases.told(region, node, start, ms(500));
        leases.told(region, node, start, ms(400));
        let until = |leases: &ReadLeases| leases.0.borrow()[&region].until - start;
        assert_eq!(until(&leases), ms(500), "none ends earlier than was told");
        assert!(leases.is_known(region, node, start + ms(499)) && !leases.is_known(region, node, start + ms(500)));
        assert!(
            !leases.is_known(region, other, start),
            "of another node nothing is known"
        );

        let see = |serial, n, at| {
            let mut leases = leases.0.borrow_mut();
            let lease = leases.get_mut(&region).expect("it is known");
            lease.see(serial, Beat::new(n, ms(700)), start + ms(at));
        };
        see(0, 8, 100);
        assert_eq!(until(&leases), ms(500), "it may have been shown long ago");
        see(0, 8, 300);
        see(0, 9, 450);
        assert_eq!(until(&leases), ms(1000), "after 300");
        see(0, 10, 460);
        see(1, 11, 900);
        assert_eq!(
            until(&leases),
            ms(1150),
            "over another connection it may be another gate"
        );
        leases
            .0
            .borrow_mut()
            .get_mut(&region)
            .expect("known")
            .see(1, Beat::default(), start + ms(1100));
        see(1, 12, 1120);
        assert_eq!(until(&leases), ms(1600), "no beat says nothing");
        leases.told(region, other, start, ms(2));
        assert_eq!(until(&leases), ms(2), "it has moved");
    }
}
