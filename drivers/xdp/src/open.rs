//! Opening a rail: the memory of frames, a socket for each queue, the program that steers, in the mode that was asked for.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::{ETHERNET, Mac};
use doorbell_fabric::memory::{Region, RegionSlice};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::Kind;
use doorbell_inet::{Details, FRAME_MIN, Interface, channels, claim, headers, unusable};

use crate::attach::{self, Steering};
use crate::config::{Mode, XdpConfig};
use crate::queue::{Queue, Refusal, Sizes};
use crate::rights;
use crate::rx::{self, Source};
use crate::sys;
use crate::tx;

/// Most queues that one rail serves.
const QUEUES_MAX: u32 = 64;
/// The least entries of one queue's ring: a flow comes in by one queue, and its peer may have a burst under way.
const RING_LEAST: usize = 512;
/// Entries of the rings that are made because they have to be, and never used.
const RING_UNUSED: usize = 64;
/// Bytes that the kernel keeps free before each frame that it receives (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// Bytes of the chunks: a power of two, at most a page.
const CHUNKS: [usize; 2] = [2048, 4096];
/// `XDP_MAX_TX_SKB_BUDGET`, from Linux 6.18 on: frames sent by one call, where there is no zero-copy.
const SEND_BUDGET: i32 = 9;
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;

/// What the kernel granted, as the rail's report shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// How frames get to the rail's memory, as the kernel says it.
    pub mode: Mode,
    /// The queues of the device whose frames it gets.
    pub queues: Vec<u32>,
    /// The number of the program on the interface, as `bpftool prog` shows it.
    pub program: u32,
    /// The device is polled by receives.
    pub busy_poll: bool,
    /// Bytes of the memory of frames.
    pub memory: usize,
}

impl std::fmt::Display for Granted {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let polled = if self.busy_poll { ", polled busily" } else { "" };
        let queues: Vec<String> = self.queues.iter().map(u32::to_string).collect();
        let (noun, queues) = (
            if queues.len() == 1 { "queue" } else { "queues" },
            queues.join(", "),
        );
        write!(out, "{}, {noun} {queues}{polled}", self.mode)
    }
}

/// Everything that a rail is made of.
pub(crate) struct Opened {
    pub(crate) tx: tx::Parts,
    pub(crate) rx: rx::Parts,
    pub(crate) granted: Granted,
    pub(crate) steering: Steering,
    /// The kernel's own sockets on the rail's ports: nobody else gets them, and what goes astray is seen.
    pub(crate) held: [OwnedFd; 2],
    pub(crate) port: u16,
    pub(crate) mac: Mac,
}

/// Why a mode could not be had.
enum No {
    /// Another mode may do.
    NotThis(String),
    /// No mode will.
    Ends(RailError),
}

/// How the memory is cut up.
#[derive(Clone, Copy, Debug)]
struct Layout {
    chunk: usize,
    ring: usize,
    queues: u32,
    sends: usize,
    spare: usize,
}

impl Layout {
    fn of(config: &XdpConfig, chunk: usize, queues: u32) -> Self {
        let least = RING_LEAST.min(config.receive_ring);
        let share = (config.receive_ring / queues as usize).max(least);
        Self {
            chunk,
            ring: share.next_power_of_two(),
            queues,
            sends: config.send_ring,
            spare: config.spare,
        }
    }

    fn received(&self) -> usize {
        self.ring * self.queues as usize
    }

    fn chunks(&self) -> usize {
        self.received() + self.sends + self.spare
    }

    fn of_queue(&self, queue: usize) -> std::ops::Range<u32> {
        (queue * self.ring) as u32..((queue + 1) * self.ring) as u32
    }
}

