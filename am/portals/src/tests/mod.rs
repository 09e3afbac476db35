//! Tests of the interface as its users see it; each rule of its own is tested beside its code.

mod basics;
mod failures;
mod flow;
mod in_place;
mod lists;
mod placed;
mod short;
mod world;
