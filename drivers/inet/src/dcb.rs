//! Data Center Bridging of an interface, by netlink: which priorities are paused instead of dropped (PFC,
//! IEEE 802.1Qbb), and by which DSCP packets get their priority.
//!
//! ```text
//!   RTM_GETDCB: family, command, padding ─ attributes: the interface's name
//!   reply:      the same, and
//!               DCB_ATTR_IEEE { PFC: ieee_pfc; APP_TABLE { dcb_app … }; APP_TRUST_TABLE { selector … } }
//!               DCB_ATTR_PFC_CFG { one byte for each priority }       (CEE, which older drivers answer)
//! ```
//!
//! Reference: linux/dcbnl.h.

use std::io;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::netlink::{self, Answer, attribute, attributes};

/// Message types and commands.
const RTM_GETDCB: u16 = 78;
const CMD_PFC_GCFG: u8 = 7;
const CMD_IEEE_GET: u8 = 21;
/// Attributes of a message.
const ATTR_IFNAME: u16 = 1;
const ATTR_PFC_CFG: u16 = 4;
const ATTR_IEEE: u16 = 13;
/// Attributes in that of IEEE 802.1Qaz.
const IEEE_PFC: u16 = 2;
const IEEE_APP_TABLE: u16 = 3;
const IEEE_APP_TRUST_TABLE: u16 = 11;
/// An entry of both tables.
const IEEE_APP: u16 = 1;
/// In the nest of CEE: all priorities, and then the first of them.
const PFC_UP_ATTR_ALL: u16 = 9;
const PFC_UP_ATTR_0: u16 = 1;
const PRIORITIES: usize = 8;
/// The selector of entries that are about DSCP.
const BY_DSCP: u8 = 5;

/// `struct dcbmsg`: what a message begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DcbMessage {
    family: u8,
    command: u8,
    padding: [u8; 2],
}

/// `struct ieee_pfc`, in the byte order of the machine.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct IeeePfc {
    /// Traffic classes that can be paused at a time.
    capable: u8,
    /// The priorities that are paused, one bit each.
    enabled: u8,
    bypass: u8,
    padding: u8,
    delay: u16,
    padding2: [u8; 2],
    /// Pauses sent, and received, by priorities.
    requests: [u64; PRIORITIES],
    indications: [u64; PRIORITIES],
}

/// `struct dcb_app`: the priority of packets that a selector and a number choose.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct App {
    selector: u8,
    priority: u8,
    protocol: u16,
}

const _: () = assert!(size_of::<DcbMessage>() == 4 && size_of::<IeeePfc>() == 136 && size_of::<App>() == 4);

/// What an interface does against loss for want of room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowControl {
    /// The priorities that are paused, one bit each.
    pub paused: u8,
    /// Pauses that were sent to the peer, of all priorities; `None` where the driver does not count them.
    pub sent: Option<u64>,
    /// Pauses that were received.
    pub received: Option<u64>,
    /// DSCP values with the priority that packets with them get, in order.
    pub by_dscp: Vec<(u8, u8)>,
    /// Whether the interface takes priorities from DSCP; `None` where the driver does not report it.
    pub trusts_dscp: Option<bool>,
}

impl FlowControl {
    /// The priorities that are paused, in order.
    pub fn priorities(&self) -> Vec<u8> {
        (0..PRIORITIES as u8)
            .filter(|priority| self.paused & 1 << priority != 0)
            .collect()
    }

    /// The priority of packets with this DSCP; 0 where no entry has it.
    pub fn priority_of(&self, dscp: u8) -> u8 {
        let found = self.by_dscp.iter().find(|(value, _)| *value == dscp);
        found.map_or(0, |(_, priority)| *priority)
    }
}

/// Reads what the driver of an interface reports; `None` where it reports nothing.
///
/// # Errors
/// If the kernel does not answer, or has no such interface.
pub fn flow_control(interface: &str) -> io::Result<Option<FlowControl>> {
    let ieee = answer(ask(CMD_IEEE_GET, interface)?)?;
    if let Some(found) = ieee.as_deref().and_then(by_ieee) {
        return Ok(Some(found));
    }
    let older = answer(ask(CMD_PFC_GCFG, interface)?)?;
    Ok(older.as_deref().and_then(by_cee))
}

