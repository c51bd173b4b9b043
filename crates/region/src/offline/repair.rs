//! Repair of a stopped cluster.
//!
//! First what mirrors have whole is taken from them ([`super::restore`]). Then what can be put right exactly: the zones of each pool, region headers, lock words nobody knows, single flipped bits
//! of inodes and logs. Then, when the pools are known to be complete: directories are rebuilt from what can be read of their
//! logs, so that names are known; files whose logs have lost something lose their names (nobody shall take them for what
//! they were) and are rebuilt too; slots of which nothing is known are retired; and the tree of names is put right, which
//! gives whatever has no name one in `/lost+found`.
//!
//! Every step is one atomic durable change: a word, a commit of a log, a redo record. A repair that is cut short is taken up
//! by the next one.

use super::finish::{Finished, Unknown};
use super::name_tree::{Facts, Name, Regions, put_right};
use super::salvage::{Length, LogPages, Reading, read_log};
use super::{Cluster, OfflinePool, Progress, in_words, segments};
use crate::flipped_bit::flipped_bit;
use crate::recovery::is_unfinished;
use crate::shrink::FLOOR_MAX;
use crate::store::Store;
use crate::{PoolSpace, Region, RegionError};
use polvo_format::{
    FileKind, Floor, FormatError, Generation, INODE_HEAD_SIZE, INODE_SIZE, INODE_TAIL, Ino, InodeHead, InodeView, LINE,
    REGION_FLOOR, REGION_SEQUENCE, RegionHeader, RegionId, SequenceLimit, TAIL, Tail,
};
use polvo_proto::SegmentClass;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Log versions tried for an inode of which nothing but its first log entries is left.
const VERSIONS_TRIED: u32 = 64;
/// Directories without an identity below each other that are found again, one a round.
const ROUNDS_MAX: u32 = 64;
/// Times that files are rebuilt: what was rebuilt can turn out to have data that another file has too when all are read again.
const REBUILDS: u32 = 3;

/// What a repair has done.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// what was put right, a line each
    pub done: Vec<String>,
    /// what was not, and why
    pub refused: Vec<String>,
    /// what a crash had left and was finished, as nodes do at their start
    pub notes: Vec<String>,
}

impl Repaired {
    /// Notes how a step went; true when it was done.
    pub(super) fn step(&mut self, result: Result<(), RegionError>, what: impl FnOnce() -> String) -> bool {
        match result {
            Ok(()) => self.done.push(what()),
            Err(ref e) => self.refused.push(format!("not done: {} ({e})", what())),
        }
        result.is_ok()
    }
}

/// Repairs the pools of a cluster. To see what it would do, give it copies. `data`: file data is compared with its checksums, and taken
/// from mirrors where it is damaged.
///
/// # Errors
/// [`RegionError::Pool`] when a pool is none or lost both superblocks, or they do not belong together: then nothing was
/// changed but superblocks.
pub fn repair(
    pools: &[OfflinePool],
    data: bool,
    now_ns: i64,
    progress: &mut Progress<'_>,
) -> Result<Repaired, RegionError> {
    let mut report = Repaired::default();
    for OfflinePool { name, pmem } in pools {
        let mended = PoolSpace::mend_superblock(pmem).map_err(|e| RegionError::Pool(format!("pool {name}: {e}")))?;
        report.done.extend(mended.map(|what| format!("{name}: {what}")));
    }
    let (cluster, mut incomplete) = mend_zones(pools, data, &mut report)?;
    finish_transactions(&cluster, &mut incomplete, &mut report)?;
    let mut steps = Steps {
        progress,
        cluster: &cluster,
    };
    steps.each("correcting", |id, space| mend_exactly(id, space, &mut report))?;
    let regions = steps.recover(&mut report)?;
    let facts = Facts::of(&regions);
    cluster.why_unreadable(&regions, &facts, &mut incomplete);
    // what is damaged and what is not in place in a pool
    let (_, left) = Cluster::open(pools)?;
    report.refused.extend(left);
    match incomplete.is_empty() {
        true => rebuild(regions, &mut steps, facts, now_ns, &mut report)?,
        false => refuse_to_rebuild(&regions, &incomplete, &mut report),
    }
    Ok(report)
}

