//! Orders and answers between two ranks by puts: piece after piece into one buffer, each with the permission
//! of its reader.
//!
//! ```text
//!   sender                                   receiver
//!     put a piece, hdr_data = bytes left ───►  an event; it is copied out
//!     ◄──────────────────────── put nothing    the buffer is free again
//! ```

use doorbell::fabric::memory::Region;
use doorbell::fabric::message::Landing;
use doorbell::fabric::ni::{
    AckReq, CtHandle, Entry, EntryOptions, EqGet, EqHandle, List, Md, MdHandle, Memory, Piece, Process,
    PtOptions, Put, Target,
};
use doorbell::portals::Portals;

use super::portals::KIND;
use crate::error::BenchError;
use crate::link::CONTROL_MAX;

/// Portal table entry.
const INDEX: u32 = 5;
/// Match bits of pieces, and of leaves.
const PIECE: u64 = 1;
const LEAVE: u64 = 2;
/// Bytes of a piece at most.
const ROOM: usize = 32 << 10;

/// One side of the control channel.
#[derive(Debug)]
pub(super) struct Control {
    peer: u32,
    events: EqHandle,
    leaves: CtHandle,
    room: Region,
    out: Region,
    md: MdHandle,
    sent: u64,
}

impl Control {
    pub(super) fn new(job: &mut Portals, peer: u32) -> Result<Self, BenchError> {
        let region = || Region::new(ROOM).map_err(doorbell::Error::from);
        let (room, out) = (region()?, region()?);
        let events = job.ask(KIND, |ni| ni.eq_alloc(16))?;
        let leaves = job.ask(KIND, |ni| ni.ct_alloc())?;
        job.ask(KIND, |ni| ni.pt_alloc(PtOptions::NONE, Some(events), Some(INDEX)))?;
        let pieces = Entry::open(
            Memory::One(Landing::Region(room.whole())),
            EntryOptions::OP_PUT | EntryOptions::EVENT_LINK_DISABLE,
        )
        .matching(PIECE, 0);
        job.ask(KIND, |ni| ni.append(INDEX, pieces.clone(), List::Priority, 0))?;
        let quiet =
            EntryOptions::EVENT_LINK_DISABLE | EntryOptions::EVENT_COMM_DISABLE | EntryOptions::EVENT_CT_COMM;
        let leave = Entry::open(Memory::Empty, EntryOptions::OP_PUT | quiet)
            .matching(LEAVE, 0)
            .counted(leaves);
        job.ask(KIND, |ni| ni.append(INDEX, leave.clone(), List::Priority, 0))?;
        let memory = Memory::One(Landing::Region(out.whole()));
        let md = job.ask(KIND, |ni| {
            ni.md_bind(Md {
                memory: memory.clone(),
                ..Md::default()
            })
        })?;
        Ok(Self {
            peer,
            events,
            leaves,
            room,
            out,
            md,
            sent: 0,
        })
    }

    fn put(&self, job: &mut Portals, bits: u64, length: usize, left: u64) -> Result<(), BenchError> {
        let put = Put {
            from: Piece {
                md: self.md,
                offset: 0,
            },
            length: length as u64,
            ack: AckReq::None,
            target: Target {
                process: Process::rank(self.peer),
                pt_index: INDEX,
                match_bits: bits,
                remote_offset: 0,
            },
            user_ptr: 0,
            hdr_data: left,
        };
        job.ask(KIND, |ni| {
            ni.put(&put)?;
            ni.flush();
            Ok(())
        })?;
        Ok(())
    }

    /// Sends a text, in pieces of which there is at least one.
    pub(super) fn send(&mut self, job: &mut Portals, text: &[u8]) -> Result<(), BenchError> {
        let mut left = text.len() as u64;
        let mut pieces = text.chunks(ROOM);
        let mut piece = pieces.next();
        loop {
            let now = piece.unwrap_or_default();
            // The last one was read: its bytes may be changed, and there is room for more.
            job.wait_count(KIND, self.leaves, self.sent)?;
            self.out.write(0, now);
            self.put(job, PIECE, now.len(), left)?;
            self.sent += 1;
            left -= now.len() as u64;
            piece = pieces.next();
            if piece.is_none() {
                return Ok(());
            }
        }
    }

    /// Receives all pieces of a text.
    pub(super) fn receive(&mut self, job: &mut Portals) -> Result<Vec<u8>, BenchError> {
        let mut text = Vec::new();
        loop {
            let EqGet::Event(event) = job.wait_event(KIND, self.events)? else {
                return Err(self.disorder("events were lost"));
            };
            let (length, left) = (event.mlength, event.hdr_data);
            if left > CONTROL_MAX as u64 || length > left || (length == 0 && left > 0) {
                return Err(self.disorder("a control message of a length that cannot be"));
            }
            let at = text.len();
            text.resize(at + length as usize, 0);
            self.room.read(0, &mut text[at..]);
            self.put(job, LEAVE, 0, 0)?;
            if length == left {
                return Ok(text);
            }
        }
    }

    fn disorder(&self, what: &str) -> BenchError {
        BenchError::Disorder {
            rank: self.peer,
            what: what.to_owned(),
        }
    }
}
