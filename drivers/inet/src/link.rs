//! Monitors the link state of one interface by the kernel's notifications (rtnetlink(7)), which miss no short
//! outage, and by requests while nothing is received. The kernel collects changes such as a lost carrier and
//! reports them at most once a second (net/core/link_watch.c); a request returns the current state.

use std::os::fd::OwnedFd;

use doorbell_fabric::ether::Mac;
use doorbell_fabric::event::EventKind;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::details::{Program, number, program};
use crate::interface::{Interface, is_up};
use crate::netlink::{ERROR, REQUEST, attribute, attributes, message, messages};

/// Monitors one interface.
pub struct LinkMonitor {
    socket: OwnedFd,
    index: u32,
    question: Vec<u8>,
    up: bool,
    gone: bool,
    mtu: usize,
    /// `None` until the kernel reports it.
    mac: Option<Mac>,
    program: Option<Option<Program>>,
    /// Notifications were lost, and the socket has not been empty since.
    lost: bool,
    /// Frames received at the last poll, and polls since then without any.
    heard: u64,
    silent: u32,
}

/// The multicast group of interface changes.
const GROUP_LINK: u32 = libc::RTMGRP_LINK as u32;
/// The reply may omit the counters.
const SKIP_STATS: u32 = libc::RTEXT_FILTER_SKIP_STATS as u32;
/// Size of `ifinfomsg`, and offsets of index and flags in it.
const LINK: usize = 16;
const INDEX: usize = 4;
const FLAGS: usize = 8;

/// The content of a notification about the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Update {
    /// The interface was deleted.
    Gone,
    /// The interface has these flags; the other fields are as far as reported.
    Is {
        flags: u32,
        mtu: Option<usize>,
        mac: Option<Mac>,
        program: Option<Option<Program>>,
    },
}

impl LinkMonitor {
    /// Starts to monitor an interface, from the state in `interface`.
    ///
    /// # Errors
    /// When the system provides no socket.
    pub fn watch(interface: &Interface) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let route = None; // protocol 0 is NETLINK_ROUTE
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, route)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUP_LINK))?;
        Ok(Self {
            socket,
            index: interface.index,
            question: question(interface.index),
            up: is_up(interface.state.flags),
            gone: false,
            mtu: interface.state.mtu,
            mac: None,
            program: None,
            lost: false,
            heard: 0,
            silent: 0,
        })
    }

    /// The netlink socket, readable when there are notifications.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether frames can pass, by the last notification.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// The interface's MTU, by the last notification.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// The interface's hardware address, if one was reported.
    pub fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// The XDP program on the interface, or `None` if nothing was reported about programs.
    pub fn program(&self) -> Option<Option<Program>> {
        self.program
    }

    /// Requests the interface's current state; [`LinkMonitor::poll`] reads the reply. The kernel takes its
    /// network configuration lock for it, so this is for times when nothing is received anyway.
    pub fn request_state(&self) {
        // A request that was not sent is repeated soon.
        let _ = rustix::net::send(&self.socket, &self.question, SendFlags::DONTWAIT);
    }

    /// Requests the state at every second poll without received frames. `heard` is the total number received
    /// so far; frames prove that there is a link.
    pub fn request_state_if_idle(&mut self, heard: u64) {
        let before = std::mem::replace(&mut self.heard, heard);
        self.silent = if before == heard { self.silent + 1 } else { 0 };
        if self.silent >= 2 {
            self.silent = 0;
            self.request_state();
        }
    }

    /// Reads pending notifications and emits what they mean for the interface. One system call when none is
    /// pending.
    pub fn poll(&mut self, mut tell: impl FnMut(EventKind)) {
        let mut bytes = [0; 8192];
        // Bounded: the next call continues in a storm of notifications. Sleepers poll the socket
        // level-triggered, so the remaining messages wake them.
        for _ in 0..64 {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                Ok((length, _)) => {
                    for update in messages(&bytes[..length]) {
                        if let Some(update) = read(update, self.index) {
                            self.apply(update, &mut tell);
                        }
                    }
                }
                // An overrun: the kernel drops replies too until the socket is empty.
                Err(Errno::NOBUFS) => self.lost = true,
                // The request uses the index, which a renamed interface keeps.
                Err(Errno::AGAIN) if self.lost => {
                    self.lost = false;
                    self.request_state();
                }
                Err(_) => return,
            }
        }
    }

    fn apply(&mut self, update: Update, tell: &mut impl FnMut(EventKind)) {
        if self.gone {
            return;
        }
        let up = match update {
            Update::Gone => {
                (self.gone, self.up) = (true, false);
                return tell(EventKind::DeviceGone);
            }
            Update::Is {
                flags,
                mtu,
                mac,
                program,
            } => {
                self.mtu = mtu.unwrap_or(self.mtu);
                self.mac = mac.or(self.mac);
                self.program = program.or(self.program);
                is_up(flags)
            }
        };
        if std::mem::replace(&mut self.up, up) != up {
            tell(if up {
                EventKind::LinkUp
            } else {
                EventKind::LinkDown
            });
        }
    }
}

fn question(index: u32) -> Vec<u8> {
    let mut body = vec![0; LINK];
    body[INDEX..INDEX + 4].copy_from_slice(&index.to_ne_bytes());
    attribute(&mut body, libc::IFLA_EXT_MASK, &SKIP_STATS.to_ne_bytes());
    message(libc::RTM_GETLINK, REQUEST, &body)
}

