//! Operations on names and attributes: one RPC each, to the primary of the directory that gets or loses the name.
//! What the answers tell is entered in the caches, so that the next lookup costs one round trip.

use crate::cache::name_cache::{Child, DirLog, Known};
use crate::cache::pull::is_one_page;
use crate::local_client::LocalClient;
use crate::lookup::check_name;
use crate::open::OpenFile;
use crate::remote_inode::Current;
use polvo_cluster::join_all;
use polvo_format::{Attr, Entry, FileKind, NAME_MAX, NodeId, RegionId, RegionOffset, SYMLINK_MAX, Tail, UnitPlace};
use polvo_proto::{
    Ask, Cred, DirPage, FsError, InodeRef, LogCursor, Made, NewFile, Placement, RenameMode, SetAttr, Usage,
    XATTR_VALUE_MAX, XattrMode, ask, reply,
};
use std::sync::Arc;

impl LocalClient {
    /// Changes attributes.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the inode is gone, and what the node says of permissions and values.
    pub async fn set_attr(&self, inode: InodeRef, set: SetAttr) -> Result<Attr, FsError> {
        let _own = self.client.changing(inode.ino);
        if let Some(open_inode) = self.client.open_table.get(inode) {
            open_inode.unsynced.changing();
        }
        self.attr_of(inode.ino.region(), ask::SetAttr { inode, set }).await
    }

    /// Makes an inode and its name.
    ///
    /// # Errors
    /// [`FsError::Exists`] when the name exists; [`FsError::NoSpace`].
    pub async fn create(&self, dir: InodeRef, name: &[u8], file: NewFile) -> Result<Attr, FsError> {
        Ok(self.make(dir, name, file, false).await?.attr)
    }

    /// Makes an inode and its name and opens it, in one RPC.
    ///
    /// # Errors
    /// As [`LocalClient::create`].
    pub async fn create_open(
        &self,
        dir: InodeRef,
        name: &[u8],
        file: NewFile,
    ) -> Result<(Attr, Arc<OpenFile>), FsError> {
        let made = self.make(dir, name, file, true).await?;
        let file = match made.before {
            false => self.opened_made(&made).await?,
            true => match self.open_to_write(inode_of(&made), true).await {
                // it was made, and has been removed since: neither that it was nor that it was not is an answer
                Err(FsError::Stale) => {
                    return Err(FsError::Unreachable {
                        node: self.client.primary(dir.ino.region())?.0,
                        why: "it was started anew; the file was made, and is gone since".into(),
                    });
                }
                opened => opened?,
            },
        };
        Ok((made.attr, file))
    }

    /// Makes a file that has no name, and opens it (`O_TMPFILE`). `dir` says where it goes.
    ///
    /// # Errors
    /// As [`LocalClient::create`].
    pub async fn create_unnamed(&self, dir: InodeRef, file: NewFile) -> Result<(Attr, Arc<OpenFile>), FsError> {
        let request = || ask::CreateUnnamed {
            dir,
            file: file.clone(),
        };
        let made = self.call_for_space(dir.ino.region(), request).await?;
        self.note(&Current::new(made.attr, made.tail));
        Ok((made.attr, self.opened_made(&made).await?))
    }

    async fn make(&self, dir: InodeRef, name: &[u8], file: NewFile, open: bool) -> Result<Made, FsError> {
        check_name(name)?;
        if file.kind == FileKind::Symlink {
            if file.target.is_empty() {
                return Err(FsError::NotFound);
            }
            if file.target.len() > SYMLINK_MAX {
                return Err(FsError::NameTooLong);
            }
        }
        let _own = self.client.changing(dir.ino);
        let basis = self.client.names.basis(dir);
        let kind = file.kind;
        let request = || ask::Create {
            dir,
            name: name.to_vec(),
            file: file.clone(),
            open,
        };
        let made = self.call_for_space(dir.ino.region(), request).await?;
        let current = Current::new(made.attr, made.tail);
        if made.before {
            self.note(&current);
            return Ok(made); // what others have done to it and to its name since is not known
        }
        let names = &self.client.names;
        if kind == FileKind::Directory {
            names.seed_empty(current.inode(), current.log);
        }
        self.note(&current);
        let child = Child::new(current.inode(), kind);
        self.enter_found(dir, basis, name, child, made.dir_tail);
        if let Some(basis) = basis {
            self.advance_names(dir, basis, name, made.dir_tail).await;
        }
        Ok(made)
    }

