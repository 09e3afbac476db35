//! A thread and a world for each rank: calls that wait, and requests that are posted ahead of them.
//!
//! Both ranks go through the same list of all messages. The sender of the next one sends it, by a call
//! that waits or by a request that is waited for later; the other one receives it, or has posted a receive
//! for it before. So no order of waits can end in a circle.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use doorbell::oob::lines::tcp::blocking::Accepted;
use doorbell::oob::{Connection, JobKey, Listener};
use doorbell::{Builder, Error, Region, Request, World, terms};
use doorbell_fabric::memory::SharedBytes;
use doorbell_pml::{Protocol, Rank, Source};
use doorbell_sim::Random;

use super::shape::Shape;
use super::{FUNCTION, Lab, UsnicOutcome, adapter};
use crate::books::{Books, Spec};
use crate::failure::Kind;
use crate::job::caught;
use crate::plan::{MOST, Message, Plan};

/// Longer than a meeting takes on a machine with much else to do.
const MEETING: Duration = Duration::from_secs(30);
/// Receives that are posted ahead, at most, and sends that are waited for later.
pub(crate) const AHEAD: usize = 6;

pub(super) fn play(seed: u64, shape: &Shape, plan: &Plan, lab: &Lab) -> Result<UsnicOutcome, Kind> {
    let (call, answer) = meet()?;
    let order = order(seed, plan);
    let names = [0, 1].map(|side: usize| lab.adapters[side].rail_name(FUNCTION));
    let rank = |rank: u32, line: Connection| {
        caught(|| {
            let world = raise(shape, &names[rank as usize], rank, line)?;
            Walker::new(&world, seed, plan, shape.manners.eagerness, Vec::new()).go_through(&order)?;
            let drops = world.counters().map_err(other)?.drops;
            world.close();
            if drops.total() > 0 {
                return Err(Kind::Other(format!("rank {rank} has dropped {drops:?}")));
            }
            Ok(())
        })
    };
    let [zero, one] = thread::scope(|scope| {
        let one = scope.spawn(|| rank(1, answer));
        let zero = rank(0, call);
        [
            zero,
            one.join()
                .unwrap_or_else(|_| Err(Kind::Panic("of a rank".to_owned()))),
        ]
    });
    match (zero, one) {
        (Ok(()), Ok(())) => Ok(UsnicOutcome::default()),
        // The end of one is the end of the other: both reasons are reported.
        (Err(kind), Err(also)) => Err(Kind::Other(format!("rank 0: {kind}\nrank 1: {also}"))),
        (Err(kind), Ok(())) | (Ok(()), Err(kind)) => Err(kind),
    }
}

/// The two ends of a connection over which they meet.
fn meet() -> Result<(Connection, Connection), Kind> {
    let mut key = [0; 32];
    key[0] = 7;
    let key = JobKey::from_bytes(key);
    let here = "127.0.0.1:0".parse().map_err(other::<std::net::AddrParseError>)?;
    let mut listener = Listener::bind(here, terms(Some(key.clone())).map_err(other)?).map_err(other)?;
    let to = listener.address().into();
    thread::scope(|scope| {
        let call = scope.spawn(move || {
            let terms = terms(Some(key)).map_err(other)?;
            Connection::connect(&to, &terms, MEETING).map_err(other)
        });
        let answer = match listener.accept(None, Some(MEETING)).map_err(other)? {
            Accepted::Connection(guest) => *guest,
            _ => return Err(Kind::Other("no client came to the meeting".to_owned())),
        };
        let call = call
            .join()
            .unwrap_or_else(|_| Err(Kind::Panic("of a caller".to_owned())))?;
        Ok((call, answer))
    })
}

fn raise(shape: &Shape, rail: &str, rank: u32, line: Connection) -> Result<World, Kind> {
    let address = format!("{}/24", adapter::address(rank as usize));
    let protocol = match shape.protocol {
        Protocol::Fragments => "fragments",
        Protocol::Put => "put",
        _ => "auto",
    };
    let on = |is_on: bool| if is_on { "on" } else { "off" };
    Builder::new()
        .without_environment()
        .set("rails.list", rail)
        .set("usnic.address", &address)
        .set("usnic.checksum", on(shape.checksum))
        .set("usnic.send_ring", &shape.ring.to_string())
        .set("usnic.receive_ring", &shape.ring.to_string())
        .set("udp.mtu", &shape.mtu.to_string())
        .set("btl.frame_mac", on(shape.frame_mac))
        .set("pml.protocol", protocol)
        .set("progress.wait", "sleep")
        .set("counters.place", "off")
        .set("wait.deadline", "120 s")
        .set("wait.quiet", "60 s")
        .build_over(line)
        .map_err(other)
}

/// All messages in one order, in which those of each sender keep theirs.
pub(crate) fn order(seed: u64, plan: &Plan) -> Vec<Message> {
    let mut random = Random::for_part(seed, &[33]);
    let mut left: Vec<_> = plan
        .by_sender
        .iter()
        .map(|sent| sent.iter().copied().peekable())
        .collect();
    let mut all = Vec::new();
    while left.iter_mut().any(|sent| sent.peek().is_some()) {
        let from = random.below(left.len() as u64) as usize;
        all.extend(left[from].next());
    }
    all
}

struct Ahead<'w> {
    request: Request<'w>,
    buffer: Region,
    name: u64,
}

