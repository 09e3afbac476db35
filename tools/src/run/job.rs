//! A running job: its ranks, and the loop that looks after them until the last one has ended.
//!
//! Ranks ask for more of them over their PMI lines (`crew`). Those are looked after as the first ones, but for a crew that
//! fails before it has joined: it is ended, and who asked for it is told.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use doorbell::oob::launch::Program;
use doorbell::oob::serve::token_of;
use doorbell_fabric::error::Exit;
use rustix::process::{Resource, Signal};

use super::crew::{Wish, info};
use super::crews::{Crews, FIRST};
use super::judge::{GRACE, Judge, Left, Order};
use super::keep::{Keeper, Kept};
use super::prefix::Lines;
use super::rank::{Failure, Rank, STRANGE, STRANGE_TO_SPAWNED, Spec};
use super::watch::{Signals, wait};
use super::{Launch, Output};
use crate::error::ToolError;
use crate::out;

/// After the last rank has ended, output that its own children still hold back is waited for this long.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What a descriptor is for.
#[derive(Clone, Copy)]
enum About {
    Signals,
    End(usize),
    Out(usize),
    Err(usize),
    /// The PMI line of this rank of this crew.
    Line(u32, u32),
}

/// A rank, its crew, and what it has said of lines that have not ended.
struct Seat {
    rank: Rank,
    crew: u32,
    lines: [Lines; 2],
}

struct Job<'a> {
    launch: &'a Launch,
    seats: Vec<Seat>,
    crews: Crews,
    signals: Signals,
    root: String,
    /// Dropped when all is done: what it is there for cannot happen any more.
    keeper: Keeper,
    judge: Judge,
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
        launch,
        seats: Vec::with_capacity(launch.ranks as usize),
        crews: Crews::begin(&root[1..], launch.ranks),
        signals,
        root,
        keeper,
        judge: Judge::new(Instant::now(), launch.timeout),
        over: None,
    };
    for rank in 0..launch.ranks {
        if let Err(error) = job.start(rank) {
            job.signal(Signal::KILL);
            job.seats.iter_mut().for_each(|seat| seat.rank.bury());
            job.sweep();
            return Err(error);
        }
    }
    job.run().map_err(|source| ToolError::System {
        what: "wait for the ranks",
        source,
    })?;
    if job.judge.verdict().is_some_and(|code| code != 0) {
        job.sweep();
    }
    if job.judge.was_passed_on() {
        // What a rank was about to overwrite on the terminal.
        out::pass("");
    }
    Ok(ExitCode::from(job.judge.verdict().unwrap_or(0)))
}

/// An abstract socket of a name that nobody can guess: nothing in the file system, gone with the job.
pub(super) fn root_name() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::from)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("@doorbell-{hex}"))
}

/// A job of 1,024 ranks needs four descriptors for each; the soft limit is often 1,024.
pub(super) fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // When it is refused, starting a rank says so with its own error.
    let _ = rustix::process::setrlimit(Resource::Nofile, limit);
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

