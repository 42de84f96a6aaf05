//! A command that runs.

use super::commands::Command;
use super::keyspace::Database;
use super::session::SessionId;
use super::state::State;

/// What a command works with.
pub(super) struct Call<'a> {
    pub(super) state: &'a mut State,
    pub(super) command: &'static Command,
    /// Who called.
    pub(super) session: SessionId,
    /// The selected database.
    pub(super) db: usize,
    pub(super) is_in_script: bool,
}

impl Call<'_> {
    pub(super) fn db(&mut self) -> &mut Database {
        &mut self.state.databases[self.db]
    }
}
