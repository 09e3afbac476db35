//! Socket events: handshakes, wake-ups, and peers that close or die.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::error::RailError;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::map::{Object, Protection};
use doorbell_fabric::message::{Incarnation, Refused};
use doorbell_fabric::poll::timespec;
use doorbell_fabric::rail::Work;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::connect::{self, DialOutcome, Received, ReceivedHello, is_out_of_files, system};
use crate::forget::{Acquaintance, drop_older};
use crate::lease::Foreign;
use crate::map::{Sides, sides};
use crate::pull::Memory;
use crate::rail::ShmRail;
use crate::ready::Ready;
use crate::rx::Rx;
use crate::shortage::AwaitingHello;
use crate::tx::{CLOSED, FRONT_WORDS, Handshake, RemoteEnd, SEVERED, Tx};
use crate::wire::{Hello, Welcome};

/// Most connections without a hello, and most hellos of peers that are not open.
pub(crate) const PENDING_MAX: usize = if cfg!(test) { 64 } else { 4096 };

/// The descriptor that an epoll event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Listener,
    AwaitingHello,
    Rx(u32),
    Tx(u32),
}

impl Token {
    pub(crate) fn data(self) -> EventData {
        EventData::new_u64(match self {
            Token::Listener => 0,
            Token::AwaitingHello => 1,
            Token::Rx(peer) => 2 << 32 | u64::from(peer),
            Token::Tx(peer) => 3 << 32 | u64::from(peer),
        })
    }

    fn of(data: EventData) -> Self {
        let data = data.u64();
        match data >> 32 {
            2 => Token::Rx(data as u32),
            3 => Token::Tx(data as u32),
            _ if data == 0 => Token::Listener,
            _ => Token::AwaitingHello,
        }
    }
}

/// What the listener, as every socket, is watched for.
pub(crate) const LISTENER_FLAGS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

fn watch(epoll: &OwnedFd, descriptor: impl AsFd, token: Token) -> Result<(), RailError> {
    epoll::add(epoll, descriptor, token.data(), LISTENER_FLAGS)
        .map_err(|errno| system("watch a socket", errno))
}

impl ShmRail {
    pub(crate) fn watch(&self, descriptor: impl AsFd, token: Token) -> Result<(), RailError> {
        watch(&self.epoll, descriptor, token)
    }

    /// Handles all pending socket events; one system call when there are none.
    pub(crate) fn poll_sockets(&mut self) -> Work {
        self.unmute_listener();
        self.keep_files();
        let none = timespec(Duration::ZERO);
        let mut space = [std::mem::MaybeUninit::uninit(); 64];
        let events = match epoll::wait(&self.epoll, &mut space[..], Some(&none)) {
            Ok((events, _)) => events,
            Err(_) => return 0,
        };
        // Connections first: the hello of a peer that exited right after sending it is handled before its
        // end.
        if events
            .iter()
            .any(|event| matches!(Token::of(event.data), Token::Listener | Token::AwaitingHello))
            || !self.deferred.is_empty()
        {
            self.accept_all();
        }
        for event in events.iter() {
            let flags = event.flags;
            let hung_up = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            match Token::of(event.data) {
                Token::Listener | Token::AwaitingHello => {}
                Token::Rx(peer) => self.on_rx(peer, hung_up),
                Token::Tx(peer) => self.on_tx(peer, hung_up),
            }
        }
        self.redial();
        events.len()
    }

    /// Our nonce and its address.
    fn nonce(&self) -> (&[u8; 16], u64) {
        (&self.nonce, self.nonce.as_ptr().addr() as u64)
    }

    fn accept_all(&mut self) {
        let mut greetings = std::mem::take(&mut self.deferred);
        for one in std::mem::take(&mut self.awaiting_hello) {
            self.receive_hello(one, true, &mut greetings);
        }
        // One after the other: an accepted connection keeps one descriptor, and its hello takes two more
        // until it is mapped.
        while greetings.len() < PENDING_MAX {
            let socket = match connect::accept(&self.listener) {
                Ok(Some(socket)) => socket,
                Ok(None) => break,
                Err(error) => {
                    if is_out_of_files(&error) {
                        self.mute_listener();
                    }
                    break;
                }
            };
            let short_since = None;
            if !self.receive_hello(AwaitingHello { socket, short_since }, false, &mut greetings) {
                break;
            }
        }
        self.refused += drop_older(&mut greetings);
        for (greeting, socket) in greetings {
            self.on_hello(greeting, socket);
        }
    }

