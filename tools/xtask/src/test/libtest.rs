//! Reads what `cargo test` prints: which program ran, which of its tests failed or were ignored, and the
//! counts.
//!
//! Both outputs are in one text: cargo's lines ("Running", "Doc-tests", "to rerun pass") come on standard
//! error, the tests' lines on standard output. A program that ends without a `test result:` line has died, or
//! cannot be counted, and is a failure either way.

use std::fmt;

use super::skips::Skip;
use super::steps::quoted;

/// What the reason of an ignored test begins with when it is a part of another test, which runs it in a
/// process of its own. Such a test is not skipped, and is not counted.
const PART: &str = "run by ";

/// One failed test, or one test program that died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    /// The program: `doorbell_ring src/lib.rs`.
    program: String,
    /// The test; none when the program died.
    test: Option<String>,
    /// What is known of where a program was when it died.
    last: String,
    /// The arguments that cargo prints for this program: `-p doorbell-ring --lib`; empty when it prints none.
    rerun: String,
}

impl Failed {
    /// Returns the arguments after `cargo test` that run this test alone.
    pub(super) fn repeat_arguments(&self) -> String {
        // Documentation tests have names that only match by their start.
        let exact = if self.rerun.contains("--doc") {
            ""
        } else {
            "--exact "
        };
        match &self.test {
            Some(test) => format!("{} -- {exact}{}", self.rerun, quoted(test)),
            None => self.rerun.clone(),
        }
    }
}

impl Failed {
    /// Returns the arguments after `cargo test` that run this test and no other; none when it is not known
    /// which one that is.
    pub(super) fn alone(&self) -> Option<Vec<String>> {
        let test = self.test.as_ref().filter(|test| !test.contains(' '))?;
        if self.rerun.is_empty() || self.rerun.contains("--doc") {
            return None;
        }
        let program = self.rerun.split_whitespace().map(str::to_owned);
        let chosen = ["--", "--exact", test].map(str::to_owned);
        Some(program.chain(chosen).collect())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.test {
            Some(test) => write!(f, "{}: {test}", self.program),
            None => write!(
                f,
                "{}: the test program ended without a result{}",
                self.program, self.last
            ),
        }
    }
}

/// What one or several runs of `cargo test` came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// How many passed.
    pub(super) passed: usize,
    /// The tests that failed.
    pub(super) failed: Vec<Failed>,
    /// The tests that `#[ignore]` left out.
    pub(super) ignored: Vec<Skip>,
}

/// Reads the whole output.
pub(super) fn parse(text: &str) -> Tally {
    let mut tally = Tally::default();
    let mut program: Option<Program> = None;
    for line in text.lines() {
        if let Some(name) = program_name(line) {
            finish(&mut tally, program.replace(Program::new(name)));
            continue;
        }
        let Some(program) = &mut program else { continue };
        if let Some(rerun) = between(line, "to rerun pass `", "`") {
            program.rerun = rerun.to_owned();
        } else if let Some(result) = Counts::parse(line) {
            program.counts = Some(result);
        } else if let Some(name) = long_line(line) {
            program.long.push(name.to_owned());
        } else if let Some((name, verdict)) = test_line(line) {
            program.test(name, verdict);
        }
    }
    finish(&mut tally, program);
    tally
}

/// A test program while its output is read.
#[derive(Debug)]
struct Program {
    name: String,
    failed: Vec<String>,
    ignored: Vec<(String, String)>,
    /// Those that have been running for a minute, and have not ended.
    long: Vec<String>,
    /// The last one that ended.
    last: String,
    counts: Option<Counts>,
    rerun: String,
}

impl Program {
    fn new(name: String) -> Self {
        Self {
            name,
            failed: Vec::new(),
            ignored: Vec::new(),
            long: Vec::new(),
            last: String::new(),
            counts: None,
            rerun: String::new(),
        }
    }

    /// Where it was when it died.
    fn whereabouts(&self) -> String {
        match (&*self.long, &*self.last) {
            ([], "") => String::new(),
            ([], last) => format!("; {last} had just ended"),
            (long, _) => format!("; still running after a minute: {}", long.join(", ")),
        }
    }

