//! A node follows the map: asks for it after its start, and when another node names a later epoch; and the replacement of voters
//! that are gone.

use crate::node::Node;
use polvo_cluster::{Links, Timeouts, next_voters};
use polvo_format::NodeId;
use polvo_proto::{ClusterMap, Cred, FsError, ask, reply};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// A node that could not ask a majority for the map after its start tries it again after so long.
const CONFIRM_PAUSE: Duration = Duration::from_secs(5);
/// A voter that was not reached for so long is replaced, where a node is there that does not vote.
const VOTER_AWAY: Duration = Duration::from_secs(60);

impl Node {
    /// Asks a majority of the voters for the map, and goes by it from then on: it is the newest one at some moment since this was
    /// called. Whoever is to serve what another node may have taken over meanwhile waits for it first.
    ///
    /// # Errors
    /// As [`Node::change_map`].
    pub async fn confirm_map(self: &Arc<Self>, links: &Rc<Links>) -> Result<Arc<ClusterMap>, FsError> {
        self.change_map(links, |_| None).await
    }

    /// Asks for the map if one of the nodes has a later one: those whose answers to a renewal of the lease these are.
    pub(crate) async fn follow_map(&self, links: &Rc<Links>, renewed: &[(NodeId, Result<reply::Renewed, FsError>)]) {
        let answered = renewed
            .iter()
            .filter_map(|(node, answer)| Some((node, answer.as_ref().ok()?.epoch)));
        if let Some((node, epoch)) = answered.max_by_key(|(_, epoch)| *epoch)
            && epoch > self.map.epoch()
        {
            let asked = links.call_node_at_once(*node, Cred::Kernel, ask::Map);
            if let Ok(Ok(map)) = timeout(Timeouts::ASIDE, asked).await
                && self.is_map_of_ours(&map).is_ok()
            {
                self.learn_map(&map);
            }
        }
        self.keep_map();
    }

    /// Replaces a voter that is gone, as [`next_voters`] says, in as many steps as it takes.
    ///
    /// # Errors
    /// As [`Node::change_map`].
    pub async fn replace_voter(
        self: &Arc<Self>,
        links: &Rc<Links>,
        alive: impl Fn(NodeId) -> bool,
    ) -> Result<Arc<ClusterMap>, FsError> {
        let step = |map: &ClusterMap| {
            let voters = next_voters(map, &alive)?;
            Some(ClusterMap { voters, ..map.clone() })
        };
        let begun = self.change_map(links, step).await?;
        match begun.voters.is_joint() {
            true => self.change_map(links, step).await,
            false => Ok(begun),
        }
    }
}

/// Asks a majority of the voters for the map, until it has answered once. Alone a node has nobody to ask.
pub(crate) async fn confirm_at_start(node: Arc<Node>, links: Rc<Links>) {
    if node.map().nodes.len() < 2 {
        return;
    }
    while let Err(error) = node.confirm_map(&links).await {
        tracing::debug!(%error, "the cluster map is not confirmed yet");
        sleep(CONFIRM_PAUSE).await;
    }
}

/// When other nodes were reached last, by the renewals of the lease.
#[derive(Clone, Default)]
pub(crate) struct Reached(BTreeMap<NodeId, Seen>);

#[derive(Clone, Copy)]
struct Seen {
    /// or since when somebody looks for it
    last: Instant,
    /// It has answered the last time.
    answered: bool,
}

impl Reached {
    /// Takes note of who has answered.
    pub fn note(&mut self, map: &ClusterMap, renewed: &[(NodeId, Result<reply::Renewed, FsError>)]) {
        let now = Instant::now();
        self.0.retain(|node, _| map.node(*node).is_some());
        for node in map.nodes.iter().map(|node| node.id) {
            let seen = self.0.entry(node).or_insert(Seen {
                last: now,
                answered: false,
            });
            seen.answered = renewed.iter().any(|(other, answer)| *other == node && answer.is_ok());
            if seen.answered {
                seen.last = now;
            }
        }
    }

    /// Whether this node is to replace a voter: the first one of those that vote and are there does, where a voter has been away for
    /// [`VOTER_AWAY`] and somebody can take its place, or a replacement is not finished.
    pub fn must_replace(&self, me: NodeId, map: &ClusterMap) -> bool {
        let there = |node: &NodeId| *node == me || self.0.get(node).is_some_and(|seen| seen.answered);
        map.voters.all().find(there) == Some(me) && next_voters(map, self.alive(me, map)).is_some()
    }

    /// Who is alive, as [`next_voters`] asks: voters are until they have been away for long, others only while they answer.
    pub fn alive<'a>(&'a self, me: NodeId, map: &'a ClusterMap) -> impl Fn(NodeId) -> bool + use<'a> {
        move |node| {
            let is_voter = map.voters.all().any(|voter| voter == node);
            node == me
                || self
                    .0
                    .get(&node)
                    .is_some_and(|seen| seen.answered || is_voter && seen.last.elapsed() < VOTER_AWAY)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_cluster::initial_map;
    use polvo_format::Epoch;
    use polvo_proto::{NodeInfo, RegionSet};
    use std::ops::Range;

    fn map(nodes: u16) -> ClusterMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![],
        };
        initial_map([7; 16], (0..nodes).map(node).collect(), 1, &[RegionSet::default()])
    }

    fn answers(nodes: Range<u16>) -> Vec<(NodeId, Result<reply::Renewed, FsError>)> {
        let renewed = reply::Renewed {
            tick: 1,
            recall: vec![],
            epoch: Epoch(1),
            serves: true,
        };
        nodes.map(|node| (NodeId(node), Ok(renewed.clone()))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_voter_that_is_there_replaces_one_that_has_been_away_for_long() {
        let (map, me) = (map(4), NodeId(1));
        let mut reached = Reached::default();
        let mut after = async |seconds, nodes| {
            sleep(Duration::from_secs(seconds)).await;
            reached.note(&map, &answers(nodes));
            reached.must_replace(me, &map)
        };
        assert!(!after(0, 0..4).await, "all are there");
        assert!(!after(59, 2..4).await, "node 0 is away");
        assert!(!after(2, 0..4).await, "it was there in time");
        assert!(!after(59, 2..4).await);
        assert!(!after(2, 2..3).await, "nobody can take its place");
        assert!(after(0, 2..4).await);
        assert!(!after(0, 0..4).await, "it is back");
    }

    #[tokio::test(start_paused = true)]
    async fn not_the_second_one() {
        let (map, me) = (map(4), NodeId(1));
        let mut reached = Reached::default();
        reached.note(&map, &answers(0..4));
        sleep(Duration::from_secs(61)).await;
        reached.note(&map, &[answers(0..1), answers(3..4)].concat());
        assert!(!reached.must_replace(me, &map), "node 0 does it");
        assert!(next_voters(&map, reached.alive(me, &map)).is_some());
    }
}
