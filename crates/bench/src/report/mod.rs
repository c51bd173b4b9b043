//! What a run has found: rows, plots and notes of each experiment, and the machine they were found on.
//!
//! A run keeps it as JSON, from which it can be read again; [`Document`] is the one form that people read.

mod document;
mod goals;
mod machine;
pub mod plot;
mod table;

pub use document::Document;
pub use goals::{Outcome, outcomes};
pub use machine::{DIRTY, Machine};
pub use table::Table;

use crate::BenchError;
use crate::samples::Samples;
use plot::Plot;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::Path;

/// Unit of a figure; it also says which way is better.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Nanoseconds an operation.
    #[serde(rename = "ns")]
    Ns,
    /// Milliseconds of something long.
    #[serde(rename = "ms")]
    Ms,
    /// Requests, or messages of another kind, that something takes.
    #[serde(rename = "requests")]
    Requests,
    /// Bytes an item.
    #[serde(rename = "bytes")]
    Bytes,
    /// Gigabytes (10^9) a second.
    #[serde(rename = "GB/s")]
    GbPerS,
    /// Operations a second.
    #[serde(rename = "1/s")]
    PerS,
}

impl Unit {
    /// True where less is better.
    pub fn counts_down(self) -> bool {
        !matches!(self, Unit::GbPerS | Unit::PerS)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What a figure, or its ratio to a baseline, has to be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Target {
    /// No more.
    AtMost(f64),
    /// No less.
    AtLeast(f64),
}

impl Target {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Target::AtMost(limit) => value <= limit,
            Target::AtLeast(limit) => value >= limit,
        }
    }

    fn limit(self) -> f64 {
        match self {
            Target::AtMost(limit) | Target::AtLeast(limit) => limit,
        }
    }
}

/// One result, or one ratio of it.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Row {
    /// The experiment that found it.
    pub experiment: Cow<'static, str>,
    /// What was measured.
    pub name: String,
    /// Median.
    pub value: f64,
    /// Smallest of all rounds.
    pub low: f64,
    /// Largest of all rounds.
    pub high: f64,
    /// Of `value`, `low` and `high`.
    pub unit: Unit,
    /// What the ratio relates to; empty for a baseline itself.
    pub baseline: String,
    /// `value` over the baseline's value.
    pub ratio: Option<f64>,
    /// What the ratio (or, without one, the value) has to be, in words.
    pub target: Option<String>,
    /// Whether it is.
    pub met: Option<bool>,
    /// The number in `target`.
    #[serde(skip)]
    pub limit: Option<f64>,
}

impl Row {
    /// How fast (or small) it is beside its baseline: 1 as good, above better, whatever the unit.
    pub fn advantage(&self) -> Option<f64> {
        self.ratio.map(|ratio| self.as_advantage(ratio))
    }

    /// The ratio in a cell; nothing where there is none.
    pub fn ratio_shown(&self) -> String {
        self.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}x"))
    }

    /// Whether the target is met, in a cell; nothing where there is none.
    pub fn met_shown(&self) -> String {
        match self.met {
            Some(true) => "met".into(),
            Some(false) => "MISSED".into(),
            None => String::new(),
        }
    }

    /// The same scale for a ratio that is aimed at.
    pub fn as_advantage(&self, ratio: f64) -> f64 {
        if self.unit.counts_down() { 1.0 / ratio } else { ratio }
    }
}

/// An experiment's part of the report.
#[derive(Serialize, Deserialize, Debug)]
pub struct Section {
    /// Its name on the command line.
    pub name: Cow<'static, str>,
    /// In a few words.
    pub title: Cow<'static, str>,
    /// What is measured, and how; paragraphs are separated by an empty line.
    pub about: Cow<'static, str>,
    /// What a reader has to know about this run of it.
    pub notes: Vec<String>,
    /// What compares its rows; none where the rows are few.
    pub tables: Vec<Table>,
    /// Its plots.
    pub plots: Vec<Plot>,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Why it ended before its end.
    pub failure: Option<String>,
}

/// What an experiment finds, while it runs.
pub struct Findings<'a> {
    experiment: &'static str,
    earlier: &'a [Row],
    rows: Vec<Row>,
    notes: Vec<String>,
    tables: Vec<Table>,
    plots: Vec<Plot>,
}

