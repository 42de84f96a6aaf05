//! `RESULTS.md`: a table for each question that a reader has, out of the tables of `results-raw.md`.

use std::fmt::Write;

/// A question, and the part of a raw table that answers it.
struct Question {
    title: &'static str,
    note: &'static str,
    /// What the raw table's title begins with.
    table: &'static str,
    /// Empty: all.
    rows: &'static [&'static str],
    /// Empty: all.
    columns: &'static [&'static str],
    chart: &'static str,
}

/// Those whose settings are as their documentation shows them.
const WITH_DEFAULTS: [&str; 6] = [
    "floor",
    "watchlock",
    "rslock",
    "async-redis-lock",
    "redis-lock",
    "Redisson",
];
const OF_ONE_NAME: [&str; 4] = [
    "sections/s",
    "hand-off p50 µs",
    "worst wait ms",
    "commands/section",
];

const QUESTIONS: [Question; 13] = [
    Question {
        title: "What does a lock cost when nobody waits?",
        note: "Pairs of lock and unlock per second (share of the floor: the same scripts sent without a library).",
        table: "Uncontended, multi-thread runtime: pairs per second",
        rows: &WITH_DEFAULTS,
        columns: &["1 task", "64 tasks"],
        chart: "uncontended",
    },
    Question {
        title: "How fast does a lock go from task to task in one process?",
        note: "Eight tasks, sections of 50 µs, no pauses. Hand-off: from just before the unlock to the next lock.",
        table: "Contended: one name, 8 tasks, sections of 50 µs",
        rows: &WITH_DEFAULTS,
        columns: &OF_ONE_NAME,
        chart: "contended",
    },
    Question {
        title: "How fast does it go from task to task of several processes?",
        note: "Four processes of four tasks, sections of 50 µs, no pauses.",
        table: "Contended: one name, 4 processes of 4 tasks, sections of 50 µs",
        rows: &WITH_DEFAULTS,
        columns: &OF_ONE_NAME,
        chart: "",
    },
    Question {
        title: "How long does one process wait behind another that never pauses?",
        note: "One task wants the lock every 20 ms while eight tasks of another client pass it on.",
        table: "Another process behind a client that never pauses",
        rows: &[],
        columns: &["wait p50 ms", "worst wait ms"],
        chart: "",
    },
    Question {
        title: "How many can wait for one lock?",
        note: "10 000 tasks wait; passed: within 8 s after the holder leaves.",
        table: "A crowd: 10 000 tasks wait for one name",
        rows: &WITH_DEFAULTS,
        columns: &["bytes a waiter", "passed", "passed/s"],
        chart: "crowd",
    },
    Question {
        title: "What do the other kinds cost?",
        note: "Pairs per second (share of the kind's own scripts sent without a library), p50 in µs.",
        table: "Kinds of lock, uncontended",
        rows: &[
            "watchlock fenced",
            "watchlock simple",
            "watchlock spin",
            "watchlock fair",
            "watchlock read",
            "watchlock write",
        ],
        columns: &[],
        chart: "",
    },
    Question {
        title: "What does holding cost?",
        note: "Renewals alone, with the default lease of each; shares of one core.",
        table: "Holding: locks kept alive",
        rows: &[
            "watchlock, 10 000",
            "async-redis-lock, 10 000",
            "watchlock, 100 000",
        ],
        columns: &["client core", "server core", "client bytes a hold", "gone"],
        chart: "",
    },
    Question {
        title: "How soon is a loss reported?",
        note: "The server ends while a client holds 20 000 locks. Milliseconds after the end of the validity; \
               others can get in 92 ms after it.",
        table: "An outage: the server ends",
        rows: &[],
        columns: &["p50", "last notified", "not notified"],
        chart: "",
    },
    Question {
        title: "Does a far client get its turn beside near ones?",
        note: "Sixteen near waiters, sections of 1 ms.",
        table: "A far client beside 16 near waiters",
        rows: &[],
        columns: &["turns of the far client", "its longest wait, ms"],
        chart: "",
    },
    Question {
        title: "How many names at once?",
        note: "Each task locks and unlocks its own name; time as a share of the floor's.",
        table: "A crowd of names",
        rows: &[
            "watchlock, 1 000",
            "watchlock, 10 000",
            "watchlock, 100 000",
        ],
        columns: &["seconds", "of the floor"],
        chart: "",
    },
    Question {
        title: "What does a quorum cost?",
        note: "µs to lock, p50. All servers share the machine; raw: the scripts sent to five servers without a library.",
        table: "A quorum: µs to lock",
        rows: &[],
        columns: &[
            "one server, p50",
            "three of five raw, p50",
            "five, p50",
            "five, two away, p50",
        ],
        chart: "",
    },
    Question {
        title: "What do acknowledgements by a replica cost?",
        note: "Pairs per second. Master, replica and client share the machine.",
        table: "Acknowledged by a replica",
        rows: &[],
        columns: &["not acknowledged", "acknowledged", "ratio"],
        chart: "",
    },
    Question {
        title: "What does a cluster cost?",
        note: "Pairs per second, the best of 15 rounds, and the median of their ratios; raw: the same scripts \
               without a library.",
        table: "Cluster: lock and unlock",
        rows: &[],
        columns: &[],
        chart: "",
    },
];

