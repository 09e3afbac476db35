//! What callers of `poll` and its relatives share.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Returns a span of time as system calls take it; one that is too long for them is the longest they have.
#[must_use]
pub fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    }
}

/// Returns the state of a descriptor at this moment: which of these events it has, and whether it was hung up
/// or has an error. It never waits.
///
/// # Errors
/// If the call fails, as when a signal interrupts it.
pub fn state(descriptor: impl AsFd, events: PollFlags) -> Result<PollFlags, Errno> {
    let mut one = [PollFd::new(&descriptor, events)];
    rustix::event::poll(&mut one, Some(&timespec(Duration::ZERO)))?;
    Ok(one[0].revents())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_writable_then_readable_then_hung_up() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert_eq!(state(&read, PollFlags::IN), Ok(PollFlags::empty()));
        assert_eq!(state(&write, PollFlags::OUT), Ok(PollFlags::OUT));
        rustix::io::write(&write, b"x").unwrap();
        assert_eq!(state(&read, PollFlags::IN), Ok(PollFlags::IN));
        drop(write);
        let hung_up = state(&read, PollFlags::empty()).unwrap();
        assert!(hung_up.contains(PollFlags::HUP));
    }

    #[test]
    fn a_span_that_no_call_takes_is_the_longest() {
        let (two, forever) = (timespec(Duration::from_millis(2_500)), timespec(Duration::MAX));
        assert_eq!((two.tv_sec, two.tv_nsec), (2, 500_000_000));
        assert_eq!(forever.tv_sec, i64::MAX);
    }
}
