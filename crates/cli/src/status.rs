//! `polvo status`: what a cluster looks like right now.

use crate::args::{ClusterArgs, StatusArgs};
use crate::balance;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::replica_sets::{ReplicaSets, region_json, sets_said, sets_table};
use crate::size::Size;
use crate::table::Table;
use crate::{CliError, ClusterId, Context, Exit};
use polvo_client::{Client, LocalClient};
use polvo_format::NodeId;
use polvo_proto::{ClusterMap, FsError, ask};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Attribute of a mount's root that holds the counters of its client, as JSON.
pub const COUNTERS_ATTRIBUTE: &str = "user.polvo.counters";
/// How often it is looked whether a cluster is whole.
const WHOLE_EVERY: Duration = Duration::from_millis(20);

/// Runs the command. A node that does not answer makes it end with [`Exit::Failure`], regions that lack replicas with
/// [`Exit::Degraded`].
pub fn status(args: &StatusArgs) -> Result<Exit, CliError> {
    let place = args.url.as_ref().map(|url| Location::parse(url)).transpose()?;
    let authority = place.and_then(|p| p.authority);
    with_client(&args.cluster, authority, "status", |client, local| async move {
        loop {
            let mount = args.mount.as_deref().map(mount_counters).transpose()?;
            let answers = ask_all(&client, &local).await;
            let map = newest_map(&client, &local, &answers).await;
            let shown = match (args.json, args.watch) {
                (true, None) => format!("{:#}\n", as_json(&map, &answers, mount)),
                (true, Some(_)) => format!("{}\n", as_json(&map, &answers, mount)),
                (false, None) => as_text(&map, &answers, mount),
                (false, Some(_)) => format!("{}{}\n", before_next(), as_text(&map, &answers, mount)),
            };
            print(shown)?;
            let Some(seconds) = args.watch else {
                return Ok(exit(&map, &answers));
            };
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
    })
}

/// Waits until every node answers and no region lacks a replica. False when it has not come to that `within` this time.
///
/// # Errors
/// When no node can be reached.
pub(crate) fn wait_until_whole(args: &ClusterArgs, within: Duration) -> Result<bool, CliError> {
    with_client(args, None, "up", |client, local| async move {
        let until = Instant::now() + within;
        loop {
            let answers = ask_all(&client, &local).await;
            let map = newest_map(&client, &local, &answers).await;
            let is_whole = matches!(exit(&map, &answers), Exit::Success);
            if is_whole || Instant::now() >= until {
                return Ok(is_whole);
            }
            tokio::time::sleep(WHOLE_EVERY).await;
        }
    })
}

/// What makes a terminal show what follows in the place of what was there.
fn before_next() -> &'static str {
    if std::io::stdout().is_terminal() {
        "\x1b[H\x1b[2J"
    } else {
        ""
    }
}

fn exit(map: &ClusterMap, answers: &[NodeAnswer]) -> Exit {
    match () {
        () if answers.iter().any(|(_, answer)| answer.is_err()) => Exit::Failure,
        () if ReplicaSets::of(map, answers).are_degraded() => Exit::Degraded,
        () => Exit::Success,
    }
}

/// The newest map that any node goes by: the one that was asked first may have been away when it changed.
async fn newest_map(client: &Arc<Client>, local: &Rc<LocalClient>, answers: &[NodeAnswer]) -> Arc<ClusterMap> {
    let map = client.map();
    let epoch = |(node, answer): &NodeAnswer| Some((answer.as_ref().ok()?["epoch"].as_u64()?, *node));
    match answers.iter().filter_map(epoch).max() {
        Some((epoch, node)) if epoch > map.epoch.0 => local.ask(node, ask::Map).await.map_or(map, Arc::new),
        _ => map,
    }
}

type NodeAnswer = (NodeId, Result<Value, FsError>);

/// Who answers.
fn there(answers: &[NodeAnswer]) -> BTreeSet<NodeId> {
    let there = answers.iter().filter(|(_, answer)| answer.is_ok());
    there.map(|(node, _)| *node).collect()
}

