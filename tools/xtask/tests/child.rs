//! The processes that a command starts are all ended. The test has a program of its own, because it takes
//! over all children and the signals of its process.
#![forbid(unsafe_code)]

use std::io::Read;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xtask::child::{Ended, Lane, Nursery};
use xtask::error::Error;

/// The sweep takes every child of this process, so these tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn shell(script: &str, bound: Duration) -> (Ended, String, Duration, MutexGuard<'static, ()>) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let file = tempfile::NamedTempFile::new().unwrap();
    let nursery = Nursery::new().unwrap();
    let began = Instant::now();
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let ended = nursery
        .run(&mut command, file.as_file(), bound, &mut |_| {})
        .unwrap();
    let mut text = String::new();
    file.reopen().unwrap().read_to_string(&mut text).unwrap();
    (ended, text, began.elapsed(), turn)
}

#[test]
fn the_status_and_both_outputs_arrive() {
    let (ended, text, _, _turn) = shell("echo out; echo err >&2; exit 3", Duration::from_secs(20));
    assert!(
        matches!(ended, Ended::Exit(status) if status.code() == Some(3)),
        "{ended:?}"
    );
    assert_eq!(text, "out\nerr\n");
}

#[test]
fn at_the_limit_the_whole_group_dies() {
    let (ended, text, took, _turn) = shell("sleep 3017 & echo $!; wait", Duration::from_millis(400));
    assert!(matches!(ended, Ended::TimedOut), "{ended:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(is_gone(&text), "sleep {text} is still there");
}

#[test]
fn a_process_left_behind_in_another_session_dies_too() {
    let (ended, text, _, _turn) = shell(
        "setsid sh -c 'echo $$; exec sleep 3018' & sleep 0.3",
        Duration::from_secs(20),
    );
    assert!(
        matches!(ended, Ended::Exit(status) if status.success()),
        "{ended:?}"
    );
    assert!(is_gone(&text), "sleep {text} is still there");
}

#[test]
fn an_interrupt_ends_the_child_and_is_reported() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let nursery = Nursery::new().unwrap();
    let us = rustix::process::getpid();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        rustix::process::kill_process(us, rustix::process::Signal::TERM).unwrap();
    });
    let log = tempfile::tempfile().unwrap();
    let mut command = Command::new("sleep");
    command.arg("3019");
    let outcome = nursery.run(&mut command, &log, Duration::from_secs(30), &mut |_| {});
    assert!(matches!(outcome, Err(Error::Interrupted(_))), "{outcome:?}");
}

#[test]
fn one_beside_outlives_the_others_and_leaves_nothing_either() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let nursery = Nursery::new().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let limit = Duration::from_secs(60);
    let mut aside = Command::new("sh");
    aside.args(["-c", "read word <\"$0\"; sleep 3020 & echo $!; exit 4"]);
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("go");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    aside.arg(&pipe);
    let aside = nursery.beside(&mut aside, file.as_file(), limit).unwrap();
    let log = tempfile::tempfile().unwrap();
    for script in ["exit 0", "sleep 3021 & exit 0"] {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let ended = nursery.run(&mut command, &log, limit, &mut |_| {}).unwrap();
        assert!(
            matches!(ended, Ended::Exit(status) if status.success()),
            "{ended:?}"
        );
    }
    // Only one that is alive still reads this.
    std::fs::write(&pipe, "go\n").unwrap();
    let ended = aside.wait(&mut |_| {}).unwrap();
    assert!(
        matches!(ended, Ended::Exit(status) if status.code() == Some(4)),
        "{ended:?}"
    );
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert!(is_gone(&text), "sleep {text} is still there");
}

#[test]
fn one_beside_without_a_waiter_is_ended() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let nursery = Nursery::new().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$; exec sleep 3022"]);
    let aside = nursery
        .beside(&mut command, file.as_file(), Duration::from_secs(60))
        .unwrap();
    let said = || std::fs::read_to_string(file.path()).unwrap();
    while said().is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(aside);
    assert!(is_gone(&said()), "sleep {} is still there", said());
}

fn lane(script: &str, file: &tempfile::NamedTempFile) -> Lane {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Lane {
        command,
        log: file.reopen().unwrap(),
        nice: 1,
    }
}

