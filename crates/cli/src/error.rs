//! The one error type of the programs, and their exit codes.

use polvo_fabric::FabricError;
use polvo_pmem::PmemError;
use polvo_proto::FsError;
use polvo_region::RegionError;
use std::fmt;
use std::path::{Path, PathBuf};

/// How a program ends. `docs/operations.md` lists these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Everything was done.
    Success = 0,
    /// Something could not be done; the last line on stderr says what.
    Failure = 1,
    /// The command line or a configuration file is wrong.
    Usage = 2,
    /// `polvod`: an address cannot be listened at.
    Address = 3,
    /// `polvod`: the pool cannot be used.
    Pool = 4,
    /// `polvod`: the mount failed.
    Mount = 5,
    /// `polvod`: the pool is an older copy of itself.
    SetBack = 6,
    /// `polvod`: others serve regions now that this node served before it was away.
    Deposed = 7,
    /// `polvo status`: all nodes answer, and regions lack replicas, or somebody who serves them.
    Degraded = 8,
    /// `polvod`: the node was removed from the cluster.
    Removed = 9,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}

/// A problem in a configuration file: where, and the cure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigProblem {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1; 0 when it is about the whole file.
    pub line: usize,
    /// The key, with its section (`pool.path`); empty when no key is concerned.
    pub key: String,
    /// What is wrong, and what the user can do.
    pub what: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, ": key {}", self.key)?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Why a command failed. The text says what happened, to what, and what the user can do.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// a configuration file is wrong
    #[error("{0}")]
    Config(Box<ConfigProblem>),
    /// the command line asks for something impossible
    #[error("{0}")]
    Usage(String),
    /// the operating system refused something
    #[error("{what}: {source}")]
    Os {
        /// what was tried, and on what
        what: String,
        /// its answer
        source: std::io::Error,
    },
    /// a file operation of the cluster failed
    #[error("{what}: {source}")]
    Fs {
        /// what was tried, and on what
        what: String,
        /// the cluster's answer
        source: FsError,
    },
    /// a pool cannot be used
    #[error("pool {pool}: {why}")]
    Pool {
        /// path of the pool
        pool: String,
        /// why, and what to do
        why: String,
    },
    /// a pool is an older copy of itself
    #[error(
        "pool {pool}: {why}; restore the later copy, or, if there is none, start polvod once with --accept-older-pool, and \
         repair the cluster with `polvo fsck --repair` when all nodes are stopped"
    )]
    SetBack {
        /// path of the pool
        pool: String,
        /// who says so
        why: String,
    },
    /// others serve what the node served before it was away
    #[error("node {node}: {why}")]
    Deposed {
        /// which
        node: u16,
        /// what is served elsewhere
        why: String,
    },
    /// the node is none of the cluster any more
    #[error("{0}")]
    Removed(FsError),
    /// an address cannot be used
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// the daemon cannot listen
    #[error("cannot listen: {0}")]
    Listen(String),
    /// the mount failed
    #[error("mount at {dir}: {why}")]
    Mount {
        /// mount point
        dir: String,
        /// why, and what to do
        why: String,
    },
    /// anything else, said in full
    #[error("{0}")]
    Other(String),
}

impl CliError {
    /// The exit code that this error ends a program with.
    pub fn exit(&self) -> Exit {
        match self {
            CliError::Config(_) | CliError::Usage(_) => Exit::Usage,
            CliError::Listen(_) => Exit::Address,
            CliError::Pool { .. } => Exit::Pool,
            CliError::Mount { .. } => Exit::Mount,
            CliError::SetBack { .. } => Exit::SetBack,
            CliError::Deposed { .. } => Exit::Deposed,
            CliError::Removed(_) => Exit::Removed,
            CliError::Os { .. } | CliError::Fs { .. } | CliError::Fabric(_) | CliError::Other(_) => Exit::Failure,
        }
    }

    /// A pool that cannot be mapped.
    pub fn pmem(pool: &Path, error: PmemError) -> CliError {
        CliError::Pool {
            pool: pool.display().to_string(),
            why: error.to_string(),
        }
    }

    /// A pool whose content cannot be used.
    pub fn region(pool: &Path, error: RegionError) -> CliError {
        CliError::Pool {
            pool: pool.display().to_string(),
            why: error.to_string(),
        }
    }
}

impl From<ConfigProblem> for CliError {
    fn from(problem: ConfigProblem) -> CliError {
        CliError::Config(Box::new(problem))
    }
}

/// Adds to an error what was being done when it happened.
pub trait Context<T> {
    /// `what`: the action and its object, as in "reading /etc/polvo/secret".
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CliError>;
}

impl<T> Context<T> for Result<T, std::io::Error> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CliError> {
        self.map_err(|source| CliError::Os { what: what(), source })
    }
}

impl<T> Context<T> for Result<T, rustix::io::Errno> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CliError> {
        self.map_err(|errno| CliError::Os {
            what: what(),
            source: errno.into(),
        })
    }
}

impl<T> Context<T> for Result<T, FsError> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CliError> {
        self.map_err(|source| CliError::Fs { what: what(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_starts_a_node_again_unless_that_cures_nothing() {
        let unit = include_str!("../../../packaging/polvod.service");
        let never = unit
            .lines()
            .find_map(|line| line.strip_prefix("RestartPreventExitStatus="));
        let never: Vec<u8> = never
            .expect("the unit says what starting again does not cure")
            .split(' ')
            .map(|code| code.parse().expect("a number"))
            .collect();
        assert_eq!(
            never,
            [Exit::Usage, Exit::Pool, Exit::SetBack, Exit::Removed].map(|exit| exit as u8)
        );
        assert!(unit.contains("\nRestart=on-failure\n"));
        let deposed = CliError::Deposed {
            node: 1,
            why: FsError::Deposed { region: 3 }.to_string(),
        };
        assert_eq!(deposed.exit(), Exit::Deposed);
        assert_eq!(
            deposed.to_string(),
            "node 1: region 3 is served by another node since this one was away; start it anew"
        );
    }

    #[test]
    fn the_manual_lists_every_exit_code() {
        let manual = include_str!("../../../docs/operations.md");
        let table = manual.split_once("## Exit codes").expect("the section is there").1;
        let table = table.split_once("\n## ").expect("others follow").0;
        let of_the_daemon = table.split_once("| `polvod` |").expect("its codes are listed").1;
        for exit in [
            Exit::Address,
            Exit::Pool,
            Exit::Mount,
            Exit::SetBack,
            Exit::Deposed,
            Exit::Removed,
        ] {
            let row = format!("\n| | {} | ", exit as u8);
            assert!(of_the_daemon.contains(&row), "{exit:?}");
        }
        let row = format!("| `polvo status` | {} | ", Exit::Degraded as u8);
        assert!(table.contains(&row), "{row}");
    }
}
