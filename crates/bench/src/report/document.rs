//! A report as Markdown: what a run leaves beside its figures, and `docs/performance.md`.

use super::{Outcome, Report, Row, Section, Table, figure};
use crate::BenchError;
use std::fmt::{self, Display, Formatter};
use std::path::Path;

/// Which part of a document is of whom.
const GAPS_BY_HAND: &str = "Kept by hand, in `gaps.md` beside the plots. `make performance-doc` writes everything else, from the report of `make bench`.";

/// A report as one page. Plots are linked, not part of it.
pub struct Document<'a> {
    report: &'a Report,
    /// Before the name of each plot in its link: empty, or the folder's name and a slash.
    plots: &'a str,
    /// Table of what misses its target and why, which is written by hand.
    gaps: Option<&'a str>,
}

impl<'a> Document<'a> {
    /// A page whose plots lie beside it.
    pub fn of(report: &'a Report) -> Document<'a> {
        Document {
            report,
            plots: "",
            gaps: None,
        }
    }

    /// The page whose plots lie in the folder `plots`, with a table of gaps.
    pub fn with_gaps(report: &'a Report, plots: &'a str, gaps: &'a str) -> Document<'a> {
        Document {
            report,
            plots,
            gaps: Some(gaps),
        }
    }
}

impl Display for Document<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        head(f, self.report)?;
        targets(f, self.report)?;
        if let Some(gaps) = self.gaps {
            write!(f, "\n## Gaps\n\n{GAPS_BY_HAND}\n\n{}\n", gaps.trim())?;
        }
        for section in &self.report.sections {
            experiment(f, self, section)?;
        }
        Ok(())
    }
}

fn head(f: &mut Formatter<'_>, report: &Report) -> fmt::Result {
    let machine = &report.machine;
    let commit = machine.commit.as_deref().unwrap_or("unknown");
    write!(
        f,
        "# Performance\n\n\
         Every figure is the median of {} measurements, taken in turn with those of the baseline that it could at best equal, in\n\
         one run. Absolute values drift from machine to machine and from hour to hour: compare ratios. For times and sizes (ns,\n\
         bytes) below 1 is better than the baseline, for rates (GB/s, 1/s) above 1 is.\n\n\
         - commit {commit}, version {}, {} UTC\n\
         - {}, {} CPUs, {:.0} GiB, {}; load {} when the run began\n\
         - pools and baselines on {}; `{}`\n",
        report.rounds,
        machine.version,
        machine.date,
        machine.cpu,
        machine.cpus,
        machine.memory as f64 / f64::from(1 << 30),
        machine.kernel,
        machine.load,
        machine.scratch,
        report.command,
    )?;
    if machine.was_busy() {
        f.write_str("\n**Something else was running on this machine: these figures are no results.**\n")?;
    }
    Ok(())
}

fn targets(f: &mut Formatter<'_>, report: &Report) -> fmt::Result {
    let (met, all) = report.goals_met();
    if all == 0 {
        return Ok(());
    }
    write!(f, "\n## Targets\n\n{met} of {all} are met.\n\n")?;
    f.write_str("| what | target | measured |  |\n|---|---|---|---|\n")?;
    report.goals.iter().try_for_each(|goal| {
        let link = format!("[{}](#{})", goal.what, goal.experiment.replace('.', ""));
        line(f, [&*link, &goal.target, &goal.measured, &verdict(goal)])
    })
}

fn verdict(goal: &Outcome) -> String {
    match goal.met {
        met if met == goal.rows => "met".into(),
        0 => "**missed**".into(),
        met => format!("**{met} of {}**", goal.rows),
    }
}

