//! The address of a member, and the identity of a peer that is in it.
//!
//! ```text
//!   0      2         3          4       6       24     32     40      56
//!   | "db" | version | endpoint | check | doors | host | name | token |
//! ```
//!
//! Numbers are little-endian. `host` identifies a network namespace of a host, `name` the desk there, and who
//! has the `token` may call it: the address is the permission to talk. `doors` are where the member's rails
//! can be reached from other hosts; the upper bit of `endpoint` states that it is one of IPv6.
//!
//! A member that takes a port ([`Address::of_port`]) has a name that follows from the port, so that every
//! process of its user on the host can call it: there the token does not count, and both ends check the user.
//! For members of other hosts it has a random token all the same, which its address carries; or, with a key
//! that all have ([`MeetingKey`]), one that follows from its first door, whose port is the member's.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::hello::{Doors, LENGTH};
use super::meeting_key::MeetingKey;

/// The first bytes of every address.
const MAGIC: [u8; 2] = *b"db";
/// The version of the layout.
const VERSION: u8 = 2;
/// The mark of a door of IPv6, beside the endpoint's number.
const LONG_DOOR: u8 = 0x80;
/// Number of endpoints that one member can have.
pub const ENDPOINTS: u8 = 128;

/// The secret of a desk.
pub(super) type Token = [u8; 16];
/// The upper bits of the name of a desk that has taken a port; the port is in the lower ones.
const PORT_NAME: u64 = 0xdb_0000_0000_0000;
/// The same of one whose token follows from a key and its first door.
const KEYED_NAME: u64 = 0xdc_0000_0000_0000;
/// The host of such a member in its identity on all other ones: they know it without its number.
const ELSEWHERE: u64 = u64::MAX;
/// The token of a desk that has taken a port, for processes of its host: no secret.
const PORT_TOKEN: Token = *b"taken by a port\0";

/// The address of one endpoint of a member, as programs pass it to each other: [`Address::LENGTH`] bytes.
/// A process that has it may send to the member, so that it is shown without its token.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Address {
    magic: [u8; 2],
    version: u8,
    endpoint: u8,
    check: U16,
    doors: [u8; LENGTH],
    host: U64,
    name: U64,
    token: Token,
}

const _: () = assert!(size_of::<Address>() == 56 && ENDPOINTS <= LONG_DOOR);

/// Why bytes are no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Another number of bytes than an address has.
    #[error(
        "an address has {} bytes, not {length}: pass all that the other process got for its own",
        Address::LENGTH
    )]
    Length {
        /// The number of bytes.
        length: usize,
    },
    /// It does not begin as addresses of this library do.
    #[error("it is no address of doorbell: it begins with {found:02x?} and not with {MAGIC:02x?}")]
    Magic {
        /// The first two bytes.
        found: [u8; 2],
    },
    /// Its layout is that of another version.
    #[error(
        "its layout is version {version}, and this library reads version {VERSION}: use the same library in both processes"
    )]
    Version {
        /// The version of the layout.
        version: u8,
    },
    /// Its checksum is not that of its bytes.
    #[error("its checksum is wrong: it was changed or cut on its way here")]
    Check,
    /// A part has a value that none has.
    #[error("its {part} cannot be: it was not made by this library")]
    Part {
        /// The name of the part that is wrong.
        part: &'static str,
    },
}

impl Address {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// Makes the address of an endpoint of a member.
    pub(super) fn new(peer: &PeerId, endpoint: u8, doors: &Doors) -> Self {
        let (doors, is_long) = doors.written();
        let mark = if is_long { LONG_DOOR } else { 0 };
        let new = Self {
            magic: MAGIC,
            version: VERSION,
            endpoint: endpoint | mark,
            check: U16::ZERO,
            doors,
            host: U64::new(peer.host),
            name: U64::new(peer.name),
            token: peer.token,
        };
        new.checked()
    }

