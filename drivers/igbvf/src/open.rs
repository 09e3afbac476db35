//! Opening a function: claim it, agree with the physical one, make the rings.

use std::net::SocketAddr;

use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::{HEADERS_IPV4, HEADERS_IPV6, Mac, group_mac, solicited_node};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::name::RailName;
use doorbell_fabric::time::Time;
use doorbell_inet::{StaticAddress, taken, unusable};
use doorbell_packet::{LINK, PacketRx, PacketTx, Parts, Place};
use doorbell_vfio::{Bar, Bdf, Block, Claim, Error, Put, SharedSlab, Slab};

use crate::config::{IgbvfConfig, MTU};
use crate::discover::DEVICES;
use crate::layout::{Layout, bus};
use crate::mailbox::{Handshake, Mailbox, Silence};
use crate::rail::{Agreed, Igbvf};
use crate::regs::{
    CONTROL_RESET, DROPS, GENERAL, GONE, General, INTERRUPTS, MAILBOX, ONE_BUFFER, QUEUE_ENABLE,
    QUEUE_STRIDE, RECEIVE, ReceiveQueue, STATUS_LINK_UP, TRANSMIT, TransmitQueue,
};
use crate::ring::SendRing;
use crate::rx::Queues;
use crate::sleep::Sleep;

/// Ethernet's header and the link's checksum.
const AROUND: usize = 18;
/// How often a queue is looked at until it is on.
const LOOKS: u32 = 2_000;

/// What belongs to the device: all of it is dropped before the device is given back, in this order.
pub(crate) struct Held {
    pub(crate) general: Block<General>,
    pub(crate) mailbox: Mailbox,
    pub(crate) claim: Claim,
    pub(crate) slab: SharedSlab,
}

/// The PCI address that a rail is named by.
pub(crate) fn bdf_of(name: &RailName) -> Result<Bdf, RailError> {
    name.object().parse().map_err(|_| {
        let reason = match name.object() {
            "" => "its name has no function behind the kind".to_owned(),
            object => format!("`{object}` is no PCI address"),
        };
        unusable(
            name,
            reason,
            "name the rail as igbvf:0000:01:10.0; `doorbell doctor` lists the functions of this machine",
        )
    })
}

/// An error of the device, as one of the rail.
pub(crate) fn rail_error(name: &RailName, error: Error) -> RailError {
    if error.is_taken() {
        return taken(name, error.reason(), error.fix());
    }
    unusable(name, error.reason(), error.fix())
}

/// Makes an error of the rail of the reason why the physical function does not answer.
pub(crate) fn silent(name: &RailName, silence: Silence) -> RailError {
    let (reason, remedy) = match silence {
        Silence::NoAnswer => (
            "the physical function does not answer in the mailbox",
            "bring its interface up (ip link set IF up), and see that its driver is igb",
        ),
        Silence::Refused => (
            "the physical function refuses the requests of this one (hardware address, group or packet length)",
            "give it an address (ip link set IF vf N mac ...), set udp.mtu to its MTU at most, and read its log (dmesg)",
        ),
        Silence::Gone => (
            "the device reads as ones: it was unplugged, or is powered down",
            "plug it in again, or name another rail",
        ),
    };
    unusable(name, reason, remedy)
}

/// Bytes of a frame's headers, and the longest frame.
pub(crate) fn lengths(address: &StaticAddress, config: &IgbvfConfig) -> (usize, usize) {
    let headers = if address.ip.is_ipv4() {
        HEADERS_IPV4
    } else {
        HEADERS_IPV6
    };
    (headers, config.mtu + LINK - headers)
}

/// Returns what is agreed on with the physical function.
pub(crate) fn handshake(own: Mac, address: &StaticAddress, mtu: usize) -> Handshake {
    let group = match address.ip {
        std::net::IpAddr::V6(ip) => Some(group_mac(solicited_node(ip))),
        std::net::IpAddr::V4(_) => None,
    };
    Handshake::new(own, (mtu > MTU).then_some(mtu + AROUND), group)
}

