//! A register that voters keep together, changed by compare-and-set: CASPaxos (Rystsov: CASPaxos: Replicated State Machines
//! without logs, 2018), with the voters in the value itself.
//!
//! ```text
//! proposer          promise b? -->        <-- promised, accepted (b', v)        a majority of the voters that it believes in:
//!                                                                                v, the newest one, is the value
//!                   accept b, f(v)? -->   <-- accepted                          a majority: f(v) is chosen
//! ```
//!
//! Invariants, of which the model in `tests/register.rs` sees to the first:
//!
//! - of two values that were chosen, one was made from the other, directly or by others in between;
//! - a voter forgets nothing that it has answered; one that has lost its pool is another voter (the caller asks pools, not nodes);
//! - a proposer goes on from its first question to the second only if the voters it asked are those of the value it has found;
//! - a value whose voters differ from those of the one before needs majorities of both;
//! - voters stand alone (after [`Voters::finished`]) only in a value that is made from one which is *known to be chosen* with both
//!   sets in it: one that was merely found may be of a change that has failed, and the old voters know nothing of the new.

use crate::Voters;
use polvo_format::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What the register holds.
pub trait Value: Clone + Eq {
    /// Who keeps it.
    fn voters(&self) -> &Voters;
}

/// An attempt to change the register. No two proposers have the same, and each one's grow; the least one is of no attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Ballot {
    /// Counts.
    pub round: u64,
    /// The proposer.
    pub by: NodeId,
}

impl Ballot {
    /// The next one of a proposer that has seen this one.
    pub fn above(self, by: NodeId) -> Ballot {
        let round = self.round + 1;
        Ballot { round, by }
    }
}

/// What a proposer asks of a voter.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Ask<V> {
    /// To accept nothing of a lower ballot any more, and to say what it has accepted.
    Promise(Ballot),
    /// To accept a value.
    Accept(Ballot, V),
}

/// What a voter answers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Answer<V> {
    /// It has promised, and had accepted this.
    Promised(Ballot, Option<(Ballot, V)>),
    /// It has accepted.
    Accepted(Ballot),
    /// It has promised somebody else not to: the ballot that it was asked with, and the higher one.
    Refused(Ballot, Ballot),
}

/// A voter's state. To be kept durably before an answer is sent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Voter<V> {
    promised: Ballot,
    accepted: Option<(Ballot, V)>,
}

impl<V> Default for Voter<V> {
    /// One that knows nothing.
    fn default() -> Voter<V> {
        Voter {
            promised: Ballot::default(),
            accepted: None,
        }
    }
}

impl<V: Value> Voter<V> {
    /// One of those that the first value names.
    pub fn of_first(value: V) -> Voter<V> {
        Voter {
            promised: Ballot::default(),
            accepted: Some((Ballot::default(), value)),
        }
    }

    /// The highest ballot that it has answered.
    pub fn promised(&self) -> Ballot {
        self.promised
    }

    /// The value that it has accepted, and by which ballot.
    pub fn accepted(&self) -> Option<&(Ballot, V)> {
        self.accepted.as_ref()
    }

    /// Answers, and changes.
    pub fn answer(&mut self, ask: Ask<V>) -> Answer<V> {
        let ballot = match &ask {
            Ask::Promise(ballot) | Ask::Accept(ballot, _) => *ballot,
        };
        if ballot < self.promised {
            return Answer::Refused(ballot, self.promised);
        }
        self.promised = ballot;
        match ask {
            Ask::Promise(_) => Answer::Promised(ballot, self.accepted.clone()),
            Ask::Accept(_, value) => {
                self.accepted = Some((ballot, value));
                Answer::Accepted(ballot)
            }
        }
    }
}

/// One attempt to change the register.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attempt<V> {
    ballot: Ballot,
    voters: Voters,
    phase: Phase<V>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase<V> {
    Promises(BTreeMap<NodeId, Option<(Ballot, V)>>),
    Accepts {
        /// who has to accept beside `voters`
        others: Voters,
        value: V,
        by: BTreeSet<NodeId>,
    },
    Over,
}

