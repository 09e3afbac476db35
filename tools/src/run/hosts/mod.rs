//! `doorbell run --hosts`: a daemon on each host, a tree of them over the control plane, and the launcher at
//! its root.
//!
//! ```text
//!   doorbell run ──ssh──► daemon on host 1 ──► ranks 0, 1   PMI-1 over an inherited descriptor
//!   (launcher) └──ssh──► daemon on host 2 ──► ranks 2, 3    (`node`, oob::serve)
//!      ▲ │                    │    └──ssh──► daemons below it in the tree
//!      │ └── commands ────────►
//!      └── reports, output ────┘   over the control plane (oob::plane), encrypted under a key of the job
//! ```
//!
//! The key goes to a daemon through the remote shell's standard input, never over an argument or the
//! environment. The values that ranks put (their addresses, and the key of their rails) are gathered over the
//! same tree at their barriers: any PMI-1 program can start like this, doorbell's and MPICH's.

mod control;
mod credit;
mod daemon;
pub(super) mod here;
mod input;
mod launcher;
mod node;
mod output;
mod place;
mod plane;
mod protocol;
mod sentences;
mod shell;
mod spawn;
mod timeline;
mod wakeup;

use std::process::ExitCode;
use std::time::Duration;

use self::here::Here;
use super::Launch;
use crate::error::ToolError;
use crate::run::args::RunArgs;
use crate::run::placement::Wanted;

pub(crate) use daemon::daemon;

/// How a job on several hosts is started.
#[derive(Debug)]
struct Options {
    /// The words of the remote shell.
    shell: Vec<String>,
    /// The path of doorbell on the hosts.
    doorbell: String,
    /// The NICs of the control plane, included and excluded.
    nics: (Vec<String>, Vec<String>),
    ports: String,
    /// The settings of the control plane that are not defaults.
    control: Vec<(String, String)>,
    variables: Vec<(String, Vec<u8>)>,
    folder: Vec<u8>,
    /// The cores that each rank is to have.
    cores: Wanted,
    /// How long the daemons may take to be ready.
    start: Duration,
    timeline: bool,
    /// Number of daemons that one daemon starts.
    radix: u32,
    /// The names of this host.
    here: Here,
}

/// Variables that concern this process only.
const OWN: [&str; 6] = [
    "DOORBELL_SPAWNED",
    "DOORBELL_INVITATION",
    "DOORBELL_RANK",
    "DOORBELL_SIZE",
    "DOORBELL_ROOT",
    "DOORBELL_LAUNCH",
];

/// Runs `launch` on the named hosts.
pub(super) fn launch(
    launch: &Launch,
    list: &str,
    args: &RunArgs,
    mut cores: Wanted,
) -> Result<ExitCode, ToolError> {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let named = place::named(list).map_err(ToolError::Usage)?;
    let here = Here::look_up(named.iter().map(|(name, _)| name.as_str()));
    let mut own = named.iter().filter(|(name, _)| here.is(name));
    if let (Some((one, room)), Some((other, more))) = (own.next(), own.next()) {
        return Err(ToolError::Usage(format!(
            "`{one}` and `{other}` are both this host: write it once, as in {}:{}",
            place::written(one),
            room.unwrap_or(1) + more.unwrap_or(1)
        )));
    }
    let hosts = place::place(named, launch.ranks).map_err(ToolError::Usage)?;
    let system = |what| move |source| ToolError::System { what, source };
    let doorbell = match &args.doorbell {
        Some(path) => path.clone(),
        None => {
            let own = std::env::current_exe().map_err(system("find this program"))?;
            own.display().to_string()
        }
    };
    // A remote shell splits its arguments at spaces, and others do not.
    let is_plain = |one: char| one.is_alphanumeric() || "/._-+@%".contains(one);
    if !doorbell.chars().all(is_plain) {
        return Err(ToolError::Usage(format!(
            "`{doorbell}` cannot be passed through a remote shell: name doorbell on the hosts by --doorbell, without spaces or signs"
        )));
    }
    let shell: Vec<String> = args.rsh.split_whitespace().map(str::to_owned).collect();
    if shell.is_empty() {
        return Err(ToolError::Usage(
            "--rsh names no command: leave it away for ssh".to_owned(),
        ));
    }
    let is_local = hosts.iter().all(|host| here.is(&host.name));
    let control = control::settings(is_local)?;
    cores.kept = control.core;
    let nics = match (args.nics.is_empty(), is_local) {
        (false, _) => (args.nics.clone(), Vec::new()),
        (true, true) => (Vec::new(), Vec::new()),
        (true, false) => (Vec::new(), vec!["lo".to_owned()]),
    };
    let given = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let is_ours = name.starts_with("DOORBELL_") && !OWN.contains(&name.as_str());
        (is_ours || args.env.contains(&name)).then(|| (name, value.into_vec()))
    });
    let mut variables: Vec<(String, Vec<u8>)> = given.collect();
    let warned = doorbell::config::warned_variables();
    variables.extend(warned.map(|(name, names)| (name.to_owned(), names.into_bytes())));
    let set = args.env.iter().filter_map(|text| text.split_once('='));
    variables.extend(set.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())));
    let own = launch.variables.iter();
    variables.extend(own.map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())));
    let folder = std::env::current_dir().map_err(system("find the folder that this is"))?;
    let options = Options {
        shell,
        doorbell,
        nics,
        ports: args.ports.clone(),
        control: control.changed,
        variables,
        folder: folder.as_os_str().as_bytes().to_vec(),
        cores,
        start: Duration::from_secs_f64(args.start_timeout),
        timeline: args.timeline,
        radix: args.tree,
        here,
    };
    launcher::launch(launch, hosts, &options)
}
