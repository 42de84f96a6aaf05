//! The house rules that a compiler does not check: imports point down, files stay small, nothing prints and nothing
//! panics, pure parts stay pure, Lua files say what they do.

use std::fs;
use std::path::{Path, PathBuf};

use watchlock_support::house::House;

/// The layers from the ground up. A module may use its own and those before it.
const LAYERS: [&[&str]; 9] = [
    &["clock", "error", "slot"],
    &["backoff", "fencing", "lease", "names", "secrets"],
    &["config"],
    &["script"],
    &["backend"],
    &["engine"],
    &["lock"],
    &["client"],
    &["lib"],
];

/// The engine's files from the ground up: pure ones, then what callers and keeper share, then those that act. None uses
/// one of its own row, so that there is no circle between them.
const ENGINE: [&[&str]; 21] = [
    // Pure.
    &["known", "kind", "queue", "row", "wakeups", "written"],
    &["state"],
    // Shared.
    &["hold"],
    &["effects", "schedule"],
    &["owner"],
    &["ticket"],
    &["joint"],
    &["seat"],
    &["gate"],
    &["shares"],
    &["joining"],
    &["passing", "places"],
    &["outcomes", "steps"],
    &["gates"],
    // Acting.
    &["core"],
    &["count", "settle"],
    &["release"],
    &["reentry"],
    &["attempt", "verify"],
    &["keeper"],
    &["keep_alive"],
];

/// The backend's rooms from the ground up. A room may use those before it.
const BACKEND: [&str; 4] = ["failure", "connect", "command", "cluster"];

/// Arithmetic and state over time as a value: no I/O, no timers, nothing to await.
const PURE: [&str; 23] = [
    "error.rs",
    "backoff.rs",
    "fencing.rs",
    "lease.rs",
    "names.rs",
    "slot.rs",
    "config.rs",
    "engine/known.rs",
    "engine/state.rs",
    "engine/queue.rs",
    "engine/row.rs",
    "engine/wakeups.rs",
    "engine/written.rs",
    "engine/schedule.rs",
    "engine/keeper/policy.rs",
    "engine/keeper/turns.rs",
    "engine/keeper/asking.rs",
    "backend/failure/pace.rs",
    "lock/several/pauses.rs",
    "lock/several/state.rs",
    "lock/several/tally.rs",
    "lock/quorum/retry.rs",
    "lock/quorum/rules.rs",
];

/// Comments and tests included.
const MOST_LINES: usize = 700;

/// Names of types that still have more than one meaning. It only gets shorter.
const KNOWN: [&str; 1] = ["Place"];

const MOST_LUA_LINES: usize = 40;

struct Source {
    /// Below `src/`, with slashes.
    path: String,
    lines: Vec<String>,
}

impl Source {
    /// The top module that the file belongs to.
    fn module(&self) -> &str {
        let top = self.path.split('/').next().unwrap_or(&self.path);
        top.strip_suffix(".rs").unwrap_or(top)
    }

    /// Whether it is compiled for tests only.
    fn is_tests(&self) -> bool {
        self.path.ends_with("_tests.rs") || self.path.contains("_tests/")
    }

    /// How many modules deep the file is.
    fn depth(&self) -> usize {
        let folders = self.path.matches('/').count();
        folders + usize::from(!self.path.ends_with("mod.rs"))
    }

    /// Code without comments; of the tests at the end of the file only when asked.
    fn code(&self, with_tests: bool) -> impl Iterator<Item = &str> {
        let lines = self.lines.iter().map(|line| line.trim());
        let only_tests = self.is_tests();
        lines
            .take_while(move |line| with_tests || !(only_tests || is_start_of_tests(line)))
            .filter(|line| !line.is_empty() && !line.starts_with("//"))
    }
}

fn is_start_of_tests(line: &str) -> bool {
    line == "#[cfg(test)]" || line == "mod tests {"
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found
}

fn sources() -> Vec<Source> {
    let folder = root().join("src");
    let sources: Vec<_> = files(&folder, "rs")
        .into_iter()
        .map(|path| Source {
            lines: lines(&path),
            path: path
                .strip_prefix(&folder)
                .expect("a file in src")
                .to_string_lossy()
                .replace('\\', "/"),
        })
        .collect();
    assert!(sources.len() > 20, "the sources were found");
    sources
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("a text");
    text.lines().map(str::to_owned).collect()
}

fn layer(module: &str) -> usize {
    let layer = LAYERS.iter().position(|layer| layer.contains(&module));
    layer.unwrap_or_else(|| panic!("the module `{module}` belongs to no layer"))
}

/// The top modules that a line names by `crate::`.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// Whether `module` may use what `crate::` leads to as `name`. `crate::{…}` and `crate::Type` would hide which layer
/// is meant.
fn may_use(module: &str, name: &str) -> bool {
    let is_module = name.starts_with(|c: char| c.is_ascii_lowercase());
    is_module && (name == module || layer(name) < layer(module))
}

