//! Tests of the link, over simulated networks.

mod air;
mod breaks;
mod order;
mod room;
mod stage;
mod storm;
mod world;