/// Asks every node for its status, all at once: a missing one costs one wait.
async fn ask_all(client: &Arc<Client>, local: &Rc<LocalClient>) -> Vec<NodeAnswer> {
    let asked: Vec<_> = client
        .map()
        .nodes
        .iter()
        .map(|node| {
            let (local, id) = (local.clone(), node.id);
            (
                id,
                tokio::task::spawn_local(async move { local.ask(id, ask::Status).await }),
            )
        })
        .collect();
    let mut answers = Vec::new();
    for (id, asked) in asked {
        let answer = match asked.await {
            Ok(Ok(text)) => serde_json::from_str(&text).map_err(|e| FsError::Io(format!("its status is no JSON: {e}"))),
            Ok(Err(e)) => Err(e),
            Err(e) => Err(FsError::Io(e.to_string())),
        };
        answers.push((id, answer));
    }
    answers
}

/// The counters of the client behind a mount.
fn mount_counters(dir: &Path) -> Result<Value, CliError> {
    let what = || format!("counters of the mount at {} ({COUNTERS_ATTRIBUTE})", dir.display());
    let mut value = vec![0u8; 64 * 1024];
    let len = rustix::fs::getxattr(dir, COUNTERS_ATTRIBUTE, value.as_mut_slice()).doing(what)?;
    let counters: Value =
        serde_json::from_slice(&value[..len]).map_err(|e| CliError::Other(format!("{}: {e}", what())))?;
    Ok(json!({ "dir": dir, "counters": counters }))
}

fn as_json(map: &ClusterMap, answers: &[NodeAnswer], mount: Option<Value>) -> Value {
    let nodes: Vec<Value> = answers
        .iter()
        .map(|(id, answer)| {
            let info = map.node(*id);
            let mut node = Map::new();
            node.insert("id".into(), json!(id.0));
            node.insert(
                "addresses".into(),
                json!(info.map(|i| i.addresses.clone()).unwrap_or_default()),
            );
            match answer {
                Ok(Value::Object(status)) => {
                    node.insert("reachable".into(), json!(true));
                    node.extend(status.clone());
                }
                Ok(other) => {
                    node.insert("reachable".into(), json!(true));
                    node.insert("status".into(), other.clone());
                }
                Err(e) => {
                    node.insert("reachable".into(), json!(false));
                    node.insert("error".into(), json!(e.to_string()));
                }
            }
            Value::Object(node)
        })
        .collect();
    let regions: Vec<Value> = map.regions.iter().map(region_json).collect();
    let mut all = json!({
        "cluster": ClusterId(map.cluster).to_string(), "epoch": map.epoch.0, "voters": numbers(map.voters.now()),
        "next_voters": numbers(map.voters.next()), "nodes": nodes, "regions": regions,
    });
    all["replicas"] = ReplicaSets::of(map, answers).as_json();
    all["uneven"] = balance::unevenness(map, &there(answers)).is_some().into();
    if let Some(mount) = mount {
        all["mount"] = mount;
    }
    all
}

fn as_text(map: &ClusterMap, answers: &[NodeAnswer], mount: Option<Value>) -> String {
    let mut text = format!(
        "Cluster {}   epoch {}   {} nodes, {} regions   voters {}\n\n{}",
        ClusterId(map.cluster),
        map.epoch.0,
        map.nodes.len(),
        map.regions.len(),
        voters(map),
        nodes_table(map, answers),
    );
    for (id, answer) in answers {
        if let Err(why) = answer {
            text += &format!("node {}: {why}\n", id.0);
        }
    }
    let replicas = ReplicaSets::of(map, answers);
    text += &replicas.summary();
    if let Some(why) = balance::unevenness(map, &there(answers)).filter(|_| !replicas.are_degraded()) {
        text += &format!("uneven: {why}; `polvo balance` evens this out\n");
    }
    text += &sets_said(map);
    if let Some(sets) = sets_table(map) {
        text += &format!("\n{sets}");
    }
    if let Some(sessions) = sessions_table(answers) {
        text += &format!("\n{sessions}");
    }
    if let Some(mount) = mount {
        text += &format!("\nMount {}\n", mount["dir"].as_str().unwrap_or("?"));
        for (counter, value) in mount["counters"].as_object().into_iter().flatten() {
            text += &format!("  {counter:<20} {value}\n");
        }
    }
    text
}

fn numbers(nodes: impl Iterator<Item = NodeId>) -> Vec<u16> {
    nodes.map(|node| node.0).collect()
}

/// Who votes on changes of the map; who is to, while voters are being replaced.
fn voters(map: &ClusterMap) -> String {
    let list = |nodes: Vec<u16>| nodes.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
    let now = list(numbers(map.voters.now()));
    match map.voters.is_joint() {
        true => format!("{now} (becoming {})", list(numbers(map.voters.next()))),
        false => now,
    }
}

