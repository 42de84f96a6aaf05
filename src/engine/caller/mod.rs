//! What a caller does on its own runtime, in one round trip each: acquire, re-enter, verify, give a level back.
//!
//! Whatever takes longer is left to the keeper. [`ask`] sends what is no part of a hold.

pub(crate) mod acquire;
pub(crate) mod ask;
pub(crate) mod enter;
pub(crate) mod release;
