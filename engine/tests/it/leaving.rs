//! When a blocking call has returned, what it sent is with the rail's device, and its caller need not call
//! again. Rank 1 sends and then makes no call of the library; rank 0 gets everything meanwhile.
//!
//! The test program starts itself, once per rank, and runs `child` there. Rank 1 blocks until its standard
//! input ends, which is when rank 0 has ended.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use doorbell::am::{Handlers, Setup};
use doorbell::fabric::memory::Region;
use doorbell::fabric::message::Landing;
use doorbell::fabric::ni::{
    AckReq, Entry, EntryOptions, Kind, List, Md, Memory, Piece, Process, PtOptions, Put, Target,
};
use doorbell::{Builder, World};

use crate::common::pattern;

/// Names the part that a started process plays.
const ROLE: &str = "DOORBELL_TEST_LEAVING_ROLE";
/// More messages than a window of the rail accepts at once.
const MANY: u64 = 3_000;

/// A process that is killed when its handle is dropped.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one rank per deadline.
fn start<const RANKS: usize>(role: &str, deadlines: [&str; RANKS]) -> [Rank; RANKS] {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let number = JOBS.fetch_add(1, Ordering::Relaxed);
    let root = format!("@doorbell-leaving-{}-{number}", std::process::id());
    std::array::from_fn(|rank| {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "leaving::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("DOORBELL_RANK", rank.to_string())
            .env("DOORBELL_SIZE", RANKS.to_string())
            .env("DOORBELL_ROOT", &root)
            .env("DOORBELL_RAILS", "udp:lo")
            .env("DOORBELL_DEADLINE", deadlines[rank])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Rank(child.unwrap())
    })
}

/// Rank 2 of three computes; rank 1 gets everything from rank 0 meanwhile, whose calls have the longer limit.
fn gets_by(role: &str) {
    let mut ranks = start(role, ["30 s", "12 s", "30 s"]);
    let status = ranks[1].0.wait().unwrap();
    assert!(
        status.success(),
        "{role}: rank 1 waits because rank 2 takes nothing: {status}"
    );
}

/// Runs two ranks over a rail of datagrams, `jobs` times at once: which messages are queued differs from run
/// to run.
fn leaves(role: &str, jobs: usize) {
    let all: Vec<[Rank; 2]> = (0..jobs).map(|_| start(role, ["30 s"; 2])).collect();
    for [mut waits, mut leaves] in all {
        let status = waits.0.wait().unwrap();
        assert!(
            status.success(),
            "{role}: rank 0: {status}: messages of rank 1 wait for a call of rank 1"
        );
        drop(leaves.0.stdin.take());
        let status = leaves.0.wait().unwrap();
        assert!(status.success(), "{role}: rank 1: {status}");
    }
}

/// Makes no call of the library until the other rank has ended.
fn stand() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "portals" => {
            let mut portals = Builder::new().build_portals().unwrap();
            portals.barrier().unwrap();
            if portals.rank() == 1 {
                stand();
            }
        }
        "puts" => puts(),
        "active messages" => {
            let setup = Setup::new(Handlers::new(), 4096);
            let mut am = Builder::new().build_am(setup).unwrap();
            am.barrier().unwrap();
            if am.rank() == 1 {
                stand();
            }
        }
        "broadcast of three" | "scopes of three" => beside(&doorbell::init().unwrap(), &role),
        role => message(&doorbell::init().unwrap(), role),
    }
}

/// Makes more puts than a window accepts, and then no call.
fn puts() {
    let mut job = Builder::new().build_portals().unwrap();
    let kind = Kind::MATCHING_LOGICAL;
    job.init(kind, None).unwrap();
    let memory = Region::new(900).unwrap();
    let whole = || Memory::One(Landing::Region(memory.whole()));
    let arrived = job.ask(kind, |ni| ni.ct_alloc()).unwrap();
    let index = job
        .ask(kind, |ni| ni.pt_alloc(PtOptions::NONE, None, Some(4)))
        .unwrap();
    let options = EntryOptions::OP_PUT | EntryOptions::EVENT_CT_COMM;
    let entry = Entry::open(whole(), options).counted(arrived);
    job.ask(kind, |ni| ni.append(index, entry.clone(), List::Priority, 0))
        .unwrap();
    job.barrier().unwrap();
    if job.rank() == 0 {
        assert_eq!(job.wait_count(kind, arrived, MANY).unwrap().success, MANY);
        return;
    }
    let md = Md {
        memory: whole(),
        ..Md::default()
    };
    let md = job.ask(kind, |ni| ni.md_bind(md.clone())).unwrap();
    let target = Target {
        process: Process::rank(0),
        pt_index: index,
        match_bits: 0,
        remote_offset: 0,
    };
    let put = Put {
        from: Piece { md, offset: 0 },
        length: 900,
        ack: AckReq::None,
        target,
        user_ptr: 0,
        hdr_data: 0,
    };
    for _ in 0..MANY {
        job.ask(kind, |ni| ni.put(&put)).unwrap();
    }
    // The last of them may wait to leave with others until a call that waits.
    job.wait_until(kind, "nothing", |_| Some(())).unwrap();
    stand();
}

