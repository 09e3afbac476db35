//! The names of endpoints in the formats that clients have: ours, and those of sockets.
//!
//! ```text
//!   ours      56 bytes, as doorbell_job::lobby::Address: a member by its random name or its port
//!   sockets   IPv4: | family 2 | port 2 | address 4 | mark 4 | 0 |       IPv6: the mark is the flow's label
//!   mark      | "db" | endpoint | 0 |; zeros, as programs write them, are endpoint 0
//! ```
//!
//! In the formats of sockets a port names a member of this host, whichever of the host's addresses stands
//! beside it: it is no port of the network. With a key that all have, an address of another host and a port
//! name the member there whose first door they are.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;

use doorbell_job::lobby::{Address, ENDPOINTS, MeetingKey, PeerId};
use libfabric_sys::{FI_SOCKADDR_IN, FI_SOCKADDR_IN6};

use crate::info::offer::ADDRESS_FORMAT;

/// The bytes before the number of an endpoint.
const MARK: &[u8] = b"db";
/// Lengths of the structures of C.
const INET_LENGTH: usize = 16;
const INET6_LENGTH: usize = 28;

/// A format of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Names have 56 bytes, and a layout of our own.
    Ours,
    /// That of IPv4.
    Inet,
    /// That of IPv6.
    Inet6,
}

impl Format {
    /// The numbers of all formats in libfabric.
    pub(crate) const NUMBERS: [u64; 3] = [
        ADDRESS_FORMAT as u64,
        FI_SOCKADDR_IN as u64,
        FI_SOCKADDR_IN6 as u64,
    ];

    /// Returns the format of a number.
    pub(crate) fn of(number: u64) -> Option<Self> {
        let at = Self::NUMBERS.iter().position(|known| *known == number)?;
        Some([Self::Ours, Self::Inet, Self::Inet6][at])
    }

    /// Returns its number.
    pub(crate) fn number(self) -> u64 {
        Self::NUMBERS[self as usize]
    }

    /// Returns how many bytes an address has.
    pub(crate) fn length(self) -> usize {
        match self {
            Self::Ours => Address::LENGTH,
            Self::Inet => INET_LENGTH,
            Self::Inet6 => INET6_LENGTH,
        }
    }

    /// Returns the address that stands for this host by itself.
    pub(crate) fn loopback(self) -> IpAddr {
        match self {
            Self::Inet6 => Ipv6Addr::LOCALHOST.into(),
            _ => Ipv4Addr::LOCALHOST.into(),
        }
    }
}

/// An endpoint by an address of its host and a port; port 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketName {
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    pub(crate) endpoint: u8,
}

impl SocketName {
    /// Returns the name of an endpoint of the member at a socket.
    pub(crate) fn of(socket: SocketAddr, endpoint: u8) -> Self {
        Self {
            ip: socket.ip(),
            port: socket.port(),
            endpoint,
        }
    }

