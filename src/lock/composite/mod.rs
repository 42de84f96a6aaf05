//! Several holds as one: `n` children of which `needed` must be valid.
//!
//! 1. It is valid for as long as `needed` children are: its end is the `needed`-th largest of theirs. Its rules are
//!    pure, in [`standing`] and [`tally`].
//! 2. It is lost when fewer than `needed` children are valid, and that is final, whatever comes of a child later. A
//!    place may be empty, and a child be put there, or in the place of one that is lost, while it is held. Only the hold
//!    is lost: a level that has too few of its own children left is given back like any other.
//! 3. Children are renewed by their own clients. Nothing here has a task or a timer of its own.
//! 4. A level has one level of each child. Entering again with the same sort of lease shares it, and counts here. The
//!    other sort enters the children: once `needed` have said yes, the rest is waited for, up to a limit.
//! 5. What is asked of the children is asked side by side, and heard when `needed` of them have said yes, or cannot any
//!    more. What a child was asked first polls all: so a caller that goes away leaves nothing half asked.
//! 6. A level is detached whole or not at all. Each child is asked first; once all agreed, the level is detached. A child
//!    that is lost, or whose owner ends, a moment later is as one that was detached before that: it is left to its owner
//!    as lost, or given back as by the owner's end.

mod asking;
mod crew;
mod hold;
mod level;
mod owner;
mod standing;
mod tally;

pub(super) use self::hold::Composite;
pub(super) use self::level::Level;
pub(crate) use self::owner::OwnerState;
pub(super) use self::standing::Child;
#[cfg(test)]
pub(super) use self::standing::{Phase, Standing};

/// The most children there can be.
pub(super) const MOST: usize = 64;
