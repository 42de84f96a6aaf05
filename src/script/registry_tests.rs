//! The list of scripts has every file once, and each script says what it begins with.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string());
    names.map(Result::unwrap).collect()
}

/// The shared files that a script begins with, relative to its own folder.
fn parts(script: &Script) -> Vec<String> {
    let (own, parts) = script.files.split_last().unwrap();
    let (family, _) = own.split_once('/').unwrap();
    let names = parts.iter().map(|file| match file.split_once('/') {
        Some((folder, name)) if folder == family => name.to_owned(),
        _ => format!("../{file}"),
    });
    names.collect()
}

/// The shared files that its header names.
fn said(script: &Script) -> Vec<&str> {
    let mut lines = script.text.lines();
    let said = lines.find_map(|line| line.strip_prefix("-- Follows "));
    said.map_or_else(Vec::new, |said| said.split(", ").collect())
}

#[test]
fn every_lua_file_is_registered_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let mut files = BTreeSet::new();
    for family in names(&root) {
        let scripts = names(&root.join(&family)).into_iter();
        files.extend(scripts.map(|script| format!("{family}/{script}")));
    }
    let used = ALL.iter().flat_map(|script| script.files);
    let used: BTreeSet<_> = used.map(|file| (*file).to_owned()).collect();
    assert_eq!(used, files);
    let own: BTreeSet<_> = ALL.iter().map(|script| script.files.last()).collect();
    assert_eq!(own.len(), ALL.len(), "each script has a file of its own");
    for script in ALL {
        let read = |file| fs::read_to_string(root.join(file)).unwrap();
        let text: String = script.files.iter().map(read).collect();
        assert_eq!(script.text, text, "{:?}", script.files);
        assert_eq!(parts(script), said(script), "{:?}", script.files);
    }
}
