//! Brings the entries that a log has got since it was last pulled (diff-update): a few one-sided reads, following
//! the chain of log pages from the one last known.
//!
//! Entries carry checksums over inode, log version and position, so what was read from a page that is no longer this
//! log's is noticed when it is decoded. When pulling does not work (the log was rewritten, the way is too long or not
//! known) the caller asks the primary instead.

use crate::LocalClient;
use crate::cache::extent_index::MapChange;
use crate::cache::name_cache::{Child, DirLog, NameChange};
use polvo_cluster::RegionVerb;
use polvo_format::{
    Entry, FormatError, Gpa, INLINE_UNITS, INODE_SIZE, INODE_UNITS, Ino, InodeHead, LINE, LogEntries, LogPage,
    PAGE_UNITS, Record, RegionOffset, Tail, UnitPlace,
};
use polvo_proto::{FsError, InodeRef, LogCursor, Written};

/// Most log pages fetched in one go: beyond, asking the primary costs less.
const PAGES_MAX: u64 = 16;

/// As many pages of a directory's log are pulled in one go.
const PAGES_AT_ONCE: u64 = PAGES_MAX / 2;
/// Entries of a directory's log that are pulled at any rate. More of them only where more names are known: all that are
/// looked up again would have to be asked for otherwise.
const ENTRIES_PULLED: u64 = PAGES_AT_ONCE * PAGE_UNITS;

/// Consecutive units of a log.
pub(crate) struct Units {
    ino: Ino,
    version: u32,
    from: u64,
    bytes: Vec<u8>,
    /// Where they lie on the media: position of a first unit, and its address; ascending. Parts may be missing.
    places: Vec<(u64, Gpa)>,
    /// The log after them. Its page is 0 when not known.
    pub(crate) cursor: LogCursor,
}

/// Why units could not be used.
#[derive(Debug)]
pub(crate) struct Unusable;

impl From<FormatError> for Unusable {
    fn from(_: FormatError) -> Unusable {
        Unusable
    }
}

impl Units {
    /// The entries that came along with the answer to a write by somebody who knew the log as `known`.
    pub(crate) fn of_answer(ino: Ino, known: LogCursor, written: Written) -> Option<Units> {
        let bytes = written.entries?;
        let cursor = written.cursor;
        let units = (bytes.len() / LINE) as u64;
        let fits = bytes.len() % LINE == 0
            && known.tail.version() == cursor.tail.version()
            && known.tail.units() + units == cursor.tail.units();
        if !fits {
            return None;
        }
        let mut places = Vec::with_capacity(3);
        if known.tail.units() < INLINE_UNITS {
            places.extend(inode_place(ino, known.tail.units()));
        }
        for page in [known, cursor].iter().filter_map(|c| CursorPage::of(*c)) {
            let first = INLINE_UNITS + page.number * PAGE_UNITS;
            let at = Gpa::new(ino.region(), RegionOffset(page.offset.0 + LINE as u64));
            places.push((first, at));
        }
        debug_assert!(
            places.is_sorted_by_key(|(first, _)| *first),
            "places in order of their positions"
        );
        let (version, from) = (known.tail.version(), known.tail.units());
        Some(Units {
            ino,
            version,
            from,
            bytes,
            places,
            cursor,
        })
    }

    fn entries(&self) -> LogEntries<'_> {
        LogEntries::new(self.ino, self.version, self.from, &self.bytes)
    }

    /// Address of a unit, if known.
    fn place(&self, position: u64) -> Option<Gpa> {
        let at = self
            .places
            .partition_point(|(first, _)| *first <= position)
            .checked_sub(1)?;
        let (first, gpa) = self.places[at];
        // what follows the first unit lies beside it up to the end of the page only
        let beside = position - first < UnitPlace::room(first);
        if beside {
            gpa.checked_add((position - first) * LINE as u64)
        } else {
            None
        }
    }

    /// What the entries from position `after` on do to a file's mapping.
    pub(crate) fn map_changes(&self, after: u64) -> Result<Vec<MapChange>, Unusable> {
        let mut changes = Vec::new();
        for record in self.entries() {
            let record = record?;
            if record.position < after {
                continue;
            }
            match record.entry {
                Entry::Write { offset, len, gpa, .. } => {
                    if gpa.region() != self.ino.region() || gpa.checked_add(len).is_none() {
                        return Err(Unusable);
                    }
                    changes.push(MapChange::Map { offset, len, gpa });
                }
                Entry::Inline { offset, bytes, .. } => {
                    let at = self
                        .place(record.position)
                        .and_then(|at| at.checked_add(Record::INLINE_BYTES));
                    changes.push(MapChange::Map {
                        offset,
                        len: bytes.len() as u64,
                        gpa: at.ok_or(Unusable)?,
                    });
                }
                Entry::Truncate { size, .. } => changes.push(MapChange::Size(size)),
                Entry::Hole { offset, len, .. } => changes.push(MapChange::Hole { offset, len }),
                _ => {}
            }
        }
        Ok(changes)
    }

    /// What the entries do to a directory's names.
    pub(crate) fn name_changes(&self) -> Result<Vec<NameChange>, Unusable> {
        let mut changes = Vec::new();
        for record in self.entries() {
            match record?.entry {
                Entry::DentryAdd {
                    name,
                    target,
                    generation,
                    kind,
                    ..
                } => {
                    let target = InodeRef {
                        ino: target,
                        generation,
                    };
                    changes.push(NameChange::Set(name.into(), Child::new(target, kind)));
                }
                Entry::DentryDel { name, .. } => changes.push(NameChange::Gone(name.into())),
                // the directory was removed, which is not for its names to tell
                Entry::Links { nlink: 0, .. } => return Err(Unusable),
                _ => {}
            }
        }
        Ok(changes)
    }
}

