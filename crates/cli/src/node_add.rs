//! `polvo node add`: has the nodes take one more into the cluster.

use crate::args::AddNodeArgs;
use crate::cluster_map::cluster_map;
use crate::config::Config;
use crate::connect::{Reach, own_cred, with_reach};
use crate::output::print;
use crate::{CliError, Exit};
use polvo_fabric::Address;
use polvo_format::NodeId;
use polvo_proto::{ClusterMap, Cred, FsError, NodeInfo, ask};
use std::path::Path;

/// Runs the command.
pub fn add(args: &AddNodeArgs) -> Result<Exit, CliError> {
    let (reach, node) = match (&args.config, args.node) {
        (Some(file), _) => from_config(file)?,
        (None, Some(id)) => {
            let node = NodeInfo {
                id: NodeId(id),
                host: args.host.clone().unwrap_or_default(),
                addresses: args.address.iter().map(Address::to_string).collect(),
            };
            (Reach::resolve(&args.cluster, None)?, node)
        }
        (None, None) => {
            let what = "say which node: polvo node add NODE --address ADDRESS, or --config FILE";
            return Err(CliError::Usage(what.into()));
        }
    };
    let id = node.id.0;
    let map = add_node(own_cred(), &reach, node)?;
    print(match map.is_replicated() {
        true => format!("node {id} is in the cluster; once its polvod runs, `polvo balance` gives it its share\n"),
        false => format!("node {id} is in the cluster; no region has copies, so it gets none of what there is\n"),
    })?;
    Ok(Exit::Success)
}

/// Asks the first node that answers; gives the map by which the node is in the cluster.
pub fn add_node(cred: Cred, reach: &Reach, node: NodeInfo) -> Result<ClusterMap, CliError> {
    with_reach(cred, reach, "node add", |client, local| async move {
        let mut error = None;
        for at in client
            .map()
            .nodes
            .iter()
            .map(|node| node.id)
            .filter(|id| *id != node.id)
        {
            match local.ask(at, ask::AddNode(Box::new(node.clone()))).await {
                Ok(map) => return Ok(map),
                Err(why @ FsError::Unreachable { .. }) => error = Some(why),
                Err(why) => {
                    error = Some(why);
                    break;
                }
            }
        }
        Err(CliError::Fs {
            what: format!("adding node {}", node.id.0),
            source: error.unwrap_or_else(|| FsError::Io("there is no other node".into())),
        })
    })
}

/// The node that a configuration is of, and how the others are reached.
fn from_config(file: &Path) -> Result<(Reach, NodeInfo), CliError> {
    let config = Config::read(file)?;
    let usage = |what: &str| {
        let (file, node) = (file.display(), config.node.0);
        CliError::Usage(format!("{file}: node {node} {what}"))
    };
    let own = config.nodes.iter().find(|node| node.id == config.node);
    if own.is_none_or(|own| !own.added) {
        return Err(usage(
            "is one of those of which the cluster is made; where it is not, its entry in cluster.nodes says `added = true`",
        ));
    }
    let (cluster, _) = config.cluster_and_secret()?;
    let map = cluster_map(&config, cluster);
    let node = map.node(config.node).ok_or_else(|| usage("is not in cluster.nodes"))?;
    Ok((Reach::of_others(&config)?, node.clone()))
}
