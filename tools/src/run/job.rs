//! A running job: its ranks, and the loop that looks after them until the last one has ended.
//!
//! Ranks request more ranks over their PMI lines (`pmi_group`). Those are treated as the first ones, with one
//! exception: a group that fails before it has joined is ended, and the rank that requested it gets an error.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use doorbell::oob::launch::Program;
use doorbell::oob::serve::token_of;
use doorbell_fabric::error::Exit;
use rustix::process::Signal;
use rustix::termios::LocalModes;

use super::ends::Ends;
use super::exit_policy::{Action, ExitPolicy, GRACE, Remaining};
use super::hosts::here::Here;
use super::limits;
use super::pmi_group::{GroupRequest, info};
use super::pmi_groups::{FIRST, PmiGroups};
use super::prefix::{Lines, Unfinished};
use super::rails::RailShares;
use super::rank::{Failure, Rank, STRANGE, STRANGE_TO_SPAWNED, Spec};
use super::reaper::{JobProcesses, Reaper};
use super::watch::{Children, Signals, wait};
use super::{Launch, Output};
use crate::console;
use crate::error::ToolError;

/// After the last rank has ended, output that its own children still hold back is waited for this long.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What a descriptor is for.
#[derive(Clone, Copy)]
enum PollTarget {
    Signals,
    /// A child has ended or was stopped.
    Children,
    /// A rank that waits for others subscribes to the ends of ranks, or unsubscribes.
    Ends,
    End(usize),
    Out(usize),
    Err(usize),
    /// The PMI line of this rank of this group.
    Line(u32, u32),
}

/// A rank, its PMI group, and the part of its output that has no line end yet.
struct Seat {
    rank: Rank,
    pmi_group: u32,
    lines: [Lines; 2],
}

struct RunningJob<'a> {
    launch: &'a Launch,
    seats: Vec<Seat>,
    /// The rails of each rank, where they differ.
    rails: Option<RailShares>,
    pmi_groups: PmiGroups,
    signals: Signals,
    children: Children,
    /// `None` where the system gave no socket: ranks then wait for missing ones until their time is up.
    ends: Option<Ends>,
    unfinished: Unfinished,
    output: Relay,
    root: String,
    /// Dropped when all is done: what it is there for cannot happen any more.
    reaper: Reaper,
    policy: ExitPolicy,
    /// When every rank had ended.
    over: Option<Instant>,
}

/// How the output of ranks gets to ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relay {
    /// Line by line, with the rank in front.
    Lines,
    /// As it is, passed on by this process.
    Bytes,
    /// Written by the ranks themselves.
    Direct,
}

impl Relay {
    /// Ranks are in the background of the terminal, and where that may not write to it (`stty tostop`), the
    /// system would stop them: this process, which is in the foreground, writes for them then.
    fn of(output: Output) -> Self {
        let streams = [
            io::stdout().as_fd().try_clone_to_owned(),
            io::stderr().as_fd().try_clone_to_owned(),
        ];
        let stops = |stream: OwnedFd| {
            let settings = rustix::termios::tcgetattr(stream);
            settings.is_ok_and(|settings| settings.local_modes.contains(LocalModes::TOSTOP))
        };
        match output {
            Output::Prefixed => Self::Lines,
            Output::Inherited if streams.into_iter().flatten().any(stops) => Self::Bytes,
            Output::Inherited => Self::Direct,
        }
    }
}

/// Starts the ranks, each with its own `rails` where they differ, and looks after them until the last one has
/// ended.
pub(super) fn launch(launch: &Launch, rails: Option<RailShares>) -> Result<ExitCode, ToolError> {
    limits::raise_open_files();
    let signals = Signals::catch().map_err(|source| ToolError::System {
        what: "catch signals",
        source,
    })?;
    let children = Children::watch().map_err(|source| ToolError::System {
        what: "catch signals",
        source,
    })?;
    let root = root_name().map_err(|source| ToolError::System {
        what: "make a random name",
        source,
    })?;
    let reaper = Reaper::start(&root).map_err(|source| ToolError::System {
        what: "start the process that ends what ranks leave behind",
        source,
    })?;
    let mut job = RunningJob {
        launch,
        seats: Vec::with_capacity(launch.ranks as usize),
        rails,
        pmi_groups: PmiGroups::begin(&root[1..], launch.ranks),
        signals,
        children,
        ends: Ends::listen(&root).ok(),
        unfinished: Unfinished::here(),
        output: Relay::of(launch.output),
        root,
        reaper,
        policy: ExitPolicy::new(Instant::now(), launch.timeout),
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
    if job.policy.verdict().is_some_and(|code| code != 0) {
        job.sweep();
    }
    if job.policy.was_passed_on() {
        // A line that a rank was about to overwrite on the terminal.
        console::pass("");
    }
    Ok(ExitCode::from(job.policy.verdict().unwrap_or(0)))
}

/// Returns the name of an abstract socket that no other process can guess: nothing in the file system, gone
/// with the job.
pub(super) fn root_name() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::from)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("@doorbell-{hex}"))
}

