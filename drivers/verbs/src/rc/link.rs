//! One life of a connection: its queue pair, the requests under way, credits and counters both ways.

use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::RailReport;
use doorbell_fabric::time::Time;

use super::core::RcStats;
use super::head::{Counters, HEAD, Head, Impossible, Known, PROOF, RETURNS, WANTS_MORE, ring_flags};
use super::hello::{Hello, Route};
use super::outbox::{Outbox, Pool};
use super::ring::RingOut;
use super::ring::layout::SLOTS;
use super::slots::Slots;
use crate::cm::Size;
use crate::error::VerbsError;
use crate::sys::{Event, Poster, QpAttr, Registered, numbers};

/// Requests of one queue pair under way at a time: a power of two.
pub(crate) const DEPTH: usize = 64;
/// One in this many requests reports when it has ended, besides the last of each list.
const SIGNAL: u64 = 16;
/// Credits of a connection at its beginning, and at most.
pub(crate) const FIRST_CREDITS: usize = 4;
const MOST_CREDITS: usize = 64;
/// A peer with this many left, or a quarter of its credits, is granted more.
const LOW_MOST: usize = 8;
/// Bytes of a peer's line: the counters that it writes, those that are written to it, and the head of a send
/// that gives credits back.
pub(crate) const LINE: usize = 64;
const OWN: usize = COUNTERS;
const BACK: usize = 2 * COUNTERS;
/// Bytes of all counters of one end.
const COUNTERS: usize = size_of::<Counters>();
const _: () = assert!(BACK + HEAD <= LINE);

/// The longest time between two looks that counts: a longer one is this process's own.
const LONGEST_STEP: Duration = Duration::from_millis(50);

/// The requests that prove a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Proofs {
    /// The numbers of both: a short one, and one of the MTU; zero before they are posted.
    requests: [u64; 2],
    passed: usize,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The queue pair is made, and receives nothing.
    Made,
    /// It receives, and does not send yet.
    Receiving,
    /// It sends, too.
    Up,
    /// It is in error, and what was under way ends.
    Ending(DownReason, Time),
}

/// What the device takes with a request: how often a lost packet goes again, and after how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    pub(crate) count: u8,
    pub(crate) timeout: u8,
}

impl Retries {
    /// How long the device tries to have one request acknowledged: one time-out is 4.096 µs times two to the
    /// power of its number.
    pub(crate) fn bound(&self) -> Duration {
        let timeout = Duration::from_nanos(4096 << self.timeout.min(31));
        timeout * (u32::from(self.count) + 1)
    }
}

/// A connection in one of its lives.
pub(crate) struct Link {
    poster: Poster,
    // After the queue pair, as every registration that a peer writes to.
    /// The ring that the peer writes to, and whether it was tried to make one.
    pub(crate) ring_memory: Option<Arc<Registered>>,
    pub(crate) was_tried: bool,
    /// The ring of the peer.
    pub(crate) ring: Option<Box<RingOut>>,
    /// Sends over the queue, those that carry no messages included: made here, and arrived here.
    queued: (u64, u64),
    /// Of those that arrived, sends that wait for others over the ring.
    pub(crate) early: usize,
    /// Messages that were posted.
    carried: u64,
    /// Sends that were taken out of the ring since the peer was last sent what was taken.
    ring_untold: usize,
    pub(crate) ours: Hello,
    pub(crate) state: State,
    /// Our line of counters: the peer's registration of it, and all of them, with its place.
    page: Arc<Registered>,
    lines: Arc<Registered>,
    line: usize,
    theirs: (u64, u32),
    /// How packets get to the peer.
    pub(crate) route: Option<Route>,
    /// Requests posted, and ended; the last one that reports.
    posted: u64,
    done: u64,
    reports: u64,
    done_at: Time,
    owes: Option<Owes>,
    /// It owes completions for long; and its process answers over another path meanwhile.
    pub(crate) is_suspect: bool,
    pub(crate) answers_elsewhere: bool,
    /// When something was posted last.
    pub(crate) posted_at: Time,
    /// Credits used, or given back.
    sends: u64,
    /// Requests for idle credits that were answered, and the request of the last answer.
    answered: (u64, u64),
    pub(crate) known: Known,
    from_heads: Known,
    from_ring: Known,
    from_page: Known,
    /// When something arrived last.
    heard_at: Option<Time>,
    /// Whether a send waits for a credit.
    is_stalled: bool,
    /// Sends that arrived, and those that were granted to the peer, in all.
    received: u64,
    granted: u64,
    target: usize,
    proofs: Proofs,
    /// Where it ends: completions of the queue behind which none is of it.
    pub(crate) last_send: u64,
    /// How often idle credits were requested back, and how much had arrived at the last time and look.
    recalls: u64,
    recalled: Option<u64>,
    seen: u64,
    /// Messages that our upper layer has taken; and what the peer was sent of all three.
    pub(crate) consumed: u64,
    told: (u64, u64, u64),
}

