//! The loads: what one child process does with one entrant.
//!
//! Each measurement is a process of its own: connected, warmed up, then started. So entrants share
//! nothing, and CPU and memory are theirs alone.

pub(crate) mod acknowledged;
pub(crate) mod beside;
pub(crate) mod contended;
pub(crate) mod crowd;
pub(crate) mod ending;
pub(crate) mod flood;
pub(crate) mod holding;
pub(crate) mod idle;
pub(crate) mod names;
pub(crate) mod outage;
pub(crate) mod pairs;
pub(crate) mod queue;
pub(crate) mod quorum;
pub(crate) mod readers;
pub(crate) mod reentry;
pub(crate) mod several;

use std::io::{self, BufRead, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use crate::Result;
use crate::locks::{LockUnderTest, Setup};

/// The line with which a child says that it is connected and warm.
pub(crate) const READY: &str = "ready";

/// The user's runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Flavor {
    MultiThread,
    CurrentThread,
}

impl Flavor {
    fn build(self) -> io::Result<Runtime> {
        match self {
            Self::MultiThread => Builder::new_multi_thread().enable_all().build(),
            Self::CurrentThread => Builder::new_current_thread().enable_all().build(),
        }
    }
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Load {
    /// Lock and unlock, each task its own name.
    Pairs { tasks: usize },
    /// The same on a server whose replica must acknowledge, or need not.
    Acknowledged { tasks: usize, acks: bool },
    /// Enter a held lock again.
    Reentry,
    /// One lock, and several as one, in turn.
    Several { names: usize },
    /// A lock of one server, of a quorum, and of a quorum that lacks two, in turn.
    Quorum { all: Vec<String>, some: Vec<String> },
    /// All tasks of all processes on one name.
    Contended {
        tasks: usize,
        process: usize,
        work: contended::Work,
    },
    /// Readers that overlap without pause; in the first process a writer comes now and then.
    Readers { tasks: usize, process: usize },
    /// Very many tasks that wait for one name.
    Crowd { tasks: usize },
    /// Locks held and kept alive.
    Holding { holds: usize },
    /// Locks held when the server ends; a task awaits the loss of one in `each` of them.
    Outage { holds: usize, each: usize },
    /// Locks of a cluster's masters that answer, beside others whose master, at `node`, falls silent.
    Beside {
        well: Vec<String>,
        ill: Vec<String>,
        node: String,
    },
    /// Very many tasks, each with its own name, maybe while the server is silent.
    Names { tasks: usize, freeze: bool },
    /// Many clients that wait for one name.
    Queue { clients: usize },
    /// The end of a client that holds locks.
    Ending { holds: usize },
    /// Very many messages on the channel of a name for which a task waits.
    Flood,
    /// A client that holds nothing.
    Idle,
}

/// One measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) entrant: String,
    pub(crate) setup: Setup,
    pub(crate) url: String,
    pub(crate) flavor: Flavor,
    pub(crate) window: Duration,
    pub(crate) load: Load,
}

/// Runs a job in this process; the answer as JSON.
pub(crate) fn run<L: LockUnderTest>(job: &Job) -> Result<String> {
    let runtime = job.flavor.build()?;
    let answer = runtime.block_on(measure::<L>(job));
    // Tasks of a load that did not finish are left behind.
    runtime.shutdown_background();
    answer
}

async fn measure<L: LockUnderTest>(job: &Job) -> Result<String> {
    let lock = L::connect(&job.url, job.setup).await?;
    let window = job.window;
    match job.load.clone() {
        Load::Pairs { tasks } => json(&pairs::run(&lock, tasks, window).await?),
        Load::Acknowledged { tasks, acks } => {
            json(&acknowledged::run(&lock, &job.url, tasks, acks, window).await?)
        }
        Load::Reentry => json(&reentry::run(&lock, window).await?),
        Load::Several { names } => json(&several::run(&lock, names, window).await?),
        Load::Quorum { all, some } => json(&quorum::run(&lock, [all, some], window).await?),
        Load::Contended {
            tasks,
            process,
            work,
        } => json(&contended::run(&lock, tasks, process, work, window).await?),
        Load::Readers { tasks, process } => {
            json(&readers::run(&lock, tasks, process == 0, window).await?)
        }
        Load::Crowd { tasks } => json(&crowd::run(&lock, tasks, window).await?),
        Load::Holding { holds } => json(&holding::run(&lock, &job.url, holds, window).await?),
        Load::Outage { holds, each } => json(&outage::run(&lock, &job.url, holds, each).await?),
        Load::Beside { well, ill, node } => {
            json(&beside::run(&lock, [well, ill], &node, window).await?)
        }
        Load::Names { tasks, freeze } => json(&names::run(&lock, &job.url, tasks, freeze).await?),
        Load::Queue { clients } => {
            json(&queue::run(&lock, &job.url, job.setup, clients, window).await?)
        }
        Load::Ending { holds } => json(&ending::run(&lock, &job.url, holds).await?),
        Load::Flood => json(&flood::run(&lock, &job.url, window).await?),
        Load::Idle => json(&idle::run(window).await),
    }
}

fn json<T: Serialize>(value: &T) -> Result<String> {
    Ok(serde_json::to_string(value)?)
}

/// Reports that everything is warm, and waits for the parent.
pub(crate) fn wait_for_go() {
    println!("{READY}");
    let _ = io::stdout().flush();
    let mut line = String::new();
    let _ = io::stdin().lock().read_line(&mut line);
}
