//! Limits of the system and what a container refuses: an error that names the limit, or a job that works
//! without; and the changes that the launcher makes for itself are not inherited.

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};

use doorbell_fabric::process::spawn;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::common::{doorbell, sentence};
use doorbell_testing::netns::Lab;

/// The program in a shell's line, as `$0`.
fn in_shell(line: &str) -> Output {
    let mut command = Command::new("sh");
    command
        .args(["-c", line])
        .arg(assert_cmd::cargo::cargo_bin("doorbell"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DOORBELL_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).output().unwrap()
}

/// The system answers a file that is too long with SIGXFSZ, and so a shared memory object.
#[test]
fn a_limit_of_file_sizes_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out").display().to_string();
    for (limit, words, code) in [
        (1, "info", 0),
        (1, "info --json", 0),
        (1, "doctor shm", 1),
        (1, "pingpong --sizes 8 --samples 10 --no-reference", 3),
        (1, "pingpong --rail shm --sizes 8 --samples 10 --no-reference", 3),
        (
            400,
            "pingpong --rail shm --sizes 8 --samples 10 --no-reference",
            3,
        ),
        (
            1,
            "pingpong --rail udp:lo --sizes 8 --samples 10 --no-reference",
            6,
        ),
    ] {
        let out = in_shell(&format!("ulimit -f {limit}; exec \"$0\" {words}"));
        let all = sentence(&[&out.stdout[..], &out.stderr].concat());
        assert_eq!(out.status.code(), Some(code), "{words}: {all}");
        assert!(all.contains("ulimit -f"), "{words}: {all}");
    }
    // Reports and the standard output are files, too.
    let measured =
        "DOORBELL_COUNTERS=off exec \"$0\" pingpong --rail udp:lo --sizes 8 --samples 10 --no-reference";
    for line in [
        format!("exec \"$0\" info --json > {file}"),
        format!("{measured} --json {file}"),
    ] {
        let out = in_shell(&format!("ulimit -f 1; {line}"));
        let said = sentence(&out.stderr);
        assert_eq!(out.status.code(), Some(6), "{line}: {said}");
        assert!(
            said.contains("could not write") && said.contains("ulimit -f"),
            "{line}: {said}"
        );
    }
}

#[test]
fn a_rank_that_a_limit_ends_is_reported_with_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("out").display().to_string();
    let script = format!("ulimit -f 1; exec dd if=/dev/zero of={to} count=9");
    let out = in_shell(&format!("exec \"$0\" run -n 1 -- sh -c '{script}'"));
    let said = sentence(&out.stderr);
    assert_eq!(out.status.code(), Some(128 + 25), "{said}");
    assert!(
        said.contains("rank 0 was killed by SIGXFSZ (25)") && said.contains("ulimit -f"),
        "{said}"
    );
}

/// Runs the program where a call is refused, as old profiles of containers do.
fn without(call: i64, words: &[&str]) -> Output {
    let filter = SeccompFilter::new(
        [(call, Vec::new())].into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc_eperm()),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let filter: BpfProgram = filter.unwrap().try_into().unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("doorbell"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DOORBELL_") {
            command.env_remove(name);
        }
    }
    command.args(words).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // A filter is its thread's, and inherited.
    let started = std::thread::spawn(move || {
        apply_filter(&filter).unwrap();
        spawn(&mut command).unwrap()
    });
    started.join().unwrap().wait_with_output().unwrap()
}

fn libc_eperm() -> u32 {
    rustix::io::Errno::PERM.raw_os_error().unsigned_abs()
}

/// The numbers of x86-64; those of later calls are everywhere the same.
const SCHED_SETAFFINITY: i64 = if cfg!(target_arch = "x86_64") { 203 } else { 122 };
const PIDFD_OPEN: i64 = 434;
const CLONE3: i64 = 435;

const PINGPONG: [&str; 6] = ["pingpong", "--sizes", "8", "--samples", "10", "--no-reference"];

#[test]
fn a_job_does_without_calls_that_are_refused() {
    for (call, said) in [
        (PIDFD_OPEN, Some("pidfd_open is refused")),
        // Nothing is lost without it.
        (CLONE3, None),
        (SCHED_SETAFFINITY, Some("sched_setaffinity is refused")),
    ] {
        let run = ["run", "-n", "2", "--", "sh", "-c", "echo $DOORBELL_RANK"];
        for words in [&run[..], &PINGPONG] {
            let out = without(call, words);
            let all = sentence(&out.stderr);
            assert_eq!(out.status.code(), Some(0), "{call} {words:?}: {all}");
            let times = said.map_or(1, |said| all.matches(said).count());
            assert_eq!(times, 1, "{call} {words:?}: {all}");
            assert!(!all.contains("ulimit"), "{call}: {all}");
        }
    }
}

