//! One PCI function: its queues, its devcmd, its state, and what it receives.

use std::ops::Range;
use std::sync::Arc;

use crate::config::Config;
use crate::cq::Cq;
use crate::desc::{entry, flag};
use crate::devcmd::second::Devcmd2;
use crate::devcmd::{Devcmd, errno};
use crate::dma::Memory;
use crate::fault::Action;
use crate::filter::Filters;
use crate::frame::{self, Parts};
use crate::io::{Context, Io};
use crate::layout::{self, Layout};
use crate::line::Line;
use crate::map::Shared;
use crate::notify::{self, Link, NotifyArea};
use crate::options::{Options, Trap};
use crate::registers::resource;
use crate::rq::{Arrival, Outcome, Rq};
use crate::stats::Stats;
use crate::wq::Wq;

/// Bits of PACKET_FILTER (3.7).
mod takes {
    pub(super) const DIRECTED: u64 = 1;
    pub(super) const MULTICAST: u64 = 2;
    pub(super) const BROADCAST: u64 = 4;
    pub(super) const PROMISCUOUS: u64 = 8;
    pub(super) const ALL_MULTICAST: u64 = 0x10;
}

/// What the functions of an adapter share.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) filters: Filters,
    pub(crate) link: Link,
    /// Notify areas are torn until then.
    pub(crate) torn: u64,
    /// Frames that were lost because too many were held back.
    pub(crate) overflowed: u64,
}

impl Adapter {
    /// Resets a function: its filters go, and with the physical function's, those of all (8.4).
    pub(crate) fn forget(&mut self, functions: &mut [Function], index: usize) {
        if functions[index].is_pf() {
            self.filters.clear(None);
            for function in functions {
                function.qps = 0;
            }
        } else {
            self.filters.clear(Some(index));
            functions[index].qps = 0;
        }
    }
}

/// The SR-IOV function of the older generation, which enic drives as it does a physical one (section 1 of the
/// reference).
const ORDINARY_VF: u16 = 0x0071;

/// How far a function has come to life by its own commands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Life {
    pub(crate) opened: bool,
    pub(crate) open_done: u64,
    pub(crate) inited: bool,
    pub(crate) init_done: u64,
    pub(crate) reset_done: u64,
    /// The last of ENABLE and DISABLE.
    pub(crate) enabled: Option<bool>,
}

/// A function of the adapter.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) index: usize,
    pub(crate) io: Io,
    pub(crate) layout: Layout,
    pub(crate) areas: Vec<Range<usize>>,
    pub(crate) wq: Vec<Wq>,
    pub(crate) rq: Vec<Rq>,
    pub(crate) cq: Vec<Cq>,
    pub(crate) interrupts: usize,
    pub(crate) devcmd: Devcmd,
    pub(crate) devcmd2: Option<Devcmd2>,
    is_ordinary: bool,
    pub(crate) line: Option<Arc<Line>>,
    pub(crate) life: Life,
    /// The hardware address at the begin, and now.
    own_mac: [u8; 6],
    pub(crate) mac: [u8; 6],
    pub(crate) addresses: Vec<[u8; 6]>,
    pub(crate) takes: u64,
    pub(crate) strips: bool,
    pub(crate) stats: Stats,
    /// What was counted before the counters were cleared.
    past: [u64; 5],
    pub(crate) notify: Option<NotifyArea>,
    /// Queue pairs that are enabled, a bit each.
    qps: u64,
    /// The values of IG_VLAN_REWRITE_MODE and SET_DEFAULT_VLAN; frames are passed as they are. \[M\]
    pub(crate) vlan_mode: u64,
    pub(crate) default_vlan: u64,
    /// What is wrong with its table.
    pub(crate) table_faults: Vec<Action>,
    /// Whether the function was pulled out.
    pub(crate) is_removed: bool,
}

