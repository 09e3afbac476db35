//! Owners of filters and of the switches of queue pairs: in the shipping stack not the function itself, but
//! the owner of the physical one.
//!
//! | way | what it is |
//! |---|---|
//! | `direct` | the function's own command block, as DPDK does on a vNIC that it owns |
//! | `proxy` | a physical function that this process drives, wrapped in PROXY_BY_INDEX |
//! | `agent` | a process that drives it, over a Unix socket |
//!
//! Sources: Linux `usnic_fwd.c`, `enic_api.c`; DPDK `enic/base/vnic_dev.c`. No public code drives a usNIC
//! function alone.

pub(crate) mod agent;
pub(crate) mod direct;
pub(crate) mod proxy;
pub mod wire;

use std::fmt;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use doorbell_fabric::ether::Mac;
use doorbell_fabric::memory::RegionSlice;

use crate::devcmd::{ADD_FILTER, Command, DEL_FILTER, Devcmd, QP_DISABLE, QP_ENABLE};
use crate::errno::{Errno, Fault};
use crate::filter::Match;
use crate::notify::News;

/// A request to change the steering of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Frames that match go to this receive queue, in the function's own numbering. The reply is the filter's
    /// number.
    Steer(Match, u32),
    /// The filter with this number is taken away.
    Unsteer(u64),
    /// Turns on the sending and receiving of a queue pair.
    Enable(u32),
    /// Turns off the sending and receiving of a queue pair.
    Disable(u32),
}

impl Request {
    /// The command behind it.
    #[must_use]
    pub fn command(&self) -> Command {
        match self {
            Self::Steer(..) => ADD_FILTER,
            Self::Unsteer(_) => DEL_FILTER,
            Self::Enable(_) => QP_ENABLE,
            Self::Disable(_) => QP_DISABLE,
        }
    }

    /// The arguments of the command; of a filter, `buffer` is where the device finds it.
    pub(crate) fn arguments(&self, buffer: u64) -> [u64; 2] {
        match *self {
            Self::Steer(..) => [buffer, crate::filter::FILTER_BYTES as u64],
            Self::Unsteer(id) => [id, 0],
            // 0: both queues of the pair.
            Self::Enable(pair) | Self::Disable(pair) => [pair.into(), 0],
        }
    }
}

/// Why something was not done.
#[derive(Debug)]
pub enum Trouble {
    /// The device reported an error.
    Fault(Fault),
    /// The agent is not there, refuses, or breaks the protocol.
    Agent {
        /// What happened, for people.
        reason: String,
        /// What to do about it.
        fix: String,
    },
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<doorbell_vfio::Error> for Trouble {
    fn from(error: doorbell_vfio::Error) -> Self {
        Self::Fault(error.into())
    }
}

impl Trouble {
    pub(crate) fn agent(reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Agent {
            reason: reason.into(),
            fix: fix.into(),
        }
    }

    /// Returns what to do.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Fault(fault) => fault.fix(),
            Self::Agent { fix, .. } => fix.clone(),
        }
    }

    /// The number that the device gave.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Fault(fault) => fault.errno(),
            Self::Agent { .. } => None,
        }
    }

    /// Whether it concerns a device that does not exist any more.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Fault(fault) if fault.is_gone())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(out),
            Self::Agent { reason, .. } => out.write_str(reason),
        }
    }
}

/// What belongs to the function itself: its command block, and the buffer of its filters.
pub struct OwnFunction {
    pub(crate) devcmd: Devcmd,
    /// Where a filter is written, for us and for the device.
    pub(crate) buffer: (RegionSlice, u64),
    /// Filters whose numbers came after the request had been given up.
    pub(crate) orphans: Vec<u64>,
}

/// What is known of the physical function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parent {
    /// What it reports of its link; `None` where it does not.
    pub news: Option<News>,
    /// Counts up each time that everything installed is lost: the physical function was reset, or its owner
    /// was restarted.
    pub life: u64,
}

/// A way of steering. One request is under way at a time.
pub trait Steering: Send {
    /// Starts a request.
    ///
    /// # Errors
    /// [`Trouble`].
    fn begin(&mut self, own: &mut OwnFunction, request: Request) -> Result<(), Trouble>;

    /// Looks whether it is done; of a filter the answer is its number. Never waits.
    fn poll(&mut self, own: &mut OwnFunction) -> Option<Result<u64, Trouble>>;

    /// Returns what is known of the physical function by now. Never waits.
    ///
    /// # Errors
    /// Where its owner is gone.
    fn parent(&mut self) -> Result<Parent, Trouble>;

    /// The hardware address of frames, where it is the physical function's.
    fn mac(&mut self) -> Option<Mac>;

    /// Returns what becomes readable when there are news; `None` where nothing does.
    fn news(&self) -> Option<BorrowedFd<'_>>;

    /// Goes on towards an owner that answers, where it was gone; true once there is one. Never waits.
    ///
    /// # Errors
    /// Where it still is gone.
    fn renew(&mut self) -> Result<bool, Trouble> {
        Ok(true)
    }

    /// Returns the next filter of this function that was installed after its request had been given up, each
    /// once.
    fn orphan(&mut self) -> Option<u64> {
        None
    }

    /// Whether letting go of it takes time.
    fn is_slow_to_go(&self) -> bool {
        false
    }

    /// Whether it is the function's own command block that is used.
    fn is_own(&self) -> bool {
        false
    }

    /// Lets other functions of the adapter know our hardware address.
    fn introduce(&mut self, _: Ipv4Addr, _: Mac) {}

    /// Returns the next addresses of another function of the adapter, as announced by the agent. Never waits.
    fn neighbour(&mut self) -> Option<(Ipv4Addr, Mac)> {
        None
    }

    /// The way of steering, for people.
    fn how(&self) -> &'static str;
}

/// Does a request and waits for it.
///
/// # Errors
/// [`Trouble`].
pub fn run(steering: &mut dyn Steering, own: &mut OwnFunction, request: Request) -> Result<u64, Trouble> {
    steering.begin(own, request)?;
    loop {
        if let Some(ended) = steering.poll(own) {
            return ended;
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}
