//! `polvo fsck`: the consistency of a cluster, offline from its pools or online from its nodes; and its repair, offline.

mod offline;
mod online;

pub use offline::{Consent, OfflineCheck, check_pools, repair_pools};

use crate::args::FsckArgs;
use crate::dev::DevCluster;
use crate::output::print;
use crate::{CliError, Context};
use serde_json::json;
use std::path::PathBuf;

/// How a check ended, as fsck(8) has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FsckExit {
    /// Nothing is wrong.
    Clean = 0,
    /// Errors were corrected; none is left.
    Corrected = 1,
    /// Errors are left.
    Errors = 4,
    /// The check, or the repair, could not be made.
    Failed = 8,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// What is wrong, a line each.
    pub findings: Vec<String>,
    /// What is not wrong, but worth knowing.
    pub notes: Vec<String>,
    /// How the copies of regions stand, a line a region.
    pub replicas: Vec<String>,
    /// What was repaired.
    pub repaired: Vec<String>,
    /// What a repair would put right.
    pub planned: Vec<String>,
    /// Regions checked.
    pub regions: usize,
    /// Inodes in use, when they were counted.
    pub inodes: Option<u64>,
}

impl Findings {
    /// What a repair could not do comes first: it says more than what the check finds afterwards.
    fn take_refused(&mut self, refused: Vec<String>) {
        let left = std::mem::replace(&mut self.findings, refused);
        for finding in left {
            if !self.findings.contains(&finding) {
                self.findings.push(finding);
            }
        }
    }

    fn exit(&self) -> FsckExit {
        match (
            self.findings.is_empty() && self.planned.is_empty(),
            self.repaired.is_empty(),
        ) {
            (false, _) => FsckExit::Errors,
            (true, false) => FsckExit::Corrected,
            (true, true) => FsckExit::Clean,
        }
    }
}

/// Runs the command.
pub fn fsck(args: &FsckArgs) -> FsckExit {
    let found = match check(args) {
        Ok(found) => found,
        Err(e) => {
            eprintln!("polvo: {e}");
            return FsckExit::Failed;
        }
    };
    let exit = found.exit();
    let printed = print(if args.json { as_json(&found) } else { as_text(&found) });
    match printed {
        Ok(()) => exit,
        Err(e) => {
            eprintln!("polvo: {e}");
            FsckExit::Failed
        }
    }
}

fn as_json(found: &Findings) -> String {
    let all = json!({
        "clean": found.exit() != FsckExit::Errors, "findings": found.findings, "notes": found.notes,
        "replicas": found.replicas,
        "repaired": found.repaired, "would_repair": found.planned,
        "regions": found.regions, "inodes": found.inodes,
    });
    format!("{all}\n")
}

fn as_text(found: &Findings) -> String {
    let mut text = String::new();
    for region in &found.replicas {
        text += &format!("{region}\n");
    }
    for note in &found.notes {
        text += &format!("note: {note}\n");
    }
    for repaired in &found.repaired {
        text += &format!("repaired: {repaired}\n");
    }
    for planned in &found.planned {
        text += &format!("would be repaired: {planned}\n");
    }
    for finding in &found.findings {
        text += finding;
        text.push('\n');
    }
    let inodes = found.inodes.map(|n| format!(", {n} inodes")).unwrap_or_default();
    let regions = found.regions;
    let end = match (found.findings.len(), found.repaired.len(), found.planned.len()) {
        (0, 0, 0) => "clean".to_string(),
        (0, repaired, 0) => format!("clean after {repaired} repairs"),
        (0, _, planned) => format!("{planned} repairs would make it clean"),
        (left, 0, 0) => format!("{left} errors"),
        (left, repaired, 0) => format!("{left} errors are left after {repaired} repairs"),
        (left, _, planned) => format!("{left} errors would be left after {planned} repairs"),
    };
    text + &format!("{end}: {regions} regions{inodes}\n")
}

fn check(args: &FsckArgs) -> Result<Findings, CliError> {
    if args.online {
        return online::check(args);
    }
    let pools: Vec<PathBuf> = match &args.dir {
        Some(dir) => {
            let dir = dir.canonicalize().doing(|| dir.display().to_string())?;
            let cluster = DevCluster::read(&dir)?
                .ok_or_else(|| CliError::Usage(format!("{} has no development cluster", dir.display())))?;
            cluster.node_ids().map(|n| cluster.pool(n)).collect()
        }
        None => args.pools.iter().map(PathBuf::from).collect(),
    };
    if pools.is_empty() {
        return Err(CliError::Usage(
            "name the pools to check, or --dir DIR of a stopped cluster, or --online".into(),
        ));
    }
    let check = OfflineCheck {
        pools,
        data: args.data,
        quiet: args.quiet,
    };
    match (args.repair, args.dry_run, args.yes) {
        (false, ..) => check_pools(&check),
        (true, true, _) => repair_pools(&check, Consent::DryRun),
        (true, false, true) => repair_pools(&check, Consent::Given),
        (true, false, false) => repair_pools(&check, Consent::Ask),
    }
}
