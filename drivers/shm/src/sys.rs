//! All unsafe system calls: reading and writing another process's memory.

use std::io;

use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::Landing;

/// Copies from `address` of process `pid` into `into`; returns the number of bytes copied.
///
/// # Errors
/// As process_vm_readv(2): `EPERM` without the right, `ESRCH` when the process is gone, `EFAULT` for a bad
/// address.
pub(crate) fn read_process(pid: i32, address: u64, into: &Landing) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address as usize),
        iov_len: into.len(),
    };
    // SAFETY: the kernel writes at most `into.len()` bytes to `into`, which the landing keeps or its loan
    // promises to be writable; the remote range is checked by the kernel against the other process and never
    // touched here.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Copies `length` bytes at `address` of this process to `into` in process `pid`; returns the number of bytes
/// copied. The caller has to know that the destination is lent for this: see [`crate::coop_copy::state`].
///
/// # Errors
/// As process_vm_writev(2): `EPERM` without the right, `ESRCH` when the process is gone, `EFAULT` for a bad
/// address at either end.
pub(crate) fn write_process(pid: i32, address: u64, into: u64, length: usize) -> io::Result<usize> {
    let [local, remote] = [address, into].map(|at| libc::iovec {
        iov_base: std::ptr::without_provenance_mut(at as usize),
        iov_len: length,
    });
    // SAFETY: the kernel reads at most `length` bytes at `address` and refuses what is not mapped. What it
    // writes is the other process's memory (ours only where both ends are in one process), lent by its
    // request and kept until our progress finds that the share has ended.
    let written = unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Reads the nonce of another process; `None` if that is not possible.
pub(crate) fn read_nonce(pid: i32, address: u64) -> Option<[u8; 16]> {
    try_read(pid, address).ok()
}

/// Copies 16 bytes at `address` of process `pid` as the rail does it for long messages (process_vm_readv(2)),
/// for diagnosis.
///
/// # Errors
/// The system's error: `EPERM` without the right, `ENOSYS` where a container forbids the call, `ESRCH` when
/// the process is gone, `EFAULT` for a bad address.
pub fn try_read(pid: i32, address: u64) -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // SAFETY: the loan is used within this call only, while `bytes` is borrowed by nothing else.
    let into = unsafe { MutLoan::new(bytes.as_mut_ptr(), bytes.len()) };
    match read_process(pid, address, &Landing::Loan(into))? {
        16 => Ok(bytes),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_read_itself_and_learns_why_not() {
        let nonce = [7u8; 16];
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        assert_eq!(read_nonce(pid, nonce.as_ptr().addr() as u64), Some(nonce));
        assert_eq!(read_nonce(pid, 8), None);
        let mut byte = 0u8;
        // SAFETY: lent for one call.
        let into = unsafe { MutLoan::new(&raw mut byte, 1) };
        let into = Landing::Loan(into);
        assert_eq!(
            read_process(pid, 8, &into).unwrap_err().raw_os_error(),
            Some(libc::EFAULT)
        );
        assert_eq!(
            read_process(i32::MAX, 8, &into).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
    }
}
