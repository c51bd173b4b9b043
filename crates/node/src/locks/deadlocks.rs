//! Circles of waits for byte ranges that go over several nodes.
//!
//! Each node knows who waits for locks of its own inodes, and for whom. A node where somebody has waited for a while
//! asks all others for theirs, twice. Only what is there both times counts: a wait of the same ticket for the same
//! holder lasted from the first answer to the second question, so all of these waits were there at one moment, between
//! the rounds; a circle of them is a deadlock and no artefact of asking one node after the other. (Chandy, Misra and
//! Haas, "Distributed deadlock detection", 1983, tell the same by probes along the waits; asking everybody is simpler,
//! and waits this long are rare.) Of a circle, the wait that began last is refused, by the node where it waits.
//!
//! Not found: a circle through a node that does not answer (until it does), one through more than some 2000 waits of
//! a node, and one that has a wait for a whole file (`flock`) in it.

use crate::node::Node;
use crate::request::context::RequestContext;
use foldhash::{HashMap, HashSet};
use polvo_cluster::{Links, Timeouts, join_all};
use polvo_proto::{Cred, FsError, LockHolder, LockWait, ask};
use std::cmp::Reverse;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A wait is examined when it is as old as this.
const DETECT_AFTER: Duration = Duration::from_millis(250);
/// Waits that were found to be no deadlock are examined again so often: those through a node that did not answer.
const DETECT_AGAIN_ROUNDS: u32 = 40;

/// Runs until it is dropped. Sleeps while nobody waits.
pub(crate) async fn run(node: Arc<Node>, links: Rc<Links>) {
    loop {
        node.locks.began.notified().await;
        let mut round = 0u32;
        while node.locks.anybody_waits() {
            tokio::time::sleep(DETECT_AFTER).await;
            round += 1;
            if node.locks.take_fresh(DETECT_AFTER) || round.is_multiple_of(DETECT_AGAIN_ROUNDS) {
                detect(&node, &links).await;
            }
        }
    }
}

async fn detect(node: &Arc<Node>, links: &Rc<Links>) {
    let (own, first) = collect(node, links).await;
    if victims(&own, &first).is_empty() {
        return;
    }
    let (own, second) = collect(node, links).await;
    let lasting = both(&first, &second);
    for (waiter, ticket) in victims(&own, &lasting) {
        tracing::debug!(?waiter, ticket, "a wait for a lock would never end");
        node.locks.refuse(waiter, ticket);
    }
}

/// Who waits here, and who waits anywhere. (Ours first: to us, those of others are older than they are, so that the
/// youngest wait of a circle is the youngest in the eyes of its own node.)
async fn collect(node: &Arc<Node>, links: &Rc<Links>) -> (Vec<LockWait>, Vec<LockWait>) {
    let own = node.locks.waits();
    let map = node.map();
    let others = map.nodes.iter().map(|info| info.id).filter(|id| *id != node.id());
    let answers = join_all(others.map(|other| async move {
        links
            .call_node_within(other, Cred::Kernel, ask::LockWaits, Timeouts::ASIDE)
            .await
    }))
    .await;
    let mut all = own.clone();
    all.extend(answers.into_iter().flatten().flatten());
    (own, all)
}

/// What was there both times.
fn both(first: &[LockWait], second: &[LockWait]) -> Vec<LockWait> {
    let before: HashMap<(LockHolder, u64), HashSet<LockHolder>> = first
        .iter()
        .map(|wait| ((wait.waiter, wait.ticket), wait.blockers.iter().copied().collect()))
        .collect();
    let lasting = |wait: &LockWait| {
        let known = before.get(&(wait.waiter, wait.ticket))?;
        let blockers = wait.blockers.iter().copied().filter(|b| known.contains(b)).collect();
        Some(LockWait {
            blockers,
            ..wait.clone()
        })
    };
    second.iter().filter_map(lasting).collect()
}

