//! Operations on one inode: attributes, the map of its data, extended attributes, directory contents.

use crate::data::placement_attributes::PlacementAttribute;
use crate::names::acl::{self, Acl};
use crate::names::name_services::must_be_directory;
use crate::names::permission::{self, EXECUTE, READ, WRITE};
use crate::names::valid_name;
use crate::request::context::RequestContext;
use polvo_format::{Attr, FileKind, Generation, Ino, NAME_MAX, RegionId, Tail};
use polvo_proto::{
    ACL_MAX, DirPage, FILE_SIZE_MAX, FallocateMode, FileMap, Found, FsError, InodeRef, LogSequel, MapClaim, PageRun,
    SetAttr, XATTR_VALUE_MAX, XattrMode, reply,
};
use polvo_region::{Region, RegionError};
use serde_bytes::ByteBuf;

/// Most pages delegated in one go (64 MiB).
pub(crate) const DELEGATE_MAX: u32 = 16 * 1024;
/// Most entries of a directory in one answer; the region sees to their size.
const ENTRIES_MAX: u32 = 4096;

/// Who may do what with an inode, if that is more than its permission bits say.
fn access_acl(region: &mut Region, inode: InodeRef) -> Result<Option<Acl>, RegionError> {
    match region.get_xattr(inode, acl::ACCESS) {
        Ok(value) => Ok(Some(Acl::decode(&value)?)),
        Err(RegionError::Fs(FsError::NoAttribute)) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn check_end(offset: u64, len: u64) -> Result<(), FsError> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(()),
        _ => Err(FsError::FileTooLarge),
    }
}

fn check_xattr_name(name: &[u8]) -> Result<(), FsError> {
    match name {
        [] => Err(FsError::Invalid("an extended attribute has a name".into())),
        _ if name.len() > NAME_MAX => Err(FsError::Invalid("name of an extended attribute too long".into())),
        _ if name.contains(&0) => Err(FsError::Invalid("a name holds no NUL".into())),
        _ => Ok(()),
    }
}

