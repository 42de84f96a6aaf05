//! The client, its owners, and the path from a line to its answer.

use std::collections::HashMap;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use watchlock::{Backoff, Client, ClientBuilder, Error, Lock, Quorum, Ttl};

use crate::answers::{Answers, Outcome, outcome_of};
use crate::bench;
use crate::failure::Failure;
use crate::kinds::Connected;
use crate::latch;
use crate::owner::{Job, Label};
use crate::permits::Grants;
use crate::request::{Op, Opening, Question, Request, Server};

/// How long holds may take to be given back when the client is closed.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How long replicas may take to acknowledge.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(200);

pub(crate) struct Session {
    users: Handle,
    answers: Answers,
    client: State,
    owners: HashMap<String, Label>,
    grants: Grants,
}

enum State {
    NotOpen,
    Open(Connected),
    Closed,
}

impl Session {
    pub(crate) fn new(users: Handle, answers: Answers) -> Self {
        let grants = Grants::new(users.clone(), answers.clone());
        Self {
            users,
            answers,
            grants,
            client: State::NotOpen,
            owners: HashMap::new(),
        }
    }

    /// Opening and closing complete here, so that later lines find them done.
    pub(crate) async fn take(&mut self, line: &str) {
        let Request { id, op } = match Request::parse(line) {
            Ok(request) => request,
            Err(failure) => return self.answers.bad_line(&failure),
        };
        if let Err(failure) = self.route(id.clone(), op).await {
            self.answers.answer(&id, Outcome::refused(failure));
        }
    }

    async fn route(&mut self, id: Value, op: Result<Op, Failure>) -> Result<(), Failure> {
        match op? {
            Op::Open(opening) => self.open(&id, opening).await?,
            Op::Shutdown => {
                let done = async {
                    self.close().await;
                    Ok::<_, Failure>(json!({}))
                };
                let outcome = outcome_of(done).await;
                self.answers.answer(&id, outcome);
            }
            Op::Owned {
                owner,
                kind,
                name,
                verb,
            } => self.owner(&owner)?.submit(Job {
                id,
                kind,
                name,
                verb,
            }),
            Op::Named {
                kind,
                name,
                question,
            } => {
                let lock = kind.of_client(self.client()?, &name)?;
                self.answer_later(id, async move { ask(&*lock, question).await });
            }
            Op::Permits(job) => {
                let Connected::Client(client) = self.client()? else {
                    return Err(Failure::unsupported("semaphore of a quorum"));
                };
                let client = client.clone();
                self.grants.submit(client, id, job);
            }
            Op::Latch { name, verb } => {
                let latch = latch::of(self.client()?, &name)?;
                self.answer_later(id, latch::ask(latch, verb));
            }
            Op::BenchPairs(plan) => {
                let client = self.client()?.clone();
                self.answer_later(id, bench::pairs(client, plan));
            }
            Op::BenchContended(plan) => {
                let client = self.client()?.clone();
                self.answer_later(id, bench::contended(client, plan));
            }
            Op::BlockRuntime(span) => self.block(id, span),
        }
        Ok(())
    }

    async fn open(&mut self, id: &Value, opening: Opening) -> Result<(), Failure> {
        if !matches!(self.client, State::NotOpen) {
            return Err(Failure::bad_request("already open"));
        }
        let connecting = self.users.spawn(async move {
            let mut client = None;
            let outcome = outcome_of(async {
                let opened = connect(opening).await?;
                let id = opened.id();
                client = Some(opened);
                Ok::<_, Error>(json!({"client_id": id}))
            })
            .await;
            (client, outcome)
        });
        let (client, outcome) = connecting.await.map_err(|_| panicked())?;
        if let Some(client) = client {
            self.client = State::Open(client);
        }
        self.answers.answer(id, outcome);
        Ok(())
    }

    /// Closes the client: waits end, and everything that owners hold is given back.
    pub(crate) async fn close(&mut self) {
        let State::Open(client) = std::mem::replace(&mut self.client, State::Closed) else {
            return;
        };
        let owners = std::mem::take(&mut self.owners).into_values();
        let given_back = futures_util::future::join_all(owners.map(Label::end));
        let closed = self
            .users
            .spawn(async move { client.shutdown(CLOSE_WITHIN).await });
        self.grants.clear();
        let _ = tokio::join!(closed, given_back);
    }

    fn client(&self) -> Result<&Connected, Failure> {
        match &self.client {
            State::Open(client) => Ok(client),
            State::NotOpen => Err(Failure::new("closed", "not open yet")),
            State::Closed => Err(Error::Closed.into()),
        }
    }

