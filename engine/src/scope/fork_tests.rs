//! A child of `fork` that uses or drops its copy of a job's handle: its calls fail with `Error::Forked`, and
//! the parent's job goes on. The tests are in this folder because calling `fork` is unsafe.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use doorbell_fabric::map::process::Maker;
use doorbell_fabric::ni::{Kind, Ni, NiError};
use doorbell_job::config::{AmHandlers, Mode};

use crate::am::{Args, Handlers, Leaving, NotTaken, Setup, Ticket, Work};
use crate::{Config, Error, Source, Tag, World};

const KIND: Kind = Kind::MATCHING_LOGICAL;
/// Rails, and the mode of progress. With a progress thread, its lock may be held when it forks.
const WAYS: [(&str, Mode); 4] = [
    ("shm", Mode::Inline),
    ("udp:lo", Mode::Inline),
    ("shm", Mode::Dedicated),
    ("udp:lo", Mode::Dedicated),
];

/// Runs `work` in a child of this process, which ends right after it; `work` returns whether all was well.
fn in_a_child(what: &str, work: impl FnOnce() -> bool) {
    let child = fork();
    if child == 0 {
        end(catch_unwind(AssertUnwindSafe(work)).unwrap_or(false));
    }
    ended_well(what, child);
}

/// Forks; returns zero in the child. A lock that another thread holds at the fork stays locked in the child:
/// SIGALRM ends a child that waits for one, and `ended_well` reports it.
fn fork() -> libc::pid_t {
    // SAFETY: the child works on memory of its own, in this one thread, and ends by `end`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: only a system call; the signal's disposition is the default, which ends the child.
        unsafe { libc::alarm(60) };
    }
    child
}

/// Ends a child without running any of the parent's exit code.
fn end(well: bool) -> ! {
    // SAFETY: nothing of this process is used afterwards.
    unsafe { libc::_exit(i32::from(!well)) }
}

fn ended_well(what: &str, child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `child` is our own child, and `status` a valid place.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "{what}: the child ended with {status:#x}"
    );
}

fn config(rails: &str, mode: Mode) -> Config {
    let mut config = Config::default();
    config.set("rails.list", rails).unwrap();
    config.set("wait.deadline", "20 s").unwrap();
    config.progress.mode.set(mode);
    config
}

fn forked<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| {
        let named = error.to_string().contains("a child of fork");
        matches!(error, Error::Forked) && named && error.exit_code() == 2
    })
}

/// Makes every kind of call, and returns whether all are refused.
fn uses(world: &World) -> bool {
    let mut into = [0; 8];
    let scope = world.scope(|s| s.isend(1, 1, b"never").map(|_| ()));
    forked(world.send(1, 1, b"never"))
        && forked(world.ssend(1, 1, b"never"))
        && forked(world.bsend(1, 1, b"never"))
        && forked(world.send_more(1, 1, b"never"))
        && forked(world.recv(1, 1, &mut into))
        && forked(world.probe(1, 1))
        && forked(world.iprobe(Source::Any, Tag::any()))
        && forked(world.barrier())
        && forked(world.broadcast(0, &mut into))
        && forked(scope)
        && forked(world.counters())
        && forked(world.spawn(crate::Spawn::new("/bin/true").ranks(1), Duration::from_secs(5)))
        && world.progress() == 0
        && world.control().is_none()
}

fn there_and_back(world: &World, tag: u64) {
    let (other, mut into) = (1 - world.rank(), [0; 8]);
    let mine = tag.to_le_bytes();
    if world.rank() == 0 {
        world.send(other, tag, &mine).unwrap();
    }
    world.recv(other, tag, &mut into).unwrap();
    assert_eq!(into, mine);
    if world.rank() == 1 {
        world.send(other, tag, &mine).unwrap();
    }
}

