//! In the steady state the conduit allocates nothing: a counting allocator under a whole job in one thread.
//!
//! The conduit is alone here: its interface is a small one of the test's own, which allocates nothing either,
//! so that what is counted is the conduit's. (The interface in software over the simulated network allocates
//! in the network.)

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use doorbell_am::{Attaching, Conduit, Config, Handlers, Remote, Source, Try};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::{
    AckReq, Atomic, Count, CtHandle, Entry, EntryHandle, EntryOptions, EqGet, EqHandle, Event, EventKind,
    FetchAtomic, Get, Kind, List, Lost, Md, MdHandle, MdOptions, Memory, Ni, NiError, NiFail, NiLimits,
    Process, PtOptions, Put, Register, Search, Triggered,
};
use doorbell_fabric::time::Time;
use doorbell_testing::alloc::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What an entry of the small interface is.
struct Linked {
    memory: Landing,
    entry: Entry,
    pointer: u64,
    local: u64,
    index: u32,
    list: List,
}

/// One process of the small interface: tables of fixed size.
struct Side {
    queues: Vec<VecDeque<Event>>,
    tables: Vec<(u32, u32)>,
    entries: Vec<Linked>,
    mds: Vec<Option<(Md, Landing)>>,
    counts: Vec<Count>,
}

/// Two processes, each of which reaches the other at once: no wire, no order but that of the calls.
struct Pair([Side; 2]);

struct Direct {
    pair: Rc<RefCell<Pair>>,
    me: usize,
    limits: NiLimits,
}

fn one(memory: &Memory) -> Landing {
    match memory {
        Memory::One(piece) => piece.clone(),
        _ => Landing::EMPTY,
    }
}

impl Direct {
    fn event(kind: EventKind, user_ptr: u64, length: u64, offset: u64) -> Event {
        Event {
            kind,
            fail: NiFail::Ok,
            list: List::Priority,
            start: 0,
            place: offset,
            user_ptr,
            hdr_data: 0,
            match_bits: 0,
            rlength: length,
            mlength: length,
            remote_offset: offset,
            initiator: Process::rank(0),
            uid: 0,
            pt_index: 0,
            atomic_operation: 0,
            atomic_type: 0,
        }
    }
}

impl Pair {
    /// The entry that takes it, and where in it.
    fn find(&mut self, side: usize, index: u32, bits: u64, at: u64, length: u64) -> (usize, u64) {
        let entries = &self.0[side].entries;
        let fits = |linked: &&Linked| {
            linked.index == index && (linked.entry.match_bits ^ bits) & !linked.entry.ignore_bits == 0
        };
        let first = entries
            .iter()
            .position(|linked| fits(&linked) && linked.list == List::Priority);
        let found = first.expect("the conduit's objects take whatever it sends");
        let linked = &entries[found];
        let local = linked.entry.options.has(EntryOptions::MANAGE_LOCAL);
        let place = if local { linked.local } else { at };
        assert!(place + length <= linked.memory.len() as u64);
        (found, place)
    }
}

