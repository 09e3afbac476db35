//! Requests to the administration of an InfiniBand subnet (SA): paths, and membership in multicast groups.
//!
//! ```text
//!   SubnetPort::ask(request) ─► libibumad ─► /dev/infiniband/umadN ─► LID of the manager, queue pair 1
//!   SubnetPort::next_reply() ◄─    the kernel matches answers, repeats requests, and gives back those that
//!                                  get no reply
//! ```
//!
//! libibumad is loaded when a port is opened for the first time. The device file belongs to root, unless a
//! rule of udev gives it to others.
//!
//! reference: verbs, section 10.

mod mad;
mod records;

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use thiserror::Error;

use crate::sys::{MAD, SubnetManager, UMAD, Umad, UmadPort};

pub use mad::{Answer, Malformed, Request, read};
pub use records::{MemberRecord, PathRecord};

/// The queue pair of the administration, and its Q_Key.
const QUEUE_PAIR: (i32, u32) = (1, 0x8001_0000);

/// The components of a record that a request means; of a path or of a membership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Components(u64);

impl Components {
    /// The destination's GID of a path.
    pub const DGID: Self = Self(1 << 2);
    /// The source's GID of a path.
    pub const SGID: Self = Self(1 << 3);
    /// The destination's LID of a path.
    pub const DLID: Self = Self(1 << 4);
    /// The source's LID of a path.
    pub const SLID: Self = Self(1 << 5);
    /// That a path has to be the same both ways.
    pub const REVERSIBLE: Self = Self(1 << 11);
    /// The number of paths.
    pub const NUM_PATH: Self = Self(1 << 12);
    /// The partition of a path.
    pub const PATH_PKEY: Self = Self(1 << 13);
    /// The service level of a path.
    pub const PATH_SL: Self = Self(1 << 15);
    /// The MTU of a path, with its selector.
    pub const PATH_MTU: Self = Self(1 << 16 | 1 << 17);
    /// The rate of a path, with its selector.
    pub const PATH_RATE: Self = Self(1 << 18 | 1 << 19);
    /// The GID of a group.
    pub const GROUP: Self = Self(1);
    /// The GID of a port.
    pub const PORT: Self = Self(1 << 1);
    /// The Q_Key of a group.
    pub const QKEY: Self = Self(1 << 2);
    /// The MTU of a group, with its selector.
    pub const MTU: Self = Self(1 << 4 | 1 << 5);
    /// The traffic class of a group.
    pub const TCLASS: Self = Self(1 << 6);
    /// The partition of a group.
    pub const PKEY: Self = Self(1 << 7);
    /// The rate of a group, with its selector.
    pub const RATE: Self = Self(1 << 8 | 1 << 9);
    /// The service level of a group.
    pub const SL: Self = Self(1 << 12);
    /// The flow label of a group.
    pub const FLOW_LABEL: Self = Self(1 << 13);
    /// The scope of a group.
    pub const SCOPE: Self = Self(1 << 15);
    /// The kind of a membership.
    pub const JOIN_STATE: Self = Self(1 << 16);

    /// Returns these and others.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns these, and others where `wanted`.
    #[must_use]
    pub const fn and_if(self, wanted: bool, other: Self) -> Self {
        if wanted { self.and(other) } else { self }
    }

    /// Returns the mask.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// Why the administration refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// It is busy: the request may be repeated later.
    #[error("the subnet's administration is busy")]
    Busy,
    /// It has no resources for that.
    #[error("the subnet's administration has no resources for that")]
    NoResources,
    /// The request contradicts itself, or the group that there is.
    #[error("the subnet's administration takes the request for invalid")]
    Invalid,
    /// No record matches.
    #[error("the subnet's administration has no such record")]
    NoRecords,
    /// More than one record matches.
    #[error("the subnet's administration has more than one such record")]
    TooMany,
    /// A GID is not of this subnet.
    #[error("the subnet's administration takes a GID for invalid")]
    InvalidGid,
    /// The group does not exist, and the request does not suffice to create it.
    #[error("there is no such group, and the request does not suffice to create it")]
    Insufficient,
    /// It is not allowed.
    #[error("the subnet's administration denies it")]
    Denied,
    /// Any other status.
    #[error("the subnet's administration answers with status {0:#06x}")]
    Other(u16),
}

impl Refusal {
    /// Returns the refusal of a status, unless it is success.
    const fn of(status: u16) -> Option<Self> {
        match (status, status >> 8) {
            (0, _) => None,
            (status, _) if status & 1 != 0 => Some(Self::Busy),
            (_, 1) => Some(Self::NoResources),
            (_, 2) => Some(Self::Invalid),
            (_, 3) => Some(Self::NoRecords),
            (_, 4) => Some(Self::TooMany),
            (_, 5) => Some(Self::InvalidGid),
            (_, 6) => Some(Self::Insufficient),
            (_, 7) => Some(Self::Denied),
            (status, _) => Some(Self::Other(status)),
        }
    }
}