fn experiment(f: &mut Formatter<'_>, document: &Document<'_>, section: &Section) -> fmt::Result {
    write!(
        f,
        "\n## {}\n\n**{}.**\n\n{}\n",
        section.name, section.title, section.about
    )?;
    if let Some(failure) = &section.failure {
        write!(f, "\nEnded by a failure: {failure}\n")?;
    }
    for note in &section.notes {
        write!(f, "\nNote: {note}\n")?;
    }
    let of_section = |row: &&Row| row.experiment == section.name;
    let rows: Vec<&Row> = document.report.rows.iter().filter(of_section).collect();
    let judged: Vec<bool> = rows.iter().filter_map(|row| row.met).collect();
    if !judged.is_empty() {
        let met = judged.iter().filter(|met| **met).count();
        write!(f, "\n{met} of {} figures that have a target meet it.\n", judged.len())?;
    }
    for plot in &section.plots {
        write!(f, "\n![{}]({}{}.svg)\n", plot.title(), document.plots, plot.name())?;
    }
    f.write_str("\n<details><summary>Figures</summary>\n")?;
    section.tables.iter().try_for_each(|table| compared(f, table))?;
    if section.tables.is_empty() && !rows.is_empty() {
        figures(f, &rows)?;
    }
    f.write_str("\n</details>\n")
}

/// A table as the experiment has made it: a few lines for its many rows.
fn compared(f: &mut Formatter<'_>, table: &Table) -> fmt::Result {
    write!(f, "\n**{}**\n\n", table.title)?;
    line(f, &table.columns)?;
    writeln!(f, "|---{}|", "|---:".repeat(table.columns.len() - 1))?;
    table.lines.iter().try_for_each(|cells| line(f, cells))
}

fn figures(f: &mut Formatter<'_>, rows: &[&Row]) -> fmt::Result {
    f.write_str(
        "\n|  | value | unit | smallest, largest | ratio | of | target |  |\n|---|---:|---|---:|---:|---|---|---|\n",
    )?;
    rows.iter().try_for_each(|row| {
        let spread = match row.low == row.high {
            true => String::new(),
            false => format!("{}, {}", figure(row.low), figure(row.high)),
        };
        let met = row.met.map_or("", |met| if met { "met" } else { "**missed**" });
        line(
            f,
            [
                &row.name,
                &figure(row.value),
                &row.unit.to_string(),
                &spread,
                &row.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
                &row.baseline,
                row.target.as_deref().unwrap_or_default(),
                met,
            ],
        )
    })
}

/// One line of a table.
fn line(f: &mut Formatter<'_>, cells: impl IntoIterator<Item = impl AsRef<str>>) -> fmt::Result {
    for cell in cells {
        write!(f, "| {} ", cell.as_ref().replace('|', "\\|"))?;
    }
    f.write_str("|\n")
}

/// Lines that a table of gaps may have: what does not fit says too much.
const GAPS_MAX_LINES: usize = 100;

/// The table of gaps in a file.
///
/// # Errors
/// It cannot be read, has anything else than the lines of a table, or more of them than are read.
pub fn read_gaps(path: &Path) -> Result<String, BenchError> {
    let gaps = std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
    check_gaps(&gaps).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok(gaps)
}

