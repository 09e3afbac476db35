//! Ids and MACs of contact frames: BLAKE2s-256, keyed with the 32 bytes that all ranks of a job have, or one
//! pair of processes.
//!
//! ```text
//!   "link"  from address, from incarnation, to address, to incarnation  ─► id of a direction (8)
//!   "mac"                                                               ─► key of the MAC (32)
//! ```
//!
//! The id stands in the frame, and the MAC covers it: so a frame holds for one direction between two lives of
//! two processes, and cannot be reflected. Source: RFC 7693 (BLAKE2).

use std::fmt;

use blake2::digest::{KeyInit, Mac, consts::U16};
use blake2::{Blake2sMac, Blake2sMac256};

use doorbell_fabric::message::Incarnation;

/// Bytes of a MAC.
pub(crate) const TAG: usize = 16;

/// One end of a pair: its published bytes, and the life there.
#[derive(Clone, Copy)]
pub(crate) struct End<'a>(pub(crate) &'a [u8], pub(crate) Incarnation);

/// What is kept of a key: two keyed states, which are copied for each use.
#[derive(Clone)]
pub(crate) struct ContactKey {
    links: Blake2sMac256,
    macs: Blake2sMac<U16>,
}

/// Every key has the 32 bytes that BLAKE2s takes, so none is refused.
fn keyed<M: KeyInit>(key: &[u8; 32]) -> M {
    M::new_from_slice(key).unwrap_or_else(|_| unreachable!("BLAKE2s takes keys of 32 bytes"))
}

impl ContactKey {
    /// Derives what contact needs of the key of a job, or of one pair.
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        let purpose = |name: &[u8]| {
            let mut mac: Blake2sMac256 = keyed(key);
            mac.update(b"doorbell verbs 1 ");
            mac.update(name);
            mac
        };
        let macs: [u8; 32] = purpose(b"mac").finalize().into_bytes().into();
        Self {
            links: purpose(b"link"),
            macs: keyed(&macs),
        }
    }

    /// The id of what one end sends to the other.
    pub(crate) fn link(&self, from: End<'_>, to: End<'_>) -> u64 {
        let mut mac = self.links.clone();
        for End(address, life) in [from, to] {
            mac.update(&(address.len() as u32).to_le_bytes());
            mac.update(address);
            mac.update(&life.0.to_le_bytes());
        }
        let bytes: [u8; 32] = mac.finalize().into_bytes().into();
        let mut id = [0; 8];
        id.copy_from_slice(&bytes[..8]);
        u64::from_le_bytes(id)
    }

    /// The MAC of a frame.
    pub(crate) fn tag(&self, bytes: &[u8]) -> [u8; TAG] {
        let mut mac = self.macs.clone();
        mac.update(bytes);
        mac.finalize().into_bytes().into()
    }

    /// Whether `tag` is the MAC of `bytes`, in constant time.
    pub(crate) fn holds(&self, bytes: &[u8], tag: &[u8; TAG]) -> bool {
        let ours = self.tag(bytes);
        ours.iter().zip(tag).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
    }
}

impl fmt::Debug for ContactKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ContactKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN_TAG: [u8; TAG] = [
        223, 10, 190, 159, 72, 185, 75, 58, 70, 152, 169, 83, 14, 60, 148, 243,
    ];

    /// Both ends of a job may be of different builds: what they derive may not change without a new version.
    #[test]
    fn golden_ids_and_macs() {
        let key = ContactKey::new(&std::array::from_fn(|i| i as u8));
        let (from, to) = (
            End(&[1, 2, 3], Incarnation(0x1122)),
            End(&[4, 5], Incarnation(0x3344)),
        );
        // By another implementation of BLAKE2s (hashlib of Python 3).
        assert_eq!(key.link(from, to), 0xcbed_22bc_693c_da0b);
        assert_eq!(key.tag(b"frame"), GOLDEN_TAG);
        assert!(key.holds(b"frame", &GOLDEN_TAG) && !key.holds(b"framf", &GOLDEN_TAG));
        assert_eq!(format!("{key:?}"), "ContactKey(..)");
    }

    #[test]
    fn everything_that_names_a_direction_changes_its_id() {
        let (key, other) = (ContactKey::new(&[7; 32]), ContactKey::new(&[8; 32]));
        let (one, two) = (Incarnation(1), Incarnation(2));
        let link = |from, to| key.link(End(from, one), End(to, one));
        let all = [
            link(&[1], &[2]),
            link(&[2], &[1]),
            link(&[1, 2], &[]),
            key.link(End(&[1], two), End(&[2], one)),
            key.link(End(&[1], one), End(&[2], two)),
            other.link(End(&[1], one), End(&[2], one)),
        ];
        for (at, id) in all.iter().enumerate() {
            assert!(!all[..at].contains(id));
        }
    }
}