/// Why no request reaches the administration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SubnetError {
    /// The library cannot be used.
    #[error(
        "{UMAD} cannot be used: {0}; install it (Debian: apt-get install libibumad3), and load the kernel's \
         module (modprobe ib_umad)"
    )]
    Library(String),
    /// The port cannot be opened for management.
    #[error(
        "{call} of {device} port {port} failed: {reason}; check that the module ib_umad is loaded, and that \
         this user may open /dev/infiniband/umad* (root may)"
    )]
    Open {
        /// The name of the function.
        call: &'static str,
        /// The name of the device.
        device: String,
        /// The number of the port.
        port: u8,
        /// What the library or the system gives as the reason.
        reason: String,
    },
    /// The port has no subnet manager.
    #[error("{device} port {port} has no subnet manager: its LID is 0; start one (opensm)")]
    NoManager {
        /// The name of the device.
        device: String,
        /// The number of the port.
        port: u8,
    },
    /// A call for an open port failed.
    #[error("{call} of {device} port {port} failed: {error}; check that the device is still there")]
    Call {
        /// The name of the function.
        call: &'static str,
        /// The name of the device.
        device: String,
        /// The number of the port.
        port: u8,
        /// The system's error.
        error: io::Error,
    },
}

/// A port from which requests go to the administration of its subnet.
#[derive(Debug)]
pub struct SubnetPort {
    device: String,
    number: u8,
    port: UmadPort,
}

/// What came back for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The transaction that was given with the request.
    pub transaction: u32,
    /// The answer; `None` where there was none in time.
    pub answer: Option<Answer>,
}

/// Loads the library once. Where it refuses, it is tried again the next time: the kernel's module may have
/// been loaded meanwhile.
fn library() -> Result<Umad, SubnetError> {
    static LOADED: OnceLock<Umad> = OnceLock::new();
    match LOADED.get() {
        Some(loaded) => Ok(*loaded),
        None => {
            let loaded = Umad::load(UMAD).map_err(SubnetError::Library)?;
            Ok(*LOADED.get_or_init(|| loaded))
        }
    }
}

impl SubnetPort {
    /// Opens a port of a device, by its number from 1.
    ///
    /// # Errors
    /// When libibumad or the device's file cannot be used.
    pub fn open(device: &str, number: u8) -> Result<Self, SubnetError> {
        let class = mad::CLASS;
        let port = UmadPort::open(library()?, device, number, class).map_err(|(call, reason)| {
            SubnetError::Open {
                call,
                device: device.to_owned(),
                port: number,
                reason,
            }
        })?;
        Ok(Self {
            device: device.to_owned(),
            number,
            port,
        })
    }

    fn failed(&self, call: &'static str) -> impl FnOnce(io::Error) -> SubnetError {
        let (device, port) = (self.device.clone(), self.number);
        move |error| SubnetError::Call {
            call,
            device,
            port,
            error,
        }
    }

    /// Returns the LID of the subnet's manager, which differs after another has taken over; 0 for none.
    ///
    /// # Errors
    /// When the kernel does not report the port.
    pub fn manager(&self) -> Result<u16, SubnetError> {
        let manager = self.port.manager().map_err(self.failed("umad_get_port"))?;
        Ok(manager.lid)
    }

    /// Sends a request. It is repeated `retries` times, each after `timeout` (in milliseconds).
    ///
    /// # Errors
    /// When the subnet has no manager, or the request cannot be sent.
    pub fn ask(
        &mut self,
        transaction: u32,
        request: &Request,
        timeout: Duration,
        retries: u32,
    ) -> Result<(), SubnetError> {
        let manager = self.port.manager().map_err(self.failed("umad_get_port"))?;
        if manager.lid == 0 {
            return Err(SubnetError::NoManager {
                device: self.device.clone(),
                port: self.number,
            });
        }
        let to: (SubnetManager, i32, u32) = (manager, QUEUE_PAIR.0, QUEUE_PAIR.1);
        let wait = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let retries = i32::try_from(retries).unwrap_or(i32::MAX);
        let mad = request.bytes(transaction.into());
        let sent = self.port.send(&mad, to, wait, retries);
        sent.map_err(self.failed("umad_send"))
    }

    /// Returns the next reply, if one has arrived. It does not wait, and drops what answers no request.
    ///
    /// # Errors
    /// When the port is of no more use: it is to be opened again.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, SubnetError> {
        while let Some(arrived) = self.port.receive().map_err(self.failed("umad_recv"))? {
            if arrived.status != 0 {
                // The request itself comes back.
                return Ok(Some(Reply {
                    transaction: transaction(&arrived.mad),
                    answer: None,
                }));
            }
            if let Ok((transaction, answer)) = read(&arrived.mad) {
                let answer = Some(answer);
                return Ok(Some(Reply { transaction, answer }));
            }
        }
        Ok(None)
    }
}

/// Returns the lower half of a datagram's transaction id.
const fn transaction(mad: &[u8; MAD]) -> u32 {
    u32::from_be_bytes([mad[12], mad[13], mad[14], mad[15]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_words() {
        assert_eq!(Refusal::of(0), None);
        let named = [1, 0x100, 0x200, 0x300, 0x400, 0x500, 0x600, 0x700, 0x1c].map(Refusal::of);
        let words: std::collections::BTreeSet<String> =
            named.iter().map(|refusal| refusal.unwrap().to_string()).collect();
        assert_eq!(words.len(), named.len());
        assert_eq!(Refusal::of(0x601), Some(Refusal::Busy));
    }

    #[test]
    fn a_port_that_is_not_there_is_refused_with_what_to_check() {
        match SubnetPort::open("nosuch0", 1) {
            Ok(_) => panic!("there is none of this name"),
            Err(error) => assert!(error.to_string().contains("ib_umad"), "{error}"),
        }
    }
}
