//! The economy's tests: rules one by one, the start, and every interleaving of messages under a judge.

mod distribution;
mod interleavings;
mod judge;
mod rules;
mod world;
