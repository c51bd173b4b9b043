//! `polvo mv`

use super::{Destination, last_component, shown};
use crate::args::MvArgs;
use crate::connect::{Location, with_client};
use crate::{CliError, Context};
use polvo_proto::RenameMode;

/// Runs the command.
pub fn mv(args: &MvArgs) -> Result<(), CliError> {
    let places = Location::parse_all(&args.paths)?;
    let (to, from) = places.split_last().expect("clap asks for two paths at least");
    let mode = if args.no_clobber {
        RenameMode::NoReplace
    } else {
        RenameMode::Replace
    };
    with_client(&args.cluster, to.authority.clone(), "mv", |_, client| async move {
        let destination = Destination::find(&client, &to.path).await?;
        for place in from {
            let (new_dir, new_name, path) = destination.of(last_component(&place.path), from.len() > 1)?;
            let what = || format!("moving {} to {}", place.shown(), shown(&path));
            let (old_dir, old_name) = client.walk_parent(&place.path).await.doing(what)?;
            client
                .rename(old_dir, old_name, new_dir, &new_name, mode)
                .await
                .doing(what)?;
        }
        Ok(())
    })
}
