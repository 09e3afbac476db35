//! What a load needs from the two ranks it runs between: one trait, so that the loops can be tested without a
//! rail.

use std::time::Duration;

use doorbell_fabric::clock::Clock;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Longest control message, in bytes.
pub const CONTROL_MAX: usize = 1 << 24;

/// How the messages of a stream are kept under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Number of messages outstanding.
    pub window: usize,
    /// Whether each message is a request, however short: where not, short ones are blocking calls.
    pub posted: bool,
    /// Whether long messages, too, are sent out of ordinary memory and received into it, instead of regions.
    #[serde(default)]
    pub plain: bool,
}

/// One rank's side of a pair. The two sides never send at once, except where a method's documentation allows
/// it.
pub trait Link {
    /// The number of this rank.
    fn rank(&self) -> u32;

    /// The other rank of the pair.
    fn peer(&self) -> u32;

    /// The rail that carries the messages, for error texts.
    fn rail(&self) -> &str;

    /// Sends one message of the load; returns when `body` may be changed again.
    ///
    /// # Errors
    /// When the peer is lost or the wait's deadline passes.
    fn send(&mut self, body: &[u8]) -> Result<(), BenchError>;

    /// Copies what the last [`Link::recv`] or [`Link::stream_in`] brought to `into`, where it is not there
    /// yet: a link whose messages land in memory of its own copies nothing while it is measured.
    fn settle(&mut self, into: &mut [u8]) {
        let _ = into;
    }

    /// Receives one message of the load; returns its length.
    ///
    /// # Errors
    /// When the peer is lost, the wait's deadline passes, or the message is longer than `into`.
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, BenchError>;

    /// Receives one message of an open loop, as the side that answers them; 0 for the
    /// [end](Self::send_end) of the loop.
    ///
    /// # Errors
    /// Those of [`Link::recv`].
    fn recv_open(&mut self, into: &mut [u8]) -> Result<usize, BenchError> {
        self.recv(into)
    }

    /// Ends an open loop, or answers its end: by an empty message, where messages have lengths.
    ///
    /// # Errors
    /// Those of [`Link::send`].
    fn send_end(&mut self) -> Result<(), BenchError> {
        self.send(&[])
    }

    /// Sets whether it notes when messages come and are answered, by this clock, where it answers them
    /// itself.
    fn note_times(&mut self, clock: Option<&Clock>) {
        let _ = clock;
    }

    /// Returns when the last message came and was answered, in ticks, where that is noted.
    fn noted(&self) -> Option<[u64; 2]> {
        None
    }

    /// Whether a loop of messages without stamps can end before its count, by an empty message.
    fn ends_early(&self) -> bool {
        true
    }

