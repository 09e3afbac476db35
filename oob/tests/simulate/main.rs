//! Jobs in the simulator: what must hold, whatever breaks. More seeds: `cargo run --release -p doorbell-oob
//! --example control-plane -- --seeds 500`.

mod network;
mod stories;
mod storm;
mod world;
