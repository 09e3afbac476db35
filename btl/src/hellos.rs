//! Hellos: frames of first contact, between processes that have not opened each other yet.
//!
//! ```text
//!   send_hello(address, door) ─► one frame, kind HELLO, under the number of a door of its receiver
//!   receive: no peer has this connection id ─► a stranger's ─► is it the number of an open door?
//!                 no ─► dropped as all frames of strangers       yes ─► kept, 64 of them ─► next_hello
//! ```
//!
//! The layer above derives the number of a door from a secret, so that a process without it cannot address
//! the door. It also seals the contents: here they are opaque bytes. A hello carries a CRC, whatever the
//! settings of the two ends, so that damage on the way is not taken for an attack; it carries no MAC, as the
//! ends have no key in common yet. It may be lost, repeated and reordered, and nothing here repeats it.
//!
//! The driver numbers an address once, whatever lives there. Numbers of addresses that hellos went to lately
//! are kept, so that the hardware address of a next hop is resolved when the hello is repeated; the driver
//! forgets the one that was used least recently, unless a peer was opened there.

use std::collections::VecDeque;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::datagram::{Channel, Datagram};
use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Incarnation, PeerIndex};

use crate::btl::Btl;
use crate::core::Core;
use crate::counters::Drop;
use crate::framing::Framing;
use crate::record::Event;
use crate::wire::{BASIC, Basic, Kind, Parsed, VERSION, flag};

/// Longest contents of a hello, in bytes. With all headers that is below the least MTU of IPv6, 1,280 bytes,
/// so that it passes every path, before any was checked.
pub(crate) const LONGEST: usize = 1024;
/// Hellos that wait to be taken at most.
const KEPT: usize = 64;
/// Doors that are open at most.
const DOORS: usize = 4;
/// Addresses that hellos went to lately, at most.
const CONTACTS: usize = 64;

/// The doors of this rail, what has come through them, and where hellos were sent.
#[derive(Debug)]
pub(crate) struct Hellos {
    /// Numbers of the open doors, the oldest first.
    doors: Vec<u64>,
    /// [`KEPT`] places of [`LONGEST`] bytes, from the first open door on.
    places: Vec<u8>,
    /// Lengths of the hellos that wait, in the places from `first` on, round.
    lengths: VecDeque<u16>,
    first: usize,
    /// Addresses and their numbers at the driver, the least recently used one first.
    contacts: Vec<(RailAddress, PeerIndex)>,
}

impl Hellos {
    pub(crate) const fn new() -> Self {
        Self {
            doors: Vec::new(),
            places: Vec::new(),
            lengths: VecDeque::new(),
            first: 0,
            contacts: Vec::new(),
        }
    }

    fn open(&mut self, door: u64) {
        if self.doors.contains(&door) {
            return;
        }
        if self.places.is_empty() {
            self.places = vec![0; KEPT * LONGEST];
            self.lengths.reserve_exact(KEPT);
        }
        if self.doors.len() == DOORS {
            self.doors.remove(0);
        }
        self.doors.push(door);
    }

    fn close(&mut self, door: u64) {
        self.doors.retain(|open| *open != door);
    }

    /// Whether hellos under this number are taken.
    fn is_open(&self, door: u64) -> bool {
        self.doors.contains(&door)
    }

    /// Keeps a hello.
    ///
    /// # Errors
    /// [`Drop::Hellos`]: as many wait as may.
    fn keep(&mut self, bytes: &[u8]) -> Result<(), Drop> {
        let at = (self.first + self.lengths.len()) % KEPT * LONGEST;
        let place = self.places.get_mut(at..at + bytes.len());
        let place = place.filter(|_| self.lengths.len() < KEPT).ok_or(Drop::Hellos)?;
        place.copy_from_slice(bytes);
        self.lengths.push_back(bytes.len() as u16);
        Ok(())
    }

    /// Moves the oldest hello into `bytes`.
    fn take(&mut self, bytes: &mut Vec<u8>) -> bool {
        bytes.clear();
        let Some(length) = self.lengths.pop_front() else {
            return false;
        };
        let at = self.first * LONGEST;
        bytes.extend_from_slice(&self.places[at..at + usize::from(length)]);
        self.first = (self.first + 1) % KEPT;
        true
    }

