//! Entry points for the fuzzers (`tools/fuzz`): what strangers send and publish.

use crate::address::PortAddress;
use crate::name::Service;

pub use crate::cm::fuzzing::Pair as ContactPair;
pub use crate::rc::fuzzing::{Counted, send, slot_of};

/// Reads `bytes` as an address that a peer's rail has published.
///
/// # Panics
/// When what is accepted is not written as it was read, or is longer than an address can be.
pub fn address(bytes: &[u8]) {
    for service in [Service::Datagrams, Service::Connections] {
        let Ok(read) = PortAddress::parse(bytes, service) else {
            continue;
        };
        let written = read.to_bytes();
        assert!(written.len() == bytes.len() && written.len() <= 256);
        assert_eq!(PortAddress::parse(&written, service).as_ref(), Ok(&read));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn addresses_of_any_bytes_are_read_as_they_are_written_or_refused() {
        let mut bytes = vec![
            1, 2, 7, 0, 1, 0, 255, 255, 1, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0,
        ];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1, 2, 24]);
        for at in 0..bytes.len() {
            super::address(&bytes[..at]);
            for value in [0, 1, 6, 0x7f, 0xff] {
                let mut other = bytes.clone();
                other[at] = value;
                super::address(&other);
            }
        }
    }
}
