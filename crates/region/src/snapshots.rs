//! The snapshots under way in a region ([`crate::Snapshot`]), as whoever frees pages has to know of them.

use std::collections::BTreeMap;

pub(crate) struct UnderWay {
    pub slot: u64,
    /// Behind the last byte that it shows, in the file.
    pub end: u64,
    pub torn: bool,
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

    /// Bytes were stored in place, from offset `at` of the file on.
    pub fn filled(&mut self, slot: u64, at: u64) {
        for shown in self.under_way.values_mut().filter(|s| s.slot == slot && s.end > at) {
            shown.torn = true;
        }
    }
}
