//! `polvo cat`

use super::inode_of;
use crate::args::CatArgs;
use crate::connect::{Location, with_client};
use crate::{CliError, Context};
use polvo_client::LocalClient;
use polvo_format::FileKind;
use polvo_proto::FsError;
use std::io::Write;

/// Runs the command.
pub fn cat(args: &CatArgs) -> Result<(), CliError> {
    let places = Location::parse_all(&args.paths)?;
    with_client(
        &args.cluster,
        places[0].authority.clone(),
        "cat",
        |_, client| async move {
            for place in &places {
                write_out(&client, place).await?;
            }
            Ok(())
        },
    )
}

/// Writes one file to standard output.
pub(super) async fn write_out(client: &LocalClient, place: &Location) -> Result<(), CliError> {
    let attr = client.walk(&place.path, true).await.doing(|| place.shown())?;
    match attr.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(FsError::IsDirectory).doing(|| place.shown()),
        _ => return Err(CliError::Other(format!("{}: not a regular file", place.shown()))),
    }
    let file = client.open(inode_of(&attr)).await.doing(|| place.shown())?;
    let mut out = std::io::stdout().lock();
    let mut bytes = client.stream(&file, 0..u64::MAX);
    while let Some(part) = bytes.next().await.doing(|| format!("reading {}", place.shown()))? {
        out.write_all(part).doing(|| "writing to standard output".into())?;
    }
    out.flush().doing(|| "writing to standard output".into())
}
