//! Contacts: the addresses at which a process can be reached, per transport.
//!
//! As text, `7.3;tcp://10.0.0.3/24:4711,[fe80::3%eth0]:4711;rail://…`. Only the transport interprets its
//! addresses. The binary form consists of counted strings; [`Contact::decode`] treats it as untrusted input.
//!
//! reference: oob, section 2 (the contact URI).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::name::{Epoch, Name};

/// An address of one transport, in its own notation, without comma, semicolon or space.
pub type Address = Arc<str>;

/// Maximum number of transports in a contact.
pub const TRANSPORTS_MAX: usize = 16;
/// Maximum number of addresses of one transport.
pub const ADDRESSES_MAX: usize = 64;
/// Maximum bytes of an address, or of a transport's name.
pub const TEXT_MAX: usize = 255;

/// A process and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// The name of the process.
    pub name: Name,
    /// Its epoch; [`Epoch::UNKNOWN`] if the source of the addresses does not know it.
    pub epoch: Epoch,
    /// The addresses, by the name of the transport.
    pub clauses: BTreeMap<Arc<str>, Vec<Address>>,
}

impl Contact {
    /// Creates a contact without addresses.
    #[must_use]
    pub fn new(name: Name, epoch: Epoch) -> Self {
        Self {
            name,
            epoch,
            clauses: BTreeMap::new(),
        }
    }

    /// Adds the addresses of a transport.
    #[must_use]
    pub fn with(mut self, transport: &str, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|&address| address.into()).collect();
        self.clauses.insert(transport.into(), addresses);
        self
    }

    /// Encodes the contact: job, rank, epoch, number of transports; for each its name and addresses.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.name.job.to_be_bytes());
        out.extend_from_slice(&self.name.rank.to_be_bytes());
        out.extend_from_slice(&self.epoch.0.to_be_bytes());
        let clauses = self.clauses.iter().take(TRANSPORTS_MAX);
        out.push(clauses.len() as u8);
        for (transport, addresses) in clauses {
            text(out, transport);
            let addresses = addresses.iter().take(ADDRESSES_MAX);
            out.push(addresses.len() as u8);
            addresses.for_each(|address| text(out, address));
        }
    }

    /// Decodes a contact at the start of `bytes`, and advances them. `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let job = u64::from_be_bytes(take(bytes)?);
        let rank = u32::from_be_bytes(take(bytes)?);
        let epoch = Epoch(u64::from_be_bytes(take(bytes)?));
        let mut contact = Self::new(Name::new(job, rank), epoch);
        let [transports] = take(bytes)?;
        for _ in 0..within(transports, TRANSPORTS_MAX)? {
            let transport = word(bytes)?;
            let [count] = take(bytes)?;
            let addresses = (0..within(count, ADDRESSES_MAX)?).map(|_| word(bytes));
            let addresses: Option<Vec<Address>> = addresses.collect();
            if contact.clauses.insert(transport, addresses?).is_some() {
                return None;
            }
        }
        Some(contact)
    }
}

fn within(count: u8, most: usize) -> Option<usize> {
    Some(usize::from(count)).filter(|&count| count <= most)
}

fn text(out: &mut Vec<u8>, text: &str) {
    // An overlong address is encoded as an empty one, and readers try the others.
    let text = if text.len() > TEXT_MAX { "" } else { text };
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

fn word(bytes: &mut &[u8]) -> Option<Arc<str>> {
    let [length] = take(bytes)?;
    let (now, later) = bytes.split_at_checked(usize::from(length))?;
    *bytes = later;
    let text = std::str::from_utf8(now).ok()?;
    let fits = text
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b',' && byte != b';');
    fits.then(|| text.into())
}

/// Takes the first bytes, or nothing if there are too few.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (now, later) = bytes.split_first_chunk()?;
    *bytes = later;
    Some(*now)
}

impl fmt::Display for Contact {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.name)?;
        for (transport, addresses) in &self.clauses {
            write!(out, ";{transport}://{}", addresses.join(","))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Contact {
        Contact::new(Name::new(7, 3), Epoch(9))
            .with("tcp", &["10.0.0.3/24:4711", "[fe80::3%eth0]:4711"])
            .with("rail", &["shm:1"])
    }

    #[test]
    fn text_and_bytes() {
        assert_eq!(
            sample().to_string(),
            "7.3;rail://shm:1;tcp://10.0.0.3/24:4711,[fe80::3%eth0]:4711"
        );
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        bytes.push(77);
        let mut rest = &bytes[..];
        assert_eq!(Contact::decode(&mut rest), Some(sample()));
        assert_eq!(rest, [77]);
    }

    #[test]
    fn what_is_cut_or_hostile_is_no_contact() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(Contact::decode(&mut &bytes[..length]), None, "cut at {length}");
        }
        let mut twice = bytes.clone();
        let at = twice
            .windows(3)
            .position(|three| three == b"tcp")
            .expect("the contact is at the start");
        assert_eq!(Contact::decode(&mut &twice[..]), Some(sample()));
        twice[at] = b';';
        assert_eq!(Contact::decode(&mut &twice[..]), None, "a semicolon in a name");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut rest = &bytes[..];
            if let Some(contact) = Contact::decode(&mut rest) {
                let mut again = Vec::new();
                contact.encode(&mut again);
                prop_assert_eq!(Contact::decode(&mut &again[..]), Some(contact));
            }
        }
    }
}
