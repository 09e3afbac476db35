//! All functions, and one turn of the engine over them.

use crate::desc::flag;
use crate::devcmd::run::{Origin, Scene};
use crate::filter::Filters;
use crate::frame::{self, ROOM};
use crate::function::{Adapter, Function};
use crate::io::{Context, Wrong};
use crate::notify::Link;
use crate::options::Options;
use crate::violation::{Kind, Violations};
use crate::wq::Allowed;

/// Frames of one queue in one turn.
const BURST: usize = 32;
/// Turns between two looks at what is not urgent: receive queues' enable, interrupts' masks.
const SLOW: u32 = 8;

/// The model's state; the engine's thread has it.
pub(crate) struct World {
    pub(crate) context: Context,
    pub(crate) functions: Vec<Function>,
    pub(crate) adapter: Adapter,
    room: Box<[u8]>,
    turns: u32,
}

impl World {
    pub(crate) fn new(options: Options, violations: Violations) -> std::io::Result<Self> {
        let functions = (0..=options.vfs).map(|index| Function::new(&options, index));
        let functions = functions.collect::<Result<Vec<_>, _>>()?;
        let link = Link {
            up: true,
            speed: options.identity.speed,
            mtu: options.identity.mtu.into(),
            status: 0,
            error: 0,
            downs: 0,
        };
        Ok(Self {
            functions,
            adapter: Adapter {
                filters: Filters::new(options.behaviour.filters),
                link,
            },
            room: vec![0; ROOM].into_boxed_slice(),
            turns: 0,
            context: Context {
                now: 0,
                options,
                violations,
            },
        })
    }

    /// One turn; how much was done, and whether something waits for its time.
    pub(crate) fn turn(&mut self, now: u64) -> (usize, bool) {
        self.context.now = now;
        self.turns = self.turns.wrapping_add(1);
        let is_slow = self.turns.is_multiple_of(SLOW);
        let (mut done, mut waits) = (0, false);
        for index in 0..self.functions.len() {
            if self.functions[index].line.is_none() {
                continue;
            }
            if is_slow {
                self.functions[index].slow(&self.context);
            }
            waits |= self.command(index);
            for queue in 0..self.functions[index].wq.len() {
                done += self.send(index, queue);
            }
        }
        (done, waits)
    }

    /// The function's devcmd; whether one is under way.
    fn command(&mut self, index: usize) -> bool {
        let Self {
            context,
            functions,
            adapter,
            ..
        } = self;
        let function = &mut functions[index];
        function.devcmd.look(&mut function.io, context);
        if let Some(busy) = function.devcmd.due(context.now) {
            let result = Scene {
                context,
                functions,
                adapter,
            }
            .run(index, Origin::Own, busy.command, &busy.args);
            let function = &mut functions[index];
            function.devcmd.finish(&mut function.io, result);
        }
        self.functions[index].devcmd.busy.is_some()
    }

    /// The frames of a send queue.
    fn send(&mut self, index: usize, queue: usize) -> usize {
        let mut done = 0;
        while done < BURST {
            let Self {
                context,
                functions,
                adapter,
                room,
                ..
            } = self;
            let function = &mut functions[index];
            let allowed = Allowed(
                function.is_pf()
                    || !context.options.behaviour.transmit_needs_qp
                    || function.is_enabled(queue),
            );
            let Function { wq, cq, io, .. } = function;
            let wq = &mut wq[queue];
            wq.ring.control(io, context, cq.len());
            wq.look_again(io, cq, context, room);
            let Some(fetched) = wq.next(io, cq, context, allowed, room) else {
                break;
            };
            if !std::mem::replace(&mut wq.checked, true)
                && !function.is_pf()
                && !adapter.filters.has(index, queue)
            {
                let wrong = Wrong::new(Kind::NoFilter, "the pair transmits, and no filter leads to it");
                function.io.violation(context, Some(("wq", queue)), wrong);
            }
            if fetched.length > 0 {
                function.stats.sent(&room[..fetched.length]);
                self.forward(index, fetched.length);
            }
            let Self {
                context, functions, ..
            } = self;
            let Function { wq, cq, io, .. } = &mut functions[index];
            wq[queue].complete(io, cq, context, &fetched);
            done += 1;
        }
        if done > 0 {
            let Self {
                context, functions, ..
            } = self;
            let Function { wq, io, .. } = &mut functions[index];
            wq[queue].ring.show(io, context);
        }
        done
    }

    /// The switch: to whom the frame in the room goes.
    fn forward(&mut self, from: usize, length: usize) {
        if !self.adapter.link.up {
            return;
        }
        let Some(to) = frame::mac(&self.room[..length], 0) else {
            return;
        };
        if to[0] & 1 != 0 {
            for index in 0..self.functions.len() {
                if from != index && self.functions[index].takes_group(to) {
                    self.deliver(index, length, 0);
                }
            }
            return;
        }
        match self.owner(to, length) {
            Some(index) => self.deliver(index, length, 0),
            None => {
                for index in 0..self.functions.len() {
                    if from != index && self.functions[index].is_promiscuous() {
                        self.deliver(index, length, 0);
                    }
                }
            }
        }
    }

    /// Whose address it is. What is for the physical function goes to whoever has the best filter for it (5.1, 8.6).
    fn owner(&self, to: [u8; 6], length: usize) -> Option<usize> {
        let frame = &self.room[..length];
        if self.functions[0].has_address(to) {
            let parts = frame::parse(frame);
            let best = self.adapter.filters.best(None, frame, &parts);
            return Some(best.map_or(0, |filter| filter.owner));
        }
        self.functions
            .iter()
            .position(|function| function.has_address(to))
    }

    /// Gives the frame in the room to a function; `bad` flags are taken out of what is found of it.
    fn deliver(&mut self, index: usize, length: usize, bad: u8) {
        let Self {
            context,
            functions,
            adapter,
            room,
            ..
        } = self;
        let strips = functions[0].strips || functions[index].strips;
        let function = &mut functions[index];
        if function.line.is_none() {
            return;
        }
        let (mut parts, mut length, mut vlan) = (frame::parse(&room[..length]), length, None);
        if strips && parts.vlan.is_some() {
            vlan = parts.vlan;
            length = frame::strip(room, length);
            parts = frame::parse(&room[..length]);
        }
        let flags = (frame::flags(&room[..length], &parts) | flag::FCS_OK) & !bad;
        function.receive(
            context,
            &adapter.filters,
            (&room[..length], &parts),
            (flags, vlan),
        );
    }

    /// Resets a function, and what of it others keep.
    pub(crate) fn reset(&mut self, index: usize) {
        self.adapter.forget(&mut self.functions, index);
        self.functions[index].reset(&self.context.options);
    }

    /// The client of a function has gone.
    pub(crate) fn detach(&mut self, index: usize) {
        self.adapter.forget(&mut self.functions, index);
        self.functions[index].detach(&self.context.options);
    }
}

impl Function {
    /// What need not be looked at each turn.
    fn slow(&mut self, context: &Context) {
        let Self { rq, io, cq, .. } = self;
        for rq in rq {
            rq.ring.control(io, context, cq.len());
            if context.options.behaviour.future {
                rq.ring.watch_early(io, context);
            }
        }
        io.interrupts(context);
    }
}
