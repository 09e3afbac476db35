//! Opening a rail: the memory of frames, a socket for each queue, the program that steers, in the requested
//! mode.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::Mac;
use doorbell_fabric::memory::{Region, RegionSlice};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::Kind;
use doorbell_inet::{Details, Interface, claim, is_up, taken, unusable};

use crate::attach::{self, Steering};
use crate::check::{Checked, Plan, in_fewer, shared_by_several};
use crate::config::{Mode, XdpConfig};
use crate::layout::{Layout, Shape};
use crate::program_owner;
use crate::queue::{Queue, Refusal, Sizes};
use crate::rights;
use crate::rx::{self, Source};
use crate::sys;
use crate::tx;

/// Entries of the rings that are made because they have to be, and never used.
const RING_UNUSED: usize = 64;
/// Within this time a link is back that was there before a program was attached: Ethernet agrees on its speed
/// within three seconds.
const LINK_BACK: Duration = Duration::from_secs(5);
/// Why a mode is not available, where it is not this machine's fault.
pub(crate) const LACKS: &str = "its driver does not have it";
/// `XDP_MAX_TX_SKB_BUDGET`, from Linux 6.18 on: frames sent by one call, where there is no zero-copy.
const SEND_BUDGET: i32 = 9;
/// Bytes that the kernel counts around the bytes of a frame that it copies, at most.
const SKB_AROUND: usize = 1024;
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;

/// What the kernel granted, as the rail's report shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// How frames get to the rail's memory, as the kernel reports it.
    pub mode: Mode,
    /// The queues of the device whose frames it gets.
    pub queues: Vec<u32>,
    /// The number of the program on the interface, as `bpftool prog` shows it.
    pub program: u32,
    /// Whether the configuration lets receives poll the device.
    pub busy_poll_asked: bool,
    /// Whether receives poll the device: the kernel knows a queue to poll. Where it copies, it knows after
    /// the first frame.
    pub busy_poll: bool,
    /// Chunks that a frame is sent in at most; where they are several, frames of several come in too
    /// (multi-buffer).
    pub pieces: u32,
    /// Longest frame of the layer above.
    pub longest: usize,
    /// Bytes of the memory of frames.
    pub memory: usize,
    /// Why better modes and longer frames were not had, one sentence each.
    pub notes: Vec<String>,
}

impl std::fmt::Display for Granted {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let polled = match (self.busy_poll_asked, self.busy_poll) {
            (_, true) => ", polled busily",
            (true, false) => ", not polled busily: the driver names no queue to poll",
            (false, false) => "",
        };
        let queues: Vec<String> = self.queues.iter().map(u32::to_string).collect();
        let (noun, queues) = (
            if queues.len() == 1 { "queue" } else { "queues" },
            queues.join(", "),
        );
        let pieces = match self.pieces {
            1 => String::new(),
            pieces => format!(", frames in up to {pieces} chunks (multi-buffer)"),
        };
        write!(out, "{}, {noun} {queues}{polled}{pieces}", self.mode)?;
        if !self.notes.is_empty() {
            write!(out, " ({})", self.notes.join("; "))?;
        }
        Ok(())
    }
}

/// Everything that a rail is made of.
pub(crate) struct Opened {
    pub(crate) tx: tx::Parts,
    pub(crate) rx: rx::Parts,
    pub(crate) granted: Granted,
    pub(crate) steering: Steering,
    /// The kernel's own sockets on the rail's ports: no other socket gets them, and what goes astray is seen.
    pub(crate) held: [OwnedFd; 2],
    pub(crate) port: u16,
    pub(crate) mac: Mac,
}

/// Why a mode could not be used.
enum ModeError {
    /// Another mode may do.
    NotThis(String),
    /// No mode can be used.
    Ends(RailError),
}

