//! Changes of one inode: attributes, bytes, mapping, extended attributes. Each is one commit of the inode's log,
//! durable on return; on error nothing changed.

use crate::dram_inode::{Body, Inode};
use crate::planted::{Planted, planted};
use crate::staged_append::StagedAppend;
use crate::store::{Store, Urgency};
use crate::{FileView, Region, RegionError};
use polvo_format::{Attr, AttrChange, Entry, FileKind, INLINE_MAX, LINE, NAME_MAX, PAGE, SessionId, Tail};
use polvo_proto::{
    ACL_MAX, EAGER_MAX, FILE_SIZE_MAX, FallocateMode, FsError, InodeRef, Placement, RUNS_MAX, SetAttr, TimeChange,
    WriteAt, WriteRun, Written, XATTR_NAMES_MAX, XATTR_VALUE_MAX, XATTRS_MAX, XattrMode,
};

const PAGE_BYTES: u64 = PAGE as u64;
/// Most bytes of log entries that a write's answer carries.
const ENTRIES_MAX: u64 = 8 << 10;
/// A day, in nanoseconds.
const DAY_NS: i64 = 24 * 3600 * 1_000_000_000;

/// What the program in a file may do beyond its caller (capabilities(7)). Whoever changes contents or owner takes it away,
/// root too: the kernel leaves that to the file system where it writes past the page cache.
const CAPABILITIES: &[u8] = b"security.capability";

/// A small write that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Where in the file its bytes are.
    pub offset: u64,
    /// The log's tail before it.
    before: Tail,
}

/// What a commit names.
#[derive(Clone, Copy, Debug)]
pub struct NewData<'a> {
    /// Where the bytes lie, in ascending order of their offsets in the file.
    pub runs: &'a [WriteRun],
    /// The CRC-32C of what lies in each page that the runs touch, 4 bytes each, or nothing.
    pub crcs: &'a [u8],
}

fn invalid(why: impl Into<String>) -> RegionError {
    FsError::Invalid(why.into()).into()
}

impl Region {
    /// Changes attributes (size included).
    ///
    /// # Errors
    /// EISDIR, EINVAL: a size for something that has none; EFBIG.
    pub fn set_attr(&mut self, inode: InodeRef, set: &SetAttr, now_ns: i64) -> Result<(Attr, Tail), RegionError> {
        self.set_attr_and_xattr(inode, set, None, now_ns)
    }

    /// Changes attributes, and sets (or with `None` removes, if it is there) an extended attribute in the same commit.
    ///
    /// # Errors
    /// As [`Region::set_attr`] and [`Region::set_xattr`].
    pub fn set_attr_and_xattr(
        &mut self,
        inode: InodeRef,
        set: &SetAttr,
        xattr: Option<(&[u8], Option<&[u8]>)>,
        now_ns: i64,
    ) -> Result<(Attr, Tail), RegionError> {
        self.with_space(now_ns, |region| {
            let (store, inode) = region.inode_to_change(inode)?;
            let mut entries = Vec::new();
            let mut urgency = Urgency::Normal;
            if let Some(size) = set.size {
                inode.file_body()?;
                if size > FILE_SIZE_MAX {
                    return Err(FsError::FileTooLarge.into());
                }
                if size < inode.attr.size {
                    urgency = Urgency::Frees;
                }
                entries.push(Entry::Truncate { size, time_ns: now_ns });
            }
            let time = |t: Option<TimeChange>| {
                t.map(|t| match t {
                    TimeChange::Now => now_ns,
                    TimeChange::To(ns) => ns,
                })
            };
            let change = AttrChange {
                mode: set.mode.map(|m| m & 0o7777),
                uid: set.uid,
                gid: set.gid,
                atime_ns: time(set.atime),
                mtime_ns: time(set.mtime),
                ctime_ns: now_ns,
            };
            let only_size = AttrChange {
                ctime_ns: now_ns,
                ..AttrChange::default()
            };
            if set.size.is_none() || change != only_size {
                entries.push(Entry::SetAttr(change));
            }
            if set.size.is_some() || set.uid.is_some() || set.gid.is_some() {
                entries.extend(inode.without_capabilities(now_ns));
            }
            match xattr {
                Some((name, Some(value))) => {
                    inode.has_room_for_xattr(name, value)?;
                    entries.extend(Entry::set_xattr(name, value, now_ns));
                }
                Some((name, None)) if inode.xattrs.contains_key(name) => {
                    entries.push(Entry::DelXattr { name, time_ns: now_ns });
                }
                _ => {}
            }
            store.append(inode, &entries, urgency, |_| ())?;
            debug_assert!(
                set.size.is_none_or(|size| inode.attr.size == size),
                "the size is what was set"
            );
            debug_assert!(change.mode.is_none_or(|mode| inode.attr.mode == mode), "so is the mode");
            debug_assert!(change.uid.is_none_or(|uid| inode.attr.uid == uid), "and the owner");
            debug_assert!(change.gid.is_none_or(|gid| inode.attr.gid == gid), "and the group");
            debug_assert_eq!(inode.attr.ctime_ns, now_ns, "a change has a time");
            if change.atime_ns.is_some() {
                inode.atime_set = inode.tail;
            }
            Ok((inode.attr, inode.tail))
        })
    }

