//! The side that serves: one measurement after another, with a line about each client.
//!
//! The main thread accepts connections: it runs the handshake with each client, refuses clients while another
//! one is served, and waits for signals. The measurement runs in a thread of its own, which ends when its
//! client does, however that is.

use std::fmt::{self, Write as _};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use doorbell::oob::lines::tcp::blocking::{Accepted, PORT, is_loopback};
use doorbell::oob::{Canceller, Connection, Endpoint, Listener};
use doorbell_bench::job::Cores;
use doorbell_bench::pin;
use doorbell_bench::plan::{Kind, Plan};
use doorbell_fabric::error::Exit;
use doorbell_fabric::signals;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::Asked;
use super::args::MeasureArgs;
use super::hosts::{Side, alone, bind_both, cores, no_way, terms};
use super::layer::LayerJob;
use super::settings::{Threads, builder, check_rails};
use crate::console;
use crate::error::ToolError;

/// The name to be served on has to be found in this time.
const LOOK_UP: Duration = Duration::from_secs(10);

/// Serves until a signal, or one measurement with `--once`.
pub(super) fn serve(asked: &Asked<'_>, threads: Threads) -> Result<ExitCode, ToolError> {
    let args = asked.args;
    alone("--serve")?;
    asked.check_captures(&[1])?;
    if let Some((flag, _)) = asked.outputs().first() {
        let text =
            format!("`{flag}` belongs to the side that connects: its options rule, and it writes the report");
        return Err(ToolError::Usage(text));
    }
    check_rails(args, 1)?;
    let cores = cores(args, Side::Serves, &threads)?;
    let loopback = || Endpoint::from(SocketAddr::from(([127, 0, 0, 1], PORT)));
    let bind = args.hosts.bind.clone().unwrap_or_else(loopback);
    let address = bind.resolve(LOOK_UP)?.into_iter().next();
    let address = address.ok_or_else(|| ToolError::Usage(format!("`{bind}` has no address")))?;
    let mut listener = Listener::bind(address, terms(&args.hosts)?)?;
    let mut wakeup = Wakeup::new()?;
    announce(&listener, args)?;
    thread::scope(|scope| {
        let mut served: Option<Served<'_>> = None;
        let mut log = Log::default();
        loop {
            match listener.accept(Some(wakeup.reader.as_fd()), None)? {
                Accepted::Connection(client) => match &served {
                    Some(other) => {
                        doorbell::occupied(*client, &format!("{} is being served", other.address));
                    }
                    None => {
                        let (end_notice, address) = (wakeup.end_notice()?, client.address());
                        served = Some(Served {
                            address,
                            since: Instant::now(),
                            over: Arc::clone(&end_notice.over),
                            cancel: Cancel(client.canceller()?),
                            thread: scope.spawn(move || {
                                // Dropped whatever way this ends, also by a panic.
                                let _end_notice = end_notice;
                                one(args, *client, cores)
                            }),
                        });
                    }
                },
                Accepted::TurnedAway(address, error) => log.refused(address, &error.to_string())?,
                Accepted::Woken => {
                    wakeup.drain();
                    if wakeup.is_interrupted() {
                        return end(served);
                    }
                    if let Some(done) = served.take_if(|served| served.over.load(Ordering::Acquire)) {
                        let exit = done.end(false)?;
                        if args.hosts.once {
                            return Ok(exit.into());
                        }
                    }
                }
                Accepted::Late => {}
            }
        }
    })
}

fn announce(listener: &Listener, args: &MeasureArgs) -> Result<(), ToolError> {
    let mut line = format!("serving on {}", listener.address());
    line.push_str(match (&args.hosts.key_file, is_loopback(&listener.address())) {
        (None, _) => ", for this host only: there is no key",
        (Some(_), true) => ", for this host only: `--bind ADDR` serves others",
        (Some(_), false) => ", for clients with the key",
    });
    let offer = Offer::of(args)?;
    let _ = write!(line, "; {offer}");
    console::print(&format!("{line}\n"))?;
    if !is_loopback(&listener.address()) && !offer.reaches_hosts {
        // After the line above, on the standard output as all other lines of the server.
        console::print(
            "no client of another host can be served over these rails: name one that it reaches on both sides, as in \
             `--rail udp:eth0` (`doorbell info` lists them)\n",
        )?;
    }
    Ok(())
}

/// The rails that clients are offered.
struct Offer {
    rails: Vec<String>,
    reaches_hosts: bool,
}

impl Offer {
    fn of(args: &MeasureArgs) -> Result<Self, ToolError> {
        let config = builder(args, None).resolve()?;
        let named = &config.rails.list.get().0;
        let found = doorbell::discover(&config);
        let offered = found.usable().filter(|one| match named[..] {
            [] => one.is_automatic(),
            _ => named
                .iter()
                .any(|name| *name == one.rail || name.contains(&one.rail)),
        });
        let rails: Vec<_> = offered.map(|one| one.rail.clone()).collect();
        Ok(Self {
            // Memory is shared by the processes of one host.
            reaches_hosts: rails.iter().any(|rail| rail.kind() != "shm"),
            rails: rails.iter().map(ToString::to_string).collect(),
        })
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rails[..] {
            [] => out.write_str("no rail"),
            [one] => write!(out, "rail {one}"),
            all => write!(out, "rails {}", all.join(", ")),
        }?;
        if self.reaches_hosts || self.rails.is_empty() {
            Ok(())
        } else {
            out.write_str(", which reaches this host only")
        }
    }
}

/// The measurement that is under way.
struct Served<'scope> {
    address: SocketAddr,
    since: Instant,
    over: Arc<AtomicBool>,
    cancel: Cancel,
    thread: ScopedJoinHandle<'scope, Result<(), ToolError>>,
}

