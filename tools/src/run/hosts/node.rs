//! The ranks of one host under a daemon: their processes, and the other ends of their PMI lines, by group.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};

use doorbell::Config;
use doorbell::oob::launch::Program;
use rustix::process::{Pid, Signal};

use super::protocol::{GroupPlan, Plan};
use crate::error::ToolError;
use crate::run::placement::Placement;
use crate::run::pmi_group::{GroupRequest, PmiGroup, Trial};
use crate::run::pmi_groups::FIRST;
use crate::run::rails::RailShares;
use crate::run::rank::{Failure, Rank, STRANGE_TO_SPAWNED, Spec};
use crate::run::reaper::{JobProcesses, Reaper};
use crate::run::{exit_policy, limits};

/// Bytes of output read at once.
const PIECE: usize = 16 << 10;

/// An event of the ranks here.
#[derive(Debug)]
pub(super) enum NodeEvent {
    Ended(u32, Option<Failure>),
    /// For the other hosts: group, number of the barrier, values.
    Fence(u32, u32, Vec<u8>),
    /// A rank of a PMI group requests these processes: group, rank, program.
    Wants(u32, u32, Box<Program>),
    /// The processes with this token are no longer waited for.
    Abandoned(String),
    /// A spawned group has failed before it joined: which, and how.
    Lost(u32, String),
    /// The job has failed.
    Failed(u8, String),
}

#[derive(Debug)]
struct Seat {
    rank: Rank,
    pmi_group: u32,
}

/// The purpose of a descriptor: the seat, and what of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollTarget {
    End(usize),
    Out(usize, usize),
    /// The PMI line of this rank of this group.
    Line(u32, u32),
}

#[derive(Debug)]
pub(super) struct Node {
    seats: Vec<Seat>,
    /// The rails of each rank here, where they differ.
    rails: Option<RailShares>,
    pmi_groups: BTreeMap<u32, PmiGroup>,
    /// The variables of the launcher that all ranks get, and their working directory.
    variables: Vec<(String, OsString)>,
    folder: PathBuf,
    root: String,
    /// Ends what is left when this process is killed.
    reaper: Reaper,
    events: Vec<NodeEvent>,
    /// Output of the ranks: rank, stream, bytes; no bytes mean that the stream was closed.
    wrote: Vec<(u32, usize, Vec<u8>)>,
    /// The seat whose output is read first, in turn, when there is not credit for all.
    turn: usize,
}

impl Node {
    /// Chooses the cores of the ranks of host `at`, and their rails of sets, by the settings that they will
    /// have.
    ///
    /// # Errors
    /// Too few of either.
    pub(super) fn place(plan: &Plan, at: usize) -> Result<Placement, ToolError> {
        let (_, count) = plan.hosts.get(at).copied().unwrap_or_default();
        let settings = || {
            let variables = plan.variables.iter();
            let variables =
                variables.map(|(name, value)| (OsString::from(name), OsString::from_vec(value.clone())));
            Config::from_variables(variables, None)
        };
        Placement::choose(&plan.cores, count, &settings)
    }

    /// Starts the ranks of host `at` where `placement` has them. If one cannot be started, the others are
    /// ended.
    pub(super) fn start(plan: &Plan, at: usize, placement: Option<Placement>) -> Result<Self, ToolError> {
        let system = |what| move |source| ToolError::System { what, source };
        let (first, count) = plan.hosts.get(at).copied().unwrap_or_default();
        let folder = PathBuf::from(OsString::from_vec(plan.folder.clone()));
        if !folder.is_dir() {
            return Err(ToolError::Usage(format!(
                "there is no folder {} here, where the job was started: start it in one that all hosts have",
                folder.display()
            )));
        }
        // Refused before anything is started.
        let placement = placement.map_or_else(|| Self::place(plan, at), Ok)?;
        let (mut cores, mut rails) = placement.into_parts();
        if let Some(rails) = &mut rails {
            rails.numbered_from(first);
        }
        let root = crate::run::job::root_name().map_err(system("make a random name"))?;
        let reaper =
            Reaper::start(&root).map_err(system("start the process that ends what ranks leave behind"))?;
        let mut node = Self {
            seats: Vec::with_capacity(count as usize),
            rails,
            pmi_groups: BTreeMap::from([(
                FIRST,
                PmiGroup::of_job(&plan.name, plan.size, first..first + count, &plan.blocks),
            )]),
            variables: plan
                .variables
                .iter()
                .map(|(name, value)| (name.clone(), OsString::from_vec(value.clone())))
                .collect(),
            folder,
            root,
            reaper,
            events: Vec::new(),
            wrote: Vec::new(),
            turn: 0,
        };
        let program = OsString::from_vec(plan.program.clone());
        let args: Vec<OsString> = plan.args.iter().cloned().map(OsString::from_vec).collect();
        for nth in 0..count {
            let stdin = match plan.has_input && first + nth == 0 {
                true => Stdio::piped(),
                false => Stdio::null(),
            };
            let started = node.sit(FIRST, first + nth, (&program, &args), None, |spec| {
                (spec.cores, spec.stdin) = (std::mem::take(&mut cores[nth as usize]), stdin);
                let local = [("MPI_LOCALRANKID", nth), ("MPI_LOCALNRANKS", count)];
                let local = local.map(|(name, number)| (name.to_owned(), number.to_string().into()));
                spec.variables.extend(local);
            });
            if let Err(error) = started {
                node.give_up();
                return Err(error);
            }
        }
        Ok(node)
    }

