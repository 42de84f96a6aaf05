//! What callers do on their own runtime, one round trip each: acquire, enter again, verify, give back.

pub(crate) mod acquire;
pub(crate) mod count;
pub(crate) mod enter;
pub(crate) mod release;
pub(crate) mod settle;
