//! A process without a launcher: it can put and get values by itself, and start other processes.
//!
//! Those get their invitation on standard input, which ends after it. The variable [`VARIABLE`] announces
//! that it is there, and has the index of the new process.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::poll::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::{Found, Kind, LaunchError, Launcher, Newcomers, Place, pieces};

/// The variable with the index of a new process, from 0.
pub const VARIABLE: &str = "DOORBELL_SPAWNED";
/// Maximum bytes of an invitation, so that a pipe takes it at once.
const LONGEST_INVITATION: usize = 32 << 10;

/// A job of one process.
#[derive(Debug)]
pub struct Singleton {
    place: Place,
    values: BTreeMap<String, Vec<u8>>,
    /// Whether an invitation is on standard input or in a variable.
    spawned: bool,
    variable: Option<String>,
    /// The processes that it started, with their tokens.
    children: Vec<(String, Child)>,
}

impl Singleton {
    /// Creates a job of one process.
    pub fn new() -> Self {
        Self {
            place: Place {
                rank: 0,
                size: 1,
                local_rank: Some(0),
                local_size: Some(1),
                job: String::new(),
            },
            values: BTreeMap::new(),
            spawned: false,
            variable: None,
            children: Vec::new(),
        }
    }

    /// Creates the launcher handle of a process that is alone, or has only an invitation.
    pub fn of(found: &Found) -> Self {
        let mut alone = Self::new();
        alone.place.rank = found.rank;
        alone.spawned = found.spawned;
        alone.variable.clone_from(&found.invitation);
        alone
    }

    fn start(&mut self, newcomers: &Newcomers<'_>, at: u32) -> io::Result<()> {
        let mut command = Command::new(newcomers.program);
        command
            .args(newcomers.args)
            .env(VARIABLE, at.to_string())
            .stdin(Stdio::piped());
        let mut child = doorbell_fabric::process::spawn(&mut command)?;
        let input = child.stdin.take();
        self.children.push((newcomers.token.to_owned(), child));
        if let Some(mut input) = input {
            // A process that does not read it will not join, and its exit status shows why.
            let _ = input.write_all(newcomers.invitation);
        }
        Ok(())
    }

    /// Reaps the processes that have ended.
    fn reap(&mut self) {
        self.children
            .retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
    }
}

/// Reads standard input to its end.
fn read_input(limit: Duration) -> Result<Vec<u8>, LaunchError> {
    let until = Instant::now() + limit;
    let (kind, step) = (Kind::Singleton, "invitation");
    let failed = |error: Errno| LaunchError::Io {
        kind,
        step,
        source: error.into(),
    };
    let (input, mut text, mut piece) = (io::stdin(), Vec::new(), [0; 4096]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LaunchError::Late { kind, step, limit });
        }
        let left = timespec(left);
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&left)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(failed(error)),
        }
        match rustix::io::read(&input, &mut piece) {
            Ok(0) => return Ok(text),
            Ok(count) => text.extend_from_slice(&piece[..count]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
        if text.len() > LONGEST_INVITATION {
            return Err(LaunchError::Garbled {
                kind,
                step,
                reason: format!("the standard input has more than {LONGEST_INVITATION} bytes"),
            });
        }
    }
}

/// Whether `host` names this host, without a resolver.
fn is_here(host: &str) -> bool {
    let node = rustix::system::uname();
    let names = ["localhost", node.nodename().to_str().unwrap_or_default()];
    let address = host.parse::<std::net::IpAddr>();
    names.iter().any(|name| name.eq_ignore_ascii_case(host)) || address.is_ok_and(doorbell_inet::is_own)
}

fn shown(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("ended with exit status {code}"),
        None => format!("was killed ({status})"),
    }
}

impl Default for Singleton {
    fn default() -> Self {
        Self::new()
    }
}

