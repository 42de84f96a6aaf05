//! The ambient owner: a task-local, per client or quorum; the innermost scope counts.
//!
//! `spawn` does not inherit it, as Java's threads do not inherit locks. Futures that are joined inside one scope share its
//! owner.

use std::any::Any;
use std::sync::Arc;

use uuid::Uuid;

tokio::task_local! {
    static SCOPE: Arc<Scope>;
}

/// A scope and the scopes around it.
struct Scope {
    /// The id of the client or quorum.
    of: Uuid,
    /// Clients and quorums have different types of owner.
    owner: Arc<dyn Any + Send + Sync>,
    around: Option<Arc<Scope>>,
}

/// The owner of the innermost scope of this client or quorum around the call.
pub(crate) fn current<O: Any + Send + Sync>(of: Uuid) -> Option<Arc<O>> {
    let innermost = SCOPE.try_with(Arc::clone).ok()?;
    let mut scope = &innermost;
    loop {
        if scope.of == of {
            return Arc::clone(&scope.owner).downcast().ok();
        }
        scope = scope.around.as_ref()?;
    }
}

/// Runs `future` in a scope of this client or quorum for `owner`.
pub(crate) async fn within<F: Future>(
    of: Uuid,
    owner: Arc<impl Any + Send + Sync>,
    future: F,
) -> F::Output {
    let around = SCOPE.try_with(Arc::clone).ok();
    let scope = Scope { of, owner, around };
    SCOPE.scope(Arc::new(scope), future).await
}
