//! `polvo status`: what a cluster looks like right now.

use crate::args::StatusArgs;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::size::Size;
use crate::{CliError, ClusterId, Context, Exit};
use polvo_client::{Client, LocalClient};
use polvo_format::NodeId;
use polvo_proto::{ClusterMap, FsError, ask};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Attribute of a mount's root that holds the counters of its client, as JSON.
pub const COUNTERS_ATTRIBUTE: &str = "user.polvo.counters";

/// Runs the command. A node that does not answer makes it end with [`Exit::Failure`].
pub fn status(args: &StatusArgs) -> Result<Exit, CliError> {
    let place = args.url.as_ref().map(|url| Location::parse(url)).transpose()?;
    let authority = place.and_then(|p| p.authority);
    let mount = args.mount.as_deref().map(mount_counters).transpose()?;
    with_client(&args.cluster, authority, "status", |client, local| async move {
        let map = client.map();
        let answers = ask_all(&client, &local).await;
        let all_answer = answers.iter().all(|(_, a)| a.is_ok());
        if args.json {
            print(format!("{:#}\n", as_json(&map, &answers, mount)))?;
        } else {
            print(as_text(&map, &answers, mount))?;
        }
        Ok(if all_answer { Exit::Success } else { Exit::Failure })
    })
}

type NodeAnswer = (NodeId, Result<Value, FsError>);

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
    let regions: Vec<Value> = map
        .regions
        .iter()
        .map(|r| json!({ "id": r.id.0, "epoch": r.epoch.0, "primary": r.primary().map(|n| n.0) }))
        .collect();
    let mut all = json!({
        "cluster": ClusterId(map.cluster).to_string(), "epoch": map.epoch.0, "nodes": nodes, "regions": regions,
    });
    if let (Some(mount), Some(all)) = (mount, all.as_object_mut()) {
        all.insert("mount".into(), mount);
    }
    all
}

fn as_text(map: &ClusterMap, answers: &[NodeAnswer], mount: Option<Value>) -> String {
    use std::fmt::Write;
    let mut text = format!(
        "Cluster {}   epoch {}   {} nodes, {} regions\n\n",
        ClusterId(map.cluster),
        map.epoch.0,
        map.nodes.len(),
        map.regions.len()
    );
    let _ = writeln!(
        text,
        "{:<5} {:<9} {:>9} {:>9} {:>8} {:>9} {:>8}  {:<18} ADDRESSES",
        "NODE", "STATE", "SIZE", "FREE", "REGIONS", "INODES", "SESSIONS", "MEDIUM"
    );
    for (id, answer) in answers {
        let addresses = map.node(*id).map(|n| n.addresses.join(" ")).unwrap_or_default();
        match answer {
            Err(e) => {
                let _ = writeln!(text, "{:<5} {:<9} {e}  ({addresses})", id.0, "MISSING");
            }
            Ok(status) => {
                let n = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64);
                let size = |pointer: &str| n(pointer).map_or("?".into(), |b| Size(b).to_string());
                let count = |pointer: &str| n(pointer).map_or("?".into(), |c| c.to_string());
                let s = |pointer: &str| {
                    status
                        .pointer(pointer)
                        .and_then(Value::as_str)
                        .unwrap_or("?")
                        .to_string()
                };
                let _ = writeln!(
                    text,
                    "{:<5} {:<9} {:>9} {:>9} {:>8} {:>9} {:>8}  {:<18} {addresses}",
                    id.0,
                    "up",
                    size("/pool/bytes"),
                    size("/pool/free_bytes"),
                    count("/regions_total"),
                    count("/pool/inodes"),
                    count("/sessions_total"),
                    format!("{} ({})", s("/medium"), s("/persistence")),
                );
            }
        }
    }
    text.push_str(&sessions_text(answers));
    if let Some(mount) = mount {
        let _ = writeln!(text, "\nMount {}", mount["dir"].as_str().unwrap_or("?"));
        for (counter, value) in mount["counters"].as_object().into_iter().flatten() {
            let _ = writeln!(text, "  {counter:<20} {value}");
        }
    }
    text
}

/// Clients' sessions, each once with what it holds at all nodes together.
fn sessions_text(answers: &[NodeAnswer]) -> String {
    use std::fmt::Write;
    #[derive(Default)]
    struct Held {
        nodes: Vec<String>,
        opens: u64,
        pages: u64,
    }
    let mut sessions = BTreeMap::<(String, String), Held>::new();
    for (node, answer) in answers {
        let Some(list) = answer.as_ref().ok().and_then(|a| a.get("sessions")?.as_array()) else {
            continue;
        };
        for session in list {
            let word = |key: &str| session[key].as_str().unwrap_or("?").to_string();
            // Nodes have sessions with each other; a mount inside a node is a client all the same.
            if session["node"] == json!(true) && word("name").starts_with("node ") {
                continue;
            }
            let held = sessions.entry((word("name"), word("id"))).or_default();
            held.nodes.push(node.0.to_string());
            held.opens += session["opens"].as_u64().unwrap_or(0);
            held.pages += session["delegated_pages"].as_u64().unwrap_or(0);
        }
    }
    if sessions.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:<40} {:<18} {:>7} {:>10}  NODES\n",
        "SESSION", "ID", "OPEN", "DELEGATED"
    );
    for ((name, id), held) in sessions {
        let delegated = Size(held.pages * polvo_format::PAGE as u64).to_string();
        let _ = writeln!(
            text,
            "{name:<40} {id:<18} {:>7} {delegated:>10}  {}",
            held.opens,
            held.nodes.join(" ")
        );
    }
    text
}
