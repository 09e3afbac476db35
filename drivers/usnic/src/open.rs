//! Opening a function: claim it, read its table, find who steers for it, make the queues.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::{HEADERS_4, Mac};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::name::RailName;
use doorbell_inet::{Given, unusable};
use doorbell_vfio::{Bdf, Claim, Host, Role, SharedSlab, Slab};

use crate::bringup::{Bringup, Parts};
use crate::config::{Control, LINK, UsnicConfig, VfCommands};
use crate::cq::CompletionRing;
use crate::devcmd::Devcmd;
use crate::errno::Fault;
use crate::layout::{FILTER_AT, Layout};
use crate::notify::{Look, read};
use crate::pf::Pf;
use crate::place::{self, DEVICE_ADMIN, DEVICES, Object, Spaces, is_usnic};
use crate::rq::{self, ReceiveRing};
use crate::rx::{self, UsnicRx};
use crate::sleep::{self, Sleep};
use crate::steer::agent::Agent;
use crate::steer::direct::Direct;
use crate::steer::proxy::Proxy;
use crate::steer::{Own, Steering, Trouble};
use crate::table::{Kind, Table};
use crate::tx::UsnicTx;
use crate::window::Window;
use crate::wq::{self, SendRing};

/// How long all steps to running queues may take together; each has a shorter limit of its own.
const LIMIT: Duration = Duration::from_secs(15);
/// Between two looks at a step.
const BETWEEN: Duration = Duration::from_micros(20);
/// Where agents of this machine's physical functions listen.
const RUN: &str = "/run/doorbell";

/// What belongs to the device: all of it is dropped before the device is given back, in this order.
pub(crate) struct Held {
    pub(crate) own: Own,
    pub(crate) steering: Box<dyn Steering>,
    pub(crate) claim: Claim,
    pub(crate) slab: SharedSlab,
    /// Numbers of installed filters, and whether any or a queue pair may be.
    pub(crate) filters: Vec<u64>,
    pub(crate) is_steered: bool,
    pub(crate) wants_arp: bool,
    pub(crate) has_arp: bool,
    /// Bytes of the notify area that the device keeps; 0: none.
    pub(crate) notify_kept: usize,
    pub(crate) vf_commands: VfCommands,
    /// Of each receive completion queue.
    pub(crate) interrupts: Vec<Option<u32>>,
}

impl Held {
    pub(crate) fn notify_bus(&self) -> u64 {
        self.slab.iova()
    }

    /// What the function's own notify area shows.
    pub(crate) fn look(&self) -> Option<Look> {
        let memory = self.slab.region().whole();
        (self.notify_kept > 0).then(|| read(memory.as_shared(), self.notify_kept))
    }
}

/// Everything that a rail is made of.
pub(crate) struct Opened {
    pub(crate) held: Held,
    pub(crate) tx: UsnicTx,
    pub(crate) rx: UsnicRx,
    pub(crate) sleep: Sleep,
    pub(crate) layout: Layout,
    pub(crate) address: Given,
    pub(crate) mac: Mac,
    pub(crate) limit: usize,
    pub(crate) resources: [u32; 4],
}

/// Trouble, as an error of the rail.
pub(crate) fn told(name: &RailName, trouble: impl Into<Trouble>) -> RailError {
    let trouble = trouble.into();
    unusable(name, trouble.to_string(), trouble.fix())
}

/// The longest frame.
pub(crate) fn limit(config: &UsnicConfig) -> usize {
    config.mtu + LINK - HEADERS_4
}

