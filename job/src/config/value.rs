//! Parsing and formatting of values: every kind of setting describes what it expects.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::RAILS_MAX;
use doorbell_oob::launch::Kind;

use crate::error::suggestion;

/// A type of setting.
pub(crate) trait Value: Sized + Clone {
    /// The unit, or the form of the text, as shown in listings.
    const UNIT: &'static str;
    /// Parses a text.
    ///
    /// # Errors
    /// What was expected instead, as a continuation of "expected ".
    fn read(text: &str) -> Result<Self, String>;
    /// Returns a text that [`Value::read`] parses to the same value; empty for "not set".
    fn show(&self) -> String;
}

/// A size in bytes, read as `4096`, `64k`, `64 KiB` or `4Mi`: units are binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

/// A list of rail names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rails(pub Vec<RailName>);

const TIME_UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("h", 3600.0),
];
/// Binary units only, as at `--sizes`: `kB` could be meant as 1,000 bytes.
const SIZE_UNITS: [(&str, f64); 11] = [
    ("", 1.0),
    ("B", 1.0),
    ("k", 1024.0),
    ("Ki", 1024.0),
    ("KiB", 1024.0),
    ("M", 1_048_576.0),
    ("Mi", 1_048_576.0),
    ("MiB", 1_048_576.0),
    ("G", 1_073_741_824.0),
    ("Gi", 1_073_741_824.0),
    ("GiB", 1_073_741_824.0),
];
/// Longest time that a setting accepts: a year. Longer ones are typing errors.
const LONGEST_S: f64 = 366.0 * 86_400.0;

fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let number: f64 = text[..end].replace('_', "").parse().ok()?;
    Some((number, text[end..].trim()))
}

fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = number_and_unit(text)?;
    let (_, factor) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    let value = number * factor;
    value.is_finite().then_some(value)
}

impl Value for Duration {
    const UNIT: &'static str = "time";

    fn read(text: &str) -> Result<Self, String> {
        let expected = "a time above zero with its unit, such as `3 s`, `250 ms` or `1 min`";
        let seconds = scaled(text, &TIME_UNITS).ok_or(expected)?;
        if seconds <= 0.0 {
            return Err(format!("{expected} (every wait ends, so there is no zero)"));
        }
        if seconds > LONGEST_S {
            return Err("at most one year".to_owned());
        }
        match Duration::from_secs_f64(seconds) {
            Duration::ZERO => Err(expected.to_owned()),
            time => Ok(time),
        }
    }

    fn show(&self) -> String {
        for (unit, nanos) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
            if self.as_nanos().is_multiple_of(nanos) {
                return format!("{} {unit}", self.as_nanos() / nanos);
            }
        }
        format!("{} ns", self.as_nanos())
    }
}

impl Value for Size {
    const UNIT: &'static str = "bytes";

    fn read(text: &str) -> Result<Self, String> {
        let expected = "a size in bytes, such as `4096`, `64k`, `64 KiB` or `4Mi`";
        let bytes = scaled(text, &SIZE_UNITS).ok_or(expected)?;
        if bytes.fract() != 0.0 || bytes > (1u64 << 50) as f64 {
            return Err(format!("{expected}, whole and at most 2^50"));
        }
        Ok(Self(bytes as usize))
    }

    fn show(&self) -> String {
        for (unit, bytes) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 != 0 && self.0.is_multiple_of(bytes) {
                return format!("{} {unit}", self.0 / bytes);
            }
        }
        self.0.to_string()
    }
}

impl Value for u32 {
    const UNIT: &'static str = "count";

    fn read(text: &str) -> Result<Self, String> {
        text.trim()
            .replace('_', "")
            .parse()
            .map_err(|_| format!("a whole number from 0 to {}", u32::MAX))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    const UNIT: &'static str = "on|off";

    fn read(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "on" | "true" | "yes" | "1" => Ok(true),
            "off" | "false" | "no" | "0" => Ok(false),
            _ => Err("`on` or `off`".to_owned()),
        }
    }

    fn show(&self) -> String {
        if *self { "on" } else { "off" }.to_owned()
    }
}

impl Value for String {
    const UNIT: &'static str = "text";

