//! A cluster: where commands go, which names are refused, slots that move, masters that fail.

#[path = "../common/mod.rs"]
mod common;

mod acl;
mod at_once;
#[cfg(feature = "tls")]
mod encrypted;
mod failing;
mod holders;
mod joining;
mod kinds;
mod links;
mod moving;
mod names;
mod renewals;
mod routing;
mod scene;
mod storm;
