//! The options of a model. Each field about something that no public source defines carries a mark:
//!
//! * **\[M\]** the model's own choice, where hardware is unknown;
//! * **\[I\]** inferred from how drivers behave;
//! * **\[U\]** unknown, and the options offer what there may be.
//!
//! A driver that is to work with a real adapter works with every value of these.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;

/// All options of a model.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of the sockets; one with a random name where none is given.
    pub dir: Option<PathBuf>,
    /// Virtual functions, 0 to 64.
    pub vfs: usize,
    /// The PCI identities of the functions.
    pub identity: Identity,
    /// How many queues each function has.
    pub counts: Counts,
    /// Where things are in BAR0.
    pub layout: LayoutOptions,
    /// Which registers are messages.
    pub trap: Trap,
    /// How a virtual function's own devcmd answers commands of filters and queue pairs.
    pub policy: Policy,
    /// How long things take.
    pub timing: Timing,
    /// The rest of what is unknown.
    pub behaviour: Behaviour,
    /// What the engine does when there is nothing to do.
    pub idle: Idle,
    /// A kernel's network beside the functions.
    pub bridge: Option<BridgeTo>,
    /// Faults to inject (`docs/vic-model.md` has the grammar).
    pub script: String,
    /// Where violations go, one JSON object a line.
    pub violations: Option<PathBuf>,
    /// Parts of memory that a client may map at a time into one function.
    pub most_maps: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: None,
            vfs: 2,
            identity: Identity::default(),
            counts: Counts::default(),
            layout: LayoutOptions::default(),
            trap: Trap::Devcmd,
            policy: Policy::Real,
            timing: Timing::default(),
            behaviour: Behaviour::default(),
            idle: Idle::Sleep,
            bridge: None,
            script: String::new(),
            violations: None,
            most_maps: 65_536,
        }
    }
}

/// The PCI identities of the functions (8.1).
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Device of the virtual functions: 0x00cf, the usNIC one.
    pub vf_device: u16,
    /// Device of the physical function: 0x0043.
    pub pf_device: u16,
    /// \[M\] Subsystem of all: 0x014d, a VIC 1385; newer functions show 0.
    pub subsystem: u16,
    /// Revision: 0xa2 in public outputs.
    pub revision: u8,
    /// \[M\] Class of the virtual functions: Ethernet.
    pub class: u32,
    /// Speed of the link in Mb/s, as in the notify area.
    pub speed: u32,
    /// MTU, as in DEV_SPEC and the notify area.
    pub mtu: u16,
    /// \[M\] Every virtual function has the physical one's hardware address, instead of its own.
    pub shared_mac: bool,
    /// \[M\] The second byte of all hardware addresses: models on one wire have different ones.
    pub adapter: u8,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            vf_device: 0x00cf,
            pf_device: 0x0043,
            subsystem: 0x014d,
            revision: 0xa2,
            class: 0x02_0000,
            speed: 40_000,
            mtu: 9000,
            shared_mac: false,
            adapter: 0,
        }
    }
}

/// How many queues and interrupts a function has (8.1; 5.4 for what is seen in the field).
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Send queues, 1 to 64.
    pub wq: usize,
    /// Receive queues, 1 to 64.
    pub rq: usize,
    /// Completion queues, 1 to 128.
    pub cq: usize,
    /// Interrupts, 1 to 63.
    pub intr: usize,
    /// \[M\] MSI-X vectors above the interrupts, 1 to 64.
    pub spare: usize,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            wq: 6,
            rq: 6,
            cq: 6,
            intr: 6,
            spare: 1,
        }
    }
}

/// The resource table and what it points to (2, 8.1).
#[derive(Clone, Copy, Debug)]
pub struct LayoutOptions {
    /// Offsets and the order of entries are shuffled by this seed; in order where there is none.
    pub seed: Option<u64>,
    /// The header of a management vNIC instead of the usual one.
    pub management: bool,
    /// Entries of types that are in no driver's list, of a BAR that is absent, and of the MSI-X table's BAR.
    pub strange: bool,
    /// A devcmd2 block.
    pub devcmd2: bool,
    /// A window to adapter memory of this many bytes; 0: none. It keeps what is written, and sends nothing by
    /// itself (9.7).
    pub mem: usize,
    /// Group interrupt control blocks: they are there and do nothing, since how they are set up is not public
    /// (9.7).
    pub group_interrupts: bool,
    /// The legacy pending bits.
    pub pba_legacy: bool,
    /// \[M\] The least length of BAR0 in bytes; it grows to what it has to hold, to a power of two.
    pub bar: usize,
    /// \[M\] BAR0 has 64 bits.
    pub wide: bool,
}

