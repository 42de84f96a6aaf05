//! The requests that most tests need, for plain locks (kind `lock`).

use std::time::Duration;

use serde_json::{Value, json};

use super::{Worker, WorkerError};
use crate::history::LockKind;

type Answer<T> = Result<T, WorkerError>;

/// Each sends its request when first polled; dropping the future does not cancel the request.
impl Worker {
    /// Connects to `url`; returns the client's id. Without a lease the watchdog uses the library's default.
    ///
    /// # Errors
    /// What the worker answered.
    pub async fn open(&self, url: &str, watchdog: Option<Duration>) -> Answer<String> {
        let mut fields = json!({"url": url});
        set_ms(&mut fields, "watchdog_ms", watchdog);
        let result = self.call("open", fields).await?;
        Ok(result["client_id"].as_str().unwrap_or_default().to_owned())
    }

    /// Locks, under the watchdog if there is no `lease`; returns the hold count.
    ///
    /// # Errors
    /// What the worker answered.
    pub async fn lock(&self, owner: &str, name: &str, lease: Option<Duration>) -> Answer<u64> {
        let mut fields = of(owner, name);
        set_ms(&mut fields, "lease_ms", lease);
        Ok(number(&self.call("lock", fields).await?["count"]))
    }

    /// Tries for `wait`; returns the hold count, or `None` if busy.
    ///
    /// # Errors
    /// What the worker answered.
    pub async fn try_lock(
        &self,
        owner: &str,
        name: &str,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Answer<Option<u64>> {
        let mut fields = of(owner, name);
        set_ms(&mut fields, "wait_ms", Some(wait));
        set_ms(&mut fields, "lease_ms", lease);
        let result = self.call("try_lock", fields).await?;
        Ok((result["acquired"] == true).then(|| number(&result["count"])))
    }

    /// Unlocks; returns how many levels are left.
    ///
    /// # Errors
    /// What the worker answered.
    pub async fn unlock(&self, owner: &str, name: &str) -> Answer<u64> {
        let result = self.call("unlock", of(owner, name)).await?;
        Ok(number(&result["count"]))
    }

    /// Whether anybody holds the lock.
    ///
    /// # Errors
    /// What the worker answered.
    pub async fn is_locked(&self, name: &str) -> Answer<bool> {
        let fields = json!({"kind": "lock", "name": name});
        Ok(self.call("is_locked", fields).await?["locked"] == true)
    }

    /// The kinds of lock that the worker supports, as it answers.
    ///
    /// # Panics
    /// When it answers anything else.
    pub async fn kinds(&self) -> Vec<LockKind> {
        let mut kinds = Vec::new();
        for kind in LockKind::ALL {
            let name = kind.called("which kinds, and others");
            let fields = json!({"kind": kind.word(), "name": name});
            match self.call("is_locked", fields).await {
                Ok(_) => kinds.push(kind),
                Err(error) => assert_eq!(error.kind, "unsupported", "{kind}: {error}"),
            }
        }
        kinds
    }

    /// The owner's levels.
    ///
    /// # Errors
    /// What the worker answered.
    pub async fn hold_count(&self, owner: &str, name: &str) -> Answer<u64> {
        let result = self.call("hold_count", of(owner, name)).await?;
        Ok(number(&result["count"]))
    }
}

fn of(owner: &str, name: &str) -> Value {
    json!({"owner": owner, "kind": "lock", "name": name})
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn set_ms(fields: &mut Value, field: &str, duration: Option<Duration>) {
    if let Some(duration) = duration {
        fields[field] = json!(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    }
}
