//! The command line of watchlock: `run` a command under a lock, and look at the locks in Redis.
//!
//! A file for each command, and beside them what they share:
//! - `options`: what can be written on the command line
//! - `connect`: the one place that turns options into a client of watchlock, or into plain connections
//! - `inspect`: reads a lock as it stands in Redis
//! - `status`: the exit statuses, as one table
//! - `text`: tables, and names that may hold anything
//! - `messages`: what goes to stderr, which may block

mod completions;
mod connect;
mod messages;
mod options;
mod run;
mod status;

use std::process::ExitCode;

use clap::Parser;

use options::{Cli, Command};
use status::Status;

fn main() -> ExitCode {
    if let Some(status) = run::shim() {
        return status;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A closed output is no reason to end otherwise.
            let _ = error.print();
            let wrong = error.use_stderr();
            return if wrong { Status::USAGE } else { Status::DONE }.into();
        }
    };
    // One thread: `run` has to start its command from the main one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(execute(cli.command)).into(),
        Err(error) => {
            eprintln!("watchlock: {error}");
            Status::INTERNAL.into()
        }
    }
}

async fn execute(command: Command) -> Status {
    match command {
        Command::Run(options) => run::run(&options).await,
        Command::Completions(options) => completions::completions(&options),
    }
}
