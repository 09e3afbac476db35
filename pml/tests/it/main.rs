//! The PML over the simulator: every feature by name, rails that die, random traffic, hostile frames.

mod failover;
mod features;
mod feed;
mod hostile;
mod pressure;
mod protocols;
mod traffic;
mod world;
mod wrap;
