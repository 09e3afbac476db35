//! What later steps run is built while the tests wait for something.
//!
//! Tests of whole jobs spend half of their time waiting, and building takes half of all the rest. So while the step `test` runs,
//! the programs of later steps are built beside it, of a scheduling class that gets a processor when nobody else wants it
//! (sched(7): SCHED_IDLE): no test is later for it. When the tests have ended so has this, wherever it is; a step finds what
//! is built, and builds the rest.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::Runner;
use super::steps::{Step, Work};
use crate::child::Beside;
use crate::error::Error;

/// Steps whose programs are built in folders of their own, so that nobody waits for cargo's lock; the longest first.
const BUILT: &[&str] = &["fuzz", "asan", "release", "loom"];

impl Runner<'_> {
    /// Begins to build beside `step`, if anything that follows can be, and if this machine has the program that makes it step
    /// back. Dropped, it ends.
    pub(super) fn begin_ahead(&self, step: &Step) -> Result<Option<Beside<'_>>, Error> {
        // Whether a process can step back here at all.
        if !chrt(&["--idle", "0", "true"]) {
            return Ok(None);
        }
        let path = self.logs.join("ahead.log");
        let log = File::create(&path).map_err(Error::file("create", &path))?;
        // Not by its path: building may put another program there.
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["test", "--ahead"])
            .current_dir(&self.workspace.root);
        self.nursery
            .beside(&mut command, &log, self.bound(step))
            .map(Some)
    }

    /// Builds what these steps run, one after the other, as they build it; what fails will fail again, and be told then.
    pub(super) fn ahead(&self, plan: &[Step]) -> Result<(), Error> {
        // And what it starts from now on.
        if !chrt(&["--idle", "--pid", "0", &std::process::id().to_string()]) {
            return Ok(());
        }
        let path = self.logs.join("ahead.skips");
        for name in BUILT {
            for mut command in plan
                .iter()
                .filter(|step| step.name == *name)
                .flat_map(|step| self.builds(step, &path))
            {
                let log = self.logs.join(format!("{name}.ahead.log"));
                let log = File::create(&log).map_err(Error::file("create", &log))?;
                let left = self.end.saturating_duration_since(Instant::now());
                self.nursery.run(&mut command, &log, left, &mut |_| {})?;
            }
        }
        Ok(())
    }

    /// The commands that build what a step runs.
    fn builds(&self, step: &Step, skips: &std::path::Path) -> Vec<Command> {
        match &step.work {
            Work::Cargo { calls, .. } => {
                let build = |call| {
                    let mut command = self.command(call, skips);
                    command.arg("--no-run");
                    command
                };
                calls.iter().map(build).collect()
            }
            Work::Fuzz(seconds) => {
                let mut command = Command::new("/proc/self/exe");
                let seconds = seconds.to_string();
                command.args(["fuzz", "--build", "--seconds", &seconds]);
                command.current_dir(&self.workspace.root);
                vec![command]
            }
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