    /// The driver's number of an address that a hello was sent to lately, from now on the most recent one.
    fn contact(&mut self, address: &RailAddress) -> Option<PeerIndex> {
        let at = self.contacts.iter().position(|(known, _)| known == address)?;
        self.contacts[at..].rotate_left(1);
        self.contacts.last().map(|(_, driver)| *driver)
    }

    /// Notes an address that a hello is sent to. Returns the number that makes room for it, for the driver to
    /// forget.
    fn note_contact(&mut self, address: &RailAddress, driver: PeerIndex) -> Option<PeerIndex> {
        let oldest = (self.contacts.len() == CONTACTS).then(|| self.contacts.remove(0).1);
        self.contacts.push((address.clone(), driver));
        // Two spellings of one address may have one number.
        oldest.filter(|oldest| !self.uses(*oldest))
    }

    /// Forgets the address that the driver numbers so: a peer was opened there, which needs the number.
    pub(crate) fn forget_contact(&mut self, driver: PeerIndex) {
        self.contacts.retain(|(_, known)| *known != driver);
    }

    /// Whether a hello was sent lately to the address that the driver numbers so.
    pub(crate) fn uses(&self, driver: PeerIndex) -> bool {
        self.contacts.iter().any(|(_, known)| *known == driver)
    }
}

impl Core {
    /// Takes a hello, or drops it; it is of no peer.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_hello(&mut self, parsed: &Parsed, frame: SharedBytes<'_>) {
        match self.take_hello(parsed, frame) {
            Ok(()) => self.counters.hellos_received += 1,
            Err(why) => {
                self.counters.dropped(why);
                self.record_of(None, Event::Dropped(why));
            }
        }
    }

    /// Keeps a hello.
    ///
    /// # Errors
    /// [`Drop`]: its door is not open here, it is damaged, or no more are kept.
    fn take_hello(&mut self, parsed: &Parsed, frame: SharedBytes<'_>) -> Result<(), Drop> {
        if !self.hellos.is_open(parsed.connection) {
            return Err(Drop::Unknown);
        }
        if self.phase.is_closing() {
            return Err(Drop::Down);
        }
        if parsed.length > LONGEST || !Framing::is_hello(parsed) {
            return Err(Drop::Corrupt);
        }
        let mut private = self.framing.lend_private();
        let bytes = &mut private[..BASIC + parsed.length];
        frame.copy_to(0, bytes);
        let result = self.framing.verify_hello(bytes, parsed.connection);
        let result = result.and_then(|()| self.hellos.keep(&bytes[BASIC..]));
        self.framing.return_private(private);
        result
    }
}

impl<D: Datagram> Btl<D> {
    /// Longest hello, in bytes.
    pub fn hello_room(&self) -> usize {
        LONGEST.min(self.core.framing.mtu() - BASIC)
    }

    /// Opens a door: hellos under this number are kept for [`Btl::next_hello`]. Four doors may be open; one
    /// more takes the place of the oldest. The number is to be derived from a secret that those have who may
    /// send hellos here.
    pub fn open_door(&mut self, door: u64) {
        self.core.hellos.open(door);
    }

    /// Closes a door: hellos under this number are dropped, as frames of strangers are. Those that came
    /// before can still be taken.
    pub fn close_door(&mut self, door: u64) {
        self.core.hellos.close(door);
    }

    /// Sends one hello, of at most [`Btl::hello_room`] bytes, to the rail at `address`, under the number of a
    /// door there. It has left when this returns, or is lost: so is one that finds no room in the device's
    /// queue, or whose next hop's hardware address is not known yet. The peer need not be open, and is not
    /// opened.
    ///
    /// # Errors
    /// When the address is not one of this rail's or cannot be reached, with the reason; when there are too
    /// many bytes; when the rail is being closed.
    pub fn send_hello(&mut self, address: &RailAddress, door: u64, bytes: &[u8]) -> Result<(), RailError> {
        let misuse = |reason| RailError::misuse("btl", &self.driver.name().to_string(), reason);
        if bytes.len() > self.hello_room() {
            return Err(misuse("was given a hello that is longer than `hello_room`"));
        }
        if self.core.phase.is_closing() {
            return Err(misuse("is being closed and sends no hellos any more"));
        }
        let to = self.contact(address)?;
        let core = &mut self.core;
        let (tx, _) = self.driver.split();
        if !core.outbox.has_credit(tx, Channel::Priority) {
            return Ok(());
        }
        let header = Basic {
            connection: door.into(),
            sequence: 0.into(),
            ack: 0.into(),
            length: (bytes.len() as u16).into(),
            kind: Kind::Hello as u8,
            flags: VERSION << 4 | flag::CRC,
            check: 0.into(),
        };
        core.framing.payload(bytes.len()).copy_from_slice(bytes);
        let frame = core.framing.finish_hello(&header);
        core.outbox.post(tx, Channel::Priority, to, frame);
        core.outbox.ring(tx);
        core.counters.hellos_sent += 1;
        Ok(())
    }

