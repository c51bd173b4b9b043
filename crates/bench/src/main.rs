//! The benchmark suite of `make bench`: every figure is measured beside the baseline it could at best equal, in one
//! run, and reported as a ratio, since absolute values drift from machine to machine and from hour to hour.
//!
//! Rows of the report: `name, value, unit, baseline, ratio`; `baseline` names what `ratio` relates to. For latencies
//! a ratio of 1 means "as fast as the baseline", below 1 faster; for rates above 1 is faster. The unit tells which.

mod baseline;
mod cluster;
mod library;
mod limits;
mod mounted;
mod report;

use clap::Parser;
use report::Report;
use std::path::PathBuf;

/// Measures PolvoFS against memory copies, raw sockets and tmpfs, in one run.
#[derive(Parser)]
#[command(name = "polvo-bench", version)]
struct Args {
    /// Where the report goes.
    #[arg(long, default_value = "target/bench/report.json")]
    report: PathBuf,
    /// Directory for pools and scratch files; must be on tmpfs for the baselines to mean what they say.
    #[arg(long, default_value = "/dev/shm")]
    scratch: PathBuf,
    /// Size of the file that random reads and writes go to, in MiB.
    #[arg(long, default_value_t = 512)]
    file_mib: u64,
    /// Repetitions of each measurement; the median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A tenth of the work, for a quick look.
    #[arg(long)]
    quick: bool,
    /// Instead: reach the limits that are promised, with that many files in one directory, and say what each took.
    #[arg(long, value_name = "FILES", num_args = 0..=1, default_missing_value = "1000000")]
    limits: Option<usize>,
    /// What `--limits` does in a process that it kills.
    #[arg(long, hide = true)]
    limits_fill: Option<usize>,
    /// Leave out the mount (needs /dev/fuse and the right to mount).
    #[arg(long)]
    no_mount: bool,
}

/// How much work one measurement does.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Repetitions; the median counts.
    pub rounds: usize,
    /// Small operations a repetition.
    pub ops: usize,
    /// Size of the big file, bytes.
    pub file_len: u64,
}

fn main() {
    let args = Args::parse();
    let effort = Effort {
        rounds: if args.quick { 3 } else { args.rounds.max(1) },
        ops: if args.quick { 2_000 } else { 20_000 },
        file_len: if args.quick {
            64 << 20
        } else {
            args.file_mib.max(8) << 20
        },
    };
    if let Err(why) = run(&args, effort) {
        eprintln!("polvo-bench: {why}");
        std::process::exit(1);
    }
}

fn run(args: &Args, effort: Effort) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(files) = args.limits_fill {
        return limits::fill(&args.scratch, files);
    }
    if let Some(files) = args.limits {
        return limits::run(&args.scratch, files);
    }
    let scratch = cluster::Scratch::new(&args.scratch)?;
    let mut report = Report::default();
    let node = cluster::BenchNode::start(scratch.path(), cluster::pool_len(effort.file_len))?;
    library::internal(&node, scratch.path(), effort, &mut report)?;
    library::metadata(&node, scratch.path(), effort, &mut report)?;
    library::external(&node, effort, &mut report)?;
    if !args.no_mount {
        mounted::mounted(&node, scratch.path(), effort, &mut report)?;
    }
    node.stop()?;
    report.print();
    report.write(&args.report)?;
    println!("report: {}", args.report.display());
    Ok(())
}
