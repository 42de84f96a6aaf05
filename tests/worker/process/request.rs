//! From a line to a request. Any mistake in a line is found here, before anything is done.

use std::time::Duration;

use serde_json::{Map, Value};
use watchlock::Lease;

use crate::bench::{Contended, Pairs};
use crate::failure::Failure;
use crate::kinds::{Called, Kind, Name};
use crate::latch::LatchVerb;
use crate::permits::{GivenBack, PermitJob, PermitKind, PermitVerb};

/// A request, and the number of its answer.
pub(crate) struct Request {
    pub(crate) id: Value,
    pub(crate) op: Result<Op, Failure>,
}

/// The operation.
pub(crate) enum Op {
    Open(Opening),
    Owned {
        owner: String,
        kind: &'static Kind,
        name: Name,
        verb: Verb,
    },
    Named {
        kind: &'static Kind,
        name: Name,
        question: Question,
    },
    Latch {
        name: String,
        verb: LatchVerb,
    },
    Permits(PermitJob),
    BenchPairs(Pairs),
    BenchContended(Contended),
    BlockRuntime(Duration),
    Shutdown,
}

/// The servers.
pub(crate) enum Server {
    Url(String),
    Sentinel {
        urls: Vec<String>,
        service: String,
    },
    Cluster(Vec<String>),
    /// Independent servers.
    Quorum(Vec<String>),
}

/// How to connect; the defaults are the library's.
pub(crate) struct Opening {
    pub(crate) server: Server,
    /// How many replicas must have an acquire.
    pub(crate) acks: u64,
    pub(crate) prefix: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) watchdog: Option<Duration>,
    pub(crate) command_timeout: Option<Duration>,
    pub(crate) unavailable_after: Option<Duration>,
    pub(crate) backoff_cap: Option<Duration>,
    pub(crate) restart_delay: Option<Duration>,
}

/// What an owner does.
#[derive(Clone, Copy)]
pub(crate) enum Verb {
    Lock(Lease),
    TryLock(Duration, Lease),
    Unlock,
    IsHeld,
    HoldCount,
}

/// What needs no owner.
#[derive(Clone, Copy)]
pub(crate) enum Question {
    ForceUnlock,
    IsLocked,
    TimeToLive,
}

impl Request {
    /// The failure if the line is no request at all.
    pub(crate) fn parse(line: &str) -> Result<Self, Failure> {
        let Ok(Value::Object(fields)) = serde_json::from_str(line) else {
            return Err(Failure::bad_request("not a JSON object"));
        };
        let fields = Fields(fields);
        let id = fields.0.get("id").filter(|id| id.is_i64() || id.is_u64());
        let id = id
            .cloned()
            .ok_or_else(|| Failure::bad_request("no integer id"))?;
        match fields.op() {
            Err(failure) if failure.kind == "bad_request" => Err(failure),
            op => Ok(Self { id, op }),
        }
    }
}

fn out_of_range(field: &str) -> Failure {
    Failure::new("invalid", format!("{field} is out of range"))
}

struct Fields(Map<String, Value>);

impl Fields {
    fn op(&self) -> Result<Op, Failure> {
        let op = self.text("op")?;
        match op {
            "open" => self.opening().map(Op::Open),
            "lock" | "try_lock" | "unlock" | "is_held" | "hold_count" => self.owned(op),
            "force_unlock" | "is_locked" | "ttl" => self.named(op),
            "acquire" | "try_acquire" | "release" | "set_permits" | "permits" | "add_permits" => {
                self.permits(op)
            }
            "latch_set" | "latch_count" | "latch_down" | "latch_await" | "latch_delete" => {
                self.latch(op)
            }
            "bench_pairs" => self.bench_pairs(),
            "bench_contended" => self.bench_contended(),
            "block_runtime" => self.required_ms("ms").map(Op::BlockRuntime),
            "shutdown" => Ok(Op::Shutdown),
            _ => Err(Failure::unsupported(&format!("op {op}"))),
        }
    }

    fn opening(&self) -> Result<Opening, Failure> {
        let acks = self.number("acks")?.unwrap_or(0);
        let server = self.server()?;
        if acks > 0 && matches!(server, Server::Quorum(_)) {
            return Err(Failure::unsupported("acks of a quorum"));
        }
        Ok(Opening {
            server,
            acks,
            prefix: match self.0.get("prefix") {
                None => None,
                Some(_) => Some(self.text("prefix")?.to_owned()),
            },
            label: match self.0.get("label") {
                None => None,
                Some(_) => Some(self.text("label")?.to_owned()),
            },
            watchdog: self.ms("watchdog_ms")?,
            command_timeout: self.ms("command_timeout_ms")?,
            unavailable_after: self.ms("unavailable_after_ms")?,
            backoff_cap: self.ms("backoff_cap_ms")?,
            restart_delay: self.ms("restart_delay_ms")?,
        })
    }

