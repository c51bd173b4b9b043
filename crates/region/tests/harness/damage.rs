//! Damage: random numbers for it, flipped bits, and an end to what does not end by itself.

use super::power::{cpus, seed};
use parking_lot::Mutex;
use polvo_pmem::Pmem;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Longest time that one damaged pool may take; a thousand times what it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends the process, naming the damage, when it lives for too long: a loop without an end cannot be ended otherwise.
pub struct Watched {
    done: std::sync::mpsc::Sender<()>,
}

impl Watched {
    pub fn new(what: String) -> Watched {
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what}: does not end");
                std::process::abort();
            }
        });
        Watched { done }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.done.send(());
    }
}

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Failures after which a run ends.
const FAILURES_MAX: usize = 20;

/// Flips a bit, counted from the start of the medium.
pub fn flip(pmem: &Pmem, bit: u64) {
    let mut byte = [0];
    pmem.read(bit / 8, &mut byte);
    pmem.write(bit / 8, &[byte[0] ^ 1 << (bit % 8)]);
}

/// Does `work` for each of so many things, with all CPUs; its errors make the test fail.
pub fn for_all(what: &str, count: usize, work: impl Fn(usize) -> Result<(), String> + Sync) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let run = || {
        loop {
            let n = next.fetch_add(1, Relaxed);
            if n >= count || failures.lock().len() > FAILURES_MAX {
                return;
            }
            let _watched = Watched::new(format!("{what}, number {n}"));
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(n)));
            if let Err(why) = done.unwrap_or_else(|_| Err(format!("number {n} panics"))) {
                failures.lock().push(why);
            }
        }
    };
    std::thread::scope(|scope| (0..cpus()).for_each(|_| drop(scope.spawn(run))));
    let failures = failures.into_inner();
    if let Some(first) = failures.first() {
        panic!(
            "POLVO_SEED={}: {} of {count} {what} (or more) fail, such as:\n{first}",
            seed(),
            failures.len()
        );
    }
}
