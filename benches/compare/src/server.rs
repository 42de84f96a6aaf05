//! The server's own counters between two looks.

use std::collections::BTreeMap;

use crate::Result;

/// The server's own counters at one moment, or between two.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    /// Calls per command, also those made by scripts.
    calls: BTreeMap<String, u64>,
    /// CPU seconds, user and system.
    pub(crate) cpu_seconds: f64,
    /// Bytes the server received and sent.
    pub(crate) traffic_bytes: u64,
    /// Connections that the server accepted.
    pub(crate) connections: u64,
    /// Memory that data and connections take.
    pub(crate) memory_bytes: u64,
}

impl Counters {
    /// Asks the server.
    pub(crate) fn read(url: &str) -> Result<Self> {
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let info: String = redis::cmd("INFO")
            .arg("everything")
            .query(&mut connection)?;
        Ok(Self::parse(&info))
    }

    fn parse(info: &str) -> Self {
        let mut counters = Self::default();
        for (key, value) in info.lines().filter_map(|line| line.split_once(':')) {
            match key {
                "used_cpu_sys" | "used_cpu_user" => {
                    counters.cpu_seconds += value.parse::<f64>().unwrap_or(0.0);
                }
                "total_net_input_bytes" | "total_net_output_bytes" => {
                    counters.traffic_bytes += value.parse::<u64>().unwrap_or(0);
                }
                "total_connections_received" => {
                    counters.connections = value.parse().unwrap_or(0);
                }
                "used_memory" => counters.memory_bytes = value.parse().unwrap_or(0),
                _ => {
                    if let Some(command) = key.strip_prefix("cmdstat_") {
                        counters.calls.insert(command.to_owned(), calls(value));
                    }
                }
            }
        }
        counters
    }

    /// The difference to `earlier`; memory may have shrunk and is then 0.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let calls = self.calls.iter().map(|(command, calls)| {
            let before = earlier.calls.get(command).copied().unwrap_or(0);
            (command.clone(), calls.saturating_sub(before))
        });
        Self {
            calls: calls.collect(),
            cpu_seconds: self.cpu_seconds - earlier.cpu_seconds,
            traffic_bytes: self.traffic_bytes.saturating_sub(earlier.traffic_bytes),
            connections: self.connections.saturating_sub(earlier.connections),
            memory_bytes: self.memory_bytes.saturating_sub(earlier.memory_bytes),
        }
    }

    /// Calls of these commands. Clients name the commands that they send themselves, because the server counts what a
    /// script calls under the same names.
    pub(crate) fn calls_of(&self, commands: &[impl AsRef<str>]) -> u64 {
        let names = commands.iter().map(AsRef::as_ref);
        let calls = names.filter_map(|name| self.calls.get(name));
        calls.sum()
    }
}

fn calls(value: &str) -> u64 {
    let first = value.split(',').next().unwrap_or_default();
    let number = first.strip_prefix("calls=").unwrap_or_default();
    number.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_differences() {
        let earlier = Counters::parse("used_cpu_sys:1.5\r\ncmdstat_set:calls=3,usec=9\r\n");
        let later = Counters::parse(
            "used_cpu_sys:1.75\r\nused_cpu_user:0.25\r\ncmdstat_set:calls=10,usec=9\r\n\
             cmdstat_client|list:calls=2,usec=1\r\n",
        );
        let between = later.since(&earlier);
        assert_eq!(between.calls_of(&["set", "get"]), 7);
        assert!((between.cpu_seconds - 0.5).abs() < 1e-9);
    }
}
