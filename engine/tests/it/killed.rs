//! A rank that is killed: those that wait for it notice in time and name it, and nothing of it is left
//! behind.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use doorbell::{Builder, World};

/// Names the part that a started process plays.
const ROLE: &str = "DOORBELL_TEST_ROLE";
/// The bound within which the death of a local peer is noticed.
pub(crate) const BOUND: Duration = Duration::from_millis(100);
/// The number of tries, of which the median counts: on a busy machine, a single one may be late by any number
/// of time slices.
pub(crate) const TRIES: usize = 9;

/// The clock that all processes of the host share.
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The names of our bound sockets, of the whole host or of this process.
fn sockets(of_this_process: bool) -> BTreeSet<String> {
    let ours: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            let link = link.to_str()?.strip_prefix("socket:[")?;
            Some(link.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let named = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(6);
        let (inode, name) = (words.next()?.to_owned(), words.next()?);
        (!of_this_process || ours.contains(&inode)).then(|| name.to_owned())
    });
    named.filter(|name| name.contains("doorbell")).collect()
}

fn shared_memory_files() -> BTreeSet<String> {
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("doorbell")).collect()
}

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let world = match role.as_str() {
        // Started as by `doorbell run`: described by its environment.
        "launched" => doorbell::init().unwrap(),
        // Started without a launcher: described by its role.
        _ => {
            let mut words = role.split_whitespace();
            let mut next = || words.next().unwrap();
            let (rank, root, mode, wait) = (next().parse().unwrap(), next(), next(), next());
            let builder = match words.next() {
                Some(rails) => Builder::new().set("rails.list", rails),
                None => Builder::new(),
            };
            builder
                .without_environment()
                .job(rank, 2, root)
                .set("progress.mode", mode)
                .set("progress.wait", wait)
                .build()
                .unwrap()
        }
    };
    wait_for_the_other(&world);
}

fn wait_for_the_other(world: &World) {
    let other = 1 - world.rank();
    // Both directions are connected.
    for tag in 0..3 {
        world.send(other, tag, b"here").unwrap();
        world.recv(other, tag, &mut [0; 4]).unwrap();
    }
    println!(
        "\nREADY {}",
        sockets(true).into_iter().collect::<Vec<_>>().join(" ")
    );
    std::io::stdout().flush().unwrap();
    let error = world.recv(other, 99, &mut [0; 8]).unwrap_err();
    println!("NOTICED {} {error}", now().as_nanos());
    // No path to it is shown as up.
    let paths = world.paths(other).unwrap();
    assert!(
        !paths.is_empty() && paths.iter().all(|way| way.state == "down" && !way.carries),
        "{paths:?}"
    );
    std::io::stdout().flush().unwrap();
    std::process::exit(error.exit_code().into());
}

/// How a job is started, and how its ranks wait.
#[derive(Clone, Copy, Debug)]
struct Case {
    launched: bool,
    mode: &'static str,
    wait: &'static str,
    /// The named rails; empty: the default choice.
    rails: &'static str,
}

/// A rank, with its output. Dropped, it leaves no process behind.
struct Rank {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rank {
    fn start(rank: u32, root: &str, case: Case) -> Self {
        let Case {
            launched,
            mode,
            wait,
            rails,
        } = case;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "killed::child", "--nocapture", "--test-threads=1"]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DOORBELL_") {
                command.env_remove(name);
            }
        }
        if launched {
            command
                .env(ROLE, "launched")
                .env("DOORBELL_RANK", rank.to_string())
                .env("DOORBELL_SIZE", "2")
                .env("DOORBELL_ROOT", root)
                .env("DOORBELL_PROGRESS", mode)
                .env("DOORBELL_WAIT", wait);
            if !rails.is_empty() {
                command.env("DOORBELL_RAILS", rails);
            }
        } else {
            command.env(ROLE, format!("{rank} {root} {mode} {wait} {rails}"));
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Returns the rest of the first line that begins with `word`.
    fn line_after(&mut self, word: &str) -> String {
        let found = self.lines.find_map(|line| {
            let line = line.unwrap();
            line.strip_prefix(word).map(|rest| rest.trim().to_owned())
        });
        found.unwrap_or_else(|| panic!("a rank ended without {word}"))
    }
}

/// Kills rank `victim`, and returns how long the other one took to notice.
fn kill_one(victim: usize, case: Case) -> Duration {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let job = JOBS.fetch_add(1, Ordering::Relaxed);
    let root = format!("@doorbell-test-killed-{}-{job}", std::process::id());
    let mut ranks = [0, 1].map(|rank| Rank::start(rank, &root, case));
    let mut names: BTreeSet<String> = BTreeSet::from([root]);
    for rank in &mut ranks {
        names.extend(rank.line_after("READY").split_whitespace().map(str::to_owned));
    }
    assert!(names.len() >= 3, "each rail listens under a name: {names:?}");
    assert!(sockets(false).len() >= 2);
    // Time for both to fall into the sleep that they are configured for.
    std::thread::sleep(Duration::from_millis(30));
    let killed_at = now();
    ranks[victim].child.kill().unwrap();
    assert_eq!(ranks[victim].child.wait().unwrap().signal(), Some(9));
    let survivor = &mut ranks[1 - victim];
    let noticed = survivor.line_after("NOTICED");
    let (at, text) = noticed.split_once(' ').unwrap();
    assert!(
        text.starts_with(&format!("rank {victim} is lost")),
        "the killed rank is not named: {text}"
    );
    // The status of a lost peer.
    assert_eq!(survivor.child.wait().unwrap().code(), Some(4), "{text}");
    let until = Instant::now() + Duration::from_secs(5);
    while names.iter().any(|name| sockets(false).contains(name)) {
        assert!(Instant::now() < until, "sockets of {names:?} are left");
        std::thread::sleep(Duration::from_millis(10));
    }
    Duration::from_nanos(at.parse().unwrap()).saturating_sub(killed_at)
}

#[test]
fn a_killed_rank_is_noticed_within_the_bound_and_leaves_nothing() {
    let files = shared_memory_files();
    let both = "shm,udp:lo";
    let cases = [
        (true, "inline", "balanced", ""),
        (true, "inline", "sleep", ""),
        (true, "dedicated", "balanced", ""),
        (false, "inline", "balanced", ""),
        (false, "inline", "lowest-latency", ""),
        // What shm reports of a process counts for its other rails, too.
        (true, "inline", "balanced", both),
        (false, "dedicated", "balanced", both),
    ];
    for (launched, mode, wait, rails) in cases {
        let case = Case {
            launched,
            mode,
            wait,
            rails,
        };
        let mut noticed: Vec<Duration> = (0..TRIES).map(|try_| kill_one(try_ % 2, case)).collect();
        noticed.sort();
        println!("{case:?}: {noticed:?}");
        let median = noticed[TRIES / 2];
        assert!(
            median <= BOUND,
            "{case:?}: noticed after {median:?} ({noticed:?})"
        );
    }
    assert_eq!(shared_memory_files(), files);
}
