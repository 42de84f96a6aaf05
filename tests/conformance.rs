//! Redisson's own behaviours as a list of tests, without Java: `docs/redisson-conformance.md` is its table.

mod conformance_suite;
