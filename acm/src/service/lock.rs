//! The lock file: one service per file, and compatible with the lock of the original ibacm.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use super::ServiceError;

/// Bytes read of the file: a process number.
const LONGEST: u64 = 16;

/// A lock file held until this is dropped. The file stays, empty: removing it would break the lock of a
/// process that is waiting for it.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Takes the lock and writes this process's number into the file.
    ///
    /// # Errors
    /// [`ServiceError::Locked`] when another process holds it; [`ServiceError::Lock`] when the file cannot be
    /// opened.
    pub(super) fn take(path: &Path) -> Result<Self, ServiceError> {
        let failed = |source| ServiceError::Lock {
            path: path.to_owned(),
            source,
        };
        let mut file = open(path).map_err(failed)?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => {
                return Err(ServiceError::Locked {
                    path: path.to_owned(),
                    holder: holder(&mut file),
                });
            }
            Err(error) => return Err(failed(error.into())),
        }
        write(&mut file).map_err(failed)?;
        Ok(Self(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The content of an unlocked file has no meaning, so a failure does no harm.
        let _ = self.0.set_len(0);
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Do not block on a pipe, and keep what another process wrote until the lock is ours.
    options.read(true).write(true).create(true).truncate(false);
    let file = options.custom_flags(libc::O_NONBLOCK).mode(0o644).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

fn write(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_our_process_while_it_is_ours_and_is_no_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        std::fs::write(&path, "an older and longer one\n").unwrap();
        let lock = Lock::take(&path).unwrap();
        let own = format!("{}\n", std::process::id());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), own);
        assert_eq!(holder(&mut File::open(&path).unwrap()), Some(std::process::id()));
        drop(lock);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        for bad in [
            folder.path(),
            Path::new("/dev/null"),
            &folder.path().join("no/lock"),
        ] {
            let error = Lock::take(bad).unwrap_err();
            assert!(matches!(error, ServiceError::Lock { .. }), "{error}");
        }
    }
}
