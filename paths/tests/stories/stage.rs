//! Two ends with rails between them that do what a story requires. Each end is a layer over paths as small as
//! can be: numbered operations, executed once and in order by the other end.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::event::{EventKind, Life};
use doorbell_fabric::message::MsgId;
use doorbell_fabric::time::Time;
use doorbell_paths::{
    Ahead, Arrival, Count, Layer, PathState, PeerPaths, Place, Policy, Reason, Seq, Timers, Word,
    act_on_words, each, extend_waits, given_back, on_event, on_word, send_news, tick,
};

/// As which each end knows the other.
const PEER: u32 = 0;

/// What travels over a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Word(Word),
    /// An operation, by its number: what it does is the same number.
    Operation(Seq),
}

/// One end of one rail.
#[derive(Debug, Default)]
pub(crate) struct Rail {
    /// What was accepted and not taken by the other side yet, with the rail's numbers.
    pub(crate) under_way: VecDeque<(MsgId, Frame)>,
    accepted: u64,
    /// Nothing gets through; what got through is not reported to the sender; there is no room.
    pub(crate) silent: bool,
    pub(crate) deaf: bool,
    pub(crate) full: bool,
    /// It gives nothing back.
    pub(crate) forgets: bool,
    pub(crate) within_host: bool,
    /// Calls of this crate.
    pub(crate) revived: u32,
    pub(crate) abandoned: u32,
    pub(crate) proved: u32,
    /// What was accepted, ever.
    pub(crate) frames: Vec<Frame>,
}

/// One of the two processes.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) paths: PeerPaths,
    pub(crate) timers: Timers,
    pub(crate) rails: Vec<Rail>,
    pub(crate) lost: Option<Reason>,
    pub(crate) counts: Vec<Count>,
    /// Whether latencies are measured while there is traffic.
    pub(crate) measures: bool,
    current: usize,
    next: Seq,
    waiting: VecDeque<Seq>,
    expected: Seq,
    ahead: Ahead<Seq>,
    pub(crate) executed: Vec<u32>,
    pub(crate) duplicates: u32,
    pub(crate) bad: u32,
    pub(crate) last_words: u32,
}

impl Layer for End {
    fn paths(&mut self, _peer: u32) -> Option<(&mut PeerPaths, &mut Timers)> {
        self.lost.is_none().then_some((&mut self.paths, &mut self.timers))
    }

    fn timers(&mut self) -> &mut Timers {
        &mut self.timers
    }

    fn send_word(&mut self, _peer: u32, at: usize, word: Word) -> bool {
        self.push(at, Frame::Word(word))
    }

    fn revive(&mut self, _peer: u32, at: usize) {
        self.rails[at].revived += 1;
    }

    fn abandon(&mut self, _peer: u32, at: usize) {
        self.rails[at].abandoned += 1;
    }

    fn proved_alive(&mut self, _peer: u32, at: usize) {
        self.rails[at].proved += 1;
    }

    fn is_within_host(&self, _peer: u32, at: usize) -> bool {
        self.rails[at].within_host
    }

    fn loses(&mut self, _peer: u32, at: usize) -> bool {
        self.rails[at].forgets && !self.rails[at].under_way.is_empty()
    }

    fn take_back(&mut self, peer: u32, at: usize) {
        for (_, frame) in std::mem::take(&mut self.rails[at].under_way) {
            match frame {
                Frame::Word(word) => given_back(self, peer, word),
                Frame::Operation(seq) => self.waiting.push_back(seq),
            }
        }
    }

    fn moved(&mut self, _peer: u32, at: usize, state: PathState) {
        assert_eq!(self.paths.state(at), state);
    }

    fn choose(&mut self, _peer: u32) {
        let up = self.paths.in_state(|state| state == PathState::Up);
        let used = if up == 0 { self.paths.used() } else { up };
        self.current = each(used).next().unwrap_or(self.current);
    }

    fn wants_room(&mut self, _peer: u32) {}

    fn lose(&mut self, _peer: u32, reason: Reason) {
        assert_eq!(self.lost.replace(reason), None, "lost twice");
    }

