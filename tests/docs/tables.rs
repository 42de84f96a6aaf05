//! The tables agree with the code: every error, event and setting has its line.

use std::collections::BTreeSet;
use std::fs;

use crate::{DOCUMENTS, root, sources, text};

/// One space for each run of white space, and for a string's line break.
fn flat(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| *word != "\\");
    words.collect::<Vec<_>>().join(" ")
}

/// The message of each `macro_` event: the last string literal of the macro's arguments.
fn messages(code: &str, macro_: &str) -> Vec<String> {
    let start = format!("tracing::{macro_}!(");
    let calls = code.split(&start).skip(1);
    calls
        .map(|rest| {
            let call = rest.split(");").next().unwrap_or(rest);
            let message = call.split('"').nth_back(1).expect("a message");
            flat(message)
        })
        .collect()
}

/// The variants of an enum, by the indentation that rustfmt gives them.
fn variants(code: &str, name: &str) -> Vec<String> {
    let start = code.find(&format!("pub enum {name} {{")).expect("the enum");
    let body = code[start..].split("\n}").next().unwrap_or_default();
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    let starts = lines.filter(|line| line.starts_with(char::is_uppercase));
    starts
        .map(|line| line.chars().take_while(|c| c.is_alphanumeric()).collect())
        .collect()
}

#[test]
fn every_error_has_a_line() {
    let table = text("docs/troubleshooting.md");
    let code = text("src/error.rs");
    let mut checked = 0;
    for (name, shown) in [
        ("Error", "|`{}"),
        ("LostReason", "reason: {} }`"),
        ("ConfigError", "Config({}"),
    ] {
        for variant in variants(&code, name) {
            let line = shown.replace("{}", &variant);
            assert!(
                table.contains(&line),
                "docs/troubleshooting.md has no line for {name}::{variant}"
            );
            checked += 1;
        }
    }
    assert!(checked >= 21, "the variants were found");
}

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Every event of the library: its level and its message.
fn events() -> BTreeSet<(String, String)> {
    let mut events = BTreeSet::new();
    for path in sources(&root().join("src")) {
        let code = fs::read_to_string(&path).expect("a source");
        for level in LEVELS {
            let logged = messages(&code, level).into_iter();
            events.extend(logged.map(|message| (level.to_owned(), message)));
        }
    }
    assert!(events.len() >= 18, "the events were found");
    events
}

#[test]
fn the_table_of_events_is_that_of_the_code() {
    let troubleshooting = text("docs/troubleshooting.md");
    let (_, rows) = troubleshooting
        .split_once("|level|event|means|\n|---|---|---|\n")
        .expect("the table");
    let rows = rows.lines().take_while(|line| line.starts_with('|'));
    let listed: BTreeSet<_> = rows
        .map(|row| {
            let mut cells = row.split('|').skip(1).map(|cell| cell.trim().to_owned());
            let (level, event) = (cells.next(), cells.next());
            (level.expect("a level"), event.expect("an event"))
        })
        .collect();
    assert_eq!(listed, events());
}

/// The text before the first colon or semicolon; documents may name an event by that.
fn short(event: &str) -> &str {
    event.split([':', ';']).next().unwrap_or(event)
}

/// A document names an event in backticks, followed by its level in brackets: `hold lost` (warn).
#[test]
fn every_event_that_is_named_has_its_level() {
    let events = events();
    let mut checked = 0;
    for document in DOCUMENTS {
        let markdown = flat(&text(document));
        for (level, event) in &events {
            for name in [event.as_str(), short(event)] {
                for behind in markdown.split(&format!("`{name}`")).skip(1) {
                    assert!(
                        behind.starts_with(&format!(" ({level})")),
                        "{document}: {name}"
                    );
                    checked += 1;
                }
            }
        }
        for level in LEVELS {
            for (at, _) in markdown.match_indices(&format!("` ({level})")) {
                let name = markdown[..at].rsplit('`').next().unwrap_or_default();
                let meant = |(_, event): &(String, String)| event == name || short(event) == name;
                assert!(events.iter().any(meant), "{document}: no event {name}");
            }
        }
    }
    assert!(checked >= 6, "the names were found");
}

#[test]
fn every_setting_has_a_line() {
    let table = text("docs/configuration.md");
    for (file, prefix) in [
        ("src/client/builder.rs", "|`"),
        ("src/backoff.rs", "|… `Backoff::"),
    ] {
        let code = text(file);
        let setters = code.lines().filter_map(|line| {
            let line = line.trim().strip_prefix("pub fn ")?;
            line.split_once("(mut self,")
                .or_else(|| line.split_once("(self,"))
        });
        let setters: Vec<_> = setters.map(|(name, _)| name).collect();
        assert!(setters.len() >= 4, "the setters of {file} were found");
        for setter in setters {
            let line = format!("{prefix}{setter}`");
            assert!(
                table.contains(&line),
                "docs/configuration.md has no line for {setter}"
            );
        }
    }
}

/// Where the README counts: on Linux, without features.
#[test]
#[cfg(target_os = "linux")]
fn the_readme_knows_how_many_crates_it_brings() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = std::process::Command::new(cargo)
        .args(["tree", "--locked", "--edges", "normal", "--prefix", "none"])
        .args(["--package", "watchlock", "--no-dedupe"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8(tree.stdout).expect("names");
    let crates: BTreeSet<_> = tree.lines().collect();
    let brought = crates.len() - 1;
    let says = format!("Brings {brought} crates");
    assert!(text("README.md").contains(&says), "README.md: {says}");
}