#[test]
fn imports_only_point_down() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.path != "lib.rs") {
        for line in source.code(true) {
            if !named(line).all(|name| may_use(source.module(), name)) {
                wrong.push(format!("{}: {line}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn engine_row(module: &str) -> usize {
    let row = ENGINE.iter().position(|row| row.contains(&module));
    row.unwrap_or_else(|| panic!("the engine's `{module}` belongs to no layer"))
}

/// The modules that follow `path` in a line, as `super::gate::Gate` does with `super::`.
fn after<'a>(line: &'a str, path: &'a str) -> impl Iterator<Item = &'a str> {
    line.split(path).skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[test]
fn imports_of_the_engine_only_point_down() {
    let mut wrong = Vec::new();
    for source in sources() {
        let Some(file) = source.path.strip_prefix("engine/") else {
            continue;
        };
        let own = file.split(['/', '.']).next().expect("a name");
        if own == "mod" || source.is_tests() {
            continue;
        }
        let row = engine_row(own);
        for line in source.code(false) {
            let direct = !file.contains('/');
            let by_super = after(line, "super::").filter(|_| direct);
            let named = by_super.chain(after(line, "crate::engine::"));
            let up = named.filter(|name| {
                let is_module = name.starts_with(|c: char| c.is_ascii_lowercase());
                is_module && *name != own && engine_row(name) >= row
            });
            wrong.extend(up.map(|name| format!("{file} uses {name}: {line}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn room(name: &str) -> usize {
    let room = BACKEND.iter().position(|room| *room == name);
    room.unwrap_or_else(|| panic!("the backend has no room `{name}`"))
}

#[test]
fn rooms_of_the_backend_only_point_down() {
    let mut wrong = Vec::new();
    for source in sources() {
        let path = source.path.strip_prefix("backend/");
        let Some((own, _)) = path.and_then(|path| path.split_once('/')) else {
            continue;
        };
        for line in source.code(true) {
            let mut named = after(line, "crate::backend::");
            if named.any(|name| room(name) >= room(own)) {
                wrong.push(format!("{}: {line}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Takes away the files that use none of those that are left, until none can be taken.
#[test]
fn files_of_a_room_of_the_backend_use_each_other_in_no_circle() {
    let sources = sources();
    for room in BACKEND {
        let folder = format!("backend/{room}/");
        let in_room = sources.iter().filter_map(|source| {
            let file = source.path.strip_prefix(&folder)?.strip_suffix(".rs")?;
            let used = source.code(false).flat_map(|line| after(line, "super::"));
            (file != "mod").then(|| (file, used.collect::<Vec<_>>()))
        });
        let mut left: Vec<_> = in_room.collect();
        assert!(left.len() > 1, "{room} has files");
        loop {
            let names: Vec<_> = left.iter().map(|(file, _)| *file).collect();
            left.retain(|(_, used)| used.iter().any(|name| names.contains(name)));
            if left.len() == names.len() {
                break;
            }
        }
        assert!(left.is_empty(), "{left:#?}");
    }
}

/// What is pure in the keeper knows nothing of the engine that is not pure.
#[test]
fn what_is_pure_stands_on_what_is_pure() {
    let mut wrong = Vec::new();
    for source in sources() {
        if !PURE.contains(&source.path.as_str()) || !source.path.starts_with("engine/keeper/") {
            continue;
        }
        for line in source.code(false) {
            let named = after(line, "crate::engine::").filter(|name| engine_row(name) > 1);
            wrong.extend(named.map(|name| format!("{} uses {name}", source.path)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_module_reaches_the_crate_by_super() {
    let mut wrong = Vec::new();
    for source in sources() {
        let chain = "super::".repeat(source.depth());
        let lines = source.code(false).filter(|line| line.contains(&chain));
        wrong.extend(lines.map(|line| format!("{}: {line}", source.path)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn lib_is_a_table_of_contents() {
    let lib = sources().into_iter().find(|source| source.path == "lib.rs");
    let lib = lib.expect("lib.rs");
    let allowed = ["mod ", "pub use ", "#[", "struct "];
    for line in lib.code(true) {
        assert!(
            allowed.iter().any(|start| line.starts_with(start)),
            "{line}"
        );
    }
}

#[test]
fn files_stay_small() {
    for source in sources() {
        let lines = source.lines.len();
        assert!(lines <= MOST_LINES, "{} has {lines} lines", source.path);
    }
}

#[test]
fn a_type_name_has_one_meaning() {
    let house = House::read(&root().join("src"));
    let mut repeated = house.repeated_names();
    let gone: Vec<_> = KNOWN
        .iter()
        .filter(|name| !repeated.contains_key(*name))
        .collect();
    repeated.retain(|name, _| !KNOWN.contains(name));
    assert!(repeated.is_empty(), "more than one meaning: {repeated:#?}");
    assert!(gone.is_empty(), "take these out of KNOWN: {gone:?}");
}

#[test]
fn nothing_prints_and_nothing_panics() {
    let banned = [
        "print!(",
        "println!(",
        "dbg!(",
        "todo!(",
        "unimplemented!(",
        "panic!(",
        "unreachable!(",
        ".unwrap()",
        ".expect(",
    ];
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source
            .code(false)
            .filter(|line| banned.iter().any(|word| line.contains(word)));
        wrong.extend(lines.map(|line| format!("{}: {line}", source.path)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn pure_parts_stay_pure() {
    let sources = sources();
    let impure = [
        "tokio::",
        "async ",
        ".await",
        "redis::",
        "std::net",
        "Instant::now",
        "tracing::",
    ];
    for path in PURE {
        let source = sources.iter().find(|source| source.path == path);
        let source = source.unwrap_or_else(|| panic!("{path} is not there any more"));
        for line in source.code(false) {
            let found = impure.iter().find(|word| line.contains(**word));
            assert!(found.is_none(), "{path}: {line}");
        }
    }
}

#[test]
fn lua_files_say_what_they_do_and_stay_short() {
    let scripts = files(&root().join("lua"), "lua");
    assert!(scripts.len() >= 5, "the scripts were found");
    for path in scripts {
        let lines = lines(&path);
        let shown = path.display();
        assert!(lines.len() <= MOST_LUA_LINES, "{shown} is long");
        for part in [
            "-- KEYS[",
            "-- ARGV[",
            "-- Returns ",
            "-- Publishes ",
            "-- Repeat ",
        ] {
            let there = lines.iter().any(|line| line.starts_with(part));
            assert!(there, "{shown} does not say: {part}");
        }
    }
}
