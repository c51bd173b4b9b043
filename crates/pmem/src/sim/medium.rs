//! Stores, flushes and fences on the simulated medium, and what a power cut leaves.

use super::chooser::{Chooser, Fate, PendingLine, RandomLines};
use super::pages::{CrashImage, PAGE, Pages, Piece, pieces};
use parking_lot::Mutex;
use std::collections::BTreeMap;

const LINE: usize = crate::CACHE_LINE as usize;
const WORD: usize = 8;
/// Overwritten contents that are remembered of one line; older ones are taken to be gone.
const MAX_VERSIONS: usize = 6;

/// Called before each fence takes effect. It runs with the medium locked: build images here and use them, but do not
/// touch the pool itself (that would wait for ever).
pub type FenceHook = Box<dyn FnMut(&FencePoint<'_>) + Send>;

/// Counters of a simulated medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SimStats {
    /// Fences.
    pub fences: u64,
    /// Fences before which nothing had been flushed or streamed.
    pub needless_fences: u64,
    /// Lines flushed that were dirty.
    pub flushes: u64,
    /// Lines flushed that were clean or on their way already.
    pub needless_flushes: u64,
    /// Bytes stored.
    pub bytes_stored: u64,
}

/// Something that the medium is to leave undone once: for tests of those who test (a forgotten flush, a forgotten fence).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Omission {
    /// The n-th write-back from now, from 0: a call of `flush`, or a streaming store that is an ordinary one instead.
    WriteBack(u64),
    /// The n-th fence from now, from 0; its hook is not called.
    Fence(u64),
}

/// The simulated medium behind a [`Pmem`](crate::Pmem), see the [module](super). The interface for tests.
pub struct SimMedium {
    len: u64,
    state: Mutex<State>,
    /// Locked before `state`.
    hook: Mutex<Option<FenceHook>>,
}

struct State {
    /// What the CPU sees.
    visible: Pages,
    /// What survives whatever happens.
    durable: CrashImage,
    /// Pages with lines that are not durable. Ordered, so that choosers see lines in order of offset.
    pending: BTreeMap<usize, PendingPage>,
    /// Pages with something on its way.
    on_their_way: Vec<usize>,
    stats: SimStats,
    omission: Option<Omission>,
    /// As of a plain file: write-backs and fences do nothing, and what was stored is durable after a sync.
    needs_sync: bool,
    /// Offset and length of the last write-back, for who wants to know what a fence was for.
    last_write_back: (u64, u64),
    omitted: Option<(u64, u64)>,
}

/// Lines of a page that are not durable; bit n is line n.
#[derive(Default)]
struct PendingPage {
    /// Stored since they were durable.
    dirty: u64,
    /// Of these: present content on its way.
    flushed: u64,
    /// Contents that have been overwritten since, oldest first.
    versions: Vec<Version>,
    /// Is in `on_their_way`.
    queued: bool,
}

struct Version {
    line: u32,
    /// Was on its way when it was overwritten.
    flushed: bool,
    bytes: [u8; LINE],
}

/// A fence that is about to take effect.
pub struct FencePoint<'a> {
    state: &'a State,
}

impl FencePoint<'_> {
    /// Number of this fence on this medium, from 1.
    pub fn number(&self) -> u64 {
        self.state.stats.fences
    }

    /// Lines that are not durable yet (this fence included). 0: a power cut here leaves just one state.
    pub fn pending_lines(&self) -> usize {
        self.state.pending_lines()
    }

    /// Of these, lines that this fence makes durable as they are.
    pub fn flushed_lines(&self) -> usize {
        self.state
            .pending
            .values()
            .map(|p| p.flushed.count_ones() as usize)
            .sum()
    }

    /// What a power cut just before this fence leaves.
    pub fn image(&self, chooser: &mut dyn Chooser) -> CrashImage {
        self.state.image(chooser)
    }
}

