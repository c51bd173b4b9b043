//! The register in all orders of messages. Proposers add to a history and replace the voters; whatever was chosen, one history
//! must go on from the other.
//!
//! What is asked is never taken away: it may arrive late, when its proposer has moved on, again, or not at all. An answer is taken
//! when it is given, or lost: a proposer does nothing that others see between two answers, so that an answer which comes later
//! is as good as one to a question that comes later.

use polvo_consensus::Voters;
use polvo_consensus::register::*;
use polvo_format::NodeId;
use stateright::{Checker, Model, Property};
use std::collections::BTreeSet;

/// The register's value: who has changed it, and its voters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct History {
    changes: Vec<u8>,
    voters: Voters,
}

impl Value for History {
    fn voters(&self) -> &Voters {
        &self.voters
    }
}

/// What a proposer wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// To add to the history.
    Add,
    /// To have the next voters in the place of those that there are.
    Replace,
}

struct Cluster {
    first: Voters,
    next: Vec<NodeId>,
    /// by proposer: what it wants, and how many attempts it has
    proposers: Vec<(Wish, u64)>,
}

/// What a proposer asks of a voter.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Question {
    proposer: usize,
    of: NodeId,
    ask: Ask<History>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Proposer {
    believed: Voters,
    highest: Ballot,
    attempts: u64,
    attempt: Option<Attempt<History>>,
    chosen: Option<History>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    /// by node
    voters: Vec<Voter<History>>,
    proposers: Vec<Proposer>,
    asked: BTreeSet<Question>,
    /// all that was ever known to be chosen
    chosen: BTreeSet<History>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Action {
    Begin(usize),
    /// a voter answers, and the proposer takes the answer
    Answer(Question),
    /// a voter answers, and the answer is lost
    Lost(Question),
}

fn nodes(ids: impl IntoIterator<Item = u16>) -> Vec<NodeId> {
    ids.into_iter().map(NodeId).collect()
}

impl Cluster {
    fn change(&self, number: usize, history: &History) -> History {
        let mut history = history.clone();
        let voters = match self.proposers[number].0 {
            Wish::Add => {
                history.changes.push(number as u8);
                return history;
            }
            Wish::Replace => history
                .voters
                .finished()
                .or_else(|| history.voters.with_next(self.next.iter().copied())),
        };
        if let Some(voters) = voters {
            history.voters = voters;
            history.changes.push(number as u8);
        }
        history
    }

    fn begin(&self, state: &mut State, number: usize) {
        let proposer = &mut state.proposers[number];
        // proposers are no voters of this model, so that their names differ
        let ballot = proposer.highest.above(NodeId(100 + number as u16));
        proposer.highest = ballot;
        proposer.attempts += 1;
        let (attempt, ask) = Attempt::begin(ballot, &proposer.believed);
        proposer.attempt = Some(attempt);
        let to = proposer.believed.all().collect();
        ask_all(state, number, &ask, to);
    }

    fn take(&self, state: &mut State, number: usize, from: NodeId, answer: Answer<History>) {
        let proposer = &mut state.proposers[number];
        let Some(attempt) = &mut proposer.attempt else { return };
        let change = |history: &History| self.change(number, history);
        match attempt.answer(from, answer, proposer.chosen.as_ref(), change) {
            Progress::Wait => return,
            Progress::Ask(ask, to) => return ask_all(state, number, &ask, to),
            Progress::Chosen(history) => {
                proposer.believed = history.voters.clone();
                proposer.chosen = Some(history.clone());
                state.chosen.insert(history);
            }
            Progress::Outbid(ballot) => proposer.highest = proposer.highest.max(ballot),
            Progress::Moved(voters) => proposer.believed = voters,
            Progress::Unknown => unreachable!("no voter forgets"),
        }
        proposer.attempt = None;
    }
}

fn ask_all(state: &mut State, proposer: usize, ask: &Ask<History>, to: Vec<NodeId>) {
    let question = |of| Question {
        proposer,
        of,
        ask: ask.clone(),
    };
    state.asked.extend(to.into_iter().map(question));
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let first = History {
            changes: Vec::new(),
            voters: self.first.clone(),
        };
        let all: BTreeSet<NodeId> = self.first.all().chain(self.next.iter().copied()).collect();
        let voter = |node: &NodeId| match self.first.all().any(|voter| voter == *node) {
            true => Voter::of_first(first.clone()),
            false => Voter::default(),
        };
        let proposer = Proposer {
            believed: self.first.clone(),
            highest: Ballot::default(),
            attempts: 0,
            attempt: None,
            chosen: None,
        };
        vec![State {
            voters: all.iter().map(voter).collect(),
            proposers: vec![proposer; self.proposers.len()],
            asked: BTreeSet::new(),
            chosen: [first].into(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, (proposer, (_, attempts))) in state.proposers.iter().zip(&self.proposers).enumerate() {
            // whether the one before has ended or was given up
            if proposer.attempts < *attempts {
                actions.push(Action::Begin(number));
            }
        }
        for question in &state.asked {
            actions.push(Action::Answer(question.clone()));
            actions.push(Action::Lost(question.clone()));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Begin(number) => self.begin(&mut next, number),
            Action::Lost(Question { of, ask, .. }) => drop(next.voters[usize::from(of.0)].answer(ask)),
            Action::Answer(Question { proposer, of, ask }) => {
                let answer = next.voters[usize::from(of.0)].answer(ask);
                self.take(&mut next, proposer, of, answer);
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one history", |_: &Cluster, state: &State| {
                let chosen: Vec<&History> = state.chosen.iter().collect();
                chosen.iter().all(|one| {
                    chosen.iter().all(|other| {
                        one == other
                            || one.changes != other.changes
                                && (one.changes.starts_with(&other.changes) || other.changes.starts_with(&one.changes))
                    })
                })
            }),
            Property::sometimes("everybody gets his way", |cluster: &Cluster, state: &State| {
                let all = |history: &History| {
                    (0..cluster.proposers.len()).all(|number| history.changes.contains(&(number as u8)))
                };
                state.chosen.iter().any(all)
            }),
        ]
    }
}

/// States, or the way to where two histories part.
fn check(cluster: Cluster) -> Result<usize, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = cluster.checker().threads(threads).spawn_bfs().join();
    let states = checker.unique_state_count();
    match checker.discovery("one history") {
        Some(path) => Err(format!("{path:?}")),
        None => {
            assert!(
                checker.discovery("everybody gets his way").is_some(),
                "nobody gets anywhere"
            );
            Ok(states)
        }
    }
}

