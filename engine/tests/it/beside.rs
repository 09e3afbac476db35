//! Puts and active messages beside a progress thread, in real processes: what goes on while a rank computes
//! and makes no call, which threads run handlers, and how such jobs end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use doorbell::am::{Am, Handlers, Remote, Setup};
use doorbell::config::Mode;
use doorbell::fabric::cores::allowed;
use doorbell::fabric::memory::{Region, RegionSlice};
use doorbell::fabric::message::Landing;
use doorbell::fabric::ni::{
    AckReq, CtHandle, Entry, EntryOptions, EqGet, EqHandle, EventKind, Get, Kind, List, Md, MdHandle,
    MdOptions, Memory, Ni as _, NiFail, Piece, Process, PtOptions, Put, Target,
};
use doorbell::{Builder, Portals};

use crate::bound::{own_cores, progress_thread, two_cores};
use crate::common::pattern;
use crate::processes::{ROLE, start_test};

const KIND: Kind = Kind::MATCHING_LOGICAL;
const INDEX: u32 = 4;
const SEGMENT: usize = 1 << 20;
/// The lengths of messages: within a lane's cell, in pieces, and read by the target.
const LENGTHS: [usize; 4] = [8, 600, 5_000, 200_000];
/// Where the word is that ends the computation of a rank, and that word.
const WORD: usize = SEGMENT - 8;
const WRITTEN: [u8; 8] = [7; 8];
/// How long a rank computes at least.
const COMPUTES: Duration = Duration::from_millis(400);
/// Computations end, whatever the other rank does.
const LIMIT: Duration = Duration::from_secs(30);

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "portals-computes" => portals_computes(),
        "portals-bound" => portals_bound(),
        "portals-fini" => portals_fini(),
        "am-progress" => am_progress(),
        "am-owner" => am_owner(),
        "am-replies" => am_replies(),
        "am-lost" => am_lost(),
        "am-panics" => am_panics(),
        "am-bound" => am_bound(),
        "am-ends" => am_ends(),
        other => panic!("there is no role {other}"),
    }
}

fn play(role: &str, more: &[(&str, &str)]) {
    let bounds = [("DOORBELL_DEADLINE", "30 s"), ("DOORBELL_QUIET", "60 s")];
    let more: Vec<(&str, &str)> = bounds.into_iter().chain(more.iter().copied()).collect();
    start_test("beside::child", role, 2, Mode::Dedicated, &more).succeeds();
}

/// Runs a role over every kind of rail, with a thread that sleeps and with one that spins.
fn play_over_all_rails(role: &str, handlers: &str) {
    for (rails, wait) in [
        ("shm", "balanced"),
        ("udp:lo", "balanced"),
        ("shm", "lowest-latency"),
    ] {
        play(
            role,
            &[
                ("DOORBELL_RAILS", rails),
                ("DOORBELL_UDP_PORT", "0"),
                ("DOORBELL_WAIT", wait),
                ("DOORBELL_AM_HANDLERS", handlers),
            ],
        );
    }
}

/// Computes, without any call of the library, until something holds. Other threads get the core as often as
/// they would from a program that is not alone there.
fn compute_until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "never while it computes: {what}");
        for _ in 0..1000 {
            std::hint::spin_loop();
        }
        thread::yield_now();
    }
}

/// Appends memory that any rank may put to and get from, with full events: it is never written by the
/// initiator itself.
fn open(job: &mut Portals) -> (Region, EqHandle) {
    job.init(KIND, None).unwrap();
    let room = Region::new(SEGMENT).unwrap();
    let events = job.ask(KIND, |ni| ni.eq_alloc(512)).unwrap();
    job.ask(KIND, |ni| ni.pt_alloc(PtOptions::NONE, Some(events), Some(INDEX)))
        .unwrap();
    let options = EntryOptions::OP_PUT | EntryOptions::OP_GET | EntryOptions::EVENT_LINK_DISABLE;
    let entry = Entry::open(Memory::One(Landing::Region(room.whole())), options);
    job.ask(KIND, |ni| ni.append(INDEX, entry.clone(), List::Priority, 0))
        .unwrap();
    (room, events)
}

/// Memory to put from and to get into, with a count of what has been answered.
struct Initiator {
    out: Region,
    into: Region,
    from: MdHandle,
    to: MdHandle,
    answers: CtHandle,
    begun: u64,
}

