//! The address of a rail in a contact: `udp:10.0.0.1:56081@00000000000000ff`,
//! `shm:2f0a…@00000000000000ff+1122334455667788`.
//!
//! First the address that the rail publishes, as [`RailAddress`] formats it; then its incarnation; and for a
//! rail that stays within a host, an id of the host and its network, so that no other host tries it.

use std::fmt;
use std::str::FromStr;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::message::Incarnation;

/// A rail of some process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address that the rail publishes.
    pub address: RailAddress,
    /// The incarnation of the rail.
    pub life: Incarnation,
    /// The id of the host, if the rail stays within it.
    pub host: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}@{:016x}", self.address, self.life.0)?;
        self.host.map_or(Ok(()), |host| write!(out, "+{host:016x}"))
    }
}

/// The text is not an address of this transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an address of the transport rail: use the form KIND:ADDRESS@LIFE, as in udp:10.0.0.1:56081@00000000000000ff"
)]
pub struct NoPlace;

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let (address, rest) = text.rsplit_once('@').ok_or(NoPlace)?;
        let (life, host) = match rest.split_once('+') {
            Some((life, host)) => (life, Some(number(host).ok_or(NoPlace)?)),
            None => (rest, None),
        };
        Ok(Self {
            address: address.parse().map_err(|_| NoPlace)?,
            life: Incarnation(number(life).ok_or(NoPlace)?),
            host,
        })
    }
}

/// Parses exactly sixteen hexadecimal digits.
fn number(text: &str) -> Option<u64> {
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

/// Returns an id of this host and network namespace, the same in all processes that share both. `boot` is the
/// kernel's id of this boot, `network` the inode of the network namespace (FNV-1a, 64 bits).
pub(super) fn host(boot: &str, network: u64) -> u64 {
    let bytes = boot.bytes().chain(network.to_be_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in [
            "udp:10.0.0.1:56081@00000000000000ff",
            "udp:[fd00::1]:7@ffffffffffffffff",
            "shm:2f0a@0000000000000001+1122334455667788",
        ] {
            assert_eq!(
                text.parse::<Place>().map(|place| place.to_string()),
                Ok(text.to_owned())
            );
        }
    }

    #[test]
    fn others_are_refused() {
        for text in [
            "",
            "udp:10.0.0.1:56081",
            "udp:10.0.0.1:56081@",
            "udp:10.0.0.1:56081@ff",
            "udp:10.0.0.1:56081@00000000000000fg",
            "udp:10.0.0.1:56081@+0000000000000ff",
            "udp:10.0.0.1:56081@00000000000000ff+",
            "udp:10.0.0.1:56081@00000000000000ff+1",
            "udp:10.0.0.1@00000000000000ff",
            "@00000000000000ff",
            "10.0.0.1/24:4711",
        ] {
            assert_eq!(text.parse::<Place>(), Err(NoPlace), "{text}");
        }
    }

    #[test]
    fn a_host_is_its_boot_and_its_network() {
        let one = host("a7f3", 1);
        assert_eq!(one, host("a7f3", 1));
        assert!(one != host("a7f3", 2) && one != host("a7f4", 1));
    }

    proptest! {
        #[test]
        fn no_text_hurts_its_reader(text in "[a-z0-9:@+.\\[\\]]{0,80}") {
            if let Ok(place) = text.parse::<Place>() {
                prop_assert_eq!(place.to_string().parse::<Place>(), Ok(place));
            }
        }
    }
}