    /// Reads the structure of a socket's address; `None` for bytes that are none of IPv4 or IPv6.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(bytes.first_chunk::<2>().copied()?);
        let port = u16::from_be_bytes(bytes.get(2..)?.first_chunk::<2>().copied()?);
        let (ip, mark) = match (i32::from(family), bytes.len()) {
            (libc::AF_INET, INET_LENGTH) => {
                let ip: [u8; 4] = *bytes[4..].first_chunk()?;
                (IpAddr::from(ip), &bytes[8..12])
            }
            (libc::AF_INET6, INET6_LENGTH) => {
                let ip: [u8; 16] = *bytes[8..].first_chunk()?;
                (IpAddr::from(ip), &bytes[4..8])
            }
            _ => return None,
        };
        // Programs may leave there what was in their memory before.
        let is_marked = mark.starts_with(MARK) && mark[2] < ENDPOINTS && mark[3] == 0;
        let endpoint = if is_marked { mark[2] } else { 0 };
        Some(Self { ip, port, endpoint })
    }

    /// Writes the structure in the format of its address.
    pub(crate) fn write(&self) -> Vec<u8> {
        // Programs compare what they have inserted with what they look up.
        let mark = match self.endpoint {
            0 => [0; 4],
            endpoint => [MARK[0], MARK[1], endpoint, 0],
        };
        let port = self.port.to_be_bytes();
        match self.ip {
            IpAddr::V4(ip) => {
                let family = (libc::AF_INET as u16).to_ne_bytes();
                [&family[..], &port, &ip.octets(), &mark, &[0; 4]].concat()
            }
            IpAddr::V6(ip) => {
                let family = (libc::AF_INET6 as u16).to_ne_bytes();
                [&family[..], &port, &mark, &ip.octets(), &[0; 4]].concat()
            }
        }
    }

    /// Returns it in a format of sockets: an address of the other family becomes the loopback address, since
    /// all addresses of the host are alike.
    fn in_format(self, format: Format) -> Self {
        let is_fitting = matches!(
            (format, self.ip),
            (Format::Inet, IpAddr::V4(_)) | (Format::Inet6, IpAddr::V6(_))
        );
        let ip = if is_fitting { self.ip } else { format.loopback() };
        Self { ip, ..self }
    }

    /// Returns the address of the member of another host that has this socket, by the key; `None` for one
    /// that no other host has.
    pub(crate) fn elsewhere(&self, key: &MeetingKey) -> Option<Address> {
        Address::of_door(
            key,
            SocketAddr::new(self.ip.to_canonical(), self.port),
            self.endpoint,
        )
    }

    /// Returns the address of the member of this host that has the port; `None` without a port.
    pub(crate) fn address(&self) -> Option<Address> {
        let port = NonZeroU16::new(self.port)?;
        Some(Address::of_port(port, self.endpoint))
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = SocketAddr::new(self.ip, self.port);
        match (self.ip, self.endpoint) {
            (IpAddr::V4(_), 0) => write!(out, "fi_sockaddr_in://{host}"),
            (IpAddr::V6(_), 0) => write!(out, "fi_sockaddr_in6://{host}"),
            (IpAddr::V4(_), endpoint) => write!(out, "fi_sockaddr_in://{host}/{endpoint}"),
            (IpAddr::V6(_), endpoint) => write!(out, "fi_sockaddr_in6://{host}/{endpoint}"),
        }
    }
}

/// The name of an endpoint, as an address vector has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// In our format.
    Ours(Address),
    /// The same of a member that is known by its door, which this host has: it is the one at its port.
    Beside(Address),
    /// By an address of this host and a port.
    Socket(SocketName),
    /// By an address of another host and a port, with the address that follows from the key.
    Far(SocketName, Address),
}

/// What is the same in all names of a member's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MemberKey {
    /// The port that it has taken, of a member of this host.
    Port(u16),
    /// Its identity, of a member with a random name or of another host.
    Peer(PeerId),
}

impl MemberKey {
    /// Returns the key of a member, as a process of the host `here` knows it.
    pub(crate) fn of(peer: &PeerId, here: u64) -> Self {
        match peer.port().filter(|_| peer.host() == here) {
            Some(port) => Self::Port(port.get()),
            None => Self::Peer(peer.seen_from(here)),
        }
    }
}

/// What it takes to name a member of another host by a node and a service.
pub(crate) const KEYLESS: &str = "it is contacted by the name of its endpoint (fi_getname), or by a node and \
     a service where both processes have a key (FI_DOORBELL_KEY_FILE, made by `doorbell key`) and a rail \
     between them (FI_DOORBELL_RAILS=shm,udp:eth0)";

/// Why a name cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// The bytes are no name, with the reason.
    NoName(String),
    /// It is of another host, where no rail leads.
    Elsewhere(String),
    /// It is of another host, and there is no key by which it would name a member there.
    Keyless(String),
}

