//! The control plane of a job: all ranks have one if it is enabled; and what follows when it has lost a rank.
//!
//! Ranks are threads where all of them survive, and processes of their own where one is killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::oob::event::{Event, Status};
use doorbell::oob::name::From;
use doorbell::oob::plane::Inbox;
use doorbell::{Builder, Error, World};

/// Names the part that a started process plays.
const ROLE: &str = "DOORBELL_TEST_ROLE";
const LIMIT: Duration = Duration::from_secs(60);
const TAG: u32 = 200;

fn root() -> String {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let number = JOBS.fetch_add(1, Ordering::Relaxed);
    format!("@doorbell-control-{}-{number}", std::process::id())
}

fn builder(rank: u32, size: u32, root: &str) -> Builder {
    Builder::new()
        .without_environment()
        .job(rank, size, root)
        .set("control.mode", "true")
        .set("rails.list", "shm")
}

/// Runs ranks that are threads.
fn job<R: Send>(
    size: u32,
    build: fn(u32, Builder) -> Builder,
    rank: impl Fn(Result<World, Error>) -> R + Sync,
) -> Vec<R> {
    let root = root();
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|number| {
                let (rank, root) = (&rank, &root);
                scope.spawn(move || rank(build(number, builder(number, size, root)).build()))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_talk_beside_their_rails_and_end_together() {
    all_talk(|_, builder| builder);
}

#[test]
fn ranks_talk_by_other_transports_routes_and_threads() {
    all_talk(|_, builder| builder.set("control.transports", "rail"));
    all_talk(|_, builder| {
        let builder = builder.set("control.transports", "rail,tcp");
        builder.set("control.routes", "direct")
    });
    all_talk(|_, builder| {
        let builder = builder.set("control.threads", "nic");
        builder
            .set("control.wait", "spin")
            .set("control.routes", "direct")
    });
}

#[test]
fn ranks_with_other_transports_do_not_start_together() {
    let other =
        |rank, builder: Builder| builder.set("control.transports", if rank == 1 { "rail" } else { "tcp" });
    for error in job(2, other, |world| world.unwrap_err()) {
        assert!(error.to_string().contains("control.transports"), "{error}");
    }
}

/// Each sends the next one a message, all gather, and none is lost at the end.
fn all_talk(build: fn(u32, Builder) -> Builder) {
    const SIZE: u32 = 5;
    job(SIZE, build, |world| {
        let world = world.unwrap();
        let control = world.control().unwrap();
        let (rank, oob) = (world.rank(), control.oob());
        let listens = oob.contact().unwrap().wait(LIMIT).flatten().unwrap();
        for (transport, addresses) in &listens.clauses {
            let is_within = |address: &&str| match &**transport {
                "tcp" => address.starts_with("127.0.0.1/8:") || address.starts_with("[::1/128]:"),
                _ => address.starts_with("shm:"),
            };
            let beyond: Vec<&str> = addresses
                .iter()
                .map(|it| &**it)
                .filter(|it| !is_within(it))
                .collect();
            assert!(
                beyond.is_empty() && !addresses.is_empty(),
                "by default, within the host alone: {listens}"
            );
        }
        let before = (rank + SIZE - 1) % SIZE;
        let comes = oob.receive(From::only(control.name_of(before)), TAG).unwrap();
        let next = control.name_of((rank + 1) % SIZE);
        let sent = oob
            .send(next, TAG, rank.to_le_bytes().as_slice().into(), None)
            .unwrap();
        assert_eq!(&*comes.wait(LIMIT).unwrap().unwrap().body, &before.to_le_bytes());
        assert_eq!(sent.wait(LIMIT), Some(Ok(Status::Delivered)));
        let all = oob
            .gather(7, rank.to_le_bytes().as_slice().into(), LIMIT)
            .unwrap();
        let all = all.wait(LIMIT).unwrap();
        assert_eq!((all.missing.len(), all.table.unwrap().len()), (0, SIZE as usize));
        // The rank that is done first waits for the others: none is lost at the end.
        let events = oob.events();
        if rank == 2 {
            thread::sleep(Duration::from_millis(300));
        }
        world.close();
        let is_loss = |event: &Event| matches!(event, Event::PeerLost { .. } | Event::LifelineLost);
        let lost: Vec<Event> = std::iter::from_fn(|| events.take()).filter(is_loss).collect();
        assert!(lost.is_empty(), "{lost:?}");
    });
}

#[test]
fn a_world_without_one_has_none() {
    let root = root();
    let world = builder(0, 1, &root).set("control.mode", "false").build().unwrap();
    assert!(world.control().is_none());
    let alone = builder(0, 1, &root).build().unwrap();
    assert!(alone.control().is_some());
    let mut config = doorbell::Config::default();
    config.control.mode.set(true);
    let error = doorbell::local(2, &config).unwrap_err();
    assert_eq!(error.code(), "unsupported", "{error}");
}

#[test]
fn a_rank_without_one_reports_why_and_all_end() {
    let nowhere = |rank, builder: Builder| match rank {
        1 => builder.set("control.nics", "nosuch0"),
        _ => builder,
    };
    let errors = job(3, nowhere, |world| world.unwrap_err());
    assert!(errors[1].to_string().contains("nosuch0"), "{}", errors[1]);
    for other in [&errors[0], &errors[2]] {
        let text = other.to_string();
        assert_eq!(other.code(), "job.withdrawn", "{text}");
        assert_eq!(other.exit(), errors[1].exit(), "the status is that rank's");
        assert!(
            text.contains("rank 1 cannot take part") && text.contains("nosuch0"),
            "{text}"
        );
    }
    for (name, value) in [
        ("control.nics", "10.0.0.0/99"),
        ("control.ports", "5-1"),
        ("control.policy", "x"),
        ("control.core", "0"),
        ("control.rails", "shm"),
        ("control.transports", "udp"),
    ] {
        let error = builder(0, 1, &root()).set(name, value).build().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(value.split('-').next().unwrap()), "{text}");
        assert_eq!(error.exit(), doorbell::Exit::Usage, "{text}");
    }
    // Rank 0 enables it, and the other does not.
    let some = |rank, builder: Builder| builder.set("control.mode", if rank == 0 { "true" } else { "false" });
    for error in job(2, some, |world| world.unwrap_err()) {
        assert!(error.to_string().contains("control.mode"), "{error}");
    }
}

/// A rank in a process of its own; killed with the test.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn next_line(&mut self) -> String {
        self.lines.next().expect("it prints a line").unwrap()
    }
}

