//! Permission bits and extended attributes of one inode. Each change is one entry in the inode's log, so that operations
//! on them are linearizable.

use crate::linearizability::Model;
use crate::operation::Name;
use polvo_proto::{FsError, XattrMode};
use std::collections::BTreeMap;

/// What is asked of an inode's attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are what they are called
pub enum Ask {
    SetMode(u32),
    Mode,
    Set { name: Name, value: u32, mode: XattrMode },
    Get(Name),
    Remove(Name),
    List,
}

/// What is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are what they are called
pub enum Told {
    Done,
    Mode(u32),
    Value(u32),
    Names(Vec<Name>),
    Refused(FsError),
}

/// The attributes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attributes {
    mode: u32,
    values: BTreeMap<Name, u32>,
}

/// One inode, made with these permission bits.
pub struct Inode {
    /// Permission bits.
    pub mode: u32,
}

impl Model for Inode {
    type State = Attributes;
    type Op = Ask;
    type Answer = Told;

    fn start(&self) -> Attributes {
        Attributes {
            mode: self.mode,
            values: BTreeMap::new(),
        }
    }

    fn step(&self, state: &Attributes, op: &Ask, answer: Option<&Told>) -> Option<Attributes> {
        let there = |name: &Name| state.values.contains_key(name);
        let mut after = state.clone();
        let is_so = match (op, answer) {
            (Ask::SetMode(mode), None | Some(Told::Done)) => {
                after.mode = *mode;
                true
            }
            (Ask::Mode, Some(Told::Mode(mode))) => *mode == state.mode,
            (Ask::Set { name, value, mode }, None | Some(Told::Done)) => {
                after.values.insert(*name, *value);
                match mode {
                    XattrMode::Any => true,
                    XattrMode::Create => !there(name),
                    XattrMode::Replace => there(name),
                }
            }
            (Ask::Set { name, mode, .. }, Some(Told::Refused(error))) => match error {
                FsError::Exists => *mode == XattrMode::Create && there(name),
                FsError::NoAttribute => *mode == XattrMode::Replace && !there(name),
                _ => false,
            },
            (Ask::Get(name), Some(Told::Value(value))) => state.values.get(name) == Some(value),
            (Ask::Remove(name), None | Some(Told::Done)) => after.values.remove(name).is_some(),
            (Ask::Get(name) | Ask::Remove(name), Some(Told::Refused(FsError::NoAttribute))) => !there(name),
            (Ask::List, Some(Told::Names(names))) => names.iter().eq(state.values.keys()),
            _ => false,
        };
        is_so.then_some(after)
    }
}
