//! Two hosts for programs of others: a lab with two links, a third one for launchers, and a program in the
//! place of ssh.
//!
//! ```text
//!   launcher at a ── ssh HOST COMMAND ──► ip netns exec … unshare --uts ──► COMMAND at the address's host
//! ```
//!
//! Each host has a name of its own, as MPIs and their launchers tell hosts apart by names. Both see the same
//! files and the same processes.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::links::lab::{CONTROL, Host, Lab};
use crate::workshop::need;

/// How many links there are beside the one for launchers.
pub(crate) const LINKS: usize = 2;
/// The rails of our provider where no others are named: one on each link.
pub(crate) const RAILS: &str = "udp:v0,udp:v1";
/// The interfaces of both links.
pub(crate) const INTERFACES: &str = "v0,v1";
/// The interface that providers use which are bound to one.
const FIRST: &str = "v0";

/// Gives a host its name and a file of the names of both, and runs the rest. The namespace of mounts is one
/// of its own, which `ip netns exec` makes.
const NAMED: &str = "mount --bind \"$0\" /etc/hosts && hostname \"$1\" && shift && exec \"$@\"";

/// The two hosts.
pub(crate) struct TwoHosts {
    pub(crate) lab: Lab,
    folder: PathBuf,
}

impl TwoHosts {
    /// Makes the hosts; what is needed on disk is below `folder`, and goes with them.
    pub(crate) fn new(folder: &Path) -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Lab(
                "two hosts are network namespaces, which need root: run it with sudo".to_owned(),
            ));
        }
        need(&[("ip", "iproute2"), ("unshare", "util-linux"), ("nft", "nftables")])?;
        let lab = Lab::new(LINKS, 1500, false)?;
        lab.add_control()?;
        let hosts = Self {
            lab,
            folder: folder.join(format!("hosts-{}", std::process::id())),
        };
        std::fs::create_dir_all(&hosts.folder).map_err(Error::file("create", &hosts.folder))?;
        let names = hosts.names();
        std::fs::write(&names, named()).map_err(Error::file("write", &names))?;
        let ssh = hosts.ssh();
        let script = script(Host::BOTH.map(|host| hosts.lab.name(host)), &names);
        std::fs::write(&ssh, script).map_err(Error::file("write", &ssh))?;
        let runs = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&ssh, runs).map_err(Error::file("change the mode of", &ssh))?;
        Ok(hosts)
    }

    /// Makes all links whole, whatever became of them.
    pub(crate) fn mend(&self) -> Result<(), Error> {
        for link in 0..LINKS {
            Host::BOTH
                .into_iter()
                .try_for_each(|host| self.lab.set(host, link, true))?;
            self.lab.wait_until_whole(link)?;
        }
        Ok(())
    }

    /// Returns the program that launchers run in the place of ssh.
    pub(crate) fn ssh(&self) -> PathBuf {
        self.folder.join("ssh")
    }

    /// Returns the file in the place of `/etc/hosts`.
    fn names(&self) -> PathBuf {
        self.folder.join("hosts")
    }

    /// Returns a path for programs on which ssh is ours.
    pub(crate) fn path(&self) -> Result<std::ffi::OsString, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.folder.clone()).chain(std::env::split_paths(&path));
        std::env::join_paths(folders).map_err(|error| Error::Lab(error.to_string()))
    }

    /// Returns a command that runs a program at a host, which has its own name there.
    pub(crate) fn at(&self, host: Host, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.lab.at(host, "unshare");
        command
            .args(["--uts", "sh", "-c", NAMED])
            .arg(self.names())
            .arg(name(host))
            .arg(program);
        command
    }

    /// Adds the words by which hydra, at the first host, starts half of the ranks at each.
    pub(crate) fn through_hydra(&self, command: &mut Command, ranks: u32) {
        command
            .args(["-launcher", "rsh", "-launcher-exec"])
            .arg(self.ssh());
        // Ranks are not bound by default; with -bind-to hydra's proxies refuse what a rank wants to start.
        command.args(["-iface", CONTROL]);
        command.args(["-hosts", &Host::BOTH.map(Host::control).join(",")]);
        command.args(["-ppn", &ranks.div_ceil(2).to_string()]);
    }

    /// Makes libfabric's own providers, which use one interface and choose it by name or by speed, use the
    /// same one.
    pub(crate) fn choose_interface(&self, command: &mut Command) {
        for provider in ["TCP", "UDP", "SOCKETS"] {
            command.env(format!("FI_{provider}_IFACE"), FIRST);
        }
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        // If it stays, the next run of this process number replaces it.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns the name of a host.
fn name(host: Host) -> &'static str {
    match host {
        Host::A => "host-a",
        Host::B => "host-b",
    }
}

