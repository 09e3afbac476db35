//! The economy's tests: rules one by one, the start, and every interleaving of messages under a judge.

mod checker;
mod distribution;
mod interleavings;
mod rules;
mod world;
