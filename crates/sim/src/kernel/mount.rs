//! Operations of a program on a mount: what the kernel makes of them.

use crate::kernel::caches::{Attributes, Caches, Known, PAGE, inode_of, shown};
use crate::kernel::daemon::{Entry, Kernel, child};
use crate::operation::{Answer, Name, Operation, Outcome};
use crate::plant::Plant;
use crate::rng::Rng;
use polvo_client::{LocalClient, OpenFile};
use polvo_format::{Attr, FileKind, Tail};
use polvo_node::sim::Stillness;
use polvo_proto::{FsError, InodeRef, RenameMode};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_local;

/// Longest time between an answer being written and the kernel taking it in.
pub const TAKING_IN: Duration = Duration::from_millis(10);
/// How often a page is filled that others change all the time.
pub const FILLED_MAX: u32 = 50;
/// Pages that are read ahead: fewer.
const AHEAD: u64 = 4;
/// Before so many of a hundred operations an inode goes from memory.
const MAKES_ROOM: u64 = 6;
/// Ticks of kernels, in milliseconds.
const TICKS_MS: [u64; 3] = [1, 4, 10];
/// The longest of them.
pub const TICK_MAX: Duration = Duration::from_millis(TICKS_MS[2]);

/// Do these bytes lie in one page?
pub fn is_of_one_page(offset: u64, len: u64) -> bool {
    len > 0 && offset / PAGE == (offset + len - 1) / PAGE
}

/// A mounted client.
pub struct Mount {
    kernel: Arc<Kernel>,
    client: Rc<LocalClient>,
    stillness: Stillness,
    rng: RefCell<Rng>,
}

/// A name as the kernel knows it, after having asked if need be.
type Found = Option<(InodeRef, FileKind)>;

impl Mount {
    /// Mounts a client, which uses tokens from now on.
    pub fn new(client: Rc<LocalClient>, stillness: Stillness, mut rng: Rng, plant: Option<Plant>) -> Mount {
        let tick = Duration::from_millis(rng.pick(&TICKS_MS));
        let kernel = Kernel::new(tick, plant);
        client.client().use_tokens(Some(kernel.clone()));
        Mount {
            kernel,
            client,
            stillness,
            rng: RefCell::new(rng),
        }
    }

    /// Runs what the daemon does.
    pub async fn served<T>(&self, service: impl Future<Output = T>) -> T {
        self.stillness.bound(service).await
    }

    /// Has the daemon do what a program asks, but for looks.
    pub async fn asks(&self, operation: &Operation, asked: impl Future<Output = Outcome>) -> Outcome {
        let Operation::Rename {
            old_dir, new_dir, mode, ..
        } = *operation
        else {
            return self.served(asked).await;
        };
        let is_exchange = mode == RenameMode::Exchange;
        self.served(Box::pin(self.kernel.rename(
            &self.client,
            old_dir,
            new_dir,
            is_exchange,
            asked,
        )))
        .await
    }