/// Flipped bits, and what is known from elsewhere.
pub(super) fn mend_exactly(id: RegionId, space: &Arc<PoolSpace>, report: &mut Repaired) -> Result<(), RegionError> {
    let store = Store::new(space, id)?;
    mend_header(&store, report);
    mend_floor(&store, report);
    mend_sequence(&store, report);
    mend_inodes(&store, report);
    Ok(())
}

/// Segment tables and redo logs, and regions that mirrors have whole. Gives the cluster as it is then, and what there is to show that it is not all of it.
fn mend_zones(pools: &[OfflinePool], data: bool, report: &mut Repaired) -> Result<(Cluster, Vec<String>), RegionError> {
    let (cluster, _) = Cluster::open(pools)?;
    for (name, space) in &cluster.pools {
        let mut done = space.mend_redo_log();
        done.append(&mut segments::mend(space));
        report
            .done
            .extend(done.into_iter().map(|what| format!("{name}: {what}")));
    }
    let (mut cluster, _) = Cluster::open(pools)?;
    if cluster.restore(data, report)? {
        cluster = Cluster::open(pools)?.0;
    }
    let incomplete = cluster.why_incomplete();
    if !incomplete.is_empty() {
        return Ok((cluster, incomplete));
    }
    for (name, space) in &cluster.pools {
        let cleared = space.clear_redo_log();
        report
            .done
            .extend(cleared.into_iter().map(|what| format!("{name}: {what}")));
    }
    Ok((Cluster::open(pools)?.0, incomplete))
}

/// Carries out what was decided, and lets go of what was not, where it is known that it was not.
fn finish_transactions(
    cluster: &Cluster,
    incomplete: &mut Vec<String>,
    report: &mut Repaired,
) -> Result<(), RegionError> {
    let mut finished = Finished::default();
    cluster.dispatch_decided(&mut finished);
    let missing = finished.missing.iter();
    incomplete.extend(missing.map(|region| format!("region {} is missing", region.0)));
    let unknown = match incomplete.is_empty() {
        true => Unknown::Clear,
        false => Unknown::Report,
    };
    cluster.let_go_undecided(unknown, &mut finished)?;
    report.notes.append(&mut finished.notes);
    match unknown {
        Unknown::Clear => {
            let cleared = finished.findings.drain(..).map(|what| format!("{what}; cleared"));
            report.done.extend(cleared);
        }
        Unknown::Report => report.refused.append(&mut finished.findings),
    }
    Ok(())
}

/// Says what is left as it is, and why.
fn refuse_to_rebuild(regions: &Regions, incomplete: &[String], report: &mut Repaired) {
    for region in regions.values() {
        let damaged = region.damaged();
        let line = |ino| format!("inode {ino:?}: damaged; left as it is");
        report.refused.extend(damaged.into_iter().map(line));
    }
    let why = incomplete.join("; ");
    report.refused.push(format!(
        "names, link counts and damaged logs are not repaired without all pools: {why}"
    ));
}

/// Directories, files, and then the tree of names.
fn rebuild(
    mut regions: Regions,
    steps: &mut Steps<'_, '_, '_>,
    facts: Facts,
    now_ns: i64,
    report: &mut Repaired,
) -> Result<(), RegionError> {
    rebuild_directories(&mut regions, steps, facts, now_ns, report)?;
    for _ in 0..REBUILDS {
        let done = report.done.len();
        rebuild_files(&mut regions, now_ns, report);
        drop(regions);
        let rebuilt = report.done.len() > done;
        regions = steps.recover(report)?;
        let is_damaged = regions.values().any(|region| !region.damaged().is_empty());
        if !rebuilt || !is_damaged {
            break;
        }
    }
    let keep = regions.values().flat_map(|region| region.damaged()).collect();
    put_right(&mut regions, &keep, now_ns, report);
    if keep.is_empty() {
        regions.values_mut().for_each(Region::free_dead);
    }
    Ok(())
}

