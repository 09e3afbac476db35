//! What is printed at the end of each step and of the run, and the same as JSON.

use serde::Serialize;

use super::skips::Skip;
use super::steps::Invocation;
use crate::error::Error;

/// How many lines of a failed step's output are printed; all of it stays in its log.
const SHOWN: usize = 300;
/// How many lines of one failing test's output are printed.
const WORDS: usize = 60;

/// Something that failed, and how to see it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Failure {
    /// The test or check that failed.
    pub(super) what: String,
    /// The command that repeats it.
    pub(super) repeat: String,
}

impl Failure {
    pub(super) fn new(what: String, call: &Invocation) -> Self {
        Self {
            what,
            repeat: call.typed(),
        }
    }
}

/// What a step came to.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Outcome {
    /// The name of the step.
    pub(super) name: String,
    /// How long it took.
    pub(super) seconds: f64,
    /// How many tests passed; a check counts as one.
    pub(super) passed: usize,
    /// The tests and checks that failed.
    pub(super) failures: Vec<Failure>,
    /// The tests that did not run.
    pub(super) skips: Vec<Skip>,
    /// What failed among the others, and passed when it was run once more alone. It is counted as passed.
    pub(super) alone: Vec<Failure>,
    /// The lines of the output that explain the failures.
    #[serde(skip)]
    pub(super) log: Vec<String>,
}

impl Outcome {
    /// Creates the outcome of a step that counts as one test.
    pub(super) fn check(failures: Vec<Failure>, log: Vec<String>) -> Self {
        let good = failures.is_empty();
        let log = if good { Vec::new() } else { log };
        Self {
            passed: usize::from(good),
            failures,
            log,
            ..Self::default()
        }
    }

    /// Creates the outcome of a step that was not run.
    pub(super) fn left_out(name: &str, reason: &str) -> Self {
        let skip = Skip {
            test: format!("the whole step {name}"),
            reason: reason.to_owned(),
        };
        Self {
            name: name.to_owned(),
            skips: vec![skip],
            ..Self::default()
        }
    }

    /// Creates the outcome of a step that ended before it had a result.
    pub(super) fn could_not_run(name: &str, error: &Error) -> Self {
        let failure = Failure {
            what: error.to_string(),
            repeat: format!("cargo xtask test --only {name}"),
        };
        Self {
            name: name.to_owned(),
            failures: vec![failure],
            ..Self::default()
        }
    }

    /// Prints one line, and what explains the failures.
    pub(super) fn print(&self) {
        println!("{}", self.line());
        for line in &self.log {
            println!("    {line}");
        }
    }

    fn line(&self) -> String {
        let verdict = match (self.passed, self.failures.len()) {
            (_, 1..) => "FAILED",
            (0, 0) => "skipped",
            _ => "ok",
        };
        let mut line = format!(
            "{:12} {verdict:7} {:7.1} s  {} passed",
            self.name, self.seconds, self.passed
        );
        let counts = [
            (self.failures.len(), "failed"),
            (self.skips.len(), "skipped"),
            (self.alone.len(), "only alone"),
        ];
        for (count, what) in counts {
            if count > 0 {
                line.push_str(&format!(", {count} {what}"));
            }
        }
        line
    }
}

/// What the whole run came to.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// The steps, as they ran.
    pub(super) steps: Vec<Outcome>,
}

impl Report {
    /// Prints the outcome of a step, and keeps it.
    pub(super) fn add(&mut self, outcome: Outcome) {
        outcome.print();
        self.steps.push(outcome);
    }

    fn passed(&self) -> usize {
        self.steps.iter().map(|step| step.passed).sum()
    }

    fn failed(&self) -> usize {
        self.steps.iter().map(|step| step.failures.len()).sum()
    }

    fn skipped(&self) -> usize {
        self.steps.iter().map(|step| step.skips.len()).sum()
    }

    /// Whether nothing failed, and something ran at all.
    pub(super) fn is_good(&self) -> bool {
        self.failed() == 0 && self.passed() > 0
    }

