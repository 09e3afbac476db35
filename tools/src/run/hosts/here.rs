//! The names of this host: its own, `localhost`, its addresses, and what the resolver returns. They need no
//! remote shell, and two of them are one host.
//!
//! Several loopback addresses in one list (`127.0.0.1,127.0.0.2`) count as several hosts, for trying a
//! remote shell: each is reached by that.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use doorbell_inet::is_own;

/// How long the resolver may take for all names together; a name without an answer by then belongs to another
/// host.
const LOOKUP: Duration = Duration::from_secs(3);
/// Maximum number of names looked up at a time.
const AT_ONCE: usize = 64;

/// The names of this host.
#[derive(Clone, Debug, Default)]
pub(in crate::run) struct Here {
    /// The kernel's name of the host.
    node: String,
    /// Names in a list that the resolver maps to one of its addresses.
    aliases: Vec<String>,
    /// Those among them with loopback addresses only.
    local: Vec<String>,
    /// Whether loopback addresses count as hosts of their own.
    is_trial: bool,
}

impl Here {
    /// Returns the names that need no look-up.
    pub(in crate::run) fn look() -> Self {
        Self {
            node: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            ..Self::default()
        }
    }

    /// Adds those of `names` that the resolver maps to this host.
    pub(super) fn look_up<'n>(names: impl Iterator<Item = &'n str> + Clone) -> Self {
        let loopback: BTreeSet<IpAddr> = names
            .clone()
            .filter_map(address)
            .filter(IpAddr::is_loopback)
            .collect();
        let mut here = Self {
            is_trial: loopback.len() > 1,
            ..Self::look()
        };
        let unknown = names.filter(|name| !here.is(name) && is_looked_up(name));
        let unknown: Vec<String> = unknown.map(str::to_owned).collect();
        let until = Instant::now() + LOOKUP;
        for some in unknown.chunks(AT_ONCE) {
            if Instant::now() >= until {
                break;
            }
            for (name, is_routable) in own_of(some, until) {
                if !is_routable {
                    here.local.push(name.clone());
                }
                here.aliases.push(name);
            }
        }
        here
    }

    /// Whether `name` is this host.
    pub(in crate::run) fn is(&self, name: &str) -> bool {
        match address(name) {
            Some(address) if address.is_loopback() => !self.is_trial,
            Some(address) => address.is_unspecified() || is_own(address),
            None => {
                is_localhost(name)
                    || are_same(name, &self.node)
                    || self.aliases.iter().any(|alias| are_same(alias, name))
            }
        }
    }

    /// Whether `name`, one of the launcher's [`Here::known_as`], is this host, for a daemon. A loopback
    /// address among them is a host of its own.
    pub(super) fn is_known_as(&self, name: &str) -> bool {
        let is_ours = |address: IpAddr| !address.is_loopback() && is_own(address);
        are_same(name, &self.node) || address(name).is_some_and(is_ours)
    }

    /// Returns the name by which other hosts find `name`: as the user wrote it, unless it means each host
    /// itself.
    pub(super) fn known_as(&self, name: &str) -> String {
        let is_local = match address(name) {
            Some(address) => address.is_loopback() || address.is_unspecified(),
            None => is_localhost(name) || self.local.iter().any(|local| are_same(local, name)),
        };
        let is_replaced = is_local && self.is(name);
        if is_replaced {
            self.node.clone()
        } else {
            name.to_owned()
        }
    }

    /// Whether two names are of one host.
    pub(super) fn are_one(&self, one: &str, other: &str) -> bool {
        are_same(one, other) || (self.is(one) && self.is(other))
    }
}

/// Whether two names are equal to the resolver, which ignores upper and lower case.
pub(super) fn are_same(one: &str, other: &str) -> bool {
    let user = |name: &str| name.rsplit_once('@').map(|(user, _)| user.to_owned());
    let bare = |name: &str| name.rsplit('@').next().unwrap_or_default().to_owned();
    let (first, second) = (bare(one), bare(other));
    let is_same = match (address(&first), address(&second)) {
        (Some(first), Some(second)) => first == second,
        _ => plain(&first) == plain(&second),
    };
    is_same && user(one) == user(other)
}

