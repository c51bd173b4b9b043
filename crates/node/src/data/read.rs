//! Server-directed reads: the node puts the bytes into memory of the caller's, by one-sided writes from the pool, or
//! into the answer (Carns et al., 2.1 and 2.3; "server-active" in Octopus, 3.2.2). For callers that are not to have
//! one-sided access to data. A read goes by a snapshot, without the region's lock.

use crate::data::caller_memory::{BATCH_BYTES, Batches, parts};
use crate::names::permission::{self, READ};
use crate::region_service::{Held, RegionService};
use crate::replication::Replication;
use crate::request::context::RequestContext;
use polvo_cluster::ShownBytes;
use polvo_fabric::{Local, Memory, Remote, RemoteKey, Verb};
use polvo_format::{Gpa, RegionId, RegionOffset};
use polvo_proto::{FsError, InodeRef, SegmentClass, Window, reply};
use polvo_region::planted::{Planted, planted};
use polvo_region::{Piece, Region, RegionError, Snapshot};
use std::sync::Arc;
use std::time::Duration;

/// Reads up to here are put into the caller's memory without waiting for completions: the answer comes behind them over
/// the same queue pair (Octopus, 4.3.2). What the network does not take at once is copied then. Nothing is reported,
/// since the memory of a caller that has given its read up is taken back meanwhile.
const UNSIGNALED_MAX: u64 = 64 << 10;
/// What holes are made of.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A snapshot under way, until it is dropped.
pub(crate) struct Shown {
    service: Arc<RegionService>,
    snapshot: Snapshot,
    /// What is shown lies where it is as long as the region is served here.
    _held: Option<Held>,
}

impl ShownBytes for Shown {
    fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.service.enter(|region| region.end_read(self.snapshot.number));
    }
}

