//! The smallest card: its registers are a queue in this process, and what one end's doorbell is rung for is
//! at the other end at once. The rail over it keeps the promises of `Datagram`, allocates nothing for a
//! frame, and outlives resets of its card.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use doorbell_fabric::caps::Estimate;
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::{HEADERS_IPV4, Headers, Mac, Packed};
use doorbell_fabric::event::EventKind;
use doorbell_fabric::memory::{Region, RegionSlice};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_fabric::time::Time;
use doorbell_inet::StaticAddress;
use doorbell_packet::{
    Arrivals, Both, Gone, Halves, LINK, Lent, Nic, Packet, PacketRail, PacketRx, PacketStats, PacketTx,
    Parts, Place, Posted, ReceiveQueues, SendRing, Shown, Slots, State, Verdict,
};
use doorbell_sim::conformance::datagram::Ends;
use doorbell_testing::alloc::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SIZE: usize = 2048;
const ENTRIES: usize = 64;
const SPARE: usize = 8;
const MTU: usize = 1500;

/// Packets on their way to one end, and what the test does to that end's card.
struct Line {
    packets: VecDeque<(usize, [u8; SIZE])>,
    /// The link is up.
    link: bool,
    /// The card was unplugged.
    gone: bool,
    /// The card was reset behind its driver's back.
    reset: bool,
    /// The next entries that the card writes have this length, whatever came.
    lies: VecDeque<usize>,
}

type Wire = Arc<Mutex<Line>>;

fn wire() -> Wire {
    Arc::new(Mutex::new(Line {
        packets: VecDeque::with_capacity(8 * ENTRIES),
        link: true,
        gone: false,
        reset: false,
        lies: VecDeque::new(),
    }))
}

struct Ring {
    slots: Slots,
    memory: RegionSlice,
    /// The descriptors: where each packet is, and how long.
    packets: Vec<(usize, usize)>,
    out: Wire,
}

impl SendRing for Ring {
    type Completions = ();

    fn slots(&self) -> &Slots {
        &self.slots
    }

    fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }

    fn post(&mut self, length: usize, _: bool, posted: Posted) {
        self.packets.push((self.slots.buffer(), length));
        self.slots.push(posted);
    }

    fn doorbell(&mut self) -> bool {
        let any = self.slots.pending() > 0;
        if any {
            self.slots.report();
            self.slots.announce();
        }
        let mut line = self.out.lock().unwrap();
        for (at, length) in self.packets.drain(..) {
            let mut bytes = [0; SIZE];
            let n = self
                .memory
                .as_shared()
                .skip(at)
                .take(length)
                .copy_to(0, &mut bytes);
            line.packets.push_back((n, bytes));
        }
        any
    }

    fn reap(rings: &mut [Self], at: usize, (): &mut ()) -> u64 {
        if let Some(ring) = rings.get_mut(at)
            && ring.packets.is_empty()
        {
            while ring.slots.oldest().is_some() {
                ring.slots.complete_oldest();
            }
        }
        0
    }

    fn headers(headers: &Headers, length: usize) -> Packed {
        headers.without_checksums(length)
    }
}

struct Queues {
    lent: Lent,
    free: Vec<u32>,
    memory: RegionSlice,
    first: usize,
    line: Wire,
}

impl Queues {
    fn take(&mut self, arrivals: &mut Arrivals) -> bool {
        let mut line = self.line.lock().unwrap();
        let Some((n, bytes)) = line.packets.pop_front().filter(|_| self.lent.next().is_some()) else {
            return false;
        };
        let length = line.lies.pop_front().unwrap_or(n);
        arrivals.count();
        let buffer = self.lent.take();
        let at = self.first + buffer as usize * SIZE;
        self.memory.write(at, &bytes[..n]);
        if length > SIZE {
            arrivals.counts.nonsense += 1;
            self.free.push(buffer);
            return true;
        }
        let packet = Packet {
            buffer,
            queue: 0,
            at,
            length,
            is_checked: false,
            is_joined: false,
        };
        match arrivals.packet(packet) {
            Shown::Taken => return true,
            Shown::Dropped => {}
            Shown::Malformed => arrivals.counts.malformed += 1,
        }
        self.free.push(buffer);
        true
    }
}

impl ReceiveQueues for Queues {
    fn poll(&mut self, _: usize, arrivals: &mut Arrivals) {
        while arrivals.wants_more() && self.take(arrivals) {}
        self.lent.give(&mut self.free, |_, _| {});
        self.lent.announce();
    }

    fn is_ready(&mut self) -> bool {
        !self.line.lock().unwrap().packets.is_empty()
    }

    fn fill(&mut self, buffer: u32, _: u16) {
        self.free.push(buffer);
    }
}

struct Card {
    line: Wire,
    /// Never becomes readable: no test sleeps here.
    event: OwnedFd,
    state: State,
    mac: Mac,
}

impl Nic for Card {
    /// Kinds of rails are a closed list: this is one of them.
    const KIND: &'static str = "igbvf";
    const ABOUT: &'static str = "a queue in this process";
    const NO_GATEWAY: &'static str = "it is in another network";
    const ESTIMATE: Estimate = Estimate {
        latency_ns: 1,
        bandwidth: 1,
    };