    /// An answer was written; the kernel takes it in a little later, even if nothing of the program's host runs meanwhile.
    async fn taken_in<T: 'static>(&self, take: impl FnOnce(&mut Caches) -> T + 'static) -> T {
        let late = {
            let mut rng = self.rng.borrow_mut();
            match rng.percent(50) {
                true => rng.below(TAKING_IN.as_micros() as u64),
                false => 0,
            }
        };
        if late == 0 {
            return self.kernel.with(take);
        }
        let kernel = self.kernel.clone();
        let taking = spawn_local(async move {
            tokio::time::sleep(Duration::from_micros(late)).await;
            kernel.with(take)
        });
        taking.await.expect("kernels do not panic")
    }

    async fn ask_attr(&self, inode: InodeRef) -> Result<Attr, FsError> {
        let version = self.kernel.with(|caches| caches.version());
        let told = self.served(self.kernel.get_attr(&self.client, inode)).await?;
        let attr = told.attr;
        self.taken_in(move |caches| caches.enter_attributes(&told, version))
            .await;
        Ok(attr)
    }

    /// The kernel gets to know an inode that a program names by a handle.
    async fn know(&self, inode: InodeRef) -> Result<(), FsError> {
        if self.kernel.with(|caches| caches.knows(inode)) {
            return Ok(());
        }
        let version = self.kernel.with(|caches| caches.version());
        let told = self.served(self.kernel.lookup_handle(&self.client, inode)).await?;
        self.taken_in(move |caches| caches.enter_inode(&told, version)).await;
        Ok(())
    }

    /// Now and then the kernel has to make room.
    fn make_room(&self) {
        let mut rng = self.rng.borrow_mut();
        if rng.percent(MAKES_ROOM) {
            let inodes = self.kernel.with(|caches| caches.inodes());
            if !inodes.is_empty() {
                self.kernel.evict(rng.pick(&inodes));
            }
        }
    }

    /// `stat` of an open file.
    pub async fn get_attr(&self, inode: InodeRef) -> Outcome {
        self.make_room();
        self.know(inode).await?;
        if let Some(answer) = self.kernel.with(|caches| caches.attributes(inode)) {
            return Ok(answer);
        }
        Ok(shown(&self.ask_attr(inode).await?))
    }

    /// `read` of bytes of one page, by way of pages.
    pub async fn read(&self, file: &OpenFile, opened_at: Tail, offset: u64, len: u64) -> Outcome {
        debug_assert!(is_of_one_page(offset, len), "each page by itself");
        self.make_room();
        let inode = file.inode();
        self.know(inode).await?;
        self.served(self.kernel.begins_pages(inode, opened_at)).await;
        let (page, at) = (offset / PAGE, (offset % PAGE) as usize);
        for _ in 0..FILLED_MAX {
            let size = match self.kernel.with(|caches| caches.attributes(inode)) {
                Some(Answer::Attr { size, .. }) => size,
                _ => self.ask_attr(inode).await?.size,
            };
            if offset >= size {
                return Ok(Answer::Bytes(Vec::new()));
            }
            let there = self.kernel.with(|caches| {
                let bytes = caches.page(inode, page)?;
                let end = bytes.len().min(at + len.min(size - offset) as usize);
                Some(bytes[end.min(at)..end].to_vec())
            });
            if let Some(bytes) = there {
                return Ok(Answer::Bytes(bytes));
            }
            let ahead = self.rng.borrow_mut().below(AHEAD);
            self.fill(file, page..page + 1 + ahead).await?;
        }
        Err(FsError::Busy)
    }

    async fn fill(&self, file: &OpenFile, pages: Range<u64>) -> Result<(), FsError> {
        let inode = file.inode();
        self.kernel.with(|caches| caches.begin_filling(inode, pages.clone()));
        let len = (pages.end - pages.start) * PAGE;
        let read = self.kernel.read(&self.client, file, pages.start * PAGE, len);
        let read = self.served(Box::pin(read)).await;
        self.taken_in(move |caches| {
            let bytes = read.as_ref().ok().map(Vec::as_slice);
            caches.end_filling(inode, pages, bytes);
            read.map(drop)
        })
        .await
    }

    /// A LOOKUP; what it says is taken in.
    async fn ask_name(&self, dir: InodeRef, name: Name, expected: Option<InodeRef>) -> Result<Found, FsError> {
        let version = self.kernel.with(|caches| caches.version());
        let entry = self.served(self.kernel.lookup(&self.client, dir, name)).await?;
        let (found, unwanted) = self
            .taken_in(move |caches| match entry {
                Entry::Found { told, name_valid } => {
                    let found = child(&told.attr);
                    if expected.is_some_and(|expected| expected != found.0) {
                        caches.drop_name(dir, name);
                        return (Some(found), Some(found.0));
                    }
                    caches.enter_inode(&told, version);
                    caches.enter_name(dir, name, Some(found), name_valid);
                    (Some(found), None)
                }
                // where it asked whether a name is still there, it asks again
                Entry::Absent { .. } if expected.is_some() => {
                    caches.drop_name(dir, name);
                    (None, None)
                }
                Entry::Absent { valid } => {
                    caches.enter_name(dir, name, None, valid);
                    (None, None)
                }
            })
            .await;
        if let Some(inode) = unwanted {
            self.kernel.forgets(inode, 1);
        }
        Ok(found)
    }

    /// What a name stands for.
    async fn find(&self, dir: InodeRef, name: Name) -> Result<Found, FsError> {
        self.know(dir).await?;
        match self.kernel.with(|caches| caches.name(dir, name)) {
            Known::Inode(inode, kind) => return Ok(Some((inode, kind))),
            Known::Absent => return Ok(None),
            Known::Expired(inode) => match self.ask_name(dir, name, Some(inode)).await {
                Ok(Some(found)) if found.0 == inode => return Ok(Some(found)),
                Ok(_) => {}
                Err(_) => self.kernel.with(|caches| caches.drop_name(dir, name)),
            },
            Known::Nothing => {}
        }
        self.ask_name(dir, name, None).await
    }

    /// Walks to a name.
    pub async fn lookup(&self, dir: InodeRef, name: Name) -> Outcome {
        self.make_room();
        let found = self.find(dir, name).await?;
        let (inode, kind) = found.ok_or(FsError::NotFound)?;
        Ok(Answer::Inode(inode, kind))
    }

    /// Before a program's operation is asked of the daemon: what the kernel finds out by itself.
    ///
    /// # Errors
    /// What it refuses.
    pub async fn before(&self, operation: &Operation) -> Result<(), FsError> {
        match *operation {
            Operation::Create { dir, name, .. } | Operation::Link { dir, name, .. } => {
                match self.find(dir, name).await? {
                    Some(_) => Err(FsError::Exists),
                    None => Ok(()),
                }
            }
            Operation::Unlink { dir, name } => match self.find(dir, name).await? {
                Some((_, FileKind::Directory)) => Err(FsError::IsDirectory),
                Some(_) => Ok(()),
                None => Err(FsError::NotFound),
            },
            Operation::Rmdir { dir, name } => match self.find(dir, name).await? {
                Some((_, FileKind::Directory)) => Ok(()),
                Some(_) => Err(FsError::NotDirectory),
                None => Err(FsError::NotFound),
            },
            Operation::Rename {
                old_dir,
                old,
                new_dir,
                new,
                mode,
            } => {
                if self.find(old_dir, old).await?.is_none() {
                    return Err(FsError::NotFound);
                }
                // Linux also refuses what would replace by what it finds here: in two looks, so that there may never have been both
                // names at a time. That has nothing to do with what is kept, and would not be linearizable.
                match (mode, self.find(new_dir, new).await?) {
                    (RenameMode::Exchange, None) => Err(FsError::NotFound),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// An inode that the daemon has told of in its answer to a CREATE, MKDIR or LINK.
    pub fn tells(&self, attr: &Attr) {
        self.kernel.tells(attr);
    }

    /// After it: what the kernel takes in, and what it does not believe any more.
    pub async fn after(&self, operation: &Operation, made: Option<&Attr>, outcome: &Outcome) {
        let (operation, made, outcome) = (operation.clone(), made.copied(), outcome.clone());
        self.taken_in(move |caches| match (&operation, &outcome) {
            (Operation::Create { dir, name, .. } | Operation::Link { dir, name, .. }, Ok(_)) => {
                if let Some(attr) = &made {
                    let told = Attributes {
                        attr: *attr,
                        valid: Duration::ZERO,
                    };
                    caches.enter_inode(&told, 0);
                    caches.enter_name(*dir, *name, Some(child(attr)), Duration::ZERO);
                    debug_assert!(caches.knows(inode_of(attr)));
                }
                caches.expire(*dir);
            }
            (Operation::Create { dir, name, .. }, Err(FsError::Exists)) => caches.drop_name(*dir, *name),
            (Operation::Unlink { dir, name } | Operation::Rmdir { dir, name }, Ok(_)) => {
                if let Known::Inode(inode, _) | Known::Expired(inode) = caches.name(*dir, *name) {
                    caches.invalidate(inode);
                }
                caches.drop_name(*dir, *name);
                caches.expire(*dir);
            }
            (Operation::Unlink { dir, name } | Operation::Rmdir { dir, name }, Err(FsError::NotFound)) => {
                caches.drop_name(*dir, *name);
            }
            (
                Operation::Rename {
                    old_dir,
                    old,
                    new_dir,
                    new,
                    mode,
                },
                outcome,
            ) => {
                let (from, to) = ((*old_dir, *old), (*new_dir, *new));
                let is_exchange = *mode == RenameMode::Exchange;
                let of = |known| match known {
                    Known::Inode(inode, _) | Known::Expired(inode) => Some(inode),
                    Known::Absent | Known::Nothing => None,
                };
                match outcome {
                    Ok(_) => {
                        let moved = of(caches.name(from.0, from.1));
                        let target = of(caches.name(to.0, to.1));
                        if from != to {
                            caches.move_name(from, to, is_exchange);
                        }
                        if let Some(moved) = moved {
                            caches.expire(moved);
                        }
                        if let Some(target) = target {
                            caches.invalidate(target);
                        }
                        caches.expire(*old_dir);
                        caches.expire(*new_dir);
                    }
                    Err(FsError::NotFound) => {
                        caches.drop_name(from.0, from.1);
                        caches.drop_name(to.0, to.1);
                    }
                    Err(_) => {}
                }
            }
            (
                Operation::Write { inode, .. }
                | Operation::Append { inode, .. }
                | Operation::Truncate { inode, .. }
                | Operation::Fallocate { inode, .. }
                | Operation::SetMode { inode, .. }
                | Operation::SetXattr { inode, .. }
                | Operation::RemoveXattr { inode, .. },
                Ok(_),
            ) => drop(caches.invalidate(*inode)),
            _ => {}
        })
        .await;
    }
}
