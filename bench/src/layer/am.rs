//! A pair's link by active messages. An exchange is a request and the reply of its handler, so the follower's
//! half of it is done inside its polls: it counts what came, and has nothing left to send.
//!
//! Up to eight bytes travel as arguments of a Short, larger messages in Mediums as long as they fit, and
//! others in Longs, which land in the other's segment. The last Short is kept, and one Medium of 32, so that
//! it can be checked when nothing is measured.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use doorbell::am::{Am, AmError, Handle, Handlers, Payload, Remote, Request, Setup, Try};
use doorbell::fabric::message::Landing;
use doorbell::{Region, RegionSlice};
use doorbell_fabric::clock::Clock;

use super::{InOrder, LEFTOVER, PROGRESS_EVERY, one_by_one, places};
use crate::error::BenchError;
use crate::link::{CONTROL_MAX, Flow, Link, Sinks, pattern};
use crate::load::until_empty;

/// Handlers: of exchanges, of streams, of their ends, of orders, of messages with stamps, of the ends of open
/// loops.
const ASK: u8 = 130;
const ANSWER: u8 = 131;
const TAKE: u8 = 132;
const END: u8 = 133;
const TELL: u8 = 134;
const TOLD: u8 = 135;
const GIVE: u8 = 136;
const GOT: u8 = 137;
const OVER: u8 = 138;
/// One of this many Mediums is kept.
const KEPT_OF: u64 = 32;
/// Bytes that travel as arguments.
const SHORT: usize = 8;
/// Bytes of a control message that travel at once: they fit in the smaller kind of chunks, too.
const PIECE: usize = 512;
/// The rank that follows.
const FOLLOWER: u32 = 1;

/// The counts of a rank's handlers. One thread runs them and reads the counts: nothing is ordered by these
/// numbers.
#[derive(Debug)]
struct Counts {
    asked: AtomicU64,
    answered: AtomicU64,
    taken: AtomicU64,
    ends: AtomicU64,
    overs: AtomicU64,
    /// By which clock requests of exchanges are noted, while they are; when the handler of the last one began
    /// and ended.
    clock: OnceLock<Clock>,
    notes: AtomicBool,
    noted: [AtomicU64; 2],
    /// What came last as arguments, and of late as the payload of a Medium, with its length.
    word: AtomicU64,
    kept: Region,
    kept_bytes: AtomicU64,
    inbox: Mutex<Inbox>,
    /// Messages with stamps, and how many of ours were read.
    given: Mutex<Given>,
    got: AtomicU64,
}

/// Messages with stamps: those that came, by number, and those that came twice.
#[derive(Debug)]
struct Given {
    came: InOrder<Vec<u8>>,
    twice: VecDeque<Vec<u8>>,
}

/// Control messages, and the pieces of one that is not whole.
#[derive(Debug, Default)]
struct Inbox {
    whole: VecDeque<Vec<u8>>,
    pieces: Vec<u8>,
}

