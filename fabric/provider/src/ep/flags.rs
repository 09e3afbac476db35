//! Flags of single operations: which are ours, and what they mean.

use libfabric_sys::*;

use crate::errno::{Errno, Result};

/// Completion levels that wait for the peer to take the message into its buffer.
const TAKEN: u64 = FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
/// Flags of sends. A fence waits for reads and writes alone: messages of one sender are taken in their order.
pub(crate) const SEND: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | TAKEN
    | FI_REMOTE_CQ_DATA
    | FI_MORE
    | FI_FENCE;
/// Flags of writes of a peer's memory.
pub(crate) const WRITE: u64 = SEND & !FI_MATCH_COMPLETE;
/// Flags of reads of a peer's memory, which take nothing of the levels of completion.
pub(crate) const READ: u64 =
    FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MORE | FI_FENCE;
/// Flags of atomics. What they bring to the peer is no data of its queue.
pub(crate) const ATOMIC: u64 = WRITE & !FI_REMOTE_CQ_DATA;
/// Flags of untagged receives.
pub(crate) const RECEIVE: u64 = FI_COMPLETION | FI_MORE | FI_MULTI_RECV;
/// Flags that may be the default of sends: not those that are of one message alone.
pub(crate) const SEND_DEFAULTS: u64 = SEND & !(FI_REMOTE_CQ_DATA | FI_FENCE);
/// Flags that may be the default of receives.
pub(crate) const RECEIVE_DEFAULTS: u64 = RECEIVE;
/// Flags of tagged receives.
pub(crate) const TAGGED_RECEIVE: u64 = FI_COMPLETION | FI_MORE | FI_PEEK | FI_CLAIM | FI_DISCARD;
/// Flags that libfabric has for operations, and that are not offered here.
const OTHERS: u64 = FI_COMMIT_COMPLETE
    | FI_MULTICAST
    | FI_TRIGGER
    | FI_PEER_TRANSFER
    | FI_XPU
    | FI_AUTH_KEY
    | FI_MULTI_RECV
    | FI_PEEK
    | FI_CLAIM
    | FI_DISCARD
    | FI_TAGGED
    | SEND;

/// Checks the flags of an operation of which `ours` are offered.
///
/// # Errors
/// `FI_EOPNOTSUPP` for flags that are known and not offered, `FI_EBADFLAGS` for all others.
#[inline(always)]
pub(crate) fn check(flags: u64, ours: u64) -> Result<()> {
    if flags & !ours == 0 {
        return Ok(());
    }
    Err(refuse(flags, ours))
}

#[cold]
fn refuse(flags: u64, ours: u64) -> Errno {
    match flags & !(ours | OTHERS) {
        0 => Errno(FI_EOPNOTSUPP),
        _ => Errno(FI_EBADFLAGS),
    }
}

/// Whether a send ends when the peer has taken the message, and not before; or may have to wait to begin.
#[inline(always)]
pub(crate) const fn is_slow(flags: u64) -> bool {
    flags & (TAKEN | FI_FENCE) != 0
}

/// Whether a send ends when the peer has taken the message, and not before.
#[inline(always)]
pub(crate) const fn waits_for_peer(flags: u64) -> bool {
    flags & TAKEN != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_ours_or_known_or_wrong() {
        assert_eq!(
            check(FI_INJECT | FI_DELIVERY_COMPLETE | FI_COMPLETION, SEND),
            Ok(())
        );
        assert_eq!(check(FI_INJECT | FI_REMOTE_CQ_DATA | FI_FENCE, WRITE), Ok(()));
        assert_eq!(check(FI_MATCH_COMPLETE, WRITE), Err(Errno(FI_EOPNOTSUPP)));
        assert_eq!(check(FI_REMOTE_CQ_DATA, READ), Err(Errno(FI_EOPNOTSUPP)));
        assert_eq!(check(FI_INJECT | FI_FENCE | FI_MORE, ATOMIC), Ok(()));
        assert_eq!(check(FI_TAGGED, ATOMIC), Err(Errno(FI_EOPNOTSUPP)));
        assert_eq!(check(FI_REMOTE_CQ_DATA, ATOMIC), Err(Errno(FI_EOPNOTSUPP)));
        assert!(is_slow(FI_FENCE) && is_slow(FI_DELIVERY_COMPLETE) && !is_slow(FI_MORE));
        assert_eq!(check(FI_COMMIT_COMPLETE, SEND), Err(Errno(FI_EOPNOTSUPP)));
        assert_eq!(check(FI_MULTI_RECV, TAGGED_RECEIVE), Err(Errno(FI_EOPNOTSUPP)));
        assert_eq!(check(FI_PEEK | FI_CLAIM | FI_DISCARD, TAGGED_RECEIVE), Ok(()));
        assert_eq!(check(1 << 63, SEND), Err(Errno(FI_EBADFLAGS)));
        assert_eq!(check(FI_FENCE, SEND), Ok(()));
        assert_eq!(check(FI_FENCE, SEND_DEFAULTS), Err(Errno(FI_EOPNOTSUPP)));
        assert_eq!(
            check(FI_COMMIT_COMPLETE | 1 << 63, SEND),
            Err(Errno(FI_EBADFLAGS))
        );
        assert!(waits_for_peer(FI_MATCH_COMPLETE) && !waits_for_peer(FI_TRANSMIT_COMPLETE));
    }
}
