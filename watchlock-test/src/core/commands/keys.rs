//! Keys of any type.

use crate::core::call::Call;
use crate::core::failure::Outcome;
use crate::core::{Bytes, Reply};

pub(super) fn del(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let db = call.db();
    let keys = arguments[1..].iter();
    Ok(Reply::count(keys.filter(|key| db.remove(key).is_some()).count()))
}
