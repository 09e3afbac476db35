//! A PML with open windows, and a peer that operates on them as it likes, and answers our own operations so.
//! No byte is stored where no window allows it, what an operation of ours brings stays in its memory, and
//! what the peer can make us hold has an end.

use std::num::NonZeroU32;

use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::memory::{AddressRange, Region};
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;
use doorbell_pml::{
    AtomicArgs, GetArgs, Payload, Pml, PutArgs, RailId, Rank, RemotePiece, RemotePieces, RequestId, Target,
    WindowAccess, WindowArgs, WindowMemory,
};

use crate::fed::feed::FeedRail;
use crate::fed::{self, HARD};
use crate::script::Script;

/// Most steps of a script.
const STEPS: usize = 400;
/// Bytes around each piece of memory that nothing may change.
const EDGE: usize = 256;
/// Bytes of a window, and of the memory that an operation of ours brings bytes to.
const ROOM: usize = 4096;
/// Operations of ours that are open at once, at most.
const OPEN_MOST: usize = 8;
/// The window that peers may only read.
const READ_ONLY: u64 = 2;
/// The window with pages that are not mapped around its own.
const GUARDED: u64 = 4;
/// The windows: each allows one thing less than the first.
const WINDOWS: [(u64, WindowAccess); 5] = [
    (1, WindowAccess::ALL),
    (READ_ONLY, WindowAccess::READ.and(WindowAccess::FETCH)),
    (3, WindowAccess::WRITE),
    (GUARDED, WindowAccess::ALL),
    (5, WindowAccess::ATOMIC.and(WindowAccess::FETCH)),
];

/// Memory with edges that nothing may change.
struct Edged(Region);

impl Edged {
    fn new() -> Self {
        let region = Region::new(ROOM + 2 * EDGE).expect("memory");
        region.write(0, &[0x55; ROOM + 2 * EDGE]);
        Self(region)
    }

    fn slice(&self, at: usize, length: usize) -> doorbell_fabric::memory::RegionSlice {
        self.0.slice(EDGE + at, length).expect("inside")
    }

    /// Whether only these bytes of the memory were changed.
    fn judge(&self, changed: std::ops::Range<usize>) {
        let mut bytes = [0; ROOM + 2 * EDGE];
        self.0.read(0, &mut bytes);
        let outside = bytes[..EDGE + changed.start]
            .iter()
            .chain(&bytes[EDGE + changed.end..]);
        assert!(
            outside.copied().all(|byte| byte == 0x55),
            "a byte outside was written"
        );
    }
}

/// An operation of ours, and the memory that it brings bytes to.
struct Operation {
    id: RequestId,
    room: Edged,
    length: usize,
}

struct Victim {
    pml: Pml<FeedRail>,
    windows: Vec<Edged>,
    guarded: AddressRange,
    operations: Vec<Operation>,
}

impl Victim {
    fn new(settings: u8) -> Self {
        let mut pml = fed::pml(settings);
        pml.record_accesses();
        let mut victim = Self {
            pml,
            windows: WINDOWS.iter().map(|_| Edged::new()).collect(),
            guarded: AddressRange::guarded(ROOM, ROOM).expect("memory"),
            operations: Vec::new(),
        };
        (0..WINDOWS.len()).for_each(|at| victim.open(at));
        victim
    }

    /// Opens a window, unless it is open, or is being closed.
    fn open(&mut self, at: usize) {
        let (key, access) = WINDOWS[at];
        let memory = match key {
            GUARDED => WindowMemory::Range(self.guarded.clone()),
            _ => WindowMemory::Region(self.windows[at].slice(0, ROOM)),
        };
        let window = WindowArgs {
            key,
            base: if at & 1 == 0 { 0 } else { 1 << 32 },
            memory,
            access,
        };
        if self.pml.open_window(window).is_ok() {
            assert!(self.pml.mark_window(key, NonZeroU32::new(key as u32)));
        }
    }