fn bump(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

impl Counts {
    /// Notes the time, if times are noted.
    #[inline]
    fn note(&self, which: usize) {
        if self.notes.load(Ordering::Relaxed)
            && let Some(clock) = self.clock.get()
        {
            self.noted[which].store(clock.ticks_ordered(), Ordering::Relaxed);
        }
    }

    /// Keeps what the message with this number brought. Of Mediums that is every 32nd, and the first of a
    /// size: a copy of each would be timed, which handlers of the peers' benchmarks do not make either.
    #[inline]
    fn keep(&self, number: &AtomicU64, args: &[u32], payload: Payload<'_>) {
        match (payload, args) {
            (Payload::None, [low, high]) => {
                let word = u64::from(*low) | u64::from(*high) << 32;
                self.word.store(word, Ordering::Relaxed);
            }
            (Payload::Medium(bytes), _) => {
                let length = bytes.len() as u64;
                let is_new = self.kept_bytes.load(Ordering::Relaxed) != length;
                if is_new || number.load(Ordering::Relaxed).is_multiple_of(KEPT_OF) {
                    self.kept_bytes.store(length, Ordering::Relaxed);
                    self.kept.whole().write_shared(0, bytes);
                }
            }
            // In the segment.
            _ => {}
        }
    }
}

/// What a rank's handlers write to, made before its job.
#[derive(Clone, Debug)]
pub struct AmState {
    counts: Arc<Counts>,
}

impl AmState {
    /// Creates the counts, all zero.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new() -> Result<Self, BenchError> {
        let counts = Counts {
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            ends: AtomicU64::new(0),
            overs: AtomicU64::new(0),
            clock: OnceLock::new(),
            notes: AtomicBool::new(false),
            noted: Default::default(),
            word: AtomicU64::new(0),
            kept: Region::new(4096).map_err(doorbell::Error::from)?,
            kept_bytes: AtomicU64::new(0),
            inbox: Mutex::default(),
            given: Mutex::new(Given {
                came: InOrder::new(),
                twice: VecDeque::new(),
            }),
            got: AtomicU64::new(0),
        };
        Ok(Self {
            counts: Arc::new(counts),
        })
    }

    /// The handlers of a load, and a segment that has room for some messages of `most` bytes.
    ///
    /// # Errors
    /// None: handlers are numbered once.
    pub fn setup(&self, most: usize) -> Result<Setup, BenchError> {
        let mut handlers = Handlers::new();
        self.handlers(&mut handlers).map_err(doorbell::Error::from)?;
        Ok(Setup::new(handlers, most.max(64) * places(most) as usize))
    }

    fn handlers(&self, handlers: &mut Handlers) -> Result<(), AmError> {
        let (counts, mut answers) = (Arc::clone(&self.counts), Answers::default());
        handlers.request(ASK, move |request| {
            counts.note(0);
            bump(&counts.asked);
            counts.keep(&counts.asked, request.args(), request.payload());
            answers.give(request);
            counts.note(1);
        })?;
        let counts = Arc::clone(&self.counts);
        handlers.reply(ANSWER, move |reply| {
            bump(&counts.answered);
            counts.keep(&counts.answered, reply.args(), reply.payload());
        })?;
        let counts = Arc::clone(&self.counts);
        handlers.request(TAKE, move |request| {
            bump(&counts.taken);
            counts.keep(&counts.taken, request.args(), request.payload());
        })?;
        let counts = Arc::clone(&self.counts);
        handlers.request(END, move |_| bump(&counts.ends))?;
        let counts = Arc::clone(&self.counts);
        handlers.request(OVER, move |_| bump(&counts.overs))?;
        let counts = Arc::clone(&self.counts);
        handlers.request(TELL, move |request| on_request(&counts, request))?;
        handlers.reply(TOLD, |_| ())?;
        let counts = Arc::clone(&self.counts);
        handlers.request(GIVE, move |request| {
            let bytes = request.payload().bytes().to_vec();
            let mut given = counts.given.lock().unwrap_or_else(PoisonError::into_inner);
            let number = request.args().first().copied().unwrap_or_default();
            if let Some(twice) = given.came.came(number.into(), bytes) {
                given.twice.push_back(twice);
            }
            drop(given);
            let _ = request.reply_short(GOT, &[]);
        })?;
        let counts = Arc::clone(&self.counts);
        handlers.reply(GOT, move |_| bump(&counts.got))?;
        Ok(())
    }
}

fn on_request(counts: &Counts, request: Request<'_>) {
    let mut inbox = counts.inbox.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = request.payload().bytes();
    if inbox.pieces.len().saturating_add(bytes.len()) <= CONTROL_MAX {
        inbox.pieces.extend_from_slice(&bytes.to_vec());
    }
    if request.args() == [1] {
        let whole = std::mem::take(&mut inbox.pieces);
        inbox.whole.push_back(whole);
    }
}

