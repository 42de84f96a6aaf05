//! Java and Rust under fire: workers of both on the same locks while a nemesis kills, freezes, flushes scripts and
//! cuts subscribers, and a proof afterwards. `INTEROP_SECONDS` (8 unless set, 60 for a campaign that counts),
//! `INTEROP_SEED`, `INTEROP_REDISSON` (4).

mod mixed;
