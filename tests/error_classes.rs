//! Every class of error that a server answers with, provoked on a real one: the typed error, what is left in Redis,
//! and that all goes on by itself when the server does.

mod common;
mod error_classes_suite;
