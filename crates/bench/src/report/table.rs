//! Figures of one experiment side by side, as a person compares them: a few lines for what may be hundreds of rows.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A table. Where an experiment has some, a terminal shows these in place of the rows.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Table {
    /// Above it.
    pub title: String,
    /// What stands in each column; the first names the lines.
    pub columns: Vec<String>,
    /// A cell for each column.
    pub lines: Vec<Vec<String>>,
}

impl Table {
    /// Without lines yet.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        Table {
            title: title.into(),
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            lines: Vec::new(),
        }
    }

    /// One line more, a cell for each column.
    pub fn line(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.lines.push(cells);
    }
}

impl fmt::Display for Table {
    /// As text: the first column to the left, the others to the right.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = || std::iter::once(&self.columns).chain(&self.lines);
        let width = |column: usize| all().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        writeln!(f, "  {}", self.title)?;
        for line in all() {
            write!(f, "    {:<1$}", line[0], widths[0])?;
            for (cell, width) in line.iter().zip(&widths).skip(1) {
                write!(f, "  {cell:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_each_other() {
        let mut table = Table::new("reads", &["size", "1/s"]);
        table.line(vec!["64 B".into(), "1,000,000".into()]);
        table.line(vec!["1 MiB".into(), "10".into()]);
        let text = "  reads\n    size         1/s\n    64 B   1,000,000\n    1 MiB         10\n";
        assert_eq!(table.to_string(), text);
    }
}
