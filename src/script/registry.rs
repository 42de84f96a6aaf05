//! The list of all scripts.

use std::sync::LazyLock;

/// A Lua script, embedded in the crate.
pub(crate) struct Script {
    /// Its file under `lua/`, after the shared files that its text begins with.
    #[cfg(test)]
    files: &'static [&'static str],
    pub(crate) text: &'static str,
    sha: LazyLock<String>,
}

impl Script {
    /// The digest by which a server knows it.
    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}

macro_rules! scripts {
    ($($name:ident = $($path:literal)&+),+ $(,)?) => {
        $(
            pub(crate) static $name: Script = Script {
                #[cfg(test)]
                files: &[$($path),+],
                text: concat!($(include_str!(concat!("../../lua/", $path))),+),
                sha: LazyLock::new(|| redis::Script::new($name.text).get_hash().to_owned()),
            };
        )+
        #[cfg(test)]
        pub(crate) static ALL: &[&Script] = &[$(&$name),+];
    };
}

scripts! {
    ACQUIRE = "lock/acquire.lua",
    REENTER = "lock/reenter.lua",
    RELEASE = "lock/release.lua",
    VERIFY = "lock/verify.lua",
    FORCE_RELEASE = "lock/force_release.lua",
    FENCED_ACQUIRE = "fenced/acquire.lua",
    FENCED_REENTER = "fenced/reenter.lua",
    FENCED_RAISE = "fenced/raise.lua",
    SIMPLE_ACQUIRE = "simple/acquire.lua",
    SIMPLE_RELEASE = "simple/release.lua",
    SIMPLE_VERIFY = "simple/verify.lua",
    SIMPLE_FORCE_RELEASE = "simple/force_release.lua",
    FAIR_ACQUIRE = "fair/queue.lua" & "fair/head.lua" & "fair/enter.lua" & "fair/acquire.lua",
    FAIR_RELEASE = "fair/queue.lua" & "fair/head.lua" & "fair/release.lua",
    FAIR_FORCE_RELEASE = "fair/queue.lua" & "fair/head.lua" & "fair/force_release.lua",
    FAIR_ENQUEUE = "fair/queue.lua" & "fair/enter.lua" & "fair/enqueue.lua",
    FAIR_VOUCH = "fair/queue.lua" & "fair/head.lua" & "fair/vouch.lua",
    RW_READ_ACQUIRE = "rw/read_acquire.lua",
    RW_WRITE_ACQUIRE = "rw/write_acquire.lua",
    RW_ASSERT = "rw/assert.lua",
    RW_ASSERT_TIMEOUT = "rw/assert_timeout.lua",
    RW_RELEASE = "rw/release.lua",
    RW_DOWNGRADE = "rw/downgrade.lua",
    RW_MARK = "rw/mark.lua",
    RW_FORCE_RELEASE = "rw/force_release.lua",
    RW_LOOK = "rw/look.lua",
}

#[cfg(test)]
mod tests {
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
}
