//! What a caller does on its own runtime, in one round trip each: acquire, re-enter, verify, give a level back.
//!
//! Whatever takes longer is left to the keeper. [`settle`] decodes replies for both; [`count`] writes the hold count.

pub(crate) mod acquire;
pub(crate) mod count;
pub(crate) mod enter;
pub(crate) mod release;
pub(crate) mod settle;