impl Name {
    /// Reads a name that an operation may be addressed to; `reaches` decides which members can be met, and
    /// `key` is that of members of other hosts.
    ///
    /// # Errors
    /// For bytes that are no name in the format, and for a name of another host that cannot be met.
    pub(crate) fn parse(
        format: Format,
        bytes: &[u8],
        key: Option<&MeetingKey>,
        reaches: impl FnOnce(&Address) -> bool,
    ) -> Result<Self, Unusable> {
        if format == Format::Ours {
            let address = Address::parse(bytes).map_err(|error| Unusable::NoName(error.to_string()))?;
            if !reaches(&address) {
                return Err(Unusable::Elsewhere(address.to_string()));
            }
            return Ok(match here_by_door(&address) {
                Some(_) => Self::Beside(address),
                None => Self::Ours(address),
            });
        }
        let wrong = |text: String| Err(Unusable::NoName(text));
        let Some(name) = SocketName::read(bytes).filter(|name| name.in_format(format).ip == name.ip) else {
            return wrong("it is no address of a socket in the format of the domain".to_owned());
        };
        if name.port == 0 {
            return wrong(format!("{name} has no port"));
        }
        if is_here(name.ip) {
            return Ok(Self::Socket(name));
        }
        match key.and_then(|key| name.elsewhere(key)) {
            Some(address) if reaches(&address) => Ok(Self::Far(name, address)),
            Some(_) => Err(Unusable::Elsewhere(name.to_string())),
            None => Err(Unusable::Keyless(name.to_string())),
        }
    }

    /// Returns the name as clients have it.
    pub(crate) fn write(&self) -> Vec<u8> {
        match self {
            Self::Ours(address) | Self::Beside(address) => address.bytes().to_vec(),
            Self::Socket(name) | Self::Far(name, _) => name.write(),
        }
    }

    /// Returns the address of its member's endpoint.
    pub(crate) fn address(&self) -> Option<Address> {
        match self {
            Self::Ours(address) | Self::Far(_, address) => Some(*address),
            Self::Beside(address) => at_port(address),
            Self::Socket(name) => name.address(),
        }
    }

    /// Returns the key of its member, on the host `here`.
    pub(crate) fn member(&self, here: u64) -> MemberKey {
        match self {
            Self::Ours(address) | Self::Far(_, address) => MemberKey::of(&address.peer(), here),
            Self::Beside(address) => MemberKey::Port(address.peer().port().map_or(0, NonZeroU16::get)),
            Self::Socket(name) => MemberKey::Port(name.port),
        }
    }

    /// Returns the number of its endpoint.
    pub(crate) fn endpoint(&self) -> u8 {
        match self {
            Self::Ours(address) | Self::Beside(address) | Self::Far(_, address) => address.endpoint(),
            Self::Socket(name) => name.endpoint,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(address) | Self::Beside(address) => write!(out, "fi_doorbell://{address}"),
            Self::Socket(name) | Self::Far(name, _) => name.fmt(out),
        }
    }
}

/// Whether an address is one of this host, in this network namespace, by its routes: a socket can be bound to
/// others, too, where the system allows it (`net.ipv4.ip_nonlocal_bind`).
pub(crate) fn is_here(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || ip.is_unspecified() || doorbell_inet::is_own(ip)
}

/// Returns the address that a member has here which is known by its door, where that door is one of this
/// host: processes here and there have one name for it.
fn here_by_door(address: &Address) -> Option<Address> {
    let door = address.keyed_door().filter(|_| address.is_of_door())?;
    is_here(door.ip()).then(|| at_port(address)).flatten()
}

/// Returns the address of the endpoint of the same number, of the member of this host at the same port.
fn at_port(address: &Address) -> Option<Address> {
    let port = address.peer().port()?;
    Some(Address::of_port(port, address.endpoint()))
}

/// The names of a domain's endpoints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnNames {
    /// The format of all addresses of the domain.
    pub(crate) format: Format,
    /// The address of this host in the formats of sockets.
    ip: IpAddr,
}

