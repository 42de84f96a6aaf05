//! Each fault of the proxy, shown on raw connections.

mod commands;
mod connections;
mod kit;
