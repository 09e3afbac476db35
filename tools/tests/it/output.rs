//! Output of ranks that ends no line: progress that is to be overwritten, and prompts.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A job that is ended with its test.
struct TerminalJob(Child);

impl Drop for TerminalJob {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl TerminalJob {
    fn start(more: &[&str], script: &str) -> Self {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("doorbell"));
        command.args(["run", "-n", "1"]).args(more);
        command.args(["--", "sh", "-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Reads until `text` has come, while the rank goes on.
    fn shows(&mut self, text: &str) {
        let out = self.0.stdout.as_mut().unwrap();
        let (mut shown, mut piece) = (String::new(), [0; 256]);
        let until = Instant::now() + Duration::from_secs(60);
        while shown != text {
            let count = out.read(&mut piece).unwrap();
            shown.push_str(&String::from_utf8_lossy(&piece[..count]));
            assert!(
                count > 0 && text.starts_with(&shown) && Instant::now() < until,
                "{shown:?}, not {text:?}"
            );
        }
        assert!(self.0.try_wait().unwrap().is_none(), "only at its end");
    }
}

const PLACES: [&[&str]; 2] = [&[], &["--hosts", "localhost"]];

#[test]
fn a_carriage_return_ends_a_line() {
    for place in PLACES {
        let mut job = TerminalJob::start(
            place,
            "printf '50 %%\\r'; read go; printf '100 %%\\r'; read go; echo done",
        );
        job.shows("[0] 50 %\r");
        let mut input = job.0.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        job.shows("[0] 100 %\r");
        input.write_all(b"\n").unwrap();
        let mut rest = String::new();
        job.0.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(
            (rest.as_str(), job.0.wait().unwrap().code()),
            ("[0] done\n", Some(0))
        );
    }
}

#[test]
fn a_prompt_is_shown_after_a_pause_and_its_line_goes_on() {
    for place in PLACES {
        let mut job = TerminalJob::start(place, "printf 'name? '; read name; echo \"hello $name\"");
        job.shows("[0] name? ");
        job.0.stdin.take().unwrap().write_all(b"you\n").unwrap();
        let mut rest = String::new();
        job.0.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(
            (rest.as_str(), job.0.wait().unwrap().code()),
            ("hello you\n", Some(0))
        );
    }
}