#[test]
fn ends_and_failures_are_seen_without_descriptors_of_processes() {
    let script = "test $DOORBELL_RANK = 1 && exit 7; exec sleep 100";
    let out = without(PIDFD_OPEN, &["run", "-n", "3", "--", "sh", "-c", script]);
    let said = sentence(&out.stderr);
    assert_eq!(out.status.code(), Some(7), "{said}");
    assert!(said.contains("rank 1 ended with exit status 7"), "{said}");
    let hosts = [
        "run",
        "-n",
        "2",
        "--hosts",
        "localhost",
        "--",
        "sh",
        "-c",
        "test $PMI_RANK = 0 || exit 8",
    ];
    let out = without(PIDFD_OPEN, &hosts);
    assert_eq!(out.status.code(), Some(8), "{}", sentence(&out.stderr));
}

/// A feature that was requested by name and is refused is an error, with the advice that belongs to the
/// reason.
#[test]
fn what_was_requested_and_is_refused_is_an_error_with_its_own_advice() {
    for (call, words) in [
        (
            SCHED_SETAFFINITY,
            &["run", "-n", "1", "--bind", "core", "--", "true"][..],
        ),
        (
            SCHED_SETAFFINITY,
            &["pingpong", "--cores", "0,0", "--sizes", "8", "--samples", "10"],
        ),
        // Between hosts, the control plane has a thread of its own.
        (CLONE3, &["run", "-n", "1", "--hosts", "localhost", "--", "true"]),
    ] {
        let out = without(call, words);
        let said = sentence(&out.stderr);
        assert_eq!(out.status.code(), Some(6), "{words:?}: {said}");
        assert!(
            said.contains("seccomp") && !said.contains("ulimit"),
            "{words:?}: {said}"
        );
    }
}

/// What a rank has of its launcher's process: limits, priority, mask of files, signals.
const STATE: &str = "ulimit -Sn; ulimit -Hn; nice; umask; grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status";

/// Returns that state for a process outside of a job.
fn state(begun: &str) -> String {
    let out = Command::new("sh")
        .args(["-c", &format!("{begun} exec sh -c \"{STATE}\"")])
        .output()
        .unwrap();
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn ranks_inherit_what_the_launcher_was_started_with() {
    let begun = "ulimit -Sn 300; umask 027; trap '' USR2;";
    let expected = state(begun);
    for words in ["run -n 1", "run -n 1 --hosts localhost"] {
        let line = format!("{begun} exec nice -n 3 \"$0\" {words} --no-prefix -- sh -c \"{STATE}\"");
        let out = in_shell(&line);
        assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
        let nice = format!(
            "{}\n",
            expected.lines().nth(2).unwrap().parse::<i32>().unwrap() + 3
        );
        let at = expected
            .match_indices('\n')
            .map(|(at, _)| at + 1)
            .collect::<Vec<_>>();
        let expected = format!("{}{nice}{}", &expected[..at[1]], &expected[at[2]..]);
        assert_eq!(String::from_utf8_lossy(&out.stdout), expected, "{words}");
    }
}

#[test]
fn daemons_behind_a_remote_shell_have_the_limit_of_its_session() {
    let Some(lab) = Lab::pair(
        "limits::daemons_behind_a_remote_shell_have_the_limit_of_its_session",
        1500,
    ) else {
        return;
    };
    let (one, two) = (lab.name(0), lab.name(1));
    let line = format!(
        "ulimit -Sn 300; exec ip netns exec {one} \"$0\" run -n 2 --no-prefix --rsh 'ip netns exec' --hosts {one},{two} \
         -- sh -c 'ulimit -Sn'"
    );
    let out = in_shell(&line);
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        "300\n300\n",
        "{}",
        sentence(&out.stderr)
    );
}

#[test]
fn the_environment_of_a_rank_has_nothing_of_the_launcher_s_own() {
    let names = |text: &[u8]| -> BTreeSet<String> {
        let text = String::from_utf8_lossy(text).into_owned();
        let names = text
            .split('\0')
            .filter_map(|one| Some(one.split_once('=')?.0.to_owned()));
        names.collect()
    };
    let own = names(
        &doorbell()
            .args(["run", "-n", "1", "--no-prefix", "--", "env", "-0"])
            .output()
            .unwrap()
            .stdout,
    );
    let mut before: BTreeSet<String> = std::env::vars_os()
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .collect();
    before.insert("COLUMNS".to_owned());
    let added: Vec<&String> = own.difference(&before).collect();
    let expected = |name: &str| {
        ["DOORBELL_", "PMI_", "MPI_LOCAL"]
            .iter()
            .any(|begin| name.starts_with(begin))
    };
    assert!(
        !added.is_empty() && added.iter().all(|name| expected(name)),
        "{added:?}"
    );
}
