//! How the resolver behaves: the options of the original by their names, and ours.
//!
//! reference: acm, section 9.

use std::time::Duration;

use doorbell_fabric::time::Time;

use crate::path::{Mtu, Rate};

/// Who tells addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressProtocol {
    /// Their owners, asked by multicast.
    #[default]
    Acm,
}

/// Who tells routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteProtocol {
    /// The subnet's administration. An Ethernet endpoint without one ([`Options::has_sa`]) does as with
    /// [`Acm`](RouteProtocol::Acm).
    #[default]
    Sa,
    /// Nobody: a path has the properties of the best group that both ends are in.
    Acm,
}

/// How addresses of this host are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopbackProtocol {
    /// As any other.
    None,
    /// At once, without a message.
    #[default]
    Local,
}

/// How the resolver behaves. The defaults of what the original has as well are its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Added to the subnet's timeout for each attempt: 2 s.
    pub timeout: Duration,
    /// Attempts after the first: 2.
    pub retries: u32,
    /// Questions by multicast that an endpoint has under way at once: 1. One that is not answered soon
    /// ([`Options::lent`]) makes room for the next, so that a dead host holds nobody up.
    pub resolve_depth: u32,
    /// Questions to the subnet's administration that an endpoint has under way at once: 1.
    pub sa_depth: u32,
    /// Answers to others that an endpoint has under way at once: 1.
    pub send_depth: u32,
    /// MTU of the group that everybody is in: 2,048 bytes.
    pub min_mtu: Mtu,
    /// Rate of the group that everybody is in: 10 Gb/s.
    pub min_rate: Rate,
    /// How long an address is believed that nobody confirms: a day; none is for ever.
    pub addr_timeout: Option<Duration>,
    /// How long a route is believed: for ever, which is none.
    pub route_timeout: Option<Duration>,
    /// Who tells addresses.
    pub addr_prot: AddressProtocol,
    /// Who tells routes.
    pub route_prot: RouteProtocol,
    /// How addresses of this host are reached.
    pub loopback_prot: LoopbackProtocol,

    /// Whether [`Act::AskSa`](super::Act::AskSa) has somebody to answer it on an Ethernet endpoint, a file for example.
    pub has_sa: bool,
    /// Whether what is not [trusted](super::Sender::trusted) is not listened to. Then, too, questions of others teach
    /// nothing, since they may be old ones that somebody kept: only an answer to a question of ours does.
    pub authenticated: bool,
    /// Whether each path is probed before it is told, and not only those beyond a router.
    pub verify: bool,
    /// Further groups, from slow to fast: an endpoint joins those that its port can keep up with, as far as a
    /// message can list them.
    pub groups: Vec<(Rate, Mtu)>,
    /// How long after its owner was heard an address is told without asking him again: 1 s; zero is for ever. Who was
    /// renumbered, restarted or cut off is so found again within two.
    ///
    /// Asking again is one message to one host. What was used lately is confirmed in the background, so that it need
    /// not be waited for.
    pub confirm: Duration,
    /// How many addresses are confirmed in the background: 64. It bounds what a host sends, however many there are.
    pub watched: usize,
    /// How long after its last use an address is confirmed in the background: 30 s.
    pub watch: Duration,
    /// How long it is remembered that nobody answered: 250 ms at first, and twice as long each time;
    pub refused_first: Duration,
    /// up to this: 1 s. Who comes back is so found within two seconds; where that may take longer, a longer time
    /// spares the network some questions.
    pub refused_last: Duration,
    /// How long a probe may take: 1 s.
    pub probe: Duration,
    /// How long a path stays cut to the size that passed, before it is tried whether larger ones do: 10 s. It is told as it is
    /// meanwhile, and nobody waits for that.
    pub grow: Duration,
    /// Most destinations that are remembered: 65,536.
    pub entries: usize,
    /// Most destinations that are being resolved: 4,096.
    pub searches: usize,
    /// Most questions that wait: 16,384.
    pub questions: usize,
    /// Of these, for one destination: 4,096.
    pub questions_each: usize,
    /// Most messages that wait for a credit, in each queue of an endpoint: 4,096.
    pub waiting: usize,
    /// Most events that are remembered: 512.
    pub history: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(2000),
            retries: 2,
            resolve_depth: 1,
            sa_depth: 1,
            send_depth: 1,
            min_mtu: Mtu::within(2048).unwrap_or(Mtu::MIN),
            min_rate: Rate::within(10_000),
            addr_timeout: Some(Duration::from_secs(1440 * 60)),
            route_timeout: None,
            addr_prot: AddressProtocol::Acm,
            route_prot: RouteProtocol::Sa,
            loopback_prot: LoopbackProtocol::Local,
            has_sa: false,
            authenticated: false,
            verify: false,
            groups: Vec::new(),
            confirm: Duration::from_secs(1),
            watched: 64,
            watch: Duration::from_secs(30),
            refused_first: Duration::from_millis(250),
            refused_last: Duration::from_millis(1000),
            probe: Duration::from_secs(1),
            grow: Duration::from_secs(10),
            entries: 65_536,
            searches: 4096,
            questions: 16_384,
            questions_each: 4096,
            waiting: 4096,
            history: 512,
        }
    }
}

impl Options {
    /// How long an attempt lasts, where answers of the subnet take 4.096 µs × 2^`subnet_timeout`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use doorbell_acm::resolver::Options;
    /// let options = Options::default();
    /// assert_eq!(options.attempt(18), Duration::from_millis(2000 + 1024));
    /// assert_eq!(options.attempt(0), Duration::from_millis(2001));
    /// ```
    #[must_use]
    pub fn attempt(&self, subnet_timeout: u8) -> Duration {
        let subnet = 1u64 << subnet_timeout.clamp(8, 31).saturating_sub(8);
        self.timeout + Duration::from_millis(subnet)
    }

    /// When a question is answered at the latest, counted from when it was asked: after all attempts to find the address,
    /// as many for the route, and a probe.
    #[must_use]
    pub fn bound(&self, subnet_timeout: u8) -> Duration {
        let attempts = self.retries.saturating_add(1).saturating_mul(2);
        self.attempt(subnet_timeout).saturating_mul(attempts) + self.probe
    }

    /// How long a credit is lent for a question that is not answered: a sixteenth of an attempt. The question is
    /// repeated then, and after each quarter, so that a loss costs no whole attempt.
    #[must_use]
    pub fn lent(&self, subnet_timeout: u8) -> Duration {
        self.attempt(subnet_timeout) / 16
    }

    /// When what is told now is no longer believed.
    pub(super) fn until(now: Time, life: Option<Duration>) -> Time {
        life.map_or(Time::NEVER, |life| now + life)
    }
}
