//! One run of the script over one provider, in namespaces of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::outcome::{self, Test};
use super::source::Built;
use crate::child::Ended;
use crate::error::Error;
use crate::links::lab::Host;
use crate::two_hosts::TwoHosts;
use crate::workshop::{Workshop, how};

/// A set of tests, as the script names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Set {
    /// Unit tests, functional tests, short measurements
    Quick,
    /// Everything: also long measurements, ubertest, several nodes, threads
    All,
    /// The tests of one process
    Unit,
    /// The tests of single functions
    Functional,
    /// Measurements with few rounds
    Short,
    /// Measurements with many rounds
    Standard,
    /// fi_ubertest, with the file that libfabric has for shm
    Complex,
    /// Tests between three processes
    Multinode,
    /// Tests with several threads per process
    Threaded,
}

impl Set {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::All => "all",
            Self::Unit => "unit",
            Self::Functional => "functional",
            Self::Short => "short",
            Self::Standard => "standard",
            Self::Complex => "complex",
            Self::Multinode => "multinode",
            Self::Threaded => "threaded",
        }
    }
}

/// What the script is run with.
pub(super) struct Sitting<'a> {
    pub(super) shop: &'a Workshop,
    pub(super) built: &'a Built,
    pub(super) provider: &'a str,
    /// The folder of our provider's file, if it is ours.
    pub(super) ours: Option<&'a Path>,
    pub(super) excludes: PathBuf,
    pub(super) rails: Option<&'a str>,
    pub(super) set: Set,
    /// How the lines of tests begin that are run; all if there are none.
    pub(super) only: &'a [String],
    /// What one test may take, in seconds.
    pub(super) limit: u32,
    /// Where server and client are on hosts of their own.
    pub(super) hosts: Option<&'a TwoHosts>,
    /// Whether the tests exchange their addresses by a connection of their own.
    pub(super) out_of_band: bool,
    /// Arguments that server and client of each test get besides.
    pub(super) arguments: Option<&'a str>,
    /// The file for fi_ubertest, where it is not the one that libfabric has for shm.
    pub(super) ubertest: Option<&'a Path>,
}

/// What the whole script may take: it has a limit for each test.
const WHOLE: Duration = Duration::from_secs(6 * 3600);

/// Runs its arguments with the loopback interface of a new network namespace up.
const INSIDE: &str = "ip link set lo up && exec \"$@\"";

impl Sitting<'_> {
    /// Runs the script; what it printed is in a log.
    pub(super) fn run(&self) -> Result<Vec<Test>, Error> {
        let folder = self.folder()?;
        let script = self.script(&folder)?;
        let mut command = self.namespaces()?;
        command.arg("bash").arg(script);
        command.args(["-vvv", "-t", self.set.word(), "-T", &self.limit.to_string()]);
        command.arg("-p").arg(&self.built.programs);
        if let Some(providers) = self.ours {
            command.arg("-f").arg(self.exclude_file(&folder)?);
            command.env("FI_PROVIDER_PATH", providers);
            if let Some(rails) = self.rails {
                command.env("FI_DOORBELL_RAILS", rails);
            }
            if matches!(self.set, Set::All | Set::Complex) {
                command.arg("-u").arg(self.ubertest(&folder)?);
            }
        }
        if self.out_of_band {
            command.arg("-b");
        }
        if let Some(arguments) = self.arguments {
            command.args(["-C", arguments, "-L", arguments]);
        }
        command.arg(self.provider).current_dir(&folder);
        if self.hosts.is_some() {
            // The server's host and the client's.
            command.args([Host::B, Host::A].map(Host::address));
        }
        command.env("LD_LIBRARY_PATH", &self.built.library);
        // Debian's libfabric needs libinfinipath, which catches signals from when it is loaded: over no
        // provider would a process of `sighandler_test` end by SIGINT.
        command.env("IPATH_NO_BACKTRACE", "1");
        let name = format!(
            "{}-{}-over-{}{}",
            self.provider,
            self.set.word(),
            self.built.libfabric,
            if self.hosts.is_some() { "-two-hosts" } else { "" }
        );
        let log = self.shop.log(&name)?;
        let ended = self.shop.run(&mut command, &log, WHOLE)?;
        let text = std::fs::read(&log).map_err(Error::file("read", &log))?;
        let tests = outcome::read(&String::from_utf8_lossy(&text));
        // The script ends with the number of failures, so a status of its own is no verdict.
        if tests.is_empty() || matches!(ended, Ended::TimedOut) {
            return Err(Error::Lab(format!(
                "runfabtests.sh over {} has no whole result ({}, {} tests); see {}",
                self.provider,
                how(&ended),
                tests.len(),
                log.display()
            )));
        }
        Ok(tests)
    }

    /// Returns the folder that the script runs in: it writes files there, and looks for configurations.
    fn folder(&self) -> Result<PathBuf, Error> {
        let folder = self.shop.folder(&format!("run/{}", self.built.release))?;
        let link = folder.join("test_configs");
        if !link.exists() {
            let configurations = self.built.tests.join("test_configs");
            std::os::unix::fs::symlink(configurations, &link).map_err(Error::file("create", &link))?;
        }
        Ok(folder)
    }

    /// Returns the script, or a copy with the chosen tests alone.
    fn script(&self, folder: &Path) -> Result<PathBuf, Error> {
        let script = self.built.tests.join("scripts/runfabtests.sh");
        if self.only.is_empty() {
            return Ok(script);
        }
        let text = std::fs::read_to_string(&script).map_err(Error::file("read", &script))?;
        let copy = folder.join("runfabtests.sh");
        std::fs::write(&copy, chosen(&text, self.only)).map_err(Error::file("write", &copy))?;
        Ok(copy)
    }

    /// Returns the exclude file; the script refuses one that is missing.
    fn exclude_file(&self, folder: &Path) -> Result<PathBuf, Error> {
        if self.excludes.is_file() {
            return Ok(self.excludes.clone());
        }
        let empty = folder.join("empty.exclude");
        std::fs::write(&empty, "# Nothing is excluded.\n").map_err(Error::file("write", &empty))?;
        Ok(empty)
    }

    /// Returns a file for fi_ubertest: the one that is given, else the one of shm, for our provider.
    fn ubertest(&self, folder: &Path) -> Result<PathBuf, Error> {
        let shm = self.built.tests.join("test_configs/shm/quick.test");
        let theirs = self.ubertest.unwrap_or(&shm);
        let text = std::fs::read_to_string(theirs).map_err(Error::file("read", theirs))?;
        let ours = folder.join(format!("{}.test", self.provider));
        let text = of_provider(&text, self.provider, self.hosts.is_some());
        std::fs::write(&ours, text).map_err(Error::file("write", &ours))?;
        Ok(ours)
    }

    /// Returns a command that runs its arguments in a new namespace of processes, since the script kills by
    /// name; and in one of networks, since its tests meet at a fixed port.
    fn namespaces(&self) -> Result<Command, Error> {
        const PROCESSES: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];
        if let Some(hosts) = self.hosts {
            let mut command = hosts.at(Host::A, "unshare");
            command.args(PROCESSES).env("PATH", hosts.path()?);
            return Ok(command);
        }
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(PROCESSES).arg("--net");
        command.args(["sh", "-c", INSIDE, "sh"]);
        Ok(command)
    }
}

