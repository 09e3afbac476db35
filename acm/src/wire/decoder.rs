//! Messages out of a stream: whatever the pieces in which they come, they are the same messages.

use zerocopy::FromBytes;

use super::layout::{HEAD, Nonsense, RawHead};

/// Bytes that came, until they are a message.
///
/// It keeps what was taken and not yet given out: whoever asks for all messages after each piece keeps at most one
/// message and one piece.
///
/// ```
/// use doorbell_acm::ask::{Question, Whose};
/// use doorbell_acm::wire::{Pieces, QUESTION_MAX, request};
/// let message = request(&Question::Counters(Whose::Service), 7);
/// let mut pieces = Pieces::new(QUESTION_MAX);
/// pieces.take(&message[..15]);
/// assert_eq!(pieces.next()?, None);
/// assert!(pieces.is_half());
/// pieces.take(&message[15..]);
/// assert_eq!(pieces.next()?, Some(message));
/// assert!(!pieces.is_half());
/// # Ok::<(), doorbell_acm::wire::Nonsense>(())
/// ```
#[derive(Debug)]
pub struct Pieces {
    bytes: Vec<u8>,
    /// Where the next message begins.
    from: usize,
    most: usize,
}

impl Pieces {
    /// For messages of at most `most` bytes.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            bytes: Vec::new(),
            from: 0,
            most,
        }
    }

    /// Takes a piece.
    pub fn take(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.from);
        self.from = 0;
        self.bytes.extend_from_slice(piece);
    }

    /// The next whole message, if it is there.
    ///
    /// # Errors
    /// When its header is none: nothing behind it can be read, ever.
    #[allow(clippy::should_implement_trait, reason = "it goes on after it had none")]
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, Nonsense> {
        let bytes = &self.bytes[self.from..];
        if let Some(&version) = bytes.first()
            && version != super::layout::VERSION
        {
            // Told at once: a stranger that speaks something else may never say 16 bytes.
            return Err(Nonsense::Version(version));
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

    /// Whether a message has begun that is not at its end.
    #[must_use]
    pub fn is_half(&self) -> bool {
        self.from < self.bytes.len()
    }
}
