//! All findings as Markdown: `results-raw.md`.

use std::fmt::Write;

use watchlock_support::server::RedisServer;

use super::{Findings, Table, terminal, versions};
use crate::roster::Roster;

pub(super) fn render(roster: &Roster, findings: &Findings) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# What a lock costs: all measurements\n\n{}\n",
        introduction()
    );
    for chart in &findings.charts {
        let _ = writeln!(text, "![{}](charts/{}.svg)\n", chart.title, chart.file);
    }
    for table in &findings.tables {
        render_table(&mut text, table);
    }
    render_table(&mut text, &terminal::targets(findings));
    for failure in &findings.failures {
        let _ = writeln!(text, "- not measured: {failure}");
    }
    let _ = writeln!(text, "\n## Who takes part\n");
    for who in roster.those(|_| true) {
        let _ = writeln!(text, "- **{}**: {}", who.info.name, who.info.note);
    }
    let _ = writeln!(text, "\n## Versions\n");
    for (what, version) in versions::all() {
        let _ = writeln!(text, "- {what} {version}");
    }
    text
}

fn introduction() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!(
        "Written by `make bench`, on {cores} cores with `{}`. Most figures are medians over interleaved rounds. \
         Ratios are taken round by round, so they depend less on the machine. Each measurement is a process of its \
         own, on a server that does nothing else.",
        RedisServer::version()
    )
}

fn render_table(text: &mut String, table: &Table) {
    let _ = writeln!(text, "## {}\n", table.title);
    if !table.note.is_empty() {
        let _ = writeln!(text, "{}\n", table.note);
    }
    let _ = writeln!(text, "| {} |", table.columns.join(" | "));
    let rules: Vec<&str> = (0..table.columns.len())
        .map(|column| if column == 0 { "---" } else { "---:" })
        .collect();
    let _ = writeln!(text, "| {} |", rules.join(" | "));
    for row in &table.rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    let _ = writeln!(text);
}
