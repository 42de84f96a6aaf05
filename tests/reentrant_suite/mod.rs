//! Owners: none, by guard, as a value, by scope.

mod detached;
mod forced;
mod owners;
mod scopes;
