//! Waiting for a node that is silent: only for as long as no other has taken its place.

use super::Links;
use crate::{Timeouts, join_all};
use polvo_format::{NodeId, RegionId};
use polvo_proto::{Cred, FsError, ask};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;

/// The primary of a region with copies is silent: after so long other nodes are asked whether one of them serves it.
const SILENCE: Duration = Duration::from_millis(300);
/// Who waits for room that is held back asks again so often.
const ROOM_POLL: Duration = Duration::from_millis(20);

impl Links {
    /// Waits until one of these regions is served by another node than now.
    pub async fn moved(&self, regions: &[RegionId]) {
        self.context.map.moved(regions).await;
    }

    /// What comes of the primary of a region with copies. While nothing does, the other nodes are asked whether the region is served
    /// elsewhere, and also when the primary cannot be reached.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] also when it has moved.
    pub(super) async fn unless_it_moves<T>(
        &self,
        region: RegionId,
        node: NodeId,
        answer: impl Future<Output = Result<T, FsError>>,
    ) -> Result<T, FsError> {
        let mut answer = pin!(answer);
        loop {
            if let Ok(answer) = tokio::time::timeout(SILENCE, answer.as_mut()).await {
                if matches!(answer, Err(FsError::Unreachable { .. })) {
                    self.ask_around(node).await;
                }
                return answer;
            }
            self.ask_around(node).await;
            if self.primary(region)? != node {
                // what may still be on its way there is not to take effect behind what comes next
                self.context.give_up(node);
                let why = "another node serves the region now".into();
                return Err(FsError::Unreachable { node: node.0, why });
            }
        }
    }

    /// What comes of a node, which is waited for only while it is the primary of any region, as far as the others know.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] also when it is silent and serves nothing any more.
    pub async fn while_it_serves<T>(
        &self,
        node: NodeId,
        answer: impl Future<Output = Result<T, FsError>>,
    ) -> Result<T, FsError> {
        let mut answer = pin!(answer);
        loop {
            if let Ok(answer) = tokio::time::timeout(SILENCE, answer.as_mut()).await {
                return answer;
            }
            let map = self.context.map.get();
            if !map.is_replicated() {
                return answer.await; // nobody can take its place
            }
            self.ask_around(node).await;
            let map = self.context.map.get();
            if !map.serves(node) {
                let why = "it is silent, and others serve all regions".into();
                return Err(FsError::Unreachable { node: node.0, why });
            }
        }
    }

    /// Asks the nodes other than that one for their maps: others may have taken its place.
    pub async fn ask_around(&self, silent: NodeId) {
        let map = self.context.map.get();
        let others = map.nodes.iter().map(|info| info.id).filter(|id| *id != silent);
        join_all(others.map(|other| async move {
            let asked = self.call_node_at_once(other, Cred::Kernel, ask::Map);
            if let Ok(Ok(map)) = tokio::time::timeout(SILENCE, asked).await {
                self.context.map.offer(map);
            }
        }))
        .await;
    }

    /// A region's primary is away: waits a moment, unless that has been so for longer than a copy needs to take its place, and
    /// than this session waits.
    pub async fn may_move(&self, since: &mut Option<Instant>) -> bool {
        let patience = match self.hasty.get() {
            true => Duration::ZERO,
            false => self.patience().max(Timeouts::SUCCESSION),
        };
        let waits = since.get_or_insert_with(Instant::now).elapsed() < patience;
        if waits {
            tokio::time::sleep(ROOM_POLL).await;
        }
        waits
    }

    /// There is no room but for what a node holds back ([`FsError::HeldBack`]), which is no longer than a lease: waits a moment, unless that
    /// has been so (`since`; none: not yet) for longer, or this session waits for nobody. Then false, at once.
    pub async fn room_may_come(&self, since: &mut Option<Instant>) -> bool {
        let patience = match self.patience() {
            Duration::ZERO => Duration::ZERO,
            patience => patience.max(self.context.timeouts.lease + Timeouts::ASIDE),
        };
        let waits = since.get_or_insert_with(Instant::now).elapsed() < patience;
        if waits {
            tokio::time::sleep(ROOM_POLL).await;
        }
        waits
    }
}
