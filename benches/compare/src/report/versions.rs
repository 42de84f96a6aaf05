//! The versions that were measured: from the lock files, and from programs that can be asked.

use std::path::Path;
use std::process::Command;

/// The crates that are compared, and the crates that both sides use.
const CRATES: [&str; 6] = [
    "watchlock",
    "rslock",
    "async-redis-lock",
    "redis-lock",
    "redis",
    "tokio",
];

/// All versions that could be found.
pub(super) fn all() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let peers = read("benches/peers/Cargo.lock");
    let crates = CRATES.iter().filter_map(|name| {
        let versions = locked(&peers, name);
        (!versions.is_empty()).then(|| ((*name).to_owned(), versions.join(", ")))
    });
    let pom = read("tests/interop/pom.xml");
    let redisson = between(&pom, "<redisson.version>", "</redisson.version>");
    let asked = [
        ("redis-benchmark", "redis-benchmark", "--version"),
        ("Java", "java", "-version"),
        ("Rust", "rustc", "--version"),
    ];
    let asked = asked.into_iter().filter_map(|(what, program, argument)| {
        Some((what.to_owned(), first_line(program, argument)?))
    });
    let redisson = redisson.map(|version| ("Redisson".to_owned(), version.to_owned()));
    crates.chain(redisson).chain(asked).collect()
}

/// The versions of a crate in a lock file.
fn locked<'a>(lock: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!("name = \"{name}\"\n");
    let found = lock.split("[[package]]\n").filter_map(|package| {
        let rest = package.strip_prefix(start.as_str())?;
        between(rest, "version = \"", "\"")
    });
    found.collect()
}

fn between<'a>(text: &'a str, before: &str, behind: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(behind)?.0)
}

fn first_line(program: &str, argument: &str) -> Option<String> {
    let said = Command::new(program).arg(argument).output().ok()?;
    // Java prints it on standard error.
    let text = [said.stdout, said.stderr].concat();
    let line = String::from_utf8_lossy(&text).lines().next()?.to_owned();
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_off_a_lock_file() {
        let lock = "[[package]]\nname = \"redis\"\nversion = \"0.27.6\"\n\n\
                    [[package]]\nname = \"redis-lock\"\nversion = \"0.5.1\"\n";
        assert_eq!(locked(lock, "redis"), ["0.27.6"]);
        assert_eq!(locked(lock, "rslock"), [""; 0]);
    }
}