    /// The inode was read when its log ended at `read_at`: its access time becomes `now_ns`, unless it has been set since
    /// (`None`). If not `strict`, only where it is not later than the last change or is a day old, as Linux does by `relatime`.
    /// The change time stays. Returns the tail.
    pub fn accessed(
        &mut self,
        inode: InodeRef,
        read_at: Tail,
        strict: bool,
        now_ns: i64,
    ) -> Result<Option<Tail>, RegionError> {
        self.with_space(now_ns, |region| {
            let (store, inode) = region.inode(inode)?;
            if read_at < inode.atime_set {
                return Ok(None);
            }
            let (attr, before) = (&inode.attr, inode.tail);
            let is_late = attr.atime_ns > attr.mtime_ns.max(attr.ctime_ns);
            if strict || !is_late || now_ns.saturating_sub(attr.atime_ns) >= DAY_NS {
                let change = AttrChange {
                    atime_ns: Some(now_ns),
                    ctime_ns: attr.ctime_ns,
                    ..AttrChange::default()
                };
                store.append(inode, &[Entry::SetAttr(change)], Urgency::Normal, |_| ())?;
                debug_assert_eq!(inode.attr.atime_ns, now_ns, "it was read now");
                debug_assert_eq!(inode.attr.ctime_ns, change.ctime_ns, "to be read is no change");
            }
            // by nothing else has it moved from there
            Ok((before == read_at).then_some(inode.tail))
        })
    }

    /// As [`Region::store`]; `known`: entries of the log after it are in the answer.
    pub fn write(
        &mut self,
        inode: InodeRef,
        at: WriteAt,
        bytes: &[u8],
        known: Tail,
        now_ns: i64,
    ) -> Result<Written, RegionError> {
        let Stored { offset, before } = self.store(inode, at, bytes, now_ns)?;
        let (store, inode) = self.inode(inode)?;
        Ok(written(store, inode, offset, known, before))
    }

