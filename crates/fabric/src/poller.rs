//! A task that looks for completions of all queue pairs of a thread on behalf of those who wait: their common completion
//! queue. A wait that spins keeps the thread to itself for a turn, which is right for one and wrong for many; so as soon as
//! there is a second one, both leave the looking to the poller, which goes over all queue pairs again and again.
//!
//! A thread may run several runtimes in turn, each with a poller or not. Whoever would leave the looking to a poller therefore
//! lets it have a turn first, and goes to sleep only when it has looked meanwhile: then it runs wherever the wait does.

use crate::provider::{Look, News, Progress, Provider};
use crate::spin;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Within one poll, before others on the thread get their turn.
const POLL_SLICE: Duration = Duration::from_micros(2);

/// Looks between two at all that can be known of each queue pair; the others are at their news alone, a word each, so that
/// hundreds of idle connections cost next to nothing.
const NEWS_LOOKS: u64 = 16;

/// As long as a thread polls, the kernel is asked so often what has come for those who sleep in it. The runtime by itself asks
/// after 61 turns, which is several times what a round trip to somebody who sleeps takes.
const ASK: Duration = Duration::from_micros(16);

struct Polled {
    news: Option<News>,
    provider: Rc<dyn Provider>,
}

impl Polled {
    fn has_news(&self) -> bool {
        // SAFETY: they came from the provider beside them, which lives as long as they do.
        self.news.as_ref().is_none_or(|news| unsafe { news.are_there() })
    }
}

struct Thread {
    pollers: Cell<usize>,
    /// Pollers that have nothing to look at, by their numbers. Each takes itself out when it ends: a waker keeps a runtime alive.
    idle: RefCell<Vec<(u64, Waker)>>,
    next_number: Cell<u64>,
    polled: RefCell<Vec<Polled>>,
    /// Until then all of them are looked at: as long as one of them is worth it, the others cost a load each.
    polled_until: Cell<Option<Instant>>,
    /// Settled with the next look.
    unsettled: RefCell<Vec<Rc<dyn Provider>>>,
    /// Until then the kernel is asked again and again on behalf of queue pairs that sleep in it.
    awake: Cell<Option<Instant>>,
    /// How often all queue pairs were looked at, and when last.
    looks: Cell<u64>,
    last_look: Cell<Option<Instant>>,
    /// When somebody who polls had the kernel asked last.
    asked: Cell<Option<Instant>>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            pollers: Cell::new(0),
            idle: RefCell::new(Vec::new()),
            next_number: Cell::new(0),
            polled: RefCell::new(Vec::new()),
            polled_until: Cell::new(None),
            unsettled: RefCell::new(Vec::new()),
            awake: Cell::new(None),
            looks: Cell::new(0),
            last_look: Cell::new(None),
            asked: Cell::new(None),
        }
    };
}

/// Looks for completions of all queue pairs of this thread while several are waited for. To be run as a task of every
/// runtime whose thread has many; a runtime without one works, but its waits take turns of some microseconds. It never ends,
/// and costs nothing while at most one wait of the thread spins.
pub fn poller() -> impl Future<Output = ()> {
    Poller { number: None }
}

struct Poller {
    /// On its thread; `None` before it was polled.
    number: Option<u64>,
}

/// Whether this thread has a poller.
pub(crate) fn is_there() -> bool {
    THREAD.with(|thread| thread.pollers.get() > 0)
}

/// How often a poller of this thread has looked.
pub(crate) fn looks() -> u64 {
    THREAD.with(|thread| thread.looks.get())
}

/// Whether a poller of this thread looks again and again on behalf of somebody.
pub(crate) fn is_at_work() -> bool {
    THREAD.with(Thread::is_shared)
}

/// When the poller looked last, if it looks at this queue pair again and again.
pub(crate) fn shared_since(provider: &Rc<dyn Provider>) -> Option<Instant> {
    THREAD.with(|thread| {
        let is_shared = match provider.looks() {
            Look::AtMemory => provider.shared().hub.is_polled(),
            _ => thread.awake.get().is_some(),
        };
        thread.last_look.get().filter(|_| is_shared)
    })
}

