//! Which lane a command takes: by the runtime of its caller, and by the cluster node that has its slot.

mod ask_for_slots;
mod fleet;
mod slot_map;

pub(crate) use self::fleet::{Backend, Fleet};
pub(crate) use self::slot_map::{Cluster, NodeAddress};
