//! What a client knows of a lock that it does not hold.

use crate::backend::Failure;
use crate::clock::Moment;

/// What is known of the lock from its last answer.
#[derive(Debug, Clone, Default)]
pub(crate) enum Known {
    #[default]
    Nothing,
    /// Held by a stranger; when its lease ends, if it does.
    Busy(Option<Moment>),
    Failed(Failure),
}
