//! Child processes, most of them foreign programs: started with a mark in their environment, run under a
//! deadline, ended with everything that they started; and the output that they printed.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use doorbell_bench::report::printable;
use doorbell_fabric::process::spawn;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process_group, pidfd_open};

use crate::console;
use crate::error::ToolError;
use crate::run::reaper::{JobProcesses, Reaper};
use crate::run::watch::{Signals, wait};

/// What the names of our temporary folders begin with: the keeper removes no others.
pub const FOLDER: &str = "doorbell-place-";

/// The environment variable that marks our child processes; the reaper looks for it.
const MARK: &str = "DOORBELL_ROOT";
/// The most of a program's output that is kept, in bytes; what exceeds it is read and discarded.
const WORDS_MAX: usize = 1 << 20;
/// The longest time from a server's start until it listens.
const LISTENING: Duration = Duration::from_secs(10);
/// The interval between two checks whether it does.
const LOOK: Duration = Duration::from_millis(5);
/// The longest time that a server has to end on its own after its client.
const LEAVE: Duration = Duration::from_secs(2);
/// The longest wait for a program's output after its end: a child of its own may still hold the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The time between SIGTERM and SIGKILL for what is left of a program.
const GRACE: Duration = Duration::from_millis(200);

/// The reason why there is no figure.
#[derive(Debug)]
pub enum Stop {
    /// This stack has none, for this reason; the others go on.
    Failed(String),
    /// A signal ended the command.
    Interrupted(Signal),
    /// Nothing more can be measured.
    Ended(ToolError),
}

impl Stop {
    /// Returns the exit status of a command that was stopped. One that was interrupted reports it on stderr
    /// and returns the shell's number for the signal.
    pub fn end(self) -> Result<ExitCode, ToolError> {
        const BY_SIGNAL: u8 = 128;
        match self {
            Self::Interrupted(signal) => {
                console::say("doorbell: interrupted; nothing was written, and what was started is ended");
                let number = u8::try_from(signal.as_raw()).unwrap_or(0);
                Ok(ExitCode::from(BY_SIGNAL.saturating_add(number)))
            }
            Self::Ended(error) => Err(error),
            Self::Failed(why) => Err(ToolError::Usage(why)),
        }
    }
}

impl From<ToolError> for Stop {
    fn from(error: ToolError) -> Self {
        Self::Ended(error)
    }
}

/// How a server shows that it accepts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It listens on this port of TCP.
    Listens(u16),
    /// It has printed something.
    Speaks,
}

/// The exit status and the output of a program.
#[derive(Debug)]
pub struct Ended {
    status: ExitStatus,
    /// Whether it is a server that ended before it was ready.
    early: bool,
    /// What it printed to its standard output.
    pub out: String,
    /// What it printed to its standard error.
    pub err: String,
}

impl Ended {
    /// Returns what it printed, if it ended well.
    pub fn good(self, name: &str) -> Result<String, Stop> {
        match self.failure() {
            None => Ok(self.out),
            Some(how) => Err(Stop::Failed(format!(
                "{name} ended with {how}: {}",
                self.last_words()
            ))),
        }
    }

    /// Returns how it failed; `None` if it ended well.
    pub fn failure(&self) -> Option<String> {
        let status = self.status;
        match self.early {
            true => Some(format!("{status} of its server, before it was ready")),
            false => (!status.success()).then(|| status.to_string()),
        }
    }

    /// Its exit status, unless a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Returns the last lines of its output that contain a letter or a digit, joined into one.
    pub fn last_words(&self) -> String {
        last_words(&self.err, &self.out)
    }
}

/// Starts programs and ends them.
pub struct Runner {
    reaper: RefCell<Reaper>,
    root: String,
    signals: RefCell<Signals>,
    interrupted: Cell<Option<Signal>>,
    /// Whether what we start comes before other work, because we have real-time priority ourselves.
    pub first: bool,
}

/// A program that stays as long as its standard input is open; dropped, it ends.
pub struct Held {
    running: Running,
    stdin: Option<ChildStdin>,
}