/// What a rail shall be, before its device is opened.
pub(crate) struct Plan {
    bdf: Bdf,
    address: StaticAddress,
    layout: Layout,
}

pub(crate) fn plan(name: &RailName, config: &IgbvfConfig) -> Result<Plan, RailError> {
    config.check(name)?;
    let bdf = bdf_of(name)?;
    Ok(Plan {
        bdf,
        address: config.address_of(name, bdf)?,
        layout: config.layout(),
    })
}

/// The device of this machine.
pub(crate) fn claim(name: &RailName, plan: &Plan) -> Result<Claim, RailError> {
    Claim::open(plan.bdf, plan.layout.bytes() as u64).map_err(|error| rail_error(name, error))
}

/// Opens everything over a device that is ours.
pub(crate) fn open(
    name: &RailName,
    config: &IgbvfConfig,
    plan: &Plan,
    claim: Claim,
) -> Result<Parts<Igbvf>, RailError> {
    let &Plan { address, layout, .. } = plan;
    let (_, limit) = lengths(&address, config);
    let refused = |error| rail_error(name, error);
    let found = claim.config().identity().map_err(refused)?;
    if !DEVICES.contains(&found) {
        return Err(unusable(
            name,
            format!(
                "the device is {:04x}:{:04x}, and no virtual function of an 82576 or I350",
                found.0, found.1
            ),
            "name one of 8086:10ca, as `doorbell doctor` lists them",
        ));
    }
    let bar = claim.bar(0).map_err(refused)?;
    let general: Block<General> = bar.block(GENERAL).map_err(refused)?;
    if general.status.read() == GONE {
        return Err(silent(name, Silence::Gone));
    }
    general.control.put(general.control.read() | CONTROL_RESET);
    let mut mailbox = Mailbox::new(bar.block(MAILBOX).map_err(refused)?);
    let own = random_mac(name)?;
    let mac = handshake(own, &address, config.mtu)
        .finish(&mut mailbox)
        .map_err(|silence| silent(name, silence))?;
    let slab = Slab::new(layout.bytes()).map_err(refused)?;
    let slab = claim.share(slab).map_err(|(_, error)| rail_error(name, error))?;
    let socket = SocketAddr::new(address.ip, config.port);
    let memory = slab.region().whole();
    let rx = receiver(&bar, &slab, &memory, &layout, socket, config.checksum).map_err(refused)?;
    let tx = sender(
        &bar,
        &slab,
        &memory,
        &layout,
        (limit, address.ip.is_ipv4(), config.checksum),
    )
    .map_err(refused)?;
    let interrupts = bar.block(INTERRUPTS).map_err(refused)?;
    let sleep = Sleep::new(&claim, interrupts).map_err(refused)?;
    let mut parts = Parts {
        nic: Igbvf {
            address,
            mtu: config.mtu,
            checksum: config.checksum,
            sleep,
            layout,
            link: general.status.read() & STATUS_LINK_UP != 0,
            held: Some(Held {
                general,
                mailbox,
                slab,
                claim,
            }),
            agreed: Agreed::Yes,
            own,
            next_step: Time::ZERO,
        },
        tx,
        rx,
        address,
        mac,
        port: config.port,
        mtu: config.mtu,
        limit,
    };
    let slab = parts.nic.held.as_ref().map(|held| &held.slab);
    if !slab.is_some_and(|slab| start(&mut parts.tx, &mut parts.rx, slab, &layout)) {
        return Err(unusable(
            name,
            "the device does not turn its queues on",
            "read the log of the physical function's driver (dmesg), and reset the function",
        ));
    }
    Ok(parts)
}

/// A hardware address of our own choice: unicast, and locally administered.
fn random_mac(name: &RailName) -> Result<Mac, RailError> {
    let mut mac = [0; 6];
    getrandom::fill(&mut mac)
        .map_err(|error| doorbell_inet::system_error(name, "get random bytes", error.into()))?;
    mac[0] = mac[0] & !1 | 2;
    Ok(mac)
}

