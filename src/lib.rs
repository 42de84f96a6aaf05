//! watchlock