    fn count(&mut self, what: Count) {
        self.counts.push(what);
    }

    fn traffic(&self, _peer: u32) -> Option<u64> {
        let sent = u64::from(self.next.0) + self.executed.len() as u64;
        self.measures.then_some(sent)
    }

    fn last_words(&mut self) {
        self.last_words += 1;
    }
}

impl End {
    fn new(rails: usize, policy: Policy) -> Self {
        let mut end = Self {
            paths: PeerPaths::default(),
            timers: Timers::new(policy),
            rails: (0..rails).map(|_| Rail::default()).collect(),
            lost: None,
            counts: Vec::new(),
            measures: false,
            current: 0,
            next: Seq(u32::MAX - 3),
            waiting: VecDeque::new(),
            expected: Seq(u32::MAX - 3),
            ahead: Ahead::default(),
            executed: Vec::new(),
            duplicates: 0,
            bad: 0,
            last_words: 0,
        };
        end.paths.grow(rails);
        end.timers.watch(PEER, &mut end.paths);
        end
    }

    fn push(&mut self, at: usize, frame: Frame) -> bool {
        let rail = &mut self.rails[at];
        if !rail.full {
            rail.accepted += 1;
            rail.under_way.push_back((MsgId(rail.accepted), frame));
            rail.frames.push(frame);
        }
        !rail.full
    }

    /// Sends news of paths and what waits, as far as there is room.
    fn drain(&mut self) {
        if self.lost.is_some() || !send_news(self, PEER) {
            return;
        }
        while let Some(seq) = self.waiting.pop_front() {
            let used = self.paths.used() & 1 << self.current != 0;
            if !(used && self.push(self.current, Frame::Operation(seq))) {
                return self.waiting.push_front(seq);
            }
        }
    }

    /// Starts the next operation.
    fn start(&mut self) {
        self.waiting.push_back(self.next);
        self.next = self.next.next();
        self.drain();
    }

    fn arrives(&mut self, at: usize, frame: Frame) {
        let seq = match frame {
            Frame::Word(word) => {
                if self.lost.is_none() {
                    let arrival = on_word(&mut self.timers, &mut self.paths, PEER, Some(at), word);
                    self.bad += u32::from(arrival == Arrival::Bad);
                }
                return;
            }
            Frame::Operation(seq) => seq,
        };
        match seq.place(self.expected) {
            Place::Behind => self.duplicates += 1,
            Place::Ahead(distance) if self.ahead.holds(distance) => self.duplicates += 1,
            Place::Ahead(distance) => self.ahead.hold(distance, seq),
            Place::Expected => {
                let mut next = Some(seq);
                while let Some(seq) = next {
                    self.executed.push(seq.0);
                    self.expected = self.expected.next();
                    next = self.ahead.advance();
                }
            }
        }
    }

    pub(crate) fn state(&self, at: usize) -> PathState {
        self.paths.state(at)
    }

    pub(crate) fn counted(&self, what: Count) -> usize {
        self.counts.iter().filter(|count| **count == what).count()
    }
}

/// Both ends, and the time.
pub(crate) struct Stage {
    pub(crate) ends: [End; 2],
    pub(crate) now: Time,
    /// The other end does not look.
    pub(crate) asleep: [bool; 2],
}

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const POLICY: Policy = Policy {
    patience: Duration::from_secs(5),
    silence: Some(Duration::from_secs(1)),
    waits_for_only_path: false,
};

impl Stage {
    pub(crate) fn new(rails: usize) -> Self {
        Self::with(rails, POLICY)
    }

    pub(crate) fn with(rails: usize, policy: Policy) -> Self {
        let mut stage = Self::before(rails, policy);
        stage.pass(30);
        stage
    }

    /// Rails over which nothing was sent yet, and one of them is dead.
    pub(crate) fn unproved(rails: usize, dead: usize) -> Self {
        let mut stage = Self::before(
            rails,
            Policy {
                silence: None,
                ..POLICY
            },
        );
        for end in &mut stage.ends {
            end.rails[dead].silent = true;
        }
        stage
    }

