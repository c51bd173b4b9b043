//! Entries at their places in a log: sealing, reading a run of units back, and what an entry does to the attributes.

use crate::log_entry::{INLINE_HEAD, WHAT};
use crate::{Attr, Entry, FileKind, FormatError, Ino, LINE, Origin, PAGE_UNITS, UnitPlace, checksum};

/// Gives an encoded entry its place: fills in the checksum. `entry` is the whole entry, all its units.
pub fn seal(entry: &mut [u8], ino: Ino, version: u32, position: u64) {
    debug_assert_eq!(
        entry_units(entry),
        Some((entry.len() / LINE) as u64),
        "a whole entry, and nothing else"
    );
    debug_assert!(
        (entry.len() / LINE) as u64 <= UnitPlace::room(position),
        "an entry lies in one page"
    );
    let crc = checksum(entry, ino, version, position);
    entry[4..8].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(entry: &[u8], ino: Ino, version: u32, position: u64) -> u32 {
    const SEED: usize = 24;
    const BODY: usize = LINE - 8;
    let mut bytes = [0; SEED + BODY];
    let (seed, body) = bytes.split_at_mut(SEED);
    seed[..8].copy_from_slice(&ino.0.to_le_bytes());
    seed[8..16].copy_from_slice(&position.to_le_bytes());
    seed[16..20].copy_from_slice(&version.to_le_bytes());
    seed[20..].copy_from_slice(&entry[..4]);
    // most entries are one line: summed up in one go
    let (line, rest) = entry[8..].split_at(BODY);
    body.copy_from_slice(line);
    let crc = checksum::crc32c(&bytes);
    if rest.is_empty() {
        crc
    } else {
        checksum::crc32c_append(crc, rest)
    }
}

/// Units of the (not necessarily sealed) entry at the start of `bytes`; `None` where that is nonsense.
pub fn entry_units(bytes: &[u8]) -> Option<u64> {
    let units = u64::from(*bytes.get(1)?);
    (units != 0 && units <= PAGE_UNITS && units as usize * LINE <= bytes.len()).then_some(units)
}

/// An entry and its place in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Position of its first unit.
    pub position: u64,
    /// Units it takes.
    pub units: u64,
    /// Part of a checkpoint: attributes stay as they are.
    pub checkpoint: bool,
    /// The request that asked for the commit which it begins.
    pub origin: Option<Origin>,
    /// What it says.
    pub entry: Entry<'a>,
}

impl Record<'_> {
    /// Offset of an `Inline` entry's bytes from the entry's first byte.
    pub const INLINE_BYTES: u64 = INLINE_HEAD as u64;

    /// Changes the attributes as the entry says (`blocks` is left alone: it follows from the mapping).
    pub fn update(&self, attr: &mut Attr) {
        if let Entry::Init(i) = self.entry {
            attr.mode = i.mode;
            attr.nlink = i.nlink;
            attr.uid = i.uid;
            attr.gid = i.gid;
            attr.size = i.size;
            (attr.mtime_ns, attr.ctime_ns, attr.atime_ns) = (i.mtime_ns, i.ctime_ns, i.atime_ns);
            attr.rdev = if attr.kind == FileKind::Directory {
                0
            } else {
                i.rdev_or_cookie
            };
            return;
        }
        if self.checkpoint {
            return;
        }
        let (modified, time_ns) = match self.entry {
            Entry::Pad | Entry::Init(_) | Entry::Done { .. } => return,
            Entry::Write {
                offset, len, time_ns, ..
            } => {
                attr.size = attr.size.max(offset.saturating_add(len));
                (true, time_ns)
            }
            Entry::Inline { offset, bytes, time_ns } => {
                attr.size = attr.size.max(offset.saturating_add(bytes.len() as u64));
                (true, time_ns)
            }
            Entry::Truncate { size, time_ns } => {
                attr.size = size;
                (true, time_ns)
            }
            Entry::Hole { time_ns, .. } => (true, time_ns),
            Entry::SetAttr(c) => {
                attr.mode = c.mode.unwrap_or(attr.mode);
                attr.uid = c.uid.unwrap_or(attr.uid);
                attr.gid = c.gid.unwrap_or(attr.gid);
                attr.atime_ns = c.atime_ns.unwrap_or(attr.atime_ns);
                attr.mtime_ns = c.mtime_ns.unwrap_or(attr.mtime_ns);
                (false, c.ctime_ns)
            }
            Entry::SetXattr { time_ns, .. } | Entry::DelXattr { time_ns, .. } => (false, time_ns),
            Entry::Links { nlink, time_ns } => {
                attr.nlink = nlink;
                (false, time_ns)
            }
            Entry::Parent { time_ns, .. } | Entry::Placement { time_ns, .. } => (false, time_ns),
            // how many entries and subdirectories there are is for the directory's index to say
            Entry::DentryAdd { time_ns, .. } | Entry::DentryDel { time_ns, .. } => (true, time_ns),
        };
        attr.ctime_ns = time_ns;
        if modified {
            attr.mtime_ns = time_ns;
        }
    }
}

