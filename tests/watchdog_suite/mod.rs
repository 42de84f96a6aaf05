//! Renewals on time, and losses told in time (I8).

mod losses;
mod renewals;
