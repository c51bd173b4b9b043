//! Names and attributes: lookup through the name cache, validated; path walk.

use crate::LocalClient;
use crate::cache::name_cache::{Child, DirLog, Known};
use crate::remote_inode::{Current, LogState, STATE_SIZE, Seen, inode_at, judge, tail_at};
use crate::tokens::Look;
use polvo_cluster::RegionVerb;
use polvo_format::{Attr, FileKind, INODE_VIEW_SIZE, Ino, NAME_MAX, SYMLINK_MAX, Tail};
use polvo_proto::{Cred, Found, FsError, InodeRef, LogSequel, ask};
use std::time::Duration;
use tokio::time::Instant;

/// How often a lookup starts again because the directory changes under it, before the primary is asked.
const VALIDATE_TRIES: u32 = 4;
/// Pauses between further tries, where inodes go before they can be looked at: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Most symbolic links followed in a walk.
const SYMLINKS_MAX: u32 = 40;
/// Most components of a walk, those of links included.
const COMPONENTS_MAX: u32 = 4096;

/// How a cached directory compares with the real one.
enum Validity {
    /// Nothing has changed.
    Valid,
    /// It had changed; the cache has caught up.
    CaughtUp,
    /// The primary is to be asked.
    Ask,
}

pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || polvo_format::has_slash_or_nul(name) {
        return Err(FsError::Invalid("a name is not empty and has no '/' and no NUL".into()));
    }
    Ok(())
}

/// Whether the caller may search a directory (execute permission). Asked where a name comes from the cache; else the
/// node checks.
fn may_search(cred: &Cred, attr: &Attr) -> bool {
    match cred {
        Cred::Kernel => true,
        Cred::User { uid: 0, .. } => true,
        Cred::User { uid, .. } if *uid == attr.uid => attr.mode & 0o100 != 0,
        Cred::User { gid, groups, .. } if *gid == attr.gid || groups.contains(&attr.gid) => attr.mode & 0o010 != 0,
        Cred::User { .. } => attr.mode & 0o001 != 0,
    }
}

impl LocalClient {
    /// Finds a name in a directory. One round trip when the name is cached.
    ///
    /// # Errors
    /// [`FsError::NotFound`] when there is no such name; [`FsError::Stale`] when the directory is gone.
    pub async fn lookup(&self, dir: InodeRef, name: &[u8]) -> Result<Attr, FsError> {
        Ok(self.find(dir, name).await?.attr)
    }

    /// Attributes of an inode as they are now: one one-sided read.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the inode is gone.
    pub async fn get_attr(&self, inode: InodeRef) -> Result<Attr, FsError> {
        Ok(self.get_attr_as_of(inode).await?.0)
    }

    /// The same, with the tail of the inode's log then: as long as that is where it is, nothing of the inode has changed.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the inode is gone.
    pub async fn get_attr_as_of(&self, inode: InodeRef) -> Result<(Attr, Tail), FsError> {
        self.send_access(inode).await;
        let current = self.current(inode.ino, Some(inode.generation)).await?;
        Ok((current.attr, current.log.tail))
    }

    /// The inode that has a number now.
    ///
    /// # Errors
    /// [`FsError::NotFound`] when there is none.
    pub async fn resolve(&self, ino: Ino) -> Result<InodeRef, FsError> {
        Ok(self.current(ino, None).await?.inode())
    }

    /// Finds a name by what is known of it; whatever else it takes has a box of its own, so that this is small.
    async fn find(&self, dir: InodeRef, name: &[u8]) -> Result<Current, FsError> {
        match name {
            b"." => return Box::pin(self.current(dir.ino, Some(dir.generation))).await,
            b".." => return Box::pin(self.parent(dir)).await,
            _ => {}
        }
        for _ in 0..VALIDATE_TRIES {
            let losses = self.client.losses();
            let Some((log, known)) = self.client.names.find(dir, name) else {
                break;
            };
            let child = match known {
                Known::Nothing => break,
                Known::Absent => None,
                Known::Child(child) => Some(child.target()),
            };
            let look = child.map_or(Look::NONE, |child| self.client.tokens.look(child));
            let (validity, seen) = self.validate_with(dir, log, child).await?;
            if self.client.losses() != losses {
                continue; // of a node that was behind another the same tail may be that of another log
            }
            match validity {
                Validity::Ask => break,
                Validity::CaughtUp => continue,
                Validity::Valid => {}
            }
            let Some(child) = child else {
                // what is known to be absent may be no name at all
                check_name(name)?;
                return Err(FsError::NotFound);
            };
            let found = match seen {
                Seen::Inode(view) => self.accept_seen(Current::from(&view), Some(child.generation), look),
                Seen::ByToken(current) => Ok(current),
                Seen::Torn | Seen::Locked => Box::pin(self.current(child.ino, Some(child.generation))).await,
                Seen::Nothing => Err(FsError::Stale),
            };
            match found {
                // removed since: the directory has changed
                Err(FsError::Stale) => {}
                found => return found,
            }
        }
        Box::pin(self.find_asking(dir, name)).await
    }

