//! Server-directed transfers: the caller names memory of its own and the node moves the data (Carns et al., 2.1 and 2.3;
//! "server-active" in Octopus, 3.2.2). For callers that are not to have one-sided access to data.
//!
//! A write is fetched by one-sided reads straight into fresh pages, durably, then committed as a client would have it
//! committed. (Callers inside this process do the same with a copy in the place of the fetching.) A read goes by one-sided writes from the pool straight into the caller's memory. Neither holds the region's
//! lock: a write's pages are nobody's until it is committed, a read goes by a snapshot. What is small travels in the request
//! or its answer and comes by here only to be copied.
//!
//! A caller can lie about its memory, take it away, or let the node wait: then the request fails within its time, its pages go
//! back, and others are served meanwhile. Transfers of a connection are limited by its slots for requests, and each by
//! [`polvo_proto::TRANSFER_MAX`].

use crate::data::file_services::check_end;
use crate::names::permission::{self, READ, WRITE};
use crate::region_service::RegionService;
use crate::request::context::RequestContext;
use polvo_cluster::within;
use polvo_fabric::{FabricError, Local, Memory, QueuePair, Remote, RemoteKey, Verb};
use polvo_format::{FileKind, Gpa, PAGE, SessionId, Tail, crcs_of_pages};
use polvo_proto::{FsError, InodeRef, PageRun, RUNS_MAX, Window, WriteAnswer, WriteAt, WriteRun, Written, reply};
use polvo_region::{NewData, Piece, Region, RegionError, Snapshot};
use std::sync::Arc;

/// Owns the pages of writes under way; no session has this id.
const OWNER: SessionId = SessionId(0);
/// Bytes moved before others get their turn.
const BATCH_BYTES: u64 = 1 << 20;
/// Most verbs of a batch.
const BATCH_VERBS: usize = 256;
/// Reads up to here are put into the caller's memory without waiting for completions: the answer comes behind them over the
/// same queue pair (Octopus, 4.3.2). What the network does not take at once is copied then. Nothing is reported, since the
/// memory of a caller that has given its read up is taken back meanwhile.
const UNSIGNALED_MAX: u64 = 64 << 10;
/// Bytes that are summed up before they are copied: whole pages, and they stay in the processor's cache.
const CACHED_BYTES: usize = 64 << 10;
/// What holes are made of.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Pages of a write under way; those that are not committed go back.
struct Reserved<'a> {
    service: &'a Arc<RegionService>,
    runs: Vec<PageRun>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.runs.is_empty() {
            self.service.end_stores(); // before others store there
            self.service.enter(|region| region.return_space(OWNER, &self.runs));
        }
    }
}

/// A snapshot under way, ended when dropped at the latest.
struct Shown<'a> {
    service: &'a Arc<RegionService>,
    number: u64,
    ended: bool,
}

impl Shown<'_> {
    /// False: what it showed is to be read again.
    fn end(mut self) -> bool {
        self.ended = true;
        self.service.enter(|region| region.end_read(self.number))
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.service.enter(|region| region.end_read(self.number));
        }
    }
}

/// Takes as many pages as that, or none.
fn reserve(region: &mut Region, pages: u32) -> Result<Vec<PageRun>, RegionError> {
    let (mut runs, mut missing) = (Vec::new(), pages);
    while missing > 0 {
        let given = match region.delegate(OWNER, missing) {
            Ok(given) if runs.len() + given.len() <= RUNS_MAX => given,
            refused => {
                region.return_space(OWNER, &refused.unwrap_or_default());
                region.return_space(OWNER, &runs);
                return Err(FsError::NoSpace.into());
            }
        };
        missing -= given.iter().map(|run| run.pages).sum::<u32>();
        runs.extend(given);
    }
    Ok(runs)
}

/// Which bytes of a write go where; offsets count from its first byte.
fn lay_out(runs: &[PageRun], len: u64) -> Vec<WriteRun> {
    let mut done = 0;
    let mut laid = Vec::with_capacity(runs.len());
    for run in runs {
        let part = (u64::from(run.pages) * PAGE as u64).min(len - done);
        laid.push(WriteRun {
            offset: done,
            len: part,
            gpa: run.gpa,
        });
        done += part;
    }
    laid
}

