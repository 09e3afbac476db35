//! Commands to type where something is missing, with the folder, function and socket that are meant, and the
//! process that is in the way.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::config::UsnicConfig;
use crate::open::{agent_socket, pf_of};
use crate::rail_name::Object;

/// Functions that a model has where their number is not given.
const VFS: u32 = 2;

/// The command that starts an agent for a function, where these settings look for it.
#[must_use]
pub fn agent_command(config: &UsnicConfig, object: &Object) -> String {
    let pf = pf_of(object).unwrap_or_else(|| "BDF".to_owned());
    let own = UsnicConfig::default();
    let socket = config
        .agent
        .as_ref()
        .filter(|socket| agent_socket(&own, object).as_ref() != Some(*socket));
    let more = socket.map_or_else(String::new, |socket| format!(" --socket {}", quoted(socket)));
    format!("doorbell agent usnic --pf {}{more}", quoted(Path::new(&pf)))
}

/// The command that starts the model of a function.
///
/// # Errors
/// Where no model can have that folder: why, and what to do, as a part of a sentence.
pub fn model_command(object: &Object) -> Result<String, String> {
    let Object::Model { folder, .. } = object else {
        return Err("it is no function of a model".to_owned());
    };
    let shown = folder.display();
    let own = "name the rail with a folder of your own, or one that is not there yet, as in usnic:model//tmp/vic/vf0";
    match std::fs::metadata(folder) {
        Ok(found) if !found.is_dir() => return Err(format!("{shown} is no folder: {own}")),
        Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => {
            return Err(format!("{shown} is of user {}: {own}", found.uid()));
        }
        Ok(found) if found.mode() & 0o077 != 0 => {
            return Err(format!(
                "others may enter {shown}, so that no model takes it: {own}"
            ));
        }
        _ => {}
    }
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    let before = parent
        .filter(|parent| !parent.exists())
        .map_or_else(String::new, |parent| format!("mkdir -p {} && ", quoted(parent)));
    let wanted = object.index() + 1;
    let more = if wanted > VFS {
        format!(" --vfs {wanted}")
    } else {
        String::new()
    };
    Ok(format!(
        "{before}doorbell-lab model vic --dir {}{more}",
        quoted(folder)
    ))
}

/// Returns what to do about a model that does not run.
#[must_use]
pub fn start_model(object: &Object) -> String {
    match model_command(object) {
        Ok(command) => format!("start the model: `{command}`"),
        Err(why) => why,
    }
}

/// Returns what to do about a model that is there, stopped, or gone: whichever it is.
#[must_use]
pub fn see_model(object: &Object) -> String {
    let Object::Model { folder, .. } = object else {
        return "see `dmesg` and `lspci` for the physical function; its agent opens it again by itself"
            .to_owned();
    };
    match listener(&folder.join("pf.sock"), SocketType::STREAM) {
        Ok(Some(process)) if is_stopped(process) => {
            format!("the model is stopped: `kill -CONT {process}` lets it go on")
        }
        Ok(Some(process)) => format!(
            "the model (process {process}) runs and does not answer: look at its script of faults, or end it by `kill {process}` and \
             start it again"
        ),
        Ok(None) => {
            "the model runs in another container, and does not answer: look at its script of faults there, or start it again"
                .to_owned()
        }
        Err(Errno::AGAIN) => {
            "more callers wait for the model than it takes: it is stopped, or busy; `pgrep -af 'doorbell-lab model vic'` shows its process"
                .to_owned()
        }
        Err(_) => start_model(object),
    }
}

/// Returns what to do about a function that a model does not have, or about a model that does not run.
#[must_use]
pub fn make_function(object: &Object) -> String {
    let Object::Model { folder, .. } = object else {
        return start_model(object);
    };
    match listener(&folder.join("pf.sock"), SocketType::STREAM) {
        Ok(process) if !object.is_any() => {
            let command = model_command(object).unwrap_or_else(|why| why);
            let by = process.map_or_else(String::new, |process| format!(" by `kill {process}`"));
            format!(
                "name another function, or end the model there, which has fewer,{by} and start it with more: `{command}`"
            )
        }
        _ => start_model(object),
    }
}

/// The number of the process that listens at an agent's socket; one of another pid namespace has none here.
///
/// # Errors
/// Where no process does, it may not be reached, or it is a socket of another kind ([`is_other_kind`]).
pub fn agent_at(path: &Path) -> io::Result<Option<u32>> {
    Ok(listener(path, SocketType::SEQPACKET)?)
}

/// Whether [`agent_at`] has found a socket that is not an agent's.
#[must_use]
pub fn is_other_kind(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error())
}

/// Whether a process is stopped, by a signal or in a shell.
#[must_use]
pub fn is_stopped(process: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before it may have anything in it.
    let state = text.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

/// Calls once, and sees who listens.
fn listener(path: &Path, kind: SocketType) -> Result<Option<u32>, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let line = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    connect(&line, &address)?;
    let peer = getsockopt(&line, PeerCredentials).map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    Ok(u32::try_from(peer.pid()).ok().filter(|process| *process != 0))
}

/// A path as a shell takes it.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |one: char| one.is_alphanumeric() || "/._-+:,@%".contains(one);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn of(folder: &Path, function: &str) -> Object {
        Object::parse(&format!("model/{}/{function}", folder.display())).unwrap()
    }

    #[test]
    fn a_model_is_started_where_one_can_be_and_with_functions_enough() {
        let base = tempfile::tempdir().unwrap();
        let new = base.path().join("new");
        let command = |folder: &Path, function: &str| model_command(&of(folder, function));
        assert_eq!(
            command(&new, "vf1").unwrap(),
            format!("doorbell-lab model vic --dir {}", new.display())
        );
        assert!(command(&new, "vf7").unwrap().ends_with(" --vfs 8"));
        assert!(
            command(&new.join("deeper"), "vf*")
                .unwrap()
                .starts_with("mkdir -p ")
        );
        assert!(
            command(&base.path().join("a b"), "vf0")
                .unwrap()
                .ends_with("a b'")
        );
        std::fs::write(&new, "").unwrap();
        assert!(command(&new, "vf0").unwrap_err().contains("no folder"));
        let open = base.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(command(&open, "vf0").unwrap_err().contains("others may enter"));
    }

    #[test]
    fn an_agent_is_started_where_it_is_looked_for() {
        let object = of(Path::new("D"), "vf0");
        let with = |agent: Option<&str>| {
            let config = UsnicConfig {
                agent: agent.map(Into::into),
                ..UsnicConfig::default()
            };
            agent_command(&config, &object)
        };
        assert_eq!(with(None), "doorbell agent usnic --pf model/D/pf");
        assert_eq!(with(Some("D/agent.sock")), with(None));
        assert_eq!(
            with(Some("x.sock")),
            "doorbell agent usnic --pf model/D/pf --socket x.sock"
        );
    }

    #[test]
    fn the_listener_is_known_and_a_socket_of_another_kind_is_distinguished() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("vf1.sock");
        let stream = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(is_other_kind(&agent_at(&path).unwrap_err()));
        assert_eq!(listener(&path, SocketType::STREAM), Ok(Some(std::process::id())));
        drop(stream);
        assert!(!is_other_kind(&agent_at(&base.path().join("none")).unwrap_err()));
        assert!(!is_stopped(std::process::id()));
    }
}