    /// Asks the primary for a name and enters the answer. Where the inode that it names has gone before it is looked at, the
    /// name is asked for again, for as long as a locked inode is waited for: only the primary says that there is no such name.
    async fn find_asking(&self, dir: InodeRef, name: &[u8]) -> Result<Current, FsError> {
        check_name(name)?;
        let mut deadline = None;
        let mut pause = Duration::ZERO;
        let mut missed = None;
        for tries in 0.. {
            let (losses, basis) = (self.client.losses(), self.client.names.basis(dir));
            let lookup = ask::Lookup {
                dir,
                name: name.to_vec(),
            };
            let found = self.call(dir.ino.region(), lookup).await;
            let basis = basis.filter(|_| self.client.losses() == losses);
            let found = match found {
                Ok(found) => found,
                Err(FsError::NotFound) => {
                    if let Some(basis) = basis {
                        self.client.names.enter(dir, basis.tail, name, None);
                    }
                    return Err(FsError::NotFound);
                }
                Err(FsError::Stale) => {
                    self.client.names.forget(dir);
                    return Err(FsError::Stale);
                }
                Err(error) => return Err(error),
            };
            let Found {
                target,
                kind,
                dir_tail,
                attr,
            } = found;
            self.enter_found(dir, basis, name, Child::new(target, kind), dir_tail);
            let current = match attr {
                Some((attr, tail)) => self.accept(Current::new(attr, tail), Some(target.generation)),
                None => self.current(target.ino, Some(target.generation)).await,
            };
            match current {
                // removed between the two looks
                Err(FsError::Stale) => {}
                current => return current,
            }
            if tries >= VALIDATE_TRIES {
                let held = self.client.context.timeouts().held;
                if Instant::now() >= *deadline.get_or_insert_with(|| Instant::now() + held) {
                    // nothing has changed, and still its inode is not there
                    return Err(match missed == Some((target, dir_tail)) {
                        true => FsError::Io(format!(
                            "a name in directory {:?} leads to inode {:?}, which is not there; polvo fsck tells more",
                            dir.ino, target.ino
                        )),
                        false => FsError::Busy,
                    });
                }
                pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                tokio::time::sleep(pause).await;
            }
            missed = Some((target, dir_tail));
        }
        unreachable!("it ends at the deadline")
    }

    /// Enters a name that an answer has told, at the basis; `tail` is the directory's at the time.
    pub(crate) fn enter_found(&self, dir: InodeRef, basis: Option<DirLog>, name: &[u8], child: Child, tail: Tail) {
        let names = &self.client.names;
        let basis = basis.unwrap_or(DirLog { tail, page: None });
        names.seed(dir, basis);
        names.enter(dir, basis.tail, name, Some(child));
    }

    /// Compares a cached directory with its inode, and reads the inode of a child along with it: in one batch where
    /// both lie at one node, else in two at a time.
    async fn validate_with(
        &self,
        dir: InodeRef,
        log: DirLog,
        child: Option<InodeRef>,
    ) -> Result<(Validity, Seen), FsError> {
        let tokens = &self.client.tokens;
        if self.client.cred != Cred::Kernel || tokens.has(dir) {
            // permissions may have changed without the names: look at the whole inode, which may be known by a token
            let dir_now = self.current(dir.ino, Some(dir.generation)).await?;
            if !may_search(&self.client.cred, &dir_now.attr) {
                return Err(FsError::Access);
            }
            let state = LogState {
                tail: dir_now.log.tail,
                locked: false,
            };
            let validity = self.catch_up_names(dir, log, state).await?;
            let seen = match (&validity, child) {
                (Validity::Valid, Some(child)) => match tokens.known(child) {
                    Some(current) => Seen::ByToken(current),
                    None => self.see(child.ino).await?,
                },
                _ => Seen::Nothing,
            };
            return Ok((validity, seen));
        }
        tokens.used(dir);
        let (state, seen) = match child.map(|child| child.ino) {
            Some(child) if self.client.together(child.region(), dir.ino.region()) => {
                let (Some(at), Some(child_at)) = (tail_at(dir.ino), inode_at(child)) else {
                    return Err(FsError::Stale);
                };
                let (mut state, mut bytes) = ([0; STATE_SIZE], [0; INODE_VIEW_SIZE]);
                let mut ops = [
                    RegionVerb::Read { at, into: &mut state },
                    RegionVerb::Read {
                        at: child_at,
                        into: &mut bytes,
                    },
                ];
                match self.one_sided(dir.ino.region(), &mut ops).await {
                    Ok(()) => {}
                    // one of them is gone, and with it the segment that it lay in
                    Err(FsError::Invalid(_)) => return Ok((Validity::Ask, Seen::Nothing)),
                    Err(error) => return Err(error),
                }
                (LogState::decode(&state), judge(&bytes, child))
            }
            Some(child) => {
                let (state, seen) = tokio::join!(self.log_state(dir.ino), self.see(child));
                (state?, seen?)
            }
            None => (self.log_state(dir.ino).await?, Seen::Nothing),
        };
        Ok((self.catch_up_names(dir, log, state).await?, seen))
    }

