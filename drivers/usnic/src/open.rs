//! Opening a function: claim it, read its table, find who steers for it, make the queues.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::{HEADERS_IPV4, Mac};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::name::RailName;
use doorbell_inet::{StaticAddress, taken, unusable};
use doorbell_packet::{LINK, Nic as _, PacketRx, PacketTx, Parts as RailParts, Place};
use doorbell_vfio::{Bdf, Claim, Error, Host, Role, SharedSlab, Slab};

use crate::bringup::{Bringup, Parts, Since};
use crate::config::{Control, UsnicConfig, VfCommands};
use crate::cq::CompletionRing;
use crate::devcmd::{Devcmd, ring};
use crate::errno::{Errno, Fault};
use crate::flow_steering::agent::{Agent, AgentTarget};
use crate::flow_steering::direct::Direct;
use crate::flow_steering::proxy::Proxy;
use crate::flow_steering::{OwnFunction, Steering, Trouble};
use crate::layout::{COMMANDS_AT, FILTER_AT, Layout};
use crate::notify::{NotifyRead, read};
use crate::pf::Pf;
use crate::rail::{Usnic, UsnicRx, UsnicTx};
use crate::rail_name::{self, DEVICE_ADMIN, DEVICE_PF, DEVICES, Object, Spaces, is_usnic};
use crate::remedies;
use crate::rq::{self, ReceiveRing};
use crate::rx::{self, Queues};
use crate::sleep::Sleep;
use crate::table::{Kind, Table};
use crate::window::Window;
use crate::wq::SendRing;

/// How long all steps to running queues may take together; each has a shorter limit of its own.
const LIMIT: Duration = Duration::from_secs(15);
/// How long an agent of a model may take to start, and the interval between two checks for it.
const STARTING: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// Interval between two checks of a step.
const BETWEEN: Duration = Duration::from_micros(20);
/// Where agents of this machine's physical functions listen.
const RUN: &str = "/run/doorbell";

/// What belongs to the device: all of it is dropped before the device is given back, in this order.
pub(crate) struct Held {
    pub(crate) own: OwnFunction,
    pub(crate) steering: Box<dyn Steering>,
    pub(crate) claim: Arc<Claim>,
    pub(crate) slab: SharedSlab,
    /// Numbers of installed filters, and which queue pairs may be on.
    pub(crate) filters: Vec<u64>,
    pub(crate) pairs: [bool; 2],
    pub(crate) wants_arp: bool,
    pub(crate) has_arp: bool,
    /// What was known before anything was installed.
    pub(crate) since: Since,
    /// The function itself was opened, and has to be closed.
    pub(crate) is_open: bool,
    /// The function's own hardware address, where it reports one.
    pub(crate) mac: Option<Mac>,
    /// Bytes of the notify area that the device keeps; 0: none.
    pub(crate) notify_kept: usize,
    pub(crate) vf_commands: VfCommands,
    /// The interrupt of each receive completion queue.
    pub(crate) interrupts: Vec<Option<u32>>,
}

impl Held {
    pub(crate) fn notify_bus(&self) -> u64 {
        self.slab.iova()
    }

    /// Returns what the function's own notify area shows.
    pub(crate) fn look(&self) -> Option<NotifyRead> {
        let memory = self.slab.region().whole();
        (self.notify_kept > 0).then(|| read(memory.as_shared(), self.notify_kept))
    }

    /// The hardware address of frames: the function's own where it has one, else the physical function's (as
    /// in usNIC), else the setting's.
    pub(crate) fn own_mac(&mut self, config: &UsnicConfig) -> Option<Mac> {
        self.mac.or_else(|| self.steering.mac()).or(config.mac)
    }

    /// Stops the device from reaching memory, then releases it. Unless the caller `waits`, what takes time is
    /// left to a thread, where the system has one.
    pub(crate) fn leave(self, waits: bool) -> Option<JoinHandle<()>> {
        let Self {
            own,
            steering,
            slab,
            claim,
            ..
        } = self;
        drop(own);
        let leaving = let_go(steering, waits);
        // Where the device does not obey, the IOMMU keeps it from the memory one line further. No other
        // thread has the claim: a reset has ended by now.
        if let Ok(claim) = Arc::try_unwrap(claim) {
            let _ = claim.close();
        }
        drop(slab);
        leaving
    }
}

