//! Reading: attributes, names, mappings, bytes, extended attributes.

use crate::dram_inode::{Body, Inode};
use crate::{FileView, Region, RegionError};
use polvo_format::{Attr, FileKind, Generation, INODE_SIZE, Ino, RegionOffset, Tail, UnitPlace};
use polvo_proto::{DirEntry, Extent, FileMap, FsError, InodeRef, LogCursor, LogSequel, Placement};
use std::sync::Arc;

/// Most extents in one answer.
const EXTENTS_MAX: usize = 1000;
/// Most bytes of entries in one listing, about, as encoded.
const LISTING_BYTES: usize = 48 << 10;

impl Region {
    /// Attributes and tail; `generation` must match when given.
    pub fn attr(&mut self, ino: Ino, generation: Option<Generation>) -> Result<(Attr, Tail), RegionError> {
        let slot = self.reach(ino)?;
        let inode = self.cache.get(&self.store, slot)?;
        if generation.is_some_and(|g| g != inode.attr.generation) {
            return Err(FsError::Stale.into());
        }
        Ok((inode.attr, inode.tail))
    }

    /// Finds a name.
    ///
    /// # Errors
    /// ENOENT; ENOTDIR; ENAMETOOLONG.
    pub fn lookup(&mut self, dir: InodeRef, name: &[u8]) -> Result<(DirEntry, Tail), RegionError> {
        let (_, inode) = self.inode(dir)?;
        let found = inode.directory_body()?.get(name);
        if name.len() > polvo_format::NAME_MAX {
            return Err(FsError::NameTooLong.into());
        }
        let found = found.ok_or(FsError::NotFound)?;
        let entry = DirEntry {
            cookie: found.cookie,
            target: found.target,
            kind: found.kind,
            name: name.to_vec(),
        };
        Ok((entry, inode.tail))
    }

    /// Entries after a cookie, at most `max`, and at most ~48 KiB encoded. "." and ".." are not among them.
    pub fn read_dir(&mut self, dir: InodeRef, after: u64, max: u32) -> Result<Vec<DirEntry>, RegionError> {
        let (_, inode) = self.inode(dir)?;
        let mut bytes = 0;
        let entries = inode.directory_body()?.after(after).take(max as usize);
        let entries = entries.take_while(|(name, _)| {
            bytes += name.len() + 32;
            bytes <= LISTING_BYTES
        });
        Ok(entries
            .map(|(name, dentry)| DirEntry {
                cookie: dentry.cookie,
                target: dentry.target,
                kind: dentry.kind,
                name: name.to_vec(),
            })
            .collect())
    }

    /// Cookie that the next new name of a directory gets.
    ///
    /// # Errors
    /// ENOTDIR.
    pub fn next_cookie(&mut self, dir: InodeRef) -> Result<u64, RegionError> {
        Ok(self.inode(dir)?.1.directory_body()?.next_cookie())
    }

    /// How the log of a directory goes on for somebody who knows it as of a tail; `None` when that is not remembered.
    ///
    /// # Errors
    /// ENOTDIR.
    pub fn log_sequel(&mut self, dir: InodeRef, known: Tail) -> Result<Option<LogSequel>, RegionError> {
        let (_, inode) = self.inode(dir)?;
        let reaches = |end: Tail| known.version() == end.version() && known.units() <= end.units();
        Ok(match inode.directory_body()?.rewritten() {
            _ if reaches(inode.tail) => Some(LogSequel {
                known: cursor(&inode.pages, known),
                rewritten: None,
            }),
            Some(rewritten) if reaches(rewritten.before) => Some(LogSequel {
                known: cursor(&rewritten.pages, known),
                rewritten: Some((rewritten.before, rewritten.after)),
            }),
            _ => None,
        })
    }

    /// Parent of a directory (the root's is the root).
    pub fn parent(&mut self, dir: InodeRef) -> Result<InodeRef, RegionError> {
        let (_, inode) = self.inode(dir)?;
        inode.directory_body()?;
        Ok(inode.parent)
    }

    /// Placement of a directory.
    pub fn placement(&mut self, dir: InodeRef) -> Result<Placement, RegionError> {
        let (_, inode) = self.inode(dir)?;
        inode.directory_body()?;
        Ok(inode.placement)
    }

    /// Target of a symlink. EINVAL for anything else.
    pub fn read_link(&mut self, inode: InodeRef) -> Result<Vec<u8>, RegionError> {
        let (_, found) = self.inode(inode)?;
        if found.attr.kind != FileKind::Symlink {
            return Err(FsError::Invalid("not a symbolic link".into()).into());
        }
        let mut target = vec![0; found.attr.size.min(polvo_format::SYMLINK_MAX as u64) as usize];
        self.read(inode, 0, &mut target)?;
        Ok(target)
    }

