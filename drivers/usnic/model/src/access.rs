//! Accesses of BAR0 by messages: what hardware takes, what it does not, and what reacts at once (8.3).

use crate::desc::WqDesc;
use crate::function::Function;
use crate::io::{Context, Io, Wrong};
use crate::registers::{self, resource};
use crate::violation::Kind;
use crate::wire::{u32_at, u64_at};

/// An access that is not inside of BAR0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outside;

impl Function {
    /// Reads BAR0 by message.
    pub(crate) fn read_registers(
        &mut self,
        context: &Context,
        at: usize,
        to: &mut [u8],
    ) -> Result<(), Outside> {
        if at + to.len() > self.layout.length {
            return Err(Outside);
        }
        // The table may be read in any width: no source restricts it.
        if at + to.len() > 4096
            && !self.is_fit(context, at, to.len())
            && !context.options.behaviour.loose_access
        {
            to.fill(0xff);
            return Ok(());
        }
        if let Some((resource::INTR_PBA_LEGACY, ..)) = self.layout.what(at)
            && to.len() == 4
        {
            // Reading acknowledges.
            let bits = self.io.registers.swap(at, 0);
            to.copy_from_slice(&bits.to_le_bytes());
            return Ok(());
        }
        match to.len() {
            4 if at.is_multiple_of(4) => to.copy_from_slice(&self.io.registers.get(at).to_le_bytes()),
            8 if at.is_multiple_of(8) => to.copy_from_slice(&self.io.registers.get64(at).to_le_bytes()),
            _ => self.io.registers.bytes(at, to),
        }
        Ok(())
    }

    /// Writes BAR0 by message.
    pub(crate) fn write_registers(
        &mut self,
        context: &Context,
        at: usize,
        from: &[u8],
    ) -> Result<(), Outside> {
        if at + from.len() > self.layout.length {
            return Err(Outside);
        }
        if !self.is_fit(context, at, from.len()) {
            if context.options.behaviour.loose_access && self.layout.what(at).is_some() {
                self.io.registers.put_bytes(at, from);
            }
            return Ok(());
        }
        if let Some((resource::MEM, ..)) = self.layout.what(at) {
            self.io.registers.put_bytes(at, from);
            return Ok(());
        }
        if let (Some((resource::WQ, queue, registers::queue::POSTED)), 8) = (self.layout.what(at), from.len())
        {
            self.check_hint(context, queue, u64_at(from, 0).unwrap_or_default());
        }
        // Both halves of a wide write, low first.
        for (index, half) in from.chunks(4).enumerate() {
            let value = u32_at(half, 0).unwrap_or_default();
            self.write_register(context, at + 4 * index, value);
        }
        Ok(())
    }

    /// Compares the hint of a wide doorbell with the last descriptor that it posts (4.7).
    fn check_hint(&mut self, context: &Context, queue: usize, doorbell: u64) {
        let ring = &self.wq[queue].ring;
        if !context.options.behaviour.strict_hint || !ring.is_running() {
            return;
        }
        let slot = ((doorbell & 0xfff) as u32 + ring.size - 1) % ring.size;
        let Some(bytes) = ring.descriptor(&mut self.io, context, slot) else {
            return;
        };
        let desc = WqDesc::parse(&bytes);
        let lines = (desc.address % 32 + u64::from(desc.length)).div_ceil(32);
        let lines = if lines > 31 { 0 } else { lines };
        let wanted = doorbell & 0xffff | lines << 16 | (desc.address >> 5) << 21;
        if wanted != doorbell {
            let wrong = Wrong::new(
                Kind::Hint,
                "the hint of a doorbell does not fit the descriptor that it posts",
            );
            self.io.violation(
                context,
                Some(("wq", queue)),
                wrong.at("posted_index").values(doorbell, wanted),
            );
        }
    }

    /// Whether an access is one that hardware takes. \[M\] Others are dropped, and read as ones.
    fn is_fit(&self, context: &Context, at: usize, count: usize) -> bool {
        let wrong = match self.layout.what(at) {
            None => Some((Kind::AccessOutside, "an access outside of all resources")),
            Some((resource::MEM, ..)) => None,
            Some(_) if !matches!(count, 4 | 8) || !at.is_multiple_of(count) => Some((
                Kind::AccessShape,
                "registers are accessed as 4 or 8 aligned bytes",
            )),
            Some(_) => None,
        };
        if let Some((kind, what)) = wrong {
            let wrong = Wrong::new(kind, what).values(at as u64, count as u64);
            self.io.violation(context, None, wrong);
        }
        wrong.is_none()
    }

    fn write_register(&mut self, context: &Context, at: usize, value: u32) {
        let Some((kind, instance, within)) = self.layout.what(at) else {
            return;
        };
        let violation = |io: &Io, what| {
            let register = registers::name(kind, within);
            let wrong = Wrong::new(Kind::ReadOnly, what)
                .at(register)
                .values(value.into(), 0);
            io.violation(context, Some((label(kind), instance)), wrong);
        };
        match kind {
            resource::DEVCMD => self.devcmd.written(&mut self.io, context, within, value),
            resource::WQ | resource::RQ if within == registers::queue::RUNNING => {
                violation(&self.io, "running can only be read");
            }
            resource::RQ if within == registers::queue::ENABLE && value & 1 == 0 => {
                self.rq[instance].ring.disables += 1;
                self.io.registers.put(at, value);
            }
            resource::RQ if within == registers::queue::POSTED && context.options.behaviour.future => {
                self.io.registers.put(at, value);
                self.rq[instance].ring.watch_early(&mut self.io, context);
            }
            _ => self.io.registers.put(at, value),
        }
    }
}

fn label(kind: u8) -> &'static str {
    match kind {
        resource::WQ => "wq",
        resource::RQ => "rq",
        resource::CQ => "cq",
        resource::DEVCMD2 => "devcmd2",
        _ => "intr",
    }
}