    /// Small write (at most [`EAGER_MAX`] bytes), bytes copied here.
    ///
    /// Bytes at the end of the file go on in the file's last page where that has room (nobody can see them there before
    /// the tail moves); other small ones travel in the log entry; the rest gets a fresh page.
    pub fn store(&mut self, inode: InodeRef, at: WriteAt, bytes: &[u8], now_ns: i64) -> Result<Stored, RegionError> {
        self.with_space(now_ns, |region| {
            let (store, inode) = region.inode_to_change(inode)?;
            let size = inode.attr.size;
            let offset = at.in_file(size);
            inode.file_body()?;
            if bytes.len() > EAGER_MAX {
                return Err(invalid(format!("eager write of {} bytes", bytes.len())));
            }
            let end = offset
                .checked_add(bytes.len() as u64)
                .filter(|&end| end <= FILE_SIZE_MAX);
            end.ok_or(FsError::FileTooLarge)?;
            if bytes.is_empty() {
                return Ok(Stored {
                    offset,
                    before: inode.tail,
                });
            }
            if let Some(entry) = inode.without_capabilities(now_ns) {
                let origin = store.origin.take(); // of the write itself
                let appended = store.append(inode, &[entry], Urgency::Normal, |_| ());
                store.origin = origin;
                appended?;
            }
            let before = inode.tail;
            store.fetch_log_end(inode);
            let view = inode.file_body()?;
            view.read().index.fetch(offset);
            let mut staged = StagedAppend::on(store);
            let placed = Placed::new(&mut staged, inode, offset, bytes.len() as u64)?;
            let (entries, n) = placed.entries(staged.store, offset, bytes, now_ns);
            let filled_checksum = match placed.filled {
                Some((at, len)) => staged.store.filled_checksum(at, &bytes[..len as usize]),
                None => None,
            };
            let data = |store: &Store| {
                placed.store(store, bytes);
                if let Some(((at, _), known)) = placed.filled.zip(filled_checksum) {
                    store.note_checksum(at, known.encode());
                }
            };
            staged.commit(inode, &entries[..n], Urgency::Normal, data)?;
            if let Some((at, len)) = placed.filled {
                assert!(
                    store.space.map_more(at, len),
                    "bytes behind the last extent of a page are free"
                );
                if let Some(known) = filled_checksum {
                    store.put_checksum(at, known);
                }
            }
            if let Some((at, len)) = placed.fresh {
                store.space.map_fresh(at, len);
            }
            debug_assert_eq!(
                inode.attr.size,
                size.max(offset + bytes.len() as u64),
                "the file goes as far"
            );
            debug_assert!(inode.tail > before, "a write makes the log longer");
            Ok(Stored { offset, before })
        })
    }

    /// Log commit of data that lies in space delegated to `session` (checked; consumed, whole pages at a time). The offsets of
    /// its runs count from `from`.
    pub fn commit(
        &mut self,
        session: SessionId,
        inode: InodeRef,
        data: NewData<'_>,
        from: WriteAt,
        known: Tail,
        now_ns: i64,
    ) -> Result<Written, RegionError> {
        let NewData { runs, crcs } = data;
        self.with_space(now_ns, |region| {
            if runs.is_empty() || runs.len() > RUNS_MAX {
                return Err(invalid(format!("commit of {} runs", runs.len())));
            }
            let slot = {
                let (_, inode) = region.inode_to_change(inode)?;
                inode.file_body()?;
                inode.slot
            };
            let (store, sessions) = (&mut region.store, &mut region.sessions);
            let inode = region.cache.get(store, slot)?;
            let before = inode.tail;
            let base = from.in_file(inode.attr.size);
            let mut entries = check_runs(store, runs, base, now_ns)?;
            store.check_crcs(runs, crcs)?;
            assert_eq!(entries.len(), runs.len(), "an entry for each run");
            entries.extend(inode.without_capabilities(now_ns));
            let consumed = sessions.consume(session, runs)?;
            debug_assert!(
                runs.iter()
                    .all(|run| store.space.is_in_use(run.gpa.offset().0, run.len)),
                "what is delegated is in use"
            );
            let data = |store: &Store| {
                if store.is_captured() && !planted(Planted::RunsUnnoted) {
                    runs.iter().for_each(|run| store.note_run(run.gpa.offset().0, run.len));
                }
                store.put_checksums_of_runs(runs, crcs);
            };
            store.append(inode, &entries, Urgency::Normal, data)?;
            consumed.happened();
            for run in runs {
                store.space.map_fresh(run.gpa.offset().0, run.len);
            }
            debug_assert!(inode.tail > before, "a commit makes the log longer");
            debug_assert!(
                runs.iter().all(|run| inode.attr.size >= base + run.offset + run.len),
                "the file goes as far"
            );
            Ok(written(store, inode, base + runs[0].offset, known, before))
        })
    }

