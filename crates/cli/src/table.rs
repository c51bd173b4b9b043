//! Tables on a terminal: columns under their headings, without lines.

use comfy_table::{CellAlignment, Table as Cells, presets};
use std::fmt;

/// A table. Its columns are as wide as what stands in them.
pub struct Table {
    cells: Cells,
}

impl Table {
    /// Without rows yet. A heading that begins with `>` is that of numbers: its column stands to the right.
    pub fn new<const N: usize>(headings: [&str; N]) -> Table {
        let mut cells = Cells::new();
        cells
            .load_style(presets::NOTHING)
            .set_header(headings.map(|heading| heading.trim_start_matches('>')));
        for (column, heading) in cells.column_iter_mut().zip(headings) {
            column.set_padding((0, 2));
            if heading.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Table { cells }
    }

    /// One row more.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.cells.add_row(cells);
    }
}

impl fmt::Display for Table {
    /// With a line break behind every row.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.cells.trim_fmt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_headings() {
        let mut table = Table::new(["NODE", ">SIZE", "ADDRESSES"]);
        table.row(["0".into(), "1022 MiB".into(), "shm:///a b".into()]);
        table.row(["all".into(), "3 GiB".into(), String::new()]);
        let lines = [
            "NODE      SIZE  ADDRESSES",
            "0     1022 MiB  shm:///a b",
            "all      3 GiB",
            "",
        ];
        assert_eq!(table.to_string(), lines.join("\n"));
    }
}
