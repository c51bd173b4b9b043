//! The experiments, and how a run goes through them.

use crate::BenchError;
use crate::experiments;
use crate::report::{Findings, Machine, Report, outcomes};
use polvo_testbed::cluster::Scratch;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How much work one measurement does.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Repetitions; the median counts.
    pub rounds: usize,
    /// Small operations a repetition.
    pub ops: usize,
    /// Size of the big file, bytes (a multiple of 1 MiB).
    pub file_len: u64,
}

/// What an experiment works with.
pub struct Context<'a> {
    /// A directory of the run's own, on tmpfs.
    pub scratch: &'a Path,
    /// How much to do.
    pub effort: Effort,
    /// Numbers of clients where an experiment goes over them.
    pub clients: &'a [usize],
    /// Sizes of messages, bytes, where an experiment goes over them.
    pub sizes: &'a [usize],
    /// Directories of other file systems to be measured.
    pub compared: &'a [PathBuf],
}

/// One experiment. Those that reproduce a figure of a paper are named after it.
pub struct Experiment {
    /// On the command line, in the report, and of its plots' files.
    pub name: &'static str,
    /// In a few words.
    pub title: &'static str,
    /// What is measured and how; paragraphs are separated by an empty line.
    pub about: &'static str,
    /// Measures.
    pub run: fn(&Context<'_>, &mut Findings<'_>) -> Result<(), BenchError>,
}

/// All of them, in the order of a whole run: what serves others as a baseline comes before them.
pub const EXPERIMENTS: &[&Experiment] = &[
    &experiments::baselines::EXPERIMENT,
    &experiments::library::EXPERIMENT,
    &experiments::network::EXPERIMENT,
    &experiments::octopus_fig7::BANDWIDTH,
    &experiments::scaling::EXPERIMENT,
    &experiments::octopus_fig12::THROUGHPUT,
    &experiments::octopus_fig7::COPY,
    &experiments::octopus_fig12::COMPARED,
    &experiments::octopus_fig13::EXPERIMENT,
    #[cfg(feature = "two-phase")]
    &experiments::octopus_fig15::EXPERIMENT,
    &experiments::orion_fig4_7::EXPERIMENT,
    &experiments::orion_fig4_10::EXPERIMENT,
    &experiments::replication::EXPERIMENT,
    &experiments::checksums::EXPERIMENT,
    &experiments::log_garbage::EXPERIMENT,
    &experiments::carns::BANDWIDTH,
    &experiments::carns::LATENCY,
    &experiments::thresholds::EXPERIMENT,
    &experiments::null_mount::EXPERIMENT,
    &experiments::mount::EXPERIMENT,
    &experiments::mount_requests::EXPERIMENT,
    &experiments::mount_programs::EXPERIMENT,
    &experiments::mount_tokens::EXPERIMENT,
    &experiments::memory::EXPERIMENT,
    &experiments::flat::EXPERIMENT,
];

/// The one that measures other file systems; part of a run only with [`Context::compared`].
pub const COMPARE: &Experiment = &experiments::compare::EXPERIMENT;

/// What a run is asked for.
pub struct Plan<'a> {
    /// In the order in which they run.
    pub experiments: Vec<&'a Experiment>,
    /// Where pools and baselines go: below it, in a directory that is removed at the end.
    pub scratch: PathBuf,
    /// How much to do.
    pub effort: Effort,
    /// See [`Context`].
    pub clients: Vec<usize>,
    /// See [`Context`].
    pub sizes: Vec<usize>,
    /// See [`Context`].
    pub compared: Vec<PathBuf>,
    /// By which the run can be repeated.
    pub command: String,
}

/// Runs the experiments and says on `out` what each finds: its tables, or its rows where it has none. One that fails is in
/// the report with its failure; the others go on.
///
/// # Errors
/// The scratch directory cannot be made, or nobody reads `out` any more.
pub fn run(plan: &Plan<'_>, out: &mut dyn Write) -> Result<Report, BenchError> {
    let scratch = Scratch::new(&plan.scratch)?;
    let mut report = Report {
        machine: Machine::this(scratch.path()),
        command: plan.command.clone(),
        rounds: plan.effort.rounds,
        goals: Vec::new(),
        rows: Vec::new(),
        sections: Vec::new(),
    };
    let context = Context {
        scratch: scratch.path(),
        effort: plan.effort,
        clients: &plan.clients,
        sizes: &plan.sizes,
        compared: &plan.compared,
    };
    for experiment in &plan.experiments {
        writeln!(out, "{}: {}", experiment.name, experiment.title)?;
        let start = Instant::now();
        let mut found = Findings::new(experiment.name, &report.rows);
        let failure = (experiment.run)(&context, &mut found).err().map(|why| why.to_string());
        let (rows, mut section) = found.finish(experiment.title, experiment.about);
        match section.tables.is_empty() {
            true => Report::show_rows(out, &rows)?,
            false => section.tables.iter().try_for_each(|table| write!(out, "{table}"))?,
        }
        for note in &section.notes {
            writeln!(out, "  note: {note}")?;
        }
        if let Some(why) = &failure {
            writeln!(out, "  FAILED: {why}")?;
        }
        section.seconds = start.elapsed().as_secs_f64();
        section.failure = failure;
        writeln!(out, "  {:.1} s", section.seconds)?;
        report.rows.extend(rows);
        report.sections.push(section);
    }
    report.goals = outcomes(&report.rows);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_for_files() {
        let mut names: Vec<&str> = EXPERIMENTS.iter().chain([&COMPARE]).map(|e| e.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        assert!(names.iter().all(|name| name.chars().all(fits)), "{names:?}");
    }

    #[test]
    fn an_experiment_that_fails_is_in_the_report_and_the_others_go_on() {
        const GOOD: Experiment = Experiment {
            name: "good",
            title: "works",
            about: "",
            run: |_, found| {
                found.note("was here");
                Ok(())
            },
        };
        const BAD: Experiment = Experiment {
            name: "bad",
            title: "fails",
            about: "",
            run: |_, _| Err("no luck".into()),
        };
        let mut said = Vec::new();
        let report = run(&plan(vec![&BAD, &GOOD]), &mut said).unwrap();
        assert_eq!(report.sections[0].failure.as_deref(), Some("no luck"));
        assert_eq!(report.sections[1].notes, ["was here"]);
        let said = String::from_utf8(said).unwrap();
        assert!(
            said.contains("FAILED: no luck") && said.contains("note: was here"),
            "{said}"
        );
    }

    /// As little of them as can be.
    fn plan(experiments: Vec<&Experiment>) -> Plan<'_> {
        Plan {
            experiments,
            scratch: std::env::temp_dir(),
            effort: Effort {
                rounds: 1,
                ops: 1,
                file_len: 1 << 20,
            },
            clients: vec![1],
            sizes: vec![16],
            compared: Vec::new(),
            command: "polvo bench".into(),
        }
    }

    #[test]
    fn a_run_ends_when_nobody_listens() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        assert!(run(&plan(vec![&EXPERIMENTS[0]]), &mut Gone).is_err());
    }
}
