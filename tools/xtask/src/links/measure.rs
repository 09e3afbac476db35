//! One repetition: every measurement in turn, so that disturbances of the machine affect all of them alike.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::lab::{Dropped, Host, INTERFACE, Lab};
use super::programs::{Programs, Running};
use crate::error::Error;

/// Percentages of loss, each way; the first is the run to compare with.
pub(super) const LOSSES: [u32; 3] = [0, 1, 5];
/// Beyond its time, a measurement may take this much for everything else: a connection that loses its first
/// frames, a machine that others use.
const SLACK: Duration = Duration::from_secs(60);
/// The ports of the raw ping-pong.
const RAW_PORT: u16 = 7118;
/// The core of each side.
const CORES: [&str; 2] = ["0", "1"];

/// What was measured without loss beside the rail.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Bases {
    /// Half round trips of raw UDP in nanoseconds, 8 and 64 bytes: before and after the rail's.
    pub(super) raw_before_ns: Option<[f64; 2]>,
    pub(super) raw_after_ns: Option<[f64; 2]>,
    /// TCP in one stream, bytes per second.
    pub(super) tcp_bytes_per_second: Option<f64>,
    /// Messages of 64 bytes per second.
    pub(super) messages_per_second: Option<f64>,
}

/// The rail under one rate of loss.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Under {
    pub(super) loss_percent: u32,
    /// Half round trips in nanoseconds, 8 and 64 bytes: the mean over all exchanges, the median of the
    /// rounds' means.
    pub(super) mean_ns: Option<[f64; 2]>,
    pub(super) typical_ns: Option<[f64; 2]>,
    /// Percentiles of 64 bytes: 99, 99.9.
    pub(super) tail_ns: [Option<f64>; 2],
    /// Messages of 1 MiB in one direction.
    pub(super) stream_bytes_per_second: Option<f64>,
    /// Segments sent for the first time and again, by the side that sends them.
    pub(super) segments: u64,
    pub(super) resends: u64,
    /// Number of segments that came a second time, as when the receiver stalls.
    pub(super) vain: u64,
    /// What of them was dropped before it arrived.
    pub(super) dropped_buffers: u64,
    pub(super) dropped_bytes: u64,
    /// Everything that this side's rail counted during the stream.
    pub(super) counts: Value,
}

/// Everything of one repetition.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Repetition {
    pub(super) bases: Bases,
    pub(super) under: Vec<Under>,
    /// What failed, as it was reported.
    pub(super) failures: Vec<String>,
}

/// The place of the measurements, and their settings.
pub(super) struct Bench<'a> {
    pub(super) lab: &'a Lab,
    pub(super) programs: &'a mut Programs,
    pub(super) doorbell: PathBuf,
    pub(super) key: PathBuf,
    pub(super) seconds: f64,
}