impl<'a> Findings<'a> {
    /// Nothing yet; `earlier` are the rows of the experiments before, which may serve as baselines.
    pub fn new(experiment: &'static str, earlier: &'a [Row]) -> Findings<'a> {
        Findings {
            experiment,
            earlier,
            rows: Vec::new(),
            notes: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// A figure on its own: a baseline, or something that nothing can be compared with.
    pub fn figure(&mut self, name: &str, unit: Unit, samples: &Samples) -> &Row {
        self.add(name, unit, samples, "", None, None)
    }

    /// A figure that has to be so large or so small.
    pub fn bounded(&mut self, name: &str, unit: Unit, samples: &Samples, target: Target) -> &Row {
        let met = target.is_met_by(samples.median());
        let text = match target {
            Target::AtMost(limit) => format!("<= {} {unit}", figure(limit)),
            Target::AtLeast(limit) => format!(">= {} {unit}", figure(limit)),
        };
        self.add(name, unit, samples, "", None, Some((text, met, target.limit())))
    }

    /// A figure beside a baseline, which is a row found before (here, or in an earlier experiment) in the same unit. Without
    /// that row there is no ratio, and the target is not judged.
    pub fn against(
        &mut self,
        name: &str,
        unit: Unit,
        samples: &Samples,
        baseline: &str,
        target: Option<Target>,
    ) -> &Row {
        let base = self
            .rows
            .iter()
            .chain(self.earlier)
            .find(|row| row.name == baseline && row.unit == unit);
        let ratio = base.map(|row| samples.median() / row.value);
        let judged = target.zip(ratio).map(|(target, ratio)| {
            let text = match target {
                Target::AtMost(limit) => format!("<= {limit:.2}x"),
                Target::AtLeast(limit) => format!(">= {limit:.2}x"),
            };
            (text, target.is_met_by(ratio), target.limit())
        });
        self.add(name, unit, samples, baseline, ratio, judged)
    }

    fn add(
        &mut self,
        name: &str,
        unit: Unit,
        samples: &Samples,
        baseline: &str,
        ratio: Option<f64>,
        judged: Option<(String, bool, f64)>,
    ) -> &Row {
        debug_assert!(
            self.rows
                .iter()
                .all(|row| (&*row.name, &*row.baseline, row.unit) != (name, baseline, unit)),
            "{name} beside {baseline:?} is found once"
        );
        let (target, met, limit) = match judged {
            Some((text, met, limit)) => (Some(text), Some(met), Some(limit)),
            None => (None, None, None),
        };
        self.rows.push(Row {
            experiment: self.experiment.into(),
            name: name.to_owned(),
            value: samples.median(),
            low: samples.low(),
            high: samples.high(),
            unit,
            baseline: baseline.to_owned(),
            ratio,
            target,
            met,
            limit,
        });
        self.rows.last().expect("one was added")
    }

    /// Something that a reader has to know.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Figures side by side, shown on terminals in place of the rows.
    pub fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// A plot of its own; an experiment without any gets one of its ratios.
    pub fn plot(&mut self, plot: Plot) {
        assert!(
            self.plots.iter().all(|other| other.name() != plot.name()),
            "the file {}.svg is of one plot",
            plot.name()
        );
        plot.check();
        self.plots.push(plot);
    }

    /// The rows and the section they make.
    pub fn finish(mut self, title: &'static str, about: &'static str) -> (Vec<Row>, Section) {
        if self.plots.is_empty()
            && let Some(plot) = Plot::of_ratios(self.experiment, title, &self.rows)
        {
            self.plots.push(plot);
        }
        let section = Section {
            name: self.experiment.into(),
            title: title.into(),
            about: about.into(),
            notes: self.notes,
            tables: self.tables,
            plots: self.plots,
            seconds: 0.0,
            failure: None,
        };
        (self.rows, section)
    }
}

/// A run's results.
#[derive(Serialize, Deserialize, Debug)]
pub struct Report {
    /// What was measured on.
    pub machine: Machine,
    /// The command that measures it again.
    pub command: String,
    /// Repetitions of each measurement.
    pub rounds: usize,
    /// How near it has come to what the suite judges.
    pub goals: Vec<Outcome>,
    /// All figures, experiment by experiment.
    pub rows: Vec<Row>,
    /// The experiments.
    pub sections: Vec<Section>,
}

impl Report {
    /// Writes the report to the file `json`, beside it as a document (`.md`), and `NAME.svg` of each plot.
    pub fn write(&self, json: &Path) -> io::Result<()> {
        let dir = json
            .parent()
            .filter(|dir| !dir.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir)?;
        std::fs::write(json, serde_json::to_vec_pretty(self)?)?;
        std::fs::write(json.with_extension("md"), Document::of(self).to_string())?;
        self.write_plots(dir)
    }

    /// The report that [`Report::write`] has written to the file `json`.
    ///
    /// # Errors
    /// There is no such file, or it is not a report of this version of the program.
    pub fn read(json: &Path) -> Result<Report, BenchError> {
        let text = std::fs::read(json).map_err(|why| format!("{}: {why}", json.display()))?;
        serde_json::from_slice(&text)
            .map_err(|why| format!("{} is no report of this program: {why}; run make bench", json.display()).into())
    }