/// A program that runs; dropped, it is ended with its group.
struct Running {
    child: Child,
    group: Pid,
    end: Option<OwnedFd>,
    out: Receiver<String>,
    err: Receiver<String>,
    /// Whether it has printed something.
    spoke: Arc<AtomicBool>,
    over: bool,
}

impl Runner {
    /// Starts the reaper, and catches SIGINT, SIGTERM and SIGHUP while a program runs and between two
    /// programs.
    pub fn new() -> Result<Self, ToolError> {
        let system = |what| move |source| ToolError::System { what, source };
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes)
            .map_err(std::io::Error::from)
            .map_err(system("make a random name"))?;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let root = format!("@doorbell-{hex}");
        // What peers leave behind comes to us, and not to the machine's first process. Where that is refused,
        // it is ended all the same, and only its time is unknown.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Ok(Self {
            reaper: RefCell::new(
                Reaper::start(&root)
                    .map_err(system("start the process that ends what peers leave behind"))?,
            ),
            root,
            signals: RefCell::new(Signals::catch_ends().map_err(system("catch signals"))?),
            interrupted: Cell::new(None),
            first: fs::read_to_string("/proc/self/stat").is_ok_and(|stat| is_real_time(&stat)),
        })
    }

    /// Runs a program to its end.
    pub fn run(&self, name: &str, command: Command, limit: Duration) -> Result<Ended, Stop> {
        let mut running = self.start(name, command)?;
        self.wait_for(&mut running, name, limit)
    }

    /// Runs a server and its client; the client is started when the server is ready. Returns the client's
    /// output, or the server's if it never became ready.
    pub fn pair(
        &self,
        name: &str,
        server: Command,
        ready: Ready,
        client: Command,
        limit: Duration,
    ) -> Result<Ended, Stop> {
        let mut serving = self.start(name, server)?;
        let begun = Instant::now();
        let listening = LISTENING.min(limit);
        while !serving.is_ready(ready) {
            if serving.has_ended() {
                return Ok(Ended {
                    early: true,
                    ..serving.take_leave(name)?
                });
            }
            if begun.elapsed() > listening {
                let what = match ready {
                    Ready::Listens(port) => format!("listen on port {port}"),
                    Ready::Speaks => "print that it is ready".to_owned(),
                };
                return Err(Stop::Failed(format!(
                    "{name}'s server did not {what} within {}: {}",
                    seconds(listening),
                    self.kill(&mut serving)
                )));
            }
            self.check()?;
            std::thread::sleep(LOOK);
        }
        let mut asking = self.start(name, client)?;
        let ended = self.wait_for(&mut asking, name, limit)?;
        // The client has what was wanted: a server that stays is ended, and that is all.
        match self.wait_for(&mut serving, name, LEAVE) {
            Ok(_) | Err(Stop::Failed(_)) => Ok(ended),
            Err(stop) => Err(stop),
        }
    }

    /// Returns [`Stop::Interrupted`] once a signal has arrived that ends the command.
    pub fn check(&self) -> Result<(), Stop> {
        if let Some(signal) = self.signals.borrow_mut().arrived().first() {
            self.interrupted.set(Some(*signal));
        }
        self.interrupted
            .get()
            .map_or(Ok(()), |signal| Err(Stop::Interrupted(signal)))
    }

    /// Starts a program that runs until the returned value is dropped, and waits until it prints that it is
    /// ready. [`Self::sweep`] does not end it; the reaper does if this process cannot.
    pub fn hold(&self, name: &str, mut command: Command, limit: Duration) -> Result<Held, Stop> {
        command.env_remove(MARK).stdin(Stdio::piped());
        let mut running = self.spawn(name, command)?;
        let stdin = running.child.stdin.take();
        let begun = Instant::now();
        while !running.is_ready(Ready::Speaks) {
            if running.has_ended() {
                let ended = running.take_leave(name)?;
                return Err(Stop::Failed(ended.last_words()));
            }
            if begun.elapsed() > limit {
                return Err(Stop::Failed(format!(
                    "{name} was not ready within {} and was killed: {}",
                    seconds(limit),
                    self.kill(&mut running)
                )));
            }
            self.check()?;
            std::thread::sleep(LOOK);
        }
        Ok(Held { running, stdin })
    }

    /// From now on a folder is removed when we are killed.
    pub fn watch_folder(&self, folder: &Path) {
        self.reaper.borrow_mut().watch_folder(folder);
    }

    fn start(&self, name: &str, mut command: Command) -> Result<Running, Stop> {
        command.env(MARK, &self.root).stdin(Stdio::null());
        self.spawn(name, command)
    }

    fn spawn(&self, name: &str, mut command: Command) -> Result<Running, Stop> {
        self.check()?;
        command
            .envs(doorbell::config::warned_variables())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for us, and we end it in our order.
            .process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |source: std::io::Error| {
            Stop::Failed(format!("{name} could not be started ({program}): {source}"))
        };
        let mut child = spawn(&mut command).map_err(failed)?;
        let group = Pid::from_child(&child);
        self.reaper.borrow_mut().watch(group);
        // If the system has none, its end is checked for repeatedly.
        let end = pidfd_open(group, PidfdFlags::empty()).ok();
        let has_printed = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&has_printed);
        let out = child.stdout.take();
        let out = out.map_or_else(nothing, |pipe| {
            listen_to(pipe, move || heard.store(true, Ordering::Release))
        });
        let err = child
            .stderr
            .take()
            .map_or_else(nothing, |pipe| listen_to(pipe, || ()));
        Ok(Running {
            child,
            group,
            end,
            out,
            err,
            spoke: has_printed,
            over: false,
        })
    }

    /// Sleeps until a program ends, its time is over, or a signal ends this command.
    fn wait_for(&self, running: &mut Running, name: &str, limit: Duration) -> Result<Ended, Stop> {
        let until = Instant::now() + limit;
        while !running.has_ended() {
            if Instant::now() >= until {
                let words = self.kill(running);
                return Err(Stop::Failed(format!(
                    "{name} did not end within {} and was killed: {words}",
                    seconds(limit)
                )));
            }
            let signals = self.signals.borrow();
            let end = running.end.as_ref().map(AsFd::as_fd);
            let look = end.map_or_else(|| Instant::now() + LOOK, |_| until);
            let descriptors: Vec<BorrowedFd<'_>> = end.into_iter().chain(signals.descriptors()).collect();
            let waited = wait(&descriptors, Some(until.min(look)));
            drop(signals);
            waited.map_err(|source| ToolError::System {
                what: "wait for a program",
                source,
            })?;
            self.check()?;
        }
        running.take_leave(name)
    }

    /// Ends a program and what it started; its last words.
    fn kill(&self, running: &mut Running) -> String {
        running.end_group();
        JobProcesses::new(&self.root, vec![running.group]).end(GRACE);
        match running.take_leave("it") {
            Ok(ended) => last_words(&ended.err, &ended.out),
            Err(_) => "it printed nothing".to_owned(),
        }
    }

    /// Ends whatever is left of programs that have ended: an MPI's daemons may outlive its launcher.
    pub fn sweep(&self) {
        JobProcesses::new(&self.root, Vec::new()).end(GRACE);
        // They are ours now (we adopt them), and their time is to be known.
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.sweep();
    }
}

