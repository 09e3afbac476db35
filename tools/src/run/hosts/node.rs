//! The ranks of one host under a daemon: their processes, and the other ends of their PMI lines, by crew.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};

use doorbell::oob::launch::Program;
use rustix::process::{Pid, Signal};

use super::protocol::{Muster, Plan};
use crate::error::ToolError;
use crate::run::pmi_group::{Crew, Trial, Wish};
use crate::run::pmi_groups::FIRST;
use crate::run::rank::{Failure, Rank, STRANGE_TO_SPAWNED, Spec};
use crate::run::reaper::{Keeper, Kept};
use crate::run::{cores, exit_policy, limits};

/// Bytes of output read at once.
const PIECE: usize = 16 << 10;

/// An event of the ranks here.
#[derive(Debug)]
pub(super) enum Happened {
    Ended(u32, Option<Failure>),
    /// For the other hosts: crew, number of the barrier, values.
    Fence(u32, u32, Vec<u8>),
    /// A rank of a crew requests these processes: crew, rank, program.
    Wants(u32, u32, Box<Program>),
    /// The processes with this token are no longer waited for.
    Abandoned(String),
    /// A spawned crew has failed before it joined: which, and how.
    Lost(u32, String),
    /// The job has failed.
    Failed(u8, String),
}

#[derive(Debug)]
struct Seat {
    rank: Rank,
    crew: u32,
}

/// The purpose of a descriptor: the seat, and what of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    End(usize),
    Out(usize, usize),
    /// The PMI line of this rank of this crew.
    Line(u32, u32),
}

#[derive(Debug)]
pub(super) struct Local {
    seats: Vec<Seat>,
    crews: BTreeMap<u32, Crew>,
    /// The variables of the launcher that all ranks get, and their working directory.
    variables: Vec<(String, OsString)>,
    folder: PathBuf,
    root: String,
    /// Ends what is left when this process is killed.
    keeper: Keeper,
    happened: Vec<Happened>,
    /// Output of the ranks: rank, stream, bytes; no bytes mean that the stream was closed.
    wrote: Vec<(u32, usize, Vec<u8>)>,
    /// The seat whose output is read first, in turn, when there is not credit for all.
    turn: usize,
}

impl Local {
    /// Starts the ranks of host `at`. If one cannot be started, the others are ended.
    pub(super) fn start(plan: &Plan, at: usize) -> Result<Self, ToolError> {
        let system = |what| move |source| ToolError::System { what, source };
        let (first, count) = plan.hosts.get(at).copied().unwrap_or_default();
        let folder = PathBuf::from(OsString::from_vec(plan.folder.clone()));
        if !folder.is_dir() {
            return Err(ToolError::Usage(format!(
                "there is no folder {} here, where the job was started: start it in one that all hosts have",
                folder.display()
            )));
        }
        let root = crate::run::job::root_name().map_err(system("make a random name"))?;
        let keeper =
            Keeper::start(&root).map_err(system("start the process that ends what ranks leave behind"))?;
        let mut local = Self {
            seats: Vec::with_capacity(count as usize),
            crews: BTreeMap::from([(
                FIRST,
                Crew::of_job(&plan.name, plan.size, first..first + count, &plan.blocks),
            )]),
            variables: plan
                .variables
                .iter()
                .map(|(name, value)| (name.clone(), OsString::from_vec(value.clone())))
                .collect(),
            folder,
            root,
            keeper,
            happened: Vec::new(),
            wrote: Vec::new(),
            turn: 0,
        };
        let cores = cores(plan.bind, count);
        let program = OsString::from_vec(plan.program.clone());
        let args: Vec<OsString> = plan.args.iter().cloned().map(OsString::from_vec).collect();
        for nth in 0..count {
            let stdin = match plan.has_input && first + nth == 0 {
                true => Stdio::piped(),
                false => Stdio::null(),
            };
            let started = local.sit(FIRST, first + nth, (&program, &args), None, |spec| {
                (spec.core, spec.stdin) = (cores[nth as usize], stdin);
            });
            if let Err(error) = started {
                local.give_up();
                return Err(error);
            }
        }
        Ok(local)
    }

