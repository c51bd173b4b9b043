//! Many queue pairs that are waited for on one thread, with a poller and without.

use crate::support::{Place, Provider, TIMEOUT, block_on, identity, place, runtime};
use polvo_fabric::{
    Address, Event, Listener, MemoryRegions, QueuePair, Remote, RemoteKey, Role, Verb, connect, poller,
};
use std::future::poll_fn;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

const PAIRS: usize = 8;
const ROUNDS: u32 = 50;

async fn announce(qp: &QueuePair, imm: u32) {
    let nowhere = Remote {
        key: RemoteKey(0),
        offset: 0,
    };
    let bare = Verb::WriteImm {
        to: nowhere,
        bytes: &[],
        imm,
    };
    qp.execute_unsignaled(&mut [bare]).await.unwrap();
}

/// Answers immediates with the next number on so many queue pairs until all are closed, polling for so long.
fn server(provider: &Provider, spin: Duration, has_poller: bool) -> (Place, Address, JoinHandle<()>) {
    let place = place(provider);
    let (tell, told) = mpsc::channel();
    let address = place.address.clone();
    let thread = std::thread::spawn(move || {
        block_on(async {
            if has_poller {
                tokio::task::spawn_local(poller());
            }
            let regions = MemoryRegions::new();
            let mut listener = Listener::bind(&address, &identity(Role::Node(1)), &regions)
                .await
                .unwrap();
            tell.send(listener.local_addr()).unwrap();
            let mut serving = Vec::new();
            for _ in 0..PAIRS {
                let qp = listener.accept().await.unwrap();
                serving.push(tokio::task::spawn_local(async move {
                    let mut events = qp.events(spin);
                    while let Some(event) = poll_fn(|cx| events.poll_next(cx)).await {
                        let Event::Immediate(n) = event else {
                            panic!("{event:?}")
                        };
                        announce(&qp, n + 1).await;
                    }
                }));
            }
            for task in serving {
                task.await.unwrap();
            }
        });
    });
    (place, told.recv().unwrap(), thread)
}

/// Asks on all queue pairs at once, several times; each wait polls for so long.
async fn ask_all(pairs: &[QueuePair], spin: Duration) {
    let asking: Vec<_> = pairs
        .iter()
        .cloned()
        .map(|qp| {
            tokio::task::spawn_local(async move {
                for n in 0..ROUNDS {
                    announce(&qp, n).await;
                    let mut events = qp.events(spin);
                    let answer = poll_fn(|cx| events.poll_next(cx)).await;
                    assert_eq!(answer, Some(Event::Immediate(n + 1)));
                }
            })
        })
        .collect();
    for task in asking {
        task.await.unwrap();
    }
}

/// A client's thread: a runtime and its tasks.
struct Here {
    tasks: LocalSet,
    runtime: Runtime,
}

impl Here {
    fn new(has_poller: bool) -> Here {
        let tasks = LocalSet::new();
        if has_poller {
            tasks.spawn_local(poller());
        }
        Here {
            tasks,
            runtime: runtime(false),
        }
    }

    fn run<T>(&self, what: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(Duration::from_secs(60), what).await };
        let done = self.tasks.block_on(&self.runtime, bounded);
        done.expect("somebody waits for ever")
    }

    fn connect(&self, address: &Address) -> Vec<QueuePair> {
        self.run(async {
            let mut pairs = Vec::new();
            for _ in 0..PAIRS {
                let regions = MemoryRegions::new();
                let connected = connect(address, &identity(Role::Client), &regions, TIMEOUT).await;
                pairs.push(connected.unwrap());
            }
            pairs
        })
    }

    fn close(&self, pairs: Vec<QueuePair>) {
        self.run(async { pairs.iter().for_each(QueuePair::close) });
    }
}

#[test]
fn everybody_is_answered_whoever_polls() {
    let (short, long) = (Duration::from_micros(20), Duration::from_millis(5));
    for provider in [Provider::Tcp, Provider::Shm] {
        for (serves, asks) in [
            (Duration::ZERO, long),
            (short, short),
            (long, Duration::ZERO),
            (long, long),
        ] {
            for (theirs, ours) in [(false, false), (false, true), (true, false), (true, true)] {
                println!("{provider:?}, polls {serves:?} and {asks:?}, pollers {theirs} and {ours}");
                let (_place, address, served) = server(&provider, serves, theirs);
                let here = Here::new(ours);
                let pairs = here.connect(&address);
                here.run(ask_all(&pairs, asks));
                here.close(pairs);
                served.join().unwrap();
            }
        }
    }
}

/// Runtimes that share a thread, one with a poller and one without, take turns; what was under way when one stopped goes on.
#[test]
fn nobody_relies_on_the_poller_of_another_runtime() {
    let long = Duration::from_millis(5);
    for provider in [Provider::Tcp, Provider::Shm] {
        println!("{provider:?}");
        let (_place, address, served) = server(&provider, long, true);
        let (_other_place, other_address, other_served) = server(&provider, long, true);
        let (with, without) = (Here::new(true), Here::new(false));
        let (pairs, others) = (with.connect(&address), without.connect(&other_address));
        for _ in 0..5 {
            with.run(ask_all(&pairs, long));
            without.run(ask_all(&others, long));
            // stopped in the middle
            let (at_work, asked) = (pairs.clone(), with.tasks.spawn_local(async {}));
            let left = with.tasks.spawn_local(async move { ask_all(&at_work, long).await });
            with.run(async { asked.await.unwrap() });
            without.run(ask_all(&others, long));
            with.run(async { left.await.unwrap() });
        }
        with.close(pairs);
        without.close(others);
        served.join().unwrap();
        other_served.join().unwrap();
    }
}

/// When the time for polling is over the thread sleeps, poller or not.
#[test]
fn silence_costs_nothing() {
    const QUIET: Duration = Duration::from_millis(400);
    let cpu_time = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let spin = Duration::from_millis(5);
    for provider in [Provider::Tcp, Provider::Shm] {
        let (_place, address, served) = server(&provider, spin, true);
        let here = Here::new(true);
        let pairs = here.connect(&address);
        here.run(ask_all(&pairs, spin));
        let used = here.run(async {
            let waiting: Vec<_> = pairs
                .iter()
                .cloned()
                .map(|qp| {
                    tokio::task::spawn_local(async move {
                        let mut events = qp.events(spin);
                        poll_fn(|cx| events.poll_next(cx)).await
                    })
                })
                .collect();
            tokio::time::sleep(20 * spin).await;
            let before = cpu_time();
            tokio::time::sleep(QUIET).await;
            let used = cpu_time() - before;
            pairs.iter().for_each(QueuePair::close);
            for wait in waiting {
                assert_eq!(wait.await.unwrap(), None);
            }
            used
        });
        served.join().unwrap();
        println!("{provider:?}: {used:?} of CPU in {QUIET:?} of silence");
        assert!(
            used < QUIET / 10,
            "{provider:?}: {used:?} of CPU in {QUIET:?} of silence"
        );
    }
}
