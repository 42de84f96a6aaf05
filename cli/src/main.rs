//! The command line of watchlock: `run` a command under a lock, and look at the locks in Redis.
//!
//! A file for each command, and beside them what they share:
//! - `options`: what can be written on the command line
//! - `connect`: the one place that turns options into a client of watchlock, or into plain connections
//! - `inspect`: reads a lock as it stands in Redis
//! - `status`: the exit statuses, as one table
//! - `text`: tables, and names that may hold anything
//! - `messages`: what goes to stderr, which may block

#[cfg(not(unix))]
compile_error!("watchlock is for Unix: it ends commands by signals");

mod completions;
mod connect;
mod doctor;
mod inspect;
mod ls;
mod messages;
mod options;
mod release;
mod run;
mod show;
mod status;
mod text;

use std::process::ExitCode;

use clap::Parser;

use options::{Cli, Command};
use status::{Failure, Status};

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
        Ok(runtime) => {
            let status = runtime.block_on(execute(cli.command));
            // A look-up of a host name may hang for long.
            runtime.shutdown_background();
            status.into()
        }
        Err(error) => {
            text::warn(&error.to_string());
            Status::INTERNAL.into()
        }
    }
}

async fn execute(command: Command) -> Status {
    match command {
        Command::Run(options) => run::run(&options).await,
        Command::Ls(options) => told(ls::ls(&options).await),
        Command::Show(options) => told(show::show(&options).await),
        Command::Release(options) => told(release::release(&options).await),
        Command::Doctor(options) => told(doctor::doctor(&options).await),
        Command::Completions(options) => told(completions::completions(&options)),
    }
}

fn told(result: Result<Status, Failure>) -> Status {
    result.unwrap_or_else(|failure| {
        text::warn(&failure.message);
        failure.status
    })
}