impl Launcher for Singleton {
    fn kind(&self) -> Kind {
        Kind::Singleton
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn put(&mut self, key: &str, value: &[u8], _: Duration) -> Result<(), LaunchError> {
        self.values.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    fn fence(&mut self, _: Duration) -> Result<(), LaunchError> {
        Ok(())
    }

    fn get(&mut self, rank: u32, key: &str, _: Duration) -> Result<Vec<u8>, LaunchError> {
        let value = self.values.get(key).filter(|_| rank == 0);
        value.cloned().ok_or_else(|| LaunchError::Absent {
            kind: Kind::Singleton,
            rank,
            key: key.to_owned(),
        })
    }

    fn spawn(&mut self, newcomers: &Newcomers<'_>, limit: Duration) -> Result<(), LaunchError> {
        self.reap();
        if let Some(host) = newcomers.host.filter(|host| !is_here(host)) {
            return Err(LaunchError::NotSpawned {
                kind: Kind::Singleton,
                reason: format!(
                    "a process without a launcher can start others only on its own host, which is not named `{host}`: \
                     `doorbell run --hosts` has several"
                ),
            });
        }
        for at in 0..newcomers.ranks {
            if let Err(error) = self.start(newcomers, at) {
                self.abandon(newcomers.token, limit)?;
                return Err(LaunchError::NotSpawned {
                    kind: Kind::Singleton,
                    reason: format!("`{}` cannot be run: {error}", newcomers.program),
                });
            }
        }
        Ok(())
    }

    fn failure(&mut self, token: &str, _: Duration) -> Result<Option<String>, LaunchError> {
        let ours = self.children.iter_mut().filter(|(known, _)| known == token);
        for (_, child) in ours {
            if let Ok(Some(status)) = child.try_wait() {
                let (pid, how) = (child.id(), shown(status));
                return Ok(Some(format!("process {pid} {how} before it had joined")));
            }
        }
        Ok(None)
    }

    fn abandon(&mut self, token: &str, _: Duration) -> Result<(), LaunchError> {
        for (_, child) in self.children.iter_mut().filter(|(known, _)| known == token) {
            // It may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.retain(|(known, _)| known != token);
        Ok(())
    }

    fn tidy(&mut self) {
        self.reap();
    }

    fn invitation(&mut self, limit: Duration) -> Result<Option<Vec<u8>>, LaunchError> {
        if !std::mem::take(&mut self.spawned) {
            return Ok(None);
        }
        if let Some(text) = self.variable.take() {
            let read = pieces::Collected::default().take(&text);
            return match read {
                Ok(Some(invitation)) => Ok(Some(invitation)),
                Ok(None) | Err(_) => Err(LaunchError::Garbled {
                    kind: Kind::Singleton,
                    step: "invitation",
                    reason: format!("the variable {} has none", super::pmix::VARIABLE),
                }),
            };
        }
        // Empty: the variable was inherited from a process that has read it.
        Ok(Some(read_input(limit)?).filter(|text| !text.is_empty()))
    }

    fn abort(&mut self, _: u8, _: &str, _: Duration) -> Result<(), LaunchError> {
        for (_, child) in &mut self.children {
            let _ = child.kill();
        }
        Ok(())
    }

    fn finalize(&mut self, _: Duration) -> Result<(), LaunchError> {
        self.reap();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_alone_has_what_it_gave() {
        let limit = Duration::from_secs(1);
        let mut alone = Singleton::new();
        alone.put("k", b"v", limit).unwrap();
        alone.fence(limit).unwrap();
        assert_eq!(alone.get(0, "k", limit).unwrap(), b"v");
        assert_eq!(alone.get(1, "k", limit).unwrap_err().code(), "launch.absent");
        assert_eq!(alone.get(0, "x", limit).unwrap_err().code(), "launch.absent");
        alone.abort(3, "nothing receives it", limit).unwrap();
        alone.finalize(limit).unwrap();
        assert_eq!((alone.place().size, alone.kind()), (1, Kind::Singleton));
    }

    #[test]
    fn an_invitation_may_be_in_a_variable() {
        let of = |text: &str| {
            let set = |name: &str| match name {
                "PMIX_NAMESPACE" => Some("7".to_owned()),
                "PMIX_RANK" => Some("2".to_owned()),
                super::super::pmix::VARIABLE => Some(text.to_owned()),
                _ => None,
            };
            let found = super::super::detect(&super::super::Wanted::default(), &set).unwrap();
            assert_eq!((found.kind, found.rank, found.spawned), (Kind::Pmix, 2, true));
            super::super::open(&found, Duration::from_secs(1)).unwrap()
        };
        let mut door = of(&pieces::written(b"come"));
        assert_eq!((door.kind(), door.place().rank), (Kind::Singleton, 2));
        let mut ask = || door.invitation(Duration::from_secs(1)).unwrap();
        assert_eq!((ask(), ask()), (Some(b"come".to_vec()), None));
        for text in ["00000004come", "0000", "00000001aabb", "ffffffff"] {
            let error = of(text).invitation(Duration::from_secs(1)).unwrap_err();
            assert_eq!(error.code(), "launch.garbled", "{text}");
        }
    }

    #[test]
    fn what_it_starts_has_the_invitation_and_is_ended_when_it_is_abandoned() {
        let limit = Duration::from_secs(60);
        let mut alone = Singleton::new();
        let args = ["-c", "read word; test \"$word\" = come || exit 9; exit 3"].map(str::to_owned);
        let mut newcomers = Newcomers {
            program: "sh",
            args: &args,
            ranks: 1,
            host: None,
            invitation: b"come\n",
            token: "one",
        };
        alone.spawn(&newcomers, limit).unwrap();
        let until = Instant::now() + limit;
        let why = loop {
            assert_eq!(alone.failure("other", limit).unwrap(), None);
            match alone.failure("one", limit).unwrap() {
                Some(why) => break why,
                None => assert!(Instant::now() < until, "it does not end"),
            }
        };
        assert!(why.contains("exit status 3 before it had joined"), "{why}");
        newcomers.args = &[];
        (newcomers.program, newcomers.token) = ("/nonexistent/program", "two");
        let error = alone.spawn(&newcomers, limit).unwrap_err();
        assert_eq!(error.code(), "launch.not-spawned");
        let args = ["1000".to_owned()];
        (newcomers.program, newcomers.args) = ("sleep", &args);
        newcomers.host = Some("elsewhere");
        let error = alone.spawn(&newcomers, limit).unwrap_err().to_string();
        assert!(error.contains("`elsewhere`"), "{error}");
        newcomers.host = Some("localhost");
        alone.spawn(&newcomers, limit).unwrap();
        alone.abandon("two", limit).unwrap();
        alone.tidy();
        assert!(alone.children.is_empty(), "{alone:?}");
    }
}
