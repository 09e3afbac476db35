//! Sends of one message over the queue, which most are: taken and shown in one go, without what a send of
//! several messages, a ring or a word about one-sided operations needs. Whatever is unusual about a send is
//! left as it is, for [`Core::open_next`] to act on.

use super::*;

/// A completion that names a send of one message, over a connection that is up or on its way to its end.
#[derive(Clone, Copy)]
struct Single {
    /// What the completion names.
    id: u64,
    peer: u32,
    length: u32,
    head: Head,
}

impl Single {
    fn slot(&self) -> u32 {
        self.id as u32
    }
}

impl Core {
    /// Whether what comes next stands in the queue: no send is being shown, and there are no rings.
    #[inline(always)]
    pub(super) fn is_queue_alone(&self) -> bool {
        self.inbox.current.is_none() && !self.rings.are_used()
    }

    /// Shows the next message, if its send is a single one; whether it was.
    #[inline(always)]
    pub(super) fn show_single<S: Arrivals>(&mut self, sink: &mut S) -> bool {
        let Some(single) = self.next_single() else {
            return false;
        };
        let Some(is_low) = self.take_single(&single) else {
            return false;
        };
        let message = self.message_of_single(&single);
        sink.message(PeerIndex(single.peer), Inbound::whole(message));
        self.is_low |= is_low;
        self.slots.give_back(single.slot());
        true
    }

    /// Takes the next message, if its send is a single one and it is as [`Core::look`] wants it; returns its
    /// length without these words.
    #[inline(always)]
    pub(super) fn look_at_single(
        &mut self,
        peer: PeerIndex,
        words: [u64; 2],
        room: Room<'_>,
    ) -> Option<usize> {
        let single = self.next_single().filter(|single| single.peer == peer.0)?;
        let message = self.message_of_single(&single);
        let word = |at| message.read(at).map(u64::from_ne_bytes);
        let is_it = word(0) == Some(words[0]) && word(8) == Some(words[1]);
        if !is_it || message.len() - HEAD_WORDS > room.len() {
            return None;
        }
        let is_low = self.take_single(&single)?;
        let length = room.write_shared(0, self.message_of_single(&single).skip(HEAD_WORDS));
        self.slots.give_back(single.slot());
        self.stats.received += 1;
        if is_low {
            self.is_low = true;
            self.grant_more(single.peer);
        }
        Some(length)
    }

    /// The next completion, if it names a single send; nothing is taken.
    #[inline(always)]
    fn next_single(&self) -> Option<Single> {
        let completion = self.inbox.found.get(self.inbox.next)?;
        let (id, length) = (completion.wr_id, completion.byte_len);
        if completion.status != numbers::SUCCESS || !self.slots.has(id) {
            return None;
        }
        let head = head::single(self.slots.first(id as u32, length as usize)?)?;
        let peer = self.by_pair.get(completion.qp_num)?;
        Some(Single {
            id,
            peer,
            length,
            head,
        })
    }

    #[inline(always)]
    fn message_of_single(&self, single: &Single) -> SharedBytes<'_> {
        let bytes = self.slots.bytes(single.slot(), single.length as usize);
        bytes.skip(head::SINGLE)
    }

    /// Takes a single send: counts it and its message, and takes what its head reports. Returns whether its
    /// peer has to wait for credits soon; `None` where it is not taken, or breaks a rule of the wire.
    #[inline(always)]
    fn take_single(&mut self, single: &Single) -> Option<bool> {
        let peer = self.peers.get_mut(single.peer as usize)?;
        let accepted = peer.accepted();
        let link = peer.link.as_mut().filter(|link| link.state != State::Receiving)?;
        let slot = self.slots.take_held(single.id);
        self.inbox.next += 1;
        let Ok(is_news) = link.arrived(&single.head, accepted, &mut self.slots, self.now) else {
            self.refuse_single(single.peer, slot);
            return None;
        };
        link.consumed += 1;
        if link.consumed == self.rings.sizes.after {
            self.rings.wanted.push(single.peer);
        }
        let is_low = link.is_low();
        enlist(&mut self.owed, &mut peer.is_owed, single.peer);
        if is_news {
            self.release_together(single.peer);
        }
        Some(is_low)
    }

    #[cold]
    fn refuse_single(&mut self, peer: u32, slot: u32) {
        self.drop_send(peer, Drop::Credit);
        self.slots.give_back(slot);
        self.end(peer, DownReason::Hostile);
    }
}
