//! The PML over the simulator: every feature by name, rails that die, random traffic, hostile frames.

mod checksum;
mod credit;
mod ending;
mod failover;
mod features;
mod feed;
mod hostile;
mod meeting;
mod narrow;
mod polling;
mod pressure;
mod protocols;
mod storm;
mod stripes;
mod traffic;
mod ways;
mod world;
mod wrap;