impl Ni for Direct {
    fn kind(&self) -> Kind {
        Kind::MATCHING_LOGICAL
    }
    fn limits(&self) -> &NiLimits {
        &self.limits
    }
    fn id(&self) -> Process {
        Process::rank(self.me as u32)
    }
    fn uid(&self) -> u32 {
        0
    }
    fn status(&self, _: Register) -> u64 {
        0
    }
    fn poll(&mut self, _: usize) -> usize {
        0
    }
    fn progress(&mut self, _: Time) -> usize {
        0
    }
    fn next_deadline(&self) -> Option<Time> {
        None
    }
    fn arm(&mut self, _: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        true
    }
    fn disarm(&mut self) {}
    fn lost(&mut self) -> Option<Lost> {
        None
    }
    fn pt_alloc(&mut self, _: PtOptions, eq: Option<EqHandle>, index: Option<u32>) -> Result<u32, NiError> {
        let (index, eq) = (index.expect("given"), eq.expect("given"));
        self.pair.borrow_mut().0[self.me].tables.push((index, eq.0));
        Ok(index)
    }
    fn pt_free(&mut self, _: u32) -> Result<(), NiError> {
        Ok(())
    }
    fn pt_enable(&mut self, _: u32) -> Result<(), NiError> {
        Ok(())
    }
    fn pt_disable(&mut self, _: u32) -> Result<bool, NiError> {
        Ok(true)
    }
    fn eq_alloc(&mut self, count: usize) -> Result<EqHandle, NiError> {
        let queues = &mut self.pair.borrow_mut().0[self.me].queues;
        queues.push(VecDeque::with_capacity(count));
        Ok(EqHandle(queues.len() as u32 - 1))
    }
    fn eq_free(&mut self, _: EqHandle) -> Result<(), NiError> {
        Ok(())
    }
    fn eq_get(&mut self, eq: EqHandle) -> Result<EqGet, NiError> {
        let event = self.pair.borrow_mut().0[self.me].queues[eq.0 as usize].pop_front();
        Ok(event.map_or(EqGet::Empty, EqGet::Event))
    }
    fn ct_alloc(&mut self) -> Result<CtHandle, NiError> {
        let counts = &mut self.pair.borrow_mut().0[self.me].counts;
        counts.push(Count::default());
        Ok(CtHandle(counts.len() as u32 - 1))
    }
    fn ct_free(&mut self, _: CtHandle) -> Result<(), NiError> {
        Ok(())
    }
    fn ct_get(&self, ct: CtHandle) -> Result<Count, NiError> {
        Ok(self.pair.borrow().0[self.me].counts[ct.0 as usize])
    }
    fn ct_set(&mut self, _: CtHandle, _: Count) -> Result<(), NiError> {
        Ok(())
    }
    fn ct_inc(&mut self, _: CtHandle, _: Count) -> Result<(), NiError> {
        Ok(())
    }
    fn ct_cancel_triggered(&mut self, _: CtHandle) -> Result<(), NiError> {
        Ok(())
    }
    fn md_bind(&mut self, md: Md) -> Result<MdHandle, NiError> {
        let mds = &mut self.pair.borrow_mut().0[self.me].mds;
        let memory = one(&md.memory);
        let free = mds.iter().position(Option::is_none).expect("room");
        mds[free] = Some((md, memory));
        Ok(MdHandle(free as u32))
    }
    fn md_release(&mut self, md: MdHandle) -> Result<(), NiError> {
        self.pair.borrow_mut().0[self.me].mds[md.0 as usize] = None;
        Ok(())
    }
    fn append(&mut self, index: u32, entry: Entry, list: List, pointer: u64) -> Result<EntryHandle, NiError> {
        let entries = &mut self.pair.borrow_mut().0[self.me].entries;
        let handle = entries.len() as u32;
        let memory = one(&entry.memory);
        assert!(
            entries.len() < entries.capacity(),
            "entries are made again, and room was made for them"
        );
        entries.push(Linked {
            memory,
            entry,
            pointer,
            local: 0,
            index,
            list,
        });
        Ok(EntryHandle(handle))
    }
    fn unlink(&mut self, _: EntryHandle) -> Result<(), NiError> {
        Ok(())
    }
    fn search(&mut self, _: u32, _: &Entry, _: Search, _: u64) -> Result<(), NiError> {
        Ok(())
    }
    fn put(&mut self, put: &Put) -> Result<(), NiError> {
        let (me, to) = (self.me, put.target.process.nid as usize);
        let pair = &mut *self.pair.borrow_mut();
        let (target, length) = (put.target, put.length);
        let (found, place) = pair.find(
            to,
            target.pt_index,
            target.match_bits,
            target.remote_offset,
            length,
        );
        let (md, memory) = pair.0[me].mds[put.from.md.0 as usize].as_ref().expect("bound");
        let (options, eq) = (md.options, md.eq);
        let from = memory.part(put.from.offset as usize, length as usize);
        let view = match &from {
            Landing::Loan(loan) => loan.as_shared(),
            Landing::Region(slice) => slice.as_shared(),
        };
        let side = &mut pair.0[to];
        let queue = side
            .tables
            .iter()
            .find(|table| table.0 == target.pt_index)
            .expect("made")
            .1 as usize;
        let linked = &mut side.entries[found];
        linked.memory.write_shared(place as usize, view);
        let mut event = Self::event(EventKind::Put, linked.pointer, length, place);
        event.hdr_data = put.hdr_data;
        event.match_bits = target.match_bits;
        event.initiator = Process::rank(me as u32);
        let entry = &linked.entry;
        let silent = entry.options.has(EntryOptions::EVENT_COMM_DISABLE);
        let mut unlinked = false;
        if entry.options.has(EntryOptions::MANAGE_LOCAL) {
            linked.local += length;
            unlinked = linked.memory.len() as u64 - linked.local < entry.min_free;
        }
        let pointer = linked.pointer;
        if unlinked {
            side.entries.remove(found);
            side.queues[queue].push_back(Self::event(EventKind::AutoUnlink, pointer, 0, 0));
        }
        if !silent {
            side.queues[queue].push_back(event);
        }
        let Some(eq) = eq else {
            return Ok(());
        };
        let queue = &mut pair.0[me].queues[eq.0 as usize];
        if !options.has(MdOptions::EVENT_SEND_DISABLE) {
            queue.push_back(Self::event(EventKind::Send, put.user_ptr, length, 0));
        }
        if put.ack == AckReq::Full {
            queue.push_back(Self::event(EventKind::Ack, put.user_ptr, length, place));
        }
        Ok(())
    }
    fn get(&mut self, get: &Get) -> Result<(), NiError> {
        let (me, to) = (self.me, get.target.process.nid as usize);
        let pair = &mut *self.pair.borrow_mut();
        let (target, length) = (get.target, get.length);
        let (found, place) = pair.find(
            to,
            target.pt_index,
            target.match_bits,
            target.remote_offset,
            length,
        );
        let from = pair.0[to].entries[found]
            .memory
            .part(place as usize, length as usize);
        let (md, into) = pair.0[me].mds[get.into.md.0 as usize].as_ref().expect("bound");
        let Landing::Region(from) = &from else {
            return Err(NiError::ArgInvalid("memory"));
        };
        into.write_shared(get.into.offset as usize, from.as_shared());
        let eq = md.eq.expect("a get is waited for");
        pair.0[me].queues[eq.0 as usize].push_back(Self::event(
            EventKind::Reply,
            get.user_ptr,
            length,
            place,
        ));
        Ok(())
    }
    fn atomic(&mut self, _: &Atomic) -> Result<(), NiError> {
        Err(NiError::ArgInvalid("none here"))
    }
    fn fetch_atomic(&mut self, _: &FetchAtomic) -> Result<(), NiError> {
        Err(NiError::ArgInvalid("none here"))
    }
    fn trigger(&mut self, _: CtHandle, _: u64, _: Triggered) -> Result<Option<EntryHandle>, NiError> {
        Err(NiError::ArgInvalid("none here"))
    }
    fn flush(&mut self) {}
}

