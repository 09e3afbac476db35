//! What failed among other tests is run once more by itself.

use std::fs::File;
use std::time::Instant;

use super::libtest::{self, Failed};
use super::steps::{self, Step};
use super::{Runner, read_lossy};
use crate::child::Ended;
use crate::error::Error;

/// Where more than so many fail, it is not because of what ran beside them.
const MOST: usize = 3;

impl Runner<'_> {
    /// Runs tests that failed among others once more, each by itself; those that passed now. Tests of whole jobs share two
    /// processors with all others of their program, and what they wait for may come too late for that reason alone. They
    /// are told in any case. Where more than a few fail, it is not for such a reason.
    pub(super) fn again_alone(
        &self,
        step: &Step,
        failed: &[Failed],
        deadline: Instant,
    ) -> Result<Vec<Failed>, Error> {
        if failed.len() > MOST {
            return Ok(Vec::new());
        }
        let mut passed = Vec::new();
        for (index, test) in failed.iter().enumerate() {
            let Some(chosen) = test.alone() else { continue };
            let mut call = steps::repeat_base(step);
            call.arguments.extend(chosen);
            let path = self.logs.join(format!("{}.alone-{index}.log", step.name));
            let log = File::create(&path).map_err(Error::file("create", &path))?;
            let mut command = self.command(&call, &self.logs.join(format!("{}.alone.skips", step.name)));
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = self.nursery.run(&mut command, &log, left, &mut |_| {})?;
            let tally = libtest::parse(&read_lossy(&path)?);
            if matches!(ended, Ended::Exit(status) if status.success()) && tally.passed == 1 {
                passed.push(test.clone());
            }
        }
        Ok(passed)
    }
}
