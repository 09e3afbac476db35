//! The reasons for which a path is down, or a peer lost with its last path.

use doorbell_fabric::event::DownReason;

/// Why a path broke, or with the last of them a peer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Our link is down, or our rail refused a message for good.
    Link,
    /// Our device is gone.
    Device,
    /// A rail reported the peer's end.
    Peer(DownReason),
    /// A rail that gives nothing back had messages under way: they cannot be distinguished from those that
    /// arrived.
    NotReclaimable,
}

impl Reason {
    /// Whether a path that broke for this reason does not come back.
    #[must_use]
    pub const fn is_for_good(self) -> bool {
        matches!(
            self,
            Self::Device
                | Self::Peer(
                    DownReason::Closed | DownReason::Died | DownReason::Hostile | DownReason::Control
                )
        )
    }

    /// Whether the peer may be reached again after the last of its paths broke for this reason; `others`:
    /// another path is not gone for good.
    pub(crate) const fn leaves_hope(self, others: bool) -> bool {
        match self {
            Self::Link | Self::Peer(DownReason::Abandoned) => true,
            // This path alone is concerned: another one may come back.
            Self::Device | Self::Peer(DownReason::Silent | DownReason::Hostile | DownReason::Resources) => {
                others
            }
            // The process is concerned.
            Self::Peer(DownReason::Closed | DownReason::Died | DownReason::Control)
            | Self::NotReclaimable => false,
        }
    }
}
