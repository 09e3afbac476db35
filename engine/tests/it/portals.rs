//! Jobs of Portals processes: in threads, over rails that break, on a simulated network, and with a rank that
//! is killed.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::fabric::memory::Region;
use doorbell::fabric::message::Landing;
use doorbell::fabric::ni::{
    AckReq, CtHandle, Entry, EntryHandle, EntryOptions, EqGet, EqHandle, EventKind, Kind, List, Md, MdHandle,
    MdOptions, Memory, Ni as _, NiError, NiFail, Piece, Process, PtOptions, Put, Target,
};
use doorbell::sim::{SimConfig, SimNet};
use doorbell::{Builder, Config, Portals, local_portals, simulated_portals};

use crate::common::{MODES, pattern};
use crate::killed::{BOUND, TRIES, now};

const KIND: Kind = Kind::MATCHING_LOGICAL;
const INDEX: u32 = 4;
/// Names the part that a started process plays.
const ROLE: &str = "DOORBELL_TEST_ROLE";

fn config() -> Config {
    let mut config = Config::default();
    config.set("wait.deadline", "20 s").unwrap();
    config
}

/// Runs a job in both modes of progress.
fn job(size: u32, config: &Config, rank: impl Fn(Portals) + Sync) {
    for mode in MODES {
        let mut config = config.clone();
        config.progress.mode.set(mode);
        job_in_one_mode(size, &config, &rank);
    }
}

