//! What a round trip of 8 bytes takes over each layer, to be counted by callgrind: both ranks of a job are in
//! this process, and one thread drives them in turn, so that no call waits and every run executes the same.
//!
//! ```text
//! RUSTFLAGS="--cfg rustix_use_libc" cargo build --release -p doorbell-bench --example layer_trip
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/layer_trip pml 20000
//! ```
//!
//! (For `rustix_use_libc`, see `driver_cost.rs`.) The count of three times as many trips less the count of
//! these, divided by twice their number, is that of one. Layers: `pml` (send and receive), `scope` (receives
//! posted first, and requests waited for), `portals` (a put whose counting event is awaited, and one back),
//! `am` (a request, and its handler's reply). The third argument is a rail, `shm` by default. The time of a
//! trip is printed.

#![forbid(unsafe_code)]

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use doorbell::am::{Am, Handlers, Setup};
use doorbell::fabric::memory::Region;
use doorbell::fabric::message::Landing;
use doorbell::fabric::ni::{
    AckReq, CtHandle, Entry, EntryOptions, Kind, List, Md, MdHandle, Memory, Ni, Piece, Process, PtOptions,
    Put, Target,
};
use doorbell::{Config, Error, Portals, Request, World};

/// Trips before those that count, on which peers connect and pools grow.
const WARM: u64 = 1000;
const PAYLOAD: usize = 8;
const TAG: u64 = 7;
const KIND: Kind = Kind::MATCHING_LOGICAL;
const INDEX: u32 = 4;
const ASK: u8 = 200;
const ANSWER: u8 = 201;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("layer_trip: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<(), String> {
    let [layer, trips, rest @ ..] = words else {
        return Err(
            "give a layer (pml, scope, portals or am), a number of trips and, if you like, a rail".to_owned(),
        );
    };
    let trips = trips.parse().map_err(|_| format!("{trips}: expected a number"))?;
    let mut config = Config::default();
    let rails = rest.first().map_or("shm", String::as_str);
    config
        .set("rails.list", rails)
        .map_err(|error| error.to_string())?;
    let done = match layer.as_str() {
        "pml" => pml(&config, trips, send_and_receive),
        "scope" => pml(&config, trips, post_and_wait),
        "portals" => portals(&config, trips),
        "am" => am(&config, trips),
        _ => return Err(format!("{layer}: expected pml, scope, portals or am")),
    };
    done.map_err(|error| error.to_string())
}

/// Makes trips, first some to warm up, and prints what one of the others took.
fn repeat(trips: u64, mut trip: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    (0..WARM).try_for_each(|_| trip())?;
    let start = Instant::now();
    (0..trips).try_for_each(|_| trip())?;
    println!(
        "{:.1} ns",
        start.elapsed().as_nanos() as f64 / trips.max(1) as f64
    );
    Ok(())
}

fn pml(config: &Config, trips: u64, trip: fn(&[World; 2]) -> Result<(), Error>) -> Result<(), Error> {
    let worlds: [World; 2] = two(doorbell::local(2, config)?);
    // Rank 1 has to act before rank 0 is connected to it.
    let [zero, one] = &worlds;
    let mut into = [0; PAYLOAD];
    zero.scope(|s| {
        let mut request = s.isend(1, TAG, &[1; PAYLOAD])?;
        one.scope(|s| {
            let mut receive = s.irecv(0, TAG, &mut into)?;
            ended(&mut receive, zero)
        })?;
        ended(&mut request, one)
    })?;
    repeat(trips, || trip(&worlds))
}

/// Waits for a request of one world, and drives the other meanwhile.
fn ended(request: &mut Request<'_>, other: &World) -> Result<(), Error> {
    loop {
        if let Some(done) = request.test() {
            return done.map(drop);
        }
        other.progress();
    }
}

fn send_and_receive([zero, one]: &[World; 2]) -> Result<(), Error> {
    let mut into = [0; PAYLOAD];
    zero.send(1, TAG, &[1; PAYLOAD])?;
    one.recv(0, TAG, &mut into)?;
    one.send(0, TAG, &into)?;
    zero.recv(1, TAG, &mut into)?;
    Ok(())
}

fn post_and_wait([zero, one]: &[World; 2]) -> Result<(), Error> {
    let (mut there, mut back) = ([0; PAYLOAD], [0; PAYLOAD]);
    zero.scope(|s| {
        let receive = s.irecv(1, TAG, &mut back)?;
        one.scope(|t| {
            let arrives = t.irecv(0, TAG, &mut there)?;
            s.isend(1, TAG, &[1; PAYLOAD])?.wait()?;
            arrives.wait()?;
            t.isend(0, TAG, &[2; PAYLOAD])?.wait()?;
            Ok(())
        })?;
        receive.wait()?;
        Ok(())
    })
}

/// One process's interface: memory that the other puts into, and what it is put from.
struct End {
    job: Portals,
    arrived: CtHandle,
    from: MdHandle,
    /// The memory lives as long as what names it.
    _memory: [Region; 2],
}