    /// Parses an address.
    ///
    /// # Errors
    /// [`AddressError`]: another length, magic, version or checksum, or a part that cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Self, AddressError> {
        let length = bytes.len();
        let found = Self::read_from_bytes(bytes).map_err(|_| AddressError::Length { length })?;
        if found.magic != MAGIC {
            return Err(AddressError::Magic { found: found.magic });
        }
        if found.version != VERSION {
            let version = found.version;
            return Err(AddressError::Version { version });
        }
        if found.check != found.checked().check {
            return Err(AddressError::Check);
        }
        let impossible = [
            (found.read_doors().is_none(), "list of doors"),
            (found.host.get() == 0, "host"),
            (found.name.get() == 0, "name"),
            (found.token == [0; 16], "token"),
        ];
        match impossible.iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, part)) => Err(AddressError::Part { part }),
            None => Ok(found),
        }
    }

    /// Returns the address of an endpoint, below [`ENDPOINTS`], of the member that has taken a port of this
    /// host, if there is one.
    #[must_use]
    pub fn of_port(port: NonZeroU16, endpoint: u8) -> Self {
        Self::new(
            &PeerId::of_port(super::host::number(), port),
            endpoint,
            &Doors::default(),
        )
    }

    /// Returns the address of an endpoint, below [`ENDPOINTS`], of the member of another host that has taken
    /// the port of a socket there, and whose first door this socket is; `None` for port 0, and for addresses
    /// that no other host has.
    #[must_use]
    pub fn of_door(key: &MeetingKey, door: SocketAddr, endpoint: u8) -> Option<Self> {
        let doors = Doors::new([door]);
        let port = NonZeroU16::new(door.port()).filter(|_| !doors.is_empty())?;
        let peer = PeerId::of_port(ELSEWHERE, port).keyed(key.token(door));
        Some(Self::new(&peer, endpoint, &doors))
    }

    /// Returns the socket by which members of other hosts that have the key know its member; `None` where its
    /// token follows from no key.
    #[must_use]
    pub fn keyed_door(&self) -> Option<SocketAddr> {
        self.doors().sockets().next().filter(|_| self.peer().is_keyed())
    }

    /// Whether its member is known by its door alone ([`Address::of_door`]), which this host may have.
    #[must_use]
    pub fn is_of_door(&self) -> bool {
        self.host.get() == ELSEWHERE
    }

    /// Returns the address as programs pass it to each other.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    /// Returns the endpoint's number within its member, below [`ENDPOINTS`].
    #[must_use]
    pub fn endpoint(&self) -> u8 {
        self.endpoint & !LONG_DOOR
    }

    /// Returns where the member can be reached from other hosts.
    pub(super) fn doors(&self) -> Doors {
        self.read_doors().unwrap_or_default()
    }

    fn read_doors(&self) -> Option<Doors> {
        Doors::read(self.doors, self.endpoint & LONG_DOOR != 0)
    }

    /// Returns the address of another endpoint of the same member; `endpoint` is below [`ENDPOINTS`].
    #[must_use]
    pub fn with_endpoint(&self, endpoint: u8) -> Self {
        let endpoint = endpoint | (self.endpoint & LONG_DOOR);
        Self { endpoint, ..*self }.checked()
    }

    /// Returns the member that has the endpoint.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        PeerId {
            host: self.host.get(),
            name: self.name.get(),
            token: self.token,
        }
    }

    /// The same address with its checksum: the lower half of the CRC-32C of all bytes, those of the checksum
    /// taken as zero.
    fn checked(mut self) -> Self {
        self.check = U16::ZERO;
        self.check = U16::new(crc32c::crc32c(self.as_bytes()) as u16);
        self
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.peer().at(self.keyed_door()), self.endpoint())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Address({self})")
    }
}

/// A member: a host, the name of its desk, and the desk's token. A random name that ends never comes back:
/// the next member of the same process has another one. The name of a port may be another process's later.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PeerId {
    host: u64,
    name: u64,
    token: Token,
}

impl PeerId {
    /// Makes an identity of random bytes, on a host.
    pub(super) fn new(host: u64, random: &[u8; 24]) -> Self {
        let (mut name, mut token) = ([0; 8], [0; 16]);
        name.copy_from_slice(&random[..8]);
        token.copy_from_slice(&random[8..]);
        // Zeros mean that bytes are no address.
        token[0] |= u8::from(token == [0; 16]);
        let name = match u64::from_le_bytes(name).max(1) {
            name if [PORT_NAME, KEYED_NAME].contains(&(name & !u64::from(u16::MAX))) => !name,
            name => name,
        };
        Self { host, name, token }
    }

    /// Returns the identity of the member that has taken a port of a host.
    pub(super) fn of_port(host: u64, port: NonZeroU16) -> Self {
        Self {
            host,
            name: PORT_NAME | u64::from(port.get()),
            token: PORT_TOKEN,
        }
    }

    /// Returns the port that it has taken; `None` for a member with a random name.
    #[must_use]
    pub fn port(&self) -> Option<NonZeroU16> {
        let port = |kind: u64| (self.name ^ kind).try_into().ok().and_then(NonZeroU16::new);
        port(PORT_NAME).or_else(|| port(KEYED_NAME))
    }

    /// Whether its token follows from a key.
    pub(super) fn is_keyed(&self) -> bool {
        self.name & !u64::from(u16::MAX) == KEYED_NAME
    }

