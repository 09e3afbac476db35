//! Three processes of a job, here all in one, with two transports side by side: `rail` over shared memory,
//! direct, and `tcp` over loopback, along a tree that is a chain. The rank in the middle has no rail.
//!
//! ```text
//! cargo run --release -p doorbell-oob --example side-by-side
//!
//!   0 ═══════════ shm (rail, direct) ═══════════ 2
//!   └── tcp (tree) ── 1 ── tcp (tree) ───────────┘
//! ```
//!
//! It prints what each transport has carried: between 0 and 2 the rail, since it comes first; to and from 1,
//! `tcp`.

use std::time::Duration;

use doorbell_oob::config::{Config, Transport};
use doorbell_oob::event::Event;
use doorbell_oob::lines::rail::{self, Open, endpoint};
use doorbell_oob::lines::tcp;
use doorbell_oob::name::{Epoch, From, Name};
use doorbell_oob::plane::{Carried, Oob};
use doorbell_oob::{JobKey, runner};
use doorbell_shm::{ShmConfig, ShmRail};

type Failure = Box<dyn std::error::Error>;

const LIMIT: Duration = Duration::from_secs(30);
const TAG: u32 = 200;
const MESSAGES: u32 = 1_000;

/// Opens the rail, on the thread that it will belong to.
fn shm() -> Open {
    Box::new(|| {
        let rail = ShmRail::open(&"shm".parse()?, &ShmConfig::default())?;
        let life = rail.incarnation();
        Ok(endpoint(rail, life))
    })
}

fn start(rank: u32, key: &JobKey) -> Result<Oob, Failure> {
    let transports = vec![Transport::direct("rail"), Transport::tree("tcp")];
    let mut config = Config::new(Name::new(1, rank), Epoch(1), 3, transports);
    config.radix = 1;
    let rails = if rank == 1 { Vec::new() } else { vec![shm()] };
    let carried = Carried::new()
        .rail(rail::Settings::default(), rails)
        .tcp(tcp::Settings::default());
    let oob = Oob::start(config, carried, Some(key.clone()), runner::Settings::default())?;
    Ok(oob)
}

fn talk(from: &Oob, to: &Oob) -> Result<(), Failure> {
    let inbox = to.inbox(From::only(from.name()), TAG, 64 << 10)?;
    for nth in 0..MESSAGES {
        let sent = from.send(to.name(), TAG, nth.to_be_bytes().as_slice().into(), None)?;
        let message = inbox.wait(LIMIT).ok_or("nothing came")?;
        assert_eq!(*message.body, nth.to_be_bytes());
        sent.wait(LIMIT).ok_or("no end")??;
    }
    println!("{MESSAGES} messages from {} to {}", from.name(), to.name());
    Ok(())
}

fn main() -> Result<(), Failure> {
    let key = JobKey::generate()?;
    let all = [start(0, &key)?, start(1, &key)?, start(2, &key)?];
    let mut contacts = Vec::new();
    for oob in &all {
        let contact = oob.contact()?.wait(LIMIT).flatten().ok_or("no contact")?;
        println!("{contact}");
        contacts.push(contact);
    }
    for oob in &all {
        oob.learn(contacts.clone())?;
        oob.begin()?;
        let attached = |event| matches!(event, Event::LifelineUp { .. });
        let events = oob.events();
        while oob.name().rank > 0 && !attached(events.wait(LIMIT).ok_or("no lifeline")?) {}
    }
    talk(&all[0], &all[2])?;
    talk(&all[0], &all[1])?;
    talk(&all[2], &all[1])?;
    for oob in &all {
        for carriage in oob.carriages() {
            println!(
                "{}: {:>4}: {} links, {} frames sent, {} received",
                oob.name(),
                carriage.name,
                carriage.links,
                carriage.frames_sent,
                carriage.frames_received,
            );
        }
    }
    all.iter().for_each(|oob| oob.finish(LIMIT));
    Ok(())
}