impl SimMedium {
    /// `contents` are durable.
    pub(crate) fn new(contents: CrashImage) -> SimMedium {
        SimMedium {
            len: contents.len(),
            state: Mutex::new(State {
                visible: contents.pages().clone(),
                durable: contents,
                pending: BTreeMap::new(),
                on_their_way: Vec::new(),
                stats: SimStats::default(),
                omission: None,
                needs_sync: false,
                last_write_back: (0, 0),
                omitted: None,
            }),
            hook: Mutex::new(None),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        self.state.lock().visible.read(offset, into);
    }

    pub(crate) fn read_u64(&self, offset: u64) -> u64 {
        self.state.lock().word(offset)
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        self.state.lock().store(offset, bytes, false);
    }

    pub(crate) fn write_streaming(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        let streaming = !state.omits_write_back(offset, bytes.len() as u64);
        state.store(offset, bytes, streaming);
    }

    pub(crate) fn zero_streaming(&self, offset: u64, len: u64) {
        let mut state = self.state.lock();
        let streaming = !state.omits_write_back(offset, len);
        for piece in pieces(offset, len) {
            state.store_piece(piece, &[0; PAGE][..piece.len], streaming);
        }
    }

    /// `new` gets the word found and says what to store, if anything. Returns what was found.
    pub(crate) fn update_u64(&self, offset: u64, new: impl FnOnce(u64) -> Option<u64>) -> u64 {
        let mut state = self.state.lock();
        let found = state.word(offset);
        if let Some(new) = new(found) {
            state.store(offset, &new.to_ne_bytes(), false);
        }
        found
    }

    pub(crate) fn flush(&self, offset: u64, len: u64) {
        let mut state = self.state.lock();
        if !state.omits_write_back(offset, len) {
            state.flush(offset, len);
        }
    }

    pub(crate) fn fence(&self) {
        let mut hook = self.hook.lock();
        let mut state = self.state.lock();
        if state.omits_fence() {
            return;
        }
        state.stats.fences += 1;
        if let Some(hook) = hook.as_mut() {
            hook(&FencePoint { state: &state });
        }
        state.fence();
    }

    /// Leaves something undone, once, instead of what was to be left undone before; `None`: nothing.
    pub fn omit(&self, omission: Option<Omission>) {
        let mut state = self.state.lock();
        (state.omission, state.omitted) = (omission, None);
    }

    /// From now on it behaves as a plain file (or no longer): nothing that is stored is durable before [`sync`](crate::Pmem::sync).
    pub fn needs_sync_from_now(&self, needs_sync: bool) {
        self.state.lock().needs_sync = needs_sync;
    }

    pub(crate) fn needs_sync(&self) -> bool {
        self.state.lock().needs_sync
    }

    /// Makes all durable that a plain file holds.
    pub(crate) fn sync(&self) {
        self.state.lock().sync();
    }

    /// What was left undone since `omit`: offset and length of the write-back, or of the last one before the fence.
    pub fn omitted(&self) -> Option<(u64, u64)> {
        self.state.lock().omitted
    }

    /// Fences so far.
    pub fn fences(&self) -> u64 {
        self.state.lock().stats.fences
    }

    /// Counters so far.
    pub fn stats(&self) -> SimStats {
        self.state.lock().stats
    }

    /// Lines that are not durable.
    pub fn pending_lines(&self) -> usize {
        self.state.lock().pending_lines()
    }

    /// Calls `hook` before each fence from now on, instead of the one set before.
    pub fn set_fence_hook(&self, hook: FenceHook) {
        *self.hook.lock() = Some(hook);
    }

    /// No hook any more.
    pub fn clear_fence_hook(&self) {
        *self.hook.lock() = None;
    }

    /// What a power cut leaves now. The medium goes on as if nothing had happened.
    pub fn image(&self, chooser: &mut dyn Chooser) -> CrashImage {
        self.state.lock().image(chooser)
    }

    /// Cuts the power: the medium holds what [`RandomLines`] with this seed has left, and all of that is durable.
    pub fn power_cut(&self, seed: u64) {
        self.power_cut_with(&mut RandomLines::new(seed));
    }

    /// Cuts the power; `chooser` decides what is left. Hook and counters stay.
    pub fn power_cut_with(&self, chooser: &mut dyn Chooser) {
        let mut state = self.state.lock();
        let image = state.image(chooser);
        state.visible = image.pages().clone();
        state.durable = image;
        state.pending.clear();
        state.on_their_way.clear();
        debug_assert_eq!(state.pending_lines(), 0, "all that is left is durable");
    }
}

impl std::fmt::Debug for SimMedium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimMedium")
            .field("len", &self.len)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl State {
    fn omits_write_back(&mut self, offset: u64, len: u64) -> bool {
        self.last_write_back = (offset, len);
        match &mut self.omission {
            Some(Omission::WriteBack(left)) if *left > 0 => *left -= 1,
            Some(Omission::WriteBack(_)) => return self.omits_now(),
            _ => {}
        }
        false
    }

    fn omits_fence(&mut self) -> bool {
        match &mut self.omission {
            Some(Omission::Fence(left)) if *left > 0 => *left -= 1,
            Some(Omission::Fence(_)) => return self.omits_now(),
            _ => {}
        }
        false
    }

    fn omits_now(&mut self) -> bool {
        self.omission = None;
        self.omitted = Some(self.last_write_back);
        true
    }

    /// What is not durable is in the pages that say so; all else is as the CPU sees it.
    fn check(&self) {
        debug_assert!(
            self.pending
                .values()
                .all(|page| page.dirty != 0 && page.flushed & !page.dirty == 0),
            "pages with something that is not durable"
        );
        debug_assert!(
            self.on_their_way
                .iter()
                .all(|page| self.pending.get(page).is_some_and(|page| page.queued)),
            "what is on its way was stored"
        );
    }

    fn word(&self, offset: u64) -> u64 {
        let start = (offset % PAGE as u64) as usize;
        let page = self.visible.page_or_zeros((offset / PAGE as u64) as usize);
        u64::from_ne_bytes(page[start..start + WORD].try_into().expect("eight bytes"))
    }

    fn store(&mut self, offset: u64, bytes: &[u8], streaming: bool) {
        let mut rest = bytes;
        for piece in pieces(offset, bytes.len() as u64) {
            let (now, later) = rest.split_at(piece.len);
            self.store_piece(piece, now, streaming);
            rest = later;
        }
        debug_assert!(rest.is_empty(), "the pieces have all bytes");
    }

    fn store_piece(&mut self, piece: Piece, bytes: &[u8], streaming: bool) {
        assert_eq!(piece.len, bytes.len(), "a piece has its bytes");
        let lines = lines_of(piece);
        let page = self.visible.page_mut(piece.page);
        let pending = self.pending.entry(piece.page).or_default();
        if pending.dirty & lines != 0 {
            pending.remember(piece, bytes, page, self.durable.pages().page_or_zeros(piece.page));
        }
        page[piece.start..piece.start + piece.len].copy_from_slice(bytes);
        pending.dirty |= lines;
        if streaming && !self.needs_sync {
            pending.flushed |= lines;
            pending.queue(piece.page, &mut self.on_their_way);
        } else {
            pending.flushed &= !lines;
        }
        debug_assert!(
            pending.flushed & !pending.dirty == 0,
            "only what was stored is on its way"
        );
        debug_assert!(
            pending.flushed == 0 || pending.queued,
            "the next fence finds what is on its way"
        );
        self.stats.bytes_stored += bytes.len() as u64;
    }

    fn flush(&mut self, offset: u64, len: u64) {
        if self.needs_sync {
            return;
        }
        for piece in pieces(offset, len) {
            let lines = lines_of(piece);
            let mut useful = 0;
            if let Some(pending) = self.pending.get_mut(&piece.page) {
                useful = lines & pending.dirty & !pending.flushed;
                if useful != 0 {
                    pending.flushed |= useful;
                    pending.queue(piece.page, &mut self.on_their_way);
                }
            }
            self.stats.flushes += u64::from(useful.count_ones());
            self.stats.needless_flushes += u64::from((lines & !useful).count_ones());
        }
    }

    fn fence(&mut self) {
        if self.on_their_way.is_empty() {
            self.stats.needless_fences += 1;
        }
        for page in std::mem::take(&mut self.on_their_way) {
            let Some(pending) = self.pending.get_mut(&page) else {
                continue;
            };
            pending.queued = false;
            let arrived = pending.flushed;
            if arrived == u64::MAX {
                self.durable.share_page(&self.visible, page);
            } else {
                // Flushed, then overwritten: what was flushed last is durable now.
                for version in &pending.versions {
                    if version.flushed && arrived & 1 << version.line == 0 {
                        self.durable.set_line(page, version.line as usize, &version.bytes);
                    }
                }
                let visible = self.visible.page_or_zeros(page).as_chunks::<LINE>().0;
                for line in bits(arrived) {
                    self.durable.set_line(page, line as usize, &visible[line as usize]);
                }
            }
            pending.dirty &= !arrived;
            pending.flushed = 0;
            pending.forget_before_fence(arrived);
            debug_assert!(
                pending
                    .versions
                    .iter()
                    .all(|version| pending.dirty & 1 << version.line != 0 && !version.flushed),
                "older contents are of lines that are not durable"
            );
            if pending.dirty == 0 {
                self.pending.remove(&page);
            }
        }
        debug_assert!(self.on_their_way.is_empty(), "all that was on its way is durable");
        debug_assert!(
            self.pending.values().all(|page| page.flushed == 0 && !page.queued),
            "nothing is on its way after a fence"
        );
        self.check();
    }

    /// All that was stored is durable.
    fn sync(&mut self) {
        for (page, pending) in &mut self.pending {
            pending.flushed = pending.dirty;
            pending.queue(*page, &mut self.on_their_way);
        }
        self.fence();
        debug_assert_eq!(self.pending_lines(), 0, "what is synced is durable");
    }

    fn pending_lines(&self) -> usize {
        self.pending.values().map(|p| p.dirty.count_ones() as usize).sum()
    }

    fn image(&self, chooser: &mut dyn Chooser) -> CrashImage {
        self.check();
        let mut image = self.durable.clone();
        for (&page, pending) in &self.pending {
            let durable = self.durable.pages().page_or_zeros(page).as_chunks::<LINE>().0;
            let visible = self.visible.page_or_zeros(page).as_chunks::<LINE>().0;
            for line in bits(pending.dirty) {
                let versions = || pending.versions.iter().filter(|v| v.line == line);
                let count = versions().count();
                let content = |number: usize| match number {
                    0 => &durable[line as usize],
                    n if n <= count => &versions().nth(n - 1).expect("counted above").bytes,
                    _ => &visible[line as usize],
                };
                debug_assert!(count <= MAX_VERSIONS, "few older contents are kept of a line");
                let fate = chooser.choose(PendingLine {
                    offset: (page * PAGE + line as usize * LINE) as u64,
                    contents: count + 2,
                    flushed: pending.flushed & 1 << line != 0,
                });
                match fate {
                    Fate::Content(number) => image.set_line(page, line as usize, content(number)),
                    Fate::Words(numbers) => {
                        let mut torn = [0; LINE];
                        for (word, number) in numbers.into_iter().enumerate() {
                            let word = word * WORD..(word + 1) * WORD;
                            torn[word.clone()].copy_from_slice(&content(number)[word]);
                        }
                        image.set_line(page, line as usize, &torn);
                    }
                }
            }
        }
        image
    }
}

impl PendingPage {
    fn queue(&mut self, page: usize, on_their_way: &mut Vec<usize>) {
        if !self.queued {
            self.queued = true;
            on_their_way.push(page);
        }
    }

