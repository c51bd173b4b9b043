//! The check of a region: everything on the media is read and verified again, and compared with what DRAM says.
//! Local damage becomes findings; names and inodes are listed for the caller to join across regions.

use crate::Finding;
use crate::dram_inode::Body;
use crate::load::Names;
use crate::region::Region;
use crate::survey::{Slot, Survey};
use polvo_format::{FileKind, Ino};
use polvo_proto::{InodeRef, SegmentClass};
use std::collections::BTreeSet;

/// Most findings about space that are spelled out.
const SPACE_FINDINGS_MAX: usize = 100;

/// What recovery puts right, and a power cut leaves.
pub(crate) const STALE: &str = "attributes beside the tail are not what the log says";

/// Result of `check`: local findings, and the cross-region facts for the caller to join.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// local damage
    pub findings: Vec<Finding>,
    /// every inode: kind, nlink, generation
    pub inodes: Vec<(InodeRef, FileKind, u32)>,
    /// every name: (directory, target, kind)
    pub names: Vec<(Ino, InodeRef, FileKind)>,
}

impl Region {
    /// Checks everything of this region on the media. Inodes that a transaction holds at the moment are left out of
    /// the comparison with DRAM.
    pub fn check(&mut self, progress: &mut dyn FnMut(u64, u64)) -> CheckReport {
        self.reap();
        let mut report = CheckReport::default();
        let mut survey = Survey::new(&self.store, Names::Kept);
        let mut about = Vec::new();
        let mut in_use = 0;
        let (cache, locked) = (&mut self.cache, &self.locked);
        let walked = survey.walk(&self.store, progress, &mut |slot, found| {
            let (inode, stale) = match found {
                Slot::InUse { inode, stale, .. } => (inode, stale),
                Slot::Reserved { .. } => {
                    in_use += u64::from(locked.contains(slot) && !locked.is_uncounted(slot));
                    return;
                }
                Slot::Worn | Slot::Damaged(_) => return,
            };
            in_use += u64::from(!locked.is_uncounted(slot));
            report
                .inodes
                .push((inode.inode_ref(), inode.attr.kind, inode.attr.nlink));
            if let Body::Directory(directory) = &inode.body {
                report
                    .names
                    .extend(directory.after(0).map(|(_, d)| (inode.attr.ino, d.target, d.kind)));
            }
            if locked.contains(slot) {
                return;
            }
            let mut found = |what: &str| {
                about.push(Finding {
                    ino: Some(inode.attr.ino),
                    what: what.to_string(),
                });
            };
            if stale {
                found(STALE);
            }
            let differs = cache.known(slot).is_some_and(|known| {
                known.attr != inode.attr
                    || known.tail != inode.tail
                    || known.pages != inode.pages
                    || known.parent != inode.parent
                    || known.xattrs != inode.xattrs
                    || !known.body.is_same(&inode.body)
            });
            if differs {
                found("what is kept in memory is not what the log says");
            }
        });
        if let Err(e) = walked {
            about.push(Finding {
                ino: None,
                what: e.to_string(),
            });
        }
        let damaged = !survey.findings.is_empty();
        report.findings.append(&mut survey.findings);
        report.findings.append(&mut about);
        // where an inode is damaged, what it uses is not known
        if !damaged && self.store.damaged.is_empty() {
            self.check_space(survey, &mut report);
            if in_use != self.inodes {
                report.findings.push(Finding {
                    ino: None,
                    what: format!("{in_use} inodes in use, {} counted", self.inodes),
                });
            }
        }
        report
    }

    /// Compares the space that logs, sessions and quarantine use with what is marked as used.
    fn check_space(&self, mut survey: Survey, report: &mut CheckReport) {
        let mut findings = Vec::new();
        let shift = self.store.segment_shift();
        let pages_in_segment = 1u64 << (shift - 12);
        let mut expect = |run, what: &str| {
            if !survey.space.mark(run) {
                findings.push(format!("{run:?} is {what}, and in use by an inode too"));
            }
        };
        for run in self.store.space.quarantined_runs() {
            expect(run, "in quarantine");
        }
        for (first, pages) in self.sessions.delegated() {
            let mut at = first;
            while at < first + pages {
                let n = (pages_in_segment - at % pages_in_segment).min(first + pages - at);
                expect(self.store.space.page_run(at << 12, n), "delegated to a session");
                at += n;
            }
        }
        for slot in self.locked.reserved_slots() {
            // found reserved on the media or not (cleared a moment ago): in use here
            survey.space.mark(self.store.slot_run(slot));
        }
        for (index, _, class) in self.store.segments() {
            let (found, known) = (survey.space.bitmap(index), self.store.space.bitmap(index));
            let differing: BTreeSet<u32> = (0..known.len())
                .filter(|&n| found.is_used(n) != known.is_used(n))
                .collect();
            for unit in differing {
                let what = match (class, known.is_used(unit)) {
                    (SegmentClass::Inodes, true) => "inode slot is marked as used, but free",
                    (SegmentClass::Inodes, false) => "inode slot is in use, but marked as free",
                    (_, true) => "page is marked as used, but nobody uses it",
                    (_, false) => "page is in use, but marked as free",
                };
                findings.push(format!("segment {index}, unit {unit}: {what}"));
            }
            if class != SegmentClass::Data {
                continue;
            }
            let first = u64::from(index) * pages_in_segment;
            for page in (first..first + pages_in_segment).filter(|p| known.is_used((p - first) as u32)) {
                let (found, known) = (survey.space.live_bytes(page), self.store.space.live_bytes(page));
                if found != known {
                    findings.push(format!(
                        "page +{:#x}: {found} bytes are live, {known} counted",
                        page << 12
                    ));
                }
            }
        }
        if findings.len() > SPACE_FINDINGS_MAX {
            let more = findings.len() - SPACE_FINDINGS_MAX;
            findings.truncate(SPACE_FINDINGS_MAX);
            findings.push(format!("{more} more findings about space"));
        }
        report
            .findings
            .extend(findings.into_iter().map(|what| Finding { ino: None, what }));
    }
}