impl Running {
    fn has_ended(&mut self) -> bool {
        self.over = self.over || !matches!(self.child.try_wait(), Ok(None));
        self.over
    }

    fn is_ready(&self, ready: Ready) -> bool {
        match ready {
            Ready::Listens(port) => listens(self.group, port),
            Ready::Speaks => self.spoke.load(Ordering::Acquire),
        }
    }

    fn end_group(&mut self) {
        // A process that has ended already needs no signal.
        let _ = kill_process_group(self.group, Signal::KILL);
    }

    fn take_leave(&mut self, name: &str) -> Result<Ended, Stop> {
        let status = self
            .child
            .wait()
            .map_err(|source| Stop::Failed(format!("{name} could not be waited for: {source}")))?;
        self.over = true;
        let heard = |words: &Receiver<String>| words.recv_timeout(LAST_WORDS).unwrap_or_default();
        Ok(Ended {
            status,
            early: false,
            out: heard(&self.out),
            err: heard(&self.err),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.end_group();
            let _ = self.child.wait();
        }
    }
}

impl Held {
    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.running.child.id()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // It ends when its standard input closes; if it does not, it is ended with its process group.
        drop(self.stdin.take());
        let begun = Instant::now();
        while !self.running.has_ended() && begun.elapsed() < LEAVE {
            std::thread::sleep(LOOK);
        }
    }
}

