//! The launcher of a job on several hosts: starts its daemons, sends them commands, and decides when the job
//! is over.

use std::future::Future as _;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use doorbell::oob::JobKey;
use doorbell::oob::bytes::Bytes;
use doorbell::oob::event::Event;
use doorbell::oob::name::{From, Name};
use doorbell::oob::plane::{Completion, Gathered, Inbox, Message, Oob};
use doorbell_fabric::error::Exit;
use rustix::process::Signal;

use super::credit::{self, Credit};
use super::place::{Host, blocks};
use super::plane::{self, LIMIT};
use super::protocol::{
    Birth, COMMANDS, DaemonCommand, DaemonReport, OUTPUT, Plan, REPORTS, SpawnRequest, read, write,
};
use super::sentences::Sentences;
use super::shell::Shell;
use super::spawn::{Notice, Requester, SpawnedGroups};
use super::timeline::Timeline;
use super::wakeup::{Mailbox, Wakeup};
use super::{Options, input, output, timeline};
use crate::error::ToolError;
use crate::run::Launch;
use crate::run::exit_policy::{self, ExitPolicy, GRACE, Remaining};
use crate::run::limits;
use crate::run::rank::Failure;
use crate::run::watch::{Children, Signals, wait};

/// Time limit of a barrier of a job.
const EVER: Duration = Duration::from_secs(30 * 24 * 3600);
/// After ranks were killed, how long their hosts may take to report that they have ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// A message of another thread.
pub(super) enum Incoming {
    Report(u32, Result<DaemonReport, String>),
    /// All output of this host's ranks is written, up to this number of commands to start some.
    Done(u32, u32),
    /// The standard output fails.
    Unwritten(io::Error),
}

/// A host, as the launcher sees it.
#[derive(Debug)]
struct HostState {
    host: Host,
    is_here: bool,
    /// Whether it has cores and rails for its ranks.
    is_checked: bool,
    is_started: bool,
    /// Number of ranks that have not ended.
    alive: u32,
    is_done: bool,
    is_lost: bool,
    /// Number of commands to start more ranks.
    commands: u32,
}

struct Launcher<'a> {
    launch: &'a Launch,
    options: &'a Options,
    birth: Birth,
    oob: Oob,
    wakeup: Arc<Wakeup>,
    incoming: Mailbox<Incoming>,
    events: Inbox<Event>,
    shells: Vec<Shell>,
    hosts: Vec<HostState>,
    spawned: SpawnedGroups,
    policy: ExitPolicy,
    /// When the daemons have to be ready.
    start_by: Option<Instant>,
    /// When those that do not answer are given up.
    give_up_at: Option<Instant>,
    fence: (u32, Completion<Gathered>),
    timeline: Timeline,
    sentences: Sentences,
}

/// Runs a job on these hosts, to its end.
pub(super) fn launch(launch: &Launch, hosts: Vec<Host>, options: &Options) -> Result<ExitCode, ToolError> {
    limits::raise_open_files();
    let system = |what| move |source| ToolError::System { what, source };
    let mut signals = Signals::catch_ends().map_err(system("catch signals"))?;
    let mut children = Children::watch().map_err(system("catch signals"))?;
    let mut launcher = Launcher::begin(launch, hosts, options)?;
    let ended = launcher
        .run(&mut signals, &mut children)
        .map_err(system("wait for the hosts"));
    launcher.finish();
    if launcher.policy.was_passed_on() {
        launcher.sentences.say(String::new());
    }
    if ended.is_ok() && options.timeline {
        launcher
            .sentences
            .say(launcher.timeline.table().trim_end().to_owned());
    }
    launcher.sentences.end(LIMIT);
    ended?;
    Ok(ExitCode::from(launcher.policy.verdict().unwrap_or(0)))
}

/// Returns the name of the job.
fn name_of(birth: &Birth) -> String {
    format!("doorbell-{:016x}", birth.job)
}

