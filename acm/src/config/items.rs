//! The table of options: one row each, with its name, its accepted values, and how to read and write it.

use std::time::Duration;

use super::options::{Options, PROVIDERS_MAX};
use super::values::{
    AddressPreload, AddressProtocol, CarrierKind, Depth, Interfaces, Logging, Loopback, Minutes, Prefix,
    RoutePreload, RouteProtocol, ServerMode, Value,
};
use crate::path::{Mtu, Rate};

/// Maximum bytes of a value that the original reads.
const VALUE_MAX: usize = 255;

/// A row of the table.
pub(super) struct Item {
    /// The name of the option; its case does not matter in files.
    pub(super) name: &'static str,
    /// What it is for.
    pub(super) about: &'static str,
    /// What values it accepts.
    pub(super) takes: &'static str,
    /// How many words its value has.
    pub(super) words: usize,
    /// Sets it from words; returns false and changes nothing if they are not valid.
    pub(super) set: fn(&mut Options, &[&str]) -> bool,
    /// Formats it: a value for each line, or `None` for an option that is not set.
    pub(super) get: fn(&Options) -> Vec<Option<String>>,
}

impl Item {
    /// Returns the option with this name.
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        ITEMS.iter().find(|item| item.name.eq_ignore_ascii_case(name))
    }
}

fn put<V: Value>(to: &mut V, words: &[&str]) -> bool {
    let word = words.first().filter(|word| word.len() <= VALUE_MAX);
    match word.and_then(|word| V::read(word)) {
        Some(value) => {
            *to = value;
            true
        }
        None => false,
    }
}

fn put_some<V: Value>(to: &mut Option<V>, words: &[&str]) -> bool {
    let word = words.first().filter(|word| word.len() <= VALUE_MAX);
    let value = word.and_then(|word| V::read(word));
    value.map(|value| *to = Some(value)).is_some()
}

/// Sets a number up to `most`.
fn put_number(to: &mut u8, words: &[&str], most: u8) -> bool {
    let number = words.first().and_then(|word| word.parse().ok());
    let number = number.filter(|number| *number <= most);
    number.inspect(|number| *to = *number).is_some()
}

fn put_port(to: &mut u16, words: &[&str]) -> bool {
    let port = words.first().and_then(|word| word.parse().ok());
    let port = port.filter(|port| *port > 0);
    port.inspect(|port| *to = *port).is_some()
}

fn put_millis(to: &mut Duration, words: &[&str], least: u64) -> bool {
    let millis = words.first().and_then(|word| word.parse::<u64>().ok());
    let millis = millis.filter(|millis| (least..=600_000).contains(millis));
    millis
        .inspect(|millis| *to = Duration::from_millis(*millis))
        .is_some()
}

fn put_file(to: &mut Option<std::path::PathBuf>, words: &[&str]) -> bool {
    let word = words.first().filter(|word| word.len() <= VALUE_MAX);
    let file = word.map(|word| (!word.eq_ignore_ascii_case("none")).then(|| word.into()));
    file.map(|file| *to = file).is_some()
}

fn put_provider(options: &mut Options, words: &[&str]) -> bool {
    let [name, prefix, ..] = words else { return false };
    let fits = name.len() <= 63 && options.provider.len() < PROVIDERS_MAX;
    let prefix = Prefix::read(prefix).filter(|_| fits);
    prefix
        .map(|prefix| options.provider.push(((*name).to_owned(), prefix)))
        .is_some()
}

fn one(value: impl ToString) -> Vec<Option<String>> {
    vec![Some(value.to_string())]
}

fn providers(options: &Options) -> Vec<Option<String>> {
    let each = options.provider.iter();
    each.map(|(name, prefix)| Some(format!("{name} {}", prefix.write())))
        .collect()
}

/// A row whose type knows the values it accepts.
macro_rules! row {
    ($name:ident: $kind:ty, $about:literal) => {
        Item {
            name: stringify!($name),
            about: $about,
            takes: <$kind as Value>::TAKES,
            words: 1,
            set: |options, words| put::<$kind>(&mut options.$name, words),
            get: |options| vec![Some(options.$name.write())],
        }
    };
}

/// A row with a function of its own.
macro_rules! own {
    ($name:ident, $about:literal, $takes:expr, $set:expr, $get:expr) => {
        Item {
            name: stringify!($name),
            about: $about,
            takes: $takes,
            words: 1,
            set: $set,
            get: $get,
        }
    };
}