/// Formats a time in seconds.
fn seconds(time: Duration) -> String {
    format!("{} s", (time.as_secs_f64() * 1e3).round() / 1e3)
}

fn nothing() -> Receiver<String> {
    sync_channel(1).1
}

/// Reads a pipe to its end in a thread of its own, which calls `hear` for each piece; a program that prints
/// without end fills none of our memory.
fn listen_to(mut pipe: impl Read + Send + 'static, hear: impl Fn() + Send + 'static) -> Receiver<String> {
    let (said, heard) = sync_channel(1);
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = pipe.read(&mut piece) {
            let room = WORDS_MAX - kept.len();
            kept.extend_from_slice(&piece[..length.min(room)]);
            hear();
        }
        let _ = said.send(String::from_utf8_lossy(&kept).into_owned());
    });
    heard
}

/// Returns the last lines that contain a letter or a digit, joined into one.
fn last_words(err: &str, out: &str) -> String {
    const LINES: usize = 3;
    const LENGTH: usize = 600;
    let of = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| line.chars().any(char::is_alphanumeric));
        let lines: Vec<&str> = lines.collect();
        let from = lines.len().saturating_sub(LINES);
        lines[from..].iter().map(|line| printable(line)).collect()
    };
    let mut lines = of(err);
    if lines.is_empty() {
        lines = of(out);
    }
    if lines.is_empty() {
        return "it printed nothing".to_owned();
    }
    let words = lines.join(" / ");
    match words.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

/// Whether a process is scheduled before all that is not: its policy, field 41 of /proc/PID/stat, is FIFO or
/// RR.
fn is_real_time(stat: &str) -> bool {
    let policy = stat
        .rsplit_once(") ")
        .and_then(|(_, fields)| fields.split_whitespace().nth(38));
    matches!(policy, Some("1" | "2"))
}

/// Whether a process's network namespace has a socket that listens on a port.
fn listens(process: Pid, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        let path = format!("/proc/{}/net/{table}", process.as_raw_nonzero());
        fs::read_to_string(path).is_ok_and(|table| is_listed(&table, port))
    })
}

/// Whether a table such as /proc/net/tcp has the port among those that are listened on.
fn is_listed(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let ours = words.next().is_some_and(|local| local.ends_with(&end));
        ours && words.nth(1) == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_listened_on_is_found_in_the_kernel_s_table() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                     \x20  0: 0100007F:55F1 00000000:0000 0A 00000000:00000000\n\
                     \x20  1: 0100007F:55F2 0100007F:9999 01 00000000:00000000\n";
        assert!(is_listed(table, 0x55f1));
        assert!(!is_listed(table, 0x55f2) && !is_listed(table, 0x5f1) && !is_listed("", 1));
    }

    #[test]
    fn times_are_shown_as_they_are() {
        assert_eq!(seconds(Duration::from_secs_f64(2.5)), "2.5 s");
        assert_eq!(seconds(Duration::from_secs(24)), "24 s");
    }

    #[test]
    fn the_policy_is_read() {
        let stat = |policy| {
            let fields: Vec<String> = (4..=52)
                .map(|field| if field == 41 { policy } else { field }.to_string())
                .collect();
            format!("7 (a) b) S {}", fields.join(" "))
        };
        assert!(is_real_time(&stat(2)) && is_real_time(&stat(1)));
        assert!(!is_real_time(&stat(0)) && !is_real_time("7 (a) S 1 2"));
    }

    #[test]
    fn last_words_are_the_last_lines_that_say_something() {
        assert_eq!(last_words("", ""), "it printed nothing");
        assert_eq!(last_words("-----\na\nb\nc\nd\n----\n", "x"), "b / c / d");
        assert_eq!(last_words("\n", "out\x1b[2J\n"), "out\\u{1b}[2J");
        let cut = last_words(&"é".repeat(1000), "");
        assert!(cut.ends_with("é…") && cut.chars().count() == 601, "{cut}");
    }
}
