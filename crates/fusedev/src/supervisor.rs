//! The thread that looks after the readers, 100 times a second while there are requests, not at all while there are none.
//!
//! It does what would cost a system call with each request otherwise: it has the hot reader follow its caller to the caller's CPU,
//! and sees when there should be more readers, or fewer. Where handlers wait for other machines, readers go where they like.

use crate::readers::Readers;
use crate::transport::Transport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often it looks.
const TICK: Duration = Duration::from_millis(10);
/// Handlers wait often where one of so many requests does.
const WAITING: u64 = 8;
/// Below so many requests a tick it makes no difference on which CPU they are served.
const WORTH_FOLLOWING: u64 = 20;
/// One reader more is tried when requests have waited at so many looks more than not.
const STARVED: u32 = 5;
/// Such a trial lasts so many looks. The reader stays if so much more is served, in percent: where requests are short, readers only
/// get into each other's way.
const TRIAL: u32 = 16;
const WORTH_A_READER: u64 = 110;
/// After a trial in vain, so many looks until the next one; after each further one twice as many, up to the second figure.
const REST: u32 = 100;
const LONGEST_REST: u32 = 6400;
/// One reader less when at least one was idle at so many looks in a row.
const CALM: u32 = 30;

/// What it sees at one look.
#[derive(Clone, Copy)]
struct Seen {
    /// Requests since the last look.
    served: u64,
    /// Handlers have waited in so many of them.
    waits: u64,
    /// Threads that wait for one.
    reading: usize,
    /// There is one, which nobody has received.
    pending: bool,
}

impl Seen {
    /// Handlers wait often: then it does not matter on which CPU they run, and who wakes them should choose; and two readers
    /// take turns without being woken by each other.
    fn is_of_waiting_handlers(&self) -> bool {
        self.waits * WAITING > self.served
    }
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Advice {
    Nothing,
    /// Every reader is stuck in a handler.
    Rescue,
    More,
    Fewer,
}

/// What it remembers between looks.
struct Policy {
    starved: u32,
    calm: u32,
    /// Requests a look, times 8: a moving average.
    rate: u64,
    trial: Option<Trial>,
    /// Looks until there may be a trial, and how many there are after the next one in vain.
    rest: u32,
    next_rest: u32,
}

/// One reader more is being tried.
struct Trial {
    /// `Policy::rate` without it.
    rate: u64,
    looks: u32,
}

impl Policy {
    fn new() -> Policy {
        Policy {
            starved: 0,
            calm: 0,
            rate: 0,
            trial: None,
            rest: 0,
            next_rest: REST,
        }
    }

    fn advise(&mut self, seen: Seen) -> Advice {
        self.rate += seen.served;
        self.rate -= self.rate / 8;
        self.rest = self.rest.saturating_sub(1);
        if seen.reading == 0 && seen.pending {
            self.starved += 1;
        } else {
            self.starved = self.starved.saturating_sub(1);
        }
        self.calm = if seen.reading > 0 { self.calm + 1 } else { 0 };
        if seen.reading == 0 && seen.pending && seen.served == 0 {
            return Advice::Rescue;
        }
        if seen.is_of_waiting_handlers() {
            (self.calm, self.starved) = (0, 0);
        }
        if let Some(trial) = &mut self.trial {
            trial.looks += 1;
            debug_assert!(trial.looks <= TRIAL, "a trial ends");
            return if trial.looks < TRIAL {
                Advice::Nothing
            } else {
                self.end_trial()
            };
        }
        if self.calm >= CALM {
            self.calm = 0;
            return Advice::Fewer;
        }
        if self.starved >= STARVED && self.rest == 0 {
            self.starved = 0;
            self.trial = Some(Trial {
                rate: self.rate,
                looks: 0,
            });
            return Advice::More;
        }
        Advice::Nothing
    }

