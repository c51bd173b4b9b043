//! Several futures of one caller at a time, without tasks: they may borrow, and go when the caller goes.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Runs all futures concurrently on the calling task and returns their results in order. Meant for a handful (the
/// participants of a transaction, the nodes of a cluster): every wake polls all that are still running.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for (future, result) in running.iter_mut().zip(results.iter_mut()) {
            if result.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    results.into_iter().map(|r| r.expect("all futures are ready")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn futures_run_at_the_same_time_and_keep_their_order() {
        let start = tokio::time::Instant::now();
        let nap = |ms: u64| async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            ms
        };
        assert_eq!(join_all([30, 10, 20].map(nap)).await, [30, 10, 20]);
        assert_eq!(start.elapsed(), Duration::from_millis(30));
        assert_eq!(join_all(Vec::<std::future::Ready<()>>::new()).await, []);
    }
}
