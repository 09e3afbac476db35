//! In the steady state no operation allocates: small and long puts and gets, acknowledged or not, atomics,
//! entries that are used once and appended again, unexpected headers, triggers; counted by the allocator
//! itself.

use doorbell_am_portals::{Config, Node};
use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::*;
use doorbell_sim::SimRail;
use doorbell_testing::alloc::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LONG: usize = 300_000;

/// A process that talks to itself: the interface without any rail's own costs.
struct Alone {
    node: Node<SimRail>,
    kind: Kind,
    md: MdHandle,
    eq: EqHandle,
    teq: EqHandle,
    ct: CtHandle,
    memory: MutLoan,
    events: u64,
}

fn memory(loan: MutLoan, length: usize) -> Memory {
    Memory::One(Landing::Loan(loan.part(0, length)))
}

impl Alone {
    fn new(kind: Kind) -> Self {
        let me = Process::physical(1, 1);
        let mut node = Node::new(Config::new(me));
        node.ni_init(kind, None).unwrap();
        if kind.logical {
            node.set_map(kind, &[me]).unwrap();
        }
        let memory = MutLoan::of_static(vec![7; LONG].leak());
        let mut ni = node.ni(kind);
        let (eq, teq, ct) = (
            ni.eq_alloc(256).unwrap(),
            ni.eq_alloc(256).unwrap(),
            ni.ct_alloc().unwrap(),
        );
        for _ in 0..2 {
            ni.pt_alloc(PtOptions::NONE, Some(teq), None).unwrap();
        }
        let entry = Entry::open(self::memory(memory, LONG), both(EntryOptions::EVENT_CT_COMM));
        ni.append(0, entry.counted(ct), List::Priority, 0).unwrap();
        let md = Md {
            memory: self::memory(memory, LONG),
            eq: Some(eq),
            ..Md::default()
        };
        let md = ni.md_bind(md).unwrap();
        Self {
            node,
            kind,
            md,
            eq,
            teq,
            ct,
            memory,
            events: 0,
        }
    }

    fn target(&self, pt_index: u32) -> Target {
        let process = if self.kind.logical {
            Process::rank(0)
        } else {
            Process::physical(1, 1)
        };
        Target {
            process,
            pt_index,
            match_bits: 5,
            remote_offset: 0,
        }
    }

    fn put(&self, pt_index: u32, length: usize, ack: AckReq) -> Put {
        Put {
            from: Piece {
                md: self.md,
                offset: 0,
            },
            length: length as u64,
            ack,
            target: self.target(pt_index),
            user_ptr: 0,
            hdr_data: u64::from(length == 0),
        }
    }

    fn turn(&mut self) {
        for length in [0, 8, 600, LONG] {
            for ack in [AckReq::None, AckReq::Full] {
                let put = self.put(0, length, ack);
                self.node.ni(self.kind).put(&put).unwrap();
            }
            let get = Get {
                into: Piece {
                    md: self.md,
                    offset: 0,
                },
                length: length as u64,
                target: self.target(0),
                user_ptr: 0,
            };
            self.node.ni(self.kind).get(&get).unwrap();
            self.drain();
        }
        let fetch = FetchAtomic {
            into: Piece {
                md: self.md,
                offset: 0,
            },
            from: Piece {
                md: self.md,
                offset: 8,
            },
            length: 8,
            target: self.target(0),
            user_ptr: 0,
            hdr_data: 0,
            kind: AtomicKind::Sum,
            datatype: Datatype::Int64,
            operand: [0; 32],
        };
        self.node.ni(self.kind).fetch_atomic(&fetch).unwrap();
        self.drain();
        self.late();
        self.triggered();
    }

    /// An unexpected message, and an entry for it that comes later.
    fn late(&mut self) {
        let once = both(EntryOptions::USE_ONCE);
        let room = Entry::open(memory(self.memory, 64), once);
        self.node
            .ni(self.kind)
            .append(1, room, List::Overflow, 0)
            .unwrap();
        let put = self.put(1, 8, AckReq::Full);
        self.node.ni(self.kind).put(&put).unwrap();
        self.drain();
        let mine = Entry::open(memory(self.memory, 64), once).matching(5, 0);
        self.node
            .ni(self.kind)
            .append(1, mine, List::Priority, 0)
            .unwrap();
        self.drain();
    }

    fn triggered(&mut self) {
        let put = self.put(0, 8, AckReq::None);
        let mut ni = self.node.ni(self.kind);
        let next = ni.ct_get(self.ct).unwrap().success + 1;
        ni.trigger(self.ct, next, Triggered::Put(put)).unwrap();
        ni.put(&put).unwrap();
        self.drain();
    }

    fn drain(&mut self) {
        for _ in 0..100 {
            self.node.poll(64);
            for eq in [self.eq, self.teq] {
                while let EqGet::Event(_) = self.node.ni(self.kind).eq_get(eq).unwrap() {
                    self.events += 1;
                }
            }
        }
    }
}

fn both(more: EntryOptions) -> EntryOptions {
    EntryOptions::OP_PUT | EntryOptions::OP_GET | more
}

#[test]
fn nothing_is_allocated_after_the_first_turns() {
    for number in 0..4 {
        let mut alone = Alone::new(Kind::of_number(number));
        (0..3).for_each(|_| alone.turn());
        let (before, events) = (alloc::of_thread().allocations, alone.events);
        (0..20).for_each(|_| alone.turn());
        let told = alone.events - events;
        assert_eq!(told % 20, 0, "each turn posts the same events");
        // Sends, acknowledgements and puts of eight puts, four gets at both ends, …: none is missing.
        assert!(
            told / 20 >= 8 + 4 + 8 + 4 * 2 + 3 + 7 + 3,
            "{} events a turn",
            told / 20
        );
        assert_eq!(
            alloc::of_thread().allocations - before,
            0,
            "allocations on interface {number}"
        );
    }
}
