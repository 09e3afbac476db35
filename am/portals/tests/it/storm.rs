//! Many operations under way at a time, of all processes to all, over two networks that delay, reorder, break
//! and come back: what one initiator sends to one table entry is matched in the order in which it was issued,
//! every operation ends once, and every byte is where it belongs.
//!
//! Each initiator has a table entry of its own at each target, so the model knows how it has to end. Short
//! and long operations take different paths; their events may overtake each other, but not what they were
//! matched with.

use std::time::Duration;

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::{
    AckReq, Count, CtHandle, Entry, EntryOptions, EqGet, EqHandle, Event, EventKind, Get, Kind, List, Md,
    MdHandle, MdOptions, Memory, NiError, Piece, PtOptions, Put, Register, Target,
};
use doorbell_sim::{Change, Faults};
use proptest::prelude::*;

use crate::compare::{Plain, Stream, streams};
use crate::config;
use crate::rig::{ModelRig, RealRig, Rig, Setting, ask};
use crate::steps::fill;

const RANKS: usize = 3;
/// Bytes that puts read, that gets write, and of entries.
const SOURCE: usize = 16 << 10;
const SINK: usize = 200 << 10;
const ENTRIES: usize = 400 << 10;
/// Up to here writes are ordered.
const ORDERED: u64 = 64;

#[derive(Clone, Debug)]
struct Post {
    rank: usize,
    initiator: usize,
    is_overflow: bool,
    takes_puts: bool,
    is_once: bool,
    no_truncate: bool,
    min_free: u64,
    length: usize,
}

#[derive(Clone, Debug)]
struct Call {
    rank: usize,
    to: usize,
    is_put: bool,
    at: u64,
    length: u64,
    ack: AckReq,
}

/// A network breaks for a while: which, after how long (us), for how long.
type Trouble = Option<(usize, u64, u64)>;

#[derive(Clone, Debug)]
struct Batch {
    posts: Vec<Post>,
    calls: Vec<Call>,
    trouble: Trouble,
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..=ORDERED, 2 => 65..2000u64, 2 => 2000..12_000u64]
}

fn post() -> impl Strategy<Value = Post> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let min_free = prop_oneof![Just(0), 1..200u64];
    let sizes = prop_oneof![3 => 0..200usize, 2 => 200..12_000usize];
    (0..RANKS, 0..RANKS, flags, min_free, sizes).prop_map(
        |(rank, initiator, (is_overflow, takes_puts, is_once, no_truncate), min_free, length)| Post {
            rank,
            initiator,
            is_overflow,
            takes_puts,
            is_once,
            no_truncate,
            min_free,
            length,
        },
    )
}

fn call() -> impl Strategy<Value = Call> {
    let ack = prop_oneof![Just(AckReq::None), Just(AckReq::Full), Just(AckReq::Ct)];
    (0..RANKS, 0..RANKS, any::<bool>(), 0..1000u64, length(), ack).prop_map(
        |(rank, to, is_put, at, length, ack)| Call {
            rank,
            to,
            is_put,
            at,
            length,
            ack,
        },
    )
}

fn batch(breaks: bool) -> impl Strategy<Value = Batch> {
    let trouble = if breaks {
        (0..2usize, 0..60u64, 1..5000u64).prop_map(Some).boxed()
    } else {
        Just(None).boxed()
    };
    (
        proptest::collection::vec(post(), 0..8),
        proptest::collection::vec(call(), 1..16),
        trouble,
    )
        .prop_map(|(posts, calls, trouble)| Batch {
            posts,
            calls,
            trouble,
        })
}

struct Hands {
    memory: Region,
    eq: EqHandle,
    ct: CtHandle,
    source: MdHandle,
    sink: MdHandle,
    next_entry: usize,
    next_sink: u64,
}

impl Hands {
    fn new(rig: &mut dyn Rig, rank: usize) -> Self {
        let memory = Region::new(SOURCE + SINK + ENTRIES).expect("memory");
        memory.write(0, &fill(rank, SOURCE + SINK + ENTRIES));
        ask(rig, rank, |ni| {
            let (eq, ct) = (
                ni.eq_alloc(4096).expect("a queue"),
                ni.ct_alloc().expect("a count"),
            );
            for index in 0..RANKS as u32 {
                ni.pt_alloc(PtOptions::NONE, Some(eq), Some(index))
                    .expect("a table entry");
            }
            let mut bind = |at, length| {
                let memory = Memory::One(Landing::Region(memory.slice(at, length).expect("inside")));
                let options = MdOptions::EVENT_CT_ACK | MdOptions::EVENT_CT_REPLY;
                let md = Md {
                    memory,
                    options,
                    eq: Some(eq),
                    ct: Some(ct),
                };
                ni.md_bind(md).expect("a descriptor")
            };
            let (source, sink) = (bind(0, SOURCE), bind(SOURCE, SINK));
            Self {
                memory: memory.clone(),
                eq,
                ct,
                source,
                sink,
                next_entry: SOURCE + SINK,
                next_sink: 0,
            }
        })
    }
}