    /// Whether the memory of the sender of a hello is known from its welcome, of the same connection.
    fn knows_leases(&self, hello: &Hello) -> bool {
        let known = self.known(hello.id, Incarnation(hello.incarnation.get()));
        let peer = known.and_then(|index| self.peers.get(index as usize));
        let is_same = self.acquaintance(known, hello) == Acquaintance::Same;
        peer.is_some_and(|peer| {
            is_same && peer.memory.is_some() && peer.down.is_none() && hello.epoch.get() == peer.epochs[1]
        })
    }

    /// Receives the hello of a connection, or keeps it waiting; returns whether there may be descriptors
    /// left.
    fn receive_hello(
        &mut self,
        mut one: AwaitingHello,
        is_watched: bool,
        greetings: &mut Vec<(ReceivedHello, CloforkFd)>,
    ) -> bool {
        let received =
            self.with_kept(|rail| connect::receive_hello(&one.socket, |hello| rail.knows_leases(hello)));
        let is_short = received.as_ref().is_err_and(is_out_of_files);
        if is_short {
            self.pause();
        } else {
            one.short_since = None;
        }
        let waits = match received {
            Ok(Received::Message(greeting)) => {
                if is_watched {
                    self.unwatch(Some(&one.socket));
                }
                greetings.push((greeting, one.socket));
                return true;
            }
            Ok(Received::Pending) => true,
            Err(_) if is_short => !self.has_lasted(*one.short_since.get_or_insert(self.now)),
            Ok(Received::Closed | Received::Forgotten) | Err(_) => false,
        };
        let fits = self.awaiting_hello.len() < PENDING_MAX;
        if waits && fits && (is_watched || self.watch(&one.socket, Token::AwaitingHello).is_ok()) {
            self.awaiting_hello.push(one);
        } else {
            if is_watched {
                self.unwatch(Some(&one.socket));
            }
            self.refused += 1;
        }
        !is_short
    }

    /// Handles a hello, of an open peer or of one that may be opened later.
    fn on_hello(&mut self, greeting: ReceivedHello, socket: CloforkFd) {
        if greeting.hello.expected.get() != self.incarnation.0 {
            self.refused += 1;
            return;
        }
        let hello = &greeting.hello;
        let known = self.known(hello.id, Incarnation(hello.incarnation.get()));
        match (self.acquaintance(known, hello), known) {
            (Acquaintance::Same, Some(index)) => self.receive_hello_from(index, greeting, socket),
            (Acquaintance::Same, None) => self.keep_pending(greeting, socket),
            (Acquaintance::Newer, _) => {
                if let Some(index) = known {
                    self.is_forgotten_by(index);
                }
                self.keep_pending(greeting, socket);
            }
            (Acquaintance::Ended, _) => {
                connect::send_forgotten(&socket, self.incarnation.0);
                self.refused += 1;
            }
            (Acquaintance::Older, _) => self.refused += 1,
        }
    }

    /// Keeps the hello of a peer that may be opened later.
    fn keep_pending(&mut self, greeting: ReceivedHello, socket: CloforkFd) {
        let hello = &greeting.hello;
        // One that is open has an owner that looks at it: it is reported once that has forgotten it.
        let open = self
            .known(hello.id, Incarnation(hello.incarnation.get()))
            .is_some();
        self.refused += match self.closed || greeting.leases.is_none() {
            false => self.pending_peers.keep(greeting, socket, open),
            true => 1,
        };
    }

    /// Handles the pending hello of a peer that has just been opened, if there is one.
    pub(crate) fn connect_pending(&mut self, index: u32) {
        let peer = &self.peers[index as usize];
        if let Some((greeting, socket)) = self.pending_peers.take(peer.id, peer.incarnation) {
            self.receive_hello_from(index, greeting, socket);
        }
    }

