//! A running job: its ranks, and the loop that looks after them until the last one has ended.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use rustix::process::{Pid, PidfdFlags, Resource, Signal};

use super::keep::{Keeper, Kept};
use super::prefix::Lines;
use super::watch::{Signals, wait};
use super::{Launch, Output};
use crate::error::ToolError;
use crate::out;

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// After the last rank has ended, output that its own children still hold back is waited for this long.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// A rank that ended because it lost another one is not the cause: that one has so long to end by itself and say so.
const CAUSE: Duration = Duration::from_millis(500);

/// One rank.
struct Rank {
    number: u32,
    child: Child,
    group: Pid,
    // Readable when the process has ended.
    end: OwnedFd,
    out: Option<(ChildStdout, Lines)>,
    err: Option<(ChildStderr, Lines)>,
    ended: bool,
}

/// What a descriptor is for.
#[derive(Clone, Copy)]
enum About {
    Signals,
    End(usize),
    Out(usize),
    Err(usize),
}

/// How a rank failed.
struct Failure {
    code: u8,
    how: String,
}

struct Job {
    ranks: Vec<Rank>,
    signals: Signals,
    root: String,
    /// Dropped when all is done: what it is there for cannot happen any more.
    keeper: Keeper,
    /// The exit status of the job, once it is decided.
    verdict: Option<u8>,
    /// The first rank that ended because it lost another one, and until when the cause may still show.
    consequence: Option<(Failure, Instant)>,
    timeout: Option<(Instant, Duration)>,
    kill_at: Option<Instant>,
    /// How many times a signal was passed on: the second time it is SIGKILL.
    passed_on: u32,
    /// When every rank had ended.
    over: Option<Instant>,
}

/// Starts the ranks and looks after them until the last one has ended.
pub(super) fn launch(launch: &Launch) -> Result<ExitCode, ToolError> {
    raise_descriptor_limit();
    let signals = Signals::catch().map_err(|source| ToolError::System {
        what: "catch signals",
        source,
    })?;
    let root = root_name().map_err(|source| ToolError::System {
        what: "make a random name",
        source,
    })?;
    let keeper = Keeper::start(&root).map_err(|source| ToolError::System {
        what: "start the process that ends what ranks leave behind (check `ulimit -u` and `ulimit -n`)",
        source,
    })?;
    let mut job = Job {
        ranks: Vec::with_capacity(launch.ranks as usize),
        signals,
        root,
        keeper,
        verdict: None,
        consequence: None,
        timeout: launch.timeout.map(|time| (Instant::now() + time, time)),
        kill_at: None,
        passed_on: 0,
        over: None,
    };
    for rank in 0..launch.ranks {
        match start(launch, rank, &job.root) {
            Ok(started) => {
                job.keeper.watch(started.group);
                job.ranks.push(started);
            }
            Err(error) => {
                job.signal(Signal::KILL);
                job.ranks.iter_mut().for_each(|rank| drop(rank.child.wait()));
                job.sweep();
                return Err(error);
            }
        }
    }
    job.run().map_err(|source| ToolError::System {
        what: "wait for the ranks",
        source,
    })?;
    if job.verdict.is_some_and(|code| code != 0) {
        job.sweep();
    }
    if job.passed_on > 0 {
        // What a rank was about to overwrite on the terminal.
        out::pass("");
    }
    Ok(ExitCode::from(job.verdict.unwrap_or(0)))
}

/// An abstract socket of a name that nobody can guess: nothing in the file system, gone with the job.
fn root_name() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::from)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("@doorbell-{hex}"))
}

/// A job of 1,024 ranks needs three descriptors for each; the soft limit is often 1,024.
fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // When it is refused, starting a rank says so with its own error.
    let _ = rustix::process::setrlimit(Resource::Nofile, limit);
}

fn start(launch: &Launch, rank: u32, root: &str) -> Result<Rank, ToolError> {
    let failed = |what| move |source| ToolError::Start { rank, what, source };
    let own = std::env::current_exe().map_err(failed("find this program"))?;
    let mut command = Command::new(own);
    command
        .arg("exec-rank")
        .args(["--launcher", &std::process::id().to_string()]);
    if let Some(core) = launch.cores.get(rank as usize).copied().flatten() {
        command.args(["--core", &core.to_string()]);
    }
    command.arg("--").arg(&launch.program).args(&launch.args);
    command
        .env("DOORBELL_RANK", rank.to_string())
        .env("DOORBELL_SIZE", launch.ranks.to_string())
        .env("DOORBELL_ROOT", root)
        .envs(launch.variables.iter().map(|(name, value)| (*name, value)))
        .process_group(0)
        .stdin(stdin_of(rank));
    if launch.output == Output::Prefixed {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let mut child = command.spawn().map_err(failed("make a process"))?;
    let watched = Pid::from_raw(child.id() as i32)
        .ok_or(io::ErrorKind::NotFound.into())
        .and_then(|group| Ok((group, rustix::process::pidfd_open(group, PidfdFlags::empty())?)));
    let (group, end) = match watched {
        Ok(watched) => watched,
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed("watch its process")(error));
        }
    };
    Ok(Rank {
        number: rank,
        out: child.stdout.take().map(|stream| (stream, Lines::new(rank))),
        err: child.stderr.take().map(|stream| (stream, Lines::new(rank))),
        child,
        group,
        end,
        ended: false,
    })
}

