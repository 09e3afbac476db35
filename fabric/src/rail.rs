//! What every rail promises, whatever it carries: progress, deadlines, arming, events, an end.
//!
//! A *rail* is a configured way to peers (`shm`, `udp:eth0`, `sim:42`, …). One thread owns it: nothing here
//! is `Sync`, and nothing here blocks. The two kinds of traffic a rail can carry are the contracts
//! [`Message`](crate::message::Message) and [`Datagram`](crate::datagram::Datagram), both on top of this one.

use std::os::fd::BorrowedFd;

use crate::addr::RailAddress;
use crate::caps::Capabilities;
use crate::error::RailError;
use crate::event::RailEvent;
use crate::name::RailName;
use crate::time::Time;

/// Number of units of work done by a bounded step; zero means "found nothing".
///
/// The duty cycle of the owner adds these up, and idles (spin, yield, sleep) only while the sum stays zero.
pub type Work = usize;

/// What one empty poll of a rail costs, so that its owner can poll expensive rails on every Nth idle pass
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollCost {
    /// A look at memory that a device or a peer writes: a few nanoseconds, no system call.
    Memory,
    /// A system call; the number is its cost in nanoseconds, measured or estimated by the driver.
    SystemCall(u32),
}

/// The answer of [`Rail::arm`].
#[derive(Debug)]
pub enum Armed<'a> {
    /// Work arrived between the last poll and the arming: poll again instead of sleeping.
    Ready,
    /// The descriptor becomes readable when there is work; it stays armed until [`Rail::disarm`].
    Sleep(BorrowedFd<'a>),
}

/// The part of the contract that is common to all rails.
pub trait Rail {
    /// The configured name, as shown everywhere (design: "Names are the same everywhere").
    fn name(&self) -> &RailName;

    /// Returns what this rail can do and its limits. They do not change while the rail is open.
    fn capabilities(&self) -> &Capabilities;

    /// The address that a peer needs to `open` this rail: published through the job's name exchange.
    fn address(&self) -> RailAddress;

    /// Housekeeping that needs the time: accepts, timers, liveness of peers. Bounded; returns the work done.
    ///
    /// The owner calls it at least once per [`Rail::next_deadline`], and every few microseconds of idling
    /// while a connection is being made; receiving does not depend on it.
    fn progress(&mut self, now: Time) -> Work;

    /// The next time at which [`Rail::progress`] has something to do, or `None`.
    fn next_deadline(&self) -> Option<Time>;

    /// Whether so much happened since the last [`Rail::progress`] that its time is old: much was sent or
    /// received, or many polls were dear. An owner that polls without reading the clock calls `progress` soon
    /// then, or what the rail measures (round trips) and what it waits for (losses) is coarse. Most rails
    /// measure nothing.
    #[inline]
    fn wants_time(&self) -> bool {
        false
    }

    /// Prepares to sleep. After `Sleep(fd)`, every later arrival makes `fd` readable: this call checks for
    /// work that arrived in between after arming, so no wake-up can be lost.
    ///
    /// # Errors
    /// When the operating system refuses the descriptor; the owner then goes on polling.
    fn arm(&mut self) -> Result<Armed<'_>, RailError>;

    /// Ends the sleep that `arm` prepared: drains the descriptor and stops peers from signalling.
    fn disarm(&mut self);

    /// The cost of an empty poll.
    fn poll_cost(&self) -> PollCost;

    /// The next event about links, peers or the device, oldest first. Each is delivered once.
    fn event(&mut self) -> Option<RailEvent>;

    /// Orderly end: what was accepted is pushed out while `now < by`; then everything is released. The caller
    /// keeps calling (with a fresh `now`) until it answers `true`, which happens at `by` at the latest.
    fn close(&mut self, now: Time, by: Time) -> bool;
}

/// Implements [`Rail`] for a rail of measurements or tests that is nothing but memory, with the fields `name`
/// and `can`: no clock, no link, no sleep. `address` is a function of the rail, and so is `event`, which
/// takes the next one; without it there are none.
///
/// ```
/// use doorbell_fabric::addr::RailAddress;
/// use doorbell_fabric::caps::Capabilities;
/// use doorbell_fabric::name::RailName;
///
/// struct Still {
///     name: RailName,
///     can: Capabilities,
/// }
///
/// doorbell_fabric::still_rail!(Still, |_| RailAddress::native("sim", [0]));
/// ```
#[macro_export]
macro_rules! still_rail {
    ($rail:ty, $address:expr) => {
        $crate::still_rail!($rail, $address, |_| None);
    };
    ($rail:ty, $address:expr, $event:expr) => {
        impl $crate::rail::Rail for $rail {
            fn name(&self) -> &$crate::name::RailName {
                &self.name
            }
            fn capabilities(&self) -> &$crate::caps::Capabilities {
                &self.can
            }
            fn address(&self) -> $crate::addr::RailAddress {
                let address: fn(&Self) -> $crate::addr::RailAddress = $address;
                address(self)
            }
            fn progress(&mut self, _: $crate::time::Time) -> $crate::rail::Work {
                0
            }
            fn next_deadline(&self) -> Option<$crate::time::Time> {
                None
            }
            fn arm(&mut self) -> Result<$crate::rail::Armed<'_>, $crate::error::RailError> {
                Ok($crate::rail::Armed::Ready)
            }
            fn disarm(&mut self) {}
            fn poll_cost(&self) -> $crate::rail::PollCost {
                $crate::rail::PollCost::Memory
            }
            fn event(&mut self) -> Option<$crate::event::RailEvent> {
                let event: fn(&mut Self) -> Option<$crate::event::RailEvent> = $event;
                event(self)
            }
            fn close(&mut self, _: $crate::time::Time, _: $crate::time::Time) -> bool {
                true
            }
        }
    };
}