/// Ends the measurement whatever way the main thread leaves its loop; without effect on one that has ended.
struct Cancel(Canceller);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Served<'_> {
    /// Waits for the end of its thread, which is near, and prints how it was.
    fn end(self, interrupted: bool) -> Result<Exit, ToolError> {
        let (address, seconds) = (self.address, self.since.elapsed().as_secs_f64());
        let (exit, how) = match self.thread.join() {
            _ if interrupted => (Exit::Done, "ended by a signal".to_owned()),
            Ok(Ok(())) => (Exit::Done, "done".to_owned()),
            // The line begins with the address; what this side refused does so, too.
            Ok(Err(error)) => (error.exit(), without(&format!("{address} "), error.to_string())),
            Err(_) => (Exit::System, "a defect of this program, see above".to_owned()),
        };
        console::print(&format!("{address} disconnected after {seconds:.1} s: {how}\n"))?;
        Ok(exit)
    }
}

fn without(prefix: &str, text: String) -> String {
    text.strip_prefix(prefix).map(str::to_owned).unwrap_or(text)
}

/// Ends the server after a signal. The connection to a client is closed without a message, which the other
/// side takes for an end.
fn end(served: Option<Served<'_>>) -> Result<ExitCode, ToolError> {
    if let Some(served) = served {
        served.cancel.0.cancel();
        served.end(true)?;
    }
    Ok(Exit::Done.into())
}

/// Runs one measurement with the client's options.
fn one(args: &MeasureArgs, client: Connection, cores: Cores) -> Result<(), ToolError> {
    let address = client.address();
    // The client sends the plan: the follower only needs a valid one.
    let plan = Plan {
        layer: args.layer.layer(),
        ..Plan::new(Kind::Pingpong)
    };
    bind_both(cores)?;
    let mut job = LayerJob::build_over(builder(args, cores.progress), &plan, client).map_err(no_way)?;
    let (pid, rails) = job.peer(0);
    // The main thread notices a reader that has gone.
    let _ = console::print(&format!(
        "{address} connected: process {pid}, over {}\n",
        rails.join(", ")
    ));
    let main = cores.main.or(job.own_core());
    if let Some(core) = main {
        pin::bind(core)?;
    }
    job.measure(&plan, Cores { main, ..cores }, &mut ())?;
    job.close();
    Ok(())
}

/// What wakes the main thread: signals, and the end of a measurement.
struct Wakeup {
    reader: UnixStream,
    writer: UnixStream,
    interrupted: Arc<AtomicBool>,
}

/// Wakes the main thread when it is dropped.
struct EndNotice {
    writer: UnixStream,
    over: Arc<AtomicBool>,
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        // Release pairs with the Acquire in the main thread, which joins the thread when it sees the flag.
        self.over.store(true, Ordering::Release);
        // If the buffer is full, the main thread is woken already.
        let _ = self.writer.write(b"!");
    }
}

impl Wakeup {
    fn new() -> Result<Self, ToolError> {
        let make = || {
            let (reader, writer) = UnixStream::pair()?;
            reader.set_nonblocking(true)?;
            writer.set_nonblocking(true)?;
            let interrupted = Arc::new(AtomicBool::new(false));
            for signal in [SIGINT, SIGTERM] {
                // In this order: when the pipe wakes the loop, the flag is already set.
                if signals::set_flag(signal, &interrupted)?.is_some() {
                    signals::write_to(signal, writer.try_clone()?)?;
                }
            }
            Ok(Self {
                reader,
                writer,
                interrupted,
            })
        };
        make().map_err(failed("catch signals"))
    }

    fn end_notice(&self) -> Result<EndNotice, ToolError> {
        let writer = self.writer.try_clone();
        Ok(EndNotice {
            writer: writer.map_err(failed("be notified of the end of a measurement"))?,
            over: Arc::new(AtomicBool::new(false)),
        })
    }

    fn drain(&mut self) {
        while matches!(self.reader.read(&mut [0; 64]), Ok(1..)) {}
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> ToolError {
    move |source| ToolError::System { what, source }
}

/// Lines about refused clients: a flood of them does not become a flood of lines.
#[derive(Default)]
struct Log {
    since: Option<Instant>,
    shown: u32,
    hidden: u64,
}

/// In each interval of this length …
const SPAN: Duration = Duration::from_secs(10);
/// … at most this many lines are printed.
const LINES: u32 = 20;

impl Log {
    fn refused(&mut self, address: SocketAddr, why: &str) -> Result<(), ToolError> {
        match self.line(Instant::now(), address, why) {
            Some(line) => console::print(&line),
            None => Ok(()),
        }
    }

    fn line(&mut self, now: Instant, address: SocketAddr, why: &str) -> Option<String> {
        let mut line = String::new();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) >= SPAN {
            if self.hidden > 0 {
                let _ = writeln!(line, "{} more were refused", self.hidden);
            }
            *self = Self {
                since: Some(now),
                ..Self::default()
            };
        }
        if self.shown >= LINES {
            self.hidden += 1;
            return None;
        }
        self.shown += 1;
        let _ = writeln!(line, "{address} was refused: {why}");
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_strangers_is_a_number() {
        let (start, address) = (Instant::now(), SocketAddr::from(([127, 0, 0, 1], 9)));
        let mut log = Log::default();
        let shown = (0..100).filter_map(|_| log.line(start, address, "no")).count();
        assert_eq!(shown, 20);
        let later = log.line(start + SPAN, address, "no").unwrap();
        assert_eq!(later, "80 more were refused\n127.0.0.1:9 was refused: no\n");
        assert!(!log.line(start + SPAN, address, "no").unwrap().contains("more"));
    }
}