/// Lets go of who steers.
fn let_go(steering: Box<dyn Steering>, waits: bool) -> Option<JoinHandle<()>> {
    if waits || !steering.is_slow_to_go() {
        return None;
    }
    let thread = std::thread::Builder::new().name("usnic-leave".to_owned());
    // Where there is no thread, it goes here, with what it was to be given to.
    thread.spawn(move || drop(steering)).ok()
}

/// Trouble, as an error of the rail.
pub(crate) fn rail_error(name: &RailName, trouble: impl Into<Trouble>) -> RailError {
    let trouble = trouble.into();
    let fix = match Object::parse(name.object()) {
        Ok(object) => fix(&object, &trouble),
        Err(_) => trouble.fix(),
    };
    unusable(name, trouble.to_string(), fix)
}

/// Returns what to do, with the function that is meant.
fn fix(object: &Object, trouble: &Trouble) -> String {
    let is_hung = matches!(trouble, Trouble::Fault(Fault::Busy | Fault::TimedOut(_)));
    match object {
        Object::Model { .. } if is_hung => {
            "the model's script of faults causes this, or the model is stopped: start it again without that rule"
                .to_owned()
        }
        Object::Pci(bdf) if is_hung => trouble.fix().replace("BDF", &bdf.to_string()),
        // The physical function is named where it is known.
        _ => match pf_of(object) {
            Some(pf) => trouble.fix().replace("--pf BDF", &format!("--pf {pf}")),
            None => trouble.fix(),
        },
    }
}

/// A resource table that cannot be used, as an error of the rail.
fn table_error(name: &RailName, bad: rail_name::BadResources) -> RailError {
    let trouble = bad.into_trouble();
    let is_model = matches!(Object::parse(name.object()), Ok(Object::Model { .. }));
    if !is_model || !matches!(trouble, Trouble::Agent { .. }) {
        return rail_error(name, trouble);
    }
    unusable(
        name,
        trouble.to_string(),
        "the model is set up so: take the rule out of its script (`table-cut`, `missing`, `count-zero`, `bad-magic`, ...), leave out its \
         options for queues (--wq, --rq, --cq), unset usnic.commands, and start it again",
    )
}

/// Refusals caused by another function's number, where one was set: of a filter (error 1), of a queue pair
/// (error 6).
fn by_number(config: &UsnicConfig, object: &Object, trouble: Trouble) -> Trouble {
    let (Some(number), Some(Errno::INVALID | Errno::STATE)) = (config.function, trouble.errno()) else {
        return trouble;
    };
    Trouble::agent(
        format!(
            "{trouble}; usnic.function is {number}, and most likely that is another function's number (by its name, this one's is {})",
            object.index()
        ),
        "unset it: `unset DOORBELL_USNIC_FUNCTION`; or set it to this function's own number",
    )
}

/// The longest frame.
pub(crate) fn limit(config: &UsnicConfig) -> usize {
    config.mtu + LINK - HEADERS_IPV4
}

/// What a rail shall be, before its device is opened.
pub(crate) struct Plan {
    pub(crate) object: Object,
    pub(crate) address: StaticAddress,
    layout: Layout,
}

pub(crate) fn plan(name: &RailName, config: &UsnicConfig) -> Result<Plan, RailError> {
    config.check(name)?;
    let object = Object::of(name)?;
    Ok(Plan {
        address: config.address_of(name, &object)?,
        layout: config.layout(),
        object,
    })
}

/// The device that the name means, and what its rail shall be.
pub(crate) fn claim(name: &RailName, config: &UsnicConfig, plan: Plan) -> Result<(Claim, Plan), RailError> {
    match &plan.object {
        Object::Pci(bdf) => {
            let claimed = Claim::open(*bdf, plan.layout.bytes() as u64);
            let claim = claimed.map_err(|error| match error.is_taken() {
                true => taken(name, error.reason(), error.fix()),
                false => unusable(name, error.reason(), error.fix()),
            })?;
            Ok((claim, plan))
        }
        Object::Model { folder, .. } => claim_modelled(name, config, &plan, folder),
    }
}

