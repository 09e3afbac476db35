//! The sending direction: our lane to one peer.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use doorbell_fabric::error::RailError;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::map::{Object, Protection};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, MsgId, Refused};
use doorbell_ring::lane::{self, Geometry, Producer, Run};
use doorbell_ring::{Area, RingError, SharedSliceMut};
use zerocopy::FromBytes;

use crate::growth::Growth;
use crate::map::{WordsOf, sides};
use crate::pace::Pace;
use crate::ready::Ready;
use crate::wakeup::{ASLEEP, HOT};

/// Words in front of a lane and of a control block: a cache line for the close reason.
pub(crate) const FRONT_WORDS: usize = 8;
/// Index of the close reason.
pub(crate) const CLOSE_REASON: usize = 0;
/// Close reason: the rail was closed in order.
pub(crate) const CLOSED: u64 = 1;
/// Close reason: this end gave the connection up, and its process is alive.
pub(crate) const SEVERED: u64 = 2;

/// The state of a lane's handshake.
pub(crate) enum Handshake {
    /// Not connected, because the peer's backlog is full: to be retried.
    Connecting,
    /// The hello was sent, to the process of this pid; messages wait in the lane.
    HelloSent(CloforkFd, i32),
    /// The receiver has mapped the lane.
    Up(RemoteEnd),
    /// The connection is over and the socket closed.
    Over,
}

/// What the receiver's welcome contained.
pub(crate) struct RemoteEnd {
    /// The lane's own, or that of the peer's lane to us (`one_socket`).
    pub(crate) socket: Arc<CloforkFd>,
    pub(crate) ready: Ready,
    pub(crate) bit: u32,
    pub(crate) fence: bool,
    /// Words in front of the control block: only the close reason is used.
    pub(crate) words: WordsOf,
}

/// Our lane to a peer.
pub(crate) struct Tx {
    lane: Producer,
    words: WordsOf,
    growth: Growth,
    /// There was no memory for a message.
    starved: bool,
    object: Option<Object>,
    pub(crate) handshake: Handshake,
    /// Messages sent over earlier lanes; message numbers continue.
    base: u64,
    pub(crate) pace: Pace,
}

impl Tx {
    /// Creates the lane; it accepts messages at once, before the peer has it.
    pub(crate) fn new(geometry: Geometry, base: u64) -> Result<Self, RailError> {
        let object = Object::growing("doorbell-lane", FRONT_WORDS * 8 + geometry.bytes())?;
        let ours = sides(&object, Protection::ReadWrite, FRONT_WORDS)?;
        object.seal_against_new_writers()?;
        let growth = Growth::begin(geometry, ours.words.clone())?;
        let unused = Area::heap(lane::CONTROL_BYTES).map_err(ring)?;
        let lane = Producer::attach_partly(geometry, ours.area, unused, growth.backing());
        let mut lane = lane.map_err(ring)?;
        lane.space_runs(true);
        Ok(Self {
            lane,
            words: ours.words,
            growth,
            starved: false,
            object: Some(object),
            handshake: Handshake::Connecting,
            base,
            pace: Pace::new(geometry.data()),
        })
    }

