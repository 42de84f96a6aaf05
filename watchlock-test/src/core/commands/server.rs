//! The server itself.

use std::fmt::Write;
use std::time::Duration;

use crate::core::call::{Call, is, text, upper};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::integer;
use crate::core::statistics::Statistics;
use crate::core::{Bytes, Reply};

pub(super) fn time(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    let now = call.state.now;
    let micros = now.subsec_micros().to_string();
    Ok(Reply::bulks([now.as_secs().to_string(), micros]))
}

/// Answers at once: the replicas that there are acknowledge every write.
pub(super) fn wait(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let wanted = integer(&arguments[1]).ok_or(Failure::NOT_AN_INTEGER)?;
    let wrong = Failure::fixed("ERR timeout is not an integer or out of range");
    let timeout = integer(&arguments[2]).ok_or(wrong)?;
    let negative = Failure::fixed("ERR timeout is negative");
    let timeout = u64::try_from(timeout).map_err(|_| negative)?;
    if call.state.condition.is_read_only {
        let text = "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.";
        return Err(Failure::fixed(text));
    }
    let replicas = call.state.condition.replicas;
    let lacks = usize::try_from(wanted).is_ok_and(|wanted| wanted > replicas);
    if lacks && !call.caller.is_in_transaction {
        // No timeout means for ever.
        call.blocks = match timeout {
            0 => Duration::MAX,
            timeout => Duration::from_millis(timeout),
        };
    }
    Ok(Reply::count(replicas))
}

pub(super) fn role(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    if call.state.condition.is_read_only {
        let place = [
            Reply::bulk("slave"),
            Reply::bulk("127.0.0.1"),
            Reply::Integer(6379),
        ];
        let link = [Reply::bulk("connected"), Reply::Integer(0)];
        return Ok(Reply::Array(place.into_iter().chain(link).collect()));
    }
    let replicas = (0..call.state.condition.replicas).map(|index| {
        let port = (6380 + index).to_string();
        Reply::bulks(["127.0.0.1", &port, "0"])
    });
    Ok(Reply::Array(vec![
        Reply::bulk("master"),
        Reply::Integer(0),
        Reply::Array(replicas.collect()),
    ]))
}

/// Writes a section.
type Section = fn(&Call<'_>) -> String;

/// Makes it a replica, of a master that is never there, or a master again.
pub(super) fn replicaof(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let is_master = is(&arguments[1], "NO") && is(&arguments[2], "ONE");
    if !is_master && integer(&arguments[2]).is_none() {
        return Err(Failure::fixed("ERR Invalid master port"));
    }
    call.state.condition.is_read_only = !is_master;
    Ok(Reply::ok())
}

/// Sections of `INFO`, and whether they are shown unasked.
const SECTIONS: [(&str, bool, Section); 9] = [
    ("Server", true, server),
    ("Clients", true, clients),
    ("Memory", true, memory),
    ("Persistence", true, persistence),
    ("Stats", true, stats),
    ("Replication", true, replication),
    ("Commandstats", false, commandstats),
    ("Errorstats", true, errorstats),
    ("Cluster", true, |_| "cluster_enabled:0\r\n".to_owned()),
];

pub(super) fn info(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let wanted = &arguments[1..];
    let asks = |name: &str| wanted.iter().any(|word| is(word, name));
    let everything = asks("all") || asks("everything");
    let default = wanted.is_empty() || asks("default");
    let mut sections = Vec::new();
    for (name, is_default, write) in SECTIONS {
        if everything || is_default && default || asks(name) {
            sections.push(format!("# {name}\r\n{}", write(call)));
        }
    }
    if everything || default || asks("Keyspace") {
        sections.push(format!("# Keyspace\r\n{}", keyspace(call)));
    }
    Ok(Reply::Verbatim(sections.join("\r\n").into()))
}

/// Lines of `name:value`.
fn lines(fields: &[(&str, &dyn std::fmt::Display)]) -> String {
    let lines = fields
        .iter()
        .map(|(name, value)| format!("{name}:{value}\r\n"));
    lines.collect()
}

fn server(call: &Call<'_>) -> String {
    let state = &call.state;
    let uptime = state.now.saturating_sub(state.started_at).as_secs();
    lines(&[
        ("redis_version", &state.options.version),
        ("redis_mode", &"standalone"),
        ("os", &"in memory"),
        ("arch_bits", &64),
        ("process_id", &state.options.process_id),
        ("run_id", &state.run_id),
        ("tcp_port", &state.options.port),
        ("server_time_usec", &state.now.as_micros()),
        ("uptime_in_seconds", &uptime),
        ("uptime_in_days", &(uptime / 86_400)),
        ("config_file", &""),
    ])
}

fn clients(call: &Call<'_>) -> String {
    lines(&[
        ("connected_clients", &call.state.sessions.len()),
        ("maxclients", &call.state.settings.get("maxclients")),
        ("blocked_clients", &0),
    ])
}

fn memory(call: &Call<'_>) -> String {
    lines(&[
        ("used_memory", &1_048_576),
        ("maxmemory", &call.state.settings.get("maxmemory")),
        (
            "maxmemory_policy",
            &call.state.settings.get("maxmemory-policy"),
        ),
    ])
}

fn persistence(call: &Call<'_>) -> String {
    lines(&[
        ("loading", &u8::from(call.state.condition.is_loading)),
        ("aof_enabled", &0),
    ])
}

fn stats(call: &Call<'_>) -> String {
    let statistics = &call.state.statistics;
    let (failed, rejected) = (
        total(statistics, |calls| calls.0),
        total(statistics, |calls| calls.1),
    );
    lines(&[
        ("total_connections_received", &statistics.connections),
        ("total_commands_processed", &statistics.processed),
        ("expired_keys", &statistics.expired),
        ("evicted_keys", &0),
        ("pubsub_channels", &call.state.hub.channels.len()),
        ("pubsub_patterns", &call.state.hub.patterns.len()),
        ("pubsubshard_channels", &call.state.hub.shard_channels.len()),
        ("total_error_replies", &(failed + rejected)),
    ])
}

fn total(statistics: &Statistics, of: impl Fn((u64, u64)) -> u64) -> u64 {
    let calls = statistics
        .commands()
        .map(|(_, calls)| (calls.failed, calls.rejected));
    calls.map(of).sum()
}

fn replication(call: &Call<'_>) -> String {
    let state = &call.state;
    let mut text = if state.condition.is_read_only {
        lines(&[
            ("role", &"slave"),
            ("master_host", &"127.0.0.1"),
            ("master_port", &6379),
            ("master_link_status", &"up"),
            ("slave_read_only", &1),
        ])
    } else {
        lines(&[("role", &"master")])
    };
    text += &lines(&[
        ("connected_slaves", &state.condition.replicas),
        ("master_replid", &state.run_id),
        ("master_repl_offset", &0),
    ]);
    text
}

fn commandstats(call: &Call<'_>) -> String {
    let mut text = String::new();
    for (name, calls) in call.state.statistics.commands() {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "cmdstat_{name}:calls={},usec=0,usec_per_call=0.00,rejected_calls={},failed_calls={}\r\n",
            calls.run, calls.rejected, calls.failed
        );
    }
    text
}