impl OwnNames {
    /// Returns the names for what a domain's source address is. `door` is the one by which members of other
    /// hosts know it without its name.
    pub(crate) fn new(format: Format, source: Option<&Given>, door: Option<SocketAddr>) -> Self {
        let door = door.map(|door| SocketName::of(door, 0).in_format(format).ip);
        let ip = door
            .filter(|ip| !ip.is_loopback())
            .unwrap_or_else(|| match source {
                Some(Given::Socket(name)) if !name.ip.is_unspecified() => name.in_format(format).ip,
                _ => format.loopback(),
            });
        Self { format, ip }
    }

    /// Returns the name of one of the domain's endpoints.
    pub(crate) fn write(&self, address: &Address) -> Vec<u8> {
        if self.format == Format::Ours {
            return address.bytes().to_vec();
        }
        let name = SocketName {
            ip: self.ip,
            port: address.peer().port().map_or(0, NonZeroU16::get),
            endpoint: address.endpoint(),
        };
        name.write()
    }
}

/// What a client passes as an address before there is an endpoint, in any format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// The bytes of our format, whatever is in them.
    Ours(Vec<u8>),
    /// The address of a socket.
    Socket(SocketName),
    /// The same of another host, with the address that follows from the key.
    Far(SocketName, Address),
}

impl Given {
    /// Reads bytes of hints, which need not be in the format of the answer.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        match SocketName::read(bytes) {
            Some(name) => Some(Self::Socket(name)),
            None => (bytes.len() == Address::LENGTH).then(|| Self::Ours(bytes.to_vec())),
        }
    }

    /// Returns the bytes in a format; `None` where it has no name for what is meant.
    pub(crate) fn write(&self, format: Format) -> Option<Vec<u8>> {
        match (self, format) {
            (Self::Ours(bytes), Format::Ours) => Some(bytes.clone()),
            (Self::Far(_, address), Format::Ours) => Some(address.bytes().to_vec()),
            (Self::Socket(name), Format::Ours) => Some(match name.address() {
                Some(address) => address.bytes().to_vec(),
                None => UNBOUND.to_vec(),
            }),
            (Self::Socket(name), _) => Some(name.in_format(format).write()),
            (Self::Far(name, _), _) => (name.in_format(format).ip == name.ip).then(|| name.write()),
            (Self::Ours(bytes), _) => {
                let address = Address::parse(bytes).ok()?;
                let here = port_here(&address).map(|port| SocketAddr::new(format.loopback(), port.get()));
                let name = SocketName::of(here.or_else(|| address.keyed_door())?, address.endpoint());
                (name.in_format(format).ip == name.ip).then(|| name.write())
            }
        }
    }

    /// Returns the port that it names, if it names one.
    pub(crate) fn port(&self) -> Option<NonZeroU16> {
        match self {
            Self::Ours(bytes) => port_here(&Address::parse(bytes).ok()?),
            Self::Socket(name) | Self::Far(name, _) => NonZeroU16::new(name.port),
        }
    }
}

/// Returns the port of this host that the member of an address has taken, if it has.
fn port_here(address: &Address) -> Option<NonZeroU16> {
    if let Some(here) = here_by_door(address) {
        return here.peer().port();
    }
    let (peer, port) = (address.peer(), address.peer().port()?);
    (Address::of_port(port, 0).peer().host() == peer.host()).then_some(port)
}

/// The source address of an entry before there is an endpoint: our format, and no name in it.
const UNBOUND: [u8; Address::LENGTH] = {
    let mut bytes = [0; Address::LENGTH];
    bytes[0] = b'd';
    bytes[1] = b'b';
    bytes[2] = 1;
    bytes
};