    /// Whether it waits for its receiver.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.handshake, Handshake::Connecting | Handshake::HelloSent(..))
    }

    /// The lane object, until the peer has it.
    pub(crate) fn object(&self) -> Option<&Object> {
        self.object.as_ref()
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.lane.geometry()
    }

    /// Messages put into the lane so far.
    pub(crate) fn sent(&self) -> u64 {
        self.lane.committed()
    }

    /// The number of the last message.
    pub(crate) fn last(&self) -> u64 {
        self.base + self.lane.committed()
    }

    /// Ends the connection; messages that were not consumed stay for `reclaim`.
    pub(crate) fn retire(&mut self) {
        self.announce_close(SEVERED);
        self.object = None;
        self.handshake = Handshake::Over;
    }

    /// Handles the receiver's welcome: from now on its consumed index and attention count.
    pub(crate) fn welcomed(&mut self, control: Area, far: RemoteEnd) -> Result<(), RailError> {
        self.lane.set_control(control).map_err(ring)?;
        self.object = None;
        self.handshake = Handshake::Up(far);
        self.notify();
        Ok(())
    }

    /// Messages sent over this lane.
    #[inline(always)]
    pub(crate) fn committed(&self) -> u64 {
        self.lane.committed()
    }

    /// Prefetches for an answer of the same length: most received messages are answered by one.
    #[inline(always)]
    pub(crate) fn expect_to_send(&self, rest: usize) {
        self.lane.expect_to_send(rest);
    }

    /// Whether messages of several cells are kept apart: where answers take their time.
    #[inline(always)]
    pub(crate) fn space_runs(&mut self, is_spaced: bool) {
        self.lane.space_runs(is_spaced);
    }

    /// Whether the place of the next message had better be prefetched while nothing else is to be done.
    #[inline(always)]
    pub(crate) fn is_cold(&self) -> bool {
        self.lane.is_cold()
    }

    /// Prefetches some of it.
    pub(crate) fn warm(&mut self) {
        self.lane.warm();
    }

    /// Copies a message of one cell into the lane; `None` if that is not possible at once, which
    /// [`Tx::send`] finds the reason of.
    #[inline(always)]
    pub(crate) fn send_short(&mut self, message: Short) -> Option<MsgId> {
        match self.lane.push_short(message.len, message.words) {
            Ok(true) => Some(self.taken()),
            _ => None,
        }
    }

    /// Copies a message with a head of two or three words into the lane; `None` if that is not possible at
    /// once: [`Tx::send`] finds the reason.
    #[inline]
    pub(crate) fn send_bytes<const N: usize>(
        &mut self,
        head: [u64; N],
        body: SharedBytes<'_>,
    ) -> Option<MsgId> {
        match push_bytes(&mut self.lane, head, body) {
            Ok(true) => Some(self.taken()),
            _ => None,
        }
    }

    /// As [`Tx::send_bytes`], where a run of cells holds head and body.
    #[inline(always)]
    pub(crate) fn send_run<const N: usize>(
        &mut self,
        head: [u64; N],
        body: SharedBytes<'_>,
    ) -> Option<MsgId> {
        let len = 8 * N + body.len();
        match self.lane.push_run(len, word_of(&head, body)) {
            Ok(Run::Sent) => Some(self.taken()),
            _ => None,
        }
    }

    /// Copies head and body into the lane, or refuses them without effect. A lane that looks full for want of
    /// memory gets more, and takes the message then.
    pub(crate) fn send(&mut self, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        match push(&mut self.lane, head, body) {
            Ok(true) => Ok(self.taken()),
            Ok(false) => self.send_with_more(head, body),
            Err(error) => Err(refused(&error)),
        }
    }

    /// The rest of [`Tx::send`] for a lane that looks full. A copy of the first try, not a loop around it:
    /// that costs every message instructions.
    #[cold]
    #[inline(never)]
    fn send_with_more(&mut self, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        if !self.grow(head.len() + body.len())? {
            return Err(Refused::Full);
        }
        match push(&mut self.lane, head, body) {
            Ok(true) => Ok(self.taken()),
            Ok(false) => Err(Refused::Full),
            Err(error) => Err(refused(&error)),
        }
    }

    /// Notifies the receiver of the message that the lane has just taken.
    #[inline(always)]
    fn taken(&mut self) -> MsgId {
        self.notify();
        MsgId(self.last())
    }

    /// Makes room for a message of `len` bytes if memory is what it lacks; returns whether it was.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, len: usize) -> Result<bool, Refused> {
        let Some(needed) = self.lane.wants(len) else {
            return Ok(false);
        };
        let more = self.growth.extend(needed);
        self.starved = !more.is_ok_and(|backing| self.lane.extend(backing).is_ok());
        if self.starved {
            return Err(Refused::PeerDown);
        }
        Ok(true)
    }

    /// Why a send was answered by [`Refused::PeerDown`].
    pub(crate) fn fault(&self) -> DownReason {
        if self.starved {
            DownReason::Resources
        } else {
            DownReason::Hostile
        }
    }

    /// Notifies the receiver as its attention requires.
    #[inline(always)]
    fn notify(&self) {
        if let Handshake::Up(far) = &self.handshake {
            if far.fence {
                fence(Ordering::SeqCst);
            }
            let attention = self.lane.attention();
            if attention != HOT {
                wake(far, attention);
            }
        }
    }

    /// The number of the last consumed message. The receiver's index is accepted only between the last one
    /// and what was sent.
    pub(crate) fn consumed(&mut self) -> Result<MsgId, RailError> {
        let taken = self.lane.consumed().map_err(ring)?;
        Ok(MsgId(self.base + taken))
    }

    /// Returns the messages that are not known to be consumed. The result is the last message that was
    /// consumed, if any.
    pub(crate) fn reclaim(&mut self, each: &mut dyn FnMut(MsgId, &[u8])) -> Option<u64> {
        let (mut message, base) = (Vec::new(), self.base);
        let shown = self.lane.unconsumed(|index, first, rest| {
            message.clear();
            message.extend_from_slice(first);
            message.extend_from_slice(&rest.to_vec());
            each(MsgId(base + index + 1), &message);
        });
        // A hostile watermark was reported before; nothing is known about what arrived then, so nothing is
        // returned.
        debug_assert!(shown.is_ok() || matches!(shown, Err(RingError::Corrupt { .. })));
        shown.ok().filter(|taken| *taken > 0).map(|taken| base + taken)
    }

    /// The receiver's close reason, or zero.
    pub(crate) fn close_reason(&self) -> u64 {
        match &self.handshake {
            Handshake::Up(far) => far.words.load(CLOSE_REASON),
            _ => 0,
        }
    }

    /// Writes our close reason. Messages stay in the lane for the receiver, which has it mapped. Only the
    /// first reason counts.
    pub(crate) fn announce_close(&self, close_reason: u64) {
        if self.words.load(CLOSE_REASON) == 0 {
            self.words.store(CLOSE_REASON, close_reason);
        }
    }

    /// The socket, which the kernel closes when the peer ends.
    pub(crate) fn socket(&self) -> Option<&CloforkFd> {
        match &self.handshake {
            Handshake::Connecting | Handshake::Over => None,
            Handshake::HelloSent(socket, _) => Some(socket),
            Handshake::Up(far) => Some(&far.socket),
        }
    }
}

