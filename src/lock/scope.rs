//! The ambient owner: a task-local, one per client, innermost first.
//!
//! It is not inherited by `spawn`, as Java's threads do not inherit locks. Futures joined inside one
//! scope share its owner.

use std::sync::Arc;

use uuid::Uuid;

use crate::engine::owner::OwnerState;

tokio::task_local! {
    static SCOPE: Arc<Scope>;
}

/// A scope and those around it.
struct Scope {
    client: Uuid,
    owner: Arc<OwnerState>,
    around: Option<Arc<Scope>>,
}

/// The owner of the innermost scope of `client` that this is called in.
pub(crate) fn current(client: Uuid) -> Option<Arc<OwnerState>> {
    let innermost = SCOPE.try_with(Arc::clone).ok()?;
    let mut scope = &innermost;
    loop {
        if scope.client == client {
            return Some(Arc::clone(&scope.owner));
        }
        scope = scope.around.as_ref()?;
    }
}

/// Runs `future` in a scope of `client` for `owner`.
pub(crate) async fn within<F: Future>(
    client: Uuid,
    owner: Arc<OwnerState>,
    future: F,
) -> F::Output {
    let around = SCOPE.try_with(Arc::clone).ok();
    let scope = Scope {
        client,
        owner,
        around,
    };
    SCOPE.scope(Arc::new(scope), future).await
}
