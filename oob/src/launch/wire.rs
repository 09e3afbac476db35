//! A PMI conversation over the descriptor that the launcher left open, with a limit on each step.
//!
//! The descriptor is taken over once (`PMI_FD`), is not inherited by children, and is closed with the
//! [`Wire`]. It stays open for as long as the job runs: a launcher that sees it close without `finalize`
//! takes the process for failed.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use doorbell_fabric::poll::timespec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::invite::{ABANDON, ELSEWHERE, INVITATION, Newcomers, TOKEN, fate_of};
use super::session::Program;
use super::session::{Answer, Dialect, Request, Session};
use super::{Found, Kind, LONGEST_VALUE, LaunchError, Launcher, Place, give_place_back, pieces, take_place};
use crate::pmix::descriptor;

/// Maximum bytes of the text of an abort.
const LAST_WORDS: usize = 200;

/// A launcher at the other end of a descriptor.
#[derive(Debug)]
pub struct Wire<D> {
    socket: OwnedFd,
    session: Session<D>,
    place: Place,
    /// Whether this process was started by other ranks of the job.
    spawned: bool,
    /// Whether this launcher cannot start processes of a running job.
    barren: bool,
}

impl<D: Dialect> Wire<D> {
    /// Connects through the inherited descriptor.
    pub(super) fn inherited(found: &Found, limit: Duration) -> Result<Self, LaunchError> {
        let place = Place {
            rank: found.rank,
            size: found.size.unwrap_or(0),
            local_rank: found.local_rank,
            local_size: found.local_size,
            job: found.job.clone(),
        };
        let place = place.checked(D::KIND)?;
        let number = found.descriptor.unwrap_or(-1);
        take_place(D::KIND)?;
        let socket = descriptor::take(number).map_err(|reason| {
            give_place_back();
            LaunchError::Descriptor { number, reason }
        })?;
        let mut wire = Self::over(socket, place, limit)?;
        wire.spawned = found.spawned;
        // Slurm's plug-in would start another step, for which the allocation usually has no room, and wait
        // for it.
        wire.barren = !found.job.is_empty();
        Ok(wire)
    }

    /// Connects through a connected socket: identifies this process, and learns the job's name.
    ///
    /// # Errors
    /// [`LaunchError`], when the other side refuses, answers incorrectly, ends, or is late.
    pub fn over(socket: OwnedFd, place: Place, limit: Duration) -> Result<Self, LaunchError> {
        let session = Session::new(place.rank, place.size, &place.job);
        let mut wire = Self {
            socket,
            session,
            place,
            spawned: false,
            barren: false,
        };
        let clock = Limit::new(limit);
        while let Some(step) = wire.session.next_of_opening() {
            wire.exchange(step.clone(), &clock)?;
        }
        wire.place.job = wire.session.terms().job.clone();
        Ok(wire)
    }

    /// Sends a request and waits for the answer.
    fn exchange(&mut self, request: Request, clock: &Limit) -> Result<Answer, LaunchError> {
        let step = request.step();
        let bytes = self.session.request(request)?;
        let answer = self
            .send(&bytes, step, clock)
            .and_then(|()| self.receive(step, clock));
        if answer.is_err() {
            self.session.over();
        }
        answer
    }

    fn send(&self, mut bytes: &[u8], step: &'static str, clock: &Limit) -> Result<(), LaunchError> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, step, clock)?,
                Err(error) => return Err(failed::<D>(step, error)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, step: &'static str, clock: &Limit) -> Result<Answer, LaunchError> {
        let mut piece = [0; 4096];
        loop {
            match recv(&self.socket, &mut piece, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(LaunchError::Closed { kind: D::KIND, step }),
                Ok((length, _)) => {
                    if let Some(answer) = self.session.take(&piece[..length])? {
                        return Ok(answer);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, step, clock)?,
                Err(error) => return Err(failed::<D>(step, error)),
            }
        }
    }

    fn wait(&self, wanted: PollFlags, step: &'static str, clock: &Limit) -> Result<(), LaunchError> {
        let left = clock.left(D::KIND, step)?;
        match poll(&mut [PollFd::new(&self.socket.as_fd(), wanted)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(failed::<D>(step, error)),
        }
    }

    fn get_piece(&mut self, rank: u32, key: &str, at: usize, clock: &Limit) -> Result<String, LaunchError> {
        let request = Request::Get {
            key: pieces::key_of(key, rank, at),
        };
        match self.exchange(request, clock)? {
            Answer::Value(value) => Ok(value),
            Answer::Done | Answer::Absent | Answer::Unspawned(_) => Err(LaunchError::Absent {
                kind: D::KIND,
                rank,
                key: key.to_owned(),
            }),
        }
    }
}

fn failed<D: Dialect>(step: &'static str, error: Errno) -> LaunchError {
    match error {
        Errno::PIPE | Errno::CONNRESET => LaunchError::Closed { kind: D::KIND, step },
        error => LaunchError::Io {
            kind: D::KIND,
            step,
            source: error.into(),
        },
    }
}

/// A deadline, with the limit it was made of.
struct Limit {
    until: Instant,
    limit: Duration,
}

impl Limit {
    fn new(limit: Duration) -> Self {
        Self {
            until: Instant::now() + limit,
            limit,
        }
    }

    fn left(&self, kind: Kind, step: &'static str) -> Result<Timespec, LaunchError> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LaunchError::Late {
                kind,
                step,
                limit: self.limit,
            });
        }
        Ok(timespec(left))
    }
}

/// Maximum bytes of a piece of an invitation that every server accepts.
const PREPUT: usize = 800;

