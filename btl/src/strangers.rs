//! Pending callers: frames of connections that are not open here are dropped, and their ids noted where they
//! may begin something.
//!
//! Both ends derive the id of a connection from the job's key, their addresses and their incarnations.
//! Nothing here was checked: the MAC of a frame needs the peer.

use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::Caller;
use doorbell_fabric::time::Time;

use crate::btl::Btl;
use crate::core::Core;
use crate::counters::Drop;
use crate::wire::{Kind, Parsed};

impl Core {
    /// Takes a frame whose connection is not open here: a hello, if it is one, or notes the connection. A
    /// frame that only answers begins nothing: its connection has ended.
    ///
    /// # Errors
    /// [`Drop`], for all but a hello, which is counted as it is taken or dropped.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_stranger(&mut self, parsed: &Parsed, frame: SharedBytes<'_>) -> Result<(), Drop> {
        if parsed.kind == Kind::Hello {
            self.on_hello(parsed, frame);
            return Ok(());
        }
        let begins = match parsed.kind {
            Kind::Frag | Kind::Chunk | Kind::Put | Kind::Get | Kind::Atomic | Kind::Ping | Kind::Call => true,
            Kind::Ack | Kind::Data | Kind::End | Kind::Bye | Kind::Pong | Kind::Hello => false,
        };
        if begins && !self.phase.is_closing() {
            let now = Time::from_nanos(self.clock.now());
            self.strangers.note(parsed.connection, now);
        }
        Err(Drop::Unknown)
    }
}

impl<D: Datagram> Btl<D> {
    /// Returns the next incoming connection that is not open here; the implementation of
    /// [`Message::stranger`](doorbell_fabric::message::Message::stranger).
    #[inline]
    pub(crate) fn next_stranger(&mut self) -> Option<Caller> {
        self.core.strangers.report()
    }
}
