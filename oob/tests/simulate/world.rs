//! Whole jobs in one thread, on a virtual clock: nodes, the network between them, and what must hold of it
//! all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_oob::bytes::Bytes;
use doorbell_oob::config::{Config, Policy, Transport};
use doorbell_oob::contact::Contact;
use doorbell_oob::event::{Event, OpId, Output, SendId, Status};
use doorbell_oob::name::{Epoch, From, Name};
use doorbell_oob::node::Node;
use doorbell_oob::transport::{self, TransportId};
use doorbell_sim::Dice;

use crate::network::{Network, Port, Will, module_up};

pub(crate) const JOB: u64 = 7;
/// The tag of all messages.
pub(crate) const TAG: u32 = 1000;

/// Steps for each rank after which something must be going in circles.
const STEPS: u64 = 40_000;

/// What a job looks like.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) ranks: u32,
    pub(crate) radix: u32,
    pub(crate) transports: Vec<Transport>,
    /// Of each transport.
    pub(crate) subnets: Vec<u16>,
    /// Whether a rank has a NIC of a transport in a subnet.
    pub(crate) has: fn(u32, u8, u16) -> bool,
    pub(crate) seed: u64,
}

#[derive(Debug)]
enum Next {
    Tick(u32, u64),
    Will(Will),
}

/// Ordered by time, and then by who was first.
struct Entry(Time, u64, Next);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// A message as the books know it: sender's rank and life, receiver's rank, number.
type Letter = (u32, u64, u32, u64);

/// A job, its network, and its books.
pub(crate) struct World {
    pub(crate) shape: Shape,
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Option<Node>>,
    pub(crate) network: Network,
    pub(crate) dice: Dice,
    queue: BinaryHeap<Reverse<Entry>>,
    entries: u64,
    booked: Vec<Time>,
    /// Of each rank, the sends that have not ended: what they were.
    open: Vec<BTreeMap<SendId, Letter>>,
    /// Of each rank and life to each rank: how many were sent.
    counts: BTreeMap<(u32, u64, u32), u64>,
    /// Of each receiver and its life, of each sender: the last life and number that came.
    last: BTreeMap<(u32, u64, u32), (u64, u64)>,
    came: BTreeSet<Letter>,
    pub(crate) statuses: BTreeMap<Status, u64>,
    ops: Vec<BTreeSet<OpId>>,
    pub(crate) gathers: Vec<BTreeSet<u32>>,
    /// What happened, besides messages: (rank, event).
    pub(crate) events: Vec<(u32, Event)>,
    pub(crate) received: u64,
    pub(crate) casts: u64,
    /// Gathers that ended with every rank in the table.
    pub(crate) whole: u64,
    pub(crate) most_memory: usize,
    pub(crate) steps: u64,
    /// Nothing is broken: every message must arrive.
    pub(crate) calm: bool,
    /// More steps than these, and something goes in circles.
    pub(crate) most_steps: u64,
    /// Of each rank and life to each rank: the life of that when a message to it ended last.
    known: BTreeMap<(u32, u64, u32), u64>,
    /// Messages that ended because the sender had sent to an earlier life of the receiver, and with this
    /// learned of the new one.
    pub(crate) learned: Vec<(u32, u32)>,
    /// Ranks that have not posted a receive from the beginning.
    quiet: BTreeSet<u32>,
}

impl World {
    pub(crate) fn new(shape: Shape) -> Self {
        let ranks = shape.ranks as usize;
        let mut network = Network::new(shape.ranks, shape.subnets.clone(), shape.has, shape.seed);
        for (nth, transport) in shape.transports.iter().enumerate() {
            network.mutual |= u32::from(transport.mutual) << nth;
        }
        Self {
            now: Time::ZERO,
            nodes: (0..ranks).map(|_| None).collect(),
            network,
            dice: Dice::new(shape.seed),
            queue: BinaryHeap::new(),
            entries: 0,
            booked: vec![Time::NEVER; ranks],
            open: vec![BTreeMap::new(); ranks],
            counts: BTreeMap::new(),
            last: BTreeMap::new(),
            came: BTreeSet::new(),
            statuses: BTreeMap::new(),
            ops: vec![BTreeSet::new(); ranks],
            gathers: vec![BTreeSet::new(); ranks],
            events: Vec::new(),
            received: 0,
            casts: 0,
            whole: 0,
            most_memory: 0,
            steps: 0,
            calm: false,
            most_steps: STEPS * u64::from(shape.ranks),
            known: BTreeMap::new(),
            learned: Vec::new(),
            quiet: BTreeSet::new(),
            shape,
        }
    }

