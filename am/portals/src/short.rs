//! The short path of the most frequent operation: a small put that requests no answer, into an entry that
//! stays.
//!
//! It does what `initiator` and `target` do, for the cases that need least of it, and leaves everything else
//! to them before it has changed anything. Heads are built as words and events are written where they stay: a
//! value that is stored in pieces and loaded whole right afterwards would wait for the store buffer, which
//! costs more than the rest together.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, Inbound, Landing, Message, Refused};
use doorbell_fabric::ni::{
    ANY, AckReq, EntryOptions, Event, EventKind, Kind, List, Memory, NiError, NiFail, Process, Put,
};
use doorbell_matching::MatchKey;
use zerocopy::IntoBytes;

use crate::bytes;
use crate::config::SMALL;
use crate::core::Core;
use crate::direct::{Guess, posts_nothing};
use crate::entries::EntrySlot;
use crate::iface::{counted, posts};
use crate::link::{First, Link, PeerId};
use crate::memory::InitiatorEvent;
use crate::peers::{Found, NONE, Peer, ReceivedPut, Remembered};
use crate::placed::{SHORT_BODY, Wanted};
use crate::wire::{Words, first_word, flag, kind, put_name};

/// Bytes of a message that travel in one cell of a lane over shm: a second line takes as long again.
pub(crate) const CELL: usize = 24;

/// The flags of a short put that are understood here.
pub(crate) const SHORT_FLAGS: u8 = flag::NI | flag::HDR | flag::SECOND | flag::KEEP | flag::AGAIN;

impl Peer {
    /// The words of a short put of this peer, where the last one with the same words went, and where the
    /// put's bytes begin. Words that are to be remembered are.
    #[inline(always)]
    pub(crate) fn words_of(
        &mut self,
        first: First,
        inbound: &Inbound<'_>,
    ) -> Option<(Remembered, Option<Found>, usize)> {
        let (flags, short) = (first.flags, first.short.get());
        if flags & flag::AGAIN != 0 {
            let heard = self.heard.as_ref()?;
            if flags & flag::KEEP != 0 || heard.name != put_name(flags, short) {
                return None;
            }
            return Some((heard.words, heard.found, 8));
        }
        let (words, body) = Remembered::read(flags, inbound)?;
        if flags & flag::KEEP != 0 {
            self.heard = Some(ReceivedPut {
                name: put_name(flags, short),
                words,
                found: None,
            });
        }
        Some((words, None, body))
    }
}

impl Remembered {
    /// Returns which words there are.
    #[inline(always)]
    pub(crate) fn flags(&self) -> u8 {
        let second = if self.second != 0 { flag::SECOND } else { 0 };
        let hdr = if self.hdr != 0 { flag::HDR } else { 0 };
        second | hdr
    }

    /// The number of words of the head.
    #[inline(always)]
    pub(crate) fn words(&self) -> usize {
        1 + usize::from(self.second != 0) + usize::from(self.hdr != 0)
    }

    /// Reads the words of a put that arrived, and where its body begins.
    #[inline(always)]
    pub(crate) fn read(flags: u8, inbound: &Inbound<'_>) -> Option<(Self, usize)> {
        let mut words = Words::of(inbound);
        let said = Self {
            main: words.next()?,
            second: words.next_if(flags, flag::SECOND)?,
            hdr: words.next_if(flags, flag::HDR)?,
        };
        Some((said, words.end()))
    }
}

/// Where the bytes of a put are.
#[derive(Clone, Copy)]
struct Source<'a> {
    memory: &'a Memory,
    at: usize,
    length: usize,
}

/// Sends a put that has one word. `None`: its memory is of a kind that goes the other way.
#[inline(always)]
fn send_plain<M: Message>(
    link: &mut Link<M>,
    peer: PeerId,
    mut head: [u64; 2],
    Source { memory, at, length }: Source<'_>,
) -> Option<Result<(), Refused>> {
    let head = head.as_mut_bytes();
    // Each kind of body separately: so none is ever stored and looked at.
    Some(match memory {
        Memory::One(Landing::Loan(loan)) => {
            link.send_here(peer, head, Body::Loan(loan.as_const().part(at, length)), false)
        }
        Memory::One(Landing::Region(slice)) => {
            let body = Body::Shared(slice.as_shared().skip(at).take(length));
            link.send_here(peer, head, body, false)
        }
        _ => return None,
    })
}

/// Sends a put that has more words. What does not fit a cell only because of them leaves them out, where the
/// other side knows them.
#[inline(never)]
fn send_worded<M: Message>(
    link: &mut Link<M>,
    (peer, last): (PeerId, &mut Option<(u32, Remembered)>),
    (flags, short, said): (u8, u16, Remembered),
    source: Source<'_>,
) -> Option<Result<(), Refused>> {
    let bytes = 8 + source.length + 8 * said.words();
    if bytes <= CELL || 8 + source.length > CELL {
        let first = first_word(kind::PUT, flags, short);
        return send_words(link, peer, (first, said), source);
    }
    let name = put_name(flags, short);
    if *last == Some((name, said)) {
        let first = first_word(kind::PUT, flags | flag::AGAIN, short);
        return send_again(link, peer, first, source);
    }
    let first = first_word(kind::PUT, flags | flag::KEEP, short);
    let sent = send_words(link, peer, (first, said), source);
    if sent == Some(Ok(())) {
        *last = Some((name, said));
    }
    sent
}

