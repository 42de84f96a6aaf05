//! What the server knows about a command, and the categories of the ACL.

/// Bits that say what a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct Flags(pub(super) u32);

pub(super) const NONE: u32 = 0;
/// It changes keys.
pub(super) const WRITE: u32 = 1;
pub(super) const READ: u32 = 1 << 1;
/// It may need more memory.
pub(super) const DENY_OOM: u32 = 1 << 2;
pub(super) const FAST: u32 = 1 << 3;
/// No script may call it.
pub(super) const NO_SCRIPT: u32 = 1 << 4;
/// It runs while the server loads its data.
pub(super) const LOADING: u32 = 1 << 5;
/// It needs no password.
pub(super) const NO_AUTH: u32 = 1 << 6;
/// It runs while the server is busy with a script.
pub(super) const ALLOW_BUSY: u32 = 1 << 7;
pub(super) const ADMIN: u32 = 1 << 8;
pub(super) const PUBSUB: u32 = 1 << 9;
pub(super) const KEYSPACE: u32 = 1 << 10;
pub(super) const STRING: u32 = 1 << 11;
pub(super) const HASH: u32 = 1 << 12;
pub(super) const LIST: u32 = 1 << 13;
pub(super) const SORTED_SET: u32 = 1 << 14;
pub(super) const SET: u32 = 1 << 15;
pub(super) const CONNECTION: u32 = 1 << 16;
pub(super) const TRANSACTION: u32 = 1 << 17;
pub(super) const SCRIPTING: u32 = 1 << 18;
pub(super) const DANGEROUS: u32 = 1 << 19;
/// It changes no keys, but replicas run it, too.
pub(super) const REPLICATED: u32 = 1 << 20;

/// Names of flags, as `COMMAND INFO` has them.
const NAMES: [(&str, u32); 10] = [
    ("write", WRITE),
    ("readonly", READ),
    ("denyoom", DENY_OOM),
    ("admin", ADMIN),
    ("pubsub", PUBSUB),
    ("noscript", NO_SCRIPT),
    ("loading", LOADING),
    ("fast", FAST),
    ("no_auth", NO_AUTH),
    ("allow_busy", ALLOW_BUSY),
];

/// Categories of the ACL. Those without a flag have no command here, except `slow` and `all`.
pub(in crate::core) const CATEGORIES: [(&str, u32); 21] = [
    ("keyspace", KEYSPACE),
    ("read", READ),
    ("write", WRITE),
    ("set", SET),
    ("sortedset", SORTED_SET),
    ("list", LIST),
    ("hash", HASH),
    ("string", STRING),
    ("bitmap", NONE),
    ("hyperloglog", NONE),
    ("geo", NONE),
    ("stream", NONE),
    ("pubsub", PUBSUB),
    ("admin", ADMIN),
    ("fast", FAST),
    ("slow", NONE),
    ("blocking", NONE),
    ("dangerous", DANGEROUS),
    ("connection", CONNECTION),
    ("transaction", TRANSACTION),
    ("scripting", SCRIPTING),
];

impl Flags {
    pub(in crate::core) fn writes(self) -> bool {
        self.has(WRITE)
    }

    /// Whether replicas get it: all that changes keys, and messages.
    pub(in crate::core) fn is_replicated(self) -> bool {
        self.has(WRITE | REPLICATED)
    }

    pub(in crate::core) fn needs_memory(self) -> bool {
        self.has(DENY_OOM)
    }

    pub(in crate::core) fn is_for_scripts(self) -> bool {
        !self.has(NO_SCRIPT)
    }

    pub(in crate::core) fn runs_while_loading(self) -> bool {
        self.has(LOADING)
    }

    pub(in crate::core) fn runs_while_busy(self) -> bool {
        self.has(ALLOW_BUSY)
    }

    pub(in crate::core) fn needs_password(self) -> bool {
        !self.has(NO_AUTH)
    }

    fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// Whether it belongs to a category of the ACL.
    pub(in crate::core) fn is_in(self, category: &str) -> bool {
        match category {
            "all" => true,
            "slow" => !self.has(FAST),
            // Scripts have no category of their own effect.
            "read" => self.has(READ) && !self.has(SCRIPTING),
            _ => CATEGORIES
                .iter()
                .any(|(name, flag)| *name == category && self.has(*flag)),
        }
    }

    pub(super) fn names(self) -> Vec<String> {
        let names = NAMES.iter().filter(|(_, flag)| self.has(*flag));
        names.map(|(name, _)| (*name).to_owned()).collect()
    }

    pub(super) fn categories(self) -> Vec<String> {
        let names = CATEGORIES.iter().map(|(name, _)| *name);
        let names = names.filter(|name| self.is_in(name));
        names.map(|name| format!("@{name}")).collect()
    }
}