    /// Up to four pieces of windows, right ones mostly.
    fn pieces(script: &mut Script<'_>) -> Vec<RemotePiece> {
        let count = if script.byte() < 192 { 1 } else { script.below(5) };
        let piece = |script: &mut Script<'_>| {
            let choice = script.byte();
            let key = u64::from(choice % 7);
            let base = if key & 1 == 1 { 0 } else { 1 << 32 };
            RemotePiece {
                key,
                address: match choice >> 4 {
                    0..13 => base + script.below(ROOM) as u64,
                    13 => u64::MAX - u64::from(script.byte()),
                    _ => script.any(),
                },
                length: match choice >> 4 {
                    0..8 => 8,
                    8..14 => script.below(512) as u64,
                    14 => script.below(3 * ROOM) as u64,
                    _ => script.any(),
                },
            }
        };
        (0..count).map(|_| piece(script)).collect()
    }

    /// The lead of an operation of the peer, and as many bytes as it needs, or nearly.
    fn lead(script: &mut Script<'_>) -> Vec<u8> {
        let (verb, choice) = (1 + script.byte() % 5, script.byte());
        let pieces = Self::pieces(script);
        let mut lead = vec![verb, choice & 3, 0, 0, pieces.len() as u8, 0, 0, 0];
        if verb > 2 {
            (lead[2], lead[3]) = (script.byte() % 20, script.byte() % 17);
        }
        for piece in &pieces {
            for number in [piece.key, piece.address, piece.length] {
                lead.extend_from_slice(&number.to_le_bytes());
            }
        }
        if choice & 2 != 0 {
            lead.extend_from_slice(&script.long().to_le_bytes());
        }
        let asked = pieces
            .iter()
            .fold(0u64, |sum, piece| sum.saturating_add(piece.length));
        let operands = match choice >> 4 {
            0..6 => asked,
            6..10 => 2 * asked.min(1 << 20),
            10..12 => 0,
            _ => script.below(2048) as u64,
        };
        let length = lead.len() + operands.min(12 << 10) as usize;
        lead.extend_from_slice(script.take(256));
        lead.resize(length.max(8), 7);
        lead
    }

    /// An operation on our windows, whole or announced.
    fn operate(&mut self, script: &mut Script<'_>) {
        let choice = script.byte();
        let lead = Self::lead(script);
        if choice < 176 {
            return self.frame(script, 1, 0x80, &[], &lead);
        }
        let kind = if choice & 1 == 0 { 2 } else { 3 };
        let flags = 0x80 | [0, 1, 0x20, 0x10][usize::from(choice >> 1 & 3)];
        let length = script.near(lead.len() as u64);
        let (request, ours) = (script.any(), self.known(script));
        let words = [length, request, ours, u64::from(script.byte() & 1)];
        self.frame(script, kind, flags, &words, &lead[..lead.len().min(136)]);
    }

    /// An answer, or another word about one of our requests.
    fn answer(&mut self, script: &mut Script<'_>) {
        let choice = script.byte();
        let id = self.known(script);
        match choice % 4 {
            0 => {
                let length = script.below(10) as u16;
                let head = 19 | u64::from(script.byte() % 9) << 8 | u64::from(length) << 16;
                let words = [head, id, script.long()];
                self.push(script, words.iter().flat_map(|word| word.to_le_bytes()).collect());
            }
            1 => {
                let length = script.below(ROOM);
                let body = vec![script.byte(); length];
                self.frame_of(script, (1, 0x40), id, &[], &body);
            }
            2 => {
                let words = [script.below(2 * ROOM) as u64, script.any(), script.any(), 0];
                let body = script.take(64).to_vec();
                self.frame_of(script, (2 + (choice >> 4 & 1), 0x40), id, &words, &body);
            }
            _ => {
                let kind = [4, 5, 6, 8, 9, 10, 11, 12, 13][usize::from(choice >> 2) % 9];
                let words: [u64; 5] = std::array::from_fn(|_| match script.byte() {
                    0..128 => self.known(script),
                    _ => script.any(),
                });
                let body = script.take(64).to_vec();
                self.frame(script, kind, choice & 0x41, &words, &body);
            }
        }
    }

    /// A frame in the peer's sequence, or near it.
    fn frame(&mut self, script: &mut Script<'_>, kind: u8, flags: u8, words: &[u64], body: &[u8]) {
        let request = script.any();
        self.frame_of(script, (kind, flags), request, words, body);
    }

    fn frame_of(
        &mut self,
        script: &mut Script<'_>,
        (kind, flags): (u8, u8),
        tag: u64,
        words: &[u64],
        body: &[u8],
    ) {
        let expected = self.pml.counters().arrived;
        let seq = if script.byte() < 224 {
            expected
        } else {
            script.near(expected)
        };
        let mut frame = vec![kind, flags, 0, 0];
        frame.extend_from_slice(&(seq as u32).to_le_bytes());
        for word in [tag].iter().chain(words) {
            frame.extend_from_slice(&word.to_le_bytes());
        }
        frame.extend_from_slice(body);
        self.push(script, frame);
    }

    fn push(&mut self, script: &mut Script<'_>, mut frame: Vec<u8>) {
        match script.byte() {
            0..8 => frame.truncate(script.below(frame.len())),
            8..16 => frame.extend_from_slice(script.take(32)),
            _ => {}
        }
        let rail = self.pml.rail_mut(RailId(0)).expect("the rail");
        rail.frames.push_back((PeerIndex(0), frame));
    }

    /// The number of a request that lives, perhaps.
    fn known(&self, script: &mut Script<'_>) -> u64 {
        match self.operations.as_slice() {
            [] => script.any(),
            all => {
                let at = script.below(all.len());
                all[at].id.to_bits()
            }
        }
    }

    /// An operation of ours.
    fn start(&mut self, script: &mut Script<'_>) {
        if self.operations.len() == OPEN_MOST {
            return;
        }
        let choice = script.byte();
        let (to, buffered) = (Rank(1 + u32::from(choice & 3 == 3)), choice & 4 != 0);
        let Some(at) = RemotePieces::new(&Self::pieces(script)) else {
            return;
        };
        let length = at.length().min(ROOM as u64) as usize;
        let room = Edged::new();
        let payload = || Payload::Region(room.slice(0, length));
        let target = || Target::Region(room.slice(0, length));
        let started = match choice >> 4 {
            0..5 => self.pml.put(PutArgs {
                to,
                context: 0,
                at,
                payload: payload(),
                notice: choice & 8 != 0,
                data: (choice & 16 != 0).then_some(9),
                buffered,
                notify: false,
            }),
            5..11 => self.pml.get(GetArgs {
                from: to,
                context: 0,
                at,
                target: target(),
                notify: false,
            }),
            _ => {
                let arithmetic = Arithmetic::ALL[script.below(Arithmetic::ALL.len())];
                let none = || Payload::Region(room.slice(0, 0));
                self.pml.atomic(AtomicArgs {
                    to,
                    context: 0,
                    at,
                    arithmetic,
                    element: Element::ALL[script.below(Element::ALL.len())],
                    operands: if arithmetic == Arithmetic::Read {
                        none()
                    } else {
                        payload()
                    },
                    compare: if arithmetic.has_operand() {
                        payload()
                    } else {
                        none()
                    },
                    fetch: (choice & 8 != 0).then(target),
                    buffered,
                    notify: false,
                })
            }
        };
        if let Ok(id) = started {
            self.operations.push(Operation { id, room, length });
        }
    }

    /// A window is closed, at once or once nothing touches it, or opened again.
    fn turn(&mut self, script: &mut Script<'_>) {
        let at = script.below(WINDOWS.len());
        if script.byte() & 1 == 0 {
            let _ = self.pml.close_window(WINDOWS[at].0);
        } else {
            self.open(at);
        }
    }

    fn pass(&mut self, script: &mut Script<'_>) {
        self.pml.rail_mut(RailId(0)).expect("the rail").full = script.byte() & 7 == 0;
        self.pml.poll();
        self.pml.progress(Time::ZERO);
        let mut operations = std::mem::take(&mut self.operations);
        operations.retain(|operation| {
            let ended = self.pml.test(operation.id).is_some();
            if ended {
                operation.room.judge(0..operation.length);
            }
            !ended
        });
        self.operations = operations;
        while let Some(access) = self.pml.next_access() {
            let mut marks = access.marks.iter().flatten();
            let read_only = marks.any(|mark| u64::from(mark.get()) == READ_ONLY);
            assert!(
                !(access.stores && read_only),
                "{access:?} stores where peers may read"
            );
            assert!(
                access.length <= 4 * (3 * ROOM) as u64,
                "{access:?} is longer than four windows"
            );
        }
        while let Some(notice) = self.pml.next_notice() {
            assert!(
                notice.length <= 4 * (3 * ROOM) as u64,
                "{notice:?} is longer than four windows"
            );
        }
        self.judge();
    }

    fn judge(&self) {
        for (memory, (key, _)) in self.windows.iter().zip(WINDOWS) {
            memory.judge(if matches!(key, READ_ONLY | GUARDED) {
                0..0
            } else {
                0..ROOM
            });
        }
        for operation in &self.operations {
            operation.room.judge(0..operation.length);
        }
        fed::judge_kept(&self.pml);
        let live = self.pml.live_requests();
        let bound = OPEN_MOST + (HARD / 64) as usize;
        assert!(
            live <= bound,
            "{live} requests, of which {} are ours",
            self.operations.len()
        );
    }
}

/// Runs a script.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut victim = Victim::new(script.byte());
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        match script.byte() {
            0..96 => victim.operate(&mut script),
            96..144 => victim.answer(&mut script),
            144..184 => victim.start(&mut script),
            184..192 => victim.turn(&mut script),
            _ => victim.pass(&mut script),
        }
    }
    victim.pass(&mut script);
}
