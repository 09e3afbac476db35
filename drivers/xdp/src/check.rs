//! Whether a rail can be opened on an interface, by what can be found out before anything is made: the same
//! for discovery as for opening.

use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::Mac;
use doorbell_fabric::name::RailName;
use doorbell_inet::{
    Channels, Details, FRAME_MIN, Interface, channels, has_rules, has_zero_copy, system_error, unusable,
    zero_copy_pieces,
};

use crate::config::{Mode, XdpConfig};
use crate::layout::{Layout, PIECES_MAX, Shape};
use crate::open::{LACKS, in_no_mode, modes};
use crate::rights;
use crate::sys;

/// The most queues that one rail serves.
const QUEUES_MAX: u32 = 64;

/// What was found out on the way.
pub(crate) struct Checked {
    pub(crate) mac: Mac,
    /// The queues to serve: at least one.
    pub(crate) queues: Vec<u32>,
    /// What to try, the best first: at least one.
    pub(crate) plans: Vec<Plan>,
    /// Modes that need no try, and why.
    pub(crate) lacking: Vec<String>,
}

/// A mode, and how the memory is cut up for it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) layout: Layout,
    pub(crate) shape: Shape,
    /// Why its frames are shorter than the MTU, where they are.
    pub(crate) short: Option<String>,
}

impl Plan {
    /// Whether frames are in several chunks, and if not, why, for discovery.
    pub(crate) fn pieces_in_words(&self) -> String {
        match (&self.short, self.shape.pieces) {
            (None, 1) => "not needed for this MTU".to_owned(),
            (None, pieces) => format!("up to {pieces} chunks a frame"),
            (Some(why), _) => why.clone(),
        }
    }
}

/// Checks everything that is known of the interface and of this process. Makes nothing.
pub(crate) fn check(
    name: &RailName,
    interface: &Interface,
    config: &XdpConfig,
) -> Result<Checked, RailError> {
    if interface.is_loopback() {
        return Err(unusable(
            name,
            "the loopback has one queue, which serves one process and cannot send to another one",
            "name `shm` for ranks of one host, or `udp:lo`",
        ));
    }
    if let Some((reason, remedy)) = unusable_here() {
        return Err(unusable(name, reason, remedy));
    }
    let details = Details::of(interface.index)
        .map_err(|error| system_error(name, "read the interface's queues", error))?;
    let Some(mac) = details.mac else {
        let reason = format!("{} has no Ethernet address", interface.name);
        return Err(unusable(name, reason, "name an Ethernet interface, or udp"));
    };
    if interface.limit(&config.interface_query()) < FRAME_MIN {
        return Err(unusable(
            name,
            "its MTU leaves no room for messages",
            "raise the MTU, and udp.mtu where it is set",
        ));
    }
    if is_bundle(&details) && config.mode.is_some_and(|mode| mode != Mode::Generic) {
        return Err(unusable(
            name,
            format!(
                "{} combines several interfaces, whose frames do not reach its own sockets in that mode",
                interface.name
            ),
            "set xdp.mode to generic or best, or name one of its members",
        ));
    }
    let queues = queues(name, interface, config, &details)?;
    let (plans, lacking) = plans(name, interface, config, queues.len() as u32)?;
    Ok(Checked {
        mac,
        queues,
        plans,
        lacking,
    })
}

/// Bytes of memory that the kernel locks for the frames of a rail of this name: in that of the modes it may
/// have that takes least. Nothing is opened.
///
/// # Errors
/// When there is no such interface, or its queues cannot be served.
pub fn locked_bytes(name: &RailName, config: &XdpConfig) -> Result<usize, RailError> {
    let interface = Interface::find(name, &config.interface_query())?;
    let details = Details::of(interface.index)
        .map_err(|error| system_error(name, "read the interface's queues", error))?;
    let queues = queues(name, &interface, config, &details)?.len() as u32;
    let bytes = |mode| {
        let most = most_pieces(&interface, mode).unwrap_or(1);
        Layout::of(config, &Shape::of(&interface, config, mode, most), queues).bytes()
    };
    Ok(modes(&interface, config)
        .into_iter()
        .map(bytes)
        .min()
        .unwrap_or(0))
}

/// The modes to try, and those that need no try, with the reason.
fn plans(
    name: &RailName,
    interface: &Interface,
    config: &XdpConfig,
    queues: u32,
) -> Result<(Vec<Plan>, Vec<String>), RailError> {
    let (mut plans, mut lacking, mut too_much) = (Vec::new(), Vec::new(), None);
    for mode in modes(interface, config) {
        let most = most_pieces(interface, mode);
        let shape = Shape::of(interface, config, mode, *most.as_ref().unwrap_or(&1));
        let layout = Layout::of(config, &shape, queues);
        if driver_lacks(interface, mode) {
            lacking.push(format!("{mode}: {LACKS}"));
        } else if let Some((reason, remedy)) = rights::too_much(layout.bytes()) {
            lacking.push(format!("{mode}: {reason}"));
            too_much = Some((reason, remedy));
        } else {
            let is_short = shape.limit < interface.limit(&config.interface_query());
            let reason = most.err().unwrap_or("a packet has no more chunks");
            let short = is_short.then(|| in_fewer(&shape, reason));
            plans.push(Plan {
                mode,
                layout,
                shape,
                short,
            });
        }
    }
    match too_much {
        _ if !plans.is_empty() => Ok((plans, lacking)),
        Some((reason, remedy)) => Err(unusable(name, reason, remedy)),
        None => Err(in_no_mode(name, interface, &lacking)),
    }
}