fn processes(size: u32, role: &str, policy: &str) -> Vec<Process> {
    let root = root();
    let start = |rank: u32| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "control::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("DOORBELL_RANK", rank.to_string())
            .env("DOORBELL_SIZE", size.to_string())
            .env("DOORBELL_ROOT", &root)
            .env("DOORBELL_CONTROL", "true")
            .env("DOORBELL_CONTROL_POLICY", policy)
            .env("DOORBELL_WAIT", "sleep")
            .env("DOORBELL_RAILS", "udp:lo")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The lines of the test runner come first, and then ours.
        while !lines.next().unwrap().unwrap().ends_with("ready") {}
        Process { child, lines }
    };
    thread::scope(|scope| {
        let start = &start;
        let all: Vec<_> = (0..size).map(|rank| scope.spawn(move || start(rank))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// Waits for the first event that satisfies `is`.
fn wait_for(events: &Inbox<Event>, is: impl Fn(&Event) -> bool) -> Event {
    let until = Instant::now() + LIMIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match events.wait(left) {
            Some(event) if is(&event) => return event,
            Some(_) => {}
            None => panic!("the event did not come"),
        }
    }
}

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let world = doorbell::init().unwrap();
    let events = world.control().unwrap().oob().events();
    world.barrier().unwrap();
    println!("ready");
    let dies: u32 = role.parse().unwrap();
    if world.rank() == dies {
        // As long as it lives, its messages to the others' barrier are retransmitted, should they be lost.
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            world.progress();
            thread::sleep(Duration::from_millis(1));
        }
        return;
    }
    let last = dies == 0;
    let is = |event: &Event| match event {
        Event::LifelineLost => last,
        Event::PeerLost { peer, .. } => !last && peer.rank == dies,
        _ => false,
    };
    if std::env::var("DOORBELL_CONTROL_POLICY").as_deref() == Ok("tell") {
        println!(
            "lifeline lost: {:?}",
            wait_for(&events, is) == Event::LifelineLost
        );
        return;
    }
    let mut into = [0; 8];
    let ended = world.within(LIMIT).recv(dies, 1, &mut into).unwrap_err();
    let text = ended.to_string();
    println!("{}: {}", ended.code(), text.lines().next().unwrap_or_default());
    wait_for(&events, is);
    // Without a lifeline, the survivors are lost as well.
    world.progress();
    let others = (1..world.size()).filter(|other| *other != world.rank() && *other != dies);
    let lost: Vec<String> = others
        .map(|other| world.peer(other).unwrap().lost.unwrap_or_default())
        .collect();
    println!("others lost: {lost:?}");
    // No rank leaves before all have looked.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_rank_that_the_control_plane_has_lost_is_lost_for_the_rails() {
    let mut ranks = processes(4, "3", "end");
    ranks[3].child.kill().unwrap();
    for rank in &mut ranks[..3] {
        let text = rank.next_line();
        assert!(text.starts_with("peer.lost"), "{text}");
        let text = rank.next_line();
        assert!(
            text.ends_with("[\"\"]") || text.ends_with("[\"\", \"\"]"),
            "{text}"
        );
    }
}

#[test]
fn without_a_lifeline_all_others_are_lost() {
    let mut ranks = processes(4, "0", "end");
    ranks[0].child.kill().unwrap();
    for rank in &mut ranks[1..] {
        let text = rank.next_line();
        assert!(text.starts_with("peer.lost"), "{text}");
        // No rail has anything against them.
        let why = "the control plane has lost it";
        assert_eq!(rank.next_line(), format!("others lost: {:?}", [why, why]));
    }
}

#[test]
fn the_policy_tell_only_reports() {
    let mut ranks = processes(3, "2", "tell");
    ranks[2].child.kill().unwrap();
    for rank in &mut ranks[..2] {
        assert_eq!(rank.next_line(), "lifeline lost: false");
    }
}
