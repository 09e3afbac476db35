//! Opens a rail: the library, the device, its port, memory, and two queue pairs.

use std::sync::Arc;

use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::Region;
use doorbell_fabric::name::RailName;
use doorbell_inet::unusable;

use super::layout::{self, Places};
use super::rx::{self, UdRx};
use super::tx::{self, UdTx};
use crate::config::VerbsConfig;
use crate::discover;
use crate::error::VerbsError;
use crate::name::{PortName, Service};
use crate::ports::{self, Port, Tree};
use crate::sys::{Channel, DatagramPair, Domain, Library, Open, QpAttr, Registered, Sender, Sizes, numbers};

/// Bytes that go with a request itself, where the device can: an acknowledgement, and most small messages.
pub(crate) const INLINE: usize = 128;

/// What a rail is made of.
pub(super) struct Parts {
    pub(super) open: Arc<Open>,
    pub(super) file: String,
    pub(super) port: Port,
    pub(super) domain: Arc<Domain>,
    pub(super) channel: Arc<Channel>,
    pub(super) pairs: [Arc<DatagramPair>; 2],
    pub(super) tx: UdTx,
    pub(super) rx: UdRx,
    pub(super) key: u32,
    pub(super) limit: usize,
}

/// What a port is found with.
pub(crate) struct Source {
    pub(crate) library: Library,
    pub(crate) tree: Tree,
}

/// A port that can be used, and its device.
pub(crate) struct Found {
    pub(crate) open: Arc<Open>,
    pub(crate) file: String,
    pub(crate) port: Port,
}

/// Finds the port of a rail of this name.
///
/// # Errors
/// Why it cannot be used, and what to do.
pub(crate) fn find(name: &RailName, config: &VerbsConfig, source: &Source) -> Result<Found, RailError> {
    config.check(name)?;
    let wanted = PortName::of(name)?;
    let failed = |error: VerbsError| discover::rejected_by(name, &error);
    let listed = discover::listed(&source.library, &wanted.device).map_err(failed)?;
    if let Some((reason, remedy)) = ports::reason_of_device(&listed) {
        return Err(unusable(name, reason, remedy));
    }
    let open = source.library.open(&wanted.device).map_err(failed)?;
    let port = Port::look_for(&open, wanted.port, &source.tree, config.partition).map_err(failed)?;
    let port = port.only(config.gid_index).map_err(|reason| {
        unusable(
            name,
            reason,
            "set verbs.gid_index to one of the table that doorbell info shows",
        )
    })?;
    if let Some((reason, remedy)) = port.reason() {
        return Err(unusable(name, reason, remedy));
    }
    if wanted.service == Service::Datagrams {
        fits(name, config, &open)?;
    }
    let file = listed.file;
    Ok(Found { open, file, port })
}

/// Opens the parts of a rail of this name.
pub(super) fn open(name: &RailName, config: &VerbsConfig, source: &Source) -> Result<Parts, RailError> {
    queues(name, config, find(name, config, source)?)
}

/// Checks the queues that are set against what the device has.
fn fits(name: &RailName, config: &VerbsConfig, open: &Open) -> Result<(), RailError> {
    let attributes = open
        .attributes()
        .map_err(|error| discover::rejected_by(name, &error))?;
    let most = usize::try_from(attributes.max_qp_wr).unwrap_or(0);
    let settings = [("verbs.send", config.send), ("verbs.receive", config.receive)];
    // Of a device that reports nothing it shows when the queues are made.
    match settings.into_iter().find(|(_, value)| most > 0 && *value > most) {
        None => Ok(()),
        Some((setting, value)) => Err(unusable(
            name,
            format!(
                "{setting} is {value}, and queues of {} have {most} entries at most",
                open.name()
            ),
            format!("set {setting} to a power of two from 64 to {}", floor(most)),
        )),
    }
}

/// The largest power of two that is no larger.
fn floor(number: usize) -> usize {
    1 << number.ilog2()
}

/// Makes the queue pairs of a port that can be used.
fn queues(
    name: &RailName,
    config: &VerbsConfig,
    Found { open, file, port }: Found,
) -> Result<Parts, RailError> {
    let failed = |error: VerbsError| discover::rejected_by(name, &error);
    let limit = port.mtu().unwrap_or(256);
    let (places, bytes) = layout::cut((config.send, config.receive, config.spare), limit);
    let region = Region::new(bytes)?;
    let domain = Domain::new(&open).map_err(failed)?;
    let memory =
        Registered::new(&domain, &region).map_err(|error| discover::rejected_for(name, &error, bytes))?;
    let channel = Channel::new(&open).map_err(failed)?;
    let key = random_key(name)?;
    let make = |places: &Places| {
        let sizes = Sizes {
            sends: places.sends,
            receives: places.receives,
            inline: INLINE.min(limit),
        };
        let pair = DatagramPair::new(&memory, &channel, sizes)?;
        start(&pair, &port, key)?;
        Ok(pair)
    };
    let pairs = [
        make(&places[0]).map_err(failed)?,
        make(&places[1]).map_err(failed)?,
    ];
    let sends = |at: usize| tx::Queue::new(Sender::new(&pairs[at], places[at].sends), places[at]);
    let receives = |at: usize| rx::Queue::new(&pairs[at], places[at]);
    let tx = UdTx::new([sends(0), sends(1)], region.whole(), limit);
    let mut rx = UdRx::new([receives(0), receives(1)], region.whole(), limit);
    if !(rx.restart(0) && rx.restart(1)) {
        return Err(unusable(
            name,
            "the device took no receive requests",
            "look at the kernel's log; another provider or firmware may help",
        ));
    }
    Ok(Parts {
        open,
        file,
        port,
        domain,
        channel,
        pairs,
        tx,
        rx,
        key,
        limit,
    })
}

/// Takes a queue pair from whatever state to the one in which it sends and receives. It has no requests then.
///
/// # Errors
/// If the system refuses a step.
pub(crate) fn start(pair: &DatagramPair, port: &Port, key: u32) -> Result<(), VerbsError> {
    let step = |state: i32, change: &dyn Fn(&mut QpAttr), mask: i32| {
        let mut attributes = QpAttr::zeroed();
        attributes.qp_state = state;
        change(&mut attributes);
        pair.modify(attributes, numbers::HAS_STATE | mask)
    };
    step(numbers::RESET, &|_| (), 0)?;
    // Some devices leave completions of before where they are: they would be taken for those of new requests.
    pair.sent().empty();
    pair.received().empty();
    step(
        numbers::INIT,
        &|attributes| {
            attributes.pkey_index = port.partition.map_or(0, |(index, _)| index);
            (attributes.port_num, attributes.qkey) = (port.number, key);
        },
        numbers::HAS_PKEY_INDEX | numbers::HAS_PORT | numbers::HAS_QKEY,
    )?;
    step(numbers::RTR, &|_| (), 0)?;
    step(
        numbers::RTS,
        &|attributes| attributes.sq_psn = key & 0x00ff_ffff,
        numbers::HAS_SQ_PSN,
    )
}

/// A random key, without the bit that keys of the system have.
pub(crate) fn random_key(name: &RailName) -> Result<u32, RailError> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes)
        .map_err(|error| doorbell_inet::system_error(name, "get random bytes", error.into()))?;
    Ok(u32::from_ne_bytes(bytes) >> 1)
}
