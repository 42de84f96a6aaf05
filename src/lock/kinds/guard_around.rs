//! Guards of kinds whose guard promises more than a level: each is a type around a [`LockGuard`](crate::LockGuard).

/// Implements the methods that take or return a guard, for a guard around a `level`, and `Deref` for all others.
macro_rules! guard_around_level {
    ($guard:ident) => {
        impl $guard {
            /// The guard as a [`LockGuard`] of the same hold.
            pub fn into_guard(self) -> LockGuard {
                self.level
            }

            /// As [`LockGuard::reenter`].
            ///
            /// # Errors
            ///
            /// As [`LockGuard::reenter`].
            ///
            /// # Cancel safety
            ///
            /// As [`LockGuard::reenter`].
            pub async fn reenter(&self, lease: impl Into<Lease>) -> Result<Self, Error> {
                Self::of(self.level.reenter(lease).await?)
            }

            /// As [`LockGuard::unlock`].
            ///
            /// # Errors
            ///
            /// As [`LockGuard::unlock`].
            ///
            /// # Cancel safety
            ///
            /// As [`LockGuard::unlock`].
            pub fn unlock(self) -> impl Future<Output = Result<(), Error>> + Send {
                self.level.unlock()
            }

            /// As [`LockGuard::detach`].
            ///
            /// # Errors
            ///
            /// As [`LockGuard::detach`]; the guard comes back as a [`LockGuard`].
            pub fn detach(self) -> Result<(), GuardError> {
                self.level.detach()
            }

            /// As [`LockGuard::let_expire`].
            ///
            /// # Errors
            ///
            /// As [`LockGuard::let_expire`]; the guard comes back as a [`LockGuard`].
            pub fn let_expire(self) -> Result<(), GuardError> {
                self.level.let_expire()
            }
        }

        impl std::ops::Deref for $guard {
            type Target = LockGuard;

            fn deref(&self) -> &LockGuard {
                &self.level
            }
        }

        impl From<$guard> for LockGuard {
            fn from(guard: $guard) -> Self {
                guard.level
            }
        }

        impl $crate::lock::guard::sealed::Sealed for $guard {}
    };
}

pub(super) use guard_around_level;
