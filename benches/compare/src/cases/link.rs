//! (f) Lock and unlock over a link with delay: where pipelining and nodelay show.

use crate::bench::Bench;
use crate::report::Findings;

pub(crate) fn run(_bench: &Bench, _findings: &mut Findings) {}
