//! The states of requests, and what moves them: every move that there is.
//!
//! A move is made by [`Slot::turn`](crate::request::Slot::turn) and by nothing else. The event determines
//! where it leads, so that a release build just stores it; a debug build looks the move up in the tables, and
//! panics over one that is missing. The tables are text and graphs in `snapshots/request-*`.
//!
//! ```text
//!   send     Queued ─► AwaitAck ─► Streaming ─► Done    fragments
//!               │          └─────► Putting ───► Done    writes (or Streaming, when refused)
//!               └────► AwaitFin ──────────────► Done    reads by the receiver (or Streaming, when refused)
//!   receive  Posted ─► Fragments | Getting | PutExposed ─► Done
//!               └────► Held ──────────────────────────────► Done    read where it lies, until it is released
//!   operation  … ─► AwaitAnswer ─► Done                 its bytes have left, the target answers
//!              AwaitReply ─► Fragments | … ─► Done      it returns bytes
//!              Replying ─► AwaitAck | … ─► Done         the target sends them
//!   both     a path breaks ─► SendRestart, RecvRestart ─► where an announcement leads
//! ```

/// Where a request is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// There is no request.
    Free,
    /// Ended; the outcome waits to be tested.
    Done,
    /// Receive: nothing has matched yet.
    Posted,
    /// Multi-receive: linked, or released and waiting for transfers into it.
    Multi,
    /// Receive: matched, fragments come.
    Fragments,
    /// Receive: matched, we read the sender's memory.
    Getting,
    /// Receive: matched, the sender writes our memory.
    PutExposed,
    /// Receive: our owner reads the sender's memory where it lies.
    Held,
    /// Send: nothing has left yet.
    Queued,
    /// Send: announced, the receiver has not answered.
    AwaitAck,
    /// Send: announced with exposed memory, the receiver has not finished reading.
    AwaitFin,
    /// Send: fragments leave.
    Streaming,
    /// Send: we write the receiver's memory.
    Putting,
    /// Send: the rendezvous is being restarted.
    SendRestart,
    /// Receive: the same.
    RecvRestart,
    /// Send to ourselves: no receive has matched yet.
    SelfWait,
    /// Operation: its bytes have left, the target has not answered.
    AwaitAnswer,
    /// Operation that returns bytes: the target has not begun to send them.
    AwaitReply,
    /// What an operation returns: nothing of it has left yet.
    Replying,
}

impl State {
    /// Whether it is a receive that matched an announcement, and has not ended.
    pub(crate) const fn is_receiving(self) -> bool {
        matches!(
            self,
            Self::Fragments | Self::Getting | Self::PutExposed | Self::Held | Self::RecvRestart
        )
    }

    /// Whether it is one end of a transfer: a receive as above, or a send that was announced.
    pub(crate) const fn is_transfer(self) -> bool {
        self.is_receiving()
            || self.is_send() && !matches!(self, Self::Queued)
            || matches!(self, Self::AwaitReply)
    }

    /// Whether it is a send to another rank that has not ended.
    pub(crate) const fn is_send(self) -> bool {
        matches!(
            self,
            Self::Queued
                | Self::AwaitAck
                | Self::AwaitFin
                | Self::Streaming
                | Self::Putting
                | Self::SendRestart
                | Self::AwaitAnswer
                | Self::Replying
        )
    }
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Send: made; the same to ourselves.
    Sent,
    SentToSelf,
    /// Send: the announcement has left; with exposed memory.
    Announced,
    Exposed,
    /// Send: the receiver requests fragments, or lets us write.
    Asked,
    Invited,
    /// Send: the receiver's memory refuses our write.
    Refused,
    /// Send: its path broke, at one of the ends.
    SendStopped,
    /// Operation: its bytes have left; one that returns bytes is made; they are to be sent.
    HandedOver,
    Requested,
    Replies,
    /// Receive: posted; as a multi-receive; a message takes a part of one.
    Posted,
    Opened,
    Parted,
    /// Receive: we request fragments, read, or let the sender write.
    Asks,
    Reads,
    Invites,
    /// Receive: our owner reads the sender's memory where it lies.
    Holds,
    /// Receive: fragments come, though something else was agreed on.
    Surprised,
    /// Receive: matched with an announcement that is being restarted.
    Outdated,
    /// Receive: its path broke, at one of the ends.
    ReceiveStopped,
    /// It ends: with all its bytes (that they were cut off, or are wrong, is its outcome), by its owner, with
    /// its peer, by the other side.
    Completed,
    Cancelled,
    PeerLost,
    SendAborted,
    Rejected,
    /// The target of an operation has not done it.
    Denied,
    /// Its slot is given back.
    Freed,
}

