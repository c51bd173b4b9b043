//! The online check of a region, handed out in pages.

use crate::region_service::RegionService;
use parking_lot::Mutex;
use polvo_format::{RegionId, SessionId};
use polvo_proto::{CheckFacts, FACTS_PAGE, FsError, InodeFact, NameFact};
use std::collections::VecDeque;

/// Checks kept for their askers at a time.
const CHECKS_MAX: usize = 16;
/// Findings that are told; a region with more is beyond listing.
const FINDINGS_MAX: usize = 200;
/// Longest finding, in bytes.
const FINDING_LEN_MAX: usize = 200;

/// Checks under way: facts gathered once, not all handed out yet.
#[derive(Default)]
pub(crate) struct CheckPages {
    /// What is left of each; its `next` is the page that comes next.
    kept: Mutex<VecDeque<(SessionId, CheckFacts)>>,
}

pub(crate) fn facts(service: &RegionService) -> CheckFacts {
    let report = service.enter(|region| region.check(&mut |_, _| {}));
    let all = report.findings.len();
    let mut findings: Vec<String> = report
        .findings
        .into_iter()
        .take(FINDINGS_MAX)
        .map(|finding| {
            let mut text = match finding.ino {
                Some(ino) => format!("inode {ino:?}: {}", finding.what),
                None => finding.what,
            };
            if text.len() > FINDING_LEN_MAX {
                let end = (0..=FINDING_LEN_MAX)
                    .rev()
                    .find(|i| text.is_char_boundary(*i))
                    .unwrap_or(0);
                text.truncate(end);
            }
            text
        })
        .collect();
    debug_assert!(
        findings.iter().all(|text| text.len() <= FINDING_LEN_MAX),
        "findings are cut"
    );
    if all > FINDINGS_MAX {
        findings.push(format!("{} more findings", all - FINDINGS_MAX));
    }
    let inode = |(inode, kind, nlink)| InodeFact { inode, kind, nlink };
    let name = |(dir, target, kind)| NameFact { dir, target, kind };
    CheckFacts {
        region: service.id,
        findings,
        inodes: report.inodes.into_iter().map(inode).collect(),
        names: report.names.into_iter().map(name).collect(),
        next: None,
    }
}

impl CheckPages {
    /// One page; page 0 runs the check (with the region's lock held: others wait).
    pub fn page(&self, session: SessionId, service: &RegionService, page: u64) -> Result<CheckFacts, FsError> {
        let mut rest = match page {
            0 => facts(service),
            _ => self.take(session, service.id, page).ok_or_else(|| {
                FsError::Invalid("this check is over or was put aside for others; ask for page 0 again".into())
            })?,
        };
        // from the end: what remains need not move
        let take_inodes = rest.inodes.len().min(FACTS_PAGE);
        let inodes = rest.inodes.split_off(rest.inodes.len() - take_inodes);
        let take_names = rest.names.len().min(FACTS_PAGE - take_inodes);
        let names = rest.names.split_off(rest.names.len() - take_names);
        assert!(inodes.len() + names.len() <= FACTS_PAGE, "a page has its limit");
        let findings = std::mem::take(&mut rest.findings);
        debug_assert!(page == 0 || findings.is_empty(), "findings are told once");
        let more = !rest.inodes.is_empty() || !rest.names.is_empty();
        let next = more.then_some(page + 1); // no overflow: pages other than the first are ones that we have named
        if more {
            rest.next = next;
            let mut kept = self.kept.lock();
            if kept.len() == CHECKS_MAX {
                kept.pop_front();
            }
            kept.push_back((session, rest));
            assert!(kept.len() <= CHECKS_MAX, "the oldest check makes room");
        }
        Ok(CheckFacts {
            region: service.id,
            findings,
            inodes,
            names,
            next,
        })
    }

    fn take(&self, session: SessionId, region: RegionId, page: u64) -> Option<CheckFacts> {
        let mut kept = self.kept.lock();
        let at = kept
            .iter()
            .position(|(s, facts)| *s == session && facts.region == region && facts.next == Some(page))?;
        kept.remove(at).map(|(_, facts)| facts)
    }

    /// The session has ended.
    pub fn forget(&self, session: SessionId) {
        self.kept.lock().retain(|(s, _)| *s != session);
    }
}