/// A walk along the pages of a log.
struct Walk {
    /// What was gathered. Its cursor has the tail that the walk goes to and the page that it is at.
    units: Units,
    /// The next unit wanted.
    position: u64,
}

impl Walk {
    /// What was gathered goes up to where the walk is.
    fn check(&self) {
        let gathered = (self.units.bytes.len() / LINE) as u64;
        debug_assert!(self.units.bytes.len().is_multiple_of(LINE), "whole units");
        debug_assert_eq!(self.units.from + gathered, self.position, "no unit is missing");
        debug_assert!(
            self.position <= self.units.cursor.tail.units(),
            "no unit is beyond the tail"
        );
    }

    fn has_arrived(&self) -> bool {
        self.position >= self.units.cursor.tail.units()
    }
}

/// A cursor's page and which one of the log it is.
struct CursorPage {
    number: u64,
    offset: RegionOffset,
}

impl CursorPage {
    /// `None` where there is none, or where it cannot be told which it is: at a page's end the cursor may name the page
    /// before the tail or the one after.
    fn of(cursor: LogCursor) -> Option<CursorPage> {
        let in_pages = cursor.tail.units().checked_sub(INLINE_UNITS)?;
        let clear = cursor.page.0 != 0 && in_pages % PAGE_UNITS != 0;
        clear.then_some(CursorPage {
            number: in_pages / PAGE_UNITS,
            offset: cursor.page,
        })
    }
}

/// Which log page a position lies in; those in the inode count as the first page's.
fn page_of(position: u64) -> u64 {
    position.saturating_sub(INLINE_UNITS) / PAGE_UNITS
}

/// Do the units right before two tails lie in one log page?
pub(crate) fn is_one_page(one: Tail, other: Tail) -> bool {
    let last = |tail: Tail| page_of(tail.units().saturating_sub(1));
    last(one) == last(other)
}

/// Address of a unit that lies in the inode itself.
fn inode_place(ino: Ino, position: u64) -> Option<(u64, Gpa)> {
    let at = ino.offset()?.0 + INODE_UNITS + position * LINE as u64;
    Some((position, Gpa::new(ino.region(), RegionOffset(at))))
}

impl LocalClient {
    /// Pulls the units of `ino`'s log from `from` (whose page may be 0: not known) to `to`. `None` when that is not
    /// possible.
    pub(crate) async fn pull(&self, ino: Ino, from: LogCursor, to: Tail) -> Result<Option<Units>, FsError> {
        let version = from.tail.version();
        if version != to.version() || from.tail.units() > to.units() {
            return Ok(None);
        }
        let from_units = from.tail.units();
        let first = if from.page.0 == 0 {
            0
        } else {
            page_of(from_units).saturating_sub(1)
        };
        if page_of(to.units()).saturating_sub(first) + 2 > PAGES_MAX {
            return Ok(None);
        }
        let bytes = Vec::with_capacity((to.units() - from_units).min(PAGES_MAX * PAGE_UNITS) as usize * LINE);
        let cursor = LogCursor {
            tail: to,
            page: from.page,
        };
        let mut walk = Walk {
            position: from_units,
            units: Units {
                ino,
                version,
                from: from_units,
                bytes,
                places: Vec::new(),
                cursor,
            },
        };
        for _ in 0..PAGES_MAX {
            if walk.has_arrived() {
                break;
            }
            let goes_on = match UnitPlace::of(walk.position) {
                UnitPlace::Page { page, at } if walk.units.cursor.page.0 != 0 => {
                    self.pull_from_page(&mut walk, page, at).await?
                }
                place => {
                    self.pull_from_inode(&mut walk, matches!(place, UnitPlace::Inode(_)))
                        .await?
                }
            };
            if !goes_on {
                return Ok(None);
            }
            walk.check();
        }
        Ok(walk.has_arrived().then_some(walk.units))
    }