    /// Brings a cached directory up to the state its inode is in.
    async fn catch_up_names(&self, dir: InodeRef, log: DirLog, now: LogState) -> Result<Validity, FsError> {
        let names = &self.client.names;
        if now.locked {
            return Ok(Validity::Ask);
        }
        if now.tail == log.tail {
            return Ok(Validity::Valid);
        }
        if now.tail.version() == log.tail.version() && self.pull_names(dir, log, now.tail).await? {
            return Ok(Validity::CaughtUp);
        }
        // a rewritten log, or a page that is not known: the primary says how it goes on
        let follow = ask::FollowLog { dir, known: log.tail };
        let Ok(sequel) = self.call(dir.ino.region(), follow).await else {
            return Ok(Validity::Ask);
        };
        if !self.follow_names(dir, log, sequel, now.tail).await? {
            names.restart(
                dir,
                DirLog {
                    tail: now.tail,
                    page: None,
                },
            );
            return Ok(Validity::Ask);
        }
        Ok(Validity::CaughtUp)
    }

    /// Has a directory's names, known as of `log`, follow it to `to`, or to the beginning of a log that is newer still.
    async fn follow_names(
        &self,
        dir: InodeRef,
        log: DirLog,
        sequel: Option<LogSequel>,
        to: Tail,
    ) -> Result<bool, FsError> {
        let Some(LogSequel { known, rewritten }) = sequel.filter(|sequel| sequel.known.tail == log.tail) else {
            return Ok(false);
        };
        let mut at = DirLog::from(known);
        if let Some((end, from)) = rewritten {
            if !self.pull_names(dir, at, end).await? {
                return Ok(false);
            }
            at = DirLog::from(from);
            self.client.names.advance(dir, end, at);
        }
        Ok(at.tail.version() > to.version() || self.pull_names(dir, at, to).await?)
    }

    /// Has a directory's names follow its log up to a tail that an answer has told, where the log was rewritten since: later
    /// than now its old pages may be gone.
    pub(crate) async fn follow_rewritten(&self, dir: InodeRef, tail: Tail) {
        for _ in 0..VALIDATE_TRIES {
            let behind = |known: &DirLog| known.tail.version() < tail.version();
            let Some(log) = self.client.names.basis(dir).filter(behind) else {
                return;
            };
            match self.catch_up_names(dir, log, LogState { tail, locked: false }).await {
                Ok(Validity::CaughtUp) => {}
                Ok(_) => return,
                // what was to be done is done; whoever looks next asks again
                Err(error) => return tracing::debug!(?dir, %error, "the directory's log is not followed"),
            }
        }
    }

    async fn parent(&self, dir: InodeRef) -> Result<Current, FsError> {
        for _ in 0..VALIDATE_TRIES {
            let parent = match self.see(dir.ino).await? {
                Seen::Inode(view) if view.attr.generation == dir.generation => {
                    if view.attr.kind != FileKind::Directory {
                        return Err(FsError::NotDirectory);
                    }
                    InodeRef {
                        ino: view.parent,
                        generation: view.parent_generation,
                    }
                }
                Seen::Inode(_) | Seen::ByToken(_) | Seen::Nothing => return Err(FsError::Stale),
                // the primary waits for the transaction that holds it
                Seen::Torn | Seen::Locked => {
                    self.current(dir.ino, Some(dir.generation)).await?;
                    continue;
                }
            };
            // the root is its own parent
            let parent = if dir.ino == Ino::ROOT { dir } else { parent };
            return self.current(parent.ino, Some(parent.generation)).await;
        }
        Err(FsError::Busy)
    }