/// Returns the name in lower case, without the dot of the root.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Whether this name means each host itself.
fn is_localhost(name: &str) -> bool {
    matches!(plain(name).as_str(), "localhost" | "localhost.localdomain")
}

/// Parses a name that is an address; an IPv6 address may name its interface.
fn address(name: &str) -> Option<IpAddr> {
    name.split('%').next()?.parse().ok()
}

/// Whether the name is looked up: not one for another user's login, nor one that only the remote shell knows.
fn is_looked_up(name: &str) -> bool {
    !name.contains('@') && address(name).is_none()
}

/// Returns the names with an address of this host, each with whether one is not loopback; they are looked up
/// concurrently.
fn own_of(names: &[String], until: Instant) -> Vec<(String, bool)> {
    let (told, answers) = channel();
    for name in names {
        let (told, name) = (told.clone(), name.clone());
        let look = move || {
            let found = (name.as_str(), 0).to_socket_addrs();
            let found = found.into_iter().flatten().map(|found| found.ip());
            let own: Vec<IpAddr> = found.filter(|found| is_own(*found)).collect();
            let is_routable = own.iter().any(|own| !own.is_loopback());
            let _ = told.send((!own.is_empty()).then_some((name, is_routable)));
        };
        // Without a thread, the name counts as another host's.
        drop(
            std::thread::Builder::new()
                .name("resolver".to_owned())
                .spawn(look),
        );
    }
    drop(told);
    let mut own = Vec::new();
    while let Ok(answer) = answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
        own.extend(answer);
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_known_by_all_its_names() {
        let here = Here {
            node: "Node1".to_owned(),
            aliases: vec!["node1.example.org".to_owned(), "ip6-localhost".to_owned()],
            local: vec!["ip6-localhost".to_owned()],
            is_trial: false,
        };
        for name in ["localhost", "127.0.0.1", "::1", "0.0.0.0", "ip6-localhost"] {
            assert_eq!(here.known_as(name), "Node1", "{name}");
        }
        for name in ["node1", "node1.example.org", "192.0.2.1", "node2"] {
            assert_eq!(here.known_as(name), name);
        }
        let names = [
            "localhost",
            "LOCALHOST",
            "Localhost.",
            "localhost.localdomain",
            "127.0.0.1",
            "127.3.2.1",
            "::1",
            "::1%lo",
            "0.0.0.0",
            "node1",
            "NODE1",
            "Node1.example.org",
            "node1.example.org.",
        ];
        for name in names {
            assert!(here.is(name), "{name}");
            assert!(here.are_one(name, "node1"), "{name}");
        }
        for name in [
            "node2",
            "node1.example.com",
            "192.0.2.1",
            "2001:db8::1",
            "user@localhost",
            "node",
            "",
        ] {
            assert!(!here.is(name), "{name}");
        }
    }

    #[test]
    fn names_are_compared_as_the_resolver_does() {
        for (one, other) in [
            ("a", "A"),
            ("a.b.", "A.B"),
            ("u@a", "u@A"),
            ("::1", "0:0:0:0:0:0:0:1"),
        ] {
            assert!(are_same(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("a", "b"),
            ("u@a", "a"),
            ("u@a", "U@a"),
            ("a", "a.b"),
            ("10.0.0.1", "10.0.0.2"),
        ] {
            assert!(!are_same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn the_resolver_is_queried_last() {
        let names = ["localhost", "192.0.2.1", "no-such-host.invalid", "u@localhost"];
        let here = Here::look_up(names.into_iter());
        assert!(here.aliases.is_empty(), "{here:?}");
    }

    #[test]
    fn several_addresses_of_the_loopback_are_several_hosts() {
        let here = Here::look_up(["127.0.0.1", "127.0.0.2"].into_iter());
        assert!(!here.is("127.0.0.1") && !here.is("127.0.0.2") && here.is("localhost"));
        assert_eq!(here.known_as("127.0.0.1"), "127.0.0.1");
        assert!(!Here::look().is_known_as("127.0.0.1"));
        assert!(Here::look_up(["127.0.0.1", "::ffff:192.0.2.1"].into_iter()).is("127.0.0.1"));
    }
}
