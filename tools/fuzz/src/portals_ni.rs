//! A Portals interface and a peer that sends anything, above a rail that delivers what it is given. Events
//! are only of what was appended or started; each operation ends once; no byte outside of what was given away
//! is written or sent; and when the peer is gone, nothing waits for it.

use std::collections::BTreeMap;
use std::time::Duration;

use doorbell_am_portals::{Config, Node, RailId};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Features;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Incarnation, Landing, PeerIndex};
use doorbell_fabric::ni::{
    ANY, AckReq, Atomic, AtomicKind, Count, CtHandle, Datatype, Entry, EntryHandle, EntryOptions, EqGet,
    EqHandle, Event, EventKind, FetchAtomic, Get, Kind, List, Md, MdHandle, MdOptions, Memory, NID_ANY, Ni,
    NiError, NiFail, PID_ANY, Piece, Process, PtOptions, Put, Search, Target, Triggered,
};
use doorbell_fabric::time::Time;

use self::feed::FeedRail;
use crate::script::Script;

#[allow(dead_code)]
#[path = "../../../pml/tests/it/feed.rs"]
mod feed;

/// Most steps of a script.
const STEPS: usize = 400;
/// Bytes of the memory; the peer must neither read nor write the first and the last kibibyte.
const MEMORY: usize = 12 << 10;
const EDGE: usize = 1 << 10;
const SECRET: [u8; 16] = *b"\x5anot to be seen\xa5";
/// Table entries: with and without flow control.
const TABLES: u32 = 3;
/// Headers that may be kept.
const HEADERS: u32 = 8;
/// User pointers of operations begin here; those of entries lie below.
const OPERATIONS: u64 = 1 << 32;
/// An acknowledgement, and its flag for an entry that took the put and acknowledges nothing. Such a put ends
/// without an event.
const ACK: u8 = 16;
const SILENT: u8 = 0x80;
/// Turns of a millisecond until everything that waits for a peer that has gone must have ended.
const TURNS: u64 = 1000;

/// An operation that was started, and how many events report its end.
#[derive(Default)]
struct Begun {
    /// Whether its end is reported by an event.
    is_told: bool,
    ends: u32,
    sends: u32,
}

struct Victim {
    node: Node<FeedRail>,
    kind: Kind,
    memory: Region,
    /// Events of the target, which may be overwritten, and of our operations, which are not.
    eq: EqHandle,
    ours: EqHandle,
    ct: CtHandle,
    md: MdHandle,
    /// The number of the peer's next message.
    seq: u32,
    now: Time,
    /// Words that the peer has received: numbers of operations are among them.
    heard: Vec<u64>,
    /// Lengths of entries, by their user pointers.
    lengths: Vec<u64>,
    entries: Vec<EntryHandle>,
    begun: BTreeMap<u64, Begun>,
    /// How many silent acknowledgements the peer sent: as many operations may end without an event.
    silent: usize,
}

fn process(number: u32) -> Process {
    Process::physical(number, 1)
}

impl Victim {
    fn new(settings: u8) -> Self {
        let kind = Kind::of_number(u32::from(settings));
        let mut config = Config::new(process(0));
        (config.uid, config.seed, config.backlog) = (1, u64::from(settings), 64 << 10);
        config.patience = Duration::from_millis(20);
        config.limits.max_unexpected_headers = HEADERS;
        config.limits.max_pt_index = TABLES;
        let mut node = Node::new(config);
        let features = Features {
            get: settings & 4 == 0,
            put: settings & 8 == 0,
            atomics: false,
            gather: settings & 16 == 0,
            reclaim: true,
            within_host: false,
            checksum: false,
            port: 0,
        };
        let mut rail = FeedRail::new(features);
        rail.keep = true;
        let rail = node.add_rail(rail).expect("there is room");
        for peer in [1, 2] {
            node.connect(
                process(peer),
                rail,
                &RailAddress::native("sim", [0]),
                Incarnation(1),
            )
            .expect("it opens");
        }
        node.ni_init(kind, None).expect("an interface");
        if kind.logical {
            node.set_map(kind, &[process(0), process(1), process(2)])
                .expect("a map");
        }
        let memory = Region::new(MEMORY).expect("memory");
        for at in (0..EDGE).step_by(SECRET.len()) {
            memory.write(at, &SECRET);
            memory.write(MEMORY - EDGE + at, &SECRET);
        }
        let mut ni = node.ni(kind);
        let (eq, ct) = (ni.eq_alloc(16).expect("a queue"), ni.ct_alloc().expect("a count"));
        let ours = ni.eq_alloc(4096).expect("a queue");
        for index in 0..TABLES {
            let options = if index == 1 {
                PtOptions::FLOWCTRL
            } else {
                PtOptions::NONE
            };
            ni.pt_alloc(options, Some(eq), Some(index))
                .expect("a table entry");
        }
        let middle = memory.slice(EDGE, MEMORY - 2 * EDGE).expect("inside");
        let md = Md {
            memory: Memory::One(Landing::Region(middle)),
            options: MdOptions::EVENT_CT_ACK | MdOptions::EVENT_CT_REPLY,
            eq: Some(ours),
            ct: Some(ct),
        };
        let md = ni.md_bind(md).expect("a descriptor");
        let mut victim = Self {
            node,
            kind,
            memory,
            eq,
            ours,
            ct,
            md,
            seq: 0,
            now: Time::ZERO,
            heard: Vec::new(),
            lengths: Vec::new(),
            entries: Vec::new(),
            begun: BTreeMap::new(),
            silent: 0,
        };
        if settings & 32 == 0 {
            let hello = [1 | 1 << 32, 1 | 1024 << 32];
            victim.feed(0, 1, 0, 1, 0, &hello, &[]);
        }
        victim
    }

