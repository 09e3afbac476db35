//! `--provider`: each rank is a client of the libfabric provider, with a domain over two simulated rails.
//!
//! ```text
//!   player ─────► fi_tsend, fi_tinject, fi_trecv, fi_cancel, FI_PEEK ─┐
//!   aside ──────► fi_inject, FI_MULTI_RECV ───────────────────────────┤
//!   operations ─► fi_write, fi_read, fi_atomic, fi_fetch_atomic ──────┴─► domain ─► member ─┬─► rail
//!   completions ◄── fi_cq_readfrom: each once, of an operation that is open                 └─► rail
//! ```
//!
//! A context of the plan is an endpoint. Ranks meet when one first needs another, over their desks, which are
//! sockets of this host.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use doorbell_fabric::memory::{Region, RegionSlice};
use doorbell_fabric::time::Time;
use doorbell_fi::simulated::{Client, Completion, Pattern, Setup};
use doorbell_job::Config;
use doorbell_job::config::{CounterPlace, Protocol, Resume, Size};
use doorbell_job::rails::AnyRail;
use doorbell_pml::{Pml, Rank};
use doorbell_sim::{Plane, Random, SimNet};
use libfabric_sys::{
    FI_ADDR_UNSPEC, FI_DELIVERY_COMPLETE, FI_DISCARD, FI_EAGAIN, FI_ECANCELED, FI_EHOSTUNREACH, FI_ENOMSG,
    FI_MORE, FI_MULTI_RECV, FI_PEEK, FI_READ, FI_SEND, FI_WRITE, fi_addr_t,
};

use super::operations::{OneSided, Operations};
use super::run::rails_of;
use super::seat::{Beside, Both, Seat};
use super::shape::Shape;
use crate::books::Spec;
use crate::end::{End, Ended, Received, Trouble};
use crate::failure::Kind;
use crate::plan::{CONTEXTS, Message};

/// How long a call may wait for others in real time: not at all, since one thread makes the calls of all.
const LINGER: Duration = Duration::from_millis(1);
/// Reads of its queues that a client makes in one step.
const READS: [u32; 3] = [1, 4, 16];

/// An operation of the plan.
#[derive(Debug)]
pub(crate) struct Operation {
    number: u64,
    endpoint: usize,
    /// The rank that it is for, or from, where it is for one.
    peer: Option<u32>,
}

/// A rank's client.
pub(crate) struct Seated {
    /// `None` when its process has died.
    client: Option<Client>,
    net: SimNet,
    rank: u32,
    reads: u32,
    /// The endpoints of all ranks, by rank and endpoint.
    addresses: Vec<Vec<fi_addr_t>>,
    ranks: HashMap<fi_addr_t, u32>,
    /// The numbers of the ranks in the member.
    numbers: Vec<Rank>,
    /// Completions that were read, by their operations.
    ended: HashMap<u64, Completion>,
    /// Those of operations for many messages.
    many: Vec<Completion>,
    /// The operation for many messages that is open.
    multi: Option<u64>,
    /// Messages that were injected and then lost, by the failures that reported them.
    lost_unasked: u64,
    /// The first thing that was wrong with a completion.
    wrong: Option<String>,
}

/// Opens a client for each rank; each has the names of all.
pub(crate) fn seats(seed: u64, net: &SimNet, shape: &Shape, planes: &[Plane]) -> Result<Vec<Seated>, Kind> {
    let mut random = Random::for_part(seed, &[32]);
    let config = config_of(shape);
    let mut clients = Vec::new();
    for rank in 0..shape.ranks {
        let setup = Setup {
            config: config.clone(),
            net,
            number: random.next_u64(),
            endpoints: usize::from(CONTEXTS),
            apart: random.below(2) == 0,
        };
        let rails = rails_of(seed, net, shape, planes, rank)?;
        clients.push(Client::open(setup, rails).map_err(|error| Kind::Other(error.to_string()))?);
    }
    let names: Vec<Vec<Vec<u8>>> = clients
        .iter()
        .map(|client| (0..usize::from(CONTEXTS)).map(|at| client.name(at)).collect())
        .collect();
    let seat = |(rank, client): (u32, Client)| {
        let reads = READS[random.below(READS.len() as u64) as usize];
        Seated::new(client, net, rank, reads, &names)
    };
    Ok((0..).zip(clients).map(seat).collect())
}

