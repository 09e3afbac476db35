//! `doorbell acm` as users run it: the program on one host and on several, beside rdma-core's own, and under
//! jobs.

mod commands;
mod files;
mod hosts;
mod load;
mod originals;
mod ranks;
mod starts;
mod units;
mod verify;
mod words;
mod zones;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::sentence;
use crate::hosts::{AMPLE, Running, at, finish, lab_at};

/// A service that runs until it is dropped.
pub(crate) struct Service {
    pub(crate) process: Running,
    /// The line that it printed when it was ready, as JSON.
    pub(crate) ready: Value,
    pub(crate) socket: String,
}

/// `doorbell acm serve` with all its files in `folder`.
pub(crate) fn serve(host: Option<&str>, folder: &Path, words: &[&str]) -> Command {
    let (socket, folder) = (socket_in(folder), folder.display().to_string());
    let own = ["acm", "serve", "--json", "--socket", &socket, "--config", &folder];
    at(host, &[&own, words].concat())
}

fn socket_in(folder: &Path) -> String {
    folder.join("acm.sock").display().to_string()
}

impl Service {
    pub(crate) fn start(host: Option<&str>, folder: &Path, words: &[&str]) -> Self {
        Self::of(serve(host, folder, words))
    }

    pub(crate) fn of(command: Command) -> Self {
        let mut process = Running::start(command);
        let ready = conforms("serve", &process.says("\"schema\":\"doorbell.acm-serve/1\""));
        let socket = ready["socket"].as_str().unwrap().to_owned();
        Self {
            process,
            ready,
            socket,
        }
    }

    /// One of its clients.
    pub(crate) fn client(&self, words: &[&str]) -> Command {
        client(&[words, &["--service", &self.socket]].concat())
    }

    /// The exit status of a client, and what it wrote to its outputs.
    pub(crate) fn asked(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let out = finish(self.client(words));
        let text = String::from_utf8(out.stdout).unwrap();
        (out.status.code(), text, sentence(&out.stderr))
    }

    /// Returns a client's JSON output, checked by its schema; the first of `words` is the command.
    pub(crate) fn told(&self, words: &[&str]) -> Value {
        let (_, text, said) = self.asked(&[words, &["--json"]].concat());
        assert_eq!(said, "", "{words:?}");
        conforms(words[0], &text)
    }

    /// The one path to `destination`, as JSON; null where the service finds none, in its own time.
    pub(crate) fn path(&self, destination: &str, more: &[&str]) -> Value {
        self.path_within("60", destination, more)
    }

    /// Whether there is no path to `destination` within a second and a half.
    pub(crate) fn has_no_path(&self, destination: &str, more: &[&str]) -> bool {
        self.path_within("1.5", destination, more).is_null()
    }

    fn path_within(&self, seconds: &str, destination: &str, more: &[&str]) -> Value {
        let words = [&["resolve", destination, "--timeout", seconds], more].concat();
        self.told(&words)["paths"][0]["path"].clone()
    }

    /// What it knows and does.
    pub(crate) fn state(&self) -> Value {
        let out = finish(at(
            None,
            &["acm", "watch", "--once", "--json", "--socket", &self.socket],
        ));
        assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
        conforms("watch", &String::from_utf8(out.stdout).unwrap())
    }

    /// Waits until what it shows is as it should be.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + AMPLE;
        loop {
            let state = self.state();
            if is_so(&state) {
                return state;
            }
            assert!(Instant::now() < end, "never: {what}; {state:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends it SIGTERM, and checks that it ends.
    pub(crate) fn ends(&mut self) {
        self.process.signal(Signal::TERM);
        assert_eq!(self.process.ends(AMPLE), Some(0));
    }
}

/// `doorbell acm` with these words; `perf` and `load` are commands of `doorbell-lab`.
pub(crate) fn client(words: &[&str]) -> Command {
    match words {
        ["perf", rest @ ..] => lab_at(None, &[&["acm-perf"], rest].concat()),
        ["load", rest @ ..] => lab_at(None, &[&["acm-load"], rest].concat()),
        _ => at(None, &[&["acm"], words].concat()),
    }
}

/// All addresses of a service's endpoints.
pub(crate) fn addresses(state: &Value) -> Vec<&str> {
    let each = state["endpoints"].as_array().unwrap().iter();
    let each = each.flat_map(|endpoint| endpoint["addresses"].as_array().unwrap());
    each.filter_map(Value::as_str).collect()
}

/// A report, if it is as its schema has it.
pub(crate) fn conforms(command: &str, text: &str) -> Value {
    let schema = match command {
        "serve" => include_str!("../../../bench/schema/acm-serve-1.schema.json"),
        "resolve" => include_str!("../../../bench/schema/acm-resolve-1.schema.json"),
        "perf" => include_str!("../../../bench/schema/acm-perf-1.schema.json"),
        "endpoints" => include_str!("../../../bench/schema/acm-endpoints-1.schema.json"),
        "watch" => include_str!("../../../bench/schema/acm-watch-1.schema.json"),
        "load" => include_str!("../../../bench/schema/acm-load-1.schema.json"),
        other => panic!("`{other}` has no schema"),
    };
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let report: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let faults: Vec<String> = schema
        .iter_errors(&report)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}\n{report:#}");
    report
}