/// Returns the source address of an entry where the client names none.
pub(crate) fn unbound(format: Format) -> Vec<u8> {
    let name = |ip| SocketName {
        ip,
        port: 0,
        endpoint: 0,
    };
    match format {
        Format::Ours => UNBOUND.to_vec(),
        Format::Inet | Format::Inet6 => name(format.loopback()).write(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 address of documentation, which no host has.
    const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 77));

    fn name(ip: &str, port: u16, endpoint: u8) -> SocketName {
        let ip = ip.parse().unwrap();
        SocketName { ip, port, endpoint }
    }

    #[test]
    fn the_address_of_a_socket_has_the_bytes_of_c() {
        let golden = [2, 0, 0x24, 0x0c, 127, 0, 0, 1, b'd', b'b', 5, 0, 0, 0, 0, 0];
        assert_eq!(name("127.0.0.1", 9228, 5).write(), golden);
        assert_eq!(SocketName::read(&golden), Some(name("127.0.0.1", 9228, 5)));
        let six = name("::1", 9228, 7);
        assert_eq!(six.write().len(), 28);
        assert_eq!(&six.write()[..8], &[10, 0, 0x24, 0x0c, b'd', b'b', 7, 0]);
        assert_eq!(SocketName::read(&six.write()), Some(six));
        let plain = [2, 0, 0x24, 0x0c, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(name("127.0.0.1", 9228, 0).write(), plain);
        // What programs write is endpoint 0, and so is what they have left there.
        for rest in [[0; 8], [0xee; 8], *b"db\x80\0\0\0\0\0", *b"db\x05\x01\0\0\0\0"] {
            let bytes = [&golden[..8], &rest].concat();
            assert_eq!(SocketName::read(&bytes).unwrap().endpoint, 0, "{rest:?}");
        }
        for wrong in [&[0; 16][..], &golden[..15], &[0; 56], &[]] {
            assert_eq!(SocketName::read(wrong), None);
        }
    }

    #[test]
    fn a_name_of_this_host_is_taken_and_others_are_told_apart() {
        let parse = |format: Format, name: &SocketName| Name::parse(format, &name.write(), None, |_| true);
        let good = name("127.0.0.1", 9228, 0);
        assert_eq!(parse(Format::Inet, &good), Ok(Name::Socket(good)));
        let no_name = |result| matches!(result, Err(Unusable::NoName(_)));
        assert!(no_name(parse(Format::Inet6, &good)) && no_name(parse(Format::Ours, &good)));
        assert!(no_name(parse(Format::Inet, &name("127.0.0.1", 0, 0))));
        let other = SocketName { ip: NOWHERE, ..good };
        let elsewhere = Unusable::Keyless("fi_sockaddr_in://192.0.2.77:9228".to_owned());
        assert_eq!(parse(Format::Inet, &other), Err(elsewhere));
        // One member, whichever of the host's addresses stands beside its port.
        let (one, two) = (good.address(), name("::1", 9228, 0).address());
        assert!(one.is_some() && one == two);
        assert_eq!(name("::1", 9228, 3).to_string(), "fi_sockaddr_in6://[::1]:9228/3");
    }

    #[test]
    fn what_hints_give_is_written_in_the_format_of_the_answer() {
        let socket = Given::read(&name("127.0.0.1", 9228, 2).write()).unwrap();
        let ours = socket.write(Format::Ours).unwrap();
        let back = Given::read(&ours).unwrap();
        assert_eq!(socket.port().unwrap().get(), 9228);
        assert_eq!(back.port(), socket.port());
        assert_eq!(back.write(Format::Inet), socket.write(Format::Inet));
        assert_eq!(back.write(Format::Inet6), Some(name("::1", 9228, 2).write()));
        // A random name has no port, and bytes of our format come back whatever they are.
        let any = Given::read(&[7; 56]).unwrap();
        assert_eq!(
            (any.write(Format::Ours), any.write(Format::Inet)),
            (Some(vec![7; 56]), None)
        );
        assert_eq!(Given::read(&[7; 20]), None);
        let none = Given::read(&name("127.0.0.1", 0, 0).write()).unwrap();
        assert_eq!(
            (none.port(), none.write(Format::Ours)),
            (None, Some(UNBOUND.to_vec()))
        );
    }
}
