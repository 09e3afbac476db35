//! What can go wrong with a request, and what to do about it.

use doorbell_fabric::error::RailError;
use doorbell_fabric::event::DownReason;
use doorbell_paths::Reason;
use thiserror::Error;

use crate::rank::Rank;
use crate::request::RequestId;
use crate::rma::args::OperationError;

/// Why the last rail to a peer went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// A rail reported the peer down.
    Peer(DownReason),
    /// The link of its last rail went down.
    Link,
    /// The device of its last rail is gone.
    Device,
    /// A rail went down that cannot give back what it had accepted, so messages may be missing.
    NotReclaimable,
    /// The peer sent more than the agreed limits allow.
    Flood,
    /// It could not be connected: its address is unknown, or no rail could be opened to it.
    Unmet,
}

impl From<Reason> for LostReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Link => Self::Link,
            Reason::Device => Self::Device,
            Reason::Peer(reason) => Self::Peer(reason),
            Reason::NotReclaimable => Self::NotReclaimable,
        }
    }
}

impl LostReason {
    /// Returns the reason in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Peer(DownReason::Closed) => "it closed its end",
            Self::Peer(DownReason::Died) => "its process ended or its connection broke",
            Self::Peer(DownReason::Hostile) => "it broke the rules of the wire",
            Self::Peer(DownReason::Abandoned) => "the way to it was given up",
            Self::Peer(DownReason::Silent) => "it did not answer within the bound",
            Self::Peer(DownReason::Resources) => {
                "this process has no memory or descriptors left to talk to it"
            }
            Self::Peer(DownReason::Control) => "the control plane has lost it",
            Self::Link => "the link of its last rail is down",
            Self::Device => "the device of its last rail is gone",
            Self::NotReclaimable => "a rail went down that cannot give back what was under way",
            Self::Unmet => "it could not be connected when it was needed",
            Self::Flood => "it sent more unexpected bytes, or caused more answers, than was agreed",
        }
    }

    /// Returns what to do next.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Peer(DownReason::Closed) => {
                "call a barrier before the end: a rank that closes takes along what the others have not received yet"
            }
            Self::Peer(DownReason::Died) => "see its last output, and with which status it ended",
            Self::Peer(DownReason::Hostile) => {
                "see that both run the same version, and who else is on that network"
            }
            Self::Peer(DownReason::Abandoned | DownReason::Silent) => {
                "see whether it still runs and polls, and the network between"
            }
            Self::Peer(DownReason::Resources) => "raise this process's limits of memory and descriptors",
            Self::Peer(DownReason::Control) => {
                "see how its process ended, and the networks that `control.nics` names"
            }
            Self::Link => {
                "check the cable, the switch and the interface; a second rail would take over, and a longer \
                 DOORBELL_PATIENCE would wait for the link"
            }
            Self::Device => {
                "see the system's log about the device, or whether the process that models it still runs; a second rail \
                 would take over"
            }
            Self::NotReclaimable => "use several rails only of kinds that can give back",
            Self::Unmet => "see whether it still runs, and the output of its launcher",
            Self::Flood => "see that `window` and `hard_window` are the same on all ranks",
        }
    }
}

