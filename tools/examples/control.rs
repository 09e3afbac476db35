//! Each of two ranks sends the other numbered messages over the control plane, and prints which threads and
//! transports carry it. With `--until-rail` they go on until the transport `rail` has taken over from `tcp`.
//! Start it with `DOORBELL_CONTROL=on doorbell run -n 2 target/debug/examples/control`.

use std::collections::VecDeque;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell::Control;
use doorbell::oob::event::{Event, Status};
use doorbell::oob::name::From;
use doorbell::oob::plane::{Carriage, Completion, Inbox, Message, Sent};

type Failure = Box<dyn Error + Send + Sync>;

const LIMIT: Duration = Duration::from_secs(60);
const TAG: u32 = 200;
/// Messages sent in any case.
const LEAST: u64 = 2_000;
/// Messages under way at a time.
const AT_A_TIME: usize = 100;
/// The number after the last message.
const END: u64 = u64::MAX;

fn main() -> ExitCode {
    match show(std::env::args().any(|word| word == "--until-rail")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("control: {error}");
            let error = error.downcast_ref::<doorbell::Error>();
            ExitCode::from(error.map_or(1, doorbell::Error::exit_code))
        }
    }
}

fn show(until_rail: bool) -> Result<(), Failure> {
    let world = doorbell::init()?;
    let control = world
        .control()
        .ok_or("DOORBELL_CONTROL=on gives ranks a control plane")?;
    println!("rank {}: {}", world.rank(), threads()?);
    let events = control.oob().events();
    if world.size() == 2 {
        let (rank, other) = (world.rank(), 1 - world.rank());
        let inbox = control
            .oob()
            .inbox(From::only(control.name_of(other)), TAG, 64 << 10)?;
        let (sent, received) = std::thread::scope(|scope| {
            let sends = scope.spawn(|| send(control, (rank, other), until_rail));
            let received = receive(&inbox);
            (sends.join().map_err(|_| "the sender panicked"), received)
        });
        println!("rank {rank}: sent {}, received {} in order", sent??, received?);
    }
    for carriage in control.oob().carriages() {
        let (name, sent) = (&carriage.name, carriage.frames_sent);
        println!(
            "rank {}: {name} sent {sent} frames, lost {}",
            world.rank(),
            carriage.lost
        );
    }
    if let Some(lost) = std::iter::from_fn(|| events.take()).find(is_loss) {
        return Err(format!("a rank was lost: {lost:?}").into());
    }
    world.close();
    Ok(())
}

fn is_loss(event: &Event) -> bool {
    matches!(event, Event::PeerLost { .. } | Event::LifelineLost)
}

/// Sends numbered messages, and how many there were.
fn send(control: &Control, (rank, other): (u32, u32), until_rail: bool) -> Result<u64, Failure> {
    let begun = Instant::now();
    let mut under_way = VecDeque::new();
    let mut next = 0;
    while next < LEAST || (until_rail && !has_taken_over(control)) {
        if begun.elapsed() > LIMIT {
            return Err("the rail has not taken over".into());
        }
        if next == LEAST {
            println!("rank {rank}: under way");
        }
        put(control, other, next, &mut under_way)?;
        next += 1;
    }
    put(control, other, END, &mut under_way)?;
    under_way.into_iter().try_for_each(|sent| delivered(&sent))?;
    Ok(next)
}

fn put(
    control: &Control,
    to: u32,
    number: u64,
    sends: &mut VecDeque<Completion<Sent>>,
) -> Result<(), Failure> {
    if sends.len() == AT_A_TIME
        && let Some(first) = sends.pop_front()
    {
        delivered(&first)?;
    }
    let body = number.to_le_bytes().as_slice().into();
    let to = control.name_of(to);
    sends.push_back(control.oob().send(to, TAG, body, Some(LIMIT))?);
    Ok(())
}

fn delivered(sent: &Completion<Sent>) -> Result<(), Failure> {
    match sent.wait(LIMIT) {
        Some(Ok(Status::Delivered)) => Ok(()),
        other => Err(format!("a message was not delivered: {other:?}").into()),
    }
}

/// Receives the numbers up to the end, each once and in order.
fn receive(inbox: &Inbox<Message>) -> Result<u64, Failure> {
    for next in 0.. {
        let message = inbox
            .wait(LIMIT)
            .ok_or_else(|| format!("message {next} never came"))?;
        match u64::from_le_bytes((&*message.body).try_into()?) {
            END => return Ok(next),
            number if number == next => {}
            number => return Err(format!("message {number} came in place of {next}").into()),
        }
    }
    Err("there is no end".into())
}

/// Whether `tcp` has lost its links, and the rail has carried many messages.
fn has_taken_over(control: &Control) -> bool {
    let all = control.oob().carriages();
    let of = |name: &str| all.iter().find(|carriage| &*carriage.name == name);
    let is_over = |tcp: &Carriage| tcp.links == 0 && tcp.lost > 0;
    of("tcp").is_some_and(is_over) && of("rail").is_some_and(|rail| rail.frames_sent >= LEAST)
}

/// The threads of the control plane, and the cores that each may use.
fn threads() -> Result<String, Failure> {
    let mut all = vec![format!("own thread on {}", cores("/proc/thread-self")?)];
    for thread in std::fs::read_dir("/proc/self/task")? {
        let folder = thread?.path().display().to_string();
        let name = std::fs::read_to_string(format!("{folder}/comm"))?
            .trim()
            .to_owned();
        if name.contains("oob") {
            all.push(format!("{name} on {}", cores(&folder)?));
        }
    }
    all[1..].sort();
    Ok(all.join("; "))
}

fn cores(folder: &str) -> Result<String, Failure> {
    let status = std::fs::read_to_string(format!("{folder}/status"))?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(list.unwrap_or_default().trim().to_owned())
}