fn receiver(
    bar: &Bar,
    slab: &SharedSlab,
    memory: &RegionSlice,
    layout: &Layout,
    own: SocketAddr,
    by_device: bool,
) -> Result<PacketRx<Queues>, Error> {
    let place = Place {
        entries: layout.receives,
        buffers: layout.receive_chunks(),
        size: layout.chunk,
        bus: bus(slab, layout.receive_chunks()),
    };
    let ring = (layout.receive_ring(), place);
    let queues = Queues::new(bar.block(RECEIVE)?, memory.clone(), ring, by_device);
    let buffers = (layout.receives, layout.spare);
    Ok(PacketRx::new(queues, memory.clone(), buffers, own))
}

fn sender(
    bar: &Bar,
    slab: &SharedSlab,
    memory: &RegionSlice,
    layout: &Layout,
    (limit, is_ipv4, by_device): (usize, bool, bool),
) -> Result<PacketTx<SendRing>, Error> {
    let mut rings = Vec::with_capacity(2);
    for number in 0..2 {
        let queue = bar.block(TRANSMIT + number as u64 * QUEUE_STRIDE)?;
        let place = Place {
            entries: layout.sends[number],
            buffers: layout.send_chunks(number),
            size: layout.chunk,
            bus: bus(slab, layout.send_chunks(number)),
        };
        rings.push(SendRing::new(
            queue,
            memory.clone(),
            layout.send_ring(number),
            place,
            by_device.then_some(is_ipv4),
        ));
    }
    Ok(PacketTx::new(rings, (), memory.clone(), limit, by_device))
}

/// Programs the rings' addresses, and turns the queues on; false where the device does not obey. A function
/// whose adapter has given it one pair of queues sends both channels by the first queue, over the longer
/// ring.
pub(crate) fn start(
    tx: &mut PacketTx<SendRing>,
    rx: &mut PacketRx<Queues>,
    slab: &SharedSlab,
    layout: &Layout,
) -> bool {
    let Some(queue) = rx.queues.queue() else {
        return false;
    };
    if !start_receiving(queue, bus(slab, layout.receive_ring()), layout) {
        return false;
    }
    let on = |ring: &SendRing| {
        let (at, entries) = ring.lies();
        start_sending(ring.queue(), bus(slab, at), entries)
    };
    match &mut tx.rings[..] {
        [first, second] if !on(second) => {
            // The first queue alone, with the longer ring, for both channels.
            first.move_to(second);
            tx.rings.truncate(1);
        }
        _ => {}
    }
    if !tx.rings.first().is_some_and(on) {
        return false;
    }
    rx.queues.start();
    true
}

fn start_receiving(queue: &Block<ReceiveQueue>, at: u64, layout: &Layout) -> bool {
    queue.control.put(0);
    queue.base_low.put(at as u32);
    queue.base_high.put((at >> 32) as u32);
    queue
        .length
        .put((layout.receives * crate::desc::DESCRIPTOR) as u32);
    queue
        .buffers
        .put((layout.chunk >> 10) as u32 | ONE_BUFFER | DROPS);
    // Not every reset takes them back.
    queue.head.put(0);
    queue.tail.put(0);
    // Without thresholds: a descriptor is fetched when it is needed, and written back when its packet is
    // there.
    queue.control.put(QUEUE_ENABLE);
    is_on(|| queue.control.read()) && queue.head.read() == 0
}

fn start_sending(queue: &Block<TransmitQueue>, at: u64, entries: usize) -> bool {
    queue.control.put(0);
    queue.base_low.put(at as u32);
    queue.base_high.put((at >> 32) as u32);
    queue.length.put((entries * crate::desc::DESCRIPTOR) as u32);
    // Reports are in the descriptors.
    queue.write_back_low.put(0);
    queue.write_back_high.put(0);
    queue.head.put(0);
    queue.tail.put(0);
    queue.control.put(QUEUE_ENABLE);
    is_on(|| queue.control.read()) && queue.head.read() == 0
}

fn is_on(mut read: impl FnMut() -> u32) -> bool {
    (0..LOOKS).any(|_| {
        let control = read();
        control != GONE && control & QUEUE_ENABLE != 0
    })
}
