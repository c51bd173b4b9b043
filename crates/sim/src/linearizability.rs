//! Is there an order in which the operations of a history, done one after the other, give the answers that were given?
//!
//! The search of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with the memory of Lowe ("Testing for
//! Linearizability", 2017), as in Porcupine: go through the orders depth first; an operation may come next when no other
//! that is still missing had returned before it was invoked; never go on twice from the same set of operations done
//! and the same state. An operation of unknown outcome may come at any place after its invocation, or not at all; it is
//! tried when nothing else fits, and only where it changes something.
//!
//! The effort is bounded: a history that takes more steps is [`Verdict::Undecided`], which callers count.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// What an object does, one operation after the other.
pub trait Model {
    /// The object.
    type State: Clone + Eq + Hash + Debug;
    /// What is asked of it.
    type Op;
    /// What is answered.
    type Answer;

    /// The object in the beginning.
    fn start(&self) -> Self::State;

    /// The state after `op` when it can have been answered so; `None` when it cannot. Without an answer: the state after
    /// `op` has succeeded, `None` when it would not succeed.
    fn step(&self, state: &Self::State, op: &Self::Op, answer: Option<&Self::Answer>) -> Option<Self::State>;
}

/// An operation of a history.
#[derive(Clone, Debug)]
pub struct Event<O, A> {
    /// What was asked.
    pub op: O,
    /// When it was invoked; numbers are unique in a history.
    pub invoked: u64,
    /// When it returned and what was answered; `None`: of unknown outcome.
    pub returned: Option<(u64, A)>,
}

/// What the search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict<S> {
    /// There is such an order.
    Linearizable,
    /// There is none. The longest order that was found up to where nothing fits: places of its operations in the history,
    /// and the state after them.
    Impossible {
        /// Operations that can be explained.
        order: Vec<usize>,
        /// State after them.
        state: S,
    },
    /// The search took more steps than allowed.
    Undecided,
}

/// A set of the history's operations.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Done {
    words: Box<[u64]>,
}

impl Done {
    fn contains(&self, which: usize) -> bool {
        self.words[which / 64] >> (which % 64) & 1 == 1
    }

    fn flip(&mut self, which: usize) {
        self.words[which / 64] ^= 1 << (which % 64);
    }
}

/// An operation that was put next, and what else could have been.
struct Level<S> {
    state: S,
    candidates: Vec<usize>,
    next: usize,
}

/// Searches in at most `steps_max` steps. The events are in order of invocation.
pub fn check<M: Model>(model: &M, events: &[Event<M::Op, M::Answer>], steps_max: u64) -> Verdict<M::State> {
    debug_assert!(events.is_sorted_by_key(|event| event.invoked));
    let mut done = Done {
        words: vec![0; events.len() / 64 + 1].into(),
    };
    let mut missing = events.iter().filter(|event| event.returned.is_some()).count();
    let mut order: Vec<usize> = Vec::new();
    let mut best = (Vec::new(), model.start(), missing);
    let mut seen = HashSet::new();
    let mut levels = vec![Level {
        state: model.start(),
        candidates: candidates(events, &done),
        next: 0,
    }];
    let mut steps = 0;
    while missing > 0 {
        let level = levels.last_mut().expect("popped only below");
        let Some(&which) = level.candidates.get(level.next) else {
            levels.pop();
            let Some(undone) = order.pop() else {
                let (order, state, _) = best;
                return Verdict::Impossible { order, state };
            };
            assert!(done.contains(undone), "what is undone was done");
            done.flip(undone);
            missing += usize::from(events[undone].returned.is_some());
            continue;
        };
        level.next += 1;
        steps += 1;
        if steps > steps_max {
            return Verdict::Undecided;
        }
        let event = &events[which];
        let answer = event.returned.as_ref().map(|(_, answer)| answer);
        let Some(state) = model.step(&level.state, &event.op, answer) else {
            continue;
        };
        if answer.is_none() && state == level.state {
            continue; // the same as never
        }
        assert!(!done.contains(which), "an operation is done once");
        done.flip(which);
        if !seen.insert((done.clone(), state.clone())) {
            done.flip(which);
            continue;
        }
        missing -= usize::from(answer.is_some());
        order.push(which);
        assert!(order.len() == levels.len(), "a level for each operation that was put");
        if missing < best.2 {
            best = (order.clone(), state.clone(), missing);
        }
        let candidates = candidates(events, &done);
        levels.push(Level {
            state,
            candidates,
            next: 0,
        });
    }
    debug_assert!(
        events
            .iter()
            .enumerate()
            .all(|(which, event)| event.returned.is_none() || done.contains(which)),
        "every operation that was answered has its place"
    );
    Verdict::Linearizable
}