    /// Returns the same member, which has taken a port, with a token that follows from a key.
    pub(super) fn keyed(&self, token: Token) -> Self {
        let name = KEYED_NAME | self.name & u64::from(u16::MAX);
        Self { name, token, ..*self }
    }

    /// Returns the identity that it has for the processes of a host: on its own one, that of its port, if it
    /// has taken one.
    #[must_use]
    pub fn seen_from(&self, host: u64) -> Self {
        match self.port().filter(|_| self.host == host) {
            Some(port) => Self::of_port(host, port),
            None if self.is_keyed() => Self {
                host: ELSEWHERE,
                ..*self
            },
            None => *self,
        }
    }

    /// Returns the identity that it has on all other hosts.
    pub(super) fn seen_from_afar(&self) -> Self {
        // No host has this number.
        self.seen_from(0)
    }

    /// Returns the same member with another token.
    pub(super) fn with_token(&self, token: Token) -> Self {
        Self { token, ..*self }
    }

    /// Returns the number of its host: a hash of the boot and the network namespace.
    #[must_use]
    pub fn host(&self) -> u64 {
        self.host
    }

    /// Whether two members are on the same host.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.host == other.host
    }

    /// Returns the name of its desk.
    pub(super) fn name(&self) -> u64 {
        self.name
    }

    /// Whether a caller named this token.
    pub(super) fn has_token(&self, token: &Token) -> bool {
        // All bytes are looked at, whichever differs.
        let pairs = self.token.iter().zip(token);
        pairs.fold(0, |unlike, (ours, theirs)| unlike | (ours ^ theirs)) == 0
    }

    /// Returns it as a text: with its first door, where that is known, in the place of the host's number,
    /// which is the same for the members of all other hosts that are known by a key.
    pub(super) fn at(&self, door: Option<SocketAddr>) -> String {
        match door {
            Some(door) => format!("doorbell://{door}/{:016x}", self.name),
            None => self.to_string(),
        }
    }

    /// Returns its token, for a call to it.
    pub(super) fn token(&self) -> Token {
        self.token
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "doorbell://{:016x}/{:016x}", self.host, self.name)
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PeerId({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer() -> PeerId {
        let mut random = [0; 24];
        (0..).zip(&mut random).for_each(|(at, byte)| *byte = 0xa0 + at);
        PeerId::new(0x1122_3344_5566_7788, &random)
    }

    fn doors() -> Doors {
        Doors::new(["10.0.1.2:56081", "10.0.2.2:56081"].map(|door| door.parse().unwrap()))
    }

    #[test]
    fn an_address_has_these_bytes() {
        let golden = [
            b"db\x02\x05".as_slice(),
            &[0xf0, 0x0f],
            &[10, 0, 1, 2, 0xdb, 0x11, 10, 0, 2, 2, 0xdb, 0x11],
            &[0; 6],
            &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
            &[0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7],
            &[0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf],
            &[0xb0, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7],
        ]
        .concat();
        let address = Address::new(&peer(), 5, &doors());
        assert_eq!(address.bytes(), golden);
        let parsed = Address::parse(&golden).unwrap();
        assert_eq!(parsed, address);
        assert_eq!((parsed.peer(), parsed.endpoint()), (peer(), 5));
        assert_eq!(parsed.with_endpoint(7), Address::new(&peer(), 7, &doors()));
        let shown = format!("{address} {address:?} {:?}", address.peer());
        assert!(
            shown.starts_with("doorbell://1122334455667788/a7a6a5a4a3a2a1a0/5 "),
            "{shown}"
        );
        assert!(!shown.contains("a8a9") && !shown.contains("afae") && !shown.contains("168"));
    }

    #[test]
    fn the_address_of_a_port_is_the_same_in_every_process_and_no_random_one() {
        let port = |number| NonZeroU16::new(number).unwrap();
        let address = Address::of_port(port(9228), 3);
        assert_eq!(address, Address::of_port(port(9228), 3));
        assert_eq!(Address::parse(address.bytes()), Ok(address));
        assert_eq!((address.peer().port(), address.endpoint()), (Some(port(9228)), 3));
        assert_ne!(address.peer(), Address::of_port(port(9229), 3).peer());
        assert_eq!(address.peer().host(), super::super::host::number());
        assert_eq!(peer().port(), None);
        // With a token for other hosts it is the same one here, and another one there.
        let own = address.peer().with_token([7; 16]);
        let here = super::super::host::number();
        assert_eq!(
            (own.port(), own.seen_from(here)),
            (Some(port(9228)), address.peer())
        );
        assert_eq!(own.seen_from(here ^ 1), own);
        assert_eq!(peer().seen_from(peer().host()), peer());
        // Random bytes that would be the name of a port are another name.
        let mut random = [0; 24];
        random[..8].copy_from_slice(&(PORT_NAME | 9228).to_le_bytes());
        random[8..].copy_from_slice(&PORT_TOKEN);
        assert_eq!(PeerId::new(1, &random).port(), None);
    }

    #[test]
    fn a_key_and_a_door_are_enough_to_name_a_member_of_another_host() {
        let mut config = crate::Config::default();
        let file = tempfile::tempdir().unwrap().keep().join("key");
        doorbell_oob::JobKey::from_bytes([7; 32])
            .write(&file, false)
            .unwrap();
        config.set("ofi.key_file", file.to_str().unwrap()).unwrap();
        let key = MeetingKey::of(&config).unwrap().unwrap();
        let door: SocketAddr = "10.0.1.2:9228".parse().unwrap();
        let named = Address::of_door(&key, door, 3).unwrap();
        assert_eq!((named.keyed_door(), named.endpoint()), (Some(door), 3));
        // As a text it has its host, too, unlike those of other hosts at the same port.
        assert_eq!(named.to_string(), "doorbell://10.0.1.2:9228/00dc00000000240c/3");
        assert!(named.is_of_door() && !Address::new(&peer(), 3, &doors()).is_of_door());
        // Its own address has its host, where it is the port's member; elsewhere both are one.
        let port = NonZeroU16::new(9228).unwrap();
        let own = PeerId::of_port(77, port).keyed(key.token(door));
        assert_eq!(
            (own.port(), own.seen_from(77)),
            (Some(port), PeerId::of_port(77, port))
        );
        assert_eq!(own.seen_from(78), named.peer());
        assert_eq!(
            (own.seen_from_afar(), named.peer().seen_from(78)),
            (named.peer(), named.peer())
        );
        for other in ["10.0.1.3:9228", "10.0.1.2:9229"] {
            let other = Address::of_door(&key, other.parse().unwrap(), 3).unwrap();
            assert_ne!(other.peer(), named.peer());
        }
        for none in ["10.0.1.2:0", "127.0.0.1:9228", "0.0.0.0:9228"] {
            assert_eq!(Address::of_door(&key, none.parse().unwrap(), 3), None, "{none}");
        }
        assert!(!format!("{key:?} {named:?}").contains("7, 7"));
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let good = Address::new(&peer(), 5, &doors());
        for bit in 0..Address::LENGTH * 8 {
            let mut bytes = good.bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Address::parse(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn parts_that_cannot_be_are_named() {
        let refused = |change: fn(&mut Address)| {
            let mut address = Address::new(&peer(), 5, &doors());
            change(&mut address);
            Address::parse(address.checked().bytes()).unwrap_err()
        };
        let part = |part| AddressError::Part { part };
        assert_eq!(refused(|at| at.endpoint |= LONG_DOOR), part("list of doors"));
        assert_eq!(refused(|at| at.doors = [0xff; LENGTH]), part("list of doors"));
        assert_eq!(refused(|at| at.host = U64::ZERO), part("host"));
        assert_eq!(refused(|at| at.name = U64::ZERO), part("name"));
        assert_eq!(refused(|at| at.token = [0; 16]), part("token"));
        assert_eq!(refused(|at| at.version = 9), AddressError::Version { version: 9 });
        let found = *b"xy";
        assert_eq!(refused(|at| at.magic = *b"xy"), AddressError::Magic { found });
        assert_eq!(
            Address::parse(&[0; 56]).unwrap_err(),
            AddressError::Magic { found: [0; 2] }
        );
        for length in [0, 55, 57, 4096] {
            let error = Address::parse(&vec![0; length]).unwrap_err();
            assert_eq!(error, AddressError::Length { length });
        }
    }

    proptest! {
        #[test]
        fn random_bytes_are_no_address_and_addresses_come_back(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            (host, random, endpoint) in (1..u64::MAX, any::<[u8; 24]>(), 0..ENDPOINTS),
            sockets in proptest::collection::vec(any::<SocketAddr>(), 0..5),
        ) {
            // One of 2^24 blocks of 56 bytes has the magic number and the version by chance.
            prop_assert!(Address::parse(&bytes).is_err());
            let peer = PeerId::new(host, &random);
            let doors = Doors::new(sockets);
            let address = Address::new(&peer, endpoint, &doors);
            let parsed = Address::parse(address.bytes());
            prop_assert_eq!(parsed, Ok(address));
            prop_assert_eq!(parsed.map(|parsed| parsed.doors()), Ok(doors));
            prop_assert_eq!(parsed.map(|parsed| (parsed.peer(), parsed.endpoint())), Ok((peer, endpoint)));
        }
    }
}