    /// Writes the document `doc` with the gaps of `gaps.md` in the folder beside it that has its name without the ending;
    /// there go the plots, too, in place of those that are there.
    ///
    /// # Errors
    /// The report is not of a commit, `gaps.md` is not the short table that it should be, or a file cannot be written.
    pub fn write_document(&self, doc: &Path) -> Result<(), BenchError> {
        let commit = self.machine.commit.as_deref().ok_or("the report names no commit")?;
        if commit.ends_with(DIRTY) {
            return Err(
                format!("the report is of changes that are in no commit ({commit}): commit, then make bench").into(),
            );
        }
        let dir = doc.with_extension("");
        let gaps = document::read_gaps(&dir.join("gaps.md"))?;
        for file in std::fs::read_dir(&dir)? {
            let path = file?.path();
            if path.extension().is_some_and(|ending| ending == "svg") {
                std::fs::remove_file(path)?;
            }
        }
        self.write_plots(&dir)?;
        let plots = format!("{}/", dir.file_name().unwrap_or_default().display());
        Ok(std::fs::write(
            doc,
            Document::with_gaps(self, &plots, &gaps).to_string(),
        )?)
    }

    fn write_plots(&self, dir: &Path) -> io::Result<()> {
        let mut plots = self.sections.iter().flat_map(|section| &section.plots);
        plots.try_for_each(|plot| std::fs::write(dir.join(format!("{}.svg", plot.name())), plot.to_svg()))
    }

    /// How many goals were met, and how many the run has figures for.
    pub fn goals_met(&self) -> (usize, usize) {
        (self.goals.iter().filter(|goal| goal.is_met()).count(), self.goals.len())
    }

    /// Shows the rows of an experiment on a terminal.
    pub fn show_rows(out: &mut dyn io::Write, rows: &[Row]) -> io::Result<()> {
        for row in rows {
            let line = format!(
                "  {:<50} {:>12} {:<5} {:>8}  {:<38} {:<12} {}",
                row.name,
                figure(row.value),
                row.unit,
                row.ratio_shown(),
                row.baseline,
                row.target.as_deref().unwrap_or_default(),
                row.met_shown(),
            );
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number as people read it: three or four digits that count.
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 || v == 0.0 => 2,
        _ => 3,
    };
    let plain = format!("{value:.digits$}");
    let (whole, rest) = plain
        .split_once('.')
        .map_or((&*plain, ""), |(whole, _)| (whole, &plain[whole.len()..]));
    let mut grouped = String::new();
    for (index, digit) in whole.char_indices() {
        if index > 0 && digit.is_ascii_digit() && (whole.len() - index).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(value: f64) -> Samples {
        Samples::exact(value)
    }

    #[test]
    fn a_ratio_relates_to_the_row_that_is_named() {
        let mut first = Findings::new("first", &[]);
        first.figure("copy", Unit::Ns, &samples(100.0));
        first.figure("other", Unit::GbPerS, &samples(1.0));
        let (earlier, _) = first.finish("t", "a");
        let mut found = Findings::new("second", &earlier);
        found.against("read", Unit::Ns, &samples(150.0), "copy", Some(Target::AtMost(1.5)));
        found.against("write", Unit::Ns, &samples(151.0), "copy", Some(Target::AtMost(1.5)));
        found.against(
            "stream",
            Unit::GbPerS,
            &samples(2.0),
            "other",
            Some(Target::AtLeast(0.9)),
        );
        found.against("lost", Unit::Ns, &samples(2.0), "other", Some(Target::AtMost(1.0)));
        found.bounded("word", Unit::Ns, &samples(99.0), Target::AtMost(100.0));
        let (rows, section) = found.finish("t", "a");
        let ratios: Vec<_> = rows.iter().map(|row| row.ratio).collect();
        assert_eq!(ratios, [Some(1.5), Some(1.51), Some(2.0), None, None]);
        let met: Vec<_> = rows.iter().map(|row| row.met).collect();
        assert_eq!(met, [Some(true), Some(false), Some(true), None, Some(true)]);
        assert_eq!(rows[0].advantage(), Some(1.0 / 1.5), "less time is better");
        assert_eq!(rows[2].advantage(), Some(2.0), "more bytes are better");
        assert_eq!(section.plots.len(), 1, "ratios are plotted where nothing else is");
    }

    #[test]
    fn numbers_are_grouped_and_rounded() {
        for (value, text) in [
            (1_234_567.8, "1,234,568"),
            (999.4, "999"),
            (99.44, "99.4"),
            (1.0, "1.00"),
            (0.1234, "0.123"),
            (-1500.0, "-1,500"),
            (-150.0, "-150"),
            (0.0, "0.00"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