    fn is_cluster(&self) -> Result<bool, Failure> {
        match self.0.get("cluster") {
            None => Ok(false),
            Some(Value::Bool(cluster)) => Ok(*cluster),
            Some(_) => Err(Failure::bad_request("cluster is neither true nor false")),
        }
    }

    fn server(&self) -> Result<Server, Failure> {
        if self.is_cluster()? {
            return Ok(Server::Cluster(self.urls()?));
        }
        let Some(sentinel) = self.0.get("sentinel") else {
            return match self.0.get("urls") {
                None => Ok(Server::Url(self.text("url")?.to_owned())),
                Some(_) if self.0.contains_key("url") => {
                    Err(Failure::unsupported("url beside urls"))
                }
                Some(_) => Ok(Server::Quorum(self.texts("urls")?)),
            };
        };
        let Value::Object(fields) = sentinel else {
            return Err(Failure::bad_request("sentinel is no object"));
        };
        let fields = Fields(fields.clone());
        Ok(Server::Sentinel {
            urls: fields.urls()?,
            service: fields.text("service")?.to_owned(),
        })
    }

    fn urls(&self) -> Result<Vec<String>, Failure> {
        let urls = self.0.get("urls").and_then(Value::as_array);
        let urls = urls.into_iter().flatten();
        let urls = urls.map(|url| url.as_str().map(str::to_owned));
        let urls: Option<_> = urls.collect();
        urls.ok_or_else(|| Failure::bad_request("a url is no text"))
    }

    fn owned(&self, op: &str) -> Result<Op, Failure> {
        let kind = self.kind()?;
        let verb = match op {
            "lock" => Verb::Lock(self.lease()?),
            "try_lock" => Verb::TryLock(self.required_ms("wait_ms")?, self.lease()?),
            "unlock" => Verb::Unlock,
            "is_held" => Verb::IsHeld,
            _ => Verb::HoldCount,
        };
        Ok(Op::Owned {
            owner: self.text("owner")?.to_owned(),
            kind,
            name: self.name(kind)?,
            verb,
        })
    }

    fn named(&self, op: &str) -> Result<Op, Failure> {
        let kind = self.kind()?;
        let question = match op {
            "force_unlock" => Question::ForceUnlock,
            "is_locked" => Question::IsLocked,
            _ => Question::TimeToLive,
        };
        let name = self.name(kind)?;
        Ok(Op::Named {
            kind,
            name,
            question,
        })
    }

    fn permits(&self, op: &str) -> Result<Op, Failure> {
        let word = self.text("kind")?;
        let kind = PermitKind::of(word).ok_or_else(|| Failure::unsupported(word))?;
        let verb = match op {
            "acquire" | "try_acquire" => PermitVerb::Acquire {
                permits: self.required_count("permits")?,
                wait: match op {
                    "acquire" => None,
                    _ => Some(self.required_ms("wait_ms")?),
                },
                lease: self.lease()?,
                initial: self.count("with_permits")?,
            },
            "release" => PermitVerb::Release(self.given_back()?),
            "set_permits" => PermitVerb::Set(self.required_count("permits")?),
            "add_permits" => {
                let permits = self.0.get("permits").and_then(Value::as_i64);
                let permits = permits.ok_or_else(|| Failure::bad_request("no permits"))?;
                PermitVerb::Add(i32::try_from(permits).map_err(|_| out_of_range("permits"))?)
            }
            _ => PermitVerb::Count,
        };
        Ok(Op::Permits(PermitJob {
            kind,
            name: self.text("name")?.to_owned(),
            owner: match self.0.get("owner") {
                None => None,
                Some(_) => Some(self.text("owner")?.to_owned()),
            },
            verb,
        }))
    }

    fn given_back(&self) -> Result<GivenBack, Failure> {
        if self.0.contains_key("handle") {
            return Ok(GivenBack::Handle(self.text("handle")?.to_owned()));
        }
        if self.0.contains_key("ids") {
            let ids = self.texts("ids")?.into_iter().map(|id| id.parse());
            let ids: Result<_, _> = ids.collect();
            let ids = ids.map_err(|_| Failure::new("invalid", "ids: no permit's id"))?;
            return Ok(GivenBack::Ids(ids));
        }
        Ok(GivenBack::Permits(self.required_count("permits")?))
    }