/// Reads one message about interface `index`. The only errors are refusals of our own requests.
fn read((kind, body): (u16, &[u8]), index: u32) -> Option<Update> {
    let word = |at: usize| Some(u32::from_ne_bytes(*body.get(at..)?.first_chunk()?));
    if kind == ERROR {
        let gone = word(0)? as i32 == -libc::ENODEV;
        return gone.then_some(Update::Gone);
    }
    let (about, flags) = (word(INDEX)?, word(FLAGS)?);
    let rest = body.get(LINK..).filter(|_| about == index)?;
    match kind {
        libc::RTM_DELLINK if body[0] == libc::AF_UNSPEC as u8 => Some(Update::Gone),
        libc::RTM_NEWLINK => {
            let (mut mtu, mut mac, mut attached) = (None, None, None);
            for (what, value) in attributes(rest) {
                match what {
                    libc::IFLA_ADDRESS => mac = Mac::try_from(value).ok(),
                    libc::IFLA_MTU => mtu = number(value).map(|mtu| mtu as usize),
                    libc::IFLA_XDP => attached = Some(program(value)),
                    _ => {}
                }
            }
            Some(Update::Is {
                flags,
                mtu,
                mac,
                program: attached,
            })
        }
        _ => None,
    }
}

/// Entry point for the fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzing(kind: u16, body: &[u8]) {
    for kind in [kind, libc::RTM_NEWLINK, libc::RTM_DELLINK, ERROR] {
        let _ = read((kind, body), 3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::probe_socket;
    use crate::sys;
    use std::os::fd::AsFd;

    fn about(index: u32, flags: u32) -> Vec<u8> {
        let mut body = vec![0; LINK];
        body[INDEX..INDEX + 4].copy_from_slice(&index.to_ne_bytes());
        body[FLAGS..FLAGS + 4].copy_from_slice(&flags.to_ne_bytes());
        body
    }

    fn is(flags: u32) -> Update {
        Update::Is {
            flags,
            mtu: None,
            mac: None,
            program: None,
        }
    }

    #[test]
    fn only_messages_about_the_interface_count_and_broken_ones_say_nothing() {
        assert_eq!(read((libc::RTM_NEWLINK, &about(3, 1)), 3), Some(is(1)));
        assert_eq!(read((libc::RTM_NEWLINK, &about(4, 2)), 3), None);
        assert_eq!(read((24, &about(3, 4)), 3), None);
        assert_eq!(read((libc::RTM_DELLINK, &about(3, 0)), 3), Some(Update::Gone));
        // The interface left a bridge but still exists.
        let mut left = about(3, 0);
        left[0] = libc::AF_BRIDGE as u8;
        assert_eq!(read((libc::RTM_DELLINK, &left), 3), None);
        let (mut told, mut xdp) = (about(3, 1), Vec::new());
        attribute(&mut xdp, 2, &[0]);
        attribute(&mut told, libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9]);
        attribute(&mut told, libc::IFLA_MTU, &9000u32.to_ne_bytes());
        attribute(&mut told, libc::IFLA_XDP, &xdp);
        let all = Update::Is {
            flags: 1,
            mtu: Some(9000),
            mac: Some([2, 0, 0, 0, 0, 9]),
            program: Some(None),
        };
        assert_eq!(read((libc::RTM_NEWLINK, &told), 3), Some(all));
        for cut in 0..LINK {
            assert_eq!(read((libc::RTM_NEWLINK, &told[..cut]), 3), None);
        }
        for cut in LINK..told.len() {
            assert!(read((libc::RTM_NEWLINK, &told[..cut]), 3).is_some());
        }
    }

    /// A request may be refused for many reasons; only one means that the interface does not exist.
    #[test]
    fn only_one_refusal_means_that_it_is_gone() {
        let refused = |number: i32| read((ERROR, &number.to_ne_bytes()), 3);
        assert_eq!(refused(-libc::ENODEV), Some(Update::Gone));
        for number in [0, -libc::ENOBUFS, -libc::EPERM, -libc::EMFILE] {
            assert_eq!(refused(number), None);
        }
    }

    fn loopback(flags: u32) -> Interface {
        let seen = sys::interface(probe_socket().unwrap().as_fd(), "lo").unwrap();
        Interface {
            name: "lo".to_owned(),
            index: 1,
            network: 0,
            address: [127, 0, 0, 1].into(),
            prefix: 8,
            state: sys::InterfaceState { flags, ..seen },
        }
    }

    #[test]
    fn a_question_is_answered_at_once() {
        let mut link = LinkMonitor::watch(&loopback(0)).unwrap();
        let mut told = Vec::new();
        link.poll(|kind| told.push(kind));
        assert_eq!((told.len(), link.is_up()), (0, false), "as it was reported");
        assert_eq!(link.program(), None);
        link.request_state();
        link.poll(|kind| told.push(kind));
        assert_eq!((told, link.is_up()), (vec![EventKind::LinkUp], true));
        assert_eq!(link.program(), Some(None));
        assert!(link.mtu() >= 1500);
    }

    #[test]
    fn every_change_is_reported_once() {
        let mut link = LinkMonitor::watch(&loopback(0x41)).unwrap();
        let mut told = Vec::new();
        let up = is((libc::IFF_UP | libc::IFF_RUNNING) as u32);
        for update in [up, is(0), is(1), up, up, Update::Gone, up, Update::Gone] {
            link.apply(update, &mut |kind| told.push(kind));
        }
        use EventKind::{DeviceGone, LinkDown, LinkUp};
        assert_eq!(told, [LinkDown, LinkUp, DeviceGone]);
        assert!(!link.is_up());
    }
}