fn config_of(shape: &Shape) -> Config {
    let mut config = Config::default();
    config.pml.protocol.set(match shape.pml.protocol {
        doorbell_pml::Protocol::Auto => Protocol::Auto,
        doorbell_pml::Protocol::Get => Protocol::Get,
        doorbell_pml::Protocol::Put => Protocol::Put,
        doorbell_pml::Protocol::Fragments => Protocol::Fragments,
    });
    config.pml.resume.set(match shape.pml.resume {
        doorbell_pml::Resume::Missing => Resume::Missing,
        doorbell_pml::Resume::FromZero => Resume::FromZero,
    });
    config.pml.handshake.set(shape.pml.handshake);
    config.pml.patience.set(shape.pml.patience);
    config.pml.unexpected.set(Size(shape.pml.window as usize));
    config.counters.place.set(CounterPlace::Off);
    config.wait.close.set(LINGER);
    // It never yields the core.
    config.progress.spins.set(Some(u32::MAX));
    config
}

fn other(error: impl ToString) -> Trouble {
    Trouble::Other(error.to_string())
}

impl Seated {
    fn new(mut client: Client, net: &SimNet, rank: u32, reads: u32, names: &[Vec<Vec<u8>>]) -> Self {
        let mut insert = |name: &Vec<u8>| client.insert(name);
        let addresses: Vec<Vec<fi_addr_t>> = names
            .iter()
            .map(|of| of.iter().map(&mut insert).collect())
            .collect();
        let ranks = (0..).zip(&addresses);
        let ranks = ranks.flat_map(|(rank, all)| all.iter().map(move |address| (*address, rank)));
        let mut seated = Self {
            client: Some(client),
            net: net.clone(),
            rank,
            reads,
            ranks: ranks.collect(),
            numbers: Vec::new(),
            addresses,
            ended: HashMap::new(),
            many: Vec::new(),
            multi: None,
            lost_unasked: 0,
            wrong: None,
        };
        seated.number_all();
        seated
    }

    /// A peer that was lost and calls again has another number.
    fn number_all(&mut self) {
        let Some(client) = &mut self.client else { return };
        let number = |all: &Vec<fi_addr_t>| client.rank_of(all[0]).unwrap_or(Rank(u32::MAX));
        self.numbers = self.addresses.iter().map(number).collect();
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect("a rank that lives")
    }

    fn client_mut(&mut self) -> &mut Client {
        self.client.as_mut().expect("a rank that lives")
    }

    /// Reads the queues once; returns whether there was anything.
    fn read(&mut self) -> bool {
        let Some(client) = &mut self.client else {
            return false;
        };
        let (ended, many, wrong) = (&mut self.ended, &mut self.many, &mut self.wrong);
        let (multi, lost) = (self.multi, &mut self.lost_unasked);
        let mut found = false;
        client.read(&mut |completion| {
            found = true;
            if completion.operation == 0 && completion.failure.is_some() {
                *lost += 1;
            } else if !completion.was_open {
                wrong.get_or_insert(format!("an operation has ended twice: {completion:?}"));
            } else if Some(completion.operation) == multi {
                many.push(completion);
            } else if let Some(before) = ended.insert(completion.operation, completion) {
                wrong.get_or_insert(format!("two completions of one operation: {before:?}"));
            }
        });
        found
    }

    /// Reads the queues until they are empty.
    fn read_all(&mut self) {
        while self.read() {}
    }

    /// The rank that a failure is about, by its text.
    fn lost_one(&self, operation: &Operation, text: &str) -> Trouble {
        if let Some(rank) = operation.peer {
            return Trouble::Lost(rank);
        }
        let names = |rank: &u32| {
            let name = self.client().name_of(self.numbers[*rank as usize]);
            text.starts_with(&name)
        };
        match (0..self.numbers.len() as u32).find(names) {
            Some(rank) => Trouble::Lost(rank),
            None => Trouble::Other(format!("a failure that names no peer: {text}")),
        }
    }