fn check_gaps(gaps: &str) -> Result<(), String> {
    if gaps.lines().count() > GAPS_MAX_LINES {
        return Err(format!("has more than {GAPS_MAX_LINES} lines"));
    }
    match gaps.lines().find(|line| !line.starts_with('|')) {
        Some(line) => Err(format!("is a table, a line each gap, and nothing else; not {line:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plot::{Axis, Plot, Series};
    use crate::report::{DIRTY, Findings, Machine, Target, Unit, outcomes};
    use crate::samples::Samples;

    const GAPS: &str = "| what | cause |\n|---|---|\n| bad | unknown |\n";

    /// Two experiments: rows with a plot, and a table.
    fn report() -> Report {
        let exact = Samples::exact;
        let mut found = Findings::new("orion-fig4.10", &[]);
        found.figure("base|raw", Unit::Ns, &exact(100.0));
        found.against("good", Unit::Ns, &exact(90.0), "base|raw", Some(Target::AtMost(1.0)));
        found.against("bad", Unit::Ns, &exact(300.0), "base|raw", Some(Target::AtMost(2.5)));
        found.note("a note");
        found.plot(Plot::Lines {
            name: "orion-fig4.10-a".into(),
            title: "Throughput".into(),
            x: Axis::log("bytes"),
            y: Axis::linear("1/s"),
            series: vec![Series {
                name: "polled".into(),
                points: vec![(16.0, 1.0), (64.0, 2.0)],
            }],
        });
        let (mut rows, first) = found.finish("Commits", "what\n\nhow");
        let mut found = Findings::new("flat", &rows);
        let mut table = Table::new("by size", &["bytes", "ns"]);
        table.line(vec!["64".into(), "90".into()]);
        found.table(table);
        let (more, second) = found.finish("Sizes", "what");
        rows.extend(more);
        Report {
            goals: outcomes(&rows),
            machine: Machine {
                commit: Some("abc1234".into()),
                // what differs from one call to the next
                load: 0.25,
                date: "2026-01-02 03:04".into(),
                ..Machine::this(Path::new("/"))
            },
            command: "polvo bench".into(),
            rounds: 5,
            rows,
            sections: vec![first, second],
        }
    }

    #[test]
    fn the_document_holds_machine_targets_gaps_and_each_experiment() {
        let report = report();
        assert_eq!(report.goals_met(), (0, 1));
        let page = Document::with_gaps(&report, "plots/", GAPS).to_string();
        for part in [
            "- commit abc1234, version ",
            "0 of 1 are met.",
            "(#orion-fig410) | no less throughput, within a tenth | 0.90x, 3.00x | **1 of 2** |",
            "| what | cause |\n|---|---|\n| bad | unknown |\n\n## orion-fig4.10",
            "\n## orion-fig4.10\n\n**Commits.**\n\nwhat\n\nhow\n",
            "\nNote: a note\n",
            "1 of 2 figures that have a target meet it.",
            "\n![Throughput](plots/orion-fig4.10-a.svg)\n",
            "| base\\|raw | 100 | ns |  |  |  |  |  |\n",
            "| bad | 300 | ns |  | 3.00 | base\\|raw | <= 2.50x | **missed** |\n",
            "\n**by size**\n\n| bytes | ns |\n|---|---:|\n| 64 | 90 |\n",
        ] {
            assert!(page.contains(part), "{part} in\n{page}");
        }
    }

    #[test]
    fn a_document_is_made_of_a_report_that_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let (json, doc) = (dir.path().join("report.json"), dir.path().join("performance.md"));
        report().write(&json).unwrap();
        assert!(dir.path().join("report.md").exists() && dir.path().join("orion-fig4.10-a.svg").exists());
        let read = Report::read(&json).unwrap();
        assert_eq!(Document::of(&read).to_string(), Document::of(&report()).to_string());

        let folder = dir.path().join("performance");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("gaps.md"), GAPS).unwrap();
        std::fs::write(folder.join("old.svg"), "").unwrap();
        read.write_document(&doc).unwrap();
        let page = std::fs::read_to_string(&doc).unwrap();
        assert!(page.contains("](performance/orion-fig4.10-a.svg)"), "{page}");
        assert!(folder.join("orion-fig4.10-a.svg").exists() && !folder.join("old.svg").exists());
    }

    #[test]
    fn a_report_that_is_not_of_a_commit_makes_no_document() {
        let dir = tempfile::tempdir().unwrap();
        for commit in [None, Some(format!("abc1234{DIRTY}"))] {
            let mut report = report();
            report.machine.commit = commit;
            let why = report.write_document(&dir.path().join("performance.md")).unwrap_err();
            assert!(why.to_string().contains("commit"), "{why}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn gaps_are_a_short_table() {
        assert_eq!(check_gaps(GAPS), Ok(()));
        assert!(
            check_gaps("| what |\n\nOn the night of")
                .unwrap_err()
                .contains("nothing else")
        );
        assert!(check_gaps(&"| a |\n".repeat(101)).unwrap_err().contains("100 lines"));
    }
}
