//! The options: those of the original by their names, and our own, which it ignores.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::items::{ITEMS, Item};
use super::lines::{Warnings, each_line, named, shown};
use super::values::{
    AddressPreload, AddressProtocol, CarrierKind, Depth, Interfaces, Logging, Loopback, Minutes, Prefix,
    RoutePreload, RouteProtocol, ServerMode,
};
use crate::path::{Mtu, Rate};

/// Maximum number of providers.
pub(super) const PROVIDERS_MAX: usize = 64;

/// All options. Fields are named as in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the log is written to; standard error if not set.
    pub log_file: Option<Logging>,
    /// How much is logged: from 0 (errors) to 2 (each query).
    pub log_level: u8,
    /// How much InfiniBand's user MADs log; they are not used here.
    pub umad_debug_level: u8,
    /// The lock file that keeps a second service from starting; without one, the socket does.
    pub lock_file: Option<PathBuf>,
    /// How addresses are resolved.
    pub addr_prot: AddressProtocol,
    /// When a resolved address expires.
    pub addr_timeout: Minutes,
    /// How routes are resolved.
    pub route_prot: RouteProtocol,
    /// When a resolved route expires.
    pub route_timeout: Minutes,
    /// How this host's own addresses are resolved.
    pub loopback_prot: Loopback,
    /// The TCP port for clients, if [`Options::server_mode`] enables one.
    pub server_port: u16,
    /// Where the service listens for clients.
    pub server_mode: ServerMode,
    /// Whether only `ib_acme` and the kernel are served, and librdmacm is not.
    pub acme_plus_kernel_only: bool,
    /// Added to the subnet's timeout for each attempt; whole milliseconds.
    pub timeout: Duration,
    /// Number of attempts after the first.
    pub retries: u8,
    /// Maximum multicast queries in flight.
    pub resolve_depth: Depth,
    /// Maximum queries to the subnet administrator in flight.
    pub sa_depth: Depth,
    /// Maximum answers in flight.
    pub send_depth: Depth,
    /// Maximum received frames that may be queued.
    pub recv_depth: Depth,
    /// The MTU of the group that all are in.
    pub min_mtu: Mtu,
    /// The rate of the group that all are in.
    pub min_rate: Rate,
    /// The format of the preloaded routes.
    pub route_preload: RoutePreload,
    /// The file of preloaded routes.
    pub route_data_file: PathBuf,
    /// The format of the preloaded addresses.
    pub addr_preload: AddressPreload,
    /// The file of preloaded addresses.
    pub addr_data_file: PathBuf,
    /// Whether `ibacm_addr.cfg` may contain IP addresses besides names.
    pub support_ips_in_addr_cfg: bool,
    /// Where the original's providers are; none are loaded here.
    pub provider_lib_path: Option<PathBuf>,
    /// Which provider serves which subnet. There is one provider here, for all.
    pub provider: Vec<(String, Prefix)>,

    /// The file of the job's key, which authenticates frames between services.
    pub doorbell_key_file: Option<PathBuf>,
    /// Whether a path is probed before it is used.
    pub doorbell_verify: bool,
    /// How long a failed lookup is not repeated; whole milliseconds.
    pub doorbell_negative: Duration,
    /// Whether frames between services are sent over IPv4.
    pub doorbell_ipv4: bool,
    /// Whether frames between services are sent over IPv6.
    pub doorbell_ipv6: bool,
    /// The UDP port of the multicast groups.
    pub doorbell_port: u16,
    /// The interfaces for frames between services.
    pub doorbell_interfaces: Interfaces,
    /// What carries messages between services.
    pub doorbell_carrier: CarrierKind,
}

impl Default for Options {
    /// Returns the original's defaults, except for the files that it writes by itself, and with the loopback
    /// as the only interface.
    fn default() -> Self {
        Self {
            log_file: None,
            log_level: 0,
            umad_debug_level: 0,
            lock_file: None,
            addr_prot: AddressProtocol::Acm,
            addr_timeout: Minutes::new(1440),
            route_prot: RouteProtocol::Sa,
            route_timeout: Minutes::NEVER,
            loopback_prot: Loopback::Local,
            server_port: 6125,
            server_mode: ServerMode::Unix,
            acme_plus_kernel_only: false,
            timeout: Duration::from_millis(2000),
            retries: 2,
            resolve_depth: Depth::within(1),
            sa_depth: Depth::within(1),
            send_depth: Depth::within(1),
            recv_depth: Depth::within(1024),
            min_mtu: Mtu::within(2048).unwrap_or(Mtu::MIN),
            min_rate: Rate::within(10_000),
            route_preload: RoutePreload::None,
            route_data_file: "/etc/rdma/ibacm_route.data".into(),
            addr_preload: AddressPreload::None,
            addr_data_file: "/etc/rdma/ibacm_hosts.data".into(),
            support_ips_in_addr_cfg: false,
            provider_lib_path: None,
            provider: vec![("ibacmp".to_owned(), Prefix::Default)],
            doorbell_key_file: None,
            doorbell_verify: false,
            doorbell_negative: Duration::from_millis(1000),
            doorbell_ipv4: true,
            doorbell_ipv6: true,
            doorbell_port: 6126,
            doorbell_interfaces: Interfaces::Loopback,
            doorbell_carrier: CarrierKind::Udp,
        }
    }
}

