//! Where the segments of regions lie, as this thread knows it.

use super::{Links, in_vain};
use crate::Link;
use polvo_format::RegionId;
use polvo_proto::{Cred, FsError, SEGMENTS_PAGE, SegmentMap, SegmentPlace, ask};
use std::rc::Rc;

/// A region's segment map as fetched over one connection, before regions have moved again.
pub(super) struct CachedSegments {
    serial: u64,
    moves: u64,
    map: Rc<SegmentMap>,
}

impl Links {
    /// Segment map of a region (cached; `refresh` fetches all of it anew, keys included), from whoever serves it by then.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] when nobody has for longer than this session waits.
    pub async fn segments(&self, region: RegionId, refresh: bool) -> Result<Rc<SegmentMap>, FsError> {
        let mut away_since = None;
        loop {
            let link = self.to_primary(region).await?;
            if let (false, Some(map)) = (refresh, self.cached_segments(region, &link)) {
                return Ok(map);
            }
            let fetched = self.fetch_segments(region, &link, None).await;
            let error = match fetched {
                Err(error @ (FsError::Unreachable { .. } | FsError::WrongEpoch)) if self.has_copies(region) => error,
                fetched => return fetched,
            };
            self.ask_around(link.node).await;
            if self.primary(region)? == link.node && !self.may_move(&mut away_since).await {
                return Err(in_vain(error, link.node, region));
            }
        }
    }

    /// Takes note of segments that the region's primary has named in some answer, so that they need not be asked for.
    /// Nothing happens while this thread has no map of the region: it will fetch all of it.
    pub fn learn_segments(&self, region: RegionId, places: &[SegmentPlace]) {
        if let Some(cached) = self.segments.borrow_mut().get_mut(&region)
            && places.iter().any(|place| !knows(&cached.map, place))
        {
            merge(Rc::make_mut(&mut cached.map), places);
        }
    }

    /// What is known of a region's segments, if it came over this link.
    pub(crate) fn cached_segments(&self, region: RegionId, link: &Link) -> Option<Rc<SegmentMap>> {
        let cache = self.segments.borrow();
        cache
            .get(&region)
            .filter(|cached| cached.serial == link.serial && cached.moves == self.context.map.moves())
            .map(|cached| cached.map.clone())
    }

    /// Fetches a region's segments: those after `known`, if given, else all.
    pub(crate) async fn fetch_segments(
        &self,
        region: RegionId,
        link: &Rc<Link>,
        known: Option<Rc<SegmentMap>>,
    ) -> Result<Rc<SegmentMap>, FsError> {
        let moves = self.context.map.moves();
        // what was learnt by the way may lie beyond a gap
        let mut from = known.as_ref().map_or(0, |map| contiguous(map));
        let mut map: Option<SegmentMap> = known.map(|known| (*known).clone());
        loop {
            let asked = self.call_node(link.node, Cred::Kernel, ask::Segments { region, from });
            let page = match self.has_copies(region) {
                true => Box::pin(self.unless_it_moves(region, link.node, asked)).await?,
                false => asked.await?,
            };
            let ascending = page.segments.is_sorted_by(|a, b| a.index < b.index)
                && page.segments.first().is_none_or(|first| first.index >= from);
            if page.region != region || page.segment_shift >= 48 || !ascending {
                return Err(FsError::Io(format!(
                    "node {} sent a segment map that makes no sense",
                    link.node.0
                )));
            }
            let full = page.segments.len() >= SEGMENTS_PAGE;
            from = page.segments.last().map_or(from, |last| last.index.saturating_add(1));
            match &mut map {
                Some(map) => merge(map, &page.segments),
                None => map = Some(page),
            }
            if !full {
                break;
            }
        }
        let map = Rc::new(map.expect("the loop fetched at least one page"));
        let cached = CachedSegments {
            serial: link.serial,
            moves,
            map: map.clone(),
        };
        self.segments.borrow_mut().insert(region, cached);
        Ok(map)
    }

    /// Has the map of a region's segments fetched anew before the next one-sided operation there: for who is not to reach
    /// what lies now where a segment was that has gone back to the pool.
    pub fn forget_segments(&self, region: RegionId) {
        self.segments.borrow_mut().remove(&region);
    }
}

/// Number of segments known without a gap from the first on.
fn contiguous(map: &SegmentMap) -> u32 {
    debug_assert!(
        map.segments.is_sorted_by(|a, b| a.index < b.index),
        "in order of their indexes"
    );
    let dense = map.segments.iter().zip(0..).take_while(|(place, n)| place.index == *n);
    dense.count() as u32
}

fn knows(map: &SegmentMap, place: &SegmentPlace) -> bool {
    let at = map.segments.binary_search_by_key(&place.index, |known| known.index);
    at.is_ok_and(|at| map.segments[at] == *place)
}

/// Enters places in a map, in the stead of what it says about the same segments.
fn merge(map: &mut SegmentMap, places: &[SegmentPlace]) {
    for place in places {
        match map.segments.binary_search_by_key(&place.index, |known| known.index) {
            Ok(at) => map.segments[at] = *place,
            Err(at) => map.segments.insert(at, *place),
        }
        debug_assert!(knows(map, place), "what was entered is known");
    }
    debug_assert!(
        map.segments.is_sorted_by(|a, b| a.index < b.index),
        "segments in order of their indexes, each once"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::Epoch;
    use polvo_proto::SegmentClass;

    #[test]
    fn segments_learnt_by_the_way_may_leave_gaps_to_be_asked_for() {
        let place = |index, write_key| SegmentPlace {
            index,
            pool_offset: u64::from(index) << 18,
            class: SegmentClass::Data,
            write_key,
            read_key: 0,
        };
        let mut map = SegmentMap {
            region: RegionId(1),
            epoch: Epoch(1),
            segment_shift: 18,
            read_key: 1,
            node_key: 0,
            checksums: (0, 0),
            gate: (0, 0),
            segments: vec![place(0, 0), place(1, 7)],
        };
        assert_eq!(contiguous(&map), 2);
        assert!(!knows(&map, &place(4, 9)));
        merge(&mut map, &[place(4, 9), place(1, 8)]);
        assert!(knows(&map, &place(4, 9)) && knows(&map, &place(1, 8)));
        assert_eq!(contiguous(&map), 2, "2 and 3 are missing");
        merge(&mut map, &[place(2, 0), place(3, 0)]);
        assert_eq!(contiguous(&map), 5);
    }
}