/// Rank 0 reads what is piped into the launcher. Ranks are not in the terminal's foreground: reading from it would
/// stop them.
fn stdin_of(rank: u32) -> Stdio {
    if rank == 0 && !io::IsTerminal::is_terminal(&io::stdin()) {
        Stdio::inherit()
    } else {
        Stdio::null()
    }
}

impl Job {
    fn run(&mut self) -> io::Result<()> {
        while !self.is_over() {
            let (about, ready) = self.look()?;
            for (about, _) in about.into_iter().zip(ready).filter(|(_, ready)| *ready) {
                match about {
                    About::Signals => self.pass_on(),
                    About::End(index) => self.ended(index)?,
                    About::Out(index) => {
                        let passed = pass(&mut self.ranks[index].out, &mut io::stdout());
                        self.written(passed);
                    }
                    About::Err(index) => {
                        // An output for errors that fails has nobody to be told to.
                        let _ = pass(&mut self.ranks[index].err, &mut io::stderr());
                    }
                }
            }
            self.deadlines();
        }
        for index in 0..self.ranks.len() {
            let finished = finish(&mut self.ranks[index].out, &mut io::stdout());
            self.written(finished);
            let _ = finish(&mut self.ranks[index].err, &mut io::stderr());
        }
        Ok(())
    }

    /// Output that is lost fails the job. A reader that went away has what it wanted: its rank gets the SIGPIPE that
    /// it would have had without us.
    fn written(&mut self, result: io::Result<()>) {
        let Err(error) = result else { return };
        if error.kind() != io::ErrorKind::BrokenPipe && self.verdict.is_none() {
            self.verdict = Some(Exit::System.number());
            self.end(&format!("could not write to the standard output: {error}"));
        }
    }

    /// Ends what the ranks of a failed job have started and left behind.
    fn sweep(&self) {
        let groups = self.ranks.iter().map(|rank| rank.group).collect();
        Kept::new(&self.root, groups).end(GRACE);
    }

    /// Every rank has ended, and so has its output or our patience with it.
    fn is_over(&mut self) -> bool {
        if !self.ranks.iter().all(|rank| rank.ended) {
            return false;
        }
        let over = *self.over.get_or_insert_with(Instant::now);
        let silent = self
            .ranks
            .iter()
            .all(|rank| rank.out.is_none() && rank.err.is_none());
        silent || over.elapsed() >= LAST_WORDS
    }

    /// Waits for the next thing to happen.
    fn look(&self) -> io::Result<(Vec<About>, Vec<bool>)> {
        let mut descriptors: Vec<BorrowedFd<'_>> = self.signals.descriptors().collect();
        let mut about = vec![About::Signals; descriptors.len()];
        for (index, rank) in self.ranks.iter().enumerate() {
            if !rank.ended {
                about.push(About::End(index));
                descriptors.push(rank.end.as_fd());
            }
            if let Some((stream, _)) = &rank.out {
                about.push(About::Out(index));
                descriptors.push(stream.as_fd());
            }
            if let Some((stream, _)) = &rank.err {
                about.push(About::Err(index));
                descriptors.push(stream.as_fd());
            }
        }
        let last_words = self.over.map(|over| over + LAST_WORDS);
        let cause = self.consequence.as_ref().map(|(_, until)| *until);
        let until = [self.kill_at, self.timeout.map(|(at, _)| at), last_words, cause];
        let ready = wait(&descriptors, until.into_iter().flatten().min())?;
        Ok((about, ready))
    }

    /// A signal to the launcher is meant for the job; sent again, it means it.
    fn pass_on(&mut self) {
        for signal in self.signals.arrived() {
            if signal == Signal::TSTP {
                self.pause();
                continue;
            }
            self.passed_on += 1;
            self.signal(if self.passed_on > 1 { Signal::KILL } else { signal });
            if signal == Signal::HUP {
                // The terminal is gone: nobody is left to send it again.
                self.kill_at = Some(Instant::now() + GRACE);
            }
        }
    }