/// Those of `own` that are the youngest of a circle.
fn victims(own: &[LockWait], all: &[LockWait]) -> Vec<(LockHolder, u64)> {
    let mut by_waiter: HashMap<LockHolder, Vec<&LockWait>> = HashMap::default();
    for wait in all {
        by_waiter.entry(wait.waiter).or_default().push(wait);
    }
    let youth = |wait: &LockWait| (Reverse(wait.age_ms), wait.waiter, wait.ticket);
    own.iter()
        .filter(|wait| {
            circle(wait, &by_waiter).is_some_and(|circle| circle.iter().all(|member| youth(member) <= youth(wait)))
        })
        .map(|wait| (wait.waiter, wait.ticket))
        .collect()
}

/// The waits of a circle that a wait is in, itself left out.
fn circle<'a>(start: &LockWait, by_waiter: &HashMap<LockHolder, Vec<&'a LockWait>>) -> Option<Vec<&'a LockWait>> {
    // the same wait as it is in `by_waiter`, with what is left of its blockers
    let start = by_waiter
        .get(&start.waiter)?
        .iter()
        .find(|wait| wait.ticket == start.ticket)?;
    let mut came_by: HashMap<LockHolder, Option<&'a LockWait>> = HashMap::default();
    let mut to_visit: Vec<LockHolder> = Vec::new();
    for blocker in &start.blockers {
        came_by.insert(*blocker, None);
        to_visit.push(*blocker);
    }
    while let Some(holder) = to_visit.pop() {
        if holder == start.waiter {
            let mut members = Vec::new();
            let mut by = came_by[&holder];
            while let Some(wait) = by {
                members.push(wait);
                by = came_by[&wait.waiter];
            }
            return Some(members);
        }
        for wait in by_waiter.get(&holder).into_iter().flatten() {
            for blocker in &wait.blockers {
                if !came_by.contains_key(blocker) {
                    came_by.insert(*blocker, Some(wait));
                    to_visit.push(*blocker);
                }
            }
        }
    }
    None
}

impl RequestContext<'_> {
    pub fn lock_waits(&self) -> Result<Vec<LockWait>, FsError> {
        self.asking_node()?;
        Ok(self.node.locks.waits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::SessionId;

    fn holder(n: u64) -> LockHolder {
        LockHolder {
            session: SessionId(n),
            owner: 7,
        }
    }

    fn wait(waiter: u64, age_ms: u64, blockers: &[u64]) -> LockWait {
        LockWait {
            waiter: holder(waiter),
            ticket: waiter * 10,
            age_ms,
            blockers: blockers.iter().map(|b| holder(*b)).collect(),
        }
    }

    #[test]
    fn the_youngest_of_a_circle_is_refused_and_nobody_else() {
        let all = [
            wait(1, 900, &[2]),
            wait(2, 800, &[9, 3]),
            wait(3, 700, &[1]),
            wait(4, 100, &[1]),
            wait(5, 50, &[8]),
        ];
        assert_eq!(victims(&all, &all), [(holder(3), 30)]);
        assert!(victims(&all[..2], &all).is_empty(), "it waits elsewhere");
        assert!(victims(&all[..2], &all[..2]).is_empty(), "no circle");
    }

    #[test]
    fn of_equals_one_is_refused() {
        let all = [wait(1, 5, &[2]), wait(2, 5, &[1])];
        assert_eq!(victims(&all, &all), [(holder(2), 20)]);
    }

    #[test]
    fn what_was_not_there_both_times_does_not_count() {
        let first = [wait(1, 900, &[2]), wait(2, 800, &[1])];
        let second = [wait(1, 950, &[2]), wait(2, 850, &[3])];
        assert!(victims(&second, &both(&first, &second)).is_empty());
        let other_ticket = LockWait {
            ticket: 21,
            ..wait(2, 10, &[1])
        };
        let second = [wait(1, 950, &[2]), other_ticket];
        assert!(victims(&second, &both(&first, &second)).is_empty());
    }
}