    type Config = (usize, [Wire; 2]);
    type Ring = Ring;
    type Queues = Queues;
    type Stats = PacketStats;

    fn open(_: &RailName, (side, wires): &Self::Config) -> Result<Parts<Self>, RailError> {
        let memory = Region::new((3 * ENTRIES + SPARE) * SIZE).unwrap().whole();
        let ring = |number: usize| Ring {
            slots: Slots::new(
                Place {
                    entries: ENTRIES,
                    buffers: number * ENTRIES * SIZE,
                    size: SIZE,
                    bus: 0,
                },
                1,
            ),
            memory: memory.clone(),
            packets: Vec::with_capacity(ENTRIES),
            out: Arc::clone(&wires[1 - side]),
        };
        let mut queues = Queues {
            lent: Lent::new(ENTRIES),
            free: (0..ENTRIES as u32).collect(),
            memory: memory.clone(),
            first: 2 * ENTRIES * SIZE,
            line: Arc::clone(&wires[*side]),
        };
        queues.lent.give(&mut queues.free, |_, _| {});
        let ip = std::net::IpAddr::from([10, 0, 0, 1 + *side as u8]);
        let mac = [2, 0, 0, 0, 0, 1 + *side as u8];
        let limit = MTU + LINK - HEADERS_IPV4;
        let own = SocketAddr::new(ip, 7000);
        Ok(Parts {
            nic: Card {
                line: Arc::clone(&wires[*side]),
                event: rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap(),
                state: State::Running,
                mac,
            },
            tx: PacketTx::new(vec![ring(0), ring(1)], (), memory.clone(), limit, false),
            rx: PacketRx::new(queues, memory.clone(), (ENTRIES, SPARE), own),
            address: StaticAddress {
                ip,
                prefix: 24,
                gateway: None,
            },
            mac,
            port: 7000,
            mtu: MTU,
            limit,
        })
    }

    fn state(&self) -> State {
        self.state
    }

    fn is_up(&self) -> bool {
        self.state == State::Running && self.line.lock().unwrap().link
    }

    fn look(&mut self, now: Time, (tx, rx): Halves<'_, Self>) -> Verdict {
        let line = self.line.lock().unwrap();
        if line.gone {
            return Verdict::Gone;
        }
        if line.reset {
            (tx.is_off, rx.is_off) = (true, true);
            self.state = State::Resetting(now);
        }
        Verdict::Present
    }

    fn reset(&mut self, _: Time, (tx, rx): Halves<'_, Self>) -> Result<Option<Mac>, Gone> {
        let mut line = self.line.lock().unwrap();
        if !matches!(self.state, State::Resetting(_)) || line.reset {
            return Ok(None);
        }
        line.packets.clear();
        let posted = tx.posted();
        for ring in &mut tx.rings {
            ring.packets.clear();
            ring.slots_mut().restart(posted);
        }
        let queues = &mut rx.queues;
        queues.lent.restart(&mut queues.free);
        queues.lent.give(&mut queues.free, |_, _| {});
        (tx.is_off, rx.is_off) = (false, false);
        self.state = State::Running;
        Ok(Some(self.mac))
    }

    fn arm(&mut self) {}

    fn disarm(&mut self) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn leave(&mut self, (tx, rx): Halves<'_, Self>, _: bool) -> bool {
        tx.release();
        rx.release();
        self.state = State::Closed;
        true
    }

    fn how(&self, _: Both<'_, Self>) -> String {
        "here".to_owned()
    }

    fn stats(&self, common: PacketStats, _: Both<'_, Self>) -> PacketStats {
        common
    }
}

struct Pair {
    ends: [PacketRail<Card>; 2],
    wires: [Wire; 2],
    clock: u64,
}

impl Pair {
    fn new() -> Self {
        let wires = [wire(), wire()];
        let ends = [0, 1].map(|side| {
            let name = format!("igbvf:0000:00:00.{side}").parse().unwrap();
            PacketRail::open(&name, &(side, wires.clone())).unwrap()
        });
        let mut pair = Self {
            ends,
            wires,
            clock: 0,
        };
        let addresses = [pair.ends[0].address(), pair.ends[1].address()];
        for side in [0, 1] {
            let to = &addresses[1 - side];
            assert_eq!(pair.ends[side].open(to, Incarnation(1)).unwrap(), PeerIndex(0));
        }
        pair.turns(4);
        assert!(pair.ends.iter().all(|end| end.is_resolved(PeerIndex(0))));
        pair
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.clock += 25_000_000;
            for end in &mut self.ends {
                for channel in [Channel::Priority, Channel::Data] {
                    end.split().1.poll(channel, 0);
                    if end.split().1.poll(channel, 1) > 0 {
                        end.split().1.poll(channel, 0);
                    }
                }
                end.progress(Time::from_nanos(self.clock));
            }
        }
    }

    fn post(&mut self, channel: Channel, bytes: &[u8]) -> u64 {
        let (tx, _) = self.ends[0].split();
        assert_eq!(tx.reserve(channel, 1), 1);
        let id = tx
            .post(channel, PeerIndex(0), b"a head and ", Body::Bytes(bytes))
            .unwrap();
        tx.doorbell();
        id.0
    }

    fn take(&mut self, channel: Channel) -> Option<Vec<u8>> {
        let (_, rx) = self.ends[1].split();
        (rx.poll(channel, 1) > 0).then(|| rx.frame(channel, 0).unwrap().bytes.to_vec())
    }

    fn events(&mut self) -> Vec<EventKind> {
        std::iter::from_fn(|| self.ends[0].event())
            .map(|event| event.kind)
            .collect()
    }
}

