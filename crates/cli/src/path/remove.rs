//! `polvo rm`

use super::jobs::Jobs;
use super::{entries, join, shown};
use crate::args::RmArgs;
use crate::connect::{Location, with_client};
use crate::{CliError, Context, progress};
use polvo_client::LocalClient;
use polvo_format::FileKind;
use polvo_proto::{FsError, InodeRef};
use std::rc::Rc;

/// Runs the command.
pub fn rm(args: &RmArgs) -> Result<(), CliError> {
    let places = Location::parse_all(&args.paths)?;
    with_client(
        &args.cluster,
        places[0].authority.clone(),
        "rm",
        |_, client| async move {
            let jobs = Rc::new(Jobs::new(progress::spinner("removing", !args.recursive)));
            for place in &places {
                if let Err(e) = remove(&client, &jobs, place, args).await {
                    jobs.fail(&e);
                }
            }
            jobs.result()
        },
    )
}

async fn remove(client: &Rc<LocalClient>, jobs: &Rc<Jobs>, place: &Location, args: &RmArgs) -> Result<(), CliError> {
    let what = || format!("removing {}", place.shown());
    let gone = |e: &FsError| args.force && *e == FsError::NotFound;
    let (dir, name) = match client.walk_parent(&place.path).await {
        Err(e) if gone(&e) => return Ok(()),
        other => other.doing(what)?,
    };
    if name.is_empty() || name == b"." || name == b".." {
        return Err(CliError::Usage(format!("{}: name something in it", what())));
    }
    let attr = match client.lookup(dir, name).await {
        Err(e) if gone(&e) => return Ok(()),
        other => other.doing(what)?,
    };
    if attr.kind != FileKind::Directory {
        return client.unlink(dir, name).await.doing(what);
    }
    if !args.recursive {
        return Err(FsError::IsDirectory).doing(|| format!("{} (-r removes directories)", what()));
    }
    remove_tree(
        client,
        jobs,
        dir,
        name.to_vec(),
        super::inode_of(&attr),
        place.path.clone(),
    )
    .await;
    Ok(())
}

/// A directory under removal: where its name is, what it is, its path.
struct Doomed {
    parent: InodeRef,
    name: Vec<u8>,
    dir: InodeRef,
    path: Vec<u8>,
}

/// Removes files as they are met, several at once, then the directories from the deepest up.
async fn remove_tree(
    client: &Rc<LocalClient>,
    jobs: &Rc<Jobs>,
    parent: InodeRef,
    name: Vec<u8>,
    dir: InodeRef,
    path: Vec<u8>,
) {
    let mut dirs = vec![Doomed {
        parent,
        name,
        dir,
        path,
    }];
    let mut next = 0;
    while next < dirs.len() {
        let (dir, path) = (dirs[next].dir, dirs[next].path.clone());
        next += 1;
        let listed = match entries(client, dir).await.doing(|| format!("listing {}", shown(&path))) {
            Ok(listed) => listed,
            Err(e) => {
                jobs.fail(&e);
                continue;
            }
        };
        for entry in listed {
            let path = join(&path, &entry.name);
            if entry.kind == FileKind::Directory {
                dirs.push(Doomed {
                    parent: dir,
                    name: entry.name,
                    dir: entry.target,
                    path,
                });
                continue;
            }
            let client = client.clone();
            jobs.start(async move {
                match client.unlink(dir, &entry.name).await {
                    Ok(()) | Err(FsError::NotFound) => Ok(()),
                    Err(e) => Err(e).doing(|| format!("removing {}", shown(&path))),
                }
            })
            .await;
        }
    }
    jobs.finish().await;
    // Parents come before their children in the list.
    for doomed in dirs.into_iter().rev() {
        match client.rmdir(doomed.parent, &doomed.name).await {
            Ok(()) | Err(FsError::NotFound) => {}
            Err(e) => {
                let what = format!("removing {}", shown(&doomed.path));
                jobs.fail(&CliError::Fs { what, source: e });
            }
        }
    }
}
