//! Where measurements run that need a machine to themselves: two cores, and hosts that are network namespaces
//! of our own.
//!
//! ```text
//!   shared memory   alone: lo                   no other process can connect
//!   network         one: v0 10.79.0.1 ───────── two: v0 10.79.0.2
//! ```
//!
//! `holder` keeps a namespace, `veth` connects two of them, and `self_run` runs this very program.

mod holder;
pub(crate) mod self_run;
mod veth;

use std::ffi::OsStr;
use std::process::Command;

use doorbell_tools::error::ToolError;
use doorbell_tools::process::{FOLDER, Runner, Stop};
use tempfile::TempDir;

use self::holder::Holder;
use self::veth::VethPair;

pub(crate) use self::veth::{INTERFACE, Wiring};

/// Which of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The client, which sends first.
    One,
    /// The server, which answers.
    Two,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::One, Self::Two];

    /// Its address on the virtual cable.
    pub(crate) fn address(self) -> &'static str {
        match self {
            Self::One => "10.79.0.1",
            Self::Two => "10.79.0.2",
        }
    }
}

/// What the two processes communicate over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Setting {
    /// The shared memory of one host.
    Shm,
    /// A pair of virtual Ethernet interfaces, each in a namespace of its own.
    Network,
    /// The same, and this percentage of what is sent to each end is lost on the way.
    Loss(f64),
}

impl Setting {
    pub(crate) fn is_network(self) -> bool {
        self != Self::Shm
    }

    /// Its name for people.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Shm => "shared memory".to_owned(),
            Self::Network => "network".to_owned(),
            Self::Loss(percent) => format!("network, {percent} % loss"),
        }
    }

    /// Its name in the JSON.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Network => "network",
            Self::Loss(_) => "loss",
        }
    }
}

/// A place to measure at.
pub(crate) struct Place<'r> {
    runner: &'r Runner,
    /// The core of each side.
    pub(crate) cores: [usize; 2],
    /// For what is compiled and written on the way.
    pub(crate) folder: TempDir,
    /// The namespace of shared memory, once it is wanted; none where the system allows none.
    alone: Option<Result<Holder<'r>, String>>,
    /// The two of the network, once they are wanted.
    veth: Option<VethPair<'r>>,
}

impl<'r> Place<'r> {
    /// Two cores and a folder, which ends with us, however we end.
    pub(crate) fn new(runner: &'r Runner, cores: [usize; 2]) -> Result<Self, ToolError> {
        let folder = tempfile::Builder::new().prefix(FOLDER).tempdir();
        let folder = folder.map_err(|source| ToolError::System {
            what: "make a folder for temporary files (`TMPDIR` names where)",
            source,
        })?;
        runner.watch_folder(folder.path());
        Ok(Self {
            runner,
            cores,
            folder,
            alone: None,
            veth: None,
        })
    }

    /// From here on programs of [`Setting::Shm`] run in a namespace of their own, where one can be made.
    pub(crate) fn seclude(&mut self) -> Result<(), Stop> {
        self.alone = Some(had(Holder::new(self.runner, None))?);
        Ok(())
    }

    /// Makes the two hosts of the network, or returns why that is not possible.
    pub(crate) fn lay(&mut self, wiring: Wiring) -> Result<Result<(), String>, Stop> {
        let laid = had(VethPair::lay(self.runner, wiring))?.map_err(|why| {
            format!(
                "two network namespaces could not be made ({why}); it takes root, or a kernel that lets users make \
                 namespaces, and the packages iproute2, util-linux and, for losses, nftables"
            )
        });
        Ok(laid.map(|veth| self.veth = Some(veth)))
    }

    /// Removes what programs that were killed left in shared memory, in namespaces of our own.
    pub(crate) fn tidy(&self, setting: Setting) -> Result<(), Stop> {
        let holders = Side::BOTH.map(|side| self.holder(setting, side));
        holders.into_iter().flatten().try_for_each(Holder::tidy)
    }