    /// Starts the ranks here of a spawned group.
    pub(super) fn start_group(&mut self, group_plan: &GroupPlan) -> Result<(), String> {
        let here = group_plan.here();
        let blocks = &group_plan.blocks;
        let mut numbers = group_plan.first + here.start..group_plan.first + here.end;
        let made = PmiGroup::spawned(
            &group_plan.name,
            (group_plan.first, group_plan.size),
            here,
            blocks,
            &group_plan.values,
        );
        let pmi_group = match made {
            Ok(pmi_group) => pmi_group,
            Err(why) => {
                self.events
                    .extend(numbers.map(|number| NodeEvent::Ended(number, None)));
                return Err(why);
            }
        };
        self.pmi_groups.insert(group_plan.pmi_group, pmi_group);
        if let Some(rails) = &mut self.rails
            && let Err(error) = rails.choose(numbers.start, &vec![None; numbers.len()])
        {
            self.end_group(group_plan.pmi_group);
            self.events
                .extend(numbers.map(|number| NodeEvent::Ended(number, None)));
            return Err(error.to_string());
        }
        let program = OsString::from(&group_plan.program);
        let args: Vec<OsString> = group_plan.args.iter().map(OsString::from).collect();
        let folder = group_plan.folder.as_ref().map(PathBuf::from);
        for number in numbers.by_ref() {
            let started = self.sit(
                group_plan.pmi_group,
                number,
                (&program, &args),
                folder.clone(),
                |_| (),
            );
            if let Err(error) = started {
                self.end_group(group_plan.pmi_group);
                // Those that were never started count as ended.
                let never = (number..number + 1).chain(numbers);
                self.events
                    .extend(never.map(|number| NodeEvent::Ended(number, None)));
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    fn sit(
        &mut self,
        pmi_group: u32,
        number: u32,
        (program, args): (&OsString, &[OsString]),
        folder: Option<PathBuf>,
        edit: impl FnOnce(&mut Spec<'_>),
    ) -> Result<(), ToolError> {
        let failed = |source| ToolError::Start {
            rank: number,
            what: "make the line to it",
            source,
        };
        let line = match self.pmi_groups.get_mut(&pmi_group) {
            Some(pmi_group) => pmi_group.line(number),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let (inherits, line) = line.map_err(failed)?;
        // By this the reaper finds what ranks have started.
        let root = ("DOORBELL_ROOT".to_owned(), OsString::from(&self.root));
        let rails = self.rails.iter().flat_map(|rails| rails.variables(number));
        let variables = self.variables.iter().cloned().chain(rails);
        let mut spec = Spec {
            rank: number,
            program,
            args,
            variables: variables.chain([root]).chain(line).collect(),
            without: &STRANGE_TO_SPAWNED,
            cores: Vec::new(),
            folder: Some(folder.unwrap_or_else(|| self.folder.clone())),
            stdin: Stdio::null(),
            is_piped: true,
            inherits: Some(inherits),
        };
        edit(&mut spec);
        let rank = Rank::start(spec)?;
        if let Err(errno) = rank.end {
            limits::say_unwatched(errno);
        }
        self.reaper.watch(rank.group);
        self.seats.push(Seat { rank, pmi_group });
        Ok(())
    }

    /// Ends the ranks here of a PMI group that has failed.
    pub(super) fn end_group(&mut self, pmi_group: u32) {
        if let Some(pmi_group) = self.pmi_groups.get_mut(&pmi_group) {
            pmi_group.trial = Trial::Failed;
        }
        for seat in self.seats.iter().filter(|seat| seat.pmi_group == pmi_group) {
            seat.rank.signal(Signal::KILL);
        }
    }

    /// Completes a rank's spawn request.
    pub(super) fn answer(&mut self, pmi_group: u32, number: u32, result: Result<(), &str>) {
        if let Some(pmi_group) = self.pmi_groups.get_mut(&pmi_group) {
            pmi_group.answer(number, result);
        }
        self.grant();
    }

    /// Records that the group of `token`, requested by a rank of this group, will not start.
    pub(super) fn spawn_failed(&mut self, pmi_group: u32, token: &str, why: &str) {
        if let Some(pmi_group) = self.pmi_groups.get_mut(&pmi_group) {
            pmi_group.spawn_failed(token, why);
        }
    }

    /// Whether a failing group is on trial: then its requesters are informed, once.
    fn is_on_trial(&mut self, pmi_group: u32, how: &str) -> bool {
        let trial = self
            .pmi_groups
            .get(&pmi_group)
            .map_or(Trial::Failed, |pmi_group| pmi_group.trial);
        if trial == Trial::Under {
            self.end_group(pmi_group);
            self.events.push(NodeEvent::Lost(pmi_group, how.to_owned()));
        }
        trial != Trial::None
    }

    /// Removes the ranks of spawned groups that are over.
    pub(super) fn tidy(&mut self) {
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
            .retain(|id, _| *id == FIRST || seats.iter().any(|seat| seat.pmi_group == *id));
    }

    /// Takes the standard input of rank 0, if it is here and was not taken before.
    pub(super) fn take_input(&mut self) -> Option<ChildStdin> {
        let seat = self.seats.iter_mut().find(|seat| seat.rank.number == 0);
        seat.and_then(|seat| seat.rank.input.take())
    }

    /// Returns what to wait for; output only where there is credit for it.
    pub(super) fn watched(&self, has_room: bool) -> Vec<(PollTarget, BorrowedFd<'_>)> {
        let mut watched = Vec::new();
        for (id, pmi_group) in &self.pmi_groups {
            watched.extend(
                pmi_group
                    .watched()
                    .map(|(number, line)| (PollTarget::Line(*id, number), line)),
            );
        }
        let seats = self.seats.iter().enumerate();
        let begin = self.turn.min(self.seats.len());
        for (at, seat) in seats.clone().skip(begin).chain(seats.take(begin)) {
            watched.extend(seat.rank.end().map(|end| (PollTarget::End(at), end)));
            let streams = [
                seat.rank.out.as_ref().map(AsFd::as_fd),
                seat.rank.err.as_ref().map(AsFd::as_fd),
            ];
            for (stream, descriptor) in streams.into_iter().enumerate() {
                watched.extend(
                    descriptor
                        .filter(|_| has_room)
                        .map(|fd| (PollTarget::Out(at, stream), fd)),
                );
            }
        }
        watched
    }

    /// Handles a stop of a child by this signal; returns the message about it, if it is a rank.
    pub(super) fn stopped(&mut self, process: Pid, signal: i32) -> Option<String> {
        let mut ranks = self.seats.iter_mut().map(|seat| &mut seat.rank);
        ranks.find_map(|rank| rank.stopped(process, signal))
    }

    /// Takes the ends of ranks that only SIGCHLD reports.
    pub(super) fn reap_unwatched(&mut self) -> io::Result<()> {
        let unwatched = |seat: &Seat| seat.rank.end.is_err() && !seat.rank.ended;
        let mut all = 0..self.seats.len();
        all.try_for_each(|at| match unwatched(&self.seats[at]) {
            true => self.reap(at),
            false => Ok(()),
        })
    }

    /// Handles ready descriptors; output is read only where there is credit for it.
    pub(super) fn look(&mut self, target: PollTarget, has_room: bool) -> io::Result<()> {
        match target {
            PollTarget::End(at) => self.reap(at),
            PollTarget::Out(at, stream) if has_room => {
                self.turn = at + 1;
                self.read(at, stream);
                Ok(())
            }
            PollTarget::Out(..) => Ok(()),
            PollTarget::Line(pmi_group, number) => {
                self.receive(pmi_group, number);
                self.deserted(pmi_group, number);
                Ok(())
            }
        }
    }

    /// Returns the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<NodeEvent> {
        std::mem::take(&mut self.events)
    }

    /// Returns the output since the last call.
    pub(super) fn take_wrote(&mut self) -> Vec<(u32, usize, Vec<u8>)> {
        std::mem::take(&mut self.wrote)
    }

    fn reap(&mut self, at: usize) -> io::Result<()> {
        let seat = &mut self.seats[at];
        let failure = seat.rank.reap()?;
        if !seat.rank.ended {
            return Ok(());
        }
        let (number, pmi_group) = (seat.rank.number, seat.pmi_group);
        if let Some(rails) = &mut self.rails {
            rails.release(number);
        }
        // Its last messages are still to be read.
        self.receive(pmi_group, number);
        let group_of = self.pmi_groups.get(&pmi_group);
        if failure.is_none() && group_of.is_some_and(|pmi_group| pmi_group.has_finalized(number)) {
            self.events.push(NodeEvent::Ended(number, None));
            return Ok(());
        }
        let how = failure.as_ref().map(|failure| failure.how.clone());
        let how = how.unwrap_or_else(|| format!("rank {number} ended"));
        if self.is_on_trial(pmi_group, &format!("{how} before it had joined")) {
            self.events.push(NodeEvent::Ended(number, None));
            return Ok(());
        }
        let is_well = failure.is_none();
        self.events.push(NodeEvent::Ended(number, failure));
        if is_well {
            self.deserted(pmi_group, number);
        }
        Ok(())
    }

    fn read(&mut self, at: usize, stream: usize) {
        let seat = &mut self.seats[at].rank;
        let mut buffer = [0; PIECE];
        let count = match stream {
            0 => seat.out.as_mut().map(|out| out.read(&mut buffer)),
            _ => seat.err.as_mut().map(|err| err.read(&mut buffer)),
        };
        let count = match count {
            Some(Ok(count)) => count,
            Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => return,
            Some(Err(_)) => 0,
            None => return,
        };
        if count == 0 {
            self.close(at, stream);
        } else {
            let number = self.seats[at].rank.number;
            self.wrote.push((number, stream, buffer[..count].to_vec()));
        }
    }

    fn close(&mut self, at: usize, stream: usize) {
        let rank = &mut self.seats[at].rank;
        let was_open = match stream {
            0 => rank.out.take().is_some(),
            _ => rank.err.take().is_some(),
        };
        if was_open {
            self.wrote.push((rank.number, stream, Vec::new()));
        }
    }

    fn receive(&mut self, pmi_group: u32, number: u32) {
        if let Some(pmi_group) = self.pmi_groups.get_mut(&pmi_group) {
            pmi_group.receive(number);
        }
        self.grant();
    }

    /// Handles a rank that ended regularly, but is missing at a barrier where others wait.
    fn deserted(&mut self, pmi_group: u32, number: u32) {
        let has_ended = |seat: &Seat| seat.rank.number == number && seat.rank.ended;
        if self.seats.iter().any(has_ended)
            && let Some(how) = self
                .pmi_groups
                .get_mut(&pmi_group)
                .and_then(|pmi_group| pmi_group.deserted(number))
        {
            let code = doorbell_fabric::error::Exit::PeerLost.number();
            self.events.push(NodeEvent::Failed(code, how));
        }
    }

    /// Takes the values of all hosts for a barrier of a PMI group.
    pub(super) fn fenced<'a>(
        &mut self,
        pmi_group: u32,
        number: u32,
        words: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        if let Some(pmi_group) = self.pmi_groups.get_mut(&pmi_group) {
            pmi_group.fenced(number, words)?;
        }
        self.grant();
        Ok(())
    }

    /// Passes requests of ranks on to the launcher.
    fn grant(&mut self) {
        let requests = self.pmi_groups.iter_mut();
        let requests = requests.flat_map(|(id, pmi_group)| {
            pmi_group
                .requests()
                .into_iter()
                .map(|next_request| (*id, next_request))
        });
        let requests: Vec<(u32, GroupRequest)> = requests.collect();
        for (pmi_group, next_request) in requests {
            let events = match next_request {
                GroupRequest::Fence(number, words) => NodeEvent::Fence(pmi_group, number, words),
                GroupRequest::Spawn(number, program) => NodeEvent::Wants(pmi_group, number, program),
                GroupRequest::Abandon(token) => NodeEvent::Abandoned(token),
                GroupRequest::Failed(_, how) if self.is_on_trial(pmi_group, &how) => continue,
                GroupRequest::Failed(code, how) => NodeEvent::Failed(code, how),
            };
            self.events.push(events);
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.seats.iter().for_each(|seat| seat.rank.signal(signal));
    }

    /// Whether all ranks have ended.
    pub(super) fn is_over(&self) -> bool {
        self.seats.iter().all(|seat| seat.rank.ended)
    }

    /// Whether all their output was read.
    pub(super) fn is_silent(&self) -> bool {
        let silent = |seat: &Seat| seat.rank.out.is_none() && seat.rank.err.is_none();
        self.seats.iter().all(silent)
    }

    /// Stops reading output.
    pub(super) fn silence(&mut self) {
        for at in 0..self.seats.len() {
            self.close(at, 0);
            self.close(at, 1);
        }
    }

    /// Ends what ranks of a failed job have left behind.
    pub(super) fn sweep(&self) {
        let groups = self.seats.iter().map(|seat| seat.rank.group).collect();
        JobProcesses::new(&self.root, groups).end(exit_policy::GRACE);
    }

    /// Ends all that has not ended, at once.
    pub(super) fn give_up(&mut self) {
        self.signal(Signal::KILL);
        for seat in &mut self.seats {
            if !seat.rank.ended {
                seat.rank.bury();
            }
        }
        self.sweep();
    }
}