impl Cluster {
    /// Adds what regions that can be read show: that one cannot, or that names lead to others.
    fn why_unreadable(&self, regions: &Regions, facts: &Facts, why: &mut Vec<String>) {
        if regions.len() < self.of_region.len() {
            why.push("a region cannot be read".into());
        }
        let mentioned = facts.mentioned().into_iter();
        let strangers: Vec<u16> = mentioned
            .filter(|region| !self.of_region.contains_key(region))
            .map(|region| region.0)
            .collect();
        if !strangers.is_empty() {
            why.push(format!(
                "names lead to regions {strangers:?}, whose pools were not named"
            ));
        }
    }

    /// What there is to show that some pool of the cluster was not named.
    fn why_incomplete(&self) -> Vec<String> {
        let mut why = self.doubled.clone();
        let last = self.of_region.keys().next_back().map_or(0, |region| region.0);
        let missing = (0..=last)
            .map(RegionId)
            .filter(|region| !self.of_region.contains_key(region));
        why.extend(missing.map(|region| format!("region {} is missing", region.0)));
        for (region, at) in &self.of_region {
            let first = self.pools[*at].1.segments_of(*region).first().copied();
            if first.is_none_or(|(index, _, class)| (index, class) != (0, SegmentClass::Inodes)) {
                why.push(format!("the first segment of region {} is missing", region.0));
            }
        }
        for (name, space) in &self.pools {
            if !space.damaged_segments().is_empty() {
                why.push(format!("segments of {name} are nobody's"));
            }
        }
        why
    }
}

/// Steps through regions, with progress.
struct Steps<'a, 'b, 'c> {
    progress: &'a mut Progress<'b>,
    cluster: &'c Cluster,
}

impl Steps<'_, '_, '_> {
    fn each(
        &mut self,
        what: &str,
        mut step: impl FnMut(RegionId, &Arc<PoolSpace>) -> Result<(), RegionError>,
    ) -> Result<(), RegionError> {
        let total = self.cluster.of_region.len() as u64;
        for (done, (&id, &at)) in (0..).zip(&self.cluster.of_region) {
            (self.progress)(&format!("{what} region {}", id.0), done, total);
            step(id, &self.cluster.pools[at].1)?;
        }
        Ok(())
    }

    /// Recovers all regions that can be; those that cannot are refused.
    fn recover(&mut self, report: &mut Repaired) -> Result<Regions, RegionError> {
        let mut regions = Regions::new();
        self.each("reading", |id, space| {
            match Region::recover_all(space, id, &mut |_, _| ()) {
                Ok((mut region, recovery)) => {
                    set_damaged_aside(&mut region);
                    let mended = recovery.mended.into_iter().map(in_words);
                    report.done.extend(mended.map(|what| format!("{what}; written anew")));
                    regions.insert(id, region);
                }
                Err(e) => {
                    let line = format!("region {}: {e}", id.0);
                    if !report.refused.contains(&line) {
                        report.refused.push(line);
                    }
                }
            }
            Ok(())
        })?;
        Ok(regions)
    }
}

fn begins_with_inodes(store: &Store) -> bool {
    matches!(store.segments().next(), Some((0, _, SegmentClass::Inodes)))
}

