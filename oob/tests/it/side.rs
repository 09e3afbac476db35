//! A process for a test: a real transport, and in place of the core a book that checks what the transport
//! promises.

#![allow(dead_code)] // no test binary uses all of it

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use doorbell_fabric::time::Time;
use doorbell_oob::JobKey;
use doorbell_oob::bytes::Bytes;
use doorbell_oob::lines::tcp::{Settings, Tcp};
use doorbell_oob::lines::{Clock, Who};
use doorbell_oob::name::{Epoch, Name};
use doorbell_oob::runner::Carrier;
use doorbell_oob::transport::{Address, Attempt, Command, Event, LinkId, Loss, ModuleId, Path, Refusal};
use doorbell_oob::wire::{Frame, Head, Kind, Lane, Seq};

/// The job of all tests.
pub const JOB: u64 = 77;
/// How long anything may take: machines are busy.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A link, as the core would know it.
#[derive(Debug)]
pub struct Link {
    pub peer: Name,
    pub epoch: Epoch,
    pub module: ModuleId,
    pub attempt: Option<Attempt>,
    /// Frames given to it, and how long each was, as far as they are not out of the transport's hands.
    pub given: u64,
    pub waiting: std::collections::VecDeque<usize>,
    pub sent: u64,
    /// Frames that came.
    pub received: u64,
    pub lost: Option<Loss>,
}

impl Link {
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.iter().sum()
    }
}

/// One process: a transport, and the book of it.
pub struct Side {
    pub name: Name,
    pub clock: Clock,
    pub tcp: Tcp,
    pub links: BTreeMap<LinkId, Link>,
    pub modules: BTreeMap<ModuleId, Vec<Address>>,
    pub paths: BTreeMap<Name, Vec<Path>>,
    pub refused: Vec<(Attempt, Refusal)>,
    /// Attempts under way.
    pub open: Vec<Attempt>,
    /// Bodies that came, in order, until the test takes them.
    pub bodies: Vec<(LinkId, Bytes)>,
    /// Whether it sends back what comes.
    pub echo: bool,
    attempts: u64,
}

pub fn key(byte: u8) -> Option<JobKey> {
    Some(JobKey::from_bytes([byte; 32]))
}

pub fn who(rank: u32) -> Who {
    Who {
        name: Name::new(JOB, rank),
        epoch: Epoch(1000 + u64::from(rank)),
        key: key(7),
    }
}

/// A frame of a message of this rank.
pub fn frame(rank: u32, sequence: u32, body: Bytes) -> Frame {
    let head = Head {
        kind: Kind::Data,
        lane: Lane::User,
        origin: Name::new(JOB, rank),
        epoch: Epoch(1),
        destination: Name::new(JOB, 0),
        to_epoch: Epoch(1),
        tag: 200,
        sequence: Seq(sequence),
        back: 0,
        ack: None,
        gap: false,
        hops: 0,
    };
    Frame::new(&head, Some(JOB), body)
}

impl Side {
    /// Within the runtime.
    pub fn start(settings: Settings, who: Who) -> Self {
        let (name, clock) = (who.name, Clock::start());
        let tcp = Tcp::start(settings, who, clock).expect("it starts");
        let mut side = Self {
            name,
            clock,
            tcp,
            links: BTreeMap::new(),
            modules: BTreeMap::new(),
            paths: BTreeMap::new(),
            refused: Vec::new(),
            open: Vec::new(),
            bodies: Vec::new(),
            echo: false,
            attempts: 0,
        };
        side.listen();
        side
    }

    /// All its addresses.
    pub fn addresses(&self) -> Vec<Address> {
        self.modules.values().flatten().cloned().collect()
    }

    pub fn command(&mut self, command: Command) {
        self.tcp.command(self.clock.now(), command);
        self.listen();
    }

    /// Requests the paths to `peer`, and returns the answer.
    pub fn reach(&mut self, peer: Name, addresses: Vec<Address>) -> Vec<Path> {
        self.command(Command::Reach { peer, addresses });
        self.paths.get(&peer).cloned().expect("an answer")
    }