    /// Prints the lists and the closing line.
    pub(super) fn print(&self) {
        print!("{}", self.text());
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if self.skipped() > 0 {
            text.push_str("\nskipped:\n");
            for (step, skip) in self
                .steps
                .iter()
                .flat_map(|step| step.skips.iter().map(move |skip| (step, skip)))
            {
                text.push_str(&format!("  {}: {}: {}\n", step.name, skip.test, skip.reason));
            }
        }
        self.list(
            &mut text,
            "failed beside others, and passed when run once more alone (to be mended all the same)",
            |step| &step.alone,
        );
        self.list(&mut text, "failed", |step| &step.failures);
        if self.failed() == 0 && self.passed() == 0 {
            text.push_str("\nnothing ran, and that is a failure\n");
        }
        text.push_str(&format!(
            "\n{} passed, {} failed, {} skipped\n",
            self.passed(),
            self.failed(),
            self.skipped()
        ));
        text
    }

    /// Writes what failed in one way in any step, and the commands to see it again; nothing where nothing
    /// did.
    fn list(&self, text: &mut String, head: &str, which: fn(&Outcome) -> &Vec<Failure>) {
        if self.steps.iter().all(|step| which(step).is_empty()) {
            return;
        }
        text.push_str(&format!("\n{head}:\n"));
        for step in &self.steps {
            for Failure { what, repeat } in which(step) {
                text.push_str(&format!("  {}: {what}\n      {repeat}\n", step.name));
            }
        }
    }

    /// Returns the report as JSON, for programs.
    pub(super) fn to_json(&self) -> String {
        let value = serde_json::json!({
            "passed": self.passed(),
            "failed": self.failed(),
            "skipped": self.skipped(),
            "good": self.is_good(),
            "steps": self.steps,
        });
        format!("{value:#}\n")
    }
}

/// Returns the lines of a log that explain a failure: the output of failing tests, and the end; not what
/// passed, and not cargo's progress.
pub(super) fn telling_lines(log: &str) -> Vec<String> {
    words_of_failed(log).into_iter().chain(telling_end(log)).collect()
}

/// Returns what libtest shows of each test that failed: the beginning and the end of it.
fn words_of_failed(log: &str) -> Vec<String> {
    let mut shown = Vec::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        if !(line.starts_with("---- ") && line.ends_with(" stdout ----")) {
            continue;
        }
        let mut words = vec![line];
        while let Some(next) = lines.next_if(|next| !next.starts_with("---- ") && *next != "failures:") {
            words.push(next);
        }
        let hidden = words.len().saturating_sub(WORDS);
        let (first, rest) = words.split_at(words.len().min(WORDS / 2));
        let note = (hidden > 0).then(|| format!("({hidden} lines between)"));
        shown.extend(first.iter().map(|word| (*word).to_owned()));
        shown.extend(note);
        shown.extend(rest[hidden..].iter().map(|word| (*word).to_owned()));
    }
    shown
}

