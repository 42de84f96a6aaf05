//! Counting the commands that a client sends.

use std::collections::BTreeMap;

use watchlock_support::proxy::Proxy;

/// The commands that went through a proxy since the last look.
pub(crate) struct Counted<'a> {
    proxy: &'a Proxy,
    seen: u64,
}

impl<'a> Counted<'a> {
    /// Nothing counted yet.
    pub(crate) fn from_now(proxy: &'a Proxy) -> Self {
        let seen = sent(&proxy.commands());
        Self { proxy, seen }
    }

    /// Commands since the last look, without an occasional PING of the connection.
    pub(crate) fn commands(&mut self) -> u64 {
        let now = sent(&self.proxy.commands());
        now - std::mem::replace(&mut self.seen, now)
    }
}

fn sent(counts: &BTreeMap<String, u64>) -> u64 {
    let asked = counts.iter().filter(|(command, _)| *command != "PING");
    asked.map(|(_, count)| count).sum()
}