#[test]
fn a_child_that_uses_drops_or_closes_a_world_does_nothing_to_it() {
    for rails in ["shm", "udp:lo", "shm,udp:lo"] {
        for mode in [Mode::Inline, Mode::Dedicated] {
            let mut worlds = crate::local(2, &config(rails, mode)).unwrap();
            let (other, world) = (worlds.pop().unwrap(), worlds.pop().unwrap());
            let what = format!("{rails}, {mode:?}");
            thread::scope(|s| {
                s.spawn(move || {
                    (0..2).for_each(|tag| there_and_back(&other, tag));
                    other.barrier().unwrap();
                });
                there_and_back(&world, 0);
                // Each child has a copy of its own, so what one does with it does not show in the next.
                in_a_child(&format!("{what}: uses"), || uses(&world));
                // SAFETY: the child drops its copy, and the parent the original.
                let copy = |world: &World| unsafe { std::ptr::read(world) };
                in_a_child(&format!("{what}: drops"), || {
                    drop(copy(&world));
                    true
                });
                in_a_child(&format!("{what}: closes"), || {
                    copy(&world).close();
                    true
                });
                // In the middle of a scope, with memory lent.
                let (mut into, mut child) = ([0; 8], 0);
                let scope = world.scope(|s| {
                    let mut request = s.irecv(1, 99, &mut into)?;
                    child = fork();
                    // In the child the scope ends with the receive open.
                    assert!(child == 0 || request.cancel());
                    Ok(())
                });
                if child == 0 {
                    end(forked(scope));
                }
                ended_well(&format!("{what}: leaves a scope"), child);
                there_and_back(&world, 1);
                world.barrier().unwrap();
                world.close();
            });
        }
    }
}

#[test]
fn a_child_that_uses_or_drops_portals_does_nothing_to_them() {
    for (rails, mode) in WAYS {
        let mut jobs = crate::local_portals(2, &config(rails, mode)).unwrap();
        let (mut other, mut job) = (jobs.pop().unwrap(), jobs.pop().unwrap());
        thread::scope(|s| {
            s.spawn(move || {
                other.barrier().unwrap();
                other.barrier().unwrap();
            });
            job.init(KIND, None).unwrap();
            job.barrier().unwrap();
            in_a_child(&format!("{rails} {mode:?}: portals"), || {
                let refused = job.ni(KIND).ct_alloc() == Err(NiError::NoInit);
                let waits = forked(job.ask(KIND, |ni| ni.ct_alloc())) && forked(job.barrier());
                // SAFETY: the child drops its copy, and the parent the original.
                drop(unsafe { std::ptr::read(&job) });
                refused && waits && job.progress() == 0 && job.process(1).is_some()
            });
            job.barrier().unwrap();
        });
    }
}

#[test]
fn a_child_that_uses_or_drops_active_messages_does_nothing_to_them() {
    for (rails, mode) in WAYS {
        let setup = |_| Setup::new(Handlers::new(), 4096);
        let mut config = config(rails, mode);
        config.am.handlers.set(AmHandlers::Progress);
        let mut jobs = crate::local_am(2, &config, setup).unwrap();
        let (other, job) = (jobs.pop().unwrap(), jobs.pop().unwrap());
        thread::scope(|s| {
            s.spawn(move || {
                let mut other = other.attach().unwrap();
                other.barrier().unwrap();
                other.barrier().unwrap();
            });
            let mut job = job.attach().unwrap();
            let client = job.client(4).unwrap();
            let work = Work::Short {
                to: 1,
                handler: 200,
                args: Args::default(),
            };
            job.barrier().unwrap();
            in_a_child(&format!("{rails}: another thread's client"), || {
                let mut token = Ticket::new();
                let refused = client.begin(&mut token, work.clone()) == Err(NotTaken::Closed);
                // SAFETY: the child drops its copy, and the parent the original.
                drop(unsafe { std::ptr::read(&client) });
                refused
            });
            in_a_child(&format!("{rails} {mode:?}: active messages"), || {
                let sends = forked(job.request_short(1, 200, &[])) && forked(job.barrier());
                let polls = job.progress() == 0 && job.leaving() == Leaving::No;
                // SAFETY: the child drops its copy, and the parent the original.
                drop(unsafe { std::ptr::read(&job) });
                sends && polls
            });
            if mode == Mode::Dedicated {
                in_a_child(&format!("{rails}: a conduit"), || {
                    let conduit = catch_unwind(AssertUnwindSafe(|| _ = job.conduit().poll()));
                    let text = conduit.unwrap_err().downcast::<String>();
                    text.is_ok_and(|text| text.contains("a child of fork"))
                });
            }
            job.barrier().unwrap();
        });
    }
}