/// Parses `ibacm_opts.cfg`; what it does not contain has its default.
///
/// ```
/// use doorbell_acm::config::{Warnings, read_options};
/// let mut warnings = Warnings::default();
/// let options = read_options(b"retries 5\ncolour blue\n", "opts".as_ref(), &mut warnings);
/// assert_eq!(options.retries, 5);
/// assert_eq!(warnings.iter().next().unwrap().line, 2);
/// ```
#[must_use]
pub fn read_options(text: &[u8], file: &Path, warnings: &mut Warnings) -> Options {
    let (mut options, file) = (Options::default(), named(file));
    let mut has_providers = false;
    let done = each_line(text, &file, warnings, |number, line, warnings| {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { return };
        let values: Vec<&str> = words.collect();
        let Some(item) = Item::of(name) else {
            let what = format!("unknown option {}", shown(name));
            return warnings.push(&file, number, what, "see `doorbell acm config` for the options");
        };
        if values.len() < item.words {
            let what = format!("the option {} has too few values and is unchanged", item.name);
            return warnings.push(&file, number, what, format!("expected {}", item.takes));
        }
        if item.name == "provider" && !std::mem::replace(&mut has_providers, true) {
            // The first provider in the file replaces the default one.
            options.provider.clear();
        }
        if !(item.set)(&mut options, &values) {
            let given = shown(&values.join(" "));
            let what = format!(
                "{given} is not valid for the option {}, which is unchanged",
                item.name
            );
            return warnings.push(&file, number, what, format!("expected {}", item.takes));
        }
        if item.name == "umad_debug_level" && options.umad_debug_level > 0 {
            let what = "umad_debug_level has no effect: InfiniBand's user MADs are not used".to_owned();
            warnings.push(&file, number, what, "log_level 2 logs each query");
        }
        if let Some(more) = values.get(item.words) {
            let what = format!("{} after the value of {} is ignored", shown(more), item.name);
            warnings.push(
                &file,
                number,
                what,
                "put a # at the start of a line to comment it out",
            );
        }
    });
    debug_assert!(done.is_ok(), "reading memory cannot fail");
    if options.provider.is_empty() {
        options.provider = Options::default().provider;
    }
    options
}

/// Formats `ibacm_opts.cfg`: every option with its value, which [`read_options`] parses again, after a
/// comment with its purpose, or with what `why` returns for its name.
#[must_use]
pub fn write_options(options: &Options, why: impl Fn(&str) -> Option<String>) -> String {
    let mut text = String::new();
    for item in ITEMS {
        let reason = why(item.name).unwrap_or_else(|| item.about.to_owned());
        comment(&mut text, &format!("{}: {reason}", item.name));
        comment(&mut text, &format!("Values: {}.", item.takes));
        for value in (item.get)(options) {
            match value {
                Some(value) => writeln!(text, "{} {value}", item.name),
                None => writeln!(text, "# {}", item.name),
            }
            .expect("writing to a string cannot fail");
        }
        text.push('\n');
    }
    text
}

