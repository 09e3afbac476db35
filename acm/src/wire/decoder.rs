//! Splits a stream into messages, however the stream is fragmented.

use zerocopy::FromBytes;

use super::layout::{BadMessage, HEAD, RawHead};

/// Buffers received bytes until they are a whole message.
///
/// A caller that takes all messages after each push buffers at most one message and one fragment.
///
/// ```
/// use doorbell_acm::query::{CounterScope, Question};
/// use doorbell_acm::wire::{Decoder, QUESTION_MAX, write_question};
/// let message = write_question(&Question::Counters(CounterScope::Service), 7);
/// let mut decoder = Decoder::new(QUESTION_MAX);
/// decoder.push(&message[..15]);
/// assert_eq!(decoder.next()?, None);
/// assert!(decoder.is_partial());
/// decoder.push(&message[15..]);
/// assert_eq!(decoder.next()?, Some(message));
/// assert!(!decoder.is_partial());
/// # Ok::<(), doorbell_acm::wire::BadMessage>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// Where the next message begins.
    from: usize,
    most: usize,
}

impl Decoder {
    /// Creates a decoder for messages of at most `most` bytes.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            bytes: Vec::new(),
            from: 0,
            most,
        }
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.from);
        self.from = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole message, if there is one.
    ///
    /// # Errors
    /// When its header is invalid: then nothing after it can be decoded either.
    #[allow(
        clippy::should_implement_trait,
        reason = "it may return a message after `None`"
    )]
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, BadMessage> {
        let bytes = &self.bytes[self.from..];
        if let Some(&version) = bytes.first()
            && version != super::layout::VERSION
        {
            // Fail at once: a peer of another protocol may never send a whole header.
            return Err(BadMessage::Version(version));
        }
        let Ok((head, _)) = RawHead::ref_from_prefix(bytes) else {
            return Ok(None);
        };
        let (_, length) = head.judge(self.most)?;
        debug_assert!(length >= HEAD);
        let message = bytes.get(..length).map(<[u8]>::to_vec);
        if message.is_some() {
            self.from += length;
        }
        Ok(message)
    }

    /// Whether an incomplete message is buffered.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.from < self.bytes.len()
    }
}