impl Initiator {
    fn new(job: &mut Portals) -> Self {
        let answers = job.ask(KIND, |ni| ni.ct_alloc()).unwrap();
        let (out, into) = (Region::new(SEGMENT).unwrap(), Region::new(SEGMENT).unwrap());
        let mut bind = |memory: &Region| {
            let md = Md {
                memory: Memory::One(Landing::Region(memory.whole())),
                options: MdOptions::EVENT_CT_ACK | MdOptions::EVENT_CT_REPLY,
                eq: None,
                ct: Some(answers),
            };
            job.ask(KIND, |ni| ni.md_bind(md.clone())).unwrap()
        };
        let (from, to) = (bind(&out), bind(&into));
        Self {
            out,
            into,
            from,
            to,
            answers,
            begun: 0,
        }
    }

    fn target(at: usize) -> Target {
        Target {
            process: Process::rank(1),
            pt_index: INDEX,
            match_bits: 0,
            remote_offset: at as u64,
        }
    }

    fn piece(&self, at: usize, length: usize, ack: AckReq) -> Put {
        Put {
            from: Piece {
                md: self.from,
                offset: at as u64,
            },
            length: length as u64,
            ack,
            target: Self::target(at),
            user_ptr: 0,
            hdr_data: 0,
        }
    }

    /// Puts into rank 1, and waits until it has answered.
    fn put(&mut self, job: &mut Portals, at: usize, bytes: &[u8]) {
        self.out.write(at, bytes);
        let put = self.piece(at, bytes.len(), AckReq::Ct);
        job.ask(KIND, |ni| ni.put(&put)).unwrap();
        self.answered(job);
    }

    /// Gets from rank 1.
    fn get(&mut self, job: &mut Portals, length: usize) -> Vec<u8> {
        let get = Get {
            into: Piece {
                md: self.to,
                offset: 0,
            },
            length: length as u64,
            target: Self::target(0),
            user_ptr: 0,
        };
        job.ask(KIND, |ni| ni.get(&get)).unwrap();
        self.answered(job);
        let mut bytes = vec![0; length];
        self.into.read(0, &mut bytes);
        bytes
    }

    fn answered(&mut self, job: &mut Portals) {
        self.begun += 1;
        let count = job.wait_count(KIND, self.answers, self.begun).unwrap();
        assert_eq!((count.success, count.failure), (self.begun, 0));
    }
}

/// Rank 1 makes no call until rank 0 has put, and got, everything.
fn portals_computes() {
    let mut job = Builder::new().build_portals().unwrap();
    let (room, events) = open(&mut job);
    let mut initiator = Initiator::new(&mut job);
    job.barrier().unwrap();
    if job.rank() == 0 {
        for (number, length) in (0..).zip(LENGTHS) {
            let bytes = pattern(number, length);
            initiator.put(&mut job, 0, &bytes);
            assert!(initiator.get(&mut job, length) == bytes, "{length} bytes");
        }
        initiator.put(&mut job, WORD, &WRITTEN);
    } else {
        compute_until("all puts and gets", || {
            let mut bytes = [0; 8];
            room.read(WORD, &mut bytes);
            bytes == WRITTEN
        });
        let mut kinds = Vec::new();
        while let Ok(EqGet::Event(event)) = job.ni(KIND).eq_get(events) {
            assert_eq!(event.fail, NiFail::Ok);
            kinds.push(event.kind);
        }
        let both = [EventKind::Put, EventKind::Get].repeat(LENGTHS.len());
        assert!(kinds.starts_with(&both), "{kinds:?}");
    }
    job.barrier().unwrap();
    job.fini(KIND).unwrap();
    job.close();
}

#[test]
fn puts_and_gets_go_on_while_their_target_computes() {
    play_over_all_rails("portals-computes", "owner");
}

