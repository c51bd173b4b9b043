//! Log entries. An entry is a multiple of 64 bytes: type, length, flags, a CRC-32C, then its fields. The checksum is
//! seeded with the inode number, the log's version and the entry's position, so that an entry left over from another
//! log, or from another place in this one, never passes. What lies beyond the tail does not exist.
//!
//! The first entry of a commit that a request asked for carries the request's [`Origin`] in its last 16 bytes.
//!
//! [`Entry::encode`] makes an entry that has no position yet; [`crate::seal`] gives it one. [`crate::LogEntries`] reads a run of
//! units, wherever it came from: the media, a one-sided read, the answer to a write.

use crate::log_fields::{
    RawDentry, RawDone, RawHead, RawHole, RawInit, RawInline, RawLinks, RawOrigin, RawParent, RawPlacement, RawSetAttr,
    RawTruncate, RawWrite, RawXattr, encode_xattr, put, short, take,
};
use crate::{FileKind, FormatError, Generation, Gpa, Ino, LINE, NAME_MAX, Origin, PAGE_UNITS, SessionId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const WHAT: &str = "log entry";
/// Flag: part of a checkpoint; the attributes are those of the checkpoint's `Init` and this entry leaves them alone.
const CHECKPOINT: u16 = 1;
/// Flag: the last bytes are a [`RawOrigin`].
const ORIGIN: u16 = 2;
const FLAGS: u16 = CHECKPOINT | ORIGIN;
/// Largest file, in bytes: offsets are signed 64-bit numbers in POSIX.
pub(crate) const FILE_MAX: u64 = i64::MAX as u64;

/// Most bytes of a small write that travel in the log entry itself.
pub const INLINE_MAX: usize = 1024;
/// Most bytes that one `Inline` entry can hold (long symbolic links take two).
pub const INLINE_ENTRY_MAX: usize = PAGE_UNITS as usize * LINE - HEAD - size_of::<RawInline>();
/// Longest extended attribute value, in bytes: Linux's `XATTR_SIZE_MAX`.
pub const XATTR_MAX: usize = 64 << 10;
/// Most bytes of a value in one entry; a longer value takes several (see [`Entry::set_xattr`]).
pub const XATTR_PART_MAX: usize = 3584;

pub(crate) const HEAD: usize = size_of::<RawHead>();
/// Bytes of an `Inline` entry before its bytes.
pub(crate) const INLINE_HEAD: usize = HEAD + size_of::<RawInline>();
const _: () = assert!(
    HEAD + size_of::<RawXattr>() + NAME_MAX + XATTR_PART_MAX + size_of::<RawOrigin>() <= PAGE_UNITS as usize * LINE
);
// what follows the first part, and where the last one begins, are 16-bit numbers
const _: () = assert!(XATTR_MAX - XATTR_PART_MAX <= u16::MAX as usize);

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Pad = 1,
    Init = 2,
    Write = 3,
    Inline = 4,
    Truncate = 5,
    Hole = 6,
    SetAttr = 7,
    SetXattr = 8,
    DelXattr = 9,
    DentryAdd = 10,
    DentryDel = 11,
    Links = 12,
    Parent = 13,
    Placement = 14,
    Done = 15,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        let kind = [
            Kind::Pad,
            Kind::Init,
            Kind::Write,
            Kind::Inline,
            Kind::Truncate,
            Kind::Hole,
            Kind::SetAttr,
            Kind::SetXattr,
            Kind::DelXattr,
            Kind::DentryAdd,
            Kind::DentryDel,
            Kind::Links,
            Kind::Parent,
            Kind::Placement,
            Kind::Done,
        ]
        .get(usize::from(byte).wrapping_sub(1))
        .copied();
        debug_assert!(kind.is_none_or(|kind| kind as u8 == byte), "kinds are listed in order");
        kind
    }
}

/// A checkpoint of everything that is no mapping, name or extended attribute; the first entry of every log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Init {
    /// Permission bits.
    pub mode: u32,
    /// Number of names; 0 in a file made without one.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length.
    pub size: u64,
    /// Last change of the data.
    pub mtime_ns: i64,
    /// Last change of the inode.
    pub ctime_ns: i64,
    /// Last access.
    pub atime_ns: i64,
    /// Device number; in a directory the cookie of the next new entry.
    pub rdev_or_cookie: u64,
    /// Placement attribute of a directory (the values of `polvo_proto::Placement`).
    pub placement: u8,
}

/// Attributes that change together. The change time moves always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttrChange {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime_ns: Option<i64>,
    /// Last change of the data.
    pub mtime_ns: Option<i64>,
    /// Last change of the inode.
    pub ctime_ns: i64,
}