/// All that a region's header says is known from the segment table.
fn mend_header(store: &Store, report: &mut Repaired) {
    if !begins_with_inodes(store) {
        return;
    }
    let header = RegionHeader {
        region: store.region,
        segment_shift: store.segment_shift(),
    };
    let mut bytes = [0; LINE];
    store.read(0, &mut bytes);
    let right = match RegionHeader::decode(&bytes) {
        Ok(Some(found)) => found == header,
        Ok(None) => is_unfinished(store),
        Err(_) => false,
    };
    if right {
        return;
    }
    let bytes = header.encode();
    store.write(8, &bytes[8..]);
    store.fence();
    store.write_word(0, u64::from_le_bytes(bytes[..8].try_into().expect("a word is 8 bytes")));
    store.fence();
    report
        .done
        .push(format!("region {}: header written anew", store.region.0));
}

/// Puts a flipped bit of the floor right; else it is the highest one there can be, which is right for all.
fn mend_floor(store: &Store, report: &mut Repaired) {
    let is_sound = |word| Floor::decode(word).is_ok();
    mend_word(store, REGION_FLOOR, is_sound, FLOOR_MAX.encode(), report);
}

/// The same for the numbers of the region's transactions; else they go on where none can have come to.
fn mend_sequence(store: &Store, report: &mut Repaired) {
    let is_sound = |word| SequenceLimit::decode(word).is_ok();
    mend_word(
        store,
        REGION_SEQUENCE,
        is_sound,
        SequenceLimit(1 << 47).encode(),
        report,
    );
}

/// Puts a flipped bit of a word behind the region's header right, else stores one that does no harm.
fn mend_word(store: &Store, offset: u64, is_sound: impl Fn(u64) -> bool, harmless: u64, report: &mut Repaired) {
    if !begins_with_inodes(store) || is_sound(store.read_word(offset)) {
        return;
    }
    let mut bytes = store.read_word(offset).to_le_bytes();
    let bit = flipped_bit(&mut bytes, 0..64, |bytes| {
        is_sound(u64::from_le_bytes(bytes.try_into().expect("a word is 8 bytes")))
    });
    let how = match bit {
        Some(bit) => {
            store.flip_back(offset, bit);
            "a flipped bit put right"
        }
        None => {
            store.write_word(offset, harmless);
            store.fence();
            "set to what does no harm"
        }
    };
    let what = match offset {
        REGION_FLOOR => "floor of its slots",
        _ => "limit of its transactions",
    };
    report.done.push(format!("region {}: {what}: {how}", store.region.0));
}

/// Puts single flipped bits of inodes and their logs right.
fn mend_inodes(store: &Store, report: &mut Repaired) {
    let mut damaged = Vec::new();
    store.each_slot(&mut |slot, bytes| {
        let lock = store.lock_word(slot);
        let ino = store.ino(slot);
        let whole = match InodeHead::decode(bytes, ino) {
            Ok(head) if head.kind.is_none() => true,
            Ok(_) => store.load(slot).is_ok(),
            Err(_) => false,
        };
        if lock == 0 && !whole {
            damaged.push(slot);
        }
    });
    if damaged.is_empty() {
        return;
    }
    let pages = LogPages::of(store);
    for slot in damaged {
        let ino = store.ino(slot);
        if mend_head(store, slot) {
            report.done.push(format!("inode {ino:?}: a flipped bit put right"));
        }
        let bytes = store.read_slot(slot);
        let Ok(head) = InodeHead::decode(&bytes, ino) else {
            continue;
        };
        if head.kind.is_none() || store.load(slot).is_ok() {
            continue;
        }
        let reading = read_log(store, &pages, ino, &head, &bytes, Length::Known);
        if reading.lost != 0 {
            continue;
        }
        for flip in &reading.flips {
            store.flip_back(flip.at, flip.bit);
        }
        if !reading.flips.is_empty() {
            let bits = reading.flips.len();
            report
                .done
                .push(format!("inode {ino:?}: {bits} flipped bits of its log put right"));
        }
    }
}