    fn read(text: &str) -> Result<Self, String> {
        Ok(text.trim().to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Value for IpAddr {
    const UNIT: &'static str = "address";

    fn read(text: &str) -> Result<Self, String> {
        let address = text.trim().parse().ok();
        let host =
            address.filter(|ip: &Self| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback());
        host.ok_or_else(|| "an IP address of one host, as `10.0.0.1` or `fd00::1`".to_owned())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl<T: Value> Value for Option<T> {
    const UNIT: &'static str = T::UNIT;

    fn read(text: &str) -> Result<Self, String> {
        match text.trim() {
            "" | "auto" => Ok(None),
            text => T::read(text)
                .map(Some)
                .map_err(|expected| format!("{expected}; or `auto`")),
        }
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "auto".to_owned(), Value::show)
    }
}

impl Value for Rails {
    const UNIT: &'static str = "names, comma-separated";

    fn read(text: &str) -> Result<Self, String> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let mut rails = Vec::new();
        for name in names {
            let name: RailName = name
                .parse()
                .map_err(|error| format!("names of rails ({error})"))?;
            if rails.contains(&name) {
                return Err(format!("each rail once, but `{name}` stands twice"));
            }
            rails.push(name);
        }
        if rails.len() > RAILS_MAX {
            return Err(format!("at most {RAILS_MAX} rails, not {}", rails.len()));
        }
        Ok(Self(rails))
    }

    fn show(&self) -> String {
        let mut text = String::new();
        for (i, name) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(text, "{comma}{name}").expect("writing to a String cannot fail");
        }
        text
    }
}

/// An enumeration whose values are words.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl Value for $name {
            const UNIT: &'static str = words!(@join $($word)*);

            fn read(text: &str) -> Result<Self, String> {
                match text.trim().to_ascii_lowercase().as_str() {
                    $($word => Ok(Self::$variant),)*
                    other => {
                        let nearest = nearest(other, [$($word),*].into_iter());
                        Err(format!("one of {}{}", Self::UNIT, suggestion(nearest)))
                    }
                }
            }

            fn show(&self) -> String {
                match self { $(Self::$variant => $word,)* }.to_owned()
            }
        }
    };
    (@join $first:literal $($rest:literal)*) => { concat!($first $(, "|", $rest)*) };
}

/// Returns the name among `known` that `given` was probably meant to be, or an empty text. A name that
/// differs in more than about a third of its characters is no useful hint. The common prefix of all variables
/// does not count.
pub(crate) fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    let bare = |name: &str| {
        name.to_ascii_lowercase()
            .trim_start_matches("doorbell_")
            .to_owned()
    };
    let known: Vec<(String, &str)> = known.map(|name| (bare(name), name)).collect();
    let meant = doorbell_fabric::nearest::nearest(&bare(given), known.iter().map(|(bare, _)| bare.as_str()));
    let name = meant.and_then(|meant| known.iter().find(|(bare, _)| bare == meant));
    name.map_or("", |(_, name)| name)
}

words! {
    /// Where a process gets its rank from.
    Launch {
        /// The first available source, in the order below.
        Auto = "auto",
        /// The variables of `doorbell run`.
        Doorbell = "doorbell",
        /// PMIx: mpirun of Open MPI, PRRTE, `srun --mpi=pmix`.
        Pmix = "pmix",
        /// PMI-2 over an inherited descriptor: `srun --mpi=pmi2`.
        Pmi2 = "pmi2",
        /// PMI-1 over an inherited descriptor: hydra.
        Pmi1 = "pmi1",
        /// Variables that have only rank and size.
        Environment = "environment",
        /// No source: a job of one rank.
        Singleton = "singleton",
    }
}

impl Launch {
    /// Returns the source, if one is named.
    pub fn named(self) -> Option<Kind> {
        match self {
            Self::Auto => None,
            Self::Doorbell => Some(Kind::Doorbell),
            Self::Pmix => Some(Kind::Pmix),
            Self::Pmi2 => Some(Kind::Pmi2),
            Self::Pmi1 => Some(Kind::Pmi1),
            Self::Environment => Some(Kind::Environment),
            Self::Singleton => Some(Kind::Singleton),
        }
    }
}

