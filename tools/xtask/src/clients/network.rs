//! The network between the ranks: rails of this host, two rails of a network namespace of which one is cut
//! now and then, or two hosts.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::links::lab::Host;
use crate::two_hosts::{RAILS, TwoHosts};

/// A network by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// Rails of this host, as in `DOORBELL_RAILS`.
    Rails(String),
    /// Two udp rails, one of them cut and mended.
    TwoRails,
    /// Half of the ranks at each of two hosts, which are network namespaces with two links between them.
    TwoHosts,
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rails(rails) => out.write_str(rails),
            Self::TwoRails => out.write_str("two-rails"),
            Self::TwoHosts => out.write_str("two-hosts"),
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "two-rails" => Ok(Self::TwoRails),
            "two-hosts" => Ok(Self::TwoHosts),
            "shm" => Ok(Self::Rails(word.to_owned())),
            _ if word.starts_with("udp:") => Ok(Self::Rails(word.to_owned())),
            _ => Err("give shm, udp:INTERFACE, two-rails or two-hosts".to_owned()),
        }
    }
}

/// The place where ranks run; what was made for it is removed with it.
pub(crate) struct Place {
    rails: String,
    around: Around,
}

/// What was made around the ranks.
enum Around {
    Nothing,
    Namespace(Namespace),
    Hosts(TwoHosts),
}

impl Network {
    /// Makes it; or why that cannot be. What it needs on disk is below `folder`, and goes with it.
    pub(crate) fn make(&self, folder: &Path) -> Result<Place, String> {
        let (rails, around) = match self {
            Self::Rails(rails) => (rails.as_str(), Around::Nothing),
            Self::TwoRails => ("udp:db0,udp:db1", Around::Namespace(Namespace::new()?)),
            Self::TwoHosts => {
                let hosts = TwoHosts::new(folder).map_err(|error| error.to_string())?;
                (RAILS, Around::Hosts(hosts))
            }
        };
        Ok(Place {
            rails: rails.to_owned(),
            around,
        })
    }
}

impl Place {
    /// Returns the value of `DOORBELL_RAILS` there.
    pub(crate) fn rails(&self) -> &str {
        &self.rails
    }

    /// Returns the two hosts, if it is that.
    pub(crate) fn hosts(&self) -> Option<&TwoHosts> {
        match &self.around {
            Around::Hosts(hosts) => Some(hosts),
            Around::Nothing | Around::Namespace(_) => None,
        }
    }

    /// Returns a command that runs its arguments there; on two hosts, at the first.
    pub(crate) fn command(&self) -> Command {
        match &self.around {
            Around::Nothing => Command::new("env"),
            Around::Namespace(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &namespace.name, "env"]);
                command
            }
            Around::Hosts(hosts) => hosts.at(Host::A, "env"),
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
        for name in ["shm", "udp:lo", "two-rails", "two-hosts"] {
            assert_eq!(name.parse::<Network>().unwrap().to_string(), name);
        }
        assert!("tcp".parse::<Network>().is_err());
    }
}
