//! Nodes, services and addresses of getinfo: what a client names before there is an endpoint.
//!
//! A node and a service name a member of this host by its port, and with a key one of another host. They are
//! resolved as those of sockets are, and written in the format of the answer: ours, unless hints want one of
//! sockets.

use std::ffi::{CStr, CString, c_char};
use std::net::IpAddr;
use std::ptr;

use doorbell_fabric::shown::shown;
use doorbell_job::Config;
use doorbell_job::config::IpFamily;
use doorbell_job::lobby::MeetingKey;
use libfabric_sys::*;

use super::attributes::Hints;
use super::rules::Clash;
use crate::address::{Format, Given, KEYLESS, SocketName, is_here, unbound};
use crate::member::Member;

/// Reads the key by which a node and a service name members of other hosts, where one is needed; the error is
/// a sentence.
pub(crate) type KeyOf<'a> = &'a dyn Fn() -> Result<Option<MeetingKey>, String>;

/// The place that a caller names: its own, or that of a peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    node: Option<CString>,
    service: Option<CString>,
    is_source: bool,
    is_numeric: bool,
    /// Whether members of other hosts are reached over IPv6, where a node has addresses of both families.
    is_over_ipv6: bool,
}

/// Whether the rails of these settings have addresses of IPv6.
pub(crate) fn is_over_ipv6(config: &Config) -> bool {
    *config.udp.family.get() == IpFamily::V6
}

/// The addresses of an answer, in its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) source: Vec<u8>,
    /// Empty where the client names no peer.
    pub(crate) destination: Vec<u8>,
}

impl Place {
    /// Reads the arguments.
    ///
    /// # Safety
    /// Both are null or texts.
    pub(crate) unsafe fn read(node: *const c_char, service: *const c_char, flags: u64) -> Self {
        // SAFETY: not null, so a text that ends with a zero byte.
        let text =
            |from: *const c_char| (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_owned());
        Self {
            node: text(node),
            service: text(service),
            is_source: flags & FI_SOURCE != 0,
            is_numeric: flags & FI_NUMERICHOST != 0,
            is_over_ipv6: false,
        }
    }

    /// Returns the same for rails of these settings.
    pub(crate) fn over(self, config: &Config) -> Self {
        let is_over_ipv6 = is_over_ipv6(config);
        Self { is_over_ipv6, ..self }
    }

    /// Returns the place as an address in a family, or in either; `None` where the caller names none. A node
    /// without a service has no port, and names no member: it is refused where it is inserted. One of another
    /// host needs the key; of its addresses the first one of the rails' family is taken, if there is one.
    ///
    /// # Errors
    /// A place that cannot be resolved, or of another host without a key.
    pub(crate) fn resolve(&self, family: Option<Format>, key: KeyOf<'_>) -> Result<Option<Given>, Clash> {
        if self.node.is_none() && self.service.is_none() {
            return Ok(None);
        }
        let found = self.look_up(family)?;
        let node = || self.node.as_deref().unwrap_or(c"").to_string_lossy();
        if let Some(name) = found.iter().find(|name| is_here(name.ip)) {
            return Ok(Some(Given::Socket(*name)));
        }
        let refused = |possible: &str| Clash::new("node", shown(&node()), possible);
        let key = key().map_err(|reason| refused(&reason))?;
        let far = key.and_then(|key| self.far(found, &key));
        match far.filter(|_| !self.is_source) {
            Some(given) => Ok(Some(given)),
            None => Err(refused(&format!(
                "an address of this host; of another one, {KEYLESS}"
            ))),
        }
    }

    /// Returns the first of these addresses that is of another host: of the rails' family, if any is.
    fn far(&self, mut found: Vec<SocketName>, key: &MeetingKey) -> Option<Given> {
        found.sort_by_key(|name| name.ip.to_canonical().is_ipv6() != self.is_over_ipv6);
        found.into_iter().find_map(|name| match name.port {
            0 => Some(Given::Socket(name)),
            _ => Some(Given::Far(name, name.elsewhere(key)?)),
        })
    }

