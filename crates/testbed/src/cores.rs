//! Threads that keep to a core each.
//!
//! A system may leave two threads that wait for each other on one core though another is idle (virtual machines do: an
//! idle processor that the host has taken away is not offered to who wakes up). Until it moves one of them, after some
//! ten milliseconds, each answer takes as long as the other one polls, and a short measurement shows that and nothing
//! else. So who measures and who serves keep to cores of their own, in what is measured and in its baselines alike.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::OnceLock;

/// Which core, in the order of those that this program may use: of the thread that measures.
pub const MEASURING: usize = 0;
/// Of the first thread that serves it; others follow.
pub const SERVING: usize = 1;

/// Those that this program may use, as of the first question.
fn all() -> &'static CpuSet {
    static ALL: OnceLock<CpuSet> = OnceLock::new();
    ALL.get_or_init(|| {
        // whether polling pays is asked once, by the number of cores: not on a thread that keeps to one
        let _ = polvo_fabric::busy_poll_budget();
        sched_getaffinity(None).unwrap_or_default()
    })
}

/// How many there are.
pub fn cores() -> usize {
    (all().count() as usize).max(1)
}

/// The calling thread keeps to a core until this is dropped.
#[must_use = "when it is dropped, the thread runs where it did before"]
pub struct Kept(Option<CpuSet>);

/// Keeps the calling thread to that core; where there are fewer, it runs anywhere as before.
pub fn keep_to(core: usize) -> Kept {
    let which = (0..CpuSet::MAX_CPU).filter(|cpu| all().is_set(*cpu)).nth(core);
    let kept = which.and_then(|cpu| {
        let before = sched_getaffinity(None).ok()?;
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one).ok()?;
        Some(before)
    });
    Kept(kept)
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_to_its_core_for_a_while() {
        let before = sched_getaffinity(None).unwrap();
        {
            let _kept = keep_to(MEASURING);
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            assert_eq!(cores(), before.count() as usize, "the program still has all of them");
            let _nowhere = keep_to(cores());
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
