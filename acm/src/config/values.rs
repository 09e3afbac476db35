//! The types of option values: each with its bounds, parsed from a word and formatted as one.

use std::path::PathBuf;
use std::time::Duration;

use crate::endpoint::{Endpoint, Link};
use crate::path::{Mtu, Rate};

/// A value of one or more words.
pub(super) trait Value: Sized {
    /// The accepted values, for warnings.
    const TAKES: &'static str;

    /// Parses a value.
    fn read(word: &str) -> Option<Self>;

    /// Formats a value, as it is parsed.
    fn write(&self) -> String;
}

/// Defines an enum of words; the first word of each variant is the one that is written.
macro_rules! words {
    ($(#[$about:meta])* $name:ident, $takes:literal: $($(#[$what:meta])* $variant:ident = $($word:literal)|+),+) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$what])* $variant),+ }

        impl Value for $name {
            const TAKES: &'static str = $takes;

            fn read(word: &str) -> Option<Self> {
                $(if [$($word),+].iter().any(|own| own.eq_ignore_ascii_case(word)) {
                    return Some(Self::$variant);
                })+
                None
            }

            fn write(&self) -> String {
                match self { $(Self::$variant => [$($word),+][0]),+ }.to_owned()
            }
        }
    };
}

words! {
    /// How addresses of other hosts are resolved.
    AddressProtocol, "acm":
    /// Addresses are resolved by a multicast query.
    Acm = "acm"
}
words! {
    /// How routes to other hosts are resolved.
    RouteProtocol, "sa or acm":
    /// Routes come from the subnet administrator.
    Sa = "sa",
    /// Routes come from the multicast group that both ends are in.
    Acm = "acm"
}
words! {
    /// How this host's own addresses are resolved.
    Loopback, "none or local":
    /// Like any other address.
    None = "none",
    /// Loopback addresses are resolved at once, without a message.
    Local = "local"
}
words! {
    /// Where the service listens for clients.
    ServerMode, "unix, loop or open":
    /// The service listens on the Unix socket.
    Unix = "unix",
    /// The service listens on a TCP port of the loopback.
    Loop = "loop",
    /// The service listens on a TCP port of all addresses.
    Open = "open"
}
words! {
    /// The format of the preloaded routes.
    RoutePreload, "none or opensm_full_v1":
    /// There are no preloaded routes.
    None = "none" | "no",
    /// OpenSM's dump of all paths, version 1.
    OpenSmFullV1 = "opensm_full_v1"
}
words! {
    /// The format of the preloaded addresses.
    AddressPreload, "none or acm_hosts":
    /// There are no preloaded addresses.
    None = "none" | "no",
    /// A file of addresses and GIDs.
    AcmHosts = "acm_hosts"
}

words! {
    /// What carries messages between services.
    CarrierKind, "udp or ud":
    /// Messages go over UDP sockets.
    Udp = "udp",
    /// Messages go over queue pairs of InfiniBand or RoCE devices.
    Ud = "ud"
}

/// A lifetime in minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Minutes(Option<u32>);

impl Minutes {
    /// The lifetime that never ends.
    pub const NEVER: Self = Self(None);

    /// Creates a lifetime of this many minutes.
    #[must_use]
    pub const fn new(minutes: u32) -> Self {
        Self(Some(minutes))
    }

    /// Returns the lifetime as a duration; `None` for never.
    ///
    /// ```
    /// use doorbell_acm::config::Minutes;
    /// assert_eq!(Minutes::new(2).duration(), Some(std::time::Duration::from_secs(120)));
    /// assert_eq!(Minutes::NEVER.duration(), None);
    /// ```
    #[must_use]
    pub fn duration(self) -> Option<Duration> {
        self.0.map(|minutes| Duration::from_secs(60 * u64::from(minutes)))
    }
}

impl Value for Minutes {
    const TAKES: &'static str = "minutes from 0 to 2147483647, or -1 for never";

    fn read(word: &str) -> Option<Self> {
        match word.parse::<i32>().ok()? {
            -1 => Some(Self::NEVER),
            minutes => u32::try_from(minutes).ok().map(Self::new),
        }
    }

    fn write(&self) -> String {
        self.0
            .map_or_else(|| "-1".to_owned(), |minutes| minutes.to_string())
    }
}

/// A maximum number in flight: 1 to [`Depth::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Depth(u16);

impl Depth {
    /// The largest depth.
    pub const MAX: u16 = 16_384;

    /// Creates a depth; `None` if it is 0 or above [`Depth::MAX`].
    #[must_use]
    pub const fn new(count: u16) -> Option<Self> {
        if count == 0 || count > Self::MAX {
            None
        } else {
            Some(Self(count))
        }
    }

    /// Returns the depth closest to a number.
    ///
    /// ```
    /// use doorbell_acm::config::Depth;
    /// assert_eq!(Depth::within(0).get(), 1);
    /// assert_eq!(Depth::within(1 << 30).get(), Depth::MAX);
    /// ```
    #[must_use]
    pub fn within(count: u32) -> Self {
        Self(count.clamp(1, u32::from(Self::MAX)) as u16)
    }

    /// Returns the depth as a number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Value for Depth {
    const TAKES: &'static str = "a number from 1 to 16384";

    fn read(word: &str) -> Option<Self> {
        Self::new(word.parse().ok()?)
    }

    fn write(&self) -> String {
        self.0.to_string()
    }
}

/// Where the log is written to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Logging {
    /// The standard output stream.
    Stdout,
    /// The standard error stream.
    Stderr,
    /// The system's log.
    Syslog,
    /// A file with this path.
    File(PathBuf),
}

