//! The check of a running cluster: its nodes check their regions, and what they know is joined here.

use super::Findings;
use crate::args::FsckArgs;
use crate::connect::{Location, Reach};
use crate::{CliError, Context, progress};
use polvo_cluster::{MapCell, SessionContext, check_cluster, fetch_map};
use polvo_format::SessionId;
use tokio::task::LocalSet;

pub(super) fn check(args: &FsckArgs) -> Result<Findings, CliError> {
    let place = match args.pools.as_slice() {
        [] => None,
        [url] => Some(Location::parse(url)?),
        _ => {
            return Err(CliError::Usage(
                "--online takes one polvo://HOST:PORT at the most".into(),
            ));
        }
    };
    let reach = Reach::resolve(&args.cluster, place.and_then(|p| p.authority).as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "starting the asynchronous runtime".into())?;
    let mut id = [0u8; 8];
    getrandom::fill(&mut id).expect("the system always has random numbers");
    let session = SessionId(u64::from_le_bytes(id).max(1));
    let result = LocalSet::new().block_on(&runtime, async {
        let name = "polvo fsck".to_string();
        let timeouts = reach.command_timeouts();
        let map = fetch_map(&reach.addresses, &reach.identity, session, &name, &timeouts)
            .await
            .doing(|| "connecting to the cluster".into())?;
        let regions = map.regions.len();
        let cell = MapCell::new(map);
        let context = SessionContext::new(cell, reach.identity, session, name, None, timeouts, reach.provider);
        let links = context.links();
        let bar = progress::count("checking regions", regions as u64, args.quiet);
        let mut advance = |done: u64, total: u64| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let findings = check_cluster(&links, &mut advance)
            .await
            .doing(|| "checking the cluster".into())?;
        bar.finish_and_clear();
        links.detach().await;
        Ok(Findings {
            findings,
            regions,
            ..Findings::default()
        })
    });
    runtime.shutdown_background();
    result
}