/// What the follower replies with: bytes of its own, of the length of what came.
#[derive(Default)]
struct Answers {
    ours: Vec<u8>,
    region: Option<Region>,
}

impl Answers {
    #[inline]
    fn give(&mut self, request: Request<'_>) {
        let payload = request.payload();
        let length = match payload {
            Payload::None => SHORT,
            _ => payload.bytes().len(),
        };
        if self.ours.len() != length {
            self.make(length);
        }
        // A reply that cannot be sent is left out: the other side waits for it in vain, and reports that.
        let _ = match payload {
            Payload::None => {
                let args = words(&self.ours);
                request.reply_short(ANSWER, &args)
            }
            Payload::Medium(_) => request.reply_medium(ANSWER, &[], &self.ours[..]),
            Payload::Long { .. } => match &self.region {
                Some(region) => request.reply_long(ANSWER, &[], Landing::Region(region.whole()), 0),
                None => Ok(()),
            },
        };
    }

    #[cold]
    fn make(&mut self, length: usize) {
        self.ours = pattern(FOLLOWER, length).unwrap_or_default();
        self.region = Region::new(length.max(1)).ok();
        if let Some(region) = &self.region {
            region.write(0, &self.ours);
        }
    }
}

/// Packs up to eight bytes into two arguments.
#[inline]
fn words(body: &[u8]) -> [u32; 2] {
    let mut bytes = [0; SHORT];
    let length = body.len().min(SHORT);
    bytes[..length].copy_from_slice(&body[..length]);
    let word = u64::from_le_bytes(bytes);
    [word as u32, (word >> 32) as u32]
}

/// One rank's side of a pair, by active messages.
pub struct AmLink<'a> {
    am: &'a mut Am,
    counts: Arc<Counts>,
    rail: String,
    deadline: Duration,
    /// Requests of exchanges that were sent, or answered here, and those that were waited for.
    asked: u64,
    answered: u64,
    taken: u64,
    ends: u64,
    /// A stream has come, and its end has to be acknowledged.
    owes_end: bool,
    /// What was waited for last was the end of a stream.
    ended: bool,
    /// The body that Longs leave from.
    out: Region,
    prepared: (usize, usize),
    medium: usize,
    /// The number of places for messages with stamps, and the bytes of each; `None` where messages carry
    /// none.
    stamped: Option<(u64, usize)>,
    /// The number of messages with stamps that were sent.
    sent: u64,
    /// The ends of open loops that came, and the polls of one.
    overs: u64,
    polls: u32,
    /// Longs of an open loop whose memory is still read.
    lent: VecDeque<Handle>,
}

impl<'a> AmLink<'a> {
    /// The link to the other of two ranks.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(
        am: &'a mut Am,
        state: &AmState,
        rail: String,
        most: usize,
        verify: bool,
    ) -> Result<Self, BenchError> {
        let room = am
            .segment()
            .len()
            .min(am.segment_of(am.rank() ^ 1)?.size as usize);
        let places = places(most.max(64));
        let stamps = (places, room / places as usize);
        let medium = am.conduit().max_request_medium(1).min(4096);
        let mut link = Self {
            deadline: *am.config().wait.deadline.get(),
            rail,
            counts: Arc::clone(&state.counts),
            asked: 0,
            answered: 0,
            taken: 0,
            ends: 0,
            owes_end: false,
            ended: false,
            out: Region::new(room).map_err(doorbell::Error::from)?,
            prepared: (0, 0),
            medium,
            stamped: verify.then_some(stamps),
            sent: 0,
            overs: 0,
            polls: 0,
            lent: VecDeque::new(),
            am,
        };
        // The leader sends whether messages carry stamps.
        if link.am.rank() == FOLLOWER {
            let verify = link.receive_control()? == [1];
            link.stamped = verify.then_some(stamps);
        } else {
            link.send_control(&[u8::from(verify)])?;
        }
        Ok(link)
    }

    /// Sends a body to a handler, as the kind of message that it fits.
    #[inline(always)]
    fn request(&mut self, handler: u8, body: &[u8]) -> Result<(), BenchError> {
        let peer = self.am.rank() ^ 1;
        if body.len() <= SHORT {
            return Ok(self.am.request_short(peer, handler, &words(body))?);
        }
        if body.len() <= self.medium {
            return Ok(self.am.request_medium(peer, handler, &[], body)?);
        }
        self.request_long(peer, handler, body)
    }

    /// The memory that a Long leaves from, with this body.
    fn prepare(&mut self, body: &[u8]) -> Result<RegionSlice, BenchError> {
        let which = (body.as_ptr().addr(), body.len());
        if self.prepared != which {
            self.out.write(0, body);
            self.prepared = which;
        }
        let slice = self.out.slice(0, body.len());
        slice.ok_or(BenchError::NoMemory { bytes: body.len() })
    }

    fn request_long(&mut self, peer: u32, handler: u8, body: &[u8]) -> Result<(), BenchError> {
        let slice = self.prepare(body)?;
        let to = Remote {
            rank: peer,
            offset: 0,
        };
        let sent = self.am.request_long(to, handler, &[], Landing::Region(slice))?;
        match sent.source {
            Some(handle) => Ok(self.am.sync(handle)?),
            None => Ok(()),
        }
    }
}

