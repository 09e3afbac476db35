//! The programs of a measurement: started on a host, with a deadline, ended with this process; and their
//! output.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_fabric::signals::{self, ENDS};

use super::lab::command_line;
use crate::error::Error;

/// How often a running program is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Starts programs; their words go to files in a folder that goes with it.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) folder: PathBuf,
    interrupted: Arc<AtomicBool>,
    begun: Instant,
    started: u32,
}

/// One program that was started, and is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    line: String,
    out: PathBuf,
    err: PathBuf,
}

impl Programs {
    /// Takes over SIGINT, SIGTERM and SIGHUP: what was begun is cleaned up then.
    pub(crate) fn new() -> Result<Self, Error> {
        let interrupted = Arc::new(AtomicBool::new(false));
        signals::set_flag_on(&ENDS, &interrupted).map_err(Error::Signals)?;
        let folder = std::env::temp_dir().join(format!("doorbell-links-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(Error::file("create", &folder))?;
        Ok(Self {
            folder,
            interrupted,
            begun: Instant::now(),
            started: 0,
        })
    }

    /// Starts a program that runs beside others.
    pub(crate) fn start(&mut self, mut command: Command) -> Result<Running, Error> {
        self.check()?;
        self.started += 1;
        let [out, err] = ["out", "err"].map(|end| self.folder.join(format!("{}.{end}", self.started)));
        let line = command_line(&command);
        let file = |path: &Path| File::create(path).map_err(Error::file("create", path));
        command
            .stdin(Stdio::null())
            .stdout(file(&out)?)
            .stderr(file(&err)?);
        // Ctrl-C is for us, and we end it in our order.
        let child = command.process_group(0).spawn();
        let child = child.map_err(|source| Error::Start {
            program: line.clone(),
            source,
        })?;
        Ok(Running {
            child,
            line,
            out,
            err,
        })
    }

    /// Runs a program to its end; what it printed, or the sentence with which it failed.
    pub(crate) fn run(&mut self, command: Command, limit: Duration) -> Result<Result<String, String>, Error> {
        let mut running = self.start(command)?;
        Ok(match self.ended(&mut running, limit)? {
            Some(status) if status.success() => Ok(running.printed()),
            Some(status) => Err(format!("{}: {status}: {}", running.line, running.last_line())),
            None => Err(format!(
                "{} hangs: it did not end within {limit:?}: {}",
                running.line,
                running.last_line()
            )),
        })
    }

    /// Waits until a program has printed `word`.
    pub(crate) fn wait_for(&self, running: &mut Running, word: &str, limit: Duration) -> Result<(), Error> {
        let begun = Instant::now();
        while !running.printed().contains(word) {
            let ended = running.child.try_wait().is_ok_and(|status| status.is_some());
            if ended || begun.elapsed() > limit {
                let (line, said) = (&running.line, running.last_line());
                return Err(Error::Lab(format!("{line} did not print {word:?}: {said}")));
            }
            self.check()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits for a program, and returns how it ended; `None` when it still runs after `limit`.
    pub(crate) fn ended(&self, running: &mut Running, limit: Duration) -> Result<Option<ExitStatus>, Error> {
        let begun = Instant::now();
        loop {
            match running.child.try_wait() {
                Ok(Some(status)) => return Ok(Some(status)),
                Ok(None) if begun.elapsed() > limit => return Ok(None),
                Ok(None) => {}
                Err(source) => {
                    let program = running.line.clone();
                    return Err(Error::Start { program, source });
                }
            }
            self.check()?;
            std::thread::sleep(LOOK);
        }
    }

    /// Whether we are to end.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Error::Interrupted(self.begun.elapsed()));
        }
        Ok(())
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Running {
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    pub(crate) fn printed(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// Returns all that it printed.
    pub(crate) fn output(&self) -> String {
        let all = std::fs::read_to_string(&self.err).unwrap_or_default();
        all.trim().to_owned()
    }

    /// Returns the last line of its output.
    fn last_line(&self) -> String {
        let all = std::fs::read_to_string(&self.err).unwrap_or_default();
        let last = all.lines().rev().find(|line| !line.trim().is_empty());
        last.unwrap_or("it printed nothing").to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in [&self.out, &self.err] {
            let _ = std::fs::remove_file(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// One test: the folder is named by the process.
    #[test]
    fn programs_are_bounded_and_end_with_us() {
        let mut programs = Programs::new().unwrap();
        let limit = Duration::from_secs(20);
        assert_eq!(
            programs.run(sh("echo yes"), limit).unwrap(),
            Ok("yes\n".to_owned())
        );
        let failed = programs
            .run(sh("echo no >&2; exit 3"), limit)
            .unwrap()
            .unwrap_err();
        assert!(failed.contains("no") && failed.contains('3'), "{failed}");
        let hung = programs.run(sh("sleep 600"), Duration::from_millis(50)).unwrap();
        assert!(hung.unwrap_err().contains("hangs"));
        let mut running = programs.start(sh("echo ready; exec sleep 600")).unwrap();
        programs.wait_for(&mut running, "ready", limit).unwrap();
        let process = running.child.id();
        programs.interrupted.store(true, Ordering::Relaxed);
        let error = programs.ended(&mut running, limit).unwrap_err();
        assert!(error.to_string().contains("interrupted"), "{error}");
        drop(running);
        assert!(!Path::new(&format!("/proc/{process}")).exists());
        let folder = programs.folder.clone();
        drop(programs);
        assert!(!folder.exists());
    }
}
