//! The key of a job, or of one pair of processes, and what each ordered pair derives from it: connection id,
//! first sequence number, MAC key.
//!
//! ```text
//!   BLAKE2s-256, keyed with the job key:
//!     "link"  from address, from life, to address, to life  ─► connection id (8) · first sequence number (4)
//!     "mac"   the same                                      ─► key of the frame MAC (32)
//!     "life"  the ids of both directions, and which lives of their link they begin after they lost each
//!             other (reconnect.rs): the direction's own first  ─► as "link"
//!     "lifemac"  the same                                   ─► as "mac"
//! ```
//! Without the job key, a connection id cannot be guessed, and a frame of another life of a process, or of
//! another job on the same port, has another one. An observer on the path can read it: against those, turn
//! frame MACs on. Source: RFC 7693 (BLAKE2).

use std::fmt;
use std::net::IpAddr;

use blake2::digest::{KeyInit, Mac, consts::U8};
use blake2::{Blake2sMac, Blake2sMac256};

use zeroize::Zeroize;

use doorbell_fabric::addr::{Address, RailAddress};
use doorbell_fabric::message::Incarnation;

use crate::seq::Seq;

/// The 32 secret bytes that all ranks of a job have, or that one pair of processes has. They are never shown.
#[derive(Clone)]
pub struct JobKey([u8; 32]);

impl Drop for JobKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl JobKey {
    /// A key of random bytes: of a key file, or of the job's launcher.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns what frames in one direction have in common.
    pub(crate) fn link(&self, from: &End<'_>, to: &End<'_>) -> Link {
        Self::as_link(&self.derive(b"link", &[from, to]))
    }

    /// Derives the values of a later connection: `names` are the ids that [`JobKey::link`] returns for the
    /// direction and for the opposite one, `lives` those of the sender and of the receiver. The names stand
    /// for addresses and incarnations.
    pub(crate) fn life(&self, names: [u64; 2], lives: [u32; 2]) -> Link {
        Self::as_link(&self.derive_life(b"life", names, lives))
    }

    /// The frame MAC of one direction of a later connection.
    pub(crate) fn life_mac(&self, names: [u64; 2], lives: [u32; 2]) -> FrameMac {
        FrameMac(keyed(&self.derive_life(b"lifemac", names, lives)))
    }

    fn derive_life(&self, purpose: &[u8], names: [u64; 2], lives: [u32; 2]) -> [u8; 32] {
        let mut mac: Blake2sMac256 = keyed(&self.0);
        mac.update(b"doorbell btl 1 ");
        mac.update(purpose);
        names.iter().for_each(|name| mac.update(&name.to_le_bytes()));
        lives.iter().for_each(|life| mac.update(&life.to_le_bytes()));
        mac.finalize().into_bytes().into()
    }

    fn as_link(out: &[u8; 32]) -> Link {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&out[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        Link {
            connection: word(0),
            first: Seq(word(8) as u32),
        }
    }

    /// The frame MAC of one direction.
    pub(crate) fn mac(&self, from: &End<'_>, to: &End<'_>) -> FrameMac {
        let key = self.derive(b"mac", &[from, to]);
        FrameMac(keyed(&key))
    }

    fn derive(&self, purpose: &[u8], ends: &[&End<'_>]) -> [u8; 32] {
        let mut mac: Blake2sMac256 = keyed(&self.0);
        mac.update(b"doorbell btl 1 ");
        mac.update(purpose);
        for End(address, life) in ends {
            mac.update(&[address.kind.len() as u8]);
            mac.update(address.kind.as_bytes());
            match &address.address {
                // Without the scope of an IPv6 address, which is a number of one host.
                Address::Inet(socket) => {
                    match socket.ip() {
                        IpAddr::V4(ip) => mac.update(&ip.octets()),
                        IpAddr::V6(ip) => mac.update(&ip.octets()),
                    }
                    mac.update(&socket.port().to_le_bytes());
                }
                Address::Native(bytes) => {
                    mac.update(&(bytes.len() as u32).to_le_bytes());
                    mac.update(bytes);
                }
            }
            mac.update(&life.0.to_le_bytes());
        }
        mac.finalize().into_bytes().into()
    }
}

/// Every key has the 32 bytes that BLAKE2s takes, so none is refused.
fn keyed<M: KeyInit>(key: &[u8; 32]) -> M {
    M::new_from_slice(key).unwrap_or_else(|_| unreachable!("BLAKE2s takes keys of 32 bytes"))
}

impl fmt::Debug for JobKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JobKey(..)")
    }
}

