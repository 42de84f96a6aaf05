//! Values of Redis as Lua has them, and back.

use mlua::{Lua, Table, Value};

use crate::core::number::double;
use crate::core::{Bytes, Reply};

/// How deep tables of a script's result may lie in each other; a thread has little stack in tests.
const DEEPEST: usize = 128;
/// How many values a result may have: tables within themselves have too many.
const MOST: usize = 1 << 20;
const TOO_LARGE: &[u8] = b"ERR reached lua stack limit";

/// A reply as a script gets it, in this version of the protocol.
pub(super) fn to_lua(lua: &Lua, reply: Reply, resp: u8) -> mlua::Result<Value> {
    let is_3 = resp == 3;
    Ok(match reply {
        #[allow(clippy::cast_precision_loss)]
        Reply::Integer(number) => Value::Number(number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(&bytes)?),
        Reply::Status(text) => Value::Table(field(lua, "ok", &text)?),
        Reply::Error(text) => Value::Table(error(lua, &text)?),
        Reply::Null | Reply::NullArray if is_3 => Value::Nil,
        Reply::Null | Reply::NullArray => Value::Boolean(false),
        Reply::Double(number) if is_3 => {
            let table = lua.create_table()?;
            table.raw_set("double", number)?;
            Value::Table(table)
        }
        Reply::Double(number) => Value::String(lua.create_string(double(number))?),
        Reply::Boolean(is_true) if is_3 => Value::Boolean(is_true),
        Reply::Boolean(is_true) => Value::Integer(i64::from(is_true)),
        Reply::Verbatim(text) if is_3 => {
            let inner = lua.create_table()?;
            inner.raw_set("format", "txt")?;
            inner.raw_set("string", lua.create_string(&text)?)?;
            let table = lua.create_table()?;
            table.raw_set("verbatim_string", inner)?;
            Value::Table(table)
        }
        Reply::Verbatim(text) => Value::String(lua.create_string(&text)?),
        Reply::Map(pairs) if is_3 => {
            let inner = lua.create_table()?;
            for (key, value) in pairs {
                inner.raw_set(to_lua(lua, key, resp)?, to_lua(lua, value, resp)?)?;
            }
            let table = lua.create_table()?;
            table.raw_set("map", inner)?;
            Value::Table(table)
        }
        Reply::Set(items) if is_3 => {
            let inner = lua.create_table()?;
            for item in items {
                inner.raw_set(to_lua(lua, item, resp)?, true)?;
            }
            let table = lua.create_table()?;
            table.raw_set("set", inner)?;
            Value::Table(table)
        }
        Reply::Pairs(pairs) if is_3 => {
            let pairs = pairs.into_iter();
            let pairs = pairs.map(|(first, second)| Reply::Array(vec![first, second]));
            list(lua, pairs, resp)?
        }
        Reply::Map(pairs) | Reply::Pairs(pairs) => {
            let flat = pairs
                .into_iter()
                .flat_map(|(first, second)| [first, second]);
            list(lua, flat, resp)?
        }
        Reply::Array(items) | Reply::Set(items) => list(lua, items.into_iter(), resp)?,
        Reply::Pushes(pushes) => list(lua, pushes.into_iter().map(Reply::Array), resp)?,
    })
}

fn list(lua: &Lua, items: impl Iterator<Item = Reply>, resp: u8) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    for (index, item) in items.enumerate() {
        table.raw_set(index + 1, to_lua(lua, item, resp)?)?;
    }
    Ok(Value::Table(table))
}

/// The table of an error, as `redis.pcall` returns it.
pub(super) fn error(lua: &Lua, text: &[u8]) -> mlua::Result<Table> {
    let table = field(lua, "err", text)?;
    table.raw_set("ignore_error_stats_update", true)?;
    Ok(table)
}

fn field(lua: &Lua, name: &str, text: &[u8]) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set(name, lua.create_string(text)?)?;
    Ok(table)
}

