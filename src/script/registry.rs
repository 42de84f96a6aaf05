//! Every script of the crate, in one list.

use std::sync::LazyLock;

/// A Lua script, embedded in the crate.
pub(crate) struct Script {
    /// Its file under `lua/`.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the registry's test"))]
    pub(crate) path: &'static str,
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
    ($($name:ident = $path:literal),+ $(,)?) => {
        $(
            pub(crate) static $name: Script = Script {
                path: $path,
                text: include_str!(concat!("../../lua/", $path)),
                sha: LazyLock::new(|| redis::Script::new($name.text).get_hash().to_owned()),
            };
        )+
        /// All of them.
        #[cfg(test)]
        pub(crate) static ALL: &[&Script] = &[$(&$name),+];
    };
}

scripts! {
    ACQUIRE = "lock/acquire.lua",
    REENTER = "lock/reenter.lua",
    RENEW = "lock/renew.lua",
    RELEASE = "lock/release.lua",
    FORCE_RELEASE = "lock/force_release.lua",
}