fn passes(cluster: Cluster) {
    let started = std::time::Instant::now();
    let states = check(cluster).expect("one history");
    println!("{states} states, {:.1} s", started.elapsed().as_secs_f64());
}

#[test]
fn two_proposers_make_one_history() {
    passes(Cluster {
        first: Voters::new(nodes(0..3)),
        next: Vec::new(),
        proposers: vec![(Wish::Add, 1), (Wish::Add, 2)],
    });
}

#[test]
fn voters_are_replaced_while_others_change_the_register() {
    passes(Cluster {
        first: Voters::new(nodes(0..1)),
        next: nodes(1..2),
        proposers: vec![(Wish::Replace, 3), (Wish::Add, 2)],
    });
}

#[test]
fn three_voters_are_replaced_by_one() {
    passes(Cluster {
        first: Voters::new(nodes(0..3)),
        next: nodes(3..4),
        proposers: vec![(Wish::Replace, 2), (Wish::Add, 1)],
    });
}

/// Voters and what proposers know of the register, for one order of messages that is written out.
struct Script {
    voters: Vec<Voter<History>>,
    rounds: u64,
}

impl Script {
    /// Asks these voters alone, in order; gives what it comes to in the end.
    fn ask(
        &mut self,
        attempt: &mut Attempt<History>,
        ask: &Ask<History>,
        of: &[u16],
        chosen: Option<&History>,
        change: impl Fn(&History) -> History,
    ) -> Progress<History> {
        let mut progress = Progress::Wait;
        for node in of {
            let answer = self.voters[usize::from(*node)].answer(ask.clone());
            progress = attempt.answer(NodeId(*node), answer, chosen, &change);
        }
        progress
    }

    /// A new attempt, above all before, of which these voters hear the first question and those the second one.
    fn attempt(
        &mut self,
        voters: &Voters,
        (first, second): (&[u16], &[u16]),
        chosen: Option<&History>,
        change: impl Fn(&History) -> History,
    ) -> Progress<History> {
        self.rounds += 1;
        let ballot = Ballot {
            round: self.rounds,
            by: NodeId(100),
        };
        let (mut attempt, ask) = Attempt::begin(ballot, voters);
        match self.ask(&mut attempt, &ask, first, chosen, &change) {
            Progress::Ask(ask, _) => self.ask(&mut attempt, &ask, second, chosen, &change),
            other => other,
        }
    }
}

/// Why a value with both sets of voters has to be known to be chosen: here it is found at one voter of three, and nobody else of
/// them ever hears of it.
#[test]
fn new_voters_do_not_stand_alone_before_the_old_ones_know_of_them() {
    for believed in [false, true] {
        let old = Voters::new(nodes(0..3));
        let joint = old.with_next(nodes([3])).unwrap();
        let alone = joint.finished().unwrap();
        let first = History {
            changes: Vec::new(),
            voters: old.clone(),
        };
        let mut s = Script {
            voters: vec![Voter::of_first(first); 3],
            rounds: 0,
        };
        s.voters.push(Voter::default());
        let to = |change: u8, voters: Option<&Voters>| {
            let voters = voters.cloned();
            move |history: &History| History {
                changes: [&history.changes[..], &[change]].concat(),
                voters: voters.clone().unwrap_or(history.voters.clone()),
            }
        };
        // both sets, which one old voter and the new one accept
        let both = s.attempt(&old, (&[0, 1], &[0, 3]), None, to(1, Some(&joint)));
        assert_eq!(both, Progress::Wait);
        let found = to(1, Some(&joint))(&History {
            changes: Vec::new(),
            voters: old.clone(),
        });
        // somebody finds them there, and has the new one alone accept what comes next
        let known = believed.then_some(&found);
        let moved = s.attempt(&joint, (&[0, 1, 3], &[3]), known, to(2, Some(&alone)));
        assert_eq!(moved, Progress::Wait);
        // the others go on as if nothing had been
        let theirs = s.attempt(&old, (&[1, 2], &[1, 2]), None, to(3, None));
        assert!(matches!(theirs, Progress::Chosen(_)));
        // and who finds the new voter alone?
        let found = s.attempt(&alone, (&[3], &[3]), None, to(4, None));
        match believed {
            true => assert!(matches!(found, Progress::Chosen(_)), "two histories"),
            false => assert_eq!(found, Progress::Moved(joint)),
        }
    }
}

/// Voters that have lost what they knew say so; that nobody takes a value from them is not a panic of who asks.
#[test]
fn voters_that_know_nothing_are_no_register() {
    let voters = Voters::new(nodes(0..3));
    let mut s = Script {
        voters: vec![Voter::default(); 3],
        rounds: 0,
    };
    let found = s.attempt(&voters, (&[0, 1], &[]), None, |history| history.clone());
    assert_eq!(found, Progress::Unknown);
}