/// Encodes a spawn request for a PMI: the invitation in pieces, as [`Launcher::put`] would have put it.
fn program_of(newcomers: &Newcomers<'_>, terms: &super::session::Terms) -> Program {
    let text = pieces::written(newcomers.invitation);
    let room = terms.value.clamp(1, PREPUT);
    let piece = |(at, piece): (usize, &[u8])| {
        let piece = String::from_utf8_lossy(piece).into_owned();
        (pieces::key_of(INVITATION, 0, at), piece)
    };
    let mut values: Vec<_> = text.as_bytes().chunks(room).enumerate().map(piece).collect();
    values.push((TOKEN.to_owned(), newcomers.token.to_owned()));
    let host = newcomers.host.map(|host| ("host".to_owned(), host.to_owned()));
    Program {
        name: newcomers.program.to_owned(),
        args: newcomers.args.to_vec(),
        ranks: newcomers.ranks,
        values,
        infos: host.into_iter().collect(),
    }
}

impl<D: Dialect> Launcher for Wire<D> {
    fn kind(&self) -> Kind {
        D::KIND
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn put(&mut self, key: &str, value: &[u8], limit: Duration) -> Result<(), LaunchError> {
        let too_long = |what, length, limit| LaunchError::TooLong {
            kind: D::KIND,
            what,
            length,
            limit,
        };
        if !pieces::is_key(key) {
            return Err(LaunchError::Key { key: key.to_owned() });
        }
        if value.len() > LONGEST_VALUE {
            return Err(too_long("a value", value.len(), LONGEST_VALUE));
        }
        let clock = Limit::new(limit);
        let text = pieces::written(value);
        let mut rest = text.as_str();
        for at in 0.. {
            let key = pieces::key_of(key, self.place.rank, at);
            let terms = self.session.terms();
            if key.len() > terms.key {
                return Err(too_long("a key", key.len(), terms.key));
            }
            let room = D::room(terms, &key).min(rest.len());
            if room == 0 {
                return Err(too_long("a value", rest.len(), 0));
            }
            let (piece, behind) = rest.split_at(room);
            let value = piece.to_owned();
            self.exchange(Request::Put { key, value }, &clock)?;
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn fence(&mut self, limit: Duration) -> Result<(), LaunchError> {
        self.exchange(Request::Fence, &Limit::new(limit)).map(drop)
    }

    fn get(&mut self, rank: u32, key: &str, limit: Duration) -> Result<Vec<u8>, LaunchError> {
        if !pieces::is_key(key) {
            return Err(LaunchError::Key { key: key.to_owned() });
        }
        let clock = Limit::new(limit);
        let mut all = pieces::Collected::default();
        for at in 0.. {
            let piece = self.get_piece(rank, key, at, &clock)?;
            let whole = all.take(&piece).map_err(|reason| LaunchError::Damaged {
                rank,
                key: key.to_owned(),
                reason,
            })?;
            if let Some(value) = whole {
                return Ok(value);
            }
        }
        Ok(Vec::new())
    }

    fn spawn(&mut self, newcomers: &Newcomers<'_>, limit: Duration) -> Result<(), LaunchError> {
        let kind = D::KIND;
        if self.barren {
            let remedy = ELSEWHERE;
            return Err(LaunchError::NoSpawn { kind, remedy });
        }
        newcomers.check(kind)?;
        let program = program_of(newcomers, self.session.terms());
        match self.exchange(Request::Spawn(Box::new(program)), &Limit::new(limit))? {
            Answer::Unspawned(said) => {
                let known = self.failure(newcomers.token, limit)?;
                let said = match said.as_str() {
                    "" => "it gives no reason; check its output".to_owned(),
                    said => format!("`{said}`"),
                };
                Err(LaunchError::NotSpawned {
                    kind,
                    reason: known.unwrap_or(said),
                })
            }
            _ => Ok(()),
        }
    }

    fn failure(&mut self, token: &str, limit: Duration) -> Result<Option<String>, LaunchError> {
        // Our own launcher speaks PMI-1; others have nothing under such a key, and some would wait for it.
        if D::KIND != Kind::Pmi1 {
            return Ok(None);
        }
        match self.get(0, &fate_of(token), limit) {
            Ok(text) => {
                let text = String::from_utf8_lossy(&text);
                let plain = |c: char| if c.is_control() { ' ' } else { c };
                Ok(Some(text.chars().map(plain).collect()))
            }
            Err(LaunchError::Absent { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn abandon(&mut self, token: &str, limit: Duration) -> Result<(), LaunchError> {
        if D::KIND != Kind::Pmi1 {
            return Ok(());
        }
        let (key, value) = (format!("{ABANDON}{token}"), "1".to_owned());
        self.exchange(Request::Put { key, value }, &Limit::new(limit))
            .map(drop)
    }

    fn invitation(&mut self, limit: Duration) -> Result<Option<Vec<u8>>, LaunchError> {
        if !self.spawned {
            return Ok(None);
        }
        match self.get(0, INVITATION, limit) {
            Ok(invitation) => Ok(Some(invitation)),
            // Started by a program other than doorbell.
            Err(LaunchError::Absent { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn abort(&mut self, code: u8, text: &str, limit: Duration) -> Result<(), LaunchError> {
        let plain = |c: char| if matches!(c, ' '..='~') { c } else { ' ' };
        let text = text.chars().take(LAST_WORDS).map(plain).collect();
        let request = Request::Abort { code, text };
        let step = request.step();
        let bytes = self.session.request(request)?;
        self.send(&bytes, step, &Limit::new(limit))
    }

    fn finalize(&mut self, limit: Duration) -> Result<(), LaunchError> {
        self.exchange(Request::Finalize, &Limit::new(limit)).map(drop)
    }
}