    fn judge(&self, operation: &Operation, completion: Completion) -> Ended {
        match completion.failure {
            Some((FI_ECANCELED, _)) => return Ended::Cancelled,
            Some((FI_EHOSTUNREACH, text)) => return Ended::Badly(self.lost_one(operation, &text)),
            Some(failure) => return Ended::Badly(Trouble::Other(format!("{failure:?}"))),
            None => {}
        }
        let mut received = Received {
            from: self.rank,
            tag: completion.tag,
            length: completion.length,
        };
        if operation.peer.is_some() && completion.flags & (FI_SEND | FI_READ | FI_WRITE) != 0 {
            return Ended::Well(received);
        }
        let Some(&from) = self.ranks.get(&completion.sender) else {
            return Ended::Badly(Trouble::Other(format!(
                "a message of an unknown sender: {completion:?}"
            )));
        };
        if self.addresses[from as usize][operation.endpoint] != completion.sender {
            return Ended::Badly(Trouble::Other(format!(
                "a message of another endpoint: {completion:?}"
            )));
        }
        if completion
            .data
            .is_some_and(|data| data != data_of(from, completion.tag))
        {
            return Ended::Badly(Trouble::Other(format!(
                "a message with wrong data: {completion:?}"
            )));
        }
        received.from = from;
        Ended::Well(received)
    }
}

/// The data of those messages that have some.
fn data_of(from: u32, tag: u64) -> u64 {
    u64::from(from) << 32 | tag & 0xff
}

impl End for Seated {
    type Request = Operation;

    fn receive(&mut self, spec: Spec, room: RegionSlice) -> Result<Operation, Trouble> {
        let endpoint = usize::from(spec.context);
        let peer = spec.from.rank().map(|rank| rank.0);
        let from = peer.map_or(FI_ADDR_UNSPEC, |rank| self.addresses[rank as usize][endpoint]);
        let pattern = Pattern {
            from,
            tag: spec.tag,
            ignore: spec.ignore,
        };
        let number = self
            .client_mut()
            .receive_tagged(endpoint, pattern, room)
            .map_err(other)?;
        Ok(Operation {
            number,
            endpoint,
            peer,
        })
    }

    fn send(&mut self, message: &Message, bytes: RegionSlice) -> Result<Option<Operation>, Trouble> {
        let endpoint = usize::from(message.context);
        let to = self.addresses[message.to as usize][endpoint];
        let flags = match message.number % 4 {
            _ if message.synchronous => FI_DELIVERY_COMPLETE,
            0 => FI_MORE,
            _ => 0,
        };
        let data = message
            .number
            .is_multiple_of(3)
            .then(|| data_of(self.rank, message.tag));
        let number = self
            .client_mut()
            .send_tagged(endpoint, to, message.tag, data, bytes, flags)
            .map_err(other)?;
        Ok(Some(Operation {
            number,
            endpoint,
            peer: Some(message.to),
        }))
    }

    fn inject(&mut self, message: &Message, bytes: &[u8]) -> Result<bool, Trouble> {
        let endpoint = usize::from(message.context);
        let to = self.addresses[message.to as usize][endpoint];
        match self.client_mut().inject(endpoint, to, Some(message.tag), bytes) {
            Ok(()) => Ok(true),
            Err(FI_EAGAIN) => Ok(false),
            Err(FI_EHOSTUNREACH) => Err(Trouble::Lost(message.to)),
            Err(error) => Err(other(error)),
        }
    }

    fn test(&mut self, request: &mut Operation) -> Option<Ended> {
        let completion = self.ended.remove(&request.number)?;
        Some(self.judge(request, completion))
    }

    fn cancel(&mut self, request: &mut Operation) -> bool {
        let (endpoint, number) = (request.endpoint, request.number);
        if self.ended.contains_key(&number) {
            return false;
        }
        self.client_mut().cancel(endpoint, number);
        self.read_all();
        let ended = self.ended.get(&number);
        ended.is_some_and(|ended| matches!(ended.failure, Some((FI_ECANCELED, _))))
    }

