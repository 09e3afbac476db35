//! Why there is no queue pair for management datagrams, or why it sends nothing.

use std::io;

use thiserror::Error;

use super::MadPlace;
use crate::discover;
use crate::error::VerbsError;
use crate::gid::Gid;

/// Why there is no queue pair for management datagrams, or why it sends nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MadError {
    /// No port stands on a network interface.
    #[error(
        "no RDMA device stands on the interface {0}; `rdma link` lists them, and \
         `rdma link add rxe0 type rxe netdev {0}` adds one in software"
    )]
    NoDevice(String),
    /// The device or its port cannot be used.
    #[error("{on} cannot be used: {reason}; {remedy}")]
    Unusable {
        /// The device and its port.
        on: String,
        /// The reason, as a sentence.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// The kernel does not give this process the Q_Key.
    #[error(
        "{0}: the kernel gives the Q_Key 0x80010000, which all these services share, to processes with CAP_NET_RAW only; \
         run the service as root or with that capability (AmbientCapabilities=CAP_NET_RAW of systemd, or \
         `setcap cap_net_raw+ep` on the program), or allow such keys to all processes of this machine \
         (`rdma system set privileged-qkey on`)"
    )]
    Privilege(String),
    /// The port does not have a GID.
    #[error("{on} does not have the GID {gid} (any more); `doorbell info` lists its GIDs")]
    NoGid {
        /// The device and its port.
        on: String,
        /// The GID that was to be used.
        gid: Gid,
    },
    /// A group could not be attached.
    #[error("cannot attach the group {group}: {error}")]
    Group {
        /// The GID of the group.
        group: Gid,
        /// The error of the library.
        error: VerbsError,
    },
    /// An address handle could not be made.
    #[error("cannot make an address handle for {gid}: {error}")]
    Handle {
        /// The GID of the destination.
        gid: Gid,
        /// The system's error.
        error: io::Error,
    },
    /// As many datagrams as may are waiting for the hardware address of one destination. It has no name here:
    /// who reports each error once would report one for each address that others make up.
    #[error(
        "too many datagrams wait for the hardware address of one host; `ip neighbour` shows those that do \
         not answer"
    )]
    Waiting,
    /// The queue of datagrams to send is full, or is being set up again.
    #[error("{0} sends nothing at present: its queue is full, or is being set up again")]
    Busy(String),
    /// A call of the system failed.
    #[error("cannot {step}: {error}")]
    System {
        /// The operation that failed.
        step: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl MadError {
    pub(super) fn of(place: &MadPlace, error: &VerbsError) -> Self {
        Self::Unusable {
            on: place.to_string(),
            reason: error.to_string(),
            remedy: discover::remedy(error).to_owned(),
        }
    }

    /// The error of registering `bytes` bytes.
    pub(super) fn of_memory(place: &MadPlace, error: &VerbsError, bytes: usize) -> Self {
        match error {
            VerbsError::Call { error: cause, .. } if cause.raw_os_error() == Some(libc::ENOMEM) => {
                Self::Unusable {
                    on: place.to_string(),
                    reason: error.to_string(),
                    remedy: format!(
                        "{} KiB of locked memory are needed: raise the limit (ulimit -l, LimitMEMLOCK= of \
                         systemd), or set recv_depth in ibacm_opts.cfg lower",
                        bytes.div_ceil(1024)
                    ),
                }
            }
            error => Self::of(place, error),
        }
    }

    /// The error of setting the queue pair up.
    pub(super) fn of_start(place: &MadPlace, error: &VerbsError) -> Self {
        match error {
            VerbsError::Call {
                call: "ibv_modify_qp",
                error: cause,
                ..
            } if matches!(cause.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                Self::Privilege(place.to_string())
            }
            error => Self::of(place, error),
        }
    }
}
