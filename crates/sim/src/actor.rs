//! A client of the simulated cluster: it draws operations that collide with those of the others, does them, and writes
//! down what it was told.

use crate::crowd::Crowd;
use crate::history::History;
use crate::kernel::Mount;
use crate::kernel::caches::{PAGE, inode_of, shown};
use crate::kernel::mount::is_of_one_page;
use crate::locker::{Granted, Locker};
use crate::operation::{Answer, Name, Operation, Outcome, read_name, spelled};
use crate::pattern::{self, Tag};
use crate::plant::{Instead, Planted};
use crate::rng::Rng;
use crate::schedule::{Fault, Schedule};
use crate::space_hog::{Grown, SpaceHog};
use polvo_client::{LocalClient, OpenFile};
use polvo_cluster::LocalFuture;
use polvo_format::{Attr, FileKind, Generation, Ino};
use polvo_node::sim::Cluster;
use polvo_proto::{
    ClusterMap, EAGER_MAX, FallocateMode, FsError, InodeRef, NewFile, Placement, RenameMode, SetAttr, XATTR_VALUE_MAX,
    XattrMode,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The root directory.
pub const ROOT: InodeRef = InodeRef {
    ino: Ino::ROOT,
    generation: Generation(1),
};

/// Most directories and files that clients remember having seen.
const REMEMBERED: usize = 5;
/// Most files a client has open.
const OPEN_MAX: usize = 3;
/// Permission bits of what is made.
pub const FILE_MODE: u32 = 0o644;
/// Permission bits of directories.
pub const DIRECTORY_MODE: u32 = 0o755;
/// Entries asked for at a time: all of any directory here.
const ENTRIES_MAX: u32 = 500;

/// What the clients of a run share.
pub struct Shared {
    /// The run.
    pub schedule: Schedule,
    /// What was asked and answered.
    pub history: History,
    /// Planted misbehaviour, if any.
    pub planted: Planted,
    /// Inodes somebody has seen, the newest last.
    dirs: RefCell<Vec<InodeRef>>,
    files: RefCell<Vec<InodeRef>>,
    tags: Cell<Tag>,
    /// Faults that occurred.
    pub faults: RefCell<BTreeMap<Fault, u64>>,
    /// All clients but the readers have done what they had to.
    pub is_work_over: Cell<bool>,
    /// A node that is gone for good.
    pub lost: Cell<Option<u16>>,
    /// The place of a node was taken that may have been ahead of its mirrors.
    pub has_lost_changes: Cell<bool>,
    /// Locks that clients were given.
    pub granted: Granted,
    /// What a client noticed by itself.
    pub wrong: RefCell<Vec<String>>,
    /// The same, unless [changes were lost](Self::has_lost_changes).
    pub missed: RefCell<Vec<String>>,
}

impl Shared {
    /// For one run.
    pub fn new(schedule: &Schedule) -> Rc<Shared> {
        Rc::new(Shared {
            schedule: schedule.clone(),
            history: History::new(),
            planted: Planted::new(schedule.limits.plant, schedule.seed),
            dirs: RefCell::new(vec![ROOT]),
            files: RefCell::default(),
            tags: Cell::new(0),
            faults: RefCell::default(),
            is_work_over: Cell::new(false),
            lost: Cell::new(None),
            has_lost_changes: Cell::new(false),
            granted: Granted::default(),
            wrong: RefCell::default(),
            missed: RefCell::default(),
        })
    }

    /// A fault has occurred.
    pub fn count(&self, fault: Fault) {
        *self.faults.borrow_mut().entry(fault).or_default() += 1;
    }

    /// Looks whether the place of a node was taken that may have been ahead of its mirrors. To be done more often than that may happen
    /// twice.
    pub fn look_for_losses(&self, cluster: &Cluster) {
        let first = cluster.map();
        let has_moved = |map: &ClusterMap| map.regions.iter().any(|now| now.primary() != first.primary(now.id));
        let mut maps = (0..self.schedule.nodes)
            .filter(|node| cluster.is_running(*node))
            .map(|node| cluster.node(node).map());
        if first.is_async() && maps.any(|map| has_moved(&map)) {
            self.has_lost_changes.set(true);
        }
    }

    fn next_tag(&self) -> Tag {
        self.tags.set(self.tags.get() + 1);
        self.tags.get()
    }

    fn remember(&self, inode: InodeRef, kind: FileKind) {
        let mut known = match kind {
            FileKind::Directory => self.dirs.borrow_mut(),
            _ => self.files.borrow_mut(),
        };
        if !known.contains(&inode) {
            known.push(inode);
            if known.len() > REMEMBERED {
                let oldest = usize::from(known[0] == ROOT);
                known.remove(oldest);
            }
        }
    }
}

fn size_only(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

fn mode_only(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

fn new_file(kind: FileKind) -> NewFile {
    NewFile {
        kind,
        mode: if kind == FileKind::Directory {
            DIRECTORY_MODE
        } else {
            FILE_MODE
        },
        uid: 0,
        gid: 0,
        rdev: 0,
        target: Vec::new(),
        umask: 0,
        xattrs: Vec::new(),
    }
}

/// Value of an extended attribute: a number, and bytes that make it take room; now and then more than a log entry has.
fn xattr_value(value: u32) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    let len = match value % 16 {
        0 => XATTR_VALUE_MAX,
        1 => value as usize * 577 % XATTR_VALUE_MAX,
        _ => value as usize * 37 % 700,
    };
    bytes.resize(len.max(4), value as u8);
    bytes
}

/// A client at work.
pub struct Actor {
    name: String,
    client: Rc<LocalClient>,
    /// The kernel between this program and its client, if there is one.
    mount: Option<Rc<Mount>>,
    by_pages: Option<Rng>,
    syncing: Option<Rng>,
    /// What the last operation has made or linked.
    made: Option<Attr>,
    pub(crate) shared: Rc<Shared>,
    pub(crate) rng: Rng,
    open: Vec<Arc<OpenFile>>,
    space_hog: Option<SpaceHog>,
    crowd: Crowd,
    locker: Option<Locker>,
}

impl Actor {
    /// A client that has done nothing yet; `rng` is its own.
    pub fn new(name: &str, client: Rc<LocalClient>, shared: &Rc<Shared>, rng: Rng) -> Actor {
        Actor {
            name: name.to_string(),
            client,
            mount: None,
            by_pages: None,
            syncing: None,
            made: None,
            shared: shared.clone(),
            rng,
            open: Vec::new(),
            space_hog: None,
            crowd: Crowd::default(),
            locker: None,
        }
    }

    /// From now on it works on a mount; `by_pages`: it reads files by way of its kernel's pages where this says so.
    pub fn works_on(&mut self, mount: Mount, by_pages: Option<Rng>) {
        self.mount = Some(Rc::new(mount));
        self.by_pages = by_pages;
    }

    /// From now on it makes durable what was changed, where this says so.
    pub fn syncs(&mut self, syncing: Rng) {
        self.syncing = Some(syncing);
    }

    /// Works until the quota is used up.
    pub async fn work(&mut self, quota: &Cell<u32>) {
        while quota.get() > 0 {
            quota.set(quota.get() - 1);
            let pause = self.rng.below(self.shared.schedule.pause_us + 1);
            if pause > 0 {
                tokio::time::sleep(Duration::from_micros(pause)).await;
            }
            let small = self.shared.schedule.is_small;
            if small && self.rng.percent(30) {
                self.space_hog().await;
            } else if self.shared.schedule.is_crowded && self.rng.percent(15) {
                self.crowd().await;
            } else if self.shared.schedule.is_locking && self.rng.percent(25) {
                Box::pin(self.lock()).await;
            } else if !self.shared.schedule.sets.is_empty() && self.rng.percent(8) {
                self.place().await;
            } else {
                let operation = self.draw();
                drop(self.perform(operation).await); // whatever came of it is in the history
            }
            if let Some(operation) = self.draw_sync() {
                drop(self.perform(operation).await);
            }
        }
        self.space_hog = None;
        self.crowd = Crowd::default();
        if let Some(locker) = self.locker.take() {
            locker.let_go(&self.client).await;
        }
    }

    /// Takes a lock, or sees whether it is there still, and lets go of it at times.
    async fn lock(&mut self) {
        let granted = &self.shared.granted;
        let done = match self.locker.take() {
            Some(locker) => match locker.has_it(&self.client, granted).await {
                Ok(true) if self.rng.percent(70) => Ok(Some(locker)),
                had => {
                    locker.let_go(&self.client).await;
                    had.map(|_| None)
                }
            },
            None => {
                let files = self.shared.files.borrow().clone();
                let inode = match files.is_empty() || self.rng.percent(60) {
                    true => ROOT,
                    false => self.rng.pick(&files),
                };
                let waits = self.rng.percent(50);
                Locker::take(&self.client, inode, granted, waits).await
            }
        };
        match done {
            Ok(locker) => self.locker = locker,
            Err(why) => self.shared.wrong.borrow_mut().push(format!("{}: {why}", self.name)),
        }
    }

    /// Turns a directory to one region set or another.
    async fn place(&mut self) {
        let dir = self.directory();
        let sets = &self.shared.schedule.sets;
        let value = match self.rng.percent(60) {
            true => self.rng.pick(sets).to_string(),
            false => "default".into(),
        };
        let done = self
            .client
            .set_xattr(dir, Placement::REGIONS.as_bytes(), value.as_bytes(), XattrMode::Any)
            .await;
        if let Err(error @ (FsError::Invalid(_) | FsError::NotPermitted)) = done {
            let why = format!("{}: {} to {value}: {error}", self.name, dir.ino.0);
            self.shared.wrong.borrow_mut().push(why);
        }
    }

    async fn crowd(&mut self) {
        let dir = self.directory();
        // boxed, as in `act`
        let changed = Box::pin(self.crowd.change(&self.client, dir, &mut self.rng)).await;
        if let Some(why) = changed {
            self.shared.wrong.borrow_mut().push(format!("{}: {why}", self.name));
        }
    }

    async fn space_hog(&mut self) {
        if self.rng.percent(15) {
            self.space_hog = None;
            return;
        }
        if self.space_hog.is_none() {
            let (dir, tag) = (self.directory(), self.shared.next_tag());
            self.space_hog = SpaceHog::make(&self.client, dir, tag).await;
        }
        let Some(space_hog) = &mut self.space_hog else { return };
        for _ in 0..4 {
            match space_hog.grow(&self.client).await {
                Grown::More => {}
                Grown::Full => {
                    self.shared.count(Fault::FullPool);
                    self.shared.history.note(&format!("{}: no room left", self.name));
                    return;
                }
                Grown::Lost => {
                    self.space_hog = None;
                    return;
                }
                Grown::Wrong(why) => {
                    self.space_hog = None;
                    self.shared
                        .missed
                        .borrow_mut()
                        .push(format!("{}: large file: {why}", self.name));
                    return;
                }
            }
        }
    }

    pub(crate) fn directory(&mut self) -> InodeRef {
        if self.rng.percent(50) {
            return ROOT;
        }
        let dirs = self.shared.dirs.borrow();
        self.rng.pick(&dirs)
    }

    pub(crate) fn name(&mut self) -> Name {
        self.rng.below(u64::from(self.shared.schedule.names)) as Name
    }

    fn any_file(&mut self) -> Option<InodeRef> {
        let files = self.shared.files.borrow();
        (!files.is_empty()).then(|| self.rng.pick(&files))
    }

    pub(crate) fn any_inode(&mut self) -> Option<InodeRef> {
        if self.rng.percent(25) {
            let dirs = self.shared.dirs.borrow();
            let dir = self.rng.pick(&dirs);
            return (dir != ROOT).then_some(dir);
        }
        self.any_file()
    }

    /// An operation that does not depend on what is open.
    fn draw(&mut self) -> Operation {
        let (dir, name) = (self.directory(), self.name());
        let inode = self.any_inode();
        if !self.open.is_empty() && self.rng.percent(55) {
            return self.draw_on_open();
        }
        match (self.rng.below(100), inode) {
            (0..14, _) => Operation::Lookup { dir, name },
            (14..30, _) => Operation::Create {
                dir,
                name,
                kind: FileKind::File,
            },
            (30..36, _) => Operation::Create {
                dir,
                name,
                kind: FileKind::Directory,
            },
            (36..44, _) => Operation::Unlink { dir, name },
            (44..48, _) => Operation::Rmdir { dir, name },
            (48..62, _) => Operation::Rename {
                old_dir: dir,
                old: name,
                new_dir: self.directory(),
                new: self.name(),
                mode: self.rng.pick(&[
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ]),
            },
            (62..68, _) => Operation::ReadDir { dir },
            (68..73, Some(inode)) => Operation::Link { inode, dir, name },
            (73..78, Some(inode)) => Operation::GetAttr { inode },
            (78..80, Some(inode)) => Operation::SetMode {
                inode,
                mode: 0o600 + self.rng.below(64) as u32,
            },
            (80..86, Some(inode)) => self.draw_xattr(inode),
            _ => match self.any_file() {
                Some(inode) => Operation::Open { inode },
                None => Operation::Create {
                    dir,
                    name,
                    kind: FileKind::File,
                },
            },
        }
    }

    fn draw_xattr(&mut self, inode: InodeRef) -> Operation {
        let name = self.rng.below(3) as Name;
        match self.rng.below(8) {
            0..3 => Operation::SetXattr {
                inode,
                name,
                value: self.shared.next_tag(),
                mode: self.rng.pick(&[XattrMode::Any, XattrMode::Create, XattrMode::Replace]),
            },
            3..6 => Operation::GetXattr { inode, name },
            6 => Operation::RemoveXattr { inode, name },
            _ => Operation::ListXattr { inode },
        }
    }

    fn draw_sync(&mut self) -> Option<Operation> {
        let syncing = self.syncing.as_mut().filter(|_| !self.open.is_empty())?;
        let inode = match syncing.below(10) {
            0 => None,
            1..3 => Some(self.open[syncing.below(self.open.len() as u64) as usize].inode()),
            _ => return None,
        };
        Some(Operation::Sync { inode })
    }

    fn draw_len(&mut self) -> u64 {
        let max = if self.shared.schedule.is_small {
            EAGER_MAX as u64
        } else {
            20_000
        };
        match self.rng.below(4) {
            0 => self.rng.between(1, 100),
            1 => 4096,
            2 => self.rng.between(1, 5_000.min(max)),
            _ => self.rng.between(1, max),
        }
    }

    fn draw_on_open(&mut self) -> Operation {
        let which = self.rng.below(self.open.len() as u64) as usize;
        let inode = self.open[which].inode();
        let mut offset = self.rng.below(self.shared.schedule.file_max);
        if self.rng.percent(30) {
            offset &= !4095;
        }
        let len = self.draw_len();
        match self.rng.below(100) {
            0..36 => {
                let offset = if self.rng.percent(50) { 0 } else { offset };
                let len = if self.rng.percent(50) { 70_000 } else { len };
                let by_pages = self.by_pages.as_mut().is_some_and(|rng| rng.percent(50));
                let len = if by_pages { len.min(PAGE - offset % PAGE) } else { len };
                Operation::Read { inode, offset, len }
            }
            36..60 => Operation::Write {
                inode,
                offset,
                len,
                tag: self.shared.next_tag(),
            },
            60..74 => Operation::Append {
                inode,
                len,
                tag: self.shared.next_tag(),
            },
            74..81 => Operation::Truncate { inode, size: offset },
            81..89 => Operation::Fallocate {
                inode,
                mode: self.rng.pick(&[
                    FallocateMode::PunchHole,
                    FallocateMode::PunchHole,
                    FallocateMode::ZeroRange { keep_size: true },
                    FallocateMode::ZeroRange { keep_size: false },
                ]),
                offset,
                len,
            },
            89..96 => Operation::GetAttr { inode },
            _ => Operation::Close { inode },
        }
    }

    /// Does an operation and writes down what came of it.
    pub async fn perform(&mut self, operation: Operation) -> Outcome {
        let shared = self.shared.clone();
        let which = shared.history.invoke(&self.name, operation.clone());
        let outcome = match shared.planted.before(&operation) {
            Instead::Nothing => self.act(&operation).await,
            Instead::Say(answer) => Ok(answer),
            Instead::Do(operations) => {
                let mut first = None;
                for operation in &operations {
                    let outcome = self.act(operation).await;
                    first.get_or_insert(outcome);
                }
                first.expect("a plant does something")
            }
        };
        let outcome = shared.planted.after(&operation, outcome);
        match &outcome {
            Ok(Answer::Inode(inode, kind)) => shared.remember(*inode, *kind),
            Ok(Answer::Entries(entries)) => {
                for (_, inode, kind) in entries {
                    shared.remember(*inode, *kind);
                }
            }
            _ => {}
        }
        shared.history.respond(which, outcome.clone());
        outcome
    }

    fn find_open(&self, inode: InodeRef) -> Result<Arc<OpenFile>, FsError> {
        let found = self.open.iter().find(|file| file.inode() == inode);
        found.cloned().ok_or(FsError::BadHandle)
    }

    fn keep_open(&mut self, file: Arc<OpenFile>) {
        if self.open.len() == OPEN_MAX {
            self.open.remove(0);
        }
        self.open.push(file);
    }

    async fn act(&mut self, operation: &Operation) -> Outcome {
        let Some(mount) = self.mount.clone() else {
            return self.ask(operation).await;
        };
        match operation {
            Operation::Sync { .. } => mount.served(self.ask(operation)).await,
            Operation::Lookup { dir, name } => mount.lookup(*dir, *name).await,
            Operation::GetAttr { inode } => mount.get_attr(*inode).await,
            Operation::Read { inode, offset, len } if self.by_pages.is_some() && is_of_one_page(*offset, *len) => {
                let file = self.find_open(*inode)?;
                match file.opened_at() {
                    Some(tail) => Box::pin(mount.read(&file, tail, *offset, *len)).await,
                    None => mount.served(Box::pin(self.read(*inode, *offset, *len))).await,
                }
            }
            _ => {
                mount.before(operation).await?;
                self.made = None;
                // boxed: a test's thread has little stack, and unoptimized futures are large
                let outcome = Box::pin(mount.asks(operation, self.ask(operation))).await;
                mount.after(operation, self.made.as_ref(), &outcome).await;
                outcome
            }
        }
    }

    /// Asks the client, which has told of an inode that it has made when this returns. (Boxed: else all that a client does is compiled
    /// once more for each of those who call this.)
    fn ask<'a>(&'a mut self, operation: &'a Operation) -> LocalFuture<'a, Outcome> {
        Box::pin(self.ask_client(operation))
    }

    async fn ask_client(&mut self, operation: &Operation) -> Outcome {
        let client = self.client.clone();
        let done = |()| Answer::Done;
        match operation {
            Operation::Lookup { dir, name } => {
                let attr = client.lookup(*dir, &spelled(*name)).await?;
                Ok(Answer::Inode(inode_of(&attr), attr.kind))
            }
            Operation::Create { dir, name, kind } => self.create(*dir, &spelled(*name), *kind).await,
            Operation::Open { inode } => self.open(*inode).await,
            Operation::Close { inode } => self.close(*inode),
            Operation::Read { inode, offset, len } => self.read(*inode, *offset, *len).await,
            Operation::Write {
                inode,
                offset,
                len,
                tag,
            } => {
                self.write(*inode, *offset, &pattern::bytes(*tag, *len), tag % 4 == 1)
                    .await
            }
            Operation::Append { inode, len, tag } => self.append(*inode, &pattern::bytes(*tag, *len)).await,
            Operation::Truncate { inode, size } => {
                client.set_attr(*inode, size_only(*size)).await.map(|_| Answer::Done)
            }
            Operation::Fallocate {
                inode,
                mode,
                offset,
                len,
            } => {
                let file = self.find_open(*inode)?;
                client.fallocate(&file, *mode, *offset, *len).await.map(done)
            }
            Operation::Unlink { dir, name } => client.unlink(*dir, &spelled(*name)).await.map(done),
            Operation::Rmdir { dir, name } => client.rmdir(*dir, &spelled(*name)).await.map(done),
            Operation::Rename {
                old_dir,
                old,
                new_dir,
                new,
                mode,
            } => {
                let (old, new) = (spelled(*old), spelled(*new));
                client.rename(*old_dir, &old, *new_dir, &new, *mode).await.map(done)
            }
            Operation::Link { inode, dir, name } => {
                let attr = client.link(*inode, *dir, &spelled(*name)).await?;
                self.has_made(attr);
                Ok(Answer::Done)
            }
            Operation::ReadDir { dir } => self.read_dir(*dir).await,
            Operation::GetAttr { inode } => self.get_attr(*inode).await,
            Operation::SetMode { inode, mode } => client.set_attr(*inode, mode_only(*mode)).await.map(|_| Answer::Done),
            Operation::SetXattr {
                inode,
                name,
                value,
                mode,
            } => {
                let value = xattr_value(*value);
                client.set_xattr(*inode, &spelled(*name), &value, *mode).await.map(done)
            }
            Operation::GetXattr { inode, name } => self.get_xattr(*inode, *name).await,
            Operation::RemoveXattr { inode, name } => client.remove_xattr(*inode, &spelled(*name)).await.map(done),
            Operation::ListXattr { inode } => self.list_xattr(*inode).await,
            Operation::Sync { inode } => {
                let file = inode.map(|inode| self.find_open(inode)).transpose()?;
                client.sync(file.as_deref()).await.map(done)
            }
        }
    }

    async fn create(&mut self, dir: InodeRef, name: &[u8], kind: FileKind) -> Outcome {
        let client = self.client.clone();
        let attr = match kind {
            FileKind::Directory => client.create(dir, name, new_file(kind)).await?,
            _ => {
                let (attr, file) = client.create_open(dir, name, new_file(kind)).await?;
                self.keep_open(file);
                attr
            }
        };
        self.has_made(attr);
        Ok(Answer::Inode(inode_of(&attr), attr.kind))
    }

    fn has_made(&mut self, attr: Attr) {
        if let Some(mount) = &self.mount {
            mount.tells(&attr);
        }
        self.made = Some(attr);
    }

    async fn get_attr(&self, inode: InodeRef) -> Outcome {
        Ok(shown(&self.client.get_attr(inode).await?))
    }

    async fn open(&mut self, inode: InodeRef) -> Outcome {
        let file = self.client.open(inode).await?;
        self.keep_open(file);
        Ok(Answer::Done)
    }

    fn close(&mut self, inode: InodeRef) -> Outcome {
        let at = self.open.iter().position(|file| file.inode() == inode);
        self.open.remove(at.ok_or(FsError::BadHandle)?);
        Ok(Answer::Done)
    }

    async fn read(&self, inode: InodeRef, offset: u64, len: u64) -> Outcome {
        let file = self.find_open(inode)?;
        let mut bytes = vec![0xee; len as usize];
        // some by registered memory; which, the operation says
        let read = if offset % 4 == 1 {
            let buffer = self.client.client().buffer(bytes.len())?;
            let read = self.client.read_into(&file, offset, &buffer, 0, bytes.len()).await?;
            buffer.read(0, &mut bytes);
            read
        } else {
            self.client.read(&file, offset, &mut bytes).await?
        };
        bytes.truncate(read);
        self.client.accessed(&file);
        Ok(Answer::Bytes(bytes))
    }

    async fn write(&self, inode: InodeRef, offset: u64, bytes: &[u8], registered: bool) -> Outcome {
        let file = self.find_open(inode)?;
        let written = if registered {
            let buffer = self.client.client().buffer(bytes.len())?;
            buffer.write(0, bytes);
            self.client.write_from(&file, offset, &buffer, 0, bytes.len()).await?
        } else {
            self.client.write(&file, offset, bytes).await?
        };
        Ok(match written == bytes.len() {
            true => Answer::Done,
            false => Answer::At(written as u64),
        })
    }

    async fn append(&self, inode: InodeRef, bytes: &[u8]) -> Outcome {
        let file = self.find_open(inode)?;
        let (at, written) = self.client.append(&file, bytes).await?;
        // a part of an append answers nothing that was asked
        Ok(match written == bytes.len() {
            true => Answer::At(at),
            false => Answer::Done,
        })
    }

    async fn get_xattr(&self, inode: InodeRef, name: Name) -> Outcome {
        let bytes = self.client.get_xattr(inode, &spelled(name)).await?;
        let number = bytes.first_chunk().map(|word| u32::from_le_bytes(*word));
        match number.filter(|value| bytes == xattr_value(*value)) {
            Some(value) => Ok(Answer::Value(value)),
            None => Err(FsError::Io(format!(
                "an attribute of {} bytes that nobody has set",
                bytes.len()
            ))),
        }
    }

    async fn list_xattr(&self, inode: InodeRef) -> Outcome {
        let names = self.client.list_xattr(inode).await?;
        let mut names: Vec<Name> = names.iter().filter_map(|name| read_name(name)).collect();
        names.sort_unstable();
        Ok(Answer::Names(names))
    }

    async fn read_dir(&self, dir: InodeRef) -> Outcome {
        let page = self.client.read_dir(dir, 0, ENTRIES_MAX).await?;
        let mut seen = Vec::new();
        for entry in page.entries {
            match read_name(&entry.name) {
                Some(name) => seen.push((name, entry.target, entry.kind)),
                None => return Err(FsError::Io(format!("a name that nobody has made: {:?}", entry.name))),
            }
        }
        seen.sort_unstable_by_key(|entry| entry.0);
        Ok(Answer::Entries(seen))
    }
}