/// The first that is free of those that may be meant.
fn claim_modelled(
    name: &RailName,
    config: &UsnicConfig,
    plan: &Plan,
    folder: &Path,
) -> Result<(Claim, Plan), RailError> {
    let mut refused = None;
    for object in plan.object.each() {
        match Claim::connect(&object.socket().unwrap_or_default()) {
            Ok(claim) => {
                let address = config.address_of(name, &object)?;
                let layout = plan.layout;
                return Ok((
                    claim,
                    Plan {
                        object,
                        address,
                        layout,
                    },
                ));
            }
            Err(error) => refused = Some(error),
        }
    }
    let (reason, fix) = match refused {
        Some(last) if last.is_taken() => {
            let (reason, fix) = busy(&plan.object);
            return Err(taken(name, reason, fix));
        }
        Some(last) => unclaimed(&plan.object, &last),
        None => {
            let reason = format!(
                "no process has made a socket of a function in {}",
                folder.display()
            );
            (reason, remedies::start_model(&plan.object))
        }
    };
    Err(unusable(name, reason, fix))
}

/// Returns why a modelled function cannot be claimed, and what to do.
fn unclaimed(object: &Object, error: &Error) -> (String, String) {
    match error {
        Error::Gone {
            source: Some(source), ..
        } => {
            let fix = match source.kind() {
                ErrorKind::NotFound => remedies::make_function(object),
                ErrorKind::PermissionDenied => error.fix(),
                ErrorKind::ConnectionRefused => remedies::start_model(object),
                _ => remedies::see_model(object),
            };
            (error.reason(), fix)
        }
        Error::Gone { .. } | Error::Silent { .. } => (error.reason(), remedies::see_model(object)),
        _ => (error.reason(), error.fix()),
    }
}

/// Another process has the device.
fn busy(object: &Object) -> (String, String) {
    if let Object::Model { folder, function } = object
        && function == "pf"
    {
        let folder = folder.display();
        return (
            format!(
                "another process has the physical function of the model in {folder}: its agent, most likely"
            ),
            format!("leave it to the agent, and name a virtual function: usnic:model/{folder}/vf0"),
        );
    }
    let whose = if object.is_any() {
        "all functions of the model"
    } else {
        "the function"
    };
    (
        format!("another process has {whose}"),
        "end it, name another function, or start the model with more of them (--vfs N)".to_owned(),
    )
}

/// The physical function's address, where this machine knows it.
pub(crate) fn parent_of(object: &Object) -> Option<Bdf> {
    let Object::Pci(bdf) = object else { return None };
    match Host::here().device(*bdf).ok()?.role {
        Role::Virtual { physical, .. } => Some(physical),
        _ => None,
    }
}

/// The physical function as `doorbell agent usnic --pf` takes it: a model's, or that of this machine; `None`
/// where it is not known.
#[must_use]
pub fn pf_of(object: &Object) -> Option<String> {
    match object {
        Object::Model { folder, .. } => Some(format!("model/{}/pf", folder.display())),
        Object::Pci(_) => parent_of(object).map(|parent| parent.to_string()),
    }
}

/// The socket of the agent that would get the requests.
#[must_use]
pub fn agent_socket(config: &UsnicConfig, object: &Object) -> Option<PathBuf> {
    if let Some(socket) = &config.agent {
        return Some(socket.clone());
    }
    match object {
        Object::Model { folder, .. } => Some(folder.join("agent.sock")),
        Object::Pci(_) => {
            let parent = parent_of(object)?;
            Some(Path::new(RUN).join(format!("usnic-{parent}.sock")))
        }
    }
}

