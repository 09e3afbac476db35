//! Where a datagram comes from.

use doorbell_fabric::memory::SharedBytes;

use crate::gid::Gid;
use crate::sys::{Wc, numbers};

/// Bytes in front of each received frame: the global routing header, or room for it.
pub(crate) const GRH: usize = 40;

/// Where a frame comes from: the queue pair, and the GID or LID of its port. A hint: any sender can write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct From {
    pub(crate) pair: u32,
    pub(crate) port: Source,
}

/// A port that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// By its GID.
    Gid([u8; 16]),
    /// By its LID, inside a subnet.
    Lid(u16),
}

impl From {
    /// Reads it from a completion, and from the room in front of its frame.
    #[inline]
    pub(crate) fn of(completion: &Wc, room: SharedBytes<'_>) -> Self {
        let port = if completion.wc_flags & numbers::WC_WITH_GRH != 0 {
            Source::Gid(gid(room).0)
        } else {
            Source::Lid(completion.slid)
        };
        Self {
            pair: completion.src_qp,
            port,
        }
    }
}

/// The sender's GID.
fn gid(room: SharedBytes<'_>) -> Gid {
    gids(room).0
}

/// The GIDs that a routing header names: the sender's, and the one that it was sent to. Of a packet of IPv4,
/// its header lies in the last 20 bytes.
pub(crate) fn gids(room: SharedBytes<'_>) -> (Gid, Gid) {
    let mut bytes = [0; GRH];
    room.copy_to(0, &mut bytes);
    if bytes[0] >> 4 == 6 {
        let of = |at: usize| {
            let mut gid = [0; 16];
            gid.copy_from_slice(&bytes[at..at + 16]);
            Gid(gid)
        };
        return (of(8), of(24));
    }
    let of = |at: usize| {
        let mut gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 0, 0];
        gid[12..].copy_from_slice(&bytes[at..at + 4]);
        Gid(gid)
    };
    (of(32), of(36))
}