    fn rail(&mut self) -> &mut FeedRail {
        self.node.rail_mut(RailId(0)).expect("the rail")
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a head")]
    fn feed(&mut self, peer: u32, kind: u8, flags: u8, short: u16, off: u32, words: &[u64], body: &[u8]) {
        self.silent += usize::from(kind == ACK && flags & SILENT != 0);
        let mut frame = vec![kind, flags];
        frame.extend_from_slice(&short.to_le_bytes());
        frame.extend_from_slice(&self.seq.wrapping_add(off).to_le_bytes());
        words
            .iter()
            .for_each(|word| frame.extend_from_slice(&word.to_le_bytes()));
        frame.extend_from_slice(body);
        if off == 0 && kind < 0x80 && peer == 0 {
            self.seq = self.seq.wrapping_add(1);
        }
        self.rail().frames.push_back((PeerIndex(peer), frame));
    }

    /// A message: a kind, numbers that would do or nearly, and whatever bytes.
    fn message(&mut self, script: &mut Script<'_>) {
        const KINDS: [u8; 20] = [
            1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 16, 17, 18, 19, 20, 21, 22, 0x80, 0x81,
        ];
        let (what, flags, choice) = (script.byte(), script.byte(), script.byte());
        let kind = match what {
            0..240 => KINDS[usize::from(what) % KINDS.len()],
            _ => script.byte(),
        };
        // Mostly our interface.
        let flags = if choice & 3 == 0 {
            flags
        } else {
            flags & !3 | self.kind.number() as u8
        };
        let short = if choice & 4 == 0 {
            u16::from(choice >> 6)
        } else {
            script.short()
        };
        let off = if choice & 0x38 == 0 {
            script.near(0) as u32
        } else {
            0
        };
        let mut words = Vec::new();
        for _ in 0..script.below(8) {
            words.push(match script.byte() {
                0..80 => self.known(script),
                80..120 => u64::from(script.byte()),
                120..180 => u64::from(script.short()),
                _ => script.any(),
            });
        }
        // Long bodies are all of one byte: the script has better use for its bytes.
        let mut body = match script.byte() {
            0..64 => Vec::new(),
            64..192 => vec![script.byte(); 8 * script.below(65)],
            _ => vec![script.byte(); script.below(5000)],
        };
        let start = script.below(9).min(body.len());
        let start = script.take(start);
        body[..start.len()].copy_from_slice(start);
        let peer = u32::from(choice == 0xff);
        self.feed(peer, kind, flags, short, off, &words, &body);
    }

    /// Returns a word that the peer may have received.
    fn known(&self, script: &mut Script<'_>) -> u64 {
        match self.heard.as_slice() {
            [] => 0,
            heard => heard[heard.len() - 1 - script.below(heard.len().min(32))],
        }
    }

    fn entry(&mut self, script: &mut Script<'_>) -> Entry {
        let at = script.below(MEMORY - 2 * EDGE);
        let length = script.below(MEMORY - 2 * EDGE - at + 1);
        let slice = |at, length| Landing::Region(self.memory.slice(EDGE + at, length).expect("inside"));
        let choice = script.byte();
        let memory = match choice & 3 {
            _ if length == 0 => Memory::Empty,
            0 => Memory::Many([slice(at, length / 2), slice(at + length / 2, length - length / 2)].into()),
            _ => Memory::One(slice(at, length)),
        };
        let mut options = EntryOptions(u32::from(script.short()) << 3 & EntryOptions::ALL.0);
        options = options | EntryOptions::OP_PUT;
        if choice & 4 == 0 {
            options = options | EntryOptions::OP_GET;
        }
        let from = if self.kind.logical {
            Process::rank(if choice & 8 == 0 { ANY } else { 1 })
        } else {
            Process::physical(if choice & 8 == 0 { NID_ANY } else { 1 }, PID_ANY)
        };
        self.lengths.push(length as u64);
        Entry {
            memory,
            ct: Some(self.ct),
            uid: if choice & 16 == 0 { ANY } else { 1 },
            options,
            match_id: from,
            match_bits: u64::from(choice >> 6),
            ignore_bits: if choice & 32 == 0 { u64::MAX } else { 0 },
            min_free: script.below(256) as u64,
        }
    }

    fn append(&mut self, script: &mut Script<'_>) {
        let choice = script.byte();
        let entry = self.entry(script);
        let (index, user) = (u32::from(choice) % TABLES, self.lengths.len() as u64);
        let list = if choice & 64 == 0 {
            List::Priority
        } else {
            List::Overflow
        };
        let mut ni = self.node.ni(self.kind);
        match choice >> 4 & 3 {
            0 => {
                let how = if choice & 128 == 0 {
                    Search::Only
                } else {
                    Search::Delete
                };
                let _ = ni.search(index, &entry, how, user);
            }
            1 if choice & 128 == 0 => {
                let what = Triggered::Append {
                    pt_index: index,
                    entry: Box::new(entry),
                    list,
                    user_ptr: user,
                };
                if let Ok(Some(entry)) = ni.trigger(self.ct, u64::from(choice & 15), what) {
                    self.entries.push(entry);
                }
            }
            _ => {
                if let Ok(entry) = ni.append(index, entry, list, user) {
                    self.entries.push(entry);
                }
            }
        }
    }

    fn begin(&mut self, script: &mut Script<'_>) {
        let choice = script.byte();
        let length = script.below(MEMORY - 2 * EDGE + 1) as u64;
        let user = OPERATIONS + self.begun.len() as u64;
        let rank = 1;
        let target = Target {
            process: if self.kind.logical {
                Process::rank(rank)
            } else {
                process(rank)
            },
            pt_index: 0,
            match_bits: 0,
            remote_offset: 0,
        };
        let piece = Piece {
            md: self.md,
            offset: 0,
        };
        let ack = [AckReq::None, AckReq::Full, AckReq::Ct, AckReq::Full][usize::from(choice & 3)];
        let put = Put {
            from: piece,
            length,
            ack,
            target,
            user_ptr: user,
            hdr_data: 1,
        };
        let get = Get {
            into: piece,
            length,
            target,
            user_ptr: user,
        };
        let small = Put {
            length: length.min(512) & !7,
            ..put
        };
        let mut is_told = ack == AckReq::Full;
        let mut ni = self.node.ni(self.kind);
        let done: Result<(), NiError> = match choice >> 2 & 7 {
            0 | 1 => ni.put(&put),
            2 | 3 => {
                is_told = true;
                ni.get(&get)
            }
            4 => ni.atomic(&Atomic {
                put: small,
                kind: AtomicKind::Sum,
                datatype: Datatype::Int64,
            }),
            5 => {
                is_told = true;
                ni.fetch_atomic(&FetchAtomic {
                    into: piece,
                    from: piece,
                    length: small.length,
                    target,
                    user_ptr: user,
                    hdr_data: 0,
                    kind: AtomicKind::Bxor,
                    datatype: Datatype::Uint64,
                    operand: [0; 32],
                })
            }
            6 => {
                // It may never fire.
                is_told = false;
                ni.trigger(self.ct, u64::from(choice >> 5), Triggered::Put(put))
                    .map(|_| ())
            }
            _ => {
                is_told = false;
                ni.ct_inc(self.ct, Count::success(1))
            }
        };
        let begun = Begun {
            is_told: is_told && done.is_ok(),
            ..Begun::default()
        };
        self.begun.insert(user, begun);
    }

    fn manage(&mut self, script: &mut Script<'_>) {
        let choice = script.byte();
        let index = u32::from(choice) % TABLES;
        let mut ni = self.node.ni(self.kind);
        match choice >> 4 & 3 {
            0 => _ = ni.pt_disable(index),
            1 | 2 => _ = ni.pt_enable(index),
            _ => {
                if !self.entries.is_empty() {
                    let entry = self.entries.swap_remove(script.below(self.entries.len()));
                    let _ = ni.unlink(entry);
                }
            }
        }
    }

    fn pass(&mut self, full: bool) {
        self.now += Duration::from_micros(50);
        self.rail().full = full;
        self.node.flush();
        self.node.poll(64);
        self.node.progress(self.now);
        self.listen();
        self.look();
    }

    /// Takes what the peer receives: words to answer with, and never a secret.
    fn listen(&mut self) {
        for frame in std::mem::take(&mut self.rail().sent) {
            assert!(
                !frame.windows(SECRET.len()).any(|bytes| bytes == SECRET),
                "the peer received bytes that are not for it"
            );
            let words = frame.get(8..).unwrap_or_default().chunks_exact(8).take(3);
            self.heard
                .extend(words.filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?))));
        }
        let old = self.heard.len().saturating_sub(64);
        self.heard.drain(..old);
    }

    /// Takes the events, and judges them.
    fn look(&mut self) {
        for eq in [self.eq, self.ours] {
            loop {
                match self.node.ni(self.kind).eq_get(eq).expect("a queue") {
                    EqGet::Empty => break,
                    EqGet::Dropped(_) if eq == self.ours => panic!("an end of ours was lost"),
                    EqGet::Event(event) | EqGet::Dropped(event) => self.judge(&event),
                }
            }
        }
    }

    fn judge(&mut self, event: &Event) {
        use EventKind as K;
        match event.kind {
            K::Send | K::Ack | K::Reply => {
                let begun = self.begun.get_mut(&event.user_ptr).expect("it was begun");
                let count = if event.kind == K::Send {
                    &mut begun.sends
                } else {
                    &mut begun.ends
                };
                *count += 1;
                assert_eq!(*count, 1, "{event:?} comes again");
            }
            // A full queue with one that has flow control closes all of its table entries.
            K::PtDisabled => assert!(event.pt_index < TABLES, "{event:?}"),
            _ => {
                let entry = event
                    .user_ptr
                    .checked_sub(1)
                    .and_then(|at| self.lengths.get(at as usize));
                let length = *entry.expect("it was appended, or searched for");
                assert!(event.mlength <= event.rlength, "{event:?}");
                let lands = matches!(event.kind, K::Put | K::Get | K::Atomic | K::FetchAtomic);
                if lands && event.fail == NiFail::Ok {
                    assert!(event.mlength <= length, "{event:?} in {length} bytes");
                    assert!(
                        event.mlength == 0 || event.place + event.mlength <= length,
                        "{event:?}"
                    );
                }
            }
        }
    }

    /// The peer is gone: everything ends.
    fn end(&mut self) {
        self.node.ended(process(1), DownReason::Control);
        for _ in 0..TURNS {
            self.pass(false);
            self.now += Duration::from_millis(1);
        }
        let untold = self
            .begun
            .values()
            .filter(|begun| begun.is_told && begun.ends == 0)
            .count();
        assert!(
            untold <= self.silent,
            "{untold} operations wait for a peer that is gone, and it had {} end untold",
            self.silent
        );
        let mut lost = Vec::new();
        while let Some(one) = self.node.ni(self.kind).lost() {
            lost.push(one.process);
        }
        // The other peer may have reported that its path is broken.
        let gone = lost.iter().filter(|process| process.nid == 1).count();
        assert_eq!(gone, 1, "{lost:?} are lost");
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
            0..112 => victim.message(&mut script),
            112..152 => victim.append(&mut script),
            152..184 => victim.begin(&mut script),
            184..192 => victim.manage(&mut script),
            choice => victim.pass(choice & 7 == 0),
        }
    }
    victim.pass(false);
    victim.end();
    let mut bytes = [0; MEMORY];
    victim.memory.read(0, &mut bytes);
    let edges = bytes[..EDGE].chunks(16).chain(bytes[MEMORY - EDGE..].chunks(16));
    for edge in edges {
        assert_eq!(edge, SECRET, "a byte outside was written");
    }
}
