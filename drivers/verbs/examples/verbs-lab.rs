//! What a test of a real port needs beside `doorbell`: the promises of messages or datagrams, checked over
//! it, and a steady state between two marks, for strace.
//!
//! ```text
//! verbs-lab conformance verbs:rxe0:1
//! verbs-lab conformance verbs:rxe0:1:ud
//! verbs-lab operations verbs:rxe0:1
//! strace -f -o calls verbs-lab exchange verbs:rxe0:1
//! strace -f -o calls verbs-lab exchange verbs:rxe0:1:ud
//! ```
//!
//! Both open the port twice. Exit status: 0 every promise holds, or every frame came whole; 1 not so; 2 wrong
//! usage; 3 a rail cannot be used.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell_fabric::datagram::{Channel, Datagram as _, Receive as _, Transmit as _};
use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Access, Body, Exposure, Landing, Message as _, OpId, PeerIndex, RemoteKey};
use doorbell_fabric::rail::Rail as _;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::datagram::Ends;
use doorbell_sim::conformance::{Apart, Collect};
use doorbell_verbs::{PortName, RcRail, Service, UdRail, VerbsConfig};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["conformance", name] => conformance(name),
        ["operations", name] => operations(name),
        ["exchange", name] => exchange(name),
        _ => {
            eprintln!(
                "verbs-lab: usage: `verbs-lab conformance RAIL`, `verbs-lab operations RAIL` or `verbs-lab exchange RAIL`"
            );
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("verbs-lab: {error}");
            ExitCode::from(3)
        }
    }
}

