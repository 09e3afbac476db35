//! The wire beside the adapter: a real kernel's network, by an interface's raw frames or by a tap.
//!
//! Frames that a kernel left unfinished for a device (the checksum of UDP or TCP) are finished here, as its
//! device would have done. What it left to be cut into segments is longer than any frame of a VIC, and is
//! lost: turn segmentation off (`ethtool -K IF tso off gso off`).

use std::os::fd::OwnedFd;

use crate::error::Error;
use crate::frame::{self, TX_MOST};
use crate::options::BridgeTo;
use crate::sys;

/// A bridge to a kernel's network.
#[derive(Debug)]
pub(crate) enum Bridge {
    Interface(OwnedFd),
    Tap(OwnedFd),
}

impl Bridge {
    pub(crate) fn open(to: &BridgeTo) -> Result<Self, Error> {
        let failed = |name: &String| {
            let name = name.clone();
            move |source| Error::Bridge { name, source }
        };
        match to {
            BridgeTo::Interface(name) => sys::packet(name).map(Self::Interface).map_err(failed(name)),
            BridgeTo::Tap(name) => sys::tap(name).map(Self::Tap).map_err(failed(name)),
        }
    }

    /// The next frame from the wire, whole; its length in `room`.
    pub(crate) fn receive(&mut self, room: &mut [u8]) -> Option<usize> {
        loop {
            let length = match self {
                Self::Tap(file) => rustix::io::read(file, &mut *room)
                    .ok()
                    .filter(|length| *length > 0)?,
                Self::Interface(socket) => {
                    // Room for a tag that is put back.
                    let most = room.len() - 4;
                    let heard = sys::receive(socket, &mut room[..most])?;
                    if heard.is_unfinished {
                        frame::make_checksums(&mut room[..heard.length], false, true);
                    }
                    match heard.vlan {
                        Some(vlan) => frame::tag(room, heard.length, vlan),
                        None => heard.length,
                    }
                }
            };
            if (14..=TX_MOST).contains(&length) {
                return Some(frame::pad(room, length));
            }
        }
    }

    /// Sends a frame; what the kernel does not take now is lost, as on a wire.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let _ = match self {
            Self::Tap(file) => rustix::io::write(file, frame),
            Self::Interface(socket) => rustix::net::send(socket, frame, rustix::net::SendFlags::DONTWAIT),
        };
    }
}