/// What an attempt comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress<V> {
    /// More answers are needed.
    Wait,
    /// To be asked of all of these.
    Ask(Ask<V>, Vec<NodeId>),
    /// It is over: this is the register's value, and chosen.
    Chosen(V),
    /// It is over: somebody has a higher ballot. To be tried again, above it.
    Outbid(Ballot),
    /// It is over: others vote. To be tried again with them.
    Moved(Voters),
    /// It is over: a majority of these voters knows no value. Nothing is known of the register then: they have lost it, or were
    /// never those that keep it.
    Unknown,
}

impl<V: Value> Attempt<V> {
    /// Begins, with the voters that the proposer believes in. To be sent to all of them.
    pub fn begin(ballot: Ballot, voters: &Voters) -> (Attempt<V>, Ask<V>) {
        assert!(ballot > Ballot::default(), "the least ballot is of no attempt");
        let attempt = Attempt {
            ballot,
            voters: voters.clone(),
            phase: Phase::Promises(BTreeMap::new()),
        };
        (attempt, Ask::Promise(ballot))
    }

    /// Takes a voter's answer; those to other attempts are passed over. Once the value is known `change` makes the next one from it:
    /// the same where nothing is to be changed, which then is known to be chosen. `chosen`: a value that the proposer knows to have
    /// been chosen.
    ///
    /// Voters change by one step at a time. Where `change` lets new ones stand alone, and the value it was made from is not
    /// `chosen`, that value is chosen instead: to be tried again.
    pub fn answer(
        &mut self,
        from: NodeId,
        answer: Answer<V>,
        chosen: Option<&V>,
        change: impl FnOnce(&V) -> V,
    ) -> Progress<V> {
        match (answer, &mut self.phase) {
            (Answer::Refused(asked, higher), Phase::Promises(_) | Phase::Accepts { .. }) if asked == self.ballot => {
                self.phase = Phase::Over;
                Progress::Outbid(higher)
            }
            (Answer::Promised(ballot, accepted), Phase::Promises(promises)) if ballot == self.ballot => {
                promises.insert(from, accepted);
                match self.voters.are_majority(|node| promises.contains_key(&node)) {
                    true => self.found(chosen, change),
                    false => Progress::Wait,
                }
            }
            (Answer::Accepted(ballot), Phase::Accepts { others, value, by }) if ballot == self.ballot => {
                by.insert(from);
                let accepted = |node| by.contains(&node);
                if !self.voters.are_majority(accepted) || !others.are_majority(accepted) {
                    return Progress::Wait;
                }
                let value = value.clone();
                self.phase = Phase::Over;
                Progress::Chosen(value)
            }
            _ => Progress::Wait,
        }
    }

    /// A majority has promised: the newest value of theirs is the register's.
    fn found(&mut self, chosen: Option<&V>, change: impl FnOnce(&V) -> V) -> Progress<V> {
        let Phase::Promises(promises) = std::mem::replace(&mut self.phase, Phase::Over) else {
            unreachable!("promises were just counted");
        };
        let newest = promises.into_values().flatten().max_by_key(|(ballot, _)| *ballot);
        // voters that do not know the register, such as those that were to take others' place, are not asked alone by who knows it
        let Some((_, found)) = newest else {
            return Progress::Unknown;
        };
        if *found.voters() != self.voters {
            return Progress::Moved(found.voters().clone());
        }
        let mut value = change(&found);
        let stands_alone = self.voters.finished().as_ref() == Some(value.voters());
        if stands_alone && chosen != Some(&found) {
            value = found;
        }
        debug_assert!(
            *value.voters() == self.voters || stands_alone || value.voters().is_joint(),
            "voters change by one step"
        );
        let others = value.voters().clone();
        let to: BTreeSet<NodeId> = self.voters.all().chain(others.all()).collect();
        self.phase = Phase::Accepts {
            others,
            value: value.clone(),
            by: BTreeSet::new(),
        };
        Progress::Ask(Ask::Accept(self.ballot, value), to.into_iter().collect())
    }
}