impl<'a> Launcher<'a> {
    fn begin(launch: &'a Launch, hosts: Vec<Host>, options: &'a Options) -> Result<Self, ToolError> {
        let now = Instant::now();
        let system = |what| move |source| ToolError::System { what, source };
        let mut job = [0; 8];
        getrandom::fill(&mut job).map_err(|error| system("make a random number")(error.into()))?;
        let mut birth = Birth {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            job: u64::from_le_bytes(job),
            rank: 0,
            key: *JobKey::generate()?.expose(),
            parent: Vec::new(),
            nics: options.nics.clone(),
            ports: options.ports.clone(),
            control: options.control.clone(),
            shell: options.shell.clone(),
            doorbell: options.doorbell.clone(),
            // A daemon elsewhere that starts the one here has to find the way back.
            hosts: hosts
                .iter()
                .map(|host| options.here.known_as(&host.name))
                .collect(),
            radix: options.radix,
        };
        let wakeup = Wakeup::new().map_err(system("make an eventfd"))?;
        let incoming = Mailbox::new(wakeup.clone());
        let (oob, own) = plane::start(&birth)?;
        own.encode(&mut birth.parent);
        let mailbox = incoming.clone();
        let each =
            move |message: Message| mailbox.post(Incoming::Report(message.from.rank, read(&message.body)));
        drop(plane::done(oob.receive_each(From::ANYBODY, REPORTS, each))?);
        // Never full: messages are bounded by the daemons' credit, plus one each.
        let room = 2 * hosts.len() * credit::of_output(hosts.len());
        let inbox = plane::done(oob.inbox(From::ANYBODY, OUTPUT, room))?;
        let sentences = Sentences::begin().map_err(system("start a thread"))?;
        let unfinished = sentences.unfinished();
        output::write(&oob, inbox, incoming.clone(), launch, hosts.len(), unfinished)
            .map_err(system("start a thread"))?;
        plane::done(oob.begin())?;
        let fence = (0, plane::done(oob.gather(0, Bytes::from(Vec::new()), EVER))?);
        let mut launcher = Self {
            launch,
            options,
            events: oob.events(),
            oob,
            wakeup,
            incoming,
            shells: Vec::new(),
            timeline: Timeline::new(now, &hosts, launch.ranks),
            hosts: hosts
                .into_iter()
                .map(|host| HostState {
                    alive: host.ranks,
                    host,
                    is_here: false,
                    is_checked: false,
                    is_started: false,
                    is_done: false,
                    is_lost: false,
                    commands: 0,
                })
                .collect(),
            spawned: SpawnedGroups::begin(name_of(&birth), launch.ranks),
            policy: ExitPolicy::new(now, launch.timeout),
            start_by: Some(now + options.start),
            give_up_at: None,
            fence,
            birth,
            sentences,
        };
        for child in plane::children(&launcher.birth, 0) {
            let birth = Birth {
                rank: child,
                ..launcher.birth.clone()
            };
            match Shell::start(&birth, |host| options.here.is(host)) {
                Ok(shell) => launcher.shells.push(shell),
                Err(error) => {
                    launcher.finish();
                    return Err(error);
                }
            }
            launcher.timeline.mark(child, timeline::Mark::Shell);
        }
        Ok(launcher)
    }

    fn run(&mut self, signals: &mut Signals, children: &mut Children) -> io::Result<()> {
        let waker = Waker::from(self.wakeup.clone());
        loop {
            self.listen(&waker);
            self.look_at_shells();
            self.deadlines();
            if self.hosts.iter().all(|seen| seen.is_done || seen.is_lost) {
                return Ok(());
            }
            let mut descriptors: Vec<BorrowedFd<'_>> = vec![self.wakeup.as_fd()];
            descriptors.extend(signals.descriptors());
            descriptors.push(children.descriptor());
            let alive = self.shells.iter().filter(|shell| !shell.is_buried());
            descriptors.extend(alive.filter_map(Shell::end));
            wait(&descriptors, self.until())?;
            drop(descriptors);
            self.wakeup.clear();
            for (process, signal) in children.stopped() {
                let shells = self.shells.iter();
                let texts = shells.filter_map(|shell| shell.stopped(process, signal));
                texts.for_each(|text| self.say(&text));
            }
            for signal in signals.arrived() {
                let action = self.policy.signal(Instant::now(), signal);
                self.carry_out(vec![action]);
            }
        }
    }

    fn until(&self) -> Option<Instant> {
        let until = [self.policy.until(), self.start_by, self.give_up_at];
        until.into_iter().flatten().min()
    }