#[cfg(test)]
impl Tx {
    pub(crate) fn scribble(&mut self, word: usize, value: u64) {
        self.words.scribble(FRONT_WORDS + word, value);
    }

    /// Lets the lane grow no more, as if there were no memory.
    pub(crate) fn starve(&mut self) {
        self.growth.starve();
    }

    /// Our lane object, to be written by a thread.
    pub(crate) fn far(&self) -> WordsOf {
        self.words.far()
    }

    /// A send that ends after `step` of its steps: reserve, rest, first part, commit, ready bit.
    pub(crate) fn half_send(&mut self, step: usize) {
        let Ok(Some(mut room)) = self.lane.reserve(60) else {
            panic!("the lane was full")
        };
        let (mut first, mut rest) = room.parts();
        if step >= 1 {
            rest.copy_from(&[2; 36]);
        }
        if step >= 2 {
            first.copy_from(&[1; 24]);
        }
        if step >= 3 {
            room.commit();
        }
        if let (4.., Handshake::Up(far)) = (step, &self.handshake) {
            far.ready.set(far.bit);
        }
    }

    /// A send of a run of cells that ends after `words` of its eight words, which are written in their order;
    /// the mark comes after the last.
    pub(crate) fn half_run(&mut self, words: usize) {
        let mut written = 0;
        let push = std::panic::AssertUnwindSafe(|| {
            self.lane.push_run(60, |_| {
                if written == words {
                    std::panic::resume_unwind(Box::new(()));
                }
                written += 1;
                u64::MAX
            })
        });
        let sent = std::panic::catch_unwind(push).is_ok();
        assert_eq!(sent, words == 8);
    }
}

/// Copies head and body into a lane, if there is room.
#[inline(always)]
fn push(lane: &mut Producer, head: &[u8], body: &Body<'_>) -> Result<bool, RingError> {
    let len = head.len() + body.len();
    if len <= lane::FIRST_BYTES {
        let mut cell = [0; lane::FIRST_BYTES];
        cell[..head.len()].copy_from_slice(head);
        body.copy_to(&mut cell[head.len()..]);
        return lane.push_short(len, words(&cell));
    }
    if len <= lane::RUN_BYTES {
        let mut run = [0; lane::RUN_BYTES];
        run[..head.len()].copy_from_slice(head);
        body.copy_to(&mut run[head.len()..]);
        let (words, _) = run.as_chunks();
        match lane.push_run(len, |i| u64::from_ne_bytes(words[i]))? {
            Run::Sent => return Ok(true),
            Run::Full => return Ok(false),
            Run::Unfit => {}
        }
    }
    let Some(mut room) = lane.reserve(len)? else {
        return Ok(false);
    };
    let (_, rest) = room.parts();
    let mut writer = Writer {
        first: [0; lane::FIRST_BYTES],
        rest,
        at: 0,
    };
    writer.put(SharedBytes::of(head));
    body.for_each_part(|part| writer.put(part));
    let first = words(&writer.first);
    room.commit_with(first);
    Ok(true)
}

