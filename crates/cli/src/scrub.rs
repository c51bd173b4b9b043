//! `polvo scrub`: has the nodes compare file data with its checksums, and regions with their copies.

use crate::args::ScrubArgs;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::path::names_of;
use crate::size::Size;
use crate::{CliError, Context, Exit, progress};
use polvo_format::{Ino, NodeId, RegionId};
use polvo_proto::{CopyPlace, DamagedData, ScrubPlace, Scrubbed, ScrubbedCopies};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Damaged places of one file that are spelled out.
const PLACES_SHOWN: usize = 10;

/// What was found.
#[derive(Default)]
struct Found {
    bytes: u64,
    unknown: u64,
    damaged: BTreeMap<Ino, Vec<DamagedData>>,
    /// File data that was damaged, and is what the copy at that node has.
    mended: Vec<(DamagedData, NodeId)>,
    copies: Copies,
    /// Regions that were not scrubbed to their end, and why.
    missing: Vec<(RegionId, String)>,
}

/// What the comparison with copies has found.
#[derive(Default)]
struct Copies {
    bytes: u64,
    /// Pages of copies that were others, and were sent to them.
    sent: u64,
    /// Pages of regions that were damaged, and are what the copy at that node has.
    mended: Vec<(RegionId, Option<Ino>, NodeId)>,
    /// Pages that differ, by region, where neither helps the other.
    left: BTreeMap<RegionId, u64>,
}

impl Found {
    fn take(&mut self, step: Scrubbed) {
        self.bytes += step.bytes;
        self.unknown += step.unknown;
        for damaged in step.damaged {
            self.damaged.entry(damaged.inode.ino).or_default().push(damaged);
        }
        self.mended.extend(step.mended);
    }

    fn take_copies(&mut self, region: RegionId, step: ScrubbedCopies) {
        self.copies.bytes += step.bytes;
        self.copies.sent += step.sent;
        if step.left > 0 {
            *self.copies.left.entry(region).or_default() += step.left;
        }
        let mended = step.mended.into_iter();
        self.copies
            .mended
            .extend(mended.map(|(inode, node)| (region, inode, node)));
        for (node, why) in step.missing {
            let why = format!("its copy at node {}: {why}", node.0);
            if !self.missing.contains(&(region, why.clone())) {
                self.missing.push((region, why));
            }
        }
    }

    /// Pages that were put right, in regions and copies.
    fn repaired(&self) -> u64 {
        (self.mended.len() + self.copies.mended.len()) as u64 + self.copies.sent
    }

    fn is_clean(&self) -> bool {
        self.damaged.is_empty() && self.missing.is_empty() && self.copies.left.is_empty()
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
                        found.missing.push((region, error.to_string()));
                        next = None;
                    }
                }
                if let Some(rate) = args.rate {
                    keep_to(rate, began, found.bytes + found.unknown).await;
                }
            }
            let mut next = Some(CopyPlace::default());
            while let Some(from) = next {
                match client.scrub_copies(region, from).await {
                    Ok(step) => {
                        next = step.next.filter(|next| *next != from);
                        found.take_copies(region, step);
                    }
                    Err(error) => {
                        found.missing.push((region, error.to_string()));
                        next = None;
                    }
                }
                if let Some(rate) = args.rate {
                    keep_to(rate, began, found.bytes + found.unknown + found.copies.bytes).await;
                }
            }
        }
        bar.finish_and_clear();
        let mended = found.mended.iter().map(|(damaged, _)| damaged.inode.ino);
        let named: BTreeSet<Ino> = found.damaged.keys().copied().chain(mended).collect();
        let names = match named.is_empty() {
            true => BTreeMap::new(),
            false => names_of(&client, &named).await,
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
    for (place, node) in &found.mended {
        let (file, at, len) = (shown(place.inode.ino, names), place.offset, place.len);
        text += &format!("{file}: damaged at {at}+{len}, repaired from node {}\n", node.0);
    }
    for (region, inode, node) in &found.copies.mended {
        let inode = inode.map(|ino| format!(" of inode {ino:?}")).unwrap_or_default();
        text += &format!(
            "region {}: a damaged page{inode} is repaired from node {}\n",
            region.0, node.0
        );
    }
    if found.copies.sent > 0 {
        text += &format!(
            "{} pages of copies were others than in their regions, and are repaired\n",
            found.copies.sent
        );
    }
    for (region, pages) in &found.copies.left {
        text += &format!(
            "region {}: {pages} pages differ from those of a copy, and are not repaired: polvo fsck --online says what is damaged\n",
            region.0
        );
    }
    for (region, why) in &found.missing {
        text += &format!("region {} was not scrubbed: {why}\n", region.0);
    }
    let unknown = match found.unknown {
        0 => String::new(),
        bytes => format!(", {} without a checksum", Size(bytes)),
    };
    let copies = match found.copies.bytes {
        0 => String::new(),
        bytes => format!(", {} compared with copies", Size(bytes)),
    };
    let end = match (found.damaged.len(), found.repaired()) {
        (0, 0) if found.is_clean() => "clean".into(),
        (0, pages) if found.is_clean() => format!("clean after {pages} pages were repaired"),
        (0, _) => "no damaged files found".into(),
        (files, _) => format!("{files} damaged files"),
    };
    text + &format!("{end}: {} verified{unknown}{copies}\n", Size(found.bytes))
}

fn as_json(found: &Found, names: &BTreeMap<Ino, Vec<String>>) -> String {
    let file = |(ino, places): (&Ino, &Vec<DamagedData>)| {
        let places: Vec<_> = places
            .iter()
            .map(|p| json!({"offset": p.offset, "len": p.len}))
            .collect();
        json!({"inode": ino.0, "names": names.get(ino).cloned().unwrap_or_default(), "places": places})
    };
    let missing = |(region, why): &(RegionId, String)| json!({"region": region.0, "why": why});
    let mended = |(place, node): &(DamagedData, NodeId)| {
        let ino = place.inode.ino;
        let names = names.get(&ino).cloned().unwrap_or_default();
        json!({"inode": ino.0, "names": names, "offset": place.offset, "len": place.len, "from_node": node.0})
    };
    let page = |(region, inode, node): &(RegionId, Option<Ino>, NodeId)| {
        let inode = inode.map(|ino| ino.0);
        json!({"region": region.0, "inode": inode, "from_node": node.0})
    };
    let copies = json!({
        "compared_bytes": found.copies.bytes, "sent_pages": found.copies.sent,
        "mended": found.copies.mended.iter().map(page).collect::<Vec<_>>(),
        "left_pages": found.copies.left.values().sum::<u64>(),
    });
    let all = json!({
        "clean": found.is_clean(), "verified_bytes": found.bytes, "unknown_bytes": found.unknown,
        "damaged": found.damaged.iter().map(file).collect::<Vec<_>>(),
        "mended": found.mended.iter().map(mended).collect::<Vec<_>>(), "copies": copies,
        "missing": found.missing.iter().map(missing).collect::<Vec<_>>(),
    });
    format!("{all}\n")
}
