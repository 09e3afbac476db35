//! Handlers: what runs when a message arrives, and what each kind may do.
//!
//! A request handler gets a [`Request`], which it can turn into one reply; a reply handler gets a [`Reply`],
//! which sends nothing. Both run to completion inside a poll of the conduit, and must not block.
//!
//! The conduit may move to another thread, or be polled by several in turn under a lock, so a handler is
//! `Send`: what it captures may be used by whichever thread polls.
//!
//! ```compile_fail,E0277
//! let seen = std::rc::Rc::new(std::cell::Cell::new(0));
//! let mut handlers = doorbell_am::Handlers::new();
//! handlers.request(200, move |_| seen.set(1))?; // an `Rc` belongs to one thread
//! # Ok::<(), doorbell_am::AmError>(())
//! ```
//!
//! ```
//! let seen = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
//! let mut handlers = doorbell_am::Handlers::new();
//! handlers.request(200, move |_| seen.store(1, std::sync::atomic::Ordering::Release))?;
//! # Ok::<(), doorbell_am::AmError>(())
//! ```

use doorbell_fabric::memory::SharedBytes;

use crate::error::AmError;
use crate::token::Request;

/// Arguments of 32 bits that one message carries at most.
pub const MAX_ARGS: usize = 16;
/// The handler that does nothing: what a request handler that did not reply replies with.
pub const NO_OP: u8 = 0;

/// What runs when a request arrives.
pub type RequestHandler = Box<dyn FnMut(Request<'_>) + Send>;
/// What runs when a reply arrives.
pub type ReplyHandler = Box<dyn FnMut(Reply<'_>) + Send>;

/// The payload of a message.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// A Short has none.
    None,
    /// The payload of a Medium: there while the handler runs, and not a moment longer.
    Medium(SharedBytes<'a>),
    /// The payload of a Long: in the segment of this process, in place before the handler starts.
    Long {
        /// Where in the segment.
        offset: u64,
        /// The bytes, as they are in the segment.
        bytes: SharedBytes<'a>,
    },
}

impl<'a> Payload<'a> {
    /// The bytes, of a Short none.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> SharedBytes<'a> {
        match self {
            Self::None => SharedBytes::EMPTY,
            Self::Medium(bytes) | Self::Long { bytes, .. } => bytes,
        }
    }

    /// Returns where a Long lies in the segment.
    #[inline]
    #[must_use]
    pub const fn offset(self) -> Option<u64> {
        match self {
            Self::Long { offset, .. } => Some(offset),
            _ => None,
        }
    }
}

/// A reply that has arrived, for its handler. It can send nothing:
///
/// ```compile_fail,E0599
/// fn handler(reply: doorbell_am::Reply<'_>) {
///     let _ = reply.reply_short(1, &[]); // a reply handler may not communicate
/// }
/// ```
///
/// ```
/// fn handler(reply: doorbell_am::Reply<'_>) {
///     let _ = (reply.source(), reply.args().len(), reply.payload().bytes().len());
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    pub(crate) source: u32,
    pub(crate) args: &'a [u32],
    pub(crate) payload: Payload<'a>,
}

impl<'a> Reply<'a> {
    /// The rank that replied.
    #[inline]
    #[must_use]
    pub const fn source(&self) -> u32 {
        self.source
    }

    /// The arguments of the message.
    #[inline]
    #[must_use]
    pub const fn args(&self) -> &'a [u32] {
        self.args
    }

    /// The payload of the message.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> Payload<'a> {
        self.payload
    }
}

/// What is registered under a handler's number.
#[derive(Default)]
pub(crate) enum Handler {
    /// No handler was registered.
    #[default]
    None,
    /// Runs with requests.
    Request(RequestHandler),
    /// Runs with replies.
    Reply(ReplyHandler),
}

/// The table of handlers, filled before the conduit is made, alike in all processes of the job.
///
/// ```
/// use doorbell_am::Handlers;
///
/// let mut handlers = Handlers::new();
/// handlers.request(200, |request| {
///     let sum = request.args().iter().fold(0, |sum, arg| sum + arg);
///     let _ = request.reply_short(201, &[sum]);
/// })?;
/// handlers.reply(201, |reply| assert_eq!(reply.args().len(), 1))?;
/// assert!(handlers.reply(201, |_| ()).is_err(), "a number is given once");
/// # Ok::<(), doorbell_am::AmError>(())
/// ```
pub struct Handlers {
    table: Box<[Handler]>,
}

impl Default for Handlers {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let given = self.table.iter().filter(|slot| !matches!(slot, Handler::None));
        out.debug_struct("Handlers")
            .field("given", &given.count())
            .finish()
    }
}

impl Handlers {
    /// Returns a table without handlers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            table: (0..=u8::MAX).map(|_| Handler::None).collect(),
        }
    }

    /// Registers the handler of requests with this number.
    ///
    /// # Errors
    /// [`AmError::Handler`]: 0, or a number in use.
    pub fn request(
        &mut self,
        number: u8,
        handler: impl FnMut(Request<'_>) + Send + 'static,
    ) -> Result<&mut Self, AmError> {
        self.register(number, Handler::Request(Box::new(handler)))
    }

    /// Registers the handler of replies with this number.
    ///
    /// # Errors
    /// [`AmError::Handler`]: 0, or a number in use.
    pub fn reply(
        &mut self,
        number: u8,
        handler: impl FnMut(Reply<'_>) + Send + 'static,
    ) -> Result<&mut Self, AmError> {
        self.register(number, Handler::Reply(Box::new(handler)))
    }

    fn register(&mut self, number: u8, handler: Handler) -> Result<&mut Self, AmError> {
        match self.table.get_mut(usize::from(number)) {
            Some(slot @ Handler::None) if number != NO_OP => *slot = handler,
            _ => return Err(AmError::Handler(number)),
        }
        Ok(self)
    }

    /// Runs the handler of a request; whether there is one.
    #[inline]
    pub(crate) fn run_request(&mut self, number: u8, request: Request<'_>) -> bool {
        match self.table.get_mut(usize::from(number)) {
            Some(Handler::Request(handler)) => {
                handler(request);
                true
            }
            _ => number == NO_OP,
        }
    }

    /// Runs the handler of a reply; whether there is one.
    #[inline]
    pub(crate) fn run_reply(&mut self, number: u8, reply: Reply<'_>) -> bool {
        match self.table.get_mut(usize::from(number)) {
            Some(Handler::Reply(handler)) => {
                handler(reply);
                true
            }
            _ => number == NO_OP,
        }
    }
}