impl End {
    fn new(mut job: Portals) -> Result<Self, Error> {
        job.init(KIND, None)?;
        let (into, out) = (Region::new(PAYLOAD)?, Region::new(PAYLOAD)?);
        let memory = |region: &Region| Memory::One(Landing::Region(region.whole()));
        let arrived = job.ask(KIND, |ni| ni.ct_alloc())?;
        job.ask(KIND, |ni| ni.pt_alloc(PtOptions::NONE, None, Some(INDEX)))?;
        let options = EntryOptions::OP_PUT | EntryOptions::EVENT_CT_COMM | EntryOptions::EVENT_COMM_DISABLE;
        let entry = Entry::open(memory(&into), options).counted(arrived);
        job.ask(KIND, |ni| ni.append(INDEX, entry.clone(), List::Priority, 0))?;
        let md = Md {
            memory: memory(&out),
            ..Md::default()
        };
        let from = job.ask(KIND, |ni| ni.md_bind(md.clone()))?;
        Ok(Self {
            job,
            arrived,
            from,
            _memory: [into, out],
        })
    }

    fn put(&mut self) -> Result<(), Error> {
        let put = Put {
            from: Piece {
                md: self.from,
                offset: 0,
            },
            length: PAYLOAD as u64,
            ack: AckReq::None,
            target: Target {
                process: Process::rank(self.job.rank() ^ 1),
                pt_index: INDEX,
                match_bits: 0,
                remote_offset: 0,
            },
            user_ptr: 0,
            hdr_data: 0,
        };
        self.job.ask(KIND, |ni| ni.put(&put))?;
        self.job.ni(KIND).flush();
        Ok(())
    }

    fn wait(&mut self, count: u64) -> Result<(), Error> {
        self.job.wait_count(KIND, self.arrived, count).map(drop)
    }

    fn has(&mut self, count: u64) -> Result<bool, Error> {
        let found = self.job.ask(KIND, |ni| ni.ct_get(self.arrived))?;
        Ok(found.success >= count)
    }
}

fn portals(config: &Config, trips: u64) -> Result<(), Error> {
    let [zero, one] = two(doorbell::local_portals(2, config)?);
    let (mut zero, mut one) = (End::new(zero)?, End::new(one)?);
    // The first put goes over a path that both have to act for.
    zero.put()?;
    while !one.has(1)? {
        zero.job.progress();
        one.job.progress();
    }
    one.put()?;
    while !zero.has(1)? {
        zero.job.progress();
        one.job.progress();
    }
    let mut count = 1;
    repeat(trips, || {
        count += 1;
        zero.put()?;
        one.wait(count)?;
        one.put()?;
        zero.wait(count)
    })
}

/// What the handlers of both ranks have seen: requests at rank 1, replies at rank 0.
#[derive(Default)]
struct Seen {
    asked: AtomicU64,
    answered: AtomicU64,
}

fn handlers(seen: &Arc<Seen>) -> Result<Handlers, Error> {
    // Only one thread adds to it.
    let bump = |count: &AtomicU64| count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    let mut handlers = Handlers::new();
    let to = Arc::clone(seen);
    let request = handlers.request(ASK, move |request| {
        bump(&to.asked);
        // A reply that cannot be sent is waited for in vain, which is reported.
        let _ = request.reply_short(ANSWER, &[3, 4]);
    });
    request?;
    let to = Arc::clone(seen);
    handlers.reply(ANSWER, move |_| bump(&to.answered))?;
    Ok(handlers)
}

fn am(config: &Config, trips: u64) -> Result<(), Error> {
    let seen = Arc::new(Seen::default());
    let setups = [handlers(&seen)?, handlers(&seen)?].map(|handlers| Setup::new(handlers, 4096));
    let mut setups = setups.into_iter();
    let setup = |_| setups.next().unwrap_or_else(|| Setup::new(Handlers::new(), 4096));
    let [mut zero, mut one] = two(doorbell::local_am(2, config, setup)?);
    let mut attached = [false; 2];
    while attached != [true; 2] {
        attached = [zero.step()?, one.step()?];
    }
    let [mut zero, mut one]: [Am; 2] = [zero.finish()?, one.finish()?];
    let mut count = 0;
    let at_least = |count: u64, of: &AtomicU64| (of.load(Ordering::Relaxed) >= count).then_some(());
    repeat(trips, || {
        count += 1;
        zero.request_short(1, ASK, &[1, 2])?;
        one.wait_until("the request", || at_least(count, &seen.asked))?;
        zero.wait_until("the reply", || at_least(count, &seen.answered))
    })
}

/// The two ranks of a job of two.
fn two<T>(ranks: Vec<T>) -> [T; 2] {
    ranks
        .try_into()
        .unwrap_or_else(|_| unreachable!("a job of two has two ranks"))
}
