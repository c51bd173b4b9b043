//! `polvo fsck`: the consistency of a cluster, offline from its pools or online from its nodes.

mod offline;
mod online;

pub use offline::{OfflineCheck, check_pools};

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
    /// Errors are left.
    Errors = 4,
    /// The check could not be made.
    Failed = 8,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// What is wrong, a line each.
    pub findings: Vec<String>,
    /// What is not wrong, but worth knowing.
    pub notes: Vec<String>,
    /// Regions checked.
    pub regions: usize,
    /// Inodes in use, when they were counted.
    pub inodes: Option<u64>,
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
    let exit = if found.findings.is_empty() {
        FsckExit::Clean
    } else {
        FsckExit::Errors
    };
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
        "clean": found.findings.is_empty(), "findings": found.findings, "notes": found.notes,
        "regions": found.regions, "inodes": found.inodes,
    });
    format!("{all}\n")
}

fn as_text(found: &Findings) -> String {
    let mut text = String::new();
    for note in &found.notes {
        text += &format!("note: {note}\n");
    }
    for finding in &found.findings {
        text += finding;
        text.push('\n');
    }
    let inodes = found.inodes.map(|n| format!(", {n} inodes")).unwrap_or_default();
    text + &match found.findings.len() {
        0 => format!("clean: {} regions{inodes}\n", found.regions),
        n => format!("{n} errors: {} regions{inodes}\n", found.regions),
    }
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
    check_pools(&OfflineCheck {
        pools,
        quiet: args.quiet,
    })
}
