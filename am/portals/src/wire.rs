//! The headers of the interface: the one place that knows their bytes. Little endian, 8 to 64 bytes, then the
//! body.
//!
//! ```text
//! 0     1      2      4     8       16
//! kind  flags  short  seq   word 0  word 1 …  word 6 │ body
//! └──────── First ────────┘
//! ```
//!
//! A head is a [`First`] and up to seven words of eight bytes. Which words there are follows from the kind
//! and the flags, always in this order; so the frequent requests are short, and no word is sent that means
//! nothing.
//!
//! | request | `short` | words | body |
//! |---|---|---|---|
//! | HELLO 1 | version | nid and pid, uid and window | |
//! | PUT 2 | table index | main, [op], [second], [hdr] | the bytes |
//! | RTS 3 | table index | main, op, [second], [hdr], rlength | [`Source`]s of the bytes |
//! | GET 4 | table index | main, op, [second], rlength | |
//! | ATOMIC 5 | table index | main, [op], [second], [hdr], atom | the operands |
//! | PLACED 7 | the memory's number | its key | none: they are in the entry's memory |
//! | FETCH 6 | table index | main, op, [second], [hdr], atom | the operand of a swap (its length is in `atom`), the operands |
//!
//! `main` is the match bits on a matching interface, and the remote offset on one without; `second` is the
//! other of the two, and is there only when it is not zero (flag SECOND); `hdr` is the header data, there
//! when it is not zero (flag HDR); `op` of a put or an atomic is there when an acknowledgement is requested.
//! So a put of eight bytes without header data, and a put of no bytes with match bits and header data, are 24
//! bytes: one cache line over shm.
//!
//! A put that is longer than that only because of its words has the flag KEEP once (they are to be
//! remembered); the next one with the same words leaves them out (flag AGAIN), as van Jacobson's headers do
//! (RFC 1144). Messages arrive in order and once, so both sides remember the same. The other flags of a put
//! with AGAIN are those of the one that is remembered.
//!
//! | answer | `short` | words | body |
//! |---|---|---|---|
//! | ACK 16 | mlength, unless LENGTH | op, [offset], [mlength] | |
//! | REPLY 17 | | op, [offset] | the bytes |
//! | READY 18 | | op, owner's op, mlength, offset | [`Source`]s; none: fragments follow |
//! | PULL 19 | | owner's op, puller's op, offset, length | |
//! | FRAG 20 | | puller's op, offset | the bytes |
//! | FIN 21 | | owner's op | |
//! | GONE 22 | | puller's op | |
//! | ROOM 23 | table index | match bits and those ignored; key, address and length of exposed memory; and in one word the path over which (16 bits), its number (16), whether puts are counted (bit 32) and whether gets may read it (33) | |
//! | TAKEN_BACK 24 | the memory's number | its key | |
//! | CLOSED 25 | the memory's number | its key | |
//!
//! The offset of an answer is there when it is not the requested one (flag OFFSET). ACK, REPLY and FIN have
//! in their flags how it ended; FIN: that the puller has what it requested, or needs no more. GONE means
//! that the owner sends no more. ACK, REPLY and READY of what an entry of the overflow list took have the
//! flag OVERFLOW, and an ACK of what an entry with ACK_DISABLE took has the flag SILENT: it ends the
//! operation, and there is no event and no count of it.

use doorbell_fabric::message::{Inbound, Remote};
use doorbell_fabric::ni::List;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) use crate::link::First;

/// The kinds of heads. From 0x80 on: the link's own.
pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const PUT: u8 = 2;
    pub(crate) const RTS: u8 = 3;
    pub(crate) const GET: u8 = 4;
    pub(crate) const ATOMIC: u8 = 5;
    pub(crate) const FETCH: u8 = 6;
    pub(crate) const PLACED: u8 = 7;
    pub(crate) const ACK: u8 = 16;
    pub(crate) const REPLY: u8 = 17;
    pub(crate) const READY: u8 = 18;
    pub(crate) const PULL: u8 = 19;
    pub(crate) const FRAG: u8 = 20;
    pub(crate) const FIN: u8 = 21;
    pub(crate) const GONE: u8 = 22;
    pub(crate) const ROOM: u8 = 23;
    pub(crate) const TAKEN_BACK: u8 = 24;
    pub(crate) const CLOSED: u8 = 25;
}