    /// Takes what is wanted of the log page that the walk is at, which should be the `number`th, and goes on to the next.
    async fn pull_from_page(&self, walk: &mut Walk, number: u64, at: u64) -> Result<bool, FsError> {
        let Walk { units, position } = walk;
        let (ino, version, page) = (units.ino, units.version, units.cursor.page);
        let to = units.cursor.tail.units();
        let count = (to - *position).min(UnitPlace::room(*position));
        let start = units.bytes.len();
        units.bytes.resize(start + count as usize * LINE, 0);
        let Some(header) = self.read_log_page(ino, page, at, &mut units.bytes[start..]).await? else {
            return Ok(false);
        };
        if header.page > number || !header.belongs(ino, version, header.page) {
            return Ok(false);
        }
        if header.page == number {
            let gpa = Gpa::new(ino.region(), RegionOffset(page.0 + at));
            units.places.push((*position, gpa));
            *position += count;
        } else {
            units.bytes.truncate(start);
        }
        if *position < to {
            units.cursor.page = header.next;
        }
        Ok(units.cursor.page.0 != 0)
    }

    /// Takes what is wanted of the units in the inode itself, if any are, and goes on to the first log page.
    async fn pull_from_inode(&self, walk: &mut Walk, has_units: bool) -> Result<bool, FsError> {
        let Walk { units, position } = walk;
        let Some((head, lines)) = self.read_log_head(units.ino, units.version).await? else {
            return Ok(false);
        };
        let to = units.cursor.tail.units();
        if has_units {
            units.places.extend(inode_place(units.ino, *position));
            let end = to.min(INLINE_UNITS);
            units
                .bytes
                .extend_from_slice(&lines[*position as usize * LINE..end as usize * LINE]);
            *position = end;
        }
        units.cursor.page = head;
        Ok(head.0 != 0 || *position >= to)
    }

    /// Applies what a directory's log says from `log` to a later tail of the same version to the names that are known as of
    /// `log`. False when that does not work, or is not worth it; the names may be known as of a later tail then, too.
    pub(crate) async fn pull_names(&self, dir: InodeRef, mut log: DirLog, to: Tail) -> Result<bool, FsError> {
        let names = &self.client.names;
        let worth = ENTRIES_PULLED.max(names.known(dir) as u64);
        let way = to.units().checked_sub(log.tail.units());
        if to.version() != log.tail.version() || way.is_none_or(|units| units > worth) {
            return Ok(false);
        }
        while log.tail.units() < to.units() {
            // no entry crosses the end of a page, so that is a tail, too
            let stop = INLINE_UNITS + (page_of(log.tail.units()) + PAGES_AT_ONCE) * PAGE_UNITS;
            let stop = Tail::new(to.version(), to.units().min(stop));
            let Some(units) = self.pull(dir.ino, log.into(), stop).await? else {
                return Ok(false);
            };
            let Ok(changes) = units.name_changes() else {
                return Ok(false);
            };
            let next = DirLog::from(units.cursor);
            names.apply(dir, log.tail, changes, next);
            log = next;
        }
        Ok(true)
    }

