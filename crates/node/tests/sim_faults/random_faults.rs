//! Clients at work, and faults at random: what was acknowledged is there.

use super::{healthy, options, run};
use crate::common::*;
use polvo_node::sim::Cluster;
use polvo_proto::*;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local};

/// What a client knows of its own directory after operations that may have been cut off.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, Option<bool>>,
    acknowledged: u32,
    cut_off: u32,
}

impl Model {
    fn after<T>(&mut self, name: &str, there: bool, result: &Result<T, FsError>) {
        let known = match result {
            Ok(_) => Some(there),
            Err(FsError::Exists) => Some(true),
            Err(FsError::NotFound) => Some(false),
            Err(FsError::Unreachable { .. } | FsError::Busy | FsError::SessionExpired) => None,
            Err(error) => panic!("{name}: {error}"),
        };
        match known {
            Some(_) => self.acknowledged += 1,
            None => self.cut_off += 1,
        }
        self.names.insert(name.to_string(), known);
    }
}

/// What all clients together went through; a run in which nothing happened shows nothing.
fn assert_busy(models: &[Model], faults: u32) {
    let acknowledged: u32 = models.iter().map(|m| m.acknowledged).sum();
    let cut_off: u32 = models.iter().map(|m| m.cut_off).sum();
    let what = format!("{faults} faults, {acknowledged} answers, {cut_off} cut off");
    assert!(acknowledged > 60 && faults >= 1, "{what}");
}

/// Seeds to go through: `SEEDS=n` in the environment for more.
fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(8)
}

async fn work(c: Caller, dir: InodeRef, seed: u64, rounds: u32) -> Model {
    let mut rng = Rng::new(seed);
    let mut model = Model::default();
    for _ in 0..rounds {
        if model.names.values().any(Option::is_none) {
            // a node is away: a client would wait a little, too
            tokio::time::sleep(Duration::from_millis(rng.roll(250))).await;
        }
        let name = format!("n{}", rng.roll(12));
        match rng.roll(4) {
            0 | 1 => {
                let result = c.create(dir, &name).await;
                model.after(&name, true, &result);
            }
            2 => {
                let result = c.unlink(dir, &name).await;
                model.after(&name, false, &result);
            }
            _ => {
                let other = format!("n{}", rng.roll(12));
                if other == name {
                    continue;
                }
                let result = c.rename(dir, &name, dir, &other).await;
                match &result {
                    Err(FsError::NotFound) => model.after(&name, false, &result),
                    _ => {
                        model.after(&name, false, &result);
                        model.after(&other, true, &result);
                    }
                }
            }
        }
    }
    model
}

/// Clients at work, each in a directory of its own on a node of its own.
async fn set_to_work(cluster: &Cluster, seed: u64, rounds: u32) -> Vec<(InodeRef, JoinHandle<Model>)> {
    let mut tasks = Vec::new();
    for i in 0..3u16 {
        let c = Caller::new(cluster, &format!("c{i}"));
        let dir = c.directory_at(cluster, i, &format!("home{i}-")).await;
        tasks.push((dir, spawn_local(work(c, dir, seed * 10 + u64::from(i), rounds))));
    }
    tasks
}

/// Each directory has the names that its client knows to be there.
async fn all_is_there(cluster: &Cluster, tasks: Vec<(InodeRef, JoinHandle<Model>)>, faults: u32) {
    cluster.rest().await;
    let reader = Caller::new(cluster, "reader");
    let mut models = Vec::new();
    for (dir, task) in tasks {
        let model = task.await.unwrap();
        let names = reader.names(dir).await.unwrap();
        for (name, known) in &model.names {
            if let Some(there) = known {
                assert_eq!(names.contains(name), *there, "{name}");
            }
        }
        models.push(model);
    }
    assert_busy(&models, faults);
    healthy(cluster).await;
}

/// Everything acknowledged is there, nothing is half-done, whichever nodes die and when.
#[test]
fn what_was_acknowledged_survives_any_crash() {
    for seed in seeds() {
        run(options(seed), async |cluster| {
            let tasks = set_to_work(cluster, seed, 150).await;
            let mut rng = Rng::new(seed + 1000);
            let mut faults = 0;
            while !tasks.iter().all(|(_, task)| task.is_finished()) {
                cluster.sleep(Duration::from_micros(1 + rng.roll(60_000))).await;
                let node = rng.roll(3) as u16;
                let nodes = if rng.roll(3) == 0 {
                    vec![node, (node + 1) % 3, (node + 2) % 3]
                } else {
                    vec![node]
                };
                let power = rng.roll(2) == 0;
                for node in &nodes {
                    match power {
                        true => cluster.power_cut(*node, rng.roll(1 << 30)).await,
                        false => cluster.crash(*node).await,
                    }
                }
                for node in nodes {
                    cluster.sleep(Duration::from_millis(rng.roll(800))).await;
                    cluster.restart(node).await.unwrap();
                }
                faults += 1;
            }
            all_is_there(cluster, tasks, faults).await;
        });
    }
}

/// As above, with the network misbehaving instead: cut connections and partitions that heal.
#[test]
fn what_was_acknowledged_survives_a_bad_network() {
    for seed in seeds() {
        run(options(seed), async |cluster| {
            let tasks = set_to_work(cluster, seed, 100).await;
            let mut rng = Rng::new(seed + 2000);
            let mut faults = 0;
            let hosts = ["node-0", "node-1", "node-2", "c0", "c1", "c2"];
            while !tasks.iter().all(|(_, task)| task.is_finished()) {
                cluster.sleep(Duration::from_micros(1 + rng.roll(100_000))).await;
                let (a, b) = (hosts[rng.roll(6) as usize], hosts[rng.roll(3) as usize]);
                match rng.roll(2) {
                    0 => {
                        cluster.network().disconnect(a);
                        cluster.network().reconnect(a);
                    }
                    _ if a != b => {
                        cluster.network().partition(a, b);
                        cluster.sleep(Duration::from_millis(rng.roll(3000))).await;
                        cluster.network().heal(a, b);
                    }
                    _ => {}
                }
                faults += 1;
            }
            all_is_there(cluster, tasks, faults).await;
        });
    }
}