/// The chunk for frames of this MTU, and the longest frame of the layer above that fits.
pub(crate) fn chunk_and_limit(interface: &Interface, config: &XdpConfig) -> (usize, usize) {
    let limit = interface.limit(&config.wanted());
    let around = HEADROOM + ETHERNET + headers(interface.address);
    let fits = |chunk: &&usize| limit + around <= **chunk;
    let chunk = *CHUNKS.iter().find(fits).unwrap_or(&CHUNKS[1]);
    (chunk, limit.min(chunk - around))
}

/// The modes to try, the best one first.
pub(crate) fn modes(interface: &Interface, config: &XdpConfig) -> Vec<Mode> {
    match config.mode {
        Some(mode) => vec![mode],
        // Frames of a bond's members come in by the members, and a socket of the bond does not get them before the common code.
        None if is_bundle(interface) => vec![Mode::Generic],
        // A virtual interface has no device that could spare a copy, and in its driver's own mode a thread more between
        // the two ends: the common code is faster there (docs/performance.md).
        None if matches!(interface.kind().0, Kind::Virtual | Kind::Bridge) => {
            vec![Mode::Generic, Mode::Native]
        }
        None => vec![Mode::ZeroCopy, Mode::Native, Mode::Generic],
    }
}

/// Whether it is several interfaces in one.
fn is_bundle(interface: &Interface) -> bool {
    matches!(interface.kind().1.as_str(), "bond" | "team")
}

/// The queues to serve.
pub(crate) fn queues(interface: &Interface, config: &XdpConfig, details: &Details) -> Vec<u32> {
    let all = channels(&interface.name).unwrap_or(0);
    let all = if all == 0 { details.queues } else { all };
    match config.queue {
        Some(queue) => vec![queue],
        None => (0..all.clamp(1, QUEUES_MAX)).collect(),
    }
}

/// Opens everything in the best mode that can be had.
pub(crate) fn open(name: &RailName, interface: &Interface, config: &XdpConfig) -> Result<Opened, RailError> {
    if interface.is_loopback() {
        return Err(unusable(
            name,
            "the loopback has one queue, which serves one process, and never sends to another one",
            "name `shm` for ranks of one host, or `udp:lo`",
        ));
    }
    let details = Details::of(interface.index)
        .map_err(|error| doorbell_inet::system(name, "ask for the interface's queues", error))?;
    let Some(mac) = details.mac else {
        let reason = format!("{} has no Ethernet address", interface.name);
        return Err(unusable(name, reason, "name an Ethernet interface, or udp"));
    };
    let (_, limit) = chunk_and_limit(interface, config);
    if limit < FRAME_MIN {
        return Err(unusable(
            name,
            "its MTU leaves no room for messages",
            "raise the MTU, and udp.mtu where it is set",
        ));
    }
    let (held, port) = claim(name, interface, config.port, config.pairs)?;
    let queues = queues(interface, config, &details);
    let all = channels(&interface.name).unwrap_or(details.queues);
    if config.queue.is_none() && all > QUEUES_MAX {
        return Err(unusable(
            name,
            format!(
                "{} has {all} queues, and a rail serves {QUEUES_MAX} at most",
                interface.name
            ),
            format!(
                "`ethtool -L {} combined {QUEUES_MAX}`, or steer its ports to one queue and name that (xdp.queue)",
                interface.name
            ),
        ));
    }
    if is_bundle(interface) && config.mode.is_some_and(|mode| mode != Mode::Generic) {
        return Err(unusable(
            name,
            format!(
                "{} is several interfaces in one, whose frames do not come to its own sockets in that mode",
                interface.name
            ),
            "set xdp.mode to generic or best, or name one of its members",
        ));
    }
    let mut refused = Vec::new();
    for mode in modes(interface, config) {
        match in_mode(name, interface, config, (port, &queues), mode) {
            Ok((tx, rx, granted, steering)) => {
                return Ok(Opened {
                    tx,
                    rx,
                    granted,
                    steering,
                    held,
                    port,
                    mac,
                });
            }
            Err(No::Ends(error)) => return Err(error),
            Err(No::NotThis(reason)) => refused.push(format!("{mode}: {reason}")),
        }
    }
    Err(unusable(
        name,
        format!("{} cannot be had on {}", refused.join("; "), interface.name),
        "leave xdp.mode to be chosen, or name udp",
    ))
}

