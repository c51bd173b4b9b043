//! A task that polls all queue pairs of a thread on behalf of those who wait: their common completion queue. A wait that polls
//! keeps the thread to itself for a share of its time, which is right for one and wrong for many; so as soon as there is a second
//! one, both leave the polling to the poller, which goes over all queue pairs again and again.
//!
//! A thread may run several runtimes in turn, each with a poller or not. Whoever would leave the polling to a poller therefore
//! lets it have a turn first, and goes to sleep only when it has polled meanwhile: then it runs wherever the wait does.

use super::now;
use super::thread::{self, Polled, Thread};
use crate::provider::{Polling, Progress, Provider};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Within one turn, before others on the thread get theirs.
const POLL_SLICE: Duration = Duration::from_micros(2);

/// Of so many polls one asks each queue pair for all that can be known; the others ask for news alone, a word each, so that
/// hundreds of idle connections cost next to nothing.
const WHOLE_POLL_EVERY: u64 = 16;

/// Polls all queue pairs of this thread while several are waited for. To be run as a task of every runtime whose thread has
/// many; a runtime without one works, but its waits take turns of some microseconds. It never ends, and costs nothing while at
/// most one wait of the thread polls.
pub fn poller() -> impl Future<Output = ()> {
    Poller { number: None }
}

struct Poller {
    /// On its thread; `None` before it was polled.
    number: Option<u64>,
}

/// Has a poller poll once, if one runs, and flush this queue pair before.
pub(super) fn call(provider: &Rc<dyn Provider>) {
    thread::with(|thread| {
        thread.unflushed.borrow_mut().push(provider.clone());
        thread.wake_pollers();
    });
}

/// Has a poller flush a queue pair when the tasks that are ready have had their turn; flushes it at once where none runs.
pub(crate) fn flush_later(provider: &Rc<dyn Provider>) {
    if thread::with(Thread::has_poller) {
        call(provider);
    } else {
        provider.flush();
    }
}

/// Flushes what was left to this thread's poller ([`crate::QueuePair::execute_deferred`]). For whoever stops running the thread's
/// tasks and does not know when they go on.
pub fn flush() {
    thread::with(Thread::flush);
}

/// Has the poller poll a queue pair until then, longer if that was said before of any. Where a poll is a system call the queue
/// pair has to be armed, and the poller keeps asking the kernel for all of those at once. To be used when the poller has come
/// after a [`call`].
pub(super) fn share(provider: &Rc<dyn Provider>, until: Instant) {
    thread::with(|thread| {
        if provider.polling() == Polling::Memory {
            thread.polled_until.set(thread.polled_until.get().max(Some(until)));
            let channel = &provider.shared().channel;
            debug_assert_eq!(
                channel.is_polled(),
                thread
                    .polled
                    .borrow()
                    .iter()
                    .any(|polled| std::ptr::addr_eq(Rc::as_ptr(&polled.provider), Rc::as_ptr(provider))),
                "what is polled is in the list"
            );
            if !channel.is_polled() {
                channel.set_polled(true);
                thread.polled.borrow_mut().push(Polled {
                    news: None,
                    provider: provider.clone(),
                });
            }
        } else {
            thread.kernel_until.set(thread.kernel_until.get().max(Some(until)));
        }
        thread.unflushed.borrow_mut().push(provider.clone());
        thread.wake_pollers();
    });
}

/// Who polls lets the other tasks of the thread have their turn, and now and then the kernel: it is woken after that.
pub(super) fn yield_now(cx: &mut Context<'_>, now: Instant) {
    if thread::with(|thread| thread.is_asking_due(now)) {
        let _ = pin!(tokio::task::yield_now()).poll(cx);
    } else {
        cx.waker().wake_by_ref();
    }
}

/// Whoever waits on it has to see to itself from now on.
fn leave_alone(provider: Rc<dyn Provider>) {
    let channel = &provider.shared().channel;
    debug_assert!(channel.is_polled(), "it was polled");
    channel.set_polled(false);
    #[cfg(test)]
    if super::explorer::is_planted(super::explorer::Planted::PollerLeavesSilently) {
        return;
    }
    channel.notify_one();
}