/// Match bits: the lowest selects what an entry takes, the rest is the operation's number.
const PUT: u64 = 0;
const GET: u64 = 1;

struct Crowd<'a, R> {
    rig: &'a mut R,
    setting: &'a Setting,
    hands: Vec<Hands>,
    number: u64,
}

impl<'a, R: Rig> Crowd<'a, R> {
    fn new(rig: &'a mut R, setting: &'a Setting) -> Self {
        let hands = (0..RANKS).map(|rank| Hands::new(rig, rank)).collect();
        Self {
            rig,
            setting,
            hands,
            number: 0,
        }
    }

    fn post(&mut self, post: &Post) {
        self.number += 1;
        let hands = &mut self.hands[post.rank];
        let slice = hands
            .memory
            .slice(hands.next_entry, post.length)
            .expect("there is room");
        hands.next_entry += post.length;
        let memory = if post.length == 0 {
            Memory::Empty
        } else {
            Memory::One(Landing::Region(slice))
        };
        // No operation writes where another one may.
        let mut options = if !post.takes_puts {
            EntryOptions::OP_GET
        } else if post.is_once {
            EntryOptions::OP_PUT
        } else {
            EntryOptions::OP_PUT | EntryOptions::MANAGE_LOCAL
        };
        if post.is_once {
            options = options | EntryOptions::USE_ONCE;
        }
        if post.no_truncate {
            options = options | EntryOptions::NO_TRUNCATE;
        }
        let takes = if post.takes_puts { PUT } else { GET };
        let mut entry = Entry::open(memory, options | EntryOptions::EVENT_CT_COMM).matching(takes, !1);
        entry.min_free = post.min_free;
        entry.ct = Some(hands.ct);
        let list = if post.is_overflow {
            List::Overflow
        } else {
            List::Priority
        };
        let number = self.number;
        ask(self.rig, post.rank, |ni| {
            ni.append(post.initiator as u32, entry, list, number)
        })
        .expect("there is room for an entry");
    }

    /// Begins an operation; `Full` when there is no room now.
    fn call(&mut self, call: &Call) -> Result<(), NiError> {
        let number = self.number + 1;
        let hands = &self.hands[call.rank];
        let target = Target {
            process: self.setting.name(call.to),
            pt_index: call.rank as u32,
            match_bits: number << 1 | if call.is_put { PUT } else { GET },
            remote_offset: if call.is_put { 0 } else { call.at / 8 },
        };
        if call.is_put {
            let put = Put {
                from: Piece {
                    md: hands.source,
                    offset: call.at,
                },
                length: call.length,
                ack: call.ack,
                target,
                user_ptr: number,
                hdr_data: number,
            };
            ask(self.rig, call.rank, |ni| ni.put(&put))?;
        } else {
            let get = Get {
                into: Piece {
                    md: hands.sink,
                    offset: hands.next_sink,
                },
                length: call.length,
                target,
                user_ptr: number,
            };
            ask(self.rig, call.rank, |ni| ni.get(&get))?;
            self.hands[call.rank].next_sink += call.length;
        }
        self.number = number;
        Ok(())
    }

    fn events(&mut self, rank: usize, into: &mut Vec<Event>) {
        let eq = self.hands[rank].eq;
        loop {
            match ask(self.rig, rank, |ni| ni.eq_get(eq)).expect("a queue") {
                EqGet::Empty => return,
                EqGet::Event(event) => into.push(event),
                EqGet::Dropped(event) => panic!("events were lost before {event:?}"),
            }
        }
    }

    /// Of each process, what was dropped and what was counted.
    fn counted(&mut self) -> Vec<(u64, Count)> {
        let of = |rank: usize| {
            let ct = self.hands[rank].ct;
            ask(self.rig, rank, |ni| {
                (ni.status(Register::DropCount), ni.ct_get(ct).expect("a count"))
            })
        };
        (0..RANKS).map(of).collect()
    }

    fn base(&self, rank: usize) -> usize {
        self.hands[rank].memory.whole().address()
    }
}

/// Events of short puts of each initiator, in their order.
fn short_puts(events: &[Event]) -> Vec<(u32, Vec<u64>)> {
    let is_short = |event: &&Event| event.kind == EventKind::Put && event.rlength <= ORDERED;
    let of = |rank: u32| {
        let all = events.iter().filter(is_short);
        all.filter(|event| event.initiator.nid == rank)
            .map(|event| event.hdr_data)
            .collect()
    };
    (0..RANKS as u32).map(|rank| (rank, of(rank))).collect()
}

/// Events by stream; a target's events of long operations may come in any order.
fn sorted(events: &[Event], base: usize) -> std::collections::BTreeMap<Stream, Vec<Plain>> {
    let mut all = streams(events, base, true);
    for (stream, events) in &mut all {
        if matches!(stream, Stream::Target(..)) {
            let bits = |event: &Plain| {
                let bits = event.rest.iter().find(|(name, _)| *name == "match_bits");
                (bits.map(|(_, bits)| *bits), event.kind as u8)
            };
            events.sort_by_key(bits);
        }
    }
    all
}

