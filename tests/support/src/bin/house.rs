//! Counts what `scripts/house.sh` prints of the sources. `house [--list] [SRC]`: the figures of the folder SRC, with
//! `--list` also what was counted.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;

use watchlock_support::house::House;

fn main() {
    let mut with_lists = false;
    let mut src = PathBuf::from("src");
    for arg in env::args().skip(1) {
        match arg.as_str() {
            "--list" => with_lists = true,
            _ => src = arg.into(),
        }
    }
    let house = House::read(&src);
    let tell = |what: &str, figure: String, list: Vec<String>| {
        println!("{what:48} {figure}");
        for line in list.iter().filter(|_| with_lists) {
            println!("    {line}");
        }
    };
    let lines: usize = house.files().iter().map(|file| file.lines).sum();
    tell("lines of src without tests", lines.to_string(), vec![]);

    let types: usize = house.types().values().map(Vec::len).sum();
    tell("types", types.to_string(), vec![]);

    let repeated = house.repeated_names();
    let list = repeated
        .iter()
        .map(|(name, files)| format!("{name}: {}", files.join(", ")));
    let figure = repeated.len().to_string();
    tell(
        "type names with more than one meaning",
        figure,
        list.collect(),
    );

    if let Some(longest) = house.files().iter().max_by_key(|file| file.lines) {
        let figure = format!("{} ({})", longest.lines, longest.path);
        tell("lines of the longest file", figure, vec![]);
    }

    let rooms: BTreeSet<_> = house
        .files()
        .iter()
        .filter_map(|file| room(&file.path))
        .collect();
    let arrows: BTreeSet<_> = house.imports().into_iter().filter_map(arrow).collect();
    tell(
        "rooms of the engine",
        rooms.len().to_string(),
        vec![rooms.into_iter().collect::<Vec<_>>().join(" ")],
    );
    let list = arrows.iter().map(|(from, to)| format!("{from} > {to}"));
    tell(
        "arrows between them",
        arrows.len().to_string(),
        list.collect(),
    );

    let circles = house.circles();
    let list = circles.iter().map(|circle| circle.join(", "));
    tell(
        "import circles of files",
        circles.len().to_string(),
        list.collect(),
    );
}

/// The room of the engine that a file is of: a folder or a file of `src/engine`.
fn room(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("engine/")?;
    inside
        .split(['/', '.'])
        .next()
        .filter(|room| *room != "mod")
}

fn arrow<'a>((from, to): (&'a str, &'a str)) -> Option<(&'a str, &'a str)> {
    let (from, to) = (room(from)?, room(to)?);
    (from != to).then_some((from, to))
}