impl RequestContext<'_> {
    /// See [`polvo_proto::Request::Read`]. What is read is what the file held at some moment while the request was
    /// served.
    pub async fn read(
        &self,
        inode: InodeRef,
        offset: u64,
        len: u64,
        into: Option<Window>,
        verify: bool,
    ) -> Result<reply::Read, FsError> {
        let may_read = |region: &mut Region| {
            self.check(region, inode, |attr, acl| {
                permission::access(self.cred, attr, acl, READ)
            })
        };
        let shown = self.show(inode, offset, len, may_read).await?;
        let snapshot = &shown.snapshot;
        if verify {
            self.verify(inode, snapshot)?;
        }
        let bytes = match into {
            None => self.copy_out(snapshot),
            Some(window) => {
                self.put(snapshot, window).await?;
                Vec::new()
            }
        };
        let Snapshot { len, more, .. } = *snapshot;
        Ok(reply::Read { len, more, bytes })
    }

    /// Bytes of a file where they lie, and where they stay until the answer is dropped.
    pub(crate) async fn show(
        &self,
        inode: InodeRef,
        offset: u64,
        len: u64,
        may_read: impl Fn(&mut Region) -> Result<(), RegionError>,
    ) -> Result<Shown, FsError> {
        let region = inode.ino.region();
        let service = self.service(region)?.clone();
        let snapshot = self
            .take_for_session(region, |region| {
                may_read(region)?;
                region.begin_read(inode, offset, len)
            })
            .await?;
        let _held = service.hold();
        let shown = Shown {
            service,
            snapshot,
            _held,
        };
        self.answerable(&shown.service).await?;
        Ok(shown)
    }

    /// See [`polvo_proto::Request::ReadBytes`].
    pub async fn read_bytes(&self, region: RegionId, pieces: &[(RegionOffset, u32)]) -> Result<reply::Shown, FsError> {
        let service = self.service(region)?;
        if self.asking_node().is_ok() {
            // a node that looks at locks asks whether what it has written is there, at the mirrors, too
            service.enter(|region| drop(region.reap()));
        }
        let mut bytes = vec![0; pieces.iter().map(|(_, len)| *len as usize).sum()];
        let mut rest = &mut bytes[..];
        let shift = service.segment_shift();
        for (offset, len) in pieces {
            let (mut offset, mut len) = (*offset, *len as usize);
            while len > 0 {
                let room = (1u64 << shift) - (offset.0 & ((1 << shift) - 1));
                let part = len.min(usize::try_from(room).unwrap_or(len));
                if offset.0 >> Gpa::OFFSET_BITS != 0 {
                    return Err(FsError::Invalid(format!("offset {:#x} is in no region", offset.0)));
                }
                let (found, class) = service.locate(Gpa::new(region, offset), part)?;
                if class == SegmentClass::Data && !self.node.gives_one_sided(self.session.party) {
                    return Err(FsError::NotPermitted);
                }
                let now;
                (now, rest) = rest.split_at_mut(part);
                self.node.pmem.read(found, now);
                (offset, len) = (RegionOffset(offset.0 + part as u64), len - part);
            }
        }
        // what was seen is there to stay, and was ours to show
        if !(planted(Planted::RetiredUnmirrored) && self.asking_node().is_ok()) {
            self.answerable(service).await?;
        }
        let lease = service.replication().map_or(Duration::ZERO, Replication::lease_left);
        Ok(reply::Shown {
            bytes,
            lease_ms: u16::try_from(lease.as_millis()).unwrap_or(u16::MAX),
        })
    }

    /// EIO for a snapshot that shows damaged data.
    fn verify(&self, inode: InodeRef, snapshot: &Snapshot) -> Result<(), FsError> {
        for piece in &snapshot.pieces {
            if let Piece::Data { at, len } = piece
                && let Some(page) = self.node.space.damaged_page(*at, *len)
            {
                let why = format!(
                    "data of inode {:?} is damaged, in the page at {page:#x} of the pool",
                    inode.ino
                );
                return Err(FsError::Io(why));
            }
        }
        Ok(())
    }

    fn copy_out(&self, snapshot: &Snapshot) -> Vec<u8> {
        let mut bytes = vec![0; snapshot.len as usize];
        let mut rest = &mut bytes[..];
        for piece in &snapshot.pieces {
            let part;
            match piece {
                Piece::Zeros(len) => (_, rest) = rest.split_at_mut(*len as usize),
                Piece::Data { at, len } => {
                    (part, rest) = rest.split_at_mut(*len as usize);
                    self.node.pmem.read(*at, part);
                }
                Piece::Inline(inline) => {
                    (part, rest) = rest.split_at_mut(inline.len());
                    part.copy_from_slice(inline);
                }
            }
        }
        assert!(rest.is_empty(), "the pieces of a snapshot are all of it");
        bytes
    }

    /// Puts what a snapshot shows into the caller's memory.
    async fn put(&self, snapshot: &Snapshot, window: Window) -> Result<(), FsError> {
        let end = window.offset.checked_add(snapshot.len);
        end.ok_or_else(|| FsError::Invalid("memory that cannot be".into()))?;
        let memory = Memory::Pool(self.node.pmem.clone());
        let mut batches = Batches::new(self, snapshot.len > UNSIGNALED_MAX)?;
        let mut to = Remote {
            key: RemoteKey(window.key),
            offset: window.offset,
        };
        for piece in &snapshot.pieces {
            let whole = match piece {
                Piece::Zeros(len) | Piece::Data { len, .. } => *len,
                Piece::Inline(bytes) => bytes.len() as u64,
            };
            let most = match piece {
                Piece::Zeros(_) => ZEROS.len() as u64,
                _ => BATCH_BYTES,
            };
            for (start, len) in parts(whole, most) {
                let verb = match piece {
                    Piece::Data { at, .. } => Verb::WriteFrom {
                        to,
                        from: Local {
                            memory: &memory,
                            offset: at + start,
                            len,
                        },
                    },
                    Piece::Zeros(_) => Verb::Write {
                        to,
                        bytes: &ZEROS[..len as usize],
                    },
                    Piece::Inline(bytes) => Verb::Write {
                        to,
                        bytes: &bytes[start as usize..][..len as usize],
                    },
                };
                to.offset += len;
                batches.add(verb, len).await?;
            }
        }
        assert_eq!(
            to.offset,
            window.offset + snapshot.len,
            "the pieces of a snapshot are all of it"
        );
        batches.execute().await
    }
}
