//! The entrants of this program and of the peers' program.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::child::LIST;
use crate::locks::{self, Info, PLAIN, Role, Setup};

/// An entrant, and the program that runs it.
#[derive(Debug, Clone)]
pub(crate) struct Participant {
    pub(crate) info: Info,
    pub(crate) program: PathBuf,
}

/// Everyone, in the order of the tables.
#[derive(Debug, Clone)]
pub(crate) struct Roster {
    all: Vec<Participant>,
}

impl Roster {
    /// Asks this program and the peers'.
    pub(crate) fn own() -> Result<Self> {
        let program = env::current_exe()?;
        let infos = locks::own().into_iter().map(|entrant| entrant.info);
        let all = infos.map(|info| Participant {
            info,
            program: program.clone(),
        });
        Ok(Self { all: all.collect() })
    }

    /// Builds the peers' program and adds its entrants.
    pub(crate) fn add_peers(&mut self) -> Result<()> {
        let program = build_peers()?;
        let list = Command::new(&program).arg(LIST).output()?;
        let infos: Vec<Info> = serde_json::from_slice(&list.stdout)?;
        self.all.extend(infos.into_iter().map(|info| Participant {
            info,
            program: program.clone(),
        }));
        Ok(())
    }

    /// Leaves the tuned ones out.
    pub(crate) fn only_defaults(&mut self) {
        self.all.retain(|who| who.info.setup == Setup::Default);
    }

    /// The entrants with the plain lock that take part in a case.
    pub(crate) fn those(&self, who: impl Fn(&Info) -> bool) -> Vec<&Participant> {
        let mut those = self.of_kind(PLAIN);
        those.retain(|participant| who(&participant.info));
        those
    }

    /// The entrants that are compared with one another for this kind of lock.
    pub(crate) fn of_kind(&self, kind: &str) -> Vec<&Participant> {
        let all = self.all.iter();
        all.filter(|participant| participant.info.kind == kind)
            .collect()
    }

    /// The names of the entrants that take part in a case.
    pub(crate) fn names(&self, who: impl Fn(&Info) -> bool) -> Vec<&str> {
        let those = self.those(who).into_iter();
        those
            .map(|participant| participant.info.name.as_str())
            .collect()
    }

    /// The name of the first in a role, empty when there is none.
    pub(crate) fn name_of(&self, role: Role) -> &str {
        let names = self.names(|info| info.role == role);
        names.first().copied().unwrap_or_default()
    }
}

/// Builds the peers beside this program: same profile, same target directory.
fn build_peers() -> Result<PathBuf> {
    let own = env::current_exe()?;
    let folder = own.parent().ok_or("this program is nowhere")?;
    let target = folder.parent().ok_or("no target directory")?;
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers/Cargo.toml");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--locked", "--manifest-path"])
        .arg(manifest);
    cargo.arg("--target-dir").arg(target);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    if !cargo.status()?.success() {
        return Err("the peers cannot be built; what cargo said is above".into());
    }
    Ok(folder.join("watchlock-peers"))
}