    fn required_count(&self, field: &str) -> Result<u32, Failure> {
        let count = self.count(field)?;
        count.ok_or_else(|| Failure::bad_request(format!("no {field}")))
    }

    fn count(&self, field: &str) -> Result<Option<u32>, Failure> {
        let number = self.number(field)?.map(u32::try_from).transpose();
        number.map_err(|_| out_of_range(field))
    }

    fn latch(&self, op: &str) -> Result<Op, Failure> {
        let verb = match op {
            "latch_set" => LatchVerb::Set(self.required("count")?),
            "latch_count" => LatchVerb::Count,
            "latch_down" => LatchVerb::Down,
            "latch_await" => LatchVerb::Await(self.required_ms("wait_ms")?),
            _ => LatchVerb::Delete,
        };
        let name = self.text("name")?.to_owned();
        Ok(Op::Latch { name, verb })
    }

    fn bench_pairs(&self) -> Result<Op, Failure> {
        Ok(Op::BenchPairs(Pairs {
            kind: self.kind()?,
            prefix: self.text("prefix")?.to_owned(),
            tasks: self.tasks()?,
            span: self.required_ms("ms")?,
        }))
    }

    fn bench_contended(&self) -> Result<Op, Failure> {
        let kind = self.kind()?;
        Ok(Op::BenchContended(Contended {
            kind,
            name: self.name(kind)?,
            tasks: self.tasks()?,
            span: self.required_ms("ms")?,
            hold: Duration::from_micros(self.required("hold_us")?),
            pause: Duration::from_micros(self.required("pause_us")?),
            busy: self.0.get("busy") == Some(&Value::Bool(true)),
        }))
    }

    fn kind(&self) -> Result<&'static Kind, Failure> {
        let word = self.text("kind")?;
        Kind::of(word).ok_or_else(|| Failure::unsupported(&format!("kind {word}")))
    }

    fn name(&self, kind: &Kind) -> Result<Name, Failure> {
        if kind.called == Called::Name {
            return Ok(Name::One(self.text("name")?.to_owned()));
        }
        if let (Called::ListOfOne, Ok(name)) = (kind.called, self.text("name")) {
            return Ok(Name::List(vec![name.to_owned()]));
        }
        let names = self.texts("name")?;
        if kind.called == Called::ListOfOne && names.len() != 1 {
            return Err(Failure::new("invalid", "name: not a list of one name"));
        }
        Ok(Name::List(names))
    }

    fn texts(&self, field: &str) -> Result<Vec<String>, Failure> {
        let texts = self.0.get(field).and_then(Value::as_array);
        let texts = texts.map(|texts| texts.iter().map(|text| text.as_str().map(str::to_owned)));
        let texts = texts.and_then(Iterator::collect);
        texts.ok_or_else(|| Failure::bad_request(format!("{field}: not a list of texts")))
    }

    fn lease(&self) -> Result<Lease, Failure> {
        let lease = self.ms("lease_ms")?;
        Ok(lease.map_or(Lease::Watchdog, Lease::Fixed))
    }

    fn tasks(&self) -> Result<usize, Failure> {
        let tasks = self.required("tasks")?;
        usize::try_from(tasks).map_err(|_| Failure::bad_request("tasks: too many"))
    }

    fn required_ms(&self, field: &str) -> Result<Duration, Failure> {
        self.required(field).map(Duration::from_millis)
    }

    fn ms(&self, field: &str) -> Result<Option<Duration>, Failure> {
        Ok(self.number(field)?.map(Duration::from_millis))
    }

    fn required(&self, field: &str) -> Result<u64, Failure> {
        self.number(field)?
            .ok_or_else(|| Failure::bad_request(format!("no {field}")))
    }

    /// A negative number is an integer like any other to the protocol, but no amount to the library.
    fn number(&self, field: &str) -> Result<Option<u64>, Failure> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) if value.is_i64() || value.is_u64() => value
                .as_u64()
                .map(Some)
                .ok_or_else(|| Failure::new("invalid", format!("{field} is negative"))),
            Some(_) => Err(Failure::bad_request(format!("{field} is no integer"))),
        }
    }

    fn text(&self, field: &str) -> Result<&str, Failure> {
        let text = self.0.get(field).and_then(Value::as_str);
        text.ok_or_else(|| Failure::bad_request(format!("no {field}, or not a text")))
    }
}
