//! Jobs of active messages: every kind of message, puts and gets, over rails that break; how a job ends, and
//! by which rank.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::am::{
    Am, AmError, Args, Client, Handlers, NotTaken, Outcome, Owned, Remote, Setup, Ticket, Work,
};
use doorbell::config::{AmHandlers, Mode};
use doorbell::fabric::memory::Region;
use doorbell::fabric::message::Landing;
use doorbell::sim::{SimConfig, SimNet};
use doorbell::{Builder, Config, Error, local_am};

use crate::common::pattern;

/// Names the part that a started process plays.
const ROLE: &str = "DOORBELL_TEST_AM_ROLE";
/// Names the way in which a started process interrupts itself.
const INTERRUPTED: &str = "DOORBELL_TEST_AM_INTERRUPTED";
const SEGMENT: usize = 1 << 20;

fn config() -> Config {
    let mut config = Config::default();
    config.set("wait.deadline", "20 s").unwrap();
    config
}

/// What the handlers of a rank have received.
#[derive(Clone, Default)]
struct Seen {
    /// Numbers of the requests that arrived, in order.
    requests: Arc<Mutex<Vec<u32>>>,
    replies: Arc<Mutex<Vec<u32>>>,
    bad: Arc<AtomicU64>,
}

impl Seen {
    /// Requests 200 carry their number, and a payload that begins with that number's pattern; the reply
    /// carries the number.
    fn setup(&self) -> Setup {
        let mut handlers = Handlers::new();
        let seen = self.clone();
        handlers
            .request(200, move |request| {
                let number = request.args()[0];
                let bytes = request.payload().bytes();
                if bytes.to_vec() != pattern(number, bytes.len()) {
                    seen.bad.fetch_add(1, Ordering::Relaxed);
                }
                seen.requests.lock().unwrap().push(number);
                request.reply_short(201, &[number]).unwrap();
            })
            .unwrap();
        let seen = self.clone();
        handlers
            .reply(201, move |reply| {
                seen.replies.lock().unwrap().push(reply.args()[0])
            })
            .unwrap();
        Setup::new(handlers, SEGMENT)
    }
}

/// Where progress is made, and which threads run handlers.
const WAYS: [(Mode, AmHandlers); 3] = [
    (Mode::Inline, AmHandlers::Owner),
    (Mode::Dedicated, AmHandlers::Owner),
    (Mode::Dedicated, AmHandlers::Progress),
];

/// Runs a job once in each way.
fn job(size: u32, config: &Config, rank: impl Fn(Am, Seen) + Sync) {
    for (mode, handlers) in WAYS {
        let mut config = config.clone();
        config.progress.mode.set(mode);
        config.am.handlers.set(handlers);
        job_in_one_way(size, &config, &rank);
    }
}

