//! Tags: message authentication codes by the job's key.

use std::fmt;

use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use super::frame::TAG;

/// The key that authenticates frames between services. It is wiped when dropped, and never printed.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// Derives the key from a job's key, which cannot be computed back from it.
    #[must_use]
    pub fn of_job(job: &[u8; 32]) -> Self {
        let mac = Blake2sMac256::new(job.into());
        let mac = mac.chain_update("doorbell acm carrier 1");
        Self(mac.finalize().into_bytes().into())
    }

    /// Returns the tag of these bytes.
    pub(super) fn tag(&self, bytes: &[u8]) -> [u8; TAG] {
        let mac = Blake2sMac256::new((&self.0).into());
        mac.chain_update(bytes).finalize().into_bytes().into()
    }

    /// Returns the bytes before the tag, if the tag matches.
    pub(super) fn checked<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (signed, tag) = bytes.split_last_chunk::<TAG>()?;
        bool::from(self.tag(signed).ct_eq(tag)).then_some(signed)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_of_one_key_and_one_text() {
        let (key, other) = (Key::of_job(&[1; 32]), Key::of_job(&[2; 32]));
        let signed = [&b"text"[..], &key.tag(b"text")].concat();
        assert_eq!(key.checked(&signed), Some(&b"text"[..]));
        assert_eq!(other.checked(&signed), None);
        assert_eq!(key.checked(&signed[1..]), None);
        assert_eq!(key.checked(b"short"), None);
        assert_ne!(key.0, [1; 32]);
        assert_eq!(format!("{key:?}"), "Key(…)");
    }
}
