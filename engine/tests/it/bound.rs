//! The cores of both threads of each rank, as `/proc` shows them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::processes::{ROLE, start_test};
use doorbell::config::Mode;
use doorbell::fabric::cores::{CoreSet, allowed};
use doorbell_testing::skipped;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};

/// Two cores that this process may use, for a test.
pub(crate) fn two_cores(test: &str) -> Option<[usize; 2]> {
    let cores = allowed().to_vec();
    match cores[..] {
        [one, two, ..] => Some([one, two]),
        _ => {
            skipped(test, "one core: two threads of a rank have to share it");
            None
        }
    }
}

/// The number and the cores of the thread of this process that makes progress for a rank.
pub(crate) fn progress_thread(rank: u32) -> (i32, CoreSet) {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |thread: std::io::Result<std::fs::DirEntry>| {
        let folder = thread.unwrap().path();
        let name = std::fs::read_to_string(folder.join("comm")).ok()?;
        let number = folder.file_name()?.to_str()?.parse().ok()?;
        (name.trim() == format!("doorbell-{rank}")).then(|| (number, cores_in(&folder.join("status"))))
    };
    threads
        .into_iter()
        .find_map(of)
        .expect("there is a progress thread")
}

fn cores_in(status: &std::path::Path) -> CoreSet {
    let text = std::fs::read_to_string(status).unwrap();
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    CoreSet::parse(list.unwrap().trim()).unwrap()
}

pub(crate) fn own_cores() -> CoreSet {
    cores_in(std::path::Path::new("/proc/thread-self/status"))
}

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let before = own_cores();
    let world = doorbell::init().unwrap();
    let rank = world.rank();
    let (thread, progress) = progress_thread(rank);
    match role.as_str() {
        // The cores of own and progress thread of each rank: `0/1;1/0`.
        "placed" => {
            let wanted = std::env::var("WANTED").unwrap();
            let wanted: BTreeMap<u32, &str> = (0..).zip(wanted.split(';')).collect();
            assert_eq!(format!("{}/{progress}", own_cores()), wanted[&rank]);
            assert_eq!(world.binding().unwrap().progress, progress.only());
            world.barrier().unwrap();
            world.close();
            assert_eq!(
                own_cores(),
                before,
                "without the world, the thread has its cores back"
            );
        }
        "moved" => {
            let mut all = CpuSet::new();
            before.iter().for_each(|core| all.set(core));
            sched_setaffinity(Pid::from_raw(thread), &all).unwrap();
            let deadline = Instant::now() + Duration::from_secs(30);
            let lost = loop {
                // The thread looks while it works, too.
                world.barrier().unwrap();
                match world.binding().unwrap().shares {
                    Some(lost) => break lost,
                    None => assert!(Instant::now() < deadline, "it was not noticed"),
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            let bound = format!("bound to core {progress} and now may use cores {before}");
            assert!(lost.contains(&bound) && lost.contains("taskset"), "{lost}");
        }
        other => panic!("there is no role {other}"),
    }
}

fn placed(size: u32, core: &str, wanted: &str) {
    let more = [("DOORBELL_PROGRESS_CORE", core), ("WANTED", wanted)];
    start_test("bound::child", "placed", size, Mode::Dedicated, &more).succeeds();
}

#[test]
fn own_and_progress_thread_have_different_cores() {
    let Some([one, two]) = two_cores("own_and_progress_thread_have_different_cores") else {
        return;
    };
    if allowed().len() == 2 {
        placed(1, "next", &format!("{one}/{two}"));
        // The progress thread of each beside the other's own thread, by the ranks of the host.
        placed(2, &format!("{two},{one}"), &format!("{one}/{two};{two}/{one}"));
    }
    let own = allowed().without(&CoreSet::from_iter([two]));
    let topology = doorbell::fabric::cores::Topology::read();
    if !topology.siblings(two).contains(one) {
        let own = own.without(&topology.siblings(two));
        placed(1, &two.to_string(), &format!("{own}/{two}"));
    }
}

#[test]
fn a_progress_thread_that_is_moved_notices() {
    if two_cores("a_progress_thread_that_is_moved_notices").is_some() {
        let core = [("DOORBELL_PROGRESS_CORE", "next")];
        start_test("bound::child", "moved", 1, Mode::Dedicated, &core).succeeds();
    }
}