/// A table of the raw results.
struct Raw<'a> {
    title: &'a str,
    columns: Vec<&'a str>,
    rows: Vec<Vec<&'a str>>,
}

impl<'a> Raw<'a> {
    fn parse(section: &'a str) -> Self {
        let title = section.lines().next().unwrap_or_default();
        let lines = section.lines().filter(|line| line.starts_with('|'));
        let mut rows: Vec<Vec<_>> = lines.map(cells).collect();
        let rows_below = rows.split_off(rows.len().min(2));
        let columns = rows.into_iter().next().unwrap_or_default();
        Self {
            title,
            columns,
            rows: rows_below,
        }
    }

    /// The cells that `wanted` names; a name that is not there is left out.
    fn answer(&self, wanted: &Question) -> Vec<Vec<&'a str>> {
        let columns = self.columns.iter().enumerate();
        let columns: Vec<usize> = columns
            .filter(|(number, name)| {
                *number == 0 || wanted.columns.is_empty() || wanted.columns.contains(name)
            })
            .map(|(number, _)| number)
            .collect();
        let rows = self
            .rows
            .iter()
            .filter(|row| wanted.rows.is_empty() || wanted.rows.contains(&row[0]));
        let shown = [&self.columns].into_iter().chain(rows);
        let chosen = shown.map(|row| columns.iter().filter_map(|at| row.get(*at).copied()));
        chosen.map(Iterator::collect).collect()
    }
}

fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim_start_matches("| ").trim_end_matches('|');
    inner.split('|').map(str::trim).collect()
}

/// Answers all questions from the text of `results-raw.md`.
pub(crate) fn render(raw: &str) -> String {
    let mut sections = raw.split("\n## ");
    let head = sections.next().unwrap_or_default();
    let tables: Vec<_> = sections.map(Raw::parse).collect();
    let setting = head.lines().find(|line| line.starts_with("Written by"));
    let mut text = format!(
        "# What a lock costs\n\n{}\n\n[results-raw.md](results-raw.md) has every measurement, who takes part with \
         which settings, and the versions. [Far away, overloaded, by the thousand](../docs/field.md) says what to \
         expect.\n",
        setting.unwrap_or_default()
    );
    for question in &QUESTIONS {
        let table = tables
            .iter()
            .find(|table| table.title.starts_with(question.table));
        let Some(table) = table else { continue };
        let _ = writeln!(text, "\n## {}\n\n{}\n", question.title, question.note);
        render_rows(&mut text, &table.answer(question));
        if !question.chart.is_empty() {
            let _ = writeln!(
                text,
                "\n![{}](charts/{}.svg)",
                question.title, question.chart
            );
        }
    }
    if let Some(targets) = tables.iter().find(|table| table.title == "Targets") {
        render_missed(&mut text, targets);
    }
    text
}

/// The targets that are missed; how many are met.
fn render_missed(text: &mut String, targets: &Raw<'_>) {
    let missed = targets
        .rows
        .iter()
        .filter(|row| row.last() == Some(&"MISS"));
    let missed: Vec<Vec<&str>> = missed.map(|row| row[..3].to_vec()).collect();
    let _ = writeln!(
        text,
        "\n## Which targets are missed?\n\n{} of {}:\n",
        missed.len(),
        targets.rows.len()
    );
    let head = vec!["", "wanted", "measured"];
    render_rows(text, &[vec![head], missed].concat());
}

fn render_rows(text: &mut String, rows: &[Vec<&str>]) {
    for (number, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "|{}|", row.join("|"));
        if number == 0 {
            let _ = writeln!(text, "|---{}|", "|---:".repeat(row.len() - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn committed(name: &str) -> (std::path::PathBuf, String) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
        let text = std::fs::read_to_string(&path).expect("a committed file");
        (path, text)
    }

    #[test]
    fn the_committed_summary_is_that_of_the_committed_measurements() {
        let summary = render(&committed("results-raw.md").1);
        let (path, there) = committed("RESULTS.md");
        if std::env::var_os("UPDATE_RESULTS").is_some() {
            std::fs::write(path, summary).expect("it can be written");
        } else {
            assert!(summary == there, "UPDATE_RESULTS=1 writes RESULTS.md anew");
        }
    }

    #[test]
    fn each_question_finds_its_rows_and_columns() {
        let (_, raw) = committed("results-raw.md");
        let tables: Vec<_> = raw.split("\n## ").skip(1).map(Raw::parse).collect();
        for question in &QUESTIONS {
            let mut found = tables
                .iter()
                .filter(|t| t.title.starts_with(question.table));
            let table = found.next().unwrap_or_else(|| panic!("{}", question.table));
            let answer = table.answer(question);
            let known = |name: &&&str| table.columns.contains(*name);
            assert_eq!(
                question.columns.iter().filter(known).count(),
                question.columns.len()
            );
            assert!(
                answer.len() > 1 && answer[0].len() > 1,
                "{}",
                question.title
            );
        }
    }
}