impl Event {
    /// The state that it leads to.
    #[inline(always)]
    pub(crate) const fn leads_to(self) -> State {
        match self {
            Self::Sent => State::Queued,
            Self::SentToSelf => State::SelfWait,
            Self::Announced => State::AwaitAck,
            Self::Exposed => State::AwaitFin,
            Self::Asked | Self::Refused => State::Streaming,
            Self::Invited => State::Putting,
            Self::SendStopped => State::SendRestart,
            Self::Posted => State::Posted,
            Self::Opened => State::Multi,
            Self::Parted | Self::Asks | Self::Surprised => State::Fragments,
            Self::Reads => State::Getting,
            Self::Invites => State::PutExposed,
            Self::Holds => State::Held,
            Self::Outdated | Self::ReceiveStopped => State::RecvRestart,
            Self::HandedOver => State::AwaitAnswer,
            Self::Requested => State::AwaitReply,
            Self::Replies => State::Replying,
            Self::Completed
            | Self::Cancelled
            | Self::PeerLost
            | Self::SendAborted
            | Self::Rejected
            | Self::Denied => State::Done,
            Self::Freed => State::Free,
        }
    }
}

/// A move: from, by, to.
pub(crate) type Transition = (State, Event, State);

const fn go(from: State, by: Event) -> Transition {
    (from, by, by.leads_to())
}

/// Every move of a send.
pub(crate) const SEND: &[Transition] = {
    use {Event as E, State as S};
    &[
        go(S::Free, E::Sent),
        go(S::Queued, E::Announced),
        go(S::Queued, E::Exposed),
        go(S::Queued, E::Completed),
        go(S::Queued, E::Cancelled),
        go(S::Queued, E::PeerLost),
        go(S::Queued, E::Freed),
        // A whole message that a rail gave back, and that is too long for the next one.
        go(S::Free, E::Announced),
        go(S::AwaitAck, E::Asked),
        go(S::AwaitAck, E::Invited),
        go(S::AwaitAck, E::SendStopped),
        go(S::AwaitAck, E::Completed),
        go(S::AwaitAck, E::PeerLost),
        go(S::AwaitAck, E::Rejected),
        go(S::AwaitAck, E::Freed),
        go(S::AwaitFin, E::Asked),
        go(S::AwaitFin, E::SendStopped),
        go(S::AwaitFin, E::Completed),
        go(S::AwaitFin, E::PeerLost),
        go(S::AwaitFin, E::Rejected),
        go(S::AwaitFin, E::Freed),
        go(S::Streaming, E::SendStopped),
        go(S::Streaming, E::Completed),
        go(S::Streaming, E::PeerLost),
        go(S::Streaming, E::Freed),
        go(S::Putting, E::Refused),
        go(S::Putting, E::SendStopped),
        go(S::Putting, E::Completed),
        go(S::Putting, E::Cancelled),
        go(S::Putting, E::PeerLost),
        go(S::Putting, E::Freed),
        go(S::SendRestart, E::Announced),
        go(S::SendRestart, E::Exposed),
        go(S::SendRestart, E::Completed),
        go(S::SendRestart, E::Cancelled),
        go(S::SendRestart, E::PeerLost),
        go(S::SendRestart, E::Rejected),
        go(S::SendRestart, E::Freed),
        go(S::Free, E::SentToSelf),
        go(S::SelfWait, E::Completed),
        go(S::SelfWait, E::Cancelled),
        go(S::SelfWait, E::Rejected),
        go(S::SelfWait, E::Freed),
        // An operation: at once, behind others, as a rendezvous.
        go(S::Free, E::HandedOver),
        go(S::Queued, E::HandedOver),
        go(S::AwaitAck, E::HandedOver),
        go(S::AwaitFin, E::HandedOver),
        go(S::Streaming, E::HandedOver),
        go(S::Putting, E::HandedOver),
        go(S::SendRestart, E::HandedOver),
        go(S::AwaitAnswer, E::Completed),
        go(S::AwaitAnswer, E::Denied),
        go(S::AwaitAnswer, E::PeerLost),
        go(S::AwaitAnswer, E::Freed),
        // What one returns.
        go(S::Free, E::Replies),
        go(S::Replying, E::Announced),
        go(S::Replying, E::Exposed),
        go(S::Replying, E::Completed),
        go(S::Replying, E::PeerLost),
        go(S::Replying, E::Freed),
        go(S::Streaming, E::Denied),
        go(S::Done, E::Freed),
    ]
};

