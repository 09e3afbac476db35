//! What the switch does to frames: lost, late, twice, spoilt (8.8).

use crate::desc::flag;
use crate::fault::Action;
use crate::frame::{self, ROOM, UDP};
use crate::switch::Port;

/// A frame that waits.
#[derive(Debug)]
pub(crate) struct Held {
    /// When it goes on.
    pub(crate) due: u64,
    /// Whether the packet goes behind the next one, if that is earlier.
    pub(crate) is_behind: bool,
    pub(crate) from: Port,
    pub(crate) bytes: Vec<u8>,
}

/// What a frame has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spoilt {
    pub(crate) length: usize,
    /// Flags that the receiver does not find.
    pub(crate) bad: u8,
}

/// Changes the frame of `length` bytes in `room`. Nothing where it is lost.
pub(crate) fn spoil(room: &mut [u8], length: usize, action: Action) -> Option<Spoilt> {
    let whole = Spoilt { length, bad: 0 };
    let parts = frame::parse(&room[..length]);
    let ip = parts.ipv4.map(|ip| (parts.ip, ip));
    let spoilt = match (action, ip) {
        (Action::Drop, _) => return None,
        (Action::Oversize(most), _) if length > most => return None,
        (Action::Corrupt, _) => {
            room[length - 1] ^= 0x55;
            Spoilt {
                bad: flag::FCS_OK,
                ..whole
            }
        }
        (Action::BadIp, Some((at, _))) => {
            room[at + 10] ^= 0xff;
            whole
        }
        (Action::BadUdp, Some((at, ip))) if ip.protocol == UDP && ip.total >= ip.header + 8 => {
            // From a good sum to a bad one, and never to none.
            room[at + ip.header + 6] ^= 0x40;
            room[at + ip.header + 7] |= 1;
            whole
        }
        (Action::ForeignPort, Some((at, ip))) if ip.ports.is_some() => {
            let place = at + ip.header + 2;
            room[place] ^= 0x40;
            frame::make_checksums(&mut room[..length], false, true);
            whole
        }
        (Action::Fragment, Some((at, _))) => {
            room[at + 6] |= 0x20;
            frame::make_checksums(&mut room[..length], true, false);
            whole
        }
        (Action::Tag, _) => Spoilt {
            length: frame::tag(room, length, 0),
            bad: 0,
        },
        (Action::Pad(more), _) => {
            let end = length.saturating_add(more).min(ROOM);
            room[length..end].fill(0xa5);
            Spoilt { length: end, bad: 0 }
        }
        _ => whole,
    };
    Some(spoilt)
}