/// Whether an agent's socket is there. One in a folder that may not be searched counts as there: connecting
/// reports why it cannot be used. The agent of a model mostly starts just after the model: that is waited
/// for.
fn comes(object: &Object, socket: &Path) -> bool {
    let is_there = || socket.try_exists().unwrap_or(true);
    let has_model = matches!(object, Object::Model { folder, .. } if folder.join("pf.sock").exists());
    let until = Instant::now() + STARTING;
    while has_model && !is_there() && Instant::now() < until {
        std::thread::sleep(BETWEEN_LOOKS);
    }
    is_there()
}

/// Finds who steers for the function.
fn steering(
    config: &UsnicConfig,
    object: &Object,
    found: (u16, u16),
    address: Ipv4Addr,
) -> Result<Box<dyn Steering>, Trouble> {
    let index = config.index_of(object);
    let agent = || -> Result<Box<dyn Steering>, Trouble> {
        let socket = agent_socket(config, object).ok_or_else(|| {
            Trouble::agent(
                "the function has no physical function whose agent could steer for it",
                "set usnic.agent to the agent's socket",
            )
        })?;
        let target = AgentTarget {
            object: object.clone(),
            config: config.clone(),
        };
        Ok(Box::new(Agent::connect(&socket, index, address, target)?))
    };
    // One that steers for itself has no number at another one.
    let is_whole = found == DEVICE_PF && config.function.is_none();
    match config.control {
        Control::Direct => Ok(Box::new(Direct)),
        Control::Agent | Control::Proxy if is_whole => Err(Trouble::agent(
            "the device is 1137:0043, an ordinary vNIC: it steers for itself, and no agent does",
            "set usnic.control to auto or direct, or name one of its functions",
        )),
        Control::Agent => agent(),
        Control::Auto => match agent_socket(config, object) {
            Some(socket) if !is_whole && (config.agent.is_some() || comes(object, &socket)) => agent(),
            _ => Ok(Box::new(Direct)),
        },
        Control::Proxy => {
            let pf = match object {
                Object::Model { folder, .. } => Pf::connect(&folder.join("pf.sock"))?,
                Object::Pci(_) => Pf::open(parent_of(object).ok_or_else(|| {
                    Trouble::agent(
                        "the function has no physical function on this machine",
                        "set usnic.control to agent or direct",
                    )
                })?)?,
            };
            pf.check()?;
            Ok(Box::new(Proxy::new(pf, index)))
        }
    }
}

/// Opens everything over a device that is ours.
pub(crate) fn open(
    name: &RailName,
    config: &UsnicConfig,
    plan: &Plan,
    claim: Claim,
) -> Result<RailParts<Usnic>, RailError> {
    let found = claim
        .config()
        .identity()
        .map_err(|error| rail_error(name, error))?;
    check_identity(name, found)?;
    let (table, spaces) = rail_name::read(&claim).map_err(|bad| table_error(name, bad))?;
    table
        .check()
        .map_err(|bad| table_error(name, rail_name::BadResources::Table(bad)))?;
    let commands = table
        .commands(config.commands)
        .map_err(|bad| table_error(name, rail_name::BadResources::Table(bad)))?;
    let layout = plan.layout;
    let slab = Slab::new(layout.bytes()).map_err(|error| rail_error(name, error))?;
    let slab = claim.share(slab).map_err(|(_, error)| rail_error(name, error))?;
    let memory = slab.region().whole();
    let build = Build {
        config,
        table: &table,
        spaces: &spaces,
        memory: &memory,
        layout,
        slab: &slab,
    };
    let IpAddr::V4(address) = plan.address.ip else {
        // Checked where it was read.
        return Err(unusable(name, "its address is not IPv4", "set usnic.address"));
    };
    let own = build.own(name, commands)?;
    let (mut tx, mut rx) = build
        .halves(address, is_usnic(found))
        .map_err(|fault| rail_error(name, fault))?;
    let receiving = rx.queues.done.len();
    let sleep = build.sleep(name, &claim, receiving)?;
    let interrupts = (0..receiving)
        .map(|number| (sleep.count() > 0).then(|| number.min(sleep.count() - 1) as u32))
        .collect();
    let steering =
        steering(config, &plan.object, found, address).map_err(|trouble| rail_error(name, trouble))?;
    sleep.watch(steering.news());
    let held = Held {
        own,
        steering,
        slab,
        filters: Vec::with_capacity(4),
        pairs: [false; 2],
        wants_arp: config.arp,
        has_arp: false,
        since: Since::default(),
        is_open: false,
        mac: None,
        notify_kept: 0,
        vf_commands: config.vf_commands,
        interrupts,
        claim: Arc::new(claim),
    };
    let resources = [Kind::Wq, Kind::Rq, Kind::Cq, Kind::Interrupts].map(|kind| table.of(kind).count);
    let mut nic = Usnic::new(config, address, (held, sleep), layout, resources);
    match nic.start((&mut tx, &mut rx)) {
        Ok(mac) => Ok(RailParts {
            nic,
            tx,
            rx,
            address: plan.address,
            mac,
            port: config.port,
            mtu: config.mtu,
            limit: limit(config),
        }),
        Err(trouble) => {
            // Nothing that was installed stays.
            nic.leave((&mut tx, &mut rx), true);
            Err(rail_error(name, by_number(config, &plan.object, trouble)))
        }
    }
}