    fn explain(&self, request: &Operation) -> Option<String> {
        if self.ended.contains_key(&request.number) {
            return None;
        }
        let lines = self.pml().live_lines().join("; ");
        Some(format!("rank {}: {request:?} has not ended; {lines}", self.rank))
    }

    fn has_lost(&self, rank: u32) -> bool {
        self.pml().lost(self.number(rank)).is_some()
    }

    fn discard(&mut self, rank: u32) {
        for endpoint in 0..usize::from(CONTEXTS) {
            let pattern = Pattern {
                from: self.addresses[rank as usize][endpoint],
                tag: 0,
                ignore: u64::MAX,
            };
            while self.discard_one(endpoint, pattern) {}
        }
    }

    fn progress(&mut self, _: Time) -> bool {
        let mut worked = false;
        for _ in 0..self.reads {
            worked |= self.read();
        }
        self.number_all();
        worked
    }

    fn must_poll(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.idle().1)
    }

    fn next_deadline(&self) -> Option<Time> {
        let idle = self.client.as_ref()?.idle().0?;
        Some(self.net.now() + idle)
    }

    /// What is left of the time is the same on both clocks.
    fn close(&mut self, now: Time, by: Time) -> bool {
        let until = Instant::now() + by.since(now);
        self.client.as_mut().is_none_or(|client| client.close_pass(until))
    }

    fn leftovers(&self) -> Option<String> {
        let open = self.client().under_way();
        (open > 0).then(|| format!("{open} operations"))
    }
}

impl Seated {
    /// Looks for a message and throws it away, in one call or in two; returns whether there was one.
    fn discard_one(&mut self, endpoint: usize, pattern: Pattern) -> bool {
        let Ok(number) = self.client_mut().peek(endpoint, pattern, FI_PEEK | FI_DISCARD) else {
            return false;
        };
        while !self.ended.contains_key(&number) && self.read() {}
        let found = self.ended.remove(&number);
        match found.map(|completion| completion.failure) {
            Some(None) => true,
            Some(Some((FI_ENOMSG, _))) => false,
            other => {
                self.wrong
                    .get_or_insert(format!("a search has ended with {other:?}"));
                false
            }
        }
    }
}

impl Seat for Seated {
    type Aside = Both<Aside, Operations<Operation>>;

    fn pml(&self) -> &Pml<AnyRail> {
        self.client().pml()
    }

    fn number(&self, rank: u32) -> Rank {
        self.numbers[rank as usize]
    }

    fn check(&self, open: usize) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(format!("has got what cannot be: {wrong}"));
        }
        if self.lost_unasked > 0 && self.pml().counters().peers_lost == 0 {
            return Err("has lost messages that were injected, and no peer".to_owned());
        }
        let unread = self.ended.len() + self.client().under_way();
        match unread == open {
            true => Ok(()),
            false => Err(format!(
                "has {open} operations open, and {unread} are under way or have ended"
            )),
        }
    }

    /// The lines of the desks show it.
    fn peer_died(&mut self, _: Time, _: u32) {}

    fn die(&mut self) {
        self.client = None;
    }
}

/// The key of the memory that each rank has registered.
const KEY: u64 = 0xd00b;

impl Seated {
    /// The operation of a call, which may be refused for the moment.
    fn one_sided(&self, peer: u32, started: Result<u64, i32>) -> Result<Option<Operation>, Trouble> {
        match started {
            Ok(number) => Ok(Some(Operation {
                number,
                endpoint: 0,
                peer: Some(peer),
            })),
            Err(FI_EAGAIN) => Ok(None),
            Err(error) => Err(Trouble::Other(format!("a one-sided call: {error}"))),
        }
    }
}

impl OneSided for Seated {
    fn expose(&mut self, memory: RegionSlice) -> Result<(), Kind> {
        self.client_mut().register(memory, KEY);
        Ok(())
    }