/// What a rail shall be, before its device is opened.
pub(crate) struct Plan {
    pub(crate) object: Object,
    pub(crate) address: Given,
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
            let claim = claimed.map_err(|error| unusable(name, error.reason(), error.fix()))?;
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
    let start = format!("start the model: doorbell model vic --dir {}", folder.display());
    let is_busy = |error: &doorbell_vfio::Error| matches!(error, doorbell_vfio::Error::Refused { source, .. } if source.kind() == std::io::ErrorKind::ResourceBusy);
    let (reason, fix) = match refused {
        Some(last) if is_busy(&last) => {
            let whose = if plan.object.is_any() {
                "all functions of the model"
            } else {
                "the function"
            };
            (
                format!("another process has {whose}"),
                "end it, name another function, or start the model with more of them (--vfs N)".to_owned(),
            )
        }
        Some(last) => (last.reason(), start),
        None => {
            let reason = format!("nobody has made a socket of a function in {}", folder.display());
            (reason, start)
        }
    };
    Err(unusable(name, reason, fix))
}

/// The physical function's address, where this machine knows it.
pub(crate) fn parent_of(object: &Object) -> Option<Bdf> {
    let Object::Pci(bdf) = object else { return None };
    match Host::here().device(*bdf).ok()?.role {
        Role::Virtual { physical, .. } => Some(physical),
        _ => None,
    }
}

/// The socket of the agent that would be asked.
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

/// Finds who steers for the function.
fn steering(config: &UsnicConfig, object: &Object) -> Result<Box<dyn Steering>, Trouble> {
    let agent = || -> Result<Box<dyn Steering>, Trouble> {
        let socket = agent_socket(config, object).ok_or_else(|| {
            Trouble::agent(
                "the function has no physical function whose agent could be asked",
                "set usnic.agent to the agent's socket",
            )
        })?;
        Ok(Box::new(Agent::connect(&socket, object.index())?))
    };
    match config.control {
        Control::Direct => Ok(Box::new(Direct)),
        Control::Agent => agent(),
        Control::Auto => match agent_socket(config, object) {
            Some(socket) if config.agent.is_some() || socket.exists() => agent(),
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
            Ok(Box::new(Proxy::new(pf, object.index())))
        }
    }
}

/// Opens everything over a device that is ours.
pub(crate) fn open(
    name: &RailName,
    config: &UsnicConfig,
    plan: &Plan,
    claim: Claim,
) -> Result<Opened, RailError> {
    let found = claim.config().identity().map_err(|error| told(name, error))?;
    check_identity(name, found)?;
    let (table, spaces) = place::read(&claim).map_err(|bad| told(name, bad.into_trouble()))?;
    table
        .check()
        .map_err(|bad| told(name, place::Bad::Table(bad).into_trouble()))?;
    let layout = plan.layout;
    let slab = Slab::new(layout.bytes()).map_err(|error| told(name, error))?;
    let slab = claim.share(slab).map_err(|(_, error)| told(name, error))?;
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
    let own = build.own(name)?;
    let (tx, rx) = build
        .halves(address, is_usnic(found))
        .map_err(|fault| told(name, fault))?;
    let sleep = build.sleep(name, &claim, rx.done.len())?;
    let interrupts = (0..rx.done.len())
        .map(|number| (sleep.count() > 0).then(|| number.min(sleep.count() - 1) as u32))
        .collect();
    let steering = steering(config, &plan.object).map_err(|trouble| told(name, trouble))?;
    sleep.watch(steering.news());
    let mut opened = Opened {
        held: Held {
            own,
            steering,
            slab,
            filters: Vec::with_capacity(4),
            is_steered: false,
            wants_arp: config.arp,
            has_arp: false,
            notify_kept: 0,
            vf_commands: config.vf_commands,
            interrupts,
            claim,
        },
        tx,
        rx,
        sleep,
        layout,
        address: plan.address,
        mac: [0; 6],
        limit: limit(config),
        resources: [Kind::Wq, Kind::Rq, Kind::Cq, Kind::Interrupts].map(|kind| table.of(kind).count),
    };
    finish(&mut opened, (address, config.port)).map_err(|trouble| told(name, trouble))?;
    opened.mac = mac(&mut opened.held, config).map_err(|trouble| told(name, trouble))?;
    Ok(opened)
}

