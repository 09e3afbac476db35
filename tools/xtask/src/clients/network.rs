//! The network between the ranks: rails of this host, or two rails of a network namespace of which one is cut
//! now and then.

use std::fmt;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A network by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// Rails of this host, as in `DOORBELL_RAILS`.
    Rails(String),
    /// Two udp rails, one of them cut and mended.
    TwoRails,
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rails(rails) => out.write_str(rails),
            Self::TwoRails => out.write_str("two-rails"),
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "two-rails" => Ok(Self::TwoRails),
            "shm" => Ok(Self::Rails(word.to_owned())),
            _ if word.starts_with("udp:") => Ok(Self::Rails(word.to_owned())),
            _ => Err("give shm, udp:INTERFACE or two-rails".to_owned()),
        }
    }
}

/// The place where ranks run; what was made for it is removed with it.
pub(crate) struct Place {
    rails: String,
    hosts: Option<Namespace>,
}

impl Network {
    /// Makes it; or why that cannot be.
    pub(crate) fn make(&self) -> Result<Place, String> {
        match self {
            Self::Rails(rails) => Ok(Place {
                rails: rails.clone(),
                hosts: None,
            }),
            Self::TwoRails => Ok(Place {
                rails: "udp:db0,udp:db1".to_owned(),
                hosts: Some(Namespace::new()?),
            }),
        }
    }
}

impl Place {
    /// Returns the value of `DOORBELL_RAILS` there.
    pub(crate) fn rails(&self) -> &str {
        &self.rails
    }

    /// Returns a command that runs its arguments there.
    pub(crate) fn command(&self) -> Command {
        match &self.hosts {
            None => Command::new("env"),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &namespace.name, "env"]);
                command
            }
        }
    }
}

/// A network namespace with two interfaces, and a thread that cuts the first one.
struct Namespace {
    name: String,
    ends: Arc<AtomicBool>,
    cutter: Option<JoinHandle<()>>,
}

/// The first rail loses everything for this long, and then nothing for as long.
const CUT: Duration = Duration::from_secs(1);

impl Namespace {
    fn new() -> Result<Self, String> {
        let mut namespace = Self {
            name: format!("doorbell-clients-{}", std::process::id()),
            ends: Arc::default(),
            cutter: None,
        };
        let name = namespace.name.as_str();
        let steps: [&[&str]; 10] = [
            &["ip", "netns", "add", name],
            &["ip", "-n", name, "link", "set", "lo", "up"],
            &[
                "ip", "-n", name, "link", "add", "db0", "type", "veth", "peer", "name", "dp0",
            ],
            &[
                "ip", "-n", name, "link", "add", "db1", "type", "veth", "peer", "name", "dp1",
            ],
            &["ip", "-n", name, "addr", "add", "10.78.0.1/24", "dev", "db0"],
            &["ip", "-n", name, "addr", "add", "10.78.1.1/24", "dev", "db1"],
            &["ip", "-n", name, "link", "set", "db0", "up"],
            &["ip", "-n", name, "link", "set", "dp0", "up"],
            &["ip", "-n", name, "link", "set", "db1", "up"],
            &["ip", "-n", name, "link", "set", "dp1", "up"],
        ];
        for step in steps {
            done(step)?;
        }
        nft(name, "add table inet cut")?;
        nft(
            name,
            "add chain inet cut in { type filter hook input priority 0; }",
        )?;
        let (name, ends) = (namespace.name.clone(), Arc::clone(&namespace.ends));
        namespace.cutter = Some(std::thread::spawn(move || {
            let mut is_cut = false;
            while !ends.load(Ordering::Relaxed) {
                std::thread::sleep(CUT);
                is_cut = !is_cut;
                let rule = if is_cut {
                    "add rule inet cut in ip daddr 10.78.0.1 drop"
                } else {
                    "flush chain inet cut in"
                };
                // A failure leaves the rail as it is; the namespace may be going away.
                let _ = nft(&name, rule);
            }
        }));
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(cutter) = self.cutter.take() {
            // A panic there has been shown.
            let _ = cutter.join();
        }
        // If it was not made, there is nothing to remove.
        let _ = done(&["ip", "netns", "del", &self.name]);
    }
}

fn nft(namespace: &str, rule: &str) -> Result<(), String> {
    let mut words = vec!["ip", "netns", "exec", namespace, "nft"];
    words.push(rule);
    done(&words)
}

/// Runs a command; the error has the command and its output.
fn done(words: &[&str]) -> Result<(), String> {
    let (program, arguments) = words.split_first().ok_or("no command")?;
    let run = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let out = run.map_err(|error| format!("{program} cannot be started: {error}"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    Err(format!("`{}` fails, which needs root: {said}", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_names() {
        for name in ["shm", "udp:lo", "two-rails"] {
            assert_eq!(name.parse::<Network>().unwrap().to_string(), name);
        }
        assert!("tcp".parse::<Network>().is_err());
    }
}
