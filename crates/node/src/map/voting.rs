//! A node as a voter: what it has promised, accepted and knows to be chosen, kept in its pool.

use crate::error::to_fs;
use crate::node::Node;
use parking_lot::Mutex;
use polvo_consensus::Voters;
use polvo_consensus::register::{Answer, Ask, Ballot, Voter};
use polvo_format::{Epoch, NodeId};
use polvo_proto::{ClusterMap, FsError, KeptMap, ROUNDS_MAX};
use polvo_region::PoolSpace;
use polvo_region::planted::{Planted, planted};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A map that an operator has forced is so many changes above the newest one that is known: others may have made that many.
const EPOCHS_ABOVE: u64 = 1 << 20;
/// And its ballot so many rounds.
const ROUNDS_ABOVE: u64 = 1 << 32;

/// What the node keeps of the map, as it is in its pool.
pub(crate) struct MapRegister {
    /// Else why it cannot be read: the node does not vote then, since it would not know what it has promised.
    kept: Mutex<Result<KeptMap, String>>,
}

impl MapRegister {
    /// Reads what the pool keeps. Where that is nothing, the configured map is the first one, and its voters know it.
    pub fn open(space: &PoolSpace, configured: &ClusterMap, me: NodeId) -> MapRegister {
        let kept = match space.register() {
            Ok(Some(bytes)) => KeptMap::decode(&bytes).map_err(|error| error.to_string()),
            Ok(None) => Ok(KeptMap {
                proposed: 0,
                voter: match configured.voters.all().any(|voter| voter == me) {
                    true => Voter::of_first(configured.clone()),
                    false => Voter::default(),
                },
                known: configured.clone(),
            }),
            Err(error) => Err(error.to_string()),
        };
        let kept = kept.and_then(|kept| match kept.known.cluster == configured.cluster {
            true => Ok(kept),
            false => Err("it is of another cluster".into()),
        });
        if let Err(why) = &kept {
            tracing::error!(%why, "what this node knew of the cluster map cannot be read: it does not vote");
        }
        MapRegister { kept: Mutex::new(kept) }
    }

    /// The newest map that is known to have been chosen, if that can be read.
    pub fn known(&self) -> Option<ClusterMap> {
        self.kept.lock().as_ref().ok().map(|kept| kept.known.clone())
    }
}

/// Changes what is kept, first in the pool.
fn keep(node: &Node, kept: &mut KeptMap, next: KeptMap) -> Result<(), FsError> {
    node.space.keep_register(&next.encode()).map_err(to_fs)?;
    // also where the pool is a file: whoever is answered relies on it
    node.sync()?;
    *kept = next;
    Ok(())
}

fn readable(kept: &mut Result<KeptMap, String>) -> Result<&mut KeptMap, FsError> {
    kept.as_mut().map_err(|why| {
        FsError::Io(format!(
            "what this node knew of the cluster map cannot be read ({why}): it does not vote"
        ))
    })
}

impl Node {
    /// Answers as a voter. On return nothing is forgotten that the answer says.
    ///
    /// # Errors
    /// EINVAL for a ballot or a map that makes no sense, or is of another cluster; ENOSPC or EIO when the answer cannot be kept.
    pub(crate) fn vote(&self, ask: Ask<ClusterMap>) -> Result<Answer<ClusterMap>, FsError> {
        let (ballot, map) = match &ask {
            Ask::Promise(ballot) => (ballot, None),
            Ask::Accept(ballot, map) => (ballot, Some(map)),
        };
        if ballot.round == 0 || ballot.round >= ROUNDS_MAX {
            return Err(FsError::Invalid(format!("round {} of an attempt", ballot.round)));
        }
        map.map_or(Ok(()), |map| self.is_map_of_ours(map))?;
        let mut kept = self.register.kept.lock();
        let kept = readable(&mut kept)?;
        let known = kept.known.epoch.max(self.map.epoch());
        if let Some(map) = map.filter(|map| map.epoch < known) {
            // of voters that an operator has declared dead: no others can have found an older one to go on from
            let (older, known) = (map.epoch.0, known.0);
            return Err(FsError::Invalid(format!(
                "a map of epoch {older}, and epoch {known} was chosen"
            )));
        }
        let mut voter = kept.voter.clone();
        let answer = voter.answer(ask);
        if voter == kept.voter {
            return Ok(answer);
        }
        assert!(
            voter.promised() >= kept.voter.promised(),
            "a voter goes back on no promise"
        );
        let next = KeptMap { voter, ..kept.clone() };
        match planted(Planted::VoterForgets) {
            true => *kept = next,
            false => keep(self, kept, next)?,
        }
        Ok(answer)
    }

