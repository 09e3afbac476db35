//! Whether a rule of the kernel's packet filter would drop what a peer sends to a rail, or what the rail
//! sends: the rule set of `nft` is interpreted as far as possible, and rules that cannot be interpreted are
//! reported, not guessed.
//!
//! Rules at a device (`ingress`) run before the rail's XDP program only for frames that the driver passes to
//! the kernel: an xdp rail in native mode bypasses them, and its own chain reports that.

mod rules;

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use self::rules::{name, of};
use super::system::System;
use crate::path::{beside_path, on_path};

/// What the filter does to frames for the rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// No rule drops them.
    Passes(String),
    /// This rule drops them; the command that lets them pass before it.
    Drops { rule: String, way: Way, fix: String },
    /// This rule may drop them; the same.
    MayDrop { rule: String, way: Way, fix: String },
    /// It could not be found out.
    Unknown { why: String, how: &'static str },
}

/// The direction of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From a peer to the rail: ingress, prerouting, input.
    In,
    /// From the rail to a peer: output, postrouting, egress.
    Out,
}

impl Way {
    /// Returns what goes that way, in words.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::In => "what peers send to this rail",
            Self::Out => "what this rail sends",
        }
    }
}

/// Frames of a rail, which come in and go out.
#[derive(Clone, Debug)]
pub(super) struct Frames<'a> {
    pub(super) interface: &'a str,
    pub(super) is_ipv4: bool,
    /// First and last port that may be the rail's.
    pub(super) ports: (u16, u16),
    /// The length of the longest frame, in bytes.
    pub(super) longest: usize,
}

const LIST: &str = "as root: `nft list ruleset`, and `iptables-save` where rules of iptables are";
/// The tool answers at once, or not at all.
const PATIENCE: Duration = Duration::from_secs(3);

/// Returns what the rules of this machine do to `frames`.
pub(super) fn judge(system: &System, frames: &Frames<'_>) -> Fate {
    let legacy = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"]
        .iter()
        .any(|file| system.text(file).is_some_and(|text| text.contains("filter")));
    let fate = match listed() {
        Ok(rules) => of(&rules, frames),
        Err(why) => Fate::Unknown { why, how: LIST },
    };
    match fate {
        Fate::Passes(_) if legacy => Fate::Unknown {
            why: "rules of the older iptables are loaded, which are not read here".to_owned(),
            how: "as root: `iptables-legacy-save`",
        },
        fate => fate,
    }
}

/// Returns the rule set, as far as the tool prints it.
fn listed() -> Result<Value, String> {
    let text = nft(&["-j", "-a", "list", "ruleset"])?;
    let mut rules: Value = serde_json::from_str(&text)
        .map_err(|_| "the output of `nft -j list ruleset` could not be parsed".to_owned())?;
    let chains = rules["nftables"].as_array_mut().into_iter().flatten();
    for chain in chains.filter_map(|object| object.get_mut("chain")) {
        // Before version 1.0.7 the tool omits the devices of a chain from its JSON.
        if (chain["hook"] == "ingress" || chain["hook"] == "egress") && chain.get("dev").is_none() {
            let [family, table, name] = name(chain, "name");
            chain["dev"] = devices(&nft(&["list", "chain", &family, &table, &name])?).into();
        }
    }
    Ok(rules)
}

/// The devices in a chain's words: `type filter hook ingress device "v0" priority 0;`, or
/// `devices = { v0, v1 }`.
fn devices(text: &str) -> Vec<String> {
    let line = text
        .lines()
        .find(|line| line.contains("hook ingress") || line.contains("hook egress"))
        .unwrap_or("");
    let after = line.split_once("device").map_or("", |(_, after)| after);
    let until = after.split_once(" priority").map_or(after, |(until, _)| until);
    let words = until.split(|c: char| c.is_whitespace() || ",{}=\"".contains(c));
    words
        .filter(|word| !word.is_empty() && *word != "s")
        .map(str::to_owned)
        .collect()
}

/// Returns the tool as it is called here: by its path where it is not on the PATH, as for users whose shell
/// leaves the folders of administration out.
pub(super) fn program() -> String {
    match (on_path("nft"), beside_path("nft")) {
        (None, Some(path)) => path.display().to_string(),
        _ => "nft".to_owned(),
    }
}

/// Returns the output of the tool for these arguments.
fn nft(words: &[&str]) -> Result<String, String> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            "there is no program `nft` on the PATH, in /usr/sbin or in /sbin (package nftables)".to_owned()
        }
        _ => format!("`nft` could not be run: {error}"),
    };
    let mut child = Command::new(program())
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let out = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        // Output that is not all text is no rule set.
        let _ = out.map(|out| out.take(1 << 24).read_to_string(&mut text));
        text
    });
    let until = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let text = reader.join().unwrap_or_default();
    match status {
        Some(status) if status.success() => Ok(text),
        Some(_) => Err("the rules may not be read by this user (that takes CAP_NET_ADMIN)".to_owned()),
        None => Err("`nft` did not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_a_chain_are_read_from_its_words() {
        let of = |words: &str| {
            devices(&format!(
                "table netdev t {{\n\tchain in {{\n\t\ttype filter hook ingress {words} priority filter; policy accept;\n"
            ))
        };
        assert_eq!(of("device \"v0\""), ["v0"]);
        assert_eq!(of("devices = { v0, s1 }"), ["v0", "s1"]);
        assert!(devices("").is_empty());
    }
}
