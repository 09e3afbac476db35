//! `doorbell daemon`: started by the launcher on each host, where it starts and supervises the ranks.
//!
//! A line on its standard input identifies it; since that has the key of the control plane, it is not an
//! argument. Then it calls its parent in the tree, starts its children, reports that it is ready, and carries
//! out commands. Without the launcher (its lifeline, or the pipe that started it) it ends the ranks and
//! itself.

use std::future::Future as _;
use std::io::{self, BufRead, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::process::{ChildStdin, ExitCode};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use doorbell::oob::bytes::Bytes;
use doorbell::oob::event::Event;
use doorbell::oob::name::{From, Name};
use doorbell::oob::plane::{Completion, Gathered, Inbox, Oob};
use doorbell_fabric::error::Exit;
use rustix::process::{Pid, Signal};

use super::credit::{self, Credit, Returns};
use super::here::Here;
use super::input;
use super::node::{Node, NodeEvent, PollTarget};
use super::plane::{self, LIMIT};
use super::protocol::{
    Birth, COMMANDS, DaemonCommand, DaemonReport, INPUT, OUTPUT, Output, REPORTS, SpawnRequest, read, write,
};
use super::shell::Shell;
use super::wakeup::{Mailbox, Wakeup};
use crate::error::ToolError;
use crate::run::exit_policy::GRACE;
use crate::run::limits;
use crate::run::placement::Placement;
use crate::run::pmi_groups::FIRST;
use crate::run::watch::{Children, Signals, wait};

/// Maximum bytes of the first line.
const BIRTH: u64 = 4 << 20;
/// Time limit of a barrier of a job.
const EVER: Duration = Duration::from_secs(30 * 24 * 3600);
/// After the last rank has ended, how long to wait for output that its own children still hold.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// An event beyond the ranks.
#[derive(Debug)]
enum Incoming {
    Command(Result<DaemonCommand, String>),
    /// A message to the launcher could not be delivered.
    Disconnected,
}

struct Daemon {
    birth: Birth,
    oob: Oob,
    launcher: Name,
    wakeup: Arc<Wakeup>,
    incoming: Mailbox<Incoming>,
    events: Inbox<Event>,
    shells: Vec<Shell>,
    /// What was chosen for the ranks before they are started.
    placement: Option<Placement>,
    node: Option<Node>,
    fence: Option<(u32, Completion<Gathered>)>,
    /// The credit for output: without it, no more is read from the ranks.
    credit: Credit,
    /// When all ranks had ended, and whether that was reported to the launcher.
    over: Option<Instant>,
    is_reported: bool,
    /// Number of commands to start ranks so far.
    commands: u32,
    /// When the ranks are to be killed.
    kill_at: Option<Instant>,
    has_failed: bool,
    end: Option<Exit>,
}

/// Runs the hidden command `daemon`.
pub(crate) fn daemon() -> Result<ExitCode, ToolError> {
    let born = Instant::now();
    let system = |what| move |source| ToolError::System { what, source };
    let signals = Signals::catch_ends().map_err(system("catch signals"))?;
    let children = Children::watch().map_err(system("catch signals"))?;
    let birth = birth()?;
    // The launcher has restored the original limit of this process before it wrote the line.
    limits::raise_open_files();
    let mut daemon = Daemon::begin(birth)?;
    daemon.report(&DaemonReport::Here(born.elapsed().as_micros() as u64));
    daemon
        .run(signals, children)
        .map_err(system("wait for the ranks"))
}

fn birth() -> Result<Birth, ToolError> {
    let mut line = Vec::new();
    let read_line = io::stdin().lock().take(BIRTH).read_until(b'\n', &mut line);
    read_line.map_err(|source| ToolError::System {
        what: "read the first message of the launcher",
        source,
    })?;
    let own = env!("CARGO_PKG_VERSION");
    let usage = |text: String| ToolError::Usage(text);
    let version = |birth: &serde_json::Value| birth.get("version")?.as_str().map(str::to_owned);
    let value: serde_json::Value = read(&line).map_err(|_| {
        usage(
            "daemon is what `doorbell run --hosts` starts on other hosts: it has nothing to do by itself"
                .to_owned(),
        )
    })?;
    match version(&value) {
        Some(theirs) if theirs != own => Err(usage(format!(
            "the launcher is doorbell {theirs}, and this host has {own}: install the same on all, or name its path by --doorbell"
        ))),
        _ => serde_json::from_value(value)
            .map_err(|error| usage(format!("the launcher's first message does not parse: {error}"))),
    }
}

impl Daemon {
    fn begin(birth: Birth) -> Result<Self, ToolError> {
        let system = |what| move |source| ToolError::System { what, source };
        let wakeup = Wakeup::new().map_err(system("make an eventfd"))?;
        let incoming = Mailbox::new(wakeup.clone());
        let (oob, own) = plane::start(&birth)?;
        let launcher = Name::new(birth.job, 0);
        let mailbox = incoming.clone();
        let each = move |message: doorbell::oob::plane::Message| {
            mailbox.post(Incoming::Command(read(&message.body)))
        };
        drop(plane::done(oob.receive_each(
            From::only(launcher),
            COMMANDS,
            each,
        ))?);
        let most = credit::of_output(birth.hosts.len());
        let credit = Credit::towards(&oob, launcher, most, Some(wakeup.clone()))?;
        if let Some(parent) = super::protocol::contact(&birth.parent) {
            plane::done(oob.learn(vec![parent]))?;
        }
        plane::done(oob.begin())?;
        let mut shells = Vec::new();
        let here = Here::look();
        for child in plane::children(&birth, birth.rank) {
            let mut parent = Vec::new();
            own.encode(&mut parent);
            let birth = Birth {
                rank: child,
                parent,
                ..birth.clone()
            };
            shells.push(Shell::start(&birth, |host| here.is_known_as(host))?);
        }
        Ok(Self {
            events: oob.events(),
            birth,
            oob,
            launcher,
            wakeup,
            incoming,
            shells,
            placement: None,
            node: None,
            fence: None,
            credit,
            over: None,
            is_reported: false,
            commands: 0,
            kill_at: None,
            has_failed: false,
            end: None,
        })
    }

    fn run(&mut self, mut signals: Signals, mut children: Children) -> io::Result<ExitCode> {
        let waker = Waker::from(self.wakeup.clone());
        let mut is_open = true;
        while self.end.is_none() {
            self.listen(&waker);
            self.settle();
            if self.end.is_some() {
                break;
            }
            let has_room = self.credit.left() > 0;
            let stdin = io::stdin();
            let mut descriptors: Vec<BorrowedFd<'_>> = vec![self.wakeup.as_fd()];
            descriptors.extend(signals.descriptors());
            descriptors.push(children.descriptor());
            let alive = self.shells.iter().filter(|shell| !shell.is_buried());
            descriptors.extend(alive.filter_map(Shell::end));
            let first = descriptors.len();
            let watched = self
                .node
                .as_ref()
                .map(|node| node.watched(has_room))
                .unwrap_or_default();
            let targets: Vec<PollTarget> = watched.iter().map(|(target, _)| *target).collect();
            descriptors.extend(watched.into_iter().map(|(_, descriptor)| descriptor));
            if is_open {
                descriptors.push(stdin.as_fd());
            }
            let ready = wait(&descriptors, self.until())?;
            drop(descriptors);
            self.wakeup.clear();
            self.look_at(children.stopped())?;
            for signal in signals.arrived() {
                // Ctrl-C in a terminal shared with the launcher is for the launcher, which passes it on.
                if signal == Signal::TERM || signal == Signal::HUP {
                    self.lost("a signal");
                }
            }
            let targets = targets.into_iter().zip(&ready[first..]);
            for (target, _) in targets.filter(|(_, ready)| **ready) {
                if let Some(node) = &mut self.node {
                    node.look(target, self.credit.left() > 0)?;
                }
                self.pass_on();
            }
            if is_open
                && ready.last() == Some(&true)
                && io::stdin()
                    .lock()
                    .read(&mut [0; 256])
                    .is_ok_and(|count| count == 0)
            {
                is_open = false;
                self.lost("the end of the line that started it");
            }
        }
        self.finish();
        Ok(self.end.unwrap_or(Exit::Done).into())
    }

    /// Handles children that were stopped, and ends that only SIGCHLD reports.
    fn look_at(&mut self, stopped: Vec<(Pid, i32)>) -> io::Result<()> {
        for (process, signal) in stopped {
            let mut shells = self.shells.iter();
            let text = shells.find_map(|shell| shell.stopped(process, signal));
            let node = self.node.as_mut();
            let text = text.or_else(|| node?.stopped(process, signal));
            if let Some(text) = text {
                self.report(&DaemonReport::Stopped(text));
            }
        }
        self.node.as_mut().map_or(Ok(()), Node::reap_unwatched)
    }

    /// Returns when something is due although nothing happens.
    fn until(&self) -> Option<Instant> {
        let words = self
            .over
            .filter(|_| !self.is_reported)
            .map(|over| over + LAST_WORDS);
        [self.kill_at, words].into_iter().flatten().min()
    }

    /// Handles messages of the launcher and the other hosts.
    fn listen(&mut self, waker: &Waker) {
        while let Some(incoming) = self.incoming.take() {
            match incoming {
                Incoming::Command(Ok(command)) => self.carry_out(command),
                Incoming::Command(Err(why)) => self.fail(Exit::System.number(), &why),
                Incoming::Disconnected => self.lost("the control plane"),
            }
        }
        let mut cx = Context::from_waker(waker);
        while let Some(event) = plane::next(&self.events, &mut cx) {
            if event == Event::LifelineLost {
                self.lost("the control plane");
            }
        }
        let gathered = match &mut self.fence {
            Some((number, gathered)) => match pin!(gathered).poll(&mut cx) {
                Poll::Ready(gathered) => Some((*number, gathered)),
                Poll::Pending => None,
            },
            None => None,
        };
        if let Some((number, gathered)) = gathered {
            self.fence = None;
            self.gathered(number, &gathered);
        }
    }

    fn gathered(&mut self, number: u32, gathered: &Gathered) {
        let Some(node) = &mut self.node else { return };
        let fenced = match &gathered.table {
            Some(table) if gathered.missing.is_empty() => {
                node.fenced(FIRST, number, table.iter().map(|(_, words)| &words[..]))
            }
            _ => Err(format!("hosts are lost: {:?}", gathered.missing)),
        };
        if let Err(why) = fenced {
            self.fail(
                Exit::PeerLost.number(),
                &format!("barrier {number} of the ranks failed: {why}"),
            );
        }
    }

    fn carry_out(&mut self, command: DaemonCommand) {
        match command {
            DaemonCommand::Check(plan) => {
                let placed = Node::place(&plan, self.birth.rank as usize - 1);
                let placed = placed.map(|placement| self.placement = Some(placement));
                let refused = |error: ToolError| (error.exit().number(), error.to_string());
                self.report(&DaemonReport::Checked(placed.map_err(refused)));
            }
            DaemonCommand::Start(plan) => {
                let began = Instant::now();
                match Node::start(&plan, self.birth.rank as usize - 1, self.placement.take()) {
                    Ok(mut node) => {
                        if let Some(to) = node.take_input()
                            && let Err(why) = self.feed(to)
                        {
                            self.fail(
                                Exit::System.number(),
                                &format!("rank 0 cannot be given its input: {why}"),
                            );
                        }
                        self.node = Some(node);
                        self.report(&DaemonReport::Started(began.elapsed().as_micros() as u64));
                    }
                    Err(error) => self.fail(error.exit().number(), &error.to_string()),
                }
            }
            DaemonCommand::StartGroup(plan) => {
                self.commands += 1;
                (self.over, self.is_reported) = (None, false);
                let group_started = match &mut self.node {
                    Some(node) => node.start_group(&plan),
                    None => Err("nothing runs here yet".to_owned()),
                };
                self.report(&DaemonReport::GroupStarted(plan.pmi_group, group_started));
            }
            DaemonCommand::Answer(pmi_group, rank, token, result) => {
                if let Some(node) = &mut self.node {
                    if let (Err(why), Some(token)) = (&result, &token) {
                        // As one word it is hard to read.
                        node.spawn_failed(pmi_group, token, why);
                    }
                    node.answer(pmi_group, rank, result.as_ref().map_err(String::as_str).copied());
                }
            }
            DaemonCommand::SpawnFailed(pmi_group, token, why) => {
                if let Some(node) = &mut self.node {
                    node.spawn_failed(pmi_group, &token, &why);
                }
            }
            DaemonCommand::Fenced(pmi_group, number, words) => {
                let node = self.node.as_mut();
                let fenced =
                    node.map(|node| node.fenced(pmi_group, number, words.iter().map(|words| &words[..])));
                if let Some(Err(why)) = fenced {
                    self.fail(Exit::PeerLost.number(), &why);
                }
            }
            DaemonCommand::EndGroup(pmi_group) => {
                if let Some(node) = &mut self.node {
                    node.end_group(pmi_group);
                }
            }
            DaemonCommand::Signal(number) => {
                if let (Some(node), Some(signal)) = (&self.node, Signal::from_named_raw(number)) {
                    node.signal(signal);
                }
            }
            DaemonCommand::End => self.end = Some(Exit::Done),
        }
    }

    /// Passes the launcher's input to rank 0.
    fn feed(&self, to: ChildStdin) -> Result<(), String> {
        // Never full: the launcher respects its credit.
        let inbox = self
            .oob
            .inbox(From::only(self.launcher), INPUT, 2 * credit::OF_INPUT);
        let inbox = inbox.map_err(|busy| busy.to_string())?;
        let returns = Returns::new(&self.oob, self.launcher, credit::OF_INPUT);
        input::write(inbox, to, returns).map_err(|error| error.to_string())
    }

    /// Handles what has happened to the daemons below this one, and to the ranks.
    fn settle(&mut self) {
        for at in 0..self.shells.len() {
            let shell = &mut self.shells[at];
            if !shell.is_buried()
                && let Some(how) = shell.ended()
            {
                let report = DaemonReport::Shell(shell.rank, how);
                self.report(&report);
            }
        }
        let Some(node) = &mut self.node else { return };
        if self.kill_at.take_if(|at| Instant::now() >= *at).is_some() {
            node.signal(Signal::KILL);
        }
        self.pass_on();
        let Some(node) = &mut self.node else { return };
        for event in node.take_events() {
            match event {
                NodeEvent::Ended(rank, failure) => {
                    self.has_failed |= failure.is_some();
                    self.report(&DaemonReport::ended(rank, failure));
                }
                NodeEvent::Fence(pmi_group, number, words) if pmi_group != FIRST => {
                    self.report(&DaemonReport::Fence(pmi_group, number, words))
                }
                NodeEvent::Wants(pmi_group, rank, program) => {
                    self.report(&DaemonReport::Wants(
                        pmi_group,
                        rank,
                        Box::new(SpawnRequest::of(*program)),
                    ));
                }
                NodeEvent::Abandoned(token) => self.report(&DaemonReport::Abandoned(token)),
                NodeEvent::Lost(pmi_group, how) => self.report(&DaemonReport::Lost(pmi_group, how)),
                NodeEvent::Fence(_, number, words) => {
                    let gathered = self.oob.gather(number, Bytes::from(words), EVER);
                    match gathered {
                        Ok(gathered) => self.fence = Some((number, gathered)),
                        Err(busy) => self.fail(Exit::System.number(), &busy.to_string()),
                    }
                    self.report(&DaemonReport::Met(number));
                    self.wakeup.notify();
                }
                NodeEvent::Failed(code, how) => self.fail(code, &how),
            }
        }
        let Some(node) = &mut self.node else { return };
        node.tidy();
        if !node.is_over() || self.is_reported {
            return;
        }
        if !node.is_silent() && self.credit.left() == 0 {
            // Without reading, the pipes may still hold output of the ranks: the time starts once all of it
            // can be read.
            self.over = None;
            return;
        }
        let over = *self.over.get_or_insert_with(Instant::now);
        if !node.is_silent() && over.elapsed() < LAST_WORDS {
            return;
        }
        node.silence();
        self.pass_on();
        self.is_reported = true;
        self.write(Output::Done(self.commands));
    }

    /// Sends the ranks' output to the launcher.
    fn pass_on(&mut self) {
        let wrote = self.node.as_mut().map(Node::take_wrote);
        for (rank, stream, bytes) in wrote.unwrap_or_default() {
            self.write(Output::Of(rank, stream, &bytes));
        }
    }

    fn fail(&mut self, code: u8, how: &str) {
        self.has_failed = true;
        self.report(&DaemonReport::Failed(code, how.to_owned()));
    }

    fn report(&self, report: &DaemonReport) {
        self.send(REPORTS, write(report));
    }

    fn write(&self, output: Output<'_>) {
        let bytes = output.write();
        self.credit.take(bytes.len());
        self.send(OUTPUT, bytes);
    }

    fn send(&self, tag: u32, bytes: Vec<u8>) {
        let incoming = self.incoming.clone();
        let sent = self
            .oob
            .send_then(self.launcher, tag, Bytes::from(bytes), Some(EVER), move |sent| {
                if !plane::is_delivered(&sent) {
                    incoming.post(Incoming::Disconnected);
                }
            });
        if sent.is_err() {
            self.incoming.post(Incoming::Disconnected);
        }
    }

    /// Handles the loss of the launcher.
    fn lost(&mut self, what: &str) {
        if self.end.is_some() {
            return;
        }
        self.has_failed = true;
        if let Some(node) = &mut self.node {
            node.signal(Signal::TERM);
            let until = Instant::now() + GRACE;
            while !node.is_over() && Instant::now() < until {
                let watched = node.watched(true);
                let targets: Vec<PollTarget> = watched.iter().map(|(target, _)| *target).collect();
                let descriptors: Vec<BorrowedFd<'_>> = watched.into_iter().map(|(_, fd)| fd).collect();
                let Ok(ready) = wait(&descriptors, Some(until)) else {
                    break;
                };
                for (target, _) in targets.into_iter().zip(ready).filter(|(_, ready)| *ready) {
                    let _ = node.look(target, true);
                }
                node.take_events();
                node.take_wrote();
            }
        }
        crate::console::say(&format!(
            "doorbell: the launcher is lost (by {what}): the ranks of host {} are ended",
            plane::host(&self.birth)
        ));
        self.end = Some(Exit::PeerLost);
    }

    /// Ends the ranks that are left, and removes what the daemon made.
    fn finish(&mut self) {
        if let Some(node) = &mut self.node
            && (!node.is_over() || self.has_failed)
        {
            node.give_up();
        }
        // Everything to be sent was sent before the command to end.
        self.oob.finish(LIMIT / 10);
        plane::wait_for(&mut self.shells, LIMIT);
    }
}
