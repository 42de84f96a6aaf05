//! The documents keep up with the code: every error, warning and setting has its line, every link leads somewhere.
//! The README's Rust code is compiled as documentation tests, its ACL is used by `tests/docs/acl.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const DOCUMENTS: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/porting-from-redisson.md",
    "docs/redisson-conformance.md",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// One space for any white space, and for a string's line break.
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
    let readme = text("README.md");
    let code = text("src/error.rs");
    let mut checked = 0;
    for (name, shown) in [
        ("Error", "| `{}"),
        ("LostReason", "reason: {} }`"),
        ("ConfigError", "Config({}"),
    ] {
        for variant in variants(&code, name) {
            let line = shown.replace("{}", &variant);
            assert!(
                readme.contains(&line),
                "the README has no line for {name}::{variant}"
            );
            checked += 1;
        }
    }
    assert!(checked >= 21, "the variants were found");
}

#[test]
fn every_warning_has_a_line() {
    // The table of events; that of errors looks alike.
    let readme = text("README.md");
    let (_, events) = readme
        .split_once("| level | event | means |")
        .expect("the table");
    let readme = flat(events);
    let mut checked = 0;
    for path in sources(&root().join("src")) {
        let code = fs::read_to_string(&path).expect("a source");
        for level in ["warn", "error"] {
            for message in messages(&code, level) {
                let line = format!("| {level} | {message} |");
                assert!(readme.contains(&line), "{}: {line}", path.display());
                checked += 1;
            }
        }
    }
    assert!(checked >= 10, "the warnings were found");
}

#[test]
fn every_setting_has_a_line() {
    let readme = text("README.md");
    for (file, prefix) in [
        ("src/client/builder.rs", "| `"),
        ("src/backoff.rs", "| … `Backoff::"),
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
                readme.contains(&line),
                "the README has no line for {setter}"
            );
        }
    }
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(markdown: &str) -> BTreeSet<String> {
    let headings = markdown.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// The targets of a document's links, those of code blocks left out.
fn links(markdown: &str) -> Vec<String> {
    let prose = markdown.split("```").step_by(2);
    let targets = prose.flat_map(|part| part.split("](").skip(1));
    targets
        .filter_map(|rest| rest.split(')').next().map(str::to_owned))
        .collect()
}

/// A link into the repository as a path from its root, with a slash first; others as they are. The README has them
/// absolute, since crates.io shows it, too.
fn at_home(link: &str) -> &str {
    let ours = [
        "https://github.com/watchlock/watchlock/blob/main",
        "https://github.com/watchlock/watchlock/tree/main",
        "https://raw.githubusercontent.com/watchlock/watchlock/main",
    ];
    let path = ours.iter().find_map(|base| link.strip_prefix(base));
    path.unwrap_or(link)
}

#[test]
fn the_readme_is_whole_where_crates_io_shows_it() {
    let readme = text("README.md");
    for link in links(&readme) {
        let whole = link.starts_with('#') || link.starts_with("https://");
        assert!(whole, "{link}");
    }
}

#[test]
fn every_link_leads_somewhere() {
    for document in DOCUMENTS {
        let markdown = text(document);
        let folder = root().join(document).parent().expect("a folder").to_owned();
        for link in links(&markdown).iter().map(|link| at_home(link)) {
            if link.starts_with("http") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if let Some(path) = path.strip_prefix('/') {
                root().join(path)
            } else if path.is_empty() {
                root().join(document)
            } else {
                folder.join(path)
            };
            assert!(target.exists(), "{document}: {link}");
            if !anchor.is_empty() {
                let there = fs::read_to_string(&target).expect("a document");
                assert!(anchors(&there).contains(anchor), "{document}: {link}");
            }
        }
    }
}

#[test]
fn every_make_target_that_is_named_exists() {
    let makefile = text("Makefile");
    for document in DOCUMENTS {
        for named in text(document).split("`make ").skip(1) {
            let target: String = named.chars().take_while(|c| c.is_alphanumeric()).collect();
            let there = makefile
                .lines()
                .any(|line| line.starts_with(&format!("{target}:")));
            assert!(there, "{document}: make {target}");
        }
    }
}

/// What stands between backticks outside of code blocks.
fn quoted(markdown: &str) -> Vec<String> {
    let prose = markdown.split("```").step_by(2);
    let quoted = prose.flat_map(|part| part.split('`').skip(1).step_by(2));
    quoted.map(str::to_owned).collect()
}

#[test]
fn every_file_that_is_named_exists() {
    let folders = [
        "src/",
        "engine/",
        "backend/",
        "lua/",
        "tests/",
        "docs/",
        "scripts/",
        "benches/",
        "examples/",
    ];
    for document in DOCUMENTS {
        for named in quoted(&text(document)) {
            if !folders.iter().any(|folder| named.starts_with(folder)) {
                continue;
            }
            // What `make bench` writes is there after its first whole run.
            let written = named == "benches/RESULTS.md";
            let there = root().join(&named).exists() || root().join("src").join(&named).exists();
            assert!(there || written, "{document}: {named}");
        }
    }
}

#[test]
fn every_test_that_a_document_names_exists() {
    let mut code = String::new();
    for folder in ["src", "tests"] {
        let files = sources(&root().join(folder)).into_iter();
        for path in files.filter(|path| path.extension().is_some_and(|e| e == "rs")) {
            code.push_str(&fs::read_to_string(path).expect("a source"));
        }
    }
    let documents = text("ARCHITECTURE.md") + &text("docs/redisson-conformance.md");
    let tests = quoted(&documents).into_iter().filter(|name| {
        let is_name = name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        is_name && name.matches('_').count() >= 3
    });
    let mut checked = 0;
    for test in tests.filter(|name| !name.contains("redisson_lock__channel")) {
        assert!(code.contains(&format!("fn {test}(")), "no test {test}");
        checked += 1;
    }
    assert!(checked >= 40, "the names were found");
}