    /// Takes the oldest hello that came into `bytes`, which is cleared first; `false` when there is none. To
    /// be called after polls: hellos that wait are in no poll's count, and do not keep the owner from
    /// sleeping.
    pub fn next_hello(&mut self, bytes: &mut Vec<u8>) -> bool {
        self.core.hellos.take(bytes)
    }

    /// The driver's number of an address, for a hello.
    fn contact(&mut self, address: &RailAddress) -> Result<PeerIndex, RailError> {
        if let Some(known) = self.core.hellos.contact(address) {
            return Ok(known);
        }
        // The driver's number is of the address, not of the life there.
        let driver = self.driver.open(address, Incarnation(0))?;
        let oldest = self.core.hellos.note_contact(address, driver);
        self.core.departures.unused.extend(oldest);
        self.forget_unused();
        Ok(driver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u64) -> RailAddress {
        RailAddress::native("sim", n.to_le_bytes())
    }

    #[test]
    fn hellos_come_out_as_they_came_in_and_the_newest_is_dropped() {
        let mut hellos = Hellos::new();
        assert_eq!(hellos.keep(b"no door was ever open"), Err(Drop::Hellos));
        hellos.open(1);
        let mut bytes = Vec::new();
        for round in 0..3_u8 {
            for n in 0..KEPT as u8 {
                assert_eq!(hellos.keep(&vec![n ^ round; usize::from(n) * 16]), Ok(()));
            }
            assert_eq!(hellos.keep(b"one too many"), Err(Drop::Hellos));
            for n in 0..KEPT as u8 - round {
                assert!(hellos.take(&mut bytes));
                assert_eq!(bytes, vec![n ^ round; usize::from(n) * 16]);
            }
            while hellos.take(&mut bytes) {}
            assert!(bytes.is_empty());
            // The next round begins at another place.
            assert_eq!(hellos.keep(b"x"), Ok(()));
            assert!(hellos.take(&mut bytes));
        }
        assert_eq!(hellos.keep(&[7; LONGEST]), Ok(()));
        assert!(hellos.take(&mut bytes) && bytes == [7; LONGEST]);
    }

    #[test]
    fn a_fifth_door_takes_the_place_of_the_oldest() {
        let mut hellos = Hellos::new();
        for door in [1, 2, 3, 4, 2, 5] {
            hellos.open(door);
        }
        let open = |hellos: &Hellos| (0..9).filter(|door| hellos.is_open(*door)).collect::<Vec<u64>>();
        assert_eq!(open(&hellos), [2, 3, 4, 5]);
        hellos.close(3);
        hellos.open(6);
        assert_eq!(open(&hellos), [2, 4, 5, 6]);
    }

    #[test]
    fn contacts_are_bounded_and_the_least_recent_goes() {
        let mut hellos = Hellos::new();
        for n in 0..CONTACTS as u64 {
            assert_eq!(hellos.note_contact(&address(n), PeerIndex(n as u32)), None);
        }
        assert_eq!(hellos.contact(&address(0)), Some(PeerIndex(0)));
        assert_eq!(hellos.contact(&address(1000)), None);
        assert_eq!(
            hellos.note_contact(&address(1000), PeerIndex(70)),
            Some(PeerIndex(1))
        );
        assert!(hellos.uses(PeerIndex(0)) && !hellos.uses(PeerIndex(1)) && hellos.uses(PeerIndex(70)));
        assert_eq!(hellos.contacts.len(), CONTACTS);
    }
}