/// The result of a script as a reply, in this version of the protocol.
pub(super) fn from_lua(value: &Value, resp: u8) -> Reply {
    let mut result = ScriptResult { resp, left: MOST };
    result.reply(value, 0)
}

/// The same for a table without a field that has a meaning.
pub(super) fn list_from_lua(list: &Table, resp: u8) -> Reply {
    let mut result = ScriptResult {
        resp,
        left: MOST - 1,
    };
    result.items(list, 0)
}

/// A result that is being read.
struct ScriptResult {
    resp: u8,
    /// Values that it may still have.
    left: usize,
}

impl ScriptResult {
    fn reply(&mut self, value: &Value, depth: usize) -> Reply {
        let Some(left) = self.left.checked_sub(1) else {
            return Reply::Error(TOO_LARGE.to_vec());
        };
        self.left = left;
        match value {
            Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
            Value::Integer(number) => Reply::Integer(*number),
            Value::Number(number) => Reply::Integer(truncated(*number)),
            Value::Boolean(is_true) if self.resp == 3 => Reply::Boolean(*is_true),
            Value::Boolean(true) => Reply::Integer(1),
            Value::Table(_) if depth >= DEEPEST => Reply::Error(TOO_LARGE.to_vec()),
            Value::Table(table) => {
                // What cannot be read is not there.
                let known = self.special(table, depth).ok().flatten();
                known.unwrap_or_else(|| self.items(table, depth))
            }
            _ => Reply::Null,
        }
    }

    /// A table with one of the fields that have a meaning.
    fn special(&mut self, table: &Table, depth: usize) -> mlua::Result<Option<Reply>> {
        let text = |name: &str| -> mlua::Result<Option<Bytes>> {
            let value: Value = table.raw_get(name)?;
            Ok(value.as_string().map(|text| text.as_bytes().to_vec()))
        };
        if let Some(error) = text("err")? {
            return Ok(Some(Reply::Error(error)));
        }
        if let Some(status) = text("ok")? {
            return Ok(Some(Reply::Status(status)));
        }
        match table.raw_get("double")? {
            Value::Number(number) => return Ok(Some(Reply::Double(number))),
            #[allow(clippy::cast_precision_loss)]
            Value::Integer(number) => return Ok(Some(Reply::Double(number as f64))),
            _ => {}
        }
        if let Value::Table(map) = table.raw_get("map")? {
            let mut pairs = Vec::new();
            for pair in map.pairs::<Value, Value>() {
                if self.left == 0 {
                    break;
                }
                let (key, value) = pair?;
                pairs.push((self.reply(&key, depth + 1), self.reply(&value, depth + 1)));
            }
            return Ok(Some(Reply::Map(pairs)));
        }
        if let Value::Table(set) = table.raw_get("set")? {
            let mut members = Vec::new();
            for pair in set.pairs::<Value, Value>() {
                members.push(self.reply(&pair?.0, depth + 1));
            }
            return Ok(Some(Reply::Set(members)));
        }
        if let Value::Table(verbatim) = table.raw_get("verbatim_string")?
            && let Value::String(text) = verbatim.raw_get("string")?
        {
            return Ok(Some(Reply::Verbatim(text.as_bytes().to_vec())));
        }
        Ok(None)
    }

    /// The elements up to the first nil.
    fn items(&mut self, table: &Table, depth: usize) -> Reply {
        let mut items = Vec::new();
        for index in 1.. {
            match table.raw_get::<Value>(index) {
                Ok(Value::Nil) | Err(_) => break,
                Ok(_) if self.left == 0 => break,
                Ok(value) => items.push(self.reply(&value, depth + 1)),
            }
        }
        Reply::Array(items)
    }
}

/// As C converts a double, on the processors that Redis runs on.
fn truncated(number: f64) -> i64 {
    const END: f64 = 9_223_372_036_854_775_808.0;
    #[allow(clippy::cast_possible_truncation)]
    if (-END..END).contains(&number) {
        number as i64
    } else {
        i64::MIN
    }
}