    /// A log page's header and, in the same batch, units of it.
    async fn read_log_page(
        &self,
        ino: Ino,
        page: RegionOffset,
        at: u64,
        into: &mut [u8],
    ) -> Result<Option<LogPage>, FsError> {
        if page.0 >> Gpa::OFFSET_BITS != 0 {
            return Ok(None);
        }
        let mut header = [0; LINE];
        let start = Gpa::new(ino.region(), page);
        let Some(units_at) = start.checked_add(at) else {
            return Ok(None);
        };
        let mut ops = [
            RegionVerb::Read {
                at: start,
                into: &mut header,
            },
            RegionVerb::Read { at: units_at, into },
        ];
        match self.one_sided(ino.region(), &mut ops).await {
            Ok(()) => Ok(LogPage::decode(&header).ok()),
            // a page number read from a page that is none any more may point anywhere
            Err(FsError::Invalid(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first log page and the units in the inode, while the log has this version.
    async fn read_log_head(
        &self,
        ino: Ino,
        version: u32,
    ) -> Result<Option<(RegionOffset, [u8; INLINE_UNITS as usize * LINE])>, FsError> {
        let Some(offset) = ino.offset() else { return Ok(None) };
        let mut bytes = [0; INODE_SIZE];
        let mut ops = [RegionVerb::Read {
            at: Gpa::new(ino.region(), offset),
            into: &mut bytes,
        }];
        match self.one_sided(ino.region(), &mut ops).await {
            Ok(()) => {}
            // it is gone, and with it the segment that it lay in
            Err(FsError::Invalid(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
        let lines = bytes[INODE_UNITS as usize..]
            .try_into()
            .expect("the inode ends with its two units");
        Ok(match InodeHead::decode(&bytes, ino) {
            Ok(head) if head.tail.version() == version => Some((head.log_page, lines)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{RegionId, seal};

    const INO: Ino = Ino(5);

    fn answer(known: LogCursor, entries: &[Entry<'_>], page: u64) -> (Written, Units) {
        let mut bytes = Vec::new();
        for entry in entries {
            let start = bytes.len();
            entry.encode(false, &mut bytes);
            let position = known.tail.units() + (start / LINE) as u64;
            seal(&mut bytes[start..], INO, known.tail.version(), position);
        }
        let units = (bytes.len() / LINE) as u64;
        let attr = polvo_format::Attr {
            ino: INO,
            generation: polvo_format::Generation(1),
            kind: polvo_format::FileKind::File,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
        };
        let tail = Tail::new(known.tail.version(), known.tail.units() + units);
        let cursor = LogCursor {
            tail,
            page: RegionOffset(page),
        };
        let written = Written {
            offset: 0,
            attr,
            cursor,
            entries: Some(bytes),
            space: vec![],
            places: vec![],
        };
        let units = Units::of_answer(INO, known, written.clone()).expect("entries fit the cursors");
        (written, units)
    }

    fn cursor(units: u64, page: u64) -> LogCursor {
        LogCursor {
            tail: Tail::new(3, units),
            page: RegionOffset(page),
        }
    }

    fn at(offset: u64) -> Gpa {
        Gpa::new(RegionId(0), RegionOffset(offset))
    }

    #[test]
    fn inline_bytes_are_found_in_the_inode_and_in_pages() {
        let inline = Entry::Inline {
            offset: 7,
            bytes: b"abc",
            time_ns: 0,
        };
        let in_inode = at(INO.offset().unwrap().0 + INODE_UNITS + LINE as u64 + Record::INLINE_BYTES);
        for (known, page, expect) in [
            (cursor(1, 0), 0, in_inode),
            (cursor(2, 0), 0x4000, at(0x4000 + 64 + Record::INLINE_BYTES)),
            (cursor(12, 0x4000), 0x4000, at(0x4000 + 11 * 64 + Record::INLINE_BYTES)),
            (cursor(65, 0x4000), 0x9000, at(0x9000 + 64 + Record::INLINE_BYTES)),
        ] {
            let (_, units) = answer(known, &[inline], page);
            let changes = units.map_changes(0).unwrap();
            assert_eq!(
                changes,
                [MapChange::Map {
                    offset: 7,
                    len: 3,
                    gpa: expect
                }],
                "from {known:?}"
            );
        }
    }

    #[test]
    fn inline_bytes_in_a_page_that_is_not_named_are_unusable_others_are_not() {
        let inline = Entry::Inline {
            offset: 7,
            bytes: b"abc",
            time_ns: 0,
        };
        let write = Entry::Write {
            offset: 0,
            len: 10,
            gpa: at(0x8000),
            time_ns: 0,
        };
        // ends exactly at a page's end: which page the cursor names is open
        let (_, units) = answer(cursor(64, 0), &[inline], 0x4000);
        assert!(units.map_changes(0).is_err());
        let (_, units) = answer(cursor(64, 0), &[write], 0x4000);
        assert_eq!(units.map_changes(0).unwrap().len(), 1);
    }

    #[test]
    fn entries_known_already_are_left_out() {
        let write = |offset| Entry::Write {
            offset,
            len: 10,
            gpa: at(0x8000),
            time_ns: 0,
        };
        let (_, units) = answer(cursor(3, 0x4000), &[write(0), write(10), write(20)], 0x4000);
        let changes = units.map_changes(4).unwrap();
        assert_eq!(changes.len(), 2);
        assert!(matches!(changes[0], MapChange::Map { offset: 10, .. }));
    }

    #[test]
    fn answers_that_do_not_fit_are_refused() {
        let write = Entry::Write {
            offset: 0,
            len: 10,
            gpa: at(0x8000),
            time_ns: 0,
        };
        let (written, _) = answer(cursor(3, 0x4000), &[write], 0x4000);
        assert!(Units::of_answer(INO, cursor(2, 0x4000), written.clone()).is_none());
        let rewritten = LogCursor {
            tail: Tail::new(4, 3),
            ..cursor(3, 0)
        };
        assert!(Units::of_answer(INO, rewritten, written.clone()).is_none());
        assert!(
            Units::of_answer(
                INO,
                cursor(3, 0x4000),
                Written {
                    entries: None,
                    ..written
                }
            )
            .is_none()
        );
    }
}