#[test]
fn a_child_may_join_a_job_of_its_own() {
    let world = crate::Builder::new().without_environment().build().unwrap();
    in_a_child("a job of its own", || {
        let own = crate::Builder::new().without_environment().build();
        let Ok(own) = own else { return false };
        let (mut into, mine) = ([0; 2], Maker::this());
        own.send(0, 1, b"me").is_ok()
            && own.recv(0, 1, &mut into).is_ok()
            && &into == b"me"
            && forked(world.send(0, 1, b"not"))
            && mine.is_running()
    });
    world.send(0, 1, b"me").unwrap();
    world.recv(0, 1, &mut [0; 2]).unwrap();
}

#[test]
fn a_member_without_a_job_is_its_maker_s() {
    use doorbell_job::lobby::PmlMember;
    use doorbell_pml::Rank;

    let mut member = PmlMember::enter(config("shm", Mode::Inline)).unwrap();
    let mut other = PmlMember::enter(config("shm", Mode::Inline)).unwrap();
    let (own, theirs) = (member.address(0), other.address(0));
    let talk = |member: &mut PmlMember, other: &mut PmlMember| {
        let rank = member.resolve(&theirs).unwrap();
        member.pml().inject(rank, 1 << 15, 5, b"hello").unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while other
            .pml()
            .probe(doorbell_pml::Source::Any, 1 << 15, 5, 0)
            .is_none()
        {
            assert!(std::time::Instant::now() < until, "nothing arrived");
            member.progress();
            other.progress();
        }
        let found = other
            .pml()
            .claim(doorbell_pml::Source::Any, 1 << 15, 5, 0)
            .unwrap();
        other.pml().discard(found.message).unwrap();
        rank
    };
    let rank = talk(&mut member, &mut other);
    let mut members = Some((member, other));
    in_a_child("a member", || {
        let Some((member, _)) = &mut members else {
            return false;
        };
        let refused = matches!(member.resolve(&theirs), Err(Error::Forked))
            && matches!(member.resolve(&own), Err(Error::Forked))
            && matches!(member.here(), Err(Error::Forked));
        let quiet = member.progress() == 0 && member.poll() == 0 && member.arm(&mut |_| ());
        let apart = member.pml().inject(rank, 1 << 15, 5, b"hello").is_err()
            && member.pml().inject(Rank(0), 1 << 15, 5, b"to itself").is_ok();
        member.disarm();
        member.leave(rank);
        member.close(Duration::from_secs(1));
        drop(members.take());
        refused && quiet && apart
    });
    // The parent's copy, its peer and their connection are as before.
    let (mut member, mut other) = members.unwrap();
    talk(&mut member, &mut other);
    assert!(member.here().is_ok() && member.lost().is_none() && other.lost().is_none());
}

/// Ends a test that hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// How soon the end of a process must be noticed on a machine that may be busy.
const SOON: Duration = Duration::from_secs(5);

/// A process that is killed while a child of it lives.
struct Victim {
    pid: libc::pid_t,
    /// What it writes.
    pipe: std::io::PipeReader,
    child: libc::pid_t,
}

