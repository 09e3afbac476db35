//! What a message of the control plane takes, beside an echo over plain TCP of the same runtime, in one run.
//!
//! ```text
//! cargo run --release -p doorbell-oob --example echo -- [ROUNDS] [--spin]
//! ```
//!
//! All go over loopback, between threads of this process: 64 bytes there and back, one at a time and then 64
//! in flight. *Functions* are called by the progress threads, and send the next request there: as many
//! threads are woken for each as by the plain echo, two. *Waits* is a thread that sends a request and waits,
//! beside its progress thread: four are woken. They take turns, so that any other load on the machine falls
//! on all; the ratios are those of the medians.
//!
//! Where threads run decides what it takes to wake them, and the kernel decides that differently for each of
//! the three. So it is decided here: all on one core, and then each side on a core of its own.

#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it measures, and talks

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use doorbell_oob::JobKey;
use doorbell_oob::bytes::Bytes;
use doorbell_oob::config::{Config, Transport};
use doorbell_oob::name::{Epoch, From, Name};
use doorbell_oob::plane::{Inbox, Message, Oob};
use doorbell_oob::runner::{Progress, Settings};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

type Failure = Box<dyn std::error::Error>;

const SIZE: usize = 64;
/// The tags of the two kinds of requests.
const WAITS: u32 = 200;
const FUNCTIONS: u32 = 201;
const LIMIT: Duration = Duration::from_secs(30);
/// Echoes under way in the second measurement.
const DEEP: usize = 64;
/// Turns that each of the two has.
const TURNS: usize = 10;

/// Something that sends back what it gets.
trait Echo {
    /// Makes `count` round trips, `deep` of them in flight.
    fn run(&mut self, count: usize, deep: usize) -> Result<(), Failure>;
}

struct Plain {
    runtime: Runtime,
    socket: TcpStream,
}

impl Plain {
    fn start(places: [usize; 2]) -> Result<Self, Failure> {
        pin(places[1])?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let server = runtime()?;
        // It ends with the socket.
        std::thread::spawn(move || {
            server
                .block_on(serve(listener))
                .map_err(|error| error.to_string())
        });
        pin(places[0])?;
        let runtime = runtime()?;
        let socket = runtime.block_on(TcpStream::connect(address))?;
        socket.set_nodelay(true)?;
        Ok(Self { runtime, socket })
    }
}