/// Verbs on a caller's memory, in batches.
struct Batches<'t, 'v> {
    ctx: &'t RequestContext<'t>,
    pair: &'t QueuePair,
    signaled: bool,
    verbs: Vec<Verb<'v>>,
    bytes: u64,
    executed: bool,
}

impl<'t, 'v> Batches<'t, 'v> {
    fn new(ctx: &'t RequestContext<'t>, signaled: bool) -> Result<Self, FsError> {
        let pair = ctx.pair.ok_or_else(|| invalid("a transfer without a connection"))?;
        Ok(Batches {
            ctx,
            pair,
            signaled,
            verbs: Vec::new(),
            bytes: 0,
            executed: false,
        })
    }

    async fn add(&mut self, verb: Verb<'v>, len: u64) -> Result<(), FsError> {
        if self.verbs.len() == BATCH_VERBS || self.bytes + len > BATCH_BYTES {
            self.execute().await?;
        }
        self.verbs.push(verb);
        self.bytes += len;
        Ok(())
    }

    async fn execute(&mut self) -> Result<(), FsError> {
        if self.verbs.is_empty() {
            return Ok(());
        }
        if std::mem::replace(&mut self.executed, true) {
            tokio::task::yield_now().await;
        }
        let limit = self.ctx.call_limit();
        let moved = match self.signaled {
            true => within(self.pair, limit, self.pair.execute(&mut self.verbs)).await,
            false => within(self.pair, limit, self.pair.execute_unreported(&mut self.verbs)).await,
        };
        self.verbs.clear();
        self.bytes = 0;
        moved.map_err(|error| match error {
            FabricError::BadKey { .. } | FabricError::Denied { .. } | FabricError::OutOfRange { .. } => {
                invalid(&format!("memory named in the request: {error}"))
            }
            other => FsError::Unreachable {
                node: self.ctx.node.id().0,
                why: other.to_string(),
            },
        })
    }
}

fn invalid(why: &str) -> FsError {
    FsError::Invalid(why.into())
}

/// Start and length of the parts that a range is moved in.
fn parts(len: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len)
        .step_by(most as usize)
        .map(move |start| (start, most.min(len - start)))
}

