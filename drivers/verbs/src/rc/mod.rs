//! Reliable connections: messages over queue pairs that share one receive queue.

mod connector;
mod core;
mod destroyer;
mod device;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod head;
mod hello;
mod housekeeping;
mod inbox;
mod limits;
mod link;
pub(crate) mod mail;
mod onesided;
mod outbox;
mod pairs;
mod rail;
mod record;
mod regions;
mod ring;
mod slots;
#[cfg(test)]
mod tests;

use doorbell_fabric::caps::Capabilities;

pub(crate) use self::core::INLINE;
pub use self::core::RcStats;
use self::core::Sizes;
pub use self::onesided::WindowFacts;
pub(crate) use self::onesided::memory_limit;
pub use self::rail::RcRail;

/// What rails of a configuration can do, on a device with reads and atomics.
pub(crate) fn capabilities(config: &crate::config::VerbsConfig) -> Capabilities {
    rail::capabilities(&Sizes::of(config), true, true)
}

/// Bytes of memory that a rail locks at most, on a port of this MTU, where no more than `limit` may be
/// locked: more than that where it is too little to open the rail.
pub(crate) fn locked(config: &crate::config::VerbsConfig, mtu: usize, limit: Option<u64>) -> usize {
    let contact = mail::locked(mtu);
    Sizes::of(config).fit(limit, contact).locked() + contact
}
