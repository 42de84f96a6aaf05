//! What every case uses: the server, the plan, the progress line.

use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use watchlock_support::server::RedisServer;

use crate::Result;
use crate::child::{self, Measured};
use crate::load::pairs::Pairs;
use crate::load::{Flavor, Job, Load};
use crate::locks::Role;
use crate::plan::Plan;
use crate::roster::{Participant, Roster};

/// One run.
pub(crate) struct Bench {
    pub(crate) plan: Plan,
    pub(crate) roster: Roster,
    pub(crate) server: RedisServer,
    url: String,
    start: Instant,
    done: Cell<usize>,
    failures: RefCell<Vec<String>>,
}

impl Bench {
    /// Starts the private server and finds out who takes part.
    pub(crate) fn start(plan: Plan) -> Result<Self> {
        let server = RedisServer::start();
        let mut bench = Self {
            plan,
            roster: Roster::own()?,
            url: server.url(),
            server,
            start: Instant::now(),
            done: Cell::new(0),
            failures: RefCell::default(),
        };
        if bench.plan.wants_crates() {
            let peers = bench.roster.add_peers();
            bench.or_note("other crates", peers);
        }
        if bench.plan.quick {
            bench.roster.only_defaults();
        }
        bench.start = Instant::now();
        Ok(bench)
    }

    /// The server's address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A job for one entrant on the user's usual runtime.
    pub(crate) fn job(&self, who: &Participant, load: Load, window: Duration) -> Job {
        Job {
            entrant: who.info.name.clone(),
            setup: who.info.setup,
            url: self.url.clone(),
            flavor: Flavor::MultiThread,
            window,
            load,
        }
    }

    /// Measures on an empty server; a failure is noted and leaves a gap in the tables.
    pub(crate) fn measure<T: DeserializeOwned>(
        &self,
        case: &str,
        who: &Participant,
        jobs: &[Job],
    ) -> Option<Measured<T>> {
        let what = format!("{case}: {}", who.info.name);
        self.progress(&what);
        let measured = self.clear();
        let measured = measured.and_then(|()| child::measure(&self.url, &who.program, jobs));
        self.or_note(&what, measured)
    }

    /// One round trip of the floor: half of an uncontended pair with one task.
    pub(crate) fn floor_round_trip_us(&self, case: &str) -> Option<f64> {
        let floors = self.roster.those(|info| info.role == Role::Floor);
        let who = floors.first()?;
        let job = self.job(who, Load::Pairs { tasks: 1 }, self.plan.window(140, 60));
        let measured = self.measure::<Pairs>(case, who, &[job])?;
        Some(measured.answers.first()?.p50_us / 2.0)
    }

    /// The value, or `None` and a note for the report.
    pub(crate) fn or_note<T>(&self, what: &str, outcome: Result<T>) -> Option<T> {
        outcome
            .map_err(|failure| self.failed(&format!("{what}: {failure}")))
            .ok()
    }

    /// Notes what could not be measured.
    pub(crate) fn failed(&self, what: &str) {
        eprintln!("\nnot measured: {what}");
        self.failures.borrow_mut().push(what.to_owned());
    }

    /// Everything that could not be measured.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.failures.borrow().clone()
    }

    /// Empties the server.
    pub(crate) fn clear(&self) -> Result<()> {
        let mut connection = redis::Client::open(self.url.as_str())?.get_connection()?;
        Ok(redis::cmd("FLUSHALL").exec(&mut connection)?)
    }

    /// Shows the progress: one changing line in a terminal, now and then a line elsewhere.
    pub(crate) fn progress(&self, what: &str) {
        let done = self.done.get();
        self.done.set(done + 1);
        let seconds = self.start.elapsed().as_secs();
        let mut to = io::stderr();
        if to.is_terminal() {
            let _ = write!(to, "\r\x1b[K{seconds:4} s  {what}");
            let _ = to.flush();
        } else if done.is_multiple_of(20) {
            let _ = writeln!(to, "{seconds:4} s  {what}");
        }
    }

    /// Ends the progress line.
    pub(crate) fn progress_end(&self) {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        eprintln!("measured for {} s", self.start.elapsed().as_secs());
    }
}