/// Puts a flipped bit of an inode's identity right, and one of its tail. False when there is none, or more.
fn mend_head(store: &Store, slot: u64) -> bool {
    let ino = store.ino(slot);
    let mut bytes = store.read_slot(slot);
    let only_tail = |result: &Result<InodeHead, FormatError>| {
        // identity is looked at first
        matches!(result, Err(FormatError::Checksum(what)) if *what == TAIL)
    };
    let first = InodeHead::decode(&bytes, ino);
    if first.is_ok() {
        return false;
    }
    let mut bits = Vec::new();
    if !only_tail(&first) {
        let identity = flipped_bit(&mut bytes, 0..INODE_HEAD_SIZE * 8, |head| {
            let read = InodeHead::decode(head, ino);
            read.is_ok() || only_tail(&read)
        });
        let Some(bit) = identity else { return false };
        bytes[bit / 8] ^= 1 << (bit % 8);
        bits.push(bit);
    }
    if only_tail(&InodeHead::decode(&bytes, ino)) {
        let mut tail = [0; 8];
        tail.copy_from_slice(&bytes[INODE_TAIL as usize..][..8]);
        let sound = |tail: &[u8]| Tail(u64::from_le_bytes(tail.try_into().expect("a word is 8 bytes"))).is_sound();
        let Some(bit) = flipped_bit(&mut tail, 0..64, sound) else {
            return false;
        };
        let bit = INODE_TAIL as usize * 8 + bit;
        bytes[bit / 8] ^= 1 << (bit % 8);
        // the check of a tail is short: the attributes have to agree, where there are any
        let agrees = matches!(InodeView::decode(&bytes, ino), Ok(_) | Err(FormatError::Free));
        if !agrees {
            return false;
        }
        bits.push(bit);
    }
    bits.into_iter()
        .for_each(|bit| store.flip_back(slot * INODE_SIZE as u64, bit));
    true
}

/// An inode that cannot be read as it is.
enum Broken {
    /// something else has its data too
    Shared,
    /// its identity is whole, its log is not
    Log(InodeHead),
    /// nothing is known but what names say
    Head,
}

fn how_broken(store: &Store, ino: Ino) -> Broken {
    match InodeHead::decode(&store.read_slot(ino.slot()), ino) {
        Ok(head) if head.kind.is_some() => match store.load(ino.slot()) {
            Ok(_) => Broken::Shared,
            Err(_) => Broken::Log(head),
        },
        _ => Broken::Head,
    }
}

/// What names say of an inode: they agree on generation and type.
fn named(ino: Ino, names: &[Name]) -> Option<Name> {
    let mut named = names.iter().filter(|name| name.target.ino == ino);
    let first = named.next()?;
    named
        .all(|other| (other.target, other.kind) == (first.target, first.kind))
        .then(|| first.clone())
}

/// Reads what is left of an inode whose identity is lost, but known from elsewhere.
fn read_nameless(
    store: &Store,
    pages: &LogPages,
    ino: Ino,
    kind: FileKind,
    generation: Generation,
    parent: Ino,
    parent_generation: Generation,
) -> Option<Reading> {
    let bytes = store.read_slot(ino.slot());
    let found = InodeHead::decode_unchecked(&bytes);
    let head = |tail: Tail| InodeHead {
        kind: Some(kind),
        generation,
        parent,
        parent_generation,
        log_page: found.log_page,
        btime_ns: 0,
        tail,
    };
    let mut tries = Vec::new();
    if found.tail.is_sound() && found.tail.units() != 0 {
        tries.push((found.tail, Length::Known));
    }
    let floor = store.read_floor().unwrap_or_default().version;
    let tried = (floor..floor + VERSIONS_TRIED).chain(0..floor.min(VERSIONS_TRIED));
    let versions = pages.versions(ino).into_iter().rev().chain(tried);
    tries.extend(versions.map(|version| (Tail::new(version & 0xff_ffff, 0), Length::Unknown)));
    let mut reading = tries
        .into_iter()
        .map(|(tail, length)| read_log(store, pages, ino, &head(tail), &bytes, length))
        .find(|reading| reading.read != 0)?;
    // when it was made stood where nothing is left
    let attr = &mut reading.inode.attr;
    attr.btime_ns = attr.mtime_ns.min(attr.ctime_ns);
    Some(reading)
}