    /// Returns why a program that listens would be reachable by others; `None` where it is not.
    pub(crate) fn exposed(&self, setting: Setting) -> Option<&str> {
        match (&self.alone, setting) {
            (Some(Err(why)), Setting::Shm) => Some(why),
            _ => None,
        }
    }

    /// A program on one side, on no core in particular.
    pub(crate) fn command(&self, setting: Setting, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.holder(setting, side) {
            Some(holder) => {
                let mut command = holder.enter();
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        without_settings(&mut command);
        command
    }

    /// A program on one side, bound to that side's core with all its threads.
    pub(crate) fn bound(&self, setting: Setting, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(setting, side, "taskset");
        command.args(["-c", &self.core(side).to_string()]).arg(program);
        command
    }

    /// The core of a side.
    pub(crate) fn core(&self, side: Side) -> usize {
        self.cores[side as usize]
    }

    /// The address by which a side is reached.
    pub(crate) fn address(setting: Setting, side: Side) -> &'static str {
        match setting {
            Setting::Shm => "127.0.0.1",
            _ => side.address(),
        }
    }

    /// The words by which a shell script that runs on one side enters the namespace of a side. It is in the
    /// same user namespace already, and none can be entered twice.
    pub(crate) fn entrance(&self, side: Side) -> String {
        let holder = self.holder(Setting::Network, side);
        holder
            .map(|holder| holder.words(false).join(" "))
            .unwrap_or_default()
    }

    /// Drops this percentage of what goes either way over a switched cable, whatever it is; 0 ends it.
    pub(crate) fn lose(&self, percent: f64) -> Result<Result<(), String>, Stop> {
        match &self.veth {
            Some(veth) => had(veth.lose(percent)),
            None => Ok(Err("there is no cable".to_owned())),
        }
    }

    fn holder(&self, setting: Setting, side: Side) -> Option<&Holder<'r>> {
        match setting {
            Setting::Shm => self.alone.as_ref()?.as_ref().ok(),
            _ => Some(self.veth.as_ref()?.host(side)),
        }
    }
}

/// Turns a failure into a reason that is reported; only a signal that ends the command stays an error.
fn had<T>(result: Result<T, Stop>) -> Result<Result<T, String>, Stop> {
    match result {
        Ok(it) => Ok(Ok(it)),
        Err(Stop::Failed(why)) => Ok(Err(why)),
        Err(stop) => Err(stop),
    }
}

/// Removes the caller's settings for doorbell, MPIs, UCX and libfabric: what is measured is exactly what the
/// report describes.
pub(crate) fn without_settings(command: &mut Command) {
    const STARTS: [&str; 11] = [
        "DOORBELL_",
        "UCX_",
        "OMPI_",
        "OPAL_",
        "PRTE_",
        "PMIX_",
        "I_MPI_",
        "FI_",
        "MPIR_",
        "MPICH_",
        "HYDRA_",
    ];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if STARTS.iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
}

/// Returns why figures from this machine's cores may be worth less than they look.
pub(crate) fn doubts(cores: &[usize]) -> Vec<String> {
    let host = doorbell_bench::env::Host::read(cores);
    let mut doubts = Vec::new();
    if let Some(hypervisor) = &host.virtualised {
        doubts.push(format!(
            "this is a virtual machine ({hypervisor}): the host moves its cores and its time"
        ));
    }
    if !cores.iter().all(|core| host.is_isolated(*core)) {
        doubts.push("the cores are not isolated: other work runs there too".to_owned());
    }
    doubts
}

/// Returns a TCP port that is free in our own namespace at the moment; in namespaces of our own all are.
pub(crate) fn free_port() -> Result<u16, ToolError> {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
    socket
        .map(|address| address.port())
        .map_err(|source| ToolError::System {
            what: "find a free port",
            source,
        })
}