fn job_in_one_way(size: u32, config: &Config, rank: impl Fn(Am, Seen) + Sync) {
    let seen: Vec<Seen> = (0..size).map(|_| Seen::default()).collect();
    let ranks = local_am(size, config, |rank| seen[rank as usize].setup()).unwrap();
    thread::scope(|s| {
        let rank = &rank;
        let threads: Vec<_> = ranks
            .into_iter()
            .zip(seen)
            .map(|(waiting, seen)| s.spawn(move || rank(waiting.attach().unwrap(), seen)))
            .collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

/// Each rank sends `count` numbered messages of all kinds to its neighbour; each arrives once, and has one
/// reply.
fn ring(mut am: Am, seen: &Seen, count: u32) {
    let next = (am.rank() + 1) % am.size();
    let longest = 60_000;
    let out = Region::new(2 * longest).unwrap();
    for number in 0..count {
        match number % 4 {
            0 => am.request_short(next, 200, &[number]).unwrap(),
            1 => am
                .request_medium(next, 200, &[number], &pattern(number, 500)[..])
                .unwrap(),
            kind => {
                // A place is reused when all messages from it were replied to.
                let earlier = number as usize;
                let replies = &seen.replies;
                am.wait_until("earlier replies", || {
                    (replies.lock().unwrap().len() >= earlier).then_some(())
                })
                .unwrap();
                let length = if kind == 2 { 900 } else { longest };
                let at = (kind as usize - 2) * longest;
                out.write(at, &pattern(number, length));
                let to = Remote {
                    rank: next,
                    offset: at as u64,
                };
                let slice = out.slice(at, length).unwrap();
                am.request_long(to, 200, &[number], Landing::Region(slice))
                    .unwrap();
            }
        }
    }
    am.wait_until("all replies", || {
        (seen.replies.lock().unwrap().len() >= count as usize).then_some(())
    })
    .unwrap();
    am.barrier().unwrap();
    let all: Vec<u32> = (0..count).collect();
    let sorted = |numbers: &Mutex<Vec<u32>>| {
        let mut numbers = numbers.lock().unwrap().clone();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(sorted(&seen.requests), all, "each request arrives once");
    assert_eq!(sorted(&seen.replies), all, "each reply arrives once");
    assert_eq!(seen.bad.load(Ordering::Relaxed), 0, "payloads are whole");
    assert_eq!(am.exit(0).unwrap(), 0);
}

#[test]
fn messages_of_all_kinds_are_seen_once() {
    for size in [1, 2, 3] {
        job(size, &config(), |am, seen| ring(am, &seen, 120));
    }
}

/// Sends through the thread that owns the rank, and waits for the outcome.
fn send_by(client: &Client, ticket: &mut Ticket, work: &Work) -> Outcome {
    while client.begin(ticket, work.clone()) == Err(NotTaken::Full) {
        thread::yield_now();
    }
    while ticket.outcome() == Outcome::Pending {
        thread::yield_now();
    }
    ticket.outcome()
}

#[test]
fn other_threads_send_through_the_one_that_owns_the_rank() {
    const EACH: u32 = 300;
    job(2, &config(), |mut am, seen| {
        let to = 1 - am.rank();
        let client = am.client(8).unwrap();
        let again = am.client(8).map_err(|error| error.to_string());
        assert!(again.unwrap_err().contains("clone one"));
        thread::scope(|s| {
            for place in 0..2 {
                let client = client.clone();
                s.spawn(move || {
                    let mut ticket = Ticket::new();
                    for number in (place * EACH..).take(EACH as usize) {
                        let work = Work::Medium {
                            to,
                            handler: 200,
                            args: Args::new(&[number]).unwrap(),
                            payload: Owned::inline(&pattern(number, 40)).unwrap(),
                        };
                        assert_eq!(send_by(&client, &mut ticket, &work), Outcome::Done);
                    }
                });
            }
            drop(client);
            am.serve().unwrap();
        });
        am.wait_until("all replies", || {
            (seen.replies.lock().unwrap().len() as u32 >= 2 * EACH).then_some(())
        })
        .unwrap();
        am.barrier().unwrap();
        let mut came = seen.requests.lock().unwrap().clone();
        for place in 0..2 {
            let of_one: Vec<u32> = came
                .iter()
                .copied()
                .filter(|number| number / EACH == place)
                .collect();
            assert!(of_one.is_sorted(), "those of each thread in order");
        }
        came.sort_unstable();
        assert_eq!(came, (0..2 * EACH).collect::<Vec<_>>(), "each arrives once");
        assert_eq!(seen.bad.load(Ordering::Relaxed), 0);
        assert!(am.client(3).is_err(), "no power of two");
        assert!(am.client(4).is_ok(), "the others are gone");
        assert_eq!(am.exit(0).unwrap(), 0);
    });
}

#[test]
fn rails_that_break_lose_no_message_and_double_none() {
    for faults in ["shm:120,shm:150", "shm:rendezvous", "udp:lo:80"] {
        let mut config = config();
        config.set("rails.list", "shm,udp:lo").unwrap();
        config.set("udp.port", "0").unwrap();
        config.set("fault.inject", faults).unwrap();
        job(2, &config, |am, seen| ring(am, &seen, 160));
    }
}

#[test]
fn segments_are_written_and_read() {
    job(2, &config(), |mut am, _| {
        let peer = 1 - am.rank();
        let at = |offset| Remote { rank: peer, offset };
        assert_eq!(am.segment_of(peer).unwrap().size, SEGMENT as u64);
        for length in [8, 2000, 300_000] {
            let out = Region::new(length).unwrap();
            out.write(0, &pattern(am.rank(), length));
            am.put(at(64), Landing::Region(out.whole())).unwrap();
            am.barrier().unwrap();
            let mut here = vec![0; length];
            am.segment().as_shared().skip(64).copy_to(0, &mut here);
            assert_eq!(here, pattern(peer, length));
            let into = Region::new(length).unwrap();
            let handle = am
                .get_later(Landing::Region(into.whole()), at(64), length as u64)
                .unwrap();
            am.sync(handle).unwrap();
            let mut there = vec![0; length];
            into.read(0, &mut there);
            assert_eq!(there, pattern(am.rank(), length));
            am.barrier().unwrap();
        }
        let outside = am.put(at(SEGMENT as u64 - 1), &[0; 2][..]).unwrap_err();
        assert!(matches!(&outside, Error::Am(error) if matches!(**error, AmError::OutsideSegment { .. })));
        am.barrier().unwrap();
        assert_eq!(am.exit(0).unwrap(), 0);
    });
}

/// Puts into the segment of a rank of this host are written there by their initiator, and gets read there:
/// the rank may compute meanwhile, without any call.
#[test]
fn puts_and_gets_need_nothing_of_a_rank_that_computes() {
    let gate = std::sync::Barrier::new(2);
    job(2, &config(), |mut am, _| {
        let at = |offset| Remote { rank: 1, offset };
        let lengths = [600, 4096, 65_536, 200_000];
        let out = Region::new(200_000).unwrap();
        if am.rank() == 0 {
            for _ in 0..50 {
                am.put(at(0), &[1; 600][..]).unwrap();
            }
        }
        am.barrier().unwrap();
        if am.rank() == 0 {
            // The other rank makes no call until this is over.
            for (number, length) in (7..).zip(lengths) {
                out.write(0, &pattern(number, length));
                am.put(at(0), Landing::Region(out.slice(0, length).unwrap()))
                    .unwrap();
                let into = Region::new(length).unwrap();
                am.get(Landing::Region(into.whole()), at(0), length as u64)
                    .unwrap();
                let mut there = vec![0; length];
                into.read(0, &mut there);
                assert!(there == pattern(number, length));
            }
            gate.wait();
        } else {
            gate.wait();
            let mut here = vec![0; 200_000];
            am.segment().as_shared().copy_to(0, &mut here);
            assert!(here == pattern(10, 200_000));
        }
        am.barrier().unwrap();
        assert_eq!(am.exit(0).unwrap(), 0);
    });
}

#[test]
fn any_rank_ends_the_job_and_the_largest_status_counts() {
    job(3, &config(), |mut am, _| {
        // All of them are there: one that is still attaching would lose those that have ended.
        am.barrier().unwrap();
        if am.rank() == 1 {
            assert_eq!(am.exit(7).unwrap(), 7);
            return;
        }
        // It waits for something else, and gets the error.
        let error = am.wait_until("nothing that comes", || None::<()>).unwrap_err();
        assert!(
            error.to_string().contains("the job ends with status 7"),
            "{error}"
        );
        assert_eq!(am.exit(2).unwrap(), 7);
    });
}

#[test]
fn statistics_are_written_when_enabled() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("stats");
    let settings = doorbell::am::Settings::parse([("GASNET_PORTAL_CREDIT_STATS", "1")]).unwrap();
    let setup = Setup::new(Handlers::new(), 64)
        .settings(settings)
        .statistics(&name);
    let am = Builder::new().without_environment().build_am(setup).unwrap();
    am.close();
    let text = std::fs::read_to_string(folder.path().join("stats.0")).unwrap();
    assert!(text.contains("credit"), "{text}");
}

#[test]
fn more_than_may_be_pinned_is_refused_by_name() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let Some(limit) = limit.filter(|limit| *limit < 1 << 30) else {
        return doorbell_testing::skipped(
            "more_than_may_be_pinned_is_refused_by_name",
            "RLIMIT_MEMLOCK is 1 GiB or more: nothing may be above it; run it after `ulimit -l 65536`",
        );
    };
    let setup = Setup::new(Handlers::new(), limit as usize + 1).within_memlock();
    let error = Builder::new().without_environment().build_am(setup).unwrap_err();
    assert!(error.to_string().contains("would be pinned"), "{error}");
    assert_eq!(error.exit_code(), 2);
}

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split_whitespace().collect();
    let [rank, root] = words[..] else { return };
    let mut handlers = Handlers::new();
    handlers
        .request(200, |request| _ = request.reply_short(201, &[]))
        .unwrap();
    let answers = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&answers);
    handlers
        .reply(201, move |_| _ = count.fetch_add(1, Ordering::Relaxed))
        .unwrap();
    let builder = Builder::new()
        .without_environment()
        .job(rank.parse().unwrap(), 3, root)
        .set("wait.deadline", "20 s");
    let mut am = builder
        .build_am(Setup::new(handlers, 4096).end_on_interrupt())
        .unwrap();
    let next = (am.rank() + 1) % am.size();
    println!("\nREADY");
    std::io::stdout().flush().unwrap();
    let mut sent = 0;
    let begun = Instant::now();
    let error = loop {
        if begun.elapsed() > Duration::from_secs(60) {
            println!("\nNOTICED nothing, for a minute");
            std::process::exit(98);
        }
        let asked = am.request_short(next, 200, &[]);
        sent += 1;
        let waited = asked.and_then(|()| {
            am.wait_until("an answer", || {
                (answers.load(Ordering::Relaxed) >= sent).then_some(())
            })
        });
        if let Err(error) = waited {
            break error;
        }
    };
    println!("\nNOTICED {error}");
    // The others are to find the cause, and not its consequences.
    thread::sleep(Duration::from_millis(300));
    let code = match &error {
        // The last rank just returns with the error, as a program with `?` does: it takes part in the end all
        // the same.
        Error::Am(cause) if matches!(**cause, AmError::ShuttingDown { .. }) && next != 0 => {
            am.exit(0).unwrap_or(99)
        }
        error => {
            drop(am);
            error.exit_code()
        }
    };
    std::process::exit(code.into());
}

struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs three ranks that send to each other, disturbs one once all of them do, and returns the error and
/// status of each.
fn three(name: &str, disturb: impl FnOnce(&mut Started)) -> Vec<(String, Option<i32>)> {
    let root = format!("@doorbell-test-am-{}-{name}", std::process::id());
    let mut ranks: Vec<Started> = (0..3)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "am::child", "--nocapture", "--test-threads=1"]);
            command.env(ROLE, format!("{rank} {root}"));
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
    disturb(&mut ranks[1]);
    let disturbed = Instant::now();
    let ends = ranks.iter_mut().zip(outputs).map(|(rank, mut lines)| {
        let text = lines.find_map(|line| Some(line.ok()?.strip_prefix("NOTICED ")?.to_owned()));
        (text.unwrap_or_default(), rank.0.wait().unwrap().code())
    });
    let ends = ends.collect();
    assert!(
        disturbed.elapsed() < Duration::from_secs(15),
        "{:?}",
        disturbed.elapsed()
    );
    ends
}

#[test]
fn a_killed_rank_is_named_by_all_others_in_time() {
    let ends = three("killed", |rank| rank.0.kill().unwrap());
    for rank in [0, 2] {
        let (text, code) = &ends[rank];
        assert!(text.starts_with("rank 1 is lost"), "rank {rank}: {text}");
        assert_eq!(*code, Some(4), "rank {rank}: {text}");
    }
}

