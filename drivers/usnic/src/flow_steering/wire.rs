//! The protocol between a rail and the agent of its physical function: packets of 56 bytes over a Unix socket
//! that keeps their boundaries.
//!
//! ```text
//!   rail                                agent
//!   HELLO (function, IP address) ────►
//!                    ◄──────────────── WELCOME (hardware address, life)   or REFUSED
//!   STEER … ─────────────────────────►
//!                    ◄──────────────── DONE (the same number), or REFUSED
//!                    ◄──────────────── NEWS (link, MTU, hardware address, life), on each change
//!                    ◄──────────────── AWAY where the physical function is gone
//!   HERE (own hardware address) ─────►
//!                    ◄──────────────── NEIGHBOUR (another function's), for each that sent HERE
//! ```
//!
//! Both ends are processes of this machine; numbers are little endian all the same. The receiver checks every
//! field.

use std::net::Ipv4Addr;

use doorbell_fabric::ether::Mac;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Request;
use crate::errno::Errno;
use crate::filter::Match;
use crate::notify::News;

/// The bytes "dusn", which begin each packet.
const MAGIC: u32 = 0x6e73_7564;
/// The version of these packets: both ends have the same.
pub const VERSION: u16 = 3;
/// Bytes of a packet.
pub const PACKET: usize = size_of::<Packet>();
/// Queue pairs that may be named: more than any function has.
const PAIRS_MOST: u64 = 64;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Packet {
    magic: U32,
    version: U16,
    kind: U16,
    number: U32,
    zero: U32,
    words: [U64; 5],
}
const _: () = assert!(PACKET == 56);

const HELLO: u16 = 1;
const STEER: u16 = 2;
const UNSTEER: u16 = 3;
const ENABLE: u16 = 4;
const DISABLE: u16 = 5;
const HERE: u16 = 6;
const WELCOME: u16 = 0x81;
const DONE: u16 = 0x82;
const REFUSED: u16 = 0x83;
const NEWS: u16 = 0x84;
const NEIGHBOUR: u16 = 0x85;
const AWAY: u16 = 0x86;
const MATCH_UDP: u64 = 1;
const MATCH_ETHERTYPE: u64 = 2;

/// A process that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The number of the process, as the agent sees it; 0: of another pid namespace, where it has none.
    pub process: u32,
    /// The function that it has.
    pub function: u16,
}

/// Why an agent refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The device does, with this number.
    Device(Errno),
    /// The device does not answer any more.
    Silent,
    /// Another process has the function.
    Taken(Owner),
    /// Another process has the IP address, for a function of its own.
    AddressTaken(Owner),
    /// The agent has no such function, or the request is none that it carries out for others.
    Never,
    /// The process, or its user, has as many filters as it may, or there are too many processes.
    Full,
}

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A process requests this function, for this address.
    Hello(u32, Ipv4Addr),
    /// The function has this hardware address, for others of its adapter to know.
    Here(Ipv4Addr, Mac),
    /// A request with its number.
    Request(u32, Request),
    /// The function is its own; the hardware address (0: none), and the life of what is installed.
    Welcome {
        /// Six bytes, the first lowest.
        mac: u64,
        /// Counts losses of everything installed; see [`Parent`](super::Parent).
        life: u64,
    },
    /// The request with this number is done.
    Done(u32, u64),
    /// The request with this number was refused.
    Refused(u32, Refusal),
    /// Another function of the adapter has these addresses.
    Neighbour(Ipv4Addr, Mac),
    /// What the physical function reports of itself.
    News {
        /// The content of its notify area; `None` where it has none.
        news: Option<News>,
        /// The hardware address, as in the welcome.
        mac: u64,
        /// Counts losses of everything installed; see [`Parent`](super::Parent).
        life: u64,
    },
    /// The physical function is gone, and may come back: NEWS follows then.
    Away,
}

