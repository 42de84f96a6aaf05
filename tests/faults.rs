//! Every fault that a lock in Redis must stand, each by its number (F13 and F17 to F18 have places of their own).
//!
//! | fault | where |
//! |---|---|
//! | F1, F2, F14, F16: the holder dies, stands still, sleeps, goes away | `holders` |
//! | F3, F4, F15: replies that are lost or late, callers that are gone | `replies` |
//! | F5, F19: wake-ups that do not arrive | `wakeups` |
//! | F6, F7, F8, F22: the server restarts, forgets, stalls | `servers` |
//! | F9 to F11: the server refuses | `tests/error_classes.rs` |
//! | F12, F20, F21: strange keys, names and times | `values` |
//! | F13: the wall clock of the server steps | `wall_clock`, by hand |
//! | I6: whatever the server does, all calls end in time | `deadlines` |
//! | F17: blocked runtimes | `tests/starvation.rs` |
//! | F18: thousands of waiters | `tests/scale.rs` |

mod common;
mod faults_suite;
