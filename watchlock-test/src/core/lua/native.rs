//! The functions of the server that scripts see.

// Lua calls them by one signature.
#![allow(clippy::needless_pass_by_value, clippy::unnecessary_wraps)]

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use mlua::{Error, Lua, MultiValue, Result, Table, Value, Variadic};
use parking_lot::Mutex;

use super::convert::{error, to_lua};
use super::random::ScriptRandom;
use crate::core::number::double;
use crate::core::state::State;
use crate::core::{Bytes, Reply, script_call};

/// An error that a script can catch.
#[derive(Debug)]
struct Raised(Bytes);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

impl std::error::Error for Raised {}

fn raise(text: impl Into<Bytes>) -> Error {
    Error::external(Raised(text.into()))
}

type Shared = Arc<Mutex<State>>;

/// The functions by name, for the sandbox.
pub(super) fn functions(
    lua: &Lua,
    state: &Shared,
    random: &Arc<Mutex<ScriptRandom>>,
) -> Result<Table> {
    let native = lua.create_table()?;
    let shared = Arc::clone(state);
    let call =
        lua.create_function(
            move |lua, arguments: MultiValue| match command(&shared, arguments) {
                (Reply::Error(text), _) => Err(raise(text)),
                (reply, resp) => to_lua(lua, reply, resp),
            },
        )?;
    let shared = Arc::clone(state);
    let pcall = lua.create_function(move |lua, arguments: MultiValue| {
        let (reply, resp) = command(&shared, arguments);
        to_lua(lua, reply, resp)
    })?;
    native.raw_set("call", call)?;
    native.raw_set("pcall", pcall)?;
    let shared = Arc::clone(state);
    native.raw_set(
        "setresp",
        lua.create_function(move |_, arguments| set_resp(&shared, arguments))?,
    )?;
    native.raw_set("sha1hex", lua.create_function(sha1hex)?)?;
    native.raw_set("log", lua.create_function(log)?)?;
    native.raw_set(
        "error",
        lua.create_function(|lua, text: mlua::LuaString| error_of(lua, &text.as_bytes()))?,
    )?;
    native.raw_set("failure", lua.create_function(failure)?)?;
    native.raw_set("place", lua.create_function(place)?)?;
    let numbers = Arc::clone(random);
    native.raw_set(
        "random",
        lua.create_function(move |_, bounds| random_number(&numbers, bounds))?,
    )?;
    let numbers = Arc::clone(random);
    let seed = lua.create_function(move |_, seed: i32| {
        *numbers.lock() = ScriptRandom::new(seed);
        Ok(())
    })?;
    native.raw_set("randomseed", seed)?;
    let version = state.lock().options.version.clone();
    native.raw_set("version_number", version_number(&version))?;
    native.raw_set("version", version)?;
    Ok(native)
}

/// Runs a command; returns its reply and the protocol in which the script wants it.
fn command(state: &Shared, arguments: MultiValue) -> (Reply, u8) {
    let mut words = Vec::with_capacity(arguments.len());
    for argument in arguments {
        match argument {
            Value::String(text) => words.push(text.as_bytes().to_vec()),
            #[allow(clippy::cast_precision_loss)]
            Value::Integer(number) => words.push(double(number as f64)),
            Value::Number(number) => words.push(double(number)),
            _ => {
                let text = "ERR Lua redis lib command arguments must be strings or integers";
                return (Reply::Error(text.into()), 2);
            }
        }
    }
    if words.is_empty() {
        let text = "ERR Please specify at least one argument for this redis lib call";
        return (Reply::Error(text.into()), 2);
    }
    let mut state = state.lock();
    let reply = script_call::call(&mut state, &words).unwrap_or_else(Reply::from);
    let resp = state.script.as_ref().map_or(2, |run| run.resp);
    (reply, resp)
}

fn set_resp(state: &Shared, arguments: Variadic<Value>) -> Result<()> {
    let [version] = arguments.as_slice() else {
        return Err(raise("ERR redis.setresp() requires one argument."));
    };
    let resp = match version {
        Value::Integer(2) => 2,
        Value::Integer(3) => 3,
        _ => return Err(raise("ERR RESP version must be 2 or 3.")),
    };
    if let Some(run) = &mut state.lock().script {
        run.resp = resp;
    }
    Ok(())
}

/// The bytes of a string or a number.
fn bytes(value: &Value) -> Option<Bytes> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        #[allow(clippy::cast_precision_loss)]
        Value::Integer(number) => Some(double(*number as f64)),
        Value::Number(number) => Some(double(*number)),
        _ => None,
    }
}

fn sha1hex(_: &Lua, arguments: Variadic<Value>) -> Result<String> {
    let [text] = arguments.as_slice() else {
        return Err(raise("ERR wrong number of arguments"));
    };
    Ok(super::hex(&bytes(text).unwrap_or_default()))
}

/// There is no log.
fn log(_: &Lua, arguments: Variadic<Value>) -> Result<()> {
    if arguments.len() < 2 {
        return Err(raise("ERR redis.log() requires two arguments or more."));
    }
    match arguments.first() {
        Some(Value::Integer(0..=3)) => Ok(()),
        Some(Value::Integer(_)) => Err(raise("ERR Invalid debug level.")),
        _ => Err(raise("ERR First argument must be a number (log level).")),
    }
}

/// The table of an error from `-CODE text` or, without a code, `text`.
fn error_of(lua: &Lua, text: &[u8]) -> Result<Table> {
    let text = text.trim_ascii_end();
    let text = match text.strip_prefix(b"-") {
        Some(coded) if coded.contains(&b' ') => coded.to_vec(),
        Some(bare) => [b"ERR ", bare].concat(),
        None => [b"ERR ", text].concat(),
    };
    error(lua, &text)
}

/// The table of an error that one of these functions raised.
fn failure(lua: &Lua, failed: Value) -> Result<Value> {
    let Value::Error(failed) = failed else {
        return Ok(failed);
    };
    let raised = failed.downcast_ref::<Raised>();
    let text = raised.map_or_else(|| format!("ERR {failed}").into(), |raised| raised.0.clone());
    Ok(Value::Table(error(lua, &text)?))
}

/// Where the script is now: its source and the line.
fn place(lua: &Lua, (): ()) -> Result<(Option<String>, Option<usize>)> {
    let own = ["=[C]", super::SANDBOX_NAME];
    for level in 1..200 {
        let found = lua.inspect_stack(level, |frame| {
            let source = frame.source().source.map(Cow::into_owned);
            (source, frame.current_line())
        });
        match found {
            None => break,
            Some((Some(source), line)) if !own.contains(&source.as_str()) => {
                return Ok((Some(source), line));
            }
            Some(_) => {}
        }
    }
    Ok((None, None))
}

fn random_number(random: &Mutex<ScriptRandom>, bounds: Variadic<f64>) -> Result<f64> {
    let number = random.lock().next();
    let (low, high) = match bounds.as_slice() {
        [] => return Ok(number),
        [high] => (1.0, high.floor()),
        [low, high] => (low.floor(), high.floor()),
        _ => return Err(raise("ERR wrong number of arguments")),
    };
    if low > high {
        return Err(raise("ERR bad argument #1 to 'random' (interval is empty)"));
    }
    Ok((number * (high - low + 1.0)).floor() + low)
}

/// 0x0007000F for 7.0.15.
fn version_number(version: &str) -> u32 {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let mut part = || -> u32 { parts.next().unwrap_or(0) & 0xFF };
    part() << 16 | part() << 8 | part()
}
