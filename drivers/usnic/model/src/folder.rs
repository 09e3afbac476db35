//! The folder of the sockets: made, or taken over from a model that was killed; removed at the end.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A folder of 0700 with sockets of 0600.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Whether the folder was made by this model.
    is_ours: bool,
    sockets: Vec<PathBuf>,
}

impl Folder {
    /// Makes the folder, or takes one that is there; with a random name where none is given.
    pub(crate) fn new(wanted: Option<&Path>) -> Result<Self, Error> {
        let path = match wanted {
            Some(path) => path.to_owned(),
            None => random(),
        };
        let failed = |what, source| Error::Folder {
            what,
            path: path.clone(),
            source,
        };
        let is_ours = match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed("make the folder", error)),
        };
        let found = fs::symlink_metadata(&path).map_err(|error| failed("look at the folder", error))?;
        let why = match found.mode() & 0o7777 {
            _ if !found.is_dir() => Some("it is no folder".to_owned()),
            _ if found.uid() != rustix::process::geteuid().as_raw() => {
                Some(format!("it is of another user (number {})", found.uid()))
            }
            mode if mode & 0o077 != 0 => Some(format!(
                "others may enter it (mode {mode:04o}), and who calls a function gets the memory of its driver; \
                 `chmod 700` it"
            )),
            _ => None,
        };
        if let Some(why) = why {
            return Err(failed(
                "use the folder",
                io::Error::new(io::ErrorKind::PermissionDenied, why),
            ));
        }
        if !is_ours {
            sweep(&path);
        }
        Ok(Self {
            path,
            is_ours,
            sockets: Vec::new(),
        })
    }

    /// Listens at a socket of the folder. One that no process serves any more is replaced.
    pub(crate) fn listen(&mut self, name: &str) -> Result<(UnixListener, PathBuf), Error> {
        let path = self.path.join(name);
        let failed = |what, source| Error::Folder {
            what,
            path: path.clone(),
            source,
        };
        if fs::symlink_metadata(&path).is_ok() {
            if !is_dead(&path) {
                return Err(Error::Occupied { path });
            }
            fs::remove_file(&path).map_err(|error| failed("replace the socket", error))?;
        }
        let listener = UnixListener::bind(&path).map_err(|error| failed("listen at", error))?;
        self.sockets.push(path.clone());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
            .map_err(|error| failed("keep others out of", error))?;
        Ok((listener, path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A file that cannot be removed is replaced by the next one.
        for socket in &self.sockets {
            let _ = fs::remove_file(socket);
        }
        if self.is_ours {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Whether it is a socket on which no process listens any more.
fn is_dead(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket());
    let refused = UnixStream::connect(path).err().map(|error| error.kind());
    is_socket && refused == Some(io::ErrorKind::ConnectionRefused)
}

/// Removes what a killed model, perhaps a larger one, and a killed agent of it left: a client that takes any
/// function looks for sockets.
fn sweep(folder: &Path) {
    let is_ours = |name: &str| {
        let name = name.strip_suffix(".sock");
        let number = name.and_then(|name| name.strip_prefix("vf"));
        matches!(name, Some("pf" | "agent")) || number.is_some_and(|number| number.parse::<u16>().is_ok())
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_str().is_some_and(is_ours) && is_dead(&path) {
            // A file that cannot be removed is reported when its place is needed.
            let _ = fs::remove_file(path);
        }
    }
}

/// A name that is not taken, below the user's own folder of such things.
fn random() -> PathBuf {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_err() {
        bytes = u64::from(std::process::id()).to_le_bytes();
    }
    base.join(format!("doorbell-vic-{:016x}", u64::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_model_left_is_replaced_and_a_live_one_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("vic");
        let mut first = Folder::new(Some(&path)).unwrap();
        let (listener, socket) = first.listen("pf.sock").unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let mut second = Folder::new(Some(&path)).unwrap();
        let error = second.listen("pf.sock").unwrap_err();
        assert!(matches!(error, Error::Occupied { .. }), "{error}");
        // As a killed one leaves it: no process listens, the socket is there.
        drop(listener);
        assert!(second.listen("pf.sock").is_ok());
        drop(second);
        assert!(path.exists() && !socket.exists(), "the folder is the first one's");
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn all_dead_sockets_of_a_folder_go_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("vic");
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        let at = |name: &str| path.join(name);
        let dead = [
            "pf.sock",
            "vf0.sock",
            "vf11.sock",
            "agent.sock",
            "mine.sock",
            "vfx.sock",
        ];
        for name in dead {
            drop(UnixListener::bind(at(name)).unwrap());
        }
        let live = UnixListener::bind(at("vf3.sock")).unwrap();
        // A live agent's packets go by another kind of socket.
        fs::remove_file(at("agent.sock")).unwrap();
        let agent = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            None,
        )
        .unwrap();
        let address = rustix::net::SocketAddrUnix::new(at("agent.sock")).unwrap();
        rustix::net::bind(&agent, &address).unwrap();
        rustix::net::listen(&agent, 1).unwrap();
        fs::write(at("vf5.sock"), "a file").unwrap();
        drop(Folder::new(Some(&path)).unwrap());
        let left = |name: &str| at(name).exists();
        assert!(!left("pf.sock") && !left("vf0.sock") && !left("vf11.sock"));
        assert!(
            ["mine.sock", "vfx.sock", "vf3.sock", "vf5.sock", "agent.sock"]
                .into_iter()
                .all(left)
        );
        drop(agent);
        drop(Folder::new(Some(&path)).unwrap());
        assert!(!left("agent.sock") && left("mine.sock"));
        drop(live);
    }

    #[test]
    fn a_folder_that_others_may_enter_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("open");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let error = Folder::new(Some(&path)).unwrap_err().to_string();
        assert!(error.contains("0755") && error.contains("chmod 700"), "{error}");
        let file = base.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(
            Folder::new(Some(&file))
                .unwrap_err()
                .to_string()
                .contains("no folder")
        );
        assert!(Folder::new(Some(&base.path().join("a/b"))).is_err());
    }
}