/// One rank in its thread.
pub(crate) struct Walker<'w> {
    world: &'w World,
    plan: &'w Plan,
    books: Books,
    random: Random,
    eagerness: u64,
    sends: VecDeque<Ahead<'w>>,
    receives: VecDeque<Ahead<'w>>,
    pool: Vec<Region>,
    room: Vec<u8>,
}

impl<'w> Walker<'w> {
    /// `pool` is memory of earlier ones.
    pub(crate) fn new(
        world: &'w World,
        seed: u64,
        plan: &'w Plan,
        eagerness: u64,
        pool: Vec<Region>,
    ) -> Self {
        let rank = world.rank();
        Self {
            world,
            plan,
            books: Books::new(plan, rank, world.size()),
            random: Random::for_part(seed, &[34, rank.into()]),
            eagerness,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            pool,
            room: vec![0; MOST],
        }
    }

    /// Sends and receives all of it; the memory is there for the next one.
    pub(crate) fn go_through(mut self, order: &[Message]) -> Result<Vec<Region>, Kind> {
        let rank = self.world.rank();
        for (at, message) in order.iter().enumerate() {
            if message.from == rank {
                self.send(message)?;
            } else if message.to == rank {
                let later = order[at..].iter().filter(|later| later.to == rank);
                self.receive(message, later)?;
            }
        }
        while self
            .sends
            .pop_front()
            .map(|open| self.sent(open))
            .transpose()?
            .is_some()
        {}
        match self.books.left {
            0 => Ok(self.pool),
            _ => Err(Kind::Lost(self.books.missing(self.plan))),
        }
    }

    fn send(&mut self, message: &Message) -> Result<(), Kind> {
        let (to, tag) = (message.to, message.tag);
        if self.random.below(100) < self.eagerness {
            let buffer = self.buffer()?;
            self.plan.fill(message, |at, piece| _ = buffer.write(at, piece));
            let bytes = buffer.slice(0, message.length);
            let bytes = bytes.ok_or_else(|| Kind::Other("a message longer than its buffer".to_owned()))?;
            let request = if message.synchronous {
                self.world.issend_region(to, tag, bytes)
            } else {
                self.world.isend_region(to, tag, bytes)
            };
            let request = request.map_err(other)?;
            self.sends.push_back(Ahead {
                request,
                buffer,
                name: 0,
            });
            if self.sends.len() > AHEAD
                && let Some(oldest) = self.sends.pop_front()
            {
                self.sent(oldest)?;
            }
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut self.room);
        self.plan.fill(message, |at, piece| {
            bytes[at..at + piece.len()].copy_from_slice(piece)
        });
        let whole = &bytes[..message.length];
        let sent = if message.synchronous {
            self.world.ssend(to, tag, whole)
        } else {
            self.world.send(to, tag, whole)
        };
        self.room = bytes;
        sent.map_err(other)
    }

    fn sent(&mut self, open: Ahead<'w>) -> Result<(), Kind> {
        open.request.wait().map_err(other)?;
        self.pool.push(open.buffer);
        Ok(())
    }

    /// Receives `message`, the first of `later`.
    fn receive<'m>(
        &mut self,
        message: &Message,
        later: impl Iterator<Item = &'m Message>,
    ) -> Result<(), Kind> {
        if self.random.below(2) == 0 {
            // As many as are not posted yet; one of them is the next.
            let more = 1 + self.random.below(AHEAD as u64) as usize;
            for message in later.take(more).skip(self.receives.len()) {
                self.post(message)?;
            }
        }
        if let Some(open) = self.receives.pop_front() {
            return self.received(open);
        }
        let name = self.books.posted(spec(message));
        let mut room = std::mem::take(&mut self.room);
        let got = self.world.recv(message.from, message.tag, &mut room[..]);
        let status = got.map_err(other)?;
        let bytes = SharedBytes::of(&room[..status.len]);
        self.books
            .received(self.plan, name, status.source, status.tag, bytes)?;
        self.room = room;
        Ok(())
    }

    fn post(&mut self, message: &Message) -> Result<(), Kind> {
        let buffer = self.buffer()?;
        let request = self.world.irecv_region(message.from, message.tag, buffer.whole());
        let request = request.map_err(other)?;
        let name = self.books.posted(spec(message));
        self.receives.push_back(Ahead {
            request,
            buffer,
            name,
        });
        Ok(())
    }

    fn received(&mut self, open: Ahead<'w>) -> Result<(), Kind> {
        let status = open.request.wait().map_err(other)?;
        let whole = open.buffer.whole();
        let bytes = whole.as_shared().take(status.len);
        self.books
            .received(self.plan, open.name, status.source, status.tag, bytes)?;
        // What the next message leaves of this one must not look right.
        open.buffer.write(0, &[0xdb; 64]);
        self.pool.push(open.buffer);
        Ok(())
    }

    fn buffer(&mut self) -> Result<Region, Kind> {
        match self.pool.pop() {
            Some(region) => Ok(region),
            None => self.world.region(MOST).map_err(other::<Error>),
        }
    }
}

fn spec(message: &Message) -> Spec {
    Spec {
        from: Source::Rank(Rank(message.from)),
        context: 0,
        tag: message.tag,
        ignore: 0,
    }
}

fn other<E: ToString>(error: E) -> Kind {
    Kind::Other(error.to_string())
}
