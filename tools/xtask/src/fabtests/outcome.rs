//! What the script prints with `-vvv`: a list of tests with their output.

use serde::Serialize;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Passed,
    Failed,
    /// The provider does not offer what it needs: `fi_getinfo` had no data for the server, which did nothing
    /// else. The script counts it as failed, since its clients waited for it and ended in another way.
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

/// Whether a test that failed was only refused, which its own output has to show: its server did nothing but
/// call `fi_getinfo`, and each client reports no more than that its server has gone. A server names no peer,
/// so what it is refused is no address; a client's own refusal may be one.
fn is_refused(test: &Test, sides: &[Vec<String>]) -> bool {
    let Some((server, clients)) = sides.split_first() else {
        return false;
    };
    if test.is_negative() || clients.is_empty() || !is_refusal(server) {
        return false;
    }
    if test.name.starts_with(CRASHES) {
        return clients.iter().all(|client| is_crash_when_refused(client));
    }
    clients.iter().all(|client| is_left(client)) && explains_the_status(sides)
}

/// This client reads an answer of `fi_getinfo` that it has not got (`ft_init_fabric_cm` of libfabric's
/// `common/shared.c`), over every provider without endpoints of type MSG.
const CRASHES: &str = "fi_flood -e msg";

/// Whether a process was refused, and then ended with a segmentation fault, as the shell reports it.
fn is_crash_when_refused(lines: &[String]) -> bool {
    let (crash, others): (Vec<&String>, Vec<&String>) =
        lines.iter().partition(|line| line.contains("Segmentation fault"));
    !crash.is_empty()
        && others.iter().any(|line| is_no_data(line))
        && others.iter().all(|line| is_no_data(line) || is_consequence(line))
}

/// Whether what was printed shows why the script counts the test as failed. Where all sides are refused and
/// end by that, it counts the test as not run; so either a process has found another one gone, or all are of
/// the harness, which ends with another status.
fn explains_the_status(sides: &[Vec<String>]) -> bool {
    let has_gone = |side: &Vec<String>| side.iter().any(|line| line.ends_with(GONE));
    let is_harness = |side: &Vec<String>| side.iter().any(|line| line.ends_with(HARNESS));
    sides.iter().any(has_gone) || sides.iter().all(is_harness)
}

/// The end of a line of a process whose peer has ended.
const GONE: &str = "ret=-107 (Transport endpoint is not connected)";

/// The end of the last line of a process of `fi_multinode_coll`, whose exit status is the negative error.
const HARNESS: &str = ": Tests failed";

/// Whether a process did nothing but call `fi_getinfo`, which answered FI_ENODATA: any other line is the
/// report of something that it did.
fn is_refusal(lines: &[String]) -> bool {
    lines.iter().any(|line| is_no_data(line))
        && lines.iter().all(|line| is_no_data(line) || is_consequence(line))
}

/// Whether a process found its server gone, or was refused as well.
fn is_left(lines: &[String]) -> bool {
    let is_allowed = |line: &String| is_no_data(line) || line.ends_with(GONE) || is_consequence(line);
    lines.iter().any(|line| is_no_data(line) || line.ends_with(GONE)) && lines.iter().all(is_allowed)
}

fn is_no_data(line: &str) -> bool {
    // `-k`: `fi_getinfo` answers without the mode, and the test ends by FI_ENODATA.
    line.starts_with("fi_getinfo(): ") && line.ends_with("ret=-61 (No data available)")
        || line.ends_with(": Provider disabled requested prefix mode.")
}