fn check_identity(name: &RailName, found: (u16, u16)) -> Result<(), RailError> {
    if DEVICES.contains(&found) {
        return Ok(());
    }
    let (reason, fix) = if found == DEVICE_ADMIN {
        (
            "the device is a stand-alone function (1137:02b7), which takes its commands over queues that this rail does not support",
            "configure usNIC functions (1137:00cf) in the adapter's policy (CIMC or UCSM)",
        )
    } else {
        (
            "the device is no function of a VIC that a rail can use",
            "name one of 1137:00cf, as `doorbell doctor` lists them",
        )
    };
    Err(unusable(
        name,
        format!("{:04x}:{:04x}: {reason}", found.0, found.1),
        fix,
    ))
}

/// Steps to running queues, waiting for each.
pub(crate) fn finish(mut parts: Parts<'_>, socket: (Ipv4Addr, u16)) -> Result<(), Trouble> {
    let mut bringup = Bringup::new(parts.held, socket);
    let end = Instant::now() + LIMIT;
    while !bringup.step(&mut parts)? {
        if Instant::now() >= end {
            return Err(Fault::TimedOut("the bring-up as a whole").into());
        }
        std::thread::sleep(BETWEEN);
    }
    (parts.tx.is_off, parts.rx.is_off) = (false, false);
    Ok(())
}

/// The hardware address of frames.
pub(crate) fn mac(held: &mut Held, config: &UsnicConfig) -> Result<Mac, Trouble> {
    held.own_mac(config).ok_or_else(|| {
        Trouble::agent(
            "neither the function nor its physical one reports a hardware address",
            "set usnic.mac to the physical function's",
        )
    })
}

/// What queues are made from.
struct Build<'a> {
    config: &'a UsnicConfig,
    table: &'a Table,
    spaces: &'a Spaces,
    memory: &'a RegionSlice,
    layout: Layout,
    slab: &'a SharedSlab,
}