    /// Takes the mapping of a range away.
    pub fn fallocate(
        &mut self,
        inode: InodeRef,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now_ns: i64,
    ) -> Result<(Attr, Tail), RegionError> {
        self.with_space(now_ns, |region| {
            let (store, inode) = region.inode_to_change(inode)?;
            inode.file_body()?;
            if len == 0 {
                return Err(invalid("fallocate of no bytes"));
            }
            let end = offset
                .checked_add(len)
                .filter(|&end| end <= FILE_SIZE_MAX)
                .ok_or(FsError::FileTooLarge)?;
            let extend = mode == FallocateMode::ZeroRange { keep_size: false };
            let mut entries = vec![Entry::Hole {
                offset,
                len,
                time_ns: now_ns,
            }];
            if extend && end > inode.attr.size {
                entries.push(Entry::Truncate {
                    size: end,
                    time_ns: now_ns,
                });
            }
            entries.extend(inode.without_capabilities(now_ns));
            let before = inode.attr.size;
            store.append(inode, &entries, Urgency::Frees, |_| ())?;
            let size = if extend { before.max(end) } else { before };
            debug_assert_eq!(inode.attr.size, size, "a hole leaves the size as it is");
            Ok((inode.attr, inode.tail))
        })
    }

    /// Sets where new inodes of a directory go.
    ///
    /// # Errors
    /// ENOTDIR.
    pub fn set_placement(
        &mut self,
        dir: InodeRef,
        placement: Placement,
        now_ns: i64,
    ) -> Result<(Attr, Tail), RegionError> {
        self.with_space(now_ns, |region| {
            let (store, inode) = region.inode_to_change(dir)?;
            inode.directory_body()?;
            let entry = Entry::Placement {
                placement: placement.into(),
                time_ns: now_ns,
            };
            store.append(inode, &[entry], Urgency::Normal, |_| ())?;
            debug_assert_eq!(inode.placement, placement, "it is what was set");
            Ok((inode.attr, inode.tail))
        })
    }

    /// Sets an xattr.
    ///
    /// # Errors
    /// EEXIST, ENODATA as the mode says; E2BIG for a value or a sum of all over the limits.
    pub fn set_xattr(
        &mut self,
        inode: InodeRef,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        now_ns: i64,
    ) -> Result<(Attr, Tail), RegionError> {
        self.with_space(now_ns, |region| {
            let (store, inode) = region.inode_to_change(inode)?;
            check_xattr_name(name)?;
            match (mode, inode.xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(FsError::Exists.into()),
                (XattrMode::Replace, false) => return Err(FsError::NoAttribute.into()),
                _ => {}
            }
            inode.has_room_for_xattr(name, value)?;
            let entries: Vec<Entry<'_>> = Entry::set_xattr(name, value, now_ns).collect();
            store.append(inode, &entries, Urgency::Normal, |_| ())?;
            debug_assert!(
                inode.xattrs.get(name).is_some_and(|set| **set == *value),
                "the value is what was set"
            );
            Ok((inode.attr, inode.tail))
        })
    }

    /// Removes an xattr.
    ///
    /// # Errors
    /// ENODATA.
    pub fn remove_xattr(&mut self, inode: InodeRef, name: &[u8], now_ns: i64) -> Result<(Attr, Tail), RegionError> {
        self.with_space(now_ns, |region| {
            let (store, inode) = region.inode_to_change(inode)?;
            check_xattr_name(name)?;
            if !inode.xattrs.contains_key(name) {
                return Err(FsError::NoAttribute.into());
            }
            let entry = Entry::DelXattr { name, time_ns: now_ns };
            store.append(inode, &[entry], Urgency::Frees, |_| ())?;
            debug_assert!(!inode.xattrs.contains_key(name), "what is removed is gone");
            Ok((inode.attr, inode.tail))
        })
    }
}

