//! The fields of log entries behind their heads, as bytes: a structure for each type of entry, made of what the entry says and
//! read back into it. What is read is checked; sizes and offsets are those of `docs/media-format.md`.

use crate::log_entry::{FILE_MAX, HEAD, Kind, WHAT};
use crate::{AttrChange, Entry, FileKind, FormatError, Generation, Gpa, Init, Ino, LINE, XATTR_MAX};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! raw {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub(crate) struct $name { $(pub $field: $ty),* }
    )*};
}

raw! {
    RawHead { kind: u8, units: u8, flags: U16, crc: U32 }
    RawInit {
        mode: U16, placement: u8, reserved: u8, nlink: U32, uid: U32, gid: U32, size: U64, mtime: I64, ctime: I64,
        atime: I64, rdev_or_cookie: U64,
    }
    RawWrite { offset: U64, len: U64, gpa: U64, time: I64 }
    /// followed by the bytes
    RawInline { offset: U64, time: I64, len: U32, reserved: U32 }
    RawTruncate { size: U64, time: I64 }
    RawHole { offset: U64, len: U64, time: I64 }
    RawSetAttr { mask: U32, mode: U32, uid: U32, gid: U32, atime: I64, mtime: I64, ctime: I64 }
    /// followed by name and value
    RawXattr { time: I64, name_len: u8, reserved: u8, value_len: U16, offset: U16, rest: U16 }
    /// followed by the name
    RawDentry { target: U64, cookie: U64, time: I64, generation: U32, kind: u8, name_len: u8, reserved: U16 }
    RawLinks { nlink: U32, reserved: U32, time: I64 }
    RawParent { parent: U64, time: I64, generation: U32, reserved: U32 }
    RawPlacement { time: I64, placement: u8, reserved: [u8; 7] }
    RawDone { offset: U64, target: U64, time: I64, generation: U32, reserved: U32 }
    /// at the end of an entry
    RawOrigin { session: U64, request: U64 }
}
const _: () = assert!(HEAD + size_of::<RawInit>() == LINE);

/// Appends what an entry says behind its head.
#[inline]
pub(crate) fn put(raw: impl IntoBytes + Immutable, into: &mut Vec<u8>) {
    into.extend_from_slice(raw.as_bytes());
}

impl RawInit {
    #[inline]
    pub fn of(init: &Init) -> RawInit {
        RawInit {
            mode: U16::new(init.mode as u16),
            placement: init.placement,
            reserved: 0,
            nlink: U32::new(init.nlink),
            uid: U32::new(init.uid),
            gid: U32::new(init.gid),
            size: U64::new(init.size),
            mtime: I64::new(init.mtime_ns),
            ctime: I64::new(init.ctime_ns),
            atime: I64::new(init.atime_ns),
            rdev_or_cookie: U64::new(init.rdev_or_cookie),
        }
    }

    pub fn entry<'a>(&self) -> Result<Entry<'a>, FormatError> {
        Ok(Entry::Init(Init {
            mode: u32::from(self.mode.get()),
            nlink: self.nlink.get(),
            uid: self.uid.get(),
            gid: self.gid.get(),
            size: within_file(self.size.get(), 0)?,
            mtime_ns: self.mtime.get(),
            ctime_ns: self.ctime.get(),
            atime_ns: self.atime.get(),
            rdev_or_cookie: self.rdev_or_cookie.get(),
            placement: self.placement,
        }))
    }
}

impl RawWrite {
    #[inline]
    pub fn of(offset: u64, len: u64, gpa: Gpa, time_ns: i64) -> RawWrite {
        RawWrite {
            offset: U64::new(offset),
            len: U64::new(len),
            gpa: U64::new(gpa.0),
            time: I64::new(time_ns),
        }
    }

    pub fn entry<'a>(&self) -> Result<Entry<'a>, FormatError> {
        let (len, gpa) = (self.len.get(), Gpa(self.gpa.get()));
        let offset = within_file(self.offset.get(), len)?;
        if len == 0 || gpa.checked_add(len).is_none() {
            return Err(FormatError::invalid(WHAT, format!("write of {len} bytes at {gpa:?}")));
        }
        let time_ns = self.time.get();
        Ok(Entry::Write {
            offset,
            len,
            gpa,
            time_ns,
        })
    }
}

impl RawInline {
    #[inline]
    pub fn of(offset: u64, len: usize, time_ns: i64) -> RawInline {
        RawInline {
            offset: U64::new(offset),
            time: I64::new(time_ns),
            len: U32::new(len as u32),
            reserved: U32::ZERO,
        }
    }