/// The modes to try, the best one first.
pub(crate) fn modes(interface: &Interface, config: &XdpConfig) -> Vec<Mode> {
    match config.mode {
        Some(mode) => vec![mode],
        // Frames of a bond's members come in by the members, and a socket of the bond does not get them
        // before the common code.
        None if matches!(interface.kind().1.as_str(), "bond" | "team") => vec![Mode::Generic],
        // A virtual interface has no device that could spare a copy, and in its driver's own mode a thread
        // more between the two ends: the common code is faster there (docs/performance.md).
        None if matches!(interface.kind().0, Kind::Virtual | Kind::Bridge) => {
            vec![Mode::Generic, Mode::Native]
        }
        None => vec![Mode::ZeroCopy, Mode::Native, Mode::Generic],
    }
}

/// Opens everything in the best mode that is available.
pub(crate) fn open(
    name: &RailName,
    interface: &Interface,
    config: &XdpConfig,
    checked: Checked,
) -> Result<Opened, RailError> {
    let (held, port) = claim(name, interface, config.port, config.pairs)?;
    let mut refused = checked.lacking;
    for plan in &checked.plans {
        match in_mode(name, interface, config, (port, &checked.queues), plan) {
            Ok((tx, rx, mut granted, steering)) => {
                granted.notes.splice(..0, refused);
                return Ok(Opened {
                    tx,
                    rx,
                    granted,
                    steering,
                    held,
                    port,
                    mac: checked.mac,
                });
            }
            Err(ModeError::Ends(error)) => return Err(error),
            Err(ModeError::NotThis(reason)) => refused.push(format!("{}: {reason}", plan.mode)),
        }
    }
    Err(in_no_mode(name, interface, &refused))
}

/// The error where none of the allowed modes is available.
pub(crate) fn in_no_mode(name: &RailName, interface: &Interface, refused: &[String]) -> RailError {
    let what = if refused.len() == 1 {
        "that mode"
    } else {
        "any mode"
    };
    unusable(
        name,
        format!(
            "{} cannot be used in {what} ({})",
            interface.name,
            refused.join("; ")
        ),
        "leave xdp.mode to be chosen, or name udp",
    )
}

type Made = (tx::Parts, rx::Parts, Granted, Steering);

fn in_mode(
    name: &RailName,
    interface: &Interface,
    config: &XdpConfig,
    (port, queues): (u16, &[u32]),
    plan: &Plan,
) -> Result<Made, ModeError> {
    let (mode, layout) = (plan.mode, &plan.layout);
    let memory = Region::new(layout.whole()).map_err(ModeError::Ends)?.whole();
    let judge = |refusal| judge(name, interface, layout, refusal, mode);
    let most = queues.iter().max().map_or(1, |queue| queue + 1);
    let steering =
        attach::attach(interface, port, most, mode).map_err(|no| mode_error(name, interface, no))?;
    if mode == Mode::ZeroCopy && is_up(interface.state.flags) {
        wait_for_link(interface.index);
    }
    let (made, refused) = make_queues(interface, config, plan, &memory, queues).map_err(judge)?;
    let shape = if refused.is_some() {
        plan.shape.all_in_one()
    } else {
        plan.shape
    };
    let short = match refused {
        Some(error) => Some(in_fewer(
            &shape,
            &format!("the kernel refuses multi-buffer here ({error})"),
        )),
        None => plan.short.clone(),
    };
    for (queue, one) in queues.iter().zip(&made) {
        sys::put_socket(steering.map.as_fd(), *queue, one.socket.as_fd())
            .map_err(|error| judge(("enter its socket (bpf)".into(), error)))?;
        let has =
            sys::is_zero_copy(one.socket.as_fd()).map_err(|error| judge(("read its mode".into(), error)))?;
        if has != (mode == Mode::ZeroCopy) {
            return Err(ModeError::NotThis(format!("the kernel reports zero-copy: {has}")));
        }
    }
    let granted = Granted {
        mode,
        queues: queues.to_vec(),
        program: steering.program,
        busy_poll_asked: config.busy_poll.is_some(),
        busy_poll: false,
        pieces: shape.pieces,
        longest: shape.limit,
        memory: memory.len(),
        notes: short.into_iter().collect(),
    };
    let own = interface.socket_address(port);
    let (tx, rx) = halves(made, layout, memory, own, (&shape, &granted, interface.is_wire()));
    Ok((tx, rx, granted, steering))
}