words! {
    /// The thread that makes progress.
    Mode {
        /// The caller's thread, inside calls: the lowest latency.
        Inline = "inline",
        /// A thread of its own, on a core of its own.
        Dedicated = "dedicated",
    }
}

words! {
    /// The threads that run handlers of active messages, beside a progress thread.
    AmHandlers {
        /// The thread that makes the calls alone: the progress thread moves data.
        Owner = "owner",
        /// The progress thread, too, while no call waits.
        Progress = "progress",
    }
}

words! {
    /// The steps of a wait while nothing happens.
    Wait {
        /// Spins without end: the lowest latency, for one core.
        LowestLatency = "lowest-latency",
        /// Spins, then yields the core, then sleeps on a descriptor.
        Balanced = "balanced",
        /// Sleeps on a descriptor almost at once.
        Sleep = "sleep",
    }
}

words! {
    /// The rails to other hosts that the libfabric provider offers first where none are named.
    OfiNetwork {
        /// None: they are used by those who name them.
        Off = "off",
        /// The udp rails of all interfaces that routes lead to.
        Routes = "routes",
    }
}

words! {
    /// What follows when the control plane has lost a rank, or this rank's lifeline.
    ControlPolicy {
        /// Operations that need a lost rank end with an error; without a lifeline, all others are lost.
        End = "end",
        /// The loss is an event only, and the control plane goes on looking for a lifeline.
        Tell = "tell",
    }
}

words! {
    /// The threads that the connections of the control plane's transport `tcp` run on.
    ControlThreads {
        /// The control plane's one thread, for all interfaces.
        One = "one",
        /// A thread for each interface, beside the control plane's own.
        Nic = "nic",
    }
}

words! {
    /// What the control plane's thread does while nothing happens.
    ControlWait {
        /// It sleeps in the kernel until something does.
        Block = "block",
        /// It polls: the lowest latency, for one core.
        Spin = "spin",
    }
}

words! {
    /// Which ranks the control plane connects to.
    ControlRoutes {
        /// The parent and the children in the tree of ranks, which relay to all others.
        Tree = "tree",
        /// Each rank that a message goes to, beside the parent and the children.
        Direct = "direct",
    }
}

words! {
    /// Where other processes can read a rank's counters.
    CounterPlace {
        /// In memory of the rank, found through `/proc` by the same user: gone with the process, however it
        /// ends.
        Memory = "memory",
        /// No other process can read them.
        Off = "off",
    }
}

words! {
    /// The address family of a rail that is named by its interface.
    IpFamily {
        /// The first IPv4 address.
        V4 = "ipv4",
        /// The first IPv6 address that is not link-local, if there is one.
        V6 = "ipv6",
    }
}

words! {
    /// How frames get from an AF_XDP queue to the rail's memory.
    XdpMode {
        /// The best one that the interface supports; `doorbell info` and the results show which one that is.
        Best = "best",
        /// The device reads and writes the rail's memory itself.
        ZeroCopy = "zero-copy",
        /// The driver passes its buffers on, and the kernel copies.
        Native = "native",
        /// The kernel makes a socket buffer of each frame, and copies.
        Generic = "generic",
    }
}

words! {
    /// Whether peers of reliable connections write short messages into memory that is polled.
    VerbsRing {
        /// Where the library reports that the device writes data in order.
        Auto = "auto",
        /// On every device.
        On = "on",
        /// No device: everything goes over queues.
        Off = "off",
    }
}

words! {
    /// What steers frames to the queues of a usNIC function, and enables its queue pairs.
    UsnicControl {
        /// The agent of its physical function where its socket exists, else the function itself.
        Auto = "auto",
        /// The agent only.
        Agent = "agent",
        /// The function's own command block.
        Direct = "direct",
        /// Its physical function, which the rail's process opens for itself.
        Proxy = "proxy",
    }
}

words! {
    /// What happens to commands that a usNIC function may not support.
    UsnicCommands {
        /// They are sent, and may fail.
        Try = "try",
        /// They are not sent.
        Skip = "skip",
        /// They are sent, and a failure is an error.
        Need = "need",
    }
}

words! {
    /// How a usNIC function takes commands.
    UsnicCommandWay {
        /// Through the command block, or through the ring where there is no block.
        Auto = "auto",
        /// Through the command block.
        Devcmd = "devcmd",
        /// Through the command ring.
        Devcmd2 = "devcmd2",
    }
}