/// The flags of requests; the lowest two bits are the interface's kind, the next two the requested
/// acknowledgement.
pub(crate) mod flag {
    pub(crate) const NI: u8 = 0x03;
    pub(crate) const ACK_SHIFT: u32 = 2;
    pub(crate) const HDR: u8 = 0x10;
    pub(crate) const SECOND: u8 = 0x20;
    /// In a put that requests no answer: with KEEP, the receiver remembers main, second and hdr; with AGAIN,
    /// they equal the remembered ones and are left out.
    pub(crate) const KEEP: u8 = 0x40;
    pub(crate) const AGAIN: u8 = 0x80;
    /// Answers: how it ended, in the lowest four bits.
    pub(crate) const FAIL: u8 = 0x0f;
    pub(crate) const OFFSET: u8 = 0x10;
    pub(crate) const LENGTH: u8 = 0x20;
    pub(crate) const OVERFLOW: u8 = 0x40;
    /// In an ACK: the entry's owner suppresses the event, and the initiator only counts the operation as
    /// complete.
    pub(crate) const SILENT: u8 = 0x80;
}

/// The version of these headers; a peer of another one is not understood.
pub(crate) const VERSION: u16 = 3;

/// Words of a head at most.
pub(crate) const WORDS: usize = 7;

/// Operations that a process may have open at one peer: what bounds a responder's memory.
pub(crate) const WINDOW: u32 = 1024;

/// The first eight bytes of a head, as a word in memory: the link adds its number to it.
#[inline(always)]
pub(crate) fn first_word(kind: u8, flags: u8, short: u16) -> u64 {
    (u64::from(kind) | u64::from(flags) << 8 | u64::from(short) << 16).to_le()
}

/// The flag of an answer that names the list of the entry that took the request.
#[inline(always)]
pub(crate) fn list_flag(list: List) -> u8 {
    match list {
        List::Priority => 0,
        List::Overflow => flag::OVERFLOW,
    }
}

/// The list that the flags of an answer name.
#[inline(always)]
pub(crate) fn list_of(flags: u8) -> List {
    match flags & flag::OVERFLOW {
        0 => List::Priority,
        _ => List::Overflow,
    }
}

/// Returns which put it is, apart from its words: what two puts have in common of which the second leaves
/// them out.
#[inline(always)]
pub(crate) fn put_name(flags: u8, short: u16) -> u32 {
    u32::from(flags & !(flag::KEEP | flag::AGAIN)) | u32::from(short) << 16
}

/// A head being made. It is made of words, stored once each: see `short`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// The words as they lie in memory.
    words: [u64; 1 + WORDS],
    len: usize,
}
const _: () = assert!(size_of::<First>() == 8);

impl Head {
    #[inline(always)]
    pub(crate) fn new(kind: u8, flags: u8, short: u16) -> Self {
        let mut words = [0; 1 + WORDS];
        words[0] = first_word(kind, flags, short);
        Self { words, len: 1 }
    }

    /// Adds a word; a head never has more than there is room for.
    #[inline(always)]
    pub(crate) fn word(mut self, word: u64) -> Self {
        if let Some(at) = self.words.get_mut(self.len) {
            *at = word.to_le();
            self.len += 1;
        }
        self
    }

    /// Adds the word where its flag is set.
    #[inline(always)]
    pub(crate) fn word_if(self, flags: u8, flag: u8, word: u64) -> Self {
        if flags & flag != 0 { self.word(word) } else { self }
    }

    /// The words behind the first eight bytes.
    #[inline(always)]
    pub(crate) fn words(&self) -> usize {
        self.len - 1
    }

    /// The last word as bytes of a body, and a head without it: a head of 16 bytes and a body of eight go the
    /// rail's short way, a head of 24 does not.
    #[inline(always)]
    pub(crate) fn split_last(&mut self) -> [u8; 8] {
        self.len -= 1;
        self.words[self.len].to_ne_bytes()
    }

    #[inline(always)]
    pub(crate) fn as_mut_bytes(&mut self) -> &mut [u8] {
        self.words[..self.len].as_mut_bytes()
    }
}

