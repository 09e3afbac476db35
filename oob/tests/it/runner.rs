//! The progress thread, with a core that sends back what comes, and real transports.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_oob::OobError;
use doorbell_oob::bytes::Bytes;
use doorbell_oob::lines::Clock;
use doorbell_oob::lines::tcp::Tcp;
use doorbell_oob::name::{Epoch, Name};
use doorbell_oob::runner::{Carrier, Carriers, Core, Progress, Refused, Runner, Settings, THREAD};
use doorbell_oob::transport::{Address, Attempt, Command, Event, LinkId, TransportId};
use doorbell_oob::wire::Head;

use crate::side::{JOB, PATIENCE, frame, who};

const TCP: TransportId = TransportId(0);

#[derive(Debug)]
enum Request {
    /// Connects there, and sends this many messages.
    Call(Name, Vec<Address>, u32),
    Addresses(Sender<Vec<Address>>),
    /// Blocks for this time, which no core should.
    Stall(Duration),
}

/// Sends back what comes to it, or counts what comes back.
struct Echo {
    rank: u32,
    addresses: Vec<Address>,
    calls: Option<(Name, Vec<Address>, u32)>,
    caller: bool,
    left: u32,
    link: Option<LinkId>,
    given: u32,
    heard: u32,
    commands: VecDeque<(TransportId, Command)>,
    told: Sender<u32>,
    ended: bool,
}

impl Echo {
    fn new(rank: u32, told: Sender<u32>) -> Self {
        Self {
            rank,
            addresses: Vec::new(),
            calls: None,
            caller: false,
            left: 0,
            link: None,
            given: 0,
            heard: 0,
            commands: VecDeque::new(),
            told,
            ended: false,
        }
    }

    fn send(&mut self, body: Bytes) {
        let Some(link) = self.link else { return };
        let frame = frame(self.rank, self.given, body);
        self.given += 1;
        self.commands.push_back((TCP, Command::Send { link, frame }));
    }
}

impl Core for Echo {
    type Request = Request;

    fn request(&mut self, _now: Time, request: Request) {
        match request {
            Request::Call(peer, addresses, count) => {
                self.caller = true;
                self.left = count;
                self.calls = Some((peer, addresses.clone(), count));
                self.commands.push_back((TCP, Command::Reach { peer, addresses }));
            }
            Request::Addresses(tell) => tell.send(self.addresses.clone()).unwrap(),
            Request::Stall(time) => std::thread::sleep(time),
        }
    }

    fn handle(&mut self, now: Time, _transport: TransportId, event: Event) {
        match event {
            Event::ModuleUp { addresses, .. } => self.addresses.extend(addresses),
            Event::Paths { peer, paths } => self.commands.push_back((
                TCP,
                Command::Connect {
                    attempt: Attempt(1),
                    peer,
                    epoch: Epoch::UNKNOWN,
                    module: paths[0].module,
                    addresses: paths[0].addresses.clone(),
                    deadline: now + PATIENCE,
                },
            )),
            Event::Connected { link, .. } => {
                self.link = Some(link);
                if self.caller {
                    (0..self.left).for_each(|nth| self.send(nth.to_be_bytes().as_slice().into()));
                }
            }
            Event::Received { frame, .. } => {
                let (_, body) = Head::read(&frame, Some(JOB), 1 << 20).unwrap();
                if self.caller {
                    assert_eq!(&*body, self.heard.to_be_bytes());
                    self.heard += 1;
                    self.left -= 1;
                    if self.left == 0 {
                        self.told.send(self.heard).unwrap();
                    }
                } else {
                    self.send(body);
                }
            }
            Event::Sent { .. } | Event::Lost { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn tick(&mut self, _now: Time) {}

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn command(&mut self) -> Option<(TransportId, Command)> {
        self.commands.pop_front()
    }

    fn is_quiet(&self) -> bool {
        self.left == 0
    }

    fn end(&mut self, _now: Time) {
        self.ended = true;
    }
}

fn start(rank: u32, settings: Settings) -> Result<(Runner<Request>, Receiver<u32>), OobError> {
    let (told, tell) = channel();
    let carriers: Carriers = Box::new(move |clock: Clock| {
        let tcp = Tcp::start(doorbell_oob::lines::tcp::Settings::default(), who(rank), clock)?;
        Ok(vec![Box::new(tcp) as Box<dyn Carrier>])
    });
    Ok((
        Runner::start(settings, move |_| Echo::new(rank, told), carriers)?,
        tell,
    ))
}

fn addresses(runner: &Runner<Request>) -> Vec<Address> {
    let (tell, told) = channel();
    runner.mailbox().put(Request::Addresses(tell)).unwrap();
    told.recv_timeout(PATIENCE).unwrap()
}

/// Ten thousand there and back.
fn echoes(settings: Settings) {
    let (one, told) = start(0, settings).unwrap();
    let (two, _) = start(1, settings).unwrap();
    let there = addresses(&two);
    assert!(!there.is_empty());
    one.mailbox()
        .put(Request::Call(Name::new(JOB, 1), there, 10_000))
        .unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), 10_000);
    one.finish(PATIENCE);
    two.finish(PATIENCE);
}

#[test]
fn a_thread_that_sleeps_and_one_that_spins_carry_the_same() {
    echoes(Settings::default());
    echoes(Settings {
        progress: Progress::Spin(None),
        ..Settings::default()
    });
}

#[test]
fn a_core_is_pinned_and_one_that_is_not_there_is_refused() {
    let allowed = core_affinity::get_core_ids().unwrap();
    let spin = |core| Settings {
        progress: Progress::Spin(Some(core)),
        ..Settings::default()
    };
    let (one, _) = start(0, spin(allowed[0].id)).unwrap();
    assert!(!addresses(&one).is_empty());
    one.finish(PATIENCE);
    let Err(error) = start(0, spin(100_000)) else {
        panic!("a core that is not there")
    };
    assert!(error.to_string().contains("taskset"), "{error}");
}

/// No caller waits: a request that finds no room is returned.
#[test]
fn a_full_mailbox_and_an_ended_thread_refuse_requests() {
    let settings = Settings {
        mailbox: 4,
        ..Settings::default()
    };
    let (one, _) = start(0, settings).unwrap();
    let mailbox = one.mailbox();
    let put = |_| mailbox.put(Request::Stall(Duration::from_millis(50)));
    let refused = (0..40)
        .map(put)
        .filter(|put| matches!(put, Err(Refused::Full(_))))
        .count();
    assert!(refused >= 30, "{refused} refused");
    one.finish(Duration::from_secs(10));
    assert!(matches!(put(0), Err(Refused::Ended(_))));
}

/// Requests made before the end are carried out, and then no thread is left.
#[test]
fn the_end_comes_after_earlier_requests_and_leaves_nothing() {
    let (one, told) = start(0, Settings::default()).unwrap();
    let (two, _) = start(1, Settings::default()).unwrap();
    let there = addresses(&two);
    one.mailbox()
        .put(Request::Call(Name::new(JOB, 1), there, 3_000))
        .unwrap();
    one.finish(PATIENCE);
    assert_eq!(told.try_recv(), Ok(3_000));
    // The other side is dropped, and has to end at once.
    drop(two);
    assert!(THREAD.len() <= 15, "the kernel's limit of names");
}
