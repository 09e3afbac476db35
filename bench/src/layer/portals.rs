//! A pair's link by puts: each side has memory that the other one writes to, and polls the event that counts
//! how often.

use std::time::Duration;

use doorbell::fabric::memory::Region;
use doorbell::fabric::message::Landing;
use doorbell::fabric::ni::{
    AckReq, CtHandle, Entry, EntryOptions, EqGet, EqHandle, Event, Kind, List, Md, MdHandle, MdOptions,
    Memory, Ni, NiError, Piece, Process, PtOptions, Put, Target,
};
use doorbell::portals::Portals;

use super::control::Control;
use super::{InOrder, LEFTOVER, PROGRESS_EVERY, one_by_one, places};
use crate::error::BenchError;
use crate::link::{Flow, Link, Sinks};
use crate::load::until_empty;
use crate::size::LARGEST;

/// The interface of the load.
pub(super) const KIND: Kind = Kind::MATCHING_LOGICAL;
/// Portal table entry of the load.
const DATA: u32 = 4;
/// Operations that a lost peer leaves behind fail before its loss is reported, by no more than this.
const LOSS_IS_TOLD: Duration = Duration::from_secs(2);
/// The portal table entries of messages with stamps, and of the permission to send more of them.
const STAMPED: u32 = 6;
const LEAVES: u32 = 7;

/// The portal table entry of ends of open loops: counts have no lengths.
const ENDS: u32 = 8;

/// One rank's side of a pair, by puts.
pub struct PortalsLink<'a> {
    job: &'a mut Portals,
    peer: u32,
    rail: String,
    deadline: Duration,
    control: Control,
    /// What the peer puts, and how often it has.
    room: Region,
    arrived: CtHandle,
    seen: u64,
    /// The ends of open loops that came.
    ends: CtHandle,
    ended: u64,
    /// Polls of an open loop.
    polls: u32,
    /// What is put from, without and with acknowledgements that are counted.
    out: Region,
    md: MdHandle,
    acknowledged: MdHandle,
    acks: CtHandle,
    acked: u64,
    /// Which bytes lie in `out`.
    prepared: (usize, usize),
    /// The state of messages with stamps; `None` where they carry none.
    stamped: Option<Stamped>,
}

/// Messages that are checked one by one: full events announce them, and each lies in a place of its own until
/// it is read.
struct Stamped {
    room: Region,
    out: Region,
    md: MdHandle,
    events: EqHandle,
    leaves: CtHandle,
    places: u64,
    /// Bytes of a place.
    stride: usize,
    sent: u64,
    came: InOrder<Event>,
}

impl Stamped {
    fn new(job: &mut Portals, most: usize) -> Result<Self, BenchError> {
        let (places, stride) = (places(most), most.max(64));
        let bytes = places as usize * stride;
        let region = || Region::new(bytes).map_err(doorbell::Error::from);
        let (room, out) = (region()?, region()?);
        let whole = |region: &Region| Memory::One(Landing::Region(region.whole()));
        let events = job.ask(KIND, |ni| ni.eq_alloc(4 * places as usize))?;
        let leaves = job.ask(KIND, |ni| ni.ct_alloc())?;
        job.ask(KIND, |ni| {
            ni.pt_alloc(PtOptions::NONE, Some(events), Some(STAMPED))
        })?;
        job.ask(KIND, |ni| ni.pt_alloc(PtOptions::NONE, None, Some(LEAVES)))?;
        let evented = EntryOptions::OP_PUT | EntryOptions::EVENT_LINK_DISABLE;
        let entry = Entry::open(whole(&room), evented);
        job.ask(KIND, |ni| ni.append(STAMPED, entry.clone(), List::Priority, 0))?;
        let options = evented | EntryOptions::EVENT_COMM_DISABLE | EntryOptions::EVENT_CT_COMM;
        let leave = Entry::open(Memory::Empty, options).counted(leaves);
        job.ask(KIND, |ni| ni.append(LEAVES, leave.clone(), List::Priority, 0))?;
        let md = job.ask(KIND, |ni| {
            ni.md_bind(Md {
                memory: whole(&out),
                ..Md::default()
            })
        })?;
        Ok(Self {
            room,
            out,
            md,
            events,
            leaves,
            places,
            stride,
            sent: 0,
            came: InOrder::new(),
        })
    }

    fn put(&self, job: &mut Portals, index: u32, at: usize, length: usize) -> Result<(), BenchError> {
        let put = Put {
            from: Piece {
                md: self.md,
                offset: at as u64,
            },
            length: length as u64,
            ack: AckReq::None,
            target: Target {
                process: Process::rank(job.rank() ^ 1),
                pt_index: index,
                match_bits: 0,
                remote_offset: at as u64,
            },
            user_ptr: 0,
            hdr_data: self.sent,
        };
        job.ask(KIND, |ni| {
            ni.put(&put)?;
            ni.flush();
            Ok(())
        })?;
        Ok(())
    }

