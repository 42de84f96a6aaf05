//! Workers under fire, and the checker that looks at what they did: it catches every wrong client, and finds
//! nothing in ours, alone or together with Redisson's.

mod classics;
mod controls;
mod failovers;
mod mixed;
mod quorum;