/// All options, the original's first.
pub(super) const ITEMS: &[Item] = &[
    own!(
        log_file,
        "where the log is written to; standard error if not set.",
        <Logging as Value>::TAKES,
        |o, w| put_some(&mut o.log_file, w),
        |o| vec![o.log_file.as_ref().map(Value::write)]
    ),
    own!(
        log_level,
        "how much is logged: warnings and errors (0), also changes (1), also each query (2).",
        "0, 1 or 2",
        |o, w| put_number(&mut o.log_level, w, 2),
        |o| one(o.log_level)
    ),
    own!(
        umad_debug_level,
        "how much the user MADs of InfiniBand log.",
        "a number from 0 to 9",
        |o, w| put_number(&mut o.umad_debug_level, w, 9),
        |o| one(o.umad_debug_level)
    ),
    own!(
        lock_file,
        "the file that keeps a second service from starting; if not set, its socket does.",
        <std::path::PathBuf as Value>::TAKES,
        |o, w| put_some(&mut o.lock_file, w),
        |o| vec![o.lock_file.as_ref().map(Value::write)]
    ),
    row!(addr_prot: AddressProtocol, "how addresses are resolved."),
    row!(addr_timeout: Minutes, "when a resolved address expires."),
    row!(route_prot: RouteProtocol, "how routes are resolved: by the subnet administrator or from the group."),
    row!(route_timeout: Minutes, "when a resolved route expires."),
    row!(loopback_prot: Loopback, "how this host's own addresses are resolved."),
    own!(
        server_port,
        "the TCP port for clients.",
        "a port from 1 to 65535",
        |o, w| put_port(&mut o.server_port, w),
        |o| one(o.server_port)
    ),
    row!(server_mode: ServerMode, "where the service listens for clients."),
    row!(acme_plus_kernel_only: bool, "whether only ib_acme and the kernel are served."),
    own!(
        timeout,
        "how long to wait for an answer, beyond the subnet's own timeout.",
        "milliseconds from 1 to 600000",
        |o, w| put_millis(&mut o.timeout, w, 1),
        |o| one(o.timeout.as_millis())
    ),
    own!(
        retries,
        "how often a query is repeated.",
        "a number from 0 to 100",
        |o, w| put_number(&mut o.retries, w, 100),
        |o| one(o.retries)
    ),
    row!(resolve_depth: Depth, "multicast queries in flight."),
    row!(sa_depth: Depth, "queries to the subnet administrator in flight."),
    row!(send_depth: Depth, "answers in flight."),
    row!(recv_depth: Depth, "received frames that may be queued."),
    row!(min_mtu: Mtu, "the MTU of the group that every host joins: the same on all of them."),
    row!(min_rate: Rate, "the rate of the group that every host joins: the same on all of them."),
    row!(route_preload: RoutePreload, "the format of the preloaded routes."),
    row!(route_data_file: std::path::PathBuf, "the file of preloaded routes."),
    row!(addr_preload: AddressPreload, "the format of the preloaded addresses."),
    row!(addr_data_file: std::path::PathBuf, "the file of preloaded addresses."),
    row!(support_ips_in_addr_cfg: bool, "whether the file of addresses may contain IP addresses."),
    own!(
        provider_lib_path,
        "where providers are loaded from; doorbell loads none.",
        "the path of a folder, or none",
        |o, w| put_file(&mut o.provider_lib_path, w),
        |o| vec![o.provider_lib_path.as_ref().map(Value::write)]
    ),
    Item {
        name: "provider",
        about: "which provider serves which subnet; may be repeated. Doorbell has one.",
        takes: "a name, and a GID prefix of hexadecimal digits or default",
        words: 2,
        set: put_provider,
        get: providers,
    },
    own!(
        doorbell_key_file,
        "the file of the job's key, by which services authenticate each other.",
        "the path of a file, or none",
        |o, w| put_file(&mut o.doorbell_key_file, w),
        |o| vec![o.doorbell_key_file.as_ref().map(Value::write)]
    ),
    row!(doorbell_verify: bool, "whether a path is probed before it is used."),
    own!(
        doorbell_negative,
        "how long a failed lookup is not repeated.",
        "milliseconds from 0 to 600000",
        |o, w| put_millis(&mut o.doorbell_negative, w, 0),
        |o| one(o.doorbell_negative.as_millis())
    ),
    row!(doorbell_ipv4: bool, "whether services exchange messages over IPv4."),
    row!(doorbell_ipv6: bool, "whether services exchange messages over IPv6."),
    own!(
        doorbell_port,
        "the UDP port of the groups: the same on all hosts.",
        "a port from 1 to 65535",
        |o, w| put_port(&mut o.doorbell_port, w),
        |o| one(o.doorbell_port)
    ),
    row!(doorbell_interfaces: Interfaces,
        "the interfaces for messages between services. By default nothing listens beyond the loopback."),
    row!(doorbell_carrier: CarrierKind,
        "what carries messages between services: UDP sockets, or queue pairs of InfiniBand and RoCE devices, as with the original."),
];