fn job_in_one_mode(size: u32, config: &Config, rank: impl Fn(Portals) + Sync) {
    let jobs = local_portals(size, config).unwrap();
    thread::scope(|s| {
        let rank = &rank;
        let threads: Vec<_> = jobs.into_iter().map(|job| s.spawn(move || rank(job))).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

#[test]
fn all_ranks_pass_barriers_and_gather_everything() {
    for size in [1, 2, 3, 5] {
        job(size, &config(), |mut job| {
            for bytes in [0, 1, 8, 1000, 70_000] {
                let own = pattern(job.rank(), bytes);
                let mut all = vec![0; bytes * size as usize];
                job.allgather(&own, &mut all).unwrap();
                let expected: Vec<u8> = (0..size).flat_map(|rank| pattern(rank, bytes)).collect();
                assert_eq!(all, expected, "{bytes} bytes of {size} ranks");
                job.barrier().unwrap();
            }
            let short = job.allgather(&[1, 2], &mut [0]).map_err(|error| error.code());
            assert!(size == 1 && short.is_err() || short == Err("layout"));
        });
    }
}

/// Appends memory that any rank may put to, with full events.
fn open(job: &mut Portals, bytes: usize) -> (Region, EqHandle) {
    job.init(KIND, None).unwrap();
    let room = Region::new(bytes).unwrap();
    let events = job.ask(KIND, |ni| ni.eq_alloc(512)).unwrap();
    job.ask(KIND, |ni| ni.pt_alloc(PtOptions::NONE, Some(events), Some(INDEX)))
        .unwrap();
    let options = EntryOptions::OP_PUT | EntryOptions::EVENT_LINK_DISABLE;
    let entry = Entry::open(Memory::One(Landing::Region(room.whole())), options);
    job.ask(KIND, |ni| ni.append(INDEX, entry.clone(), List::Priority, 0))
        .unwrap();
    (room, events)
}

/// Binds memory to put from, and counts its acknowledgements.
fn bind(job: &mut Portals, memory: &Region) -> (MdHandle, CtHandle) {
    let acks = job.ask(KIND, |ni| ni.ct_alloc()).unwrap();
    let md = Md {
        memory: Memory::One(Landing::Region(memory.whole())),
        options: MdOptions::EVENT_CT_ACK,
        eq: None,
        ct: Some(acks),
    };
    let md = job.ask(KIND, |ni| ni.md_bind(md.clone())).unwrap();
    (md, acks)
}

fn put(job: &mut Portals, md: MdHandle, to: u32, length: usize, number: u64) {
    let put = Put {
        from: Piece { md, offset: 0 },
        length: length as u64,
        ack: AckReq::Ct,
        target: Target {
            process: Process::rank(to),
            pt_index: INDEX,
            match_bits: 0,
            remote_offset: 0,
        },
        user_ptr: 0,
        hdr_data: number,
    };
    job.ask(KIND, |ni| ni.put(&put)).unwrap();
}

/// Rank 0 puts `count` times, with lengths that vary; rank 1 gets one event for each, and finds its bytes.
fn numbered(mut job: Portals, count: u64, most: usize) {
    let (room, events) = open(&mut job, most);
    let out = Region::new(most).unwrap();
    out.write(0, &pattern(7, most));
    let (md, acks) = bind(&mut job, &out);
    let length = |number: u64| [8, 64, 3000, most][(number % 4) as usize].min(most);
    job.barrier().unwrap();
    if job.rank() == 0 {
        for number in 0..count {
            // A pulled message is to be complete when the next one lands.
            job.wait_count(KIND, acks, number.saturating_sub(3)).unwrap();
            put(&mut job, md, 1, length(number), number);
        }
        let counted = job.wait_count(KIND, acks, count).unwrap();
        assert_eq!((counted.success, counted.failure), (count, 0));
    } else {
        // They match in order; a long one may end after short ones that came later.
        let mut events_of = vec![0; count as usize];
        for _ in 0..count {
            let EqGet::Event(event) = job.wait_event(KIND, events).unwrap() else {
                panic!("events were dropped");
            };
            assert_eq!((event.kind, event.fail), (EventKind::Put, NiFail::Ok));
            assert_eq!(event.mlength, length(event.hdr_data) as u64);
            events_of[event.hdr_data as usize] += 1;
            let mut head = [0; 8];
            room.read(0, &mut head);
            assert_eq!(head[..], pattern(7, most)[..8]);
        }
        assert!(
            events_of.iter().all(|times| *times == 1),
            "one event each: {events_of:?}"
        );
    }
    job.barrier().unwrap();
    assert_eq!(job.ni(KIND).eq_get(events), Ok(EqGet::Empty), "no event twice");
}

#[test]
fn each_put_has_one_event() {
    job(2, &config(), |job| numbered(job, 400, 100_000));
}

#[test]
fn rails_that_break_lose_no_event_and_double_none() {
    for faults in ["shm:150,shm:200", "shm:rendezvous", "udp:lo:100"] {
        let mut config = config();
        config.set("rails.list", "shm,udp:lo").unwrap();
        config.set("udp.port", "0").unwrap();
        config.set("fault.inject", faults).unwrap();
        job(2, &config, |job| numbered(job, 400, 100_000));
    }
}

#[test]
fn a_simulated_job_is_driven_by_one_thread() {
    for datagrams in [false, true] {
        let net = SimNet::new(5, SimConfig::default());
        let mut jobs = simulated_portals(&net, 2, &config(), datagrams).unwrap();
        let rooms: Vec<_> = jobs.iter_mut().map(|job| open(job, 64)).collect();
        let out = Region::new(64).unwrap();
        out.write(0, b"virtual");
        let (md, _) = bind(&mut jobs[0], &out);
        put(&mut jobs[0], md, 1, 7, 9);
        let mut found = EqGet::Empty;
        for _ in 0..100_000 {
            jobs.iter_mut().for_each(|job| _ = job.progress());
            found = jobs[1].ni(KIND).eq_get(rooms[1].1).unwrap();
            if found != EqGet::Empty {
                break;
            }
        }
        let EqGet::Event(event) = found else {
            panic!("nothing arrived: {found:?}");
        };
        assert_eq!((event.hdr_data, event.mlength), (9, 7));
        let mut bytes = [0; 7];
        rooms[1].0.read(0, &mut bytes);
        assert_eq!(&bytes, b"virtual");
    }
}

#[test]
fn what_only_a_world_has_is_refused() {
    let builder = Builder::new().without_environment().set("control.mode", "on");
    let error = builder.build_portals().unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("mode", 2), "{error}");
}

#[test]
fn a_simulated_job_has_no_progress_thread() {
    let net = SimNet::new(5, SimConfig::default());
    let mut config = config();
    config.set("progress.mode", "dedicated").unwrap();
    let error = simulated_portals(&net, 2, &config, false).unwrap_err();
    assert!(error.to_string().contains("the simulated network"), "{error}");
}

#[test]
fn a_wait_ends_and_names_what_it_waited_for() {
    let mut job = Builder::new().without_environment().build_portals().unwrap();
    job.init(KIND, None).unwrap();
    let never = job.ask(KIND, |ni| ni.ct_alloc()).unwrap();
    job.set_deadline(Duration::from_millis(50));
    let error = job.wait_count(KIND, never, 1).unwrap_err();
    assert_eq!(error.code(), "timeout");
    assert!(error.to_string().contains("its counting event"), "{error}");
}

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split_whitespace().collect();
    let [rank, root, rails] = words[..] else { return };
    let builder = Builder::new()
        .without_environment()
        .job(rank.parse().unwrap(), 3, root)
        .set("rails.list", rails)
        .set("udp.port", "0")
        .set("btl.give_up", "3 s")
        .set("pml.patience", "1 s")
        .set("wait.deadline", "20 s");
    let mut job = builder.build_portals().unwrap();
    println!("\nREADY");
    std::io::stdout().flush().unwrap();
    // Rank 1 enters one barrier less than the others.
    let error = loop {
        if let Err(error) = job.barrier() {
            break error;
        }
        thread::sleep(Duration::from_millis(1));
    };
    println!("\nNOTICED {} {error}", now().as_nanos());
    // The others are to find the cause, and not its consequences.
    thread::sleep(Duration::from_millis(300));
    std::process::exit(error.exit_code().into());
}

struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills rank 1 of three, and returns how long the slower of the others takes to name it.
fn kill_one(rails: &str, try_: usize) -> Duration {
    let (own, length) = (std::process::id(), rails.len());
    let root = format!("@doorbell-test-portals-{own}-{length}-{try_}");
    let mut ranks: Vec<Started> = (0..3)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "portals::child", "--nocapture", "--test-threads=1"]);
            command.env(ROLE, format!("{rank} {root} {rails}"));
            Started(command.stdout(Stdio::piped()).spawn().unwrap())
        })
        .collect();
    let mut outputs: Vec<_> = ranks
        .iter_mut()
        .map(|rank| BufReader::new(rank.0.stdout.take().unwrap()).lines())
        .collect();
    for lines in &mut outputs {
        assert!(lines.any(|line| line.unwrap() == "READY"));
    }
    let killed = now();
    ranks[1].0.kill().unwrap();
    let noticed = [0, 2].map(|rank| {
        let line = outputs[rank].find_map(|line| Some(line.unwrap().strip_prefix("NOTICED ")?.to_owned()));
        let line = line.unwrap();
        let (at, error) = line.split_once(' ').unwrap();
        assert!(error.starts_with("rank 1 is lost"), "rank {rank}: {error}");
        assert_eq!(ranks[rank].0.wait().unwrap().code(), Some(4), "{error}");
        Duration::from_nanos(at.parse().unwrap()).saturating_sub(killed)
    });
    noticed.into_iter().max().unwrap()
}

