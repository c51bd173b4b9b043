//! The snapshots under way in a region ([`crate::Snapshot`]), as whoever frees pages has to know of them.

use std::collections::BTreeMap;

pub(crate) struct UnderWay {
    pub slot: u64,
    /// Behind the last byte that it shows, in the file.
    pub end: u64,
}

/// Snapshots under way.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// How many have begun.
    pub begun: u64,
    pub under_way: BTreeMap<u64, UnderWay>,
}

impl Snapshots {
    /// How many have begun so far: what is freed now may be shown by those.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Whether pages freed when so many had begun are shown by none.
    pub fn let_go(&self, begun: u64) -> bool {
        self.under_way
            .first_key_value()
            .is_none_or(|(oldest, _)| *oldest > begun)
    }

    /// Whether one shows bytes of a file from that offset on.
    pub fn show(&self, slot: u64, from: u64) -> bool {
        self.under_way
            .values()
            .any(|shown| shown.slot == slot && shown.end > from)
    }
}