words! {
    /// The protocol that carries a message; anything but `auto` is for tests and measurements.
    Protocol {
        /// Chosen by size and by the features of the rail.
        Auto = "auto",
        /// Rendezvous, then fragments.
        Fragments = "fragments",
        /// Rendezvous, then the receiver reads.
        Get = "get",
        /// Rendezvous, then the sender writes.
        Put = "put",
    }
}

words! {
    /// Where a long message continues after a restart handshake.
    Resume {
        /// At the bytes that the receiver lacks.
        Missing = "missing",
        /// At the first byte.
        FromZero = "from-zero",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_a_unit_and_are_never_zero() {
        assert_eq!(Duration::read("3 s").unwrap(), Duration::from_secs(3));
        assert_eq!(Duration::read("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(Duration::read("1.5 min").unwrap(), Duration::from_secs(90));
        for bad in [
            "3",
            "",
            "s",
            "0 s",
            "0.0ms",
            "-1 s",
            "1 parsec",
            "1e9 h",
            "99999999 h",
            "0.0000001 ns",
        ] {
            assert!(Duration::read(bad).is_err(), "{bad}");
        }
        for nanos in [1u64, 1_500, 2_000_000, 60_000_000_000] {
            let time = Duration::from_nanos(nanos);
            assert_eq!(Duration::read(&time.show()).unwrap(), time);
        }
    }

    #[test]
    fn sizes_read_with_binary_units() {
        assert_eq!(Size::read("64 KiB").unwrap(), Size(65_536));
        assert_eq!(Size::read("1.5KiB").unwrap(), Size(1_536));
        assert_eq!(Size::read("4_096").unwrap(), Size(4_096));
        for same in ["64k", "64K", "64Ki", "64 ki", "64kib", "65536 B"] {
            assert_eq!(Size::read(same).unwrap(), Size(65_536), "{same}");
        }
        assert_eq!(Size::read("1Gi").unwrap(), Size(1 << 30));
        assert_eq!(Size::read("2m").unwrap(), Size(2 << 20));
        for bad in [
            "64kB",
            "64 q",
            "k",
            "",
            "4 kB!",
            "0.3",
            "1e30",
            "-1",
            "9999999999 GiB",
        ] {
            assert!(Size::read(bad).is_err(), "{bad}");
        }
        for bytes in [0, 1, 4_096, 5_000, 1 << 30] {
            assert_eq!(Size::read(&Size(bytes).show()).unwrap(), Size(bytes));
        }
    }

    #[test]
    fn words_name_the_nearest() {
        assert_eq!(Wait::read("Balanced").unwrap(), Wait::Balanced);
        assert!(Wait::read("slep").unwrap_err().contains("nearest is `sleep`"));
        assert!(!Wait::read("quickly").unwrap_err().contains("nearest"));
        let variables = ["DOORBELL_SIZE", "DOORBELL_RANK"];
        assert_eq!(nearest("DOORBELL_SIZ", variables.into_iter()), "DOORBELL_SIZE");
        assert_eq!(nearest("DOORBELL_ZZZZZ", variables.into_iter()), "");
        assert_eq!(Option::<Wait>::read("auto").unwrap(), None);
        assert_eq!(Option::<u32>::read("7").unwrap(), Some(7));
    }

    #[test]
    fn rails_are_names_and_stand_once() {
        let rails = Rails::read("shm, udp:eth0").unwrap();
        assert_eq!((rails.0.len(), rails.show().as_str()), (2, "shm,udp:eth0"));
        assert!(Rails::read("shm,shm").unwrap_err().contains("twice"));
        let many: Vec<String> = (0..=RAILS_MAX).map(|at| format!("udp:eth{at}")).collect();
        assert_eq!(Rails::read(&many[1..].join(",")).unwrap().0.len(), RAILS_MAX);
        let error = Rails::read(&many.join(",")).unwrap_err();
        assert!(error.contains("at most 32 rails, not 33"), "{error}");
        assert!(Rails::read("smh").unwrap_err().contains("nearest is `shm`"));
        assert_eq!(Rails::read("").unwrap(), Rails::default());
    }
}