    fn put(&mut self, to: u32, at: u64, bytes: RegionSlice) -> Result<Option<Operation>, Trouble> {
        let peer = self.addresses[to as usize][0];
        let started = self.client_mut().write(0, peer, (at, KEY), bytes);
        self.one_sided(to, started)
    }

    fn get(&mut self, from: u32, at: u64, room: RegionSlice) -> Result<Option<Operation>, Trouble> {
        let peer = self.addresses[from as usize][0];
        let started = self.client_mut().read_memory(0, peer, (at, KEY), room);
        self.one_sided(from, started)
    }

    fn add(
        &mut self,
        to: u32,
        at: u64,
        [by, old]: [RegionSlice; 2],
        fetches: bool,
    ) -> Result<Option<Operation>, Trouble> {
        let peer = self.addresses[to as usize][0];
        let old = fetches.then_some(old);
        let started = self.client_mut().add(0, peer, (at, KEY), by, old);
        self.one_sided(to, started)
    }
}

/// Messages of each rank beside the plan, about.
const EACH: u32 = 100;
/// Room for many messages: for a few of the longest.
const ROOM: usize = 32 << 10;
/// The shortest and the longest message.
const SHORTEST: usize = 8;
const LONGEST: usize = 4096;

/// Memory for many messages that is open.
struct Many {
    operation: u64,
    room: Region,
    cancelled: bool,
    /// What has come: where, and whose and which message it is.
    taken: Vec<(usize, u32, u32)>,
}

/// Untagged messages, injected, and received many to one piece of memory: each once, and those of one sender
/// in the order of sending.
pub(crate) struct Aside {
    rank: u32,
    random: Random,
    pace: Duration,
    /// When the next message is sent.
    next: Time,
    many: Option<Many>,
    /// How many were sent to each rank, and have come from each.
    sent: Vec<u32>,
    came: Vec<u32>,
    bytes: u64,
    /// Messages that are kept, and that memory for many would not take.
    others: usize,
    pool: Option<Region>,
}

impl Beside<Seated> for Aside {
    /// Every second seed has something.
    fn of(seed: u64, rank: u32, ranks: u32, lasts: Duration) -> Option<Self> {
        seed.is_multiple_of(2).then(|| Self {
            rank,
            random: Random::for_part(seed, &[33, u64::from(rank)]),
            pace: lasts / EACH,
            next: Time::ZERO,
            many: None,
            sent: vec![0; ranks as usize],
            came: vec![0; ranks as usize],
            bytes: 0,
            others: 0,
            pool: None,
        })
    }

    fn step(&mut self, end: &mut Seated, now: Time) -> Result<(), Kind> {
        if self.next <= now {
            self.send(end)?;
            let most = 2 * u64::try_from(self.pace.as_nanos()).unwrap_or(u64::MAX / 2);
            self.next = now + Duration::from_nanos(self.random.below(most.max(1)));
        }
        match self.random.below(64) {
            0 => self.cancel(end),
            1..8 if self.many.is_none() => self.open_one(end)?,
            _ => {}
        }
        self.look(end)
    }

    fn clear_up(&mut self, end: &mut Seated) -> Result<(), Kind> {
        match self.many {
            Some(_) => self.cancel(end),
            // What is kept may be the plan's, of a rank that is lost.
            None if end.pml().in_use().kept != self.others => self.open_one(end)?,
            None => {}
        }
        self.look(end)
    }