/// Decodes a run of log units: whole entries from a position on. Ends after the first error.
#[derive(Clone, Debug)]
pub struct LogEntries<'a> {
    ino: Ino,
    version: u32,
    position: u64,
    sealed: bool,
    bytes: &'a [u8],
}

impl<'a> LogEntries<'a> {
    /// Units of version `version` of `ino`'s log, `bytes` beginning at `position`, page headers left out.
    pub fn new(ino: Ino, version: u32, position: u64, bytes: &'a [u8]) -> LogEntries<'a> {
        LogEntries {
            ino,
            version,
            position,
            sealed: true,
            bytes,
        }
    }

    /// Entries that have no place yet (see [`seal`]); positions are as they will be from `position` on, pads that are
    /// still missing not counted.
    pub fn unsealed(position: u64, bytes: &'a [u8]) -> LogEntries<'a> {
        LogEntries {
            ino: Ino(0),
            version: 0,
            position,
            sealed: false,
            bytes,
        }
    }

    /// The position after the last entry decoded.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn read(&mut self) -> Result<Record<'a>, FormatError> {
        let units = entry_units(self.bytes)
            .ok_or_else(|| FormatError::invalid(WHAT, format!("length at position {}", self.position)))?;
        let (entry, rest) = self.bytes.split_at(units as usize * LINE);
        if self.sealed {
            if units > UnitPlace::room(self.position) {
                return Err(FormatError::invalid(
                    WHAT,
                    format!("crosses a page at position {}", self.position),
                ));
            }
            let crc = u32::from_le_bytes(entry[4..8].try_into().expect("a word is 4 bytes"));
            if crc != checksum(entry, self.ino, self.version, self.position) {
                return Err(FormatError::Checksum(WHAT));
            }
        }
        let (decoded, checkpoint, origin) = Entry::decode(entry)?;
        let record = Record {
            position: self.position,
            units,
            checkpoint,
            origin,
            entry: decoded,
        };
        debug_assert!(
            decoded.units() <= units || decoded == Entry::Pad,
            "an entry lies in its units"
        );
        self.bytes = rest;
        self.position += units;
        Ok(record)
    }
}

impl<'a> Iterator for LogEntries<'a> {
    type Item = Result<Record<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.bytes = &[];
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_entry::FILE_MAX;
    use crate::{AttrChange, Generation, Gpa, INLINE_ENTRY_MAX, Init, RegionId, SessionId, XATTR_MAX, XATTR_PART_MAX};

    const INO: Ino = Ino(0x0003_0000_0000_0011);

    fn samples() -> Vec<Entry<'static>> {
        let mut samples = samples_of_files();
        samples.extend(samples_of_names());
        samples
    }

