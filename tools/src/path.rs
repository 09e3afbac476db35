//! Finds programs on the PATH.

use std::fs;
use std::path::{Path, PathBuf};

/// The program of a name on the PATH.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| is_program(file))
}

/// The program of a name in the folders of administration, which are not on the PATH of every user.
pub fn beside_path(name: &str) -> Option<PathBuf> {
    ["/usr/local/sbin", "/usr/sbin", "/sbin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
