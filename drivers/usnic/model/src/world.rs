//! All functions, and one turn of the engine over them.

use crate::bridge::Bridge;
use crate::devcmd::run::{Origin, Scene};
use crate::fault::packet::Held;
use crate::fault::{Faults, deeds};
use crate::filter::Filters;
use crate::frame::ROOM;
use crate::function::{Adapter, Function};
use crate::io::{Context, Wrong};
use crate::line::Message;
use crate::notify::Link;
use crate::options::Options;
use crate::switch::Port;
use crate::violation::{Kind, Violations};
use crate::wq::Allowed;

/// Frames of one queue in one turn.
const BURST: usize = 32;
/// Nanoseconds between two checks of what is not urgent: receive queues' enable, interrupts' masks.
const SLOW: u64 = 5_000;

/// The model's state; the engine's thread has it.
pub(crate) struct World {
    pub(crate) context: Context,
    pub(crate) functions: Vec<Function>,
    pub(crate) adapter: Adapter,
    /// The frame that is under way, and a copy of it without its tag.
    pub(crate) room: Box<[u8]>,
    pub(crate) stripped: Box<[u8]>,
    /// Frames that faults hold back.
    pub(crate) held: Vec<Held>,
    /// Messages that faults hold back: when, whose, what.
    pub(crate) late: Vec<(u64, usize, Message)>,
    pub(crate) bridge: Option<Bridge>,
    /// The model is to end.
    pub(crate) is_over: bool,
    /// When it looked last at what is not urgent.
    looked: u64,
}

impl World {
    pub(crate) fn new(
        options: Options,
        violations: Violations,
        faults: Faults,
        bridge: Option<Bridge>,
    ) -> std::io::Result<Self> {
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
                filters: Filters::new(options.behaviour.filters, options.behaviour.oldest_filter),
                link,
                torn: 0,
                overflowed: 0,
            },
            room: vec![0; ROOM].into_boxed_slice(),
            stripped: vec![0; ROOM].into_boxed_slice(),
            held: Vec::new(),
            late: Vec::new(),
            bridge,
            is_over: false,
            looked: 0,
            context: Context {
                begun: std::time::Instant::now(),
                now: 0,
                options,
                violations,
                faults,
            },
        })
    }

    /// Makes one turn; returns how much was done, and whether something waits for its time.
    pub(crate) fn turn(&mut self, now: u64) -> (usize, bool) {
        self.context.now = now;
        let is_slow = now >= self.looked + SLOW;
        if is_slow {
            self.looked = now;
        }
        self.deeds();
        let (mut done, mut waits) = (self.listen(), self.linger());
        for index in 0..self.functions.len() {
            if self.functions[index].line.is_none() || self.functions[index].is_removed {
                self.functions[index].stay_removed(is_slow);
                continue;
            }
            if is_slow {
                waits |= self.functions[index].slow(&self.context);
            }
            waits |= self.command(index);
            for queue in 0..self.functions[index].wq.len() {
                let Function { wq, io, .. } = &self.functions[index];
                if !wq[queue].is_quiet(io) {
                    done += self.send(index, queue);
                }
            }
        }
        (done, waits)
    }

    /// Whether no client or bridge is there to look for: only mail wakes it.
    pub(crate) fn is_alone(&self) -> bool {
        let has_clients = self.functions.iter().any(|function| function.line.is_some());
        !has_clients && self.bridge.is_none() && !self.context.faults.is_timed()
    }

    /// Continues what faults hold back when its time comes; returns whether there is any.
    fn linger(&mut self) -> bool {
        if !self.held.is_empty() {
            self.release(false);
        }
        self.mend();
        while let Some(place) = self.late.iter().position(|(due, ..)| *due <= self.context.now) {
            let (_, index, message) = self.late.remove(place);
            self.reply(index, message);
        }
        !self.held.is_empty() || !self.late.is_empty()
    }

    /// The function's devcmd; whether one is under way.
    pub(crate) fn command(&mut self, index: usize) -> bool {
        let Self {
            context,
            functions,
            adapter,
            ..
        } = self;
        let function = &mut functions[index];
        function.devcmd.look(&mut function.io, context);
        if let Some(busy) = function.devcmd.due(context.now) {
            let outcome = Scene {
                context,
                functions,
                adapter,
            }
            .run(index, Origin::Own, busy.command, &busy.args);
            let function = &mut functions[index];
            function
                .devcmd
                .finish(&mut function.io, deeds::outcome(busy.fault, outcome));
        }
        self.second(index) || self.functions[index].devcmd.busy.is_some()
    }

    /// The function's devcmd2, if it has one; whether a command is under way.
    fn second(&mut self, index: usize) -> bool {
        let Self {
            context,
            functions,
            adapter,
            ..
        } = self;
        let Function { devcmd2, io, .. } = &mut functions[index];
        let Some(second) = devcmd2 else { return false };
        second.look(io, context);
        if let Some(busy) = second.due(context.now) {
            let outcome = Scene {
                context,
                functions,
                adapter,
            }
            .run(index, Origin::Own, busy.command, &busy.args);
            let Function { devcmd2, io, .. } = &mut functions[index];
            // Gone, if the command was a reset.
            if let Some(second) = devcmd2.as_mut().filter(|second| second.busy.is_some()) {
                second.finish(io, context, deeds::outcome(busy.fault, outcome));
            }
        }
        self.functions[index]
            .devcmd2
            .as_ref()
            .is_some_and(|second| second.busy.is_some())
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
                function.is_ordinary()
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
                && !function.is_ordinary()
                && !adapter.filters.has(index, queue)
            {
                let wrong = Wrong::new(Kind::NoFilter, "the pair transmits, and no filter leads to it");
                function.io.violation(context, Some(("wq", queue)), wrong);
            }
            if fetched.length > 0 {
                function.stats.sent(&room[..fetched.length]);
                let from = match fetched.loops {
                    true => Port::Loop(index),
                    false => Port::Function(index),
                };
                self.forward(from, fetched.length);
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

    /// Resets a function, and what of it others keep.
    pub(crate) fn reset(&mut self, index: usize) {
        self.adapter.forget(&mut self.functions, index);
        self.functions[index].reset(&self.context.options);
    }

    /// The client of a function has gone.
    pub(crate) fn detach(&mut self, index: usize) {
        self.adapter.forget(&mut self.functions, index);
        self.functions[index].detach(&self.context.options);
        // The next client is owed no answers.
        self.late.retain(|(_, whose, _)| *whose != index);
    }
}

impl Function {
    /// Does what need not be done each turn; returns whether some queue is about to run or to stop.
    fn slow(&mut self, context: &Context) -> bool {
        let Self { wq, rq, io, cq, .. } = self;
        let is_changing =
            wq.iter().any(|wq| wq.ring.is_changing()) || rq.iter().any(|rq| rq.ring.is_changing());
        for rq in rq {
            rq.ring.control(io, context, cq.len());
            if context.options.behaviour.future {
                rq.ring.watch_early(io, context);
            }
        }
        for cq in cq {
            cq.look(io, context);
        }
        io.interrupts(context);
        is_changing
    }

    /// Keeps registers of a function that was pulled out at all ones, whatever is written there.
    fn stay_removed(&mut self, is_slow: bool) {
        if self.is_removed && is_slow {
            self.io.registers.fill(0xff);
        }
    }
}
