//! The conduit over the interface in software, over a simulated network: whole jobs in one thread.

mod endings;
mod hostile;
mod in_place;
mod limits;
mod messages;
mod rig;
mod segments;
mod threads;
