//! Idle: a client that is connected and holds nothing.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::wait_for_go;
use crate::usage::process_cpu_ns;

/// The cost of a client that does nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Idle {
    /// CPU of the client process per second, in µs.
    pub(crate) cpu_us_per_second: f64,
}

pub(crate) async fn run(window: Duration) -> Idle {
    wait_for_go();
    let cpu = process_cpu_ns();
    sleep(window).await;
    let cpu_us = (process_cpu_ns() - cpu) as f64 / 1e3;
    Idle {
        cpu_us_per_second: cpu_us / window.as_secs_f64(),
    }
}
