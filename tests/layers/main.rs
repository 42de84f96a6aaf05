//! The house rules that a compiler does not check: imports point down, files stay small, nothing prints and nothing
//! panics, pure parts stay pure, Lua files say what they do, and what they repeat stays the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use watchlock_support::house::House;

/// The layers from the ground up. A module may use its own and those before it.
const LAYERS: [&[&str]; 11] = [
    &["host"],
    &["clock", "error", "log", "slot"],
    &["backoff", "fencing", "lease", "names", "report", "secrets"],
    &["config"],
    &["script"],
    &["backend"],
    &["engine"],
    &["lock"],
    &["client"],
    &["blocking"],
    &["lib"],
];

/// The engine's rooms from the ground up. A room may use those before it.
const ENGINE: [&str; 6] = ["hold", "gate", "latches", "core", "caller", "keeper"];

/// The backend's rooms from the ground up. A room may use those before it.
const BACKEND: [&str; 5] = ["timers", "failure", "connect", "command", "cluster"];

/// Arithmetic and state over time as a value: no I/O, no timers, nothing to await.
const PURE: [&str; 18] = [
    "error.rs",
    "backoff.rs",
    "fencing.rs",
    "lease.rs",
    "names.rs",
    "slot.rs",
    "config.rs",
    "engine/hold/state.rs",
    "engine/gate/ticket.rs",
    "engine/gate/seat.rs",
    "engine/hold/schedule.rs",
    "engine/keeper/job/policy.rs",
    "engine/keeper/watchdog/renewal_queue.rs",
    "backend/failure/pace.rs",
    "lock/several/pauses.rs",
    "lock/several/state.rs",
    "lock/quorum/retry.rs",
    "lock/quorum/rules.rs",
];

/// Comments and tests included.
const MOST_LINES: usize = 700;

const MOST_LUA_LINES: usize = 80;
/// The fair lock's scripts share the code of its queue, and an acquire of permits has that of several.
const MOST_LUA_LINES_WITH_A_QUEUE: usize = 160;

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

/// The place of a file's room in its row of `rooms`; none for the `mod.rs` of the row.
fn room(rooms: &[&str], file: &str) -> Option<usize> {
    let own = file.split(['/', '.']).next().expect("a name");
    if own == "mod" {
        return None;
    }
    let room = rooms.iter().position(|room| *room == own);
    Some(room.unwrap_or_else(|| panic!("`{own}` belongs to no row")))
}

#[test]
fn rooms_of_engine_and_backend_only_point_down() {
    let house = House::read(&root().join("src"));
    let mut wrong = Vec::new();
    for (folder, rooms) in [("engine/", &ENGINE[..]), ("backend/", &BACKEND[..])] {
        let mut arrows = 0;
        for (from, to) in house.imports() {
            let (Some(own), Some(used)) = (from.strip_prefix(folder), to.strip_prefix(folder))
            else {
                continue;
            };
            let (Some(own), Some(used)) = (room(rooms, own), room(rooms, used)) else {
                continue;
            };
            arrows += 1;
            if used > own {
                wrong.push(format!("{from} uses {to}"));
            }
        }
        assert!(arrows > rooms.len(), "the imports of {folder} were found");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_import_each_other_in_no_circle() {
    let house = House::read(&root().join("src"));
    let circles = house.circles();
    assert!(circles.is_empty(), "{circles:#?}");
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
    let allowed = ["mod ", "pub mod ", "pub use ", "#[", "struct "];
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

/// The simulation freezes and ends the tasks of a process, so each is started as one of its process.
#[test]
fn tasks_belong_to_their_process() {
    let started = [".spawn(", "tokio::spawn("];
    let marked = ["own(", "background(", ".spawn(move ||", "thread.spawn("];
    let mut bare = Vec::new();
    for source in sources() {
        for line in source.code(false) {
            let starts = started.iter().any(|start| line.contains(start));
            if starts && !marked.iter().any(|mark| line.contains(mark)) {
                bare.push(format!("{}: {line}", source.path));
            }
        }
    }
    assert!(bare.is_empty(), "{bare:#?}");
}

#[test]
fn a_type_name_has_one_meaning() {
    let house = House::read(&root().join("src"));
    let repeated = house.repeated_names();
    assert!(repeated.is_empty(), "more than one meaning: {repeated:#?}");
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
        let folder = path.parent();
        let has_queue = folder.is_some_and(|in_| in_.ends_with("fair") || in_.ends_with("permits"));
        let most = if has_queue {
            MOST_LUA_LINES_WITH_A_QUEUE
        } else {
            MOST_LUA_LINES
        };
        assert!(lines.len() <= most, "{shown} is long");
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

/// The functions of a script, by name.
fn functions(lines: &[String]) -> BTreeMap<String, String> {
    let mut functions = BTreeMap::new();
    let mut lines = lines.iter();
    while let Some(line) = lines.next() {
        let Some(rest) = line.strip_prefix("local function ") else {
            continue;
        };
        let name = rest.split('(').next().expect("a name");
        let mut text = line.clone();
        while !line.ends_with(" end") && !text.ends_with("\nend") {
            text = format!("{text}\n{}", lines.next().expect("an end"));
        }
        functions.insert(name.to_owned(), text);
    }
    functions
}

#[test]
fn a_step_of_several_fair_scripts_has_the_same_words_in_each() {
    let mut known = BTreeMap::new();
    let mut repeated = 0;
    for path in files(&root().join("lua/fair"), "lua") {
        for (name, text) in functions(&lines(&path)) {
            let first = known.entry(name).or_insert_with(|| text.clone());
            assert_eq!(*first, text, "{}", path.display());
            repeated += usize::from(text.starts_with("local function tend("));
        }
    }
    assert_eq!(repeated, 4, "the functions were found");
}
