//! Tests of the link, over simulated networks.

mod order;
mod storm;
mod turns;
mod world;