/// Sends a put with all of its words.
#[inline(always)]
fn send_words<M: Message>(
    link: &mut Link<M>,
    peer: PeerId,
    (first, said): (u64, Remembered),
    Source { memory, at, length }: Source<'_>,
) -> Option<Result<(), Refused>> {
    let (mut head, mut words) = ([first, said.main.to_le(), 0, 0], 2);
    for word in [said.second, said.hdr] {
        if word != 0 {
            head[words] = word.to_le();
            words += 1;
        }
    }
    if length == 0 && words == 3 {
        let [first, main, last, _] = head;
        let last = last.to_ne_bytes();
        return Some(link.send_here(peer, [first, main].as_mut_bytes(), Body::Bytes(&last), false));
    }
    let loan;
    let body = match memory {
        Memory::One(Landing::Loan(whole)) => {
            loan = whole.as_const().part(at, length);
            Body::Loan(loan)
        }
        Memory::One(Landing::Region(slice)) => Body::Shared(slice.as_shared().skip(at).take(length)),
        _ => return None,
    };
    Some(link.send(peer, head[..words].as_mut_bytes(), body, false))
}

/// Sends a put with none of its words, and at most two words of bytes.
#[inline(always)]
fn send_again<M: Message>(
    link: &mut Link<M>,
    peer: PeerId,
    first: u64,
    Source { memory, at, length }: Source<'_>,
) -> Option<Result<(), Refused>> {
    let loan;
    let bytes = match memory {
        _ if length == 0 => SharedBytes::of(&[]),
        Memory::One(Landing::Loan(whole)) => {
            loan = whole.part(at, length);
            loan.as_shared()
        }
        Memory::One(Landing::Region(slice)) => slice.as_shared().skip(at).take(length),
        _ => return None,
    };
    if length <= 8 {
        return Some(link.send_here(peer, [first].as_mut_bytes(), Body::Shared(bytes), false));
    }
    let word = u64::from_ne_bytes(bytes.read(0)?);
    let body = Body::Shared(bytes.skip(8));
    Some(link.send(peer, [first, word].as_mut_bytes(), body, false))
}

/// Whether an entry lets a user put.
#[inline(always)]
pub(crate) fn takes_puts(slot: &EntrySlot, uid: u32) -> bool {
    slot.options.has(EntryOptions::OP_PUT) && (slot.uid == ANY || slot.uid == uid)
}