type Made = (tx::Parts, rx::Parts, Granted, Steering);

fn in_mode(
    name: &RailName,
    interface: &Interface,
    config: &XdpConfig,
    (port, queues): (u16, &[u32]),
    mode: Mode,
) -> Result<Made, No> {
    let (chunk, limit) = chunk_and_limit(interface, config);
    let layout = Layout::of(config, chunk, queues.len() as u32);
    let memory = Region::new(layout.chunks() * chunk).map_err(No::Ends)?.whole();
    let most = queues.iter().max().map_or(1, |queue| queue + 1);
    let steering = attach::attach(interface, port, most, mode).map_err(|no| told(name, interface, no))?;
    let made = make_queues(interface, config, &layout, (&memory, queues), mode)
        .map_err(|refusal| judge(name, interface, refusal, mode))?;
    for (queue, one) in queues.iter().zip(&made) {
        sys::put_socket(steering.map.as_fd(), *queue, one.socket.as_fd())
            .map_err(|error| judge(name, interface, ("enter its socket (bpf)", error), mode))?;
    }
    let mut zero_copy = mode == Mode::ZeroCopy;
    for one in &made {
        let has = sys::is_zero_copy(one.socket.as_fd())
            .map_err(|error| judge(name, interface, ("ask for its mode", error), mode))?;
        if has != (mode == Mode::ZeroCopy) {
            return Err(No::NotThis(format!("the kernel says zero-copy: {has}")));
        }
        zero_copy = has;
    }
    let busy_poll = config.busy_poll.is_some();
    let granted = Granted {
        mode,
        queues: queues.to_vec(),
        program: steering.program,
        busy_poll,
        memory: memory.len(),
    };
    let own = interface.socket_address(port);
    match halves(made, &layout, memory, own, (limit, zero_copy, busy_poll)) {
        Some((tx, rx)) => Ok((tx, rx, granted, steering)),
        None => Err(No::NotThis("it has no queue".to_owned())),
    }
}

fn make_queues(
    interface: &Interface,
    config: &XdpConfig,
    layout: &Layout,
    (memory, queues): (&RegionSlice, &[u32]),
    mode: Mode,
) -> Result<Vec<Queue>, Refusal> {
    let mut made: Vec<Queue> = Vec::new();
    for &queue in queues {
        let sizes = Sizes {
            receive: layout.ring,
            send: if made.is_empty() {
                layout.sends
            } else {
                RING_UNUSED
            },
        };
        let first = made.first().map(|first| first.socket.as_fd());
        let one = Queue::new(first.is_none().then_some((memory, layout.chunk as u32)), sizes)?;
        let copy = if mode == Mode::ZeroCopy {
            libc::XDP_ZEROCOPY
        } else {
            libc::XDP_COPY
        };
        // The kernel of before does not know it, and sends a few frames at a time.
        let _ = sys::set_number(one.socket.as_fd(), SEND_BUDGET, sizes.send as u32);
        if let Some(time) = config.busy_poll {
            poll_busily(&one, time)
                .map_err(|error| ("have the device polled (SO_PREFER_BUSY_POLL)", error))?;
        }
        let (place, flags) = ((interface.index, queue), copy | libc::XDP_USE_NEED_WAKEUP);
        attach::when_let_go(is_busy, || one.bind(place, flags, first))
            .map_err(|error| (bind_step(queue), error))?;
        made.push(one);
    }
    Ok(made)
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// The step of binding, with the first few queues' numbers: who has the queue is told by [`judge`].
fn bind_step(queue: u32) -> &'static str {
    const STEPS: [&str; 4] = [
        "bind to queue 0",
        "bind to queue 1",
        "bind to queue 2",
        "bind to queue 3",
    ];
    STEPS.get(queue as usize).copied().unwrap_or("bind to a queue")
}