impl Value for Logging {
    const TAKES: &'static str = "the path of a file, stdout, stderr or syslog";

    fn read(word: &str) -> Option<Self> {
        Some(match word {
            _ if word.eq_ignore_ascii_case("stdout") => Self::Stdout,
            _ if word.eq_ignore_ascii_case("stderr") => Self::Stderr,
            _ if word.eq_ignore_ascii_case("syslog") => Self::Syslog,
            path => Self::File(path.into()),
        })
    }

    fn write(&self) -> String {
        match self {
            Self::Stdout => "stdout".to_owned(),
            Self::Stderr => "stderr".to_owned(),
            Self::Syslog => "syslog".to_owned(),
            Self::File(path) => path.write(),
        }
    }
}

/// Which subnets a provider serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefix {
    /// The subnets that no other provider serves.
    Default,
    /// The subnet with this GID prefix.
    Of(u64),
}

impl Value for Prefix {
    const TAKES: &'static str = "a GID prefix of hexadecimal digits, or default";

    fn read(word: &str) -> Option<Self> {
        if word.eq_ignore_ascii_case("default") {
            return Some(Self::Default);
        }
        hexadecimal(word).map(Self::Of)
    }

    fn write(&self) -> String {
        match self {
            Self::Default => "default".to_owned(),
            Self::Of(prefix) => format!("0x{prefix:016x}"),
        }
    }
}

/// Parses hexadecimal digits, with or without `0x`.
pub(super) fn hexadecimal(word: &str) -> Option<u64> {
    let lower = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
    let digits = lower.unwrap_or(word);
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    all.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// Maximum bytes of an interface's name: alternative names are longer than the main one.
const INTERFACE_MAX: usize = doorbell_inet::ALTERNATIVE_MAX;

/// Checks a name by the kernel's rules for interfaces; the interface need not exist.
///
/// ```
/// use doorbell_acm::config::interface_name;
/// assert!(interface_name("eth0.100").is_ok());
/// assert!(interface_name("eth 0").is_err());
/// ```
///
/// # Errors
/// With the reason why the name is invalid.
pub fn interface_name(name: &str) -> Result<(), &'static str> {
    let unfit = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    match name {
        "" => Err("the name is empty"),
        "." | ".." => Err("`.` and `..` are not names of interfaces"),
        _ if name.len() > INTERFACE_MAX => Err("an interface's name has at most 127 bytes"),
        _ if name.contains(unfit) => Err("an interface's name has neither spaces nor `/` nor `:`"),
        _ => Ok(()),
    }
}

/// The interfaces for messages between services. By default nothing listens beyond the loopback.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Interfaces {
    /// The loopback only.
    Loopback,
    /// All interfaces of the host.
    All,
    /// The interfaces with these names.
    Named(Vec<String>),
}

impl Interfaces {
    /// Whether an interface is included.
    ///
    /// ```
    /// use doorbell_acm::config::Interfaces;
    /// let two = Interfaces::Named(vec!["eth0".into(), "eth1".into()]);
    /// assert!(two.has("eth0", false) && !two.has("eth2", false));
    /// assert!(two.has("lo", true), "the loopback is always included");
    /// ```
    #[must_use]
    pub fn has(&self, name: &str, is_loopback: bool) -> bool {
        self.among(is_loopback, |own| own == name)
    }

    /// Whether this endpoint's interface is included, by its name or by an alternative name.
    #[must_use]
    pub fn serve(&self, endpoint: &Endpoint) -> bool {
        self.among(endpoint.link == Link::Loopback, |own| endpoint.is_called(own))
    }

    fn among(&self, is_loopback: bool, is: impl Fn(&str) -> bool) -> bool {
        is_loopback
            || match self {
                Self::Loopback => false,
                Self::All => true,
                Self::Named(names) => names.iter().any(|own| is(own)),
            }
    }
}

impl Value for Interfaces {
    const TAKES: &'static str = "lo, all, or a comma-separated list of interface names";