    fn send(&mut self, job: &mut Portals, body: &[u8]) -> Result<(), BenchError> {
        // The message that had this place was read.
        let free = (self.sent + 1).saturating_sub(self.places);
        job.wait_count(KIND, self.leaves, free)?;
        let at = (self.sent % self.places) as usize * self.stride;
        self.out.write(at, body);
        self.put(job, STAMPED, at, body.len())?;
        self.sent += 1;
        Ok(())
    }

    /// The next message, if it is there.
    fn try_recv(&mut self, job: &mut Portals, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
        let found = job.ni(KIND).eq_get(self.events).map_err(refused)?;
        let twice = match found {
            EqGet::Empty => None,
            EqGet::Dropped(_) => return Err(dropped(job)),
            EqGet::Event(event) => self.came.came(event.hdr_data, event),
        };
        match twice.or_else(|| self.came.turn()) {
            Some(event) => self.read(job, &event, into).map(Some),
            None => Ok(None),
        }
    }

    fn recv(&mut self, job: &mut Portals, into: &mut [u8]) -> Result<usize, BenchError> {
        let event = loop {
            if let Some(event) = self.came.turn() {
                break event;
            }
            match job.wait_event(KIND, self.events)? {
                EqGet::Event(event) => {
                    if let Some(twice) = self.came.came(event.hdr_data, event) {
                        break twice;
                    }
                }
                EqGet::Empty | EqGet::Dropped(_) => return Err(dropped(job)),
            }
        };
        self.read(job, &event, into)
    }

    /// Copies a message out of its place, and frees that.
    fn read(&self, job: &mut Portals, event: &Event, into: &mut [u8]) -> Result<usize, BenchError> {
        let found = (event.mlength as usize).min(into.len());
        self.room.read(event.place as usize, &mut into[..found]);
        self.put(job, LEAVES, 0, 0)?;
        Ok(event.mlength as usize)
    }
}