    fn open(&self) -> usize {
        usize::from(self.many.is_some())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn missing(all: &[Option<&Self>], lives: &dyn Fn(u32, u32) -> bool) -> Option<String> {
        let all: Vec<&Self> = all.iter().copied().flatten().collect();
        let pairs = all.iter().flat_map(|from| all.iter().map(move |to| (from, to)));
        let mut living = pairs.filter(|(from, to)| lives(from.rank, to.rank));
        let (from, to) =
            living.find(|(from, to)| from.sent[to.rank as usize] != to.came[from.rank as usize])?;
        let (sent, came) = (from.sent[to.rank as usize], to.came[from.rank as usize]);
        let (from, to) = (from.rank, to.rank);
        Some(format!(
            "rank {from} has injected {sent} messages to {to}, of which {came} have come"
        ))
    }
}

impl Aside {
    fn send(&mut self, end: &mut Seated) -> Result<(), Kind> {
        let to = self.random.below(self.sent.len() as u64) as usize;
        let top = 1 << self.random.below(13);
        let length = (SHORTEST + self.random.below(top) as usize).min(LONGEST);
        let mut bytes = vec![0xa5; length];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.sent[to].to_le_bytes());
        let address = end.addresses[to][0];
        match end.client_mut().inject(0, address, None, &bytes) {
            Ok(()) => {
                self.sent[to] += 1;
                self.bytes += length as u64;
                Ok(())
            }
            // A rank that is lost and should not be is found by the players.
            Err(FI_EAGAIN | FI_EHOSTUNREACH) => Ok(()),
            Err(error) => Err(Kind::Other(format!("beside the plan: fi_inject: {error}"))),
        }
    }

    fn open_one(&mut self, end: &mut Seated) -> Result<(), Kind> {
        let room = match self.pool.take() {
            Some(room) => room,
            None => Region::new(ROOM).map_err(|error| Kind::Other(error.to_string()))?,
        };
        let posted = end.client_mut().receive_many(0, room.whole());
        let operation =
            posted.map_err(|error| Kind::Other(format!("beside the plan: fi_recvmsg: {error}")))?;
        end.multi = Some(operation);
        self.many = Some(Many {
            operation,
            room,
            cancelled: false,
            taken: Vec::new(),
        });
        Ok(())
    }

    fn cancel(&mut self, end: &mut Seated) {
        if let Some(many) = &mut self.many
            && !many.cancelled
        {
            many.cancelled = true;
            self.others = end.pml().in_use().kept;
            end.client_mut().cancel(0, many.operation);
        }
    }

    /// Takes what came into the memory that is open.
    fn look(&mut self, end: &mut Seated) -> Result<(), Kind> {
        for completion in std::mem::take(&mut end.many) {
            self.take(&completion)?;
        }
        Ok(())
    }

    fn take(&mut self, completion: &Completion) -> Result<(), Kind> {
        let wrong = || Kind::Other(format!("beside the plan: {completion:?}"));
        let many = self.many.as_mut().ok_or_else(wrong)?;
        let cancelled = match &completion.failure {
            Some((FI_ECANCELED, _)) if many.cancelled => true,
            Some(_) => return Err(wrong()),
            None => false,
        };
        if completion.length > 0 {
            let mut stamp = [0; SHORTEST];
            let rest = vec![0xa5; completion.length - SHORTEST];
            let mut came = rest.clone();
            let whole = many.room.whole();
            whole.copy_to(completion.offset, &mut stamp);
            whole.copy_to(completion.offset + SHORTEST, &mut came);
            if came != rest {
                return Err(Kind::Corrupt(format!("beside the plan: {completion:?}")));
            }
            let [from, number] =
                [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte| stamp[at + byte])));
            many.taken.push((completion.offset, from, number));
        }
        match cancelled || completion.flags & FI_MULTI_RECV != 0 {
            true => self.over(),
            false => Ok(()),
        }
    }

    /// The memory is given back: what is in it is in the order of matching.
    fn over(&mut self) -> Result<(), Kind> {
        let Some(mut many) = self.many.take() else {
            return Ok(());
        };
        many.taken.sort_unstable();
        for (_, from, number) in many.taken {
            let next = self
                .came
                .get_mut(from as usize)
                .ok_or_else(|| Kind::Corrupt(format!("an untagged message of rank {from}")))?;
            let text = || {
                format!(
                    "rank {} got the untagged message {number} of rank {from}, and not {next}",
                    self.rank
                )
            };
            match number.cmp(next) {
                std::cmp::Ordering::Less => return Err(Kind::Twice(text())),
                std::cmp::Ordering::Greater => return Err(Kind::Misordered(text())),
                std::cmp::Ordering::Equal => *next += 1,
            }
        }
        self.pool = Some(many.room);
        Ok(())
    }
}