/// Has a poller look once, if one runs, and settle this queue pair before.
pub(crate) fn call(provider: &Rc<dyn Provider>) {
    THREAD.with(|thread| {
        thread.unsettled.borrow_mut().push(provider.clone());
        thread.wake();
    });
}

/// Has a poller settle a queue pair when the tasks that are ready have had their turn; settles it at once where none runs.
pub(crate) fn settle_later(provider: &Rc<dyn Provider>) {
    if is_there() {
        call(provider);
    } else {
        provider.settle();
    }
}

/// Settles what was left to this thread's poller ([`crate::QueuePair::execute_deferred`]). For whoever stops running the thread's
/// tasks and does not know when they go on.
pub fn settle() {
    THREAD.with(Thread::settle);
}

/// Has the poller look at a queue pair until then, longer if that was said before of any. Where a look is a system call the queue
/// pair has to be armed, and the poller keeps asking the kernel for all of those at once. To be used when the poller has come
/// after a [`call`].
pub(crate) fn share(provider: &Rc<dyn Provider>, until: Instant) {
    THREAD.with(|thread| {
        if provider.looks() == Look::AtMemory {
            thread.polled_until.set(thread.polled_until.get().max(Some(until)));
            let hub = &provider.shared().hub;
            if !hub.is_polled() {
                hub.set_polled(true);
                thread.polled.borrow_mut().push(Polled {
                    news: None,
                    provider: provider.clone(),
                });
            }
        } else {
            thread.awake.set(thread.awake.get().max(Some(until)));
        }
        thread.unsettled.borrow_mut().push(provider.clone());
        thread.wake();
    });
}

/// Who polls lets the other tasks of the thread have their turn, and now and then the kernel: it is woken after that.
pub(crate) fn let_others(cx: &mut Context<'_>, now: Instant) {
    let is_due = THREAD.with(|thread| {
        let is_due = thread.asked.get().is_none_or(|last| now - last >= ASK);
        if is_due {
            thread.asked.set(Some(now));
        }
        is_due
    });
    if is_due {
        let _ = pin!(tokio::task::yield_now()).poll(cx);
    } else {
        cx.waker().wake_by_ref();
    }
}

/// Whoever waits on it has to see to itself from now on.
fn leave_alone(provider: Rc<dyn Provider>) {
    let shared = provider.shared();
    shared.hub.set_polled(false);
    shared.hub.wake_one();
}

impl Thread {
    fn wake(&self) {
        self.idle.borrow_mut().drain(..).for_each(|(_, waker)| waker.wake());
    }

    fn settle(&self) {
        self.unsettled
            .borrow_mut()
            .drain(..)
            .for_each(|provider| provider.settle());
    }

    /// Whether anybody has left the looking to the poller.
    fn is_shared(&self) -> bool {
        self.awake.get().is_some() || !self.polled.borrow().is_empty()
    }

    /// Looks at all queue pairs once. True if something has moved.
    fn look(&self, now: Instant) -> bool {
        let looks = self.looks.get();
        self.looks.set(looks + 1);
        self.last_look.set(Some(now));
        let news_alone = !looks.is_multiple_of(NEWS_LOOKS);
        self.settle();
        let mut polled = self.polled.borrow_mut();
        let is_over = self.polled_until.get() <= Some(now);
        let (mut moved, mut at) = (false, 0);
        while let Some(queue_pair) = polled.get_mut(at) {
            if news_alone && !is_over && !queue_pair.has_news() {
                at += 1;
                continue;
            }
            let provider = &queue_pair.provider;
            let shared = provider.shared();
            if provider.may_have_come() {
                let before = shared.activity();
                moved |= provider.progress() == Progress::More || shared.activity() != before;
            }
            provider.settle();
            if is_over || shared.is_closed() {
                leave_alone(polled.swap_remove(at).provider);
                moved = true;
            } else {
                queue_pair.news = queue_pair.provider.news();
                at += 1;
            }
        }
        moved
    }
}