    fn end_trial(&mut self) -> Advice {
        debug_assert_eq!(self.rest, 0, "nothing is tried before it may be");
        debug_assert!(
            (REST..=LONGEST_REST).contains(&self.next_rest),
            "a rest of {}",
            self.next_rest
        );
        let before = self.trial.take().map_or(0, |trial| trial.rate);
        if self.rate * 100 >= before * WORTH_A_READER {
            self.next_rest = REST;
            return Advice::Nothing;
        }
        self.rest = self.next_rest;
        self.next_rest = (self.next_rest * 2).min(LONGEST_REST);
        Advice::Fewer
    }
}

/// Looks after readers until they have ended.
pub(crate) fn run(readers: &Arc<Readers>, device: &dyn Transport) {
    let mut policy = Policy::new();
    let (mut served, mut waits) = (0, 0);
    loop {
        std::thread::park_timeout(TICK);
        if readers.has_ended() {
            return;
        }
        let seen = Seen {
            served: readers.served() - served,
            waits: readers.waits() - waits,
            reading: readers.reading(),
            pending: is_readable(device),
        };
        served += seen.served;
        waits += seen.waits;
        if seen.served == 0 && seen.reading > 0 {
            sleep_until_needed(readers, served);
            continue;
        }
        match policy.advise(seen) {
            Advice::Nothing => {}
            Advice::Rescue => readers.wake(),
            Advice::More => {
                readers.set_target(readers.target() + 1);
                readers.wake();
            }
            Advice::Fewer => readers.set_target(readers.target() - 1),
        }
        if readers.target() > 1 || seen.is_of_waiting_handlers() {
            readers.gather(None);
        } else if seen.served >= WORTH_FOLLOWING {
            readers.gather(cpu_of(readers.last_caller()));
        }
    }
}

/// Sleeps until the next request is received, or all have ended.
fn sleep_until_needed(readers: &Readers, served: u64) {
    readers.supervisor_asleep.store(true, Ordering::SeqCst);
    // Whoever receives a request counts it before looking whether this thread sleeps.
    while readers.served() == served && !readers.has_ended() {
        std::thread::park();
    }
    readers.supervisor_asleep.store(false, Ordering::SeqCst);
}

fn is_readable(device: &dyn Transport) -> bool {
    let device = device.device();
    let mut asked = [PollFd::new(&device, PollFlags::IN)];
    let now = Timespec::default();
    poll(&mut asked, Some(&now)).is_ok_and(|ready| ready > 0) && asked[0].revents().contains(PollFlags::IN)
}

/// The CPU that a thread runs on, or ran on last; `None` where `/proc` does not know it.
fn cpu_of(thread: u32) -> Option<usize> {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    processor(&stat)
}

/// Field 39 of a thread's `stat`. The second one, its name, may have anything in it; a parenthesis ends it.
fn processor(stat: &str) -> Option<usize> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(39 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Seen = Seen {
        served: 50,
        waits: 0,
        reading: 0,
        pending: true,
    };
    const CALM_ENOUGH: Seen = Seen { reading: 1, ..BUSY };

    /// Goes on until there is something else to be done than nothing, at most so many looks.
    fn next(policy: &mut Policy, seen: Seen, looks: u32) -> Option<Advice> {
        (0..looks)
            .map(|_| policy.advise(seen))
            .find(|advice| *advice != Advice::Nothing)
    }

    #[test]
    fn a_reader_more_stays_where_more_is_served() {
        let mut policy = Policy::new();
        assert_eq!(next(&mut policy, BUSY, STARVED), Some(Advice::More));
        let faster = Seen { served: 100, ..BUSY };
        assert_eq!(next(&mut policy, faster, TRIAL), None);
        assert_eq!(
            next(&mut policy, faster, STARVED),
            Some(Advice::More),
            "maybe another one"
        );
        assert_eq!(
            next(&mut policy, faster, TRIAL),
            Some(Advice::Fewer),
            "that was one too many"
        );
        assert_eq!(next(&mut policy, faster, REST - 1), None);
        assert_eq!(next(&mut policy, faster, 1), Some(Advice::More));
        assert_eq!(next(&mut policy, faster, TRIAL), Some(Advice::Fewer));
        assert_eq!(next(&mut policy, faster, REST), None, "it is not tried as often");
    }

    #[test]
    fn a_reader_goes_where_one_is_idle() {
        let mut policy = Policy::new();
        assert_eq!(next(&mut policy, CALM_ENOUGH, CALM - 1), None);
        assert_eq!(next(&mut policy, CALM_ENOUGH, 1), Some(Advice::Fewer));
    }

    #[test]
    fn readers_stay_where_handlers_wait() {
        let mut policy = Policy::new();
        let waiting = Seen {
            waits: 25,
            ..CALM_ENOUGH
        };
        assert_eq!(next(&mut policy, waiting, CALM * 10), None);
        assert_eq!(next(&mut policy, Seen { waits: 25, ..BUSY }, STARVED * 10), None);
    }

    #[test]
    fn what_happens_now_and_then_changes_nothing() {
        let mut policy = Policy::new();
        for _ in 0..STARVED * 10 {
            assert_eq!(policy.advise(BUSY), Advice::Nothing);
            assert_eq!(policy.advise(CALM_ENOUGH), Advice::Nothing);
        }
        for _ in 0..CALM * 10 {
            let between = Seen { pending: false, ..BUSY };
            assert_eq!(policy.advise(between), Advice::Nothing, "at work, and nobody waits");
        }
    }

    #[test]
    fn who_is_stuck_is_helped_at_once() {
        let stuck = Seen { served: 0, ..BUSY };
        assert_eq!(Policy::new().advise(stuck), Advice::Rescue);
        let alone = Seen {
            pending: false,
            ..stuck
        };
        assert_eq!(Policy::new().advise(alone), Advice::Nothing);
    }

    #[test]
    fn a_thread_is_somewhere() {
        let fields: Vec<_> = (4..=52).map(|n| n.to_string()).collect();
        assert_eq!(processor(&format!("7 (a ) name) S {}", fields.join(" "))), Some(39));
        assert_eq!(processor("7 (a name) S 4 5"), None);
        assert!(cpu_of(std::process::id()).is_some());
        assert_eq!(cpu_of(0), None);
    }
}
