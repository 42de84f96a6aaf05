//! Java and Rust on one lock: watchlock against an older Redisson that services still have.

mod interop_suite;

/// The Redisson that `scripts/interop-peer.sh` is asked for.
const REDISSON: &str = "3";
