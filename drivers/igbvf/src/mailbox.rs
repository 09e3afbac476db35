//! The mailbox between the virtual function and the physical one (82576EB datasheet, section 7.8.2.9.1;
//! messages as Linux's igb and igbvf speak them).
//!
//! ```text
//!   ours:   take the buffer (VFU) ─► write ─► REQ ─► … PFACK ─► … PFSTS ─► take, read, ACK
//!   theirs: PFSTS at any time: "I am here", with or without "clear to send"; RSTI, RSTD: it was reset
//! ```

use std::time::{Duration, Instant};

use doorbell_fabric::ether::Mac;
use doorbell_vfio::{Block, Put};

use crate::regs::{GONE, MailboxRegisters};

const REQUEST: u32 = 1;
const ACKNOWLEDGE: u32 = 1 << 1;
const OURS: u32 = 1 << 2;
const THEIRS_WROTE: u32 = 1 << 4;
const THEIRS_READ: u32 = 1 << 5;
const RESETTING: u32 = 1 << 6;
const RESET_DONE: u32 = 1 << 7;
/// Bits that a read takes away.
const CLEARED_BY_READ: u32 = THEIRS_WROTE | THEIRS_READ | RESET_DONE;

const YES: u32 = 1 << 31;
const NO: u32 = 1 << 30;
const CLEAR_TO_SEND: u32 = 1 << 29;
const COUNT_SHIFT: u32 = 16;

const RESET: u32 = 1;
const SET_MAC: u32 = 2;
const SET_MULTICAST: u32 = 3;
const SET_LONGEST: u32 = 5;

/// How long the physical function may take for an answer. Linux's igb answers in an interrupt.
const ANSWERS: Duration = Duration::from_secs(1);
/// Interval between two checks of a waiting caller.
const LOOK: Duration = Duration::from_micros(50);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The physical function did not answer in time: it is down, or has no driver.
    NoAnswer,
    /// The physical function refused the request.
    Refused,
    /// The device reads as ones: it is gone.
    Gone,
}

/// What the physical function did unasked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MailboxEvents {
    /// The physical function resets, or has done so: all its state of this function is lost.
    pub(crate) reset: bool,
    /// The physical function sent a message, and does not know this function (any more).
    pub(crate) stranger: bool,
    pub(crate) gone: bool,
}

/// The function's side of the mailbox.
pub(crate) struct Mailbox {
    registers: Block<MailboxRegisters>,
    /// Bits that were read, and so are gone from the register.
    seen: u32,
}

/// A request under way.
struct Ask {
    words: [u32; 3],
    stage: Stage,
    end: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The buffer is wanted.
    Take,
    /// The request was written; the physical function has not read it.
    Written,
    /// The physical function has read the request, and will answer.
    Read,
}

impl Ask {
    fn new(words: [u32; 3]) -> Self {
        Self {
            words,
            stage: Stage::Take,
            end: Instant::now() + ANSWERS,
        }
    }
}

impl Mailbox {
    pub(crate) fn new(registers: Block<MailboxRegisters>) -> Self {
        Self { registers, seen: 0 }
    }

    fn look(&mut self) -> Result<u32, Silence> {
        let bits = self.registers.control.read();
        if bits == GONE {
            return Err(Silence::Gone);
        }
        self.seen |= bits & CLEARED_BY_READ;
        Ok(bits | self.seen)
    }

    fn has(&mut self, bit: u32) -> Result<bool, Silence> {
        let found = self.look()? & bit != 0;
        if found {
            self.seen &= !bit;
        }
        Ok(found)
    }

    /// Whether the buffer is ours now, until the next request or acknowledgement.
    fn take(&mut self) -> Result<bool, Silence> {
        self.registers.control.put(OURS);
        Ok(self.look()? & OURS != 0)
    }

    /// Returns what the physical function wrote, if it did and is not writing.
    fn read(&mut self) -> Result<Option<[u32; 3]>, Silence> {
        if self.look()? & THEIRS_WROTE == 0 || !self.take()? {
            return Ok(None);
        }
        self.seen &= !THEIRS_WROTE;
        let words = std::array::from_fn(|at| self.registers.memory[at].read());
        self.registers.control.put(ACKNOWLEDGE);
        Ok(Some(words))
    }

    /// Makes one step of a request; returns its answer, without what else is received in between. Waits for
    /// nothing.
    fn step(&mut self, ask: &mut Ask) -> Result<Option<[u32; 3]>, Silence> {
        if Instant::now() >= ask.end {
            return Err(Silence::NoAnswer);
        }
        match ask.stage {
            Stage::Take => {
                if self.take()? {
                    // An earlier message is no answer to this.
                    self.seen &= !(THEIRS_WROTE | THEIRS_READ);
                    for (register, word) in self.registers.memory.iter().zip(ask.words) {
                        register.put(word);
                    }
                    self.registers.control.put(REQUEST);
                    ask.stage = Stage::Written;
                }
            }
            Stage::Written => {
                if self.has(THEIRS_READ)? {
                    ask.stage = Stage::Read;
                }
            }
            Stage::Read => {
                if let Some(answer) = self.read()?
                    && answer[0] & 0xffff == ask.words[0] & 0xffff
                    && answer[0] & (YES | NO) != 0
                {
                    return if answer[0] & YES != 0 {
                        Ok(Some(answer))
                    } else {
                        Err(Silence::Refused)
                    };
                }
            }
        }
        Ok(None)
    }

