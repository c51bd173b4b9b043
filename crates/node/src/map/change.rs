//! Changes of the map, and reads of it that nothing overtakes: attempts against the voters, until one comes to its end.

use crate::node::Node;
use polvo_cluster::{Links, Timeouts, join_all};
use polvo_consensus::Voters;
use polvo_consensus::register::{Answer, Ask, Attempt, Ballot, Progress};
use polvo_format::{Epoch, NodeId};
use polvo_proto::{ClusterMap, Cred, FsError, MAP_BYTES_MAX, ROUNDS_MAX, ask};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};

/// Longest pause after the first attempt that came to nothing; twice as long after each further one.
const ATTEMPT_PAUSE_MIN: Duration = Duration::from_millis(4);
/// Longest pause between two attempts.
const ATTEMPT_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Who wants the map read or changed, and what it knows of the register.
struct Proposer<'a> {
    node: &'a Arc<Node>,
    links: &'a Rc<Links>,
    /// A map that was chosen; what is found is this one or a later one.
    chosen: ClusterMap,
    /// Who votes, as far as is known.
    voters: Voters,
    /// The highest ballot of others.
    above: Ballot,
    deadline: Instant,
}

/// What an attempt has come to.
enum End {
    /// This is the map; changed by this attempt?
    Chosen { map: ClusterMap, changed: bool },
    /// Something was learnt by which the next attempt goes.
    Again,
    /// Somebody else is at it.
    Outbid,
    /// Too few have answered; these have not, and why.
    Silent(BTreeMap<NodeId, FsError>),
}

impl Node {
    /// Changes the cluster map: `change` makes the next one from the one that is found, and the epoch is raised by one here. `None`:
    /// nothing is to be changed; then this is a read, of a map that was the newest one at some moment since it was called. Returns the
    /// chosen map, which this node then goes by, and tells the others.
    ///
    /// `change` is called anew for each attempt. One of which it is not known how it ended may have taken effect, and is found by the
    /// next one then: `change` has to see that what it wants is there already. Voters change in two steps of their own
    /// ([`polvo_cluster::next_voters`]).
    ///
    /// Runs on the current `LocalSet`; takes at most twice [`Timeouts::MAP_CHANGE`], and one pause: attempts of one node take turns.
    ///
    /// # Errors
    /// EIO when no majority of the voters has answered in time, with those that have not, or others were always faster: the change may
    /// take effect all the same; and when they have lost a map that was chosen. EINVAL for a next map that makes no sense or takes more
    /// than [`MAP_BYTES_MAX`]; ENOSPC when this node's pool has no room to keep its attempts.
    pub async fn change_map(
        self: &Arc<Self>,
        links: &Rc<Links>,
        mut change: impl FnMut(&ClusterMap) -> Option<ClusterMap>,
    ) -> Result<Arc<ClusterMap>, FsError> {
        // attempts of one node would only outbid each other
        let turn = timeout(Timeouts::MAP_CHANGE, self.changing_map.lock()).await;
        let _turn = turn.map_err(|_| outpaced())?;
        let by_connections = self.map();
        let kept = self.register.known();
        let known = kept.filter(|kept| kept.epoch >= by_connections.epoch);
        let known = known.unwrap_or_else(|| (*by_connections).clone());
        let mut proposer = Proposer {
            node: self,
            links,
            voters: known.voters.clone(),
            chosen: known,
            above: Ballot::default(),
            deadline: Instant::now() + Timeouts::MAP_CHANGE,
        };
        let mut longest = ATTEMPT_PAUSE_MIN;
        loop {
            // others may vote by now, and those of before not answer
            let newest = self.map();
            if newest.epoch > proposer.chosen.epoch {
                (proposer.voters, proposer.chosen) = (newest.voters.clone(), (*newest).clone());
            }
            let error = match proposer.attempt(&mut change).await? {
                End::Chosen { map, changed } => {
                    if changed {
                        spawn_local(tell_all(self.clone(), links.clone(), map.clone()));
                    }
                    return Ok(Arc::new(map));
                }
                End::Again => outpaced(),
                End::Outbid => {
                    pause(self, longest).await;
                    outpaced()
                }
                End::Silent(silent) => {
                    pause(self, longest).await;
                    no_majority(&silent)
                }
            };
            longest = (longest * 2).min(ATTEMPT_PAUSE_MAX);
            if Instant::now() >= proposer.deadline {
                return Err(error);
            }
        }
    }

