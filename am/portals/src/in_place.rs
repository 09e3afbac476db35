//! Puts without a descriptor, and puts that are taken where they arrived: what active messages are made of.
//!
//! A put that its receiver takes in the rail's memory is neither matched nor copied nor an event. It is shown
//! to the receiver while the rail is polled ([`TakePut`]); what it does not take goes the way of `short`.
//! A put of bytes ([`Core::put_bytes`]) has the same head as one of `short`, and is copied once, into the
//! rail.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, Inbound, Message, OpError, OpId, Refused};
use doorbell_fabric::ni::{ArrivedPut, Kind, NiError, Process, TakePut, Target};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::link::{First, Link, PeerId, Upper};
use crate::node::Node;
use crate::peers::{NONE, Remembered};
use crate::short::{CELL, SHORT_FLAGS};
use crate::wire::{WORDS, first_word, flag, kind, put_name};

/// Words of a head, and of the words that a put begins with, at most.
const MOST_WORDS: usize = 1 + WORDS;

/// Where a link delivers to while a taker is shown what arrives.
struct Showing<'a, T> {
    core: &'a mut Core,
    /// The taker's interface.
    kind: Kind,
    taker: &'a mut T,
}

impl<T: TakePut> Upper for Showing<'_, T> {
    #[inline(always)]
    fn message(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>) {
        if first.kind == kind::PUT && self.show(peer, first, &inbound).is_some() {
            return;
        }
        self.core.message(peer, first, inbound);
    }

    #[inline]
    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.core.completed(op, outcome);
    }
}

impl<T: TakePut> Showing<'_, T> {
    /// Shows a put to the taker. `None`: it was not shown or not taken, and nothing has changed but the
    /// remembered words, which the ordinary way stores once more.
    #[inline(always)]
    fn show(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) -> Option<()> {
        let flags = first.flags;
        if flags & !SHORT_FLAGS != 0 || u32::from(flags & flag::NI) != self.kind.number() {
            return None;
        }
        let ni = self.core.nis.get(self.kind.number() as usize)?.as_deref()?;
        let pt_index = u32::from(first.short.get());
        let table = ni.tables.get(pt_index as usize)?.as_deref()?;
        let queue = ni.eqs.get(table.eq)?;
        if !ni.kind.matching || !table.enabled || queue.len() != 0 {
            return None;
        }
        let known = self.core.peers.get_mut(peer)?;
        let uid = known.uid?;
        let source = ni
            .sources
            .get(peer.index())
            .copied()
            .filter(|source| *source != NONE)?;
        let (words, _, body) = known.words_of(first, inbound)?;
        let put = ArrivedPut {
            initiator: if ni.kind.logical {
                Process::rank(source)
            } else {
                known.process
            },
            uid,
            pt_index,
            match_bits: words.main,
            remote_offset: words.second,
            hdr_data: words.hdr,
            bytes: inbound.in_one_piece(body)?,
        };
        self.taker.take(&put).then_some(())
    }
}

impl<M: Message> Node<M> {
    /// Polls like [`Node::poll`], and shows `taker` what arrives for the interface of this kind, as
    /// [`Ni::poll_in_place`](doorbell_fabric::ni::Ni::poll_in_place) has it.
    #[inline]
    pub fn poll_in_place(&mut self, kind: Kind, budget: usize, taker: &mut impl TakePut) -> usize {
        let mut upper = Showing {
            core: &mut self.core,
            kind,
            taker,
        };
        let shown = self.link.poll(budget, &mut upper);
        if self.core.is_restless() {
            self.core.pump(&mut self.link);
        }
        shown
    }
}

/// A message that is being made of words: none is stored twice.
struct Words {
    words: [u64; MOST_WORDS],
    len: usize,
}

impl Words {
    /// The first word as it lies in memory.
    #[inline(always)]
    fn beginning_with(first: u64) -> Self {
        let mut words = [0; MOST_WORDS];
        words[0] = first;
        Self { words, len: 1 }
    }

    #[inline(always)]
    fn push(&mut self, word: u64) {
        if let Some(at) = self.words.get_mut(self.len) {
            *at = word.to_le();
            self.len += 1;
        }
    }

    /// Sends the words and the body. A message of one cell goes the rail's short way only with a body of up
    /// to eight bytes: words move from one to the other.
    #[inline(always)]
    fn send<M: Message>(mut self, link: &mut Link<M>, peer: PeerId, body: Body<'_>) -> Result<(), Refused> {
        let bytes = match body {
            Body::Empty if self.len > 1 => {
                self.len -= 1;
                let last = self.words[self.len].to_ne_bytes();
                return link.send_here(peer, self.head(), Body::Bytes(&last), false);
            }
            Body::Bytes(bytes) if self.len == 1 => SharedBytes::of(bytes),
            Body::Shared(bytes) if self.len == 1 => bytes,
            body => return link.send_here(peer, self.head(), body, false),
        };
        if bytes.len() > 8
            && let Some(word) = bytes.read::<8>(0)
        {
            self.push(u64::from_le_bytes(word));
            return link.send_here(peer, self.head(), Body::Shared(bytes.skip(8)), false);
        }
        link.send_here(peer, self.head(), Body::Shared(bytes), false)
    }

    #[inline(always)]
    fn head(&mut self) -> &mut [u8] {
        self.words[..self.len].as_mut_bytes()
    }
}

impl Core {
    /// Sends a put of words and a body, both copied. `None`: not a put that goes this way.
    #[inline]
    pub(crate) fn put_bytes<M: Message>(
        &mut self,
        link: &mut Link<M>,
        (kind, target, hdr): (Kind, &Target, u64),
        words: &[u64],
        body: Body<'_>,
    ) -> Option<Result<(), NiError>> {
        let short = u16::try_from(target.pt_index).ok()?;
        if !kind.logical || !kind.matching {
            return None;
        }
        let ni = self.nis.get(kind.number() as usize)?.as_deref()?;
        let peer = PeerId(*ni.map.as_ref()?.peers.get(target.process.nid as usize)?);
        let known = self.peers.get_mut(peer)?;
        let said = Remembered {
            main: target.match_bits,
            second: target.remote_offset,
            hdr,
        };
        let (put, behind) = (said.words(), 8 * words.len() + body.len());
        if known.lost || !known.greeted || 1 + put + words.len() > MOST_WORDS {
            return None;
        }
        if behind as u64 > ni.limits.max_msg_size {
            return None;
        }
        let flags = said.flags() | kind.number() as u8;
        // As `short` leaves out words that the other side knows.
        let short_without = put > 1 && 8 + behind <= CELL && 8 + 8 * put + behind > CELL;
        let name = put_name(flags, short);
        let knows = short_without && known.said == Some((name, said));
        let remember = match (short_without, knows) {
            (false, _) => 0,
            (true, false) => flag::KEEP,
            (true, true) => flag::AGAIN,
        };
        let mut message = Words::beginning_with(first_word(kind::PUT, flags | remember, short));
        if !knows {
            message.push(said.main);
            for word in [said.second, said.hdr] {
                if word != 0 {
                    message.push(word);
                }
            }
        }
        for word in words {
            message.push(*word);
        }
        match message.send(link, peer, body) {
            Ok(()) => {
                if short_without && !knows {
                    known.said = Some((name, said));
                }
                Some(Ok(()))
            }
            Err(Refused::Full) => Some(Err(NiError::Full)),
            Err(_) => None,
        }
    }
}