    fn left(&self) -> Remaining {
        let alive = self.hosts.iter().filter(|seen| !seen.is_lost && seen.is_started);
        Remaining {
            alive: alive.map(|seen| seen.alive).sum(),
            all: self.launch.ranks,
        }
    }

    fn listen(&mut self, waker: &Waker) {
        while let Some(incoming) = self.incoming.take() {
            match incoming {
                Incoming::Report(rank, report) => self.report(rank, report),
                Incoming::Done(rank, commands) => {
                    // A report sent before the last command arrived does not count.
                    if let Some(seen) = self.seen(rank).filter(|seen| seen.commands == commands) {
                        seen.is_done = true;
                    }
                }
                // A reader that has gone away has what it wanted: the ranks get what they would have had
                // without us.
                Incoming::Unwritten(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    self.broadcast(&DaemonCommand::Signal(Signal::PIPE.as_raw()));
                }
                Incoming::Unwritten(error) => {
                    let how = format!("could not write to the standard output: {error}");
                    self.condemn(Exit::System, how);
                }
            }
        }
        let mut cx = Context::from_waker(waker);
        while let Some(event) = plane::next(&self.events, &mut cx) {
            if let Event::PeerLost { peer, .. } = event {
                self.lost(peer.rank, "no path leads to it any more");
            }
        }
        // The values of a barrier go through the tree, whose root this is.
        while pin!(&mut self.fence.1).poll(&mut cx).is_ready() {
            let next = self.fence.0 + 1;
            match self.oob.gather(next, Bytes::from(Vec::new()), EVER) {
                Ok(gathered) => self.fence = (next, gathered),
                Err(_) => break,
            }
        }
    }

    fn seen(&mut self, rank: u32) -> Option<&mut HostState> {
        self.hosts.get_mut((rank as usize).checked_sub(1)?)
    }

    fn report(&mut self, rank: u32, report: Result<DaemonReport, String>) {
        let Some(seen) = self.seen(rank) else { return };
        let name = seen.host.name.clone();
        match report {
            Ok(DaemonReport::Here(_)) => {
                seen.is_here = true;
                self.timeline.mark(rank, timeline::Mark::Here);
                if self.hosts.iter().all(|seen| seen.is_here) && self.start_by.is_some() {
                    self.check_or_start();
                }
            }
            Ok(DaemonReport::Checked(Ok(()))) => {
                seen.is_checked = true;
                if self.hosts.iter().all(|seen| seen.is_checked) && self.start_by.take().is_some() {
                    self.start();
                }
            }
            Ok(DaemonReport::Checked(Err((code, how)))) => {
                // Nothing has been started on any host.
                self.start_by = None;
                self.hosts.iter_mut().for_each(|seen| seen.is_done = true);
                let how = format!("{how} (host {name})");
                let failure = Failure {
                    code: code.max(1),
                    how,
                };
                let actions = self.policy.condemn(Instant::now(), failure, self.left());
                self.carry_out(actions);
            }
            Ok(DaemonReport::Started(_)) => {
                seen.is_started = true;
                self.timeline.mark(rank, timeline::Mark::Started);
                // A signal that came before had no recipient here.
                if self.policy.verdict().is_some() {
                    self.broadcast(&DaemonCommand::Signal(Signal::TERM.as_raw()));
                }
            }
            Ok(DaemonReport::Shell(rank, how)) => self.shell_ended(rank, &how),
            Ok(DaemonReport::Stopped(text)) => self.say(&format!("{text} (on host {name})")),
            Ok(DaemonReport::Met(_)) => self.timeline.mark(rank, timeline::Mark::Met),
            Ok(DaemonReport::Wants(pmi_group, number, wanted)) => {
                let requester = Requester {
                    host: rank,
                    pmi_group,
                    rank: number,
                };
                self.spawn(requester, *wanted);
            }
            Ok(DaemonReport::GroupStarted(pmi_group, result)) => {
                let result = result.map_err(|why| format!("{why} (host {name})"));
                let notices = self.spawned.group_started(rank, pmi_group, result);
                self.pass(notices);
            }
            Ok(DaemonReport::Abandoned(token)) => {
                let notices = self.spawned.abandoned(&token);
                self.pass(notices);
            }
            Ok(DaemonReport::Lost(pmi_group, how)) => {
                let notices = self.spawned.lost(pmi_group, &format!("{how} (host {name})"));
                self.pass(notices);
            }
            Ok(DaemonReport::Fence(pmi_group, number, words)) => {
                let notices = self.spawned.fence(rank, pmi_group, number, words);
                self.pass(notices);
            }
            Ok(DaemonReport::Ended {
                rank: number,
                failure,
            }) => {
                seen.alive = seen.alive.saturating_sub(1);
                self.spawned.ended(number);
                if let Some((code, how)) = failure {
                    let how = format!("{how} on host {name}");
                    let actions = self
                        .policy
                        .failed(Instant::now(), Failure { code, how }, self.left());
                    self.carry_out(actions);
                }
            }
            Ok(DaemonReport::Failed(code, how)) => {
                let started = seen.is_started;
                if !started {
                    seen.is_lost = true;
                }
                let how = format!("{how} (host {name})");
                let actions = self.policy.condemn(
                    Instant::now(),
                    Failure {
                        code: code.max(1),
                        how,
                    },
                    self.left(),
                );
                self.carry_out(actions);
            }
            Err(why) => self.condemn(Exit::System, format!("host {name}: {why}")),
        }
    }