fn handlers(handled: &std::sync::Arc<std::sync::atomic::AtomicU64>) -> Handlers {
    let mut handlers = Handlers::new();
    let echo = |request: doorbell_am::Request<'_>| {
        let (args, bytes) = (request.args(), request.payload().bytes());
        match request.payload().offset() {
            Some(offset) => {
                let length = bytes.len() as u64;
                let from = Source::Segment { offset, length };
                assert!(request.reply_long(2, args, from, 32_768).is_ok());
            }
            None if bytes.is_empty() => assert!(request.reply_short(2, args).is_ok()),
            None => assert!(request.reply_medium(2, args, bytes).is_ok()),
        }
    };
    handlers.request(1, echo).expect("free");
    let handled = std::sync::Arc::clone(handled);
    let count = move |_: doorbell_am::Reply<'_>| {
        handled.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    handlers.reply(2, count).expect("free");
    handlers
}

#[test]
fn messages_puts_and_gets_allocate_nothing() {
    let side = || Side {
        queues: Vec::new(),
        tables: Vec::new(),
        entries: Vec::with_capacity(64),
        mds: (0..64).map(|_| None).collect(),
        counts: Vec::new(),
    };
    let pair = Rc::new(RefCell::new(Pair([side(), side()])));
    let handled = std::sync::Arc::default();
    let memory = Region::new(4096).expect("memory").whole();
    let mut making: Vec<_> = (0..2)
        .map(|me| {
            let mut config = Config::new(me, 2, Region::new(1 << 16).expect("memory").whole());
            config.settings.chunks_per_buffer = 8;
            config.settings.temporaries = 8;
            let ni = Direct {
                pair: Rc::clone(&pair),
                me: me as usize,
                limits: config.needs().expect("they fit"),
            };
            Attaching::new(ni, config, handlers(&handled)).expect("made")
        })
        .collect();
    let mut come = 0;
    while come < 4 {
        come = 0;
        for making in &mut making {
            let ready = making
                .step(Time::ZERO, &mut || Ok(true))
                .expect("they come together");
            come += if ready { 2 } else { 0 };
        }
    }
    let mut ams: Vec<Conduit<Direct>> = making
        .into_iter()
        .map(|one| one.finish().expect("ready"))
        .collect();
    let round = |ams: &mut Vec<Conduit<Direct>>, number: u32| {
        let payload = [number as u8; 700];
        for me in 0..2u32 {
            let am = &mut ams[me as usize];
            let to = 1 - me;
            let args = [number; 16];
            assert!(am.try_request_short(to, 1, &[]).expect("sent").is_done());
            assert!(am.try_request_short(to, 1, &args).expect("sent").is_done());
            assert!(
                am.try_request_medium(to, 1, &args[..3], &payload)
                    .expect("sent")
                    .is_done()
            );
            assert!(
                am.try_request_long(to, 1, &args[..1], &payload, 8192)
                    .expect("sent")
                    .is_done()
            );
            let from = Source::Segment {
                offset: 0,
                length: 4000,
            };
            let long = am
                .try_request_long(to, 1, &[], from, 0)
                .expect("sent")
                .done()
                .expect("at once");
            let place = Remote {
                rank: to,
                offset: 50_000,
            };
            let put = match am.put(place, memory.clone()).expect("sent") {
                Try::Done(put) => put,
                Try::Stalled(stall) => panic!("{stall}"),
            };
            assert!(am.put_nbi(place, &payload[..8]).expect("sent").is_done());
            assert!(am.get_nbi(memory.clone(), place, 4096).expect("sent").is_done());
            assert!(am.get_nbi(memory.clone(), place, 8).expect("sent").is_done());
            for _ in 0..4 {
                for am in &mut *ams {
                    am.step(Time::ZERO).expect("it goes on");
                }
            }
            let am = &mut ams[me as usize];
            assert!(am.try_sync(put).expect("it went well"));
            assert!(am.try_sync(long.source.expect("a handle")).expect("it went well"));
            assert!(am.try_sync_all().expect("they went well"));
        }
    };
    for number in 0..200 {
        round(&mut ams, number);
    }
    let before = alloc::of_thread().allocations;
    for number in 0..2000 {
        round(&mut ams, number);
    }
    let allocated = alloc::of_thread().allocations - before;
    let recycled: u64 = ams.iter().map(|am| am.stats().recycled).sum();
    assert_eq!(handled.load(std::sync::atomic::Ordering::Relaxed), 2200 * 2 * 5);
    assert!(recycled > 100, "receive buffers were used again: {recycled}");
    assert_eq!(allocated, 0, "allocations in the steady state");
}
