//! A process that stands still: none of its tasks runs until a time.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use tokio::time::{Instant, sleep_until};

/// Until when a process stands still. Clones are of the same process.
#[derive(Clone)]
pub struct Stillness(Rc<Cell<Instant>>);

impl Default for Stillness {
    fn default() -> Self {
        Stillness(Rc::new(Cell::new(Instant::now())))
    }
}

impl Stillness {
    /// The process stands still from now on.
    pub fn begin(&self, until: Instant) {
        self.0.set(until.max(self.0.get()));
    }

    /// Does it stand still now?
    pub fn is_still(&self, now: Instant) -> bool {
        now < self.0.get()
    }

    /// A task of the process: it goes on only while that does not stand still.
    pub async fn bound<T>(&self, task: impl Future<Output = T>) -> T {
        let mut task = pin!(task);
        let mut pause = pin!(sleep_until(self.0.get()));
        poll_fn(|context| {
            let until = self.0.get();
            if Instant::now() < until {
                if pause.deadline() != until {
                    pause.as_mut().reset(until);
                }
                // what wakes the task meanwhile is seen at the end
                if pause.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
            }
            task.as_mut().poll(context)
        })
        .await
    }
}
