//! A job that is stopped as a whole, as by a freezer, a closed lid or a snapshot of its machine: the time in
//! which its ranks did not run does not count as their silence. The test program starts itself, once per
//! rank, and runs `child` there.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Marks this process as a rank.
const ROLE: &str = "DOORBELL_TEST_SUSPENDED_ROLE";
/// Less than the time for which the ranks are stopped, and more than they need otherwise.
const DEADLINE: &str = "8 s";
const STOPPED: Duration = Duration::from_secs(12);

/// A process that is killed when its handle is dropped.
struct Rank(Child);

impl Rank {
    fn start(rank: u32, root: &str, rails: &str, mode: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "suspended::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, "rank")
            .env("DOORBELL_RANK", rank.to_string())
            .env("DOORBELL_SIZE", "2")
            .env("DOORBELL_ROOT", root)
            .env("DOORBELL_RAILS", rails)
            .env("DOORBELL_PROGRESS", mode)
            .env("DOORBELL_DEADLINE", DEADLINE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the rank is connected to the other one.
    fn has_met(&mut self) {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        let met = lines.map_while(Result::ok).any(|line| line.contains("has met"));
        assert!(met, "a rank ended before it met the other one");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a started process does; without a role, this is no test.
#[test]
fn child() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let world = doorbell::init().unwrap();
    world.barrier().unwrap();
    // Written to stdout itself, since the test runner captures what `println!` prints.
    writeln!(std::io::stdout(), "rank {} has met", world.rank()).unwrap();
    let mut into = [0; 5];
    if world.rank() == 0 {
        // Until all jobs of the test have come to this point.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        world.recv(1, 1, &mut into).unwrap();
    } else {
        // Until the test sends a line.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        world.send(0, 1, b"awake").unwrap();
    }
}

#[test]
fn a_job_that_was_stopped_as_a_whole_goes_on() {
    let cases = [("shm", "inline"), ("udp:lo", "inline"), ("udp:lo", "dedicated")];
    let mut jobs = cases.map(|(rails, mode)| {
        let root = format!("@doorbell-suspended-{}-{rails}-{mode}", std::process::id());
        [0, 1].map(|rank| Rank::start(rank, &root, rails, mode))
    });
    jobs.iter_mut().flatten().for_each(Rank::has_met);
    for [zero, _] in &mut jobs {
        zero.0.stdin.as_mut().unwrap().write_all(b"wait\n").unwrap();
    }
    std::thread::sleep(Duration::from_secs(1));
    jobs.iter().flatten().for_each(|rank| rank.signal(Signal::STOP));
    std::thread::sleep(STOPPED);
    jobs.iter().flatten().for_each(|rank| rank.signal(Signal::CONT));
    for ([mut zero, mut one], case) in jobs.into_iter().zip(cases) {
        drop(one.0.stdin.take());
        for rank in [&mut zero, &mut one] {
            let status = rank.0.wait().unwrap();
            assert!(status.success(), "{case:?}: {status}: its own message is above");
        }
    }
}
