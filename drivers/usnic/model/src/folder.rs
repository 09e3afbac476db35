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
    /// It was not there before.
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
        let is_mine = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        if !is_mine || found.mode() & 0o077 != 0 {
            let why = "it is no folder of this user that others are kept out of (mode 0700)";
            return Err(failed(
                "use the folder",
                io::Error::new(io::ErrorKind::PermissionDenied, why),
            ));
        }
        Ok(Self {
            path,
            is_ours,
            sockets: Vec::new(),
        })
    }

    /// Listens at a socket of the folder. One that nobody serves any more is replaced.
    pub(crate) fn listen(&mut self, name: &str) -> Result<(UnixListener, PathBuf), Error> {
        let path = self.path.join(name);
        let failed = |what, source| Error::Folder {
            what,
            path: path.clone(),
            source,
        };
        if let Ok(there) = fs::symlink_metadata(&path) {
            let refused = UnixStream::connect(&path).err().map(|error| error.kind());
            if !there.file_type().is_socket() || refused != Some(io::ErrorKind::ConnectionRefused) {
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
        // What cannot be removed is replaced by the next one.
        for socket in &self.sockets {
            let _ = fs::remove_file(socket);
        }
        if self.is_ours {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// A name that nobody else has, below the user's own folder of such things.
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
        // As a killed one leaves it: nobody listens, the socket is there.
        drop(listener);
        assert!(second.listen("pf.sock").is_ok());
        drop(second);
        assert!(path.exists() && !socket.exists(), "the folder is the first one's");
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_others_may_enter_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("open");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let error = Folder::new(Some(&path)).unwrap_err().to_string();
        assert!(error.contains("0700"), "{error}");
        assert!(Folder::new(Some(&base.path().join("a/b"))).is_err());
    }
}