    /// Returns what the physical function did since the last look. Bounded, and waits for nothing.
    pub(crate) fn read_events(&mut self) -> MailboxEvents {
        let gone = MailboxEvents {
            gone: true,
            ..MailboxEvents::default()
        };
        let Ok(bits) = self.look() else { return gone };
        self.seen &= !RESET_DONE;
        match self.read() {
            Err(_) => gone,
            Ok(said) => MailboxEvents {
                reset: bits & (RESETTING | RESET_DONE) != 0,
                stranger: said.is_some_and(|words| words[0] & CLEAR_TO_SEND == 0),
                gone: false,
            },
        }
    }
}

/// The requests to the physical function before anything is sent: it turns the queues on, and learns our
/// address.
pub(crate) struct Handshake {
    /// Questions that are left, the next one last.
    left: Vec<[u32; 3]>,
    ask: Option<Ask>,
    waits_for_reset: Option<Instant>,
    /// Taken where it gives none.
    own: Mac,
    mac: Option<Mac>,
}

impl Handshake {
    /// A handshake for packets of up to `longest` bytes with headers and the link's checksum (`None`: the
    /// usual ones), and those of a group. `own` is the hardware address where none was given to this
    /// function.
    pub(crate) fn new(own: Mac, longest: Option<usize>, group: Option<Mac>) -> Self {
        let longest = longest.map(|longest| [SET_LONGEST, longest as u32, 0]);
        let group = group.map(|group| [SET_MULTICAST | 1 << COUNT_SHIFT, u32::from(hash(group)), 0]);
        let mut left: Vec<_> = group.into_iter().chain(longest).collect();
        left.push([RESET, 0, 0]);
        Self {
            left,
            ask: None,
            waits_for_reset: Some(Instant::now() + ANSWERS),
            own,
            mac: None,
        }
    }

    /// Makes one step; returns the function's hardware address at the end. Waits for nothing.
    pub(crate) fn step(&mut self, mailbox: &mut Mailbox) -> Result<Option<Mac>, Silence> {
        if let Some(end) = self.waits_for_reset {
            let bits = mailbox.look()?;
            if bits & RESETTING != 0 && bits & RESET_DONE == 0 {
                return if Instant::now() < end {
                    Ok(None)
                } else {
                    Err(Silence::NoAnswer)
                };
            }
            mailbox.seen &= !RESET_DONE;
            self.waits_for_reset = None;
        }
        let Some(ask) = &mut self.ask else {
            return Ok(match self.left.pop() {
                Some(words) => {
                    self.ask = Some(Ask::new(words));
                    None
                }
                None => {
                    // Raised by our own reset, perhaps; at a later one the physical function speaks, too.
                    mailbox.seen &= !RESET_DONE;
                    self.mac
                }
            });
        };
        let answer = match mailbox.step(ask) {
            // "You have none": it lets us choose.
            Err(Silence::Refused) if ask.words[0] == RESET => Some([0; 3]),
            answer => answer?,
        };
        if let Some(answer) = answer {
            if ask.words[0] == RESET {
                self.named(answer);
            }
            self.ask = None;
        }
        Ok(None)
    }

    /// The answer to a reset.
    fn named(&mut self, answer: [u32; 3]) {
        let [a, b, c, d] = answer[1].to_le_bytes();
        let [e, f, ..] = answer[2].to_le_bytes();
        let given = [a, b, c, d, e, f];
        if given != [0; 6] {
            self.mac = Some(given);
            return;
        }
        let [a, b, c, d, e, f] = self.own;
        self.mac = Some(self.own);
        self.left.push([
            SET_MAC,
            u32::from_le_bytes([a, b, c, d]),
            u32::from_le_bytes([e, f, 0, 0]),
        ]);
    }

    /// All steps, for one who has time.
    pub(crate) fn finish(mut self, mailbox: &mut Mailbox) -> Result<Mac, Silence> {
        loop {
            if let Some(mac) = self.step(mailbox)? {
                return Ok(mac);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Twelve bits of a hardware address, as the 82576's table of groups uses them where nothing else is set.
fn hash(group: Mac) -> u16 {
    (u16::from(group[4]) >> 4 | u16::from(group[5]) << 4) & 0xfff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_hash_is_that_of_the_datasheet() {
        // Bits 47 to 36 of the address, the last byte first.
        assert_eq!(hash([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]), 0x563);
        assert_eq!(hash([0x01, 0, 0x5e, 0, 0, 0x01]), 0x010);
    }
}