fn check_identity(name: &RailName, found: (u16, u16)) -> Result<(), RailError> {
    if DEVICES.contains(&found) {
        return Ok(());
    }
    let (reason, fix) = if found == DEVICE_ADMIN {
        (
            "the device is a stand-alone function (1137:02b7), which takes its commands over queues that this rail does not speak",
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
fn finish(opened: &mut Opened, socket: (Ipv4Addr, u16)) -> Result<(), Trouble> {
    let mut bringup = Bringup::new(&mut opened.held, socket);
    let end = Instant::now() + LIMIT;
    let mut parts = Parts {
        tx: &mut opened.tx,
        rx: &mut opened.rx,
        held: &mut opened.held,
    };
    while !bringup.step(&mut parts)? {
        if Instant::now() >= end {
            return Err(Fault::TimedOut("the bring-up as a whole").into());
        }
        std::thread::sleep(BETWEEN);
    }
    (opened.tx.is_off, opened.rx.is_off) = (false, false);
    Ok(())
}

/// The hardware address: the function's own where it has one, else the physical function's (as in usNIC), else the setting's.
fn mac(held: &mut Held, config: &UsnicConfig) -> Result<Mac, Trouble> {
    let own = match config.vf_commands {
        VfCommands::Skip => None,
        _ => match held.own.devcmd.mac() {
            Ok(mac) => mac,
            Err(fault) if fault.is_no() => None,
            Err(fault) => return Err(fault.into()),
        },
    };
    own.or_else(|| held.steering.mac()).or(config.mac).ok_or_else(|| {
        Trouble::agent(
            "neither the function nor its physical one tells a hardware address",
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

    fn own(&self, name: &RailName) -> Result<Own, RailError> {
        let block = self.window(Kind::Devcmd, 0).map_err(|fault| told(name, fault))?;
        let buffer = self.memory.slice(FILTER_AT, 128);
        let buffer = buffer.ok_or_else(|| told(name, Fault::Nonsense("the layout")))?;
        Ok(Own {
            devcmd: Devcmd::new(block),
            buffer: (buffer, self.bus(FILTER_AT)),
        })
    }

    /// Completion queues by their numbers: those of the receive queues first, then that of the work queues. With two of them,
    /// both receive queues share one.
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
        let place = rx::Place {
            chunks: self.layout.receive_chunks(),
            chunk: self.layout.chunk,
            room: self.config.room(),
            in_rings: self.layout.in_rings(),
            spare: self.layout.spare,
        };
        let own = SocketAddr::new(address.into(), self.config.port);
        let rx = UsnicRx::new(
            receives,
            done,
            self.memory.clone(),
            place,
            own,
            (self.config.checksum, !is_usnic),
        );
        let memory = self.memory.clone();
        let tx = UsnicTx::new(sends, sent, memory, limit(self.config), self.config.checksum);
        Ok((tx, rx))
    }

    fn send_ring(&self, channel: usize, cq: u32) -> Result<SendRing, Fault> {
        let (ring, chunks) = (self.layout.send_ring(channel), self.layout.send_chunks(channel));
        let place = wq::Place {
            entries: self.layout.sends[channel],
            ring,
            chunks,
            chunk: self.layout.chunk,
            bus_ring: self.bus(ring),
            bus: self.bus(chunks),
        };
        let window = self.window(Kind::Wq, channel as u32)?;
        Ok(SendRing::new(
            window,
            self.memory.clone(),
            place,
            cq,
            self.config.checksum,
        ))
    }

    fn receive_ring(&self, channel: usize, cq: u32) -> Result<ReceiveRing, Fault> {
        let ring = self.layout.receive_ring(channel);
        let place = rq::Place {
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
            registers.push(window.map_err(|fault| told(name, fault))?);
        }
        Sleep::new(claim, registers).map_err(|trouble| match trouble {
            sleep::Trouble::Device(error) => told(name, error),
            sleep::Trouble::System(errno) => doorbell_inet::system(name, "watch the device", errno.into()),
        })
    }
}
