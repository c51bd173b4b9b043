//! `polvo scrub`: has the nodes compare file data with its checksums.

use crate::args::ScrubArgs;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::path::names_of;
use crate::size::Size;
use crate::{CliError, Context, Exit, progress};
use polvo_format::{Ino, RegionId};
use polvo_proto::{DamagedData, FsError, ScrubPlace, Scrubbed};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Damaged places of one file that are spelled out.
const PLACES_SHOWN: usize = 10;

/// What was found.
#[derive(Default)]
struct Found {
    bytes: u64,
    unknown: u64,
    damaged: BTreeMap<Ino, Vec<DamagedData>>,
    /// Regions that were not scrubbed to their end, and why.
    missing: Vec<(RegionId, FsError)>,
}

impl Found {
    fn take(&mut self, step: Scrubbed) {
        self.bytes += step.bytes;
        self.unknown += step.unknown;
        for damaged in step.damaged {
            self.damaged.entry(damaged.inode.ino).or_default().push(damaged);
        }
    }

    fn is_clean(&self) -> bool {
        self.damaged.is_empty() && self.missing.is_empty()
    }
}

/// Runs the command. Damage, or a node that does not answer, makes it end with [`Exit::Failure`].
pub fn scrub(args: &ScrubArgs) -> Result<Exit, CliError> {
    let place = args.url.as_ref().map(|url| Location::parse(url)).transpose()?;
    let authority = place.and_then(|p| p.authority);
    with_client(&args.cluster, authority, "scrub", |_, client| async move {
        let (usage, _) = client
            .usage()
            .await
            .doing(|| "asking the nodes for their space".into())?;
        let bar = progress::bytes(usage.iter().map(|(_, u)| u.data_bytes).sum(), args.quiet);
        let mut found = Found::default();
        let began = Instant::now();
        for region in client.regions() {
            let mut next = Some(ScrubPlace::default());
            while let Some(from) = next {
                match client.scrub(region, from).await {
                    Ok(step) => {
                        // a node that answers with where it was asked to begin would be asked for ever
                        next = step.next.filter(|next| *next != from);
                        bar.inc(step.bytes + step.unknown);
                        found.take(step);
                    }
                    Err(error) => {
                        found.missing.push((region, error));
                        next = None;
                    }
                }
                if let Some(rate) = args.rate {
                    keep_to(rate, began, found.bytes + found.unknown).await;
                }
            }
        }
        bar.finish_and_clear();
        let names = match found.damaged.is_empty() {
            true => BTreeMap::new(),
            false => names_of(&client, &found.damaged.keys().copied().collect()).await,
        };
        print(match args.json {
            true => as_json(&found, &names),
            false => as_text(&found, &names),
        })?;
        Ok(if found.is_clean() { Exit::Success } else { Exit::Failure })
    })
}

/// Waits until so many bytes are no more than the rate allows.
async fn keep_to(rate: Size, began: Instant, bytes: u64) {
    let due = Duration::from_secs_f64(bytes as f64 / rate.0.max(1) as f64);
    tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
}

fn shown(ino: Ino, names: &BTreeMap<Ino, Vec<String>>) -> String {
    match names.get(&ino).filter(|names| !names.is_empty()) {
        Some(names) => names.join(", "),
        None => format!("inode {} (without a name that can be read)", ino.0),
    }
}

fn as_text(found: &Found, names: &BTreeMap<Ino, Vec<String>>) -> String {
    let mut text = String::new();
    for (ino, places) in &found.damaged {
        text += &format!("{}: damaged at ", shown(*ino, names));
        let some = places.iter().take(PLACES_SHOWN);
        let some: Vec<String> = some.map(|p| format!("{}+{}", p.offset, p.len)).collect();
        text += &some.join(", ");
        if places.len() > PLACES_SHOWN {
            text += &format!(" and {} more places", places.len() - PLACES_SHOWN);
        }
        text.push('\n');
    }
    for (region, error) in &found.missing {
        text += &format!("region {} was not scrubbed: {error}\n", region.0);
    }
    let unknown = match found.unknown {
        0 => String::new(),
        bytes => format!(", {} without a checksum", Size(bytes)),
    };
    let end = match found.damaged.len() {
        0 if found.missing.is_empty() => "clean".into(),
        0 => "no damage found".into(),
        files => format!("{files} damaged files"),
    };
    text + &format!("{end}: {} verified{unknown}\n", Size(found.bytes))
}

fn as_json(found: &Found, names: &BTreeMap<Ino, Vec<String>>) -> String {
    let file = |(ino, places): (&Ino, &Vec<DamagedData>)| {
        let places: Vec<_> = places
            .iter()
            .map(|p| json!({"offset": p.offset, "len": p.len}))
            .collect();
        json!({"inode": ino.0, "names": names.get(ino).cloned().unwrap_or_default(), "places": places})
    };
    let missing = |(region, error): &(RegionId, FsError)| json!({"region": region.0, "why": error.to_string()});
    let all = json!({
        "clean": found.is_clean(), "verified_bytes": found.bytes, "unknown_bytes": found.unknown,
        "damaged": found.damaged.iter().map(file).collect::<Vec<_>>(),
        "missing": found.missing.iter().map(missing).collect::<Vec<_>>(),
    });
    format!("{all}\n")
}
