//! `polvo status`: what a cluster looks like right now.

use crate::args::StatusArgs;
use crate::connect::{Location, with_client};
use crate::size::Size;
use crate::{CliError, ClusterId, Context, Exit};
use polvo_client::{Client, LocalClient};
use polvo_format::NodeId;
use polvo_proto::{ClusterMap, FsError, Reply, Request};
use serde_json::{Map, Value, json};
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
            println!("{:#}", as_json(&map, &answers, mount));
        } else {
            print!("{}", as_text(&map, &answers, mount));
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
                tokio::task::spawn_local(async move { local.ask(id, Request::Status).await }),
            )
        })
        .collect();
    let mut answers = Vec::new();
    for (id, asked) in asked {
        let answer = match asked.await {
            Ok(Ok(Reply::Json(text))) => {
                serde_json::from_str(&text).map_err(|e| FsError::Io(format!("its status is no JSON: {e}")))
            }
            Ok(Ok(_)) => Err(FsError::Io("it did not answer with its status".into())),
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
                let length = |pointer: &str| {
                    status
                        .pointer(pointer)
                        .and_then(Value::as_array)
                        .map_or("?".into(), |a| a.len().to_string())
                };
                let _ = writeln!(
                    text,
                    "{:<5} {:<9} {:>9} {:>9} {:>8} {:>9} {:>8}  {:<18} {addresses}",
                    id.0,
                    "up",
                    size("/usage/total_bytes"),
                    size("/usage/free_bytes"),
                    length("/regions"),
                    count("/usage/inodes"),
                    length("/sessions"),
                    format!("{} ({})", s("/pool/medium"), s("/pool/persistence")),
                );
            }
        }
    }
    let sessions = answers
        .iter()
        .filter_map(|(id, a)| Some((id, a.as_ref().ok()?.get("sessions")?.as_array()?)));
    let mut seen = std::collections::BTreeMap::<(String, String), Vec<String>>::new();
    for (id, list) in sessions {
        for session in list {
            let word = |key: &str| session.get(key).and_then(Value::as_str).unwrap_or("?").to_string();
            seen.entry((word("name"), word("id")))
                .or_default()
                .push(id.0.to_string());
        }
    }
    if !seen.is_empty() {
        let _ = writeln!(text, "\n{:<40} {:<18} NODES", "SESSION", "ID");
        for ((name, id), nodes) in seen {
            let _ = writeln!(text, "{name:<40} {id:<18} {}", nodes.join(" "));
        }
    }
    if let Some(mount) = mount {
        let _ = writeln!(text, "\nMount {}", mount["dir"].as_str().unwrap_or("?"));
        for (counter, value) in mount["counters"].as_object().into_iter().flatten() {
            let _ = writeln!(text, "  {counter:<20} {value}");
        }
    }
    text
}