fn errorstats(call: &Call<'_>) -> String {
    let errors = call.state.statistics.errors();
    let lines = errors.map(|(code, count)| {
        let code = String::from_utf8_lossy(code);
        format!("errorstat_{code}:count={count}\r\n")
    });
    lines.collect()
}

fn keyspace(call: &Call<'_>) -> String {
    let databases = call.state.databases.iter().enumerate();
    let lines = databases.filter(|(_, db)| db.len() > 0).map(|(index, db)| {
        let (keys, expires) = (db.len(), db.expiring());
        format!("db{index}:keys={keys},expires={expires},avg_ttl=0\r\n")
    });
    lines.collect()
}

pub(super) fn config_get(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let mut found = std::collections::BTreeMap::new();
    for pattern in &arguments[2..] {
        found.extend(call.state.settings.matching(pattern));
    }
    let pairs = found
        .into_iter()
        .map(|(name, value)| (Reply::bulk(name), Reply::bulk(value)));
    Ok(Reply::Map(pairs.collect()))
}

pub(super) fn config_set(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let pairs = arguments[2..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(Failure::SYNTAX);
    }
    for pair in pairs {
        let (name, value) = (text(&pair[0]).to_ascii_lowercase(), text(&pair[1]));
        // The older name of the same setting.
        let name = name.replace("min-slaves-to-write", "min-replicas-to-write");
        call.state.settings.set(&name, &value)?;
        if name == "requirepass" {
            call.state.users.require(&value);
        }
    }
    Ok(Reply::ok())
}

pub(super) fn config_resetstat(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    call.state.statistics = Statistics::default();
    Ok(Reply::ok())
}

pub(super) fn config_rewrite(_call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    Err(Failure::fixed(
        "ERR The server is running without a config file",
    ))
}

pub(super) fn command(_call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    Ok(Reply::Array(
        super::all().map(super::Command::described).collect(),
    ))
}

pub(super) fn command_count(_call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    Ok(Reply::count(super::all().count()))
}

pub(super) fn command_info(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    if arguments.len() == 2 {
        return command(call, arguments);
    }
    let described = arguments[2..].iter().map(|name| {
        let found = super::find(name);
        found.map_or(Reply::NullArray, super::Command::described)
    });
    Ok(Reply::Array(described.collect()))
}

pub(super) fn command_list(_call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    if arguments.len() > 2 {
        return Err(Failure::SYNTAX);
    }
    Ok(Reply::bulks(super::all().map(|command| command.name)))
}

/// Documentation is left out, which clients take for an old server.
pub(super) fn command_docs(_call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    Ok(Reply::Map(Vec::new()))
}

pub(super) fn no_cluster(_call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    Err(Failure::fixed(
        "ERR This instance has cluster support disabled",
    ))
}

/// There are no functions, so none is found.
pub(super) fn fcall(_call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    Err(Failure::fixed("ERR Function not found"))
}

/// `CLIENT HELP` and its like.
pub(super) fn help(_call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let container = upper(&arguments[0]);
    let line = format!(
        "{container} <subcommand> [<arg> [value] [opt] ...]. See redis.io for the subcommands."
    );
    Ok(Reply::Array(vec![Reply::status(&line)]))
}

/// No script outlives its command.
pub(super) fn nothing_to_kill(_call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    Err(Failure::fixed("NOTBUSY No scripts in execution right now."))
}
