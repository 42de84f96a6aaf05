//! A Redis in memory as a process of its own, with the command line of redis-server:
//!
//! ```text
//! memory-redis --port 7000        or with a configuration file: memory-redis redis.conf --port 7000
//! ```
//! It serves any client until it is killed. watchlock's own tests of scripts and of all kinds of locks run on it, too:
//! `scripts/on-memory.sh`. It takes the port; other settings say nothing to it, and it refuses those that would make it
//! another kind of server.

use std::process::ExitCode;

use watchlock_test::Redis;

/// The port of redis-server.
const PORT: u16 = 6379;

/// A server with one of these would be another one than a test asks for.
const REFUSED: [&str; 5] = [
    "cluster-enabled",
    "requirepass",
    "sentinel",
    "tls-port",
    "unixsocket",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--version") {
        println!(
            "Redis server v=7.0.15 in memory, watchlock-test {}",
            env!("CARGO_PKG_VERSION")
        );
        return ExitCode::SUCCESS;
    }
    match serve(&arguments) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("memory-redis: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &[String]) -> Result<std::convert::Infallible, String> {
    let mut port = PORT;
    for (key, value) in settings(arguments)? {
        if REFUSED.contains(&key.as_str()) {
            return Err(format!("no {key} in memory"));
        }
        if key == "port" {
            port = value.parse().map_err(|_| format!("no port: {value}"))?;
        }
    }
    let redis = Redis::start_on(port).map_err(|error| format!("port {port}: {error}"))?;
    println!("ready at {}", redis.url());
    loop {
        std::thread::park();
    }
}

/// The settings of a configuration file, if the first argument is none, and those of the options behind it.
fn settings(arguments: &[String]) -> Result<Vec<(String, String)>, String> {
    let mut settings = Vec::new();
    let mut options = arguments;
    if let Some((path, rest)) = arguments.split_first()
        && !path.starts_with("--")
    {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        settings.extend(text.lines().filter_map(setting));
        options = rest;
    }
    let line = options.join(" ");
    settings.extend(line.split("--").filter_map(setting));
    Ok(settings)
}

fn setting(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    Some((key.to_lowercase(), value.trim().to_owned()))
}