/// The errors of the PML.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PmlError {
    /// A rank outside the job.
    #[error("rank {rank} is not in this job of {size}; ranks go from 0 to {}", size.saturating_sub(1))]
    NoSuchRank {
        /// The rank that was named.
        rank: u32,
        /// Size of the job.
        size: u32,
    },
    /// As many peers as there may be at a time.
    #[error(
        "there are {most} peers already, as many as the setting `peers_most` allows: forget some, or raise it"
    )]
    TooManyPeers {
        /// The limit on peers, our own number included.
        most: u32,
    },
    /// A peer has more rails than one can have.
    #[error("{rank} has {most} rails already, as many as one peer can have: name fewer rails")]
    TooManyRails {
        /// The rank of the peer.
        rank: Rank,
        /// The limit on rails.
        most: usize,
    },
    /// No rail was ever opened to this rank.
    #[error("no rail leads to {rank}: its address was not exchanged, or no rail could open it; see `doorbell why {}`", rank.0)]
    NoRail {
        /// The rank of the peer.
        rank: Rank,
    },
    /// A rail could not open a peer.
    #[error("rail `{rail}` could not open {rank}: {source}")]
    Open {
        /// The rank of the peer.
        rank: Rank,
        /// The rail's name.
        rail: String,
        /// The error of the rail.
        source: RailError,
    },
    /// A rail number that was not given out.
    #[error("there is no rail number {rail}; {rails} were added")]
    NoSuchRail {
        /// The number that was named.
        rail: u16,
        /// How many there are.
        rails: usize,
    },
    /// The peer has no rail left.
    #[error("{rank} is lost: {}; the message may or may not have arrived; {}", reason.as_str(), reason.advice())]
    PeerLost {
        /// The rank of the peer.
        rank: Rank,
        /// Why it is lost.
        reason: LostReason,
    },
    /// The message was longer than the room of the receive; what fitted was delivered.
    #[error(
        "a message of {length} bytes (tag {tag:#x}) from {source_rank} did not fit in {room}; receive into a larger buffer, or probe first"
    )]
    Truncated {
        /// The sender of the message.
        source_rank: Rank,
        /// The sender's endpoint, as in [`Status`](crate::Status).
        endpoint: u8,
        /// The tag of the message.
        tag: u64,
        /// The sender's immediate data.
        data: Option<u64>,
        /// The full length of the message.
        length: u64,
        /// How many bytes were delivered.
        room: u64,
    },
    /// The bytes that arrived are not those that were sent: their checksum differs. They lie in the receive's
    /// room.
    #[error(
        "a message of {length} bytes (tag {tag:#x}) from {source_rank} arrived damaged: its checksum is {found:#010x}, and {announced:#010x} was sent; look at that sender's memory and devices, and that it leaves its buffer alone until the send has ended"
    )]
    Corrupt {
        /// The sender of the message.
        source_rank: Rank,
        /// The tag of the message.
        tag: u64,
        /// The length of the message.
        length: u64,
        /// CRC-32C of the bytes that were sent.
        announced: u32,
        /// CRC-32C of the bytes that arrived.
        found: u32,
    },
    /// The request was cancelled: no message takes part in it any more.
    #[error(
        "{request} (context {context}, tag {tag:#x}) was cancelled by this rank, and takes part in no message any more: make it again if it is still wanted"
    )]
    Cancelled {
        /// The request that was cancelled.
        request: RequestId,
        /// The context of the request.
        context: u16,
        /// The tag of the request.
        tag: u64,
    },
    /// The sender gave its message up after the receive had been matched with it.
    #[error(
        "{source_rank} aborted the message with tag {tag:#x} while it was under way: what arrived of it is no message; see why the sender gave it up (a deadline, or a request that was dropped), and receive again if it sends again"
    )]
    SendAborted {
        /// The sender of the message.
        source_rank: Rank,
        /// The tag of the message.
        tag: u64,
    },
    /// A synchronous message whose context its receiver has closed, or closed before it was received.
    #[error(
        "{rank} does not receive messages like the one with tag {tag:#x} any more: it was not received; see why its receiver has closed before the end"
    )]
    Rejected {
        /// The rank that the message was for.
        rank: Rank,
        /// The tag of the message.
        tag: u64,
    },
    /// The target of an operation has not done it.
    #[error("{rank} has not done a one-sided operation: {reason}; see which windows it has open")]
    Operation {
        /// The rank whose window it is.
        rank: Rank,
        /// Why it was not done.
        reason: OperationError,
    },
    /// An operation or a window that cannot be.
    #[error("this cannot be: {reason}; correct the arguments")]
    BadOperation {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The key of a window that is open.
    #[error("a window with the key {key:#x} is open already: close it, or choose another key")]
    KeyTaken {
        /// The key that was to be given to the new one.
        key: u64,
    },
    /// A request id that names nothing: it ended before, or never was.
    #[error("{0} names no request: it was tested before, aborted, or is another job's")]
    StaleRequest(RequestId),
    /// A claimed message that was received or discarded before.
    #[error("the claimed message is gone: it was received or discarded before")]
    StaleMessage,
    /// The blocks of a strided layout overlap or leave its memory.
    #[error(
        "{count} blocks of {block} bytes, {stride} apart, do not fit without overlap in {room} bytes; correct the layout"
    )]
    BadLayout {
        /// Bytes of one block.
        block: usize,
        /// Bytes from the start of one block to the next.
        stride: usize,
        /// Number of blocks.
        count: usize,
        /// Bytes of the memory.
        room: usize,
    },
    /// A multi-receive into a layout.
    #[error(
        "a multi-receive takes one piece of memory, not {pieces}: make one for each piece, or receive into another buffer and copy"
    )]
    MultiPieces {
        /// Pieces of the target.
        pieces: usize,
    },
    /// Too many injected bytes wait for a rail.
    #[error("{waiting} injected bytes wait for a rail already; poll and try again, or send with a request")]
    InjectFull {
        /// The bytes that wait.
        waiting: usize,
    },
    /// An injected message that is too long to be taken in one piece.
    #[error("{length} bytes cannot be injected: at most {limit}; send with a request")]
    InjectTooLong {
        /// The length of the message.
        length: usize,
        /// The most bytes that may wait.
        limit: usize,
    },
    /// A setting that cannot be.
    #[error("the setting {name} = {value} is refused: {reason}")]
    BadConfig {
        /// The name of the setting.
        name: &'static str,
        /// The value of the setting.
        value: u64,
        /// Why it is refused.
        reason: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_what_to_do_in_the_words_of_the_settings() {
        let link = LostReason::Link.advice();
        assert!(link.contains("DOORBELL_PATIENCE") && link.contains("a second rail would take over"));
        assert!(LostReason::Peer(DownReason::Closed).advice().contains("barrier"));
    }
}
