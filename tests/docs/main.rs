//! The documents: they agree with the code, their ACL is enough, and the examples do what they say. Their Rust code is
//! compiled as documentation tests of `src/lib.rs`.

#[path = "../common/mod.rs"]
mod common;

mod acl;
mod acl_deployments;
mod acl_kinds;
mod acl_latch;
mod acl_permits;
mod api;
mod blocking;
mod examples;
mod fencing;
mod links;
mod public_api;
mod recipes;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};

const DOCUMENTS: [&str; 25] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/acl.md",
    "docs/classic-mistakes.md",
    "docs/command-line.md",
    "docs/configuration.md",
    "docs/deployments.md",
    "docs/fencing.md",
    "docs/guarantees.md",
    "docs/kinds.md",
    "docs/metrics.md",
    "docs/porting-from-redisson.md",
    "docs/quorum.md",
    "docs/recipes.md",
    "docs/redisson-conformance.md",
    "docs/troubleshooting.md",
    "docs/field.md",
    "docs/waiting.md",
    "tests/faults/README.md",
    "tests/interop/README.md",
    "cli/README.md",
    "watchlock-test/README.md",
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

/// What stands between backticks outside of code blocks.
fn quoted(markdown: &str) -> Vec<String> {
    let prose = markdown.split("```").step_by(2);
    let quoted = prose.flat_map(|part| part.split('`').skip(1).step_by(2));
    quoted.map(str::to_owned).collect()
}