#[test]
fn a_killed_rank_is_named_by_all_others_in_time() {
    for rails in ["shm", "shm,udp:lo"] {
        let mut noticed: Vec<Duration> = (0..TRIES).map(|try_| kill_one(rails, try_)).collect();
        noticed.sort();
        let median = noticed[TRIES / 2];
        assert!(median <= BOUND, "{rails}: named after {median:?} ({noticed:?})");
    }
}

/// Two ranks of one job, each with its interface.
fn two() -> [Portals; 2] {
    let mut jobs = local_portals(2, &config()).unwrap();
    for job in &mut jobs {
        job.init(KIND, None).unwrap();
    }
    <[Portals; 2]>::try_from(jobs).unwrap()
}

/// A put without an acknowledgement into the memory of rank 1.
fn quiet(md: MdHandle, length: u64, match_bits: u64, remote_offset: u64, hdr_data: u64) -> Put {
    Put {
        from: Piece { md, offset: 0 },
        length,
        ack: AckReq::None,
        target: Target {
            process: Process::rank(1),
            pt_index: INDEX,
            match_bits,
            remote_offset,
        },
        user_ptr: 0,
        hdr_data,
    }
}

/// A table entry of a rank, without an event queue.
fn table(job: &mut Portals) {
    job.ask(KIND, |ni| ni.pt_alloc(PtOptions::NONE, None, Some(INDEX)))
        .unwrap();
}