impl<'a> PortalsLink<'a> {
    /// Creates the link to the other of two ranks, for messages of up to `most` bytes: the larger of the two
    /// ranks' values. Both call it.
    ///
    /// # Errors
    /// When memory runs out, or the peer is lost.
    pub fn new(job: &'a mut Portals, rail: String, most: usize, verify: bool) -> Result<Self, BenchError> {
        let peer = job.rank() ^ 1;
        job.init(KIND, None)?;
        let control = Control::new(job, peer)?;
        let mut wanted = [0; 16];
        let own = (most as u64) << 1 | u64::from(verify);
        job.allgather(&own.to_le_bytes(), &mut wanted)?;
        let words = wanted
            .as_chunks::<8>()
            .0
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes));
        let verify = words.clone().any(|word| word & 1 == 1);
        let most = words.map(|word| word >> 1).max();
        let most = most.map_or(0, |most| most.min(LARGEST as u64) as usize);
        let region = || Region::new(most.max(64)).map_err(doorbell::Error::from);
        let (room, out) = (region()?, region()?);
        let whole = |region: &Region| Memory::One(Landing::Region(region.whole()));
        let arrived = job.ask(KIND, |ni| ni.ct_alloc())?;
        let acks = job.ask(KIND, |ni| ni.ct_alloc())?;
        let index = job.ask(KIND, |ni| ni.pt_alloc(PtOptions::NONE, None, Some(DATA)))?;
        let options = EntryOptions::OP_PUT | EntryOptions::EVENT_CT_COMM | EntryOptions::EVENT_COMM_DISABLE;
        let entry = Entry::open(whole(&room), options).counted(arrived);
        job.ask(KIND, |ni| ni.append(index, entry.clone(), List::Priority, 0))?;
        let ends = job.ask(KIND, |ni| ni.ct_alloc())?;
        job.ask(KIND, |ni| ni.pt_alloc(PtOptions::NONE, None, Some(ENDS)))?;
        let end = Entry::open(Memory::Empty, options).counted(ends);
        job.ask(KIND, |ni| ni.append(ENDS, end.clone(), List::Priority, 0))?;
        let md = job.ask(KIND, |ni| {
            ni.md_bind(Md {
                memory: whole(&out),
                ..Md::default()
            })
        })?;
        let acknowledged = job.ask(KIND, |ni| {
            ni.md_bind(Md {
                memory: whole(&out),
                options: MdOptions::EVENT_CT_ACK,
                eq: None,
                ct: Some(acks),
            })
        })?;
        let stamped = verify.then(|| Stamped::new(job, most)).transpose()?;
        job.barrier()?;
        Ok(Self {
            deadline: *job.config().wait.deadline.get(),
            job,
            peer,
            rail,
            control,
            room,
            arrived,
            seen: 0,
            ends,
            ended: 0,
            polls: 0,
            out,
            md,
            acknowledged,
            acks,
            acked: 0,
            prepared: (0, 0),
            stamped,
        })
    }

    /// Copies the body to where it is put from. The bytes are the same for every message of a load, as a
    /// program's would lie in
    /// memory that it has bound: they are copied once.
    #[inline]
    fn prepare(&mut self, body: &[u8]) {
        let which = (body.as_ptr().addr(), body.len());
        if self.prepared != which {
            self.out.write(0, body);
            self.prepared = which;
        }
    }

    /// A put of the first bytes of what is put from.
    #[inline(always)]
    fn described(&self, md: MdHandle, length: usize, ack: AckReq) -> Put {
        Put {
            from: Piece { md, offset: 0 },
            length: length as u64,
            ack,
            target: Target {
                process: Process::rank(self.peer),
                pt_index: DATA,
                match_bits: 0,
                remote_offset: 0,
            },
            user_ptr: 0,
            hdr_data: 0,
        }
    }

    #[inline(always)]
    fn put(&mut self, md: MdHandle, length: usize, ack: AckReq) -> Result<(), BenchError> {
        let put = self.described(md, length, ack);
        let begun = self.job.ni(KIND).put(&put);
        match begun {
            Ok(()) => Ok(()),
            Err(NiError::Full) => Ok(self.job.ask(KIND, |ni| ni.put(&put))?),
            Err(error) => Err(refused(error)),
        }
    }

    #[inline(always)]
    fn wait(&mut self, ct: CtHandle, test: u64) -> Result<(), BenchError> {
        let count = self.job.wait_count(KIND, ct, test)?;
        if count.failure > 0 {
            return Err(self.failed(count.failure));
        }
        Ok(())
    }

    /// A pass of an open loop, which also notices that the peer is lost.
    fn poll(&mut self) -> Result<(), BenchError> {
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(PROGRESS_EVERY) {
            self.job.ni(KIND).poll(64);
            return Ok(());
        }
        self.job.progress();
        match self.job.lost() {
            [] => Ok(()),
            _ => Err(self.failed(0)),
        }
    }

    /// Whether an event has counted more than this.
    fn is_beyond(&mut self, ct: CtHandle, seen: u64) -> Result<bool, BenchError> {
        let count = self.job.ni(KIND).ct_get(ct).map_err(refused)?;
        match count.failure {
            0 => Ok(count.success > seen),
            failures => Err(self.failed(failures)),
        }
    }

    /// Returns the error of failed operations: the peer is lost, which a wait reports; or they should not
    /// have failed.
    #[cold]
    fn failed(&mut self, count: u64) -> BenchError {
        self.job.set_deadline(LOSS_IS_TOLD);
        let lost = self.job.wait_until(KIND, "word of its peer", |_| None::<()>);
        self.job.set_deadline(self.deadline);
        match lost {
            Err(error @ doorbell::Error::PeerLost { .. }) => error.into(),
            _ => BenchError::Disorder {
                rank: self.peer,
                what: format!("{count} of its operations failed"),
            },
        }
    }
}

#[cold]
fn dropped(job: &Portals) -> BenchError {
    BenchError::Disorder {
        rank: job.rank() ^ 1,
        what: "events were lost".to_owned(),
    }
}

#[cold]
fn refused(error: NiError) -> BenchError {
    BenchError::World {
        source: doorbell::Error::Interface {
            what: "a put",
            reason: error.to_string(),
        },
    }
}

