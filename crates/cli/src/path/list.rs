//! `polvo ls`

use super::{entries, inode_of, join, show};
use crate::args::LsArgs;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::{CliError, Context};
use polvo_client::LocalClient;
use polvo_format::{Attr, FileKind};
use polvo_proto::{FsError, InodeRef};
use std::io::IsTerminal;
use std::rc::Rc;

/// Attributes asked for at once.
const AT_ONCE: usize = 64;

/// Runs the command.
pub fn ls(args: &LsArgs) -> Result<(), CliError> {
    let places = Location::parse_all(&args.paths)?;
    with_client(
        &args.cluster,
        places[0].authority.clone(),
        "ls",
        |_, client| async move {
            let mut failed = 0;
            for (i, place) in places.iter().enumerate() {
                if let Err(e) = list(&client, place, args, places.len() > 1, i > 0).await {
                    eprintln!("polvo: {e}");
                    failed += 1;
                }
            }
            if failed > 0 {
                Err(CliError::Other(format!("{failed} of {} paths failed", places.len())))
            } else {
                Ok(())
            }
        },
    )
}

async fn list(
    client: &Rc<LocalClient>,
    place: &Location,
    args: &LsArgs,
    with_header: bool,
    with_gap: bool,
) -> Result<(), CliError> {
    let attr = client
        .walk(&place.path, !args.directory && !args.long)
        .await
        .doing(|| place.shown())?;
    let mut lines = Vec::new();
    if attr.kind != FileKind::Directory || args.directory {
        lines.push((place.path.clone(), inode_of(&attr), Some(attr), place.path.clone()));
    } else {
        let mut all = entries(client, inode_of(&attr)).await.doing(|| place.shown())?;
        all.retain(|e| args.all || !e.name.starts_with(b"."));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        lines.extend(all.into_iter().map(|e| {
            let path = join(&place.path, &e.name);
            (e.name, e.target, None, path)
        }));
    }
    let mut text = Vec::new();
    if with_header {
        text.extend_from_slice(if with_gap { b"\n" } else { b"" });
        text.extend_from_slice(&place.path);
        text.extend_from_slice(b":\n");
    }
    let terminal = std::io::stdout().is_terminal();
    for chunk in lines.chunks(AT_ONCE) {
        // Asked for together, printed in order.
        let asked: Vec<_> = chunk
            .iter()
            .map(|(_, inode, attr, _)| {
                let (client, inode, attr, long) = (client.clone(), *inode, *attr, args.long);
                tokio::task::spawn_local(async move { details(&client, inode, attr, long).await })
            })
            .collect();
        for ((name, _, _, path), asked) in chunk.iter().zip(asked) {
            let found = asked.await.map_err(|e| CliError::Other(e.to_string()))?;
            match found {
                Ok(Some((attr, target))) => long_line(&mut text, &attr, name, &target, terminal),
                Ok(None) => text.extend_from_slice(&show::name(name, terminal)),
                // Removed since it was listed.
                Err(FsError::NotFound | FsError::Stale) => continue,
                Err(e) => return Err(e).doing(|| super::shown(path)),
            }
            text.push(b'\n');
        }
    }
    print(&text)
}

type Details = Option<(Attr, Vec<u8>)>;

async fn details(client: &LocalClient, inode: InodeRef, known: Option<Attr>, long: bool) -> Result<Details, FsError> {
    if !long {
        return Ok(None);
    }
    let attr = match known {
        Some(attr) => attr,
        None => client.get_attr(inode).await?,
    };
    let target = if attr.kind == FileKind::Symlink {
        client.read_link(inode).await?
    } else {
        Vec::new()
    };
    Ok(Some((attr, target)))
}

fn long_line(text: &mut Vec<u8>, attr: &Attr, name: &[u8], target: &[u8], terminal: bool) {
    let size = match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            let (major, minor) = (rustix::fs::major(attr.rdev), rustix::fs::minor(attr.rdev));
            format!("{major},{minor}")
        }
        _ => attr.size.to_string(),
    };
    let head = format!(
        "{} {:>3} {:>5} {:>5} {size:>12} {} ",
        show::mode(attr),
        attr.nlink,
        attr.uid,
        attr.gid,
        show::minute(attr.mtime_ns)
    );
    text.extend_from_slice(head.as_bytes());
    text.extend_from_slice(&show::name(name, terminal));
    if attr.kind == FileKind::Symlink {
        text.extend_from_slice(b" -> ");
        text.extend_from_slice(&show::name(target, terminal));
    }
}
