//! The output: tables and targets in the terminal and in Markdown, with charts; and a summary of them.

mod chart;
mod markdown;
mod summary;
mod table;
mod target;
mod terminal;
mod versions;

use std::path::Path;

pub(crate) use chart::Chart;
use chart::Colours;
pub(crate) use table::{Table, figure};
pub(crate) use target::Target;

use crate::Result;
use crate::bench::Bench;

/// All findings.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) tables: Vec<Table>,
    pub(crate) targets: Vec<Target>,
    pub(crate) charts: Vec<Chart>,
    pub(crate) failures: Vec<String>,
}

/// Prints the findings; writes them to files too, unless they mean nothing.
pub(crate) fn write(bench: &Bench, findings: &Findings) -> Result<()> {
    terminal::print(findings);
    if !bench.plan.is_whole() {
        println!("\nNot a whole run: nothing was written.");
        return Ok(());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let charts = folder.join("charts");
    std::fs::create_dir_all(&charts)?;
    let known = bench.roster.names(|_| true);
    let colours = Colours::of(&known, &findings.charts);
    for chart in &findings.charts {
        chart.draw(&charts, &colours)?;
    }
    let raw = markdown::render(&bench.roster, findings);
    std::fs::write(folder.join("RESULTS.md"), summary::render(&raw))?;
    std::fs::write(folder.join("results-raw.md"), raw)?;
    println!("\nWritten to benches/RESULTS.md, benches/results-raw.md and benches/charts.");
    Ok(())
}