/// What a log entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// Nothing: fills a page to its end.
    Pad,
    /// Checkpoint.
    Init(Init),
    /// Bytes of the file lie in data pages. Extends the file when they end beyond its size.
    Write {
        /// where in the file
        offset: u64,
        /// bytes, at least 1
        len: u64,
        /// where they lie
        gpa: Gpa,
        /// modification and change time
        time_ns: i64,
    },
    /// The same, with the bytes in the entry.
    Inline {
        /// where in the file
        offset: u64,
        /// the bytes, at least one
        bytes: &'a [u8],
        /// modification and change time
        time_ns: i64,
    },
    /// A new size; what lay beyond it is gone.
    Truncate {
        /// new size
        size: u64,
        /// modification and change time
        time_ns: i64,
    },
    /// A range reads as zeros; the size stays.
    Hole {
        /// where in the file
        offset: u64,
        /// bytes
        len: u64,
        /// modification and change time
        time_ns: i64,
    },
    /// Attributes.
    SetAttr(AttrChange),
    /// An extended attribute, new or replaced: its value or a part of that (see [`Entry::set_xattr`]).
    SetXattr {
        /// name
        name: &'a [u8],
        /// bytes of the value, at most [`XATTR_PART_MAX`]
        value: &'a [u8],
        /// where in the value they begin
        offset: u16,
        /// bytes of the value that the next entries bring; with 0 the attribute is set
        rest: u16,
        /// change time
        time_ns: i64,
    },
    /// An extended attribute less.
    DelXattr {
        /// name
        name: &'a [u8],
        /// change time
        time_ns: i64,
    },
    /// A name in a directory: new, or (with a cookie in use) pointed at another inode.
    DentryAdd {
        /// name
        name: &'a [u8],
        /// inode
        target: Ino,
        /// its generation
        generation: Generation,
        /// its type
        kind: FileKind,
        /// position of the entry in the directory
        cookie: u64,
        /// modification and change time
        time_ns: i64,
    },
    /// A name less.
    DentryDel {
        /// name
        name: &'a [u8],
        /// inode
        target: Ino,
        /// its generation
        generation: Generation,
        /// its type
        kind: FileKind,
        /// position of the entry in the directory
        cookie: u64,
        /// modification and change time
        time_ns: i64,
    },
    /// Number of names (no directory; a directory's follows from its entries).
    Links {
        /// new number
        nlink: u32,
        /// change time
        time_ns: i64,
    },
    /// A directory has another parent. (Who it is stands in the inode; this tells those who follow the log.)
    Parent {
        /// parent
        parent: Ino,
        /// its generation
        generation: Generation,
        /// change time
        time_ns: i64,
    },
    /// Placement attribute of a directory.
    Placement {
        /// value, as in `polvo_proto::Placement`
        placement: u8,
        /// change time
        time_ns: i64,
    },
    /// The request whose [`Origin`] this entry carries was done, by an entry that is no longer there. Changes nothing.
    Done {
        /// where in the file its bytes went
        offset: u64,
        /// inode of the name that it made
        target: Ino,
        /// its generation
        generation: Generation,
        /// when
        time_ns: i64,
    },
}

