//! Answers to the messages of a client: vfio-user's commands, for one function.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::access::Outside;
use crate::config::{self, Effect};
use crate::dma::{MapError, Memory};
use crate::fault::{Action, Point};
use crate::function::Function;
use crate::io::Wrong;
use crate::layout::MSIX_BAR;
use crate::line::{Line, Message};
use crate::violation::Kind;
use crate::wire::{self, DESCRIPTORS, LONGEST_DATA, Writer, command, u16_at, u32_at, u64_at};
use crate::world::World;

/// Regions of a PCI device: six BARs, the ROM, the configuration space, VGA.
const REGIONS: u32 = 9;
const CONFIG: u32 = 7;
/// Kinds of interrupts: INTx, MSI, MSI-X, errors, requests.
const IRQS: u32 = 5;
const MSIX: u32 = 2;

/// Flags of linux/vfio.h.
const DEVICE_RESET: u32 = 1 << 0;
const DEVICE_PCI: u32 = 1 << 1;
const READ_WRITE: u32 = 3;
const MMAP: u32 = 1 << 2;
const CAPS: u32 = 1 << 3;
const SPARSE: u16 = 1;
const DATA_NONE: u32 = 1 << 0;
const DATA_BOOL: u32 = 1 << 1;
const DATA_EVENTFD: u32 = 1 << 2;
const ACTION_TRIGGER: u32 = 1 << 5;
const IRQ_EVENTFD: u32 = 1 << 0;
/// Answers that are held back at a time; others are given at once.
const LATE_MOST: usize = 256;
/// VFIO_IRQ_INFO_NORESIZE is not set: vectors are set up one at a time.
const UNMAP_ALL: u32 = 1 << 2;

/// An answer: bytes, and perhaps the file of a region.
enum Answer {
    Bytes(Writer),
    /// The registers' file goes along.
    WithFile(Writer),
}

/// An error's number (errno).
struct Refused(i32);

const SHORT: Refused = Refused(libc::EINVAL);

impl World {
    /// A client came.
    pub(crate) fn attach(&mut self, index: usize, line: Arc<Line>) {
        let function = &mut self.functions[index];
        function.io.memory = Memory::new(self.context.options.most_maps, Some(Arc::clone(&line)));
        function.line = Some(line);
    }

    /// Ends all lines.
    pub(crate) fn hang_up(&mut self) {
        for function in &mut self.functions {
            if let Some(line) = function.line.take() {
                line.close();
            }
        }
    }

    /// A message came: it is answered, unless a fault holds it back.
    pub(crate) fn message(&mut self, index: usize, message: Message) {
        if message.header.command == command::DMA_UNMAP
            && let Some(Action::UnmapLate(time)) = self.context.faults.action(Point::Unmap, index, 0)
            && self.late.len() < LATE_MOST
        {
            self.late.push((self.context.after(time), index, message));
            return;
        }
        self.reply(index, message);
    }

    /// Answers a message.
    pub(crate) fn reply(&mut self, index: usize, message: Message) {
        let header = message.header;
        let Some(line) = self.functions[index].line.clone() else {
            return;
        };
        let answer = self.answer(index, message);
        if !header.wants_reply {
            return;
        }
        match answer {
            Ok(Answer::Bytes(body)) => line.send(&body.reply(header.number, header.command), &[]),
            Ok(Answer::WithFile(body)) => {
                let file = self.functions[index].io.registers.file();
                line.send(&body.reply(header.number, header.command), &[file]);
            }
            Err(Refused(error)) => {
                self.refused(index, header.command, error);
                line.send(&wire::refusal(header.number, header.command, error), &[]);
            }
        }
    }

    fn refused(&self, index: usize, command: u16, error: i32) {
        // A client that gives a device back unmaps everything, mapped or not: QEMU does.
        if (command, error) == (command::DMA_UNMAP, libc::ENOENT) {
            return;
        }
        let wrong = Wrong::new(Kind::Protocol, "a message was refused");
        let wrong = wrong.values(command.into(), error.unsigned_abs().into());
        self.functions[index].io.violation(&self.context, None, wrong);
    }

