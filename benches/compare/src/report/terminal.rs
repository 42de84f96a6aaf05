//! The findings in a terminal.

use super::{Findings, Table};

pub(super) fn print(findings: &Findings) {
    for table in &findings.tables {
        print_table(table);
    }
    print_table(&targets(findings));
    let met = findings
        .targets
        .iter()
        .filter(|target| target.met == Some(true));
    let missed = findings
        .targets
        .iter()
        .filter(|target| target.met == Some(false));
    println!("{} targets met, {} missed", met.count(), missed.count());
    for failure in &findings.failures {
        println!("not measured: {failure}");
    }
}

/// The targets as a table.
pub(super) fn targets(findings: &Findings) -> Table {
    let mut table = Table::new("Targets", "");
    table.columns(["wanted", "measured", ""].map(str::to_owned));
    for target in &findings.targets {
        let cells = [&target.wanted, &target.measured, target.verdict()];
        table.row(&target.what, cells.map(|cell| Some(cell.to_owned())));
    }
    table
}

fn print_table(table: &Table) {
    println!("\n{}", table.title);
    let width = |column: usize| {
        let cells = table.rows.iter().chain([&table.columns]);
        let widths = cells
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    for row in [&table.columns].into_iter().chain(&table.rows) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell = match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
            line.push_str(&cell);
        }
        println!("  {}", line.trim_end());
    }
}
