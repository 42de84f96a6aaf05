//! What is asked of all nodes without taking the lock.

use std::sync::Arc;

use futures_util::future::join_all;

use super::Nodes;
use crate::engine::hold::kind::Kind;
use crate::error::{Cause, Error};
use crate::lock::handle::Handled;
use crate::lock::{Ttl, acting};

/// The lock of one name, to be asked about.
pub(super) struct Questions<'a> {
    nodes: &'a Nodes,
    handles: Vec<Handled>,
}

impl<'a> Questions<'a> {
    pub(super) fn of(nodes: &'a Nodes, kind: &Kind) -> Self {
        let engines = nodes.all.iter().map(|node| &node.engine);
        Self {
            nodes,
            handles: engines
                .map(|engine| Handled::ownerless(engine, kind))
                .collect(),
        }
    }

    /// When `needed` nodes will be free.
    pub(super) async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        self.nodes.check_open()?;
        let asked = self.handles.iter().map(|handle| {
            let acting = acting::Acting {
                handle,
                owner: None,
            };
            acting.remain_time_to_live()
        });
        let mut answered = self.usable(join_all(asked).await)?;
        // The soonest first.
        answered.sort_by_key(|ttl| match ttl {
            Ttl::Free => (0, std::time::Duration::ZERO),
            Ttl::Left(left) => (1, *left),
            Ttl::NoExpiry => (2, std::time::Duration::ZERO),
        });
        Ok(answered[self.nodes.needed - 1])
    }

    pub(super) async fn force_unlock(&self) -> Result<bool, Error> {
        self.nodes.check_open()?;
        let asked = self.handles.iter().map(|handle| {
            let acting = acting::Acting {
                handle,
                owner: None,
            };
            acting.force_unlock()
        });
        let answered = self.usable(join_all(asked).await)?;
        Ok(answered.into_iter().any(|held| held))
    }

    /// What was answered, by `needed` nodes at least.
    fn usable<T>(&self, answers: Vec<Result<T, Error>>) -> Result<Vec<T>, Error> {
        let needed = self.nodes.needed;
        let (mut usable, mut last) = (Vec::new(), None);
        for answer in answers {
            match answer {
                Ok(answer) => usable.push(answer),
                Err(error) if error.is_transient() => last = Some(error),
                Err(error) => {
                    last.get_or_insert(error);
                }
            }
        }
        match last {
            _ if usable.len() >= needed => Ok(usable),
            Some(error) if !error.is_transient() => Err(error),
            last => {
                let cause: Cause = Arc::new(last.unwrap_or(Error::Closed));
                Err(Error::no_quorum(usable.len(), needed, cause))
            }
        }
    }
}