impl RequestContext<'_> {
    /// Attributes are read only where something has to be checked.
    pub(crate) fn check(
        &self,
        region: &mut Region,
        inode: InodeRef,
        check: impl FnOnce(&Attr, Option<&Acl>) -> Result<(), FsError>,
    ) -> Result<(), RegionError> {
        if !permission::is_trusted(self.cred) {
            let (attr, _) = region.attr(inode.ino, Some(inode.generation))?;
            check(&attr, self.acl_here(region, inode)?.as_ref())?;
        }
        Ok(())
    }

    /// Who may do what with an inode served here; asked for only where something has to be checked.
    pub fn acl_here(&self, region: &mut Region, inode: InodeRef) -> Result<Option<Acl>, RegionError> {
        if permission::is_trusted(self.cred) {
            return Ok(None);
        }
        access_acl(region, inode)
    }

    pub async fn lookup(&self, dir: InodeRef, name: &[u8]) -> Result<Found, FsError> {
        valid_name::check(name)?;
        let (entry, dir_tail) = self
            .on(dir.ino.region(), |r| {
                self.check(r, dir, |attr, acl| {
                    must_be_directory(attr)?;
                    permission::access(self.cred, attr, acl, EXECUTE)
                })?;
                r.lookup(dir, name)
            })
            .await?;
        let target = entry.target;
        // a courtesy: nobody waits for it, nor for mirrors to have it
        let attr = self.node.service(target.ino.region()).and_then(|service| {
            let attr = service.enter(|r| r.attr(target.ino, Some(target.generation))).ok();
            attr.filter(|_| self.may_tell(service))
        });
        Ok(Found {
            target,
            kind: entry.kind,
            dir_tail,
            attr,
        })
    }

    pub async fn follow_log(&self, dir: InodeRef, known: Tail) -> Result<Option<LogSequel>, FsError> {
        self.on(dir.ino.region(), |r| {
            self.check(r, dir, |attr, acl| permission::access(self.cred, attr, acl, EXECUTE))?;
            r.log_sequel(dir, known)
        })
        .await
    }

    pub async fn get_attr(&self, ino: Ino, generation: Option<Generation>) -> Result<reply::Attr, FsError> {
        let (attr, tail) = self.on(ino.region(), |r| r.attr(ino, generation)).await?;
        Ok(reply::Attr { attr, tail })
    }

    pub async fn set_attr(&self, inode: InodeRef, set: &SetAttr) -> Result<reply::Attr, FsError> {
        if let Some(size) = set.size {
            check_end(size, 0)?;
        }
        let (attr, tail) = self
            .on(inode.ino.region(), |r| {
                let (attr, _) = r.attr(inode.ino, Some(inode.generation))?;
                // its permission bits and its list change together
                let acl = match set.mode {
                    Some(_) => access_acl(r, inode)?,
                    None => self.acl_here(r, inode)?,
                };
                let set = permission::set_attr(self.cred, &attr, acl.as_ref(), set)?;
                let acl = acl.zip(set.mode).map(|(mut acl, mode)| {
                    acl.set_mode(mode);
                    acl.encode()
                });
                let xattr = acl.as_deref().map(|acl| (acl::ACCESS, Some(acl)));
                r.set_attr_and_xattr(inode, &set, xattr, self.now_ns())
            })
            .await?;
        Ok(reply::Attr { attr, tail })
    }

    /// A courtesy to the inodes that were read: what is gone, or may not be read by this caller, is passed over.
    pub async fn accessed(&self, inodes: &[(InodeRef, Tail)], strict: bool) -> Result<Vec<Tail>, FsError> {
        let mut tails = Vec::with_capacity(inodes.len());
        for (inode, read_at) in inodes {
            let done = self
                .on(inode.ino.region(), |r| {
                    self.check(r, *inode, |attr, acl| match attr.kind {
                        FileKind::Symlink => Ok(()),
                        _ => permission::access(self.cred, attr, acl, READ),
                    })?;
                    r.accessed(*inode, *read_at, strict, self.now_ns())
                })
                .await;
            tails.push(done.ok().flatten().unwrap_or(Tail(0)));
        }
        Ok(tails)
    }

    pub async fn read_link(&self, inode: InodeRef) -> Result<reply::Target, FsError> {
        let (target, tail) = self
            .on(inode.ino.region(), |r| {
                let target = r.read_link(inode)?;
                Ok((target, r.attr(inode.ino, Some(inode.generation))?.1))
            })
            .await?;
        Ok(reply::Target { target, tail })
    }

    pub async fn read_dir(&self, dir: InodeRef, after: u64, max: u32) -> Result<DirPage, FsError> {
        self.on(dir.ino.region(), |r| {
            self.check(r, dir, |attr, acl| permission::access(self.cred, attr, acl, READ))?;
            Ok(DirPage {
                entries: r.read_dir(dir, after, max.min(ENTRIES_MAX))?,
                next_cookie: r.next_cookie(dir)?,
                tail: r.attr(dir.ino, Some(dir.generation))?.1,
            })
        })
        .await
    }

    pub async fn open(&self, inode: InodeRef) -> Result<FileMap, FsError> {
        self.on_for_session(inode.ino.region(), |r| {
            self.check(r, inode, |attr, acl| permission::access_data(self.cred, attr, acl))?;
            let map = r.file_map(inode, 0)?;
            r.open(self.session.id, inode)?;
            Ok(map)
        })
        .await
    }

    pub async fn open_to_write(
        &self,
        inode: InodeRef,
        claim: MapClaim,
        number: u64,
        want_map: bool,
    ) -> Result<reply::OpenedToWrite, FsError> {
        self.on_for_session(inode.ino.region(), |r| {
            // who may only read keeps nobody from mapping
            self.check(r, inode, |attr, acl| permission::access(self.cred, attr, acl, WRITE))?;
            let map = match want_map {
                true => Some(r.file_map(inode, 0)?),
                false => None,
            };
            let may_map = r.open_to_write(self.session.id, inode, claim, number)?;
            Ok(reply::OpenedToWrite { may_map, map })
        })
        .await
    }

    pub fn end_writing(&self, inodes: &[(InodeRef, u64)]) -> Result<(), FsError> {
        for (inode, number) in inodes {
            if let Some(service) = self.node.service(inode.ino.region()) {
                service.enter(|region| region.end_writing(self.session.id, *inode, *number));
            }
        }
        Ok(())
    }

    pub async fn extents(&self, inode: InodeRef, from: u64) -> Result<FileMap, FsError> {
        self.on(inode.ino.region(), |r| {
            self.check(r, inode, |attr, acl| permission::access_data(self.cred, attr, acl))?;
            r.file_map(inode, from)
        })
        .await
    }

    pub async fn fallocate(
        &self,
        inode: InodeRef,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<reply::Attr, FsError> {
        if len == 0 {
            return Err(FsError::Invalid("a range of no bytes".into()));
        }
        check_end(offset, len)?;
        let (attr, tail) = self
            .on(inode.ino.region(), |r| {
                self.before_write(r, inode)?;
                r.fallocate(inode, mode, offset, len, self.now_ns())
            })
            .await?;
        Ok(reply::Attr { attr, tail })
    }

    /// Space is for those who can write to it.
    pub(crate) fn may_access_data(&self) -> Result<(), FsError> {
        match self.node.gives_one_sided(self.session.party) {
            true => Ok(()),
            false => Err(FsError::NotPermitted),
        }
    }

    pub async fn delegate(&self, region: RegionId, pages: u32) -> Result<Vec<PageRun>, FsError> {
        self.may_access_data()?;
        let session = self.session.id;
        let pages = pages.clamp(1, DELEGATE_MAX);
        self.take_for_session(region, |r| r.delegate(session, pages)).await
    }

    pub async fn get_xattr(&self, inode: InodeRef, name: &[u8]) -> Result<Vec<u8>, FsError> {
        check_xattr_name(name)?;
        if let Some(attribute) = PlacementAttribute::named(name) {
            return self.placement_attribute(inode, attribute).await;
        }
        self.on(inode.ino.region(), |r| {
            self.check(r, inode, |attr, acl| match name.starts_with(b"user.") {
                true => permission::access(self.cred, attr, acl, READ),
                false => Ok(()),
            })?;
            r.get_xattr(inode, name)
        })
        .await
    }

    pub async fn list_xattr(&self, inode: InodeRef) -> Result<Vec<ByteBuf>, FsError> {
        let names = self.on(inode.ino.region(), |r| r.list_xattr(inode)).await?;
        Ok(names.into_iter().map(ByteBuf::from).collect())
    }

    /// Who may change an extended attribute: writers those of users, owners those of the file system, root the rest.
    fn check_xattr_change(&self, region: &mut Region, inode: InodeRef, name: &[u8]) -> Result<(), RegionError> {
        if name.starts_with(b"system.") {
            return Err(
                FsError::NotSupported("extended attributes of the system, except access control lists".into()).into(),
            );
        }
        self.check(region, inode, |attr, acl| {
            if name.starts_with(b"user.") {
                match attr.kind {
                    FileKind::File | FileKind::Directory | FileKind::Object => {}
                    _ => return Err(FsError::NotPermitted),
                }
                permission::access(self.cred, attr, acl, WRITE)
            } else if name.starts_with(b"polvo.") {
                permission::owner(self.cred, attr)
            } else {
                Err(FsError::NotPermitted)
            }
        })
    }

    pub async fn set_xattr(
        &self,
        inode: InodeRef,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<reply::Attr, FsError> {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(FsError::TooBig);
        }
        if name == acl::ACCESS || name == acl::DEFAULT {
            return self.set_acl(inode, name, Some(value), mode).await;
        }
        if let Some(attribute) = PlacementAttribute::named(name) {
            return self.set_placement_attribute(inode, attribute, value).await;
        }
        let (attr, tail) = self
            .on(inode.ino.region(), |r| {
                self.check_xattr_change(r, inode, name)?;
                r.set_xattr(inode, name, value, mode, self.now_ns())
            })
            .await?;
        Ok(reply::Attr { attr, tail })
    }

    /// Sets or removes an access control list; the permission bits follow it in the same commit. A list that says no more
    /// than they do is not kept.
    async fn set_acl(
        &self,
        inode: InodeRef,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<reply::Attr, FsError> {
        let acl = match value {
            None | Some(acl::NONE) => None,
            Some(value) if value.len() > ACL_MAX => return Err(FsError::TooBig),
            Some(value) => Some(Acl::decode(value)?),
        };
        let (attr, tail) = self
            .on(inode.ino.region(), |r| {
                let (attr, _) = r.attr(inode.ino, Some(inode.generation))?;
                permission::owner(self.cred, &attr)?;
                match attr.kind {
                    FileKind::Symlink => {
                        return Err(FsError::NotSupported("a symbolic link with an access control list".into()).into());
                    }
                    FileKind::Directory => {}
                    _ if name == acl::DEFAULT && acl.is_some() => return Err(FsError::Access.into()),
                    _ => {}
                }
                let is_there = r.has_xattr(inode, name)?;
                match mode {
                    XattrMode::Create if is_there => return Err(FsError::Exists.into()),
                    XattrMode::Replace if !is_there => return Err(FsError::NoAttribute.into()),
                    _ => {}
                }
                let mut set = SetAttr::default();
                let mut value = acl.as_ref().map(Acl::encode);
                if let (true, Some(acl)) = (name == acl::ACCESS, &acl) {
                    set.mode = Some(attr.mode & 0o7000 | acl.mode());
                    set = permission::set_attr(self.cred, &attr, None, &set)?;
                    value = value.filter(|_| !acl.is_mode());
                }
                r.set_attr_and_xattr(inode, &set, Some((name, value.as_deref())), self.now_ns())
            })
            .await?;
        Ok(reply::Attr { attr, tail })
    }

    pub async fn remove_xattr(&self, inode: InodeRef, name: &[u8]) -> Result<reply::Attr, FsError> {
        check_xattr_name(name)?;
        if name == acl::ACCESS || name == acl::DEFAULT {
            return self.set_acl(inode, name, None, XattrMode::Replace).await;
        }
        let (attr, tail) = self
            .on(inode.ino.region(), |r| {
                self.check_xattr_change(r, inode, name)?;
                r.remove_xattr(inode, name, self.now_ns())
            })
            .await?;
        Ok(reply::Attr { attr, tail })
    }
}
