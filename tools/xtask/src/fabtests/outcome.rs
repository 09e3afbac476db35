//! What the script prints with `-vvv`: a list of tests with their output.

use serde::Serialize;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Passed,
    Failed,
    /// The provider does not offer what it needs: `fi_getinfo` had no data for one side, which did nothing
    /// else. The script counts it as failed, since the other side waited for this one and ended in another
    /// way.
    Refused,
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
    /// The last lines that it printed, of one that failed or was refused.
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
    let mut printed = Printed::default();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("- name:") {
            printed.end(&mut tests);
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
                Some((name, _)) => printed.begin(name),
                None if line.starts_with("    ") => {
                    test.skipped_parts += line.matches("skipped because").count();
                    printed.add(line.trim());
                }
                None => {}
            }
        }
    }
    printed.end(&mut tests);
    tests
}

/// What the processes of a test printed: its server, and its clients.
#[derive(Default)]
struct Printed {
    sides: Vec<Vec<String>>,
}

impl Printed {
    /// Begins what a process printed: the server is the first one.
    fn begin(&mut self, field: &str) {
        if field.contains("_stdout") {
            self.sides.push(Vec::new());
        }
    }

    fn add(&mut self, line: &str) {
        if let Some(side) = self.sides.last_mut()
            && !line.is_empty()
        {
            side.push(line.to_owned());
        }
    }

    /// Judges a test that failed, and adds the last lines of each side to it.
    fn end(&mut self, tests: &mut [Test]) {
        let sides = std::mem::take(&mut self.sides);
        let Some(test) = tests.last_mut().filter(|test| test.result == Verdict::Failed) else {
            return;
        };
        if is_refused(test, &sides) {
            test.result = Verdict::Refused;
        }
        for mut side in sides {
            let first = side.len().saturating_sub(LINES);
            test.last_lines.extend(side.drain(first..));
        }
    }
}

/// Whether a test that failed was only refused, which its own output has to show. A server names no peer, so
/// what `fi_getinfo` refuses it is no address; of a test of RDM endpoints its clients must have noticed that
/// it ended, since a rail that another process has is refused as well. A client may be refused an address:
/// it counts where the test is of endpoints of another type, and its server, which waits for it first
/// (`-E`), did nothing.
fn is_refused(test: &Test, sides: &[Vec<String>]) -> bool {
    let Some((server, clients)) = sides.split_first() else {
        return false;
    };
    if is_refusal(server) {
        return !test.is_rdm() || clients.iter().all(|client| is_left(client));
    }
    let did_nothing = server.iter().all(|line| line == "bind: Address already in use");
    !test.is_rdm() && did_nothing && clients.iter().any(|client| is_refusal(client))
}

/// Whether a process did nothing but call `fi_getinfo`, which answered FI_ENODATA: any other line is the
/// report of something that it did.
fn is_refusal(lines: &[String]) -> bool {
    lines.iter().any(|line| is_no_data(line))
        && lines.iter().all(|line| is_no_data(line) || is_consequence(line))
}

/// Whether a process found its server gone, or was refused as well.
fn is_left(lines: &[String]) -> bool {
    const GONE: &str = "ret=-107 (Transport endpoint is not connected)";
    let is_consequence = |line: &String| is_no_data(line) || line.ends_with(GONE) || is_consequence(line);
    !lines.is_empty() && lines.iter().all(is_consequence)
}

fn is_no_data(line: &str) -> bool {
    // `-k`: `fi_getinfo` answers without the mode, and the test ends by FI_ENODATA.
    line.starts_with("fi_getinfo(): ") && line.ends_with("ret=-61 (No data available)")
        || line.ends_with(": Provider disabled requested prefix mode.")
}

fn is_consequence(line: &str) -> bool {
    let ends = [": FAIL", "error: No data available", ": Tests failed"];
    ends.iter().any(|end| line.ends_with(end))
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

    /// A test that failed, with what its server and its client printed.
    fn failed(test: &str, server: &[&str], client: &[&str]) -> Test {
        let of = |lines: &[&str]| -> String { lines.iter().map(|line| format!("    {line}\n")).collect() };
        let text = format!(
            "- name:   {test} -p \"doorbell\"\n  result: Fail\n  time:   2\n  server_cmd: fi_x\n  server_stdout: |\n{}  \
             client_cmd: fi_x 127.0.0.1\n  client_stdout: |\n{}",
            of(server),
            of(client)
        );
        read(&text).remove(0)
    }

    #[test]
    fn a_test_whose_server_only_fi_getinfo_refused_is_told_from_a_failure() {
        const NO_DATA: &str = "fi_getinfo(): common/shared.c:1101, ret=-61 (No data available)";
        const GONE: &str =
            "ft_sock_recv(): common/shared.c:4365, ret=-107 (Transport endpoint is not connected)";
        let refused = failed(
            "fi_av_xfer -e dgram",
            &[NO_DATA, NO_DATA, "AV address removal: FAIL"],
            &[GONE],
        );
        assert_eq!(refused.result, Verdict::Refused);
        assert_eq!(refused.last_lines.len(), 4);
        let of = |server: &[&str], client: &[&str]| failed("fi_rdm", server, client).result;
        assert_eq!(of(&[NO_DATA], &[GONE]), Verdict::Refused);
        let harness = "[error] fabtests:harness.c:487: Tests failed";
        assert_eq!(of(&[NO_DATA, harness], &[NO_DATA, harness]), Verdict::Refused);
        let prefix = "[error] fabtests:common/shared.c:1106: Provider disabled requested prefix mode.";
        assert_eq!(of(&[prefix], &[GONE]), Verdict::Refused);
        // Another process may have the server's rail.
        assert_eq!(of(&[NO_DATA], &[]), Verdict::Failed);
        assert_eq!(of(&[NO_DATA], &[GONE, "Segmentation fault"]), Verdict::Failed);
        // A client names the server, so that its refusal may be one of an address.
        assert_eq!(of(&[GONE], &[NO_DATA]), Verdict::Failed);
        assert_eq!(of(&[], &[NO_DATA]), Verdict::Failed);
        // A server that did something else, or nothing.
        assert_eq!(
            of(&[NO_DATA, "AV re-insertion address: PASS"], &[GONE]),
            Verdict::Failed
        );
        assert_eq!(of(&[NO_DATA, GONE], &[GONE]), Verdict::Failed);
        assert_eq!(of(&[], &[]), Verdict::Failed);
        // Endpoints of another type than RDM, and a server that waits for its client first.
        let of = |server: &[&str], client: &[&str]| failed("fi_cq_data -e msg", server, client).result;
        assert_eq!(of(&[], &[NO_DATA, "error: No data available"]), Verdict::Refused);
        assert_eq!(
            of(&["bind: Address already in use"], &[NO_DATA]),
            Verdict::Refused
        );
        assert_eq!(of(&[NO_DATA], &["Segmentation fault"]), Verdict::Refused);
        assert_eq!(of(&[GONE], &[NO_DATA]), Verdict::Failed);
    }

    #[test]
    fn a_test_that_printed_no_result_has_failed() {
        let tests = read("- name:   fi_ubertest\nserver finished\n");
        assert_eq!(tests[0].result, Verdict::Failed);
    }
}