/// Operations that may come next: those invoked before the first return that is missing. Those with an answer first.
fn candidates<O, A>(events: &[Event<O, A>], done: &Done) -> Vec<usize> {
    let mut first_return = u64::MAX;
    let (mut answered, mut open) = (Vec::new(), Vec::new());
    for (which, event) in events.iter().enumerate() {
        if event.invoked > first_return {
            break;
        }
        if done.contains(which) {
            continue;
        }
        match &event.returned {
            Some((at, _)) => {
                first_return = first_return.min(*at);
                answered.push(which);
            }
            None => open.push(which),
        }
    }
    // those that came before the first return was known
    answered.retain(|which| events[*which].invoked < first_return);
    open.retain(|which| events[*which].invoked < first_return);
    // whoever returned first most likely came first
    answered.sort_by_key(|which| events[*which].returned.as_ref().map(|(at, _)| *at));
    answered.extend(open);
    answered
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register that is 0 in the beginning.
    struct Register;

    #[derive(Clone, Debug)]
    enum Ask {
        Write(u32),
        Read,
    }

    impl Model for Register {
        type State = u32;
        type Op = Ask;
        type Answer = u32;

        fn start(&self) -> u32 {
            0
        }

        fn step(&self, state: &u32, op: &Ask, answer: Option<&u32>) -> Option<u32> {
            match op {
                Ask::Write(value) => Some(*value),
                Ask::Read => answer.is_none_or(|answer| answer == state).then_some(*state),
            }
        }
    }

    fn write(value: u32, invoked: u64, returned: u64) -> Event<Ask, u32> {
        Event {
            op: Ask::Write(value),
            invoked,
            returned: Some((returned, 0)),
        }
    }

    fn lost(value: u32, invoked: u64) -> Event<Ask, u32> {
        Event {
            op: Ask::Write(value),
            invoked,
            returned: None,
        }
    }

    fn read(value: u32, invoked: u64, returned: u64) -> Event<Ask, u32> {
        Event {
            op: Ask::Read,
            invoked,
            returned: Some((returned, value)),
        }
    }

    fn holds(mut events: Vec<Event<Ask, u32>>) -> bool {
        events.sort_by_key(|event| event.invoked);
        match check(&Register, &events, 100_000) {
            Verdict::Linearizable => true,
            Verdict::Impossible { .. } => false,
            Verdict::Undecided => panic!("so few operations are decided"),
        }
    }

    #[test]
    fn one_after_the_other() {
        assert!(holds(vec![
            write(1, 1, 2),
            read(1, 3, 4),
            write(2, 5, 6),
            read(2, 7, 8)
        ]));
        assert!(
            !holds(vec![write(1, 1, 2), read(0, 3, 4)]),
            "a write that returned is seen"
        );
        assert!(
            !holds(vec![read(1, 1, 2), write(1, 3, 4)]),
            "nothing is seen before it begins"
        );
    }

    #[test]
    fn while_a_write_is_under_way_both_values_may_be_read_but_not_back_again() {
        assert!(holds(vec![write(1, 1, 10), read(0, 2, 3), read(1, 4, 5)]));
        assert!(
            !holds(vec![write(1, 1, 10), read(1, 2, 3), read(0, 4, 5)]),
            "time runs backwards"
        );
        assert!(
            holds(vec![write(1, 1, 10), read(1, 2, 5), read(0, 3, 4)]),
            "those two overlap"
        );
    }

    #[test]
    fn two_writes_at_once_have_one_order_for_all() {
        let writes = [write(1, 1, 10), write(2, 2, 11)];
        let with = |reads: [Event<Ask, u32>; 2]| writes.iter().cloned().chain(reads).collect::<Vec<_>>();
        assert!(holds(with([read(2, 12, 13), read(2, 14, 15)])));
        assert!(holds(with([read(1, 12, 13), read(1, 14, 15)])));
        assert!(!holds(with([read(1, 12, 13), read(2, 14, 15)])));
    }

    #[test]
    fn an_operation_of_unknown_outcome_happens_late_or_never_but_once() {
        assert!(holds(vec![lost(1, 1), read(0, 2, 3)]));
        assert!(holds(vec![lost(1, 1), read(1, 2, 3)]));
        assert!(holds(vec![lost(1, 1), read(0, 2, 3), read(1, 4, 5), read(1, 6, 7)]));
        assert!(!holds(vec![lost(1, 1), read(1, 2, 3), read(0, 4, 5)]));
        assert!(!holds(vec![read(1, 1, 2), lost(1, 3)]), "not before it was invoked");
        let twice = vec![lost(1, 1), read(1, 2, 3), write(2, 4, 5), read(1, 6, 7)];
        assert!(!holds(twice), "it happens once");
    }

    #[test]
    fn what_is_too_hard_is_undecided() {
        let events: Vec<_> = (1..=20).map(|n| write(n, u64::from(n), 100 + u64::from(n))).collect();
        let mut events = events;
        events.push(read(77, 200, 201));
        assert_eq!(check(&Register, &events, 1000), Verdict::Undecided);
    }

    #[test]
    fn a_refusal_names_what_could_be_explained() {
        let events = vec![write(1, 1, 2), write(2, 3, 4), read(1, 5, 6), read(2, 7, 8)];
        let verdict = check(&Register, &events, 1000);
        assert_eq!(
            verdict,
            Verdict::Impossible {
                order: vec![0, 1],
                state: 2
            }
        );
    }
}