    /// Walks a `/`-separated path from the root. Symbolic links are followed (at most 40), in the last component only
    /// with `follow` or when a `/` ends the path.
    ///
    /// # Errors
    /// As [`LocalClient::lookup`]; [`FsError::NotDirectory`], [`FsError::Loop`].
    pub async fn walk(&self, path: &[u8], follow: bool) -> Result<Attr, FsError> {
        let mut walk = Walk::new(self.root().await?, path);
        while let Some(name) = walk.next_name()? {
            let dir = walk.here();
            if dir.attr.kind != FileKind::Directory {
                return Err(FsError::NotDirectory);
            }
            match name.as_slice() {
                b"." => continue,
                b".." => {
                    walk.up();
                    continue;
                }
                _ => {}
            }
            let found = self.find(dir.inode(), &name).await?;
            if found.attr.kind == FileKind::Symlink && (follow || !walk.at_end()) {
                walk.follow(&self.read_link(found.inode()).await?)?;
            } else {
                walk.enter(found);
            }
        }
        let attr = walk.here().attr;
        if walk.wants_directory && attr.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        Ok(attr)
    }

    /// Parent directory and last component of a path, for an operation that makes or removes a name.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when the path has no last component to name (`/`, `.` or `..`); as [`LocalClient::walk`].
    pub async fn walk_parent<'p>(&self, path: &'p [u8]) -> Result<(InodeRef, &'p [u8]), FsError> {
        let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
        let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        let name = &path[start..end];
        if matches!(name, b"" | b"." | b"..") {
            return Err(FsError::Invalid("the path ends in no name".into()));
        }
        check_name(name)?;
        let parent = self.walk(&path[..start], true).await?;
        if parent.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        Ok((
            InodeRef {
                ino: parent.ino,
                generation: parent.generation,
            },
            name,
        ))
    }

    async fn root(&self) -> Result<Current, FsError> {
        self.current(Ino::ROOT, None).await
    }
}

/// A path walk: what is still to be walked, and the way back.
struct Walk {
    /// Components to come, last one first.
    rest: Vec<Vec<u8>>,
    /// Directories from the root to here, and what was entered last.
    way: Vec<Current>,
    wants_directory: bool,
    links: u32,
    components: u32,
}

impl Walk {
    fn new(root: Current, path: &[u8]) -> Walk {
        let mut walk = Walk {
            rest: Vec::new(),
            way: vec![root],
            wants_directory: false,
            links: 0,
            components: 0,
        };
        walk.push(path);
        walk.wants_directory = path.ends_with(b"/");
        walk
    }

    fn push(&mut self, path: &[u8]) {
        self.rest.extend(
            path.split(|b| *b == b'/')
                .rev()
                .filter(|c| !c.is_empty())
                .map(<[u8]>::to_vec),
        );
    }

    fn next_name(&mut self) -> Result<Option<Vec<u8>>, FsError> {
        self.components += 1;
        if self.components > COMPONENTS_MAX {
            return Err(FsError::NameTooLong);
        }
        Ok(self.rest.pop())
    }

    fn here(&self) -> Current {
        *self.way.last().expect("the root is never left")
    }

    /// No component is to come, and nothing (such as a `/` at the end) asks for a directory.
    fn at_end(&self) -> bool {
        self.rest.is_empty() && !self.wants_directory
    }

    fn up(&mut self) {
        if self.way.len() > 1 {
            self.way.pop();
        }
    }

    fn enter(&mut self, found: Current) {
        self.way.push(found);
    }

    fn follow(&mut self, target: &[u8]) -> Result<(), FsError> {
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            return Err(FsError::Loop);
        }
        if target.is_empty() || target.len() > SYMLINK_MAX {
            return Err(FsError::NotFound);
        }
        if target.starts_with(b"/") {
            self.way.truncate(1);
        }
        if self.rest.is_empty() && target.ends_with(b"/") {
            self.wants_directory = true;
        }
        self.push(target);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(check_name(&[b'x'; 256]), Err(FsError::NameTooLong));
        for bad in [&b""[..], b"a/b", b"a\0b"] {
            assert!(matches!(check_name(bad), Err(FsError::Invalid(_))));
        }
        assert_eq!(check_name(&[b'x'; 255]), Ok(()));
    }

    #[test]
    fn search_permission_is_that_of_the_class_that_applies() {
        let attr = |mode| Attr {
            ino: Ino(9),
            generation: polvo_format::Generation(1),
            kind: FileKind::Directory,
            mode,
            nlink: 2,
            uid: 10,
            gid: 20,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
        };
        let user = |uid, gid, groups: &[u32]| Cred::User {
            uid,
            gid,
            groups: groups.to_vec(),
        };
        for (cred, mode, may) in [
            (user(10, 1, &[]), 0o100, true),
            (user(10, 20, &[]), 0o011, false),
            (user(11, 20, &[]), 0o010, true),
            (user(11, 1, &[20]), 0o010, true),
            (user(11, 1, &[20]), 0o101, false),
            (user(11, 1, &[]), 0o001, true),
            (user(0, 0, &[]), 0, true),
            (Cred::Kernel, 0, true),
        ] {
            assert_eq!(may_search(&cred, &attr(mode)), may, "{cred:?} {mode:o}");
        }
    }
}
