//! Several holds as one: `n` children of which `needed` must be valid.
//!
//! 1. It is valid while `needed` children are: its end is the `needed`-th largest of theirs. Its rules are pure, in
//!    [`state`].
//! 2. It is lost when fewer than `needed` children are valid. That is final, whatever happens to a child later. A place
//!    may be empty, and a child can be put there, or in place of a lost one, while the hold is valid. Only the hold is
//!    lost: a level with too few valid children is given back like any other.
//! 3. The children's own clients renew them. There is no task and no timer here.
//! 4. The hold has one level of each child for each sort of lease that its levels have. Entering again with the same sort
//!    shares these and is counted here. The other sort enters the children: once `needed` are entered, it waits for the
//!    others up to a limit.
//! 5. All children are asked at the same time, and the answer is known when `needed` of them agree, or cannot any more. The
//!    first poll starts all questions, so a caller that goes away leaves none half asked.
//! 6. A level is detached as a whole or not at all. Each child is asked first, and when all agreed the level is detached. A
//!    child that is lost, or whose owner ends, a moment later is treated as if it had been detached before: it is left to
//!    its owner as lost, or given back as at the owner's end.

mod hold;
mod level;
mod pauses;
mod state;

pub(super) use self::hold::Composite;
pub(super) use self::level::{CompositeLevel, CompositeOwner, take_ready};
pub(super) use self::pauses::{LONGEST as LONGEST_PAUSE, Pauses};
pub(super) use self::state::ChildState;
#[cfg(test)]
pub(super) use self::state::{CompositePhase, CompositeState};

/// The largest number of children.
pub(super) const MOST: usize = 64;
