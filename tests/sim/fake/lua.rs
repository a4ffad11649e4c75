//! Runs the scripts that are shipped, by the Lua that Redis has.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::resp::Reply;

/// What a script calls.
pub(crate) type Call = dyn FnMut(Vec<Vec<u8>>) -> Reply + Send;

/// The scripts that a server knows.
pub(crate) struct Scripts {
    engine: Engine,
    known: HashMap<String, Function>,
}

/// An interpreter. To make one, and to compile for it, takes longer than most simulations let it
/// run.
#[derive(Clone)]
struct Engine {
    lua: Lua,
    run: Function,
    call: Arc<Mutex<Option<Box<Call>>>>,
    compiled: Arc<Mutex<Compiled>>,
}

/// By their text: name and code.
type Compiled = HashMap<Vec<u8>, (String, Function)>;

thread_local! {
    /// Those that are not in use.
    static SPARE: RefCell<Vec<Engine>> = const { RefCell::new(Vec::new()) };
}

const PRELUDE: &str = r"
local invoke = ...
redis = {REPL_NONE = 0, REPL_ALL = 3}
local replicates = redis.REPL_ALL
function redis.set_repl(flags) replicates = flags end
function redis.pcall(name, ...)
  -- What replicas are not to have is published under another name.
  if name == 'PUBLISH' and replicates == redis.REPL_NONE then name = 'PUBLISH-HERE' end
  return invoke(name, ...)
end
function redis.call(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then error(answer, 0) end
  return answer
end
function redis.error_reply(words) return {err = words} end
function redis.status_reply(words) return {ok = words} end
return function(script)
  replicates = redis.REPL_ALL
  local ok, answer = pcall(script)
  if ok then return answer end
  if type(answer) == 'table' then return answer end
  return {err = 'ERR ' .. tostring(answer)}
end
";

impl Engine {
    fn new() -> Self {
        let lua = Lua::new();
        let call: Arc<Mutex<Option<Box<Call>>>> = Arc::default();
        let called = Arc::clone(&call);
        let invoke = lua.create_function(move |lua, args: MultiValue| {
            let args = args.iter().map(argument).collect();
            let reply = (called.lock().unwrap().as_mut().unwrap())(args);
            to_lua(lua, reply)
        });
        let run = lua.load(PRELUDE).call(invoke.unwrap()).unwrap();
        Self { lua, run, call, compiled: Arc::default() }
    }

    fn compile(&self, text: &[u8]) -> (String, Function) {
        let mut compiled = self.compiled.lock().unwrap();
        let script = compiled.entry(text.to_vec()).or_insert_with(|| {
            let name = redis::Script::new(&String::from_utf8_lossy(text)).get_hash().to_owned();
            let code = self.lua.load(text).set_name("@user_script").into_function();
            (name, code.unwrap())
        });
        script.clone()
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        *self.engine.call.lock().unwrap() = None;
        let engine = self.engine.clone();
        SPARE.with_borrow_mut(|spare| spare.push(engine));
    }
}

impl Scripts {
    /// Scripts whose commands go to `call`.
    pub(crate) fn new(call: Box<Call>) -> Self {
        let engine = SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(Engine::new);
        *engine.call.lock().unwrap() = Some(call);
        Self { engine, known: HashMap::new() }
    }

    pub(crate) fn forget_all(&mut self) {
        self.known.clear();
    }

    /// `EVAL` and `EVALSHA`.
    pub(crate) fn eval(&mut self, args: &[Vec<u8>]) -> Reply {
        if args.len() < 3 {
            return Reply::error("ERR wrong number of arguments for 'eval' command");
        }
        let script = if args[0].eq_ignore_ascii_case(b"EVAL") {
            let (name, script) = self.engine.compile(&args[1]);
            self.known.entry(name).or_insert(script)
        } else {
            let name = String::from_utf8_lossy(&args[1]).to_ascii_lowercase();
            match self.known.get_mut(&name) {
                Some(script) => script,
                None => {
                    return Reply::error("NOSCRIPT No matching script. Please use EVAL.");
                }
            }
        };
        let lua = &self.engine.lua;
        let count: usize = std::str::from_utf8(&args[2]).unwrap().parse().unwrap();
        let strings = |values: &[Vec<u8>]| {
            let strings = values.iter().map(|value| lua.create_string(value).unwrap());
            lua.create_sequence_from(strings).unwrap()
        };
        lua.globals().set("KEYS", strings(&args[3..3 + count])).unwrap();
        lua.globals().set("ARGV", strings(&args[3 + count..])).unwrap();
        let answer: Value = self.engine.run.call(&*script).unwrap();
        from_lua(answer)
    }
}

/// An argument of a command as Redis takes it from Lua.
fn argument(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => format!("{number}").into_bytes(),
        other => panic!("no argument for a command: {other:?}"),
    }
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let single = |name: &str, text: &str| {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(Value::Table(table))
    };
    Ok(match reply {
        Reply::Nil => Value::Boolean(false),
        Reply::Int(number) => Value::Number(number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Status(text) => return single("ok", text),
        Reply::Error(words) => return single("err", &words),
        Reply::Array(items) | Reply::Map(items) | Reply::Push(items) => {
            let table = lua.create_table()?;
            for (at, item) in items.into_iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
    })
}

fn from_lua(value: Value) -> Reply {
    match value {
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Int(number),
        // Redis cuts off what is behind the point.
        Value::Number(number) => Reply::Int(number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => table_reply(&table),
        _ => Reply::Nil,
    }
}

fn table_reply(table: &Table) -> Reply {
    if let Ok(Some(words)) = table.raw_get::<Option<String>>("err") {
        return Reply::Error(words);
    }
    if let Ok(Some(_)) = table.raw_get::<Option<String>>("ok") {
        return Reply::OK;
    }
    let mut items = Vec::new();
    for at in 1.. {
        match table.raw_get::<Value>(at).unwrap() {
            // An array ends where nothing is.
            Value::Nil => break,
            item => items.push(from_lua(item)),
        }
    }
    Reply::Array(items)
}