impl Victim {
    /// Starts one, which runs `work` with the pipe to write to, and then writes the id of a child of its own
    /// that sleeps.
    fn start(work: impl FnOnce(&mut std::io::PipeWriter)) -> Self {
        use std::io::Write as _;
        let (reader, mut writer) = std::io::pipe().unwrap();
        let pid = fork();
        if pid == 0 {
            let work = AssertUnwindSafe(|| {
                work(&mut writer);
                let child = fork();
                if child == 0 {
                    sleep();
                }
                writer.write_all(&child.to_ne_bytes()).unwrap();
            });
            if catch_unwind(work).is_err() {
                end(false);
            }
            sleep();
        }
        Self {
            pid,
            pipe: reader,
            child: 0,
        }
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        use std::io::Read as _;
        let mut bytes = [0; N];
        self.pipe.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Waits until its child sleeps, and kills it. Returns the time of that.
    fn kill(&mut self) -> std::time::Instant {
        self.child = libc::pid_t::from_ne_bytes(self.read());
        // SAFETY: a process of this test.
        assert_eq!(unsafe { libc::kill(self.pid, libc::SIGKILL) }, 0);
        std::time::Instant::now()
    }

    fn child_lives(&self) -> bool {
        // SAFETY: it sends nothing.
        self.child > 0 && unsafe { libc::kill(self.child, 0) } == 0
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        for pid in [self.pid, self.child].into_iter().filter(|pid| *pid > 0) {
            // SAFETY: processes of this test.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        // SAFETY: our own child.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// Sleeps until a signal ends this process: SIGALRM does in the end.
fn sleep() -> ! {
    loop {
        // SAFETY: only a system call.
        unsafe { libc::pause() };
    }
}

#[test]
fn the_death_of_a_rank_is_noticed_while_a_child_of_it_lives() {
    for mode in [Mode::Inline, Mode::Dedicated] {
        let root = format!("@doorbell-test-forked-{}-{mode:?}", std::process::id());
        let rank = |rank| {
            let builder = crate::Builder::new().without_environment().job(rank, 2, &root);
            let builder = builder.set("rails.list", "shm").set("wait.deadline", "60 s");
            builder
                .set(
                    "progress.mode",
                    if mode == Mode::Inline {
                        "inline"
                    } else {
                        "dedicated"
                    },
                )
                .build()
                .unwrap()
        };
        let mut victim = Victim::start(|_| {
            let world = rank(1);
            world.send(0, 1, b"here").unwrap();
            world.recv(0, 1, &mut [0; 4]).unwrap();
            std::mem::forget(world);
        });
        let world = rank(0);
        world.recv(1, 1, &mut [0; 4]).unwrap();
        world.send(1, 1, b"here").unwrap();
        let killed = victim.kill();
        let error = world.recv(1, 2, &mut [0; 4]).unwrap_err();
        let late = killed.elapsed();
        println!("{mode:?}: noticed after {late:?}");
        assert!(
            matches!(error, Error::PeerLost { peer: 1, .. }),
            "{mode:?}: {error}"
        );
        assert!(late < SOON && victim.child_lives(), "{mode:?}: {late:?}");
    }
}

#[test]
fn the_death_of_a_member_is_noticed_while_a_child_of_it_lives() {
    use std::io::Write as _;

    use doorbell_job::lobby::{Address, PmlMember};

    let enter = || PmlMember::enter(config("shm", Mode::Inline)).unwrap();
    let [mut met, mut caller, mut late_caller] = [enter(), enter(), enter()];
    let to = met.address(0);
    let begin = |member: &mut PmlMember, to: &Address| {
        let rank = member.resolve(to).unwrap();
        member.pml().inject(rank, 1 << 15, 5, b"hello").unwrap();
        member.progress();
        rank
    };
    let mut victim = Victim::start(|pipe| {
        let mut own = enter();
        let rank = begin(&mut own, &to);
        pipe.write_all(own.address(0).bytes()).unwrap();
        let mut met = None;
        // Until its message is there, and the line to the other's desk is closed.
        while met.is_none_or(|met: std::time::Instant| met.elapsed() < Duration::from_millis(300)) {
            own.progress();
            own.poll();
            if !own.pml().is_unmet(rank) {
                met.get_or_insert_with(std::time::Instant::now);
            }
        }
        std::mem::forget(own);
    });
    let address = Address::parse(&victim.read::<56>()).unwrap();
    let until = std::time::Instant::now() + LIMIT;
    while met
        .pml()
        .probe(doorbell_pml::Source::Any, 1 << 15, 5, 0)
        .is_none()
    {
        assert!(std::time::Instant::now() < until, "not met");
        met.progress();
        met.poll();
    }
    // It does not look at its desk any more: the call waits.
    begin(&mut caller, &address);
    for _ in 0..100 {
        caller.progress();
        met.progress();
    }
    assert!(caller.lost().is_none() && met.lost().is_none());
    let killed = victim.kill();
    for (member, what) in [
        (&mut met, "met"),
        (&mut caller, "a caller"),
        (&mut late_caller, "a later caller"),
    ] {
        if what == "a later caller" {
            begin(member, &address);
        }
        let began = killed.elapsed();
        while member.lost().is_none() {
            assert!(killed.elapsed() < began + SOON, "{what}: not noticed");
            member.progress();
            member.poll();
        }
        println!("{what}: noticed after {:?}", killed.elapsed() - began);
    }
    assert!(victim.child_lives());
}