    /// Mapping from a file offset on (at most ~1000 extents).
    pub fn file_map(&mut self, inode: InodeRef, from: u64) -> Result<FileMap, RegionError> {
        let (_, inode) = self.inode(inode)?;
        let mut extents = Vec::new();
        let mut more = false;
        if let Body::File(view) = &inode.body {
            let mapping = view.read();
            let mut mapped = mapping.index.from(from);
            extents.extend(mapped.by_ref().take(EXTENTS_MAX).map(|(offset, e)| Extent {
                offset,
                len: e.len,
                gpa: e.gpa,
            }));
            more = mapped.next().is_some();
        }
        Ok(FileMap {
            attr: inode.attr,
            cursor: inode.cursor(),
            extents,
            more,
        })
    }

    /// A file's mapping, up to date, to be shared with readers inside the node.
    ///
    /// # Errors
    /// EISDIR, EINVAL for what has no bytes.
    pub fn file_view(&mut self, inode: InodeRef) -> Result<Arc<FileView>, RegionError> {
        let (_, inode) = self.inode(inode)?;
        match &inode.body {
            Body::File(view) => Ok(view.clone()),
            Body::Directory(_) | Body::Counted(_) => Err(FsError::IsDirectory.into()),
            Body::Special => Err(FsError::Invalid("not a regular file".into()).into()),
        }
    }

    /// Reads file bytes at the primary; short at end of file.
    pub fn read(&mut self, inode: InodeRef, offset: u64, into: &mut [u8]) -> Result<usize, RegionError> {
        let (store, inode) = self.inode(inode)?;
        let mapping = match &inode.body {
            Body::File(view) => view.read(),
            Body::Directory(_) | Body::Counted(_) => return Err(FsError::IsDirectory.into()),
            Body::Special => return Err(FsError::Invalid("not a regular file".into()).into()),
        };
        let len = inode.attr.size.saturating_sub(offset).min(into.len() as u64);
        let end = offset + len;
        let into = &mut into[..len as usize];
        let mut done = offset;
        for (at, extent) in mapping.index.from(offset).take_while(|(at, _)| *at < end) {
            let (start, stop) = (at.max(offset), (at + extent.len).min(end));
            into[(done - offset) as usize..(start - offset) as usize].fill(0);
            let bytes = &mut into[(start - offset) as usize..(stop - offset) as usize];
            store.read(extent.gpa.offset().0 + (start - at), bytes);
            done = stop;
        }
        into[(done - offset) as usize..].fill(0);
        Ok(into.len())
    }

    /// xattr value.
    ///
    /// # Errors
    /// ENODATA.
    pub fn get_xattr(&mut self, inode: InodeRef, name: &[u8]) -> Result<Vec<u8>, RegionError> {
        let (_, inode) = self.inode(inode)?;
        let value = inode.xattrs.get(name).ok_or(FsError::NoAttribute)?;
        Ok(value.to_vec())
    }

    /// Whether an xattr is there.
    pub fn has_xattr(&mut self, inode: InodeRef, name: &[u8]) -> Result<bool, RegionError> {
        Ok(self.inode(inode)?.1.xattrs.contains_key(name))
    }

    /// xattr names, in order. A directory's placement is not among them, so that copies of a tree do not carry it along.
    pub fn list_xattr(&mut self, inode: InodeRef) -> Result<Vec<Vec<u8>>, RegionError> {
        let (_, inode) = self.inode(inode)?;
        Ok(inode.xattrs.keys().map(|name| name.to_vec()).collect())
    }
}

impl Inode {
    /// The names. ENOTDIR for anything but a directory.
    pub(crate) fn directory_body(&self) -> Result<&crate::directory::Directory, RegionError> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(FsError::NotDirectory.into()),
        }
    }

    /// Where the log goes on.
    pub(crate) fn cursor(&self) -> LogCursor {
        cursor(&self.pages, self.tail)
    }
}

/// Where a log of these pages goes on after a tail that it has reached.
fn cursor(pages: &[u64], tail: Tail) -> LogCursor {
    let page = match UnitPlace::of(tail.units()) {
        UnitPlace::Inode(_) => 0,
        UnitPlace::Page { page, .. } => {
            let last = pages.get(page as usize).or(pages.last());
            last.copied().unwrap_or(0)
        }
    };
    debug_assert!(page == 0 || page >= INODE_SIZE as u64);
    LogCursor {
        tail,
        page: RegionOffset(page),
    }
}