/// What was found at the last look at requests under way.
#[derive(Clone, Copy, Debug)]
struct Owes {
    done: u64,
    age: Duration,
    looked: Time,
}

/// What posting has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posted {
    pub(crate) requests: usize,
    pub(crate) is_broken: bool,
}

/// What became of the next send.
enum Prepared {
    /// There is none, or it has to wait.
    Nothing,
    Send,
    /// A write to the ring.
    Write,
    Broken,
}

impl Link {
    /// A connection whose queue pair is in RESET; moves it to INIT.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn new(
        poster: Poster,
        ours: Hello,
        (page, lines, line): (Arc<Registered>, Arc<Registered>, usize),
        (port, partition): (u8, u16),
        now: Time,
    ) -> Result<Self, VerbsError> {
        page.memory().write(0, &[0; LINE]);
        let mut attributes = QpAttr::zeroed();
        attributes.qp_state = numbers::INIT;
        (attributes.pkey_index, attributes.port_num) = (partition, port);
        attributes.qp_access_flags = numbers::REMOTE_WRITE as u32;
        let mask = numbers::HAS_PKEY_INDEX | numbers::HAS_PORT | numbers::HAS_ACCESS_FLAGS;
        poster.pair().modify(attributes, numbers::HAS_STATE | mask)?;
        Ok(Self {
            poster,
            ring_memory: None,
            was_tried: false,
            ring: None,
            queued: (0, 0),
            early: 0,
            carried: 0,
            ring_untold: 0,
            granted: ours.credits.into(),
            told: (0, ours.credits.into(), 0),
            target: ours.credits as usize,
            ours,
            state: State::Made,
            page,
            lines,
            line,
            theirs: (0, 0),
            route: None,
            posted: 0,
            done: 0,
            reports: 0,
            done_at: now,
            owes: None,
            is_suspect: false,
            answers_elsewhere: false,
            posted_at: now,
            sends: 0,
            answered: (0, 0),
            known: Known::default(),
            from_heads: Known::default(),
            from_ring: Known::default(),
            from_page: Known::default(),
            heard_at: None,
            is_stalled: false,
            received: 0,
            proofs: Proofs::default(),
            last_send: 0,
            recalls: 0,
            recalled: None,
            seen: 0,
            consumed: 0,
        })
    }

    /// Makes it receive from the peer, and ready to send.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn connect(
        &mut self,
        theirs: &Hello,
        route: &Route,
        retries: Retries,
    ) -> Result<(), VerbsError> {
        let mut attributes = QpAttr::zeroed();
        attributes.qp_state = numbers::RTR;
        attributes.path_mtu = route.mtu.into();
        attributes.ah_attr = route.to;
        (attributes.dest_qp_num, attributes.rq_psn) = (theirs.pair, theirs.psn);
        (attributes.max_dest_rd_atomic, attributes.min_rnr_timer) = (0, 12);
        let mask = numbers::HAS_AV
            | numbers::HAS_PATH_MTU
            | numbers::HAS_DEST_QPN
            | numbers::HAS_RQ_PSN
            | numbers::HAS_MAX_DEST_RD_ATOMIC
            | numbers::HAS_MIN_RNR_TIMER;
        self.poster.pair().modify(attributes, numbers::HAS_STATE | mask)?;
        let mut attributes = QpAttr::zeroed();
        attributes.qp_state = numbers::RTS;
        attributes.sq_psn = self.ours.psn;
        (attributes.timeout, attributes.retry_cnt) = (retries.timeout, retries.count);
        // A receiver without a slot has broken its promise: no use in trying often.
        attributes.rnr_retry = 1;
        let mask = numbers::HAS_SQ_PSN
            | numbers::HAS_MAX_QP_RD_ATOMIC
            | numbers::HAS_TIMEOUT
            | numbers::HAS_RETRY_CNT
            | numbers::HAS_RNR_RETRY;
        self.poster.pair().modify(attributes, numbers::HAS_STATE | mask)?;
        (self.theirs, self.route) = (theirs.page, Some(*route));
        let begin = Known {
            consumed: 0,
            granted: theirs.credits.into(),
            recalls: 0,
        };
        (self.known, self.from_heads, self.from_ring) = (begin, begin, begin);
        self.state = State::Receiving;
        Ok(())
    }

    /// Whether an event of the device is about its queue pair.
    pub(crate) fn is_meant(&self, event: &Event) -> bool {
        self.poster.pair().is_meant(event)
    }

    /// Requests under way that the completion queue has to have room for.
    #[inline]
    pub(crate) fn under_way(&self) -> usize {
        (self.posted - self.done) as usize
    }

    /// Whether this is the number of a request that was posted.
    #[inline]
    pub(crate) fn has_posted(&self, id: u64) -> bool {
        id <= self.posted
    }

    /// The last request that is known to be ended.
    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    #[inline]
    fn room(&self) -> usize {
        DEPTH - self.under_way().min(DEPTH)
    }

    /// The number of the next request, and whether it has to report besides: every sixteenth, and where half
    /// of the queue pair's requests are under way, or all.
    #[inline]
    fn number(&mut self) -> (u64, bool) {
        self.posted += 1;
        let is_due = self.under_way().is_multiple_of(DEPTH / 2);
        let reports = self.posted.is_multiple_of(SIGNAL) || is_due;
        if reports {
            self.reports = self.posted;
        }
        (self.posted, reports)
    }

    #[inline]
    fn credits(&self) -> u64 {
        self.known.granted.saturating_sub(self.sends)
    }

    /// Posts the one send that waits, if it is of messages that lie in its slot and may go over the queue at
    /// once: what [`post`](Self::post) does, for what goes most often. Returns whether the device took it;
    /// `None` where nothing was done.
    #[inline(always)]
    pub(crate) fn post_only(
        &mut self,
        (outbox, pool): (&mut Outbox, &Pool),
        most: usize,
        now: Time,
        stats: &mut RcStats,
    ) -> Option<bool> {
        let may_go = self.state == State::Up && self.ring.is_none() && self.sends < self.known.granted;
        if !may_go || self.under_way() >= most.min(DEPTH) {
            return None;
        }
        let memory = pool.memory()?;
        let frame = outbox.only()?;
        let head = Head {
            consumed: self.consumed.into(),
            granted: (self.granted as u32).into(),
            count: frame.messages.into(),
            flags: 0.into(),
        };
        pool.write_head(frame, &head);
        let (at, length) = pool.place(frame);
        frame.request = self.posted + 1;
        let ready = self
            .poster
            .send(frame.request, (&**memory, at, length), None, true);
        if self.under_way() == 0 {
            self.done_at = now;
        }
        self.posted_at = now;
        if ready.is_err() || self.poster.post() == 0 {
            return Some(false);
        }
        let messages = u64::from(frame.messages);
        stats.sends += 1;
        stats.coalesced += messages.saturating_sub(1);
        stats.inline += u64::from(length <= self.poster.pair().inline());
        (self.posted, self.reports) = (frame.request, frame.request);
        (self.sends, self.queued.0) = (self.sends + 1, self.queued.0 + 1);
        self.carried += messages;
        self.is_stalled = false;
        self.has_told_taken();
        self.told.1 = self.granted;
        outbox.step();
        Some(true)
    }

    /// Posts the sends that wait, as far as credits and queues go and at most `most`, with one doorbell.
    #[inline]
    pub(crate) fn post(
        &mut self,
        (outbox, pool): (&mut Outbox, &Pool),
        most: usize,
        now: Time,
        stats: &mut RcStats,
    ) -> Posted {
        let Some(memory) = pool.memory().filter(|_| self.state == State::Up) else {
            return Posted::default();
        };
        let (mut prepared, mut ringed, mut is_broken) = (0, 0u64, false);
        let most = most.min(self.room());
        while prepared < most {
            match self.prepare(outbox, (pool, memory), stats) {
                Prepared::Nothing => break,
                Prepared::Broken => {
                    is_broken = true;
                    break;
                }
                Prepared::Send => {}
                // By request: whether it writes to the ring.
                Prepared::Write => ringed |= 1 << prepared,
            }
            prepared += 1;
        }
        let stalls = outbox.waits() && self.credits() == 0;
        stats.stalls += u64::from(stalls && !self.is_stalled);
        self.is_stalled = stalls;
        if prepared == 0 {
            return Posted {
                requests: 0,
                is_broken,
            };
        }
        self.poster.signal_last();
        self.reports = self.posted;
        let taken = self.announce(prepared, now);
        if taken < prepared {
            outbox.step_back(prepared - taken);
            self.step_back(prepared - taken, ringed.checked_shr(taken as u32).unwrap_or(0));
            is_broken = true;
        }
        stats.sends += taken as u64;
        Posted {
            requests: taken,
            is_broken,
        }
    }

    /// Prepares the request of the next send, unless it has to wait.
    #[inline(always)]
    fn prepare(
        &mut self,
        outbox: &mut Outbox,
        (pool, memory): (&Pool, &Arc<Registered>),
        stats: &mut RcStats,
    ) -> Prepared {
        let has_more = outbox.has_two();
        let Some((frame, body)) = outbox.next() else {
            return Prepared::Nothing;
        };
        let last = self.carried + u64::from(frame.messages);
        let slot = match &mut self.ring {
            Some(ring) => ring.next(frame, last, self.known.consumed),
            None => None,
        };
        if slot.is_none() && self.credits() == 0 {
            return Prepared::Nothing;
        }
        let (number, reports) = self.number();
        frame.request = number;
        self.sends += u64::from(slot.is_none());
        let wants_more = has_more && self.sends >= self.known.granted;
        let flags = frame.flags | if wants_more { WANTS_MORE } else { 0 };
        let written = match &self.ring {
            Some(ring) if slot.is_none() => ring_flags(ring.written()),
            _ => 0,
        };
        let head = Head {
            consumed: self.consumed.into(),
            granted: (self.granted as u32).into(),
            count: frame.messages.into(),
            flags: (flags | written).into(),
        };
        pool.write_head(frame, &head);
        let (length, prepared) = match slot {
            Some(slot) => {
                let (at, length) = pool.write_tail(frame, self.queued.0 as u32, slot.lap);
                let own = (&**memory, at, length);
                (length, self.poster.write(number, own, slot.at, reports))
            }
            None => {
                let (at, length) = pool.place(frame);
                let own = (&**memory, at, length);
                (length, self.poster.send(number, own, body, reports))
            }
        };
        if prepared.is_err() {
            self.posted -= 1;
            return Prepared::Broken;
        }
        let messages = u64::from(frame.messages);
        stats.asked += u64::from(wants_more);
        stats.coalesced += messages.saturating_sub(1);
        stats.inline += u64::from(body.is_none() && length <= self.poster.pair().inline());
        outbox.step();
        self.carried = last;
        self.has_told_taken();
        self.told.1 = self.granted;
        if slot.is_some() {
            stats.ring += messages;
            return Prepared::Write;
        }
        self.queued.0 += 1;
        Prepared::Send
    }

    /// The last `lost` requests were prepared and not taken; `ringed` has a bit for each that writes to the
    /// ring. The connection ends then.
    #[cold]
    fn step_back(&mut self, lost: usize, ringed: u64) {
        let lost_ring = u64::from(ringed.count_ones());
        let lost = lost as u64 - lost_ring;
        (self.sends, self.queued.0) = (self.sends - lost, self.queued.0 - lost);
        if let Some(ring) = &mut self.ring {
            ring.step_back(lost_ring);
        }
    }

    /// Rings the doorbell for `prepared` requests; returns how many were taken.
    #[inline]
    fn announce(&mut self, prepared: usize, now: Time) -> usize {
        if self.posted - self.done == prepared as u64 {
            self.done_at = now;
        }
        self.posted_at = now;
        let taken = self.poster.post();
        if taken < prepared {
            self.posted -= (prepared - taken) as u64;
            self.reports = self.reports.min(self.posted);
        }
        taken
    }

    /// Sends a head alone, and then the MTU's bytes from `at` on, which begin with a head that marks a proof.
    pub(crate) fn prove(&mut self, at: usize, mtu: usize, now: Time) -> Posted {
        let mut result = Posted::default();
        if self.state != State::Receiving || self.proofs.requests != [0; 2] {
            return result;
        }
        let mut is_ready = true;
        for (place, length) in [HEAD, mtu].into_iter().enumerate() {
            let (number, _) = self.number();
            self.reports = number;
            self.proofs.requests[place] = number;
            self.sends += 1;
            self.queued.0 += 1;
            is_ready &= self
                .poster
                .send(number, (&*self.lines, at, length), None, true)
                .is_ok();
        }
        result.requests = self.announce(2, now);
        result.is_broken = !is_ready || result.requests < 2;
        result
    }

    /// The next size that has passed and was not reported.
    pub(crate) fn passed(&mut self) -> Option<Size> {
        let next = *self.proofs.requests.get(self.proofs.passed)?;
        if next == 0 || next > self.done {
            return None;
        }
        self.proofs.passed += 1;
        Some(if self.proofs.passed == 1 {
            Size::Small
        } else {
            Size::Full
        })
    }

    /// Whether both sizes have passed from here: only then does the peer send messages.
    pub(crate) fn is_proved(&self) -> bool {
        self.proofs.passed == self.proofs.requests.len()
    }

    /// Writes our counters to the peer, which takes no credit.
    /// One that `reports` frees its place, and those before it, in the queue of completions.
    pub(crate) fn tell(&mut self, now: Time, reports: bool) -> Posted {
        let mut result = Posted::default();
        if self.state != State::Up || self.told == self.counters() || self.room() == 0 {
            return result;
        }
        let at = self.line + OWN;
        let lines = self.lines.memory();
        lines.write(at, &self.consumed.to_le_bytes());
        lines.write(at + 8, &self.granted.to_le_bytes());
        lines.write(at + 16, &self.recalls.to_le_bytes());
        let (number, due) = self.number();
        if reports {
            self.reports = number;
        }
        let own = (&*self.lines, at, COUNTERS);
        let is_ready = self
            .poster
            .write(number, own, self.theirs, reports || due)
            .is_ok();
        result.requests = self.announce(1, now);
        result.is_broken = !is_ready || result.requests == 0;
        self.told = self.counters();
        self.ring_untold = 0;
        result
    }

    /// A head takes along what was taken.
    #[inline]
    fn has_told_taken(&mut self) {
        (self.told.0, self.ring_untold) = (self.consumed, 0);
    }

    fn counters(&self) -> (u64, u64, u64) {
        (self.consumed, self.granted, self.recalls)
    }

    /// Gives idle credits back where the peer has requested them: one is used for that, and a few stay.
    pub(crate) fn return_credits(&mut self, now: Time) -> Posted {
        let mut result = Posted::default();
        let (answered, request) = self.answered;
        let is_asked = self.known.recalls > answered && request <= self.done;
        if self.state != State::Up || !is_asked || self.room() == 0 {
            return result;
        }
        self.answered.0 = self.known.recalls;
        let idle = self.credits().saturating_sub(FIRST_CREDITS as u64);
        // A peer grants fewer than its queue holds; what is more goes back at the next request.
        let count = idle.min(u16::MAX.into()) as u16;
        if count == 0 {
            return result;
        }
        let head = Head {
            consumed: self.consumed.into(),
            granted: (self.granted as u32).into(),
            count: count.into(),
            flags: RETURNS.into(),
        };
        let at = self.line + BACK;
        self.lines
            .memory()
            .write(at, zerocopy::IntoBytes::as_bytes(&head));
        let (number, _) = self.number();
        self.reports = number;
        let is_ready = self
            .poster
            .send(number, (&*self.lines, at, HEAD), None, true)
            .is_ok();
        result.requests = self.announce(1, now);
        result.is_broken = !is_ready || result.requests == 0;
        if !result.is_broken {
            self.sends += 1 + u64::from(count);
            self.queued.0 += 1;
            self.answered.1 = number;
            self.has_told_taken();
            self.told.1 = self.granted;
        }
        result
    }

    /// Whether credits can be requested back: nothing has arrived since the last look, there are many, and
    /// they were not requested since something arrived.
    pub(crate) fn has_idle_credits(&mut self) -> bool {
        let is_idle = std::mem::replace(&mut self.seen, self.received) == self.received;
        is_idle && self.promised() > FIRST_CREDITS && self.recalled != Some(self.received)
    }

    /// Requests idle credits, when the counters are written next.
    pub(crate) fn ask_back(&mut self) {
        self.recalled = Some(self.received);
        self.recalls += 1;
        self.target = FIRST_CREDITS;
    }

    /// Writes nothing, to find out whether the peer is there; also what ends behind everything else.
    pub(crate) fn probe(&mut self, now: Time) -> Posted {
        let mut result = Posted::default();
        if self.room() == 0 && !matches!(self.state, State::Ending(..)) {
            return result;
        }
        let (number, _) = self.number();
        self.reports = number;
        let own = (&*self.lines, self.line, 0);
        let is_ready = self.poster.write(number, own, (0, 0), true).is_ok();
        result.requests = self.announce(1, now);
        result.is_broken = !is_ready || result.requests == 0;
        result
    }

    /// A request has ended, and with it those before it; returns how many, none where it names no request
    /// that is under way.
    #[inline]
    pub(crate) fn ended(&mut self, id: u64, now: Time) -> usize {
        if id <= self.done || id > self.posted {
            return 0;
        }
        let count = (id - self.done) as usize;
        self.poster.ended(self.done + 1..=id);
        (self.done, self.done_at) = (id, now);
        count
    }

    /// For how long, at the least, nothing has ended of the requests under way; `None` where none of them
    /// reports. It counts from the look that saw them first, as the time of their posting may be old; while
    /// this process stood still, it does not count.
    pub(crate) fn age(&mut self, now: Time) -> Option<Duration> {
        if self.reports <= self.done {
            self.owes = None;
            return None;
        }
        let owes = match self.owes {
            Some(owes) if owes.done == self.done => Owes {
                age: owes.age + now.since(owes.looked).min(LONGEST_STEP),
                looked: now,
                ..owes
            },
            _ => Owes {
                done: self.done,
                age: Duration::ZERO,
                looked: now,
            },
        };
        self.owes = Some(owes);
        Some(owes.age)
    }

    /// What is known of the connection, but for what waits to be posted.
    pub(crate) fn report(&self, now: Time) -> RailReport {
        let is_owed = self.reports > self.done;
        RailReport {
            heard_ago: self.heard_at.map(|at| now.since(at)),
            acked_ago: (self.done > 0).then(|| now.since(self.done_at)),
            waiting: self.owes.filter(|_| is_owed).map(|owes| owes.age),
            oldest: is_owed.then_some((self.done + 1) as u32),
            ..RailReport::default()
        }
    }

    /// Whether nothing was posted for this long, and nothing is awaited.
    pub(crate) fn is_idle_since(&self, now: Time, keep_alive: Duration) -> bool {
        self.state == State::Up && self.reports <= self.done && now >= self.posted_at + keep_alive
    }

    /// Moves the queue pair to ERR: everything that is under way ends, and a mark behind it.
    pub(crate) fn fail(&mut self, reason: DownReason, now: Time) -> Posted {
        self.state = State::Ending(reason, now);
        self.sever();
        self.probe(now)
    }

    /// Whether it may end in the middle of a send of several packets, which some devices do not report. It is
    /// not counted after a farewell, which a peer sends once its sends have ended, unless it has no time for
    /// that; nor before our proofs have passed, since until then the peer sends its own alone, of one packet
    /// each.
    pub(crate) fn may_hold_slot(&self) -> bool {
        let is_in_order = match self.state {
            State::Made | State::Ending(DownReason::Closed, _) => true,
            State::Receiving => !self.is_proved(),
            _ => false,
        };
        !is_in_order && self.promised() > 0
    }

    /// Moves the queue pair to ERR, which is not reported to the other end.
    pub(crate) fn sever(&mut self) {
        let mut attributes = QpAttr::zeroed();
        attributes.qp_state = numbers::ERR;
        // A refusal, of a device that is gone, changes nothing: then time ends the connection.
        let _ = self.poster.pair().modify(attributes, numbers::HAS_STATE);
    }

    /// Reads the counters that the peer has written; whether there is news.
    #[inline]
    pub(crate) fn read_page(&mut self, accepted: u64) -> Result<bool, Impossible> {
        let page = self.page.memory().as_shared();
        let word = |at: usize| u64::from_le_bytes(page.read(at).unwrap_or_default());
        let now = Counters {
            consumed: word(0).into(),
            granted: word(8).into(),
            recalls: word(16).into(),
        };
        if now == Counters::default() {
            return Ok(false);
        }
        self.known.page(&mut self.from_page, now, accepted, self.sends)
    }

    /// A send has arrived: it takes a credit, and its head may bring news.
    #[inline(always)]
    pub(crate) fn arrived(
        &mut self,
        head: &Head,
        accepted: u64,
        slots: &mut Slots,
        now: Time,
    ) -> Result<bool, Impossible> {
        self.heard_at = Some(now);
        if self.received == self.granted {
            return Err(Impossible);
        }
        self.received += 1;
        self.queued.1 += 1;
        slots.redeem(1);
        if head.is_special() && !self.arrived_specially(head, slots)? {
            return Ok(false);
        }
        self.known.head(&mut self.from_heads, head, accepted, self.sends)
    }

    /// A send that proves the connection, gives credits back or requests more has arrived; whether its
    /// numbers mean something.
    #[cold]
    fn arrived_specially(&mut self, head: &Head, slots: &mut Slots) -> Result<bool, Impossible> {
        if head.flags.get() == PROOF {
            return Ok(false);
        }
        if head.flags.get() == RETURNS {
            let count = usize::from(head.count.get());
            if count > self.promised() {
                return Err(Impossible);
            }
            self.received += count as u64;
            slots.redeem(count);
        }
        if head.flags.get() & WANTS_MORE != 0 {
            self.target = (self.target * 2).min(MOST_CREDITS);
        }
        Ok(true)
    }

    /// A send has arrived in the ring: it takes no credit, and its head may bring news.
    #[inline]
    pub(crate) fn arrived_in_ring(
        &mut self,
        head: &Head,
        accepted: u64,
        now: Time,
    ) -> Result<bool, Impossible> {
        self.heard_at = Some(now);
        self.ring_untold += 1;
        if head.flags.get() & WANTS_MORE != 0 {
            self.target = (self.target * 2).min(MOST_CREDITS);
        }
        self.known.head(&mut self.from_ring, head, accepted, self.sends)
    }

    /// Sends that have arrived over the queue.
    #[inline]
    pub(crate) fn queued_here(&self) -> u64 {
        self.queued.1
    }

    /// Whether the library reports that what the peer writes is there in order.
    pub(crate) fn is_written_in_order(&self) -> bool {
        self.poster.pair().is_written_in_order()
    }

    /// Credits that the peer was granted in all.
    #[cfg(test)]
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// Adds to a word of our counter page, as if the peer had.
    #[cfg(test)]
    pub(crate) fn lie_in_page(&self, at: usize, more: i64) {
        let memory = self.page.memory();
        let now = u64::from_le_bytes(memory.as_shared().read(at).unwrap());
        memory.write(at, &now.wrapping_add_signed(more).to_le_bytes());
    }

    /// Sends that the peer may still make.
    #[inline]
    pub(crate) fn promised(&self) -> usize {
        (self.granted - self.received) as usize
    }

    /// Whether the peer has to wait soon: it has few credits, or slots of its ring left.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.lacks_credits() || self.ring_untold >= SLOTS / 2
    }

    #[inline]
    fn lacks_credits(&self) -> bool {
        self.promised() <= (self.target / 4).min(LOW_MOST)
    }

    /// The peer uses its credits up: it is granted more at a time, where there is plenty.
    #[inline]
    pub(crate) fn widen(&mut self, slots: &Slots) {
        if self.lacks_credits() && slots.unpromised() * 2 > slots.posted {
            self.target = (self.target * 4).min(MOST_CREDITS);
        }
    }

    /// Grants what there is, up to the target; returns how many credits. What a new connection begins with is
    /// left for that.
    pub(crate) fn grant(&mut self, slots: &mut Slots) -> u64 {
        // What waits for the ring keeps its slot.
        let (has, free) = (self.promised() + self.early, slots.unpromised());
        let spared = free.saturating_sub(FIRST_CREDITS);
        let most = spared.max(free.min(FIRST_CREDITS.saturating_sub(has)));
        let more = self.target.saturating_sub(has).min(most);
        self.granted += more as u64;
        slots.promise(more);
        more as u64
    }

    /// Whether the peer knows everything.
    pub(crate) fn has_told(&self) -> bool {
        self.told == self.counters() && self.promised() > 0
    }
}
