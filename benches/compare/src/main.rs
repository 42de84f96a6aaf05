//! The bench: see the library of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    watchlock_compare::main()
}