/// An interface ends while its peer writes into it, again and again: nothing changes its memory afterwards.
fn portals_fini() {
    const LENGTH: usize = 200_000;
    let mut job = Builder::new().build_portals().unwrap();
    for _ in 0..15 {
        job.init(KIND, None).unwrap();
        let room = Region::new(LENGTH).unwrap();
        let counted = job.ask(KIND, |ni| ni.ct_alloc()).unwrap();
        job.ask(KIND, |ni| ni.pt_alloc(PtOptions::NONE, None, Some(INDEX)))
            .unwrap();
        // What posts no event is written by its initiator.
        let options = EntryOptions::OP_PUT
            | EntryOptions::EVENT_CT_COMM
            | EntryOptions::EVENT_COMM_DISABLE
            | EntryOptions::EVENT_LINK_DISABLE
            | EntryOptions::EVENT_UNLINK_DISABLE;
        let entry = Entry::open(Memory::One(Landing::Region(room.whole())), options).counted(counted);
        job.ask(KIND, |ni| ni.append(INDEX, entry.clone(), List::Priority, 0))
            .unwrap();
        let initiator = Initiator::new(&mut job);
        job.barrier().unwrap();
        if job.rank() == 0 {
            for number in 0..60 {
                initiator.out.write(0, &[number; LENGTH]);
                let put = initiator.piece(0, LENGTH, AckReq::None);
                job.ask(KIND, |ni| ni.put(&put)).unwrap();
            }
        } else {
            job.wait_count(KIND, counted, 10).unwrap();
            job.fini(KIND).unwrap();
            let read = || {
                let mut bytes = vec![0; LENGTH];
                room.read(0, &mut bytes);
                bytes
            };
            let before = read();
            thread::sleep(Duration::from_millis(10));
            assert!(before == read(), "it was written after its end");
        }
        job.barrier().unwrap();
        if job.rank() == 0 {
            job.fini(KIND).unwrap();
        }
    }
    job.close();
}

#[test]
fn an_interface_ends_beside_the_thread() {
    play("portals-fini", &[("DOORBELL_RAILS", "shm")]);
}

/// What the handlers of a rank have seen.
#[derive(Clone, Default)]
struct Seen {
    requests: Arc<AtomicU32>,
    replies: Arc<AtomicU32>,
    stopped: Arc<AtomicBool>,
    threads: Arc<Mutex<Vec<ThreadId>>>,
}

impl Seen {
    fn note(&self, count: &AtomicU32) {
        self.threads.lock().unwrap().push(thread::current().id());
        count.fetch_add(1, Ordering::SeqCst);
    }

    /// 200 is answered by 201, with its payload; 202 ends a computation; 203 panics.
    fn handlers(&self) -> Handlers {
        let mut handlers = Handlers::new();
        let seen = self.clone();
        let answer = move |request: doorbell::am::Request<'_>| {
            seen.note(&seen.requests);
            let payload = request.payload().bytes().to_vec();
            let _ = match payload.is_empty() || payload.len() > 1000 {
                true => request.reply_short(201, &[]),
                false => request.reply_medium(201, &[], &payload[..]),
            };
        };
        handlers.request(200, answer).unwrap();
        let seen = self.clone();
        handlers.reply(201, move |_| seen.note(&seen.replies)).unwrap();
        let seen = self.clone();
        let stop = move |_: doorbell::am::Request<'_>| seen.stopped.store(true, Ordering::SeqCst);
        handlers.request(202, stop).unwrap();
        let seen = self.clone();
        let panics = move |_: doorbell::am::Request<'_>| {
            seen.stopped.store(true, Ordering::SeqCst);
            panic!("a handler's own panic");
        };
        handlers.request(203, panics).unwrap();
        handlers
    }

    fn threads(&self) -> Vec<ThreadId> {
        self.threads.lock().unwrap().clone()
    }

    fn count(counter: &AtomicU32) -> u32 {
        counter.load(Ordering::SeqCst)
    }
}

fn am(seen: &Seen) -> Am {
    Builder::new()
        .build_am(Setup::new(seen.handlers(), SEGMENT))
        .unwrap()
}

/// Sends requests of all kinds to a rank; returns how many.
fn send_all_kinds(am: &mut Am, to: u32) -> u32 {
    for round in 0..20 {
        am.request_short(to, 200, &[round]).unwrap();
        am.request_medium(to, 200, &[round], &pattern(round, 500)[..])
            .unwrap();
        let at = Remote {
            rank: to,
            offset: 4096,
        };
        am.request_long(at, 200, &[round], &pattern(round, 1500)[..])
            .unwrap();
    }
    60
}

fn all_replies(am: &mut Am, seen: &Seen, count: u32) {
    am.wait_until("all replies", || {
        (Seen::count(&seen.replies) == count).then_some(())
    })
    .unwrap();
}

/// Whether the other rank has written the word.
fn has_word(segment: &RegionSlice) -> bool {
    let mut bytes = [0; 8];
    segment.as_shared().skip(WORD).copy_to(0, &mut bytes);
    bytes == WRITTEN
}

/// Rank 1 makes no call after this one, which ends when its put has left; what rank 0 sends then is found by
/// no call.
fn begin_to_compute(am: &mut Am) {
    let offset = WORD as u64;
    let _ = am.put_later(Remote { rank: 0, offset }, &WRITTEN[..]).unwrap();
}