impl Job<'_> {
    /// Starts one of the first ranks.
    fn start(&mut self, rank: u32) -> Result<(), ToolError> {
        let launch = self.launch;
        let own = [
            ("DOORBELL_RANK", rank.to_string()),
            ("DOORBELL_SIZE", launch.ranks.to_string()),
            ("DOORBELL_ROOT", self.root.clone()),
        ];
        let variables = own.iter().chain(&launch.variables);
        let variables = variables.map(|(name, value)| ((*name).to_owned(), OsString::from(value)));
        let (inherits, line) = self.crews.line(FIRST, rank)?;
        self.sit(
            FIRST,
            Spec {
                rank,
                program: &launch.program,
                args: &launch.args,
                variables: variables.chain(line).collect(),
                without: &STRANGE,
                core: launch.cores.get(rank as usize).copied().flatten(),
                folder: None,
                stdin: stdin_of(rank),
                is_piped: launch.output == Output::Prefixed,
                inherits: Some(inherits),
            },
        )
    }

    fn sit(&mut self, crew: u32, spec: Spec<'_>) -> Result<(), ToolError> {
        let number = spec.rank;
        let rank = Rank::start(spec)?;
        self.keeper.watch(rank.group);
        let lines = [Lines::new(number), Lines::new(number)];
        self.seats.push(Seat { rank, crew, lines });
        Ok(())
    }

    /// Starts the ranks of a crew that was asked for.
    fn man(&mut self, crew: u32, program: &Program) -> Result<(), ToolError> {
        let launch = self.launch;
        let args: Vec<OsString> = program.args.iter().map(OsString::from).collect();
        for number in self.crews.numbers(crew) {
            let (inherits, line) = self.crews.line(crew, number)?;
            let root = ("DOORBELL_ROOT".to_owned(), OsString::from(&self.root));
            let variables = launch.variables.iter();
            let variables = variables.map(|(name, value)| ((*name).to_owned(), OsString::from(value)));
            let spec = Spec {
                rank: number,
                program: &OsString::from(&program.name),
                args: &args,
                variables: variables.chain([root]).chain(line).collect(),
                without: &STRANGE_TO_SPAWNED,
                core: None,
                folder: info(program, "wdir").map(PathBuf::from),
                stdin: Stdio::null(),
                is_piped: launch.output == Output::Prefixed,
                inherits: Some(inherits),
            };
            self.sit(crew, spec)?;
        }
        Ok(())
    }

    /// What ranks want of the launcher.
    fn grant(&mut self) {
        while let Some((crew, wish)) = self.crews.wish() {
            match wish {
                Wish::Fence(number, words) => {
                    if let Err(why) = self.crews.fenced(crew, number, &words) {
                        self.condemn(Exit::System.number(), why);
                    }
                }
                Wish::Spawn(number, program) => {
                    let result = self.spawn(crew, number, &program);
                    if let (Err(why), Some(token)) = (&result, token_of(&program)) {
                        // As one word it is hard to read.
                        self.crews.tell(crew, token, why);
                    }
                    self.crews
                        .answer(crew, number, result.as_ref().map_err(String::as_str).copied());
                }
                Wish::Abandon(token) => {
                    if let Some(crew) = self.crews.by_token(&token) {
                        self.fail(crew, "nobody waits for it any more");
                    }
                }
                Wish::Failed(code, how) => {
                    if !self.fail(crew, &how) {
                        self.condemn(code, how);
                    }
                }
            }
        }
    }

    fn spawn(&mut self, by: u32, number: u32, program: &Program) -> Result<(), String> {
        if self.judge.verdict().is_some() || self.judge.was_passed_on() {
            return Err("the job is being ended".to_owned());
        }
        let here = |host: &str| {
            host == "localhost" || rustix::system::uname().nodename().to_bytes() == host.as_bytes()
        };
        if let Some(host) = info(program, "host").filter(|host| !here(host)) {
            return Err(format!(
                "the job runs on this host, and `{host}` is another: `doorbell run --hosts` has several"
            ));
        }
        let crew = self.crews.ask(by, number, program)?;
        self.man(crew, program).map_err(|error| {
            let why = error.to_string();
            self.fail(crew, &why);
            why
        })
    }

    /// Ends a crew that is on trial, and tells who asked for it; whether it was.
    fn fail(&mut self, crew: u32, how: &str) -> bool {
        let is_new = self.crews.fail(crew, how);
        let is_on_trial = is_new || self.crews.has_failed(crew);
        for seat in self.seats.iter().filter(|seat| is_new && seat.crew == crew) {
            seat.rank.signal(Signal::KILL);
        }
        is_on_trial
    }

    /// A rank has ended, or its line has: what follows.
    fn ended(&mut self, index: usize, failure: Option<Failure>) {
        let Seat { rank, crew, .. } = &self.seats[index];
        let (number, crew) = (rank.number, *crew);
        // What it said last is still to be heard.
        self.crews.hear(crew, number);
        self.grant();
        if failure.is_none() && self.crews.took_leave(crew, number) {
            return;
        }
        let how = failure.as_ref().map(|failure| failure.how.clone());
        let how = how.unwrap_or_else(|| format!("rank {number} ended"));
        if self.fail(crew, &format!("{how} before it had joined")) {
            return;
        }
        if let Some(failure) = failure {
            let orders = self.judge.failed(Instant::now(), failure, self.left());
            self.obey(orders);
        } else {
            self.deserted(crew, number);
        }
    }

    /// A rank that ended well, and has gone without a word from a barrier that the others wait at.
    fn deserted(&mut self, crew: u32, number: u32) {
        let has_ended = |seat: &Seat| seat.rank.number == number && seat.rank.ended;
        if self.seats.iter().any(has_ended)
            && let Some(how) = self.crews.deserted(crew, number)
        {
            self.condemn(Exit::PeerLost.number(), how);
        }
    }

    fn condemn(&mut self, code: u8, how: String) {
        let failure = Failure { code, how };
        let orders = self.judge.condemn(Instant::now(), failure, self.left());
        self.obey(orders);
    }

    /// Forgets ranks of crews that were asked for, when all of them is over.
    fn tidy(&mut self) {
        let keeper = &mut self.keeper;
        self.seats.retain(|seat| {
            let rank = &seat.rank;
            let is_over = seat.crew != FIRST && rank.ended && rank.out.is_none() && rank.err.is_none();
            if is_over {
                keeper.forget(rank.group);
            }
            !is_over
        });
        let seats = &self.seats;
        self.crews
            .retain(|crew| seats.iter().any(|seat| seat.crew == crew));
    }

    fn run(&mut self) -> io::Result<()> {
        while !self.is_over() {
            let (about, ready) = self.look()?;
            for (about, _) in about.into_iter().zip(ready).filter(|(_, ready)| *ready) {
                match about {
                    About::Signals => self.pass_on(),
                    About::End(index) => {
                        let failure = self.seats[index].rank.reap()?;
                        if self.seats[index].rank.ended {
                            self.ended(index, failure);
                        }
                    }
                    About::Out(index) => {
                        let Seat { rank, lines, .. } = &mut self.seats[index];
                        let passed = pass(&mut rank.out, &mut lines[0], &mut io::stdout());
                        self.written(passed);
                    }
                    About::Err(index) => {
                        let Seat { rank, lines, .. } = &mut self.seats[index];
                        // An output for errors that fails has nobody to be told to.
                        let _ = pass(&mut rank.err, &mut lines[1], &mut io::stderr());
                    }
                    About::Line(crew, number) => {
                        self.crews.hear(crew, number);
                        self.deserted(crew, number);
                    }
                }
            }
            self.grant();
            self.tidy();
            let orders = self.judge.tick(Instant::now(), self.left());
            self.obey(orders);
        }
        for index in 0..self.seats.len() {
            let Seat { rank, lines, .. } = &mut self.seats[index];
            let [out, err] = lines;
            let finished = finish(&mut rank.out, out, &mut io::stdout());
            let _ = finish(&mut rank.err, err, &mut io::stderr());
            self.written(finished);
        }
        Ok(())
    }

    fn left(&self) -> Left {
        Left {
            alive: self.seats.iter().filter(|seat| !seat.rank.ended).count() as u32,
            all: self.seats.len() as u32,
        }
    }

    fn obey(&self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Say(text) => {
                    // A rank may have shown something there that was to be overwritten.
                    out::pass("");
                    out::say(&format!("doorbell: {text}"));
                }
                Order::Signal(signal) => self.signal(signal),
            }
        }
    }

    /// Output that is lost fails the job. A reader that went away has what it wanted: its rank gets the SIGPIPE that
    /// it would have had without us.
    fn written(&mut self, result: io::Result<()>) {
        let Err(error) = result else { return };
        if error.kind() != io::ErrorKind::BrokenPipe {
            let lost = Failure {
                code: Exit::System.number(),
                how: format!("could not write to the standard output: {error}"),
            };
            let orders = self.judge.condemn(Instant::now(), lost, self.left());
            self.obey(orders);
        }
    }

    /// Ends what the ranks of a failed job have started and left behind.
    fn sweep(&self) {
        let groups = self.seats.iter().map(|seat| seat.rank.group).collect();
        Kept::new(&self.root, groups).end(GRACE);
    }

    /// Every rank has ended, and so has its output or our patience with it.
    fn is_over(&mut self) -> bool {
        if !self.seats.iter().all(|seat| seat.rank.ended) {
            return false;
        }
        let over = *self.over.get_or_insert_with(Instant::now);
        let silent = self
            .seats
            .iter()
            .all(|seat| seat.rank.out.is_none() && seat.rank.err.is_none());
        silent || over.elapsed() >= LAST_WORDS
    }

    /// Waits for the next thing to happen.
    fn look(&self) -> io::Result<(Vec<About>, Vec<bool>)> {
        let mut descriptors: Vec<BorrowedFd<'_>> = self.signals.descriptors().collect();
        let mut about = vec![About::Signals; descriptors.len()];
        for (crew, number, line) in self.crews.watched() {
            about.push(About::Line(crew, number));
            descriptors.push(line);
        }
        for (index, Seat { rank, .. }) in self.seats.iter().enumerate() {
            if !rank.ended {
                about.push(About::End(index));
                descriptors.push(rank.end.as_fd());
            }
            if let Some(stream) = &rank.out {
                about.push(About::Out(index));
                descriptors.push(stream.as_fd());
            }
            if let Some(stream) = &rank.err {
                about.push(About::Err(index));
                descriptors.push(stream.as_fd());
            }
        }
        let last_words = self.over.map(|over| over + LAST_WORDS);
        let until = [self.judge.until(), last_words];
        let ready = wait(&descriptors, until.into_iter().flatten().min())?;
        Ok((about, ready))
    }

    fn pass_on(&mut self) {
        for signal in self.signals.arrived() {
            if signal == Signal::TSTP {
                self.pause();
            } else {
                let order = self.judge.signal(Instant::now(), signal);
                self.obey(vec![order]);
            }
        }
    }

    /// Stops the ranks and then ourselves, until the shell has us go on.
    fn pause(&mut self) {
        let stopped = Instant::now();
        self.signal(Signal::STOP);
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        self.signal(Signal::CONT);
        self.judge.paused(stopped.elapsed());
    }

    fn signal(&self, signal: Signal) {
        self.seats.iter().for_each(|seat| seat.rank.signal(signal));
    }
}

/// Passes on what there is to read. At the end of the stream, or when our own output is closed or full, the stream is
/// dropped.
fn pass<S: Read>(stream: &mut Option<S>, lines: &mut Lines, out: &mut impl Write) -> io::Result<()> {
    let Some(source) = stream else {
        return Ok(());
    };
    let mut buffer = [0; 16 << 10];
    match source.read(&mut buffer) {
        Ok(count @ 1..) => lines.push(&buffer[..count], out).inspect_err(|_| *stream = None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Ok(0) | Err(_) => finish(stream, lines, out),
    }
}

/// Passes on the last line of a stream that has not ended yet.
fn finish<S>(stream: &mut Option<S>, lines: &mut Lines, out: &mut impl Write) -> io::Result<()> {
    stream.take().map_or(Ok(()), |_| lines.end(out))
}