    /// Keeps the contents of lines that `bytes` are about to overwrite, where a power cut could still bring them up: they
    /// are on their way, or a word that is not durable changes once more (anything else is a mix of the durable and the
    /// coming content).
    fn remember(&mut self, piece: Piece, bytes: &[u8], page: &[u8; PAGE], durable: &[u8; PAGE]) {
        for line in bits(self.dirty & lines_of(piece)) {
            let range = line_range(line);
            let flushed = self.flushed & 1 << line != 0;
            let (from, to) = (range.start.max(piece.start), range.end.min(piece.start + piece.len));
            let new = &bytes[from - piece.start..to - piece.start];
            let overwrites = || {
                (from / WORD..to.div_ceil(WORD)).any(|word| {
                    let word = word * WORD..(word + 1) * WORD;
                    let part = word.start.max(from)..word.end.min(to);
                    page[word.clone()] != durable[word] && page[part.clone()] != new[part.start - from..part.end - from]
                })
            };
            if flushed || overwrites() {
                if self.versions.iter().filter(|v| v.line == line).count() == MAX_VERSIONS {
                    // Of those on their way only the last counts, so another one can always go.
                    let last_flushed = self.versions.iter().rposition(|v| v.line == line && v.flushed);
                    let oldest = self
                        .versions
                        .iter()
                        .enumerate()
                        .position(|(i, v)| v.line == line && (flushed || Some(i) != last_flushed));
                    self.versions
                        .remove(oldest.expect("more than one version of this line"));
                }
                let mut version = Version {
                    line,
                    flushed,
                    bytes: [0; LINE],
                };
                version.bytes.copy_from_slice(&page[range]);
                self.versions.push(version);
                debug_assert!(
                    self.versions.iter().filter(|v| v.line == line).count() <= MAX_VERSIONS,
                    "few older contents are kept of a line"
                );
            }
        }
    }

    /// After a fence that made the lines `arrived` durable with their present content, and the others with what of them
    /// was flushed last: forgets what was older than that.
    fn forget_before_fence(&mut self, arrived: u64) {
        if self.versions.is_empty() {
            return;
        }
        let mut obsolete = arrived;
        // From the newest back: once a flushed version is met, it and all older ones of its line are history.
        for i in (0..self.versions.len()).rev() {
            let line = self.versions[i].line;
            if self.versions[i].flushed {
                obsolete |= 1 << line;
            }
            if obsolete & 1 << line != 0 {
                self.versions.remove(i);
            }
        }
    }
}

fn line_range(line: u32) -> std::ops::Range<usize> {
    line as usize * LINE..(line as usize + 1) * LINE
}

/// Lines of its page that a piece touches.
fn lines_of(piece: Piece) -> u64 {
    let first = piece.start / LINE;
    let last = (piece.start + piece.len - 1) / LINE;
    debug_assert!(piece.len > 0 && last < PAGE / LINE, "{piece:?} lies in its page");
    (u64::MAX >> (63 - (last - first))) << first
}

fn bits(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (lowest < 64).then_some(lowest)
    })
}
