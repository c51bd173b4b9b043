//! Who has a file open for writing, and which one of them may map it shared and writable.
//!
//! Pages that a session has mapped do not follow what others write, and go back to the file whole. So one session at a time
//! has the right to map a file so: it is given to one that is alone in writing when it asks, and stays until that session
//! has the file open for writing no longer. Others that come to write meanwhile do so without it.

use polvo_format::SessionId;
use polvo_proto::MapClaim;
use std::collections::BTreeMap;

/// The sessions that have one file open for writing.
#[derive(Default)]
pub(crate) struct Writers {
    /// With the number of the last request by which each has said so.
    numbers: BTreeMap<SessionId, u64>,
    /// Who has the right; one of those above.
    mapper: Option<SessionId>,
}

impl Writers {
    /// A session has the file open for writing. Returns whether it has the right to map it.
    pub fn note(&mut self, session: SessionId, claim: MapClaim, number: u64) -> bool {
        let known = self.numbers.entry(session).or_insert(number);
        *known = number.max(*known);
        let is_alone = self.numbers.len() == 1;
        if self.mapper.is_none() && (claim == MapClaim::Still || claim == MapClaim::IfAlone && is_alone) {
            self.mapper = Some(session);
        }
        debug_assert!(self.mapper.is_none_or(|mapper| self.numbers.contains_key(&mapper)));
        self.mapper == Some(session)
    }

    /// A session has it open for writing no longer, unless it has said otherwise after that number. True when nobody has.
    pub fn end(&mut self, session: SessionId, number: u64) -> bool {
        if self.numbers.get(&session).is_some_and(|known| *known <= number) {
            self.numbers.remove(&session);
            self.mapper = self.mapper.filter(|mapper| *mapper != session);
        }
        debug_assert!(self.mapper.is_none_or(|mapper| self.numbers.contains_key(&mapper)));
        self.numbers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MapClaim::{IfAlone, No, Still};

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    #[test]
    fn one_session_at_a_time_may_map() {
        let mut writers = Writers::default();
        assert!(writers.note(A, IfAlone, 1));
        assert!(!writers.note(B, IfAlone, 1));
        assert!(!writers.note(B, Still, 2));
        assert!(writers.note(A, No, 2), "it has it already");
        assert!(!writers.end(A, 2));
        assert!(writers.note(B, IfAlone, 3));
        assert!(!writers.note(A, IfAlone, 3));
        assert!(!writers.end(A, 3));
        assert!(writers.end(B, 3));
    }

    #[test]
    fn who_only_writes_is_in_the_way_and_does_not_take_the_right() {
        let mut writers = Writers::default();
        assert!(!writers.note(A, No, 1));
        assert!(!writers.note(B, IfAlone, 1));
        assert!(!writers.note(A, IfAlone, 2));
        assert!(!writers.end(B, 1));
        assert!(writers.note(A, IfAlone, 3));
    }

    #[test]
    fn the_right_is_claimed_back_although_others_write() {
        let mut writers = Writers::default();
        assert!(!writers.note(B, No, 7));
        assert!(writers.note(A, Still, 4));
        assert!(!writers.note(B, Still, 8), "somebody was quicker");
    }

    #[test]
    fn an_end_that_comes_late_ends_nothing() {
        let mut writers = Writers::default();
        assert!(writers.note(A, IfAlone, 2));
        assert!(!writers.end(A, 1));
        assert!(!writers.end(B, 9), "it never wrote");
        assert!(writers.note(A, No, 3));
        assert!(writers.end(A, 3));
        assert!(writers.end(A, 3));
    }
}
