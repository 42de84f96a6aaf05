//! What callers get wrong, and what stands in Redis that is no lock.

mod clients;
mod locks;
