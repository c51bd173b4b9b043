//! `polvo format`: makes a pool.

use crate::args::FormatArgs;
use crate::config::{Config, parse_persistence};
use crate::output::say;
use crate::secret::Secret;
use crate::size::Size;
use crate::{CliError, ClusterId, Context};
use polvo_format::NodeId;
use polvo_pmem::{Persistence, Pmem, PmemError};
use polvo_region::{FormatParams, PoolIdentity, PoolSpace};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What `polvo format` is to do.
#[derive(Clone, Debug)]
pub struct FormatJob {
    /// The pool.
    pub pool: PathBuf,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its node.
    pub node: NodeId,
    /// Length of a pool that is made; `None`: what is there already.
    pub size: Option<Size>,
    /// Override of what is detected.
    pub persistence: Option<Persistence>,
    /// With checksums of file data.
    pub checksums: bool,
    /// Destroy what is there.
    pub force: bool,
}

/// Runs the command.
pub fn run(args: &FormatArgs) -> Result<(), CliError> {
    let job = job(args)?;
    let pmem = format(&job)?;
    say(format!(
        "Formatted {}: {} on {}, node {} of cluster {}",
        job.pool.display(),
        Size(pmem.len()),
        pmem.medium(),
        job.node.0,
        job.cluster
    ));
    Ok(())
}

fn job(args: &FormatArgs) -> Result<FormatJob, CliError> {
    let persistence = args
        .persistence
        .as_deref()
        .map(parse_persistence)
        .transpose()
        .map_err(CliError::Usage)?
        .flatten();
    if let Some(file) = &args.config {
        let config = Config::read(file)?;
        let (cluster, _) = config.cluster_and_secret()?;
        return Ok(FormatJob {
            pool: config.pool,
            cluster,
            node: config.node,
            size: args.size,
            persistence: persistence.or(config.persistence),
            checksums: config.checksums && !args.no_checksums,
            force: args.force,
        });
    }
    let missing = |what: &str| {
        CliError::Usage(format!(
            "{what} is missing; give --config FILE, or --pool, --node and --cluster"
        ))
    };
    let cluster = match (&args.cluster, &args.secret_file) {
        (Some(id), _) => *id,
        (None, Some(file)) => Secret::read(file)?.cluster.ok_or_else(|| missing("--cluster"))?,
        (None, None) => return Err(missing("--cluster")),
    };
    Ok(FormatJob {
        pool: args.pool.clone().ok_or_else(|| missing("--pool"))?,
        cluster,
        node: NodeId(args.node.ok_or_else(|| missing("--node"))?),
        size: args.size,
        persistence,
        checksums: !args.no_checksums,
        force: args.force,
    })
}

/// Makes the pool. A pool, or anything that is not blank, is destroyed with `force` only.
pub fn format(job: &FormatJob) -> Result<Arc<Pmem>, CliError> {
    let refuse = |why: String| CliError::Pool {
        pool: job.pool.display().to_string(),
        why,
    };
    let there = std::fs::metadata(&job.pool).is_ok_and(|m| !m.is_file() || m.len() > 0);
    let pmem = if there {
        let pmem = Pmem::open(&job.pool, job.persistence).map_err(|e| CliError::pmem(&job.pool, e))?;
        if let Some(what) = if job.force { None } else { contents(&pmem) } {
            return Err(refuse(format!("{what}; --force destroys it")));
        }
        match job.size {
            Some(size) if size.0 != pmem.len() => {
                // Given back first: a pool is locked by whoever has it open.
                drop(pmem);
                create(&job.pool, size, job.persistence)?
            }
            _ => pmem,
        }
    } else {
        let Some(size) = job.size else {
            return Err(CliError::Usage(format!(
                "{} is not there yet; give its --size",
                job.pool.display()
            )));
        };
        create(&job.pool, size, job.persistence)?
    };
    let mut pool = [0u8; 16];
    getrandom::fill(&mut pool).expect("the system always has random numbers");
    let identity = PoolIdentity {
        cluster: job.cluster.0,
        pool,
        node: job.node,
    };
    PoolSpace::format(
        &pmem,
        &FormatParams {
            identity,
            segment_shift: None,
            checksums: job.checksums,
        },
    )
    .map_err(|e| CliError::region(&job.pool, e))?;
    pmem.sync().map_err(|e| CliError::pmem(&job.pool, e))?;
    Ok(pmem)
}

fn create(pool: &Path, size: Size, persistence: Option<Persistence>) -> Result<Arc<Pmem>, CliError> {
    if let Some(dir) = pool.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).doing(|| format!("making directory {}", dir.display()))?;
    }
    Pmem::create(pool, size.0, persistence).map_err(|e| match e {
        PmemError::NoSpace { .. } => CliError::Pool {
            pool: pool.display().to_string(),
            why: format!("no space for {size}; give a smaller --size or another place"),
        },
        other => CliError::pmem(pool, other),
    })
}

/// What a pool that must not be destroyed by mistake holds; `None` when its beginning is blank.
fn contents(pmem: &Arc<Pmem>) -> Option<String> {
    let mut start = vec![0u8; pmem.len().min(1 << 20) as usize];
    pmem.read(0, &mut start);
    if start.iter().all(|b| *b == 0) {
        return None;
    }
    Some(match PoolSpace::open(pmem.clone()) {
        Ok(space) => {
            let id = space.identity();
            format!(
                "holds the pool of node {} of cluster {}",
                id.node.0,
                ClusterId(id.cluster)
            )
        }
        Err(why) => format!("holds something ({why})"),
    })
}
