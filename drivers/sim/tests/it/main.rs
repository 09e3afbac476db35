//! The simulator: the contracts of all rails in several moods, failures of messages, faults of datagrams,
//! whole jobs.

mod conformance;
mod faults;
mod forget;
mod jobs;
mod messages;