    pub(crate) fn take_lane(
        &mut self,
        index: u32,
        greeting: ReceivedHello,
        (control, ours): (Object, Sides),
        socket: CloforkFd,
    ) -> Result<(), RailError> {
        let hello = &greeting.hello;
        let nonce = (hello.nonce_address.get(), hello.nonce);
        let wanted = self.capabilities.features.get;
        let known = &self.peers[index as usize].memory;
        let (readable, memory) = match (known, greeting.leases) {
            (Some(known), _) => (known.readable(), None),
            (None, Some(leases)) => {
                let memory = Memory::prove(leases, greeting.pid, nonce, wanted);
                (memory.readable(), Some(memory))
            }
            (None, None) => return Err(RailError::hostile("was known, and its memory is not")),
        };
        let rx = Rx::new(greeting.geometry, greeting.lane, ours, socket)?;
        let flags = (readable, self.barrier.needs_fence());
        let names = (index, self.peers[index as usize].terms[0]);
        let welcome = Welcome::new(names, self.incarnation.0, flags, self.nonce());
        // A sender that has exited meanwhile cannot be answered, but its messages are in the lane.
        let _ = connect::send_welcome(
            rx.socket(),
            &welcome,
            &control,
            &self.ready_object,
            &self.leases.object,
        );
        self.watch(rx.socket(), Token::Rx(index))?;
        let peer = &mut self.peers[index as usize];
        match &mut peer.attempt {
            Some(attempt) => attempt.rx = Some(Box::new(rx)),
            // A peer that is down has no lane: nothing would poll or end it.
            None if peer.down.is_some() => return Ok(()),
            None => peer.rx = Some(Box::new(rx)),
        }
        peer.memory = peer.memory.take().or(memory);
        Ok(())
    }

