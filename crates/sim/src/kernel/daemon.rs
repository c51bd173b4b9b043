//! The mount's side: what it tells the kernel, for how long, and what it does when that is called back.
//!
//! This is `polvo-fuse` (`kernel_cache`, `filesystem::reply_found`, `requests::getattr`) without its threads. Its constants stand
//! here again, since that crate cannot be built without `/dev/fuse`: [`NAME_LASTS`], [`NAME_MARGIN`], [`NAMES_MOVE`],
//! [`NOT_YET`].

use crate::kernel::caches::{Attributes, Caches, inode_of};
use crate::operation::{Name, Outcome, spelled};
use crate::plant::Plant;
use polvo_client::{Client, Keeper, Kept, LocalClient, OpenFile, Since};
use polvo_format::{Attr, FileKind, Tail};
use polvo_proto::{FsError, InodeRef};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// As in `polvo-fuse`: the kernel is told that a name lasts for so long,
pub const NAME_LASTS: Duration = Duration::from_millis(20);
/// and may believe so for this much longer, and for two of its ticks.
pub const NAME_MARGIN: Duration = Duration::from_millis(30);
/// For so long after a rename took a name of a directory to another one no name of it is passed on.
const NAMES_MOVE: Duration = Duration::from_secs(1);
/// The kernel is told so often to forget an inode of which it was told and that it does not know yet.
const NOT_YET: Duration = Duration::from_millis(1);
/// What is planted: so much later, or longer.
const LATE: Duration = Duration::from_millis(30);
const TOO_LONG: Duration = Duration::from_secs(4);

/// The answer to a LOOKUP.
pub enum Entry {
    /// An inode.
    Found {
        /// It.
        told: Attributes,
        /// For how long the name may be believed.
        name_valid: Duration,
    },
    /// No such name.
    Absent {
        /// For how long that may be believed.
        valid: Duration,
    },
}

struct State {
    caches: Caches,
    /// Inodes that the kernel was told of and has not forgotten: by how many answers.
    told: BTreeMap<InodeRef, u64>,
    /// Until when the kernel may believe in names of a directory.
    names_until: BTreeMap<InodeRef, Instant>,
    /// Until when they are not to be passed on.
    names_move: BTreeMap<InodeRef, Instant>,
    /// The tail as of which, or later, all pages of a file are that the kernel may have.
    pages: BTreeMap<InodeRef, Tail>,
    /// Invalidations that a planted bug has put off.
    late: Vec<(Instant, InodeRef)>,
}

/// A mount's kernel and what its daemon knows of it.
pub struct Kernel {
    state: Mutex<State>,
    plant: Option<Plant>,
    tick: Duration,
}