    pub(crate) fn config(&self, rank: u32) -> Config {
        let life = self.network.lives[rank as usize];
        let name = Name::new(JOB, rank);
        let transports = self.shape.transports.clone();
        Config {
            radix: self.shape.radix,
            policy: Policy::Persist,
            longest: 64 << 20,
            rto: Duration::from_millis(50),
            rto_max: Duration::from_secs(1),
            give_up: Duration::from_secs(20),
            connect: Duration::from_millis(500),
            retry: Duration::from_millis(20),
            retry_max: Duration::from_secs(1),
            grace: Duration::from_secs(2),
            hold: Duration::from_millis(50),
            margin: Duration::from_secs(4),
            ..Config::new(name, Epoch(life), self.shape.ranks, transports)
        }
    }

    /// Begins a life of a rank, with the contacts of its ancestors, as from a launcher.
    pub(crate) fn begin(&mut self, rank: u32) {
        self.begin_as(rank, |config| config, true);
    }

    pub(crate) fn begin_as(&mut self, rank: u32, change: impl Fn(Config) -> Config, post: bool) {
        let config = change(self.config(rank));
        let life = config.epoch.0;
        let mut node = Node::new(config, self.now);
        self.network.dead.remove(&rank);
        for (transport, event) in self.network.begin(Name::new(JOB, rank), life) {
            node.handle(self.now, transport, event);
        }
        let tree = doorbell_oob::routed::Tree::new(self.shape.ranks, self.shape.radix);
        for ancestor in tree.ancestors(rank) {
            node.learn(self.now, self.contact(ancestor));
        }
        if !post {
            self.quiet.insert(rank);
        } else {
            node.post(self.now, From::ANYBODY, TAG, true).expect("the first");
        }
        node.start(self.now);
        self.nodes[rank as usize] = Some(node);
        self.after(rank);
    }

    /// Where a rank can be reached, as the launcher knows it.
    pub(crate) fn contact(&self, rank: u32) -> Contact {
        let mut contact = Contact::new(Name::new(JOB, rank), Epoch::UNKNOWN);
        for (nth, transport) in self.shape.transports.iter().enumerate() {
            let subnets = 0..self.shape.subnets[nth];
            let nics = subnets.filter(|&subnet| (self.shape.has)(rank, nth as u8, subnet));
            let addresses: Vec<String> = nics.map(|subnet| format!("{subnet}.{rank}")).collect();
            let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
            contact = contact.with(&transport.name, &addresses);
        }
        contact
    }

    pub(crate) fn begin_all(&mut self) {
        for rank in 0..self.shape.ranks {
            self.begin(rank);
        }
    }

    fn push(&mut self, at: Time, next: Next) {
        self.entries += 1;
        self.queue
            .push(Reverse(Entry(at.max(self.now), self.entries, next)));
    }

    fn life(&self, rank: u32) -> u64 {
        self.network.lives[rank as usize]
    }

    /// Takes a node's commands and events, and books its next time.
    pub(crate) fn after(&mut self, rank: u32) {
        let life = self.life(rank);
        while let Some(output) = self.nodes[rank as usize].as_mut().and_then(Node::output) {
            match output {
                Output::Command(transport, command) => {
                    self.network.command(self.now, (rank, life, transport.0), command);
                }
                Output::Event(event) => self.told(rank, event),
            }
        }
        for (at, will) in std::mem::take(&mut self.network.soon) {
            self.push(at, Next::Will(will));
        }
        if let Some(at) = self.nodes[rank as usize].as_ref().and_then(Node::next_deadline)
            && at < self.booked[rank as usize]
        {
            self.booked[rank as usize] = at;
            self.push(at, Next::Tick(rank, life));
        }
        if self.steps.is_multiple_of(64)
            && let Some(node) = &self.nodes[rank as usize]
        {
            self.most_memory = self.most_memory.max(node.memory());
        }
    }

    fn drain_network(&mut self) {
        for (at, will) in std::mem::take(&mut self.network.soon) {
            self.push(at, Next::Will(will));
        }
    }

