//! Two processes beside each other, as the ranks of a job are, with a real shm rail between them: each reads
//! the other's memory as the rail does it, then messages of two sizes go to and fro.
//!
//! ```text
//!   doctor ─┬─ first   hello ►┐    ┌► hello of second   message ──►           found ►┐
//!           └─ second  hello ►┴────┴► hello of first            ──► echo      found ►┴─► a step of the chain
//! ```
//!
//! They are siblings on purpose: Yama lets a parent read its children where it does not let ranks read each
//! other.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::Config;
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::error::{Exit, RailError};
use doorbell_fabric::message::{
    Arrivals, Body, Inbound, Incarnation, Message, OpError, OpId, PeerIndex, Refused,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Rail;
use doorbell_shm::{ShmRail, try_read};
use serde::{Deserialize, Serialize};

use crate::error::ToolError;

/// Nothing here takes as long on a machine that works, however busy it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// Messages of eight bytes, and long ones, that go to and fro.
const SHORT: usize = 200;
const LONG: usize = 8;
/// Polls before the core is yielded: the other process may need it.
const LOOKS: u32 = 200;

/// What a process of the doctor sends to the other one about itself.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    process: i32,
    nonce_at: u64,
    nonce: [u8; 16],
    address: String,
    incarnation: u64,
    /// Whether it sends first.
    calls: bool,
}

/// What a process of the doctor has found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Findings {
    /// Why it could not read the other's memory, by the system's number; `None`: it could.
    pub(super) unreadable: Option<i32>,
    /// The error where messages did not pass.
    pub(super) failed: Option<String>,
    /// Half a round trip of eight bytes, in nanoseconds: the median.
    pub(super) half_ns: u64,
    /// Bytes of the long messages.
    pub(super) long: usize,
}

/// What both found out, the one that calls first.
pub(super) type Both = [Findings; 2];

/// Starts the two and lets them meet.
///
/// # Errors
/// A message for the user, when they could not be started, or did not end in time.
pub(super) fn meet() -> Result<Both, String> {
    let until = Instant::now() + 2 * PATIENCE;
    let mut two = [PeerProcess::start()?, PeerProcess::start()?];
    let mut hellos = Vec::new();
    for one in &mut two {
        hellos.push(one.receive(until)?);
    }
    for (at, one) in two.iter_mut().enumerate() {
        let mut other: Hello = read(&hellos[1 - at])?;
        other.calls = at == 1;
        one.send(&other)?;
    }
    let [first, second] = &mut two;
    Ok([read(&first.receive(until)?)?, read(&second.receive(until)?)?])
}

fn read<T: for<'a> Deserialize<'a>>(line: &str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|_| format!("a process of the doctor printed: {line}"))
}

/// One of the processes, which is ended with this.
struct PeerProcess {
    child: Child,
    into: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl PeerProcess {
    fn start() -> Result<Self, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
        let mut child = Command::new(program)
            .arg("doctor-peer")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("a process could not be started: {error}"))?;
        let (tell, lines) = channel();
        let (into, out) = (child.stdin.take(), child.stdout.take());
        // It ends with the process, whose only output it reads.
        thread::spawn(move || {
            let lines = out.map(|out| BufReader::new(out).lines()).into_iter().flatten();
            for line in lines.map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, into, lines })
    }

    fn receive(&mut self, until: Instant) -> Result<String, String> {
        let left = until.saturating_duration_since(Instant::now());
        self.lines
            .recv_timeout(left)
            .map_err(|_| "a process of the doctor ended or hung before it reported".to_owned())
    }

    fn send(&mut self, words: &impl Serialize) -> Result<(), String> {
        let line = serde_json::to_string(words).map_err(|error| error.to_string())?;
        let into = self.into.as_mut().ok_or("a process of the doctor has no input")?;
        writeln!(into, "{line}").map_err(|error| format!("a process of the doctor has gone: {error}"))
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `doorbell doctor-peer`: one of the two processes.
pub(crate) fn doctor_peer() -> Result<ExitCode, ToolError> {
    let config = Config::from_environment()?;
    let name: RailName = "shm".parse()?;
    let mut rail = ShmRail::open(&name, &doorbell::drivers::shm_config(&config))?;
    let (nonce_at, nonce) = rail.nonce_place();
    let process = rustix::process::getpid().as_raw_nonzero().get();
    send(&Hello {
        process,
        nonce_at,
        nonce,
        address: rail.address().to_string(),
        incarnation: rail.incarnation().0,
        calls: false,
    })?;
    let mut line = String::new();
    io::stdin()
        .read_line(&mut line)
        .map_err(system("read from the other process"))?;
    let other: Hello =
        serde_json::from_str(&line).map_err(|error| system("understand the doctor")(error.into()))?;
    let unreadable = match try_read(other.process, other.nonce_at) {
        Ok(read) if read == other.nonce => None,
        Ok(_) => Some(0),
        Err(error) => Some(error.raw_os_error().unwrap_or(0)),
    };
    let mut findings = Findings {
        unreadable,
        ..Findings::default()
    };
    match exchange(&mut rail, &other) {
        Ok((half_ns, long)) => (findings.half_ns, findings.long) = (half_ns, long),
        Err(why) => findings.failed = Some(why),
    }
    send(&findings)?;
    // The doctor ends it; if the doctor is gone, so is its end of this.
    let _ = io::stdin().read_line(&mut line);
    Ok(Exit::Done.into())
}

fn send(words: &impl Serialize) -> Result<(), ToolError> {
    let line = serde_json::to_string(words).map_err(|error| system("write a report")(error.into()))?;
    crate::console::print(&format!("{line}\n"))
}

fn system(what: &'static str) -> impl Fn(io::Error) -> ToolError {
    move |source| ToolError::System { what, source }
}

/// The messages, as they come in.
#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    count: usize,
}

