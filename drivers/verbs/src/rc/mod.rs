//! Reliable connections: messages over queue pairs that share one receive queue.

mod connector;
mod core;
mod head;
mod hello;
mod inbox;
mod link;
mod mail;
mod outbox;
mod rail;
mod regions;
mod slots;
#[cfg(test)]
mod tests;

pub use self::core::RcStats;
pub use self::rail::RcRail;
