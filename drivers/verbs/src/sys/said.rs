//! What a library prints to standard error, caught.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::fs::MemfdFlags;

/// Bytes that are kept of what was printed.
const KEPT: u64 = 4096;

/// One at a time: standard error is the process's.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `call` with standard error turned to memory, and returns what was printed there, without the space
/// at its end. Where that cannot be done, nothing is caught. What other threads print meanwhile is caught,
/// too; `call` is short.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> (T, String) {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(turned) = Turned::new() else {
        return (call(), String::new());
    };
    let result = call();
    (result, turned.end())
}

/// Standard error, while it is turned to memory.
struct Turned {
    memory: File,
    before: OwnedFd,
}

impl Turned {
    fn new() -> Option<Self> {
        let memory = rustix::fs::memfd_create("doorbell-said", MemfdFlags::CLOEXEC).ok()?;
        let before = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).ok()?;
        rustix::stdio::dup2_stderr(&memory).ok()?;
        Some(Self {
            memory: memory.into(),
            before,
        })
    }

    fn end(mut self) -> String {
        // Nothing can be done where that fails, and what is printed from then on is lost.
        let _ = rustix::stdio::dup2_stderr(&self.before);
        let mut bytes = Vec::new();
        let read = self.memory.rewind().and_then(|()| {
            let memory = &mut self.memory;
            memory.take(KEPT).read_to_end(&mut bytes)
        });
        match read {
            Ok(_) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
            Err(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_caught_and_later_words_are_not() {
        let print = |text: &str| {
            let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
        };
        let (result, said) = caught(|| {
            print("no driver\n");
            7
        });
        assert_eq!((result, said.as_str()), (7, "no driver"));
        print("");
        assert_eq!(caught(|| ()).1, "");
    }
}