impl Message {
    /// Encodes the packet as its bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; PACKET] {
        let (kind, number, words) = match self {
            Self::Hello(function, ip) => (HELLO, 0, [function.into(), ip.to_bits().into(), 0, 0, 0]),
            Self::Away => (AWAY, 0, [0; 5]),
            Self::Here(ip, mac) => (HERE, 0, [ip.to_bits().into(), mac_word(mac), 0, 0, 0]),
            Self::Neighbour(ip, mac) => (NEIGHBOUR, 0, [ip.to_bits().into(), mac_word(mac), 0, 0, 0]),
            Self::Request(number, request) => {
                let (kind, words) = request_words(request);
                (kind, number, words)
            }
            Self::Welcome { mac, life } => (WELCOME, 0, [mac, life, 0, 0, 0]),
            Self::Done(number, value) => (DONE, number, [value, 0, 0, 0, 0]),
            Self::Refused(number, why) => (REFUSED, number, [why_word(why), 0, 0, 0, 0]),
            Self::News { news, mac, life } => (NEWS, 0, news_words(news, mac, life)),
        };
        let packet = Packet {
            magic: MAGIC.into(),
            version: VERSION.into(),
            kind: kind.into(),
            number: number.into(),
            zero: 0.into(),
            words: words.map(U64::from),
        };
        zerocopy::transmute!(packet)
    }

    /// Decodes a packet; `None` where the bytes are no packet of this version, or an impossible one.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let packet = Packet::read_from_bytes(bytes).ok()?;
        if packet.magic.get() != MAGIC || packet.version.get() != VERSION || packet.zero.get() != 0 {
            return None;
        }
        let (number, words) = (packet.number.get(), packet.words.map(U64::get));
        Some(match packet.kind.get() {
            HELLO => Self::Hello(u32::try_from(words[0]).ok()?, read_ip(words[1])?),
            AWAY => Self::Away,
            STEER => Self::Request(number, Request::Steer(read_match(&words)?, pair(words[0])?)),
            HERE => Self::Here(read_ip(words[0])?, read_mac(words[1])?),
            NEIGHBOUR => Self::Neighbour(read_ip(words[0])?, read_mac(words[1])?),
            UNSTEER => Self::Request(number, Request::Unsteer(words[0])),
            ENABLE => Self::Request(number, Request::Enable(pair(words[0])?)),
            DISABLE => Self::Request(number, Request::Disable(pair(words[0])?)),
            WELCOME => Self::Welcome {
                mac: words[0],
                life: words[1],
            },
            DONE => Self::Done(number, words[0]),
            REFUSED => Self::Refused(number, read_why(words[0])?),
            NEWS => Self::News {
                news: read_news(&words),
                mac: words[3],
                life: words[4],
            },
            _ => return None,
        })
    }
}

/// An address of one host.
fn read_ip(word: u64) -> Option<Ipv4Addr> {
    let ip = Ipv4Addr::from_bits(u32::try_from(word).ok()?);
    let is_host = !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback() && !ip.is_broadcast();
    is_host.then_some(ip)
}

