//! Strings.

use crate::core::call::Call;
use crate::core::failure::Outcome;
use crate::core::value::Value;
use crate::core::{Bytes, Reply};

pub(super) fn get(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let value = call.db().read::<Bytes>(&arguments[1])?;
    Ok(Reply::bulk_or_null(value.cloned()))
}

pub(super) fn set(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let value = Value::String(arguments[2].clone());
    call.db().put(&arguments[1], value, None);
    Ok(Reply::ok())
}