/// Appends a comment, in lines that the original reads whole.
pub(super) fn comment(text: &mut String, words: &str) {
    let mut line = "#".to_owned();
    for word in words.split(' ') {
        if line.len() + 1 + word.len() > 100 && line.len() > 1 {
            text.push_str(&line);
            text.push('\n');
            line = "#".to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Options, Vec<(u32, String)>) {
        let mut warnings = Warnings::default();
        let options = read_options(text.as_bytes(), Path::new("opts"), &mut warnings);
        let said = warnings
            .iter()
            .map(|said| (said.line, said.to_string()))
            .collect();
        (options, said)
    }

    #[test]
    fn the_defaults_are_those_of_the_reference() {
        let (options, said) = read("");
        assert!(said.is_empty());
        let stated = [
            ("log_level", "0"),
            ("umad_debug_level", "0"),
            ("addr_prot", "acm"),
            ("addr_timeout", "1440"),
            ("route_prot", "sa"),
            ("route_timeout", "-1"),
            ("loopback_prot", "local"),
            ("server_port", "6125"),
            ("server_mode", "unix"),
            ("acme_plus_kernel_only", "no"),
            ("timeout", "2000"),
            ("retries", "2"),
            ("resolve_depth", "1"),
            ("sa_depth", "1"),
            ("send_depth", "1"),
            ("recv_depth", "1024"),
            ("min_mtu", "2048"),
            ("min_rate", "10"),
            ("route_preload", "none"),
            ("route_data_file", "/etc/rdma/ibacm_route.data"),
            ("addr_preload", "none"),
            ("addr_data_file", "/etc/rdma/ibacm_hosts.data"),
            ("support_ips_in_addr_cfg", "no"),
            ("provider", "ibacmp default"),
        ];
        for (name, value) in stated {
            let item = Item::of(name).unwrap();
            assert_eq!((item.get)(&options), [Some(value.to_owned())], "{name}");
        }
        // Options that the original sets by itself and that are not used here.
        let unset = ["log_file", "lock_file", "provider_lib_path"];
        for name in unset {
            assert_eq!((Item::of(name).unwrap().get)(&options), [None], "{name}");
        }
        let original = ITEMS.iter().filter(|item| !item.name.starts_with("doorbell_"));
        assert_eq!(
            original.count(),
            stated.len() + unset.len(),
            "every one of them was looked at"
        );
    }

    #[test]
    fn later_lines_win_and_names_have_no_case() {
        let (options, said) = read("retries 1\nRETRIES 7\n# retries 9\n retries 8\n");
        assert_eq!((options.retries, said.len()), (8, 0));
    }

    #[test]
    fn what_cannot_be_used_is_said_with_its_line_and_what_it_would_take() {
        let (options, said) = read(
            "timeout\nretries many\nmin_mtu 1500\nno_such 1\nrecv_depth 0\ntimeout 0\nserver_port 0\n\
             retries 3 4\nprovider ibacmp\naddr_timeout -2\n",
        );
        let lines: Vec<u32> = said.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, (1..=10).collect::<Vec<u32>>(), "{said:?}");
        assert!(
            said[2].1.contains("\"1500\" is not valid") && said[2].1.contains("1024"),
            "{}",
            said[2].1
        );
        assert!(said[3].1.contains("unknown option \"no_such\""), "{}", said[3].1);
        let expected = Options {
            retries: 3,
            ..Options::default()
        };
        assert_eq!(options, expected, "all else is as if those lines were not there");
    }

    #[test]
    fn the_carrier_is_one_of_two() {
        let (options, said) = read("doorbell_carrier UD\n");
        assert_eq!((options.doorbell_carrier, said.len()), (CarrierKind::Ud, 0));
        for bad in ["rc", "ud2", "verbs", "\"ud\""] {
            let (options, said) = read(&format!("doorbell_carrier {bad}\n"));
            assert_eq!(
                (options.doorbell_carrier, said.len()),
                (CarrierKind::Udp, 1),
                "{bad}"
            );
            assert!(said[0].1.contains("expected udp or ud"), "{}", said[0].1);
        }
    }

    #[test]
    fn providers_are_repeated_and_those_written_replace_the_one_that_is_not() {
        let (options, said) = read("provider one 0xfe80000000000000\nprovider two default\n");
        assert!(said.is_empty(), "{said:?}");
        let expected = [
            ("one".to_owned(), Prefix::Of(0xfe80 << 48)),
            ("two".to_owned(), Prefix::Default),
        ];
        assert_eq!(options.provider, expected);
        let (options, said) = read(&"provider p default\n".repeat(PROVIDERS_MAX + 1));
        assert_eq!((options.provider.len(), said.len()), (PROVIDERS_MAX, 1));
    }

    #[test]
    fn what_is_written_is_read_again_and_fits_the_original() {
        let options = Options {
            log_file: Some(Logging::Stderr),
            lock_file: Some("/run/lock".into()),
            addr_timeout: Minutes::NEVER,
            min_rate: Rate::MIN,
            provider_lib_path: Some("/usr/lib/ibacm".into()),
            provider: vec![("p".to_owned(), Prefix::Of(1)), ("q".to_owned(), Prefix::Default)],
            doorbell_key_file: Some("/etc/rdma/key".into()),
            doorbell_interfaces: Interfaces::Named(vec!["eth0".into(), "ib0".into()]),
            doorbell_negative: Duration::from_millis(50),
            ..Options::default()
        };
        let text = write_options(&options, |name| (name == "retries").then(|| "word ".repeat(60)));
        let (back, said) = read(&text);
        assert_eq!((back, said), (options, Vec::new()));
        assert!(text.lines().all(|line| line.len() < 119), "{text}");
        let names = ITEMS.iter().map(|item| item.name);
        assert!(names.clone().all(|name| name.len() <= 31));
    }
}