fn ask(command: u8, interface: &str) -> io::Result<Answer> {
    netlink::request(RTM_GETDCB, RTM_GETDCB, &question(command, interface))
}

/// A request's bytes. That of CEE names what it wants to know.
fn question(command: u8, interface: &str) -> Vec<u8> {
    let head = DcbMessage {
        family: libc::AF_UNSPEC as u8,
        command,
        padding: [0; 2],
    };
    let mut body = head.as_bytes().to_vec();
    let name = [interface.as_bytes(), &[0]].concat();
    attribute(&mut body, ATTR_IFNAME, &name);
    if command == CMD_PFC_GCFG {
        let mut wanted = Vec::new();
        attribute(&mut wanted, PFC_UP_ATTR_ALL, &[]);
        attribute(&mut body, ATTR_PFC_CFG | libc::NLA_F_NESTED as u16, &wanted);
    }
    body
}

/// The reply; `None` where driver or kernel has none.
fn answer(answer: Answer) -> io::Result<Option<Vec<u8>>> {
    match answer {
        Ok(body) => Ok(Some(body)),
        Err(number) if number == Errno::OPNOTSUPP.raw_os_error() => Ok(None),
        // Drivers that refuse the request itself.
        Err(number) if number == Errno::INVAL.raw_os_error() => Ok(None),
        Err(number) => Err(io::Error::from_raw_os_error(number)),
    }
}

/// The attribute `what` of a reply.
fn nest(body: &[u8], what: u16) -> Option<&[u8]> {
    let rest = body.get(size_of::<DcbMessage>()..)?;
    attributes(rest).find_map(|(kind, value)| (kind == what).then_some(value))
}

/// Reads a reply by IEEE 802.1Qaz; `None` where it has nothing about PFC.
fn by_ieee(body: &[u8]) -> Option<FlowControl> {
    let ieee = nest(body, ATTR_IEEE)?;
    let of = |what: u16| attributes(ieee).find_map(move |(kind, value)| (kind == what).then_some(value));
    let (pfc, _) = IeeePfc::read_from_prefix(of(IEEE_PFC)?).ok()?;
    let sum = |counts: [u64; PRIORITIES]| counts.into_iter().fold(0, u64::saturating_add);
    let apps = attributes(of(IEEE_APP_TABLE).unwrap_or(&[])).filter(|(kind, _)| *kind == IEEE_APP);
    let apps = apps.filter_map(|(_, value)| App::read_from_prefix(value).ok());
    let by_dscp = apps.filter_map(|(app, _)| {
        let dscp = u8::try_from(app.protocol).ok()?;
        let is_possible = dscp < 64 && usize::from(app.priority) < PRIORITIES;
        (app.selector == BY_DSCP && is_possible).then_some((dscp, app.priority))
    });
    let mut by_dscp: Vec<(u8, u8)> = by_dscp.collect();
    by_dscp.sort_unstable();
    let trusted = of(IEEE_APP_TRUST_TABLE).map(|table| {
        let mut trusted = attributes(table).filter_map(|(_, value)| value.first());
        trusted.any(|selector| *selector == BY_DSCP)
    });
    Some(FlowControl {
        paused: pfc.enabled,
        sent: Some(sum(pfc.requests)),
        received: Some(sum(pfc.indications)),
        by_dscp,
        trusts_dscp: trusted,
    })
}

/// Reads a reply of CEE.
fn by_cee(body: &[u8]) -> Option<FlowControl> {
    let priorities = attributes(nest(body, ATTR_PFC_CFG)?).filter_map(|(kind, value)| {
        let priority = kind.checked_sub(PFC_UP_ATTR_0)?;
        let is_paused = *value.first()? != 0;
        (usize::from(priority) < PRIORITIES).then_some((priority, is_paused))
    });
    let mut found = None;
    for (priority, is_paused) in priorities {
        *found.get_or_insert(0) |= u8::from(is_paused) << priority;
    }
    Some(FlowControl {
        paused: found?,
        ..FlowControl::default()
    })
}

