//! Rules T1 to T4: a lease is only ever lengthened, validity is the longest promise, renewals write the
//! watchdog's lease, and giving a level back writes none.

mod leases;
mod orders;
mod places;