/// Rank 0 sends to rank 1, and to rank 2, which computes.
fn beside(world: &World, role: &str) {
    let rank = world.rank();
    if rank == 2 {
        return stand();
    }
    if role == "broadcast of three" {
        let mut data = [u8::from(rank == 0); 64];
        world.broadcast(0, &mut data).unwrap();
        assert_eq!(data, [1; 64]);
        return;
    }
    if rank == 0 {
        world.within(Duration::from_secs(1)).send(2, 1, &[0; 64]).unwrap();
    }
    for number in 0..10 {
        let mut into = [0; 8];
        let exchanged = world.scope(|s| {
            drop(s.isend(1 - rank, number, &[7; 8])?);
            drop(s.irecv(1 - rank, number, &mut into)?);
            Ok(())
        });
        exchanged.unwrap();
        assert_eq!(into, [7; 8]);
    }
}

fn message(world: &World, role: &str) {
    let own = world.rank() == 1;
    match role {
        "barrier" => world.barrier().unwrap(),
        "broadcast" => {
            let mut data = if own { pattern(5, 100) } else { vec![0; 100] };
            world.broadcast(1, &mut data).unwrap();
            assert_eq!(data, pattern(5, 100));
        }
        "send" | "long" | "many" => {
            let (count, length) = match role {
                "send" => (1, 64),
                // Eager, and longer than a frame.
                "long" => (1, 30_000),
                _ => (MANY, 900),
            };
            for number in 0..count {
                let data = pattern(number as u32, length);
                if own {
                    world.send(0, number, &data).unwrap();
                } else {
                    let mut into = vec![0; length];
                    world.recv(1, number, &mut into).unwrap();
                    assert!(into == data, "message {number}");
                }
            }
        }
        "busy" => {
            world.barrier().unwrap();
            let began = Instant::now();
            for number in (0..300).filter(|_| !own) {
                let limit = Duration::from_secs(1);
                world.within(limit).send(1, number, &[0; 900]).unwrap();
            }
            assert!(
                began.elapsed() < Duration::from_secs(100),
                "each send waits again"
            );
        }
        "scope" | "wait" | "wait all" => {
            let mut into = [0; 64];
            if own {
                let data = pattern(9, 64);
                let work = world.scope(|s| {
                    let mut request = s.isend(0, 1, &data)?;
                    match role {
                        "wait" => _ = request.wait()?,
                        "wait all" => world.wait_all(std::slice::from_mut(&mut request))?,
                        // The end of the scope waits.
                        _ => drop(request),
                    }
                    Ok(())
                });
                work.unwrap();
            } else {
                world.recv(1, 1, &mut into).unwrap();
                assert_eq!(into[..], pattern(9, 64));
            }
        }
        other => panic!("there is no role {other}"),
    }
    if own {
        stand();
    }
}

#[test]
fn a_message_that_was_sent_needs_no_later_call() {
    for role in ["send", "long", "many"] {
        leaves(role, 1);
    }
}

#[test]
fn a_send_that_was_waited_for_needs_no_later_call() {
    for role in ["wait", "wait all", "scope"] {
        leaves(role, 1);
    }
}

/// The window accepts some of its messages, and the others stay queued: the sender has waited for them once.
#[test]
fn a_rank_that_computes_delays_its_sender_for_one_limit() {
    leaves("busy", 1);
}

#[test]
fn a_rank_that_leaves_a_collective_delays_no_other() {
    leaves("broadcast", 2);
    leaves("barrier", 6);
}

/// The root sends to its children in turn, and the first one computes.
#[test]
fn a_broadcast_reaches_one_child_while_another_computes() {
    gets_by("broadcast of three");
}

/// A scope waits for messages that are held back, but not again for a rank for which a call has waited its
/// whole limit.
#[test]
fn scopes_beside_a_rank_that_computes_end_with_their_own_messages() {
    gets_by("scopes of three");
}

#[test]
fn portals_and_active_messages_need_no_later_call() {
    leaves("portals", 2);
    leaves("puts", 1);
    leaves("active messages", 2);
}
