//! Many runs, some at a time: each in one thread from its beginning to its end.

use crate::report::{Counts, Report};
use crate::schedule::{Limits, Schedule};
use crate::simulation::simulate;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// Real time after which a run is called hung: simulated ones take a second at the most.
const HANG: Duration = Duration::from_secs(120);

/// Runs the seeds `from..from + seeds` on `jobs` threads; `progress` hears of every one as it ends. Stops at the first failure unless it
/// is to `keep_going`, and returns the reports of those that failed, by their seeds. A seed that hangs ends the program, as its thread
/// cannot be ended otherwise.
pub fn run(
    from: u64,
    seeds: u64,
    jobs: usize,
    keep_going: bool,
    limits: &Limits,
    mut progress: impl FnMut(&Counts),
) -> (Counts, Vec<Report>) {
    let next = AtomicU64::new(from);
    let stop = AtomicBool::new(false);
    let running: Vec<Mutex<Option<(u64, Instant)>>> = (0..jobs).map(|_| Mutex::new(None)).collect();
    let (send, receive) = mpsc::channel::<Report>();
    let mut total = Counts::default();
    let mut failed: Vec<Report> = Vec::new();
    std::thread::scope(|scope| {
        for slot in &running {
            let send = send.clone();
            let (next, stop) = (&next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + seeds {
                        break;
                    }
                    *slot.lock().expect("nobody panics with it") = Some((seed, Instant::now()));
                    let report = simulate(&Schedule::of(seed, limits));
                    *slot.lock().expect("nobody panics with it") = None;
                    if send.send(report).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        loop {
            match receive.recv_timeout(Duration::from_secs(1)) {
                Ok(report) => {
                    total.add(&report.counts);
                    progress(&total);
                    if report.failure.is_some() {
                        stop.store(!keep_going, Ordering::Relaxed);
                        failed.push(report);
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    for slot in &running {
                        let now = *slot.lock().expect("nobody panics with it");
                        if let Some((seed, since)) = now
                            && since.elapsed() > HANG
                        {
                            let schedule = Schedule::of(seed, limits);
                            eprintln!("{schedule}\nhangs: repeat it with\n    {}", schedule.command());
                            std::process::exit(1);
                        }
                    }
                }
            }
        }
    });
    failed.sort_by_key(|report| report.schedule.seed);
    (total, failed)
}
