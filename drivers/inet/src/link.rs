//! Is the link there? The kernel's own announcements (rtnetlink(7)), so that no short failure is missed; and questions, while
//! nothing is heard: what changes by itself, such as the carrier when the other end goes down, is gathered by the kernel and
//! announced at most once in a second (net/core/link_watch.c). Who asks has the answer as it is now.

use std::os::fd::{AsFd, OwnedFd};

use doorbell_fabric::event::EventKind;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::interface::{Interface, is_up, probe_socket};
use crate::netlink::{HEADER, REQUEST};
use crate::sys;

/// Watches one interface.
pub struct Link {
    socket: OwnedFd,
    index: u32,
    up: bool,
    gone: bool,
}

/// The multicast group of changes to interfaces, `RTMGRP_LINK` (linux/rtnetlink.h).
const GROUP_LINK: u32 = 1;
/// The types of messages, and the sizes of `nlmsghdr` and `ifinfomsg`.
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
/// The attribute that says what the answer may leave out: the counters.
const IFLA_EXT_MASK: u16 = 29;
const SKIP_STATS: u32 = 1 << 3;
/// Bytes of a question: the two headers, and that attribute.
const QUESTION: usize = HEADER + LINK + 8;
const LINK: usize = 16;

impl Link {
    /// Watches this interface, which is as it was seen.
    ///
    /// # Errors
    /// When the system gives no socket.
    pub fn watch(interface: &Interface) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let route = None; // protocol 0 is NETLINK_ROUTE
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, route)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUP_LINK))?;
        Ok(Self {
            socket,
            index: interface.index,
            up: is_up(interface.seen.flags),
            gone: false,
        })
    }

    /// Readable when there is something to look at.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether frames can pass, as far as was told.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Asks the kernel for the interface as it is now; the answer is among what [`Link::look`] reads. The kernel takes the
    /// lock of its network configuration for it, so this is for when nothing arrives anyway.
    pub fn ask(&self) {
        // A question that is not taken is asked again soon.
        let _ = rustix::net::send(&self.socket, &question(self.index), SendFlags::DONTWAIT);
    }

    /// Reads what the kernel announced, and tells what it means for our interface. One system call when that is nothing.
    pub fn look(&mut self, name: &str, mut tell: impl FnMut(EventKind)) {
        let mut bytes = [0; 8192];
        // Bounded: a storm of announcements about others is read on in the next call.
        for _ in 0..64 {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                Ok((length, _)) => {
                    for change in changes(&bytes[..length], self.index) {
                        self.apply(change, &mut tell);
                    }
                }
                // Some were lost: ask how it is now.
                Err(Errno::NOBUFS) => {
                    let seen = probe_socket().and_then(|socket| sys::interface(socket.as_fd(), name));
                    self.apply(seen.ok().map(|seen| seen.flags), &mut tell);
                }
                Err(_) => return,
            }
        }
    }

    /// The interface has these flags now; `None`: it does not exist any more.
    fn apply(&mut self, flags: Option<u32>, tell: &mut impl FnMut(EventKind)) {
        let up = flags.is_some_and(is_up);
        if self.gone || up == self.up && flags.is_some() {
            return;
        }
        self.up = up;
        self.gone = flags.is_none();
        tell(match (self.gone, up) {
            (true, _) => EventKind::DeviceGone,
            (false, true) => EventKind::LinkUp,
            (false, false) => EventKind::LinkDown,
        });
    }
}

fn question(index: u32) -> [u8; QUESTION] {
    let mut bytes = [0; QUESTION];
    let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
    put(0, &(QUESTION as u32).to_ne_bytes());
    put(4, &RTM_GETLINK.to_ne_bytes());
    put(6, &REQUEST.to_ne_bytes());
    put(HEADER + 4, &index.to_ne_bytes());
    put(HEADER + LINK, &8u16.to_ne_bytes());
    put(HEADER + LINK + 2, &IFLA_EXT_MASK.to_ne_bytes());
    put(HEADER + LINK + 4, &SKIP_STATS.to_ne_bytes());
    bytes
}

/// The flags of interface `index` in each message about it, oldest first; `None` where it was removed.
fn changes(mut bytes: &[u8], index: u32) -> impl Iterator<Item = Option<u32>> {
    std::iter::from_fn(move || {
        loop {
            let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
            let length = word(0)? as usize;
            let kind = bytes.get(4..6)?.try_into().ok().map(u16::from_ne_bytes)?;
            let (about, flags) = (word(HEADER + 4), word(HEADER + 8));
            if length < HEADER {
                return None;
            }
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            match (kind, flags) {
                (RTM_NEWLINK, Some(flags)) if length >= HEADER + LINK && about == Some(index) => {
                    return Some(Some(flags));
                }
                (RTM_DELLINK, Some(_)) if length >= HEADER + LINK && about == Some(index) => {
                    return Some(None);
                }
                _ => {}
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, index: u32, flags: u32) -> Vec<u8> {
        let mut bytes = 32u32.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&[0; 10 + 4]);
        bytes.extend_from_slice(&index.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes
    }

    #[test]
    fn only_messages_about_the_interface_count_and_broken_ones_end_the_list() {
        let mut bytes = message(RTM_NEWLINK, 3, 1);
        bytes.extend(message(RTM_NEWLINK, 4, 2));
        bytes.extend(message(24, 3, 4));
        bytes.extend(message(RTM_DELLINK, 3, 0));
        assert_eq!(changes(&bytes, 3).collect::<Vec<_>>(), [Some(1), None]);
        for cut in 0..bytes.len() {
            assert!(changes(&bytes[..cut], 3).count() <= 2);
        }
        let mut zero = vec![0; 64];
        assert_eq!(changes(&zero, 0).count(), 0);
        zero[0] = 255;
        assert_eq!(changes(&zero, 0).count(), 0);
    }

    #[test]
    fn a_question_is_answered_at_once() {
        let seen = sys::interface(probe_socket().unwrap().as_fd(), "lo").unwrap();
        let interface = Interface {
            name: "lo".to_owned(),
            index: 1,
            network: 0,
            address: [127, 0, 0, 1].into(),
            prefix: 8,
            seen: sys::Seen { flags: 0, ..seen },
        };
        let mut link = Link::watch(&interface).unwrap();
        let mut told = Vec::new();
        link.look("lo", |kind| told.push(kind));
        assert_eq!((told.len(), link.is_up()), (0, false), "as it was said to be");
        link.ask();
        link.look("lo", |kind| told.push(kind));
        assert_eq!((told, link.is_up()), (vec![EventKind::LinkUp], true));
    }

    #[test]
    fn every_change_is_told_once() {
        let interface = Interface {
            name: "lo".to_owned(),
            index: 1,
            network: 0,
            address: [127, 0, 0, 1].into(),
            prefix: 8,
            seen: sys::Seen {
                flags: 0x41,
                mtu: 1500,
            },
        };
        let mut link = Link::watch(&interface).unwrap();
        let mut told = Vec::new();
        let up = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        for flags in [
            Some(up),
            Some(0),
            Some(1),
            Some(up),
            Some(up),
            None,
            Some(up),
            None,
        ] {
            link.apply(flags, &mut |kind| told.push(kind));
        }
        use EventKind::{DeviceGone, LinkDown, LinkUp};
        assert_eq!(told, [LinkDown, LinkUp, DeviceGone]);
        assert!(!link.is_up());
    }
}
