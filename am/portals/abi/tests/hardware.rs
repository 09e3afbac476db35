//! The driver for hardware interfaces (`drivers/portals`) over a library that it loads at run time: ours,
//! which is the one that every machine has. `LIBPORTALS_UNDER_TEST` names another one.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doorbell_am::{Attaching, BarrierName, Conduit, Config, ExternalError, Handlers, Remote};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::{
    AckReq, Atomic, AtomicKind, Count, Datatype, Entry, EntryOptions, EqGet, EqHandle, Event, EventKind,
    FetchAtomic, Get, Kind, List, Md, MdHandle, Memory, Ni, NiError, NiFail, Piece, Process, Put, Search,
    Target, Triggered,
};
use doorbell_portals::{PortalsNi, Settings};

const LIMIT: Duration = Duration::from_secs(20);

fn settings() -> Settings {
    let named = std::env::var("LIBPORTALS_UNDER_TEST");
    let ours = || common::library().join("libportals.so").display().to_string();
    Settings {
        library: Some(named.unwrap_or_else(|_| ours())),
        ..Settings::default()
    }
}

/// A process has one interface of a kind.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> PortalsNi {
    let mut ni = settings().open().unwrap();
    let own = ni.physical_id().unwrap();
    ni.set_map(&[own]).unwrap();
    ni
}

/// The next event of a queue; it comes by itself.
fn event(ni: &mut PortalsNi, eq: EqHandle) -> Event {
    let began = Instant::now();
    loop {
        match ni.eq_get(eq).unwrap() {
            EqGet::Event(event) => return event,
            EqGet::Dropped(event) => panic!("events were lost before {event:?}"),
            EqGet::Empty => assert!(began.elapsed() < LIMIT, "no event within {LIMIT:?}"),
        }
    }
}

fn kinds(ni: &mut PortalsNi, eq: EqHandle, count: usize) -> Vec<EventKind> {
    let mut kinds: Vec<EventKind> = (0..count).map(|_| event(ni, eq).kind).collect();
    kinds.sort_unstable_by_key(|kind| *kind as u8);
    kinds
}

fn memory(region: &Region) -> Memory {
    Memory::One(Landing::Region(region.whole()))
}

/// A descriptor of a page with full events, and an entry of another one.
struct Both {
    eq: EqHandle,
    pt: u32,
    source: Region,
    sink: Region,
    md: MdHandle,
}

impl Both {
    fn of(ni: &mut PortalsNi) -> Self {
        let eq = ni.eq_alloc(64).unwrap();
        let pt = ni.pt_alloc(Default::default(), Some(eq), None).unwrap();
        let [source, sink] = [(); 2].map(|()| Region::new(4096).unwrap());
        let md = Md {
            memory: memory(&source),
            eq: Some(eq),
            ..Md::default()
        };
        let md = ni.md_bind(md).unwrap();
        Self {
            eq,
            pt,
            source,
            sink,
            md,
        }
    }

    fn entry(&self, options: EntryOptions) -> Entry {
        Entry::open(memory(&self.sink), options).matching(7, 0)
    }

    const fn piece(&self, offset: u64) -> Piece {
        Piece { md: self.md, offset }
    }

    const fn target(&self, remote_offset: u64) -> Target {
        Target {
            process: Process::rank(0),
            pt_index: self.pt,
            match_bits: 7,
            remote_offset,
        }
    }

    const fn put(&self, length: u64) -> Put {
        Put {
            from: self.piece(0),
            length,
            ack: AckReq::Full,
            target: self.target(16),
            user_ptr: 1,
            hdr_data: 0xfeed,
        }
    }
}