/// Six bytes as one word, the first lowest; 0 is none.
pub(crate) fn mac_word(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// A unicast address.
fn read_mac(word: u64) -> Option<Mac> {
    let [a, b, c, d, e, f, 0, 0] = word.to_le_bytes() else {
        return None;
    };
    let mac = [a, b, c, d, e, f];
    (mac != [0; 6] && a & 1 == 0).then_some(mac)
}

fn pair(word: u64) -> Option<u32> {
    (word < PAIRS_MOST).then_some(word as u32)
}

fn request_words(request: Request) -> (u16, [u64; 5]) {
    match request {
        Request::Steer(Match::Udp { address, port }, queue) => (
            STEER,
            [queue.into(), MATCH_UDP, address.to_bits().into(), port.into(), 0],
        ),
        Request::Steer(Match::Ethertype(ethertype), queue) => {
            (STEER, [queue.into(), MATCH_ETHERTYPE, ethertype.into(), 0, 0])
        }
        Request::Unsteer(id) => (UNSTEER, [id, 0, 0, 0, 0]),
        Request::Enable(pair) => (ENABLE, [pair.into(), 0, 0, 0, 0]),
        Request::Disable(pair) => (DISABLE, [pair.into(), 0, 0, 0, 0]),
    }
}

fn read_match(words: &[u64; 5]) -> Option<Match> {
    match words[1] {
        MATCH_UDP => Some(Match::Udp {
            address: Ipv4Addr::from_bits(u32::try_from(words[2]).ok()?),
            port: u16::try_from(words[3]).ok()?,
        }),
        MATCH_ETHERTYPE => Some(Match::Ethertype(u16::try_from(words[2]).ok()?)),
        _ => None,
    }
}

fn why_word(why: Refusal) -> u64 {
    match why {
        Refusal::Device(errno) => u64::from(errno.0) << 8 | 1,
        Refusal::Silent => 2,
        Refusal::Taken(owner) => owner_word(owner) | 3,
        Refusal::Never => 4,
        Refusal::Full => 5,
        Refusal::AddressTaken(owner) => owner_word(owner) | 6,
    }
}

fn owner_word(owner: Owner) -> u64 {
    u64::from(owner.process) << 32 | u64::from(owner.function) << 8
}

fn read_owner(word: u64) -> Option<Owner> {
    Some(Owner {
        process: (word >> 32) as u32,
        function: u16::try_from(word >> 8 & 0xff_ffff).ok()?,
    })
}

fn read_why(word: u64) -> Option<Refusal> {
    Some(match (word & 0xff, word >> 8) {
        // No device refuses for no reason.
        (1, errno @ 1..) => Refusal::Device(Errno(u32::try_from(errno).ok()?)),
        (2, 0) => Refusal::Silent,
        (3, _) => Refusal::Taken(read_owner(word)?),
        (4, 0) => Refusal::Never,
        (5, 0) => Refusal::Full,
        (6, _) => Refusal::AddressTaken(read_owner(word)?),
        _ => return None,
    })
}

fn news_words(news: Option<News>, mac: u64, life: u64) -> [u64; 5] {
    let Some(news) = news else {
        return [0, 0, 0, mac, life];
    };
    let flags = 1 | u64::from(news.link) << 1 | u64::from(news.fatal) << 2;
    [
        flags,
        u64::from(news.speed) << 32 | u64::from(news.mtu),
        u64::from(news.error) << 32 | u64::from(news.link_downs),
        mac,
        life,
    ]
}

fn read_news(words: &[u64; 5]) -> Option<News> {
    (words[0] & 1 != 0).then(|| News {
        link: words[0] & 2 != 0,
        fatal: words[0] & 4 != 0,
        speed: (words[1] >> 32) as u32,
        mtu: words[1] as u32,
        error: (words[2] >> 32) as u32,
        link_downs: words[2] as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_said_is_understood_and_nothing_else() {
        let news = News {
            link: true,
            speed: 40_000,
            mtu: 9000,
            fatal: true,
            error: 7,
            link_downs: u32::MAX,
        };
        let udp = Match::Udp {
            address: Ipv4Addr::new(10, 0, 0, 5),
            port: 5000,
        };
        let owner = Owner {
            process: u32::MAX,
            function: 0xfffe,
        };
        let all = [
            Message::Hello(3, [10, 0, 0, 5].into()),
            Message::Away,
            Message::Request(7, Request::Steer(udp, 2)),
            Message::Request(8, Request::Steer(Match::Ethertype(0x0806), 0)),
            Message::Request(9, Request::Unsteer(u64::MAX)),
            Message::Request(10, Request::Enable(63)),
            Message::Request(u32::MAX, Request::Disable(0)),
            Message::Welcome {
                mac: 0x0605_0403_0202,
                life: 4,
            },
            Message::Done(9, 77),
            Message::Refused(9, Refusal::Device(Errno(10))),
            Message::Refused(9, Refusal::Silent),
            Message::Refused(9, Refusal::Taken(owner)),
            Message::Refused(9, Refusal::AddressTaken(owner)),
            Message::Refused(9, Refusal::Never),
            Message::Refused(9, Refusal::Full),
            Message::Here([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1]),
            Message::Neighbour([10, 0, 0, 2].into(), [2, 0, 0, 0, 0, 2]),
            Message::News {
                news: Some(news),
                mac: 0x0605_0403_0202,
                life: 2,
            },
            Message::News {
                news: None,
                mac: 0,
                life: 3,
            },
        ];
        for said in all {
            let bytes = said.to_bytes();
            assert_eq!(Message::read(&bytes), Some(said));
            for length in [0, 8, PACKET - 1] {
                assert_eq!(Message::read(&bytes[..length]), None, "cut short");
            }
            for at in [0, 4, 12] {
                let mut other = bytes;
                other[at] ^= 1;
                assert_eq!(Message::read(&other), None, "byte {at}");
            }
        }
        assert_eq!(
            Message::read(&Message::Request(1, Request::Enable(64)).to_bytes()),
            None
        );
    }

    #[test]
    fn bytes_of_no_meaning_do_no_harm() {
        let mut random = doorbell_testing::Random::new(1);
        let mut next = || random.next_u64();
        for _ in 0..100_000 {
            let mut bytes = Message::Hello(0, [10, 0, 0, 5].into()).to_bytes();
            for _ in 0..1 + next() % 8 {
                bytes[6 + (next() % (PACKET as u64 - 6)) as usize] = next() as u8;
            }
            if let Some(said) = Message::read(&bytes) {
                assert_eq!(Message::read(&said.to_bytes()), Some(said));
            }
        }
    }
}
