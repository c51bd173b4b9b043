//! Check and repair of a stopped cluster, from its pools.

use super::Findings;
use crate::{CliError, Context, progress};
use indicatif::ProgressBar;
use polvo_pmem::{Medium, Pmem};
use polvo_region::{NOTHING_LOST, OfflinePool, Repaired};
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Lines of what a repair would do that are shown before the question.
const SHOWN_MAX: usize = 50;

/// What is to be checked.
pub struct OfflineCheck {
    /// The pools of all nodes.
    pub pools: Vec<PathBuf>,
    /// File data is compared with its checksums, too.
    pub data: bool,
    /// No progress bar.
    pub quiet: bool,
}

/// How sure the user is that a repair is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consent {
    /// Not at all: just say what it would do.
    DryRun,
    /// Ask, with what it would do.
    Ask,
    /// Said so on the command line.
    Given,
}

/// Checks copies of the pools, which stay as they are.
///
/// # Errors
/// A pool that is not there or cannot be opened, unless mirrors have all of its regions; what the check can fail with.
pub fn check_pools(check: &OfflineCheck) -> Result<Findings, CliError> {
    let open = |path: &Path| match open_copy(path)? {
        Some(copy) => Ok(copy),
        // a DAX device has no copy: what a crash has left is finished, as its node would at its start
        None => open(path),
    };
    let (here, gone): (Vec<_>, Vec<_>) = check.pools.iter().cloned().partition(|path| path.exists());
    let pools = open_all(&here, open)?;
    let (mut found, lacking) = checked(&pools, check)?;
    if lacking && let Some(path) = gone.first() {
        open(path)?;
    }
    let lost = gone
        .iter()
        .map(|path| format!("pool {}: is not there; {NOTHING_LOST}", path.display()));
    found.findings.extend(lost);
    Ok(found)
}

/// Repairs the pools, or says what it would do.
///
/// # Errors
/// [`CliError::Usage`] when there is nobody to ask; what opening and syncing the pools can fail with.
pub fn repair_pools(check: &OfflineCheck, consent: Consent) -> Result<Findings, CliError> {
    if consent != Consent::Given {
        let copies = open_all(&check.pools, |path| {
            open_copy(path)?.ok_or_else(|| {
                CliError::Usage(format!(
                    "{} is a device, which cannot be repaired on trial: give --yes, after a copy of it",
                    path.display()
                ))
            })
        })?;
        let planned = repaired(&copies, check)?;
        let (mut found, _) = checked(&copies, check)?;
        if consent == Consent::DryRun || planned.done.is_empty() {
            found.planned = planned.done;
            found.notes.extend(planned.notes);
            found.take_refused(planned.refused);
            return Ok(found);
        }
        ask(&planned)?;
    }
    let pools = open_all(&check.pools, open)?;
    let done = repaired(&pools, check)?;
    let (mut found, _) = checked(&pools, check)?;
    for OfflinePool { name, pmem } in &pools {
        if pmem.medium() == Medium::File {
            pmem.sync().map_err(|e| CliError::pmem(Path::new(name), e))?;
        }
    }
    found.repaired = done.done;
    found.notes.extend(done.notes);
    found.take_refused(done.refused);
    Ok(found)
}

/// Shows what a repair would do and asks whether it shall.
fn ask(planned: &Repaired) -> Result<(), CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::Usage(
            "--repair changes the pools: give --yes where nobody can be asked, or --dry-run to see what it would do"
                .into(),
        ));
    }
    let mut out = std::io::stderr().lock();
    let mut text = String::new();
    for line in planned.done.iter().take(SHOWN_MAX) {
        text += &format!("would be repaired: {line}\n");
    }
    if planned.done.len() > SHOWN_MAX {
        text += &format!("and {} more\n", planned.done.len() - SHOWN_MAX);
    }
    for line in planned.refused.iter().take(SHOWN_MAX) {
        text += &format!("would be left: {line}\n");
    }
    text += "What is repaired cannot be undone; a copy of the pools can. Repair? [y/N] ";
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .doing(|| "asking".into())?;
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .doing(|| "reading the answer".into())?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CliError::Other("nothing was repaired".into())),
    }
}

fn repaired(pools: &[OfflinePool], check: &OfflineCheck) -> Result<Repaired, CliError> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ns = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    let bar = progress::count("repairing", 0, check.quiet);
    let report = polvo_region::repair(pools, check.data, now_ns, &mut |what, done, total| {
        advance(&bar, what, done, total)
    });
    bar.finish_and_clear();
    report.map_err(|e| CliError::Other(e.to_string()))
}

/// What the check finds, and whether regions are in none of the pools.
fn checked(pools: &[OfflinePool], check: &OfflineCheck) -> Result<(Findings, bool), CliError> {
    let bar = progress::count("checking", 0, check.quiet);
    let checked = polvo_region::check(pools, check.data, &mut |what, done, total| {
        advance(&bar, what, done, total)
    });
    bar.finish_and_clear();
    let checked = checked.map_err(|e| CliError::Other(e.to_string()))?;
    let found = Findings {
        findings: checked.findings,
        notes: checked.notes,
        replicas: checked.replicas,
        regions: checked.regions,
        inodes: Some(checked.inodes),
        ..Findings::default()
    };
    Ok((found, checked.lacking))
}

fn open_all(
    paths: &[PathBuf],
    open: impl Fn(&Path) -> Result<OfflinePool, CliError>,
) -> Result<Vec<OfflinePool>, CliError> {
    paths.iter().map(|path| open(path)).collect()
}

fn named(path: &Path, pmem: std::sync::Arc<Pmem>) -> OfflinePool {
    OfflinePool {
        name: path.display().to_string(),
        pmem,
    }
}

fn open(path: &Path) -> Result<OfflinePool, CliError> {
    let pmem = Pmem::open(path, None).map_err(|e| CliError::pmem(path, e))?;
    Ok(named(path, pmem))
}

/// A copy that can be written to without harm; none of a DAX device.
fn open_copy(path: &Path) -> Result<Option<OfflinePool>, CliError> {
    let copy = Pmem::open_private(path).map_err(|e| CliError::pmem(path, e))?;
    Ok(copy.map(|pmem| named(path, pmem)))
}

fn advance(bar: &ProgressBar, what: &str, done: u64, total: u64) {
    bar.set_length(total);
    bar.set_position(done);
    bar.set_message(what.to_string());
}