impl Thread {
    fn wake_pollers(&self) {
        self.idle.borrow_mut().drain(..).for_each(|(_, waker)| waker.wake());
    }

    fn flush(&self) {
        self.unflushed
            .borrow_mut()
            .drain(..)
            .for_each(|provider| provider.flush());
    }

    /// Polls all queue pairs once. True if something has moved.
    fn poll_all(&self, now: Instant) -> bool {
        let polls = self.polls.get();
        self.polls.set(polls + 1);
        self.last_poll.set(Some(now));
        let news_alone = !polls.is_multiple_of(WHOLE_POLL_EVERY);
        self.flush();
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
            provider.flush();
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
        thread::with(|thread| {
            let number = *self.number.get_or_insert_with(|| {
                thread.pollers.set(thread.pollers.get() + 1);
                thread.next_poller.replace(thread.next_poller.get() + 1)
            });
            // who has only called it waits on
            let was_shared = thread.is_shared();
            let start = now();
            let mut time = start;
            loop {
                let moved = thread.poll_all(time);
                time = now();
                if thread.kernel_until.get().is_some_and(|until| until <= time) {
                    thread.kernel_until.set(None);
                }
                let asks = thread.kernel_until.get().is_some();
                if !thread.is_shared() {
                    if was_shared {
                        thread.end_all_waits();
                    }
                    let mut idle = thread.idle.borrow_mut();
                    idle.retain(|(other, _)| *other != number);
                    idle.push((number, cx.waker().clone()));
                    debug_assert!(idle.len() <= thread.pollers.get(), "only pollers idle");
                    return Poll::Pending;
                }
                if moved || asks || time - start >= POLL_SLICE {
                    yield_now(cx, time);
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
        thread::try_with(|thread| {
            let left = thread.pollers.get().checked_sub(1);
            thread.pollers.set(left.expect("it was counted when it began"));
            let ended = thread
                .idle
                .borrow_mut()
                .extract_if(.., |(other, _)| *other == number)
                .collect::<Vec<_>>();
            drop(ended);
            thread.flush();
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
    use crate::wait::budget::{Budget, Next};
    use crate::wait::thread::ASK;

    /// Or each of several waits would believe to be alone, keep the thread, and have its answer before the next one begins.
    #[test]
    fn a_poller_that_was_only_called_leaves_the_waits_counted() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tasks = tokio::task::LocalSet::new();
        tasks.spawn_local(poller());
        tasks.block_on(&runtime, async {
            tokio::task::yield_now().await;
            let wait = || Budget::new(Duration::from_secs(1));
            let next = |budget: &mut Budget| thread::with(|thread| budget.next(thread, None));
            let (mut first, mut second, mut third) = (wait(), wait(), wait());
            assert!(matches!(next(&mut first), Next::Poll), "alone");
            assert!(matches!(next(&mut second), Next::Call), "no longer alone");
            thread::with(Thread::wake_pollers);
            tokio::task::yield_now().await;
            assert!(matches!(next(&mut second), Next::Share(_)), "the poller has polled");
            assert!(matches!(next(&mut third), Next::Call), "the others wait on");
            drop((first, second, third));
            assert!(matches!(next(&mut wait()), Next::Poll), "alone again");
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
                thread::with(|thread| thread.set_asked(now));
                near.write_all(&[1]).unwrap();
                let polls = std::future::poll_fn(move |cx| {
                    if sleeper.is_finished() {
                        return Poll::Ready(turns);
                    }
                    (turns, now) = (turns + 1, now + apart);
                    yield_now(cx, now);
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
                thread::with(Thread::wake_pollers);
                tokio::task::yield_now().await;
            });
            assert!(thread::with(|thread| thread.idle.borrow().len()) <= 2);
        }
        assert_eq!(thread::with(|thread| thread.idle.borrow().len()), 0);
        assert!(!thread::with(Thread::has_poller));
    }
}
