//! What every kind of lock does, the same for each: every scenario here runs once for every kind in the table.
//!
//! A kind is added in two places: its description in [`table`] and its line in `for_every_kind` below. It takes part in
//! all scenarios. Where it differs, its description says how and why, and the scenarios assert what it does instead;
//! none is left out. What only one kind does has a suite of its own.
//!
//! A scenario is a function over a [`Kind`](table::Kind), named in the `for_every_kind!` of its file; its test is
//! called `<file>::<kind>::<scenario>`. It uses the public API through [`Lock`](watchlock::Lock), and looks into Redis
//! only as the kind's description of its keys says.
//!
//! | file | what |
//! |---|---|
//! | `handles` | what handles and guards answer, who excludes whom, owners, levels, scopes, bodies |
//! | `leases` | what a lease promises, the watchdog, what is asserted again |
//! | `losses` | holds that are gone: deleted, taken, forced, over |
//! | `waiting` | who gets in, when, and what ends a wait |
//! | `replies` | replies that are lost |
//! | `cancellation` | every future, dropped at every await |
//! | `values` | odd keys, names, leases and waits |
//! | `trouble` | servers that refuse, load, forget, restart |
//! | `denied` | each command of a kind, taken away by the ACL |
//! | `ending` | the end of a client |
//! | `holders` | who holds a lock and how many wait, as people see it |
//! | `repeats` | each command that a kind sends, sent again and sent late |
//! | `costs` | commands per operation |

#[path = "../common/mod.rs"]
mod common;

/// Makes a test of each scenario for every kind.
macro_rules! for_every_kind {
    ($($scenario:ident),+ $(,)?) => {
        for_every_kind!(@kind plain = PLAIN: $($scenario)+);
        for_every_kind!(@kind fenced = FENCED: $($scenario)+);
        for_every_kind!(@kind fair = FAIR: $($scenario)+);
        for_every_kind!(@kind spin = SPIN: $($scenario)+);
        for_every_kind!(@kind simple = SIMPLE: $($scenario)+);
        for_every_kind!(@kind read = READ: $($scenario)+);
        for_every_kind!(@kind write = WRITE: $($scenario)+);
    };
    (@kind $module:ident = $kind:ident: $($scenario:ident)+) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $scenario() {
                    super::$scenario(&crate::table::$kind).await;
                }
            )+
        }
    };
}

mod cancellation;
mod costs;
mod denied;
mod ending;
mod handles;
mod holders;
mod leases;
mod losses;
mod repeats;
mod replies;
mod scene;
mod story;
mod table;
mod trouble;
mod values;
mod waiting;