    /// Whether this node votes.
    pub(crate) fn votes(&self) -> bool {
        let is_voter = self.map().voters.all().any(|voter| voter == self.id());
        is_voter && self.register.kept.lock().is_ok()
    }

    /// Is this map one of this cluster, by which nodes could go?
    ///
    /// # Errors
    /// EINVAL: what is wrong with it.
    pub(crate) fn is_map_of_ours(&self, map: &ClusterMap) -> Result<(), FsError> {
        map.check()
            .map_err(|why| FsError::Invalid(format!("cluster map: {why}")))?;
        match map.cluster == self.config.map.cluster {
            true => Ok(()),
            false => Err(FsError::Invalid("cluster map: of another cluster".into())),
        }
    }

    /// The ballot of a new attempt of this node, above that one, and above all that it has heard of. No other attempt gets it, also
    /// of later incarnations.
    ///
    /// # Errors
    /// ENOSPC or EIO when it cannot be kept.
    pub(super) fn next_ballot(&self, above: Ballot) -> Result<Ballot, FsError> {
        let mut kept = self.register.kept.lock();
        let kept = readable(&mut kept)?;
        let round = kept.proposed.max(above.round).max(kept.voter.promised().round) + 1;
        if round >= ROUNDS_MAX {
            return Err(FsError::Io(format!(
                "round {round} of attempts to change the cluster map"
            )));
        }
        let next = KeptMap {
            proposed: round,
            ..kept.clone()
        };
        keep(self, kept, next)?;
        Ok(Ballot { round, by: self.id() })
    }

    /// This node alone keeps the map from here on, since a majority of those who vote is gone for good, as an operator says. Gives the map
    /// by which that is so: its epoch and its ballot are above all that they can have accepted since this node has heard of them last.
    ///
    /// # Errors
    /// ENOSPC or EIO when it cannot be kept.
    pub(super) fn vote_alone(&self) -> Result<ClusterMap, FsError> {
        let mut kept = self.register.kept.lock();
        let kept = readable(&mut kept)?;
        let by_connections = self.map();
        let accepted = kept.voter.accepted().map(|(_, map)| map);
        let known = [&kept.known, &*by_connections].into_iter().chain(accepted);
        let newest = known.max_by_key(|map| map.epoch).expect("there are two");
        let (epochs, rounds) = match planted(Planted::ForcedMapNotAbove) {
            true => (1, 1),
            false => (EPOCHS_ABOVE, ROUNDS_ABOVE),
        };
        let round = kept.proposed.max(kept.voter.promised().round) + rounds;
        let epoch = newest.epoch.0.saturating_add(epochs);
        if round >= ROUNDS_MAX {
            return Err(FsError::Io(format!(
                "round {round} of attempts to change the cluster map"
            )));
        }
        let next = ClusterMap {
            epoch: Epoch(epoch),
            voters: Voters::new([self.id()]),
            ..newest.clone()
        };
        let mut voter = Voter::of_first(next.clone());
        voter.answer(Ask::Accept(Ballot { round, by: self.id() }, next.clone()));
        let forced = KeptMap {
            proposed: round,
            voter,
            known: next.clone(),
        };
        keep(self, kept, forced)?;
        self.map.offer(next.clone());
        Ok(next)
    }

    /// Takes a map that is known to have been chosen, if it is newer than what is known here: from now on this node goes by it, also
    /// after a restart (unless its pool has no room for it, or is damaged).
    pub(crate) fn learn_map(&self, map: &ClusterMap) {
        self.map.offer(map.clone());
        let mut kept = self.register.kept.lock();
        let Ok(kept) = kept.as_mut() else { return };
        if map.cluster != kept.known.cluster || map.epoch <= kept.known.epoch {
            return;
        }
        let is_named = map.node(self.id()).is_some();
        if !is_named && !self.has_belonged.load(Relaxed) {
            return; // it was not removed by that, but is to be added yet
        }
        self.has_belonged.fetch_or(is_named, Relaxed);
        let next = KeptMap {
            known: map.clone(),
            ..kept.clone()
        };
        match keep(self, kept, next) {
            Ok(()) => tracing::info!(epoch = map.epoch.0, "a new cluster map"),
            Err(error) => tracing::warn!(%error, epoch = map.epoch.0, "a new cluster map is not kept in the pool"),
        }
    }

    /// Keeps the map that the node goes by, if it came with a connection and is not kept yet.
    pub(super) fn keep_map(&self) {
        let epoch = self.map.epoch();
        let is_newer = |kept: &KeptMap| epoch > kept.known.epoch;
        if self.register.kept.lock().as_ref().is_ok_and(is_newer) {
            let map: Arc<ClusterMap> = self.map();
            self.learn_map(&map);
        }
    }
}
