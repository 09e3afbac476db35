//! This program itself, run between two hosts: one process serves, one measures, and its report is read.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use doorbell_tools::process::{Ended, Ready, Runner, Stop};

use super::{Place, Setting, Side, without_settings};

/// The port of `--serve`.
const PORT: u16 = 7117;
/// The port of `raw-udp`, on both sides.
const RAW_PORT: u16 = 7118;
/// A key is made in a moment.
const KEY_PATIENCE: Duration = Duration::from_secs(20);

/// This program, and the two hosts.
pub(crate) struct SelfRun<'a> {
    pub(crate) runner: &'a Runner,
    pub(crate) place: &'a Place<'a>,
    pub(crate) program: &'a Path,
}

impl SelfRun<'_> {
    /// A measurement over a rail: `asked` are its words, such as `pingpong` and its options.
    pub(crate) fn measure(
        &self,
        name: &str,
        rail: &str,
        asked: &[String],
        limit: Duration,
    ) -> Result<Ended, Stop> {
        let key = self.key(name)?;
        let side = |side| {
            let mut command = self.command(side);
            match side {
                Side::One => command.args(asked).args(["--rail", rail, "--connect"]),
                // The sides do not negotiate the layer: both get the option.
                Side::Two => command
                    .args(["pingpong", "--rail", rail])
                    .args(layer(asked))
                    .args(["--serve", "--once", "--bind"]),
            };
            command
                .arg(Place::address(Setting::Network, Side::Two))
                .arg("--key-file")
                .arg(&key)
                .args(["--cores", &self.place.core(side).to_string()]);
            command
        };
        self.runner.pair(
            name,
            side(Side::Two),
            Ready::Listens(PORT),
            side(Side::One),
            limit,
        )
    }

    /// Returns what the sockets below a rail take by themselves, or the queues past the kernel (`xdp`).
    pub(crate) fn raw(&self, bytes: usize, seconds: f64, xdp: bool, limit: Duration) -> Result<Ended, Stop> {
        let side = |side: Side| {
            let other = Side::BOTH[1 - side as usize];
            let mut command = self.command(side);
            command.args(["raw-udp", "--from", &at(side), "--to", &at(other)]);
            command.args(["--core", &self.place.core(side).to_string()]);
            if xdp {
                command.arg("--xdp");
            }
            match side {
                Side::One => command.args(["--sizes", &bytes.to_string()]).args([
                    "--seconds",
                    &seconds.to_string(),
                    "--json",
                    "-",
                ]),
                Side::Two => command.arg("--answer"),
            };
            command
        };
        self.runner.pair(
            "doorbell-lab raw-udp",
            side(Side::Two),
            Ready::Speaks,
            side(Side::One),
            limit,
        )
    }

    fn command(&self, side: Side) -> Command {
        self.place.command(Setting::Network, side, self.program)
    }

    /// Returns the key that both sides share; the first call makes it.
    fn key(&self, name: &str) -> Result<std::path::PathBuf, Stop> {
        let key = self.place.folder.path().join("key");
        if !key.exists() {
            let mut command = Command::new(self.program);
            without_settings(&mut command);
            command.arg("key").arg(&key);
            self.runner.run(name, command, KEY_PATIENCE)?.good(name)?;
        }
        Ok(key)
    }
}

/// The address and port of a side's raw ping-pong.
fn at(side: Side) -> String {
    format!("{}:{RAW_PORT}", side.address())
}

/// The option that names the layer, with its value, if there is one.
fn layer(asked: &[String]) -> &[String] {
    let at = asked.iter().position(|word| word == "--layer");
    at.and_then(|at| asked.get(at..at + 2)).unwrap_or_default()
}
