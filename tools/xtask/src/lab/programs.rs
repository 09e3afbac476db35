//! Programs that make and run the lab: each with a limit, its output in a file, ended with everything that it
//! started.

use std::fs::{self, File};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::stop::Stop;
use crate::child::{Ended, Lane, Nursery};
use crate::error::Error;

/// What a question to a program of this machine may take.
const QUESTION: Duration = Duration::from_secs(30);

/// How long machines may go on when the first of them has ended.
const GRACE: Duration = Duration::from_secs(30);

/// Starts programs, one at a time or side by side.
pub(super) struct Programs {
    nursery: Nursery,
    /// The folder to which their outputs go.
    logs: PathBuf,
    /// Nothing runs longer.
    end: Instant,
    terminal: bool,
}

/// How a program ended, and its output.
pub(super) struct Finished {
    /// Its exit status; `None` when it was still running at its limit, or a signal ended it.
    pub(super) code: Option<i32>,
    pub(super) timed_out: bool,
    pub(super) text: String,
    pub(super) log: PathBuf,
}

impl Programs {
    pub(super) fn new(logs: PathBuf, limit: Duration) -> Result<Self, Error> {
        fs::create_dir_all(&logs).map_err(Error::file("create", &logs))?;
        Ok(Self {
            nursery: Nursery::new()?,
            logs,
            end: Instant::now() + limit,
            terminal: std::io::stderr().is_terminal(),
        })
    }

    /// Runs a program, both outputs in the file `log`, and shows on a terminal that it does.
    pub(super) fn run(
        &self,
        log: &str,
        doing: &str,
        command: &mut Command,
        limit: Duration,
    ) -> Result<Finished, Error> {
        let (path, file) = self.log(log)?;
        let limit = limit.min(self.end.saturating_duration_since(Instant::now()));
        let mut shown = None;
        let mut show = |elapsed: Duration| {
            if shown != Some(elapsed.as_secs()) {
                shown = Some(elapsed.as_secs());
                self.show(&format!("{doing}  {} s", elapsed.as_secs()));
            }
        };
        let ended = self.nursery.run(command, &file, limit, &mut show);
        self.show("");
        Finished::of(&ended?, path)
    }

    /// Runs programs side by side, each with its outputs in a file of its own. The first one leads: when it
    /// has ended, the others have half a minute to end, too.
    pub(super) fn together(
        &self,
        doing: &str,
        commands: Vec<(String, Command)>,
        limit: Duration,
    ) -> Result<Vec<Finished>, Error> {
        let began = Instant::now();
        let limit = limit.min(self.end.saturating_duration_since(began));
        let (mut lanes, mut logs) = (Vec::new(), Vec::new());
        for (name, command) in commands {
            let (path, log) = self.log(&name)?;
            logs.push(path);
            lanes.push(Lane {
                command,
                log,
                nice: 0,
            });
        }
        let mut shown = None;
        let mut show = |running: usize| {
            let now = (began.elapsed().as_secs(), running);
            if shown != Some(now) {
                shown = Some(now);
                self.show(&format!("{doing}  {running} machines, {} s", now.0));
            }
        };
        let ended = self.nursery.led(lanes, (limit, GRACE), &mut show);
        self.show("");
        let ended = ended?;
        ended
            .iter()
            .zip(logs)
            .map(|(ended, log)| Finished::of(ended, log))
            .collect()
    }

    /// Creates the file of a program's outputs.
    fn log(&self, name: &str) -> Result<(PathBuf, File), Error> {
        let path = self.logs.join(format!("{name}.log"));
        let file = File::create(&path).map_err(Error::file("create", &path))?;
        Ok((path, file))
    }

    /// Runs a program of this machine, and returns its output.
    pub(super) fn output_of(&self, program: &str, arguments: &[&str]) -> Result<String, Stop> {
        let mut command = Command::new(program);
        command.args(arguments).env("LC_ALL", "C");
        self.must(program, &format!("asking {program}"), &mut command, QUESTION)
    }

    /// Runs a program that has to succeed, and returns its output.
    pub(super) fn must(
        &self,
        log: &str,
        doing: &str,
        command: &mut Command,
        limit: Duration,
    ) -> Result<String, Stop> {
        let said = self.run(log, doing, command, limit)?;
        if said.code == Some(0) {
            return Ok(said.text);
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let how = said.how(limit);
        Err(Stop::failed(format!(
            "{doing}: {program} {how}; all of it is in {}",
            said.log.display()
        )))
    }

    /// Shows one line on a terminal, in place of the last one; nothing elsewhere.
    fn show(&self, line: &str) {
        if self.terminal {
            // A terminal that is gone is no reason to end.
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        }
    }
}

impl Finished {
    fn of(ended: &Ended, log: PathBuf) -> Result<Self, Error> {
        let (code, timed_out) = match ended {
            Ended::Exit(status) => (status.code(), false),
            Ended::TimedOut => (None, true),
        };
        let bytes = fs::read(&log).map_err(Error::file("read", &log))?;
        Ok(Self {
            code,
            timed_out,
            text: String::from_utf8_lossy(&bytes).into_owned(),
            log,
        })
    }

    /// Returns how it ended badly, in words, with the last line of its output.
    pub(super) fn how(&self, limit: Duration) -> String {
        let last = self.text.lines().rev().find(|line| !line.trim().is_empty());
        let last = last.unwrap_or("it printed nothing");
        match self.code {
            _ if self.timed_out => format!("did not end within {} s: {last}", limit.as_secs()),
            Some(code) => format!("ended with {code}: {last}"),
            None => format!("was ended by a signal: {last}"),
        }
    }
}
