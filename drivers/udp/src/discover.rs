//! Discovery: each interface of this machine as a candidate, with its properties.

use doorbell_fabric::discover::{Candidate, Driver, Verdict};
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::{Interface, is_other_name, is_up, rails, rejected};

use crate::config::UdpConfig;
use crate::rail::expected;
use crate::sockets;

/// Finds udp rails for [`discover`](doorbell_fabric::discover::discover): one candidate for each interface,
/// and one for each named address. All are used only when named: an open rail listens on its interface, and
/// nothing listens beyond the loopback unless the user asked for it; on one host shared memory is better than
/// the loopback.
///
/// ```
/// use doorbell_fabric::discover::discover;
/// use doorbell_udp::UdpDriver;
///
/// let found = discover(&[&UdpDriver::default()], &[]);
/// assert!(found.named(&"udp:lo".parse()?)?.is_usable());
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct UdpDriver {
    /// The configuration that rails will be opened with.
    pub config: UdpConfig,
}

impl UdpDriver {
    fn probe_one(&self, name: RailName) -> Candidate {
        let found = match Interface::find(&name, &self.config.interface_query()) {
            Ok(found) => found,
            Err(error) => {
                return rejected(name, error).only_when_named("an open rail listens on its network");
            }
        };
        let candidate = match found.clone().require(&name, &self.config.interface_query()) {
            Ok(usable) => Candidate::usable(name, expected(&usable, &self.config)),
            Err(error) => rejected(name, error),
        };
        let reason = found.only_when_named();
        self.facts(candidate, &found).only_when_named(reason)
    }

    fn facts(&self, candidate: Candidate, found: &Interface) -> Candidate {
        let state = if is_up(found.state.flags) { "up" } else { "down" };
        let facts = candidate
            .fact("interface", &found.name)
            .fact("address", format!("{}/{}", found.address, found.prefix))
            .fact("mtu", format!("{} bytes", found.state.mtu))
            .fact("link", state);
        match (&facts.verdict, &facts.capabilities) {
            (Verdict::Usable, Some(can)) => {
                let longest = format!("{} bytes", can.limits.message);
                let facts = facts.fact("longest frame", longest);
                match sockets::offered(found, &self.config) {
                    Ok(granted) => facts.fact("offloads", granted.offloads()),
                    Err(error) => facts.fact("offloads", format!("not known: {error}")),
                }
            }
            _ => facts,
        }
    }
}

impl Driver for UdpDriver {
    fn kind(&self) -> &'static str {
        "udp"
    }

    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        Ok(rails("udp")?
            .into_iter()
            .map(|name| self.probe_one(name))
            .collect())
    }

    /// Handles rails named by an address, its label, or an alternative name.
    fn named(&self, name: &RailName) -> Option<Candidate> {
        is_other_name(name).then(|| self.probe_one(name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::discover::discover;

    fn name(text: &str) -> RailName {
        text.parse().unwrap()
    }

    #[test]
    fn the_loopback_is_found_with_its_facts_and_only_by_name() {
        let found = discover(&[&UdpDriver::default()], &[]);
        let lo = found.named(&name("udp:lo")).unwrap();
        assert!(lo.is_usable() && !lo.is_automatic() && lo.wire == "udp");
        let fact = |what: &str| {
            lo.facts
                .iter()
                .find(|fact| fact.name == what)
                .map(|fact| fact.value.as_str())
        };
        assert_eq!(fact("address"), Some("127.0.0.1/8"));
        assert_eq!(fact("link"), Some("up"));
        assert!(fact("offloads").is_some());
        assert!(fact("mtu").is_some_and(|mtu| mtu.ends_with(" bytes")));
    }

    #[test]
    fn what_looks_like_an_address_and_is_none_is_named_as_such() {
        for (text, word) in [
            ("udp:256.1.1.1", "IPv4 address, but is not one"),
            ("udp:1.2.3", "IPv4 address, but is not one"),
            ("udp:fe80::zz", "IPv6 address, but is not one"),
            ("udp:fe80::1%nosuch0", "nosuch0 does not have this address"),
            ("udp:127.0.0.1%nosuch0", "nosuch0 does not have this address"),
        ] {
            let wanted = [name(text)];
            let found = discover(&[&UdpDriver::default()], &wanted);
            let said = found.named(&wanted[0]).unwrap_err().to_string();
            assert!(said.contains(word), "{text}: {said}");
        }
    }

    #[test]
    fn addresses_are_candidates_when_named_and_others_are_rejected_with_the_reason() {
        let wanted = [name("udp:127.0.0.1"), name("udp:192.0.2.77"), name("udp:nosuch0")];
        let found = discover(&[&UdpDriver::default()], &wanted);
        assert!(found.named(&wanted[0]).unwrap().is_usable());
        let refused = |at: usize| found.named(&wanted[at]).unwrap_err().to_string();
        assert!(
            refused(1).contains("no interface has this address"),
            "{}",
            refused(1)
        );
        assert!(refused(2).contains("udp:lo"), "{}", refused(2));
    }
}
