//! `polvo node remove`: has the nodes take one of them out of the cluster.

use crate::args::RemoveNodeArgs;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::{CliError, Exit};
use polvo_client::{Client, LocalClient};
use polvo_format::NodeId;
use polvo_proto::{ClusterMap, FsError, ask};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two steps.
const NEXT_STEP: Duration = Duration::from_millis(500);

/// Runs the command.
pub fn remove(args: &RemoveNodeArgs) -> Result<Exit, CliError> {
    let place = args.url.as_ref().map(|url| Location::parse(url)).transpose()?;
    let authority = place.and_then(|place| place.authority);
    let (node, force) = (NodeId(args.node), args.force);
    let deadline = Instant::now() + Duration::from_secs(args.wait);
    with_client(&args.cluster, authority, "node remove", |client, local| async move {
        let failed = |source| CliError::Fs {
            what: format!("removing node {}", node.0),
            source,
        };
        let (at, map) = newest(&client, &local, node).await.map_err(failed)?;
        if map.node(node).is_none() {
            return Err(CliError::Usage(format!(
                "the cluster has no node {} (any more)",
                node.0
            )));
        }
        let mut said = usize::MAX;
        loop {
            let left = match local.ask(at, ask::RemoveNode { node, force }).await {
                Ok(None) => break,
                Ok(Some(regions)) => regions.len(),
                // the map is being changed by others, or a node is just going
                Err(FsError::Io(_) | FsError::Unreachable { .. } | FsError::WrongEpoch)
                    if Instant::now() < deadline =>
                {
                    said
                }
                Err(error) => return Err(failed(error)),
            };
            if left != said {
                eprintln!("polvo: node {} has copies of {left} regions yet", node.0);
                said = left;
            }
            if Instant::now() >= deadline {
                let why = "copies were not made elsewhere in time; give the command again to go on".into();
                return Err(failed(FsError::Io(why)));
            }
            tokio::time::sleep(NEXT_STEP).await;
        }
        print(format!(
            "node {} is removed; do not start it again with its pool\n",
            node.0
        ))?;
        Ok(Exit::Success)
    })
}

/// The newest map that one of the nodes has which stay, and who has it: the one with the lowest number.
async fn newest(
    client: &Arc<Client>,
    local: &Rc<LocalClient>,
    leaves: NodeId,
) -> Result<(NodeId, ClusterMap), FsError> {
    let mut newest: Option<(NodeId, ClusterMap)> = None;
    let mut error = FsError::Io("there is no other node".into());
    for node in client
        .map()
        .nodes
        .iter()
        .map(|node| node.id)
        .filter(|node| *node != leaves)
    {
        match local.ask(node, ask::Map).await {
            Ok(map) if newest.as_ref().is_none_or(|(_, known)| map.epoch > known.epoch) => newest = Some((node, map)),
            Ok(_) => {}
            Err(why) => error = why,
        }
    }
    newest.ok_or(error)
}