    /// Returns what the system's resolver finds, best first.
    fn look_up(&self, family: Option<Format>) -> Result<Vec<SocketName>, Clash> {
        let hints = libc::addrinfo {
            ai_flags: if self.is_source { libc::AI_PASSIVE } else { 0 }
                | if self.is_numeric { libc::AI_NUMERICHOST } else { 0 },
            ai_family: match family {
                Some(Format::Inet) => libc::AF_INET,
                Some(Format::Inet6) => libc::AF_INET6,
                _ => libc::AF_UNSPEC,
            },
            ai_socktype: libc::SOCK_STREAM,
            ai_protocol: 0,
            ai_addrlen: 0,
            ai_addr: ptr::null_mut(),
            ai_canonname: ptr::null_mut(),
            ai_next: ptr::null_mut(),
        };
        let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let (node, service) = (pointer(&self.node), pointer(&self.service));
        let mut list = ptr::null_mut();
        // SAFETY: texts that end with a zero byte or null, not both null; the list is written by the call.
        let result = unsafe { libc::getaddrinfo(node, service, &raw const hints, &raw mut list) };
        if result != 0 {
            // SAFETY: it takes any number.
            let text = unsafe { libc::gai_strerror(result) };
            // SAFETY: a constant text.
            let text = unsafe { CStr::from_ptr(text) };
            let shown = [&self.node, &self.service].map(|text| {
                let text = text.as_deref().unwrap_or(c"");
                shown(&text.to_string_lossy())
            });
            let hint = if self.node.is_some() { "node" } else { "service" };
            let possible = format!("no such name ({})", text.to_string_lossy());
            return Err(Clash::new(hint, shown.join(" "), possible));
        }
        let mut found = Vec::new();
        let mut next: *mut libc::addrinfo = list;
        while !next.is_null() {
            // SAFETY: an entry of the list, which is freed below.
            let entry = unsafe { next.read() };
            let start = entry.ai_addr.cast::<u8>();
            if !start.is_null() {
                // SAFETY: the resolver's address has this length.
                let bytes = unsafe { std::slice::from_raw_parts(start, entry.ai_addrlen as usize) };
                found.extend(SocketName::read(bytes));
            }
            next = entry.ai_next;
        }
        if !list.is_null() {
            // SAFETY: the list of the call, which nothing refers to any more.
            unsafe { libc::freeaddrinfo(list) };
        }
        Ok(found)
    }
}

/// Resolves what a call of an address vector names: a peer of this host, or of another one by the key.
///
/// # Errors
/// As for [`Place::resolve`].
pub(crate) fn peer(
    node: &CStr,
    service: &CStr,
    format: Format,
    member: &Member,
) -> Result<Option<Given>, Clash> {
    let place = Place {
        node: Some(node.to_owned()),
        service: Some(service.to_owned()),
        is_source: false,
        is_numeric: false,
        is_over_ipv6: member.is_over_ipv6(),
    };
    place.resolve(Some(format), &|| Ok(member.key().cloned()))
}

/// Returns the addresses of the answer, and sets in the hints which of several formats is meant.
///
/// # Errors
/// What cannot be resolved, is of another host, or has no name in the format.
pub(crate) fn addresses(
    place: &Place,
    hints: Option<&mut Hints>,
    key: KeyOf<'_>,
) -> Result<(Format, Addresses), Clash> {
    let mut none = Hints::default();
    let hints = hints.unwrap_or(&mut none);
    let given = |hint: &'static str, bytes: &[u8]| match (bytes, Given::read(bytes)) {
        ([], _) => Ok(None),
        (_, Some(given)) => Ok(Some(given)),
        (_, None) => Err(Clash::new(
            hint,
            format!("{} bytes", bytes.len()),
            "an address of doorbell, or of a socket",
        )),
    };
    let source = given("info.src_addr", &hints.src_addr)?;
    let destination = given("info.dest_addr", &hints.dest_addr)?;
    let wanted = hints.attributes.info.addr_format;
    let is_any_socket = [FI_SOCKADDR, FI_SOCKADDR_IP].map(u64::from).contains(&wanted);
    let chosen = match wanted {
        0 => Some(Format::Ours),
        _ if is_any_socket => None,
        number => Some(Format::of(number).ok_or_else(|| no_such_format(number))?),
    };
    let named = place.resolve(chosen, key)?;
    let family = |ip: IpAddr| if ip.is_ipv4() { Format::Inet } else { Format::Inet6 };
    let format = chosen.unwrap_or_else(|| match (&named, &source, &destination) {
        // A port alone has both families.
        (Some(Given::Socket(name) | Given::Far(name, _)), ..) if place.node.is_some() => family(name.ip),
        (_, Some(Given::Socket(name)), _) | (_, _, Some(Given::Socket(name))) => family(name.ip),
        _ => Format::Inet,
    });
    if wanted != 0 {
        hints.attributes.info.addr_format = format.number();
    }
    let (source, destination) = if place.is_source {
        (named.or(source), destination)
    } else {
        (source, named.or(destination))
    };
    let written = |hint: &'static str, given: Option<Given>| match given {
        None => Ok(None),
        Some(given) => match given.write(format) {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(Clash::new(
                hint,
                "a member with a random name",
                "one with a port: the format of sockets has no other name",
            )),
        },
    };
    let addresses = Addresses {
        source: written("info.src_addr", source)?.unwrap_or_else(|| unbound(format)),
        destination: written("info.dest_addr", destination)?.unwrap_or_default(),
    };
    Ok((format, addresses))
}

