//! A thread that runs futures of its own.

use crate::BenchError;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// A thread's runtime.
pub struct OnThread {
    tasks: LocalSet,
    runtime: Runtime,
}

impl OnThread {
    /// For the calling thread.
    pub fn new() -> Result<OnThread, BenchError> {
        let tasks = LocalSet::new();
        tasks.spawn_local(polvo_fabric::poller());
        Ok(OnThread {
            tasks,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        })
    }

    /// Runs a future to its end.
    pub fn run<T>(&self, what: impl Future<Output = T>) -> T {
        self.tasks.block_on(&self.runtime, what)
    }
}