    pub fn entry(bytes: &[u8]) -> Result<Entry<'_>, FormatError> {
        let (raw, rest) = take::<RawInline>(bytes)?;
        let bytes = rest.get(..raw.len.get() as usize).ok_or_else(|| short(rest))?;
        let offset = within_file(raw.offset.get(), bytes.len() as u64)?;
        if bytes.is_empty() {
            return Err(FormatError::invalid(WHAT, "write of no bytes"));
        }
        let time_ns = raw.time.get();
        Ok(Entry::Inline { offset, bytes, time_ns })
    }
}

impl RawTruncate {
    #[inline]
    pub fn of(size: u64, time_ns: i64) -> RawTruncate {
        RawTruncate {
            size: U64::new(size),
            time: I64::new(time_ns),
        }
    }

    pub fn entry<'a>(&self) -> Result<Entry<'a>, FormatError> {
        Ok(Entry::Truncate {
            size: within_file(self.size.get(), 0)?,
            time_ns: self.time.get(),
        })
    }
}

impl RawHole {
    #[inline]
    pub fn of(offset: u64, len: u64, time_ns: i64) -> RawHole {
        RawHole {
            offset: U64::new(offset),
            len: U64::new(len),
            time: I64::new(time_ns),
        }
    }

    pub fn entry<'a>(&self) -> Result<Entry<'a>, FormatError> {
        Ok(Entry::Hole {
            offset: within_file(self.offset.get(), self.len.get())?,
            len: self.len.get(),
            time_ns: self.time.get(),
        })
    }
}

impl RawSetAttr {
    #[inline]
    pub fn of(change: &AttrChange) -> RawSetAttr {
        let mask = [
            change.mode.is_some(),
            change.uid.is_some(),
            change.gid.is_some(),
            change.atime_ns.is_some(),
            change.mtime_ns.is_some(),
        ];
        RawSetAttr {
            mask: U32::new(mask.iter().enumerate().map(|(bit, &set)| u32::from(set) << bit).sum()),
            mode: U32::new(change.mode.unwrap_or(0)),
            uid: U32::new(change.uid.unwrap_or(0)),
            gid: U32::new(change.gid.unwrap_or(0)),
            atime: I64::new(change.atime_ns.unwrap_or(0)),
            mtime: I64::new(change.mtime_ns.unwrap_or(0)),
            ctime: I64::new(change.ctime_ns),
        }
    }

    pub fn entry<'a>(&self) -> Result<Entry<'a>, FormatError> {
        let mask = self.mask.get();
        let set = |bit: u32| mask & 1 << bit != 0;
        if mask >> 5 != 0 {
            return Err(FormatError::invalid(WHAT, format!("attribute mask {mask:#x}")));
        }
        Ok(Entry::SetAttr(AttrChange {
            mode: set(0).then_some(self.mode.get()),
            uid: set(1).then_some(self.uid.get()),
            gid: set(2).then_some(self.gid.get()),
            atime_ns: set(3).then_some(self.atime.get()),
            mtime_ns: set(4).then_some(self.mtime.get()),
            ctime_ns: self.ctime.get(),
        }))
    }
}

pub(crate) fn encode_xattr(name: &[u8], value: &[u8], (offset, rest): (u16, u16), time_ns: i64, into: &mut Vec<u8>) {
    let raw = RawXattr {
        time: I64::new(time_ns),
        name_len: u8::try_from(name.len()).expect("names are at most 255 bytes"),
        reserved: 0,
        value_len: U16::new(u16::try_from(value.len()).expect("parts are at most 3584 bytes")),
        offset: U16::new(offset),
        rest: U16::new(rest),
    };
    put(raw, into);
    into.extend_from_slice(name);
    into.extend_from_slice(value);
}

impl RawXattr {
    /// `kind`: `SetXattr` or `DelXattr`.
    pub fn entry(kind: Kind, bytes: &[u8]) -> Result<Entry<'_>, FormatError> {
        let (raw, rest) = take::<RawXattr>(bytes)?;
        let (name, rest) = split(rest, usize::from(raw.name_len))?;
        let (value, _) = split(rest, usize::from(raw.value_len.get()))?;
        if name.is_empty() {
            return Err(FormatError::invalid(WHAT, "extended attribute without a name"));
        }
        let time_ns = raw.time.get();
        let (offset, rest) = (raw.offset.get(), raw.rest.get());
        let whole = usize::from(offset) + value.len() + usize::from(rest);
        if whole > XATTR_MAX || (offset, rest) != (0, 0) && value.is_empty() {
            let why = format!(
                "{} bytes at {offset} of an extended attribute, {rest} to come",
                value.len()
            );
            return Err(FormatError::invalid(WHAT, why));
        }
        Ok(match kind {
            Kind::SetXattr => Entry::SetXattr {
                name,
                value,
                offset,
                rest,
                time_ns,
            },
            _ => Entry::DelXattr { name, time_ns },
        })
    }
}