    /// Our own entry in a directory's log, which adds a name or removes one: when it is all that came since `basis`, the
    /// cache has caught up with it.
    async fn advance_names(&self, dir: InodeRef, basis: DirLog, name: &[u8], tail: Tail) {
        if basis.tail.version() != tail.version() {
            return self.follow_rewritten(dir, tail).await;
        }
        // an entry that adds a name is as long; one that came over a connection names the request
        let by_request = self.colocated(dir.ino.region()).is_none();
        let removal = Entry::DentryDel {
            name,
            target: dir.ino,
            generation: dir.generation,
            kind: FileKind::File,
            cookie: 0,
            time_ns: 0,
        };
        // where it does not fit its page, what fills that may be a pad or somebody else's entry
        let units = removal.units_with(by_request);
        let fits = units <= UnitPlace::room(basis.tail.units());
        if fits && basis.tail.units() + units == tail.units() {
            let page = basis.page.filter(|_| is_one_page(basis.tail, tail));
            self.client.names.advance(dir, basis.tail, DirLog { tail, page });
        }
    }

    /// Opens a file that was just made and is held by the node that made it.
    async fn opened_made(&self, made: &Made) -> Result<Arc<OpenFile>, FsError> {
        let inode = inode_of(made);
        let cursor = LogCursor {
            tail: made.tail,
            page: RegionOffset(0),
        };
        self.open_held(inode, made.attr.kind, cursor, made.attr.size).await
    }

    /// Removes a name of something that is no directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::IsDirectory`].
    pub async fn unlink(&self, dir: InodeRef, name: &[u8]) -> Result<(), FsError> {
        self.remove(dir, name, || ask::Unlink {
            dir,
            name: name.to_vec(),
        })
        .await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NotEmpty`].
    pub async fn rmdir(&self, dir: InodeRef, name: &[u8]) -> Result<(), FsError> {
        self.remove(dir, name, || ask::Rmdir {
            dir,
            name: name.to_vec(),
        })
        .await
    }

    async fn remove<A: Ask<Answer = reply::Removed>>(
        &self,
        dir: InodeRef,
        name: &[u8],
        ask: impl Fn() -> A,
    ) -> Result<(), FsError> {
        check_name(name)?;
        let own = self.client.changing_any(); // what loses the name may be another inode than is known
        let victim = self.cached(dir, name);
        let basis = self.client.names.basis(dir);
        let reply::Removed { tail, target } = self.call_anew(dir.ino.region(), ask).await?;
        if let Some(basis) = basis {
            self.client.names.enter(dir, basis.tail, name, None);
            self.advance_names(dir, basis, name, tail).await;
        }
        self.bury(victim);
        if let Some(target) = target {
            own.was_of([dir.ino, target.ino]);
        }
        Ok(())
    }

    /// What the cache (not validated) knows of a name.
    fn cached(&self, dir: InodeRef, name: &[u8]) -> Option<Child> {
        match self.client.names.find(dir, name)?.1 {
            Known::Child(child) => Some(child),
            Known::Absent | Known::Nothing => None,
        }
    }

    /// An inode has lost a name, and may be dead: our hold must not keep it.
    fn bury(&self, victim: Option<Child>) {
        match victim {
            Some(child) if child.kind == FileKind::Directory => self.client.names.forget(child.target()),
            Some(child) => self.client.open_table.doom(child.target()),
            None => {}
        }
    }

    /// Adds a name to an inode that is no directory.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NotPermitted`] for a directory, [`FsError::TooManyLinks`].
    pub async fn link(&self, inode: InodeRef, dir: InodeRef, name: &[u8]) -> Result<Attr, FsError> {
        check_name(name)?;
        let _own = (self.client.changing(dir.ino), self.client.changing(inode.ino));
        let basis = self.client.names.basis(dir);
        let attr = self
            .attr_of(
                dir.ino.region(),
                ask::Link {
                    inode,
                    dir,
                    name: name.to_vec(),
                },
            )
            .await?;
        if let Some(basis) = basis {
            let child = Child::new(inode, attr.kind);
            self.client.names.enter(dir, basis.tail, name, Some(child));
        }
        Ok(attr)
    }

