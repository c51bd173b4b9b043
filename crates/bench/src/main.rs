//! The suite's command line: see the library beside it.
#![forbid(unsafe_code)]

use clap::Parser;
use polvo_bench::report::Report;
use polvo_bench::suite::{self, COMPARE, EXPERIMENTS, Effort, Experiment, Plan};
use polvo_bench::{BenchError, experiments, mounted};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
Writes the report as JSON, the same as a page beside it (report.md), and each plot as an SVG file. The machine should do
nothing else meanwhile.

Examples:
  polvo bench                              everything, about half an hour
  polvo bench --quick                      a look, a few minutes
  polvo bench library network              two experiments
  polvo bench --compare /mnt/other         another file system beside our mounts
  polvo bench --compare /mnt/other all     the same after everything else

Exit codes: 0 measured, whether or not targets were met; 1 an experiment failed; 2 wrong command line.";

/// Measures PolvoFS against memory copies, raw sockets and tmpfs, in one run
#[derive(Parser)]
#[command(name = "polvo bench", bin_name = "polvo bench", version, after_long_help = HELP, max_term_width = 100)]
struct Args {
    /// Experiments to run, in this order; `all` stands for all of them [default: all]
    #[arg(value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// List the experiments
    #[arg(long)]
    list: bool,
    /// A tenth of the work, for a quick look
    #[arg(long)]
    quick: bool,
    /// Measure the files below this directory, of whatever file system, beside tmpfs and our mounts; nothing else, unless experiments
    /// are named. May be given several times
    #[arg(long, value_name = "DIR")]
    compare: Vec<PathBuf>,
    /// Where the report goes; the page and the plots lie beside it
    #[arg(long, value_name = "FILE", default_value = "target/bench/report.json")]
    report: PathBuf,
    /// Instead: write this document, and its plots, from the report of an earlier run; gaps are those of gaps.md in its folder
    #[arg(long, value_name = "FILE", conflicts_with_all = ["experiments", "compare", "list"])]
    doc: Option<PathBuf>,
    /// Directory for pools and baselines; must be on tmpfs for the baselines to mean what they say
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    scratch: PathBuf,
    /// Repetitions of each measurement; the median is reported [default: 5; 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Small operations a repetition [default: 20000; 2000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    ops: Option<u32>,
    /// Size of the file that random reads and writes go to, in MiB [default: 512; 64 with --quick]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(8..=65_536))]
    file_mib: Option<u64>,
    /// Numbers of clients, where an experiment goes over them
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 8, 20, 50, 100],
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: Vec<u16>,
    /// Sizes of messages in bytes, where an experiment goes over them
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_values_t = [16, 64, 256, 1024],
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    sizes: Vec<u16>,
    /// What a part of this program does in a process of its own
    #[arg(long, hide = true, value_name = "WHAT", num_args = 1..)]
    part: Vec<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(code) => code,
        // the reader of a pipe has had enough: no failure of ours
        Err(why) if is_broken_pipe(&why) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("polvo bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(why: &BenchError) -> bool {
    why.downcast_ref::<io::Error>()
        .is_some_and(|why| why.kind() == io::ErrorKind::BrokenPipe)
}

fn run(args: &Args) -> Result<ExitCode, BenchError> {
    let out = &mut io::stdout();
    if let Some((what, values)) = args.part.split_first() {
        return match what.as_str() {
            mounted::PART => mounted::part(&args.scratch, values),
            experiments::memory::PART => experiments::memory::part(&args.scratch, values),
            _ => Err(format!("{what} is no part of this program").into()),
        }
        .map(|()| ExitCode::SUCCESS);
    }
    if args.list {
        for experiment in EXPERIMENTS {
            writeln!(out, "{:<16} {}", experiment.name, experiment.title)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(doc) = &args.doc {
        Report::read(&args.report)?.write_document(doc)?;
        writeln!(out, "{} is that of {}", doc.display(), args.report.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    measure(args, out)
}

/// Runs the experiments asked for, and writes their report.
fn measure(args: &Args, out: &mut dyn Write) -> Result<ExitCode, BenchError> {
    let experiments = match chosen(args) {
        Ok(experiments) => experiments,
        Err(unknown) => {
            eprintln!("polvo bench: there is no experiment {unknown}; --list shows them");
            return Ok(ExitCode::from(2));
        }
    };
    let plan = Plan {
        experiments,
        scratch: args.scratch.clone(),
        effort: Effort {
            rounds: args.rounds.map_or(if args.quick { 3 } else { 5 }, usize::from),
            ops: args
                .ops
                .map_or(if args.quick { 2_000 } else { 20_000 }, |ops| ops as usize),
            file_len: args.file_mib.unwrap_or(if args.quick { 64 } else { 512 }) << 20,
        },
        clients: args.clients.iter().map(|n| usize::from(*n)).collect(),
        sizes: args.sizes.iter().map(|n| usize::from(*n)).collect(),
        compared: args.compare.clone(),
        command: command(std::env::args().skip(1)),
    };
    let report = suite::run(&plan, out)?;
    report.write(&args.report)?;
    let (met, all) = report.goals_met();
    writeln!(
        out,
        "{met} of {all} goals met; {} and {}",
        args.report.display(),
        args.report.with_extension("md").display()
    )?;
    if report.machine.was_busy() {
        writeln!(
            out,
            "something else was running when this began: these figures are no results"
        )?;
    }
    let failed = report.sections.iter().any(|section| section.failure.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What measures the same again: where the report went does not matter to it.
fn command(args: impl Iterator<Item = String>) -> String {
    let mut is_path = false;
    args.filter(|arg| {
        let skipped = std::mem::replace(&mut is_path, arg == "--report");
        !(skipped || is_path || arg.starts_with("--report="))
    })
    .fold("polvo bench".into(), |command, arg| command + " " + &arg)
}

/// The experiments asked for, or the name of one that there is not.
fn chosen(args: &Args) -> Result<Vec<&'static Experiment>, &str> {
    let compares = !args.compare.is_empty();
    let mut chosen = Vec::new();
    if args.experiments.is_empty() && !compares {
        chosen.extend(EXPERIMENTS);
    }
    for name in &args.experiments {
        match EXPERIMENTS.iter().find(|e| e.name == name) {
            Some(experiment) => chosen.push(*experiment),
            None if name == "all" => chosen.extend(EXPERIMENTS),
            None => return Err(name),
        }
    }
    chosen.extend(compares.then_some(COMPARE));
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        let args = Args::parse_from(["polvo bench", "network", "baselines"]);
        let names: Vec<_> = chosen(&args).unwrap().iter().map(|e| e.name).collect();
        assert_eq!(names, ["network", "baselines"]);
        let compared = Args::parse_from(["polvo bench", "--compare", "/a", "--compare", "/b", "all"]);
        assert_eq!(chosen(&compared).unwrap().len(), EXPERIMENTS.len() + 1);
        let compared = Args::parse_from(["polvo bench", "--compare", "/a"]);
        assert_eq!(chosen(&compared).unwrap()[0].name, "compare");
        assert_eq!(chosen(&Args::parse_from(["polvo bench", "fig99"])).err(), Some("fig99"));
    }

    #[test]
    fn a_report_does_not_say_where_it_was_written() {
        for (args, text) in [
            ("", "polvo bench"),
            ("--report /tmp/x.json --quick flat", "polvo bench --quick flat"),
            ("--report=/tmp/x.json flat", "polvo bench flat"),
        ] {
            assert_eq!(command(args.split_whitespace().map(str::to_owned)), text);
        }
    }
}
