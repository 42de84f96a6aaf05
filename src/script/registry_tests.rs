//! The list of scripts has every file once.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string());
    names.map(Result::unwrap).collect()
}

#[test]
fn every_lua_file_is_registered_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let mut files = BTreeSet::new();
    for family in names(&root) {
        let scripts = names(&root.join(&family)).into_iter();
        files.extend(scripts.map(|script| format!("{family}/{script}")));
    }
    let used: BTreeSet<_> = ALL.iter().map(|script| script.file.to_owned()).collect();
    assert_eq!(used, files);
    assert_eq!(used.len(), ALL.len(), "each script has a file of its own");
    for script in ALL {
        let text = fs::read_to_string(root.join(script.file)).unwrap();
        assert_eq!(script.text, text, "{}", script.file);
    }
}