/// Copies a head of 16 bytes and more than eight contiguous bytes into a lane, if there is room: word by word
/// into a run of cells, or the rest in one piece into the data area.
#[inline(always)]
fn push_bytes<const N: usize>(
    lane: &mut Producer,
    head: [u64; N],
    body: SharedBytes<'_>,
) -> Result<bool, RingError> {
    const { assert!(8 * N <= lane::FIRST_BYTES) };
    let len = 8 * N + body.len();
    let word = word_of(&head, body);
    if len <= lane::RUN_BYTES {
        match lane.push_run(len, &word)? {
            Run::Sent => return Ok(true),
            Run::Full => return Ok(false),
            Run::Unfit => {}
        }
    }
    let Some(mut room) = lane.reserve(len)? else {
        return Ok(false);
    };
    let (_, mut rest) = room.parts();
    body.copy_to_slot(lane::FIRST_BYTES - 8 * N, &mut rest);
    room.commit_with(std::array::from_fn(word));
    Ok(true)
}

/// The words of a message by number: those of its head, then of its body.
#[inline(always)]
fn word_of<const N: usize>(head: &[u64; N], body: SharedBytes<'_>) -> impl Fn(usize) -> u64 {
    move |i| {
        let at = i.wrapping_sub(N);
        head.get(i).copied().unwrap_or_else(|| body.word(8 * at))
    }
}

#[cold]
fn wake(far: &RemoteEnd, attention: u64) {
    far.ready.set(far.bit);
    if attention == ASLEEP {
        crate::connect::signal(&far.socket);
    }
}

#[cold]
pub(crate) fn ring(error: RingError) -> RailError {
    match error {
        RingError::Corrupt { .. } => RailError::hostile("wrote an impossible index into a lane"),
        other => RailError::Unusable {
            rail: "shm".to_owned(),
            reason: other.to_string(),
            remedy: "change the shm.* settings (`doorbell info --config` shows them)".to_owned(),
        },
    }
}

#[cold]
fn refused(error: &RingError) -> Refused {
    match error {
        RingError::Corrupt { .. } => Refused::PeerDown,
        _ => Refused::TooLong,
    }
}

/// The most common messages, which fit one cell: a head of 16 bytes (the PML's) or of 8 (a put like the one
/// before), and at most 8 contiguous bytes.
#[derive(Clone, Copy)]
pub(crate) struct Short {
    words: [u64; 3],
    len: usize,
}

impl Short {
    /// Built word by word: assembled in memory and read back wider than it was written, it would stall on
    /// store forwarding.
    #[inline(always)]
    pub(crate) fn of(head: &[u8], body: &Body<'_>) -> Option<Self> {
        let (last, len) = match body {
            Body::Empty => (0, 0),
            Body::Bytes(bytes) => (SharedBytes::of(bytes).read_short()?, bytes.len()),
            Body::Loan(loan) => (loan.as_shared().read_short()?, loan.len()),
            Body::Shared(bytes) => (bytes.read_short()?, bytes.len()),
            Body::Parts(_) | Body::Region(_) => return None,
        };
        let words = if let Some([first, second]) = head_words::<2>(head) {
            [first, second, last]
        } else {
            let head = <&[u8; 8]>::try_from(head).ok()?;
            [u64::from_ne_bytes(*head), last, 0]
        };
        Some(Self {
            words,
            len: head.len() + len,
        })
    }
}

/// The words of a head of `N` words.
#[inline(always)]
pub(crate) fn head_words<const N: usize>(head: &[u8]) -> Option<[u64; N]> {
    let words = <[[u8; 8]; N]>::read_from_bytes(head).ok()?;
    Some(words.map(u64::from_ne_bytes))
}

#[inline]
fn words(cell: &[u8; lane::FIRST_BYTES]) -> [u64; 3] {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&cell[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    [word(0), word(8), word(16)]
}

/// Writes pieces one after the other: the first bytes go into the cell last, the rest in place.
struct Writer<'a> {
    first: [u8; lane::FIRST_BYTES],
    rest: SharedSliceMut<'a>,
    at: usize,
}

impl Writer<'_> {
    #[inline]
    fn put(&mut self, piece: SharedBytes<'_>) {
        let split = self.first.len();
        let mut taken = 0;
        if self.at < split {
            taken = piece.copy_to(0, &mut self.first[self.at..]);
        }
        self.at += taken;
        if taken < piece.len()
            && let Some(mut far) = self.rest.slice(self.at - split, piece.len() - taken)
        {
            self.at += piece.copy_to_slot(taken, &mut far);
        }
    }
}
