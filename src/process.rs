//! Which process this is. A `fork` copies a client, but neither its keeper nor its connections: the
//! child must touch none of them, nor a lock that a thread of the parent held at that moment.

/// The process that something was made in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// Whether this is another process: a child of the one it was made in.
    pub(crate) fn is_forked(self) -> bool {
        self != Self::current()
    }
}