/// The number of chunks that a packet can have in this mode, or why it has one only.
fn most_pieces(interface: &Interface, mode: Mode) -> Result<u32, &'static str> {
    if !sys::has_pieces() {
        return Err("this kernel has no multi-buffer (XDP_USE_SG, Linux 6.6)");
    }
    match mode {
        Mode::Native | Mode::Generic => Ok(PIECES_MAX),
        Mode::ZeroCopy => zero_copy_pieces(interface.index)
            .ok()
            .filter(|&pieces| pieces > 1)
            .ok_or("its driver has no multi-buffer in zero-copy mode"),
    }
}

/// The remark on frames that are shorter than the MTU.
pub(crate) fn in_fewer(shape: &Shape, reason: &str) -> String {
    format!(
        "frames of {} bytes at most, though the MTU allows longer ones: {reason}",
        shape.limit
    )
}

/// Whether the interface's driver reports that it lacks this mode. Then it is not tried: many take their link
/// down for a second when a program is attached.
fn driver_lacks(interface: &Interface, mode: Mode) -> bool {
    mode == Mode::ZeroCopy && matches!(has_zero_copy(interface.index), Ok(false))
}

/// Whether this kernel has AF_XDP sockets, permitted or not.
#[must_use]
pub fn has_sockets() -> bool {
    !matches!(sys::socket(), Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT))
}

/// Returns why no xdp rail can be opened by this process, if that is so whatever the interface.
fn unusable_here() -> Option<(String, &'static str)> {
    if has_sockets() {
        return rights::missing();
    }
    Some((
        "this kernel has no AF_XDP".to_owned(),
        "use one with CONFIG_XDP_SOCKETS, or name udp",
    ))
}

/// Returns what several ranks would need to share an interface, and which of it is missing.
pub(crate) fn shared_by_several(interface: &str) -> String {
    let rules = match has_rules(interface) {
        Ok(true) => "its driver has rules, whose fields are not known",
        Ok(false) => "its driver has no rules",
        Err(_) => "whether its driver has rules is not known",
    };
    format!(
        "{interface} serves one rank: several would need rules that steer the ports of each to a queue \
         (ETHTOOL_SRXCLSRLINS; {rules}), and one program that serves several processes, which doorbell does \
         not have"
    )
}

/// Whether it combines several interfaces (a bond or a team).
fn is_bundle(details: &Details) -> bool {
    matches!(details.kind.as_str(), "bond" | "team")
}

/// The queues to serve: those that are there now, or by what the interface was made with where its driver
/// does not report them.
fn queues(
    name: &RailName,
    interface: &Interface,
    config: &XdpConfig,
    details: &Details,
) -> Result<Vec<u32>, RailError> {
    let told = channels(&interface.name).unwrap_or_default();
    let there = Channels {
        receive: if told.receive > 0 {
            told.receive
        } else {
            details.queues.max(1)
        },
        send: if told.send > 0 {
            told.send
        } else {
            details.send_queues.max(1)
        },
    };
    match chosen(there, config.queue) {
        Ok(queues) => Ok(queues),
        Err(NotThere { way, count }) if config.queue.is_some() => Err(unusable(
            name,
            format!(
                "{} has no such queue: xdp.queue is {}, and frames {way} by {}",
                interface.name,
                config.queue.unwrap_or(0),
                in_words(count)
            ),
            format!(
                "set xdp.queue to one that `ethtool -l {}` shows for both ways, or leave it to be chosen",
                interface.name
            ),
        )),
        Err(NotThere { count, .. }) => Err(unusable(
            name,
            format!(
                "{} has {count} queues, and a rail serves {QUEUES_MAX} at most",
                interface.name
            ),
            format!(
                "`ethtool -L {} combined {QUEUES_MAX}`, or steer its ports to one queue and name that (xdp.queue)",
                interface.name
            ),
        )),
    }
}

fn in_words(count: u32) -> String {
    match count {
        1 => "queue 0 only".to_owned(),
        count => format!("queues 0 to {}", count - 1),
    }
}

/// Queues that are not there, or too many: how many there are of which way.
#[derive(Debug, PartialEq, Eq)]
struct NotThere {
    way: &'static str,
    count: u32,
}

/// All queues, or the one that is named, which has to serve both ways: its socket receives and sends.
fn chosen(there: Channels, named: Option<u32>) -> Result<Vec<u32>, NotThere> {
    let no = |way, count| Err(NotThere { way, count });
    match named {
        Some(queue) if queue >= there.receive => no("come in", there.receive),
        Some(queue) if queue >= there.send => no("go out", there.send),
        Some(queue) => Ok(vec![queue]),
        None if there.receive > QUEUES_MAX => no("come in", there.receive),
        None => Ok((0..there.receive).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_serves_both_ways_or_none() {
        let of = |receive, send, named| chosen(Channels { receive, send }, named);
        assert_eq!(of(4, 1, None), Ok(vec![0, 1, 2, 3]));
        assert_eq!(of(4, 4, Some(2)), Ok(vec![2]));
        let no = |way, count| Err(NotThere { way, count });
        assert_eq!(of(4, 1, Some(2)), no("go out", 1));
        assert_eq!(of(1, 4, Some(2)), no("come in", 1));
        assert_eq!(of(65, 65, None), no("come in", 65));
        assert_eq!(of(65, 65, Some(64)), Ok(vec![64]));
        assert_eq!(
            (in_words(1), in_words(4)),
            ("queue 0 only".to_owned(), "queues 0 to 3".to_owned())
        );
    }
}