#[test]
fn an_interrupt_ends_all_ranks_in_order_where_that_is_enabled() {
    let ends = three("interrupted", |rank| {
        let process = rustix::process::Pid::from_child(&rank.0);
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    });
    for (rank, (text, code)) in ends.iter().enumerate() {
        assert!(
            text.contains("the job ends with status 130"),
            "rank {rank}: {text}"
        );
        assert_eq!(*code, Some(130), "rank {rank}: {text}");
    }
}

/// The body of a started process that interrupts itself; without a role, this is no test.
#[test]
fn interrupts_itself() {
    let Ok(role) = std::env::var(INTERRUPTED) else {
        return;
    };
    let interrupt = || rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::INT);
    let job = || {
        let setup = Setup::new(Handlers::new(), 64).end_on_interrupt();
        Builder::new().without_environment().build_am(setup).unwrap()
    };
    if role == "later" || role == "ended" {
        drop(job());
    }
    if role == "ended" {
        println!("\nNOTICED nothing");
        interrupt().unwrap();
        thread::sleep(Duration::from_secs(20));
        return;
    }
    let mut am = job();
    interrupt().unwrap();
    let error = am.wait_until("an interrupt", || None::<()>).unwrap_err();
    println!("\nNOTICED {error}");
    std::io::stdout().flush().unwrap();
    let am = (role == "again").then_some(am);
    interrupt().unwrap();
    // From here on, the rank computes.
    thread::sleep(Duration::from_secs(20));
    drop(am);
}

