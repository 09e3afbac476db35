//! Builds what later steps run, while the tests wait for something.
//!
//! Tests of whole jobs spend half of their time waiting, and building takes half of all the rest. So while
//! other steps run, the programs of later ones are built beside them, of a scheduling class that gets a
//! processor when no other process wants it (sched(7): SCHED_IDLE): no test is later for it. When a step
//! comes whose programs are among these, this ends, wherever it is, and begins again with those of the steps
//! after it; the step finds what is built, and builds the rest.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::Runner;
use super::steps::{Step, Work};
use crate::child::Beside;
use crate::error::Error;

/// Steps whose programs are built in folders of their own, so that no call waits for cargo's lock.
const BUILT: &[&str] = &["release", "loom", "asan", "fuzz", "instructions"];

/// Returns the names of the steps among `later` whose programs can be built ahead, where they are to be once
/// `now` begins; none where the build that is running goes on.
pub(super) fn restarted(now: &Step, later: &[Step]) -> Option<Vec<&'static str>> {
    // The first that builds for a good while itself.
    let begins = now.name == "clippy" || BUILT.contains(&now.name);
    let is_built = |step: &&Step| BUILT.contains(&step.name);
    begins.then(|| later.iter().filter(is_built).map(|step| step.name).collect())
}

impl Runner<'_> {
    /// Begins to build what these steps run, if this machine has the program that makes it step back.
    /// Dropped, it ends.
    pub(super) fn begin_ahead(&self, names: &[&str]) -> Result<Option<Beside<'_>>, Error> {
        // Whether a process can step back here at all.
        if names.is_empty() || !chrt(&["--idle", "0", "true"]) {
            return Ok(None);
        }
        let path = self.logs.join("ahead.log");
        let log = File::create(&path).map_err(Error::file("create", &path))?;
        // Not by its path: building may put another program there.
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["test", "--ahead"])
            .args(names.iter().flat_map(|name| ["--only", name]))
            .current_dir(&self.workspace.root);
        let left = self.end.saturating_duration_since(Instant::now());
        self.nursery.beside(&mut command, &log, left).map(Some)
    }

    /// Builds what these steps run, one after the other, as they build it; a failure will be repeated by the
    /// step, and is reported there.
    pub(super) fn ahead(&self, steps: &[Step]) -> Result<(), Error> {
        // And what it starts from now on.
        if !chrt(&["--idle", "--pid", "0", &std::process::id().to_string()]) {
            return Ok(());
        }
        let path = self.logs.join("ahead.skips");
        for step in steps {
            for mut command in self.builds(step, &path) {
                let log = self.logs.join(format!("{}.ahead.log", step.name));
                let log = File::create(&log).map_err(Error::file("create", &log))?;
                let left = self.end.saturating_duration_since(Instant::now());
                self.nursery.run(&mut command, &log, left, &mut |_| {})?;
            }
        }
        Ok(())
    }

    /// Returns the commands that build what a step runs.
    fn builds(&self, step: &Step, skips: &std::path::Path) -> Vec<Command> {
        let ourselves = |words: &[&str]| {
            let mut command = Command::new("/proc/self/exe");
            command.args(words).current_dir(&self.workspace.root);
            vec![command]
        };
        match &step.work {
            Work::Cargo { calls, .. } => {
                let build = |call| {
                    let mut command = self.command(call, skips);
                    command.arg("--no-run");
                    command
                };
                calls.iter().map(build).collect()
            }
            Work::Fuzz(seconds) => ourselves(&["fuzz", "--build", "--seconds", &seconds.to_string()]),
            Work::Instructions => ourselves(&["instructions", "--build"]),
            _ => Vec::new(),
        }
    }
}

/// Whether chrt(1) is here, and could do it.
fn chrt(words: &[&str]) -> bool {
    let mut chrt = Command::new("chrt");
    chrt.args(words);
    chrt.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    chrt.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_ahead_is_what_later_steps_run() {
        let step = |name| Step {
            name,
            about: "",
            slow: false,
            bound: std::time::Duration::ZERO,
            work: Work::Lock,
        };
        let plan = ["fmt", "clippy", "test", "soak", "release", "loom", "fuzz"].map(step);
        let at = |index: usize| restarted(&plan[index], &plan[index + 1..]);
        assert_eq!(at(0), None);
        assert_eq!(at(1).unwrap(), ["release", "loom", "fuzz"]);
        assert_eq!((at(2), at(3)), (None, None), "it goes on");
        assert_eq!(at(4).unwrap(), ["loom", "fuzz"]);
        assert_eq!(at(6).unwrap(), [""; 0]);
    }
}