    fn samples_of_files() -> Vec<Entry<'static>> {
        vec![
            Entry::Init(Init {
                mode: 0o4755,
                nlink: 1,
                uid: 5,
                gid: 6,
                size: 77,
                mtime_ns: -1,
                ctime_ns: 2,
                atime_ns: 3,
                rdev_or_cookie: 9,
                placement: 1,
            }),
            Entry::Write {
                offset: 10,
                len: 1 << 40,
                gpa: Gpa(1 << 48 | 4096),
                time_ns: 4,
            },
            Entry::Inline {
                offset: 5,
                bytes: &[9; 100],
                time_ns: 5,
            },
            Entry::Inline {
                offset: 5,
                bytes: &[1; INLINE_ENTRY_MAX],
                time_ns: 5,
            },
            Entry::Truncate {
                size: FILE_MAX,
                time_ns: 6,
            },
            Entry::Hole {
                offset: 0,
                len: FILE_MAX,
                time_ns: 7,
            },
            Entry::SetAttr(AttrChange {
                mode: Some(0o644),
                uid: None,
                gid: Some(3),
                atime_ns: None,
                mtime_ns: Some(-9),
                ctime_ns: 8,
            }),
            Entry::SetXattr {
                name: b"user.a",
                value: &[3; XATTR_PART_MAX],
                offset: 7000,
                rest: u16::MAX - 20_000,
                time_ns: 9,
            },
            Entry::DelXattr {
                name: b"user.a",
                time_ns: 10,
            },
        ]
    }

    fn samples_of_names() -> Vec<Entry<'static>> {
        let target = Ino::new(RegionId(7), 12);
        let generation = Generation(4);
        vec![
            Entry::DentryAdd {
                name: &[b'n'; 255],
                target,
                generation,
                kind: FileKind::Directory,
                cookie: 3,
                time_ns: 11,
            },
            Entry::DentryDel {
                name: b"n",
                target,
                generation,
                kind: FileKind::File,
                cookie: 3,
                time_ns: 12,
            },
            Entry::Links { nlink: 2, time_ns: 13 },
            Entry::Parent {
                parent: Ino::ROOT,
                generation,
                time_ns: 14,
            },
            Entry::Placement {
                placement: 1,
                time_ns: 15,
            },
            Entry::Done {
                offset: 7,
                target,
                generation,
                time_ns: 16,
            },
        ]
    }

    const ORIGIN: Origin = Origin {
        session: SessionId(0x1234),
        request: u64::MAX - 3,
    };

    fn sealed(entry: &Entry, checkpoint: bool, version: u32, position: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        entry.encode(checkpoint, &mut bytes);
        seal(&mut bytes, INO, version, position);
        bytes
    }

    #[test]
    fn entries_round_trip() {
        for (n, entry) in samples().into_iter().enumerate() {
            let position = 2 + 63 * n as u64;
            let bytes = sealed(&entry, n % 2 == 0, 7, position);
            assert_eq!(bytes.len() as u64, entry.units() * 64);
            let mut read = LogEntries::new(INO, 7, position, &bytes);
            let record = read.next().unwrap().unwrap();
            assert_eq!(record.entry, entry);
            assert_eq!(
                (record.position, record.units, record.checkpoint),
                (position, entry.units(), n % 2 == 0)
            );
            assert!(read.next().is_none());
            assert_eq!(read.position(), position + entry.units());
        }
    }

    #[test]
    fn entries_carry_the_request_that_asked_for_them() {
        for entry in samples() {
            if entry.units_with(true) > PAGE_UNITS {
                continue; // the target of a long symbolic link, which begins no commit
            }
            let mut added = Vec::new();
            entry.encode(false, &mut added);
            Entry::Links { nlink: 2, time_ns: 13 }.encode(false, &mut added);
            Entry::add_origin(&mut added, 0, ORIGIN).unwrap();
            let mut read = LogEntries::unsealed(2, &added);
            let record = read.next().unwrap().unwrap();
            assert_eq!((record.entry, record.origin), (entry, Some(ORIGIN)));
            assert_eq!(record.units, entry.units_with(true));
            let next = read.next().unwrap().unwrap();
            assert_eq!((next.entry.units(), next.origin), (1, None));
        }
    }

    #[test]
    fn an_origin_that_lies_over_the_entry_is_refused() {
        let mut bytes = sealed(&samples()[0], false, 7, 2);
        bytes[2] |= 2; // this one fills its line
        seal(&mut bytes, INO, 7, 2);
        assert!(LogEntries::new(INO, 7, 2, &bytes).next().unwrap().is_err());
    }

    #[test]
    fn a_long_value_is_cut_into_parts() {
        for len in [0, 1, XATTR_PART_MAX, XATTR_PART_MAX + 1, XATTR_MAX] {
            let value: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let (mut read, mut last) = (Vec::new(), None);
            for entry in Entry::set_xattr(&[b'n'; 255], &value, 9) {
                let bytes = sealed(&entry, false, 7, 2);
                let record = LogEntries::new(INO, 7, 2, &bytes).next().unwrap().unwrap();
                let Entry::SetXattr {
                    value, offset, rest, ..
                } = record.entry
                else {
                    panic!("{:?}", record.entry);
                };
                assert_eq!(usize::from(offset), read.len());
                read.extend_from_slice(value);
                assert_eq!(usize::from(rest), len - read.len());
                last = Some(rest);
            }
            assert!(read == value, "{len} bytes");
            assert_eq!(last, Some(0));
        }
    }

    #[test]
    fn a_value_that_cannot_be_is_refused() {
        let part = |value, offset, rest| Entry::SetXattr {
            name: b"user.a",
            value,
            offset,
            rest,
            time_ns: 9,
        };
        for entry in [part(&[3; 10], 60_000, 6_000), part(b"", 0, 1), part(b"", 1, 0)] {
            let bytes = sealed(&entry, false, 7, 2);
            assert!(LogEntries::new(INO, 7, 2, &bytes).next().unwrap().is_err(), "{entry:?}");
        }
    }

    #[test]
    fn inline_bytes_lie_where_the_constant_says() {
        let bytes = sealed(
            &Entry::Inline {
                offset: 0,
                bytes: b"where",
                time_ns: 0,
            },
            false,
            0,
            2,
        );
        assert_eq!(&bytes[Record::INLINE_BYTES as usize..][..5], b"where");
    }

    #[test]
    fn an_entry_of_another_log_version_or_place_never_passes() {
        let entry = Entry::Links { nlink: 2, time_ns: 13 };
        let bytes = sealed(&entry, false, 7, 2);
        let passes = |ino, version, position| LogEntries::new(ino, version, position, &bytes).next().unwrap().is_ok();
        assert!(passes(INO, 7, 2));
        assert!(!passes(Ino(INO.0 + 1), 7, 2));
        assert!(!passes(INO, 8, 2));
        assert!(!passes(INO, 7, 3));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for entry in samples() {
            let good = sealed(&entry, false, 1, 2);
            for bit in (0..good.len().min(192) * 8).chain([good.len() * 8 - 1]) {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    LogEntries::new(INO, 1, 2, &bad).next().unwrap().is_err(),
                    "{entry:?}, bit {bit}"
                );
            }
        }
    }

    #[test]
    fn nonsense_with_a_good_checksum_is_refused_without_panic() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..20_000 {
            let mut bytes = vec![0; 64 * (1 + round % 4)];
            for byte in bytes.iter_mut() {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = (seed >> 56) as u8;
            }
            bytes[0] %= 17;
            bytes[1] = (bytes.len() / 64) as u8;
            bytes[2] &= 3;
            bytes[3] = 0;
            seal(&mut bytes, INO, 1, 2);
            if let Ok(record) = LogEntries::new(INO, 1, 2, &bytes).next().unwrap() {
                let mut attr = attr();
                record.update(&mut attr);
                assert!(attr.size <= FILE_MAX);
            }
        }
    }

    fn attr() -> Attr {
        Attr {
            ino: INO,
            generation: Generation(1),
            kind: FileKind::File,
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
        }
    }

    #[test]
    fn attributes_follow_entries_but_not_those_of_a_checkpoint() {
        let mut a = attr();
        let mut apply = |entry, checkpoint| {
            Record {
                position: 0,
                units: 1,
                checkpoint,
                origin: None,
                entry,
            }
            .update(&mut a);
            a
        };
        let write = Entry::Write {
            offset: 100,
            len: 50,
            gpa: Gpa(4096),
            time_ns: 5,
        };
        assert_eq!(apply(write, true).size, 0);
        let now = apply(write, false);
        assert_eq!((now.size, now.mtime_ns, now.ctime_ns), (150, 5, 5));
        let now = apply(Entry::Truncate { size: 20, time_ns: 6 }, false);
        assert_eq!((now.size, now.mtime_ns), (20, 6));
        let now = apply(Entry::Links { nlink: 9, time_ns: 7 }, false);
        assert_eq!((now.nlink, now.mtime_ns, now.ctime_ns), (9, 6, 7));
    }

    #[test]
    fn a_pad_fills_and_is_skipped() {
        let mut bytes = Vec::new();
        Entry::encode_pad(5, &mut bytes);
        seal(&mut bytes, INO, 1, 60);
        let record = LogEntries::new(INO, 1, 60, &bytes).next().unwrap().unwrap();
        assert_eq!((record.units, record.entry), (5, Entry::Pad));
    }
}
