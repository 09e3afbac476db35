//! Starting more ranks in a running job: the request, the results that its ranks exchange about it, and the
//! order that rank 0 has given to the launcher.

use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use doorbell_oob::launch::{Kind, Newcomers};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::launcher::{LauncherHandle, lock};
use crate::meet::spawn_parent::Host;
use crate::meet::tcp::{exit_of, shown};
use crate::meet::{Key, Meeting, RankInfo};
use crate::random;
use crate::types::MOST_RANKS;

/// Most ranks that are started at a time: as many as `doorbell run` starts.
const MOST_NEW: u32 = 1024;
/// Interval between two queries whether the launcher has noticed a failure.
const ASK: Duration = Duration::from_millis(100);
/// Time for one answer of the launcher.
const ANSWER: Duration = Duration::from_secs(5);

/// A request to start ranks, for `World::spawn`.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before it is passed to `World::spawn`"]
pub struct Spawn {
    program: String,
    args: Vec<String>,
    ranks: u32,
    host: Option<String>,
}

impl Spawn {
    /// Makes a request for one rank of `program`: a path, or a name to look up in PATH.
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            ranks: 1,
            host: None,
        }
    }

    /// Adds one argument. Most launchers accept printable ASCII only.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds several arguments.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets the number of new ranks.
    pub fn ranks(mut self, ranks: u32) -> Self {
        self.ranks = ranks;
        self
    }

    /// Places all new ranks on this host, by the launcher's name for it. Without this call the launcher
    /// chooses; that of `doorbell run --hosts` takes the hosts with the fewest ranks.
    pub fn on(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }
}

/// A result that rank 0 sends to all ranks, or a rank to rank 0.
#[derive(Serialize, Deserialize)]
pub enum RemoteResult<T> {
    /// The value of a success.
    Good(T),
    /// The error of a failure.
    Bad {
        /// The exit status of a program that ends because of it.
        exit: u8,
        /// The reason in words.
        reason: String,
    },
}

impl<T> RemoteResult<T> {
    /// Converts a result of this rank for sending.
    pub fn of(result: Result<T, Error>) -> Self {
        match result {
            Ok(good) => Self::Good(good),
            Err(Error::NotSpawned { exit, reason }) => Self::Bad {
                exit: exit.number(),
                reason,
            },
            Err(error) => Self::Bad {
                exit: error.exit().number(),
                reason: error.to_string(),
            },
        }
    }

    /// Converts a received result.
    ///
    /// # Errors
    /// The error that was sent.
    pub fn into_result(self) -> Result<T, Error> {
        match self {
            Self::Good(good) => Ok(good),
            Self::Bad { exit, reason } => Err(Error::NotSpawned {
                exit: exit_of(exit),
                reason: shown(&reason),
            }),
        }
    }
}

/// Makes the error of new ranks that did not join.
pub fn failed(exit: Exit, reason: impl Into<String>) -> Error {
    Error::NotSpawned {
        exit,
        reason: reason.into(),
    }
}

/// The order that rank 0 has given to the launcher; dropping it abandons the new ranks, unless they have
/// begun.
pub struct Order<'d> {
    launcher: &'d LauncherHandle,
    token: String,
    host: Host,
    is_placed: bool,
    asked: Instant,
}

impl Order<'_> {
    /// Fails when the launcher reports that a new rank will not come.
    fn ask(launcher: &LauncherHandle, token: &str, asked: &mut Instant) -> Result<(), Error> {
        if asked.elapsed() < ASK {
            return Ok(());
        }
        *asked = Instant::now();
        match lock(launcher).failure(token, ANSWER)? {
            Some(why) => Err(failed(Exit::PeerLost, why)),
            None => Ok(()),
        }
    }

    /// Runs one step of `host`, and moves the old world by `progress` meanwhile.
    fn wait<T>(
        &mut self,
        progress: &mut dyn FnMut(),
        step: impl FnOnce(&mut Host, &mut dyn FnMut() -> Result<(), Error>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (launcher, token, asked) = (self.launcher, self.token.as_str(), &mut self.asked);
        let mut tick = || {
            progress();
            Self::ask(launcher, token, asked)
        };
        step(&mut self.host, &mut tick)
    }

    /// Waits until all new ranks are ready.
    ///
    /// # Errors
    /// A new rank that cannot take part, or has ended.
    pub fn ready(&mut self, progress: &mut dyn FnMut()) -> Result<(), Error> {
        self.wait(progress, |host, tick| host.ready(tick))
    }

    /// Lets the new ranks begin; from now on they are not abandoned any more.
    pub fn start(mut self) {
        self.is_placed = false;
        self.host.start();
    }

    /// Refuses all new ranks that have connected, with the reason.
    pub fn give_up(&mut self, error: Error) -> Error {
        self.host.refuse(error.exit(), &error.to_string());
        error
    }
}

