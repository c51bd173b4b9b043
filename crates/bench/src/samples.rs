//! Figures of one thing, measured several times; and how a measurement is timed.

use crate::BenchError;
use std::time::{Duration, Instant};

/// A measurement that is cut short when it has taken so long: file systems differ by orders of magnitude.
const LONG_ENOUGH: Duration = Duration::from_secs(2);

/// Reads the clock after so many operations.
const CLOCK_EVERY: usize = 32;

/// Before each measurement: a server of the one before, still polling for requests, has gone to sleep.
const CALM: Duration = Duration::from_millis(20);

/// The same figure, measured several times.
#[derive(Clone, Debug)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Of at least one figure.
    pub fn new(mut figures: Vec<f64>) -> Samples {
        assert!(!figures.is_empty(), "something was measured");
        assert!(
            figures.iter().all(|figure| figure.is_finite()),
            "a report has no place for {figures:?}"
        );
        figures.sort_by(f64::total_cmp);
        Samples(figures)
    }

    /// Something that is counted, not timed.
    pub fn exact(figure: f64) -> Samples {
        assert!(figure.is_finite(), "a report has no place for {figure}");
        Samples(vec![figure])
    }

    /// Times of operations, nanoseconds, as operations a second.
    pub fn as_rates(&self) -> Samples {
        Samples::new(self.0.iter().map(|ns| 1e9 / ns).collect())
    }

    /// The middle one: what is reported.
    pub fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// The smallest one.
    pub fn low(&self) -> f64 {
        self.0[0]
    }

    /// The largest one.
    pub fn high(&self) -> f64 {
        self.0[self.0.len() - 1]
    }
}

/// Measures several things in turn, `rounds` times: what disturbs the machine for a while disturbs all of them, so that
/// their ratios stay true.
pub fn in_turn<const N: usize>(
    rounds: usize,
    measures: [&mut dyn FnMut() -> Result<f64, BenchError>; N],
) -> Result<[Samples; N], BenchError> {
    let mut measures = measures;
    let samples = each_in_turn(rounds, &mut measures, |measure| Ok([measure()?]))?;
    let samples: Vec<Samples> = samples.into_iter().flatten().collect();
    Ok(samples.try_into().expect("samples of each"))
}

/// The same measurement of several things in turn, `rounds` times; it may give several figures.
pub fn each_in_turn<T, const F: usize>(
    rounds: usize,
    things: &mut [T],
    mut measure: impl FnMut(&mut T) -> Result<[f64; F], BenchError>,
) -> Result<Vec<[Samples; F]>, BenchError> {
    let mut figures: Vec<[Vec<f64>; F]> = things.iter().map(|_| std::array::from_fn(|_| Vec::new())).collect();
    for _ in 0..rounds.max(1) {
        for (thing, figures) in things.iter_mut().zip(&mut figures) {
            std::thread::sleep(CALM);
            for (figures, figure) in figures.iter_mut().zip(measure(thing)?) {
                figures.push(figure);
            }
        }
    }
    Ok(figures.into_iter().map(|figures| figures.map(Samples::new)).collect())
}

/// One thing, `rounds` times.
pub fn repeated(rounds: usize, mut measure: impl FnMut() -> Result<f64, BenchError>) -> Result<Samples, BenchError> {
    let [samples] = in_turn(rounds, [&mut measure])?;
    Ok(samples)
}

/// Counts operations and reads the clock now and then: up to so many, fewer where these take too long.
pub struct Timed {
    start: Instant,
    ops: usize,
    done: usize,
}

impl Timed {
    /// Begins now.
    pub fn new(ops: usize) -> Timed {
        Timed {
            start: Instant::now(),
            ops,
            done: 0,
        }
    }

    /// Operations done so far, all but the one that is under way.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Nanoseconds an operation took; to be asked when the last one is done.
    pub fn ns_per_op(&self) -> f64 {
        self.start.elapsed().as_nanos() as f64 / self.done.max(1) as f64
    }
}

impl Iterator for Timed {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let reads_clock = self.done > 0 && self.done.is_multiple_of(CLOCK_EVERY);
        if self.done == self.ops || (reads_clock && self.start.elapsed() > LONG_ENOUGH) {
            return None;
        }
        assert!(self.done < self.ops, "no more than {} operations", self.ops);
        self.done += 1;
        Some(self.done - 1)
    }
}

/// Nanoseconds an operation takes: of up to `ops`, fewer where these take too long.
pub fn ns_per_op<E>(ops: usize, mut operation: impl FnMut(usize) -> Result<(), E>) -> Result<f64, E> {
    let mut timed = Timed::new(ops);
    timed.by_ref().try_for_each(&mut operation)?;
    Ok(timed.ns_per_op())
}

/// Operations a second.
pub fn rate(took: Duration, ops: usize) -> f64 {
    ops as f64 / took.as_secs_f64()
}

/// Gigabytes (10^9) a second.
pub fn gbps(took: Duration, bytes: u64) -> f64 {
    bytes as f64 / took.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_ends_of_what_was_measured() {
        let samples = Samples::new(vec![5.0, 1.0, 9.0, 3.0, 4.0]);
        assert_eq!((samples.low(), samples.median(), samples.high()), (1.0, 4.0, 9.0));
    }

    #[test]
    fn measurements_take_turns() {
        let order = std::cell::RefCell::new(String::new());
        let (mut a, mut b) = (
            || {
                order.borrow_mut().push('a');
                Ok(1.0)
            },
            || {
                order.borrow_mut().push('b');
                Ok(2.0)
            },
        );
        let [first, second] = in_turn(3, [&mut a, &mut b]).unwrap();
        assert_eq!((first.median(), second.median()), (1.0, 2.0));
        assert_eq!(*order.borrow(), "ababab");
    }

    #[test]
    fn every_operation_is_done_once_where_there_is_time() {
        let mut seen = Vec::new();
        let took = ns_per_op(100, |index| {
            seen.push(index);
            Ok::<_, ()>(())
        });
        assert!(took.unwrap() > 0.0);
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }
}
