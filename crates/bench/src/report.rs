//! Rows, their table and their file.

use serde::Serialize;
use std::{io, path::Path, time::Duration};

/// One result.
#[derive(Serialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// Median.
    pub value: f64,
    /// Unit of `value`.
    pub unit: &'static str,
    /// What the ratio relates to.
    pub baseline: String,
    /// `value` over the baseline's value; absent for a baseline itself.
    pub ratio: Option<f64>,
}

/// All results of a run.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Records a baseline, or a result that others will be related to later.
    pub fn baseline(&mut self, name: &str, value: f64, unit: &'static str) {
        self.rows.push(Row {
            name: name.into(),
            value,
            unit,
            baseline: String::new(),
            ratio: None,
        });
    }

    /// Records a result: a row for each of the baselines, which are rows recorded before, in the same unit.
    pub fn row(&mut self, name: &str, value: f64, unit: &'static str, baselines: &[&str]) {
        for baseline in baselines {
            let base = self.rows.iter().find(|row| row.name == *baseline);
            let ratio = base.filter(|row| row.unit == unit).map(|row| value / row.value);
            self.rows.push(Row {
                name: name.into(),
                value,
                unit,
                baseline: (*baseline).into(),
                ratio,
            });
        }
    }

    /// Prints the table.
    pub fn print(&self) {
        println!(
            "{:<42} {:>12} {:<6} {:>8}  of baseline",
            "name", "value", "unit", "ratio"
        );
        for r in &self.rows {
            let ratio = r.ratio.map_or(String::new(), |x| format!("{x:.2}"));
            println!(
                "{:<42} {:>12.2} {:<6} {:>8}  {}",
                r.name, r.value, r.unit, ratio, r.baseline
            );
        }
    }

    /// Writes the rows as a JSON array.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        std::fs::write(path, serde_json::to_vec_pretty(&self.rows)?)
    }
}

/// Median of one figure over `rounds` repetitions.
pub fn median<E>(rounds: usize, mut measure: impl FnMut() -> Result<f64, E>) -> Result<f64, E> {
    let mut values = (0..rounds).map(|_| measure()).collect::<Result<Vec<f64>, E>>()?;
    values.sort_by(f64::total_cmp);
    Ok(values[values.len() / 2])
}

/// Nanoseconds an operation.
pub fn ns_per_op(took: Duration, ops: usize) -> f64 {
    took.as_nanos() as f64 / ops as f64
}

/// Operations a second.
pub fn rate(took: Duration, ops: usize) -> f64 {
    ops as f64 / took.as_secs_f64()
}

/// Gigabytes (10^9) a second.
pub fn gbps(took: Duration, bytes: u64) -> f64 {
    bytes as f64 / took.as_nanos() as f64
}
