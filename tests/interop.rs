//! Java and Rust on one lock: watchlock against the real Redisson, the newest release pinned in `tests/interop`.

mod interop_suite;

/// The Redisson that `scripts/interop-peer.sh` is asked for.
const REDISSON: &str = "4";