/// Rank 0 reads what is piped into the launcher. Ranks are not in the terminal's foreground: reading from it
/// would stop them.
fn stdin_of(rank: u32) -> Stdio {
    if rank == 0 && !io::IsTerminal::is_terminal(&io::stdin()) {
        Stdio::inherit()
    } else {
        Stdio::null()
    }
}

impl RunningJob<'_> {
    /// Starts one of the first ranks.
    fn start(&mut self, rank: u32) -> Result<(), ToolError> {
        let launch = self.launch;
        let own = [
            ("DOORBELL_RANK", rank.to_string()),
            ("DOORBELL_SIZE", launch.ranks.to_string()),
            ("DOORBELL_ROOT", self.root.clone()),
        ];
        // The width of the terminal, as a rank would see it if it wrote there itself.
        let columns = match self.output {
            Relay::Bytes => console::known_width(),
            Relay::Lines | Relay::Direct => None,
        };
        let columns = columns.map(|width| ("COLUMNS", width.to_string()));
        let variables = own.iter().chain(&columns).chain(&launch.variables);
        let variables = variables.map(|(name, value)| ((*name).to_owned(), OsString::from(value)));
        let rails = self.rails.iter().flat_map(|rails| rails.variables(rank));
        let (inherits, line) = self.pmi_groups.line(FIRST, rank)?;
        self.sit(
            FIRST,
            Spec {
                rank,
                program: &launch.program,
                args: &launch.args,
                variables: variables.chain(rails).chain(line).collect(),
                without: &STRANGE,
                cores: launch.cores.get(rank as usize).cloned().unwrap_or_default(),
                folder: None,
                stdin: stdin_of(rank),
                is_piped: self.output != Relay::Direct,
                inherits: Some(inherits),
            },
        )
    }

    fn sit(&mut self, pmi_group: u32, spec: Spec<'_>) -> Result<(), ToolError> {
        let number = spec.rank;
        let rank = Rank::start(spec)?;
        self.reaper.watch(rank.group);
        if let Err(errno) = rank.end {
            limits::say_unwatched(errno);
        }
        let lines = [0, 1].map(|stream| match self.output {
            Relay::Lines => Lines::new((number, stream)),
            Relay::Bytes | Relay::Direct => Lines::plain((number, stream)),
        });
        self.seats.push(Seat {
            rank,
            pmi_group,
            lines,
        });
        Ok(())
    }

    /// Starts the ranks of a PMI group that a rank requested.
    fn start_group(&mut self, pmi_group: u32, program: &Program) -> Result<(), ToolError> {
        let launch = self.launch;
        let args: Vec<OsString> = program.args.iter().map(OsString::from).collect();
        let numbers = self.pmi_groups.numbers(pmi_group);
        if let Some(rails) = &mut self.rails {
            rails.choose(numbers.start, &vec![None; numbers.len()])?;
        }
        for number in numbers {
            let rails = self.rails.iter().flat_map(|rails| rails.variables(number));
            let (inherits, line) = self.pmi_groups.line(pmi_group, number)?;
            let root = ("DOORBELL_ROOT".to_owned(), OsString::from(&self.root));
            let variables = launch.variables.iter();
            let variables = variables.map(|(name, value)| ((*name).to_owned(), OsString::from(value)));
            let spec = Spec {
                rank: number,
                program: &OsString::from(&program.name),
                args: &args,
                variables: variables.chain(rails).chain([root]).chain(line).collect(),
                without: &STRANGE_TO_SPAWNED,
                cores: Vec::new(),
                folder: info(program, "wdir").map(PathBuf::from),
                stdin: Stdio::null(),
                is_piped: self.output != Relay::Direct,
                inherits: Some(inherits),
            };
            self.sit(pmi_group, spec)?;
        }
        Ok(())
    }

    /// Carries out the requests of ranks to the launcher.
    fn grant(&mut self) {
        while let Some((pmi_group, next_request)) = self.pmi_groups.next_request() {
            match next_request {
                GroupRequest::Fence(number, words) => {
                    if let Err(why) = self.pmi_groups.fenced(pmi_group, number, &words) {
                        self.condemn(Exit::System.number(), why);
                    }
                }
                GroupRequest::Spawn(number, program) => {
                    let result = self.spawn(pmi_group, number, &program);
                    if let (Err(why), Some(token)) = (&result, token_of(&program)) {
                        // As one word it is hard to read.
                        self.pmi_groups.spawn_failed(pmi_group, token, why);
                    }
                    self.pmi_groups.answer(
                        pmi_group,
                        number,
                        result.as_ref().map_err(String::as_str).copied(),
                    );
                }
                GroupRequest::Abandon(token) => {
                    if let Some(pmi_group) = self.pmi_groups.by_token(&token) {
                        self.fail(pmi_group, "no rank waits for it any more");
                    }
                }
                GroupRequest::Failed(code, how) => {
                    if !self.fail(pmi_group, &how) {
                        self.condemn(code, how);
                    }
                }
            }
        }
    }

    fn spawn(&mut self, by: u32, number: u32, program: &Program) -> Result<(), String> {
        if self.policy.verdict().is_some() || self.policy.was_passed_on() {
            return Err("the job is being ended".to_owned());
        }
        let here = Here::look();
        if let Some(host) = info(program, "host").filter(|host| !here.is(host)) {
            return Err(format!(
                "the job runs on this host, and `{host}` is another: `doorbell run --hosts` has several"
            ));
        }
        let pmi_group = self.pmi_groups.request(by, number, program)?;
        self.start_group(pmi_group, program).map_err(|error| {
            let why = error.to_string();
            self.fail(pmi_group, &why);
            why
        })
    }

    /// Ends a PMI group that is still on trial and reports it to the rank that requested it. Returns whether
    /// the group was on trial.
    fn fail(&mut self, pmi_group: u32, how: &str) -> bool {
        let is_new = self.pmi_groups.fail(pmi_group, how);
        let is_on_trial = is_new || self.pmi_groups.has_failed(pmi_group);
        for seat in self
            .seats
            .iter()
            .filter(|seat| is_new && seat.pmi_group == pmi_group)
        {
            seat.rank.signal(Signal::KILL);
        }
        is_on_trial
    }

    /// A rank has ended, or its line has: what follows.
    fn ended(&mut self, index: usize, failure: Option<Failure>) {
        let Seat { rank, pmi_group, .. } = &self.seats[index];
        let (number, pmi_group) = (rank.number, *pmi_group);
        if let Some(rails) = &mut self.rails {
            rails.release(number);
        }
        // Requests that it sent before its end are still to be read.
        self.pmi_groups.receive(pmi_group, number);
        self.grant();
        if let (None, FIRST, Some(ends)) = (&failure, pmi_group, &mut self.ends) {
            ends.ended(number);
        }
        if failure.is_none() && self.pmi_groups.has_finalized(pmi_group, number) {
            return;
        }
        let how = failure.as_ref().map(|failure| failure.how.clone());
        let how = how.unwrap_or_else(|| format!("rank {number} ended"));
        if self.fail(pmi_group, &format!("{how} before it had joined")) {
            return;
        }
        if let Some(failure) = failure {
            let actions = self.policy.failed(Instant::now(), failure, self.left());
            self.carry_out(actions);
        } else {
            self.deserted(pmi_group, number);
        }
    }

    /// Ends the job over a rank that ended with status 0 and without entering a barrier at which the others
    /// wait.
    fn deserted(&mut self, pmi_group: u32, number: u32) {
        let has_ended = |seat: &Seat| seat.rank.number == number && seat.rank.ended;
        if self.seats.iter().any(has_ended)
            && let Some(how) = self.pmi_groups.deserted(pmi_group, number)
        {
            self.condemn(Exit::PeerLost.number(), how);
        }
    }

    fn condemn(&mut self, code: u8, how: String) {
        let failure = Failure { code, how };
        let actions = self.policy.condemn(Instant::now(), failure, self.left());
        self.carry_out(actions);
    }

    /// Removes the ranks of spawned groups whose processes have ended and whose output has been read.
    fn tidy(&mut self) {
        let reaper = &mut self.reaper;
        self.seats.retain(|seat| {
            let rank = &seat.rank;
            let is_over = seat.pmi_group != FIRST && rank.ended && rank.out.is_none() && rank.err.is_none();
            if is_over {
                reaper.forget(rank.group);
            }
            !is_over
        });
        let seats = &self.seats;
        self.pmi_groups
            .retain(|pmi_group| seats.iter().any(|seat| seat.pmi_group == pmi_group));
    }

    fn run(&mut self) -> io::Result<()> {
        while !self.is_over() {
            let (target, ready) = self.look()?;
            for (target, _) in target.into_iter().zip(ready).filter(|(_, ready)| *ready) {
                match target {
                    PollTarget::Signals => self.pass_on()?,
                    PollTarget::Children => self.look_at_children()?,
                    PollTarget::Ends => {
                        if let Some(ends) = &mut self.ends {
                            ends.look();
                        }
                    }
                    PollTarget::End(index) => self.reap(index)?,
                    PollTarget::Out(index) => {
                        let Seat { rank, lines, .. } = &mut self.seats[index];
                        let passed = pass(
                            &mut rank.out,
                            &mut lines[0],
                            &mut self.unfinished,
                            &mut io::stdout(),
                        );
                        self.written(passed);
                    }
                    PollTarget::Err(index) => {
                        let Seat { rank, lines, .. } = &mut self.seats[index];
                        // A failure of the standard error has no place to be reported.
                        let _ = pass(
                            &mut rank.err,
                            &mut lines[1],
                            &mut self.unfinished,
                            &mut io::stderr(),
                        );
                    }
                    PollTarget::Line(pmi_group, number) => {
                        self.pmi_groups.receive(pmi_group, number);
                        self.deserted(pmi_group, number);
                    }
                }
            }
            self.show_begun();
            self.grant();
            self.tidy();
            let actions = self.policy.tick(Instant::now(), self.left());
            self.carry_out(actions);
        }
        for index in 0..self.seats.len() {
            let Seat { rank, lines, .. } = &mut self.seats[index];
            let [out, err] = lines;
            let finished = finish(&mut rank.out, out, &mut self.unfinished, &mut io::stdout());
            let _ = finish(&mut rank.err, err, &mut self.unfinished, &mut io::stderr());
            self.written(finished);
        }
        Ok(())
    }

    fn reap(&mut self, index: usize) -> io::Result<()> {
        let failure = self.seats[index].rank.reap()?;
        if self.seats[index].rank.ended {
            self.ended(index, failure);
        }
        Ok(())
    }

    /// Reports which ranks were stopped, and reaps those whose end nothing else reports.
    fn look_at_children(&mut self) -> io::Result<()> {
        for (process, signal) in self.children.stopped() {
            let ranks = self.seats.iter_mut();
            let said: Vec<String> = ranks
                .filter_map(|seat| seat.rank.stopped(process, signal))
                .collect();
            said.iter().for_each(|text| self.say(text));
        }
        self.reap_unwatched()
    }

    /// Takes the ends that only SIGCHLD reports.
    fn reap_unwatched(&mut self) -> io::Result<()> {
        for index in 0..self.seats.len() {
            if self.seats[index].rank.end.is_err() && !self.seats[index].rank.ended {
                self.reap(index)?;
            }
        }
        Ok(())
    }

    /// Passes on beginnings of lines whose rest does not come.
    fn show_begun(&mut self) {
        let now = Instant::now();
        for index in 0..self.seats.len() {
            let [out, err] = &mut self.seats[index].lines;
            let shown = out.show(now, &mut self.unfinished, &mut io::stdout());
            let _ = err.show(now, &mut self.unfinished, &mut io::stderr());
            self.written(shown);
        }
    }

    /// A sentence of the launcher's own.
    fn say(&mut self, text: &str) {
        self.unfinished.end();
        // A rank may have shown something there that was to be overwritten.
        console::pass("");
        console::say(&format!("doorbell: {text}"));
    }

    fn left(&self) -> Remaining {
        Remaining {
            alive: self.seats.iter().filter(|seat| !seat.rank.ended).count() as u32,
            all: self.seats.len() as u32,
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Print(text) => self.say(&text),
                Action::Signal(signal) => self.signal(signal),
            }
        }
    }

    /// Output that is lost fails the job. A reader that went away has what it wanted: its rank gets the
    /// SIGPIPE that it would have had without us.
    fn written(&mut self, result: io::Result<()>) {
        let Err(error) = result else { return };
        if error.kind() != io::ErrorKind::BrokenPipe {
            let lost = Failure {
                code: Exit::System.number(),
                how: format!("could not write to the standard output: {error}"),
            };
            let actions = self.policy.condemn(Instant::now(), lost, self.left());
            self.carry_out(actions);
        }
    }

    /// Ends what the ranks of a failed job have started and left behind.
    fn sweep(&self) {
        let groups = self.seats.iter().map(|seat| seat.rank.group).collect();
        JobProcesses::new(&self.root, groups).end(GRACE);
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
    fn look(&self) -> io::Result<(Vec<PollTarget>, Vec<bool>)> {
        let mut descriptors: Vec<BorrowedFd<'_>> = self.signals.descriptors().collect();
        let mut target = vec![PollTarget::Signals; descriptors.len()];
        target.push(PollTarget::Children);
        descriptors.push(self.children.descriptor());
        if let Some(ends) = &self.ends {
            descriptors.extend(ends.descriptors());
            target.resize(descriptors.len(), PollTarget::Ends);
        }
        for (pmi_group, number, line) in self.pmi_groups.watched() {
            target.push(PollTarget::Line(pmi_group, number));
            descriptors.push(line);
        }
        for (index, Seat { rank, .. }) in self.seats.iter().enumerate() {
            if let Some(end) = rank.end() {
                target.push(PollTarget::End(index));
                descriptors.push(end);
            }
            if let Some(stream) = &rank.out {
                target.push(PollTarget::Out(index));
                descriptors.push(stream.as_fd());
            }
            if let Some(stream) = &rank.err {
                target.push(PollTarget::Err(index));
                descriptors.push(stream.as_fd());
            }
        }
        let last_words = self.over.map(|over| over + LAST_WORDS);
        let lines = self.seats.iter().flat_map(|seat| &seat.lines);
        let until = [
            self.policy.until(),
            last_words,
            lines.filter_map(Lines::due).min(),
        ];
        let ready = wait(&descriptors, until.into_iter().flatten().min())?;
        Ok((target, ready))
    }

    fn pass_on(&mut self) -> io::Result<()> {
        for signal in self.signals.arrived() {
            if signal == Signal::TSTP {
                self.pause()?;
            } else {
                let action = self.policy.signal(Instant::now(), signal);
                self.carry_out(vec![action]);
            }
        }
        Ok(())
    }

    /// Stops the ranks and then ourselves, until the shell has us go on.
    fn pause(&mut self) -> io::Result<()> {
        let stopped = Instant::now();
        self.signal(Signal::STOP);
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        self.signal(Signal::CONT);
        // These stops were ours. Ends that came with them are reported no second time.
        self.children.stopped();
        self.policy.paused(stopped.elapsed());
        self.reap_unwatched()
    }

    fn signal(&self, signal: Signal) {
        self.seats.iter().for_each(|seat| seat.rank.signal(signal));
    }
}

/// Passes on what there is to read. At the end of the stream, or when our own output is closed or full, the
/// stream is dropped.
fn pass<S: Read>(
    stream: &mut Option<S>,
    lines: &mut Lines,
    unfinished: &mut Unfinished,
    out: &mut impl Write,
) -> io::Result<()> {
    let Some(source) = stream else {
        return Ok(());
    };
    let mut buffer = [0; 16 << 10];
    match source.read(&mut buffer) {
        Ok(count @ 1..) => lines
            .push(&buffer[..count], Instant::now(), unfinished, out)
            .inspect_err(|_| *stream = None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Ok(0) | Err(_) => finish(stream, lines, unfinished, out),
    }
}

/// Passes on the last line of a stream that has not ended yet.
fn finish<S>(
    stream: &mut Option<S>,
    lines: &mut Lines,
    unfinished: &mut Unfinished,
    out: &mut impl Write,
) -> io::Result<()> {
    stream.take().map_or(Ok(()), |_| lines.end(unfinished, out))
}
