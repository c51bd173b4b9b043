//! Planted misbehaviour: a layer between client and history that lies now and then, so that tests can show that the
//! simulator would notice.

use crate::operation::{Answer, Operation, Outcome};
use crate::rng::Rng;
use polvo_proto::InodeRef;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// One in so many operations of the kind concerned is answered wrongly.
const ONE_IN: u64 = 6;

/// What is done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Plant {
    /// A write is acknowledged and not done.
    LostWrite,
    /// A read answers what an earlier read of the same range saw.
    StaleRead,
    /// A write is done after it was acknowledged, when the client writes next.
    LateWrite,
    /// An append is done twice.
    DoubleAppend,
    /// A name is said to be removed and is not.
    LostUnlink,
    /// A large read is put together of two.
    TornRead,
    /// A mount answers for a token, and has its kernel forget a moment later.
    ToldAfterAnswer,
    /// A kernel is told to believe in attributes for longer than the lease.
    TooLong,
    /// A mount takes an inode that the kernel does not know yet for one that it has forgotten.
    UnknownIsForgotten,
    /// A kernel is told to believe that there is no such name, without a token that says so.
    AbsentBelieved,
    /// A kernel goes on believing in a name that it has renamed to another directory, which nobody gives back later for that.
    RenamedBelieved,
    /// A mount finds that a file has changed since its pages were read, and does not have the kernel drop them.
    OldPagesKept,
    /// A kernel is told to believe in attributes that are newer than pages which it has.
    OldPagesBelieved,
    /// A mount gives a directory back although the kernel still believes in names of it.
    NamesGivenBackEarly,
}

/// The layer, for all clients of a run.
pub struct Planted {
    plant: Option<Plant>,
    rng: RefCell<Rng>,
    reads: RefCell<BTreeMap<(InodeRef, u64, u64), Vec<u8>>>,
    late: RefCell<Option<Operation>>,
}

/// What is to be done instead of an operation.
pub enum Instead {
    /// Do it.
    Nothing,
    /// Answer so, and do not do it.
    Say(Answer),
    /// Do these, and answer what the first does.
    Do(Vec<Operation>),
}

impl Planted {
    /// For a run with that seed; without a plant nothing is changed.
    pub fn new(plant: Option<Plant>, seed: u64) -> Planted {
        Planted {
            plant,
            rng: RefCell::new(Rng::new(seed, 77)),
            reads: RefCell::default(),
            late: RefCell::default(),
        }
    }

    /// Before an operation.
    pub fn before(&self, operation: &Operation) -> Instead {
        let Some(plant) = self.plant else {
            return Instead::Nothing;
        };
        let now = self.rng.borrow_mut().below(ONE_IN) == 0;
        match (plant, operation) {
            (Plant::LostWrite, Operation::Write { .. }) if now => Instead::Say(Answer::Done),
            (Plant::LostUnlink, Operation::Unlink { .. }) if now => Instead::Say(Answer::Done),
            (Plant::DoubleAppend, Operation::Append { .. }) if now => {
                Instead::Do(vec![operation.clone(), operation.clone()])
            }
            (Plant::LateWrite, Operation::Write { .. }) => {
                let earlier = self.late.borrow_mut().take();
                match earlier {
                    Some(late) => Instead::Do(vec![operation.clone(), late]),
                    None if now => {
                        *self.late.borrow_mut() = Some(operation.clone());
                        Instead::Say(Answer::Done)
                    }
                    None => Instead::Nothing,
                }
            }
            _ => Instead::Nothing,
        }
    }

    /// After an operation: what the client hears.
    pub fn after(&self, operation: &Operation, outcome: Outcome) -> Outcome {
        let (Some(plant), Operation::Read { inode, offset, len }, Ok(Answer::Bytes(bytes))) =
            (self.plant, operation, &outcome)
        else {
            return outcome;
        };
        let mut reads = self.reads.borrow_mut();
        let earlier = reads.insert((*inode, *offset, *len), bytes.clone());
        let Some(earlier) = earlier.filter(|earlier| earlier.len() == bytes.len()) else {
            return outcome;
        };
        match plant {
            Plant::StaleRead => Ok(Answer::Bytes(earlier)),
            Plant::TornRead => {
                let half = bytes.len() / 2;
                Ok(Answer::Bytes([&earlier[..half], &bytes[half..]].concat()))
            }
            _ => outcome,
        }
    }
}