    fn read(word: &str) -> Option<Self> {
        match word {
            "lo" => Some(Self::Loopback),
            _ if word.eq_ignore_ascii_case("all") => Some(Self::All),
            _ => {
                let names: Vec<String> = word.split(',').map(str::to_owned).collect();
                let fits = |name: &String| interface_name(name).is_ok();
                names.iter().all(fits).then_some(Self::Named(names))
            }
        }
    }

    fn write(&self) -> String {
        match self {
            Self::Loopback => "lo".to_owned(),
            Self::All => "all".to_owned(),
            Self::Named(names) => names.join(","),
        }
    }
}

impl Value for bool {
    const TAKES: &'static str = "yes or no";

    fn read(word: &str) -> Option<Self> {
        let is = |words: [&str; 3]| words.iter().any(|own| own.eq_ignore_ascii_case(word));
        if is(["yes", "true", "1"]) {
            Some(true)
        } else {
            is(["no", "false", "0"]).then_some(false)
        }
    }

    fn write(&self) -> String {
        if *self { "yes" } else { "no" }.to_owned()
    }
}

impl Value for PathBuf {
    const TAKES: &'static str = "the path of a file, without spaces";

    fn read(word: &str) -> Option<Self> {
        Some(word.into())
    }

    fn write(&self) -> String {
        self.to_string_lossy().into_owned()
    }
}

impl Value for Mtu {
    const TAKES: &'static str = "256, 512, 1024, 2048 or 4096";

    fn read(word: &str) -> Option<Self> {
        let bytes = word.parse().ok()?;
        Self::within(bytes).filter(|mtu| mtu.bytes() == bytes)
    }

    fn write(&self) -> String {
        self.bytes().to_string()
    }
}

impl Value for Rate {
    const TAKES: &'static str =
        "an InfiniBand rate in Gb/s (2.5, 5, 10, 14, 20, 25, 28, 30, 40, 50, 56, 60, 80, 100, …)";

    fn read(word: &str) -> Option<Self> {
        // The original has whole numbers: its 2 is 2.5.
        let word = if word == "2" { "2.5" } else { word };
        let all = (0..=u8::MAX).filter_map(Self::of);
        all.into_iter().find(|rate| rate.write() == word)
    }

    fn write(&self) -> String {
        let (whole, rest) = (self.megabits() / 1000, self.megabits() % 1000);
        if rest == 0 {
            whole.to_string()
        } else {
            format!("{whole}.{}", rest / 100)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_depths_have_bounds() {
        assert_eq!(Minutes::read("-1"), Some(Minutes::NEVER));
        assert_eq!(Minutes::read("0"), Some(Minutes::new(0)));
        for bad in ["-2", "x", "", "3.5", "4294967296"] {
            assert_eq!(Minutes::read(bad), None, "{bad}");
        }
        assert_eq!(Depth::read("16384").map(Depth::get), Some(16384));
        for bad in ["0", "16385", "-1", "65536"] {
            assert_eq!(Depth::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_and_rates_are_read_by_value() {
        assert_eq!(Mtu::read("2048").map(Mtu::code), Some(4));
        assert_eq!(Mtu::read("1500"), None);
        for (word, code) in [
            ("2", 2),
            ("2.5", 2),
            ("10", 3),
            ("56", 12),
            ("100", 16),
            ("400", 21),
        ] {
            assert_eq!(Rate::read(word).map(Rate::code), Some(code), "{word}");
        }
        assert_eq!(Rate::read("11"), None);
        for rate in (0..=u8::MAX).filter_map(Rate::of) {
            assert_eq!(Rate::read(&rate.write()), Some(rate));
        }
    }

    #[test]
    fn words_are_read_in_any_case_and_written_in_one() {
        assert_eq!(RoutePreload::read("NO"), Some(RoutePreload::None));
        assert_eq!(RoutePreload::None.write(), "none");
        assert_eq!(ServerMode::read("tcp"), None);
        assert_eq!(bool::read("True"), Some(true));
        assert_eq!(bool::read("2"), None);
        assert_eq!(Prefix::read("fe80000000000000"), Some(Prefix::Of(0xfe80 << 48)));
        assert_eq!(Prefix::read("+1"), None);
        assert_eq!(Logging::read("STDERR"), Some(Logging::Stderr));
        assert_eq!(Interfaces::read("eth0,"), None);
        assert_eq!(Interfaces::read("ALL"), Some(Interfaces::All));
    }

    #[test]
    fn names_of_interfaces_are_those_that_the_kernel_allows() {
        let (longest, longer) = ("x".repeat(INTERFACE_MAX), "x".repeat(INTERFACE_MAX + 1));
        for good in [
            "eth0",
            "eth0.100",
            "a",
            "1234567890123456",
            "br-lan",
            longest.as_str(),
        ] {
            assert_eq!(interface_name(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "eth0:1", longer.as_str(), "a\n"] {
            assert!(interface_name(bad).is_err(), "{bad:?}");
            assert_eq!(Interfaces::read(&format!("eth0,{bad}")), None, "{bad:?}");
        }
    }
}
