//! Whatever documents name exists: every link leads somewhere, and so do names of files, tests and make targets.

use std::collections::BTreeSet;
use std::fs;

use crate::{DOCUMENTS, quoted, root, sources, text};

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

/// A branch goes on while the document stays: links lead to files, which GitHub and crates.io find.
#[test]
fn no_document_links_to_a_branch() {
    for document in DOCUMENTS {
        for link in links(&text(document)) {
            let ours =
                link.contains("//github.com/watchlock") || link.contains("githubusercontent");
            let version = concat!("/blob/v", env!("CARGO_PKG_VERSION"), "/");
            assert!(!ours || link.contains(version), "{document}: {link}");
        }
    }
}

#[test]
fn every_link_leads_somewhere() {
    for document in DOCUMENTS {
        let markdown = text(document);
        let folder = root().join(document).parent().expect("a folder").to_owned();
        for link in links(&markdown) {
            if link.starts_with("http") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&*link, ""));
            let target = if path.is_empty() {
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

/// The documentation of a version leads to the documents of that version.
#[test]
fn every_link_of_the_rustdoc_leads_to_the_version() {
    let version = concat!("v", env!("CARGO_PKG_VERSION"), "/");
    let mut checked = 0;
    for path in sources(&root().join("src")) {
        let code = fs::read_to_string(&path).expect("a source");
        let links = code.split("https://github.com/watchlock/watchlock/blob/");
        for link in links.skip(1) {
            let link = link.split([')', '\n']).next().unwrap_or_default();
            let target = link.strip_prefix(version);
            let target = target.unwrap_or_else(|| panic!("{}: {link}", path.display()));
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let there = text(file);
            assert!(
                anchor.is_empty() || anchors(&there).contains(anchor),
                "{link}"
            );
            checked += 1;
        }
    }
    assert!(checked >= 5, "the links were found");
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

#[test]
fn every_file_that_is_named_exists() {
    let folders = [
        "src/",
        "engine/",
        "backend/",
        "lua/",
        "tests/",
        "docs/",
        "demo/",
        "scripts/",
        "benches/",
        "examples/",
    ];
    for document in DOCUMENTS {
        for named in quoted(&text(document)) {
            let of_any = named.contains('<');
            if of_any || !folders.iter().any(|folder| named.starts_with(folder)) {
                continue;
            }
            // What `make bench` writes exists after its first whole run.
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
    let documents: String = DOCUMENTS.iter().map(|document| text(document)).collect();
    let tests = quoted(&documents).into_iter().filter(|name| {
        let is_name = name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        is_name && name.matches('_').count() >= 3
    });
    let mut checked = 0;
    let is_other =
        |name: &&str| name.contains("redisson_lock__channel") || name.starts_with("watchlock_");
    for test in tests.filter(|name| !is_other(&name.as_ref())) {
        // One that runs for each kind is generic.
        let is_there = ["(", "<"].map(|next| code.contains(&format!("fn {test}{next}")));
        assert!(is_there.contains(&true), "no test {test}");
        checked += 1;
    }
    assert!(checked >= 40, "the names were found");
}

/// A reader of a contended `lock()` has to know these, and no more.
#[test]
fn the_nouns_on_the_way_of_a_lock_are_few_and_exist() {
    let page = text("ARCHITECTURE.md");
    let (_, rest) = page
        .split_once("### The nouns on this way")
        .expect("a list");
    let rows = rest.lines().take_while(|line| !line.starts_with("## "));
    let nouns = rows.filter_map(|row| row.strip_prefix("|`")?.split('`').next());
    let nouns: Vec<_> = nouns.collect();
    let files = sources(&root().join("src")).into_iter();
    let code: String = files
        .map(|path| fs::read_to_string(path).expect("a source"))
        .collect();
    for noun in &nouns {
        let defined = ["struct", "enum", "trait"].iter().any(|kind| {
            let definition = format!("{kind} {noun}");
            let mut ends = code.match_indices(&definition);
            ends.any(|(at, found)| !code[at + found.len()..].starts_with(char::is_alphanumeric))
        });
        assert!(defined, "no {noun}");
    }
    assert!((30..=45).contains(&nouns.len()), "{}", nouns.len());
}

/// How many words a document may have.
const MOST_WORDS: [(&str, usize); 4] = [
    ("README.md", 1000),
    ("ARCHITECTURE.md", 5500),
    ("docs/waiting.md", 700),
    ("docs/command-line.md", 900),
];
/// How many all of them may have that people read who use the library: those of the root, of `docs` and the results of the
/// benchmark. The page of the command line is for other people.
const MOST_WORDS_OF_ALL: usize = 24_000;

#[test]
fn the_documents_are_short() {
    for (document, most) in MOST_WORDS {
        let words = text(document).split_whitespace().count();
        assert!(
            words <= most,
            "{document} has {words} words, {most} at most"
        );
    }
    let root = root();
    let of_root = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
    ];
    let of_root = of_root.into_iter().chain(["benches/RESULTS.md"]);
    let paths = of_root
        .map(|name| root.join(name))
        .chain(sources(&root.join("docs")))
        .filter(|path| !path.ends_with("command-line.md"));
    let documents = paths.map(|path| fs::read_to_string(path).expect("a document"));
    let words: usize = documents.map(|text| text.split_whitespace().count()).sum();
    assert!(
        words <= MOST_WORDS_OF_ALL,
        "the documents have {words} words, {MOST_WORDS_OF_ALL} at most: say each thing once"
    );
}
