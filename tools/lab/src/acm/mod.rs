//! `doorbell-lab acm-perf` and `acm-load`: what an address service has counted, and how it does under load.

pub(crate) mod args;
mod load;
mod perf;

pub(crate) use load::load;
pub(crate) use perf::perf;
