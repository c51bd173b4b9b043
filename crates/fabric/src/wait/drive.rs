//! One wait: the loop that drives a queue pair until what is waited for is there.

use super::budget::{Budget, Next};
use super::channel::{CompletionChannel, Interest, Subscription};
use super::{now, poller, thread};
use crate::provider::{Polling, Progress, Provider};
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
#[cfg(test)]
use std::time::Instant;

/// Loads between two polls of everything, the clock included.
const LOADS: usize = 16;

/// What a wait is for.
pub(crate) trait Awaited {
    /// What is there in the end.
    type Output;

    /// What is to be notified of, beside a completion.
    const INTEREST: Interest;

    /// Takes it, if it is there.
    fn take<C: Deref<Target = CompletionChannel>>(&mut self, at: &mut Subscription<C>) -> Poll<Self::Output>;

    /// Says to whom it matters where the wait, which is about to sleep, can be notified.
    fn subscribed<C: Deref<Target = CompletionChannel>>(&mut self, _at: &mut Subscription<C>, _slot: usize) {}
}

/// What has become of a wait.
pub(crate) enum Waited<T> {
    /// It is over.
    Ready(T),
    /// It goes on when other tasks had their turn.
    Yielded,
    /// It sleeps until it is notified.
    Asleep,
}

/// One future's wait on a queue pair, or one after the other.
pub(crate) struct Wait<C: Deref<Target = CompletionChannel>> {
    subscription: Subscription<C>,
    limit: Duration,
    budget: Budget,
    /// What had moved between the peers when the budget began.
    activity: u64,
}

/// What follows a poll that found nothing.
enum Then {
    PollAgain,
    Yield,
    SleepArmed,
    SleepShared,
}

impl<C: Deref<Target = CompletionChannel>> Wait<C> {
    /// `limit`: the busy-poll budget.
    pub(crate) fn new(channel: C, provider: &dyn Provider, limit: Duration) -> Wait<C> {
        Wait {
            subscription: Subscription::new(channel),
            limit,
            budget: Budget::new(limit),
            activity: provider.shared().activity(),
        }
    }

    /// What was waited for has come; the next wait begins.
    pub(crate) fn begin_next(&mut self) {
        self.budget = self.budget.next_wait(self.limit);
    }

    /// Nothing is waited for any more.
    pub(crate) fn end(&mut self) {
        self.subscription.leave();
    }

    /// Drives the queue pair until what is awaited is there, or the wait yields or sleeps.
    pub(crate) fn poll<A: Awaited>(
        &mut self,
        provider: &Rc<dyn Provider>,
        awaited: &mut A,
        cx: &mut Context<'_>,
    ) -> Waited<A::Output> {
        self.subscription.wake_up();
        loop {
            if let Poll::Ready(output) = awaited.take(&mut self.subscription) {
                return Waited::Ready(output);
            }
            let progress = provider.progress();
            if let Poll::Ready(output) = awaited.take(&mut self.subscription) {
                return Waited::Ready(output);
            }
            // One-sided operations of the peer show that it is busy as well as events do; and a long transfer is waited for as
            // long as parts of it keep coming.
            let activity = provider.shared().activity();
            if self.activity != activity {
                self.activity = activity;
                self.budget.renew(self.limit);
            }
            let then = self.after_fruitless_poll(provider, progress);
            match then {
                Then::PollAgain => continue,
                Then::Yield => {
                    poller::yield_now(cx, now());
                    return Waited::Yielded;
                }
                Then::SleepArmed | Then::SleepShared => {}
            }
            let slot = self.subscription.subscribe(cx.waker(), A::INTEREST);
            awaited.subscribed(&mut self.subscription, slot);
            if matches!(then, Then::SleepArmed) && provider.arm() == Progress::More {
                self.subscription.channel().notify(slot);
            }
            // Arming polls once more.
            return match awaited.take(&mut self.subscription) {
                Poll::Ready(output) => Waited::Ready(output),
                Poll::Pending => {
                    let channel = self.subscription.channel();
                    assert!(channel.is_watched(), "whoever sleeps will be notified");
                    Waited::Asleep
                }
            };
        }
    }

    fn after_fruitless_poll(&mut self, provider: &Rc<dyn Provider>, progress: Progress) -> Then {
        if progress == Progress::More {
            return Then::Yield;
        }
        if provider.polling() == Polling::Never {
            return Then::SleepArmed;
        }
        let next = thread::with(|thread| self.budget.next(thread, thread.shared_since(&**provider)));
        // the poller flushes for all who leave the polling to it
        if !matches!(next, Next::Call | Next::Share(_)) {
            provider.flush();
        }
        match next {
            Next::Poll => {
                for _ in 0..LOADS {
                    if provider.may_have_come() {
                        break;
                    }
                    std::hint::spin_loop();
                }
                return Then::PollAgain;
            }
            Next::Yield => return Then::Yield,
            Next::Call => {
                poller::call(provider);
                return Then::Yield;
            }
            Next::Share(until) => poller::share(provider, until),
            Next::Sleep => {}
        }
        if provider.shared().channel.is_polled() {
            Then::SleepShared
        } else {
            Then::SleepArmed
        }
    }

    #[cfg(test)]
    pub(crate) fn describe(&self, at: impl Fn(Option<Instant>) -> String) -> String {
        let slot = self.subscription.slot();
        format!("{} {} {slot:?}", self.budget.describe(at), self.activity)
    }
}
