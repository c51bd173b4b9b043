//! One run, from its schedule to its report.

use crate::actor::{Actor, Shared};
use crate::audit;
use crate::faults;
use crate::judgement::judge;
use crate::panics;
use crate::promptness::too_slow;
use crate::report::{Counts, Report};
use crate::rng::Rng;
use crate::schedule::{Fault, Schedule};
use crate::workload::{Workload, remote};
use polvo_client::Transfers;
use polvo_cluster::{MovedCopy, spread_copies};
use polvo_node::sim::{Cluster, run};
use polvo_proto::{Cred, FsError, ask};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// Simulated time after which a run is called hung.
const HANG: Duration = Duration::from_secs(3 * 3600);
/// Copies that were to move have moved, where nothing is wrong any more, within
const FINISHED_WITHIN: Duration = Duration::from_secs(60);
/// when this is asked for again after
const FINISH_AGAIN: Duration = Duration::from_millis(200);

/// Runs a schedule to its end, in this thread, and judges it.
pub fn simulate(schedule: &Schedule) -> Report {
    panics::collect();
    let end = catch_unwind(AssertUnwindSafe(|| {
        run(schedule.cluster(), async |cluster| live(cluster, schedule).await)
    }));
    let panics = panics::take();
    let mut counts = Counts {
        seeds: 1,
        ..Counts::default()
    };
    let mut wrong: Vec<String> = panics.into_iter().map(|panic| format!("panic: {panic}")).collect();
    let mut trace = vec![schedule.to_string()];
    if let Ok(end) = end {
        counts.faults = end.shared.faults.take();
        counts.simulated_ms = end.lasted.as_millis() as u64;
        wrong.extend(end.shared.wrong.take());
        if !end.shared.has_lost_changes.get() {
            wrong.extend(end.shared.missed.take());
        }
        wrong.extend(end.failure);
        let (records, lines) = end.shared.history.take();
        trace.extend(lines);
        wrong.extend(too_slow(&records, schedule));
        wrong.extend(judge(
            &records,
            schedule.is_small,
            end.shared.has_lost_changes.get(),
            &mut counts,
        ));
    }
    Report {
        schedule: schedule.clone(),
        counts,
        failure: (!wrong.is_empty()).then(|| wrong.join("\n")),
        trace,
    }
}

struct End {
    shared: Rc<Shared>,
    failure: Option<String>,
    lasted: Duration,
}

async fn live(cluster: &mut Cluster, schedule: &Schedule) -> End {
    let shared = Shared::new(schedule);
    let start = Instant::now();
    let failure = match tokio::time::timeout(HANG, all_of_it(cluster, &shared)).await {
        Ok(result) => result.err(),
        Err(_) => Some(format!(
            "the run hangs: not at its end after {} s of its time",
            HANG.as_secs()
        )),
    };
    End {
        shared,
        failure,
        lasted: start.elapsed(),
    }
}

/// Whatever has become of copies that were to move: what was begun is finished, as an operator would who asks for it once more.
async fn finish_moves(cluster: &Cluster) -> Result<(), String> {
    let operator = cluster.client("operator, once more");
    for _ in 0..FINISHED_WITHIN.as_millis() / FINISH_AGAIN.as_millis() {
        let Some(map) = cluster.newest_map() else { return Ok(()) };
        let there = map
            .nodes
            .iter()
            .map(|node| node.id)
            .filter(|node| cluster.is_running(node.0));
        let mut begun = spread_copies(&map, &there.collect()).into_iter();
        let is_begun = |one: &MovedCopy| map.region(one.region).is_some_and(|info| info.role(one.to).is_some());
        let Some(MovedCopy { region, from, to }) = begun.next().filter(is_begun) else {
            return Ok(());
        };
        let primary = map.primary(region).ok_or("a region without a primary")?;
        // an error is found again, or not
        let _ = operator
            .call_node(primary, Cred::Kernel, ask::MoveCopy { region, from, to })
            .await;
        cluster.sleep(FINISH_AGAIN).await;
    }
    Err("a copy that was to move has not after a minute".into())
}

async fn all_of_it(cluster: &mut Cluster, shared: &Rc<Shared>) -> Result<(), String> {
    if shared.schedule.needs_sync {
        let nodes = 0..shared.schedule.nodes;
        let pools = nodes.filter_map(|node| cluster.pmem(node).sim());
        pools.for_each(|pool| pool.needs_sync_from_now(true));
    }
    let mut workload = Workload::start(cluster, shared);
    faults::run(cluster, &mut workload, shared).await?;
    workload.dismiss().await;
    // those that died are forgotten, and nothing sent before is still under way
    cluster
        .sleep(cluster.timeouts().lease * 3 + Duration::from_secs(20))
        .await;
    while let Some(node) = cluster.deposed() {
        // nobody that was colocated with it is left
        match cluster.ended(node).await {
            Err(FsError::Deposed { .. }) => {}
            other => return Err(format!("node {node} ended with {other:?}")),
        }
        let restarted = cluster.restart(node).await;
        restarted.map_err(|error| format!("node {node} does not start again: {error}"))?;
        cluster.sleep(Duration::from_secs(20)).await;
    }
    finish_moves(cluster).await?;
    cluster.rest().await;
    audit::check(cluster, "after all faults have ended")?;

    let (client, maintenance) = remote(cluster, "auditor", Transfers::Client);
    let mut auditor = Actor::new("auditor", client.clone(), shared, Rng::new(shared.schedule.seed, 3));
    audit::read_everything(&mut auditor).await?;
    drop(auditor);
    audit::delete_everything(&client).await?;
    shared.look_for_losses(cluster);
    client.client().shutdown();
    let ended = maintenance.await;
    ended.map_err(|_| "the auditor has panicked".to_string())?;
    drop(client);

    cluster.sleep(cluster.timeouts().lease * 2).await;
    cluster.rest().await;
    audit::check(cluster, "after everything was deleted")?;
    if !cluster.is_soon_mirrored().await {
        let space = cluster.space();
        return Err(format!(
            "a minute later copies are still missing at nodes that run: {space}"
        ));
    }
    if audit::replicas(cluster, shared.lost.get())? {
        shared.count(Fault::Replaced);
    }
    let (client, maintenance) = remote(cluster, "accountant", Transfers::Client);
    let result = audit::is_empty(&client, shared.lost.get()).await;
    client.client().shutdown();
    drop(maintenance.await);
    result
}
