//! After a warm-up, no message costs an allocation, over one rail or two, in order or not, with room or
//! without: counted by the allocator itself.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use doorbell_am_portals::{Config, Node};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{EventKind, Life, RailEvent, Scope};
use doorbell_fabric::memory::{Region, SharedBytes};
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, FenceScope, Inbound, Incarnation, Landing, Message, MsgId,
    OpId, PeerIndex, Refused, Remote, RemoteKey,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::ni::{
    AckReq, Entry, EntryOptions, EqGet, EqHandle, EventKind as NiEvent, Get, Kind, List, Md, MdHandle,
    MdOptions, Memory, Ni, Piece, Process, PtOptions, Put, Target,
};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::still_rail;
use doorbell_fabric::time::Time;
use doorbell_testing::alloc::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Messages one way: those under way, and buffers for more.
#[derive(Debug, Default)]
struct Lane {
    under_way: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    accepted: u64,
}

/// A rail that keeps its buffers.
#[derive(Debug)]
struct Belt {
    name: RailName,
    can: Capabilities,
    lanes: Rc<RefCell<[Lane; 2]>>,
    side: usize,
    /// Messages that it has room for; whether the newest is shown first.
    room: usize,
    backwards: bool,
    greeted: bool,
}

/// Both ends of a lane.
fn belts(room: usize, backwards: bool) -> [Belt; 2] {
    let lanes = Rc::<RefCell<[Lane; 2]>>::default();
    let limits = Limits {
        head: 64,
        message: 64 << 10,
        inline: 64,
        eager: 8 << 10,
        fragment: 16 << 10,
        get_from: 0,
        parts: 0,
        one_sided: 0,
    };
    let can = Capabilities {
        features: Features {
            reclaim: true,
            ..Features::default()
        },
        limits,
        estimate: Estimate {
            latency_ns: 1000,
            bandwidth: 1_000_000_000,
        },
    };
    [0, 1].map(|side| Belt {
        name: "sim:1".parse().expect("a name"),
        can,
        lanes: lanes.clone(),
        side,
        room,
        backwards,
        greeted: false,
    })
}

still_rail!(
    Belt,
    |belt| RailAddress::native("sim", vec![belt.side as u8]),
    |belt| {
        let first = !std::mem::replace(&mut belt.greeted, true);
        first.then_some(RailEvent {
            at: Time::ZERO,
            scope: Scope::Peer(PeerIndex(0)),
            kind: EventKind::PeerUp,
            life: Life::FIRST,
        })
    }
);

impl Message for Belt {
    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        Ok(PeerIndex(0))
    }
    fn send(&mut self, _: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        let lane = &mut self.lanes.borrow_mut()[self.side];
        if lane.under_way.len() >= self.room {
            return Err(Refused::Full);
        }
        let mut bytes = lane.spare.pop().unwrap_or_else(|| Vec::with_capacity(64 << 10));
        bytes.clear();
        bytes.extend_from_slice(head);
        let at = bytes.len();
        bytes.resize(at + body.len(), 0);
        body.copy_to(&mut bytes[at..]);
        lane.under_way.push_back(bytes);
        lane.accepted += 1;
        Ok(MsgId(lane.accepted))
    }
    fn flush(&mut self) {}
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        for shown in 0..budget {
            let next = {
                let lane = &mut self.lanes.borrow_mut()[1 - self.side];
                if self.backwards {
                    lane.under_way.pop_back()
                } else {
                    lane.under_way.pop_front()
                }
            };
            let Some(bytes) = next else { return shown };
            sink.message(PeerIndex(0), Inbound::whole(SharedBytes::of(&bytes)));
            self.lanes.borrow_mut()[1 - self.side].spare.push(bytes);
        }
        budget
    }
    fn handed_over(&mut self, _: PeerIndex) -> MsgId {
        let lane = &self.lanes.borrow()[self.side];
        MsgId(lane.accepted - lane.under_way.len() as u64)
    }
    fn reclaim(&mut self, _: PeerIndex, _: &mut dyn FnMut(MsgId, &[u8])) {}
    fn abandon(&mut self, _: PeerIndex) {}
    fn revive(&mut self, _: PeerIndex) {}
    fn expose(&mut self, _: Exposure, _: Access, _: Option<PeerIndex>) -> Result<Remote, Refused> {
        Err(Refused::Unsupported)
    }
    fn withdraw(&mut self, _: RemoteKey) {}
    fn get(&mut self, _: PeerIndex, _: OpId, _: &Remote, _: Landing) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }
    fn put(&mut self, _: PeerIndex, _: OpId, _: Body<'_>, _: &Remote) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }
    fn atomic(&mut self, _: PeerIndex, _: OpId, _: &Remote, _: AtomicOp) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }
    fn fence(&mut self, _: FenceScope, _: OpId) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }
}

const KIND: Kind = Kind {
    matching: true,
    logical: false,
};
const LENGTH: usize = 100_000;

fn name(side: u32) -> Process {
    Process::physical(side, side)
}

/// Two processes, each with an entry that takes everything, and a descriptor of the same size.
struct Pair {
    nodes: Vec<Node<Belt>>,
    ends: Vec<(EqHandle, MdHandle)>,
    now: Time,
}

