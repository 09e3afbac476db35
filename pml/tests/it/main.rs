//! The PML over the simulator: every feature by name, rails that die, random traffic, hostile frames.

use doorbell_testing::alloc::Counting;

mod checksum;
mod credit;
mod delivered;
mod ending;
mod endpoints;
mod failover;
mod features;
mod feed;
mod hostile;
mod immediate;
mod in_place;
mod joins;
mod lazy_connect;
mod lobby;
mod members;
mod narrow;
mod paths;
mod polling;
mod pressure;
mod protocols;
mod rma;
mod rma_atomics;
mod rma_failover;
mod rma_hostile;
mod storm;
mod stripes;
mod traffic;
mod world;
mod wrap;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