impl Kernel {
    /// One that was told nothing yet, but for the root.
    pub fn new(tick: Duration, plant: Option<Plant>) -> Arc<Kernel> {
        Arc::new(Kernel {
            state: Mutex::new(State {
                caches: Caches::new(tick),
                told: BTreeMap::new(),
                names_until: BTreeMap::new(),
                names_move: BTreeMap::new(),
                pages: BTreeMap::new(),
                late: Vec::new(),
            }),
            plant,
            tick,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().expect("nobody panics with it");
        while let Some(due) = state.late.iter().position(|(at, _)| *at <= Instant::now()) {
            let (_, inode) = state.late.remove(due);
            state.caches.invalidate(inode);
        }
        state
    }

    /// Looks into the caches, or changes them.
    pub fn with<T>(&self, f: impl FnOnce(&mut Caches) -> T) -> T {
        f(&mut self.state().caches)
    }

    /// The kernel is about to be told of an inode.
    pub fn tells(&self, attr: &Attr) {
        *self.state().told.entry(inode_of(attr)).or_default() += 1;
    }

    /// FORGET: the kernel has forgotten so many of the answers that told of an inode.
    pub fn forgets(&self, inode: InodeRef, lookups: u64) {
        let mut state = self.state();
        let told = state.told.get_mut(&inode).map(|told| {
            *told = told.checked_sub(lookups).expect("only what was told is forgotten");
            *told
        });
        if told == Some(0) {
            state.told.remove(&inode);
            state.pages.remove(&inode);
        }
    }

    /// Memory is short.
    pub fn evict(&self, inode: InodeRef) {
        let lookups = self.with(|caches| caches.evict(inode));
        self.forgets(inode, lookups);
    }

    /// Serves a LOOKUP.
    pub async fn lookup(&self, client: &LocalClient, dir: InodeRef, name: Name) -> Result<Entry, FsError> {
        let spelled = spelled(name);
        match client.lookup(dir, &spelled).await {
            Ok(attr) => {
                self.tells(&attr);
                let is = Some(inode_of(&attr));
                let name = self.kept_name(client.client(), dir, &spelled, is);
                Ok(Entry::Found {
                    told: self.answer(client.client(), &attr),
                    name_valid: name.map_or(Duration::ZERO, |_kept| NAME_LASTS),
                })
            }
            Err(FsError::NotFound) => {
                let kept = self.kept_name(client.client(), dir, &spelled, None);
                let is_kept = kept.is_some() || self.plant == Some(Plant::AbsentBelieved);
                Ok(Entry::Absent {
                    valid: if is_kept { NAME_LASTS } else { Duration::ZERO },
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Serves a RENAME: what the kernel believes of the name, and for how long, it takes along to the other directory.
    pub async fn rename(
        &self,
        client: &LocalClient,
        from: InodeRef,
        to: InodeRef,
        is_exchange: bool,
        rename: impl Future<Output = Outcome>,
    ) -> Outcome {
        let to_since = self.name_will_move(client, from, to).await;
        let from_since = match is_exchange {
            true => self.name_will_move(client, to, from).await,
            false => None,
        };
        let client = client.client();
        let done = rename.await?;
        self.name_moves(client, from, to, to_since).await;
        if is_exchange {
            self.name_moves(client, to, from, from_since).await;
        }
        Ok(done)
    }

    /// How much longer the kernel may believe in names of a directory that a rename takes to another one.
    fn names_last(&self, from: InodeRef, to: InodeRef) -> Duration {
        let until = self.state().names_until.get(&from).copied();
        match until.filter(|_| from != to) {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None => Duration::ZERO,
        }
    }

    /// A token is taken of the directory to which a name is taken along.
    async fn name_will_move(&self, client: &LocalClient, from: InodeRef, to: InodeRef) -> Option<Since> {
        if from != to {
            self.state().names_move.insert(from, Instant::now() + NAMES_MOVE);
        }
        let left = self.names_last(from, to);
        if !left.is_zero() && client.client().token_of(to).is_none() {
            drop(tokio::time::timeout(left, client.take_tokens(&[to])).await);
        }
        client.client().token_of(to)
    }

    async fn name_moves(&self, client: &Client, from: InodeRef, to: InodeRef, since: Option<Since>) {
        let left = self.names_last(from, to);
        if left.is_zero() || self.plant == Some(Plant::RenamedBelieved) {
            return;
        }
        let kept = since.and_then(|since| client.keep_since(to, since));
        match kept.filter(|kept| kept.lasts() >= left) {
            Some(_kept) => {
                let mut state = self.state();
                let there = state.names_until.entry(to).or_insert_with(Instant::now);
                *there = (*there).max(Instant::now() + left);
            }
            None => tokio::time::sleep(left).await,
        }
    }

    /// Serves a GETATTR: pages that may be older than what it says are dropped.
    pub async fn get_attr(&self, client: &LocalClient, inode: InodeRef) -> Result<Attributes, FsError> {
        let (attr, tail) = client.get_attr_as_of(inode).await?;
        let as_of = self.state().pages.get(&inode).copied();
        if as_of.is_some_and(|as_of| as_of != tail) {
            self.drops_older_pages(inode, tail).await;
        }
        Ok(self.answer(client.client(), &attr))
    }

    /// Serves an OPEN: the file, found at this tail, is read by way of pages from now on.
    pub async fn begins_pages(&self, inode: InodeRef, tail: Tail) {
        if !self.state().pages.contains_key(&inode) {
            self.drops_older_pages(inode, tail).await;
        }
    }

    async fn drops_older_pages(&self, inode: InodeRef, tail: Tail) {
        while self.plant != Some(Plant::OldPagesKept) && !self.with(|caches| caches.drop_pages(inode)) {
            tokio::time::sleep(NOT_YET).await;
        }
        self.state().pages.insert(inode, tail);
    }

    /// Serves a READ.
    pub async fn read(&self, client: &LocalClient, file: &OpenFile, offset: u64, len: u64) -> Result<Vec<u8>, FsError> {
        let mut bytes = vec![0xee; len as usize];
        let read = client.read(file, offset, &mut bytes).await?;
        bytes.truncate(read);
        client.accessed(file);
        Ok(bytes)
    }

    /// Serves the LOOKUP of `.`, by which the kernel gets from a file handle to an inode that it does not know.
    pub async fn lookup_handle(&self, client: &LocalClient, inode: InodeRef) -> Result<Attributes, FsError> {
        let attr = client.get_attr(inode).await?;
        self.tells(&attr);
        Ok(self.answer(client.client(), &attr))
    }

    /// Attributes, as the kernel may keep them. The answer is written before the token can be given back: nothing else runs
    /// between the two here.
    fn answer(&self, client: &Client, attr: &Attr) -> Attributes {
        let kept = client.keep_attr(attr);
        let pages = self.state().pages.get(&inode_of(attr)).copied();
        let are_pages_good = |kept: &Kept<'_>| pages.is_none() || pages == kept.tail();
        let kept = kept.filter(|kept| self.plant == Some(Plant::OldPagesBelieved) || are_pages_good(kept));
        let mut valid = kept.as_ref().map_or(Duration::ZERO, Kept::lasts);
        if self.plant == Some(Plant::TooLong) && !valid.is_zero() {
            valid += TOO_LONG;
        }
        Attributes { attr: *attr, valid }
    }

    fn kept_name<'a>(&self, client: &'a Client, dir: InodeRef, name: &[u8], is: Option<InodeRef>) -> Option<Kept<'a>> {
        if self
            .state()
            .names_move
            .get(&dir)
            .is_some_and(|until| *until > Instant::now())
        {
            return None;
        }
        let kept = client.keep_name(dir, name, is)?;
        if kept.lasts() < NAME_LASTS {
            return None;
        }
        let until = Instant::now() + NAME_LASTS + NAME_MARGIN + 2 * self.tick;
        self.state().names_until.insert(dir, until);
        Some(kept)
    }
}

impl Keeper for Kernel {
    fn forget(&self, inode: InodeRef) -> Result<(), Duration> {
        let mut state = self.state();
        if self.plant == Some(Plant::ToldAfterAnswer) {
            state.late.push((Instant::now() + LATE, inode));
        } else if !state.caches.invalidate(inode)
            && state.told.contains_key(&inode)
            && self.plant != Some(Plant::UnknownIsForgotten)
        {
            return Err(NOT_YET);
        }
        // the mount's thread waits for them
        if !state.caches.drop_pages(inode) {
            return Err(NOT_YET);
        }
        let until = state.names_until.get(&inode);
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        match left.is_zero() || self.plant == Some(Plant::NamesGivenBackEarly) {
            true => Ok(()),
            false => Err(left),
        }
    }

    fn was_only_read(&self, inode: InodeRef, from: Tail, to: Tail) {
        let mut state = self.state();
        if let Some(as_of) = state.pages.get_mut(&inode).filter(|as_of| **as_of == from) {
            *as_of = to;
        }
    }
}

/// Type of an inode by its attributes, as a name shows it.
pub fn child(attr: &Attr) -> (InodeRef, FileKind) {
    (inode_of(attr), attr.kind)
}