    /// Connects by the best path.
    pub fn call(&mut self, peer: Name, addresses: Vec<Address>) -> Attempt {
        let paths = self.reach(peer, addresses);
        let path = paths.first().cloned().expect("a path");
        self.call_by(peer, path.module, path.addresses)
    }

    pub fn call_by(&mut self, peer: Name, module: ModuleId, addresses: Vec<Address>) -> Attempt {
        self.attempts += 1;
        let attempt = Attempt(self.attempts);
        self.open.push(attempt);
        self.command(Command::Connect {
            attempt,
            peer,
            epoch: Epoch::UNKNOWN,
            module,
            addresses,
            deadline: self.clock.now() + Duration::from_secs(20),
        });
        attempt
    }

    /// The link that is there, if there is exactly one.
    pub fn link(&self) -> Option<LinkId> {
        let mut there = self.links.iter().filter(|(_, link)| link.lost.is_none());
        let first = there.next().map(|(&link, _)| link);
        first.filter(|_| there.next().is_none())
    }

    pub fn send(&mut self, link: LinkId, body: Bytes) {
        let rank = self.name.rank;
        let record = self.links.get_mut(&link).expect("a link");
        let frame = frame(rank, record.given as u32, body);
        record.given += 1;
        record.waiting.push_back(frame.length());
        self.command(Command::Send { link, frame });
    }

    /// Whether the core would give this link more.
    pub fn has_room(&self, link: LinkId) -> bool {
        let there = |link: &Link| link.lost.is_none() && link.waiting_bytes() < 256 << 10;
        self.links.get(&link).is_some_and(there)
    }

    /// Takes the events of the transport, and checks them.
    pub fn listen(&mut self) {
        while let Some(event) = self.tcp.event() {
            self.happened(event);
        }
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::ModuleUp { module, addresses } => {
                self.modules.insert(module, addresses);
            }
            Event::ModuleDown { module } => {
                assert!(self.modules.remove(&module).is_some(), "down, and never up");
            }
            Event::Paths { peer, paths } => {
                assert!(paths.iter().all(|path| self.modules.contains_key(&path.module)));
                self.paths.insert(peer, paths);
            }
            Event::Connected {
                link,
                module,
                peer,
                epoch,
                attempt,
            } => {
                assert!(self.modules.contains_key(&module), "a link over no module");
                if let Some(attempt) = attempt {
                    self.ended(attempt);
                }
                let new = Link {
                    peer,
                    epoch,
                    module,
                    attempt,
                    given: 0,
                    waiting: std::collections::VecDeque::new(),
                    sent: 0,
                    received: 0,
                    lost: None,
                };
                assert!(self.links.insert(link, new).is_none(), "a number came back");
            }
            Event::Refused { attempt, why } => {
                self.ended(attempt);
                self.refused.push((attempt, why));
            }
            Event::Sent { link, frames } => {
                let link = self.alive(link);
                assert!(frames > link.sent && frames <= link.given, "{frames} of {link:?}");
                (link.sent..frames).for_each(|_| {
                    link.waiting.pop_front();
                });
                link.sent = frames;
            }
            Event::Received { link, frame } => self.received(link, frame),
            Event::Lost { link, why } => self.alive(link).lost = Some(why),
        }
    }

    fn received(&mut self, id: LinkId, frame: Bytes) {
        let link = self.alive(id);
        let (head, body) = Head::read(&frame, Some(JOB), 64 << 20).expect("a frame");
        assert_eq!(u64::from(head.sequence.0), link.received, "in order, each once");
        link.received += 1;
        if self.echo {
            self.send(id, body);
        } else {
            self.bodies.push((id, body));
        }
    }

    fn alive(&mut self, link: LinkId) -> &mut Link {
        let link = self
            .links
            .get_mut(&link)
            .expect("an event of a link that never was");
        assert!(link.lost.is_none(), "an event of a link that is lost");
        link
    }

    fn ended(&mut self, attempt: Attempt) {
        let at = self.open.iter().position(|&open| open == attempt);
        let at = at.expect("an attempt ended twice, or was never begun");
        self.open.swap_remove(at);
    }
}

