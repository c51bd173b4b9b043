//! `polvo stat`

use super::set::Placed;
use super::{inode_of, show};
use crate::args::StatArgs;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::{CliError, Context};
use polvo_format::{Attr, FileKind};
use serde_json::{Value, json};

/// Runs the command.
pub fn stat(args: &StatArgs) -> Result<(), CliError> {
    let places = Location::parse_all(&args.paths)?;
    with_client(
        &args.cluster,
        places[0].authority.clone(),
        "stat",
        |client, local| async move {
            for place in &places {
                let attr = local
                    .walk(&place.path, args.dereference)
                    .await
                    .doing(|| place.shown())?;
                let target = match attr.kind {
                    FileKind::Symlink => Some(local.read_link(inode_of(&attr)).await.doing(|| place.shown())?),
                    _ => None,
                };
                let target = target.map(|t| String::from_utf8_lossy(&t).into_owned());
                let placed = Placed::of(&local, &attr).await.doing(|| place.shown())?;
                let node = client.map().primary(attr.ino.region()).map(|n| n.0);
                if args.json {
                    print(format!("{}\n", as_json(place, &attr, target, node, placed)))?;
                } else {
                    print(as_text(place, &attr, target, node, placed))?;
                }
            }
            Ok(())
        },
    )
}

fn as_json(place: &Location, attr: &Attr, target: Option<String>, node: Option<u16>, placed: Placed) -> Value {
    json!({
        "path": place.shown(), "kind": show::kind(attr.kind), "target": target, "size": attr.size,
        "blocks": attr.blocks, "mode": format!("{:04o}", attr.mode), "nlink": attr.nlink, "uid": attr.uid,
        "gid": attr.gid, "rdev": attr.rdev, "inode": attr.ino.0, "generation": attr.generation.0,
        "region": attr.ino.region().0, "node": node, "regions": placed.regions, "placement": placed.placement, "atime_ns": attr.atime_ns, "mtime_ns": attr.mtime_ns,
        "ctime_ns": attr.ctime_ns, "btime_ns": attr.btime_ns,
    })
}

fn as_text(place: &Location, attr: &Attr, target: Option<String>, node: Option<u16>, placed: Placed) -> String {
    let target = target.map(|t| format!(" -> {t}")).unwrap_or_default();
    let node = node.map_or("no node".to_string(), |n| format!("node {n}"));
    let regions = match placed.placement {
        Some(placement) => format!("new files {}, by {placement}", placed.regions),
        None => placed.regions,
    };
    let times = [
        ("Access", attr.atime_ns),
        ("Modify", attr.mtime_ns),
        ("Change", attr.ctime_ns),
        (" Birth", attr.btime_ns),
    ];
    let times: String = times
        .iter()
        .map(|(what, ns)| format!("{what}: {}\n", show::nanosecond(*ns)))
        .collect();
    format!(
        "  File: {}{target}\n  Size: {:<15} Blocks: {:<10} {}\n Inode: {:<15} Links: {:<11} Generation: {}\n \
         Place: region {} on {node}, {regions}\nAccess: ({:04o}/{})  Uid: {}  Gid: {}\n{times}",
        place.shown(),
        attr.size,
        attr.blocks,
        show::kind(attr.kind),
        attr.ino.0,
        attr.nlink,
        attr.generation.0,
        attr.ino.region().0,
        attr.mode,
        show::mode(attr),
        attr.uid,
        attr.gid,
    )
}
