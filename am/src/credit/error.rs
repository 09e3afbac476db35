//! What can be wrong with a message's credits.

/// Why a request has no credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCredits {
    /// Too few are there now: poll, and try again.
    #[error("all credits are in use")]
    Stalled,
    /// The number of credits is not possible for a request.
    #[error("a request of {asked} credits: the range is 1 to {most}")]
    TooMany {
        /// Credits that it wants.
        asked: u8,
        /// The most that there can be.
        most: u16,
    },
    /// The rank is this process itself, or none of the job: it lends no credits.
    #[error("rank {0} lends no credits")]
    NoPeer(u32),
}

/// A peer that does not keep to the protocol. Nothing was changed by its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The rank is this process itself, or none of the job.
    #[error("credits from rank {0}, which neither lends nor borrows")]
    NoPeer(u32),
    /// A request used more credits than its sender can have, or none.
    #[error(
        "a request of rank {rank} used {used} credits, beside {held} of unanswered requests, but it was lent {loan}"
    )]
    Overdrawn {
        /// The rank of the peer.
        rank: u32,
        /// Credits of the request.
        used: u16,
        /// Credits of its requests that arrived and are not answered.
        held: u16,
        /// All that it was lent.
        loan: u16,
    },
    /// A reply gave back more than was in use.
    #[error("a reply of rank {rank} returned {back} credits, but {in_use} were in use")]
    NotInUse {
        /// The rank of the peer.
        rank: u32,
        /// Credits of the reply.
        back: u16,
        /// Credits in use.
        in_use: u16,
    },
    /// A reply granted more than the counters hold.
    #[error("rank {rank} granted more than 65,535 credits")]
    TooManyGranted {
        /// The rank of the peer.
        rank: u32,
    },
    /// A return that answers no revocation.
    #[error("rank {rank} returned credits that were not revoked")]
    NotRevoked {
        /// The rank of the peer.
        rank: u32,
    },
    /// A return exceeds what may be returned.
    #[error(
        "rank {rank} returned {give} of {loan} credits: less than the minimum, or than its requests hold, is left"
    )]
    TooMuchReturned {
        /// The rank of the peer.
        rank: u32,
        /// Credits that it returned.
        give: u16,
        /// Credits that it was lent.
        loan: u16,
    },
    /// A revocation or a return although credits do not migrate in this job.
    #[error("rank {rank} revoked or returned credits, which do not migrate in this job")]
    NotDynamic {
        /// The rank of the peer.
        rank: u32,
    },
}