    /// Stops the ranks and then ourselves, until the shell has us go on.
    fn pause(&mut self) {
        let stopped = Instant::now();
        self.signal(Signal::STOP);
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        self.signal(Signal::CONT);
        if let Some((at, _)) = &mut self.timeout {
            *at += stopped.elapsed();
        }
    }

    fn ended(&mut self, index: usize) -> io::Result<()> {
        let rank = &mut self.ranks[index];
        if rank.ended {
            return Ok(());
        }
        let peeked = rustix::process::WaitIdOptions::EXITED
            | rustix::process::WaitIdOptions::NOWAIT
            | rustix::process::WaitIdOptions::NOHANG;
        let ended = rustix::process::waitid(rustix::process::WaitId::Pid(rank.group), peeked)?;
        let Some(ended) = ended else { return Ok(()) };
        if ended.exit_status() != Some(0) {
            // What a failed rank started is ended with it; before the wait, while the number is still its own.
            let _ = rustix::process::kill_process_group(rank.group, Signal::TERM);
        }
        let status = rank.child.wait()?;
        rank.ended = true;
        let number = rank.number;
        let code = code_of(status);
        if code != 0 {
            let how = format!("rank {number} {}", how(status));
            self.failed(Failure { code, how });
        }
        Ok(())
    }

    /// The first failure is the job's, unless it looks like the consequence of another one.
    fn failed(&mut self, failure: Failure) {
        if self.verdict.is_some() {
            return;
        }
        if failure.code == Exit::PeerLost.number() {
            self.consequence
                .get_or_insert_with(|| (failure, Instant::now() + CAUSE));
        } else {
            self.judge(failure);
        }
    }

    fn judge(&mut self, failure: Failure) {
        self.consequence = None;
        self.verdict = Some(failure.code);
        // A signal that was passed on explains itself.
        if self.passed_on == 0 {
            self.end(&failure.how);
        }
    }

    /// Ends the ranks that are left, and says why.
    fn end(&mut self, reason: &str) {
        let left = self.ranks.iter().filter(|rank| !rank.ended).count();
        let other = if left < self.ranks.len() { "other " } else { "" };
        let rest = match left {
            0 => String::new(),
            1 => format!("; ending the {other}rank"),
            n => format!("; ending the {other}{n} ranks"),
        };
        // A rank may have shown something there that was to be overwritten.
        out::pass("");
        out::say(&format!("doorbell: {reason}{rest}"));
        self.signal(Signal::TERM);
        self.kill_at = Some(Instant::now() + GRACE);
    }

    fn deadlines(&mut self) {
        let now = Instant::now();
        let all = self.ranks.iter().all(|rank| rank.ended);
        if let Some((failure, _)) = self.consequence.take_if(|(_, until)| all || now >= *until)
            && self.verdict.is_none()
        {
            self.judge(failure);
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            self.signal(Signal::KILL);
        }
        if let Some((at, time)) = self.timeout
            && now >= at
        {
            self.timeout = None;
            if self.ranks.iter().any(|rank| !rank.ended) {
                self.verdict.get_or_insert(Exit::TimedOut.number());
                self.end(&format!("the job did not end within {} s", time.as_secs_f64()));
            }
        }
    }

    /// Sends a signal to every rank that has not ended, and to what it started.
    fn signal(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| !rank.ended) {
            // Gone in the meantime: just as well.
            let _ = rustix::process::kill_process_group(rank.group, signal);
        }
    }
}

/// Passes on what there is to read. At the end of the stream, or when our own output is closed or full, the stream is
/// dropped.
fn pass<S: Read>(stream: &mut Option<(S, Lines)>, out: &mut impl Write) -> io::Result<()> {
    let Some((source, lines)) = stream else {
        return Ok(());
    };
    let mut buffer = [0; 16 << 10];
    match source.read(&mut buffer) {
        Ok(count @ 1..) => lines.push(&buffer[..count], out).inspect_err(|_| *stream = None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Ok(0) | Err(_) => finish(stream, out),
    }
}

fn finish<S>(stream: &mut Option<(S, Lines)>, out: &mut impl Write) -> io::Result<()> {
    stream.take().map_or(Ok(()), |(_, mut lines)| lines.end(out))
}

/// The number that the shell would show.
fn code_of(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit status {code}"),
        (None, Some(signal)) => {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("an unnamed signal");
            let core = if status.core_dumped() {
                " and left a core file"
            } else {
                ""
            };
            format!("was killed by {name} ({signal}){core}")
        }
        (None, None) => "ended in an unknown way".to_owned(),
    }
}