    fn test(&mut self, name: &str, verdict: &str) {
        self.long.retain(|long| long != name);
        name.clone_into(&mut self.last);
        if verdict == "FAILED" {
            self.failed.push(name.to_owned());
        } else if let Some(reason) = verdict.strip_prefix("ignored") {
            let reason = reason.trim_start_matches([',', ' ']);
            let reason = if reason.is_empty() {
                "ignored without a reason"
            } else {
                reason
            };
            self.ignored.push((name.to_owned(), reason.to_owned()));
        }
    }
}

fn finish(tally: &mut Tally, program: Option<Program>) {
    let Some(program) = program else { return };
    let last = program.whereabouts();
    let Program {
        name,
        mut failed,
        ignored,
        counts,
        rerun,
        ..
    } = program;
    let failure = |test: Option<String>| Failed {
        program: name.clone(),
        last: if test.is_none() {
            last.clone()
        } else {
            String::new()
        },
        test,
        rerun: rerun.clone(),
    };
    let apart = ignored.into_iter().filter(|(_, reason)| !reason.contains(PART));
    tally.ignored.extend(apart.map(|(test, reason)| Skip {
        test: format!("{name}: {test}"),
        reason,
    }));
    match counts {
        Some(counts) => {
            tally.passed += counts.passed;
            // The counts are right. A line can be another test's, which ran in a child of this program and
            // died as it should; and a line can be lost, when a test writes past the capture.
            failed.truncate(counts.failed);
            let unseen = counts.failed - failed.len();
            tally
                .failed
                .extend(failed.into_iter().map(|test| failure(Some(test))));
            tally
                .failed
                .extend((0..unseen).map(|_| failure(Some("a test whose line was lost".to_owned()))));
        }
        None => {
            tally
                .failed
                .extend(failed.into_iter().map(|test| failure(Some(test))));
            tally.failed.push(failure(None));
        }
    }
}

/// Returns the name of the program that cargo prints as running now.
fn program_name(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{} documentation", name.trim()));
    }
    let (source, binary) = line
        .strip_prefix("Running ")?
        .strip_suffix(')')?
        .rsplit_once(" (")?;
    let source = source.strip_prefix("unittests ").unwrap_or(source);
    let file = binary.rsplit('/').next()?;
    let crate_name = file.rsplit_once('-').map_or(file, |(name, _)| name);
    // An integration test's program is called like its file; only the file is worth showing then.
    let package = if source.starts_with("tests/") {
        String::new()
    } else {
        format!("{crate_name} ")
    };
    Some(format!("{package}{source}"))
}

/// Parses a line `test NAME has been running for over 60 seconds`.
fn long_line(line: &str) -> Option<&str> {
    let (name, _) = line
        .strip_prefix("test ")?
        .split_once(" has been running for over ")?;
    Some(name)
}

/// Parses a line `test NAME ... VERDICT`.
fn test_line(line: &str) -> Option<(&str, &str)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((
        name.strip_suffix(" - should panic").unwrap_or(name),
        verdict.trim_end(),
    ))
}

/// The numbers of a line `test result: ok. 3 passed; 1 failed; 2 ignored; ...`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
}

impl Counts {
    fn parse(line: &str) -> Option<Self> {
        // A child of a test may have written an unfinished line before it.
        let (_, result) = line.split_once("test result: ")?;
        let (_, numbers) = result.split_once(". ")?;
        let number = |what: &str| -> Option<usize> {
            numbers
                .split(';')
                .find_map(|part| part.trim().strip_suffix(what)?.trim_end().parse().ok())
        };
        Some(Self {
            passed: number("passed")?,
            failed: number("failed")?,
        })
    }
}

