//! A thread that runs futures of its own.

use crate::Failure;
use crate::cores;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// A thread's runtime.
pub struct OnThread {
    tasks: LocalSet,
    runtime: Runtime,
    core: Option<usize>,
}

impl OnThread {
    /// For the calling thread, wherever it runs.
    pub fn new() -> Result<OnThread, Failure> {
        OnThread::on_core(None)
    }

    /// For the calling thread, which keeps to that core while it runs something here.
    pub fn on_core(core: Option<usize>) -> Result<OnThread, Failure> {
        let tasks = LocalSet::new();
        tasks.spawn_local(polvo_fabric::poller());
        Ok(OnThread {
            tasks,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            core,
        })
    }

    /// Runs a future to its end.
    pub fn run<T>(&self, what: impl Future<Output = T>) -> T {
        let _kept = self.core.map(cores::keep_to);
        let done = self.tasks.block_on(&self.runtime, what);
        polvo_fabric::flush();
        done
    }
}