impl Inode {
    /// The entry that takes the file's capabilities away, if it has any.
    #[inline]
    fn without_capabilities(&self, time_ns: i64) -> Option<Entry<'static>> {
        let has_some = !self.xattrs.is_empty() && self.xattrs.contains_key(CAPABILITIES);
        has_some.then_some(Entry::DelXattr {
            name: CAPABILITIES,
            time_ns,
        })
    }

    /// E2BIG for a value, or all names or all names and values with it, over the limits.
    fn has_room_for_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), RegionError> {
        let others = || self.xattrs.iter().filter(|(other, _)| ***other != *name);
        let names: usize = others().map(|(other, _)| other.len() + 1).sum();
        let all: usize = others().map(|(other, value)| other.len() + value.len()).sum();
        let is_over = value.len() > XATTR_VALUE_MAX
            || names + name.len() + 1 > XATTR_NAMES_MAX
            || all + name.len() + value.len() > XATTRS_MAX;
        match is_over {
            true => Err(FsError::TooBig.into()),
            false => Ok(()),
        }
    }

    /// The mapping of a file whose bytes can be written.
    fn file_body(&self) -> Result<&FileView, RegionError> {
        match &self.body {
            Body::File(view) if self.attr.kind != FileKind::Symlink => Ok(view),
            Body::Directory(_) | Body::Counted(_) => Err(FsError::IsDirectory.into()),
            _ => Err(invalid("not a regular file")),
        }
    }
}

/// Attributes that a new inode is to begin with: access control lists of its directory's.
pub(crate) fn check_xattrs(xattrs: &[(serde_bytes::ByteBuf, serde_bytes::ByteBuf)]) -> Result<(), RegionError> {
    if xattrs.len() > 2 {
        return Err(FsError::TooBig.into());
    }
    for (name, value) in xattrs {
        check_xattr_name(name)?;
        if value.len() > ACL_MAX {
            return Err(FsError::TooBig.into());
        }
    }
    Ok(())
}

fn check_xattr_name(name: &[u8]) -> Result<(), RegionError> {
    if name.is_empty() || name.contains(&0) {
        return Err(invalid("name of an extended attribute"));
    }
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong.into());
    }
    Ok(())
}

/// Where the bytes of a small write go: into the entry, or
struct Placed {
    /// behind the last extent, in its page: region offset, bytes
    filled: Option<(u64, u64)>,
    /// in a fresh page: region offset, bytes
    fresh: Option<(u64, u64)>,
}

impl Placed {
    /// Finds places for `len` bytes at an offset of a file. Takes a page if need be.
    fn new(staged: &mut StagedAppend<'_>, inode: &Inode, offset: u64, len: u64) -> Result<Placed, RegionError> {
        let (view, size) = (inode.file_body()?, inode.attr.size);
        let (mut filled, mut fresh) = (None, None);
        if offset != size && len <= INLINE_MAX as u64 {
            return Ok(Placed { filled, fresh });
        }
        // the place right behind the last extent, when the file ends there
        let last = if offset == size { view.read().index.last() } else { None };
        let behind = last.filter(|(at, e)| at + e.len == size && !e.inline);
        let behind = behind.map(|(_, e)| e.gpa.offset().0 + e.len);
        let room = behind.map_or(0, |at| at.next_multiple_of(PAGE_BYTES) - at);
        let may_fill = |at| staged.store.may_fill(at) && !staged.store.space.snapshots.show(inode.slot, offset);
        let room = match behind {
            Some(at) if room > 0 && !may_fill(at) => 0,
            _ => room,
        };
        debug_assert!(room < PAGE_BYTES, "{room} bytes behind others in a page");
        let fill = room.min(len);
        let rest = len - fill;
        if rest > 0 {
            let page = staged.take_page(behind.map(|at| (at - 1) / PAGE_BYTES))?;
            // at the same place in the page as in the file, if it fits there, so that later whole pages replace it whole
            let in_page = (offset + fill) % PAGE_BYTES;
            let in_page = if in_page + rest <= PAGE_BYTES { in_page } else { 0 };
            debug_assert!(rest <= PAGE_BYTES, "what is left takes one page");
            fresh = Some((page + in_page, rest));
        }
        if fill > 0 {
            filled = behind.map(|at| (at, fill));
        }
        debug_assert_eq!(fill + fresh.map_or(0, |(_, len)| len), len, "each byte has one place");
        debug_assert!(filled.is_none_or(|(at, len)| at % PAGE_BYTES + len <= PAGE_BYTES && at % PAGE_BYTES > 0));
        debug_assert!(fresh.is_none_or(|(at, len)| at % PAGE_BYTES + len <= PAGE_BYTES));
        Ok(Placed { filled, fresh })
    }