impl Arrivals for Received {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        self.bytes.resize(inbound.len(), 0);
        inbound.copy_to(0, &mut self.bytes);
        self.count += 1;
    }
    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// One end of the exchange of messages.
struct End<'a> {
    rail: &'a mut ShmRail,
    peer: PeerIndex,
    clock: Clock,
    until: Instant,
    received: Received,
}

/// Messages to and fro; half a round trip, and the length of the long ones.
fn exchange(rail: &mut ShmRail, other: &Hello) -> Result<(u64, usize), String> {
    let address: RailAddress = other.address.parse().map_err(words)?;
    let peer = Message::open(rail, &address, Incarnation(other.incarnation)).map_err(words)?;
    let longest = rail.capabilities().limits.message.saturating_sub(HEAD.len());
    // The other process has our `calls` negated: exactly one of the two connects.
    let calls = !other.calls;
    let mut end = End {
        rail,
        peer,
        clock: Clock::start(),
        until: Instant::now() + PATIENCE,
        received: Received::default(),
    };
    let long = longest.min(1 << 16);
    let half = match calls {
        true => end.call(long)?,
        false => end.answer(long)?,
    };
    Ok((half, long))
}

fn words(error: RailError) -> String {
    error.to_string()
}

/// In front of each message, as the layer above has its own.
const HEAD: [u8; 16] = *b"doorbell doctor\0";

impl End<'_> {
    fn call(&mut self, long: usize) -> Result<u64, String> {
        let mut halves = Vec::with_capacity(SHORT);
        for (length, times) in [(8, SHORT), (long, LONG)] {
            for turn in 0..times {
                let body = body(turn, length);
                let begun = Instant::now();
                self.send(&body)?;
                self.receive()?;
                halves.push(begun.elapsed().as_nanos() as u64 / 2);
                if self.received.bytes.get(HEAD.len()..) != Some(&body[..]) {
                    return Err(format!("a message of {length} bytes came back changed"));
                }
            }
            if length == 8 {
                halves.sort_unstable();
                halves.truncate(SHORT);
            }
        }
        let until = self.clock.now() + PATIENCE;
        while !self.rail.close(self.clock.now(), until) {
            thread::yield_now();
        }
        Ok(halves.get(SHORT / 2).copied().unwrap_or(0))
    }

    fn answer(&mut self, _long: usize) -> Result<u64, String> {
        for _ in 0..SHORT + LONG {
            self.receive()?;
            let body = self.received.bytes.get(HEAD.len()..).unwrap_or(&[]).to_vec();
            self.send(&body)?;
        }
        Ok(0)
    }

    fn send(&mut self, body: &[u8]) -> Result<(), String> {
        loop {
            match self.rail.send(self.peer, &HEAD, Body::Bytes(body)) {
                Ok(_) => break,
                Err(Refused::Full) => self.turn()?,
                Err(refused) => {
                    return Err(format!(
                        "a message of {} bytes was refused: {refused:?}",
                        body.len()
                    ));
                }
            }
        }
        self.rail.flush();
        Ok(())
    }

    /// Waits for one more message.
    fn receive(&mut self) -> Result<(), String> {
        let before = self.received.count;
        while self.received.count == before {
            self.turn()?;
        }
        Ok(())
    }

    /// Polls a number of times, and yields the core.
    fn turn(&mut self) -> Result<(), String> {
        if Instant::now() >= self.until {
            return Err(format!("no message came within {} seconds", PATIENCE.as_secs()));
        }
        for _ in 0..LOOKS {
            if self.rail.poll(1, &mut self.received) > 0 {
                return Ok(());
            }
        }
        self.rail.progress(self.clock.now());
        thread::yield_now();
        Ok(())
    }
}

fn body(turn: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at + turn) as u8).collect()
}