impl Pair {
    fn new(rails: usize, room: usize, backwards: bool) -> Self {
        let mut nodes: Vec<_> = (0..2).map(|side| Node::new(Config::new(name(side)))).collect();
        for _ in 0..rails {
            for (side, belt) in belts(room, backwards).into_iter().enumerate() {
                let address = belt.address();
                let rail = nodes[side].add_rail(belt).expect("there is room");
                let other = name(1 - side as u32);
                nodes[side]
                    .connect(other, rail, &address, Incarnation(1))
                    .expect("it is there");
            }
        }
        let ends = nodes.iter_mut().map(open).collect();
        let now = Time::from_nanos(1);
        Self { nodes, ends, now }
    }

    /// Delivers everything that is on its way; returns how many events of puts, acknowledgements and replies
    /// came.
    fn settle(&mut self) -> [usize; 3] {
        let mut told = [0; 3];
        let mut idle = 0;
        while idle < 40 {
            let mut work = 0;
            self.now += std::time::Duration::from_micros(1);
            for (node, (eq, _)) in self.nodes.iter_mut().zip(&self.ends) {
                work += node.poll(16) + node.progress(self.now);
                while let Ok(EqGet::Event(event)) = node.ni(KIND).eq_get(*eq) {
                    assert_eq!(event.fail, doorbell_fabric::ni::NiFail::Ok, "{event:?}");
                    match event.kind {
                        NiEvent::Put => told[0] += 1,
                        NiEvent::Ack => told[1] += 1,
                        NiEvent::Reply => told[2] += 1,
                        _ => {}
                    }
                }
            }
            idle = if work == 0 { idle + 1 } else { 0 };
        }
        told
    }

    fn target(&self, side: usize) -> Target {
        Target {
            process: name(1 - side as u32),
            pt_index: 0,
            match_bits: 7,
            remote_offset: 0,
        }
    }

    fn put(&mut self, side: usize, length: usize) -> bool {
        let put = Put {
            from: Piece {
                md: self.ends[side].1,
                offset: 0,
            },
            length: length as u64,
            ack: AckReq::Full,
            target: self.target(side),
            user_ptr: 1,
            hdr_data: 2,
        };
        self.nodes[side].ni(KIND).put(&put).is_ok()
    }

    fn get(&mut self, side: usize, length: usize) -> bool {
        let get = Get {
            into: Piece {
                md: self.ends[side].1,
                offset: 0,
            },
            length: length as u64,
            target: self.target(side),
            user_ptr: 1,
        };
        self.nodes[side].ni(KIND).get(&get).is_ok()
    }
}

/// The interface of a process.
fn open(node: &mut Node<Belt>) -> (EqHandle, MdHandle) {
    node.ni_init(KIND, None).expect("it is offered");
    let mut ni = node.ni(KIND);
    let eq = ni.eq_alloc(4096).expect("there is room");
    let index = ni.pt_alloc(PtOptions::NONE, Some(eq), Some(0));
    assert_eq!(index, Ok(0));
    let memory = || Memory::One(Landing::Region(Region::new(LENGTH).expect("memory").whole()));
    let options = EntryOptions::OP_PUT | EntryOptions::OP_GET | EntryOptions::EVENT_LINK_DISABLE;
    ni.append(0, Entry::open(memory(), options), List::Priority, 0)
        .expect("there is room");
    let md = Md {
        memory: memory(),
        options: MdOptions::NONE,
        eq: Some(eq),
        ct: None,
    };
    (eq, ni.md_bind(md).expect("there is room"))
}

/// One test, so that nothing else runs in its thread.
#[test]
fn steady_state_allocates_nothing() {
    for (rails, room, backwards) in [
        (1, 64, false),
        (1, 64, true),
        (1, 2, false),
        (2, 64, false),
        (2, 3, true),
    ] {
        let mut pair = Pair::new(rails, room, backwards);
        pair.settle();
        for length in [0, 8, 64, 4000, LENGTH] {
            let what = format!("{length} bytes over {rails} rails of room {room}, backwards {backwards}");
            alloc::steady(&format!("puts of {what}"), 100, || {
                let mut sent = 0;
                for side in [0, 1, 0, 0, 1] {
                    sent += usize::from(pair.put(side, length));
                }
                let told = pair.settle();
                assert!(sent > 0 && told == [sent, sent, 0], "{what}: {told:?} of {sent}");
            });
            alloc::steady(&format!("gets of {what}"), 100, || {
                let mut sent = 0;
                for side in [0, 1, 1] {
                    sent += usize::from(pair.get(side, length));
                }
                let told = pair.settle();
                assert!(sent > 0 && told == [0, 0, sent], "{what}: {told:?} of {sent}");
            });
            alloc::steady(&format!("puts of {what} to itself"), 100, || {
                let own = |node: &mut Node<Belt>, md: MdHandle, process: Process| {
                    let put = Put {
                        from: Piece { md, offset: 0 },
                        length: length as u64,
                        ack: AckReq::Full,
                        target: Target {
                            process,
                            pt_index: 0,
                            match_bits: 7,
                            remote_offset: 0,
                        },
                        user_ptr: 1,
                        hdr_data: 2,
                    };
                    node.ni(KIND).put(&put).expect("there is room");
                };
                own(&mut pair.nodes[0], pair.ends[0].1, name(0));
                assert_eq!(pair.settle(), [1, 1, 0], "{what}");
            });
        }
    }
}
