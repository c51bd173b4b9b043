//! Peers at a listener that have not proved yet who they are: how many there may be, and what is logged of them.
//!
//! Everybody is let in, so that who has nothing to prove cannot keep out who has. When the places are used up the oldest of those
//! goes who come from where most come from; and before them all those from where nobody has ever proved anything.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

/// Handshakes under way at a listener.
pub(crate) const PLACES: usize = 64;
/// Origins remembered for having proved something.
const KNOWN_MAX: usize = 4096;
/// What happens more often is counted, and told with the next line.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// Handshakes under way, by where they come from.
pub(crate) struct Strangers<K, T> {
    tasks: JoinSet<(u64, T)>,
    /// oldest first
    places: VecDeque<Place<K>>,
    next: u64,
    known: HashSet<K>,
}

struct Place<K> {
    number: u64,
    from: K,
    task: AbortHandle,
}

impl<K, T> Default for Strangers<K, T> {
    fn default() -> Self {
        Strangers {
            tasks: JoinSet::new(),
            places: VecDeque::new(),
            next: 0,
            known: HashSet::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, T: Send + 'static> Strangers<K, T> {
    /// Begins a handshake; one of those under way ends if there are too many.
    pub fn begin(&mut self, from: K, handshake: impl Future<Output = T> + Send + 'static) {
        if self.places.len() >= PLACES
            && let Some(place) = self.places.remove(self.least())
        {
            place.task.abort();
        }
        let number = self.next;
        self.next += 1;
        let task = self.tasks.spawn(async move { (number, handshake.await) });
        self.places.push_back(Place { number, from, task });
    }

    /// Which place is given up first.
    fn least(&self) -> usize {
        let mut crowd: HashMap<&K, usize> = HashMap::new();
        for place in &self.places {
            *crowd.entry(&place.from).or_default() += 1;
        }
        let rank = |from: &K| (!self.known.contains(from), crowd[from]);
        // of equal ones the last that `rev` comes by, which is the oldest
        let ranked = self.places.iter().enumerate().rev();
        let least = ranked.max_by_key(|(_, place)| rank(&place.from));
        least.map_or(0, |(at, _)| at)
    }

    /// The next handshake that has ended by itself, and where it came from. Pending while there is none; dropping the future
    /// loses nothing.
    pub async fn next(&mut self) -> Option<Result<(K, T), JoinError>> {
        loop {
            match self.tasks.join_next().await? {
                Ok((number, ended)) => {
                    let at = self.places.iter().position(|place| place.number == number);
                    if let Some(place) = at.and_then(|at| self.places.remove(at)) {
                        return Some(Ok((place.from, ended)));
                    }
                }
                Err(error) if error.is_cancelled() => {}
                Err(error) => {
                    let ended = error.id();
                    self.places.retain(|place| place.task.id() != ended);
                    return Some(Err(error));
                }
            }
        }
    }

    /// Somebody from there has proved who he is.
    pub fn proved(&mut self, from: K) {
        if self.known.len() >= KNOWN_MAX && !self.known.contains(&from) {
            self.known.clear();
        }
        self.known.insert(from);
    }
}

/// Lets one line in a while into the log, and counts the others.
#[derive(Default)]
pub struct Sparing {
    last: Option<Instant>,
    more: u64,
}

impl Sparing {
    /// Whether to log now; how many were not logged since the last time.
    pub fn may_say(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_PAUSE) {
            self.more += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    fn from(strangers: &Strangers<u32, ()>) -> Vec<u32> {
        strangers.places.iter().map(|place| place.from).collect()
    }

    #[tokio::test]
    async fn a_crowd_gives_way_first_and_oldest_first() {
        let mut strangers = Strangers::<u32, ()>::default();
        strangers.begin(7, pending());
        for _ in 0..10 * PLACES {
            strangers.begin(1, pending());
        }
        strangers.begin(8, pending());
        let here = from(&strangers);
        assert_eq!(here.len(), PLACES);
        assert!(here.contains(&7) && here.contains(&8));
        let numbers: Vec<u64> = strangers.places.iter().map(|place| place.number).collect();
        assert!(numbers.is_sorted(), "the oldest of the crowd have gone");
    }

    #[tokio::test]
    async fn who_comes_from_where_somebody_has_proved_himself_stays() {
        let mut strangers = Strangers::<u32, ()>::default();
        strangers.proved(7);
        strangers.begin(7, pending());
        strangers.begin(7, pending());
        for stranger in 100..100 + 10 * PLACES as u32 {
            strangers.begin(stranger, pending());
        }
        assert_eq!(from(&strangers).iter().filter(|from| **from == 7).count(), 2);
    }

    #[tokio::test]
    async fn what_ends_gives_its_place_back_and_what_was_put_out_is_not_heard_of() {
        let mut strangers = Strangers::<u32, u32>::default();
        for n in 0..PLACES as u32 + 1 {
            strangers.begin(1, async move { if n == 0 { pending().await } else { n } });
        }
        for _ in 0..PLACES {
            assert!(matches!(strangers.next().await, Some(Ok((1, n))) if n > 0));
        }
        assert!(strangers.next().await.is_none());
        assert!(strangers.places.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_one_line_in_a_while() {
        let mut sparing = Sparing::default();
        assert_eq!(sparing.may_say(), Some(0));
        for _ in 0..16_000 {
            assert_eq!(sparing.may_say(), None);
        }
        tokio::time::advance(LOG_PAUSE).await;
        assert_eq!(sparing.may_say(), Some(16_000));
    }
}