/// In a job that computes, and when the job is over; also when there was one before.
#[test]
fn a_second_interrupt_ends_the_process() {
    use std::os::unix::process::ExitStatusExt as _;
    for role in ["again", "after", "later", "ended"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "am::interrupts_itself",
            "--nocapture",
            "--test-threads=1",
        ]);
        let output = command.env(INTERRUPTED, role).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let noticed = if role == "ended" {
            "NOTICED nothing"
        } else {
            "NOTICED the job ends with status 130"
        };
        assert!(text.contains(noticed), "{role}: {text}");
        assert_eq!(output.status.signal(), Some(2), "{role}: {text}");
    }
}

#[test]
fn closing_sends_what_was_accepted() {
    let many = doorbell::am::Settings::parse([("GASNET_PORTAL_MSG_LIMIT", "4000")]).unwrap();
    let setup = |_| Setup::new(Handlers::new(), 4096).settings(many.clone());
    let ranks = local_am(2, &config(), setup).unwrap();
    let put = Arc::new(AtomicU64::new(0));
    thread::scope(|s| {
        for waiting in ranks {
            let put = Arc::clone(&put);
            s.spawn(move || {
                let mut am = waiting.attach().unwrap();
                if am.rank() == 0 {
                    let before = am.conduit().stats().deferred;
                    let mut last = 0;
                    while am.conduit().stats().deferred == before {
                        last += 1;
                        let to = Remote { rank: 1, offset: 0 };
                        let begun = am.conduit().put(to, &u64::to_le_bytes(last)).unwrap();
                        assert!(begun.is_done());
                    }
                    put.store(last, Ordering::Release);
                    am.close();
                    return;
                }
                while put.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
                let segment = am.segment().clone();
                am.wait_until("the last put", || {
                    let mut bytes = [0; 8];
                    segment.as_shared().copy_to(0, &mut bytes);
                    (u64::from_le_bytes(bytes) == put.load(Ordering::Acquire)).then_some(())
                })
                .unwrap();
            });
        }
    });
}

#[test]
fn a_rank_does_not_sleep_while_a_poll_has_left_events() {
    const REQUESTS: u32 = 40;
    // A progress thread might take them in between.
    job_in_one_way(2, &config(), |mut am, seen| {
        if am.rank() == 0 {
            for number in 0..REQUESTS {
                let sent = am.conduit().try_request_short(1, 200, &[number]);
                assert!(sent.unwrap().is_done());
            }
            am.conduit().flush();
        }
        let came = |seen: &Seen| seen.requests.lock().unwrap().len();
        if am.rank() == 1 {
            while came(&seen) < 8 {
                am.conduit().poll();
            }
            // A poll handles eight of them: fewer than 16 have arrived, and so many more are pending that the
            // next poll leaves some.
            thread::sleep(Duration::from_millis(20));
            am.conduit().poll();
            let left = came(&seen) < REQUESTS as usize;
            assert!(left && am.conduit().linger(1), "{}", came(&seen));
        }
        am.barrier().unwrap();
        assert_eq!(am.exit(0).unwrap(), 0);
    });
}

/// Ranks of a simulated job, of which each acts only when a test calls it.
fn simulated() -> (SimNet, [Am; 2]) {
    let settings = doorbell::am::Settings::parse([
        ("GASNET_PORTAL_CRED_PER_NODE", "24"),
        ("GASNET_PORTAL_BANKED_CREDITS", "64"),
        ("GASNET_PORTAL_CHUNKS_PER_BUFFER", "8"),
    ])
    .unwrap();
    let net = SimNet::new(1, SimConfig::default());
    let setup = |_| Setup::new(Handlers::new(), 4096).settings(settings.clone());
    let mut ranks = doorbell::simulated_am(&net, 2, &config(), false, setup).unwrap();
    let mut ready = [false; 2];
    while ready != [true; 2] {
        for (rank, waiting) in ranks.iter_mut().enumerate() {
            ready[rank] = waiting.step().unwrap();
        }
    }
    let ranks: Vec<Am> = ranks
        .into_iter()
        .map(|waiting| waiting.finish().unwrap())
        .collect();
    (net, ranks.try_into().unwrap())
}