    fn owner(&mut self, label: &str) -> Result<&Label, Failure> {
        if !self.owners.contains_key(label) {
            let owner = self.client()?.new_owner();
            let begun = Label::begin(label, owner, &self.users, self.answers.clone());
            self.owners.insert(label.to_owned(), begun);
        }
        Ok(&self.owners[label])
    }

    fn answer_later<E: Into<Failure>>(
        &self,
        id: Value,
        call: impl Future<Output = Result<Value, E>> + Send + 'static,
    ) {
        let answers = self.answers.clone();
        self.users.spawn(async move {
            answers.answer(&id, outcome_of(call).await);
        });
    }

    /// Blocks both threads of the users' runtime: each of the tasks waits until the other has a thread, too.
    fn block(&self, id: Value, span: Duration) {
        let both = Arc::new(Barrier::new(2));
        let blocked = [(); 2].map(|()| {
            let both = Arc::clone(&both);
            self.users.spawn(async move {
                both.wait();
                std::thread::sleep(span);
            })
        });
        let answers = self.answers.clone();
        tokio::spawn(async move {
            let outcome = outcome_of(async {
                for task in blocked {
                    task.await.map_err(|_| panicked())?;
                }
                Ok::<_, Failure>(json!({}))
            });
            answers.answer(&id, outcome.await);
        });
    }
}

async fn connect(opening: Opening) -> Result<Connected, Error> {
    let builder = match &opening.server {
        Server::Url(url) => Client::builder(url),
        Server::Cluster(urls) => ClientBuilder::cluster(urls.clone()),
        Server::Sentinel { urls, service } => ClientBuilder::sentinel(urls.clone(), service),
        Server::Quorum(urls) => return connect_quorum(urls, &opening).await,
    };
    connect_client(builder, &opening).await
}

async fn connect_quorum(urls: &[String], opening: &Opening) -> Result<Connected, Error> {
    let mut builder = Quorum::builder(urls);
    if let Some(prefix) = &opening.prefix {
        builder = builder.key_prefix(prefix);
    }
    if let Some(lease) = opening.watchdog {
        builder = builder.watchdog_lease(lease);
    }
    if let Some(delay) = opening.restart_delay {
        builder = builder.restart_delay(delay);
    }
    if let Some(timeout) = opening.command_timeout {
        builder = builder.command_timeout(timeout);
    }
    if let Some(span) = opening.unavailable_after {
        builder = builder.unavailable_after(span);
    }
    if let Some(cap) = opening.backoff_cap {
        builder = builder.backoff(backoff_up_to(cap));
    }
    Box::pin(builder.connect()).await.map(Connected::Quorum)
}

async fn connect_client(mut builder: ClientBuilder, opening: &Opening) -> Result<Connected, Error> {
    if let Some(label) = &opening.label {
        builder = builder.label(label);
    }
    if opening.acks > 0 {
        let replicas = u32::try_from(opening.acks).unwrap_or(u32::MAX);
        let most = opening.command_timeout.map(|timeout| timeout / 4);
        let within = most.map_or(ACKNOWLEDGED_WITHIN, |most| most.min(ACKNOWLEDGED_WITHIN));
        builder = builder.acknowledged_by(replicas, within);
    }
    if let Some(prefix) = &opening.prefix {
        builder = builder.key_prefix(prefix);
    }
    if let Some(lease) = opening.watchdog {
        builder = builder.watchdog_lease(lease);
    }
    if let Some(timeout) = opening.command_timeout {
        builder = builder.command_timeout(timeout);
    }
    if let Some(span) = opening.unavailable_after {
        builder = builder.unavailable_after(span);
    }
    if let Some(cap) = opening.backoff_cap {
        builder = builder.backoff(backoff_up_to(cap));
    }
    Box::pin(builder.connect()).await.map(Connected::Client)
}

fn backoff_up_to(cap: Duration) -> Backoff {
    let base = cap.min(Duration::from_millis(20));
    Backoff::new().base(base).cap(cap)
}

async fn ask(lock: &dyn Lock, question: Question) -> Result<Value, Error> {
    Ok(match question {
        Question::ForceUnlock => json!({"released": lock.force_unlock().await?}),
        Question::IsLocked => json!({"locked": lock.is_locked().await?}),
        Question::TimeToLive => json!({"ms": in_ms(lock.remain_time_to_live().await?)}),
    })
}

fn in_ms(ttl: Ttl) -> i64 {
    match ttl {
        Ttl::Left(left) => i64::try_from(left.as_millis()).unwrap_or(i64::MAX),
        Ttl::NoExpiry => -1,
        _ => -2,
    }
}

fn panicked() -> Failure {
    Failure::new("other", "a task panicked")
}
