//! `MULTI` and what belongs to it, without `EXEC`, which runs other commands.

use crate::core::call::Call;
use crate::core::failure::{Failure, Outcome};
use crate::core::session::{Transaction, Watched};
use crate::core::{Bytes, Reply};

pub(super) fn multi(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    if let Some(session) = call.session() {
        if session.transaction.is_some() {
            return Err(Failure::fixed("ERR MULTI calls can not be nested"));
        }
        session.transaction = Some(Transaction::default());
    }
    Ok(Reply::ok())
}

pub(super) fn discard(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    let transaction = call.session().and_then(|session| {
        let transaction = session.transaction.take()?;
        session.watched.clear();
        Some(transaction)
    });
    transaction.ok_or(Failure::fixed("ERR DISCARD without MULTI"))?;
    Ok(Reply::ok())
}

pub(super) fn watch(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    if call
        .session()
        .is_some_and(|session| session.transaction.is_some())
    {
        return Err(Failure::fixed("ERR WATCH inside MULTI is not allowed"));
    }
    let db = call.caller.db;
    for key in &arguments[1..] {
        let revision = call.db().watch(key);
        if let Some(session) = call.session() {
            let key = key.clone();
            session.watched.push(Watched { db, key, revision });
        }
    }
    Ok(Reply::ok())
}

pub(super) fn unwatch(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    if let Some(session) = call.session() {
        session.watched.clear();
    }
    Ok(Reply::ok())
}