    /// The entries of the write, and how many there are.
    fn entries<'a>(&self, store: &Store, offset: u64, bytes: &'a [u8], time_ns: i64) -> ([Entry<'a>; 2], usize) {
        let map = |offset, len, at| Entry::Write {
            offset,
            len,
            gpa: store.gpa(at),
            time_ns,
        };
        let shift = store.segment_shift();
        match (self.filled, self.fresh) {
            (None, None) => ([Entry::Inline { offset, bytes, time_ns }, Entry::Pad], 1),
            (Some((at, len)), None) | (None, Some((at, len))) => ([map(offset, len, at), Entry::Pad], 1),
            // neighbours, and in one segment
            (Some((at, fill)), Some((fresh, rest))) if at + fill == fresh && at >> shift == fresh >> shift => {
                ([map(offset, fill + rest, at), Entry::Pad], 1)
            }
            (Some((at, fill)), Some((fresh, rest))) => ([map(offset, fill, at), map(offset + fill, rest, fresh)], 2),
        }
    }

    /// Stores the bytes (streaming: the commit's first fence makes them durable).
    fn store(&self, store: &Store, bytes: &[u8]) {
        debug_assert_eq!(
            self.filled.map_or(0, |(_, len)| len) + self.fresh.map_or(0, |(_, len)| len),
            if self.filled.is_none() && self.fresh.is_none() {
                0
            } else {
                bytes.len() as u64
            },
            "all bytes have a place, or none outside of the log"
        );
        let (fill, rest) = bytes.split_at(self.filled.map_or(0, |(_, len)| len as usize));
        if let Some((at, _)) = self.fresh {
            store.write_data(at, rest);
            store.put_checksums_of(at, rest);
        }
        if let Some((at, _)) = self.filled {
            store.write_data(at, fill);
        }
    }
}

/// Checks what a commit's runs say about file and region, and makes the entries.
fn check_runs(store: &Store, runs: &[WriteRun], base: u64, time_ns: i64) -> Result<Vec<Entry<'static>>, RegionError> {
    let mut entries = Vec::with_capacity(runs.len());
    let mut file_end = 0;
    for run in runs {
        let end = run
            .offset
            .checked_add(run.len)
            .filter(|end| end.checked_add(base).is_some_and(|e| e <= FILE_SIZE_MAX));
        let end = end.ok_or(FsError::FileTooLarge)?;
        if run.len == 0 || run.offset < file_end {
            return Err(invalid("runs that overlap, are out of order or empty"));
        }
        file_end = end;
        if store.data_from_media(run.gpa, run.len).is_none() {
            return Err(invalid(format!(
                "{} bytes at {:?} are no data space of this region",
                run.len, run.gpa
            )));
        }
        entries.push(Entry::Write {
            offset: base + run.offset,
            len: run.len,
            gpa: run.gpa,
            time_ns,
        });
    }
    Ok(entries)
}

/// The answer to a write: `before` is the tail before it.
fn written(store: &Store, inode: &Inode, offset: u64, known: Tail, before: Tail) -> Written {
    let (from, to) = (known.units(), inode.tail.units());
    let follows = known.version() == inode.tail.version() && from != 0 && from <= to;
    debug_assert!(before <= inode.tail, "a log grows");
    let entries = if !follows || (to - from) * LINE as u64 > ENTRIES_MAX {
        None
    } else if known == before && before != inode.tail {
        store.append_memory.as_ref().map(|memory| memory.layout.bytes.clone())
    } else {
        Some(store.read_units(inode, from))
    };
    debug_assert!(
        entries
            .as_ref()
            .is_none_or(|entries: &Vec<u8>| entries.len() == (to - from) as usize * LINE),
        "the entries from the known tail to this one"
    );
    Written {
        offset,
        attr: inode.attr,
        cursor: inode.cursor(),
        entries,
        space: Vec::new(),
        places: Vec::new(),
    }
}