impl AmLink<'_> {
    /// A pass of an open loop, which also notices that the peer is lost.
    fn poll(&mut self) -> Result<(), BenchError> {
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(PROGRESS_EVERY) {
            self.am.conduit().poll();
            return Ok(());
        }
        self.am.progress();
        match self.am.lost() {
            [] => Ok(()),
            // A wait reports it.
            _ => until(self.am, "word of its peer", &self.counts.asked, u64::MAX),
        }
    }

    /// Starts a request of an exchange; `false` when that would have to wait.
    fn try_request(&mut self, body: &[u8]) -> Result<bool, BenchError> {
        let peer = self.am.rank() ^ 1;
        let is_long = body.len() > self.medium;
        let from = is_long.then(|| self.prepare(body)).transpose()?;
        let mut conduit = self.am.conduit();
        let begun = match from {
            None if body.len() <= SHORT => conduit.try_request_short(peer, ASK, &words(body)),
            None => conduit.try_request_medium(peer, ASK, &[], body),
            Some(from) => {
                while let Some(first) = self.lent.front().copied()
                    && conduit.try_sync(first).map_err(doorbell::Error::from)?
                {
                    self.lent.pop_front();
                }
                let sent = conduit.try_request_long(peer, ASK, &[], Landing::Region(from), 0);
                sent.map(|sent| match sent {
                    Try::Done(sent) => {
                        self.lent.extend(sent.source);
                        Try::Done(())
                    }
                    Try::Stalled(stall) => Try::Stalled(stall),
                })
            }
        };
        conduit.flush();
        Ok(matches!(begun.map_err(doorbell::Error::from)?, Try::Done(())))
    }

    /// Sends a message with a stamp, when the one that had its place was read.
    fn give(&mut self, (places, stride): (u64, usize), body: &[u8]) -> Result<(), BenchError> {
        let (counts, peer) = (Arc::clone(&self.counts), self.am.rank() ^ 1);
        let free = (self.sent + 1).saturating_sub(places);
        until(self.am, "a message to be read", &counts.got, free)?;
        let at = (self.sent % places) as usize * stride;
        // Fewer than 2^32 messages with stamps are sent.
        let number = [self.sent as u32];
        self.sent += 1;
        if body.len() <= self.medium {
            return Ok(self.am.request_medium(peer, GIVE, &number, body)?);
        }
        self.out.write(at, body);
        let slice = self.out.slice(at, body.len());
        let slice = slice.ok_or(BenchError::NoMemory { bytes: body.len() })?;
        let to = Remote {
            rank: peer,
            offset: at as u64,
        };
        self.am.request_long(to, GIVE, &number, Landing::Region(slice))?;
        Ok(())
    }

    fn take(&mut self, into: &mut [u8]) -> Result<usize, BenchError> {
        let counts = Arc::clone(&self.counts);
        let next = || {
            let mut given = counts.given.lock().unwrap_or_else(PoisonError::into_inner);
            given.twice.pop_front().or_else(|| given.came.turn())
        };
        let body = self.am.wait_until("a message of the other rank", next)?;
        Ok(copied(&body, into))
    }

    /// The next message with a stamp, if it is there.
    fn try_take(&mut self, into: &mut [u8]) -> Option<usize> {
        let mut given = self.counts.given.lock().unwrap_or_else(PoisonError::into_inner);
        let body = given.twice.pop_front().or_else(|| given.came.turn())?;
        Some(copied(&body, into))
    }
}