impl Link for PortalsLink<'_> {
    fn rank(&self) -> u32 {
        self.job.rank()
    }

    fn peer(&self) -> u32 {
        self.peer
    }

    fn rail(&self) -> &str {
        &self.rail
    }

    #[inline(always)]
    fn send(&mut self, body: &[u8]) -> Result<(), BenchError> {
        if let Some(stamped) = &mut self.stamped {
            return stamped.send(self.job, body);
        }
        self.prepare(body);
        self.put(self.md, body.len(), AckReq::None)?;
        self.job.ni(KIND).flush();
        Ok(())
    }

    #[inline(always)]
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, BenchError> {
        if let Some(stamped) = &mut self.stamped {
            return stamped.recv(self.job, into);
        }
        self.seen += 1;
        self.wait(self.arrived, self.seen)?;
        Ok(into.len())
    }

    fn settle(&mut self, into: &mut [u8]) {
        if self.stamped.is_none() {
            self.room.read(0, into);
        }
    }

    fn recv_open(&mut self, into: &mut [u8]) -> Result<usize, BenchError> {
        let (arrived, ends) = (self.arrived, self.ends);
        let (seen, ended) = (self.seen, self.ended);
        let look = |ni: &mut dyn Ni| match (ni.ct_get(arrived), ni.ct_get(ends)) {
            (Ok(came), _) if came.failure > 0 => Some(Err(came.failure)),
            (Ok(came), _) if came.success > seen => Some(Ok(true)),
            (_, Ok(end)) if end.success > ended => Some(Ok(false)),
            _ => None,
        };
        match self.job.wait_until(KIND, "a put of an open loop", look)? {
            Ok(true) => {
                self.seen += 1;
                Ok(into.len())
            }
            Ok(false) => {
                self.ended += 1;
                Ok(0)
            }
            Err(failures) => Err(self.failed(failures)),
        }
    }

    fn send_end(&mut self) -> Result<(), BenchError> {
        if self.stamped.is_some() {
            return self.send(&[]);
        }
        let mut put = self.described(self.md, 0, AckReq::None);
        put.target.pt_index = ENDS;
        self.job.ask(KIND, |ni| {
            ni.put(&put)?;
            ni.flush();
            Ok(())
        })?;
        Ok(())
    }

    fn stream_out(
        &mut self,
        body: &[u8],
        count: u64,
        flow: Flow,
        _: &mut dyn FnMut() -> bool,
    ) -> Result<u64, BenchError> {
        self.prepare(body);
        let window = flow.window.max(1) as u64;
        // Half a window at a time, so that the acknowledgements of the other half are on their way meanwhile.
        let step = window.div_ceil(2);
        let (first, last) = (self.acked, self.acked + count);
        for sent in first..last {
            if (sent - first) % step == 0 && sent - first >= window {
                self.wait(self.acks, sent + step - window)?;
            }
            self.put(self.acknowledged, body.len(), AckReq::Oc)?;
        }
        self.acked = last;
        self.job.ni(KIND).flush();
        self.wait(self.acks, last)?;
        Ok(count)
    }

    fn stream_in(&mut self, _: &mut Sinks, count: u64, _: Flow) -> Result<u64, BenchError> {
        self.seen += count;
        self.wait(self.arrived, self.seen)?;
        Ok(count)
    }

    // Arrivals are counted, and not read.
    fn ends_early(&self) -> bool {
        false
    }

    one_by_one!(job);

    fn begin_open(&mut self, _: usize, _: usize) -> Result<(), BenchError> {
        Ok(())
    }

    fn end_open(&mut self) {}

    fn can_send(&mut self) -> Result<bool, BenchError> {
        match &self.stamped {
            None => Ok(true),
            Some(stamped) => {
                let (leaves, sent) = (stamped.leaves, stamped.sent + 1);
                match sent.checked_sub(stamped.places) {
                    None | Some(0) => Ok(true),
                    Some(free) => self.is_beyond(leaves, free - 1),
                }
            }
        }
    }

    #[inline]
    fn try_send(&mut self, body: &[u8]) -> Result<bool, BenchError> {
        if !self.can_send()? {
            return Ok(false);
        }
        if self.stamped.is_some() {
            self.send(body)?;
            return Ok(true);
        }
        if body.is_empty() {
            self.send_end()?;
            return Ok(true);
        }
        self.prepare(body);
        let put = self.described(self.md, body.len(), AckReq::None);
        let mut ni = self.job.ni(KIND);
        match ni.put(&put) {
            Ok(()) => {
                ni.flush();
                Ok(true)
            }
            Err(NiError::Full) => Ok(false),
            Err(error) => Err(refused(error)),
        }
    }

    #[inline]
    fn try_recv(&mut self, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
        self.poll()?;
        if let Some(stamped) = &mut self.stamped {
            return stamped.try_recv(self.job, into);
        }
        if self.is_beyond(self.arrived, self.seen)? {
            self.seen += 1;
            return Ok(Some(into.len()));
        }
        let is_over = self.is_beyond(self.ends, self.ended)?;
        self.ended += u64::from(is_over);
        Ok(is_over.then_some(0))
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn send_control(&mut self, text: &[u8]) -> Result<(), BenchError> {
        self.control.send(self.job, text)
    }

    fn receive_control(&mut self) -> Result<Vec<u8>, BenchError> {
        self.receive_control_within(self.deadline)
    }

    fn receive_control_within(&mut self, limit: Duration) -> Result<Vec<u8>, BenchError> {
        self.job.set_deadline(limit);
        let received = self.control.receive(self.job);
        self.job.set_deadline(self.deadline);
        received
    }
}

impl std::fmt::Debug for PortalsLink<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "PortalsLink(to rank {} over {})", self.peer, self.rail)
    }
}