impl Build<'_> {
    fn window(&self, kind: Kind, number: u32) -> Result<Window, Fault> {
        let found = self.table.of(kind).instance(number);
        let (bar, at) = found.ok_or(Fault::Nonsense("the resource table"))?;
        let space = self.spaces[usize::from(bar)].as_ref();
        Ok(Window::new(
            space.ok_or(Fault::Nonsense("the resource table"))?,
            at,
        ))
    }

    fn bus(&self, at: usize) -> u64 {
        // All offsets of a layout are inside the slab that was made for it.
        self.slab.iova() + at as u64
    }

    fn own(&self, name: &RailName, commands: Kind) -> Result<OwnFunction, RailError> {
        let block = self
            .window(commands, 0)
            .map_err(|fault| rail_error(name, fault))?;
        let slice = |at: usize, length: usize| {
            let slice = self.memory.slice(at, length);
            slice.ok_or_else(|| rail_error(name, Fault::Nonsense("the layout")))
        };
        let devcmd = match commands {
            Kind::Devcmd2 => Devcmd::ring(block, slice(COMMANDS_AT, ring::BYTES)?, self.bus(COMMANDS_AT)),
            _ => Devcmd::block(block),
        };
        Ok(OwnFunction {
            devcmd,
            buffer: (slice(FILTER_AT, 128)?, self.bus(FILTER_AT)),
            orphans: Vec::new(),
        })
    }

    /// Completion queues by their numbers: those of the receive queues first, then that of the work queues.
    /// If there are only two, both receive queues share one.
    fn halves(&self, address: Ipv4Addr, is_usnic: bool) -> Result<(UsnicTx, UsnicRx), Fault> {
        let receiving = if self.table.of(Kind::Cq).count >= 3 { 2 } else { 1 };
        let cq = |number: u32, (at, entries): (usize, usize)| -> Result<_, Fault> {
            let window = self.window(Kind::Cq, number)?;
            Ok(CompletionRing::new(
                window,
                self.memory.clone(),
                (at, self.bus(at)),
                entries,
            ))
        };
        let sent = cq(receiving, self.layout.sent())?;
        let mut done = Vec::with_capacity(2);
        for number in 0..receiving {
            done.push(cq(number, self.layout.received(number as usize))?);
        }
        let mut sends = Vec::with_capacity(2);
        let mut receives = Vec::with_capacity(2);
        for channel in 0..2 {
            sends.push(self.send_ring(channel, receiving)?);
            receives.push(self.receive_ring(channel, (channel as u32).min(receiving - 1))?);
        }
        let place = rx::ChunkLayout {
            chunks: self.layout.receive_chunks(),
            chunk: self.layout.chunk,
            room: self.config.room(),
            in_rings: self.layout.in_rings(),
        };
        let own = SocketAddr::new(address.into(), self.config.port);
        let (memory, words) = (self.memory, (self.config.checksum, !is_usnic));
        let queues = Queues::new(receives, done, memory.clone(), place, words);
        let buffers = (self.layout.in_rings(), self.layout.spare);
        let mut rx = PacketRx::new(queues, memory.clone(), buffers, own);
        let (limit, checksum) = (limit(self.config), self.config.checksum);
        let mut tx = PacketTx::new(sends, sent, memory.clone(), limit, checksum);
        (tx.is_off, rx.is_off) = (true, true);
        Ok((tx, rx))
    }

    fn send_ring(&self, channel: usize, cq: u32) -> Result<SendRing, Fault> {
        let (ring, chunks) = (self.layout.send_ring(channel), self.layout.send_chunks(channel));
        let place = Place {
            entries: self.layout.sends[channel],
            buffers: chunks,
            size: self.layout.chunk,
            bus: self.bus(chunks),
        };
        let window = self.window(Kind::Wq, channel as u32)?;
        Ok(SendRing::new(
            window,
            self.memory.clone(),
            ((ring, self.bus(ring)), place),
            cq,
            self.config.checksum,
        ))
    }

    fn receive_ring(&self, channel: usize, cq: u32) -> Result<ReceiveRing, Fault> {
        let ring = self.layout.receive_ring(channel);
        let place = rq::RingLocation {
            entries: self.layout.receives[channel],
            ring,
            bus_ring: self.bus(ring),
            chunk: self.layout.chunk,
            room: self.config.room(),
            bus: self.bus(self.layout.receive_chunks()),
        };
        let window = self.window(Kind::Rq, channel as u32)?;
        Ok(ReceiveRing::new(window, self.memory.clone(), place, cq))
    }

    fn sleep(&self, name: &RailName, claim: &Claim, wanted: usize) -> Result<Sleep, RailError> {
        let has = self.table.of(Kind::Interrupts).count as usize;
        let count = if self.config.interrupts {
            wanted.min(has)
        } else {
            0
        };
        let mut registers = Vec::with_capacity(count);
        for number in 0..count {
            let window = self.window(Kind::Interrupts, number as u32);
            registers.push(window.map_err(|fault| rail_error(name, fault))?);
        }
        Sleep::new(claim, registers).map_err(|error| rail_error(name, error))
    }
}