/// Copies a message; returns its length.
fn copied(body: &[u8], into: &mut [u8]) -> usize {
    let found = body.len().min(into.len());
    into[..found].copy_from_slice(&body[..found]);
    body.len()
}

/// Waits until a count of what handlers saw is reached.
#[inline(always)]
fn until(am: &mut Am, what: &'static str, count: &AtomicU64, to: u64) -> Result<(), BenchError> {
    let reached = || (count.load(Ordering::Relaxed) >= to).then_some(());
    Ok(am.wait_until(what, reached)?)
}

impl Link for AmLink<'_> {
    fn rank(&self) -> u32 {
        self.am.rank()
    }

    fn peer(&self) -> u32 {
        self.am.rank() ^ 1
    }

    fn rail(&self) -> &str {
        &self.rail
    }

    #[inline(always)]
    fn send(&mut self, body: &[u8]) -> Result<(), BenchError> {
        if let Some(places) = self.stamped {
            return self.give(places, body);
        }
        if self.am.rank() != FOLLOWER {
            self.asked += 1;
            return self.request(ASK, body);
        }
        // The handler has answered what came. What is not answered by a handler is the end of a stream.
        if std::mem::take(&mut self.owes_end) {
            self.am.request_short(self.am.rank() ^ 1, END, &[])?;
        }
        Ok(())
    }

    #[inline(always)]
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, BenchError> {
        if self.stamped.is_some() {
            return self.take(into);
        }
        if self.am.rank() == FOLLOWER {
            self.asked += 1;
            until(self.am, "a request", &self.counts.asked, self.asked)?;
        } else if self.answered < self.asked {
            self.answered += 1;
            self.ended = false;
            until(self.am, "a reply", &self.counts.answered, self.answered)?;
        } else {
            self.ends += 1;
            self.ended = true;
            until(self.am, "the end of a stream", &self.counts.ends, self.ends)?;
        }
        Ok(into.len())
    }

    fn settle(&mut self, into: &mut [u8]) {
        if self.stamped.is_some() {
            return;
        }
        if self.ended && self.am.rank() != FOLLOWER {
            into.fill(1);
        } else if into.len() <= SHORT {
            let word = self.counts.word.load(Ordering::Relaxed).to_le_bytes();
            let length = into.len();
            into.copy_from_slice(&word[..length]);
        } else if into.len() <= self.medium {
            self.counts.kept.read(0, into);
        } else {
            self.am.segment().as_shared().take(into.len()).copy_to(0, into);
        }
    }

    fn recv_open(&mut self, into: &mut [u8]) -> Result<usize, BenchError> {
        if self.stamped.is_some() {
            return self.take(into);
        }
        let (counts, asked, overs) = (&self.counts, self.asked, self.overs);
        let came = || {
            if counts.asked.load(Ordering::Relaxed) > asked {
                Some(true)
            } else {
                (counts.overs.load(Ordering::Relaxed) > overs).then_some(false)
            }
        };
        if self.am.wait_until("a request of an open loop", came)? {
            self.asked += 1;
            return Ok(into.len());
        }
        self.overs += 1;
        Ok(0)
    }

    fn send_end(&mut self) -> Result<(), BenchError> {
        match self.stamped {
            Some(_) => self.send(&[]),
            None => Ok(self.am.request_short(self.am.rank() ^ 1, OVER, &[])?),
        }
    }

    fn note_times(&mut self, clock: Option<&Clock>) {
        if let Some(clock) = clock {
            let _ = self.counts.clock.set(*clock);
        }
        self.counts.notes.store(clock.is_some(), Ordering::Relaxed);
    }

    fn noted(&self) -> Option<[u64; 2]> {
        let at = |which: &AtomicU64| which.load(Ordering::Relaxed);
        let [began, ended] = &self.counts.noted;
        (self.stamped.is_none()).then(|| [at(began), at(ended)])
    }

    fn stream_out(
        &mut self,
        body: &[u8],
        count: u64,
        _: Flow,
        _: &mut dyn FnMut() -> bool,
    ) -> Result<u64, BenchError> {
        (0..count).try_for_each(|_| self.request(TAKE, body))?;
        Ok(count)
    }

    fn stream_in(&mut self, _: &mut Sinks, count: u64, _: Flow) -> Result<u64, BenchError> {
        self.taken += count;
        self.owes_end = true;
        until(self.am, "requests", &self.counts.taken, self.taken)?;
        Ok(count)
    }

    // Arrivals are counted, and not read.
    fn ends_early(&self) -> bool {
        false
    }

    one_by_one!(am);

    fn begin_open(&mut self, _: usize, _: usize) -> Result<(), BenchError> {
        self.ended = false;
        Ok(())
    }

    fn end_open(&mut self) {}

    fn can_send(&mut self) -> Result<bool, BenchError> {
        let Some((places, _)) = self.stamped else {
            return Ok(true);
        };
        let free = (self.sent + 1).saturating_sub(places);
        Ok(self.counts.got.load(Ordering::Relaxed) >= free)
    }

    #[inline]
    fn try_send(&mut self, body: &[u8]) -> Result<bool, BenchError> {
        if !self.can_send()? {
            return Ok(false);
        }
        if let Some(places) = self.stamped {
            self.give(places, body)?;
            return Ok(true);
        }
        if body.is_empty() {
            self.send_end()?;
            return Ok(true);
        }
        let is_sent = self.try_request(body)?;
        self.asked += u64::from(is_sent);
        Ok(is_sent)
    }

    #[inline]
    fn try_recv(&mut self, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
        self.poll()?;
        if self.stamped.is_some() {
            return Ok(self.try_take(into));
        }
        if self.counts.answered.load(Ordering::Relaxed) > self.answered {
            self.answered += 1;
            return Ok(Some(into.len()));
        }
        let is_over = self.counts.overs.load(Ordering::Relaxed) > self.overs;
        self.overs += u64::from(is_over);
        Ok(is_over.then_some(0))
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn send_control(&mut self, text: &[u8]) -> Result<(), BenchError> {
        let peer = self.am.rank() ^ 1;
        let mut pieces = text.chunks(PIECE).peekable();
        loop {
            let piece = pieces.next().unwrap_or_default();
            let last = u32::from(pieces.peek().is_none());
            self.am.request_medium(peer, TELL, &[last], piece)?;
            if last == 1 {
                return Ok(());
            }
        }
    }

    fn receive_control(&mut self) -> Result<Vec<u8>, BenchError> {
        self.receive_control_within(self.deadline)
    }

    fn receive_control_within(&mut self, limit: Duration) -> Result<Vec<u8>, BenchError> {
        let counts = &self.counts;
        let next = || {
            counts
                .inbox
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .whole
                .pop_front()
        };
        self.am.set_deadline(limit);
        let heard = self.am.wait_until("an order of the other rank", next);
        self.am.set_deadline(self.deadline);
        Ok(heard?)
    }
}

impl std::fmt::Debug for AmLink<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "AmLink(to rank {} over {})", self.am.rank() ^ 1, self.rail)
    }
}