    fn told(&mut self, rank: u32, event: Event) {
        match event {
            Event::Received { from, body, .. } => self.got(rank, from, &body),
            Event::Sent { send, status, .. } => {
                let sent = self.open[rank as usize].remove(&send);
                let sent = sent
                    .unwrap_or_else(|| panic!("seed {}: {send:?} of {rank} ended twice", self.shape.seed));
                *self.statuses.entry(status).or_default() += 1;
                let learns = self.learns(sent, status);
                let calm = self.calm && status != Status::Delivered && !learns;
                assert!(
                    !calm,
                    "{sent:?} ends as {status:?}, though nothing is broken: {}",
                    self.explain(sent)
                );
                if status == Status::Delivered {
                    let here = sent.2 == rank || self.came.contains(&sent) || self.quiet.contains(&sent.2);
                    assert!(
                        here,
                        "seed {}: {sent:?} is reported as delivered, and is not",
                        self.shape.seed
                    );
                }
            }
            Event::BroadcastEnded { op, .. } => {
                assert!(
                    self.ops[rank as usize].remove(&op),
                    "seed {}: {op:?} ended twice",
                    self.shape.seed
                );
                self.events.push((rank, event));
            }
            Event::Gathered { id, .. } | Event::GatherFailed { id, .. } => {
                let open = self.gathers[rank as usize].remove(&id);
                assert!(
                    open,
                    "seed {}: gather {id} of {rank} ended twice",
                    self.shape.seed
                );
                let whole = matches!(&event, Event::Gathered { missing, .. } if missing.is_empty());
                self.whole += u64::from(whole);
                // Tables of ten thousand, ten thousand times, are too many to keep.
                if self.shape.ranks < 2000 {
                    self.events.push((rank, event));
                }
            }
            Event::Broadcast { .. } => {
                self.casts += 1;
                self.events.push((rank, event));
            }
            event => self.events.push((rank, event)),
        }
    }

    /// Whether a sender learns with this that the receiver, to which it has sent before, has a new life.
    fn learns(&mut self, (from, life, to, _): Letter, status: Status) -> bool {
        let lives = self.life(to);
        let before = match status {
            Status::Delivered | Status::PeerRestarted => self.known.insert((from, life, to), lives),
            _ => return false,
        };
        let learns = status == Status::PeerRestarted && before.is_some_and(|before| before < lives);
        if learns {
            self.learned.push((from, to));
        }
        learns
    }

    fn explain(&self, (from, _, to, _): Letter) -> String {
        let say = |rank: u32, of: u32| {
            let node = self.nodes[rank as usize].as_ref();
            node.map_or("it is dead".into(), |node| {
                format!("{node:?}: {}", node.explain(Name::new(JOB, of)))
            })
        };
        format!(
            "seed {} at {}\n  {}\n  {}",
            self.shape.seed,
            self.now,
            say(from, to),
            say(to, from)
        )
    }

    fn got(&mut self, rank: u32, from: Name, body: &Bytes) {
        let seed = self.shape.seed;
        let word = |at: usize| u64::from_be_bytes(body[at..at + 8].try_into().expect("eight bytes"));
        let (life, number, to) = (word(0), word(8), word(16));
        assert_eq!(to, u64::from(rank), "seed {seed}: a message for another rank");
        self.received += 1;
        let key = (rank, self.life(rank), from.rank);
        let before = self.last.insert(key, (life, number));
        assert!(
            before.is_none_or(|before| before < (life, number)),
            "seed {seed}: {from} to {rank}: {life}:{number} after {before:?}"
        );
        self.came.insert((from.rank, life, rank, number));
    }

    /// Sends a message of `length` bytes, at least 24.
    pub(crate) fn send(&mut self, from: u32, to: u32, length: usize) -> bool {
        let life = self.life(from);
        let count = self.counts.entry((from, life, to)).or_default();
        *count += 1;
        let message = (from, life, to, *count);
        let mut body = vec![0; length.max(24)];
        body[..8].copy_from_slice(&life.to_be_bytes());
        body[8..16].copy_from_slice(&message.3.to_be_bytes());
        body[16..24].copy_from_slice(&u64::from(to).to_be_bytes());
        let now = self.now;
        let Some(node) = &mut self.nodes[from as usize] else {
            return false;
        };
        let sent = node.send(now, Name::new(JOB, to), TAG, body.into(), None);
        let accepted = sent.is_ok();
        if let Ok(send) = sent {
            self.open[from as usize].insert(send, message);
        }
        self.after(from);
        accepted
    }

    pub(crate) fn broadcast(&mut self, from: u32, within: Duration) {
        let now = self.now;
        let Some(node) = &mut self.nodes[from as usize] else {
            return;
        };
        let body = Bytes::from(&from.to_be_bytes());
        if let Ok(op) = node.broadcast(now, TAG, &body, within) {
            self.ops[from as usize].insert(op);
        }
        self.after(from);
    }

    pub(crate) fn gather(&mut self, rank: u32, id: u32, body: &Bytes, within: Duration) {
        let now = self.now;
        let Some(node) = &mut self.nodes[rank as usize] else {
            return;
        };
        self.gathers[rank as usize].insert(id);
        node.gather(now, id, body, within);
        self.after(rank);
    }