    /// May that map come after this one?
    ///
    /// # Errors
    /// EINVAL: why not.
    fn may_follow(&self, before: &ClusterMap, next: &ClusterMap) -> Result<(), FsError> {
        self.is_map_of_ours(next)?;
        let len = next.encoded_len();
        let why = match len <= MAP_BYTES_MAX {
            true if next.voters.may_follow(&before.voters) => return Ok(()),
            true => "its voters are not one step from those before".into(),
            false => format!("it takes {len} bytes, and at most {MAP_BYTES_MAX} fit a message"),
        };
        Err(FsError::Invalid(format!("cluster map: {why}")))
    }
}

/// Some of that time, so that two who met do not meet again.
async fn pause(node: &Node, longest: Duration) {
    let share = (node.next_jitter() >> 40) as u32 % 1024 + 1;
    sleep(longest * share / 1024).await;
}

fn outpaced() -> FsError {
    FsError::Io("the cluster map was being changed by others all the time".into())
}

fn no_majority(silent: &BTreeMap<NodeId, FsError>) -> FsError {
    let each = silent.iter().map(|(node, why)| format!("node {}: {why}", node.0));
    let all: Vec<String> = each.collect();
    FsError::Io(format!(
        "the cluster map cannot be read or changed now, no majority of its voters answers ({})",
        all.join("; ")
    ))
}

impl Proposer<'_> {
    async fn attempt(&mut self, change: &mut impl FnMut(&ClusterMap) -> Option<ClusterMap>) -> Result<End, FsError> {
        let ballot = self.node.next_ballot(self.above)?;
        let (mut attempt, promise) = Attempt::begin(ballot, &self.voters);
        let mut asked = Asked::ask(self, promise, self.voters.all());
        let mut silent = BTreeMap::new();
        let (mut wanted, mut refused) = (None, None);
        loop {
            let (from, answer) = match asked.next().await {
                None => return Ok(End::Silent(silent)),
                Some((from, Ok(answer))) => (from, answer),
                Some((from, Err(error))) => {
                    silent.insert(from, error);
                    continue;
                }
            };
            let next = |found: &ClusterMap| match self.next_map(found, change) {
                Ok(None) => found.clone(),
                Ok(Some(next)) => {
                    wanted = Some(next.clone());
                    next
                }
                Err(error) => {
                    refused = Some(error);
                    found.clone()
                }
            };
            match attempt.answer(from, answer, Some(&self.chosen), next) {
                Progress::Wait => {}
                Progress::Ask(accept, to) => {
                    if let Some(error) = refused {
                        return Err(error); // and nothing is accepted
                    }
                    silent.clear();
                    asked = Asked::ask(self, accept, to);
                }
                Progress::Chosen(map) => {
                    self.node.learn_map(&map);
                    self.voters = map.voters.clone();
                    self.chosen = map.clone();
                    return match wanted {
                        None => Ok(End::Chosen { map, changed: false }),
                        Some(wanted) if wanted == map => Ok(End::Chosen { map, changed: true }),
                        // new voters stand alone only after the value that names them beside the old ones is known to be chosen
                        Some(_) => Ok(End::Again),
                    };
                }
                Progress::Outbid(higher) => {
                    self.above = self.above.max(higher);
                    return Ok(End::Outbid);
                }
                Progress::Moved(voters) => {
                    debug_assert!(voters != self.voters, "others vote");
                    self.voters = voters;
                    return Ok(End::Again);
                }
                Progress::Unknown => {
                    let voters: Vec<String> = self.voters.all().map(|node| node.0.to_string()).collect();
                    return Err(FsError::Io(format!(
                        "a majority of the voters of the cluster map (of nodes {}) knows nothing of it: their pools were made anew",
                        voters.join(", ")
                    )));
                }
            }
        }
    }

    /// What is to come after the map that was found, if anything.
    fn next_map(
        &self,
        found: &ClusterMap,
        change: &mut impl FnMut(&ClusterMap) -> Option<ClusterMap>,
    ) -> Result<Option<ClusterMap>, FsError> {
        if found.epoch < self.chosen.epoch {
            let (known, found) = (self.chosen.epoch.0, found.epoch.0);
            return Err(FsError::Io(format!(
                "the voters of the cluster map know of epoch {found}, and epoch {known} was chosen: their pools are older copies, or were \
                 made anew"
            )));
        }
        let mut before = found.clone();
        if found.epoch == Epoch(1) {
            // until the first change the configuration says where nodes are; what voters keep may be of an earlier one
            before.nodes.clone_from(&self.node.config.map.nodes);
        }
        let Some(mut next) = change(&before) else {
            return Ok(None);
        };
        let epoch = found.epoch.0.checked_add(1);
        next.epoch = Epoch(epoch.ok_or_else(|| FsError::Io("the epochs of the cluster map are used up".into()))?);
        self.node.may_follow(found, &next)?;
        Ok(Some(next))
    }

    /// Answers of other nodes make sense, or count for none.
    fn check(node: &Node, answer: &Answer<ClusterMap>) -> Result<(), FsError> {
        match answer {
            Answer::Promised(_, Some((_, map))) => node.is_map_of_ours(map),
            Answer::Refused(_, higher) if higher.round >= ROUNDS_MAX => {
                Err(FsError::Io(format!("it has promised round {}", higher.round)))
            }
            _ => Ok(()),
        }
    }
}

