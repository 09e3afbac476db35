//! Ranks that have ended, as `doorbell run` reports them while their job meets: a rank that ended before it
//! joined will never join.
//!
//! The launcher listens at the root's name with the suffix [`SUFFIX`], and writes the number of each rank
//! that has ended with exit status 0, one a line (any other end is the end of the job). Ranks that were
//! started by hand have no such launcher: they wait for the missing ones until their time is up.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, read};
use rustix::net::connect;

use super::{Root, peer_uid, stream_socket};

/// Suffix of the root's abstract name: the address at which the launcher reports ends of ranks.
pub(super) const SUFFIX: &str = "-ended";
/// Longest line: the number of a rank.
const LINE: usize = 10;

/// The reports of the launcher so far.
#[derive(Debug, Default)]
pub(super) struct Ended {
    launcher: Option<OwnedFd>,
    line: Vec<u8>,
    ranks: Vec<u32>,
}

impl Ended {
    /// Connects to the launcher of the job that meets at `root`, if there is one.
    pub(super) fn watch(root: &Root) -> Self {
        Self {
            launcher: reach(root),
            ..Self::default()
        }
    }

    /// Returns the descriptor that is readable when [`Ended::look`] has something to read.
    pub(super) fn descriptor(&self) -> Option<&OwnedFd> {
        self.launcher.as_ref()
    }

    /// Reads what the launcher has written, without waiting.
    pub(super) fn look(&mut self) {
        let mut buffer = [0; 512];
        while let Some(launcher) = &self.launcher {
            match read(launcher, &mut buffer) {
                Ok(count @ 1..) => self.take(&buffer[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The launcher has ended, and this process will with it.
                Ok(_) | Err(_) => self.launcher = None,
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    let rank = std::str::from_utf8(&line).ok();
                    self.ranks.extend(rank.and_then(|rank| rank.parse::<u32>().ok()));
                }
                _ if self.line.len() < LINE => self.line.push(*byte),
                // Too long for a number: not written by our launcher.
                _ => {}
            }
        }
    }

    /// Returns the first of the ranks that have ended for which `is_missing` holds.
    pub(super) fn first(&self, is_missing: impl Fn(u32) -> bool) -> Option<u32> {
        self.ranks.iter().copied().find(|rank| is_missing(*rank))
    }
}

fn reach(root: &Root) -> Option<OwnedFd> {
    let Root::Abstract(name) = root else { return None };
    let reports = Root::Abstract(format!("{name}{SUFFIX}"));
    let launcher = stream_socket(&reports).ok()?;
    connect(&launcher, &reports.address().ok()?).ok()?;
    let ours = rustix::process::geteuid().as_raw();
    (peer_uid(&launcher) == Ok(ours)).then_some(launcher)
}