impl Future for Poller {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        THREAD.with(|thread| {
            let number = *self.number.get_or_insert_with(|| {
                thread.pollers.set(thread.pollers.get() + 1);
                thread.next_number.replace(thread.next_number.get() + 1)
            });
            // who has only called it waits on
            let was_shared = thread.is_shared();
            let start = Instant::now();
            let mut now = start;
            loop {
                let moved = thread.look(now);
                now = Instant::now();
                if thread.awake.get().is_some_and(|until| until <= now) {
                    thread.awake.set(None);
                }
                let asks = thread.awake.get().is_some();
                if !thread.is_shared() {
                    if was_shared {
                        spin::all_over();
                    }
                    let mut idle = thread.idle.borrow_mut();
                    idle.retain(|(other, _)| *other != number);
                    idle.push((number, cx.waker().clone()));
                    return Poll::Pending;
                }
                if moved || asks || now - start >= POLL_SLICE {
                    let_others(cx, now);
                    return Poll::Pending;
                }
                std::hint::spin_loop();
            }
        })
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        // the thread may be about to end, and its variables gone
        let _ = THREAD.try_with(|thread| {
            thread.pollers.set(thread.pollers.get() - 1);
            let ended = thread
                .idle
                .borrow_mut()
                .extract_if(.., |(other, _)| *other == number)
                .collect::<Vec<_>>();
            drop(ended);
            thread.settle();
            // whoever still needs one shares again
            thread
                .polled
                .take()
                .into_iter()
                .for_each(|polled| leave_alone(polled.provider));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spin::{Next, Spin};

    /// Or each of several waits would believe to be alone, keep the thread, and have its answer before the next one begins.
    #[test]
    fn a_poller_that_was_only_called_leaves_the_waits_counted() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tasks = tokio::task::LocalSet::new();
        tasks.spawn_local(poller());
        tasks.block_on(&runtime, async {
            tokio::task::yield_now().await;
            let wait = || Spin::new(Duration::from_secs(1));
            let (mut first, mut second, mut third) = (wait(), wait(), wait());
            assert!(matches!(first.next(None), Next::Look), "alone");
            assert!(matches!(second.next(None), Next::Call), "no longer alone");
            THREAD.with(Thread::wake);
            tokio::task::yield_now().await;
            assert!(matches!(second.next(None), Next::Share(_)), "the poller has looked");
            assert!(matches!(third.next(None), Next::Call), "the others wait on");
            drop((first, second, third));
            assert!(matches!(wait().next(None), Next::Look), "alone again");
        });
    }

    /// Or what comes for somebody who sleeps would wait for 61 turns of those who poll.
    #[test]
    fn who_polls_has_the_kernel_asked_now_and_then() {
        use std::io::Write;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        let tasks = tokio::task::LocalSet::new();
        let turns_until_woken = |apart: Duration| {
            tasks.block_on(&runtime, async {
                let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
                far.set_nonblocking(true).unwrap();
                let far = tokio::net::UnixStream::from_std(far).unwrap();
                let sleeper = tokio::task::spawn_local(async move { far.readable().await.unwrap() });
                tokio::task::yield_now().await;
                let (mut turns, mut now) = (0, Instant::now());
                THREAD.with(|thread| thread.asked.set(Some(now)));
                near.write_all(&[1]).unwrap();
                let polls = std::future::poll_fn(move |cx| {
                    if sleeper.is_finished() {
                        return Poll::Ready(turns);
                    }
                    (turns, now) = (turns + 1, now + apart);
                    let_others(cx, now);
                    Poll::Pending
                });
                tokio::task::spawn_local(polls).await.unwrap()
            })
        };
        assert!(turns_until_woken(ASK) <= 2);
        assert!(turns_until_woken(ASK / 8) <= 10);
        assert!(turns_until_woken(Duration::ZERO) > 20, "the runtime by itself");
    }

    /// Or every runtime of a thread would stay, with its descriptors, as long as the thread.
    #[test]
    fn a_poller_that_has_ended_leaves_no_waker_behind() {
        for _ in 0..3 {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let tasks = tokio::task::LocalSet::new();
            tasks.spawn_local(poller());
            tasks.spawn_local(poller());
            tasks.block_on(&runtime, async {
                tokio::task::yield_now().await;
                THREAD.with(Thread::wake);
                tokio::task::yield_now().await;
            });
            assert!(THREAD.with(|thread| thread.idle.borrow().len()) <= 2);
        }
        assert_eq!(THREAD.with(|thread| thread.idle.borrow().len()), 0);
        assert!(!is_there());
    }
}
