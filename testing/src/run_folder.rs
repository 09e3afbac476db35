//! Programs whose `/run` is a folder of the test: they find the sockets that they look for there, and the
//! machine's are not touched.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns a command that sees `folder` as `/run`, in a mount namespace of its own. `before` are the words
/// that it is started with, as `ip netns exec HOST`.
pub fn with_run(before: &[&str], folder: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut words = before.iter().copied().chain([
        "unshare",
        "--mount",
        "sh",
        "-c",
        r#"mount --bind "$0" /run && exec "$@""#,
    ]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).arg(folder).arg(program).stdin(Stdio::null());
    command
}