/// Memory whose puts are counted and have no events.
fn counted(region: &Region, options: EntryOptions, count: CtHandle) -> Entry {
    let options =
        options | EntryOptions::OP_PUT | EntryOptions::EVENT_CT_COMM | EntryOptions::EVENT_COMM_DISABLE;
    Entry::open(Memory::One(Landing::Region(region.whole())), options).counted(count)
}

/// Unlinks an entry, once the other rank has reported that it writes there no more.
fn unlink(near: &mut Portals, far: &mut Portals, entry: EntryHandle) {
    loop {
        let unlinked = far.ni(KIND).unlink(entry);
        if unlinked == Ok(()) {
            return;
        }
        assert_eq!(unlinked, Err(NiError::InUse));
        far.progress();
        near.progress();
    }
}

/// Closes both, each in a thread of its own.
fn leave(jobs: [Portals; 2]) {
    thread::scope(|s| {
        for job in jobs {
            s.spawn(move || job.close());
        }
    });
}

/// A wait for a count makes the rail look for the put that is expected: what arrives is intact, whatever was
/// expected.
#[test]
fn expected_puts_take_the_short_path_and_others_the_long_one() {
    let [mut near, mut far] = two();
    let room = Region::new(16).unwrap();
    let arrived = far.ask(KIND, |ni| ni.ct_alloc()).unwrap();
    table(&mut far);
    let entry = |region: &Region, bits: u64| {
        let mut entry = counted(region, EntryOptions::NONE, arrived);
        (entry.match_bits, entry.ignore_bits) = (bits, 0);
        entry
    };
    let append = |far: &mut Portals, region: &Region, bits| {
        far.ask(KIND, |ni| {
            ni.append(INDEX, entry(region, bits), List::Priority, 0)
        })
        .unwrap()
    };
    let first = append(&mut far, &room, 7);
    let out = Region::new(64).unwrap();
    let (md, _) = bind(&mut near, &out);
    let mut sent = 0_u64;
    let mut send = |near: &mut Portals, length: usize, bits: u64, offset: u64, hdr_data: u64| {
        sent += 1;
        out.write(0, &[sent as u8; 64]);
        let put = quiet(md, length as u64, bits, offset, hdr_data);
        near.ask(KIND, |ni| ni.put(&put)).unwrap();
        near.progress();
        sent
    };
    let bytes = |region: &Region| {
        let mut bytes = [0; 16];
        region.read(0, &mut bytes);
        bytes
    };
    // The ranks connect while neither waits.
    let mut number = send(&mut near, 8, 7, 0, 0);
    while far.ni(KIND).ct_get(arrived).unwrap().success < number {
        far.progress();
        near.progress();
    }
    let wait = |far: &mut Portals, number: u64| {
        let count = far.wait_count(KIND, arrived, number).unwrap();
        assert_eq!((count.success, count.failure), (number, 0));
    };
    let mut expected = bytes(&room);
    for round in 0..200 {
        // Mostly alike; then shorter, longer than the buffer, elsewhere, and with header data.
        let (length, offset, hdr) = match round % 10 {
            6 => (3, 0, 0),
            7 => (40, 0, 0),
            8 => (8, 5, 0),
            9 => (8, 0, 9),
            _ => (8, 0, 0),
        };
        number = send(&mut near, length, 7, offset, hdr);
        wait(&mut far, number);
        let end = (offset as usize + length).min(16);
        expected[offset as usize..end].fill(number as u8);
        assert_eq!(bytes(&room), expected, "{round}: {length} bytes at {offset}");
    }
    // An unlinked entry takes nothing more: the next one does.
    let other = Region::new(16).unwrap();
    append(&mut far, &other, 7);
    unlink(&mut near, &mut far, first);
    for _ in 0..3 {
        number = send(&mut near, 8, 7, 0, 0);
        wait(&mut far, number);
        assert_eq!(
            (bytes(&room), bytes(&other)[..8].to_vec()),
            (expected, vec![number as u8; 8])
        );
    }
    // Operations triggered by the count fire, and a count that is set goes on from its new value.
    let second = far.ask(KIND, |ni| ni.ct_alloc()).unwrap();
    for n in 1..4 {
        let one = doorbell::fabric::ni::Count::success(1);
        far.ask(KIND, |ni| {
            ni.trigger(
                arrived,
                number + 1,
                doorbell::fabric::ni::Triggered::CtInc(second, one),
            )
        })
        .unwrap();
        number = send(&mut near, 8, 7, 0, 0);
        wait(&mut far, number);
        assert_eq!(far.ni(KIND).ct_get(second).unwrap().success, n);
    }
    // A disabled table entry takes nothing.
    far.ask(KIND, |ni| ni.pt_disable(INDEX)).unwrap();
    send(&mut near, 8, 7, 0, 0);
    far.set_deadline(Duration::from_millis(50));
    let late = far
        .wait_count(KIND, arrived, number + 1)
        .map_err(|error| error.code());
    assert_eq!(late, Err("timeout"));
    far.set_deadline(Duration::from_secs(20));
    far.ask(KIND, |ni| ni.pt_enable(INDEX)).unwrap();
    let last = send(&mut near, 8, 7, 0, 0);
    wait(&mut far, last - 1);
    assert_eq!(bytes(&other)[..8], [last as u8; 8]);
    // A put with other match bits matches no entry; the expected one behind it arrives.
    send(&mut near, 8, 8, 0, 0);
    let last = send(&mut near, 8, 7, 0, 0);
    wait(&mut far, last - 2);
    assert_eq!(bytes(&other)[..8], [last as u8; 8]);
    leave([near, far]);
}

