//! `doorbell agent`: a process that owns a physical function, for the rails of its virtual ones.

use std::fs::{DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Subcommand};
use doorbell_fabric::error::{Exit, RailError};
use doorbell_fabric::signals::{self, ENDS};
use doorbell_usnic::{Agent, AgentEvent, Fault, Object, Pf, Trouble, UsnicConfig};
use doorbell_vfio::Error;

use crate::console;
use crate::error::ToolError;
use crate::exits;

/// The kinds of rails that need one.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Own the physical function of a Cisco VIC, and steer frames to its usNIC functions
    Usnic(UsnicAgentArgs),
}

/// Own the physical function of a Cisco VIC, and steer frames to its usNIC functions
#[derive(Debug, Args)]
#[command(after_help = concat!("\
A usNIC function does not install filters itself: the owner of its physical function does. This process opens the physical \
function (bound to vfio-pci, so that no kernel driver has it; or of a model), and installs filters for the rails of its own \
user, of root, and of the group that --group names, until it is interrupted or its output is closed. Rails find it by its \
socket, and it has to run before they start. The filters of a process are removed when the process ends. A physical function \
that was reset, or went away, is opened again; rails are down until then.\n\n", exits!(), "\
Examples:\n  doorbell agent usnic --pf 0000:3b:00.0\n  doorbell agent usnic --pf model//tmp/vic/pf"))]
pub struct UsnicAgentArgs {
    /// The physical function: its PCI address, or `model/DIR/pf`; `usnic:` in front, as rails have it, does
    /// no harm
    #[arg(long, value_name = "BDF|model/DIR/pf")]
    pub(crate) pf: String,
    /// Where it listens; without: agent.sock in the model's folder, or /run/doorbell/usnic-BDF.sock
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Let the members of this group connect, too (the socket is the group's, 0660): only for an agent of
    /// root, as a rail trusts no agent of another user except root
    #[arg(long, value_name = "NAME|GID")]
    pub(crate) group: Option<String>,
}

/// How long one turn waits for a request.
const TURN: Duration = Duration::from_millis(20);

/// Runs `doorbell agent KIND`.
pub(crate) fn agent(command: &AgentCommand) -> Result<ExitCode, ToolError> {
    let AgentCommand::Usnic(args) = command;
    usnic(args)
}

fn usnic(args: &UsnicAgentArgs) -> Result<ExitCode, ToolError> {
    let object = object(&args.pf)?;
    let group = args.group.as_deref().map(group).transpose()?;
    if group.is_some() {
        serves_groups(rustix::process::geteuid().as_raw())?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    signals::set_flag_on(&ENDS, &stop).map_err(|source| ToolError::System {
        what: "wait for signals",
        source,
    })?;
    let socket = socket(args, &object);
    let refused = |trouble: Trouble| match taken(&object, &trouble, &socket) {
        Some(error) => error,
        None => unusable(&object, &trouble),
    };
    let pf = match &object {
        Object::Pci(bdf) => Pf::open(*bdf),
        Object::Model { .. } => Pf::connect(&object.socket().unwrap_or_default()),
    };
    let mut agent = Agent::for_group(pf.map_err(refused)?, &socket, group).map_err(refused)?;
    console::print(&format!("{}\n", begins(&agent)))?;
    // If the reader of our output is gone, the agent ends as with a signal.
    while !stop.load(Ordering::Relaxed) && !console::is_closed() {
        let told = agent
            .turn(TURN)
            .map_err(|fault| unusable(&object, &Trouble::Fault(fault)))?;
        for one in told {
            console::print(&format!("{}\n", says(one)))?;
        }
    }
    Ok(Exit::Done.into())
}

/// The function that is meant: as a rail spells it, with `usnic:` in front or without.
fn object(text: &str) -> Result<Object, ToolError> {
    let bare = text.strip_prefix("usnic:").unwrap_or(text);
    let like = "give the physical function as 0000:3b:00.0, or of a model as model/DIR/pf";
    let object = Object::parse(bare).map_err(|why| ToolError::Usage(format!("{why}; {like}")))?;
    match &object {
        Object::Model { folder, function } if function != "pf" => Err(ToolError::Usage(format!(
            "`{text}` is a virtual function, and an agent owns the physical one: `--pf model/{}/pf`",
            folder.display()
        ))),
        _ => Ok(object),
    }
}

/// Another process has the physical function: which, where it is an agent that can be called.
fn taken(object: &Object, trouble: &Trouble, socket: &Path) -> Option<ToolError> {
    let is_busy = matches!(trouble, Trouble::Fault(Fault::Device(Error::Refused { source, .. }))
        if source.kind() == ErrorKind::ResourceBusy);
    let Object::Model { .. } = object else { return None };
    if !is_busy {
        return None;
    }
    let own = doorbell_usnic::agent_socket(&UsnicConfig::default(), object);
    let sockets = [Some(socket.to_owned()), own].into_iter().flatten();
    let agent = sockets
        .filter_map(|socket| Some((doorbell_usnic::agent_at(&socket).ok()?, socket)))
        .next();
    let (reason, remedy) = match agent {
        Some((process, socket)) => {
            let (number, by) = match process {
                Some(process) => (format!(", process {process},"), format!(" by `kill {process}`")),
                None => (" in another container".to_owned(), String::new()),
            };
            (
                format!(
                    "an agent{number} drives the physical function already, and listens at {}",
                    socket.display()
                ),
                format!("let it serve, rails find it there; or end it{by}"),
            )
        }
        None => (
            "another process drives the physical function: an agent with another --socket, a rail with usnic.control=proxy, or a \
             diagnosis"
                .to_owned(),
            "`pgrep -af doorbell` shows it: end it, or let it serve".to_owned(),
        ),
    };
    let rail = format!("usnic:{object}");
    Some(RailError::Unusable { rail, reason, remedy }.into())
}

fn unusable(object: &Object, trouble: &Trouble) -> ToolError {
    let remedy = match object {
        // For a model, the remedy is a command of this program.
        Object::Model { .. } if is_absent(&trouble.fix()) => {
            format!("{}; then the agent again", doorbell_usnic::see_model(object))
        }
        _ => trouble.fix(),
    };
    RailError::Unusable {
        rail: format!("usnic:{object}"),
        reason: trouble.to_string(),
        remedy,
    }
    .into()
}

/// Whether a fix is about the process that models a function: that it be started, or looked for.
fn is_absent(fix: &str) -> bool {
    ["start the process", "look whether the process"]
        .iter()
        .any(|begin| fix.starts_with(begin))
}

/// Returns where rails look for it when nothing else is set.
fn socket(args: &UsnicAgentArgs, object: &Object) -> PathBuf {
    match (&args.socket, object) {
        (Some(socket), _) => socket.clone(),
        (None, Object::Model { folder, .. }) => folder.join("agent.sock"),
        (None, Object::Pci(bdf)) => {
            let folder = Path::new("/run/doorbell");
            // If it cannot be made, the socket cannot either, and that is reported.
            let _ = open_to_all(folder);
            folder.join(format!("usnic-{bdf}.sock"))
        }
    }
}

/// Makes a folder that every user may enter, whatever the umask of this process is: the sockets in it have
/// modes of their own. A folder that exists stays as it is.
fn open_to_all(folder: &Path) -> std::io::Result<()> {
    const MODE: u32 = 0o755;
    DirBuilder::new().mode(MODE).create(folder)?;
    std::fs::set_permissions(folder, Permissions::from_mode(MODE))
}

/// Checks that this user may serve a group: rails accept only an agent of root or of their own user, so those
/// of the group's other members would refuse this one.
fn serves_groups(user: u32) -> Result<(), ToolError> {
    if user == 0 {
        return Ok(());
    }
    Err(ToolError::Usage(format!(
        "--group needs an agent run by root, and this one is run by user {user}: a rail trusts only agents of root \
         and of its own user; start it as root, or leave --group out and serve this user alone"
    )))
}

/// A group's number, given as a number or by its name in /etc/group.
fn group(text: &str) -> Result<u32, ToolError> {
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let number = |line: &str| -> Option<u32> {
        let mut fields = line.split(':');
        (fields.next() == Some(text)).then(|| fields.nth(1)?.parse().ok())?
    };
    let found = text.parse().ok().or_else(|| groups.lines().find_map(number));
    found.ok_or_else(|| {
        ToolError::Usage(format!(
            "--group {text}: there is no such group in /etc/group; give its number"
        ))
    })
}

fn begins(agent: &Agent) -> String {
    let info = agent.info();
    let mac = info.mac.map_or_else(
        || "no hardware address".to_owned(),
        |[a, b, c, d, e, f]| format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
    );
    let usnic = if info.has_usnic {
        ""
    } else {
        ", usNIC not configured according to the device"
    };
    format!(
        "agent of {} ({mac}{usnic}), at {}",
        agent.name(),
        agent.path().display()
    )
}

fn says(told: AgentEvent) -> String {
    match told {
        AgentEvent::Came(function) => format!("vf{function}: a process has it"),
        AgentEvent::Went(function, count) => match count {
            0 => format!("vf{function}: its process is gone"),
            count => {
                format!(
                    "vf{function}: its process is gone; {count} filters and queue pairs of it were taken away"
                )
            }
        },
        AgentEvent::Slow(why) => format!("the physical function does not do what it should: {why}"),
        AgentEvent::Lost(why) => {
            format!("{why}: the physical function is opened again, and rails are down until then")
        }
        AgentEvent::Back => "the physical function is back: rails install everything again".to_owned(),
        AgentEvent::Link(true) => "link up".to_owned(),
        AgentEvent::Link(false) => "link down".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_spelt_as_rails_spell_them() {
        for text in [
            "model/D/pf",
            "usnic:model/D/pf",
            "0000:3b:00.0",
            "usnic:0000:3b:00.0",
        ] {
            let object = object(text).unwrap();
            assert_eq!(object.to_string(), text.trim_start_matches("usnic:"));
        }
        for (text, word) in [
            ("usnic:model/D/vf0", "--pf model/D/pf"),
            ("model/D/vf*", "--pf model/D/pf"),
            ("usnic:eth0", "`eth0`"),
            ("udp:lo", "`udp:lo`"),
        ] {
            let said = object(text).unwrap_err();
            assert_eq!(said.exit(), Exit::Usage);
            assert!(said.to_string().contains(word), "{said}");
        }
    }

    #[test]
    fn a_group_is_served_by_root_alone() {
        assert!(serves_groups(0).is_ok());
        let said = serves_groups(1000).unwrap_err();
        assert_eq!(said.exit(), Exit::Usage);
        assert!(
            said.to_string().contains("by user 1000") && said.to_string().contains("as root"),
            "{said}"
        );
    }

    /// In a process of its own, as the mask is one for all threads.
    #[test]
    fn every_user_can_enter_the_folder_of_sockets_whatever_the_mask() {
        const INSIDE: &str = "DOORBELL_TEST_MASKED";
        let Some(folder) = std::env::var_os(INSIDE) else {
            let folder = tempfile::tempdir().unwrap();
            let inside = std::process::Command::new("sh")
                .args(["-c", "umask 077; exec \"$0\" \"$@\""])
                .arg(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "agent::tests::every_user_can_enter_the_folder_of_sockets_whatever_the_mask",
                ])
                .env(INSIDE, folder.path())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&inside.stdout);
            assert!(inside.status.success() && said.contains("1 passed"), "{said}");
            return;
        };
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let new = Path::new(&folder).join("new");
        open_to_all(&new).unwrap();
        assert_eq!(mode(&new), 0o755);
        // Its owner has closed it on purpose.
        std::fs::set_permissions(&new, Permissions::from_mode(0o700)).unwrap();
        assert_eq!(open_to_all(&new).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(mode(&new), 0o700);
    }
}