/// One end of a pair: a published address, and the life there.
pub(crate) struct End<'a>(pub(crate) &'a RailAddress, pub(crate) Incarnation);

/// What both ends derive for one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The connection id in every frame.
    pub(crate) connection: u64,
    /// The number of the first segment.
    pub(crate) first: Seq,
}

/// A MAC of eight bytes over a frame: a keyed state that is copied for each.
#[derive(Clone)]
pub(crate) struct FrameMac(Blake2sMac<U8>);

impl FrameMac {
    /// The MAC of a frame's pieces.
    pub(crate) fn of(&self, pieces: &[&[u8]]) -> [u8; 8] {
        let mut mac = self.0.clone();
        pieces.iter().for_each(|piece| mac.update(piece));
        mac.finalize().into_bytes().into()
    }

    /// Whether `tag` is the MAC of `bytes`, in constant time.
    pub(crate) fn holds(&self, bytes: &[u8], tag: &[u8; 8]) -> bool {
        let ours = self.of(&[bytes]);
        ours.iter().zip(tag).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
    }
}

impl fmt::Debug for FrameMac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("FrameMac(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> RailAddress {
        RailAddress::inet("udp", ([10, 0, 0, 1], port).into())
    }

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(format!("{:?}", JobKey::from_bytes([7; 32])), "JobKey(..)");
    }

    #[test]
    fn everything_that_names_a_direction_changes_its_id() {
        let (key, other) = (JobKey::from_bytes([7; 32]), JobKey::from_bytes([8; 32]));
        let (a, b, c) = (address(1), address(2), RailAddress::native("sim", [1, 2, 3]));
        let (one, two) = (Incarnation(1), Incarnation(2));
        let links = [
            key.link(&End(&a, one), &End(&b, one)),
            key.link(&End(&b, one), &End(&a, one)),
            key.link(&End(&a, two), &End(&b, one)),
            key.link(&End(&a, one), &End(&b, two)),
            key.link(&End(&a, one), &End(&c, one)),
            other.link(&End(&a, one), &End(&b, one)),
        ];
        for (i, link) in links.iter().enumerate() {
            assert!(links[..i].iter().all(|other| other.connection != link.connection));
        }
        assert_eq!(links[0], key.link(&End(&a, one), &End(&b, one)));
    }

    #[test]
    fn the_scope_of_an_address_is_one_hosts_own() {
        let key = JobKey::from_bytes([7; 32]);
        let six = |scope| {
            let socket = std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, scope);
            RailAddress::inet("udp", socket.into())
        };
        let link =
            |address: &RailAddress| key.link(&End(address, Incarnation(1)), &End(address, Incarnation(1)));
        assert_eq!(link(&six(1)), link(&six(2)));
    }

    #[test]
    fn a_mac_covers_every_byte() {
        let key = JobKey::from_bytes([7; 32]);
        let (a, b) = (address(1), address(2));
        let mac = key.mac(&End(&a, Incarnation(1)), &End(&b, Incarnation(1)));
        let tag = mac.of(&[b"some ", b"bytes"]);
        assert!(mac.holds(b"some bytes", &tag) && !mac.holds(b"some bytez", &tag));
    }

    /// Both ends of a job may be of different builds: what they derive may not change without a new version.
    #[test]
    fn golden_ids_and_macs() {
        let key = JobKey::from_bytes(std::array::from_fn(|i| i as u8));
        let (a, b) = (address(4791), RailAddress::native("sim", [1, 2, 3]));
        let (from, to) = (End(&a, Incarnation(0x1122)), End(&b, Incarnation(0x3344)));
        let link = key.link(&from, &to);
        // By another implementation of BLAKE2s (hashlib of Python 3).
        assert_eq!(
            (link.connection, link.first),
            (0xcc5c_3038_be23_1aea, Seq(0x9543_e42c))
        );
        let mac = [67, 215, 41, 247, 249, 137, 202, 104];
        assert_eq!(key.mac(&from, &to).of(&[b"frame"]), mac);
        let names = [link.connection, key.link(&to, &from).connection];
        let later = key.life(names, [3, 0x0102_0304]);
        assert_eq!(names[1], 0x8466_b36e_58c3_fa5b);
        assert_eq!(
            (later.connection, later.first),
            (0xddf0_e3db_b2c7_26da, Seq(0xed6d_b157))
        );
        let mac = [4, 93, 176, 240, 108, 218, 178, 104];
        assert_eq!(key.life_mac(names, [3, 0x0102_0304]).of(&[b"frame"]), mac);
        assert_ne!(key.life([names[1], names[0]], [3, 0x0102_0304]), later);
    }
}
