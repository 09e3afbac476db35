//! What is at the path of a socket, without a connection to it: a function that another process uses would
//! not answer.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::Access;

/// What is at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Socket {
    /// A socket, with or without a process that listens.
    There,
    /// The path does not exist.
    Missing,
    /// It is of this user, and this process may not connect to it: number of the user.
    Forbidden(Option<u32>),
    /// There is another file, which is no socket.
    File,
}

/// Returns what is at the path of a socket.
pub(super) fn look(path: &Path) -> Socket {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Socket::Forbidden(owner(path)),
        Err(_) => Socket::Missing,
        Ok(there) if !there.file_type().is_socket() => Socket::File,
        // To connect takes the right to write.
        Ok(there) if rustix::fs::access(path, Access::WRITE_OK).is_err() => {
            Socket::Forbidden(Some(there.uid()))
        }
        Ok(_) => Socket::There,
    }
}

/// Returns its owner: that of the first folder above it that is visible.
fn owner(path: &Path) -> Option<u32> {
    let seen = |path: &Path| std::fs::symlink_metadata(path).ok();
    path.ancestors().find_map(seen).map(|there| there.uid())
}

/// Formats a user for people.
pub(super) fn user(number: Option<u32>) -> String {
    number.map_or_else(
        || "another user".to_owned(),
        |number| format!("the user number {number}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_are_there_missing_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        drop(UnixListener::bind(at("s")).unwrap());
        assert_eq!((look(&at("s")), look(&at("t"))), (Socket::There, Socket::Missing));
        std::fs::write(at("t"), "").unwrap();
        assert_eq!(look(&at("t")), Socket::File);
    }
}
