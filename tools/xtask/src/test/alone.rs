//! Runs tests that failed among others once more by themselves.

use std::fs::File;
use std::time::Instant;

use super::libtest::{self, Failed};
use super::steps::{self, Step, Work};
use super::{Runner, read_lossy};
use crate::child::Ended;
use crate::error::Error;

/// Maximum number of failed tests that are repeated: where more fail, it is not because of what ran beside
/// them.
const MOST: usize = 3;

impl Runner<'_> {
    /// Runs tests that failed among others once more, one at a time; returns those that passed now. Tests of
    /// whole jobs share two processors with all others of their program, and what they wait for may come too
    /// late for that reason alone. They are reported in any case. Where more than a few fail, it is not for
    /// such a reason.
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
            call.arguments.extend(as_built(step, chosen));
            let path = self.logs.join(format!("{}.alone-{index}.log", step.name));
            let log = File::create(&path).map_err(Error::file("create", &path))?;
            let mut command = self.command(&call, &self.logs.join(format!("{}.alone.skips", step.name)));
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = self.nursery.run(&mut command, &log, left, &mut |_| {})?;
            let tally = libtest::parse(&read_lossy(&path)?);
            // Several programs may have a test of this name.
            if matches!(ended, Ended::Exit(status) if status.success()) && tally.passed > 0 {
                passed.push(test.clone());
            }
        }
        Ok(passed)
    }
}

/// Returns the arguments that choose one program of a step, as the step builds it. One package alone has
/// other features than all of them, and would be built again, with its dependencies: that takes minutes.
fn as_built(step: &Step, chosen: Vec<String>) -> Vec<String> {
    let Work::Cargo { calls, .. } = &step.work else {
        return chosen;
    };
    let all = "--workspace";
    let of_all = calls
        .first()
        .is_some_and(|call| call.arguments.iter().any(|word| word == all));
    if !of_all || chosen.first().is_none_or(|word| word != "-p") {
        return chosen;
    }
    // The option and the package.
    let rest = chosen.into_iter().skip(2);
    [all.to_owned()].into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::steps::Invocation;

    fn step(words: &[&str]) -> Step {
        let call = Invocation {
            arguments: words.iter().map(|&word| word.to_owned()).collect(),
            ..Invocation::default()
        };
        Step {
            name: "x",
            about: "",
            slow: false,
            bound: std::time::Duration::ZERO,
            work: Work::Cargo {
                calls: vec![call],
                tests: true,
            },
        }
    }

    #[test]
    fn a_test_is_repeated_in_the_build_in_which_it_failed() {
        let chosen = ["-p", "a", "--test", "b", "--", "--exact", "c"].map(str::to_owned);
        let whole = as_built(&step(&["test", "--workspace"]), chosen.to_vec());
        assert_eq!(whole.join(" "), "--workspace --test b -- --exact c");
        let of_one = as_built(&step(&["test", "-p", "a"]), chosen.to_vec());
        assert_eq!(of_one, chosen);
    }
}
