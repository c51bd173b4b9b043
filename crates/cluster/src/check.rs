//! The online check of a whole cluster.

use crate::{Links, join_all};
use polvo_format::RegionId;
use polvo_proto::{CheckFacts, Cred, FsError, ask, join_facts};
use std::collections::HashSet;

/// How often what looks like damage is looked at again: regions are checked one after the other while others work on
/// them, so facts of different moments may disagree.
const PASSES: usize = 3;

/// Checks all regions of the map and joins what they know. `progress(done, total)` counts regions. Findings are those
/// that showed in every one of several passes. A region that cannot be reached is a finding.
pub async fn check_cluster(links: &Links, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<String>, FsError> {
    let mut findings = check_once(links, progress).await?;
    for _ in 1..PASSES {
        if findings.is_empty() {
            break;
        }
        let again: HashSet<String> = check_once(links, progress).await?.into_iter().collect();
        findings.retain(|finding| again.contains(finding));
    }
    Ok(findings)
}

async fn check_once(links: &Links, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<String>, FsError> {
    let map = links.context().map().get();
    let total = map.regions.len() as u64;
    progress(0, total);
    let mut done = 0;
    let mut facts = Vec::with_capacity(map.regions.len());
    let mut missing = Vec::new();
    for some in map.regions.chunks(map.nodes.len().max(1)) {
        let results = join_all(some.iter().map(|region| facts_of(links, region.id))).await;
        for (region, result) in some.iter().zip(results) {
            match result {
                Ok(found) => facts.push(found),
                Err(error @ FsError::Unreachable { .. }) => {
                    missing.push(format!("region {} was not checked: {error}", region.id.0));
                }
                Err(error) => return Err(error),
            }
        }
        done += some.len() as u64;
        progress(done, total);
    }
    let mut findings = join_facts(&facts);
    findings.extend(missing);
    Ok(findings)
}

async fn facts_of(links: &Links, region: RegionId) -> Result<CheckFacts, FsError> {
    let mut all: Option<CheckFacts> = None;
    let mut page = 0;
    loop {
        let facts = links
            .call_region(region, Cred::Kernel, ask::Check { region, page })
            .await?;
        match &mut all {
            Some(all) => all.append(facts),
            None => all = Some(facts),
        }
        match all.as_ref().and_then(|all| all.next) {
            Some(next) if next > page => page = next,
            _ => return Ok(all.expect("a page was taken in")),
        }
    }
}