impl Function {
    /// Function 0 is the physical one.
    pub(crate) fn new(options: &Options, index: usize) -> std::io::Result<Self> {
        let layout = layout::of(options, index);
        let name = if index == 0 {
            "pf".to_owned()
        } else {
            format!("vf{}", index - 1)
        };
        let registers = Shared::new("vic-bar0", layout.length)?;
        let find = |kind, count: usize| -> Vec<usize> {
            (0..count)
                .filter_map(|instance| layout.find(kind, instance))
                .collect()
        };
        let counts = options.counts;
        let (wqs, rqs, cqs) = (
            find(resource::WQ, counts.wq),
            find(resource::RQ, counts.rq),
            find(resource::CQ, counts.cq),
        );
        let interrupts = find(resource::INTR_CTRL, counts.intr);
        let config = Config::new(options, index != 0, layout.length);
        let pba = layout.find(resource::INTR_PBA_LEGACY, 0);
        let memory = Memory::new(options.most_maps, None);
        let io = Io::new(
            (index, name),
            registers,
            config,
            memory,
            (&interrupts, counts.spare),
            pba,
        );
        let devcmd = layout.find(resource::DEVCMD, 0).unwrap_or_default();
        let last = if options.identity.shared_mac {
            0
        } else {
            index as u8
        };
        // Locally administered, of one station.
        let mac = [0x02, options.identity.adapter, 0x56, 0x49, 0x43, last];
        let mut function = Self {
            index,
            io,
            areas: layout.areas(options.trap),
            wq: wqs
                .iter()
                .enumerate()
                .map(|(queue, &at)| Wq::new(queue, at))
                .collect(),
            rq: rqs
                .iter()
                .enumerate()
                .map(|(queue, &at)| Rq::new(queue, at))
                .collect(),
            cq: cqs
                .iter()
                .enumerate()
                .map(|(queue, &at)| Cq::new(queue, at))
                .collect(),
            interrupts: interrupts.len(),
            devcmd: Devcmd::new(devcmd, options.trap != Trap::None),
            devcmd2: layout.find(resource::DEVCMD2, 0).map(Devcmd2::new),
            layout,
            is_ordinary: index == 0 || options.identity.vf_device == ORDINARY_VF,
            line: None,
            life: Life::default(),
            own_mac: mac,
            mac,
            addresses: Vec::new(),
            takes: 0,
            strips: false,
            stats: Stats::default(),
            past: [0; 5],
            notify: None,
            qps: 0,
            vlan_mode: 0,
            default_vlan: 0,
            table_faults: Vec::new(),
            is_removed: false,
        };
        function.put_table();
        Ok(function)
    }

    /// Whether the function's queues need no filters and no QP_ENABLE: it receives by its hardware address,
    /// as the vNICs do that Linux's enic drives.
    pub(crate) fn is_ordinary(&self) -> bool {
        self.is_ordinary
    }

    pub(crate) fn is_pf(&self) -> bool {
        self.index == 0
    }

    /// Registers as they are after a reset: all zero, the table at their begin. \[M\]
    pub(crate) fn put_table(&mut self) {
        self.io.registers.fill(0);
        self.write_table();
    }

    /// The table alone, as faults have it; queues go on beside it.
    pub(crate) fn write_table(&mut self) {
        self.io.registers.put_bytes(0, &self.layout.table());
        self.spoil_table();
    }

    /// A reset by command: queues and states, not the configuration space, maps or the connection.
    pub(crate) fn soft_reset(&mut self) {
        for wq in &mut self.wq {
            wq.reset();
        }
        for rq in &mut self.rq {
            rq.reset();
        }
        for cq in &mut self.cq {
            cq.reset();
        }
        self.io.reset();
        self.life = Life::default();
        self.mac = self.own_mac;
        self.addresses.clear();
        (self.takes, self.strips, self.vlan_mode, self.default_vlan) = (0, false, 0, 0);
        self.notify = None;
        self.clear_registers();
    }

    /// Clears all blocks but devcmd, whose command is still being answered.
    fn clear_registers(&mut self) {
        for kind in [resource::WQ, resource::RQ, resource::CQ, resource::INTR_CTRL] {
            for at in (0..).map_while(|instance| self.layout.find(kind, instance)) {
                self.io.registers.put_bytes(at, &[0; 128]);
            }
        }
    }

    /// A function level reset: everything but what the client has set up outside of the function.
    pub(crate) fn reset(&mut self, options: &Options) {
        self.is_removed = false;
        self.soft_reset();
        self.devcmd.reset();
        if let Some(second) = &mut self.devcmd2 {
            second.reset();
        }
        self.clear_stats();
        self.put_table();
        self.io.config = Config::new(options, !self.is_pf(), self.layout.length);
    }

    /// Restarts the counters; the model itself forgets nothing.
    pub(crate) fn clear_stats(&mut self) {
        self.past = self.totals();
        self.stats = Stats::default();
    }

    /// Since the model began: frames sent and received, those that matched no filter or found no buffer,
    /// errors.
    pub(crate) fn totals(&self) -> [u64; 5] {
        let (tx, rx) = (&self.stats.tx, &self.stats.rx);
        let now = [tx.ok, rx.ok, rx.drop, rx.no_bufs, tx.errors + rx.errors];
        std::array::from_fn(|index| self.past[index] + now[index])
    }

    /// The client has gone: nothing of it is kept.
    pub(crate) fn detach(&mut self, options: &Options) {
        self.reset(options);
        self.io.memory = Memory::new(options.most_maps, None);
        self.io.vectors.fill_with(|| None);
        self.line = None;
    }

    /// Whether its queue pair is enabled.
    #[inline]
    pub(crate) fn is_enabled(&self, qp: usize) -> bool {
        self.qps & 1 << qp != 0
    }