impl Bench<'_> {
    /// Starts the side that serves, which stays.
    pub(super) fn serve(&mut self) -> Result<Running, Error> {
        let mut command = self.lab.at(Host::B, &self.doorbell);
        command.args(["pingpong", "--serve", "--bind", Host::B.address()]);
        command.args(["--cores", CORES[1]]);
        self.rail(&mut command);
        let mut server = self.programs.start(command)?;
        self.programs.wait_for(&mut server, "serving on", SLACK)?;
        Ok(server)
    }

    fn rail(&self, command: &mut Command) {
        command.args(["--rail", &format!("udp:{INTERFACE}")]);
        command.arg("--key-file").arg(&self.key);
    }

    /// Makes one repetition. Failures are recorded in it; an error ends the whole run.
    pub(super) fn repeat(&mut self) -> Result<Repetition, Error> {
        let mut done = Repetition::default();
        for percent in LOSSES {
            self.lab.lose(10 * percent)?;
            if percent == 0 {
                done.bases.raw_before_ns = self.raw(&mut done.failures)?;
            }
            let under = self.under(percent, &mut done.failures)?;
            done.under.push(under);
            if percent == 0 {
                done.bases.raw_after_ns = self.raw(&mut done.failures)?;
                done.bases.tcp_bytes_per_second = self.tcp(&mut done.failures)?;
                let rate = self.measure("rate", "64", &mut done.failures)?;
                done.bases.messages_per_second = number(&rate, "/results/0/messages_per_second");
            }
        }
        self.lab.lose(0)?;
        Ok(done)
    }

    fn under(&mut self, percent: u32, failures: &mut Vec<String>) -> Result<Under, Error> {
        let latency = self.measure("pingpong", "8,64", failures)?;
        let before = self.lab.dropped(Host::B)?;
        let stream = self.measure("stream", "1Mi", failures)?;
        let dropped = self.lab.dropped(Host::B)?;
        let both = |path: &str| {
            let one = |row| number(&latency, &format!("/results/{row}/{path}"));
            Some([one(0)?, one(1)?])
        };
        let count = |name| number(&stream, &format!("/rail_counts/udp:{INTERFACE}.{name}")).unwrap_or(0.0);
        let dropped = Dropped {
            buffers: dropped.buffers - before.buffers,
            bytes: dropped.bytes - before.bytes,
        };
        Ok(Under {
            loss_percent: percent,
            mean_ns: both("half_rtt_ns/mean"),
            typical_ns: both("rounds/nanos/p50").map(|both| both.map(|whole| whole / 2.0)),
            tail_ns: ["p99", "p999"].map(|at| number(&latency, &format!("/results/1/half_rtt_ns/{at}"))),
            stream_bytes_per_second: number(&stream, "/results/0/bytes_per_second"),
            segments: count("segments_sent") as u64,
            resends: count("resends") as u64,
            vain: count("resends_vain") as u64,
            dropped_buffers: dropped.buffers,
            dropped_bytes: dropped.bytes,
            counts: stream["rail_counts"].clone(),
        })
    }

    /// Returns the report of one measurement of the rail; `Null`, and the failure recorded, when there is
    /// none.
    fn measure(&mut self, kind: &str, sizes: &str, failures: &mut Vec<String>) -> Result<Value, Error> {
        let mut command = self.lab.at(Host::A, &self.doorbell);
        command.args([kind, "--connect", Host::B.address(), "--cores", CORES[0]]);
        command.args([
            "--sizes",
            sizes,
            "--seconds",
            &self.seconds.to_string(),
            "--json",
            "-",
        ]);
        self.rail(&mut command);
        self.report(command, failures)
    }

    fn raw(&mut self, failures: &mut Vec<String>) -> Result<Option<[f64; 2]>, Error> {
        let raw = |bench: &Self, own: Host, other: Host, core: usize| {
            let mut command = bench.lab.at(own, bench.doorbell.with_file_name("doorbell-lab"));
            let [from, to] = [own, other].map(|host| format!("{}:{RAW_PORT}", host.address()));
            command.args(["raw-udp", "--from", &from, "--to", &to, "--core", CORES[core]]);
            command
        };
        let mut command = raw(self, Host::B, Host::A, 1);
        command.arg("--answer");
        let mut answering = self.programs.start(command)?;
        self.programs.wait_for(&mut answering, "answering", SLACK)?;
        let mut command = raw(self, Host::A, Host::B, 0);
        command.args([
            "--sizes",
            "8,64",
            "--seconds",
            &(self.seconds / 2.0).to_string(),
            "--json",
            "-",
        ]);
        let report = self.report(command, failures)?;
        let one = |row| number(&report, &format!("/results/{row}/half_rtt_ns/p50"));
        Ok(one(0).zip(one(1)).map(|(eight, sixty_four)| [eight, sixty_four]))
    }

    /// Measures one stream of TCP, in bytes per second.
    fn tcp(&mut self, failures: &mut Vec<String>) -> Result<Option<f64>, Error> {
        let mut command = self.lab.at(Host::B, "iperf3");
        command.args([
            "-s",
            "-1",
            "--forceflush",
            "-B",
            Host::B.address(),
            "-A",
            CORES[1],
        ]);
        let mut server = match self.programs.start(command) {
            Ok(server) => server,
            Err(Error::Start { program, source }) => {
                failures.push(format!("{program}: {source}"));
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if let Err(error) = self.programs.wait_for(&mut server, "listening", SLACK) {
            return match error {
                Error::Lab(text) => {
                    failures.push(format!("package iperf3: {text}"));
                    Ok(None)
                }
                error => Err(error),
            };
        }
        // Its time is in whole seconds.
        let seconds = self.seconds.ceil().max(1.0).to_string();
        let mut command = self.lab.at(Host::A, "iperf3");
        command.args([
            "-c",
            Host::B.address(),
            "-l",
            "1M",
            "-t",
            &seconds,
            "-A",
            CORES[0],
            "-J",
        ]);
        let report = self.report(command, failures)?;
        Ok(number(&report, "/end/sum_received/bits_per_second").map(|bits| bits / 8.0))
    }

    fn report(&mut self, command: Command, failures: &mut Vec<String>) -> Result<Value, Error> {
        let limit = SLACK + Duration::from_secs_f64(4.0 * self.seconds.max(1.0));
        let said = self.programs.run(command, limit)?;
        let parsed = said.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
        Ok(parsed.unwrap_or_else(|failure| {
            failures.push(failure);
            Value::Null
        }))
    }
}

/// Makes a key that both sides have.
pub(crate) fn make_key(programs: &mut Programs, doorbell: &Path) -> Result<PathBuf, Error> {
    let key = programs.folder.join("key");
    let mut command = Command::new(doorbell);
    command.arg("key").arg(&key);
    programs.run(command, SLACK)?.map_err(Error::Lab)?;
    Ok(key)
}

/// Returns a number in a report; the path is a JSON pointer.
fn number(report: &Value, path: &str) -> Option<f64> {
    report.pointer(path)?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_paths() {
        let report =
            serde_json::json!({"results": [{"a": {"b": 1.5}}], "rail_counts": {"udp:v0.resends": 7}});
        assert_eq!(number(&report, "/results/0/a/b"), Some(1.5));
        assert_eq!(number(&report, "/rail_counts/udp:v0.resends"), Some(7.0));
        assert_eq!(number(&report, "/results/1/a/b"), None);
        assert_eq!(number(&Value::Null, "/results"), None);
    }
}