fn until_the_other_computes(am: &mut Am) {
    let segment = am.segment().clone();
    am.wait_until("the other to compute", || has_word(&segment).then_some(()))
        .unwrap();
}

/// Rank 1 answers requests while it computes.
fn am_progress() {
    let seen = Seen::default();
    let mut am = am(&seen);
    am.barrier().unwrap();
    if am.rank() == 0 {
        until_the_other_computes(&mut am);
        let sent = send_all_kinds(&mut am, 1);
        all_replies(&mut am, &seen, sent);
        am.request_short(1, 202, &[]).unwrap();
    } else {
        begin_to_compute(&mut am);
        compute_until("all requests", || seen.stopped.load(Ordering::SeqCst));
        assert_eq!(Seen::count(&seen.requests), 60);
        let own = thread::current().id();
        assert!(seen.threads().iter().all(|thread| *thread != own));
    }
    am.barrier().unwrap();
    assert_eq!(am.exit(0).unwrap(), 0);
}

#[test]
fn a_rank_that_computes_answers_requests() {
    play_over_all_rails("am-progress", "progress");
}

/// Rank 1 answers no request while it computes, and its segment is put to and got from all the same.
fn am_owner() {
    let seen = Seen::default();
    let mut am = am(&seen);
    am.barrier().unwrap();
    if am.rank() == 0 {
        until_the_other_computes(&mut am);
        let sent = send_all_kinds(&mut am, 1);
        let at = |offset| Remote { rank: 1, offset };
        for (number, length) in (0..).zip(LENGTHS) {
            let (out, into) = (Region::new(length).unwrap(), Region::new(length).unwrap());
            out.write(0, &pattern(number, length));
            am.put(at(8192), Landing::Region(out.whole())).unwrap();
            am.get(Landing::Region(into.whole()), at(8192), length as u64)
                .unwrap();
            let mut bytes = vec![0; length];
            into.read(0, &mut bytes);
            assert!(bytes == pattern(number, length), "{length} bytes");
        }
        let began = Instant::now();
        while began.elapsed() < COMPUTES {
            am.progress();
        }
        assert_eq!(Seen::count(&seen.replies), 0, "it was to answer afterwards");
        am.put(at(WORD as u64), &WRITTEN[..]).unwrap();
        all_replies(&mut am, &seen, sent);
    } else {
        let segment = am.segment().clone();
        begin_to_compute(&mut am);
        compute_until("the last put", || has_word(&segment));
        assert_eq!(Seen::count(&seen.requests), 0);
    }
    am.barrier().unwrap();
    let own = thread::current().id();
    assert!(seen.threads().iter().all(|thread| *thread == own));
    assert_eq!(am.exit(0).unwrap(), 0);
}

#[test]
fn handlers_wait_for_their_owner_while_puts_and_gets_go_on() {
    play_over_all_rails("am-owner", "owner");
}

/// Rank 0 has sent requests, and computes while their replies arrive.
fn am_replies() {
    let seen = Seen::default();
    let mut am = am(&seen);
    am.barrier().unwrap();
    if am.rank() == 0 {
        let sent = send_all_kinds(&mut am, 1);
        let before = Seen::count(&seen.replies);
        thread::sleep(COMPUTES);
        assert_eq!(
            Seen::count(&seen.replies),
            before,
            "a handler ran while its owner computed"
        );
        all_replies(&mut am, &seen, sent);
        am.request_short(1, 202, &[]).unwrap();
    } else {
        am.wait_until("the end", || seen.stopped.load(Ordering::SeqCst).then_some(()))
            .unwrap();
    }
    am.barrier().unwrap();
    let own = thread::current().id();
    assert!(seen.threads().iter().all(|thread| *thread == own));
    assert_eq!(am.exit(0).unwrap(), 0);
}

#[test]
fn reply_handlers_wait_for_their_owner_too() {
    play_over_all_rails("am-replies", "owner");
}

/// Rank 1 answers and leaves while rank 0 computes: its last replies are handled before its loss is.
fn am_lost() {
    let seen = Seen::default();
    let mut am = am(&seen);
    am.barrier().unwrap();
    if am.rank() == 1 {
        am.wait_until("requests", || (Seen::count(&seen.requests) == 60).then_some(()))
            .unwrap();
        return am.close();
    }
    let sent = send_all_kinds(&mut am, 1);
    let before = Seen::count(&seen.replies);
    thread::sleep(3 * COMPUTES);
    assert_eq!(
        Seen::count(&seen.replies),
        before,
        "a handler ran while its owner computed"
    );
    all_replies(&mut am, &seen, sent);
    let own = thread::current().id();
    assert!(seen.threads().iter().all(|thread| *thread == own));
    am.close();
}

