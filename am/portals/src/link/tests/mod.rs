//! Tests of the link, over simulated networks.

mod air;
mod order;
mod room;
mod stage;
mod storm;
mod turns;
mod world;