    /// Renames.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; [`FsError::Exists`] with [`RenameMode::NoReplace`]; [`FsError::Invalid`] when a directory
    /// would become its own descendant; [`FsError::NotEmpty`], [`FsError::IsDirectory`], [`FsError::NotDirectory`].
    pub async fn rename(
        &self,
        old_dir: InodeRef,
        old: &[u8],
        new_dir: InodeRef,
        new: &[u8],
        mode: RenameMode,
    ) -> Result<(), FsError> {
        check_name(old)?;
        check_name(new)?;
        let own = self.client.changing_any();
        let victim = if mode.replaces() {
            self.cached(new_dir, new)
        } else {
            None
        };
        let moved = self.cached(old_dir, old);
        let request = ask::Rename {
            old_dir,
            old_name: old.to_vec(),
            new_dir,
            new_name: new.to_vec(),
            mode,
        };
        let reply::Renamed { moved: renamed, other } = self.call(new_dir.ino.region(), request).await?;
        // what the names stand for now is left to the log: our idea of what moved may have been old, and where both names
        // were the same inode's, nothing has moved
        if victim != moved {
            self.bury(victim);
        }
        if let Some(renamed) = renamed {
            let about = [Some(renamed), other].into_iter().flatten().map(|inode| inode.ino);
            own.was_of(about.chain([old_dir.ino, new_dir.ino]));
        }
        Ok(())
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when it is none.
    pub async fn read_link(&self, inode: InodeRef) -> Result<Vec<u8>, FsError> {
        let reply::Target { target, tail } = self.call(inode.ino.region(), ask::ReadLink { inode }).await?;
        self.accessed_inode(inode, tail);
        Ok(target)
    }

    /// Entries of a directory after position `after` (0, or the cookie of the last entry seen), at most `max`; empty at
    /// the end.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`].
    pub async fn read_dir(&self, dir: InodeRef, after: u64, max: u32) -> Result<DirPage, FsError> {
        // who may list it else is the node's to say
        let may_know = after == 0 && self.client.cred == Cred::Kernel;
        if may_know
            && let Some(now) = self.client.tokens.known(dir)
            && let Some(page) = self.client.listings.get(dir, now.log.tail, max)
        {
            self.accessed_directory(dir, page.tail);
            return Ok(page);
        }
        let basis = self.client.names.basis(dir);
        let page = self.call(dir.ino.region(), ask::ReadDir { dir, after, max }).await?;
        if after == 0 {
            self.accessed_directory(dir, page.tail);
        }
        if may_know && self.client.tokens.has(dir) {
            self.client.listings.keep(dir, &page);
        }
        let entries = &page.entries;
        if let Some(basis) = basis
            && max > 0
        {
            let to = entries.last().map_or(u64::MAX, |last| last.cookie);
            let known = entries.iter().filter(|e| e.name.len() <= NAME_MAX);
            let known = known.map(|e| (e.name.as_slice(), Child::new(e.target, e.kind)));
            self.client.names.enter_page(dir, basis.tail, after, to, known);
        }
        Ok(page)
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`].
    pub async fn get_xattr(&self, inode: InodeRef, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let is_shown = [Placement::REGIONS, Placement::NODE].map(str::as_bytes).contains(&name);
        let is_sane = (1..=NAME_MAX).contains(&name.len()) && !name.contains(&0);
        if is_sane && !is_shown && self.is_known_bare(inode) {
            return Err(FsError::NoAttribute);
        }
        let name = name.to_vec();
        match self.call(inode.ino.region(), ask::GetXattr { inode, name }).await? {
            value if value.len() <= XATTR_VALUE_MAX => Ok(value),
            value => Err(FsError::Io(format!(
                "a node told {} bytes of an extended attribute, which has at most {XATTR_VALUE_MAX}",
                value.len()
            ))),
        }
    }

    /// Names of all extended attributes.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub async fn list_xattr(&self, inode: InodeRef) -> Result<Vec<Vec<u8>>, FsError> {
        if self.is_known_bare(inode) {
            return Ok(Vec::new());
        }
        let names = self.call(inode.ino.region(), ask::ListXattr { inode }).await?;
        Ok(names.into_iter().map(|name| name.into_vec()).collect())
    }

    /// It has no extended attributes, as is known by a token: most files have none, and `ls -l` asks for some of each. Who may not look
    /// for them is the node's to say.
    fn is_known_bare(&self, inode: InodeRef) -> bool {
        if self.client.cred != Cred::Kernel {
            return false;
        }
        let known = self.client.tokens.known(inode);
        if known.is_none() {
            self.client.tokens.used(inode);
        }
        known.is_some_and(|now| now.is_bare)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// [`FsError::Exists`] and [`FsError::NoAttribute`] as `mode` says; [`FsError::TooBig`].
    pub async fn set_xattr(&self, inode: InodeRef, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), FsError> {
        if value.len() > XATTR_VALUE_MAX {
            return Err(FsError::TooBig);
        }
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        let request = ask::SetXattr {
            inode,
            name: name.to_vec(),
            value: value.to_vec(),
            mode,
        };
        let _own = self.client.changing(inode.ino);
        self.attr_of(inode.ino.region(), request).await.map(drop)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`].
    pub async fn remove_xattr(&self, inode: InodeRef, name: &[u8]) -> Result<(), FsError> {
        let request = ask::RemoveXattr {
            inode,
            name: name.to_vec(),
        };
        let _own = self.client.changing(inode.ino);
        self.attr_of(inode.ino.region(), request).await.map(drop)
    }

    /// Space and inodes of all nodes, asked at the same time; those that cannot be reached are left out and named.
    ///
    /// # Errors
    /// None at present: a node that fails is one that cannot be reached.
    pub async fn usage(&self) -> Result<(Vec<(NodeId, Usage)>, Vec<NodeId>), FsError> {
        let map = self.client.map();
        let answers = join_all(
            map.nodes
                .iter()
                .map(|node| async move { (node.id, self.ask(node.id, ask::Usage).await) }),
        )
        .await;
        let (mut usages, mut missing) = (Vec::new(), Vec::new());
        for (node, answer) in answers {
            match answer {
                Ok(usage) => usages.push((node, usage)),
                Err(_) => missing.push(node),
            }
        }
        Ok((usages, missing))
    }

    /// Sends a request whose answer is an inode's attributes.
    pub(crate) async fn attr_of<A: Ask<Answer = reply::Attr>>(
        &self,
        region: RegionId,
        ask: A,
    ) -> Result<Attr, FsError> {
        let reply::Attr { attr, tail } = self.call(region, ask).await?;
        self.note(&Current::new(attr, tail));
        Ok(attr)
    }

    /// A request that takes space: when there is none, what this client has in hand is returned and it is sent again.
    async fn call_for_space<A: Ask>(&self, region: RegionId, ask: impl Fn() -> A) -> Result<A::Answer, FsError> {
        match self.call_anew(region, &ask).await {
            Err(FsError::NoSpace | FsError::HeldBack) if self.give_back_all().await => {
                self.call_anew(region, ask).await
            }
            answer => answer,
        }
    }
}

fn inode_of(made: &Made) -> InodeRef {
    InodeRef {
        ino: made.attr.ino,
        generation: made.attr.generation,
    }
}