impl RequestContext<'_> {
    /// See [`polvo_proto::Request::Read`]. What is read is what the file held at some moment while the request was served.
    pub async fn read(
        &self,
        inode: InodeRef,
        offset: u64,
        len: u64,
        into: Option<Window>,
        verify: bool,
    ) -> Result<reply::Read, FsError> {
        let region = inode.ino.region();
        let service = self.service(region)?;
        let mut backoff = None;
        loop {
            let snapshot = self
                .on_for_session(region, |r| {
                    self.check(r, inode, |attr, acl| permission::access(self.cred, attr, acl, READ))?;
                    r.begin_read(inode, offset, len)
                })
                .await?;
            let shown = Shown {
                service,
                number: snapshot.number,
                ended: false,
            };
            if verify {
                self.verify(inode, &snapshot)?;
            }
            let bytes = match into {
                None => self.copy_out(&snapshot),
                Some(window) => {
                    self.put(&snapshot, window).await?;
                    Vec::new()
                }
            };
            if shown.end() {
                let Snapshot { len, more, .. } = snapshot;
                return Ok(reply::Read { len, more, bytes });
            }
            backoff.get_or_insert_with(|| self.backoff()).wait().await?;
        }
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
        bytes
    }

    /// Puts what a snapshot shows into the caller's memory.
    async fn put(&self, snapshot: &Snapshot, window: Window) -> Result<(), FsError> {
        let end = window.offset.checked_add(snapshot.len);
        end.ok_or_else(|| invalid("memory that cannot be"))?;
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
        batches.execute().await
    }

    /// See [`polvo_proto::Request::WriteFrom`]. All of it, or nothing.
    pub async fn write_from(
        &self,
        inode: InodeRef,
        at: WriteAt,
        known: Tail,
        from: Window,
        len: u64,
    ) -> Result<WriteAnswer, FsError> {
        if from.offset.checked_add(len).is_none() {
            return Err(invalid("memory that cannot be"));
        }
        let fetch = async |service: &RegionService, laid: &[WriteRun]| self.fetch(service, laid, from).await;
        let written = self.write_fresh(inode, at, known, len, fetch).await?;
        Ok(WriteAnswer::Written(written))
    }

    /// A write of any size whose bytes are in memory of this process. All of it, or nothing. Returns where in the file they
    /// are.
    pub async fn write_here(&self, inode: InodeRef, at: WriteAt, bytes: &[u8]) -> Result<u64, FsError> {
        let checksums = self.node.space.layout().has_checksums();
        let copy = async |service: &RegionService, laid: &[WriteRun]| {
            let mut crcs = Vec::new();
            for run in laid {
                let mut rest = &bytes[run.offset as usize..][..run.len as usize];
                let mut at = run.gpa;
                while !rest.is_empty() {
                    // what was summed up is still in the cache when it is copied
                    let (part, later) =
                        rest.split_at(rest.len().min(if checksums { CACHED_BYTES } else { usize::MAX }));
                    if checksums {
                        crcs_of_pages(at.offset().0, part, &mut crcs);
                    }
                    service.write_streaming(at, part)?;
                    (at, rest) = (Gpa(at.0 + part.len() as u64), later);
                }
            }
            Ok(crcs)
        };
        let len = bytes.len() as u64;
        Ok(self.write_fresh(inode, at, Tail(0), len, copy).await?.offset)
    }

    /// Takes pages for `len` bytes, has them filled (by stores that are durable after a fence; `fill` returns the CRCs of the pages),
    /// and commits them.
    async fn write_fresh(
        &self,
        inode: InodeRef,
        at: WriteAt,
        known: Tail,
        len: u64,
        fill: impl AsyncFnOnce(&RegionService, &[WriteRun]) -> Result<Vec<u8>, FsError>,
    ) -> Result<Written, FsError> {
        check_end(at.in_file(0), len)?;
        if len == 0 {
            return Err(invalid("a write of no bytes"));
        }
        let pages = u32::try_from(len.div_ceil(PAGE as u64)).map_err(|_| FsError::NoSpace)?;
        let region = inode.ino.region();
        let runs = self
            .on_for_session(region, |r| {
                // a caller who may not write, or comes too late, is told before anything is moved
                match r.attr(inode.ino, Some(inode.generation))?.0.kind {
                    FileKind::File | FileKind::Object => {}
                    FileKind::Directory => return Err(FsError::IsDirectory.into()),
                    _ => return Err(invalid("not a regular file").into()),
                }
                self.check(r, inode, |attr, acl| permission::access(self.cred, attr, acl, WRITE))?;
                reserve(r, pages)
            })
            .await?;
        let service = self.service(region)?;
        let mut reserved = Reserved { service, runs };
        let laid = lay_out(&reserved.runs, len);
        let crcs = fill(service, &laid).await?;
        let written = self
            .on_for_session(region, |r| {
                self.before_write(r, inode)?;
                r.commit(
                    OWNER,
                    inode,
                    NewData {
                        runs: &laid,
                        crcs: &crcs,
                    },
                    at,
                    known,
                    self.now_ns(),
                )
            })
            .await?;
        reserved.runs.clear();
        Ok(written)
    }

    /// Fetches the bytes of runs from the caller's memory to where the runs lie.
    async fn fetch(&self, service: &RegionService, laid: &[WriteRun], window: Window) -> Result<Vec<u8>, FsError> {
        let memory = Memory::Pool(self.node.pmem.clone());
        let mut batches = Batches::new(self, true)?;
        for run in laid {
            let (at, _) = service.locate(run.gpa, run.len as usize)?;
            for (start, len) in parts(run.len, BATCH_BYTES) {
                let verb = Verb::ReadInto {
                    from: Remote {
                        key: RemoteKey(window.key),
                        offset: window.offset + run.offset + start,
                    },
                    into: Local {
                        memory: &memory,
                        offset: at + start,
                        len,
                    },
                };
                batches.add(verb, len).await?;
            }
        }
        batches.execute().await?;
        drop(batches);
        let mut crcs = Vec::new();
        if self.node.space.layout().has_checksums() {
            let mut bytes = vec![0; CACHED_BYTES];
            for run in laid {
                let (at, _) = service.locate(run.gpa, run.len as usize)?;
                for (start, len) in parts(run.len, CACHED_BYTES as u64) {
                    if start > 0 && start % BATCH_BYTES == 0 {
                        tokio::task::yield_now().await;
                    }
                    let part = &mut bytes[..len as usize];
                    self.node.pmem.read(at + start, part);
                    crcs_of_pages(at + start, part, &mut crcs);
                }
            }
        }
        Ok(crcs)
    }
}
