//! `polvo df`

use crate::CliError;
use crate::args::DfArgs;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::size::Size;
use crate::table::Table;
use crate::{Context, Exit};
use polvo_format::NodeId;
use polvo_proto::{RegionSet, Room, Usage};
use serde_json::{Value, json};

/// Runs the command. A node that does not answer makes it end with [`Exit::Failure`].
pub fn df(args: &DfArgs) -> Result<Exit, CliError> {
    let place = args.url.as_ref().map(|url| Location::parse(url)).transpose()?;
    let authority = place.and_then(|p| p.authority);
    with_client(&args.cluster, authority, "df", |_, client| async move {
        let (mut nodes, mut missing) = client
            .usage()
            .await
            .doing(|| "asking the nodes for their space".into())?;
        nodes.sort_by_key(|(node, _)| *node);
        missing.sort();
        let total: Usage = nodes.iter().map(|(_, usage)| *usage).sum();
        let usages: Vec<Usage> = nodes.iter().map(|(_, usage)| *usage).collect();
        let sets: Vec<(RegionSet, Room)> = client
            .client()
            .map()
            .sets()
            .map(|regions| regions[0].region_set())
            .map(|set| (set, Room::of(&usages, set.replicas)))
            .collect();
        if args.json {
            print(format!("{}\n", as_json(&nodes, &missing, &total, &sets)))?;
        } else {
            let mut table = Table::new(["NODE", ">SIZE", ">USED", ">FREE", ">USE%", ">INODES"]);
            for (node, usage) in &nodes {
                table.row(row(node.0.to_string(), usage));
            }
            table.row(row("all".into(), &total));
            let silent = missing.iter().map(|node| format!("node {} does not answer\n", node.0));
            let room = sets
                .iter()
                .map(|(set, room)| format!("{} with {set}", Size(room.free_bytes)));
            let room = format!("room for files: {}\n", room.collect::<Vec<_>>().join(" or "));
            print(table.to_string() + &silent.collect::<String>() + &room)?;
        }
        Ok(if missing.is_empty() {
            Exit::Success
        } else {
            Exit::Failure
        })
    })
}

fn as_json(nodes: &[(NodeId, Usage)], missing: &[NodeId], total: &Usage, sets: &[(RegionSet, Room)]) -> Value {
    let node = |(id, u): &(NodeId, Usage)| {
        json!({
            "node": id.0, "total_bytes": u.total_bytes, "free_bytes": u.free_bytes, "data_bytes": u.data_bytes,
            "inodes": u.inodes, "free_inodes": u.free_inodes,
        })
    };
    let room = |(set, room): &(RegionSet, Room)| {
        json!({
            "regions": set.to_string(), "total_bytes": room.total_bytes, "free_bytes": room.free_bytes,
            "free_inodes": room.free_inodes,
        })
    };
    json!({
        "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
        "unreachable": missing.iter().map(|n| n.0).collect::<Vec<_>>(),
        "total_bytes": total.total_bytes, "free_bytes": total.free_bytes, "data_bytes": total.data_bytes,
        "inodes": total.inodes,
        "room": sets.iter().map(room).collect::<Vec<_>>(),
    })
}

fn row(name: String, u: &Usage) -> [String; 6] {
    let used = u.total_bytes.saturating_sub(u.free_bytes);
    let percent = if u.total_bytes == 0 {
        0.0
    } else {
        used as f64 * 100.0 / u.total_bytes as f64
    };
    [
        name,
        Size(u.total_bytes).to_string(),
        Size(used).to_string(),
        Size(u.free_bytes).to_string(),
        format!("{percent:.0}%"),
        u.inodes.to_string(),
    ]
}
