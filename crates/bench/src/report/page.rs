//! The report as one page that needs nothing else.

use super::plot::escaped;
use super::{Outcome, Report, Row, Section, Table, figure};
use std::fmt::Write;

const HEAD: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>PolvoFS benchmarks</title><style>\
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}\
h1{margin-bottom:.2rem}h2{margin-top:2.5rem;border-bottom:1px solid #8886;padding-bottom:.2rem}\
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;margin:1rem 0;display:block;\
overflow-x:auto}td,th{padding:.2rem .6rem;border-bottom:1px solid #8884;text-align:left;white-space:nowrap}\
td.n,th.n{text-align:right}.met{color:#009e73;font-weight:600}.missed{color:#d55e00;font-weight:600}\
.warn{border-left:4px solid #d55e00;padding:.2rem .8rem}code{background:#8882;padding:.1rem .3rem;border-radius:3px}\
.goals td{white-space:normal}h3{font-size:1rem;margin:1.2rem 0 0}summary{cursor:pointer;opacity:.75}svg{max-width:100%;height:auto}small{opacity:.75}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}\
dd{margin:0}</style></head><body>\n";

/// Writing to a string cannot fail.
macro_rules! put {
    ($to:expr, $($arg:tt)*) => {
        writeln!($to, $($arg)*).expect("a string takes everything")
    };
}

/// The page.
pub fn of(report: &Report) -> String {
    let mut page = String::from(HEAD);
    let (met, all) = report.goals_met();
    put!(page, "<h1>PolvoFS benchmarks</h1>");
    machine(&mut page, report);
    put!(
        page,
        "<p>Every figure is the median of {} measurements, taken in turn with those of the baseline that it could at best",
        report.rounds
    );
    put!(
        page,
        "equal, in one run. Absolute values drift from machine to machine and from hour to hour: compare ratios. For times"
    );
    put!(
        page,
        "and sizes a ratio below 1 is better than the baseline, for rates above 1.</p>"
    );
    if all > 0 {
        put!(page, "<h2 id=\"targets\">Targets: {met} of {all} met</h2>");
        goals(&mut page, &report.goals);
    }
    for section in &report.sections {
        experiment(&mut page, report, section);
    }
    put!(
        page,
        "<h2 id=\"again\">Again</h2><p><code>{}</code> runs all of this again, <code>polvo bench NAME</code> one",
        escaped(&report.command)
    );
    put!(
        page,
        "experiment, <code>polvo bench --list</code> shows them, <code>polvo bench --compare DIR</code> measures another"
    );
    put!(page, "file system with the same program.</p></body></html>");
    page
}

fn machine(page: &mut String, report: &Report) {
    let machine = &report.machine;
    put!(page, "<dl>");
    let gib = machine.memory as f64 / f64::from(1 << 30);
    let facts = [
        ("when", format!("{} UTC", machine.date)),
        ("processor", format!("{}, {} CPUs", machine.cpu, machine.cpus)),
        (
            "memory",
            format!("{gib:.0} GiB; pools and baselines on {}", machine.scratch),
        ),
        ("kernel", machine.kernel.clone()),
        (
            "program",
            match &machine.commit {
                Some(commit) => format!("{}, commit {commit}", machine.version),
                None => machine.version.to_owned(),
            },
        ),
        ("load", format!("{} when the run began", machine.load)),
    ];
    for (what, value) in facts {
        put!(page, "<dt>{what}</dt><dd>{}</dd>", escaped(&value));
    }
    put!(page, "</dl>");
    if machine.was_busy() {
        put!(
            page,
            "<p class=\"warn\">Something else was running on this machine: these figures are no results.</p>"
        );
    }
}

fn goals(page: &mut String, goals: &[Outcome]) {
    put!(
        page,
        "<table class=\"goals\"><tr><th>what</th><th>target</th><th>measured</th><th></th></tr>"
    );
    for goal in goals {
        let (class, word) = match goal.is_met() {
            true => ("met", "met".to_owned()),
            false if goal.met == 0 => ("missed", "missed".to_owned()),
            false => ("missed", format!("{} of {} met", goal.met, goal.rows)),
        };
        put!(
            page,
            "<tr><td><a href=\"#{}\">{}</a></td><td>{}</td><td>{}</td><td class=\"{class}\">{word}</td></tr>",
            goal.experiment,
            escaped(goal.what),
            escaped(goal.target),
            escaped(&goal.measured),
        );
    }
    put!(page, "</table>");
}

/// What an experiment shows, as far as its targets say it.
fn verdict(page: &mut String, rows: &[&Row]) {
    let judged = rows.iter().filter(|row| row.met.is_some()).count();
    let missed: Vec<String> = rows
        .iter()
        .filter(|row| row.met == Some(false))
        .map(|row| {
            let value = match row.ratio {
                Some(ratio) => format!("{ratio:.2}x"),
                None => format!("{} {}", figure(row.value), row.unit),
            };
            let target = row.target.as_deref().unwrap_or_default();
            escaped(&format!("{}: {value} ({target})", row.name))
        })
        .collect();
    if judged == 0 {
        return;
    }
    put!(
        page,
        "<p><b>{} of {judged} figures that have a target meet it.</b>",
        judged - missed.len()
    );
    if !missed.is_empty() {
        put!(page, "Not: {}.", missed.join("; "));
    }
    put!(page, "</p>");
}

fn compared(page: &mut String, table: &Table) {
    put!(page, "<h3>{}</h3><table><tr>", escaped(&table.title));
    for (index, name) in table.columns.iter().enumerate() {
        let class = if index > 0 { " class=\"n\"" } else { "" };
        put!(page, "<th{class}>{}</th>", escaped(name));
    }
    put!(page, "</tr>");
    for line in &table.lines {
        put!(page, "<tr>");
        for (index, cell) in line.iter().enumerate() {
            let class = match (index, &**cell) {
                (_, "met") => "met",
                (_, "MISSED") => "missed",
                (0, _) => "",
                _ => "n",
            };
            put!(page, "<td class=\"{class}\">{}</td>", escaped(cell));
        }
        put!(page, "</tr>");
    }
    put!(page, "</table>");
}

fn experiment(page: &mut String, report: &Report, section: &Section) {
    put!(
        page,
        "<h2 id=\"{0}\">{1} <small>{0}</small></h2>",
        section.name,
        escaped(section.title)
    );
    for paragraph in section.about.split("\n\n") {
        put!(page, "<p>{}</p>", escaped(paragraph));
    }
    if let Some(failure) = &section.failure {
        put!(page, "<p class=\"warn\">Ended by a failure: {}</p>", escaped(failure));
    }
    for note in &section.notes {
        put!(page, "<p class=\"warn\">{}</p>", escaped(note));
    }
    for plot in &section.plots {
        page.push_str(&plot.to_svg());
    }
    let rows: Vec<&Row> = report
        .rows
        .iter()
        .filter(|row| row.experiment == section.name)
        .collect();
    verdict(page, &rows);
    section.tables.iter().for_each(|table| compared(page, table));
    if !rows.is_empty() {
        // where tables say it, the rows are for who looks for one
        let open = if section.tables.is_empty() { " open" } else { "" };
        put!(page, "<details{open}><summary>All {} figures</summary>", rows.len());
        table(page, &rows);
        put!(page, "</details>");
    }
    put!(
        page,
        "<p><small>{:.0} s; again: <code>polvo bench {}</code></small></p>",
        section.seconds,
        section.name
    );
}

fn table(page: &mut String, rows: &[&Row]) {
    put!(
        page,
        "<table><tr><th>name</th><th class=\"n\">value</th><th>unit</th><th class=\"n\">smallest, largest</th>\
         <th class=\"n\">ratio</th><th>of</th><th>target</th><th></th></tr>"
    );
    for row in rows {
        let (class, word) = match row.met {
            Some(true) => ("met", "met"),
            Some(false) => ("missed", "missed"),
            None => ("", ""),
        };
        let spread = if row.low == row.high {
            String::new()
        } else {
            format!("{}, {}", figure(row.low), figure(row.high))
        };
        put!(
            page,
            "<tr><td>{}</td><td class=\"n\">{}</td><td>{}</td><td class=\"n\">{spread}</td>\
             <td class=\"n\">{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{word}</td></tr>",
            escaped(&row.name),
            figure(row.value),
            row.unit,
            row.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            escaped(&row.baseline),
            escaped(row.target.as_deref().unwrap_or_default()),
        );
    }
    put!(page, "</table>");
}

#[cfg(test)]
mod tests {
    use crate::report::plot::{Axis, Plot, Series};
    use crate::report::{Findings, Machine, Report, Table, Target, Unit, outcomes};
    use crate::samples::Samples;

    #[test]
    fn the_page_holds_the_machine_the_targets_and_each_experiment_with_its_plot() {
        let mut found = Findings::new("octopus-fig13", &[]);
        found.figure("base <raw>", Unit::Ns, &Samples::exact(100.0));
        found.against(
            "good",
            Unit::Ns,
            &Samples::exact(90.0),
            "base <raw>",
            Some(Target::AtMost(1.0)),
        );
        found.against(
            "bad",
            Unit::Ns,
            &Samples::exact(300.0),
            "base <raw>",
            Some(Target::AtMost(2.5)),
        );
        found.note("a note");
        let mut table = Table::new("by size", &["bytes", "ns"]);
        table.line(vec!["64".into(), "90".into()]);
        found.table(table);
        found.plot(Plot::Lines {
            name: "octopus-fig13-a".into(),
            title: "Throughput".into(),
            x: Axis::log("bytes"),
            y: Axis::linear("1/s"),
            series: vec![Series {
                name: "polled".into(),
                points: vec![(16.0, 1.0), (64.0, 2.0)],
            }],
        });
        let (rows, section) = found.finish("RPCs compared", "what\n\nhow");
        let goals = outcomes(&rows);
        let report = Report {
            goals,
            machine: Machine::this(std::path::Path::new("/")),
            command: "polvo bench".into(),
            rounds: 5,
            rows,
            sections: vec![section],
        };
        assert_eq!(report.goals_met(), (0, 1));
        let page = super::of(&report);
        for part in [
            "Targets: 0 of 1 met",
            "1 of 2 figures that have a target meet it",
            "bad: 3.00x (&lt;= 2.50x)",
            ">by size<",
            "base &lt;raw&gt;",
            ">met<",
            ">missed<",
            "<svg",
            "a note",
            "<p>how</p>",
            "polvo bench octopus-fig13",
        ] {
            assert!(page.contains(part), "{part}");
        }
        let dir = std::env::temp_dir().join(format!("polvo-bench-page-{}", std::process::id()));
        report.write(&dir.join("report.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.join("report.json")).unwrap()).unwrap();
        assert_eq!(json["rows"][1]["met"], true);
        assert_eq!(json["rows"][2]["target"], "<= 2.50x");
        assert!(dir.join("report.html").exists() && dir.join("octopus-fig13-a.svg").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
