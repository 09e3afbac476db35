//! Where a process can be reached: for each transport, the addresses of its modules.
//!
//! As text, `7.3;tcp://10.0.0.3/24:4711,[fe80::3%eth0]:4711;rail://…`. Addresses belong to their transport; nobody else
//! looks into them. As bytes, counted strings: what others send is read by [`Contact::decode`].
//!
//! reference: oob, section 2 (the contact URI).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::name::{Epoch, Name};

/// An address of one transport, as that transport writes it. No comma, semicolon or space in it.
pub type Address = Arc<str>;

/// Most transports of a contact.
pub const TRANSPORTS_MAX: usize = 16;
/// Most addresses of one transport.
pub const ADDRESSES_MAX: usize = 64;
/// Longest address, or name of a transport, in bytes.
pub const TEXT_MAX: usize = 255;

/// A process, and where it can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Who.
    pub name: Name,
    /// In which life; [`Epoch::UNKNOWN`] when somebody said the addresses who does not know.
    pub epoch: Epoch,
    /// Of each transport, by its name, the addresses.
    pub clauses: BTreeMap<Arc<str>, Vec<Address>>,
}

impl Contact {
    /// Nowhere, as yet.
    #[must_use]
    pub fn new(name: Name, epoch: Epoch) -> Self {
        Self {
            name,
            epoch,
            clauses: BTreeMap::new(),
        }
    }

    /// With these addresses of a transport.
    #[must_use]
    pub fn with(mut self, transport: &str, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|&address| address.into()).collect();
        self.clauses.insert(transport.into(), addresses);
        self
    }

    /// As bytes: job, rank, epoch, number of transports; of each its name and addresses.
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

    /// Reads one from the beginning of `bytes`, which then begin behind it. `None` when it is no contact.
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
    // A text that is too long is no address; none stands for it, and whoever reads that tries the others.
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

/// The first bytes, of which there are enough, or nothing.
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
            .expect("it is there");
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
