//! The blocking client: runs an operation to its end on the calling thread, on a runtime that belongs to the thread.
//!
//! An operation is polled once before the runtime is set in motion: what needs no waiting (a local region, shared
//! memory) costs no system call.

use crate::{Client, LocalClient};
use std::cell::{OnceCell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// What a thread needs to run operations. Fields are dropped in order: connections before the runtime they live on.
/// That happens while thread locals are destroyed, when a runtime cannot be entered any more.
struct BlockingClient {
    clients: RefCell<Vec<Rc<LocalClient>>>,
    tasks: LocalSet,
    runtime: Runtime,
}

/// A thread's own. It ends with the thread, and logs nothing then: what a logger keeps in a thread local of its own may be gone.
struct OfThread(Option<Rc<BlockingClient>>);

thread_local! {
    static BLOCKING: OnceCell<OfThread> = const { OnceCell::new() };
}

impl Drop for OfThread {
    fn drop(&mut self) {
        tracing::dispatcher::with_default(&tracing::Dispatch::none(), || drop(self.0.take()));
    }
}

impl BlockingClient {
    fn of_this_thread() -> Rc<BlockingClient> {
        BLOCKING.with(|blocking| {
            let OfThread(blocking) = blocking.get_or_init(|| OfThread(Some(Rc::new(BlockingClient::new()))));
            blocking.clone().expect("it is there until the thread ends")
        })
    }

    fn new() -> BlockingClient {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let tasks = LocalSet::new();
        tasks.spawn_local(polvo_fabric::poller());
        BlockingClient {
            clients: RefCell::default(),
            tasks,
            runtime: runtime.expect("the system gives a thread an epoll descriptor"),
        }
    }

    fn local(&self, client: &Arc<Client>) -> Rc<LocalClient> {
        let mut clients = self.clients.borrow_mut();
        if let Some(local) = clients.iter().find(|local| Arc::ptr_eq(&local.client, client)) {
            return local.clone();
        }
        clients.retain(|local| !local.client.stop.is_asked());
        clients.push(client.local());
        clients[clients.len() - 1].clone()
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let first = {
            let _runtime = self.runtime.enter();
            let _tasks = self.tasks.enter();
            future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        let output = match first {
            Poll::Ready(output) => output,
            Poll::Pending => self.tasks.block_on(&self.runtime, future),
        };
        // nobody knows when this thread comes again
        polvo_fabric::flush();
        output
    }
}

impl Client {
    /// Runs an operation to its end on the calling thread, with this thread's runtime and connections.
    ///
    /// # Panics
    /// When called inside a tokio runtime (an operation run by this very function included).
    pub fn run<T, F>(self: &Arc<Self>, operation: impl FnOnce(Rc<LocalClient>) -> F) -> T
    where
        F: Future<Output = T>,
    {
        let blocking = BlockingClient::of_this_thread();
        let local = blocking.local(self);
        blocking.block_on(operation(local))
    }

    /// [`Client::connect`] on this thread's own runtime.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_blocking(config: crate::ClientConfig) -> Result<Arc<Client>, polvo_proto::FsError> {
        BlockingClient::of_this_thread().block_on(Client::connect(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_fabric::{Address, Event, Identity, Listener, MemoryRegions, Role, Verb, connect};
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn what_is_ready_at_once_and_what_waits_both_end() {
        let blocking = BlockingClient::of_this_thread();
        assert_eq!(blocking.block_on(async { 1 }), 1);
        assert_eq!(blocking.block_on(async { tokio::task::yield_now().await }), ());
        let waited = blocking.block_on(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::task::spawn_local(async { 7 }).await
        });
        assert_eq!(waited.expect("task"), 7);
    }

    #[test]
    fn polled_once_when_nothing_waits() {
        let polls = Cell::new(0);
        BlockingClient::of_this_thread().block_on(std::future::poll_fn(|_| {
            polls.set(polls.get() + 1);
            Poll::Ready(())
        }));
        assert_eq!(polls.get(), 1);
    }

    /// Or what a transaction has locked elsewhere would stay so until the thread comes again.
    #[test]
    fn what_nobody_waits_for_is_sent_before_a_thread_leaves() {
        let identity = |role| Identity {
            cluster: [3; 16],
            secret: b"secret"[..].into(),
            role,
            security: polvo_fabric::Security::default(),
        };
        let (tell_address, address) = mpsc::channel();
        let (tell_event, event) = mpsc::channel();
        std::thread::spawn(move || {
            BlockingClient::of_this_thread().block_on(async {
                let (at, regions) = (Address::Tcp("127.0.0.1:0".into()), MemoryRegions::new());
                let bound = Listener::bind(&at, &identity(Role::Node(1)), &regions).await;
                let mut listener = bound.expect("bind");
                tell_address.send(listener.local_addr()).expect("told");
                let pair = listener.accept().await.expect("accept");
                tell_event.send(pair.next_event().await).expect("told");
            });
        });
        let address = address.recv().expect("bound");
        let blocking = BlockingClient::of_this_thread();
        let pair = blocking.block_on(async {
            let (regions, long) = (MemoryRegions::new(), Duration::from_secs(20));
            let pair = connect(&address, &identity(Role::Client), &regions, long).await;
            let pair = pair.expect("connect");
            let mut message = [Verb::Send { bytes: b"dispatch" }];
            pair.execute_deferred(&mut message).await.expect("post");
            pair
        });
        let arrived = event.recv_timeout(Duration::from_secs(20));
        assert_eq!(arrived, Ok(Some(Event::Message(b"dispatch".to_vec()))));
        drop(pair);
    }

    /// Formats in a buffer of the thread, as loggers do, which may be gone.
    struct Logger;

    static CAME_TOO_LATE: AtomicBool = AtomicBool::new(false);

    thread_local! {
        static BUFFER: RefCell<String> = const { RefCell::new(String::new()) };
    }

    impl tracing::Subscriber for Logger {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let formatted = BUFFER.try_with(|buffer| buffer.replace(event.metadata().name().to_owned()));
            CAME_TOO_LATE.fetch_or(formatted.is_err(), Ordering::Relaxed);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    struct Logs;

    impl Drop for Logs {
        fn drop(&mut self) {
            tracing::debug!("ended");
        }
    }

    #[test]
    fn what_ends_with_a_thread_does_not_meet_a_logger_that_is_gone() {
        tracing::subscriber::set_global_default(Logger).expect("the only one");
        let thread = std::thread::spawn(|| {
            let blocking = BlockingClient::of_this_thread();
            blocking.block_on(async {
                let logs = Logs;
                tokio::task::spawn_local(async move {
                    std::future::pending::<()>().await;
                    drop(logs);
                });
                tokio::task::yield_now().await;
            });
            // the buffer comes after the runtime, and goes before it
            tracing::debug!("begun");
        });
        thread.join().expect("no panic while thread locals are dropped");
        assert!(!CAME_TOO_LATE.load(Ordering::Relaxed));
    }

    #[test]
    fn a_thread_ends_cleanly_with_its_runtime() {
        let thread = std::thread::spawn(|| {
            BlockingClient::of_this_thread().block_on(async {
                tokio::task::spawn_local(std::future::pending::<()>());
                tokio::task::yield_now().await;
            })
        });
        thread.join().expect("no panic while thread locals are dropped");
    }
}