/// Every node of the map, and what it says of itself.
fn nodes_table(map: &ClusterMap, answers: &[NodeAnswer]) -> Table {
    let mut table = Table::new([
        "NODE",
        "STATE",
        ">SIZE",
        ">FREE",
        ">REGIONS",
        ">INODES",
        ">SESSIONS",
        "MEDIUM",
        "ADDRESSES",
    ]);
    for (id, answer) in answers {
        let status = answer.as_ref().ok();
        let number = |pointer: &str| status.and_then(|status| status.pointer(pointer)?.as_u64());
        let size = |pointer: &str| number(pointer).map_or("?".into(), |bytes| Size(bytes).to_string());
        let count = |pointer: &str| number(pointer).map_or("?".into(), |count| count.to_string());
        let word = |pointer: &str| {
            status
                .and_then(|status| status.pointer(pointer)?.as_str())
                .unwrap_or("?")
        };
        table.row([
            id.0.to_string(),
            if status.is_some() { "up" } else { "MISSING" }.into(),
            size("/pool/bytes"),
            size("/pool/free_bytes"),
            count("/regions_total"),
            count("/pool/inodes"),
            count("/sessions_total"),
            status.map_or("?".into(), |_| {
                format!("{} ({})", word("/medium"), word("/persistence"))
            }),
            map.node(*id).map(|node| node.addresses.join(" ")).unwrap_or_default(),
        ]);
    }
    table
}

/// What a session has at all nodes together.
#[derive(Default)]
struct SessionTotal {
    nodes: Vec<String>,
    opens: u64,
    pages: u64,
}

/// Clients' sessions, each once, by name and id; `None` where there are none.
fn sessions_table(answers: &[NodeAnswer]) -> Option<Table> {
    let sessions = sessions(answers);
    let mut table = Table::new(["SESSION", "ID", ">OPEN", ">DELEGATED", "NODES"]);
    for ((name, id), total) in &sessions {
        table.row([
            name.clone(),
            id.clone(),
            total.opens.to_string(),
            Size(total.pages * polvo_format::PAGE as u64).to_string(),
            total.nodes.join(" "),
        ]);
    }
    (!sessions.is_empty()).then_some(table)
}

fn sessions(answers: &[NodeAnswer]) -> BTreeMap<(String, String), SessionTotal> {
    let mut sessions = BTreeMap::<_, SessionTotal>::new();
    for (node, answer) in answers {
        let list = answer
            .as_ref()
            .ok()
            .and_then(|answer| answer.get("sessions")?.as_array());
        for session in list.into_iter().flatten() {
            let word = |key: &str| session[key].as_str().unwrap_or("?").to_string();
            // Nodes have sessions with each other; a mount inside a node is a client all the same.
            if session["node"] == json!(true) && word("name").starts_with("node ") {
                continue;
            }
            let total = sessions.entry((word("name"), word("id"))).or_default();
            total.nodes.push(node.0.to_string());
            total.opens += session["opens"].as_u64().unwrap_or(0);
            total.pages += session["delegated_pages"].as_u64().unwrap_or(0);
        }
    }
    sessions
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_cluster::initial_map;
    use polvo_proto::{NodeInfo, RegionSet};

    fn map() -> ClusterMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            addresses: vec![format!("tcp://10.0.0.{id}:7000")],
        };
        initial_map([7; 16], (0..4).map(node).collect(), 2, &[RegionSet::default()])
    }

    #[test]
    fn the_map_is_shown_with_its_epoch_and_voters() {
        let mut map = map();
        let first_line = |map: &ClusterMap| as_text(map, &[], None).lines().next().unwrap().to_string();
        let cluster = ClusterId(map.cluster);
        assert_eq!(
            first_line(&map),
            format!("Cluster {cluster}   epoch 1   4 nodes, 8 regions   voters 0 1 2")
        );
        let json = as_json(&map, &[], None);
        assert_eq!(
            (&json["epoch"], &json["voters"], &json["next_voters"]),
            (&json!(1), &json!([0, 1, 2]), &json!([]))
        );
        map.voters = map.voters.with_next([0, 2, 3].map(NodeId)).unwrap();
        assert!(
            first_line(&map).ends_with("voters 0 1 2 (becoming 0 2 3)"),
            "{}",
            first_line(&map)
        );
        let json = as_json(&map, &[], None);
        assert_eq!(
            (&json["voters"], &json["next_voters"]),
            (&json!([0, 1, 2]), &json!([0, 2, 3]))
        );
    }
}