/// The peer takes nothing: the wait ends at its deadline, with an error that names what it waited for.
#[test]
fn every_wait_has_an_end_on_a_simulated_clock() {
    let (_net, [mut am, _peer]) = simulated();
    am.set_deadline(Duration::from_millis(20));
    let outcome = |error: Error| (matches!(error, Error::Timeout(_)), error.to_string());
    let (in_time, text) = outcome(am.put(Remote { rank: 1, offset: 0 }, &[1; 8]).unwrap_err());
    assert!(in_time && text.contains("its put or get"), "{text}");
    let (in_time, text) = loop {
        if let Err(error) = am.request_short(1, 200, &[]) {
            break outcome(error);
        }
    };
    assert!(in_time && text.contains("credits of the rank"), "{text}");
    // The next call waits for the same barrier.
    for _ in 0..2 {
        let (in_time, text) = outcome(am.barrier().unwrap_err());
        assert!(in_time && text.contains("all ranks at a barrier"), "{text}");
    }
}

#[test]
fn a_conduit_that_breaks_ends_what_is_in_progress() {
    use doorbell::fabric::ni::{AckReq, Md, Ni as _, Piece, Process, Put, Target};
    let (net, [mut am, mut peer]) = simulated();
    let handle = am.put_later(Remote { rank: 1, offset: 0 }, &[1; 8]).unwrap();
    // Longs without end: the queue of its requests, which is never polled, has no room for their events.
    let md = peer.conduit().ni_mut().md_bind(Md::default()).unwrap();
    for lid in 0..400 {
        let put = Put {
            from: Piece { md, offset: 0 },
            length: 0,
            ack: AckReq::None,
            target: Target {
                process: Process::rank(0),
                pt_index: 39,
                match_bits: 0x81,
                remote_offset: 0,
            },
            user_ptr: 0,
            hdr_data: 1 << 32 | lid,
        };
        let mut conduit = peer.conduit();
        let ni = conduit.ni_mut();
        ni.put(&put).unwrap();
        ni.flush();
        am.conduit().poll_safely();
        net.advance_to(net.now() + Duration::from_micros(10));
    }
    let error = am.sync(handle).unwrap_err().to_string();
    assert!(error.contains("AM"), "{error}");
}

#[test]
fn a_mailbox_is_replaced_once_its_clients_are_gone() {
    let mut am = Builder::new()
        .without_environment()
        .build_am(Setup::new(Handlers::new(), 64))
        .unwrap();
    let client = am.client(4).unwrap();
    assert!(am.client(4).is_err());
    drop(client);
    assert!(am.client(4).is_ok(), "the clients are gone without a poll");
}

/// Ranks whose credits do not fit together are refused with an error at each of them, whichever leaves first.
#[test]
fn ranks_with_other_settings_are_refused_at_both_sides() {
    let ranks = local_am(2, &config(), |rank| {
        let settings = doorbell::am::Settings {
            flow_control: rank == 0,
            ..Default::default()
        };
        Setup::new(Handlers::new(), SEGMENT).settings(settings)
    });
    let refused: Vec<Error> = thread::scope(|s| {
        let attach = |rank: doorbell::am::Waiting| rank.attach().expect_err("their settings differ");
        let ranks: Vec<_> = ranks
            .unwrap()
            .into_iter()
            .map(|rank| s.spawn(move || attach(rank)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for (error, values) in refused
        .iter()
        .zip(["is 0 at rank 1 and 1 here", "is 1 at rank 0 and 0 here"])
    {
        let text = error.to_string();
        assert!(
            text.contains("GASNET_PORTAL_FLOW_CONTROL") && text.contains(values),
            "{text}"
        );
        assert_eq!(error.exit_code(), 2);
    }
}