impl Core {
    /// Begins a put.
    #[inline]
    pub(crate) fn put<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        put: &Put,
    ) -> Result<(), NiError> {
        if self.placing.has_rooms
            && (put.length > SHORT_BODY || put.ack != AckReq::None)
            && let Some(sent) = self.placed_put(link, kind, put)
        {
            return sent;
        }
        match self.short_put(link, kind, put) {
            Some(sent) => sent,
            None => self.put_or_atomic(link, kind, put, None),
        }
    }

    #[inline(always)]
    fn short_put<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        put: &Put,
    ) -> Option<Result<(), NiError>> {
        let target = &put.target;
        let short = u16::try_from(target.pt_index).ok()?;
        if put.ack != AckReq::None || put.length > SMALL as u64 || !kind.logical {
            return None;
        }
        let ni = self.nis.get_mut(kind.number() as usize)?.as_deref_mut()?;
        let peer = *ni.map.as_ref()?.peers.get(target.process.nid as usize)?;
        let known = self.peers.get_mut(PeerId(peer))?;
        if known.lost || !known.greeted {
            return None;
        }
        let (index, md) = ni.mds.find(put.from.md.0)?;
        if !bytes::range(md.length, put.from.offset, put.length) || put.length > ni.limits.max_msg_size {
            return None;
        }
        let (main, second) = if kind.matching {
            (target.match_bits, target.remote_offset)
        } else {
            (target.remote_offset, target.match_bits)
        };
        let said = Remembered {
            main,
            second,
            hdr: put.hdr_data,
        };
        let source = Source {
            memory: &md.memory,
            at: put.from.offset as usize,
            length: put.length as usize,
        };
        let sent = if said.words() == 1 {
            let first = first_word(kind::PUT, kind.number() as u8, short);
            send_plain(link, PeerId(peer), [first, main.to_le()], source)?
        } else {
            let flags = said.flags() | kind.number() as u8;
            send_worded(
                link,
                (PeerId(peer), &mut known.said),
                (flags, short, said),
                source,
            )?
        };
        match sent {
            Ok(()) => {}
            Err(Refused::Full) => return Some(Err(NiError::Full)),
            Err(_) => return None,
        }
        if md.eq | md.ct != 0 {
            ni.post_initiator(index, InitiatorEvent::sent(put));
        }
        Some(Ok(()))
    }

    /// A put has arrived.
    #[inline(always)]
    pub(crate) fn put_arrived(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>) {
        if self.short_put_arrived(peer, first, inbound).is_none() {
            self.any_put_arrived(peer, first, inbound);
        }
    }

    /// Handles a short put. `None` when it is to go the general way; then nothing has changed but the
    /// remembered words, which that way stores once more.
    #[inline(always)]
    fn short_put_arrived(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>) -> Option<()> {
        let flags = first.flags;
        if flags & !SHORT_FLAGS != 0 {
            return None;
        }
        let known = self.peers.get_mut(peer)?;
        let uid = known.uid?;
        let (words, found, body) = known.words_of(first, &inbound)?;
        let Remembered {
            main,
            second,
            hdr: hdr_data,
        } = words;
        let rlength = (inbound.len() - body) as u64;
        let number = usize::from(flags & flag::NI);
        let ni = self.nis.get_mut(number)?.as_deref_mut()?;
        let source = ni
            .sources
            .get(peer.index())
            .copied()
            .filter(|source| *source != NONE)?;
        let pt_index = u32::from(first.short.get());
        let table = ni.tables.get_mut(pt_index as usize)?.as_deref_mut()?;
        if !table.enabled || table.has_flow_control() {
            return None;
        }
        let (eq, alone) = (table.eq, table.linked[0] == 1);
        let (entry, slot, match_bits, remote_offset, place, mlength) = if ni.kind.matching {
            let again = found
                .filter(|found| found.table == table.number && found.rlength <= rlength)
                .and_then(|found| table.matcher.look_again(found.entry, second, rlength));
            let found = match again {
                Some(found) => found,
                None => {
                    let key = MatchKey::new(0, source, main);
                    let found = table.matcher.look(&key, second, rlength)?;
                    if flags & (flag::KEEP | flag::AGAIN) != 0 {
                        known.remember(table.number, &found, rlength);
                    }
                    found
                }
            };
            if found.hit.list != doorbell_matching::List::Priority || found.hit.unlinked {
                return None;
            }
            let entry = found.hit.token as u32;
            let slot = ni.entries.at(entry)?;
            if !takes_puts(slot, uid) {
                return None;
            }
            if slot.options.has(EntryOptions::MANAGE_LOCAL) {
                // It is there: it was found just now.
                let _ = table.matcher.take(&found);
            }
            (entry, slot, main, second, found.hit.offset, found.hit.length)
        } else {
            let (index, list) = table.front()?;
            let slot = ni.entries.at(index)?;
            let once = slot.options.has(EntryOptions::USE_ONCE);
            if list != List::Priority || once || !takes_puts(slot, uid) {
                return None;
            }
            (
                index,
                slot,
                second,
                main,
                main,
                rlength.min(slot.length.saturating_sub(main)),
            )
        };
        let (options, ct, user_ptr, quiet) = (slot.options, slot.ct, slot.user_ptr, posts_nothing(slot, eq));
        if mlength != 0 {
            bytes::land(&slot.memory, place as usize, inbound, body, mlength as usize);
        }
        let start = slot.memory.address(place as usize);
        let event = Event {
            kind: EventKind::Put,
            fail: NiFail::Ok,
            list: List::Priority,
            start,
            place,
            user_ptr,
            hdr_data,
            match_bits,
            rlength,
            mlength,
            remote_offset,
            initiator: if ni.kind.logical {
                Process::rank(source)
            } else {
                known.process
            },
            uid,
            pt_index,
            atomic_operation: 0,
            atomic_type: 0,
        };
        if eq != 0 && posts(options, true) {
            ni.post(
                eq,
                &event,
                false,
                !options.has(EntryOptions::EVENT_FLOWCTRL_DISABLE),
            );
        }
        let wanted = (quiet && mlength > SHORT_BODY).then(|| Wanted {
            peer,
            ni: number as u8,
            pt: first.short.get(),
            entry: ni.entries.handle(entry),
        });
        if ct != 0 && options.has(EntryOptions::EVENT_CT_COMM) {
            // Alone on its list: no other entry has let a longer one pass, and takes a shorter one.
            if flags & !flag::NI == 0 && place == 0 && quiet && alone && peer != PeerId::SELF {
                let word = first_word(kind::PUT, number as u8, first.short.get());
                let entry = (ni.entries.handle(entry), ct);
                self.guess = Some(Guess::of(ni.kind, peer, word, main, entry));
            }
            ni.count(ct, counted(options.has(EntryOptions::EVENT_CT_BYTES), &event));
            if ni.triggers.has_fired() {
                self.run_local(number);
            }
        }
        if let Some(wanted) = wanted {
            self.could_be_placed(wanted);
        }
        Some(())
    }
}