#[test]
fn puts_gets_and_atomics_end_with_the_callers_own_words() {
    let _one = ONE.lock();
    let mut ni = alone();
    assert_eq!((ni.kind(), ni.id()), (Kind::MATCHING_LOGICAL, Process::rank(0)));
    let both = Both::of(&mut ni);
    let options = EntryOptions::OP_PUT | EntryOptions::OP_GET | EntryOptions::EVENT_LINK_DISABLE;
    let entry = ni
        .append(both.pt, both.entry(options), List::Priority, 2)
        .unwrap();

    both.source.write(0, b"sixteen bytes ok");
    ni.put(&both.put(16)).unwrap();
    let events: Vec<Event> = (0..3).map(|_| event(&mut ni, both.eq)).collect();
    let put = events.iter().find(|event| event.kind == EventKind::Put).unwrap();
    assert_eq!(
        (put.user_ptr, put.place, put.mlength, put.hdr_data),
        (2, 16, 16, 0xfeed)
    );
    let ends = events.iter().filter(|event| event.user_ptr == 1).count();
    assert_eq!(ends, 2, "SEND and ACK carry the initiator's word: {events:?}");
    let mut landed = [0; 16];
    both.sink.read(16, &mut landed);
    assert_eq!(&landed, b"sixteen bytes ok");

    let get = Get {
        into: both.piece(512),
        length: 8,
        target: both.target(16),
        user_ptr: 3,
    };
    ni.get(&get).unwrap();
    assert_eq!(kinds(&mut ni, both.eq, 2), [EventKind::Get, EventKind::Reply]);
    let mut got = [0; 8];
    both.source.read(512, &mut got);
    assert_eq!(&got, b"sixteen ");

    both.source.write(0, &5u64.to_le_bytes());
    both.sink.write(64, &37u64.to_le_bytes());
    let mut put = both.put(8);
    put.target = both.target(64);
    let atomic = Atomic {
        put,
        kind: AtomicKind::Sum,
        datatype: Datatype::Uint64,
    };
    ni.atomic(&atomic).unwrap();
    assert_eq!(
        kinds(&mut ni, both.eq, 3),
        [EventKind::Atomic, EventKind::Send, EventKind::Ack]
    );
    let swap = FetchAtomic {
        into: both.piece(1024),
        from: both.piece(0),
        length: 8,
        target: both.target(64),
        user_ptr: 4,
        hdr_data: 0,
        kind: AtomicKind::Cswap,
        datatype: Datatype::Uint64,
        operand: std::array::from_fn(|at| if at == 0 { 42 } else { 0 }),
    };
    ni.fetch_atomic(&swap).unwrap();
    let ended = kinds(&mut ni, both.eq, 2);
    assert!(ended.contains(&EventKind::FetchAtomic), "{ended:?}");
    let began = Instant::now();
    let mut old = [0; 8];
    while u64::from_le_bytes(old) != 42 {
        assert!(
            began.elapsed() < LIMIT,
            "the old value was 42, and {old:?} has come"
        );
        both.source.read(1024, &mut old);
    }
    let mut new = [0; 8];
    both.sink.read(64, &mut new);
    assert_eq!(u64::from_le_bytes(new), 5);

    while !matches!(ni.eq_get(both.eq).unwrap(), EqGet::Empty) {}
    ni.unlink(entry).unwrap();
    ni.md_release(both.md).unwrap();
    assert!(matches!(ni.eq_get(both.eq).unwrap(), EqGet::Empty));
    ni.pt_free(both.pt).unwrap();
    assert_eq!((ni.kept(), ni.strange_events()), ([0; 4], 0));
}

#[test]
fn counts_triggers_searches_and_refusals_are_the_librarys() {
    let _one = ONE.lock();
    let mut ni = alone();
    let both = Both::of(&mut ni);
    let ct = ni.ct_alloc().unwrap();
    let overflow = EntryOptions::OP_PUT | EntryOptions::MANAGE_LOCAL;
    ni.append(both.pt, both.entry(overflow), List::Overflow, 9)
        .unwrap();
    let put = both.put(8);
    assert_eq!(ni.trigger(ct, 2, Triggered::Put(put)).unwrap(), None);
    ni.ct_inc(ct, Count::success(1)).unwrap();
    assert_eq!(ni.ct_get(ct).unwrap(), Count::success(1));
    assert!(matches!(
        ni.eq_get(both.eq).unwrap(),
        EqGet::Event(Event {
            kind: EventKind::Link,
            ..
        }) | EqGet::Empty
    ));
    ni.ct_inc(ct, Count::success(1)).unwrap();
    let mut seen = kinds(&mut ni, both.eq, 2);
    while seen.contains(&EventKind::Link) {
        seen.retain(|kind| *kind != EventKind::Link);
        seen.extend(kinds(&mut ni, both.eq, 1));
    }
    assert!(
        seen.contains(&EventKind::Send) || seen.contains(&EventKind::Ack),
        "{seen:?}"
    );

    // The header lies on the overflow list: a search finds it, and an append takes it.
    let wanted = both.entry(EntryOptions::OP_PUT | EntryOptions::USE_ONCE);
    let found = |ni: &mut PortalsNi, kind: EventKind| {
        let began = Instant::now();
        loop {
            let event = event(ni, both.eq);
            if event.kind == kind {
                return event;
            }
            assert!(began.elapsed() < LIMIT, "no {kind:?}");
        }
    };
    let began = Instant::now();
    let searched = loop {
        ni.search(both.pt, &wanted, Search::Only, 21).unwrap();
        let event = found(&mut ni, EventKind::Search);
        if event.fail == NiFail::Ok {
            break event;
        }
        assert_eq!(event.fail, NiFail::NoMatch);
        assert!(began.elapsed() < LIMIT, "the put has not come");
    };
    assert_eq!(searched.user_ptr, 21);
    ni.append(both.pt, wanted, List::Priority, 22).unwrap();
    let taken = found(&mut ni, EventKind::PutOverflow);
    assert_eq!((taken.user_ptr, taken.hdr_data, taken.mlength), (22, 0xfeed, 8));

    assert!(matches!(
        ni.ct_get(doorbell_fabric::ni::CtHandle(0)),
        Err(NiError::ArgInvalid(_))
    ));
    assert!(matches!(ni.pt_free(both.pt), Err(NiError::PtInUse)));
    let unknown = Put {
        from: Piece {
            md: MdHandle(77),
            offset: 0,
        },
        ..both.put(8)
    };
    assert!(matches!(ni.put(&unknown), Err(NiError::ArgInvalid(_))));
}