/// Rebuilds directories whose logs are damaged from what can be read, until nothing more comes to light.
fn rebuild_directories(
    regions: &mut Regions,
    steps: &mut Steps<'_, '_, '_>,
    mut facts: Facts,
    now_ns: i64,
    report: &mut Repaired,
) -> Result<(), RegionError> {
    for _ in 0..ROUNDS_MAX {
        let mut again = false;
        for region in regions.values_mut() {
            let broken = region.broken();
            let pages = match broken.is_empty() {
                true => continue,
                false => LogPages::of(&region.store),
            };
            for ino in broken {
                let store = &region.store;
                let reading = match how_broken(store, ino) {
                    Broken::Log(head) if head.kind == Some(FileKind::Directory) => {
                        let bytes = store.read_slot(ino.slot());
                        Some(read_log(store, &pages, ino, &head, &bytes, Length::Known))
                    }
                    Broken::Head if ino == Ino::ROOT => {
                        let (kind, generation) = (FileKind::Directory, Generation(1));
                        let read = read_nameless(store, &pages, ino, kind, generation, ino, generation);
                        Some(read.unwrap_or_else(|| empty_root(store, &pages, now_ns)))
                    }
                    Broken::Head => named(ino, &facts.names)
                        .filter(|name| name.kind == FileKind::Directory)
                        .and_then(|name| {
                            let (dir, generation) = (name.dir, name.target.generation);
                            read_nameless(store, &pages, ino, name.kind, generation, dir.ino, dir.generation)
                        }),
                    _ => None,
                };
                let Some(reading) = reading else { continue };
                let lost = reading.lost;
                let newest = pages.versions(ino).into_iter().next_back().unwrap_or(0);
                let rewritten = region.rewrite(reading, newest, 2);
                let what =
                    || format!("directory {ino:?}: rebuilt from what can be read of its log ({lost} units lost)");
                again |= report.step(rewritten, what);
            }
        }
        if !again {
            return Ok(());
        }
        regions.clear();
        *regions = steps.recover(report)?;
        facts = Facts::of(regions);
    }
    Ok(())
}

/// Sees to it that nothing new is written over what damaged inodes have.
fn set_damaged_aside(region: &mut Region) {
    let damaged = region.broken();
    if damaged.is_empty() {
        return;
    }
    let pages = LogPages::of(&region.store);
    for ino in damaged {
        let bytes = region.store.read_slot(ino.slot());
        let reading = match how_broken(&region.store, ino) {
            Broken::Shared => continue, // claimed when it was read
            Broken::Log(head) => Some(read_log(&region.store, &pages, ino, &head, &bytes, Length::Known)),
            Broken::Head => {
                // as if it were a file, since those have the most
                let (store, nobody) = (&region.store, (Ino(0), Generation(0)));
                read_nameless(store, &pages, ino, FileKind::File, Generation(1), nobody.0, nobody.1)
            }
        };
        if let Some(reading) = reading {
            region.set_aside(&reading);
        }
    }
}

/// The root directory without anything in it.
fn empty_root(store: &Store, pages: &LogPages, now_ns: i64) -> Reading {
    let head = InodeHead {
        kind: Some(FileKind::Directory),
        generation: Generation(1),
        parent: Ino::ROOT,
        parent_generation: Generation(1),
        btime_ns: now_ns,
        ..InodeHead::UNUSED
    };
    let mut reading = read_log(store, pages, Ino::ROOT, &head, &[0; INODE_SIZE], Length::Known);
    let attr = &mut reading.inode.attr;
    attr.mode = 0o755;
    (attr.atime_ns, attr.mtime_ns, attr.ctime_ns) = (now_ns, now_ns, now_ns);
    reading
}