    /// Starts the ranks here of a spawned crew.
    pub(super) fn man(&mut self, muster: &Muster) -> Result<(), String> {
        let here = muster.here();
        let blocks = &muster.blocks;
        let mut numbers = muster.first + here.start..muster.first + here.end;
        let made = Crew::spawned(
            &muster.name,
            (muster.first, muster.size),
            here,
            blocks,
            &muster.values,
        );
        let crew = match made {
            Ok(crew) => crew,
            Err(why) => {
                self.happened
                    .extend(numbers.map(|number| Happened::Ended(number, None)));
                return Err(why);
            }
        };
        self.crews.insert(muster.crew, crew);
        let program = OsString::from(&muster.program);
        let args: Vec<OsString> = muster.args.iter().map(OsString::from).collect();
        let folder = muster.folder.as_ref().map(PathBuf::from);
        for number in numbers.by_ref() {
            let started = self.sit(muster.crew, number, (&program, &args), folder.clone(), |_| ());
            if let Err(error) = started {
                self.end_crew(muster.crew);
                // Those that were never started count as ended.
                let never = (number..number + 1).chain(numbers);
                self.happened
                    .extend(never.map(|number| Happened::Ended(number, None)));
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    fn sit(
        &mut self,
        crew: u32,
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
        let line = match self.crews.get_mut(&crew) {
            Some(crew) => crew.line(number),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let (inherits, line) = line.map_err(failed)?;
        // By this the reaper finds what ranks have started.
        let root = ("DOORBELL_ROOT".to_owned(), OsString::from(&self.root));
        let mut spec = Spec {
            rank: number,
            program,
            args,
            variables: self.variables.iter().cloned().chain([root]).chain(line).collect(),
            without: &STRANGE_TO_SPAWNED,
            core: None,
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
        self.keeper.watch(rank.group);
        self.seats.push(Seat { rank, crew });
        Ok(())
    }

    /// Ends the ranks here of a crew that has failed.
    pub(super) fn end_crew(&mut self, crew: u32) {
        if let Some(crew) = self.crews.get_mut(&crew) {
            crew.trial = Trial::Failed;
        }
        for seat in self.seats.iter().filter(|seat| seat.crew == crew) {
            seat.rank.signal(Signal::KILL);
        }
    }

    /// Completes a rank's spawn request.
    pub(super) fn answer(&mut self, crew: u32, number: u32, result: Result<(), &str>) {
        if let Some(crew) = self.crews.get_mut(&crew) {
            crew.answer(number, result);
        }
        self.grant();
    }

    /// Records that the crew of `token`, requested by a rank of this crew, will not start.
    pub(super) fn tell(&mut self, crew: u32, token: &str, why: &str) {
        if let Some(crew) = self.crews.get_mut(&crew) {
            crew.tell(token, why);
        }
    }

    /// Whether a failing crew is on trial: then its requesters are informed, once.
    fn is_on_trial(&mut self, crew: u32, how: &str) -> bool {
        let trial = self.crews.get(&crew).map_or(Trial::Failed, |crew| crew.trial);
        if trial == Trial::Under {
            self.end_crew(crew);
            self.happened.push(Happened::Lost(crew, how.to_owned()));
        }
        trial != Trial::None
    }

    /// Removes the ranks of spawned crews that are over.
    pub(super) fn tidy(&mut self) {
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
            .retain(|id, _| *id == FIRST || seats.iter().any(|seat| seat.crew == *id));
    }

    /// Takes the standard input of rank 0, if it is here and was not taken before.
    pub(super) fn take_input(&mut self) -> Option<ChildStdin> {
        let seat = self.seats.iter_mut().find(|seat| seat.rank.number == 0);
        seat.and_then(|seat| seat.rank.input.take())
    }

    /// Returns what to wait for; output only where there is credit for it.
    pub(super) fn watched(&self, has_room: bool) -> Vec<(About, BorrowedFd<'_>)> {
        let mut watched = Vec::new();
        for (id, crew) in &self.crews {
            watched.extend(
                crew.watched()
                    .map(|(number, line)| (About::Line(*id, number), line)),
            );
        }
        let seats = self.seats.iter().enumerate();
        let begin = self.turn.min(self.seats.len());
        for (at, seat) in seats.clone().skip(begin).chain(seats.take(begin)) {
            watched.extend(seat.rank.end().map(|end| (About::End(at), end)));
            let streams = [
                seat.rank.out.as_ref().map(AsFd::as_fd),
                seat.rank.err.as_ref().map(AsFd::as_fd),
            ];
            for (stream, descriptor) in streams.into_iter().enumerate() {
                watched.extend(
                    descriptor
                        .filter(|_| has_room)
                        .map(|fd| (About::Out(at, stream), fd)),
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
    pub(super) fn look(&mut self, about: About, has_room: bool) -> io::Result<()> {
        match about {
            About::End(at) => self.reap(at),
            About::Out(at, stream) if has_room => {
                self.turn = at + 1;
                self.read(at, stream);
                Ok(())
            }
            About::Out(..) => Ok(()),
            About::Line(crew, number) => {
                self.hear(crew, number);
                self.deserted(crew, number);
                Ok(())
            }
        }
    }

    /// Returns the events since the last call.
    pub(super) fn take(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
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
        let (number, crew) = (seat.rank.number, seat.crew);
        // Its last messages are still to be read.
        self.hear(crew, number);
        let crew_of = self.crews.get(&crew);
        if failure.is_none() && crew_of.is_some_and(|crew| crew.took_leave(number)) {
            self.happened.push(Happened::Ended(number, None));
            return Ok(());
        }
        let how = failure.as_ref().map(|failure| failure.how.clone());
        let how = how.unwrap_or_else(|| format!("rank {number} ended"));
        if self.is_on_trial(crew, &format!("{how} before it had joined")) {
            self.happened.push(Happened::Ended(number, None));
            return Ok(());
        }
        let is_well = failure.is_none();
        self.happened.push(Happened::Ended(number, failure));
        if is_well {
            self.deserted(crew, number);
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

    fn hear(&mut self, crew: u32, number: u32) {
        if let Some(crew) = self.crews.get_mut(&crew) {
            crew.hear(number);
        }
        self.grant();
    }

    /// Handles a rank that ended regularly, but is missing at a barrier where others wait.
    fn deserted(&mut self, crew: u32, number: u32) {
        let has_ended = |seat: &Seat| seat.rank.number == number && seat.rank.ended;
        if self.seats.iter().any(has_ended)
            && let Some(how) = self.crews.get_mut(&crew).and_then(|crew| crew.deserted(number))
        {
            let code = doorbell_fabric::error::Exit::PeerLost.number();
            self.happened.push(Happened::Failed(code, how));
        }
    }

    /// Takes the values of all hosts for a barrier of a crew.
    pub(super) fn fenced<'a>(
        &mut self,
        crew: u32,
        number: u32,
        words: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        if let Some(crew) = self.crews.get_mut(&crew) {
            crew.fenced(number, words)?;
        }
        self.grant();
        Ok(())
    }

    /// Passes requests of ranks on to the launcher.
    fn grant(&mut self) {
        let wishes = self.crews.iter_mut();
        let wishes = wishes.flat_map(|(id, crew)| crew.wishes().into_iter().map(|wish| (*id, wish)));
        let wishes: Vec<(u32, Wish)> = wishes.collect();
        for (crew, wish) in wishes {
            let happened = match wish {
                Wish::Fence(number, words) => Happened::Fence(crew, number, words),
                Wish::Spawn(number, program) => Happened::Wants(crew, number, program),
                Wish::Abandon(token) => Happened::Abandoned(token),
                Wish::Failed(_, how) if self.is_on_trial(crew, &how) => continue,
                Wish::Failed(code, how) => Happened::Failed(code, how),
            };
            self.happened.push(happened);
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

    /// Reads no more output.
    pub(super) fn silence(&mut self) {
        for at in 0..self.seats.len() {
            self.close(at, 0);
            self.close(at, 1);
        }
    }

    /// Ends what ranks of a failed job have left behind.
    pub(super) fn sweep(&self) {
        let groups = self.seats.iter().map(|seat| seat.rank.group).collect();
        Kept::new(&self.root, groups).end(exit_policy::GRACE);
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