/// One rank of two: named by its process id, which it chooses.
#[test]
fn child() {
    let Ok(rank) = std::env::var("HARDWARE_RANK") else {
        return;
    };
    let rank: u32 = rank.parse().unwrap();
    let pids: Vec<u32> = std::env::var("HARDWARE_PIDS")
        .unwrap()
        .split(',')
        .map(|pid| pid.parse().unwrap())
        .collect();
    let folder = PathBuf::from(std::env::var("HARDWARE_FOLDER").unwrap());
    let region = Region::new(1 << 20).unwrap();
    let config = Config::new(rank, 2, region.whole());
    let mut settings = settings();
    settings.pid = Some(pids[rank as usize]);
    settings.limits = config.needs().unwrap();
    let mut ni = settings.open().unwrap();
    let node = ni.physical_id().unwrap().nid;
    let map: Vec<Process> = pids.iter().map(|pid| Process::physical(node, *pid)).collect();
    ni.set_map(&map).unwrap();
    let (told, sum) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut handlers = Handlers::new();
    handlers
        .request(10, |request| {
            let bytes = request.payload().bytes().to_vec();
            let sum = bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>() + request.args()[0];
            request.reply_short(11, &[sum]).unwrap();
        })
        .unwrap();
    let counted = (told.clone(), sum.clone());
    handlers
        .reply(11, move |reply| {
            counted.1.fetch_add(u64::from(reply.args()[0]), Ordering::Relaxed);
            counted.0.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    let mut attaching = Attaching::new(ni, config, handlers).unwrap();
    let mut barrier = || Ok::<bool, ExternalError>(both_have_come(&folder, rank));
    let clock = Clock::start();
    while !attaching.step(clock.now(), &mut barrier).unwrap() {}
    let mut conduit = attaching.finish().unwrap();
    exchange(&mut conduit, &clock, (&told, &sum));
    let began = Instant::now();
    conduit.notify_barrier(BarrierName::Named(4)).unwrap();
    while !conduit.try_barrier(BarrierName::Named(4)).unwrap() {
        conduit.step(clock.now()).unwrap();
        assert!(
            began.elapsed() < LIMIT,
            "the other rank does not come to the barrier"
        );
    }
}

fn both_have_come(folder: &Path, rank: u32) -> bool {
    std::fs::write(folder.join(rank.to_string()), "").unwrap();
    (0..2).all(|rank| folder.join(rank.to_string()).exists())
}

fn exchange(conduit: &mut Conduit<PortalsNi>, clock: &Clock, (told, sum): (&AtomicU64, &AtomicU64)) {
    let other = 1 - conduit.rank();
    let began = Instant::now();
    let mut expected = 0;
    for number in 0..200u32 {
        let payload = vec![1u8; number as usize % 500];
        expected += u64::from(number) + payload.len() as u64;
        loop {
            let sent = match number % 2 {
                0 => conduit
                    .try_request_medium(other, 10, &[number], &payload)
                    .unwrap()
                    .done(),
                _ => {
                    let sent = conduit.try_request_long(other, 10, &[number], &payload, 4096);
                    sent.unwrap().done().map(drop)
                }
            };
            conduit.step(clock.now()).unwrap();
            if sent.is_some() {
                break;
            }
            assert!(began.elapsed() < LIMIT, "request {number} does not leave");
        }
    }
    while told.load(Ordering::Relaxed) < 200 {
        conduit.step(clock.now()).unwrap();
        assert!(began.elapsed() < LIMIT, "{told:?} of 200 replies");
    }
    assert_eq!(sum.load(Ordering::Relaxed), expected);
    let words = Region::new(100_000).unwrap();
    words.write(0, &vec![conduit.rank() as u8 + 1; 100_000]);
    let place = Remote {
        rank: other,
        offset: 200_000,
    };
    let handle = loop {
        if let Some(handle) = conduit.put_bulk(place, words.whole()).unwrap().done() {
            break handle;
        }
        conduit.step(clock.now()).unwrap();
    };
    while !conduit.try_sync(handle).unwrap() {
        conduit.step(clock.now()).unwrap();
        assert!(began.elapsed() < LIMIT, "the put does not end");
    }
}

#[test]
fn two_processes_exchange_active_messages_over_a_loaded_library() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hardware-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // Of those that may be chosen, two that no other run of this test chooses at the same time.
    let first = 2 + 2 * (std::process::id() % 500);
    let child = |rank: u32| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env("HARDWARE_RANK", rank.to_string())
            .env("HARDWARE_PIDS", format!("{first},{}", first + 1))
            .env("HARDWARE_FOLDER", &folder)
            .spawn()
            .unwrap()
    };
    let mut children = [child(0), child(1)];
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
