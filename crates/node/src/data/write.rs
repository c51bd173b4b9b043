//! Writes, one function a mechanism.
//!
//! | mechanism | asked for by | where the bytes come from, and go to |
//! |---|---|---|
//! | colocated, at once | a call of a client in this process, up to [`EAGER_MAX`] bytes | its memory; the region stores them in the log entry, the file's last page, or a fresh one |
//! | colocated | such a call that found something in the way, or is larger | the same; what is larger is copied to fresh pages |
//! | eager | `Write` | the request; stored by the region |
//! | client-active | `Commit` | they lie in space delegated to the session already |
//! | server-directed | `WriteFrom` | memory of the caller's, from which one-sided reads of the node bring them to fresh pages |
//!
//! The client chooses (`client/io/write`). Fresh pages are filled without the region's lock, durably: they are nobody's
//! until they are committed, as a client would have them committed; pages that are not go back. Server-directed
//! transfers are those of Carns et al. (2.1 and 2.3); Octopus (3.2.2) calls them server-active.

use crate::data::caller_memory::{BATCH_BYTES, Batches, parts};
use crate::data::file_services::{DELEGATE_MAX, check_end};
use crate::names::permission::{self, WRITE};
use crate::node::WRITES;
use crate::region_service::RegionService;
use crate::request::context::RequestContext;
use polvo_cluster::WrittenAtOnce;
use polvo_fabric::{Local, Memory, Remote, RemoteKey, Verb};
use polvo_format::{FileKind, Gpa, PAGE, Tail, crcs_of_pages};
use polvo_proto::{EAGER_MAX, FsError, InodeRef, PageRun, RUNS_MAX, Window, WriteAnswer, WriteAt, WriteRun, Written};
use polvo_region::{NewData, Region, RegionError};
use std::sync::Arc;

/// Bytes that are summed up before they are copied: whole pages, and they stay in the processor's cache.
const CACHED_BYTES: usize = 64 << 10;

/// Pages of a write under way; those that are not committed go back.
struct Reserved<'a> {
    service: &'a Arc<RegionService>,
    runs: Vec<PageRun>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.runs.is_empty() {
            self.service.end_stores(); // before others store there
            self.service.enter(|region| region.return_space(WRITES, &self.runs));
        }
    }
}

/// Takes as many pages as that, or none.
fn reserve(region: &mut Region, pages: u32) -> Result<Vec<PageRun>, RegionError> {
    let (mut runs, mut missing) = (Vec::new(), pages);
    while missing > 0 {
        let given = match region.delegate(WRITES, missing) {
            Ok(given) if runs.len() + given.len() <= RUNS_MAX => given,
            refused => {
                region.return_space(WRITES, &refused.unwrap_or_default());
                region.return_space(WRITES, &runs);
                return Err(FsError::NoSpace.into());
            }
        };
        let pages: u32 = given.iter().map(|run| run.pages).sum();
        assert!(pages > 0 && pages <= missing, "pages that were asked for, or an error");
        missing -= pages;
        runs.extend(given);
    }
    assert!(runs.len() <= RUNS_MAX, "no more runs than one commit takes");
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
    assert!(done == len, "pages were taken for all bytes");
    laid
}

