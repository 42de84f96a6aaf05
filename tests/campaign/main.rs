//! Workers under faults, and the checker on their histories: it catches every wrong client, and finds nothing in ours,
//! alone or together with Redisson's.

mod classics;
mod controls;
mod failovers;
mod latch;
mod mixed;
mod permits;
mod quorum;