/// Reads a message as a reply of either kind.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzing(body: &[u8]) {
    let _ = (by_ieee(body), by_cee(body));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(attribute_of: u16, nested: &[u8]) -> Vec<u8> {
        let mut body = vec![0, CMD_IEEE_GET, 0, 0];
        attribute(&mut body, ATTR_IFNAME, b"eth0\0");
        attribute(&mut body, attribute_of | libc::NLA_F_NESTED as u16, nested);
        body
    }

    fn app(selector: u8, priority: u8, protocol: u16) -> Vec<u8> {
        let app = App {
            selector,
            priority,
            protocol,
        };
        app.as_bytes().to_vec()
    }

    fn whole() -> Vec<u8> {
        let mut pfc = IeeePfc {
            capable: 8,
            enabled: 1 << 3,
            bypass: 0,
            padding: 0,
            delay: 0,
            padding2: [0; 2],
            requests: [0; PRIORITIES],
            indications: [0; PRIORITIES],
        };
        (pfc.requests[3], pfc.indications[3], pfc.indications[4]) = (7, u64::MAX, 1);
        let (mut table, mut trust, mut nested) = (Vec::new(), Vec::new(), Vec::new());
        for entry in [
            app(BY_DSCP, 3, 26),
            app(1, 5, 0x8915),
            app(BY_DSCP, 6, 24),
            app(BY_DSCP, 1, 300),
            app(BY_DSCP, 1, 64),
            app(BY_DSCP, 200, 25),
        ] {
            attribute(&mut table, IEEE_APP, &entry);
        }
        attribute(&mut trust, IEEE_APP, &[BY_DSCP]);
        attribute(&mut nested, IEEE_PFC, pfc.as_bytes());
        attribute(&mut nested, IEEE_APP_TABLE, &table);
        attribute(&mut nested, IEEE_APP_TRUST_TABLE, &trust);
        reply(ATTR_IEEE, &nested)
    }

    #[test]
    fn pauses_and_dscp_are_read_and_cut_replies_do_no_harm() {
        let found = by_ieee(&whole()).unwrap();
        assert_eq!(
            found,
            FlowControl {
                paused: 8,
                sent: Some(7),
                received: Some(u64::MAX),
                by_dscp: vec![(24, 6), (26, 3)],
                trusts_dscp: Some(true),
            }
        );
        assert_eq!(
            (found.priorities(), found.priority_of(26), found.priority_of(1)),
            (vec![3], 3, 0)
        );
        let bytes = whole();
        for cut in 0..bytes.len() {
            let _ = (by_ieee(&bytes[..cut]), by_cee(&bytes[..cut]));
        }
        // An entry that is too short, and no attribute of PFC.
        let mut nested = Vec::new();
        attribute(&mut nested, IEEE_PFC, &[8; 8]);
        assert_eq!(by_ieee(&reply(ATTR_IEEE, &nested)), None);
        assert_eq!(by_ieee(&reply(ATTR_IEEE, &[])), None);
    }

    #[test]
    fn older_drivers_report_one_byte_for_each_priority() {
        let mut nested = Vec::new();
        for priority in 0..8u16 {
            attribute(
                &mut nested,
                PFC_UP_ATTR_0 + priority,
                &[u8::from(matches!(priority, 3 | 4))],
            );
        }
        attribute(&mut nested, PFC_UP_ATTR_ALL, &[1]);
        let found = by_cee(&reply(ATTR_PFC_CFG, &nested)).unwrap();
        assert_eq!(
            (found.priorities(), found.trusts_dscp, found.sent),
            (vec![3, 4], None, None)
        );
        assert_eq!(by_cee(&reply(ATTR_PFC_CFG, &[])), None);
    }

    #[test]
    fn a_request_is_of_these_bytes() {
        let head = |command| [0, command, 0, 0];
        let name = [[9, 0], [1, 0]].map(|half| half).concat();
        let name = [&name[..], b"eth0\0\0\0\0"].concat();
        assert_eq!(question(CMD_IEEE_GET, "eth0"), [&head(21)[..], &name].concat());
        let nested = [8, 0, 4, 0x80, 4, 0, 9, 0];
        assert_eq!(
            question(CMD_PFC_GCFG, "eth0"),
            [&head(7)[..], &name, &nested].concat()
        );
    }

    #[test]
    fn an_interface_without_it_is_no_error_and_one_that_is_not_there_is() {
        // The loopback has no such operations, whatever the kernel was built with.
        assert_eq!(flow_control("lo").unwrap(), None);
        assert_eq!(answer(Err(libc::EINVAL)).unwrap(), None);
        assert_eq!(
            answer(Err(libc::ENODEV)).unwrap_err().raw_os_error(),
            Some(libc::ENODEV)
        );
    }
}