    /// Sends `body` `count` times with at most the flow's window of messages outstanding; fewer where the
    /// link [ends early](Link::ends_early) and `go_on`, which is called now and then, returns false. Returns
    /// how many were sent.
    ///
    /// # Errors
    /// Those of [`Link::send`].
    fn stream_out(
        &mut self,
        body: &[u8],
        count: u64,
        flow: Flow,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, BenchError>;

    /// Receives `count` messages, at most the flow's window of receives posted ahead; fewer when an empty one
    /// comes. The messages land in `sinks` in turn, each `bytes` long. Returns how many came.
    ///
    /// # Errors
    /// Those of [`Link::recv`].
    fn stream_in(&mut self, sinks: &mut Sinks, count: u64, flow: Flow) -> Result<u64, BenchError>;

    /// Sends messages as [`Link::stream_out`] does, each with contents of its own: `fill` is called with each
    /// buffer before it leaves.
    ///
    /// # Errors
    /// Those of [`Link::send`].
    fn stream_out_each(
        &mut self,
        bodies: &mut Sinks,
        count: u64,
        flow: Flow,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), BenchError>;

    /// Receives messages until an empty one comes, which is expected behind `count` others; `look` is called
    /// with each before it, in the order of their receives, and with nothing for one that is longer than the
    /// sinks.
    ///
    /// # Errors
    /// Those of [`Link::recv`].
    fn stream_in_each(
        &mut self,
        sinks: &mut Sinks,
        count: u64,
        flow: Flow,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BenchError>;

    /// Prepares for [`Link::try_send`] and [`Link::try_recv`] of messages of up to `bytes` bytes, `under_way`
    /// of them in each direction.
    ///
    /// # Errors
    /// When memory runs out or the peer is lost.
    fn begin_open(&mut self, bytes: usize, under_way: usize) -> Result<(), BenchError>;

    /// Ends [`Link::begin_open`]: nothing is received any more but by the other calls.
    fn end_open(&mut self);

    /// Whether the rail has released enough for another [`Link::try_send`].
    ///
    /// # Errors
    /// Those of [`Link::send`].
    fn can_send(&mut self) -> Result<bool, BenchError>;

    /// Starts to send one message without waiting for its receiver; `false` when too many are under way
    /// already. The body may be changed when this returns.
    ///
    /// # Errors
    /// Those of [`Link::send`].
    fn try_send(&mut self, body: &[u8]) -> Result<bool, BenchError>;

    /// Receives one message of the load if it is there; returns its length.
    ///
    /// # Errors
    /// Those of [`Link::recv`].
    fn try_recv(&mut self, into: &mut [u8]) -> Result<Option<usize>, BenchError>;

    /// Receives one message of the load if it is there already, or on its way; `None` when nothing comes any
    /// more.
    ///
    /// # Errors
    /// Those of [`Link::recv`].
    fn leftover(&mut self, into: &mut [u8]) -> Result<Option<usize>, BenchError>;

    /// Returns how long a wait lasts at most.
    fn deadline(&self) -> Duration;

    /// Sends a control message, off the measured path.
    ///
    /// # Errors
    /// Those of [`Link::send`].
    fn send_control(&mut self, text: &[u8]) -> Result<(), BenchError>;

    /// Receives a control message, at most for [`Link::deadline`]: between two of them, nothing is measured.
    ///
    /// # Errors
    /// Those of [`Link::recv`].
    fn receive_control(&mut self) -> Result<Vec<u8>, BenchError>;

    /// Receives a control message, and waits for at most `limit`.
    ///
    /// # Errors
    /// Those of [`Link::recv`].
    fn receive_control_within(&mut self, limit: Duration) -> Result<Vec<u8>, BenchError>;
}

/// The buffers that a stream lands in: few enough to stay in a core's cache, as a consumer's would be.
#[derive(Debug)]
pub struct Sinks {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// Together the sinks take no more than this, in bytes, as long as two of them fit.
pub const SINKS_BYTES: usize = 4 << 20;

impl Sinks {
    /// Sinks for messages of `bytes` bytes, at most `window` of them.
    ///
    /// # Errors
    /// [`BenchError::NoMemory`].
    pub fn new(bytes: usize, window: usize) -> Result<Self, BenchError> {
        let buffers = (0..Self::count_for(bytes, window))
            .map(|_| filled(bytes, 0))
            .collect::<Result<_, _>>()?;
        Ok(Self { buffers, bytes })
    }

    /// Returns the number of buffers of `bytes` bytes for a window; so either side of a stream knows the
    /// other's.
    pub fn count_for(bytes: usize, window: usize) -> usize {
        (SINKS_BYTES / bytes.max(1)).clamp(2, window.max(2))
    }

    /// Returns all of the buffers.
    pub fn buffers(&mut self) -> &mut [Vec<u8>] {
        &mut self.buffers
    }

    /// The length of each.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns their number.
    pub fn count(&self) -> usize {
        self.buffers.len()
    }
}

/// Allocates a buffer of `bytes` bytes, each of them `value`. The user chooses how many: too many are an
/// error, not an abort.
///
/// # Errors
/// [`BenchError::NoMemory`].
pub fn filled(bytes: usize, value: u8) -> Result<Vec<u8>, BenchError> {
    let mut buffer = Vec::new();
    buffer
        .try_reserve_exact(bytes)
        .map_err(|_| BenchError::NoMemory { bytes })?;
    buffer.resize(bytes, value);
    Ok(buffer)
}

/// The bytes that rank `from` sends in messages of `bytes` bytes: every position and every sender differs.
///
/// # Errors
/// [`BenchError::NoMemory`].
pub fn pattern(from: u32, bytes: usize) -> Result<Vec<u8>, BenchError> {
    let mut state = (u64::from(from) << 32 | bytes as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut pattern = filled(bytes, 0)?;
    for word in pattern.chunks_mut(size_of::<u64>()) {
        // xorshift64: cheap, never zero, no two senders alike.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    Ok(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinks_stay_in_the_cache_and_are_at_least_two() {
        assert_eq!(Sinks::new(8, 64).unwrap().count(), 64);
        assert_eq!(Sinks::new(1 << 20, 64).unwrap().count(), 4);
        assert_eq!(Sinks::new(4 << 20, 64).unwrap().count(), 2);
        assert_eq!(Sinks::new(8, 1).unwrap().count(), 2);
    }

    #[test]
    fn two_senders_send_different_bytes() {
        assert_ne!(pattern(0, 64).unwrap(), pattern(1, 64).unwrap());
        assert_ne!(pattern(0, 64).unwrap()[..32], pattern(0, 32).unwrap()[..]);
        assert_eq!(pattern(3, 7).unwrap(), pattern(3, 7).unwrap());
    }

    /// A limit as with `ulimit -v`: the sizes are the user's, and an abort gives no reason.
    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let most = isize::MAX as usize;
        for error in [
            filled(most, 0).unwrap_err(),
            pattern(0, most).unwrap_err(),
            Sinks::new(most, 1).unwrap_err(),
        ] {
            assert!(matches!(error, BenchError::NoMemory { bytes } if bytes == most));
        }
    }
}