fn ends() -> Ends<PacketRail<Card>> {
    let Pair {
        ends: [a, b],
        mut clock,
        ..
    } = Pair::new();
    let incarnations = [a.incarnation(), b.incarnation()];
    Ends::connect((a, incarnations[0]), (b, incarnations[1]), move |a, b| {
        clock += 1_000_000;
        a.progress(Time::from_nanos(clock));
        b.progress(Time::from_nanos(clock));
    })
}

doorbell_sim::datagram_conformance!(ends);

#[test]
fn nothing_is_allocated_for_a_frame() {
    let mut pair = Pair::new();
    let mut exchange = || {
        for channel in [Channel::Priority, Channel::Data] {
            for _ in 0..3 * ENTRIES {
                pair.post(channel, b"a body");
                let (_, rx) = pair.ends[1].split();
                assert_eq!(rx.poll(channel, 4), 1);
                drop(rx.keep(channel, 0).unwrap());
            }
        }
    };
    exchange();
    let before = alloc::of_thread().allocations;
    exchange();
    assert_eq!(alloc::of_thread().allocations - before, 0);
}

#[test]
fn a_card_that_was_reset_has_released_its_frames_and_keeps_promised_room() {
    let mut pair = Pair::new();
    assert_eq!(pair.ends[0].split().0.reserve(Channel::Priority, 3), 3);
    pair.wires[0].lock().unwrap().reset = true;
    pair.turns(1);
    assert_eq!(pair.events(), [EventKind::LinkDown]);
    let lost = pair.post(Channel::Data, b"lost");
    assert_eq!(pair.take(Channel::Data), None);
    pair.wires[0].lock().unwrap().reset = false;
    pair.turns(1);
    assert_eq!(pair.events(), [EventKind::LinkUp]);
    let (tx, _) = pair.ends[0].split();
    assert_eq!(tx.reaped(Channel::Data).0, lost);
    for _ in 0..3 {
        tx.post(Channel::Priority, PeerIndex(0), b"promised", Body::Empty)
            .unwrap();
    }
    tx.doorbell();
    for _ in 0..3 {
        assert_eq!(pair.take(Channel::Priority).unwrap(), b"promised");
    }
    let stats = pair.ends[0].stats();
    assert_eq!((stats.resets, stats.unresolved), (1, 1), "{stats:?}");
}

#[test]
fn a_link_that_goes_is_an_event_and_a_card_that_goes_is_the_end() {
    let mut pair = Pair::new();
    pair.wires[0].lock().unwrap().link = false;
    pair.turns(1);
    assert_eq!(pair.events(), [EventKind::LinkDown]);
    assert!(!pair.ends[0].is_link_up() && pair.ends[0].next_deadline().is_some());
    pair.wires[0].lock().unwrap().gone = true;
    pair.turns(2);
    assert_eq!(pair.events(), [EventKind::DeviceGone]);
    let to = pair.ends[1].address();
    let [gone, _] = &mut pair.ends;
    assert_eq!((gone.next_deadline(), gone.how().as_str()), (None, "closed"));
    assert!(matches!(gone.arm().unwrap(), Armed::Sleep(_)));
    let (tx, rx) = gone.split();
    assert_eq!((tx.reserve(Channel::Data, 1), rx.poll(Channel::Data, 8)), (0, 0));
    assert!(
        gone.open(&to, Incarnation(1))
            .unwrap_err()
            .to_string()
            .contains("has ended")
    );
    assert!(gone.close(Time::ZERO, Time::ZERO));
}

#[test]
fn entries_that_lie_are_counted_and_their_buffers_used_again() {
    let mut pair = Pair::new();
    for round in 0..3 * ENTRIES as u64 {
        let lies = [SIZE + 1, 20, HEADERS_IPV4];
        pair.wires[1].lock().unwrap().lies.extend(lies);
        for _ in lies {
            pair.post(Channel::Data, b"its entry is wrong");
        }
        pair.post(Channel::Data, &round.to_le_bytes());
        let frame = pair.take(Channel::Data).expect("buffers come back");
        assert!(frame.ends_with(&round.to_le_bytes()), "{round}");
    }
    let stats = pair.ends[1].stats();
    let rounds = 3 * ENTRIES as u64;
    assert_eq!(
        (stats.nonsense, stats.malformed),
        (rounds, 2 * rounds),
        "{stats:?}"
    );
}
