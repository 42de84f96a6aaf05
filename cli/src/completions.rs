//! `completions SHELL`: a script for the shell's completion.

use clap::CommandFactory;

use crate::options::{Cli, CompletionOptions};
use crate::status::{Failure, Status};
use crate::text::print;

pub(crate) fn completions(options: &CompletionOptions) -> Result<Status, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "watchlock", &mut script);

    print(&String::from_utf8_lossy(&script))?;
    Ok(Status::DONE)
}
