//! Scripts: the Lua of Redis, with functions that call commands.

mod convert;
mod digest;
mod native;
mod random;
mod shebang;

use std::collections::BTreeMap;
use std::sync::Arc;

use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, LuaOptions, StdLib, Table, Value};
use parking_lot::Mutex;

pub(super) use digest::hex;
pub(super) use shebang::Declared;

use super::Bytes;
use super::failure::{Failure, Outcome};
use super::state::State;
use random::ScriptRandom;

/// How the errors of a script name it.
const CHUNK: &str = "@user_script";
const SANDBOX_NAME: &str = "=sandbox";
const SANDBOX: &str = include_str!("sandbox.lua");

/// A compiled script.
#[derive(Debug, Clone, Copy)]
pub(super) struct Script {
    /// Its place in the sandbox.
    number: i64,
    pub(super) declared: Declared,
}

/// The scripts of a server, by their digests.
#[derive(Debug, Default)]
pub(super) struct Scripts {
    known: BTreeMap<String, Script>,
    engine: Option<Engine>,
}

/// What a script ended with.
enum Done {
    /// A table without a field that has a meaning.
    List(Table),
    Other(Value),
    Raised(Value),
}

/// An interpreter with the sandbox.
#[derive(Debug)]
struct Engine {
    lua: Lua,
    /// The globals, where keys and arguments are put.
    visible: Table,
    run: Function,
    add: Function,
    clear: Function,
}

impl Scripts {
    pub(super) fn find(&self, digest: &str) -> Option<Script> {
        self.known.get(digest).copied()
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.known.clear();
        if let Some(engine) = &self.engine {
            engine
                .clear
                .call::<()>(())
                .map_err(|error| broken(&error))?;
        }
        Ok(())
    }

    /// Compiles a script, unless it is known.
    pub(super) fn load(
        &mut self,
        text: &[u8],
        state: &Arc<Mutex<State>>,
    ) -> Result<(String, Script), Failure> {
        let digest = hex(text);
        if let Some(script) = self.known.get(&digest) {
            return Ok((digest, *script));
        }
        let (declared, body) = shebang::parse(text)?;
        let engine = self.engine(state).map_err(|error| broken(&error))?;
        let chunk = engine
            .lua
            .load(body)
            .set_name(CHUNK)
            .set_mode(ChunkMode::Text);
        let function = chunk
            .into_function()
            .map_err(|error| not_compiled(&error))?;
        let number = engine.add.call(function).map_err(|error| broken(&error))?;
        let script = Script { number, declared };
        self.known.insert(digest.clone(), script);
        Ok((digest, script))
    }

    /// Runs a script. Nobody else may lock the state meanwhile.
    pub(super) fn run(
        &mut self,
        digest: &str,
        script: Script,
        (keys, arguments): (&[Bytes], &[Bytes]),
        state: &Arc<Mutex<State>>,
    ) -> Outcome {
        let engine = self.engine(state).map_err(|error| broken(&error))?;
        let done = engine.run(script, keys, arguments);
        let resp = state.lock().script.as_ref().map_or(2, |run| run.resp);
        match done.map_err(|error| broken(&error))? {
            Done::List(table) => Ok(convert::list_from_lua(&table, resp)),
            Done::Other(value) => Ok(convert::from_lua(&value, resp)),
            Done::Raised(failed) => Err(raised(digest, &failed)),
        }
    }

    fn engine(&mut self, state: &Arc<Mutex<State>>) -> mlua::Result<&Engine> {
        if self.engine.is_none() {
            self.engine = Some(Engine::new(state)?);
        }
        self.engine
            .as_ref()
            .ok_or(mlua::Error::runtime("no interpreter"))
    }
}

impl Engine {
    fn new(state: &Arc<Mutex<State>>) -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
        let random = Arc::new(Mutex::new(ScriptRandom::unseeded()));
        let native = native::functions(&lua, state, &random)?;
        let sandbox = lua.load(SANDBOX).set_name(SANDBOX_NAME);
        let (proxy, visible, run, add, clear) = sandbox.call((native, lua.globals()))?;
        lua.set_globals(proxy)?;
        Ok(Self {
            lua,
            visible,
            run,
            add,
            clear,
        })
    }

    fn run(&self, script: Script, keys: &[Bytes], arguments: &[Bytes]) -> mlua::Result<Done> {
        self.visible.raw_set("KEYS", self.list(keys)?)?;
        self.visible.raw_set("ARGV", self.list(arguments)?)?;
        let done: (bool, Value, bool) = self.run.call(script.number)?;
        Ok(match done {
            (true, Value::Table(list), true) => Done::List(list),
            (true, value, _) => Done::Other(value),
            (false, failed, _) => Done::Raised(failed),
        })
    }

    fn list(&self, items: &[Bytes]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(items.len(), 0)?;
        for (index, item) in items.iter().enumerate() {
            table.raw_set(index + 1, self.lua.create_string(item)?)?;
        }
        Ok(table)
    }
}

/// What should not happen: the interpreter itself fails.
fn broken(error: &mlua::Error) -> Failure {
    Failure::new(format!("ERR Error running script: {error}"))
}

fn not_compiled(error: &mlua::Error) -> Failure {
    let said = match error {
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    };
    Failure::new(format!("ERR Error compiling script (new function): {said}"))
}

/// The error that a script ended with, and where.
fn raised(digest: &str, failed: &Value) -> Failure {
    let Value::Table(table) = failed else {
        return Failure::fixed("ERR Error running script: execution failure");
    };
    let text = |name: &str| {
        let value: Option<mlua::LuaString> = table.raw_get(name).ok();
        value.map(|text| text.as_bytes().to_vec())
    };
    let mut said = text("err").unwrap_or_else(|| b"ERR unknown error".to_vec());
    if let (Some(source), Some(line)) = (text("source"), text("line")) {
        said.extend_from_slice(format!(" script: {digest}, on ").as_bytes());
        said.extend_from_slice(&source);
        said.push(b':');
        said.extend_from_slice(&line);
        said.push(b'.');
    }
    Failure::new(said)
}
