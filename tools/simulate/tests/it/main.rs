//! Slices of what the simulators run, and what the dissector makes of captures.

mod dissector;
mod jobs;
mod provider;
mod rails;
mod usnic;
mod usnic_loss;
