//! One socket for both directions: each lane comes over a socket of its own, and once both ends have both
//! lanes one of the two is enough, to wake the other end and to notice its end.
//!
//! ```text
//!   the smaller id                                         the other end
//!   sends MERGE over its own lane's socket  ──────────►    uses that socket for its lane, too,
//!   uses it for the other lane, too         ◄── closes ──  and closes its own
//! ```
//!
//! The one that begins keeps the other socket until it is closed, since a wake-up may still come over it. An
//! end that cannot send at the moment leaves it at two sockets: nothing depends on there being one.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::epoll;

use crate::connect;
use crate::pull::hung_up;
use crate::rail::ShmRail;
use crate::tx::Handshake;

impl ShmRail {
    /// Begins to use one socket, if both lanes are there and it is our turn.
    pub(crate) fn begin_one_socket(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        let (Some(tx), Some(rx)) = (&peer.tx, &mut peer.rx) else {
            return;
        };
        let Handshake::Up(far) = &tx.handshake else { return };
        let apart = !Arc::ptr_eq(&far.socket, &rx.socket) && rx.parting.is_none() && !rx.orphaned;
        if self.id < peer.id && apart && connect::send_merge(&far.socket) {
            rx.parting = Some(std::mem::replace(&mut rx.socket, Arc::clone(&far.socket)));
        }
    }

    /// The other end has sent MERGE over the socket of its lane: ours uses it, too.
    pub(crate) fn follow_to_one_socket(&mut self, index: u32) {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return;
        };
        if peer
            .tx_mut()
            .is_some_and(|tx| matches!(tx.handshake, Handshake::HelloSent(..)))
        {
            // Its welcome came before, over our socket.
            self.on_tx(index, false);
        }
        let peer = &mut self.peers[index as usize];
        let Some(socket) = peer.rx_mut().map(|rx| Arc::clone(&rx.socket)) else {
            return;
        };
        if let Some(tx) = peer.tx_mut()
            && let Handshake::Up(far) = &mut tx.handshake
            && !Arc::ptr_eq(&far.socket, &socket)
        {
            let _ = epoll::delete(&self.epoll, &*far.socket);
            far.socket = socket;
        }
    }

    /// Takes what still comes over a socket that the other end is about to close, and closes it then.
    pub(crate) fn part(&mut self, index: u32) {
        let Some(rx) = self
            .peers
            .get_mut(index as usize)
            .and_then(|peer| peer.rx.as_mut())
        else {
            return;
        };
        if let Some(old) = &rx.parting
            && (connect::drain(old).hung_up || hung_up(old.as_fd()))
        {
            let _ = epoll::delete(&self.epoll, &**old);
            rx.parting = None;
        }
    }
}
