//! Several operations at once on one thread, with a limit; failures are told as they happen and counted.

use crate::CliError;
use indicatif::ProgressBar;
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Operations under way at once.
const AT_ONCE: u32 = 16;

/// Runs jobs of a command.
pub(super) struct Jobs {
    slots: Arc<Semaphore>,
    failed: Rc<Cell<u64>>,
    bar: ProgressBar,
}

impl Jobs {
    /// `bar` is taken aside while a message is printed.
    pub(super) fn new(bar: ProgressBar) -> Jobs {
        Jobs {
            slots: Arc::new(Semaphore::new(AT_ONCE as usize)),
            failed: Rc::default(),
            bar,
        }
    }

    /// Counts a failure and tells it.
    pub(super) fn fail(&self, error: &CliError) {
        self.failed.set(self.failed.get() + 1);
        self.bar.suspend(|| eprintln!("polvo: {error}"));
    }

    /// Starts a job as soon as there is a slot.
    pub(super) async fn start(self: &Rc<Self>, job: impl Future<Output = Result<(), CliError>> + 'static) {
        let slot = self
            .slots
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let jobs = self.clone();
        tokio::task::spawn_local(async move {
            if let Err(e) = job.await {
                jobs.fail(&e);
            }
            drop(slot);
        });
    }

    /// Waits until every job that was started has ended.
    pub(super) async fn finish(&self) {
        let _all = self
            .slots
            .acquire_many(AT_ONCE)
            .await
            .expect("the semaphore is never closed");
    }

    /// The command's result.
    pub(super) fn result(&self) -> Result<(), CliError> {
        assert_eq!(
            self.slots.available_permits(),
            AT_ONCE as usize,
            "every job that was started has ended"
        );
        self.bar.finish_and_clear();
        match self.failed.get() {
            0 => Ok(()),
            1 => Err(CliError::Other("1 operation failed".into())),
            n => Err(CliError::Other(format!("{n} operations failed"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_all_and_counts_failures() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let jobs = Rc::new(Jobs::new(ProgressBar::hidden()));
            let running = Rc::new(Cell::new(0u32));
            let done = Rc::new(Cell::new(0u32));
            for i in 0..100 {
                let (running, done) = (running.clone(), done.clone());
                jobs.start(async move {
                    running.set(running.get() + 1);
                    assert!(running.get() <= AT_ONCE);
                    tokio::task::yield_now().await;
                    running.set(running.get() - 1);
                    done.set(done.get() + 1);
                    if i == 50 {
                        Err(CliError::Other("fifty".into()))
                    } else {
                        Ok(())
                    }
                })
                .await;
            }
            jobs.finish().await;
            assert_eq!(done.get(), 100);
            assert_eq!(jobs.result().unwrap_err().to_string(), "1 operation failed");
        });
    }
}
