//! Child processes: one per measurement, and what the server counted meanwhile.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::Result;
use crate::load::{Job, READY};
use crate::locks::Entrant;
use crate::server::Counters;

/// The first argument of a child that measures; the job is the second.
const MEASURE: &str = "measure";
/// The first argument of a child that only lists its entrants.
pub(crate) const LIST: &str = "list";
/// How long a child may take beyond its window: connecting, warming up, taking 100 000 locks.
const PATIENCE: Duration = Duration::from_secs(120);

/// Answers, and what the server counted between "go" and the last of them.
#[derive(Debug)]
pub(crate) struct Measured<T> {
    pub(crate) answers: Vec<T>,
    pub(crate) counters: Counters,
}

/// Runs the jobs at the same time, one child each.
pub(crate) fn measure<T: DeserializeOwned>(
    url: &str,
    program: &Path,
    jobs: &[Job],
) -> Result<Measured<T>> {
    let children = jobs.iter().map(|job| Running::start(program, job));
    let mut children = children.collect::<Result<Vec<_>>>()?;
    for child in &mut children {
        child.expect_ready()?;
    }
    let before = Counters::read(url)?;
    for child in &mut children {
        writeln!(child.input, "go")?;
    }
    let lines = children.iter_mut().map(Running::line);
    let lines = lines.collect::<Result<Vec<_>>>()?;
    let counters = Counters::read(url)?.since(&before);
    let answers = lines.iter().map(|line| serde_json::from_str(line));
    Ok(Measured {
        answers: answers.collect::<serde_json::Result<_>>()?,
        counters,
    })
}

/// What a program with entrants does, depending on its arguments: lists them, or measures one.
#[must_use]
pub fn serve(entrants: &[Entrant]) -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    crate::exit_code(match args[..] {
        [LIST] => list(entrants),
        [MEASURE, job] => run(entrants, job),
        _ => Err("no arguments, please; BENCH_SECONDS and BENCH_QUICK are read".into()),
    })
}

fn list(entrants: &[Entrant]) -> Result<()> {
    let infos: Vec<_> = entrants.iter().map(|entrant| &entrant.info).collect();
    println!("{}", serde_json::to_string(&infos)?);
    Ok(())
}

fn run(entrants: &[Entrant], job: &str) -> Result<()> {
    let job: Job = serde_json::from_str(job)?;
    let limit = job.window + PATIENCE;
    thread::spawn(move || {
        thread::sleep(limit);
        eprintln!("the measurement takes too long");
        std::process::exit(1);
    });
    let mut entrants = entrants.iter();
    let entrant = entrants.find(|entrant| entrant.info.name == job.entrant);
    let entrant = entrant.ok_or_else(|| format!("no entrant is called {:?}", job.entrant))?;
    println!("{}", (entrant.run)(&job)?);
    Ok(())
}

struct Running {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(program: &Path, job: &Job) -> Result<Self> {
        let mut process = Command::new(program)
            .arg(MEASURE)
            .arg(serde_json::to_string(job)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().ok_or("no standard input")?;
        let output = process.stdout.take().ok_or("no standard output")?;
        Ok(Self {
            process,
            input,
            output: BufReader::new(output),
        })
    }

    fn expect_ready(&mut self) -> Result<()> {
        match self.line()? {
            line if line == READY => Ok(()),
            line => Err(format!("a child said {line:?} instead of {READY:?}").into()),
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("a child ended without an answer; what it said is above".into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