    /// Lets time pass.
    pub(crate) fn run_until(&mut self, end: Time) {
        while self.queue.peek().is_some_and(|Reverse(entry)| entry.0 <= end) {
            self.step();
        }
        self.now = end;
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Lets time pass until something holds; the time it took, or nothing when it did not come to hold.
    pub(crate) fn run_while(
        &mut self,
        limit: Duration,
        mut goes_on: impl FnMut(&Self) -> bool,
    ) -> Option<Duration> {
        let begin = self.now;
        while goes_on(self) {
            let at = self.queue.peek().map(|Reverse(entry)| entry.0)?;
            if at > begin + limit {
                return None;
            }
            self.step();
        }
        Some(self.now.since(begin))
    }

    fn step(&mut self) {
        let Some(Reverse(Entry(at, _, next))) = self.queue.pop() else {
            return;
        };
        self.now = at;
        self.steps += 1;
        let most = self.most_steps;
        assert!(
            self.steps < most,
            "seed {}: no end after {most} steps, at {at}, with {next:?}",
            self.shape.seed
        );
        match next {
            Next::Tick(rank, life) => {
                // What was booked before something earlier came up is booked once more then.
                if life == self.life(rank)
                    && self.booked[rank as usize] <= at
                    && let Some(node) = &mut self.nodes[rank as usize]
                {
                    self.booked[rank as usize] = Time::NEVER;
                    node.tick(at);
                    self.after(rank);
                }
            }
            Next::Will(will) => {
                if let Some((port, event)) = self.network.happen(at, will) {
                    self.handle(port, event);
                }
                self.drain_network();
            }
        }
    }

    fn handle(&mut self, port: Port, event: transport::Event) {
        let now = self.now;
        if let Some(node) = &mut self.nodes[port.0 as usize] {
            node.handle(now, TransportId(port.2), event);
            self.after(port.0);
        }
    }

    /// A NIC goes down, or comes back.
    pub(crate) fn set_module(&mut self, rank: u32, transport: u8, subnet: u16, up: bool) {
        if !(self.shape.has)(rank, transport, subnet) || self.nodes[rank as usize].is_none() {
            return;
        }
        let life = self.life(rank);
        let event = if up {
            self.network.down.remove(&(rank, transport, subnet));
            module_up(rank, subnet)
        } else {
            self.network.down.insert((rank, transport, subnet));
            transport::Event::ModuleDown {
                module: transport::ModuleId(subnet),
            }
        };
        self.network.check_pipes(self.now);
        self.network.paths(self.now, (rank, life, transport));
        self.drain_network();
        self.handle((rank, life, transport), event);
    }

    /// A rank ends without a word.
    pub(crate) fn kill(&mut self, rank: u32) {
        self.network.kill(self.now, rank);
        self.drain_network();
        self.nodes[rank as usize] = None;
        self.booked[rank as usize] = Time::NEVER;
        self.open[rank as usize].clear();
        self.ops[rank as usize].clear();
        self.gathers[rank as usize].clear();
    }

    /// A rank that has ended begins again.
    pub(crate) fn restart(&mut self, rank: u32) {
        self.network.lives[rank as usize] += 1;
        self.begin(rank);
    }

    /// Parts these ranks from the others, or none.
    pub(crate) fn part(&mut self, apart: BTreeSet<u32>) {
        self.network.apart = apart;
        self.network.check_pipes(self.now);
        self.drain_network();
    }

    pub(crate) fn break_one(&mut self) {
        self.network.break_one(self.now);
        self.drain_network();
    }

    pub(crate) fn is_alive(&self, rank: u32) -> bool {
        self.nodes[rank as usize].is_some()
    }

    /// Sends, broadcasts and gathers of living ranks that have not ended.
    pub(crate) fn unended(&self) -> usize {
        let sends: usize = self.open.iter().map(BTreeMap::len).sum();
        sends
            + self.ops.iter().map(BTreeSet::len).sum::<usize>()
            + self.gathers.iter().map(BTreeSet::len).sum::<usize>()
    }

    /// What has not ended, in words.
    pub(crate) fn open_ends(&self) -> String {
        let mut lines = Vec::new();
        for (rank, open) in (0..).zip(&self.open) {
            if let Some(letter) = open.values().next() {
                lines.push(format!(
                    "{} sends, of which one is {}",
                    open.len(),
                    self.explain(*letter)
                ));
            }
            for op in &self.ops[rank as usize] {
                lines.push(format!("{op:?} of {rank}"));
            }
            for id in &self.gathers[rank as usize] {
                lines.push(format!("gather {id} of {rank}"));
            }
        }
        lines.join("\n")
    }

    #[allow(dead_code)] // of the stories
    pub(crate) fn events_of(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|(_, event)| is(event)).count()
    }

    /// Whether every living rank but the root has a parent.
    pub(crate) fn is_attached(&self) -> bool {
        let mut nodes = self.nodes.iter().flatten();
        nodes.all(|node| node.name().rank == 0 || node.parent().is_some())
    }
}