/// A put that was too long for an earlier entry went to a later one; a shorter one goes to the earlier entry,
/// whatever is waited for.
#[test]
fn a_shorter_put_is_not_taken_for_the_longer_one_before_it() {
    let [mut near, mut far] = two();
    table(&mut far);
    let rooms = [(4, EntryOptions::NO_TRUNCATE), (64, EntryOptions::NONE)];
    let [few, many] = rooms.map(|(bytes, options)| {
        let count = far.ask(KIND, |ni| ni.ct_alloc()).unwrap();
        let region = Region::new(bytes).unwrap();
        let entry = counted(&region, options, count);
        far.ask(KIND, |ni| ni.append(INDEX, entry.clone(), List::Priority, 0))
            .unwrap();
        count
    });
    let out = Region::new(64).unwrap();
    let (md, _) = bind(&mut near, &out);
    let mut send = |length: u64| {
        near.ask(KIND, |ni| ni.put(&quiet(md, length, 0, 0, 0))).unwrap();
        near.progress();
    };
    send(8);
    let end = Instant::now() + Duration::from_secs(20);
    while far.ni(KIND).ct_get(many).unwrap().success == 0 && Instant::now() < end {
        far.progress();
    }
    send(4);
    far.set_deadline(Duration::from_millis(100));
    assert!(far.wait_count(KIND, many, 2).is_err());
    let counts = [few, many].map(|count| far.ni(KIND).ct_get(count).unwrap().success);
    assert_eq!(counts, [1, 1]);
    leave([near, far]);
}

