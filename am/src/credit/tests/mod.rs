//! Tests of the credit state: rules one by one, the start, and every interleaving of messages with a checker.

mod checker;
mod distribution;
mod interleavings;
mod rules;
mod world;