fn no_such_format(number: u64) -> Clash {
    let possible = "FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR, or the format of doorbell";
    Clash::new("info.addr_format", number.to_string(), possible)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(place: &Place, hints: Option<&mut Hints>) -> Result<(Format, Addresses), Clash> {
        super::addresses(place, hints, &|| Ok(None))
    }

    fn place(node: Option<&CStr>, service: Option<&CStr>, is_source: bool) -> Place {
        Place {
            node: node.map(CStr::to_owned),
            service: service.map(CStr::to_owned),
            is_source,
            is_numeric: true,
            is_over_ipv6: false,
        }
    }

    fn hints(format: u32) -> Hints {
        let mut hints = Hints::default();
        hints.attributes.info.addr_format = u64::from(format);
        hints
    }

    #[test]
    fn a_node_and_a_service_are_a_port_of_this_host_in_the_format_of_the_answer() {
        let server = place(None, Some(c"9228"), true);
        let client = place(Some(c"127.0.0.1"), Some(c"9228"), false);
        for format in [0, FI_SOCKADDR, FI_SOCKADDR_IN] {
            let mut wants = hints(format);
            let (is, ours) = addresses(&server, Some(&mut wants)).unwrap();
            let expected = if format == 0 { Format::Ours } else { Format::Inet };
            assert_eq!(is, expected);
            assert_eq!(wants.attributes.info.addr_format == 0, format == 0);
            let (_, theirs) = addresses(&client, Some(&mut hints(format))).unwrap();
            let port = |bytes: &[u8]| Given::read(bytes).unwrap().port().unwrap().get();
            assert_eq!((port(&ours.source), port(&theirs.destination)), (9228, 9228));
            assert!(ours.destination.is_empty());
            assert_eq!(theirs.source, unbound(expected));
        }
        let (_, both) = addresses(&client, None).unwrap();
        let (_, same) = addresses(&server, None).unwrap();
        assert_eq!(both.destination, same.source);
    }

    #[test]
    fn what_names_no_member_of_this_host_is_refused_by_its_name() {
        let refused = |place: Place| addresses(&place, None).unwrap_err().hint;
        assert_eq!(refused(place(Some(c"192.0.2.77"), Some(c"9228"), false)), "node");
        assert_eq!(refused(place(Some(c"g00n13s"), Some(c"9228"), false)), "node");
        assert_eq!(refused(place(None, Some(c"no such service"), true)), "service");
        // A node alone has no port: it is refused where it is inserted, and not before.
        let (_, without) = addresses(&place(Some(c"127.0.0.1"), None, false), None).unwrap();
        assert_eq!(without.destination, unbound(Format::Ours));
        let clash = addresses(&Place::default(), Some(&mut hints(FI_ADDR_STR))).unwrap_err();
        assert_eq!(clash.hint, "info.addr_format");
        let wants = |length| Hints {
            dest_addr: vec![7; length],
            ..hints(FI_SOCKADDR_IN)
        };
        for length in [20, 56] {
            let clash = addresses(&Place::default(), Some(&mut wants(length))).unwrap_err();
            assert_eq!(clash.hint, "info.dest_addr", "{length}");
        }
    }

    fn key() -> MeetingKey {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        doorbell_job::oob::JobKey::from_bytes([7; 32])
            .write(&file, false)
            .unwrap();
        let mut config = Config::default();
        config.set("ofi.key_file", file.to_str().unwrap()).unwrap();
        MeetingKey::of(&config).unwrap().unwrap()
    }

    #[test]
    fn of_a_node_with_several_addresses_the_one_of_the_rails_family_is_taken() {
        let name = |ip: &str, port| SocketName {
            ip: ip.parse().unwrap(),
            port,
            endpoint: 0,
        };
        let key = key();
        let (four, six) = (name("192.0.2.77", 9228), name("2001:db8::77", 9228));
        for (is_over_ipv6, first) in [(false, four), (true, six)] {
            let place = Place {
                is_over_ipv6,
                ..Place::default()
            };
            let expected = Given::Far(first, first.elsewhere(&key).unwrap());
            assert_eq!(place.far(vec![six, four], &key), Some(expected.clone()));
            assert_eq!(place.far(vec![four, six], &key), Some(expected));
            // One of the other family is better than none.
            assert!(place.far(vec![four], &key).is_some() && place.far(vec![six], &key).is_some());
        }
        // An address of IPv4 in the format of IPv6 is that one.
        let mapped = name("::ffff:192.0.2.77", 9228);
        assert_eq!(mapped.elsewhere(&key), four.elsewhere(&key));
        assert!(is_here("::ffff:127.0.0.1".parse().unwrap()) && !is_here(mapped.ip));
    }

    #[test]
    fn a_node_of_another_host_alone_names_no_member_and_is_not_refused_with_a_key() {
        let alone = place(Some(c"192.0.2.77"), None, false);
        let (format, found) = super::addresses(&alone, None, &|| Ok(Some(key()))).unwrap();
        assert_eq!(found.destination, unbound(format));
        assert_eq!(addresses(&alone, None).unwrap_err().hint, "node");
    }

    #[test]
    fn an_address_of_a_socket_in_hints_is_written_in_our_format() {
        let source = SocketName {
            ip: Format::Inet.loopback(),
            port: 0,
            endpoint: 0,
        };
        let mut wants = Hints {
            src_addr: source.write(),
            ..Hints::default()
        };
        let client = place(Some(c"127.0.0.1"), Some(c"9228"), false);
        let (format, found) = addresses(&client, Some(&mut wants)).unwrap();
        assert_eq!((format, found.source), (Format::Ours, unbound(Format::Ours)));
        assert_eq!(found.destination.len(), 56);
    }
}