fn between<'a>(line: &'a str, start: &str, end: &str) -> Option<&'a str> {
    Some(line.split_once(start)?.1.split_once(end)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "\
   Compiling doorbell-ring v0.1.0 (/x/ring)
    Finished `test` profile [optimized + debuginfo] target(s) in 1.0s
     Running unittests src/lib.rs (target/debug/deps/doorbell_ring-0123456789abcdef)

running 4 tests
test spsc::tests::wraps ... ok
test spsc::tests::panics - should panic ... ok
test slab::tests::needs_a_nic ... ignored, needs a NIC with SR-IOV
test slab::tests::is_full ... FAILED

failures:

---- slab::tests::is_full stdout ----
thread panicked at src/slab.rs:7:9

failures:
    slab::tests::is_full

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

error: test failed, to rerun pass `-p doorbell-ring --lib`
     Running tests/order.rs (target/debug/deps/order-0123456789abcdef)

running 1 test
test in_order ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

   Doc-tests doorbell_ring

running 2 tests
test ring/src/lib.rs - spsc (line 12) ... ok
test ring/src/lib.rs - slab (line 40) ... FAILED

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.50s

error: doctest failed, to rerun pass `-p doorbell-ring --doc`
error: 2 targets failed:
    `-p doorbell-ring --lib`
    `-p doorbell-ring --doc`
";

    #[test]
    fn passes_failures_and_ignored_tests_are_counted_by_program() {
        let tally = parse(RUN);
        assert_eq!(tally.passed, 4);
        let shown: Vec<String> = tally.failed.iter().map(ToString::to_string).collect();
        let lib = "doorbell_ring src/lib.rs: slab::tests::is_full";
        assert_eq!(
            shown,
            [
                lib,
                "doorbell_ring documentation: ring/src/lib.rs - slab (line 40)"
            ]
        );
        let repeat: Vec<String> = tally.failed.iter().map(Failed::repeat_arguments).collect();
        assert_eq!(
            repeat[0],
            "-p doorbell-ring --lib -- --exact slab::tests::is_full"
        );
        assert_eq!(
            repeat[1],
            "-p doorbell-ring --doc -- 'ring/src/lib.rs - slab (line 40)'"
        );
        assert_eq!(tally.ignored.len(), 1);
        assert_eq!(
            tally.ignored[0].test,
            "doorbell_ring src/lib.rs: slab::tests::needs_a_nic"
        );
        assert_eq!(tally.ignored[0].reason, "needs a NIC with SR-IOV");
    }

    #[test]
    fn a_program_that_dies_is_one_failure_with_its_command() {
        let text = "\
     Running tests/lane.rs (target/debug/deps/lane-0123456789abcdef)

running 2 tests
test first ... ok
error: test failed, to rerun pass `-p doorbell-shm --test lane`

Caused by:
  process didn't exit successfully: `/x/lane` (signal: 11, SIGSEGV: invalid memory reference)
";
        let tally = parse(text);
        assert_eq!(tally.passed, 0);
        assert_eq!(tally.failed.len(), 1);
        assert_eq!(
            tally.failed[0].to_string(),
            "tests/lane.rs: the test program ended without a result; first had just ended"
        );
        assert_eq!(tally.failed[0].repeat_arguments(), "-p doorbell-shm --test lane");
    }

    #[test]
    fn a_program_that_was_killed_names_what_it_was_waiting_for() {
        let text = "     Running tests/it/main.rs (target/debug/deps/it-0)\n\
                    test slow has been running for over 60 seconds\n\
                    test stuck has been running for over 60 seconds\n\
                    test slow ... ok\n";
        let tally = parse(text);
        assert_eq!(
            tally.failed[0].to_string(),
            "tests/it/main.rs: the test program ended without a result; still running after a minute: stuck"
        );
    }

    #[test]
    fn a_failure_whose_line_was_lost_still_counts() {
        let text = "     Running tests/a.rs (target/debug/deps/a-0)\n\
                    noisetest result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let tally = parse(text);
        assert_eq!((tally.passed, tally.failed.len()), (3, 2));
    }

    #[test]
    fn parts_of_other_tests_are_neither_skipped_nor_failed() {
        let text = "     Running tests/a.rs (target/debug/deps/a-0)\n\
                    test touch ... ignored, dies on purpose; run by walls\n\
                    test touch ... FAILED\n\
                    test walls ... ok\n\
                    test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n";
        let tally = parse(text);
        assert_eq!(
            tally,
            Tally {
                passed: 1,
                ..Tally::default()
            }
        );
    }

    #[test]
    fn what_does_not_compile_and_nothing_at_all_give_an_empty_tally() {
        assert_eq!(
            parse("error[E0425]: cannot find value `x`\nerror: could not compile `a`"),
            Tally::default()
        );
        assert_eq!(parse(""), Tally::default());
    }

    #[test]
    fn a_test_that_is_ignored_without_a_reason_is_listed_as_such() {
        let text = "     Running tests/a.rs (x/a-0)\ntest b ... ignored\ntest result: ok. 0 passed; 0 failed; 1 ignored\n";
        assert_eq!(parse(text).ignored[0].reason, "ignored without a reason");
    }
}
