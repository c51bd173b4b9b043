//! What a redo record consists of: bytes and where in the region they go, one after the other in one buffer, which is used
//! again for the next record.

/// Writes to a region, in order.
#[derive(Default)]
pub(crate) struct Writes {
    bytes: Vec<u8>,
    /// region offset, and where in `bytes` the write ends
    places: Vec<(u64, usize)>,
}

impl Writes {
    /// Just one.
    pub fn one(offset: u64, bytes: &[u8]) -> Writes {
        let mut writes = Writes::default();
        writes.push(offset, bytes);
        writes
    }

    /// None any more.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    /// One more.
    pub fn push(&mut self, offset: u64, bytes: &[u8]) {
        debug_assert_eq!(
            self.places.last().map_or(0, |place| place.1),
            self.bytes.len(),
            "a write begins where the one before ends"
        );
        self.bytes.extend_from_slice(bytes);
        self.places.push((offset, self.bytes.len()));
    }

    /// Region offset and bytes of each.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &[u8])> + Clone + '_ {
        (0..self.places.len()).map(|n| {
            let start = n.checked_sub(1).map_or(0, |before| self.places[before].1);
            let (offset, end) = self.places[n];
            debug_assert!(start <= end && end <= self.bytes.len(), "writes follow each other");
            (offset, &self.bytes[start..end])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_out_as_they_went_in() {
        let mut writes = Writes::one(7, b"gone");
        writes.clear();
        for (offset, bytes) in [(64, &b"abc"[..]), (0, b""), (8, b"defgh")] {
            writes.push(offset, bytes);
        }
        let all: Vec<_> = writes.iter().collect();
        assert_eq!(all, [(64, &b"abc"[..]), (0, b""), (8, b"defgh")]);
        assert_eq!(writes.iter().next_back(), Some((8, &b"defgh"[..])));
    }
}
