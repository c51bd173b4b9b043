//! One who commits to the log of one file, entry by entry, and reads it back.

use crate::BenchError;
use crate::requester::Requester;
use crate::samples::Timed;
use polvo_cluster::RegionVerb;
use polvo_format::{FileKind, Generation, Gpa, INODE_SIZE, INODE_TAIL, Ino, PAGE, RegionOffset, Tail};
use polvo_proto::{Cred, FsError, InodeRef, PageRun, WriteAnswer, WriteRun, Written, ask};
use std::cell::{Cell, RefCell};

/// Bytes of a small commit.
pub const SMALL: usize = 64;
/// Pages asked for when there are none left.
const PAGES: u32 = 256;

/// The root directory.
pub const ROOT: InodeRef = InodeRef {
    ino: Ino::ROOT,
    generation: Generation(1),
};

/// Commits to one file.
pub struct Committer {
    requester: Requester,
    inode: InodeRef,
    /// The log as known.
    known: Cell<Tail>,
    /// Space to write pages to.
    space: RefCell<Vec<PageRun>>,
}

impl Committer {
    /// Of a file that it makes.
    pub async fn new(requester: Requester, name: &str) -> Result<Committer, FsError> {
        let inode = requester.make(ROOT, name, FileKind::File).await?;
        Ok(Self::to(requester, inode))
    }

    /// Of a file that is there.
    pub fn to(requester: Requester, inode: InodeRef) -> Committer {
        Committer {
            requester,
            inode,
            known: Cell::default(),
            space: RefCell::default(),
        }
    }

    /// The file.
    pub fn inode(&self) -> InodeRef {
        self.inode
    }

    /// Keeps the session alive.
    pub async fn renew(&self) {
        self.requester.renew().await;
    }

    /// Closes its connections.
    pub fn close(&self) {
        self.requester.close();
    }

    /// An RPC that changes nothing: the file's attributes.
    pub async fn attributes(&self) -> Result<(), FsError> {
        let InodeRef { ino, generation } = self.inode;
        let generation = Some(generation);
        self.requester.ask(ask::GetAttr { ino, generation }).await.map(drop)
    }

    /// An RPC that makes a file.
    pub async fn make(&self, name: &str) -> Result<(), FsError> {
        self.requester.make(ROOT, name, FileKind::File).await.map(drop)
    }

    /// A one-sided read of the log's tail.
    pub async fn tail(&self) -> Result<(), FsError> {
        let region = self.inode.ino.region();
        let offset = self.inode.ino.slot() * INODE_SIZE as u64 + INODE_TAIL;
        let (at, mut tail) = (Gpa::new(region, RegionOffset(offset)), [0; 8]);
        let mut read = [RegionVerb::Read { at, into: &mut tail }];
        self.requester.links().one_sided(region, &mut read).await?;
        std::hint::black_box(tail);
        Ok(())
    }

    /// A commit that carries its bytes, [`SMALL`] of them.
    pub async fn small(&self, offset: u64, append: bool) -> Result<(), FsError> {
        self.eager(offset, SMALL, append).await
    }

    /// A commit that carries its bytes, at most [`polvo_proto::EAGER_MAX`].
    pub async fn eager(&self, offset: u64, len: usize, append: bool) -> Result<(), FsError> {
        let request = ask::Write {
            inode: self.inode,
            offset,
            append,
            known: self.known.get(),
            bytes: vec![7; len],
        };
        self.written(self.requester.ask(request).await?)
    }

    /// A page written one-sided, and its commit behind it.
    pub async fn page(&self, offset: u64) -> Result<(), FsError> {
        self.placed(offset, PAGE).await
    }

    /// Bytes of one page, written one-sided, and their commit behind them.
    pub async fn placed(&self, offset: u64, len: usize) -> Result<(), FsError> {
        let (links, region) = (self.requester.links(), self.inode.ino.region());
        let gpa = self.next_page().await?;
        let bytes = &[7; PAGE][..len];
        let mut write = [RegionVerb::WriteData { at: gpa, bytes }];
        let way = links.write_ahead(region, &mut write, || true).await?;
        let low = self.space.borrow().is_empty();
        let request = ask::Commit {
            inode: self.inode,
            runs: vec![WriteRun {
                offset,
                len: len as u64,
                gpa,
            }],
            crcs: Vec::new(),
            append: false,
            known: self.known.get(),
            want_pages: if low { PAGES } else { 0 },
        };
        let answer = match way {
            None => self.requester.ask(request).await?,
            Some(link) => links
                .call_behind(region, &link, Cred::Kernel, request)
                .await?
                .ok_or_else(|| FsError::Io("a connection was lost".into()))?,
        };
        self.written(answer)
    }

    async fn next_page(&self) -> Result<Gpa, FsError> {
        if self.space.borrow().is_empty() {
            let (region, pages) = (self.inode.ino.region(), PAGES);
            let runs = self.requester.ask(ask::Delegate { region, pages }).await?;
            *self.space.borrow_mut() = runs;
        }
        let mut space = self.space.borrow_mut();
        let run = space.last_mut().ok_or(FsError::NoSpace)?;
        let gpa = run.gpa;
        match run.pages {
            1 => drop(space.pop()),
            _ => {
                run.pages -= 1;
                run.gpa.0 += PAGE as u64;
            }
        }
        Ok(gpa)
    }

    fn written(&self, answer: WriteAnswer) -> Result<(), FsError> {
        let WriteAnswer::Written(Written {
            cursor, space, places, ..
        }) = answer
        else {
            return Err(FsError::Io("nothing was written".into()));
        };
        self.known.set(cursor.tail);
        self.requester.links().learn_segments(self.inode.ino.region(), &places);
        self.space.borrow_mut().extend(space);
        Ok(())
    }
}

/// Nanoseconds an operation takes, one at a time.
pub async fn ns_per_op(ops: usize, operation: impl AsyncFn(usize) -> Result<(), FsError>) -> Result<f64, BenchError> {
    let mut timed = Timed::new(ops);
    for n in timed.by_ref() {
        operation(n).await?;
    }
    Ok(timed.ns_per_op())
}