fn telling_end(log: &str) -> Vec<String> {
    const DULL: &[&str] = &[
        "Compiling ",
        "Checking ",
        "Fresh ",
        "Downloaded ",
        "Downloading ",
        "Updating ",
        "Blocking ",
        "Documenting ",
    ];
    let dull = |line: &&str| {
        let passed =
            line.starts_with("test ") && (line.ends_with(" ... ok") || line.contains(" ... ignored"));
        passed || line.trim().is_empty() || DULL.iter().any(|start| line.trim_start().starts_with(start))
    };
    let lines: Vec<&str> = log.lines().filter(|line| !dull(line)).collect();
    let hidden = lines.len().saturating_sub(SHOWN);
    let note = (hidden > 0).then(|| format!("({hidden} lines before these are in the log in target/xtask)"));
    note.into_iter()
        .chain(lines[hidden..].iter().map(|line| (*line).to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, passed: usize, failed: &[&str], skipped: &[&str]) -> Outcome {
        Outcome {
            name: name.to_owned(),
            seconds: 1.25,
            passed,
            failures: failed
                .iter()
                .map(|what| Failure {
                    what: (*what).to_owned(),
                    repeat: format!("cargo test {what}"),
                })
                .collect(),
            skips: skipped
                .iter()
                .map(|test| Skip {
                    test: (*test).to_owned(),
                    reason: "no NIC".to_owned(),
                })
                .collect(),
            ..Outcome::default()
        }
    }

    #[test]
    fn what_passed_only_alone_is_printed_and_is_no_failure() {
        let mut step = outcome("test", 7, &[], &[]);
        step.alone = outcome("", 0, &["a"], &[]).failures;
        assert!(step.line().ends_with("7 passed, 1 only alone"), "{}", step.line());
        let report = Report { steps: vec![step] };
        assert!(report.is_good());
        assert!(report.text().contains("once more alone"), "{}", report.text());
        assert!(
            report.text().contains("  test: a\n      cargo test a\n"),
            "{}",
            report.text()
        );
        assert!(report.to_json().contains("alone"));
    }

    #[test]
    fn the_counts_close_the_text_alone_on_their_line_and_lists_come_before() {
        let report = Report {
            steps: vec![outcome("test", 7, &["a"], &["b"]), outcome("loom", 2, &[], &[])],
        };
        let text = report.text();
        assert_eq!(text.lines().last(), Some("9 passed, 1 failed, 1 skipped"));
        assert_eq!(text.lines().filter(|line| line.contains(" passed, ")).count(), 1);
        let skip = text.find("  test: b: no NIC\n").unwrap();
        let failure = text.find("  test: a\n      cargo test a\n").unwrap();
        assert!(skip < failure, "{text}");
        assert!(!report.is_good());
    }

    #[test]
    fn a_run_is_good_when_something_passed_and_nothing_failed() {
        assert!(
            Report {
                steps: vec![outcome("test", 1, &[], &["b"])]
            }
            .is_good()
        );
        let nothing = Report {
            steps: vec![outcome("test", 0, &[], &["b"])],
        };
        assert!(!nothing.is_good());
        assert!(nothing.text().contains("nothing ran"), "{}", nothing.text());
        assert!(!Report::default().is_good());
    }

    #[test]
    fn each_step_has_one_line_with_its_time_and_verdict() {
        assert_eq!(
            outcome("fmt", 1, &[], &[]).line(),
            "fmt          ok          1.2 s  1 passed"
        );
        assert_eq!(
            outcome("test", 1, &["x"], &["y"]).line(),
            "test         FAILED      1.2 s  1 passed, 1 failed, 1 skipped"
        );
        assert!(
            Outcome::left_out("loom", "left out by --fast")
                .line()
                .starts_with("loom         skipped")
        );
    }

    #[test]
    fn the_json_holds_counts_reasons_and_commands() {
        let report = Report {
            steps: vec![outcome("test", 7, &["a"], &["b"])],
        };
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(
            (
                json["passed"].as_u64(),
                json["failed"].as_u64(),
                json["skipped"].as_u64()
            ),
            (Some(7), Some(1), Some(1))
        );
        assert_eq!(json["steps"][0]["failures"][0]["repeat"], "cargo test a");
        assert_eq!(json["steps"][0]["skips"][0]["reason"], "no NIC");
    }

    #[test]
    fn of_a_failed_log_the_telling_end_is_shown() {
        let log = "   Compiling x v1\ntest a ... ok\ntest b ... FAILED\n\nerror: c\n";
        assert_eq!(telling_lines(log), ["test b ... FAILED", "error: c"]);
        let long: String = (0..SHOWN + 5).map(|line| format!("line {line}\n")).collect();
        let shown = telling_lines(&long);
        assert_eq!(shown.len(), SHOWN + 1);
        assert!(shown[0].starts_with("(5 lines"), "{}", shown[0]);
    }

    #[test]
    fn the_output_of_a_failed_test_comes_first_however_much_follows() {
        let said: String = (0..WORDS).map(|line| format!("said {line}\n")).collect();
        let after: String = (0..SHOWN).map(|line| format!("line {line}\n")).collect();
        let log = format!("failures:\n\n---- a::b stdout ----\n{said}\nfailures:\n    a::b\n{after}");
        let shown = telling_lines(&log);
        assert_eq!(shown[..2], ["---- a::b stdout ----", "said 0"]);
        assert_eq!(shown[WORDS / 2], "(2 lines between)");
        assert_eq!(shown[WORDS - 1], format!("said {}", WORDS - 1));
        assert!(shown.last().unwrap().contains("line 299"), "{shown:?}");
    }
}
