//! Peers to which the kernel refuses to send, with its last error. A short list, since most peers are never
//! refused.

use rustix::io::Errno;

/// Most paths remembered. When more are refused at once, the oldest are dropped: they have the same reason as
/// the others.
const MOST: usize = 64;

/// Consecutive frames to one peer that the kernel refused to send on one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusals {
    peer: u32,
    channel: usize,
    pub(crate) frames: u64,
    /// The error of the last one.
    pub(crate) errno: Errno,
}

/// The paths whose last frame was refused.
#[derive(Debug, Default)]
pub(crate) struct RefusedPaths(Vec<Refusals>);

impl RefusedPaths {
    /// Records a refused frame.
    #[cold]
    pub(crate) fn note(&mut self, peer: u32, channel: usize, errno: Errno) {
        if let Some(known) = self
            .0
            .iter_mut()
            .find(|one| (one.peer, one.channel) == (peer, channel))
        {
            known.frames += 1;
            known.errno = errno;
            return;
        }
        if self.0.len() == MOST {
            self.0.remove(0);
        }
        self.0.push(Refusals {
            peer,
            channel,
            frames: 1,
            errno,
        });
    }

    /// Forgets the refusals of a path on which a frame was sent.
    #[inline]
    pub(crate) fn clear(&mut self, peer: u32, channel: usize) {
        if !self.0.is_empty() {
            self.0.retain(|one| (one.peer, one.channel) != (peer, channel));
        }
    }

    /// The refusals of a peer, on the channel that has more.
    pub(crate) fn of(&self, peer: u32) -> Option<&Refusals> {
        let own = self.0.iter().filter(|one| one.peer == peer);
        own.max_by_key(|one| one.frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_count_by_path_until_a_frame_leaves() {
        let mut refused = RefusedPaths::default();
        refused.note(3, 0, Errno::PERM);
        refused.note(3, 1, Errno::PERM);
        refused.note(3, 1, Errno::NOBUFS);
        let most = refused.of(3).unwrap();
        assert_eq!((most.frames, most.errno), (2, Errno::NOBUFS));
        assert_eq!(refused.of(4), None);
        refused.clear(3, 1);
        assert_eq!(refused.of(3).unwrap().errno, Errno::PERM);
        refused.clear(3, 0);
        assert_eq!(refused.of(3), None);
        for peer in 0..1_000 {
            refused.note(peer, 0, Errno::PERM);
        }
        assert_eq!((refused.0.len(), refused.of(0)), (MOST, None));
        assert!(refused.of(999).is_some());
    }
}