/// Returns what both hosts have for `/etc/hosts`.
fn named() -> String {
    let host = |host: Host| format!("{} {}\n", host.control(), name(host));
    let hosts: String = Host::BOTH.map(host).concat();
    format!("127.0.0.1 localhost\n{hosts}")
}

/// Returns the program in the place of ssh: options, the address of a host, a command for its shell.
fn script(namespaces: [&str; 2], names: &Path) -> String {
    let cases: Vec<String> = (1..)
        .zip(Host::BOTH)
        .map(|(number, host)| {
            let namespace = namespaces[host as usize];
            format!("10.79.*.{number}) namespace={namespace} name={} ;;", name(host))
        })
        .collect();
    format!(
        "#!/bin/sh\n# [OPTIONS] HOST COMMAND...: what ssh would do\n\
         while :; do case \"$1\" in -[opl]) shift 2 ;; -*) shift ;; *) break ;; esac; done\n\
         host=$1\nshift\ncase \"$host\" in\n{}\n*) echo \"there is no host $host\" >&2; exit 255 ;;\nesac\n\
         exec ip netns exec \"$namespace\" unshare --uts sh -c '{NAMED}' '{}' \"$name\" sh -c \"$*\"\n",
        cases.join("\n"),
        names.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_testing::netns::Lab as Probe;

    fn printed(command: &mut Command) -> String {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command:?}: {said}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    #[test]
    fn a_launcher_at_one_host_starts_a_program_at_the_other() {
        const TEST: &str = "two_hosts::a_launcher_at_one_host_starts_a_program_at_the_other";
        // It reports why there can be no namespaces, where there can be none.
        if Probe::pair(TEST, 1500).is_none() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let hosts = TwoHosts::new(folder.path()).unwrap();
        assert_eq!(printed(&mut hosts.at(Host::A, "hostname")), "host-a");
        let mut other = hosts.at(Host::A, "getent");
        let other = printed(other.args(["ahostsv4", "host-b"]));
        assert!(other.starts_with(Host::B.control()), "{other}");
        let addresses = "hostname; ip -4 -o address show ctl; echo \"$DOORBELL_X\"";
        let mut ssh = hosts.at(Host::A, hosts.ssh());
        ssh.args(["-x", "-o", "BatchMode=yes", Host::B.control(), addresses]);
        let there = printed(ssh.env("DOORBELL_X", "carried"));
        assert!(
            there.starts_with("host-b\n") && there.ends_with("carried"),
            "{there}"
        );
        assert!(there.contains(&format!("{}/24", Host::B.control())), "{there}");
        // The link for launchers stays whole when another is cut.
        hosts.lab.set(Host::B, 0, false).unwrap();
        let is_up = |interface| {
            let mut show = hosts.at(Host::B, "ip");
            printed(show.args(["-o", "link", "show", interface])).contains("state UP")
        };
        assert!(!is_up("v0") && is_up("v1") && is_up("ctl"));
        let failed = hosts
            .at(Host::A, hosts.ssh())
            .arg("10.80.0.1")
            .arg("true")
            .output();
        assert_eq!(failed.unwrap().status.code(), Some(255));
        let ssh = hosts.ssh();
        drop(hosts);
        assert!(!ssh.exists());
    }
}