/// Files whose logs have lost something lose their names and are rebuilt; files that share data get their own; slots of
/// which nothing can be read are retired.
fn rebuild_files(regions: &mut Regions, now_ns: i64, report: &mut Repaired) {
    let facts = Facts::of(regions);
    let mut work: Vec<(Ino, Broken)> = Vec::new();
    for region in regions.values() {
        let broken = region.damaged().into_iter();
        work.extend(broken.map(|ino| (ino, how_broken(&region.store, ino))));
    }
    // a directory that could not be rebuilt keeps its name
    work.retain(|(_, how)| !matches!(how, Broken::Log(head) if head.kind == Some(FileKind::Directory)));
    let lost: BTreeSet<Ino> = work
        .iter()
        .filter(|(_, how)| !matches!(how, Broken::Shared))
        .map(|(ino, _)| *ino)
        .collect();
    // names first: cut short after it, a repair never leaves less than the file was under its name
    let mut still_named = BTreeSet::new();
    for name in facts.names.iter().filter(|name| lost.contains(&name.target.ino)) {
        let struck = match regions.get_mut(&name.dir.ino.region()) {
            Some(region) => region.strike_name(name.dir, &name.name, now_ns),
            None => continue,
        };
        let ino = name.target.ino;
        let what = || format!("name {} removed: inode {ino:?} is damaged", facts.path(name));
        if !report.step(struck, what) {
            still_named.insert(ino);
        }
    }
    let mut pages: BTreeMap<RegionId, LogPages> = BTreeMap::new();
    for (ino, how) in work.into_iter().filter(|(ino, _)| !still_named.contains(ino)) {
        let Some(region) = regions.get_mut(&ino.region()) else {
            continue;
        };
        let pages = pages.entry(ino.region()).or_insert_with(|| LogPages::of(&region.store));
        let store = &region.store;
        let reading = match how {
            Broken::Shared => {
                let separated = store.load(ino.slot()).and_then(|inode| region.separate(inode));
                let what = || format!("inode {ino:?}: data that another file has too copied; one of the two is wrong");
                report.step(separated, what);
                continue;
            }
            Broken::Log(head) => {
                let bytes = store.read_slot(ino.slot());
                Some(read_log(store, pages, ino, &head, &bytes, Length::Known))
            }
            Broken::Head => named(ino, &facts.names).and_then(|name| {
                let nobody = (Ino(0), Generation(0));
                read_nameless(store, pages, ino, name.kind, name.target.generation, nobody.0, nobody.1)
            }),
        };
        let newest = pages.versions(ino).into_iter().next_back().unwrap_or(0);
        match reading.filter(|reading| reading.read != 0) {
            Some(reading) => {
                let lost = reading.lost;
                let rewritten = region.rewrite(reading, newest, 1);
                let what = || format!("inode {ino:?}: rebuilt from what can be read of its log ({lost} units lost)");
                report.step(rewritten, what);
            }
            None => {
                let retired = region.retire_slot(ino.slot());
                report.step(retired, || {
                    format!("inode {ino:?}: nothing of it can be read; slot retired")
                });
            }
        }
    }
}

impl Region {
    /// What is damaged, and the root directory when it is not there at all.
    fn broken(&self) -> Vec<Ino> {
        let mut broken = self.damaged();
        if self.id() == Ino::ROOT.region() && self.store.root_is_missing() {
            broken.insert(0, Ino::ROOT);
        }
        broken
    }
}

impl Store {
    /// Is the slot of the root directory free?
    fn root_is_missing(&self) -> bool {
        let bytes = self.read_slot(Ino::ROOT.slot());
        InodeHead::decode(&bytes, Ino::ROOT).is_ok_and(|head| head.kind.is_none())
    }
}
