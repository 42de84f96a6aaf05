//! The kit does what tests rely on: servers, workers, the proxy.

mod proxy;
mod server;
mod worker;
