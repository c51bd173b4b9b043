//! Tokens: how long a change waits for those who have some, and what is left of them.

use super::with_cluster;
use crate::common::*;
use polvo_node::sim::Cluster;
use polvo_proto::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::Instant;

/// What messages and timers take, there and back.
const DELAYS: Duration = Duration::from_millis(8);

/// A session that has tokens, and gives back what it is asked for.
struct Holder {
    c: Caller,
    /// How often it was asked.
    asked: Rc<Cell<u32>>,
    watch: JoinHandle<()>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

async fn take(c: &Caller, node: u16, inode: InodeRef) -> Option<(u64, Token)> {
    let taken = c.ask_node(node, ask::TakeTokens { inodes: vec![inode] }).await.unwrap();
    Some((taken.term, taken.tokens[0]?))
}

impl Holder {
    /// One that has a token of the inode.
    async fn of(c: Caller, node: u16, inode: InodeRef) -> Holder {
        let (term, _) = take(&c, node, inode).await.expect("nobody asks for it");
        let asked = Rc::new(Cell::new(0));
        let watch = spawn_local(watch(c.clone(), node, term, asked.clone()));
        Holder { c, asked, watch }
    }
}

async fn watch(c: Caller, node: u16, mut term: u64, asked: Rc<Cell<u32>>) {
    let mut answered = Vec::new();
    loop {
        let end = false;
        let request = ask::Watch { term, answered, end };
        let Ok(now) = c.ask_node(node, request).await else {
            return;
        };
        asked.set(asked.get() + now.asked.len() as u32);
        answered = now.asked.iter().map(|(_, number)| *number).collect();
        term = now.term;
    }
}

/// How many tokens a node counts.
async fn tokens_at(c: &Caller, node: u16) -> u64 {
    let Ok(Reply::Json(status)) = c.ask_node(node, Request::Status).await else {
        panic!("a node says how it is");
    };
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["tokens"].as_u64().expect("it counts them")
}

/// A file, and the node that serves it.
async fn a_file(cluster: &Cluster, c: &Caller) -> (u16, InodeRef) {
    let (_, file) = c.file_at(cluster, ROOT, 1, "f").await;
    cluster.rest().await;
    (1, file)
}

async fn time_of<T>(what: impl Future<Output = Result<T, FsError>>) -> Duration {
    let began = Instant::now();
    what.await.map(drop).unwrap();
    began.elapsed()
}

#[test]
fn a_change_of_what_a_thousand_sessions_watch_waits_for_their_answers_and_no_longer() {
    with_cluster(async |cluster| {
        let writer = Caller::new(cluster, "writer");
        let (node, file) = a_file(cluster, &writer).await;
        assert_eq!(tokens_at(&writer, node).await, 0);
        let mut holders = Vec::new();
        for i in 0..1000 {
            let c = Caller::new(cluster, &format!("holder-{i}"));
            holders.push(Holder::of(c, node, file).await);
        }
        assert_eq!(tokens_at(&writer, node).await, 1000);
        let waited = time_of(writer.write(file, 0, b"changed")).await;
        assert!(waited <= Duration::from_millis(50), "{waited:?}");
        assert!(
            holders.iter().all(|holder| holder.asked.get() == 1),
            "each is asked once"
        );
        assert_eq!(tokens_at(&writer, node).await, 0);
        let alone = time_of(writer.write(file, 0, b"once more")).await;
        assert!(alone <= DELAYS, "{alone:?}");
    });
}

#[test]
fn a_silent_holder_delays_a_change_until_its_lease_is_over() {
    with_cluster(async |cluster| {
        let [writer, silent] = ["writer", "silent"].map(|name| Caller::new(cluster, name));
        let (node, file) = a_file(cluster, &writer).await;
        let lease = cluster.timeouts().token;
        take(&silent, node, file).await.unwrap();
        let waited = time_of(writer.write(file, 0, b"changed")).await;
        assert!(waited + 2 * DELAYS >= lease, "{waited:?}");
        assert!(waited <= lease + Duration::from_millis(200), "{waited:?}");
        assert_eq!(tokens_at(&writer, node).await, 0);
        let after = time_of(writer.write(file, 0, b"once more")).await;
        assert!(after <= DELAYS, "{after:?}");
    });
}

#[test]
fn two_writers_in_turn_are_asked_ever_more_rarely() {
    with_cluster(async |cluster| {
        let maker = Caller::new(cluster, "maker");
        let (node, file) = a_file(cluster, &maker).await;
        let mut writers = Vec::new();
        for name in ["a", "b"] {
            writers.push(Holder::of(Caller::new(cluster, name), node, file).await);
        }
        // after each turn, how often they were asked so far
        let mut asked = Vec::new();
        for turn in 0..60 {
            let writer = &writers[turn % 2].c;
            writer.write(file, 0, b"mine").await.unwrap();
            take(writer, node, file).await;
            asked.push(writers.iter().map(|writer| writer.asked.get()).sum::<u32>());
        }
        assert!(asked[0] > 0, "{asked:?}");
        assert!(asked[9] <= 4, "{asked:?}");
        assert!(
            asked[9..].windows(10).all(|turns| turns[9] - turns[0] <= 1),
            "{asked:?}"
        );
    });
}

#[test]
fn a_node_that_was_started_anew_serves_reads_at_once_and_changes_after_a_lease() {
    with_cluster(async |cluster| {
        let [c, holder] = ["client", "holder"].map(|name| Caller::new(cluster, name));
        let (node, file) = a_file(cluster, &c).await;
        let lease = cluster.timeouts().token;
        for was_given in [false, true] {
            if was_given {
                take(&holder, node, file).await.unwrap();
            }
            cluster.crash(node).await;
            let began = Instant::now();
            cluster.restart(node).await.unwrap();
            c.attr(file).await.unwrap();
            let read = began.elapsed();
            assert!(read <= Duration::from_millis(100), "{read:?}");
            if was_given {
                assert_eq!(take(&holder, node, file).await, None, "nothing is promised yet");
            }
            c.write(file, 0, b"changed").await.unwrap();
            let changed = began.elapsed();
            match was_given {
                true => assert!(
                    changed >= lease && changed <= lease + Duration::from_millis(50),
                    "{changed:?}"
                ),
                false => assert!(changed <= Duration::from_millis(100), "{changed:?}"),
            }
        }
        cluster.sleep(Duration::from_millis(20)).await; // for a while after that a change had to ask, none is given
        assert!(take(&holder, node, file).await.is_some(), "it is over");
    });
}

#[test]
fn who_waits_for_an_inode_that_its_holder_removes_waits_no_longer_than_for_the_answer() {
    with_cluster(async |cluster| {
        let [writer, holder] = ["writer", "holder"].map(|name| Caller::new(cluster, name));
        let dir = holder.mkdir(ROOT, "d").await.unwrap();
        let node = primary(cluster, dir);
        let (name, file) = holder.file_at(cluster, dir, node, "f").await;
        assert_eq!(
            file.ino.region(),
            dir.ino.region(),
            "the inode goes with its name, at once"
        );
        cluster.rest().await;
        let (term, token) = take(&holder, node, file).await.unwrap();
        let began = Instant::now();
        let writing = {
            let writer = writer.clone();
            spawn_local(async move { writer.write(file, 0, b"changed").await })
        };
        cluster.sleep(Duration::from_millis(50)).await;
        // its own token is in nobody's way
        holder.unlink(dir, &name).await.unwrap();
        let (answered, end) = (vec![token.number], false);
        let watch = spawn_local(async move { holder.ask_node(node, ask::Watch { term, answered, end }).await });
        assert_eq!(writing.await.unwrap(), Err(FsError::Stale));
        let waited = began.elapsed();
        assert!(waited <= Duration::from_millis(50) + 3 * DELAYS, "{waited:?}");
        watch.abort();
    });
}

#[test]
fn a_session_that_ends_gives_its_tokens_back() {
    with_cluster(async |cluster| {
        let [writer, gone, waited_for] = ["writer", "gone", "waited for"].map(|name| Caller::new(cluster, name));
        let (node, file) = a_file(cluster, &writer).await;
        take(&gone, node, file).await.unwrap();
        gone.links.detach().await;
        assert_eq!(tokens_at(&writer, node).await, 0);
        let after = time_of(writer.write(file, 0, b"changed")).await;
        assert!(after <= DELAYS, "{after:?}");
        // and while somebody waits for them
        cluster.sleep(Duration::from_secs(2)).await;
        take(&waited_for, node, file).await.unwrap();
        let writing = {
            let writer = writer.clone();
            spawn_local(async move { time_of(writer.write(file, 0, b"once more")).await })
        };
        cluster.sleep(Duration::from_millis(300)).await;
        assert!(!writing.is_finished());
        waited_for.links.detach().await;
        let waited = writing.await.unwrap();
        assert!(waited <= Duration::from_millis(300) + 2 * DELAYS, "{waited:?}");
    });
}