#[test]
fn lanes_run_side_by_side_and_what_one_leaves_stays_until_the_last_ends() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let nursery = Nursery::new().unwrap();
    let files = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("go");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // The first leaves a process to us; the second ends when it reads a line, which is written
    // once the first has ended.
    let first =
        "setsid sh -c 'echo $$; exec sleep 3023' & while [ ! -s \"$0\" ]; do sleep 0.05; done; exit 3";
    let mut first = lane(first, &files[0]);
    first.command.arg(files[0].path());
    let mut second = lane("read word < \"$0\"; exit 4", &files[1]);
    second.command.arg(&pipe);
    let mut one_left = false;
    let ended = nursery.together(vec![first, second], Duration::from_secs(60), &mut |running| {
        if running == 1 && !one_left {
            one_left = true;
            let left = std::fs::read_to_string(files[0].path()).unwrap();
            assert!(
                !is_gone(&left),
                "sleep {left} is what another lane may still need"
            );
            std::fs::write(&pipe, "go\n").unwrap();
        }
    });
    let codes: Vec<_> = ended
        .unwrap()
        .iter()
        .map(|ended| match ended {
            Ended::Exit(status) => status.code(),
            Ended::TimedOut => None,
        })
        .collect();
    assert_eq!((codes, one_left), (vec![Some(3), Some(4)], true));
    let left = std::fs::read_to_string(files[0].path()).unwrap();
    assert!(is_gone(&left), "sleep {left} is still there");
}

#[test]
fn at_the_limit_every_lane_dies() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let nursery = Nursery::new().unwrap();
    let files = [(); 3].map(|()| tempfile::NamedTempFile::new().unwrap());
    let scripts = ["echo $$; exec sleep 3024", "exit 0", "echo $$; exec sleep 3025"];
    let lanes = scripts
        .iter()
        .zip(&files)
        .map(|(script, file)| lane(script, file));
    let ended = nursery
        .together(lanes.collect(), Duration::from_secs(2), &mut |_| {})
        .unwrap();
    assert!(
        matches!(ended[..], [Ended::TimedOut, Ended::Exit(_), Ended::TimedOut]),
        "{ended:?}"
    );
    for file in [&files[0], &files[2]] {
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(is_gone(&text), "sleep {text} is still there");
    }
}

fn is_gone(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.is_empty() || !stat.contains("(sleep)")
}

#[test]
fn lanes_that_are_led_end_soon_after_the_first() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let nursery = Nursery::new().unwrap();
    let files = [(); 3].map(|()| tempfile::NamedTempFile::new().unwrap());
    let lanes = ["sleep 0.2; exit 3", "sleep 0.4; exit 4", "sleep 3024"];
    let lanes = lanes
        .iter()
        .zip(&files)
        .map(|(script, file)| lane(script, file))
        .collect();
    let began = Instant::now();
    let bounds = (Duration::from_secs(600), Duration::from_secs(2));
    let ended = nursery.led(lanes, bounds, &mut |_| {}).unwrap();
    let codes = ended.iter().map(|ended| match ended {
        Ended::Exit(status) => status.code(),
        Ended::TimedOut => None,
    });
    assert_eq!(codes.collect::<Vec<_>>(), [Some(3), Some(4), None]);
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "the third is not waited for"
    );
}

/// A command in the background of a script ignores SIGINT and SIGQUIT, and one under nohup SIGHUP. What it
/// starts is tested by these.
#[test]
fn what_is_ignored_has_its_effect_in_children() {
    const ROLE: &str = "XTASK_TEST_IGNORES";
    if std::env::var_os(ROLE).is_some() {
        let (ended, text, _, _turn) = shell("kill -INT $$; echo ignored", Duration::from_secs(20));
        println!("\nENDED {ended:?} {text:?}");
        return;
    }
    // The sweeps of other tests would end what is started here.
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new("sh")
        .args(["-c", "trap '' INT QUIT HUP; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "what_is_ignored_has_its_effect_in_children",
            "--nocapture",
        ])
        .env(ROLE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text
        .lines()
        .find(|line| line.starts_with("ENDED"))
        .unwrap_or(&text);
    let interrupted = "ENDED Exit(ExitStatus(unix_wait_status(2))) \"\"";
    assert_eq!(line, interrupted);
}