fn play(setting: &Setting, batches: &[Batch]) -> Result<(), TestCaseError> {
    let (mut model, mut real) = (ModelRig::new(setting, None), RealRig::new(setting));
    let (mut model, mut real) = (Crowd::new(&mut model, setting), Crowd::new(&mut real, setting));
    for (at, batch) in batches.iter().enumerate() {
        for post in &batch.posts {
            model.post(post);
            real.post(post);
        }
        if let Some((rail, after, long)) = batch.trouble {
            let (plane, net) = (real.rig.planes[rail], &real.rig.net);
            let down = net.now() + Duration::from_micros(after);
            net.at(down, Change::PlaneDown(plane));
            net.at(down + Duration::from_micros(long), Change::PlaneUp(plane));
        }
        for call in &batch.calls {
            prop_assert_eq!(model.call(call), Ok(()), "batch {}: {:?}", at, call);
            let mut tries = 0;
            while let Err(error) = real.call(call) {
                tries += 1;
                prop_assert!(
                    error == NiError::Full && tries < 10_000,
                    "batch {}: {:?}: {}",
                    at,
                    call,
                    error
                );
                let waited = real.rig.wait(Duration::from_micros(10));
                prop_assert!(waited.is_ok(), "batch {}: {:?}", at, waited);
            }
        }
        prop_assert!(model.rig.settle().is_ok());
        compare(at, &mut model, &mut real)?;
        for hands in model.hands.iter_mut().chain(&mut real.hands) {
            hands.next_sink = 0;
        }
    }
    for rank in 0..RANKS {
        let all = |memory: &Region| {
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes);
            bytes
        };
        let (is, wanted) = (all(&real.hands[rank].memory), all(&model.hands[rank].memory));
        let first = (is != wanted)
            .then(|| (0..is.len()).find(|at| is[*at] != wanted[*at]))
            .flatten();
        prop_assert_eq!(
            first,
            None::<usize>,
            "memory of process {} is different there",
            rank
        );
    }
    Ok(())
}

/// Waits until the real one has posted as many events as the model, and checks that they are the same.
fn compare(
    at: usize,
    model: &mut Crowd<'_, ModelRig>,
    real: &mut Crowd<'_, RealRig>,
) -> Result<(), TestCaseError> {
    let (mut wanted, mut is) = (vec![Vec::new(); RANKS], vec![Vec::new(); RANKS]);
    (0..RANKS).for_each(|rank| model.events(rank, &mut wanted[rank]));
    let expected: usize = wanted.iter().map(Vec::len).sum();
    for _ in 0..LOOKS {
        let waited = real.rig.wait(Duration::from_micros(200));
        prop_assert!(waited.is_ok(), "batch {}: {:?}", at, waited);
        (0..RANKS).for_each(|rank| real.events(rank, &mut is[rank]));
        // What has no event is counted; what waits for a way is not in the network.
        let is_told = is.iter().map(Vec::len).sum::<usize>() >= expected;
        if is_told && real.rig.net.held() == 0 && real.counted() == model.counted() {
            break;
        }
    }
    for rank in 0..RANKS {
        let bases = [model.base(rank), real.base(rank)];
        let plain = sorted(&is[rank], bases[1]);
        prop_assert_eq!(
            plain,
            sorted(&wanted[rank], bases[0]),
            "batch {}: process {}",
            at,
            rank
        );
        prop_assert_eq!(
            short_puts(&is[rank]),
            short_puts(&wanted[rank]),
            "batch {}: process {}: the order of short puts",
            at,
            rank
        );
        let (is, wanted) = (real.counted()[rank], model.counted()[rank]);
        prop_assert_eq!(is, wanted, "batch {}: drops and counts of process {}", at, rank);
    }
    Ok(())
}

/// Looks of 200 us: half a second.
const LOOKS: usize = 2500;

fn setting(seed: u64, faults: Faults) -> Setting {
    let mut setting = Setting::new(Kind::MATCHING_LOGICAL, RANKS);
    (setting.rails, setting.seed, setting.sim.faults) = (2, seed, faults);
    setting.sim.trace_events = 0;
    setting
}

/// Everything overtakes everything.
fn rough() -> Faults {
    Faults {
        reorder: 0.3,
        reorder_window: Duration::from_micros(20),
        jitter: Duration::from_micros(2),
        bandwidth: Some(1_000_000_000),
        ..Faults::NONE
    }
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn storms_over_rough_networks(
        seed in any::<u64>(),
        batches in proptest::collection::vec(batch(false), 1..4),
    ) {
        play(&setting(seed, rough()), &batches)?;
    }

    #[test]
    fn storms_over_networks_that_break(
        seed in any::<u64>(),
        batches in proptest::collection::vec(batch(true), 1..4),
    ) {
        play(&setting(seed, rough()), &batches)?;
    }
}