/// Devices that restart for a program take their link down for it, and restart a queue for each socket that
/// is bound. The second is left until the first is over: where both met, an emulated igb under Linux 7.3
/// stalled now and then, as if an interrupt were lost (the cause is not proved). A link that does not
/// come back is no reason not to open the rail.
fn wait_for_link(interface: u32) {
    let begun = Instant::now();
    while begun.elapsed() < LINK_BACK && Details::of(interface).is_ok_and(|now| !now.has_carrier) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A socket for each queue; and why frames are in one chunk each, where the kernel refused the several that
/// were planned.
fn make_queues(
    interface: &Interface,
    config: &XdpConfig,
    plan: &Plan,
    memory: &RegionSlice,
    queues: &[u32],
) -> Result<(Vec<Queue>, Option<io::Error>), Refusal> {
    let (layout, mode) = (&plan.layout, plan.mode);
    let (mut made, mut refused) = (Vec::<Queue>::new(), None);
    let known = memory.slice(0, layout.bytes());
    for &queue in queues {
        let sizes = Sizes {
            receive: layout.ring,
            fill: layout.fill(),
            send: if made.is_empty() {
                layout.sends
            } else {
                RING_UNUSED
            },
        };
        let first = made.first().map(|first| first.socket.as_fd());
        let one = Queue::new(
            known
                .as_ref()
                .filter(|_| first.is_none())
                .map(|known| (known, layout.chunk as u32)),
            sizes,
        )?;
        let copy = if mode == Mode::ZeroCopy {
            libc::XDP_ZEROCOPY
        } else {
            libc::XDP_COPY
        };
        // The kernel of before does not know it, and sends a few frames at a time.
        let _ = sys::set_number(one.socket.as_fd(), SEND_BUDGET, sizes.send as u32);
        if made.is_empty() {
            // A kernel that copies charges the socket for what is under way; what it grants by itself is a
            // part of a ring. Where it gives no more, it sends the rest later.
            let room = layout.sends * (layout.chunk + SKB_AROUND);
            let _ = sys::set_int(one.socket.as_fd(), libc::SO_SNDBUFFORCE, room as i32);
        }
        if let Some(time) = config.busy_poll {
            poll_busily(&one, time)
                .map_err(|error| ("have the device polled (SO_PREFER_BUSY_POLL)".into(), error))?;
        }
        let (place, flags) = ((interface.index, queue), copy | libc::XDP_USE_NEED_WAKEUP);
        let bind = |flags| attach::when_let_go(is_busy, || one.bind(place, flags, first));
        let mut bound = match plan.shape.pieces {
            1 => bind(flags),
            _ => bind(flags | libc::XDP_USE_SG),
        };
        // The flags of the first socket hold for all.
        if first.is_none() && plan.shape.pieces > 1 {
            match bound {
                Err(error) if is_not_had(&error) => {
                    bound = bind(flags);
                    refused = Some(error);
                }
                _ => {}
            }
        }
        bound.map_err(|error| (format!("bind to queue {queue}").into(), error))?;
        made.push(one);
    }
    Ok((made, refused))
}

/// A flag or a capability of the device that is missing.
fn is_not_had(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

fn poll_busily(queue: &Queue, time: u32) -> io::Result<()> {
    let fd = queue.socket.as_fd();
    sys::set_int(fd, SO_PREFER_BUSY_POLL, 1)?;
    sys::set_int(fd, libc::SO_BUSY_POLL, time as i32)?;
    sys::set_int(fd, SO_BUSY_POLL_BUDGET, 64)
}

/// The two halves of the rail: all queues receive, and the first one sends.
fn halves(
    made: Vec<Queue>,
    layout: &Layout,
    memory: RegionSlice,
    own: std::net::SocketAddr,
    (shape, granted, is_wire): (&Shape, &Granted, bool),
) -> (tx::Parts, rx::Parts) {
    let received = layout.received() as u32;
    let sends = received..received + layout.sends as u32;
    let spares = sends.end..sends.end + layout.spare as u32;
    let zero_copy = granted.mode == Mode::ZeroCopy;
    let mut line = None;
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
        line.get_or_insert(tx::Line {
            socket,
            send: queue.send,
            completion: queue.completion,
        });
    }
    let filled = (0..sources.len()).map(|queue| layout.of_queue(queue)).collect();
    let tx = tx::Parts {
        line,
        memory: memory.clone(),
        chunk: layout.chunk,
        chunks: sends,
        limit: shape.limit,
        pieces: shape.pieces,
        zero_copy,
    };
    let rx = rx::Parts {
        sources,
        memory,
        chunk: layout.chunk,
        chunks: layout.chunks(),
        filled,
        spares,
        buffer: shape.buffer,
        kept_buffers: layout.spare,
        own,
        may_be_unfinished: !is_wire,
    };
    (tx, rx)
}

/// Returns why the program could not be attached, as an error of the rail.
fn mode_error(name: &RailName, interface: &Interface, no: attach::AttachError) -> ModeError {
    match no {
        attach::AttachError::Taken(program) => {
            let owner = program_owner::of_program(program)
                .unwrap_or_else(|| "a process that is not visible here".to_owned());
            ModeError::Ends(taken(
                name,
                format!(
                    "{} has another XDP program (number {program}, of {owner})",
                    interface.name
                ),
                format!(
                    "end that process (`bpftool net` shows programs), or name another interface; {}",
                    shared_by_several(&interface.name)
                ),
            ))
        }
        attach::AttachError::Other(reason) => ModeError::NotThis(reason),
        attach::AttachError::System(step, error) => match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => ModeError::Ends(rights::refused(name, step, &error)),
            Some(libc::EINVAL) => {
                ModeError::NotThis(format!("{step}: {error}; it is there from Linux 5.9 on"))
            }
            _ => ModeError::NotThis(format!("{step}: {error}")),
        },
    }
}

