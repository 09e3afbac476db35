//! Ranks that a running job starts and joins: `tools/examples/loop_spawn.rs` under each launcher.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::launchers::{
    self, Launcher, MARK, hydra, hydra_2, loop_spawn, marked, on_path, open_mpi, run, text,
};
use crate::run_hosts;
use doorbell_testing::netns::Lab;
use doorbell_testing::skipped;

/// Longer than any job here takes to end.
const LIMIT: Duration = Duration::from_secs(120);
/// What a rank may hold more after many rounds than after the first of them, in KiB: far less than one round
/// takes.
const GROWTH: i64 = 2048;

/// Our own launcher on this host.
fn ours() -> Launcher {
    Launcher {
        words: vec![env!("CARGO_BIN_EXE_doorbell"), "run", "--no-prefix"],
        variables: Vec::new(),
        rank: "PMI_RANK",
        kind: "doorbell",
    }
}

/// A job of the example, with what marks its processes.
struct Marked {
    command: Command,
    mark: String,
    scratch: tempfile::TempDir,
}

impl Marked {
    fn of(make: impl FnOnce(&std::path::Path) -> Command) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let mark = scratch.path().display().to_string();
        let mut command = make(scratch.path());
        command.env(MARK, &mark).stdin(Stdio::null());
        Self {
            command,
            mark,
            scratch,
        }
    }

    fn under(launcher: &Launcher, ranks: u32, words: &[&str]) -> Self {
        Self::of(|scratch| {
            let mut command = launchers::job(launcher, ranks, scratch);
            // What is started by others takes the rail from the same variable.
            command.arg(loop_spawn()).args(words).env("DOORBELL_RAILS", "shm");
            command
        })
    }

    fn alone(words: &[&str]) -> Self {
        Self::of(|_| {
            let mut command = Command::new(loop_spawn());
            for (name, _) in std::env::vars_os() {
                if name.to_string_lossy().starts_with("DOORBELL_") {
                    command.env_remove(name);
                }
            }
            command.args(words);
            command
        })
    }

    /// Runs it to its good end: what it wrote, line by line, in order.
    fn lines(self) -> Vec<String> {
        let ended = run(self.command);
        assert!(
            ended.status.success(),
            "{}{}",
            text(&ended.stdout),
            text(&ended.stderr)
        );
        nothing_is_left(&self.mark);
        assert_eq!(
            std::fs::read_dir(self.scratch.path()).unwrap().count(),
            0,
            "files are left"
        );
        let mut lines: Vec<String> = text(&ended.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

fn nothing_is_left(mark: &str) {
    let until = Instant::now() + LIMIT;
    while !marked(mark, "PMI_RANK").is_empty() {
        assert!(Instant::now() < until, "{:?} is left", marked(mark, "PMI_RANK"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Every old rank reports that all rounds went well, and holds no more descriptors than before.
pub(crate) fn holds_no_more(lines: &[String], ranks: u32, rounds: u32) {
    assert_eq!(lines.len(), ranks as usize, "{lines:?}");
    for (rank, line) in lines.iter().enumerate() {
        let head = format!("rank {rank} of {ranks}: {rounds} rounds, descriptors ");
        let numbers = line.strip_prefix(&head).unwrap_or_else(|| panic!("{line}"));
        let numbers: Vec<i64> = numbers
            .split(|one: char| !one.is_ascii_digit())
            .filter_map(|number| number.parse().ok())
            .collect();
        let [before, after, kib, kib_after] = numbers[..] else {
            panic!("{line}")
        };
        assert_eq!(before, after, "{line}");
        assert!(kib_after - kib < GROWTH, "{line}");
    }
}

#[test]
fn a_hundred_rounds_leave_nothing_behind() {
    let lines = Marked::under(&ours(), 2, &["--rounds", "100"]).lines();
    holds_no_more(&lines, 2, 100);
}

#[test]
fn a_world_that_has_grown_grows_again_with_all_its_ranks() {
    for (job, first) in [
        (Marked::under(&ours(), 2, &["--grow", "5"]), 2),
        (Marked::alone(&["--grow", "4"]), 1),
    ] {
        let size = if first == 2 { 5 } else { 4 };
        let expected: Vec<String> = (0..size)
            // A rank is in the world that it came to, and in all later ones.
            .map(|rank: u32| format!("rank {rank} of {size}: {} worlds", size - rank.max(first - 1)))
            .collect();
        assert_eq!(job.lines(), expected);
    }
}

#[test]
fn more_ranks_than_there_were_join_one_that_is_alone() {
    let lines = Marked::alone(&["--rounds", "10", "--ranks", "3"]).lines();
    holds_no_more(&lines, 1, 10);
}

#[test]
fn ranks_are_started_by_hydra() {
    if let Some(why) = launchers::lacking() {
        return skipped("ranks_are_started_by_hydra", &why);
    }
    for launcher in [hydra(), hydra_2()] {
        let lines = Marked::under(&launcher, 2, &["--rounds", "10"]).lines();
        holds_no_more(&lines, 2, 10);
    }
}

#[test]
fn ranks_are_started_by_mpirun() {
    if let Some(why) = launchers::lacking() {
        return skipped("ranks_are_started_by_mpirun", &why);
    }
    let lines = Marked::under(&open_mpi(), 2, &["--rounds", "10"]).lines();
    holds_no_more(&lines, 2, 10);
    // For a program that does not exist, mpirun would end the job.
    let said = refused(|words| Marked::under(&open_mpi(), 2, words), "missing", 2);
    assert!(said.contains("there is no program"), "{said}");
}

/// The lines of PMI-1 alone, as MPICH's clients send them: no rank uses doorbell.
#[test]
fn any_client_of_pmi_1_has_processes_started() {
    // Descriptors above 9 are beyond other shells.
    if !on_path("bash") {
        return skipped(
            "any_client_of_pmi_1_has_processes_started",
            "package bash: bash not found",
        );
    }
    // The new ones finalize without a barrier before, which is no failure.
    let script = r#"
call() { printf '%b\n' "$1" >&$PMI_FD; read -r answer <&$PMI_FD; }
call 'cmd=init pmi_version=1 pmi_subversion=1'
call 'cmd=get_my_kvsname'; name=${answer##*=}
if test -z "$PMI_SPAWNED"; then
    for round in 1 2; do
        call "mcmd=spawn\nnprocs=2\nexecname=bash\ntotspawns=1\nspawnssofar=1\narg1=-c\narg2=$1\nargcnt=2\npreput_num=1\npreput_key_0=k\npreput_val_0=v$round\nendcmd"
        echo "$answer"
    done
else
    call "cmd=get kvsname=$name key=k"
    echo "$PMI_RANK of $PMI_SIZE: $answer"
fi
call 'cmd=finalize'
"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("client");
    std::fs::write(&path, script).unwrap();
    let path = path.display().to_string();
    let job = Marked::of(|scratch| {
        let mut command = launchers::job(&ours(), 1, scratch);
        command.args(["bash", &path, &format!(". {path}")]);
        command
    });
    let value = |rank, round| format!("{rank} of 2: cmd=get_result rc=0 msg=success value=v{round}");
    let expected = [value(0, 1), value(0, 2), value(1, 1), value(1, 2)];
    let expected: Vec<String> = expected
        .into_iter()
        .chain(vec!["cmd=spawn_result rc=0".to_owned(); 2])
        .collect();
    assert_eq!(job.lines(), expected);
}

/// A launcher that starts no more ranks reports that, and what to do.
pub(crate) fn starts_no_more(launcher: &Launcher) {
    let job = Marked::under(launcher, 2, &["--rounds", "1"]);
    let ended = run(job.command);
    assert!(!ended.status.success(), "{}", text(&ended.stdout));
    let said = text(&ended.stderr);
    assert!(
        said.contains("cannot start more ranks of a running job: start the job with `doorbell run`"),
        "{said}"
    );
    nothing_is_left(&job.mark);
}

/// Returns the errors of the old ranks about ranks that did not join; they go on, and the next round goes
/// well.
fn refused(make: impl Fn(&[&str]) -> Marked, trouble: &str, ranks: u32) -> String {
    let lines = make(&["--rounds", "1", "--trouble", trouble]).lines();
    let (refused, good): (Vec<_>, Vec<_>) = lines
        .into_iter()
        .partition(|line| line.contains("job.not-spawned"));
    assert_eq!(good.len(), ranks as usize, "{trouble}: {good:?}");
    let said = |(rank, line): (usize, &String)| {
        let said = line.strip_prefix(&format!(
            "rank {rank}: job.not-spawned no new ranks have joined: "
        ));
        said.unwrap_or_else(|| panic!("{line}")).to_owned()
    };
    let said: Vec<String> = refused.iter().enumerate().map(said).collect();
    assert_eq!(said.len(), ranks as usize, "{said:?}");
    assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
    said[0].clone()
}

#[test]
fn ranks_that_do_not_join_are_an_error_at_all_and_the_world_goes_on() {
    for (trouble, words) in [
        ("missing", "there is no program `/nonexistent/program`"),
        ("exit", "ended before it had joined"),
        ("fail", "ended with exit status 3 before it had joined"),
        ("crash", "was killed by SIGABRT (6) before it had joined"),
        ("hang", "ranks 2 and 3 did not come within 3.0 s"),
    ] {
        let said = refused(|words| Marked::under(&ours(), 2, words), trouble, 2);
        assert!(said.contains(words), "{trouble}: {said}");
    }
}

#[test]
fn one_that_is_alone_gets_the_reason_why_ranks_do_not_join() {
    for (trouble, words) in [
        ("missing", "there is no program `/nonexistent/program`"),
        ("exit", "ended with exit status 0 before it had joined"),
        ("fail", "ended with exit status 3 before it had joined"),
        ("crash", "SIGABRT"),
        ("hang", "ranks 1 and 2 did not come within 3.0 s"),
    ] {
        let said = refused(Marked::alone, trouble, 1);
        assert!(said.contains(words), "{trouble}: {said}");
    }
}

#[test]
fn a_host_that_is_not_of_the_job_is_refused() {
    let job = Marked::under(&ours(), 1, &["--rounds", "1", "--on", "elsewhere"]);
    let ended = run(job.command);
    assert_eq!(ended.status.code(), Some(2));
    let said = text(&ended.stderr);
    assert!(
        said.contains("`elsewhere` is another: `doorbell run --hosts` has several"),
        "{said}"
    );
    nothing_is_left(&job.mark);
}

#[test]
fn a_launcher_that_starts_no_more_is_named() {
    // By hand: no launcher is at the other end of the socket.
    let mut job = Marked::alone(&["--rounds", "1"]);
    let root = format!("@doorbell-test-spawn-{}", std::process::id());
    job.command
        .env("DOORBELL_RANK", "0")
        .env("DOORBELL_SIZE", "1")
        .env("DOORBELL_ROOT", root)
        .env_remove("PMI_FD");
    let ended = run(job.command);
    assert_eq!(ended.status.code(), Some(2));
    let said = text(&ended.stderr);
    assert!(
        said.contains("cannot start more ranks") && said.contains("start them with `doorbell run`"),
        "{said}"
    );
}

/// The example on both hosts of a lab.
fn on_hosts(lab: &Lab, words: &[&str]) -> Marked {
    Marked::of(|scratch| {
        let mut command = run_hosts::job(lab, 4, &["--no-prefix", "--env", "DOORBELL_RAILS=udp:v0"]);
        command.arg(loop_spawn()).args(words).env("TMPDIR", scratch);
        command
    })
}

#[test]
fn ranks_are_started_on_several_hosts() {
    let Some(lab) = Lab::pair("ranks_are_started_on_several_hosts", 1500) else {
        return;
    };
    holds_no_more(&on_hosts(&lab, &["--rounds", "16"]).lines(), 4, 16);
    // All on the second one, which is not the inviting rank's.
    let words = ["--rounds", "16", "--ranks", "3", "--on", lab.name(1)];
    holds_no_more(&on_hosts(&lab, &words).lines(), 4, 16);
}

#[test]
fn ranks_of_several_hosts_that_do_not_join_are_an_error_at_all() {
    let Some(lab) = Lab::pair(
        "ranks_of_several_hosts_that_do_not_join_are_an_error_at_all",
        1500,
    ) else {
        return;
    };
    for (trouble, words) in [
        ("exit", "ended before it had joined (host "),
        ("fail", "ended with exit status 3 before it had joined (host "),
        ("crash", "was killed by SIGABRT (6) before it had joined (host "),
        ("hang", "did not come within 3.0 s"),
    ] {
        let said = refused(|words| on_hosts(&lab, words), trouble, 4);
        assert!(said.contains(words), "{trouble}: {said}");
    }
    let ended = run(on_hosts(&lab, &["--rounds", "1", "--on", "elsewhere"]).command);
    let said = text(&ended.stderr);
    assert!(
        said.contains("`elsewhere` is none of the hosts of this job"),
        "{said}"
    );
}

/// The reason of the host that could not, however many had been started there, and whichever host reports
/// last.
#[test]
fn ranks_that_a_host_cannot_start_are_an_error_with_its_reason() {
    const TEST: &str = "ranks_that_a_host_cannot_start_are_an_error_with_its_reason";
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    for words in [&["--ranks", "32"][..], &["--ranks", "16", "--on", lab.name(1)]] {
        let mut job = on_hosts(&lab, &[&["--rounds", "1"], words].concat());
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 48; exec \"$@\"", "sh"]);
        limited
            .arg(job.command.get_program())
            .args(job.command.get_args());
        for (name, value) in job.command.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        limited.stdin(Stdio::null());
        job.command = limited;
        let ended = run(job.command);
        assert_eq!(ended.status.code(), Some(2), "{}", text(&ended.stderr));
        let said = text(&ended.stderr);
        assert!(
            said.contains("could not start rank") && said.contains("Too many open files"),
            "{said}"
        );
        assert!(said.contains("(host "), "{said}");
        nothing_is_left(&job.mark);
    }
}

/// What starts ranks is the program that runs, not the file of its name.
#[test]
fn a_launcher_whose_file_is_gone_starts_more_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("doorbell");
    let script = format!("rm -f {}; exec \"$@\"", own.display());
    let runs = |command: &mut Command| {
        std::fs::copy(env!("CARGO_BIN_EXE_doorbell"), &own).unwrap();
        command.args(["--", "sh", "-c", &script, "sh"]).arg(loop_spawn());
        command.args(["--rounds", "1", "--ranks", "2"]);
    };
    let here = Marked::of(|scratch| {
        let mut command = Command::new(&own);
        command
            .args(["run", "-n", "2", "--no-prefix"])
            .env("TMPDIR", scratch);
        runs(command.env("DOORBELL_RAILS", "shm"));
        command
    });
    assert_eq!(here.lines().len(), 2);
    let hosts = Marked::of(|scratch| {
        let mut command = Command::new(&own);
        command.args(["run", "-n", "2", "--no-prefix", "--hosts", "localhost:2"]);
        runs(command.env("DOORBELL_RAILS", "shm").env("TMPDIR", scratch));
        command
    });
    assert_eq!(hosts.lines().len(), 2);
}

#[test]
fn a_job_on_several_hosts_that_loses_a_new_rank_leaves_nothing_behind() {
    if let Some(lab) = Lab::pair(
        "a_job_on_several_hosts_that_loses_a_new_rank_leaves_nothing_behind",
        1500,
    ) {
        ends_without(on_hosts(&lab, &["--rounds", "1000000"]), true);
    }
}

/// A process of a running job is killed: the job ends, and nothing of it is left.
fn ends_without(mut job: Marked, is_new: bool) {
    let mut child = job
        .command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + LIMIT;
    let one = || -> Option<Pid> {
        // New ones are those with the variable that marks them.
        let new: Vec<Pid> = of(&job.mark, "PMI_SPAWNED")
            .into_iter()
            .map(|(pid, _)| pid)
            .collect();
        let all = of(&job.mark, "PMI_RANK");
        let found = all
            .iter()
            .find(|(pid, rank)| rank == "1" && new.contains(pid) == is_new);
        // Not before there was a round.
        found.filter(|_| !new.is_empty()).map(|(pid, _)| *pid)
    };
    loop {
        assert!(Instant::now() < until, "no such rank");
        // It may have ended in between.
        if one().is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok()) {
            break;
        }
    }
    let ended = loop {
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        if Instant::now() > until {
            let _ = child.kill();
            panic!("the job goes on");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(!ended.success(), "{ended}");
    nothing_is_left(&job.mark);
}

/// The ranks of a job that have this variable.
fn of(mark: &str, variable: &str) -> Vec<(Pid, String)> {
    let all = marked(mark, variable).into_iter();
    let ranks = all.filter(|(_, name, _)| name == "loop_spawn");
    ranks.filter_map(|(pid, _, value)| Some((pid, value?))).collect()
}

#[test]
fn a_job_that_loses_one_of_its_old_ranks_leaves_nothing_behind() {
    ends_without(Marked::under(&ours(), 2, &["--rounds", "1000000"]), false);
}

#[test]
fn a_job_that_loses_one_of_its_new_ranks_leaves_nothing_behind() {
    ends_without(Marked::under(&ours(), 2, &["--rounds", "1000000"]), true);
}

/// Without a launcher, they depend on their world alone: it reports the end of the process that started them.
#[test]
fn children_of_a_process_without_a_launcher_do_not_outlive_it() {
    for _ in 0..5 {
        let mut job = Marked::alone(&["--rounds", "1000000", "--ranks", "3"]);
        let mut child = job
            .command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + LIMIT;
        while of(&job.mark, "DOORBELL_SPAWNED").len() < 3 {
            assert!(Instant::now() < until, "it starts none");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        nothing_is_left(&job.mark);
    }
}

#[test]
fn a_job_on_several_hosts_that_loses_an_old_rank_leaves_nothing_behind() {
    if let Some(lab) = Lab::pair(
        "a_job_on_several_hosts_that_loses_an_old_rank_leaves_nothing_behind",
        1500,
    ) {
        ends_without(on_hosts(&lab, &["--rounds", "1000000"]), false);
    }
}