/// Returns a file of fi_ubertest for a provider. Its two processes exchange their endpoints' names, but call
/// `fi_getinfo` with a node all the same: the server's, unless the file has one. Between hosts that is a
/// node of another host for the client, which our provider refuses, so each side names its own.
fn of_provider(text: &str, provider: &str, two_hosts: bool) -> String {
    let node = if two_hosts { "node: 127.0.0.1,\n\t" } else { "" };
    let line = |line: &str| match line.trim_start().starts_with("prov_name:") {
        true => format!("\t{node}prov_name: {provider},\n"),
        false => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Returns the script without the tests that are not chosen: each is a line of an array,
/// `"fi_rdm_pingpong -I 5"`.
fn chosen(script: &str, only: &[String]) -> String {
    let is_kept = |line: &&str| match line
        .trim()
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
    {
        Some(test) => only.iter().any(|begin| test.starts_with(begin.as_str())),
        None => true,
    };
    let lines: Vec<&str> = script.lines().filter(is_kept).collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_keeps_the_script_and_drops_the_other_tests() {
        let script = "#!/bin/bash\nunit_tests=(\n\t\"fi_eq_test\"\n\t\"fi_rdm -U\"\n\t\"fi_rdm\"\n)\necho \"$1\" done\n";
        let text = chosen(script, &["fi_rdm".to_owned()]);
        assert_eq!(
            text,
            "#!/bin/bash\nunit_tests=(\n\t\"fi_rdm -U\"\n\t\"fi_rdm\"\n)\necho \"$1\" done\n"
        );
    }

    #[test]
    fn a_file_of_another_provider_names_ours_and_a_node_of_each_host() {
        let text = "{\n\tprov_name: shm,\n\ttest_class: [\n\t\tFT_CAP_MSG,\n\t],\n},\n";
        let rest = "\ttest_class: [\n\t\tFT_CAP_MSG,\n\t],\n},\n";
        assert_eq!(
            of_provider(text, "doorbell", false),
            format!("{{\n\tprov_name: doorbell,\n{rest}")
        );
        assert_eq!(
            of_provider(text, "doorbell", true),
            format!("{{\n\tnode: 127.0.0.1,\n\tprov_name: doorbell,\n{rest}")
        );
    }

    #[test]
    fn sets_have_the_script_s_names() {
        use clap::ValueEnum as _;
        for set in Set::value_variants() {
            assert_eq!(set.to_possible_value().unwrap().get_name(), set.word());
        }
    }
}
