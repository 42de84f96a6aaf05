//! What can go wrong with one command.

use std::time::Duration;

/// What happens to the next command, for [`Redis::next_command`](crate::Redis::next_command).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The command runs, and nothing arrives on its connection any more, neither this reply nor a later one. The
    /// connection stays open, as when a firewall drops what the server sends.
    Silent,
    /// The command runs, and its connection is cut before the reply.
    Cut,
    /// The command runs, and its reply, with whatever follows on that connection, arrives so much later. It is real time
    /// that passes, even if the clock is stopped.
    Delayed(Duration),
    /// The command does not run. The reply is this error, which begins with its code:
    /// `"OOM command not allowed when used memory > 'maxmemory'."`.
    Refused(String),
}