fn poll_busily(queue: &Queue, time: u32) -> io::Result<()> {
    let fd = queue.socket.as_fd();
    sys::set_int(fd, SO_PREFER_BUSY_POLL, 1)?;
    sys::set_int(fd, libc::SO_BUSY_POLL, time as i32)?;
    sys::set_int(fd, SO_BUSY_POLL_BUDGET, 64)
}

/// The two halves of the rail.
fn halves(
    made: Vec<Queue>,
    layout: &Layout,
    memory: RegionSlice,
    own: std::net::SocketAddr,
    (limit, zero_copy, busy_poll): (usize, bool, bool),
) -> Option<(tx::Parts, rx::Parts)> {
    let received = layout.received() as u32;
    let sends = received..received + layout.sends as u32;
    let spares = sends.end..sends.end + layout.spare as u32;
    let mut sender = None;
    let mut sources = Vec::new();
    for queue in made {
        let socket = Arc::new(queue.socket);
        sources.push(Source {
            socket: Arc::clone(&socket),
            receive: queue.receive,
            fill: queue.fill,
            unpublished: 0,
            untold: 0,
            may_sleep: zero_copy,
        });
        sender.get_or_insert(tx::Line {
            socket,
            send: queue.send,
            completion: queue.completion,
        });
    }
    let filled = (0..sources.len()).map(|queue| layout.of_queue(queue)).collect();
    let tx = tx::Parts {
        line: sender?,
        memory: memory.clone(),
        chunk: layout.chunk,
        chunks: sends,
        limit,
        zero_copy,
    };
    let rx = rx::Parts {
        sources,
        memory,
        chunk: layout.chunk,
        filled,
        spares,
        own,
        busy_poll,
    };
    Some((tx, rx))
}

/// Why the program could not be attached, as an error of the rail.
fn told(name: &RailName, interface: &Interface, no: attach::No) -> No {
    match no {
        attach::No::Taken(program) => No::Ends(unusable(
            name,
            format!("{} has another XDP program (number {program})", interface.name),
            "`bpftool net` shows whose it is; end that process, or name another interface",
        )),
        attach::No::Other(reason) => No::NotThis(reason),
        attach::No::System(step, error) => match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => No::Ends(rights::refused(name, step, &error)),
            _ => No::NotThis(format!("{step}: {error}")),
        },
    }
}

/// What a refused step means.
fn judge(name: &RailName, interface: &Interface, (step, error): Refusal, mode: Mode) -> No {
    let ends = |reason: String, remedy: &str| No::Ends(unusable(name, reason, remedy));
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => No::Ends(rights::refused(name, step, &error)),
        Some(libc::EBUSY) => ends(
            format!("another socket has the queue ({step} of {})", interface.name),
            "a queue serves one rail at a time: end the other process, or give each a queue of its own (xdp.queue)",
        ),
        Some(libc::EAFNOSUPPORT) => ends(
            "this kernel has no AF_XDP".to_owned(),
            "use one with CONFIG_XDP_SOCKETS, or name udp",
        ),
        Some(libc::ENOBUFS | libc::ENOMEM) => ends(
            format!("no memory to {step}: {error}"),
            "raise `ulimit -l`, or make xdp.receive_ring and xdp.send_ring smaller",
        ),
        Some(libc::EINVAL) if step.starts_with("bind") && mode != Mode::ZeroCopy => ends(
            format!("{} has no such queue ({step}: {error})", interface.name),
            "`ethtool -l` shows how many there are; change xdp.queue",
        ),
        Some(libc::EOPNOTSUPP) => No::NotThis("its driver does not have it".to_owned()),
        _ => No::NotThis(format!("{step}: {error}")),
    }
}