impl Default for LayoutOptions {
    fn default() -> Self {
        Self {
            seed: None,
            management: false,
            strange: true,
            devcmd2: false,
            mem: 0,
            group_interrupts: false,
            pba_legacy: true,
            bar: 64 << 10,
            wide: true,
        }
    }
}

/// Which registers are messages, and which are memory that the engine looks at.
///
/// When a register is plain memory, the model sees its content only when it looks: not how it was written,
/// nor that the same value was written again; and effects that should be immediate come a moment later.
/// Messages are exact, and cost microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// No register is a message: all of BAR0 can be mapped. BUSY is set a moment after a command is written,
    /// so a driver that looks too early takes it for done, and one that does not wait at all (NOWAIT) writes
    /// the next over it: only for clients that wait until cmd reads zero.
    None,
    /// The devcmd block (a page of its own) is messages, everything else is memory.
    Devcmd,
    /// The interrupt control blocks are messages, too.
    Control,
    /// All of BAR0: each access is judged by width and alignment, and repeated writes are seen.
    All,
}

/// How a virtual function's own devcmd answers commands of filters and queue pairs (8.2). \[U\] what hardware
/// does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Error 3, no permission: they have to go through the physical function's proxy.
    Real,
    /// The commands are carried out.
    Permissive,
    /// Error 5, unknown command.
    Hidden,
}

/// How long things take. \[M\] all.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A device command is BUSY.
    pub devcmd: Duration,
    /// The time for which a command is BUSY whose caller does not wait for it. Linux's enic gives up where it
    /// finds the last one BUSY still, and sends OPEN_STATUS right after OPEN: so none of this may be visible
    /// where the block is messages.
    pub nowait: Duration,
    /// OPEN, INIT and resets go on after their command is done.
    pub two_part: Duration,
    /// The time from enable to running.
    pub enable: Duration,
    /// The time from the end of enable to the end of running.
    pub disable: Duration,
    /// A frame's descriptors and bytes are compared with what was sent, this long after it was taken and
    /// before its completion is written; 0: no completion waits.
    pub recheck: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            devcmd: Duration::from_micros(200),
            nowait: Duration::ZERO,
            two_part: Duration::from_millis(1),
            enable: Duration::from_micros(5),
            disable: Duration::from_micros(50),
            recheck: Duration::ZERO,
        }
    }
}