/// Returns what a refused step means.
fn judge(
    name: &RailName,
    interface: &Interface,
    layout: &Layout,
    (step, error): Refusal,
    mode: Mode,
) -> ModeError {
    let ends = |reason: String, remedy: &str| ModeError::Ends(unusable(name, reason, remedy));
    let binds = step.starts_with("bind");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ModeError::Ends(rights::refused(name, &step, &error)),
        Some(libc::EBUSY) => ModeError::Ends(taken(
            name,
            format!("another socket has the queue ({step} of {})", interface.name),
            "a queue serves one process at a time: end the other one, or name another interface",
        )),
        Some(libc::EAFNOSUPPORT) => ends(
            "this kernel has no AF_XDP".to_owned(),
            "use one with CONFIG_XDP_SOCKETS, or name udp",
        ),
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            let (reason, remedy) = rights::no_memory(&step, &error, layout.bytes());
            ModeError::Ends(unusable(name, reason, remedy))
        }
        // The existence of the queue was checked before.
        Some(libc::EINVAL) if binds && mode != Mode::ZeroCopy => ends(
            format!("the kernel refuses to {step} of {}: {error}", interface.name),
            "a rail needs Linux 5.9 or later, and 5.10 for several queues: name one (xdp.queue), or name udp",
        ),
        Some(libc::EOPNOTSUPP) => ModeError::NotThis(LACKS.to_owned()),
        _ => ModeError::NotThis(format!("{step}: {error}")),
    }
}
