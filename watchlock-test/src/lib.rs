#![doc = include_str!("../README.md")]

pub mod core;
mod fault;
mod redis;
mod server;
mod state;
mod stranger;

pub use fault::Fault;
pub use redis::Redis;
pub use stranger::Stranger;