impl RawDentry {
    #[inline]
    pub fn of(
        name: &[u8],
        target: Ino,
        generation: Generation,
        kind: FileKind,
        cookie: u64,
        time_ns: i64,
    ) -> RawDentry {
        RawDentry {
            target: U64::new(target.0),
            cookie: U64::new(cookie),
            time: I64::new(time_ns),
            generation: U32::new(generation.0),
            kind: kind as u8,
            name_len: u8::try_from(name.len()).expect("names are at most 255 bytes"),
            reserved: U16::ZERO,
        }
    }

    /// `of`: `DentryAdd` or `DentryDel`.
    pub fn entry(of: Kind, bytes: &[u8]) -> Result<Entry<'_>, FormatError> {
        let (raw, rest) = take::<RawDentry>(bytes)?;
        let (name, _) = split(rest, usize::from(raw.name_len))?;
        if name.is_empty() {
            return Err(FormatError::invalid(WHAT, "directory entry without a name"));
        }
        let (target, generation) = (Ino(raw.target.get()), Generation(raw.generation.get()));
        let (cookie, time_ns) = (raw.cookie.get(), raw.time.get());
        let kind =
            FileKind::from_u8(raw.kind).ok_or_else(|| FormatError::invalid(WHAT, format!("file type {}", raw.kind)))?;
        Ok(match of {
            Kind::DentryAdd => Entry::DentryAdd {
                name,
                target,
                generation,
                kind,
                cookie,
                time_ns,
            },
            _ => Entry::DentryDel {
                name,
                target,
                generation,
                kind,
                cookie,
                time_ns,
            },
        })
    }
}

impl RawLinks {
    #[inline]
    pub fn of(nlink: u32, time_ns: i64) -> RawLinks {
        RawLinks {
            nlink: U32::new(nlink),
            reserved: U32::ZERO,
            time: I64::new(time_ns),
        }
    }

    pub fn entry<'a>(&self) -> Entry<'a> {
        Entry::Links {
            nlink: self.nlink.get(),
            time_ns: self.time.get(),
        }
    }
}

impl RawParent {
    #[inline]
    pub fn of(parent: Ino, generation: Generation, time_ns: i64) -> RawParent {
        RawParent {
            parent: U64::new(parent.0),
            time: I64::new(time_ns),
            generation: U32::new(generation.0),
            reserved: U32::ZERO,
        }
    }

    pub fn entry<'a>(&self) -> Entry<'a> {
        Entry::Parent {
            parent: Ino(self.parent.get()),
            generation: Generation(self.generation.get()),
            time_ns: self.time.get(),
        }
    }
}

impl RawPlacement {
    #[inline]
    pub fn of(placement: u8, time_ns: i64) -> RawPlacement {
        RawPlacement {
            time: I64::new(time_ns),
            placement,
            reserved: [0; 7],
        }
    }

    pub fn entry<'a>(&self) -> Entry<'a> {
        Entry::Placement {
            placement: self.placement,
            time_ns: self.time.get(),
        }
    }
}

impl RawDone {
    #[inline]
    pub fn of(offset: u64, target: Ino, generation: Generation, time_ns: i64) -> RawDone {
        RawDone {
            offset: U64::new(offset),
            target: U64::new(target.0),
            time: I64::new(time_ns),
            generation: U32::new(generation.0),
            reserved: U32::ZERO,
        }
    }

    pub fn entry<'a>(&self) -> Result<Entry<'a>, FormatError> {
        Ok(Entry::Done {
            offset: within_file(self.offset.get(), 0)?,
            target: Ino(self.target.get()),
            generation: Generation(self.generation.get()),
            time_ns: self.time.get(),
        })
    }
}

pub(crate) fn short(bytes: &[u8]) -> FormatError {
    FormatError::Short {
        structure: WHAT,
        len: bytes.len(),
        need: bytes.len() + 1,
    }
}

pub(crate) fn take<T: FromBytes>(bytes: &[u8]) -> Result<(T, &[u8]), FormatError> {
    T::read_from_prefix(bytes).map_err(|_| short(bytes))
}

pub(crate) fn split(bytes: &[u8], at: usize) -> Result<(&[u8], &[u8]), FormatError> {
    bytes.split_at_checked(at).ok_or_else(|| short(bytes))
}

pub(crate) fn within_file(offset: u64, len: u64) -> Result<u64, FormatError> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_MAX => Ok(offset),
        _ => Err(FormatError::invalid(
            WHAT,
            format!("range {offset}+{len} is beyond the largest file"),
        )),
    }
}