    fn before(rails: usize, policy: Policy) -> Self {
        Self {
            ends: [(); 2].map(|()| End::new(rails, policy)),
            now: Time::ZERO + Duration::from_secs(1),
            asleep: [false; 2],
        }
    }

    /// Both ends look, and what is under way arrives; then `ms` milliseconds pass.
    pub(crate) fn pass(&mut self, ms: u32) {
        let end = self.now + MS * ms;
        loop {
            for _ in 0..3 {
                for side in 0..2 {
                    if !self.asleep[side] {
                        self.look(side, self.now);
                    }
                    self.deliver(side);
                }
            }
            if self.now >= end {
                return;
            }
            self.now = end.min(self.now + MS * 5);
        }
    }

    fn look(&mut self, side: usize, now: Time) {
        let before = self.now;
        let layer = &mut self.ends[side];
        extend_waits(layer, before, now);
        if layer.timers.has_words() {
            act_on_words(layer, now);
        }
        if layer.timers.is_due(now) {
            tick(layer, now);
        }
        layer.drain();
    }

    fn deliver(&mut self, side: usize) {
        for at in 0..self.ends[side].rails.len() {
            let rail = &mut self.ends[side].rails[at];
            if rail.silent {
                continue;
            }
            let arrived: Vec<_> = if rail.deaf {
                rail.under_way.iter().copied().collect()
            } else {
                rail.under_way.drain(..).collect()
            };
            for (_, frame) in arrived {
                self.ends[1 - side].arrives(at, frame);
            }
        }
    }

    /// Both processes do nothing for `time`.
    pub(crate) fn away(&mut self, time: Duration) {
        let now = self.now + time;
        for side in 0..2 {
            self.look(side, now);
        }
        self.now = now;
    }

    pub(crate) fn start(&mut self, side: usize, count: u32) {
        (0..count).for_each(|_| self.ends[side].start());
    }

    /// A rail of one end reports an event.
    pub(crate) fn event(&mut self, side: usize, at: usize, kind: EventKind, life: u32) {
        on_event(&mut self.ends[side], self.now, PEER, at, kind, Life(life));
    }

    /// The link of a rail goes, at both ends.
    pub(crate) fn unplug(&mut self, at: usize) {
        for side in 0..2 {
            self.ends[side].rails[at].silent = true;
            self.event(side, at, EventKind::LinkDown, 0);
        }
    }

    /// Both directions work again, in a new connection.
    pub(crate) fn plug(&mut self, at: usize, life: u32) {
        for side in 0..2 {
            let rail = &mut self.ends[side].rails[at];
            (rail.silent, rail.deaf) = (false, false);
            rail.under_way.clear();
            self.event(side, at, EventKind::LinkUp, 0);
            self.event(side, at, EventKind::PeerUp, life);
        }
    }

    pub(crate) fn states(&self, at: usize) -> [PathState; 2] {
        [0, 1].map(|side| self.ends[side].state(at))
    }

    /// Every operation that was started by one end was executed by the other one, once and in order.
    pub(crate) fn all_executed(&mut self) {
        self.pass(10);
        for side in 0..2 {
            let (from, to) = (&self.ends[side], &self.ends[1 - side]);
            let first = u32::MAX - 3;
            let started = from.next.0.wrapping_sub(first);
            let expected: Vec<u32> = (0..started).map(|at| first.wrapping_add(at)).collect();
            assert_eq!(to.executed, expected, "from side {side}");
        }
    }

    /// The words of this kind that were sent over a rail.
    pub(crate) fn words(&self, side: usize, at: usize, is_one: impl Fn(&Word) -> bool) -> usize {
        let frames = self.ends[side].rails[at].frames.iter();
        frames
            .filter(|frame| matches!(frame, Frame::Word(word) if is_one(word)))
            .count()
    }
}

pub(crate) fn is_broken(word: &Word) -> bool {
    matches!(word, Word::Broken { .. })
}

pub(crate) fn is_probe(word: &Word) -> bool {
    matches!(word, Word::Probe { .. })
}

pub(crate) fn is_echo(word: &Word) -> bool {
    matches!(word, Word::Echo { .. })
}