impl RequestContext<'_> {
    /// Clears what a write by this caller clears.
    #[inline]
    pub(crate) fn before_write(&self, region: &mut Region, inode: InodeRef) -> Result<(), RegionError> {
        match permission::is_trusted(self.cred) {
            true => Ok(()),
            false => self.before_write_of_user(region, inode),
        }
    }

    fn before_write_of_user(&self, region: &mut Region, inode: InodeRef) -> Result<(), RegionError> {
        let (attr, _) = region.attr(inode.ino, Some(inode.generation))?;
        permission::access(self.cred, &attr, self.acl_here(region, inode)?.as_ref(), WRITE)?;
        if let Some(set) = permission::mode_after_write(self.cred, &attr) {
            let asked = region.asked_by(None); // what follows is what was asked for
            region.set_attr(inode, &set, self.now_ns())?;
            region.asked_by(asked);
        }
        Ok(())
    }

    /// The bytes are in memory of this process, and copied from there to where they are to stay. All of them, or
    /// nothing. Returns where in the file they are.
    pub async fn write_colocated(&self, inode: InodeRef, at: WriteAt, bytes: &[u8]) -> Result<u64, FsError> {
        match bytes.len() {
            ..=EAGER_MAX => self.on(inode.ino.region(), |r| self.store(r, inode, at, bytes)).await,
            _ => self.copy_to_fresh_pages(inode, at, bytes).await,
        }
    }

    /// As `write_colocated`, of at most [`EAGER_MAX`] bytes, at once: mirrors are waited for afterwards. `None`: something is to be
    /// waited for before, or to be refused, and nothing was done.
    pub fn write_colocated_at_once(&self, inode: InodeRef, at: WriteAt, bytes: &[u8]) -> Option<WrittenAtOnce> {
        let service = self.service(inode.ino.region()).ok()?;
        let stored = service.enter(|r| {
            self.enters(r);
            self.store(r, inode, at, bytes)
        });
        Some(WrittenAtOnce {
            offset: stored.ok()?,
            may_be_told: service.may_answer(),
        })
    }

    fn store(&self, region: &mut Region, inode: InodeRef, at: WriteAt, bytes: &[u8]) -> Result<u64, RegionError> {
        check_end(at.in_file(0), bytes.len() as u64)?;
        self.before_write(region, inode)?;
        Ok(region.store(inode, at, bytes, self.now_ns())?.offset)
    }

    /// The bytes have come in the request.
    pub async fn write_eager(
        &self,
        inode: InodeRef,
        at: WriteAt,
        known: Tail,
        bytes: &[u8],
    ) -> Result<WriteAnswer, FsError> {
        check_end(at.in_file(0), bytes.len() as u64)?;
        let written = self
            .on(inode.ino.region(), |r| {
                self.before_write(r, inode)?;
                r.write(inode, at, bytes, known, self.now_ns())
            })
            .await?;
        Ok(WriteAnswer::Written(written))
    }

    /// The bytes lie in space delegated to the session already. The offsets of their runs count from `from`.
    pub async fn write_client_active(
        &self,
        inode: InodeRef,
        runs: &[WriteRun],
        crcs: &[u8],
        from: WriteAt,
        known: Tail,
        want_pages: u32,
    ) -> Result<WriteAnswer, FsError> {
        self.may_access_data()?;
        for run in runs {
            check_end(run.offset, run.len)?;
        }
        let session = self.session.id;
        let mut space = Vec::new();
        let done = self
            .on_for_session(inode.ino.region(), |r| {
                self.before_write(r, inode)?;
                let written = r.commit(session, inode, NewData { runs, crcs }, from, known, self.now_ns())?;
                if want_pages > 0 {
                    // the write is done; that no more space is to be had is told to who asks for some
                    space = r.delegate(session, want_pages.min(DELEGATE_MAX)).unwrap_or_default();
                }
                Ok(written)
            })
            .await;
        if let (false, Some(service)) = (space.is_empty(), self.node.service(inode.ino.region())) {
            match done {
                Ok(mut written) => {
                    written.places = service.places_of(&space);
                    written.space = space;
                    return Ok(WriteAnswer::Written(written));
                }
                // no mirror has taken it in time, and so nobody hears of the space
                Err(_) => service.enter(|r| r.return_space(session, &space)),
            }
        }
        done.map(WriteAnswer::Written)
    }

    /// See [`polvo_proto::Request::WriteFrom`]: the node fetches the bytes from memory of the caller's. All of it, or
    /// nothing.
    pub async fn write_server_directed(
        &self,
        inode: InodeRef,
        at: WriteAt,
        known: Tail,
        from: Window,
        len: u64,
    ) -> Result<WriteAnswer, FsError> {
        if from.offset.checked_add(len).is_none() {
            return Err(FsError::Invalid("memory that cannot be".into()));
        }
        let fetch = async |service: &RegionService, laid: &[WriteRun]| self.fetch(service, laid, from).await;
        let written = self.write_fresh_pages(inode, at, known, len, fetch).await?;
        Ok(WriteAnswer::Written(written))
    }

    /// As `write_colocated`, into fresh pages.
    async fn copy_to_fresh_pages(&self, inode: InodeRef, at: WriteAt, bytes: &[u8]) -> Result<u64, FsError> {
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
        Ok(self.write_fresh_pages(inode, at, Tail(0), len, copy).await?.offset)
    }

    /// Takes pages for `len` bytes, has them filled (by stores that are durable after a fence; `fill` returns the CRCs
    /// of the pages), and commits them.
    async fn write_fresh_pages(
        &self,
        inode: InodeRef,
        at: WriteAt,
        known: Tail,
        len: u64,
        fill: impl AsyncFnOnce(&RegionService, &[WriteRun]) -> Result<Vec<u8>, FsError>,
    ) -> Result<Written, FsError> {
        check_end(at.in_file(0), len)?;
        if len == 0 {
            return Err(FsError::Invalid("a write of no bytes".into()));
        }
        let pages = u32::try_from(len.div_ceil(PAGE as u64)).map_err(|_| FsError::NoSpace)?;
        let region = inode.ino.region();
        let runs = self
            .take_for_session(region, |r| {
                // a caller who may not write, or comes too late, is told before anything is moved
                match r.attr(inode.ino, Some(inode.generation))?.0.kind {
                    FileKind::File | FileKind::Object => {}
                    FileKind::Directory => return Err(FsError::IsDirectory.into()),
                    _ => return Err(FsError::Invalid("not a regular file".into()).into()),
                }
                self.check(r, inode, |attr, acl| permission::access(self.cred, attr, acl, WRITE))?;
                reserve(r, pages)
            })
            .await?;
        let service = self.service(region)?;
        let mut reserved = Reserved { service, runs };
        let laid = lay_out(&reserved.runs, len);
        let crcs = fill(service, &laid).await?;
        debug_assert!(
            crcs.is_empty() || crcs.len() == 4 * pages as usize,
            "a checksum for each page, or none at all"
        );
        let written = self
            .on_for_session(region, |r| {
                self.before_write(r, inode)?;
                r.commit(
                    WRITES,
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
