//! A seed is all there is to a run.

use polvo_sim::schedule::{Limits, Schedule};
use polvo_sim::simulation::simulate;

#[test]
fn a_run_repeats_to_the_last_message() {
    for seed in 0..12 {
        let schedule = Schedule::of(seed, &Limits::default());
        let (first, second) = (simulate(&schedule), simulate(&schedule));
        let differs = first.trace.iter().zip(&second.trace).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.trace.len(), second.trace.len(), "seed {seed}");
        assert_eq!(first.counts, second.counts, "seed {seed}");
    }
}