fn is_consequence(line: &str) -> bool {
    let ends = [": FAIL", "error: No data available", HARNESS];
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

    const NO_DATA: &str = "fi_getinfo(): common/shared.c:1101, ret=-61 (No data available)";
    const LEFT: &str = "ft_sock_recv(): common/shared.c:4365, ret=-107 (Transport endpoint is not connected)";
    const FAULT: &str = "Segmentation fault";

    /// A test that failed, with what its server and each of its clients printed.
    fn failed(test: &str, server: &[&str], clients: &[&[&str]]) -> Test {
        let of = |lines: &[&str]| -> String { lines.iter().map(|line| format!("    {line}\n")).collect() };
        let mut text = format!(
            "- name:   {test} -p \"doorbell\"\n  result: Fail\n  time:   2\n  server_cmd: fi_x\n  server_stdout: |\n{}",
            of(server),
        );
        for client in clients {
            text += "  client_cmd: fi_x 127.0.0.1\n  client_stdout: |\n";
            text += &of(client);
        }
        read(&text).remove(0)
    }

    #[test]
    fn a_test_whose_server_only_fi_getinfo_refused_is_told_from_a_failure() {
        let refused = failed(
            "fi_av_xfer -e dgram",
            &[NO_DATA, NO_DATA, "AV address removal: FAIL"],
            &[&[LEFT]],
        );
        assert_eq!(refused.result, Verdict::Refused);
        assert_eq!(refused.last_lines.len(), 4);
        for test in ["fi_rdm", "fi_cq_data -e msg", "fi_dgram"] {
            let of = |server: &[&str], client: &[&str]| failed(test, server, &[client]).result;
            assert_eq!(of(&[NO_DATA], &[LEFT]), Verdict::Refused, "{test}");
            let prefix = "[error] fabtests:common/shared.c:1106: Provider disabled requested prefix mode.";
            assert_eq!(of(&[prefix], &[LEFT]), Verdict::Refused, "{test}");
            // Another process may have the server's rail.
            assert_eq!(of(&[NO_DATA], &[]), Verdict::Failed, "{test}");
            // The refusal is not all.
            assert_eq!(of(&[NO_DATA], &[LEFT, FAULT]), Verdict::Failed, "{test}");
            assert_eq!(of(&[NO_DATA], &[FAULT]), Verdict::Failed, "{test}");
            assert_eq!(of(&[NO_DATA], &[NO_DATA, FAULT]), Verdict::Failed, "{test}");
            assert_eq!(of(&[NO_DATA, FAULT], &[LEFT]), Verdict::Failed, "{test}");
            // A client names the server, so that its refusal may be one of an address.
            assert_eq!(of(&[LEFT], &[NO_DATA]), Verdict::Failed, "{test}");
            // A server that did something else, or nothing.
            let passed = "AV re-insertion address: PASS";
            assert_eq!(of(&[NO_DATA, passed], &[LEFT]), Verdict::Failed, "{test}");
            assert_eq!(of(&[NO_DATA, LEFT], &[LEFT]), Verdict::Failed, "{test}");
            assert_eq!(of(&[], &[]), Verdict::Failed, "{test}");
        }
    }

    #[test]
    fn a_server_that_ended_silently_has_failed() {
        for test in ["fi_rdm", "fi_cq_data -e msg", "fi_cm_data"] {
            let of = |server: &[&str]| failed(test, server, &[&[NO_DATA]]).result;
            assert_eq!(of(&[]), Verdict::Failed, "{test}");
            assert_eq!(of(&["bind: Address already in use"]), Verdict::Failed, "{test}");
        }
    }

    #[test]
    fn where_all_are_refused_the_script_counts_a_failure_for_another_reason() {
        let of = |test: &str, server: &[&str], clients: &[&[&str]]| failed(test, server, clients).result;
        for test in ["fi_rdm", "fi_cq_data -e msg"] {
            assert_eq!(of(test, &[NO_DATA], &[&[NO_DATA]]), Verdict::Failed, "{test}");
        }
        let harness = "[error] fabtests:harness.c:487: Tests failed";
        let both = [NO_DATA, harness];
        let coll = "fi_multinode_coll -n 3";
        assert_eq!(of(coll, &both, &[&both, &both]), Verdict::Refused);
        assert_eq!(of(coll, &both, &[&both, &[NO_DATA]]), Verdict::Failed);
        assert_eq!(of(coll, &both, &[&both, &[FAULT]]), Verdict::Failed);
        assert_eq!(of(coll, &both, &[&[harness], &[harness]]), Verdict::Failed);
        // One that ended silently beside one that found the server gone.
        assert_eq!(of(coll, &[NO_DATA], &[&[LEFT], &[]]), Verdict::Failed);
    }

    #[test]
    fn tests_of_one_process_and_those_that_have_to_fail_are_never_refused() {
        assert_eq!(failed("fi_av_test", &[NO_DATA], &[]).result, Verdict::Failed);
        assert_eq!(
            failed("fi_av_test -e dgram", &[NO_DATA], &[]).result,
            Verdict::Failed
        );
        let negative = "fi_rdm g00n13s";
        assert_eq!(failed(negative, &[NO_DATA], &[]).result, Verdict::Failed);
        assert_eq!(failed(negative, &[NO_DATA], &[&[LEFT]]).result, Verdict::Failed);
    }

    #[test]
    fn only_the_client_that_is_known_for_it_may_crash_when_it_is_refused() {
        let of = |test: &str, client: &[&str]| failed(test, &[NO_DATA], &[client]).result;
        let flood = "fi_flood -e msg -v -T 1";
        let shell = "/x/runfabtests.sh: line 549:   997 Segmentation fault      timeout 120 /x/fi_flood";
        assert_eq!(of(flood, &[NO_DATA, FAULT]), Verdict::Refused);
        assert_eq!(of(flood, &[NO_DATA, shell]), Verdict::Refused);
        assert_eq!(of(flood, &[FAULT]), Verdict::Failed);
        assert_eq!(of(flood, &[NO_DATA]), Verdict::Failed);
        assert_eq!(of("fi_flood -e rdm -v", &[NO_DATA, FAULT]), Verdict::Failed);
        assert_eq!(
            failed(flood, &[NO_DATA, FAULT], &[&[NO_DATA, FAULT]]).result,
            Verdict::Failed
        );
    }

    #[test]
    fn a_test_that_printed_no_result_has_failed() {
        let tests = read("- name:   fi_ubertest\nserver finished\n");
        assert_eq!(tests[0].result, Verdict::Failed);
    }
}
