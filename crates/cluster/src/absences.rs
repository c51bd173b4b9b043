//! Nodes that cannot be reached, as all threads of a session know them.

use parking_lot::Mutex;
use polvo_format::NodeId;
use polvo_proto::FsError;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// After this time somebody tries a node again that nobody waits for any more; others fail at once meanwhile.
const PROBE_EVERY: Duration = Duration::from_millis(250);

struct Absence {
    since: Instant,
    /// Nobody looks for the node before, unless ready to wait for it.
    probe_at: Instant,
    why: FsError,
}

/// Nodes that cannot be reached, from the first attempt that failed to the first that succeeds.
#[derive(Default)]
pub(crate) struct Absences {
    away: Mutex<BTreeMap<NodeId, Absence>>,
}

impl Absences {
    /// Whether to try to reach a node: yes when it is not known to be away, or has been for less than `patience`. After
    /// that one caller may try now and then (`limit` bounds the attempt), and the others fail at once.
    ///
    /// # Errors
    /// Why the node could not be reached the last time.
    pub fn may_try(&self, node: NodeId, patience: Duration, limit: Duration) -> Result<(), FsError> {
        let mut away = self.away.lock();
        let Some(absence) = away.get_mut(&node) else {
            return Ok(());
        };
        let now = Instant::now();
        if now.duration_since(absence.since) < patience {
            return Ok(());
        }
        if now < absence.probe_at {
            return Err(absence.why.clone());
        }
        debug_assert!(absence.since <= now, "away since some time before");
        absence.probe_at = now + limit + PROBE_EVERY;
        Ok(())
    }

    /// The node could not be reached; returns since when.
    pub fn failed(&self, node: NodeId, why: &FsError) -> Instant {
        let now = Instant::now();
        let mut away = self.away.lock();
        let absence = away.entry(node).or_insert_with(|| {
            tracing::debug!(%node, %why, "away");
            Absence {
                since: now,
                probe_at: now,
                why: why.clone(),
            }
        });
        absence.probe_at = now + PROBE_EVERY;
        absence.why = why.clone();
        debug_assert!(
            absence.since <= now && absence.probe_at > now,
            "away since then, and to be tried later"
        );
        absence.since
    }

    /// The node has been reached.
    pub fn back(&self, node: NodeId) {
        if let Some(absence) = self.away.lock().remove(&node) {
            tracing::debug!(%node, after = ?absence.since.elapsed(), "back");
        }
    }

    /// True from the first attempt that failed to the next that succeeds.
    pub fn is_away(&self, node: NodeId) -> bool {
        self.away.lock().contains_key(&node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);
    const PATIENCE: Duration = Duration::from_secs(10);
    const LIMIT: Duration = Duration::from_secs(2);

    fn gone() -> FsError {
        FsError::Unreachable {
            node: NODE.0,
            why: "gone".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_tries_while_patience_lasts_and_then_one_at_a_time() {
        let absences = Absences::default();
        assert!(
            absences.may_try(NODE, Duration::ZERO, LIMIT).is_ok(),
            "nothing is known"
        );
        let since = absences.failed(NODE, &gone());
        assert!(absences.is_away(NODE) && !absences.is_away(NodeId(1)));
        tokio::time::advance(PATIENCE - PROBE_EVERY).await;
        assert_eq!(absences.failed(NODE, &gone()), since, "away since the first failure");
        assert!(absences.may_try(NODE, PATIENCE, LIMIT).is_ok());
        assert_eq!(
            absences.may_try(NODE, Duration::ZERO, LIMIT),
            Err(gone()),
            "not ready to wait"
        );
        tokio::time::advance(PROBE_EVERY).await;
        assert!(absences.may_try(NODE, PATIENCE, LIMIT).is_ok(), "the first tries again");
        assert_eq!(
            absences.may_try(NODE, PATIENCE, LIMIT),
            Err(gone()),
            "the second leaves it to the first"
        );
        tokio::time::advance(LIMIT + PROBE_EVERY).await;
        assert!(
            absences.may_try(NODE, PATIENCE, LIMIT).is_ok(),
            "the first never came back"
        );
        absences.back(NODE);
        assert!(!absences.is_away(NODE) && absences.may_try(NODE, Duration::ZERO, LIMIT).is_ok());
        assert_ne!(absences.failed(NODE, &gone()), since, "another absence");
    }
}