    /// All daemons are ready: starts the ranks, or has each host checked first where it may have too few
    /// rails, so that no rank is started in vain.
    fn check_or_start(&mut self) {
        if self.options.cores.has_sets() {
            self.broadcast(&DaemonCommand::Check(Box::new(self.plan())));
        } else {
            self.start_by = None;
            self.start();
        }
    }

    /// Returns what each daemon needs to start its ranks.
    fn plan(&self) -> Plan {
        use std::os::unix::ffi::OsStrExt as _;
        let hosts: Vec<Host> = self.hosts.iter().map(|seen| seen.host.clone()).collect();
        Plan {
            size: self.launch.ranks,
            hosts: Plan::of(&hosts),
            blocks: blocks(&hosts),
            name: name_of(&self.birth),
            program: self.launch.program.as_bytes().to_vec(),
            args: self
                .launch
                .args
                .iter()
                .map(|arg| arg.as_bytes().to_vec())
                .collect(),
            variables: self.options.variables.clone(),
            folder: self.options.folder.clone(),
            cores: self.options.cores.clone(),
            has_input: input::is_there(),
        }
    }

    /// Starts the ranks.
    fn start(&mut self) {
        self.broadcast(&DaemonCommand::Start(Box::new(self.plan())));
        self.timeline.all_here();
        if input::is_there()
            && let Err(error) = self.feed()
        {
            self.condemn(
                Exit::System,
                format!("the standard input cannot be read: {error}"),
            );
        }
    }

    /// Passes what is piped in to rank 0, which is on the first host.
    fn feed(&self) -> Result<(), ToolError> {
        let to = Name::new(self.birth.job, 1);
        let credit = Credit::towards(&self.oob, to, credit::OF_INPUT, None)?;
        input::read(self.oob.clone(), to, credit).map_err(|source| ToolError::System {
            what: "start a thread (check `ulimit -u`)",
            source,
        })
    }

    /// Handles a spawn request of a rank.
    fn spawn(&mut self, requester: Requester, wanted: SpawnRequest) {
        let token = wanted.token.clone();
        let is_open = |seen: &HostState| {
            let here = &self.options.here;
            let named = wanted.host.as_ref();
            let named = named.is_none_or(|host| here.are_one(host, &seen.host.name));
            named && seen.is_started && !seen.is_lost
        };
        let alive: Vec<Option<u32>> = self
            .hosts
            .iter()
            .map(|seen| is_open(seen).then_some(seen.alive))
            .collect();
        let placed = match &wanted.host {
            _ if self.policy.verdict().is_some() || self.policy.was_passed_on() => {
                Err("the job is being ended".to_owned())
            }
            Some(host)
                if !self
                    .hosts
                    .iter()
                    .any(|seen| self.options.here.are_one(host, &seen.host.name)) =>
            {
                Err(format!("`{host}` is none of the hosts of this job (--hosts)"))
            }
            _ => self.spawned.place(requester, wanted, &alive),
        };
        match placed {
            Ok(plans) => {
                for (daemon, plan) in plans {
                    if let Some(seen) = self.seen(daemon) {
                        seen.alive += plan.part.1;
                        seen.commands += 1;
                        seen.is_done = false;
                    }
                    self.command(daemon, &DaemonCommand::StartGroup(Box::new(plan)));
                }
            }
            Err(why) => self.pass(vec![Notice::Answer(requester, token, Err(why))]),
        }
    }

