//! The client's label in Redis, for people who ask who holds a lock. No lock depends on it.
//!
//! It lives for three leases, and is written once a lease: a client that dies is nameless after a while, and one whose
//! server lost its data has its name again.

use std::sync::Arc;

use super::Keeper;
use crate::log::log;
use crate::names::label_key;
use crate::script::Call;

/// Writes the label until the client closes, and deletes it then.
pub(super) async fn show(keeper: Arc<Keeper>) {
    let core = &keeper.core;
    let Some(label) = core.config.label.as_deref() else {
        return;
    };
    let key = label_key(&core.client);
    let lease = core.watchdog_lease;
    while !keeper.is_closing() {
        let set = Call::plain("SET").own_key(&key).arg(label).arg("PX");
        send(&keeper, set.arg(3 * lease.as_millis())).await;
        // A pause that begins after the client began to close would not end with it.
        if !keeper.is_closing() {
            keeper.pause(lease.duration()).await;
        }
    }
    // Unlike DEL, every client may send this.
    let delete = Call::plain("PEXPIRE").own_key(&key).arg(0_u32);
    send(&keeper, delete).await;
}

async fn send(keeper: &Keeper, call: Call<'_>) {
    let core = &keeper.core;
    if let Err(cause) = core.ask(call).await {
        log(move || tracing::debug!(%cause, "the label was not written"));
    }
}