type VoterAnswer = Result<Answer<ClusterMap>, FsError>;

/// Voters that were asked the same at the same time. What nobody waits for any more is asked all the same.
struct Asked {
    /// This node's own answer, if it was asked and that was not taken yet.
    own: Option<(NodeId, VoterAnswer)>,
    others: JoinSet<(NodeId, VoterAnswer)>,
}

impl Asked {
    fn ask(proposer: &Proposer<'_>, ask: Ask<ClusterMap>, of: impl IntoIterator<Item = NodeId>) -> Asked {
        let limit = proposer.deadline.saturating_duration_since(Instant::now());
        let limit = limit.min(Timeouts::ASIDE);
        let mut asked = Asked {
            own: None,
            others: JoinSet::new(),
        };
        for voter in of {
            if voter == proposer.node.id() {
                asked.own = Some((voter, proposer.node.vote(ask.clone())));
                continue;
            }
            let (node, links, ask) = (proposer.node.clone(), proposer.links.clone(), ask.clone());
            asked.others.spawn_local(async move {
                let call = links.call_node_at_once(voter, Cred::Kernel, ask::Register(Box::new(ask)));
                let answer = match timeout(limit, call).await {
                    Ok(answer) => answer.and_then(|answer| Proposer::check(&node, &answer).map(|()| *answer)),
                    Err(_) => Err(FsError::Unreachable {
                        node: voter.0,
                        why: format!("nothing came within {limit:?}"),
                    }),
                };
                (voter, answer)
            });
        }
        asked
    }

    /// The next answer; `None`: there are no more.
    async fn next(&mut self) -> Option<(NodeId, VoterAnswer)> {
        if let Some(own) = self.own.take() {
            return Some(own);
        }
        let answered = self.others.join_next().await?;
        Some(answered.expect("a question ends with an answer or an error"))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.others.detach_all();
    }
}

/// Tells all other nodes of a map that was chosen, those that can be reached. Others will hear of it.
async fn tell_all(node: Arc<Node>, links: Rc<Links>, map: ClusterMap) {
    let others = map.nodes.iter().map(|other| other.id).filter(|id| *id != node.id());
    let (links, map) = (&links, &map);
    join_all(others.map(|other| async move {
        let told = links.call_node_at_once(other, Cred::Kernel, ask::NewMap(Box::new(map.clone())));
        if let Ok(Err(error)) = timeout(Timeouts::ASIDE, told).await {
            tracing::debug!(%other, %error, "has not heard of the new cluster map");
        }
    }))
    .await;
}