/// One of two ranks closes: what the other waits for cannot arrive any more, and its wait ends with that
/// error before its deadline.
#[test]
fn a_rank_whose_only_peer_has_closed_does_not_wait() {
    let jobs = local_portals(2, &config()).unwrap();
    let [mut stays, leaves] = <[Portals; 2]>::try_from(jobs).unwrap();
    thread::scope(|s| {
        s.spawn(move || {
            let mut leaves = leaves;
            leaves.init(KIND, None).unwrap();
            leaves.barrier().unwrap();
        });
        stays.init(KIND, None).unwrap();
        let count = stays.ask(KIND, |ni| ni.ct_alloc()).unwrap();
        stays.barrier().unwrap();
        let begun = Instant::now();
        let error = stays.wait_count(KIND, count, 1).unwrap_err();
        assert_eq!(error.code(), "peer.lost", "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10));
    });
}

/// What has fired by the end is pushed out as what was begun is, also when there is no room for it at once.
#[test]
fn closing_pushes_out_what_has_fired() {
    const PUTS: u64 = 1000;
    let jobs = local_portals(2, &config()).unwrap();
    let [mut near, mut far] = <[Portals; 2]>::try_from(jobs).unwrap();
    thread::scope(|s| {
        s.spawn(move || {
            near.init(KIND, None).unwrap();
            near.barrier().unwrap();
            let out = Region::new(8).unwrap();
            let (md, _) = bind(&mut near, &out);
            let fires = near.ask(KIND, |ni| ni.ct_alloc()).unwrap();
            let put = quiet(md, 8, 0, 0, 0);
            for _ in 0..PUTS {
                let call = doorbell::fabric::ni::Triggered::Put(put);
                near.ask(KIND, |ni| ni.trigger(fires, 1, call.clone())).unwrap();
            }
            let one = doorbell::fabric::ni::Count::success(1);
            near.ask(KIND, |ni| ni.ct_inc(fires, one)).unwrap();
            near.close();
        });
        far.init(KIND, None).unwrap();
        let arrived = far.ask(KIND, |ni| ni.ct_alloc()).unwrap();
        table(&mut far);
        let room = Region::new(8).unwrap();
        let entry = counted(&room, EntryOptions::NONE, arrived);
        far.ask(KIND, |ni| ni.append(INDEX, entry.clone(), List::Priority, 0))
            .unwrap();
        far.barrier().unwrap();
        thread::sleep(Duration::from_millis(300));
        assert_eq!(far.wait_count(KIND, arrived, PUTS).unwrap().success, PUTS);
    });
}

/// Puts that their initiator writes into the entry itself, also where nothing else goes to and fro: the bytes
/// are there when the call returns, the count when the target has looked, and an entry that was unlinked is
/// written no more.
#[test]
fn puts_are_placed_in_memory_that_the_other_rank_lets_us_write() {
    const ROOM: usize = 128 << 10;
    let [mut near, mut far] = two();
    let (room, out) = (Region::new(ROOM).unwrap(), Region::new(ROOM).unwrap());
    let arrived = far.ask(KIND, |ni| ni.ct_alloc()).unwrap();
    table(&mut far);
    let entry = counted(&room, EntryOptions::NONE, arrived);
    let entry = far
        .ask(KIND, |ni| ni.append(INDEX, entry.clone(), List::Priority, 0))
        .unwrap();
    let (md, _) = bind(&mut near, &out);
    let send = |near: &mut Portals, value: u8, length: usize, at: u64| {
        out.write(0, &vec![value; length]);
        let put = quiet(md, length as u64, 0, at, 0);
        near.ask(KIND, |ni| ni.put(&put)).unwrap();
    };
    let holds = |value: u8, length: usize, at: u64| {
        let mut bytes = vec![0; length];
        room.read(at as usize, &mut bytes);
        bytes == vec![value; length]
    };
    let mut sent = 0;
    // The offer needs a lane from the target, which has sent nothing so far.
    let is_placed = (0..10_000).any(|round| {
        let value = (round % 90) as u8 + 1;
        send(&mut near, value, 1024, 0);
        let is_there = holds(value, 1024, 0);
        sent += 1;
        while far.ni(KIND).ct_get(arrived).unwrap().success < sent {
            far.progress();
            near.progress();
        }
        assert!(holds(value, 1024, 0));
        is_there
    });
    assert!(is_placed);
    for (value, (length, at)) in (100..).zip([(1024, 5), (65_536, 4097), (100_000, 1), (513, 130_559)]) {
        send(&mut near, value, length, at);
        assert!(
            holds(value, length, at),
            "{length} bytes at {at}, before the target looks"
        );
        assert_eq!(far.ni(KIND).ct_get(arrived).unwrap().success, sent);
        sent += 1;
        assert_eq!(far.wait_count(KIND, arrived, sent).unwrap().success, sent);
    }
    // It was placed, and its entry is not unlinked before it is counted. The next one finds no entry.
    send(&mut near, 7, 1024, 0);
    assert_eq!(far.ni(KIND).unlink(entry), Err(NiError::InUse));
    unlink(&mut near, &mut far, entry);
    assert_eq!(far.ni(KIND).ct_get(arrived).unwrap().success, sent + 1);
    room.write(0, &[9; 1024]);
    send(&mut near, 8, 1024, 0);
    for _ in 0..100 {
        far.progress();
        near.progress();
    }
    assert!(holds(9, 1024, 0));
    assert_eq!(far.ni(KIND).ct_get(arrived).unwrap().success, sent + 1);
    leave([near, far]);
}