impl<'a> Entry<'a> {
    /// The entries that set an extended attribute. A value of more than [`XATTR_PART_MAX`] bytes is cut into parts, which
    /// follow each other in one commit of the log: a part with no next one is damage. `value` is at most [`XATTR_MAX`] bytes.
    pub fn set_xattr(name: &'a [u8], value: &'a [u8], time_ns: i64) -> impl Iterator<Item = Entry<'a>> {
        let parts = value.len().div_ceil(XATTR_PART_MAX).max(1);
        (0..parts).map(move |part| {
            let begin = part * XATTR_PART_MAX;
            let end = value.len().min(begin + XATTR_PART_MAX);
            let short = |n: usize| u16::try_from(n).expect("values are at most 64 KiB");
            Entry::SetXattr {
                name,
                value: &value[begin..end],
                offset: short(begin),
                rest: short(value.len() - end),
                time_ns,
            }
        })
    }

    /// Units of 64 bytes that the entry takes (1 for `Pad`), without an origin.
    pub fn units(&self) -> u64 {
        (self.bytes().div_ceil(LINE)) as u64
    }

    /// As [`Entry::units`], with room for an `origin` if it has one.
    pub fn units_with(&self, origin: bool) -> u64 {
        (self.bytes() + if origin { size_of::<RawOrigin>() } else { 0 }).div_ceil(LINE) as u64
    }

    /// Bytes from its head to the end of what it says.
    fn bytes(&self) -> usize {
        let (fixed, bytes) = match self {
            Entry::Pad => (0, 0),
            Entry::Init(_) => (size_of::<RawInit>(), 0),
            Entry::Write { .. } => (size_of::<RawWrite>(), 0),
            Entry::Inline { bytes, .. } => (size_of::<RawInline>(), bytes.len()),
            Entry::Truncate { .. } => (size_of::<RawTruncate>(), 0),
            Entry::Hole { .. } => (size_of::<RawHole>(), 0),
            Entry::SetAttr(_) => (size_of::<RawSetAttr>(), 0),
            Entry::SetXattr { name, value, .. } => (size_of::<RawXattr>(), name.len() + value.len()),
            Entry::DelXattr { name, .. } => (size_of::<RawXattr>(), name.len()),
            Entry::DentryAdd { name, .. } | Entry::DentryDel { name, .. } => (size_of::<RawDentry>(), name.len()),
            Entry::Links { .. } => (size_of::<RawLinks>(), 0),
            Entry::Parent { .. } => (size_of::<RawParent>(), 0),
            Entry::Placement { .. } => (size_of::<RawPlacement>(), 0),
            Entry::Done { .. } => (size_of::<RawDone>(), 0),
        };
        HEAD + fixed + bytes
    }

    /// Appends the entry, without a place yet (see [`crate::seal`]), to `into`. `checkpoint`: the attributes stay as they are
    /// (everything but `Init` in a log written by garbage collection).
    ///
    /// # Panics
    /// When names or bytes are longer than the limits of this crate: the caller has checked them.
    pub fn encode(&self, checkpoint: bool, into: &mut Vec<u8>) {
        let start = into.len();
        let units = self.units();
        assert!(units <= PAGE_UNITS, "log entry of {units} units");
        let head = RawHead {
            kind: self.kind() as u8,
            units: units as u8,
            flags: U16::new(if checkpoint { CHECKPOINT } else { 0 }),
            crc: U32::ZERO,
        };
        into.extend_from_slice(head.as_bytes());
        match *self {
            Entry::Pad => {}
            Entry::Init(init) => put(RawInit::of(&init), into),
            Entry::Write {
                offset,
                len,
                gpa,
                time_ns,
            } => put(RawWrite::of(offset, len, gpa, time_ns), into),
            Entry::Inline { offset, bytes, time_ns } => {
                put(RawInline::of(offset, bytes.len(), time_ns), into);
                into.extend_from_slice(bytes);
            }
            Entry::Truncate { size, time_ns } => put(RawTruncate::of(size, time_ns), into),
            Entry::Hole { offset, len, time_ns } => put(RawHole::of(offset, len, time_ns), into),
            Entry::SetAttr(change) => put(RawSetAttr::of(&change), into),
            Entry::SetXattr {
                name,
                value,
                offset,
                rest,
                time_ns,
            } => {
                encode_xattr(name, value, (offset, rest), time_ns, into);
            }
            Entry::DelXattr { name, time_ns } => encode_xattr(name, b"", (0, 0), time_ns, into),
            Entry::DentryAdd {
                name,
                target,
                generation,
                kind,
                cookie,
                time_ns,
            }
            | Entry::DentryDel {
                name,
                target,
                generation,
                kind,
                cookie,
                time_ns,
            } => {
                put(RawDentry::of(name, target, generation, kind, cookie, time_ns), into);
                into.extend_from_slice(name);
            }
            Entry::Links { nlink, time_ns } => put(RawLinks::of(nlink, time_ns), into),
            Entry::Parent {
                parent,
                generation,
                time_ns,
            } => put(RawParent::of(parent, generation, time_ns), into),
            Entry::Placement { placement, time_ns } => put(RawPlacement::of(placement, time_ns), into),
            Entry::Done {
                offset,
                target,
                generation,
                time_ns,
            } => {
                put(RawDone::of(offset, target, generation, time_ns), into);
            }
        }
        debug_assert_eq!(into.len() - start, self.bytes(), "an entry is as long as was reckoned");
        into.resize(start + units as usize * LINE, 0);
    }

    /// Adds the request that asked for a commit to its first entry, which begins at `at`: `entries` are whole, without a place
    /// yet and without an origin.
    ///
    /// # Errors
    /// No entry begins there.
    ///
    /// # Panics
    /// When the entry fills a page to its end.
    pub fn add_origin(entries: &mut Vec<u8>, at: usize, origin: Origin) -> Result<(), FormatError> {
        let (entry, ..) = Entry::decode(&entries[at..])?;
        let (before, after) = (entry.units(), entry.units_with(true));
        assert!(after <= PAGE_UNITS, "log entry of {after} units");
        if after > before {
            let end = at + before as usize * LINE;
            entries.splice(end..end, [0; LINE]);
        }
        let entry = &mut entries[at..at + after as usize * LINE];
        let flags = u16::from_le_bytes([entry[2], entry[3]]) | ORIGIN;
        entry[2..4].copy_from_slice(&flags.to_le_bytes());
        entry[1] = after as u8;
        put_origin(entry, origin);
        debug_assert!(
            Entry::decode(entry).is_ok_and(|(.., read)| read == Some(origin)),
            "an origin is read as it was written"
        );
        Ok(())
    }

    /// Appends a `Pad` of `units` units (without a place yet).
    pub fn encode_pad(units: u64, into: &mut Vec<u8>) {
        let start = into.len();
        Entry::Pad.encode(false, into);
        into[start + 1] = u8::try_from(units).expect("a pad is shorter than a page");
        into.resize(start + units as usize * LINE, 0);
        debug_assert!((1..=PAGE_UNITS).contains(&units), "a pad of {units} units");
    }

    fn kind(&self) -> Kind {
        match self {
            Entry::Pad => Kind::Pad,
            Entry::Init(_) => Kind::Init,
            Entry::Write { .. } => Kind::Write,
            Entry::Inline { .. } => Kind::Inline,
            Entry::Truncate { .. } => Kind::Truncate,
            Entry::Hole { .. } => Kind::Hole,
            Entry::SetAttr(_) => Kind::SetAttr,
            Entry::SetXattr { .. } => Kind::SetXattr,
            Entry::DelXattr { .. } => Kind::DelXattr,
            Entry::DentryAdd { .. } => Kind::DentryAdd,
            Entry::DentryDel { .. } => Kind::DentryDel,
            Entry::Links { .. } => Kind::Links,
            Entry::Parent { .. } => Kind::Parent,
            Entry::Placement { .. } => Kind::Placement,
            Entry::Done { .. } => Kind::Done,
        }
    }

    /// Do these bytes begin as an entry does: with a known type and known flags?
    pub fn could_begin(bytes: &[u8]) -> bool {
        RawHead::read_from_prefix(bytes).is_ok_and(|(head, _)| {
            (Kind::Pad as u8..=Kind::Done as u8).contains(&head.kind) && head.flags.get() & !FLAGS == 0
        })
    }

    /// Reads one entry's whole bytes, checksum aside. Gives the entry, its checkpoint flag, and its origin.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<(Entry<'a>, bool, Option<Origin>), FormatError> {
        let (head, rest) = RawHead::read_from_prefix(bytes).map_err(|_| short(bytes))?;
        let checkpoint = head.flags.get() & CHECKPOINT != 0;
        if head.flags.get() & !FLAGS != 0 {
            return Err(FormatError::invalid(WHAT, format!("flags {:#x}", head.flags.get())));
        }
        let kind = Kind::of(head.kind).ok_or_else(|| FormatError::invalid(WHAT, format!("type {}", head.kind)))?;
        let entry = match kind {
            Kind::Pad => Entry::Pad,
            Kind::Init => take::<RawInit>(rest)?.0.entry()?,
            Kind::Write => take::<RawWrite>(rest)?.0.entry()?,
            Kind::Inline => RawInline::entry(rest)?,
            Kind::Truncate => take::<RawTruncate>(rest)?.0.entry()?,
            Kind::Hole => take::<RawHole>(rest)?.0.entry()?,
            Kind::SetAttr => take::<RawSetAttr>(rest)?.0.entry()?,
            Kind::SetXattr | Kind::DelXattr => RawXattr::entry(kind, rest)?,
            Kind::DentryAdd | Kind::DentryDel => RawDentry::entry(kind, rest)?,
            Kind::Links => take::<RawLinks>(rest)?.0.entry(),
            Kind::Parent => take::<RawParent>(rest)?.0.entry(),
            Kind::Placement => take::<RawPlacement>(rest)?.0.entry(),
            Kind::Done => take::<RawDone>(rest)?.0.entry()?,
        };
        let origin = match head.flags.get() & ORIGIN {
            0 => None,
            _ => Some(origin_of(&entry, bytes)?),
        };
        Ok((entry, checkpoint, origin))
    }
}

/// Writes an origin to the end of an entry's bytes.
fn put_origin(entry: &mut [u8], origin: Origin) {
    let raw = RawOrigin {
        session: U64::new(origin.session.0),
        request: U64::new(origin.request),
    };
    let at = entry.len() - size_of::<RawOrigin>();
    entry[at..].copy_from_slice(raw.as_bytes());
}

fn origin_of(entry: &Entry, bytes: &[u8]) -> Result<Origin, FormatError> {
    let at = bytes.len().checked_sub(size_of::<RawOrigin>());
    let at = at.filter(|at| entry.bytes() <= *at).ok_or_else(|| short(bytes))?;
    let (raw, _) = take::<RawOrigin>(&bytes[at..])?;
    Ok(Origin {
        session: SessionId(raw.session.get()),
        request: raw.request.get(),
    })
}
