//! A lock that is held when more than half of some independent servers granted it: Redlock, with every rule of it.
//!
//! Each node has a client of its own, and each child of a hold is a plain lock there, which that client renews and gives
//! back. A hold is a [`Composite`](super::several::Composite). From the ground up: one server ([`node`]), which may vote
//! and what a round comes to ([`rules`]), wake-ups ([`listeners`]), when the next try is due ([`retry`]), the queue of a
//! name ([`queue`]), all servers and the background thread ([`nodes`]), tokens ([`token`]), one round ([`round`]),
//! acquiring ([`acquire`]), repair ([`repair`]), handles and owners ([`handle`]).

mod acquire;
mod ballot;
mod handle;
mod listeners;
mod node;
mod nodes;
mod queue;
mod repair;
mod retry;
mod round;
mod rules;
#[cfg(test)]
mod simulation_tests;
mod token;

pub use self::handle::{AtQuorum, FencedQuorumLock, QuorumHandle, QuorumLock, QuorumOwner};
pub(crate) use self::node::QuorumNode;
pub(crate) use self::nodes::{QuorumNodes, QuorumSettings};
pub(crate) use self::repair::start;