    fn answer(&mut self, index: usize, message: Message) -> Result<Answer, Refused> {
        let Message { header, body, files } = message;
        let word = |at| u32_at(&body, at).ok_or(SHORT);
        match header.command {
            command::VERSION => version(&body),
            command::DMA_MAP => self.dma_map(index, &body, files),
            command::DMA_UNMAP => self.dma_unmap(index, &body),
            command::GET_INFO => {
                let flags = DEVICE_PCI | DEVICE_RESET;
                Ok(Answer::Bytes(
                    Writer::default().u32(16).u32(flags).u32(REGIONS).u32(IRQS),
                ))
            }
            command::GET_REGION_INFO => self.functions[index].region_info(word(0)?, word(8)?),
            command::GET_IRQ_INFO => {
                let kind = word(8)?;
                let count = if kind == MSIX {
                    self.functions[index].io.vectors.len() as u32
                } else {
                    0
                };
                match kind < IRQS {
                    true => Ok(Answer::Bytes(
                        Writer::default().u32(16).u32(IRQ_EVENTFD).u32(kind).u32(count),
                    )),
                    false => Err(SHORT),
                }
            }
            command::SET_IRQS => self.functions[index].set_irqs(&body, files),
            command::REGION_READ => self.region_read(index, &body),
            command::REGION_WRITE => self.region_write(index, &body),
            command::RESET => {
                self.reset(index);
                Ok(Answer::Bytes(Writer::default()))
            }
            _ => Err(Refused(libc::ENOTSUP)),
        }
    }

    fn dma_map(&mut self, index: usize, body: &[u8], files: Vec<OwnedFd>) -> Result<Answer, Refused> {
        let (Some(flags), Some(offset)) = (u32_at(body, 4), u64_at(body, 8)) else {
            return Err(SHORT);
        };
        let (Some(first), Some(length)) = (u64_at(body, 16), u64_at(body, 24)) else {
            return Err(SHORT);
        };
        let rights = (flags & 1 != 0, flags & 2 != 0);
        let file = files.into_iter().next().map(|file| (file, offset));
        let mapped = self.functions[index].io.memory.map(first, length, rights, file);
        mapped
            .map(|()| Answer::Bytes(Writer::default()))
            .map_err(|error| match error {
                MapError::Range => SHORT,
                MapError::Overlap => Refused(libc::EEXIST),
                MapError::Full => Refused(libc::ENOSPC),
            })
    }

    fn dma_unmap(&mut self, index: usize, body: &[u8]) -> Result<Answer, Refused> {
        let (Some(size), Some(flags)) = (u32_at(body, 0), u32_at(body, 4)) else {
            return Err(SHORT);
        };
        let (Some(first), Some(length)) = (u64_at(body, 8), u64_at(body, 16)) else {
            return Err(SHORT);
        };
        let memory = &mut self.functions[index].io.memory;
        if flags & UNMAP_ALL != 0 {
            memory.clear();
        } else if !memory.unmap(first, length) {
            return Err(Refused(libc::ENOENT));
        }
        Ok(Answer::Bytes(
            Writer::default().u32(size).u32(flags).u64(first).u64(length),
        ))
    }

    fn region_read(&mut self, index: usize, body: &[u8]) -> Result<Answer, Refused> {
        let Access { region, at, count } = Access::parse(body)?;
        let mut bytes = vec![0; count];
        let function = &mut self.functions[index];
        match region {
            0 if function.is_removed => bytes.fill(0xff),
            0 => function
                .read_registers(&self.context, at, &mut bytes)
                .map_err(|Outside| SHORT)?,
            CONFIG => bytes.copy_from_slice(function.io.config.read(at, count).ok_or(SHORT)?),
            region if region == u32::from(MSIX_BAR) && at + count <= config::MSIX_LENGTH => {}
            _ => return Err(SHORT),
        }
        let head = Writer::default().u64(at as u64).u32(region).u32(count as u32);
        Ok(Answer::Bytes(head.bytes(&bytes)))
    }

    fn region_write(&mut self, index: usize, body: &[u8]) -> Result<Answer, Refused> {
        let Access { region, at, count } = Access::parse(body)?;
        let bytes = body.get(16..16 + count).ok_or(SHORT)?;
        let function = &mut self.functions[index];
        match region {
            0 if function.is_removed => {}
            0 => {
                function
                    .write_registers(&self.context, at, bytes)
                    .map_err(|Outside| SHORT)?;
                // One that takes no time is over before its writer looks.
                self.command(index);
            }
            CONFIG => {
                if function.io.config.write(at, bytes).ok_or(SHORT)? == Effect::Reset {
                    self.reset(index);
                }
            }
            // The table is the client's: vectors are set up by messages.
            region if region == u32::from(MSIX_BAR) && at + count <= config::MSIX_LENGTH => {}
            _ => return Err(SHORT),
        }
        Ok(Answer::Bytes(
            Writer::default().u64(at as u64).u32(region).u32(count as u32),
        ))
    }
}

