//! Takes over the descriptor that a launcher leaves open for its processes, by its number.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::FileType;
use rustix::io::FdFlags;

/// Takes over the descriptor `number`, which has to be an open socket, and makes it close-on-exec. Call it
/// once in the life of a process: the caller then owns the descriptor.
///
/// # Errors
/// Why it cannot be the launcher's descriptor.
pub(crate) fn take(number: i32) -> Result<OwnedFd, String> {
    // Standard input, output and error belong to the process itself.
    if number <= 2 {
        return Err(format!("{number} is not the number of a launcher's descriptor"));
    }
    // SAFETY: borrowed for the two system calls below only; with a number that is not open they fail, and it
    // is not used.
    let looked = unsafe { BorrowedFd::borrow_raw(number) };
    let found = rustix::fs::fstat(looked).map_err(|_| "it is not open".to_owned())?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err("it is not a socket".to_owned());
    }
    rustix::io::fcntl_setfd(looked, FdFlags::CLOEXEC)
        .map_err(|error| format!("cannot make it close-on-exec: {error}"))?;
    // SAFETY: the launcher opened it for this process and named it in PMI_FD, so nothing else in the process
    // owns it; `launch::take_place` lets one call through in the life of the process.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_an_open_socket_is_taken() {
        let error = |number| take(number).unwrap_err();
        assert!(error(1).contains("not the number"));
        assert!(error(-1).contains("not the number"));
        assert_eq!(error(1_000_000), "it is not open");
        let file = std::fs::File::open("/proc/self/maps").unwrap();
        assert_eq!(error(file.as_raw_fd()), "it is not a socket");
    }

    #[test]
    fn what_is_taken_is_not_inherited_and_is_closed_with_its_owner() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let number = ours.into_raw_fd();
        let taken = take(number).unwrap();
        assert_eq!(rustix::io::fcntl_getfd(&taken).unwrap(), FdFlags::CLOEXEC);
        drop(taken);
        let mut byte = [0];
        assert_eq!(std::io::Read::read(&mut theirs, &mut byte).unwrap(), 0);
    }
}