/// Every move of a receive.
pub(crate) const RECEIVE: &[Transition] = {
    use {Event as E, State as S};
    &[
        go(S::Free, E::Posted),
        go(S::Posted, E::Opened),
        go(S::Posted, E::Asks),
        go(S::Posted, E::Reads),
        go(S::Posted, E::Invites),
        go(S::Posted, E::Holds),
        go(S::Posted, E::Outdated),
        go(S::Posted, E::Completed),
        go(S::Posted, E::Cancelled),
        go(S::Posted, E::PeerLost),
        go(S::Posted, E::SendAborted),
        go(S::Posted, E::Freed),
        go(S::Free, E::Parted),
        go(S::Fragments, E::Asks),
        go(S::Fragments, E::Reads),
        go(S::Fragments, E::Invites),
        go(S::Fragments, E::Outdated),
        go(S::Fragments, E::ReceiveStopped),
        go(S::Fragments, E::Completed),
        go(S::Fragments, E::PeerLost),
        go(S::Fragments, E::SendAborted),
        go(S::Fragments, E::Freed),
        go(S::Getting, E::Asks),
        go(S::Getting, E::ReceiveStopped),
        go(S::Getting, E::Completed),
        go(S::Getting, E::Cancelled),
        go(S::Getting, E::PeerLost),
        go(S::Getting, E::Freed),
        go(S::PutExposed, E::Asks),
        go(S::PutExposed, E::Surprised),
        go(S::PutExposed, E::ReceiveStopped),
        go(S::PutExposed, E::Completed),
        go(S::PutExposed, E::PeerLost),
        go(S::PutExposed, E::SendAborted),
        go(S::PutExposed, E::Freed),
        // No break of a path ends it, nor a restart that the sender begins: its release ends that, too.
        go(S::Held, E::Completed),
        go(S::Held, E::PeerLost),
        go(S::Held, E::Freed),
        go(S::RecvRestart, E::Asks),
        go(S::RecvRestart, E::Reads),
        go(S::RecvRestart, E::Invites),
        go(S::RecvRestart, E::Surprised),
        go(S::RecvRestart, E::ReceiveStopped),
        go(S::RecvRestart, E::Completed),
        go(S::RecvRestart, E::Cancelled),
        go(S::RecvRestart, E::PeerLost),
        go(S::RecvRestart, E::SendAborted),
        go(S::RecvRestart, E::Freed),
        // An operation that returns bytes.
        go(S::Free, E::Requested),
        go(S::AwaitReply, E::Asks),
        go(S::AwaitReply, E::Reads),
        go(S::AwaitReply, E::Invites),
        go(S::AwaitReply, E::Outdated),
        go(S::AwaitReply, E::Completed),
        go(S::AwaitReply, E::Denied),
        go(S::AwaitReply, E::PeerLost),
        go(S::AwaitReply, E::Freed),
        // A transfer into a window, or of bytes that an operation returns, is cut off.
        go(S::Fragments, E::Denied),
        go(S::Getting, E::Denied),
        go(S::PutExposed, E::Denied),
        go(S::RecvRestart, E::Denied),
        go(S::Multi, E::Completed),
        go(S::Multi, E::Cancelled),
        go(S::Multi, E::PeerLost),
        go(S::Multi, E::Freed),
        go(S::Done, E::Freed),
    ]
};

/// Whether the tables have this move.
pub(crate) fn is_listed(from: State, by: Event) -> bool {
    let this = go(from, by);
    SEND.contains(&this) || RECEIVE.contains(&this)
}

#[cfg(test)]
mod tests {
    use doorbell_testing::snapshot;

    use super::*;

    #[test]
    fn the_moves_are_those_of_the_snapshots() {
        let file = |name: &str| format!("{}/src/snapshots/{name}", env!("CARGO_MANIFEST_DIR"));
        snapshot::check(
            &file("request-send.txt"),
            include_str!("snapshots/request-send.txt"),
            SEND,
        );
        snapshot::check_graph(
            &file("request-send.dot"),
            include_str!("snapshots/request-send.dot"),
            "request_send",
            SEND,
        );
        snapshot::check(
            &file("request-receive.txt"),
            include_str!("snapshots/request-receive.txt"),
            RECEIVE,
        );
        snapshot::check_graph(
            &file("request-receive.dot"),
            include_str!("snapshots/request-receive.dot"),
            "request_receive",
            RECEIVE,
        );
    }

    #[test]
    fn no_move_is_listed_twice() {
        for moves in [SEND, RECEIVE] {
            for (at, this) in moves.iter().enumerate() {
                assert!(!moves[..at].contains(this), "{this:?}");
            }
        }
    }

    /// Sends and receives share the ends alone.
    #[test]
    fn a_send_never_becomes_a_receive() {
        for (from, _, to) in SEND {
            for state in [from, to]
                .into_iter()
                .filter(|state| !matches!(state, State::Free | State::Done))
            {
                assert!(
                    !RECEIVE.iter().any(|(from, _, to)| from == state || to == state),
                    "{state:?}"
                );
            }
        }
    }

    /// Whatever happened, a request can end well, and its peer may be lost in any state that needs it.
    #[test]
    fn every_state_leads_to_an_end() {
        for moves in [SEND, RECEIVE] {
            for (state, _, _) in moves.iter().filter(|(from, _, _)| *from != State::Free) {
                let by = |event| moves.contains(&go(*state, event));
                assert!(by(Event::Freed), "{state:?} is never freed");
                assert!(
                    *state == State::Done || by(Event::Completed),
                    "{state:?} never completes"
                );
                let alone = matches!(state, State::Done | State::SelfWait);
                assert!(alone || by(Event::PeerLost), "{state:?} outlives its peer");
            }
        }
    }

    #[test]
    fn what_is_not_listed_is_no_move() {
        assert!(is_listed(State::Posted, Event::Reads));
        assert!(!is_listed(State::Queued, Event::Reads), "a send reads nothing");
        assert!(!is_listed(State::Done, Event::Completed), "nothing ends twice");
        assert!(!is_listed(State::Free, Event::Freed), "nothing is freed twice");
    }
}