/// Lets all sides go on until `done` returns true.
///
/// # Panics
/// When that takes too long.
pub async fn drive(sides: &mut [&mut Side], what: &str, mut done: impl FnMut(&mut [&mut Side]) -> bool) {
    let begun = Instant::now();
    loop {
        for side in sides.iter_mut() {
            side.tcp.tick(side.clock.now());
            side.listen();
        }
        if done(sides) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "it took too long: {what}");
        wait(sides).await;
    }
}

/// Waits until something happens to any of them, or has to.
async fn wait(sides: &mut [&mut Side]) {
    let soon = Duration::from_millis(50);
    let left = |side: &&mut Side| {
        let deadline = side.tcp.next_deadline()?;
        Some(deadline.since(side.clock.now()))
    };
    let left = sides.iter().filter_map(left).min().unwrap_or(soon).min(soon);
    let any = poll_fn(|cx| {
        let mut any = false;
        for side in sides.iter_mut() {
            let now: Time = side.clock.now();
            any |= side.tcp.poll(cx, now).is_ready();
        }
        if any { Poll::Ready(()) } else { Poll::Pending }
    });
    let _ = tokio::time::timeout(left, any).await;
}

/// Processes on hosts of their own, all of them run by this thread, which is on one host after the other.
pub struct Hosts<'l> {
    lab: &'l doorbell_testing::netns::Lab,
    runtimes: Vec<tokio::runtime::Runtime>,
    pub sides: Vec<Side>,
}

impl<'l> Hosts<'l> {
    /// A process on each host, the first with rank 0, with these settings.
    pub fn start(lab: &'l doorbell_testing::netns::Lab, settings: &[Settings]) -> Self {
        let (mut runtimes, mut sides) = (Vec::new(), Vec::new());
        for (host, settings) in settings.iter().enumerate() {
            assert!(lab.enter(host), "the namespace is there");
            let runtime = runtime();
            sides.push({
                let _inside = runtime.enter();
                Side::start(settings.clone(), who(host as u32))
            });
            runtimes.push(runtime);
        }
        Self { lab, runtimes, sides }
    }

    /// Lets a process do something, on its host.
    pub fn on<T>(&mut self, host: usize, work: impl FnOnce(&mut Side) -> T) -> T {
        assert!(self.lab.enter(host), "the namespace is there");
        let _inside = self.runtimes[host].enter();
        work(&mut self.sides[host])
    }

    /// Lets all go on until `done` returns true.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut [Side]) -> bool) {
        let begun = Instant::now();
        while !done(&mut self.sides) {
            for (host, runtime) in self.runtimes.iter().enumerate() {
                assert!(self.lab.enter(host), "the namespace is there");
                let side = &mut self.sides[host];
                side.tcp.tick(side.clock.now());
                side.listen();
                runtime.block_on(async {
                    let some = poll_fn(|cx| side.tcp.poll(cx, side.clock.now()));
                    let _ = tokio::time::timeout(Duration::from_millis(2), some).await;
                });
                side.listen();
            }
            let sides: Vec<String> = self
                .sides
                .iter()
                .map(|side| format!("{:?} {:?}", side.links, side.refused))
                .collect();
            assert!(
                begun.elapsed() < PATIENCE,
                "it took too long: {what}; {}",
                sides.join("\n")
            );
        }
    }

    /// The first calls the second, and both have a link.
    pub fn link(&mut self) {
        let (name, addresses) = (self.sides[1].name, self.sides[1].addresses());
        self.on(0, |side| side.call(name, addresses));
        self.until("a link", |sides| sides.iter().all(|side| side.link().is_some()));
    }
}

/// A runtime as a progress thread has it.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Two that have a link.
pub async fn pair(settings: Settings) -> (Side, Side) {
    let mut one = Side::start(settings.clone(), who(0));
    let mut two = Side::start(settings, who(1));
    one.call(two.name, two.addresses());
    drive(&mut [&mut one, &mut two], "a link", |sides| {
        sides.iter().all(|side| side.link().is_some())
    })
    .await;
    (one, two)
}
