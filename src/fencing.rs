//! Fencing tokens: numbers that grow from holder to holder.

use std::fmt;

/// A number that grows from holder to holder of a lock. What the lock protects must refuse a write with a smaller token than
/// it has seen: the writer is late.
///
/// From [`FencedGuard::token`](crate::FencedGuard::token) or
/// [`LockGuard::fencing_token`](crate::LockGuard::fencing_token). At least 1 and at most 2^53, so it fits into a
/// database's signed 64-bit column, and into a `double`. Tokens are not consecutive: those that this crate takes are
/// about the time in µs since 1970 by Redis' clock.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let first = client.get_fenced_lock("report:2026").lock().await?;
/// let token = first.token();
/// first.unlock().await?;
/// let second = client.get_fenced_lock("report:2026").lock().await?;
/// assert!(second.token() > token);
/// println!("the number for the database is {}", second.token().as_u64());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// 0 is no token.
    pub(crate) fn new(number: u64) -> Option<Self> {
        (number > 0).then_some(Self(number))
    }

    /// The number, from 1 to 2^53.
    #[must_use]
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// For databases, whose integers have a sign. It always fits.
impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        token.0.cast_signed()
    }
}

/// The decimal number.
impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
