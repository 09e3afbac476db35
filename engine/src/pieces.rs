//! The pieces of lent memory of a world: a bounded pool, and those that receivers have.
//!
//! ```text
//!   free ──► in the owner's hands (`Lent`) ──► sent ──► free       its receiver released it, or has a copy
//!                                                └────► abandoned  its receiver was lost, may still read it
//! ```
//!
//! An abandoned piece is not used again: the pool lets it go, and makes another one in its place. Its memory
//! is free as soon as no receiver maps it.

use std::cell::RefCell;

use doorbell_fabric::memory::{Piece, Region};
use doorbell_job::error::Error;
use doorbell_pml::RequestId;

use crate::progress::{Engine, RequestToken};

/// The shortest piece, in bytes. All lengths are powers of two, so that pieces fit many messages.
const SHORTEST: usize = 4096;
/// A piece that is longer than this many times what is wanted is left for others.
const TOO_LONG: usize = 4;

/// How many pieces of lent memory a world has, and where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LentCounts {
    /// Pieces that are being written here: values of [`Lent`](crate::Lent).
    pub lent: usize,
    /// Pieces that were sent, and that receivers have not released, or have not received yet.
    pub sent: usize,
    /// Pieces that are there to be lent.
    pub free: usize,
    /// Pieces that were given up since the start, as their receivers were lost.
    pub abandoned: u64,
    /// Messages that are read in place here: values of [`InPlace`](crate::InPlace).
    pub held: usize,
}

/// The pieces of a world, and the messages that it reads in place.
pub(crate) struct Pieces {
    most: usize,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    free: Vec<Piece>,
    sent: Vec<(RequestToken, Region)>,
    /// In the owner's hands.
    lent: usize,
    abandoned: u64,
    held: usize,
    /// Messages that could not be released when their values were dropped, in a hook.
    left: Vec<RequestId>,
}

impl Inner {
    /// Takes the shortest free piece that fits.
    fn take(&mut self, length: usize) -> Option<Piece> {
        let most = length.max(SHORTEST).saturating_mul(TOO_LONG);
        let lengths = self.free.iter().map(|piece| piece.len()).enumerate();
        let fitting = lengths.filter(|(_, whole)| (length..=most).contains(whole));
        let (at, _) = fitting.min_by_key(|(_, whole)| *whole)?;
        Some(self.free.swap_remove(at))
    }

    /// Takes a region back whose request has ended.
    fn take_back(&mut self, region: Region) {
        // One that a rail still has is dropped; the rail lets it go later.
        if let Ok(piece) = Piece::of(region) {
            self.free.push(piece);
        }
    }

    /// Takes back the pieces whose receivers have released them.
    fn collect(&mut self, engine: &Engine) {
        let mut at = 0;
        while let Some((token, _)) = self.sent.get(at) {
            let ended = engine.is_done(*token).then(|| engine.test(*token)).flatten();
            let Some(outcome) = ended else {
                at += 1;
                continue;
            };
            let (_, region) = self.sent.swap_remove(at);
            match outcome {
                Ok(_) => self.take_back(region),
                Err(_) => self.abandoned += 1,
            }
        }
    }

    fn count(&self) -> usize {
        self.free.len() + self.sent.len() + self.lent
    }
}

impl Pieces {
    /// A pool of at most this many pieces, which are made when they are needed.
    pub(crate) fn new(most: u32) -> Self {
        let most = most as usize;
        Self {
            most,
            inner: RefCell::new(Inner {
                free: Vec::with_capacity(most),
                sent: Vec::with_capacity(most),
                ..Inner::default()
            }),
        }
    }

    /// Lends a piece of at least `length` bytes.
    ///
    /// # Errors
    /// [`Error::Full`] when all pieces are out; the system's when memory runs out.
    pub(crate) fn lend(&self, engine: &Engine, length: usize) -> Result<Piece, Error> {
        let mut inner = self.inner.borrow_mut();
        let mut piece = inner.take(length);
        if piece.is_none() {
            inner.collect(engine);
            piece = inner.take(length);
        }
        if piece.is_none() && !inner.sent.is_empty() {
            engine.progress();
            inner.collect(engine);
            piece = inner.take(length);
        }
        let piece = match piece {
            Some(piece) => piece,
            None => self.make(&mut inner, length)?,
        };
        inner.lent += 1;
        Ok(piece)
    }

    #[cold]
    fn make(&self, inner: &mut Inner, length: usize) -> Result<Piece, Error> {
        if inner.count() >= self.most && inner.free.pop().is_none() {
            return Err(Error::Full {
                what: format!(
                    "all {} pieces of lent memory are out: {} being written here, {} sent and not released \
                     by their receivers; `lend.pieces` (DOORBELL_LEND_PIECES) raises the bound",
                    self.most,
                    inner.lent,
                    inner.sent.len()
                ),
            });
        }
        // A length without a power of two above it is refused by the system, with its number.
        let whole = length.max(SHORTEST).checked_next_power_of_two();
        Ok(Piece::new(whole.unwrap_or(length))?)
    }

    /// A piece was not sent, or its bytes were taken at once.
    pub(crate) fn give_back(&self, piece: Piece) {
        let mut inner = self.inner.borrow_mut();
        inner.lent -= 1;
        inner.free.push(piece);
    }

    /// A piece was not sent, or its bytes were taken at once, and it is a region.
    pub(crate) fn give_back_region(&self, region: Region) {
        let mut inner = self.inner.borrow_mut();
        inner.lent -= 1;
        inner.take_back(region);
    }

    /// A piece was sent by a request that is under way.
    pub(crate) fn sent(&self, token: RequestToken, region: Region) {
        let mut inner = self.inner.borrow_mut();
        inner.lent -= 1;
        inner.sent.push((token, region));
    }

    /// A message is read in place.
    pub(crate) fn hold(&self) {
        self.inner.borrow_mut().held += 1;
    }

    /// A message that was read in place is released.
    pub(crate) fn release(&self, engine: &Engine, id: RequestId) {
        self.inner.borrow_mut().held -= 1;
        if let Err(Error::Busy) = engine.call(move |core| core.pml.release(id)) {
            self.inner.borrow_mut().left.push(id);
        }
    }

    /// Releases what could not be released before.
    #[inline]
    pub(crate) fn release_left(&self, engine: &Engine) {
        if !self.inner.borrow().left.is_empty() {
            self.release_each(engine);
        }
    }

    #[cold]
    fn release_each(&self, engine: &Engine) {
        let mut left = std::mem::take(&mut self.inner.borrow_mut().left);
        while let Some(id) = left.pop() {
            if let Err(Error::Busy) = engine.call(move |core| core.pml.release(id)) {
                left.push(id);
                break;
            }
        }
        self.inner.borrow_mut().left = left;
    }

    /// Lets what was sent run on by itself, for a world that ends.
    pub(crate) fn detach(&self, engine: &Engine) {
        self.release_left(engine);
        for (token, _) in self.inner.borrow_mut().sent.drain(..) {
            engine.detach(token);
        }
    }

    /// Returns how many pieces there are, and where.
    pub(crate) fn counts(&self, engine: &Engine) -> LentCounts {
        let mut inner = self.inner.borrow_mut();
        inner.collect(engine);
        LentCounts {
            lent: inner.lent,
            sent: inner.sent.len(),
            free: inner.free.len(),
            abandoned: inner.abandoned,
            held: inner.held,
        }
    }
}