/// This thread runs there from now on, and those that it starts.
fn pin(core: usize) -> Result<(), Failure> {
    let pinned = core_affinity::set_for_current(CoreId { id: core });
    pinned
        .then_some(())
        .ok_or_else(|| format!("core {core} is not there").into())
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

async fn serve(listener: std::net::TcpListener) -> io::Result<()> {
    let (socket, _) = TcpListener::from_std(listener)?.accept().await?;
    socket.set_nodelay(true)?;
    let mut buffer = [0; SIZE];
    loop {
        read(&socket, &mut buffer).await?;
        write(&socket, &buffer).await?;
    }
}

/// As much as there is room for.
async fn read(socket: &TcpStream, mut room: &mut [u8]) -> io::Result<()> {
    while !room.is_empty() {
        match socket.try_read(room) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => room = &mut room[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.readable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// All of it.
async fn write(socket: &TcpStream, mut left: &[u8]) -> io::Result<()> {
    while !left.is_empty() {
        match socket.try_write(left) {
            Ok(count) => left = &left[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Echo for Plain {
    fn run(&mut self, count: usize, deep: usize) -> Result<(), Failure> {
        self.runtime.block_on(async {
            let mut buffer = [7; SIZE];
            for nth in 0..count + deep {
                if nth >= deep {
                    read(&self.socket, &mut buffer).await?;
                }
                if nth < count {
                    write(&self.socket, &buffer).await?;
                }
            }
            Ok(())
        })
    }
}

/// Two processes of a job, and what is under way between them.
struct Control {
    one: Oob,
    two: Oob,
}

impl Control {
    fn start(settings: Settings, places: [usize; 2]) -> Result<Self, Failure> {
        let key = JobKey::generate()?;
        let start = |rank: u32| {
            pin(places[rank as usize])?;
            let config = Config::new(Name::new(1, rank), Epoch(1), 2, vec![Transport::direct("tcp")]);
            Ok::<_, Failure>(Oob::start(
                config,
                doorbell_oob::lines::tcp::Settings::default(),
                Some(key.clone()),
                settings,
            )?)
        };
        let (two, one) = (start(1)?, start(0)?);
        let contact = two.contact()?.wait(LIMIT).flatten().ok_or("no contact")?;
        one.learn(vec![contact])?;
        let echo = two.clone();
        let again = move |message: Message| {
            let sent = echo.send(message.from, message.tag, message.body, None);
            // The side that waits for it reports that it never came.
            drop(sent);
        };
        for tag in [WAITS, FUNCTIONS] {
            let posted = two.receive_each(From::ANYBODY, tag, again.clone())?;
            posted.wait(LIMIT).ok_or("nothing")??;
        }
        Ok(Self { one, two })
    }
}

/// A thread that sends requests and waits for their answers.
struct Waits(Oob, Name, Inbox<Message>);

impl Echo for Waits {
    fn run(&mut self, count: usize, deep: usize) -> Result<(), Failure> {
        let Self(oob, to, back) = self;
        let body = Bytes::from([7; SIZE].as_slice());
        for nth in 0..count + deep {
            if nth >= deep {
                back.wait(LIMIT).ok_or("an echo never came")?;
            }
            if nth < count {
                drop(oob.send(*to, WAITS, body.clone(), None)?);
            }
        }
        Ok(())
    }
}

/// What the progress thread does for the second.
struct Functions {
    oob: Oob,
    to: Name,
    /// Number of requests still to be sent, each from the function that receives an answer.
    left: Arc<AtomicUsize>,
    /// One item for each answer after which no further request was sent.
    ended: Receiver<()>,
}

impl Functions {
    fn start(oob: &Oob, to: Name) -> Result<Self, Failure> {
        let left = Arc::new(AtomicUsize::new(0));
        let (tell, ended) = channel();
        let (again, more) = (oob.clone(), left.clone());
        let each = move |message: Message| {
            let one_less = |left: usize| left.checked_sub(1);
            let goes_on = more.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
            let sent = goes_on.map(|_| again.send(to, FUNCTIONS, message.body, None));
            if !matches!(sent, Ok(Ok(_))) {
                let _ = tell.send(());
            }
        };
        let posted = oob.receive_each(From::only(to), FUNCTIONS, each)?;
        posted.wait(LIMIT).ok_or("nothing")??;
        let oob = oob.clone();
        Ok(Self { oob, to, left, ended })
    }
}

impl Echo for Functions {
    fn run(&mut self, count: usize, deep: usize) -> Result<(), Failure> {
        self.left.store(count - deep, Ordering::Relaxed);
        for _ in 0..deep {
            drop(
                self.oob
                    .send(self.to, FUNCTIONS, [7; SIZE].as_slice().into(), None)?,
            );
        }
        for _ in 0..deep {
            self.ended.recv_timeout(LIMIT)?;
        }
        Ok(())
    }
}

/// The median time of an echo of each, in microseconds: they take turns.
fn measure<const N: usize>(
    all: &mut [&mut dyn Echo; N],
    count: usize,
    deep: usize,
) -> Result<[f64; N], Failure> {
    let mut took = [const { Vec::new() }; N];
    for _ in 0..TURNS {
        for (echo, took) in all.iter_mut().zip(&mut took) {
            let begun = Instant::now();
            echo.run(count, deep)?;
            took.push(begun.elapsed().as_secs_f64() * 1e6 / count as f64);
        }
    }
    Ok(took.map(|mut took| {
        took.sort_by(f64::total_cmp);
        took[took.len() / 2]
    }))
}

fn main() -> Result<(), Failure> {
    let (mut count, mut settings) = (2_000, Settings::default());
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--spin" => settings.progress = Progress::Spin(None),
            number => count = number.parse().map_err(|_| "usage: echo [ROUNDS] [--spin]")?,
        }
    }
    let cores: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|core| core.id)
        .collect();
    let (Some(&first), Some(&last)) = (cores.first(), cores.last()) else {
        return Err("it is not known which cores there are".into());
    };
    println!("all on core {first}");
    compare(count, settings, [first, first])?;
    if last != first {
        println!("one side on core {first}, the other on core {last}");
        compare(count, settings, [first, last])?;
    }
    Ok(())
}

fn compare(count: usize, settings: Settings, places: [usize; 2]) -> Result<(), Failure> {
    let (mut plain, control) = (Plain::start(places)?, Control::start(settings, places)?);
    let to = control.two.name();
    let mut functions = Functions::start(&control.one, to)?;
    let back = control.one.inbox(From::only(to), WAITS, 1 << 20)?;
    let mut waits = Waits(control.one.clone(), to, back);
    let mut all: [&mut dyn Echo; 3] = [&mut plain, &mut functions, &mut waits];
    for echo in &mut all {
        echo.run(count, 1)?;
    }
    for (deep, what) in [(1, "one at a time"), (DEEP, "64 under way")] {
        let [plain, functions, waits] = measure(&mut all, count, deep)?;
        println!(
            "{what:<14} plain {plain:7.2} us   functions {functions:7.2} us, ratio {:.2}   waits {waits:7.2} us, ratio {:.2}",
            functions / plain,
            waits / plain
        );
    }
    drop((functions, waits));
    control.one.finish(LIMIT);
    control.two.finish(LIMIT);
    Ok(())
}
