//! `SCAN` and its like. There is one page, which has everything: `COUNT` is a hint in Redis, too.

use crate::core::call::{Call, is};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::parse_integer;
use crate::core::{Bytes, Reply, glob};

/// Which elements are asked for.
pub(super) struct Page<'a> {
    pattern: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
}

impl<'a> Page<'a> {
    pub(super) fn parse(options: &'a [Bytes], of_keys: bool) -> Result<Self, Failure> {
        let mut page = Self {
            pattern: None,
            kind: None,
        };
        let mut rest = options.iter();
        while let Some(word) = rest.next() {
            let value = rest.next().ok_or(Failure::SYNTAX)?;
            if is(word, "COUNT") {
                if parse_integer(value)? < 1 {
                    return Err(Failure::SYNTAX);
                }
            } else if is(word, "MATCH") {
                page.pattern = Some(value);
            } else if of_keys && is(word, "TYPE") {
                page.kind = Some(value);
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        Ok(page)
    }

    pub(super) fn takes(&self, element: &[u8]) -> bool {
        self.pattern
            .is_none_or(|pattern| glob::matches_element(pattern, element))
    }
}

/// Checks a cursor, which comes before anything else. Whatever it is, the only page follows.
pub(super) fn check(cursor: &[u8]) -> Result<(), Failure> {
    // As strtoul reads it: nothing is 0, and a negative number is a large one.
    let digits = cursor.strip_prefix(b"-").unwrap_or(cursor);
    let number = std::str::from_utf8(digits).ok().map(str::parse::<u64>);
    let is_number = number.is_some_and(|number| number.is_ok());
    if cursor.is_empty() || is_number {
        return Ok(());
    }
    Err(Failure::fixed("ERR invalid cursor"))
}

/// The answer for a key that is not there.
pub(super) fn nothing() -> Reply {
    answer(std::iter::empty::<Bytes>())
}

/// The cursor of the end, and the elements.
pub(super) fn answer(elements: impl IntoIterator<Item = impl Into<Bytes>>) -> Reply {
    Reply::Array(vec![Reply::bulk("0"), Reply::bulks(elements)])
}

pub(super) fn scan(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    check(&arguments[1])?;
    let page = Page::parse(&arguments[2..], true)?;
    let db = call.db();
    let keys = db.keys().filter(|key| {
        let kind = db.value(key).map(|value| value.type_name().as_bytes());
        let fits = page
            .kind
            .is_none_or(|wanted| kind.is_some_and(|kind| kind.eq_ignore_ascii_case(wanted)));
        fits && page.takes(key)
    });
    Ok(answer(keys.map(|key| &**key)))
}