    pub(crate) fn enable_qp(&mut self, context: &Context, qp: u64) -> Result<(), u8> {
        let index = self.qp(qp)?;
        // Its receive queue has to be programmed. \[M\]
        let at = self.layout.find(resource::RQ, index).ok_or(errno::INVALID)?;
        let is_programmed = self.io.registers.get(at + crate::registers::queue::RING_SIZE) != 0;
        if !is_programmed && !context.options.behaviour.qp_without_ring {
            return Err(errno::BAD_STATE);
        }
        self.qps |= 1 << index;
        Ok(())
    }

    /// Turns a queue pair off. One that is not on is accepted, too: a driver that restarts after a reset does
    /// not know what is left. \[M\]
    pub(crate) fn disable_qp(&mut self, qp: u64) -> Result<(), u8> {
        self.qps &= !(1 << self.qp(qp)?);
        Ok(())
    }

    /// A queue pair by its receive queue.
    fn qp(&self, qp: u64) -> Result<usize, u8> {
        let index = usize::try_from(qp).ok();
        index.filter(|index| *index < self.rq.len()).ok_or(errno::INVALID)
    }

    /// Writes the notify area, and rings its interrupt on a change; false where it cannot be written.
    pub(crate) fn notify(&mut self, context: &Context, adapter: &Adapter, is_change: bool) -> bool {
        let Some(wanted) = self.notify else { return true };
        let (mut area, size) = adapter.link.area(wanted.size);
        // Torn: a sum that does not fit.
        area[0] ^= u8::from(adapter.torn > context.now);
        let told = self
            .io
            .write(context, ("devcmd", 0), wanted.address, &area[..size]);
        if is_change && wanted.interrupt != notify::NO_INTERRUPT {
            self.io.raise(context, ("devcmd", 0), wanted.interrupt.into());
        }
        told
    }

    /// Whether a frame to this address of one station is the function's.
    #[inline]
    pub(crate) fn has_address(&self, mac: [u8; 6]) -> bool {
        self.mac == mac || self.addresses.contains(&mac)
    }

    /// Whether it takes what goes to this group.
    pub(crate) fn takes_group(&self, mac: [u8; 6]) -> bool {
        let wanted = match mac == [0xff; 6] {
            true => self.takes & takes::BROADCAST != 0,
            false => {
                self.takes & takes::ALL_MULTICAST != 0
                    || self.takes & takes::MULTICAST != 0 && self.addresses.contains(&mac)
            }
        };
        wanted || self.is_promiscuous()
    }

    pub(crate) fn is_promiscuous(&self) -> bool {
        self.takes & takes::PROMISCUOUS != 0
    }

    /// Whether it receives at all.
    fn is_receiving(&self, context: &Context) -> bool {
        match self.life.enabled {
            Some(enabled) => enabled,
            None => !self.is_ordinary && !context.options.behaviour.vf_needs_enable,
        }
    }

    /// Receives a frame: steers it to a queue, and puts it there.
    pub(crate) fn receive(
        &mut self,
        context: &Context,
        filters: &Filters,
        (frame, parts): (&[u8], &Parts),
        (flags, vlan): (u8, Option<u16>),
    ) {
        self.stats.rx.total += 1;
        let steered = match (
            self.is_receiving(context),
            filters.best(Some(self.index), frame, parts),
        ) {
            (false, _) => None,
            (true, Some(filter)) => Some((filter.asked.rq as usize, filter.id as u16, entry::CLASSIFIER)),
            // A frame that no filter takes goes to an ordinary vNIC, if it is for it.
            (true, None) if self.is_ordinary && self.wants(frame) => Some((0, 0, entry::RQ_ENET)),
            (true, None) => None,
        };
        let Some((queue, filter, kind)) = steered.filter(|(queue, ..)| *queue < self.rq.len()) else {
            self.stats.rx.drop += 1;
            return;
        };
        if !self.is_ordinary && !self.is_enabled(queue) {
            self.stats.rx.no_bufs += 1;
            return;
        }
        let arrival = Arrival {
            frame,
            kind,
            flags,
            vlan,
            filter,
        };
        match self.rq[queue].receive(&mut self.io, &mut self.cq, context, &arrival) {
            Outcome::Taken if flags & flag::FCS_OK == 0 => {
                self.stats.rx.crc += 1;
                self.stats.rx.errors += 1;
            }
            Outcome::Taken => self.stats.received(frame),
            Outcome::NoBuffer => self.stats.rx.no_bufs += 1,
            Outcome::Error => self.stats.rx.errors += 1,
        }
    }

    /// Whether the physical function takes a frame for itself.
    fn wants(&self, frame: &[u8]) -> bool {
        let Some(to) = frame::mac(frame, 0) else {
            return false;
        };
        let is_own = to[0] & 1 == 0 && self.has_address(to) && self.takes & takes::DIRECTED != 0;
        is_own || to[0] & 1 != 0 && self.takes_group(to) || self.is_promiscuous()
    }
}
