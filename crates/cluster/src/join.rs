//! Several futures of one caller at a time, without tasks: they may borrow, and go when the caller goes.

use std::collections::VecDeque;
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

/// Futures under way at a time whose results are taken in the order in which they were put in: a window that slides over
/// the parts of something long. They run while [`InFlight::next`] is awaited, and go when this goes.
pub struct InFlight<'a, T>(VecDeque<Part<'a, T>>);

enum Part<'a, T> {
    Running(Pin<Box<dyn Future<Output = T> + 'a>>),
    Done(T),
}

impl<'a, T> InFlight<'a, T> {
    /// None yet.
    pub fn new() -> InFlight<'a, T> {
        InFlight(VecDeque::new())
    }

    /// How many results are still to be taken.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// No result is to be taken any more.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more at the end. It begins with the next [`InFlight::next`].
    pub fn push(&mut self, future: impl Future<Output = T> + 'a) {
        self.0.push_back(Part::Running(Box::pin(future)));
    }

    /// The result of the first; every other has begun by then. `None` when there is none.
    pub async fn next(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        poll_fn(|cx| {
            for part in &mut self.0 {
                if let Part::Running(future) = part
                    && let Poll::Ready(result) = future.as_mut().poll(cx)
                {
                    *part = Part::Done(result);
                }
            }
            match self.0.pop_front() {
                Some(Part::Done(result)) => Poll::Ready(Some(result)),
                Some(running) => {
                    self.0.push_front(running);
                    Poll::Pending
                }
                None => Poll::Ready(None),
            }
        })
        .await
    }
}

impl<T> Default for InFlight<'_, T> {
    fn default() -> Self {
        InFlight::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
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

    #[tokio::test(start_paused = true)]
    async fn a_window_slides_in_order_and_keeps_all_of_it_running() {
        let start = tokio::time::Instant::now();
        let (begun, most) = (Cell::new(0), Cell::new(0));
        let part = |n: u64| {
            let (begun, most) = (&begun, &most);
            async move {
                begun.set(begun.get() + 1);
                most.set(most.get().max(begun.get()));
                // the later ones of each three are quicker
                tokio::time::sleep(Duration::from_millis(30 - n % 3)).await;
                begun.set(begun.get() - 1);
                n
            }
        };
        let mut window = InFlight::new();
        let (mut next, mut taken) = (0, Vec::new());
        loop {
            while window.len() < 3 && next < 9 {
                window.push(part(next));
                next += 1;
            }
            let Some(result) = window.next().await else { break };
            taken.push(result);
        }
        assert_eq!(taken, (0..9).collect::<Vec<_>>());
        assert_eq!(most.get(), 3);
        assert!(start.elapsed() < Duration::from_millis(100), "three at a time");
    }
}
