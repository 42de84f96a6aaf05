//! The beginning and the end of a client.

mod connecting;
mod ending;
