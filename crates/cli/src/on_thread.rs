//! Blocking work beside a runtime, on a thread of its own. Not `spawn_blocking`: the blocking client behaves
//! differently inside a runtime, and such a thread is inside one.

use crate::CliError;
use tokio::sync::oneshot;

/// Runs `work` on a thread of its own; the future ends with it. Dropping the future leaves the thread to itself.
pub async fn on_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CliError> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || drop(done.send(work())))
        .map_err(|source| CliError::Os {
            what: format!("starting thread {name}"),
            source,
        })?;
    // The sender goes without a word when `work` panics.
    result
        .await
        .map_err(|_| CliError::Other(format!("thread {name} failed; the log says why")))
}
