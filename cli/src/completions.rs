//! `completions SHELL`: a script for the shell's completion.

use std::io::Write;

use clap::CommandFactory;

use crate::options::{Cli, CompletionOptions};
use crate::status::Status;

pub(crate) fn completions(options: &CompletionOptions) -> Status {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "watchlock", &mut script);
    // Nobody reads on: that is no failure.
    let _ = std::io::stdout().write_all(&script);
    Status::DONE
}
