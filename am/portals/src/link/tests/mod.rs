//! Tests of the link, over simulated networks.

mod air;
mod order;
mod storm;
mod turns;
mod world;
