//! Several locks as one: all of them or none.

mod acquire;
mod handle;
mod set;

pub use self::handle::{MultiLock, MultiLockBuilder, Several};