impl Drop for Order<'_> {
    fn drop(&mut self) {
        if self.is_placed {
            // A launcher that misses this notices the end of the new ranks by itself.
            let _ = lock(self.launcher).abandon(&self.token, ANSWER);
        }
    }
}

/// Checks the number of new ranks against the limits, and returns it.
///
/// # Errors
/// Too many new ranks, or none.
pub fn check(size: u32, what: &Spawn) -> Result<u32, Error> {
    let all = size.checked_add(what.ranks);
    let fits = (1..=MOST_NEW).contains(&what.ranks) && all.is_some_and(|all| all <= MOST_RANKS);
    if !fits {
        return Err(failed(
            Exit::Usage,
            format!(
                "{} ranks were requested beside {}: from 1 to {MOST_NEW} at a time, and at most {MOST_RANKS} together",
                what.ranks, size
            ),
        ));
    }
    Ok(what.ranks)
}

/// At rank 0: has the launcher start the new processes, and meets them.
///
/// # Errors
/// A launcher that starts none; a new rank with contradictory settings, or one that does not connect.
pub fn invite<'d>(
    what: &Spawn,
    infos: Vec<RankInfo>,
    launcher: &'d LauncherHandle,
    (until, limit): (Instant, Duration),
    progress: &mut dyn FnMut(),
    order: &mut Option<Order<'d>>,
) -> Result<Meeting, Error> {
    let Some(zero) = infos.first().cloned() else {
        return Err(failed(Exit::System, "rank 0 is missing from the table of ranks"));
    };
    for info in &infos {
        info.check(&zero)
            .map_err(|reason| Error::Disagreement { reason })?;
    }
    let program = find(&what.program)?;
    let kind = lock(launcher).kind();
    // Processes that this process starts itself are on this host.
    let is_far = kind != Kind::Singleton;
    let host = Host::open(&zero, infos.len() as u32, is_far, (until, limit))?;
    let invitation = host.invitation().write()?;
    let token = format!("{:016x}", random::number()?);
    let order = order.insert(Order {
        launcher,
        token,
        host,
        is_placed: true,
        asked: Instant::now(),
    });
    let newcomers = Newcomers {
        program: &program,
        args: &what.args,
        ranks: zero.size - infos.len() as u32,
        host: what.host.as_deref(),
        invitation: &invitation,
        token: &order.token,
    };
    let met = {
        // An exchange with a launcher that was cut short cannot be repeated, and the job goes on: so it gets
        // some time even at the end of the limit.
        let limit = until.saturating_duration_since(Instant::now()).max(ANSWER);
        let placed = lock(launcher).spawn(&newcomers, limit).map_err(Error::from);
        placed.and_then(|()| order.wait(progress, |host, tick| host.gather(&zero, tick)))
    };
    let met = met.and_then(|new| {
        let key = Key::random()?;
        let ranks = infos.into_iter().chain(new).collect();
        let meeting = Meeting { key, ranks };
        order.host.seat(&meeting)?;
        Ok(meeting)
    });
    met.map_err(|error| order.give_up(error))
}

/// Returns the program's name for the launcher: an absolute path where it is a path, because not every
/// launcher starts processes in this folder.
fn find(program: &str) -> Result<String, Error> {
    use std::os::unix::fs::PermissionsExt as _;
    let is_program = |path: &std::path::Path| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let missing = || {
        failed(
            Exit::Usage,
            format!(
                "there is no program `{}` at rank 0: check its name, PATH and its permissions",
                program.escape_debug()
            ),
        )
    };
    if program.contains('/') {
        let path = std::path::absolute(program).map_err(|_| missing())?;
        let text = path.to_str().filter(|_| is_program(&path));
        return text.map(str::to_owned).ok_or_else(missing);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        !program.is_empty() && std::env::split_paths(&path).any(|folder| is_program(&folder.join(program)));
    if found {
        Ok(program.to_owned())
    } else {
        Err(missing())
    }
}