    fn on_rx(&mut self, index: u32, hung_up: bool) {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return;
        };
        let Some(rx) = peer.rx_mut() else { return };
        // The epoll event may be about a lane or a socket that has been replaced since.
        let hung_up = hung_up && crate::pull::hung_up(rx.socket().as_fd());
        let drained = connect::drain(rx.socket());
        if drained.merge {
            self.follow_to_one_socket(index);
        }
        self.part(index);
        let Some(rx) = self.peers[index as usize].rx_mut() else {
            return;
        };
        if (drained.hung_up || hung_up) && !rx.orphaned {
            rx.orphaned = true;
            let close_reason = rx.close_reason();
            let _ = epoll::delete(&self.epoll, rx.socket());
            self.on_hang_up(index, close_reason);
        }
    }

    /// Handles a socket that the peer closed, with the close reason that it announced.
    fn on_hang_up(&mut self, index: u32, close_reason: u64) {
        let reason = match close_reason {
            SEVERED => DownReason::Abandoned,
            CLOSED => DownReason::Closed,
            _ => DownReason::Died,
        };
        let peer = &mut self.peers[index as usize];
        if peer.down.is_some() {
            peer.over |= reason != DownReason::Abandoned;
            self.end_attempt(index);
        } else if reason == DownReason::Abandoned {
            // The sender has already reclaimed the messages in the lane.
            self.end(index, reason);
        } else {
            peer.ending.get_or_insert(reason);
        }
    }

    /// The socket over which a peer's welcome is to come.
    fn awaited_welcome(&self, index: u32) -> Option<&CloforkFd> {
        let peer = self.peers.get(index as usize)?;
        let attempted = peer.attempt.as_ref().and_then(|attempt| attempt.tx.as_deref());
        match &peer.tx.as_deref().or(attempted)?.handshake {
            Handshake::HelloSent(socket, _) => Some(socket),
            _ => None,
        }
    }

    fn receive_welcome(&self, index: u32) -> Result<Received<connect::ReceivedWelcome>, RailError> {
        self.awaited_welcome(index)
            .map_or(Ok(Received::Pending), connect::receive_welcome)
    }

    pub(crate) fn on_tx(&mut self, index: u32, hung_up: bool) {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return;
        };
        let Some(tx) = peer.tx_mut() else { return };
        let hung_up = hung_up
            && tx
                .socket()
                .is_some_and(|socket| crate::pull::hung_up(socket.as_fd()));
        let outcome = match &tx.handshake {
            Handshake::Connecting | Handshake::Over => Ok(false),
            Handshake::HelloSent(..) => match self.with_kept(|rail| rail.receive_welcome(index)) {
                Ok(Received::Message(welcomed)) => {
                    let welcome = self.welcome(index, welcomed);
                    // Before others take them: its own are closed now.
                    self.keep_files();
                    welcome.map(|()| hung_up)
                }
                Ok(Received::Pending) => Ok(hung_up),
                Ok(Received::Closed) => Ok(true),
                Ok(Received::Forgotten) => {
                    // Nothing else comes over it.
                    self.unwatch(self.awaited_welcome(index));
                    return self.is_forgotten_by(index);
                }
                Err(error) => Err(error),
            },
            Handshake::Up(far) => Ok(connect::drain(&far.socket).hung_up || hung_up),
        };
        match outcome {
            Ok(false) => {}
            Ok(true) => self.sender_ends(index),
            // The welcome stays in the socket.
            Err(error) if is_out_of_files(&error) && !self.waits_too_long(index) => self.pause(),
            Err(RailError::Hostile { .. }) if hung_up => self.sender_ends(index),
            Err(RailError::Hostile { .. }) => self.disconnect(index, DownReason::Hostile),
            Err(_) => self.disconnect(index, DownReason::Resources),
        }
    }

    /// Handles the end of our lane's receiver, or that it gave the connection up.
    fn sender_ends(&mut self, index: u32) {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return;
        };
        let id = peer.id;
        let theirs = peer.rx_mut().map_or(0, |rx| rx.close_reason());
        let Some(tx) = peer.tx_mut() else { return };
        let mut close_reason = if tx.close_reason() == 0 {
            theirs
        } else {
            tx.close_reason()
        };
        let greeted = matches!(tx.handshake, Handshake::HelloSent(..));
        // A receiver that has not answered has no memory for a close reason, but if it still listens it is
        // alive.
        if close_reason == 0 && greeted {
            match connect::is_listening(&id) {
                Ok(true) => close_reason = SEVERED,
                Ok(false) => {}
                // Its socket stays as it is, and is looked at again.
                Err(error) if is_out_of_files(&error) && !self.waits_too_long(index) => return self.pause(),
                // Unknown at present, which does not prove a death.
                Err(_) => return self.end(index, DownReason::Resources),
            }
        }
        if let Some(socket) = self.peers[index as usize].tx_mut().and_then(|tx| tx.socket()) {
            let _ = epoll::delete(&self.epoll, socket);
        }
        if close_reason != SEVERED {
            // The peer's own lane may still be waiting to be accepted.
            self.accept_all();
        }
        self.on_hang_up(index, close_reason);
    }

    fn welcome(&mut self, index: u32, welcomed: connect::ReceivedWelcome) -> Result<(), RailError> {
        let ready = Ready::map(&welcomed.ready)?;
        let control = sides(&welcomed.control, Protection::ReadOnly, FRONT_WORDS)?;
        let registered = self.barrier.registered();
        let welcome = &welcomed.welcome;
        let nonce = (welcome.nonce_address.get(), welcome.nonce);
        let wanted = self.capabilities.features.get;
        let peer = &mut self.peers[index as usize];
        let memory = match (peer.memory.is_some(), peer.tx_mut().map(|tx| &tx.handshake)) {
            // Its hello has brought the same.
            (false, Some(&Handshake::HelloSent(_, pid))) => {
                let leases = Foreign::map(&welcomed.leases)?;
                Some(Memory::prove(leases, pid, nonce, wanted))
            }
            _ => None,
        };
        if welcome.incarnation.get() != peer.incarnation.0 {
            return Err(RailError::hostile("answered with another incarnation"));
        }
        if peer.terms[1] != 0 && peer.terms[1] != welcome.term.get() {
            // Nothing else comes over it.
            if let Some(socket) = peer.tx_mut().and_then(|tx| tx.socket()) {
                let _ = epoll::delete(&self.epoll, socket);
            }
            self.is_forgotten_by(index);
            return Ok(());
        }
        peer.terms[1] = welcome.term.get();
        peer.memory = peer.memory.take().or(memory);
        peer.can_read_us = Some(welcome.can_pull());
        let Some(tx) = peer.tx_mut() else { return Ok(()) };
        let Handshake::HelloSent(socket, _) = std::mem::replace(&mut tx.handshake, Handshake::Connecting)
        else {
            return Ok(());
        };
        let far = RemoteEnd {
            socket: Arc::new(socket),
            ready,
            bit: welcome.bit.get(),
            fence: welcome.needs_fence() || !registered,
            words: control.words,
        };
        tx.welcomed(control.area, far)?;
        self.is_met(index);
        self.come_up(index);
        self.begin_one_socket(index);
        Ok(())
    }

    /// Creates our lane to a peer and connects. Messages can be put into the lane at once. Without a
    /// descriptor for it the rail counts as full.
    #[cold]
    pub(crate) fn make_lane(&mut self, index: u32) -> Result<(), Refused> {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return Err(Refused::PeerDown);
        };
        if peer.down.is_some() || self.closed {
            return Err(Refused::PeerDown);
        }
        if self.is_short()
            && let Some(refused) = self.try_later(index)
        {
            return Err(refused);
        }
        let peer = &mut self.peers[index as usize];
        match Tx::new(self.geometry, peer.base) {
            Ok(tx) => {
                // Nothing is lost yet: no message is in it.
                if !tx.object().is_none_or(|lane| self.leaves_enough(lane.as_fd()))
                    && let Some(refused) = self.try_later(index)
                {
                    self.pause();
                    return Err(refused);
                }
                self.peers[index as usize].tx = Some(Box::new(tx));
            }
            Err(error) => {
                if is_out_of_files(&error)
                    && let Some(refused) = self.try_later(index)
                {
                    self.pause();
                    return Err(refused);
                }
                self.end(index, DownReason::Resources);
                return Err(Refused::PeerDown);
            }
        }
        self.expect_handshake();
        self.dial(index)
    }

    pub(crate) fn dial(&mut self, index: u32) -> Result<(), Refused> {
        let nonce = (*self.nonce, self.nonce.as_ptr().addr() as u64);
        let peer = &mut self.peers[index as usize];
        let (id, expected) = (peer.id, peer.incarnation.0);
        let (epochs, terms) = (peer.epochs, peer.terms);
        let Some(tx) = peer.tx_mut() else { return Ok(()) };
        let Some(object) = tx.object() else { return Ok(()) };
        let hello = Hello::new(
            self.id,
            self.incarnation.0,
            expected,
            tx.geometry(),
            (&nonce.0, nonce.1),
            epochs,
            terms,
        );
        let failed = match connect::dial(&id, &hello, object, &self.leases.object) {
            Ok(DialOutcome::Later) => {
                self.has_files(index);
                return Ok(());
            }
            Ok(DialOutcome::HelloSent(socket, pid)) => {
                tx.handshake = Handshake::HelloSent(socket, pid);
                let socket = tx.socket().map(AsFd::as_fd);
                let watched = socket.map(|socket| watch(&self.epoll, socket, Token::Tx(index)));
                self.has_files(index);
                match watched {
                    Some(Err(_)) => DownReason::Resources,
                    _ => return Ok(()),
                }
            }
            Ok(DialOutcome::Gone) => {
                // Messages that it sent before it exited are still to be received.
                self.on_hang_up(index, 0);
                return Ok(());
            }
            Err(RailError::Hostile { .. }) => DownReason::Hostile,
            Err(error) if is_out_of_files(&error) => {
                self.pause();
                if !self.waits_too_long(index) {
                    return Ok(());
                }
                DownReason::Resources
            }
            Err(_) => DownReason::Resources,
        };
        self.end(index, failed);
        Err(Refused::PeerDown)
    }

    /// Repeats connection attempts that found a full backlog, or no descriptor.
    fn redial(&mut self) {
        for index in 0..self.peers.len() {
            let peer = &mut self.peers[index];
            let connecting = peer
                .tx_mut()
                .is_some_and(|tx| matches!(tx.handshake, Handshake::Connecting));
            if !connecting || peer.ending.is_some() {
                continue;
            }
            let index = index as u32;
            if !self.is_short() {
                // A permanent failure is reported as an event.
                let _ = self.dial(index);
            } else if self.waits_too_long(index) {
                self.end(index, DownReason::Resources);
            }
        }
    }

    /// Ends the connection of a peer that broke the protocol or that we cannot serve, and drops its messages.
    #[cold]
    pub(crate) fn disconnect(&mut self, index: u32, reason: DownReason) {
        self.end(index, reason);
    }
}
