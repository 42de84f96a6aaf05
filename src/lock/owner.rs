//! Owners: who may enter a lock again.

use std::sync::Arc;

use super::handle::in_scope;
use super::kinds::fair::{self, FairLock};
use super::kinds::fenced::{self, FencedLock};
use super::kinds::plain::{self, ReentrantLock};
use super::kinds::read_write::ReadWriteLock;
use super::kinds::simple::{self, SimpleLock};
use super::kinds::spin::{self, SpinLock};
use crate::backoff::Backoff;
use crate::engine::caller::release;
use crate::engine::hold::owner::OwnerState;
use crate::engine::keeper::Engine;
use crate::log::log;

/// Who may enter a lock again: one flow of control, like a thread in Java.
///
/// [`Client::new_owner`](crate::Client::new_owner) makes it. It is not `Clone`: hand it down by reference within the flow
/// of control, or hand down its handles. Those of [`get_lock`](Self::get_lock) act for it wherever they are used, and so
/// does every handle in its [`scope`](Self::scope). A handle that acts for it enters again what it holds. When one owner
/// acquires one name several times at once, the first acquire starts the hold and the others enter it.
///
/// **Its end.** When it is dropped, its [detached](crate::LockGuard::detach) levels are given back, with a warning in the
/// log, and nothing can be detached any more. Guards stay valid. Handles still act for this owner and enter what it holds;
/// an owner that is made later is another one.
///
/// **For two tasks**: it has no `clone`, so that no second flow of control acts for it by mistake. Tasks that are meant to
/// enter each other's holds share an `Arc<Owner>`, get a handle of it each, or run in its [`scope`](Self::scope).
///
/// ```compile_fail
/// # fn example(client: watchlock::Client) {
/// let owner = client.new_owner();
/// let second = owner.clone(); // no method named `clone`
/// # }
/// ```
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let owner = std::sync::Arc::new(client.new_owner());
/// let second = std::sync::Arc::clone(&owner);
/// # drop(second);
/// # Ok(())
/// # }
/// ```
///
/// Handed down by reference:
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let owner = client.new_owner();
/// let guard = owner.get_lock("accounts").lock().await?;
/// helper(&owner).await?; // may lock "accounts" again
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// # async fn helper(owner: &watchlock::Owner) -> Result<(), watchlock::Error> { Ok(()) }
/// ```
pub struct Owner {
    engine: Arc<Engine>,
    state: Arc<OwnerState>,
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").finish_non_exhaustive()
    }
}

impl Owner {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            state: OwnerState::new(),
        }
    }

    /// The lock `name`, for this owner. No I/O; a bad name is an error of the first use.
    #[must_use]
    #[doc(alias = "getLock")]
    pub fn get_lock(&self, name: impl AsRef<str>) -> ReentrantLock {
        ReentrantLock::of_client(&self.engine, name.as_ref(), Some(&self.state), plain::kind)
    }

    /// The fenced lock `name`, for this owner. No I/O; a bad name is an error of the first use.
    #[must_use]
    #[doc(alias = "getFencedLock")]
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        FencedLock::of_client(&self.engine, name.as_ref(), Some(&self.state), fenced::kind)
    }

    /// The spin lock `name`, for this owner. Otherwise as [`Client::get_spin_lock`](crate::Client::get_spin_lock).
    #[must_use]
    #[doc(alias = "getSpinLock")]
    pub fn get_spin_lock(&self, name: impl AsRef<str>) -> SpinLock {
        self.get_spin_lock_with(name, spin::backoff())
    }

    /// The spin lock `name`, for this owner. Otherwise as
    /// [`Client::get_spin_lock_with`](crate::Client::get_spin_lock_with).
    #[must_use]
    #[doc(alias = "getSpinLock")]
    pub fn get_spin_lock_with(&self, name: impl AsRef<str>, backoff: Backoff) -> SpinLock {
        SpinLock::of_client(
            &self.engine,
            name.as_ref(),
            Some(&self.state),
            spin::kind(backoff),
        )
    }

    /// The simple lock `name`, for this owner. No I/O; a bad name is an error of the first use.
    #[must_use]
    pub fn get_simple_lock(&self, name: impl AsRef<str>) -> SimpleLock {
        SimpleLock::of_client(&self.engine, name.as_ref(), Some(&self.state), simple::kind)
    }

    /// The fair lock `name`, for this owner. No I/O; a bad name is an error of the first use.
    #[must_use]
    #[doc(alias = "getFairLock")]
    pub fn get_fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        FairLock::of_client(&self.engine, name.as_ref(), Some(&self.state), fair::kind)
    }

    /// The read/write lock `name`, for this owner. No I/O; a bad name is an error of the first use.
    #[must_use]
    #[doc(alias = "getReadWriteLock")]
    pub fn get_read_write_lock(&self, name: impl AsRef<str>) -> ReadWriteLock {
        ReadWriteLock::new(&self.engine, name.as_ref(), Some(&self.state))
    }

    /// Runs `future` for this owner: every handle of its client that is used inside acts for it, unless that handle
    /// belongs to another owner. This carries an owner into a spawned task:
    ///
    /// ```no_run
    /// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
    /// let owner = client.new_owner();
    /// let lock = client.get_lock("accounts");
    /// let guard = owner.scope(lock.lock()).await?;
    /// let nested = tokio::spawn(owner.scope(async move {
    ///     lock.lock().await?.unlock().await // enters again
    /// }));
    /// nested.await.expect("no panic")?;
    /// guard.unlock().await
    /// # }
    /// ```
    ///
    /// As in [`Client::scope`](crate::Client::scope), which makes its own owner, futures that act for one owner at the same
    /// time **do not exclude each other**. The owner does not end with the scope.
    ///
    /// # Cancel safety
    ///
    /// As `future`.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        in_scope(self.engine.core.client_id, Arc::clone(&self.state), future)
    }
}

pub(super) fn warn_of_detached(levels: usize) {
    if levels > 0 {
        log(move || {
            tracing::warn!(
                levels,
                "an owner ended with detached levels; they are given back"
            );
        });
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let detached = self.state.end();
        warn_of_detached(detached.len());
        for entered in detached {
            release::drop_level(&self.engine.core, &entered);
        }
    }
}
