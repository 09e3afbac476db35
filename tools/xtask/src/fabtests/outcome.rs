//! What the script prints with `-vvv`: a list of tests with their output.

use serde::Serialize;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Passed,
    Failed,
    /// The provider does not offer what it needs: both sides ended with FI_ENODATA or FI_ENOSYS.
    NotRun,
    /// A line of the exclude file matches its name.
    Excluded,
}

/// A test of the script and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Test {
    /// The program with its arguments, without the provider's.
    pub(super) name: String,
    pub(super) result: Verdict,
    pub(super) seconds: u64,
    /// Parts of it that it skipped, since a call is not there: the script counts the test as passed.
    pub(super) skipped_parts: usize,
    /// The last lines that it printed, of one that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) last_lines: Vec<String>,
}

/// How many lines of each side are kept.
const LINES: usize = 6;

impl Test {
    /// Whether it is a test of endpoints of type RDM, or of none: what our provider has.
    pub(super) fn is_rdm(&self) -> bool {
        let words: Vec<&str> = self.name.split_whitespace().collect();
        let program = words.first().copied().unwrap_or_default();
        let of_type = words.windows(2).find(|pair| pair[0] == "-e").map(|pair| pair[1]);
        let is_other = ["fi_msg", "fi_dgram", "fi_cm_data"]
            .iter()
            .any(|begin| program.starts_with(begin));
        match of_type {
            Some(of_type) => of_type == "rdm",
            None => !is_other && !self.is_negative(),
        }
    }

    /// Whether it has to fail to pass: a host that does not exist.
    fn is_negative(&self) -> bool {
        self.name.contains("g00n13s")
    }
}

/// Reads what the script printed.
pub(super) fn read(text: &str) -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    let mut side: Vec<String> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("- name:") {
            keep(&mut tests, &mut side);
            tests.push(Test {
                name: without_provider(name.trim()),
                result: Verdict::Failed,
                seconds: 0,
                skipped_parts: 0,
                last_lines: Vec::new(),
            });
        } else if let Some(test) = tests.last_mut() {
            match field(line) {
                Some(("result", value)) => test.result = result(value),
                Some(("time", value)) => test.seconds = value.parse().unwrap_or(0),
                Some(_) => keep(&mut tests, &mut side),
                None if line.starts_with("    ") => {
                    test.skipped_parts += line.matches("skipped because").count();
                    side.push(line.trim().to_owned());
                }
                None => {}
            }
        }
    }
    keep(&mut tests, &mut side);
    tests
}

/// Adds the last lines of one side of a test that failed.
fn keep(tests: &mut [Test], side: &mut Vec<String>) {
    side.retain(|line| !line.is_empty());
    let first = side.len().saturating_sub(LINES);
    if let Some(test) = tests.last_mut()
        && test.result == Verdict::Failed
    {
        test.last_lines.extend(side.drain(first..));
    }
    side.clear();
}

/// Returns a field of a test and its value: `  result: Pass`.
fn field(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.strip_prefix("  ")?.split_once(':')?;
    const FIELDS: [&str; 5] = ["timestamp", "result", "time", "server_cmd", "client_cmd"];
    let is_field = FIELDS.contains(&name) || name.contains("_stdout");
    is_field.then(|| (name, value.trim()))
}

fn result(word: &str) -> Verdict {
    match word.split_whitespace().next() {
        Some("Pass") => Verdict::Passed,
        Some("Notrun") => Verdict::NotRun,
        Some("Excluded") => Verdict::Excluded,
        _ => Verdict::Failed,
    }
}

/// Returns a test's name without `-p "PROVIDER"`.
fn without_provider(name: &str) -> String {
    name.split_once(" -p \"")
        .map_or(name, |(name, _)| name)
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
- name:   fi_getinfo_test -s 127.0.0.1 127.0.0.1 -p \"doorbell\"
  timestamp: 20261127-070000+0000
  result: Pass
  time:   1
- name:   fi_rdm g00n13s -p \"doorbell\"
  timestamp: 20261127-070001+0000
  result: Pass
  time:   0
  server_stdout: |
    Running cq_signal [Test fi_cq_signal]...skipped because: fi_cq_open = -38, Function not implemented
    Summary: all tests passed
- name:   fi_rdm_pingpong -I 5 -v -p \"doorbell\"
  timestamp: 20261127-070002+0000
  result: Fail
  time:   3
  server_cmd:  /x/fi_rdm_pingpong -I 5 -p \"doorbell\"  -s 127.0.0.1
  server_stdout: |
    fi_getinfo: something
  client_cmd:  /x/fi_rdm_pingpong -I 5 -p \"doorbell\"  -s 127.0.0.1 127.0.0.1
  client_stdout: |
    bytes   iters   total
    fi_cq_sread(): common/shared.c:2617, ret=-38 (Function not implemented)
- name:   fi_msg_bw -I 5 -p \"doorbell\"
  timestamp: 20261127-070003+0000
  result: Notrun
  time:   1
  server_stdout: |
    fi_getinfo(): common/shared.c:900, ret=-61 (No data available)
- name:   fi_av_test -e dgram -p \"doorbell\"
  timestamp: 20261127-070003+0000
  result: Excluded
  time:   0
# ------------------------------------------------------------------------------
# Total Pass                                                 2
";

    #[test]
    fn results_are_read_with_the_last_lines_of_what_failed() {
        let tests = read(PRINTED);
        let results: Vec<_> = tests.iter().map(|test| test.result).collect();
        use Verdict::*;
        assert_eq!(results, [Passed, Passed, Failed, NotRun, Excluded]);
        assert_eq!(tests[2].name, "fi_rdm_pingpong -I 5 -v");
        assert_eq!(tests[2].seconds, 3);
        assert_eq!((tests[0].skipped_parts, tests[1].skipped_parts), (0, 1));
        assert_eq!(tests[2].last_lines[0], "fi_getinfo: something");
        assert!(tests[2].last_lines[2].contains("ret=-38"), "{tests:?}");
        assert!(tests[3].last_lines.is_empty());
    }

    #[test]
    fn tests_of_other_endpoints_and_those_that_have_to_fail_are_no_rdm_tests() {
        let is_rdm: Vec<_> = read(PRINTED).iter().map(Test::is_rdm).collect();
        assert_eq!(is_rdm, [true, false, true, false, false]);
    }

    #[test]
    fn a_test_that_printed_no_result_has_failed() {
        let tests = read("- name:   fi_ubertest\nserver finished\n");
        assert_eq!(tests[0].result, Verdict::Failed);
    }
}