#[test]
fn the_last_replies_of_a_rank_that_leaves_wait_for_their_owner() {
    play_over_all_rails("am-lost", "owner");
}

/// A handler panics on the progress thread of rank 1: its owner gets the panic in its next call, or at the
/// end.
fn am_panics() {
    let by_drop = std::env::var("BY").is_ok_and(|by| by == "drop");
    let seen = Seen::default();
    let mut am = am(&seen);
    am.barrier().unwrap();
    if am.rank() == 0 {
        until_the_other_computes(&mut am);
        am.request_short(1, 203, &[]).unwrap();
        am.wait_until("the other's end", || None::<()>).unwrap_err();
        return drop(am);
    }
    begin_to_compute(&mut am);
    compute_until("the handler", || seen.stopped.load(Ordering::SeqCst));
    let gets = catch_unwind(AssertUnwindSafe(|| match by_drop {
        true => drop(am),
        false => {
            let _ = am.progress();
            unreachable!("the panic was swallowed");
        }
    }));
    let panic = gets.expect_err("the panic was swallowed");
    let text = panic.downcast::<&str>().unwrap();
    assert_eq!(*text, "a handler's own panic");
}

#[test]
fn a_panic_of_a_handler_reaches_the_owner() {
    for by in ["call", "drop"] {
        play(
            "am-panics",
            &[
                ("BY", by),
                ("DOORBELL_AM_HANDLERS", "progress"),
                ("DOORBELL_RAILS", "shm"),
            ],
        );
    }
}

/// Both ranks flood each other and leave in the middle of it, with the thread inside.
fn am_ends() {
    let seen = Seen::default();
    let mut am = am(&seen);
    am.barrier().unwrap();
    let to = 1 - am.rank();
    for round in 0..200 {
        // The other may have ended the job by now.
        if am.request_short(to, 200, &[round]).is_err() {
            break;
        }
    }
    if am.rank() == 0 {
        assert_eq!(am.exit(3).unwrap(), 3);
    } else {
        // It computes when the job ends, or is about to, and gets the error in its next wait.
        thread::sleep(COMPUTES);
        am.wait_until("the end", || None::<()>).unwrap_err();
        drop(am);
    }
}

#[test]
fn a_job_ends_with_the_thread_at_work() {
    for handlers in ["owner", "progress"] {
        for wait in ["balanced", "lowest-latency"] {
            for _ in 0..3 {
                let more = [("DOORBELL_AM_HANDLERS", handlers), ("DOORBELL_WAIT", wait)];
                play("am-ends", &more);
            }
        }
    }
}

/// Both threads are where `progress.core` has them, and its owner's thread is free again at the end.
fn is_bound(rank: u32, binding: Option<doorbell::Binding>) {
    let wanted = std::env::var("WANTED").unwrap();
    let wanted: Vec<&str> = wanted.split(';').collect();
    let (_, progress) = progress_thread(rank);
    assert_eq!(format!("{}/{progress}", own_cores()), wanted[rank as usize]);
    assert_eq!(binding.unwrap().progress, progress.only());
}

fn portals_bound() {
    let before = own_cores();
    let mut job = Builder::new().build_portals().unwrap();
    is_bound(job.rank(), job.binding());
    job.barrier().unwrap();
    job.close();
    assert_eq!(own_cores(), before);
}

fn am_bound() {
    let before = own_cores();
    let mut am = am(&Seen::default());
    is_bound(am.rank(), am.binding());
    am.barrier().unwrap();
    am.close();
    assert_eq!(own_cores(), before);
}

#[test]
fn both_threads_of_a_rank_have_their_cores() {
    let Some([one, two]) = two_cores("both_threads_of_a_rank_have_their_cores") else {
        return;
    };
    for role in ["portals-bound", "am-bound"] {
        let core = format!("{two},{one}");
        // The progress thread of each is beside the other's own thread.
        let rest = |core: usize| {
            let list = doorbell::fabric::cores::CoreSet::from_iter([core]);
            allowed().without(&list).to_string()
        };
        if allowed().len() == 2 {
            let wanted = format!("{}/{two};{}/{one}", rest(two), rest(one));
            play(role, &[("DOORBELL_PROGRESS_CORE", &core), ("WANTED", &wanted)]);
        }
    }
}
