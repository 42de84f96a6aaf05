//! Texts that are compared with files; `UPDATE_SNAPSHOTS=1` writes the files anew.

use std::fs;
use std::path::Path;

pub(crate) fn snapshot(name: &str, text: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/snapshots");
    let path = folder.join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::create_dir_all(folder).expect("a folder");
        fs::write(path, text).expect("a file");
        return;
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        known == text,
        "{name}: UPDATE_SNAPSHOTS=1 writes it anew. Now it is\n{text}"
    );
}

/// Numbers behind `ttl_ms` differ from run to run.
pub(crate) fn without_times(json: &str) -> String {
    let mut parts = json.split("\"ttl_ms\":");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        text.push_str(if rest.len() < part.len() {
            "\"ttl_ms\":N"
        } else {
            "\"ttl_ms\":"
        });
        text.push_str(rest);
    }
    text
}