/// What is unknown of the behaviour. \[M\] all; the reference's section has the number.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// 8.5: a queue pair has to be enabled before its send queue transmits.
    pub transmit_needs_qp: bool,
    /// 9.5: a virtual function's receive needs ENABLE on its own devcmd.
    pub vf_needs_enable: bool,
    /// 9.5: what a virtual function's own OPEN, INIT, ENABLE and the like are answered with: 0 done, or an
    /// error number.
    pub vf_open: u8,
    /// 8.4: a command that is not supported is answered by CAPABILITY with status ERROR, instead of a number
    /// in a0.
    pub capability_by_error: bool,
    /// 3.4: numbers of commands that are unknown to this firmware.
    pub without: Vec<u16>,
    /// 3.4: the highest filter type that CAPABILITY names and ADD_FILTER takes, 0 to 3.
    pub filter_type: u32,
    /// 8.4: filters of one adapter; 9.11 unknown.
    pub filters: usize,
    /// 8.4: ADD_FILTER while the link is down is error 9.
    pub filter_needs_link: bool,
    /// 8.4: filters go when the link does.
    pub link_loses_filters: bool,
    /// 8.5: a frame that is too long is dropped without a completion, and the queue goes on.
    pub silent_drop: bool,
    /// 8.5: most descriptors of one frame.
    pub fragments: usize,
    /// 4.5 \[I\]: a send descriptor's length of 0 means 16384; otherwise it is an error.
    pub zero_is_16k: bool,
    /// 4.4 \[I\]: an interrupt fires as long as its credits are above zero, instead of once an event.
    pub gated_by_credits: bool,
    /// 4.8: posting on a receive queue before it is enabled is a violation, as future firmware has it, and
    /// what was posted so is not taken: the queue has nothing until its posted index is written again. Of
    /// memory (see [`Trap`]) it is only known where it is seen before the queue is enabled, which takes up to
    /// some microseconds.
    pub future: bool,
    /// 4.7: a doorbell that was lost (a fault, or `future`) is seen when the same index is written again;
    /// otherwise it takes another one.
    pub same_index: bool,
    /// 4.8: a receive queue that was used and is disabled only once is a violation, and keeps one stale
    /// descriptor.
    pub strict_disable: bool,
    /// 4.7: ring registers that are written while the queue runs take effect, wrongly, as in a real
    /// descriptor cache.
    pub stale_cache: bool,
    /// 4.7: the hint of a 64-bit doorbell is compared with the descriptor (only seen with [`Trap::All`]).
    pub strict_hint: bool,
    /// Bus mastering has to be on for DMA.
    pub needs_bus_master: bool,
    /// 8.1: there is no function level reset in the configuration space.
    pub no_flr: bool,
    /// 8.4: OPEN, INIT and ENABLE are done in any order, instead of error 6.
    pub any_order: bool,
    /// 8.4: an unknown command with the NOWAIT flag ends without ERROR.
    pub nowait_silent: bool,
    /// 8.4: the same match twice is a second filter, instead of error 1.
    pub twin_filters: bool,
    /// 8.4: of the filters that a frame meets the oldest wins, instead of the most specific.
    pub oldest_filter: bool,
    /// 8.4: QP_ENABLE of a queue that is not programmed is done, instead of error 6.
    pub qp_without_ring: bool,
    /// 8.3: accesses of other widths and alignments are done (and recorded), instead of dropped and read as
    /// ones.
    pub loose_access: bool,
    /// 8.5: a send descriptor's loopback bit takes a frame back to its own function, and nowhere else;
    /// otherwise it means nothing.
    pub loopback: bool,
    /// 8.6: unused continuation buffers before the next start are skipped; otherwise they stop the queue.
    pub skip_unused: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            transmit_needs_qp: true,
            vf_needs_enable: false,
            vf_open: 0,
            capability_by_error: false,
            without: Vec::new(),
            filter_type: 1,
            filters: 64,
            filter_needs_link: false,
            link_loses_filters: false,
            silent_drop: false,
            fragments: 64,
            zero_is_16k: false,
            gated_by_credits: false,
            future: false,
            same_index: false,
            strict_disable: false,
            stale_cache: false,
            strict_hint: false,
            needs_bus_master: true,
            no_flr: false,
            any_order: false,
            nowait_silent: false,
            twin_filters: false,
            oldest_filter: false,
            qp_without_ring: false,
            loose_access: false,
            loopback: true,
            skip_unused: true,
        }
    }
}

/// What the engine does when there is nothing to do. A doorbell in memory wakes no thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Looks on: the shortest way of a frame, and a whole core.
    Spin,
    /// Lets others run.
    Yield,
    /// Lets others run, and after ten milliseconds without work sleeps for 50 µs at a time.
    Sleep,
}

/// A kernel's network beside the functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BridgeTo {
    /// An interface that is there: all frames that it receives are passed in, and frames are sent by it
    /// (AF_PACKET).
    Interface(String),
    /// A tap of this name, made by the model: the kernel's end of a wire.
    Tap(String),
}

impl Options {
    /// Whether these fit together.
    ///
    /// # Errors
    /// [`Error::Option`] with the first that does not.
    pub fn check(&self) -> Result<(), Error> {
        let Counts {
            wq,
            rq,
            cq,
            intr,
            spare,
        } = self.counts;
        let ranges = [
            ("--vfs", self.vfs, 0, 64),
            ("--wq", wq, 1, 64),
            ("--rq", rq, 1, 64),
            ("--cq", cq, 1, 128),
            ("--intr", intr, 1, 63),
            ("--spare-vectors", spare, 1, 64),
            ("--filter-type", self.behaviour.filter_type as usize, 0, 3),
            ("--filters", self.behaviour.filters, 1, 65_535),
            ("--fragments", self.behaviour.fragments, 1, 4095),
            ("--mtu", usize::from(self.identity.mtu), 68, 9000),
            ("--bar", self.layout.bar, 4096, 64 << 20),
            ("--mem", self.layout.mem, 0, 16 << 20),
        ];
        for (name, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(Error::Option(format!(
                    "`{name} {value}` is out of range; it may be {least} to {most}"
                )));
            }
        }
        Ok(())
    }
}