/// The words of a head that arrived, read one after the other.
pub(crate) struct Words<'a, 'b> {
    inbound: &'a Inbound<'b>,
    at: usize,
}

impl<'a, 'b> Words<'a, 'b> {
    #[inline(always)]
    pub(crate) fn of(inbound: &'a Inbound<'b>) -> Self {
        Self { inbound, at: 8 }
    }

    /// The next word; `None` when the message ends before.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<u64> {
        let word = self.inbound.read::<8>(self.at)?;
        self.at += 8;
        Some(u64::from_le_bytes(word))
    }

    /// The next word if the flag is set; zero if not.
    #[inline(always)]
    pub(crate) fn next_if(&mut self, flags: u8, flag: u8) -> Option<u64> {
        if flags & flag == 0 {
            return Some(0);
        }
        self.next()
    }

    /// Returns where the body begins.
    #[inline(always)]
    pub(crate) fn end(&self) -> usize {
        self.at
    }
}

/// Exposed memory, and the way over which it is.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Source {
    pub(crate) way: U16,
    pub(crate) reserved: [u8; 6],
    pub(crate) remote: Remote,
}
const _: () = assert!(size_of::<Source>() == 32);

impl Source {
    /// The source that means none.
    pub(crate) const NONE: Self = Self {
        way: U16::ZERO,
        reserved: [0; 6],
        remote: Remote {
            key: U64::ZERO,
            address: U64::ZERO,
            length: U64::ZERO,
        },
    };

    pub(crate) fn new(way: u16, remote: Remote) -> Self {
        Self {
            way: U16::new(way),
            reserved: [0; 6],
            remote,
        }
    }
}

/// What an atomic does, as one word: operation, type, bytes of the operand that precede the operands,
/// reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Atom {
    pub(crate) operation: u8,
    pub(crate) datatype: u8,
    pub(crate) operand: u8,
    pub(crate) reserved: [u8; 5],
}
const _: () = assert!(size_of::<Atom>() == 8);

impl Atom {
    pub(crate) fn new(operation: u8, datatype: u8, operand: u8) -> Self {
        Self {
            operation,
            datatype,
            operand,
            reserved: [0; 5],
        }
    }

    pub(crate) fn word(self) -> u64 {
        u64::from_le_bytes(zerocopy::transmute!(self))
    }

    pub(crate) fn of_word(word: u64) -> Self {
        zerocopy::transmute!(word.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::memory::SharedBytes;

    fn bytes(mut head: Head) -> Vec<u8> {
        head.as_mut_bytes().to_vec()
    }

    #[test]
    fn heads_have_these_bytes() {
        let put = Head::new(kind::PUT, flag::HDR | 1, 0x0102).word(0x1122_3344_5566_7788);
        assert_eq!(
            bytes(put),
            [
                2, 0x11, 2, 1, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11
            ]
        );
        let ack = Head::new(kind::ACK, flag::OFFSET | 3, 9)
            .word(7)
            .word_if(flag::OFFSET, flag::OFFSET, 5);
        assert_eq!(
            bytes(ack),
            [
                16, 0x13, 9, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0
            ]
        );
        let atom = Atom::new(2, 7, 0);
        assert_eq!(atom.word(), 0x0702);
        assert_eq!(Atom::of_word(atom.word()), atom);
        let remote = Remote {
            key: 1.into(),
            address: 2.into(),
            length: 3.into(),
        };
        assert_eq!(
            Source::new(5, remote).as_bytes(),
            [
                5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0,
                0
            ]
        );
    }

    #[test]
    fn a_head_never_grows_beyond_its_room_and_words_end_with_the_message() {
        let mut head = Head::new(kind::RTS, 0, 0);
        for word in 0..20 {
            head = head.word(word);
        }
        let bytes = bytes(head);
        assert_eq!(bytes.len(), 64);
        let inbound = Inbound::whole(SharedBytes::of(&bytes[..30]));
        let mut words = Words::of(&inbound);
        assert_eq!(
            [words.next(), words.next(), words.next()],
            [Some(0), Some(1), None]
        );
        assert_eq!((words.end(), words.next_if(0, flag::HDR)), (24, Some(0)));
    }
}