/// An access of a region.
struct Access {
    region: u32,
    at: usize,
    count: usize,
}

impl Access {
    fn parse(body: &[u8]) -> Result<Self, Refused> {
        let (Some(at), Some(region), Some(count)) = (u64_at(body, 0), u32_at(body, 8), u32_at(body, 12))
        else {
            return Err(SHORT);
        };
        let (at, count) = (usize::try_from(at).map_err(|_| SHORT)?, count as usize);
        if count > LONGEST_DATA || at > usize::MAX / 2 {
            return Err(SHORT);
        }
        Ok(Self { region, at, count })
    }
}

/// The agreement on a version: 0.anything; what we can take, as JSON that ends with a zero.
fn version(body: &[u8]) -> Result<Answer, Refused> {
    if u16_at(body, 0).ok_or(SHORT)? != 0 {
        return Err(Refused(libc::EPROTONOSUPPORT));
    }
    let capabilities = format!(
        "{{\"capabilities\":{{\"max_msg_fds\":{DESCRIPTORS},\"max_data_xfer_size\":{LONGEST_DATA},\"pgsizes\":4096}}}}\0"
    );
    Ok(Answer::Bytes(
        Writer::default().u16(0).u16(0).bytes(capabilities.as_bytes()),
    ))
}

impl Function {
    fn region_info(&self, room: u32, region: u32) -> Result<Answer, Refused> {
        let (length, flags) = match region {
            0 => (self.bar_length(), READ_WRITE),
            CONFIG => (config::LENGTH, READ_WRITE),
            region if region == u32::from(MSIX_BAR) => (config::MSIX_LENGTH, READ_WRITE),
            region if region < REGIONS => (0, 0),
            _ => return Err(SHORT),
        };
        let info = |whole: u32, flags: u32, capabilities: u32| {
            let head = Writer::default()
                .u32(whole)
                .u32(flags)
                .u32(region)
                .u32(capabilities);
            head.u64(length as u64).u64(0)
        };
        // One that is too short for its table is a matter of messages.
        if region != 0 || self.areas.is_empty() || length < self.layout.length {
            return Ok(Answer::Bytes(info(32, flags, 0)));
        }
        let whole = 32 + 16 + 16 * self.areas.len() as u32;
        // A request with less room is answered with the length of the whole, and where that would be: QEMU
        // takes no other answer.
        if room < whole {
            return Ok(Answer::Bytes(info(whole, flags | MMAP | CAPS, 32)));
        }
        let mut body = info(whole, flags | MMAP | CAPS, 32);
        body = body.u16(SPARSE).u16(1).u32(0).u32(self.areas.len() as u32).u32(0);
        for area in &self.areas {
            body = body.u64(area.start as u64).u64(area.len() as u64);
        }
        Ok(Answer::WithFile(body))
    }

    fn set_irqs(&mut self, body: &[u8], files: Vec<OwnedFd>) -> Result<Answer, Refused> {
        let word = |at| u32_at(body, at).ok_or(SHORT);
        let (flags, kind, start, count) = (word(4)?, word(8)?, word(12)? as usize, word(16)? as usize);
        let done = Ok(Answer::Bytes(Writer::default()));
        let has = if kind == MSIX { self.io.vectors.len() } else { 0 };
        if kind >= IRQS || start.checked_add(count).is_none_or(|end| end > has) {
            // Nothing to take away from what has none.
            return if kind < IRQS && count == 0 {
                done
            } else {
                Err(SHORT)
            };
        }
        if flags & ACTION_TRIGGER == 0 {
            // Masks of single vectors are the interrupt blocks'.
            return done;
        }
        match flags & (DATA_NONE | DATA_BOOL | DATA_EVENTFD) {
            DATA_NONE if count == 0 => self.io.vectors.fill_with(|| None),
            DATA_NONE => (start..start + count).for_each(|vector| self.io.signal(vector)),
            DATA_BOOL => {
                let wanted = body.get(20..20 + count).ok_or(SHORT)?;
                let rung = (start..).zip(wanted).filter(|(_, wanted)| **wanted != 0);
                rung.for_each(|(vector, _)| self.io.signal(vector));
            }
            DATA_EVENTFD => {
                let mut files = files.into_iter();
                // One that brings no descriptor takes the bell away.
                self.io.vectors[start..start + count].fill_with(|| files.next());
            }
            _ => return Err(SHORT),
        }
        done
    }
}