    fn pass(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Answer(requester, token, result) => {
                    self.command(
                        requester.host,
                        &DaemonCommand::Answer(requester.pmi_group, requester.rank, token, result),
                    );
                }
                Notice::Fate(requester, token, why) => self.command(
                    requester.host,
                    &DaemonCommand::SpawnFailed(requester.pmi_group, token, why),
                ),
                Notice::End(pmi_group, hosts) => {
                    hosts
                        .into_iter()
                        .for_each(|host| self.command(host, &DaemonCommand::EndGroup(pmi_group)));
                }
                Notice::Fenced(pmi_group, hosts, number, words) => {
                    let command = DaemonCommand::Fenced(pmi_group, number, words);
                    hosts.into_iter().for_each(|host| self.command(host, &command));
                }
            }
        }
    }

    /// Sends a command to one host.
    fn command(&self, rank: u32, command: &DaemonCommand) {
        let to = Name::new(self.birth.job, rank);
        // A lost host is noticed elsewhere.
        drop(
            self.oob
                .send(to, COMMANDS, Bytes::from(write(command)), Some(EVER)),
        );
    }

    /// Sends a command to all hosts that are left.
    fn broadcast(&self, command: &DaemonCommand) {
        let body = Bytes::from(write(command));
        for (rank, seen) in (1..).zip(&self.hosts) {
            if seen.is_here && !seen.is_lost {
                let to = Name::new(self.birth.job, rank);
                // A lost host is noticed elsewhere.
                drop(self.oob.send(to, COMMANDS, body.clone(), Some(EVER)));
            }
        }
    }

    fn lost(&mut self, rank: u32, why: &str) {
        let Some(seen) = self.seen(rank) else { return };
        if seen.is_done || seen.is_lost {
            return;
        }
        seen.is_lost = true;
        let how = format!("host {} is lost: {why}", seen.host.name);
        self.condemn(Exit::PeerLost, how);
    }

    fn condemn(&mut self, exit: Exit, how: String) {
        let failure = Failure {
            code: exit.number(),
            how,
        };
        let actions = self.policy.condemn(Instant::now(), failure, self.left());
        self.carry_out(actions);
    }

    /// Prints a message of the launcher itself.
    fn say(&self, text: &str) {
        self.sentences.say(format!("doorbell: {text}"));
    }

    /// Carries out actions, then prints messages.
    fn carry_out(&mut self, actions: Vec<exit_policy::Action>) {
        let is_message = |action: &exit_policy::Action| matches!(action, exit_policy::Action::Print(_));
        let (messages, signals): (Vec<_>, Vec<_>) = actions.into_iter().partition(is_message);
        for action in signals.into_iter().chain(messages) {
            match action {
                exit_policy::Action::Print(text) => self.say(&text),
                exit_policy::Action::Signal(signal) => {
                    if self.start_by.take().is_some() {
                        // Nothing has been started.
                        self.hosts.iter_mut().for_each(|seen| seen.is_lost = true);
                        if self.policy.verdict().is_none() {
                            let code = u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX);
                            let how = "interrupted before the ranks were started".to_owned();
                            let _ = self
                                .policy
                                .condemn(Instant::now(), Failure { code, how }, self.left());
                        }
                        continue;
                    }
                    self.broadcast(&DaemonCommand::Signal(signal.as_raw()));
                    let killed = signal == Signal::KILL;
                    let patience = if killed { PATIENCE } else { GRACE + PATIENCE };
                    if killed || self.policy.verdict().is_some() {
                        self.give_up_at.get_or_insert(Instant::now() + patience);
                    }
                }
            }
        }
    }

    /// Reaps our remote shells that have ended.
    fn look_at_shells(&mut self) {
        let alive = self.shells.iter_mut().filter(|shell| !shell.is_buried());
        let gone: Vec<(u32, String)> = alive
            .filter_map(|shell| Some((shell.rank, shell.ended()?)))
            .collect();
        for (rank, how) in gone {
            self.shell_ended(rank, &how);
        }
    }

    /// Handles the end of a daemon's remote shell, which is always premature.
    fn shell_ended(&mut self, rank: u32, how: &str) {
        let Some(seen) = self.hosts.get((rank as usize).wrapping_sub(1)) else {
            return;
        };
        let why = if seen.is_here {
            format!("its daemon ended ({how})")
        } else {
            let (shell, name, doorbell) = (
                self.options.shell.join(" "),
                &seen.host.name,
                &self.birth.doorbell,
            );
            format!(
                "`{shell} {name} {doorbell} daemon` ended ({how}) before it reported to the launcher; its output is above; does \
                 `{shell} {name} {doorbell} --version` work?"
            )
        };
        self.lost(rank, &why);
    }

    fn deadlines(&mut self) {
        let now = Instant::now();
        let actions = self.policy.tick(now, self.left());
        self.carry_out(actions);
        if self.start_by.is_some_and(|at| now >= at) {
            let is_here = self.hosts.iter().all(|seen| seen.is_here);
            let missing: Vec<String> = self
                .hosts
                .iter()
                .filter(|seen| !seen.is_here || (is_here && !seen.is_checked))
                .map(|seen| seen.host.name.clone())
                .collect();
            let troubles: Vec<String> = self.oob.troubles().iter().map(ToString::to_string).collect();
            let troubles = match troubles.last() {
                Some(trouble) => format!("; {trouble}"),
                None => String::new(),
            };
            self.condemn(
                Exit::TimedOut,
                format!(
                    "no message from {} within {} s{troubles}; can it reach this host? --nic names the interface or network to use, \
                     --ports the ports to let in",
                    missing.join(", "),
                    self.options.start.as_secs_f64()
                ),
            );
        }
        if self.policy.was_passed_on() && self.left().alive == 0 {
            // A user who ends the job does not read the rest.
            self.give_up_at.get_or_insert(now + PATIENCE);
        }
        if self.give_up_at.is_some_and(|at| now >= at) {
            self.give_up();
        }
    }

    /// Stops waiting for hosts whose ranks should have ended by now. Those whose ranks have ended may still
    /// have output for a slow reader, which is no reason to end, unless the user wants the job to.
    fn give_up(&mut self) {
        self.give_up_at = None;
        let names = |hosts: &[HostState], is_alive: bool| {
            let open = hosts.iter().filter(|seen| !seen.is_done && !seen.is_lost);
            let open = open.filter(|seen| (seen.alive > 0) == is_alive);
            open.map(|seen| seen.host.name.clone())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let silent = names(&self.hosts, true);
        let unread = names(&self.hosts, false);
        let is_wanted = self.policy.was_passed_on();
        let open = self.hosts.iter_mut().filter(|seen| !seen.is_done);
        open.filter(|seen| seen.alive > 0 || is_wanted)
            .for_each(|seen| seen.is_lost = true);
        if !silent.is_empty() {
            self.say(&format!(
                "{silent} has not reported that its ranks have ended; look there for what is left \
                 (`pgrep -af doorbell`)",
            ));
        }
        if is_wanted && !unread.is_empty() {
            self.say(&format!(
                "the standard output is not read: the last that the ranks of {unread} have written \
                 is dropped"
            ));
        }
    }

    /// Ends the daemons and waits for their remote shells.
    fn finish(&mut self) {
        self.broadcast(&DaemonCommand::End);
        // Daemons that get the command end by themselves; the pipe of the others is closed.
        let is_connected = |shell: &Shell| {
            let seen = self.hosts.get(shell.rank as usize - 1);
            seen.is_some_and(|seen| seen.is_here && !seen.is_lost)
        };
        let shells = std::mem::take(&mut self.shells).into_iter();
        let (mut connected, others): (Vec<_>, Vec<_>) = shells.partition(is_connected);
        plane::await_end(&mut connected, LIMIT);
        self.shells = connected;
        self.shells.extend(others);
        // Nothing else is in flight but the next barrier, which no rank will reach.
        self.oob.finish(Duration::ZERO);
        plane::wait_for(&mut self.shells, LIMIT);
        self.timeline.end();
    }
}
