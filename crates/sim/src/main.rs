//! `polvo-sim`: whole clusters under faults, from one seed each.
#![forbid(unsafe_code)]

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use polvo_node::Transactions;
use polvo_proto::Durability;
use polvo_sim::campaign;
use polvo_sim::minimize::minimize;
use polvo_sim::plant::Plant;
use polvo_sim::report::{Counts, Report};
use polvo_sim::schedule::{Fault, Limits, Schedule};
use polvo_sim::simulation::simulate;
use std::process::ExitCode;
use std::time::Instant;
use strum::VariantArray;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Simulates whole PolvoFS clusters under faults and checks what their clients are told.
///
/// Each seed determines a cluster (1 to 4 nodes), its clients (1 to 5), what they do and what goes wrong: delays, slow
/// hosts, lost connections, partitions in one and both directions, nodes that crash or lose power, one or all at once, nodes
/// that stand still, are cut off or lost for good where others have copies, clocks that drift, clients that die, pools that fill up. The real code of nodes and clients runs in one thread, on simulated pools,
/// network and clock. What the clients are told must be linearizable; in the end everything acknowledged must be there,
/// the check of every region must find nothing, and after deleting everything no space may be lost.
#[derive(Parser)]
#[command(version, max_term_width = 110, after_help = EXAMPLES)]
struct Options {
    /// How many seeds to run
    #[arg(long, value_name = "N", default_value_t = 1000, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them
    #[arg(long, value_name = "K", default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Run this one seed
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Show every operation and fault of the seed, with the simulated time in seconds (of a failing seed, without
    /// --seed)
    #[arg(long)]
    trace: bool,
    /// Show what nodes and clients log, as they do, with the simulated time in seconds and the operations and faults
    /// between it: a level, or directives like polvo_node=debug,polvo_region=trace (of one seed)
    #[arg(long, value_name = "DIRECTIVES", requires = "seed")]
    log: Option<EnvFilter>,
    /// Seeds to run at a time, each in a thread of its own [default: number of CPUs]
    #[arg(long, short, value_name = "J")]
    jobs: Option<usize>,
    /// Operations of each client [default: by seed]
    #[arg(long, value_name = "N")]
    operations: Option<u32>,
    /// At most so many clients
    #[arg(long, value_name = "N")]
    clients: Option<usize>,
    /// At most so many faults
    #[arg(long, value_name = "N")]
    faults: Option<u32>,
    /// Replicas of each region, as far as there are nodes [default: by seed]
    #[arg(long, value_name = "N")]
    replicas: Option<u8>,
    /// When changes of regions with mirrors are answered: async, sync or sync-flush [default: by seed]
    #[arg(long, value_name = "MODE")]
    durability: Option<Durability>,
    /// Plant a misbehaviour between clients and history, to see it found
    #[arg(long, value_name = "KIND")]
    plant: Option<Plant>,
    /// Nodes commit in two phases, as they do for comparison only, instead of by collect-dispatch
    #[arg(long)]
    two_phase: bool,
    /// Show a failing seed as it is, without looking for a smaller run that fails
    #[arg(long)]
    no_shrink: bool,
    /// Do not stop at the first seed that fails
    #[arg(long, conflicts_with = "seed")]
    keep_going: bool,
}

/// From so many seeds on every kind of fault has to occur.
const ALL_FAULTS_FROM: u64 = 200;

const EXAMPLES: &str = "\
Examples:
  polvo-sim --seeds 20000               run seeds 0 to 19999
  polvo-sim --seed 1234 --trace         run one seed and show what happens in it
  polvo-sim --seeds 100 --plant stale-read
                                        see a planted misbehaviour found

Exit status: 0 when all is as promised, 1 when not, 2 for wrong usage.";

fn main() -> ExitCode {
    let options = Options::parse();
    let limits = Limits {
        operations: options.operations,
        clients: options.clients,
        faults: options.faults,
        plant: options.plant,
        transactions: match options.two_phase {
            true => Transactions::TwoPhaseCommit,
            false => Transactions::CollectDispatch,
        },
        replicas: options.replicas,
        durability: options.durability,
    };
    match options.seed {
        Some(seed) => one(&options, &Schedule::of(seed, &limits)),
        None => many(&options, &limits),
    }
}

fn one(options: &Options, schedule: &Schedule) -> ExitCode {
    if let Some(directives) = &options.log {
        show_log(directives.clone());
    }
    let report = simulate(schedule);
    if options.trace {
        report.trace.iter().for_each(|line| println!("{line}"));
    }
    match &report.failure {
        None => {
            println!("seed {}: as promised; {}", schedule.seed, summary(&report.counts));
            ExitCode::SUCCESS
        }
        Some(failure) => {
            println!("seed {} FAILS\n{failure}", schedule.seed);
            ExitCode::FAILURE
        }
    }
}

fn show_log(directives: EnvFilter) {
    let history = "polvo_sim=info".parse().expect("it is well formed");
    tracing_subscriber::fmt()
        .with_env_filter(directives.add_directive(history))
        .with_timer(Simulated)
        .with_ansi(false)
        .init();
}

/// Logs have the time of the run that this thread simulates.
struct Simulated;

impl FormatTime for Simulated {
    fn format_time(&self, to: &mut Writer<'_>) -> std::fmt::Result {
        write!(to, "{:>12.6}", polvo_sim::history::now().as_secs_f64())
    }
}

fn many(options: &Options, limits: &Limits) -> ExitCode {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = options.jobs.unwrap_or(cpus).max(1);
    let bar = ProgressBar::new(options.seeds);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} seeds, {per_sec}, {eta} left{msg}");
    bar.set_style(style.expect("the template is well formed"));
    let start = Instant::now();
    let (counts, failed) = campaign::run(options.from, options.seeds, jobs, options.keep_going, limits, |total| {
        bar.set_position(total.seeds)
    });
    bar.finish_and_clear();
    println!(
        "{} in {:.1} s ({:.1} seeds/s)",
        summary(&counts),
        start.elapsed().as_secs_f64(),
        counts.seeds as f64 / start.elapsed().as_secs_f64().max(0.001),
    );
    if !failed.is_empty() {
        failed.into_iter().for_each(|report| show(options, report));
        return ExitCode::FAILURE;
    }
    let has_replicas = limits.replicas != Some(1) && limits.transactions != Transactions::TwoPhaseCommit;
    let missing: Vec<String> = Fault::VARIANTS
        .iter()
        .filter(|fault| !counts.faults.contains_key(fault))
        .filter(|fault| has_replicas || !Fault::is_of_replicas(**fault))
        .map(ToString::to_string)
        .collect();
    if options.seeds >= ALL_FAULTS_FROM && options.faults.is_none() && !missing.is_empty() {
        println!("these faults did not occur: {}", missing.join(", "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn show(options: &Options, report: Report) {
    let whole = report.schedule.command();
    let report = if options.no_shrink { report } else { minimize(report) };
    if options.trace {
        report.trace.iter().for_each(|line| println!("{line}"));
    }
    println!("\nFAILED {}", report.schedule);
    println!("{}", report.failure.as_deref().unwrap_or_default());
    println!("\nRepeat it with\n    {}", report.schedule.command());
    if report.schedule.command() != whole {
        println!("and the run it was made smaller from with\n    {whole}");
    }
}

fn summary(counts: &Counts) -> String {
    let faults: Vec<String> = counts
        .faults
        .iter()
        .map(|(fault, times)| format!("{times} {fault}"))
        .collect();
    format!(
        "{} seeds, {} operations ({} of unknown outcome), {} s simulated; faults: {}; histories: {} as promised, {} \
         undecided, the longest of {} operations; {} runs that may have lost changes",
        counts.seeds,
        counts.operations,
        counts.unknown,
        counts.simulated_ms / 1000,
        faults.join(", "),
        counts.checked,
        counts.undecided,
        counts.longest,
        counts.lossy,
    )
}