/// Two rails over one port that know each other.
fn ends(name: &str) -> Result<Ends<UdRail>, RailError> {
    let open = || UdRail::open(&name.parse()?, &VerbsConfig::default());
    let (a, b) = (open()?, open()?);
    let lives = [a.incarnation(), b.incarnation()];
    let began = Instant::now();
    let mut ends = Ends::connect((a, lives[0]), (b, lives[1]), move |a, b| {
        let now = since(began);
        a.progress(now);
        b.progress(now);
    });
    // What is posted before the way is known is lost, and the checks count with a network without faults.
    while !(ends.a.is_resolved(ends.to_b) && ends.b.is_resolved(ends.to_a)) {
        let now = since(began);
        ends.a.progress(now);
        ends.b.progress(now);
        assert!(began.elapsed() < KNOWN, "the rails do not find each other");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(ends)
}

fn since(began: Instant) -> Time {
    Time::from_nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Two rails of connections over one port, which do not know each other.
fn apart(name: &str) -> Result<Apart<RcRail>, RailError> {
    let open = || {
        let mut rail = RcRail::open(&name.parse()?, &VerbsConfig::default())?;
        rail.set_key(&[7; 32]);
        let life = rail.incarnation();
        Ok::<_, RailError>((rail, life))
    };
    let began = Instant::now();
    Ok(Apart::new(
        open()?,
        open()?,
        move |a: &mut RcRail, b: Option<&mut RcRail>| {
            let now = since(began);
            a.progress(now);
            if let Some(b) = b {
                b.progress(now);
            }
        },
    ))
}

/// Checks every promise over a pair of its own, one line for each.
fn conformance(name: &str) -> Result<bool, RailError> {
    match PortName::of(&name.parse()?)?.service {
        Service::Connections => {
            drop(apart(name)?);
            Ok(all_hold(
                doorbell_sim::message_conformance!(list RcRail),
                |check| apart(name).map(check),
            ))
        }
        Service::Datagrams => {
            drop(ends(name)?);
            Ok(all_hold(
                doorbell_sim::datagram_conformance!(list UdRail),
                |check| ends(name).map(|mut ends| check(&mut ends)),
            ))
        }
    }
}

/// Whether all of the checks pass.
fn all_hold<C>(
    checks: impl IntoIterator<Item = (&'static str, C)>,
    run: impl Fn(C) -> Result<(), RailError>,
) -> bool {
    let mut all = true;
    for (what, check) in checks {
        // A check that fails prints why to the standard error.
        let done = catch_unwind(AssertUnwindSafe(|| run(check)));
        let holds = matches!(done, Ok(Ok(())));
        println!("{} {what}", if holds { "holds" } else { "broken" });
        all &= holds;
    }
    all
}

/// Lengths of what is read one-sided.
const LENGTHS: [usize; 6] = [8, 4096, 64 << 10, 100_000, 1 << 20, 4 << 20];

/// Reads memory of each length at the other end, which is exposed for that and withdrawn, and compares it;
/// one line for each.
fn operations(name: &str) -> Result<bool, RailError> {
    let mut pair = apart(name)?.connect();
    let mut all = true;
    for (number, length) in (1..).zip(LENGTHS) {
        let (there, here) = (Region::new(length)?, Region::new(length)?);
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
        there.write(0, &bytes);
        let to_a = pair.to_a;
        let exposed = pair
            .b()
            .expose(Exposure::Region(there.whole()), Access::ReadWrite, Some(to_a));
        let Ok(remote) = exposed else {
            println!(
                "{length} bytes are not exposed: {exposed:?}, {:?}",
                pair.b().refusal()
            );
            return Ok(false);
        };
        let begun = pair
            .a
            .get(pair.to_b, OpId(number), &remote, Landing::Region(here.whole()));
        let began = Instant::now();
        // Whether it ends in time is part of what is checked.
        while begun.is_ok() && pair.at_a.ended.is_empty() && began.elapsed() < KNOWN {
            pair.turn();
        }
        let ended = pair.at_a.ended.pop();
        let is_whole = here.whole().as_shared().to_vec() == bytes;
        let refusals = [
            pair.a.refusal().map(str::to_owned),
            pair.b().refusal().map(str::to_owned),
        ];
        match ended {
            Some((_, Ok(_))) if is_whole => println!("{length} bytes are read whole"),
            ended => println!("{length} bytes are not read: {begun:?}, {ended:?}, {refusals:?}"),
        }
        all &= is_whole;
        pair.b().withdraw(RemoteKey(remote.key.get()));
    }
    Ok(all)
}

/// Frames of the steady state, and how many are announced together.
const FRAMES: u32 = 8_000;
const BATCH: u32 = 16;
/// Batches before those that are counted.
const WARM: u32 = 25;
/// Batches between two turns of a rail's own work.
const TURN: u32 = 125;
/// Looks for a frame, which take seconds.
const LOOKS: u32 = 20_000_000;
/// Both rails are of this machine, so no neighbour has to answer.
const KNOWN: Duration = Duration::from_secs(20);

/// Two rails that know each other.
trait Exchange {
    /// Sends a batch from one to the other; whether it came whole and in order.
    fn batch(&mut self, number: u32) -> bool;
    fn progress(&mut self, now: Time);
}

/// Frames or messages of 64 bytes from one rail to the other in batches, each awaited whole and in order,
/// between two marks on the standard error.
fn exchange(name: &str) -> Result<bool, RailError> {
    let mut rails: Box<dyn Exchange> = match PortName::of(&name.parse()?)?.service {
        Service::Connections => Box::new(Joined::open(name)?),
        Service::Datagrams => Box::new(ends(name)?),
    };
    // What comes before the first mark is not counted: connections get their credits then.
    for number in 0..WARM + FRAMES / BATCH {
        if number == WARM {
            eprint!("the steady state begins");
        }
        if !rails.batch(number) {
            println!("batch {number} did not come whole");
            return Ok(false);
        }
        if number % TURN == 0 {
            rails.progress(Time::ZERO + Duration::from_secs(u64::from(number)));
        }
    }
    eprint!("the steady state ends: {FRAMES} frames");
    Ok(true)
}

impl Exchange for Ends<UdRail> {
    fn batch(&mut self, number: u32) -> bool {
        batch(self, number)
    }

    fn progress(&mut self, now: Time) {
        self.a.progress(now);
        self.b.progress(now);
    }
}

/// Two rails of connections that are connected.
struct Joined {
    rails: [RcRail; 2],
    /// Each of them at the other.
    peers: [PeerIndex; 2],
    began: Instant,
}

impl Joined {
    fn open(name: &str) -> Result<Self, RailError> {
        let open = || {
            let mut rail = RcRail::open(&name.parse()?, &VerbsConfig::default())?;
            rail.set_key(&[7; 32]);
            Ok::<_, RailError>(rail)
        };
        let [mut a, mut b] = [open()?, open()?];
        let (at_a, at_b) = ((a.address(), a.incarnation()), (b.address(), b.incarnation()));
        let peers = [a.open(&at_b.0, at_b.1)?, b.open(&at_a.0, at_a.1)?];
        Ok(Self {
            rails: [a, b],
            peers,
            began: Instant::now(),
        })
    }
}

impl Exchange for Joined {
    fn batch(&mut self, number: u32) -> bool {
        let (mut sent, mut none, mut came) = (0, Collect::default(), Collect::default());
        for look in 0..LOOKS {
            let [a, b] = &mut self.rails;
            while sent < BATCH {
                let whole = (number * BATCH + sent).to_le_bytes().repeat(16);
                if a.send(self.peers[0], &[], Body::Bytes(&whole)).is_err() {
                    break;
                }
                sent += 1;
            }
            a.flush();
            a.poll(BATCH as usize, &mut none);
            b.poll(BATCH as usize, &mut came);
            if came.messages.len() >= BATCH as usize {
                break;
            }
            // Until the connection is up, it needs its own work; later, frames come without.
            if number == 0 && look % 1_000 == 0 {
                self.progress(Time::ZERO);
            }
        }
        let whole = |at: u32| (number * BATCH + at).to_le_bytes().repeat(16);
        came.messages.len() == BATCH as usize
            && (0..BATCH)
                .zip(&came.messages)
                .all(|(at, (_, bytes))| *bytes == whole(at))
    }

    /// By the real time: connections have bounds on it.
    fn progress(&mut self, _: Time) {
        let now = since(self.began);
        for rail in &mut self.rails {
            rail.progress(now);
        }
    }
}

fn batch(ends: &mut Ends<UdRail>, number: u32) -> bool {
    let to: PeerIndex = ends.to_b;
    let (tx, _) = ends.a.split();
    if tx.reserve(Channel::Data, BATCH as usize) < BATCH as usize {
        return false;
    }
    for at in 0..BATCH {
        let body = (number * BATCH + at).to_le_bytes().repeat(16);
        // One that is not taken does not come either, and that is reported.
        let _ = tx.post(Channel::Data, to, b"", Body::Bytes(&body));
    }
    tx.doorbell();
    let (_, rx) = ends.b.split();
    let mut next = number * BATCH;
    for _ in 0..LOOKS {
        for at in 0..rx.poll(Channel::Data, BATCH as usize) {
            let whole = next.to_le_bytes().repeat(16);
            if rx
                .frame(Channel::Data, at)
                .is_none_or(|frame| frame.bytes.to_vec() != whole)
            {
                return false;
            }
            next += 1;
        }
        if next == (number + 1) * BATCH {
            return true;
        }
    }
    false
}
