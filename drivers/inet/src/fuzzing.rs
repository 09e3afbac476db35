//! Entry points for the fuzzers (`tools/fuzz`): netlink messages, read as everywhere else in this crate. The
//! kernel is trusted, but no message may cause a panic, and each is read to its end exactly once.

use crate::netlink::{attributes, messages};
use crate::{dcb, details, kernel_neighbours, link, nics, route, zero_copy};

/// Reads `bytes` as received from a netlink socket.
///
/// # Panics
/// When messages or attributes are returned that are not in the bytes, or twice.
pub fn netlink(bytes: &[u8]) {
    let mut read = 0;
    for (kind, body) in messages(bytes) {
        read += body.len() + 16;
        assert!(read <= bytes.len() + 16, "messages of more bytes than came");
        let inside: usize = attributes(body).map(|(_, value)| value.len() + 4).sum();
        assert!(
            inside <= body.len(),
            "attributes of more bytes than a message has"
        );
        kernel_neighbours::fuzzing(kind, body);
        link::fuzzing(kind, body);
        details::fuzzing(body);
        route::fuzzing(body);
        zero_copy::fuzzing(body);
        nics::fuzzing(body);
        dcb::fuzzing(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{attribute, message};

    /// Messages with attributes: whole, truncated, and with each byte changed.
    #[test]
    fn no_message_causes_a_panic() {
        let mut body = vec![0; 16];
        for what in 0..45 {
            attribute(&mut body, what, &[2, 0, 0, 0, 0, 9][..usize::from(what) % 7]);
        }
        let mut bytes = message(16, 0, &body);
        bytes.extend(message(28, 0, &body));
        for cut in 0..bytes.len() {
            netlink(&bytes[..cut]);
            for value in [0, 1, 3, 4, 0x7f, 0xff] {
                let mut other = bytes.clone();
                other[cut] = value;
                netlink(&other);
            }
        }
    }
}
