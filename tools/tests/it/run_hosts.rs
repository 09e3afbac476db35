//! `doorbell run --hosts`: network namespaces are the hosts, and `ip netns exec` is the remote shell.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::sentence;
use crate::launchers::{MARK, allgather, gathered, marked, on_path, run, text};
use doorbell_testing::netns::Lab;
use doorbell_testing::skipped;

/// Longer than any job here takes to end.
const LIMIT: Duration = Duration::from_secs(60);

/// `doorbell run` on the first host of `lab`, over both.
pub(crate) fn job(lab: &Lab, ranks: u32, more: &[&str]) -> Command {
    over(lab, 2, ranks, more)
}

/// The same over the first `hosts` hosts, each with room for two ranks.
pub(crate) fn over(lab: &Lab, hosts: usize, ranks: u32, more: &[&str]) -> Command {
    let hosts: Vec<String> = (0..hosts).map(|host| format!("{}:2", lab.name(host))).collect();
    let mut command = Command::new("ip");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DOORBELL_") {
            command.env_remove(name);
        }
    }
    command
        .args(["netns", "exec", lab.name(0)])
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["run", "-n", &ranks.to_string(), "--rsh", "ip netns exec"])
        .args(["--hosts", &hosts.join(",")])
        .args(more)
        .arg("--")
        .stdin(Stdio::null());
    command
}

fn shell(lab: &Lab, ranks: u32, more: &[&str], script: &str) -> Command {
    let mut command = job(lab, ranks, more);
    command.args(["sh", "-c", script]);
    command
}

/// A launcher that is killed with the test that does not come to its end.
struct Running(Option<Child>);

impl Running {
    fn signal(&self, signal: Signal) {
        let pid = self
            .0
            .as_ref()
            .and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
        kill_process(pid.unwrap(), signal).unwrap();
    }

    fn end(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A job that goes on until it is ended, and what marks it.
fn endless(lab: &Lab, script: &str) -> (Running, String) {
    let mark = format!("{}-{:?}", std::process::id(), Instant::now());
    let mut command = shell(lab, 4, &[], script);
    command.env(MARK, &mark);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let running = Running(Some(child.unwrap()));
    let until = Instant::now() + LIMIT;
    // By then each has set its traps.
    while ranks(&mark, "sleep").len() < 4 {
        assert!(Instant::now() < until, "the ranks do not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    (running, mark)
}

/// The ranks of a job that have processes of this name.
fn ranks(mark: &str, name: &str) -> Vec<String> {
    let mut ranks: Vec<String> = marked(mark, "PMI_RANK")
        .into_iter()
        .filter(|(_, known, _)| known == name)
        .filter_map(|(.., rank)| rank)
        .collect();
    ranks.sort();
    ranks.dedup();
    ranks
}

/// Nothing of the job is left: no rank, no daemon, no launcher.
fn nothing_is_left(mark: &str) {
    let until = Instant::now() + LIMIT;
    while !marked(mark, "PMI_RANK").is_empty() {
        assert!(Instant::now() < until, "{:?} is left", marked(mark, "PMI_RANK"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The process of the job with this word in its command line.
fn process(mark: &str, words: &str) -> Pid {
    let command =
        |pid: Pid| std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let all = marked(mark, "PMI_RANK").into_iter().map(|(pid, ..)| pid);
    let mut found = all.filter(|pid| text(&command(*pid)).replace('\0', " ").contains(words));
    found.next().unwrap_or_else(|| panic!("no `{words}`"))
}

#[test]
fn ranks_of_two_hosts_meet_and_gather() {
    let Some(lab) = Lab::pair("ranks_of_two_hosts_meet_and_gather", 1500) else {
        return;
    };
    for ranks in [2, 4] {
        let mut command = job(&lab, ranks, &["--no-prefix", "--env", "DOORBELL_RAILS=udp:v0"]);
        gathered(
            &run({
                command.arg(allgather());
                command
            }),
            ranks,
            &format!("{ranks} ranks"),
        );
    }
    let hosts = run(shell(
        &lab,
        4,
        &[],
        "echo $PMI_RANK of $PMI_SIZE at $MPI_LOCALRANKID on $(ip netns identify)",
    ));
    let mut lines: Vec<String> = text(&hosts.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    let expected: Vec<String> = (0..4)
        .map(|rank| format!("[{rank}] {rank} of 4 at {} on {}", rank % 2, lab.name(rank / 2)))
        .collect();
    assert_eq!(lines, expected, "{}", text(&hosts.stderr));
}

/// A rank may be a script of several programs, each of which meets the same one of the other ranks.
#[test]
fn programs_that_follow_each_other_in_a_script_meet_each_in_its_turn() {
    const TEST: &str = "programs_that_follow_each_other_in_a_script_meet_each_in_its_turn";
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    let more = ["--no-prefix", "--env", "DOORBELL_RAILS=udp:v0"];
    let mut command = shell(
        &lab,
        4,
        &more,
        "\"$0\" > /dev/null; sleep 0.0$PMI_RANK; exec \"$0\"",
    );
    command.arg(allgather());
    gathered(&run(command), 4, "the second of two");
    let own = assert_cmd::cargo::cargo_bin("doorbell");
    let short = "--sizes 8 --seconds 0.05 --no-reference";
    let script = format!(
        "{0} pingpong {short} && {0} rate {short} && echo both on $PMI_RANK",
        own.display()
    );
    let ended = run(shell(&lab, 2, &more, &script));
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!(text(&ended.stdout).matches("both on").count(), 2);
}

#[test]
fn ranks_of_four_hosts_meet_and_gather_and_measure() {
    let Some(lab) = Lab::four("ranks_of_four_hosts_meet_and_gather_and_measure", 1500) else {
        return;
    };
    for tree in ["1", "2", "64"] {
        let more = ["--no-prefix", "--tree", tree, "--env", "DOORBELL_RAILS=udp:v0"];
        let mut command = over(&lab, 4, 8, &more);
        command.arg(allgather());
        gathered(&run(command), 8, &format!("daemons in a tree of radix {tree}"));
    }
    let more = ["--no-prefix", "--env", "DOORBELL_RAILS=udp:v0"];
    let mut command = over(&lab, 4, 4, &more);
    command.arg(assert_cmd::cargo::cargo_bin("doorbell")).args([
        "pingpong",
        "--sizes",
        "8",
        "--seconds",
        "0.05",
        "--no-reference",
        "--verify",
    ]);
    command.args(["--json", "-"]);
    let ended = run(command);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(report["rail"], "udp:v0", "{report:#}");
}

/// No network reaches from one end to the other: messages of the daemons go from host to host, over IPv4 and
/// IPv6 in turn.
#[test]
fn daemons_of_four_hosts_in_a_chain_of_networks_pass_everything_on() {
    const TEST: &str = "daemons_of_four_hosts_in_a_chain_of_networks_pass_everything_on";
    let Some(lab) = Lab::chain(TEST, 1500) else { return };
    let script = |script: &str| {
        let mut command = over(&lab, 4, 8, &["--tree", "1"]);
        command.args(["sh", "-c", script]);
        run(command)
    };
    let ended = script("echo on $(ip netns identify); seq 1 2000");
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    for rank in 0..8 {
        let own = format!("[{rank}] ");
        let said: Vec<String> = text(&ended.stdout)
            .lines()
            .filter_map(|line| line.strip_prefix(&own).map(str::to_owned))
            .collect();
        let numbers = (1..=2000).map(|number| number.to_string());
        let place = format!("on {}", lab.name(rank / 2));
        let expected: Vec<String> = [place].into_iter().chain(numbers).collect();
        assert_eq!(said, expected, "of rank {rank}");
    }
    let ended = script("test $PMI_RANK = 7 && exit 7; exec sleep 300");
    assert_eq!(ended.status.code(), Some(7), "{}", text(&ended.stderr));
    assert!(sentence(&ended.stderr).contains(&format!("on host {}", lab.name(3))));
}

#[test]
fn a_program_of_mpich_is_started_as_under_its_own_launcher() {
    const TEST: &str = "a_program_of_mpich_is_started_as_under_its_own_launcher";
    if !on_path("mpicc.mpich") {
        return skipped(TEST, "package libmpich-dev: mpicc.mpich not found");
    }
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("sum.c"), folder.path().join("sum"));
    let sum = "#include <mpi.h>\n#include <stdio.h>\nint main(int c, char **v) { int r, n, s = 0; MPI_Init(&c, &v);\n\
               MPI_Comm_rank(MPI_COMM_WORLD, &r); MPI_Comm_size(MPI_COMM_WORLD, &n);\n\
               MPI_Allreduce(&r, &s, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); printf(\"%d of %d: %d\\n\", r, n, s);\n\
               MPI_Finalize(); return 0; }\n";
    std::fs::write(&source, sum).unwrap();
    let built = Command::new("mpicc.mpich")
        .arg("-o")
        .args([&program, &source])
        .output()
        .unwrap();
    let said = text(&built.stderr);
    if said.contains("mpi.h: No such file") {
        return skipped(TEST, "package libmpich-dev: mpi.h not found");
    }
    assert!(built.status.success(), "{said}");
    let mut command = job(&lab, 4, &["--no-prefix"]);
    command.arg(&program);
    let ended = run(command);
    let mut lines: Vec<String> = text(&ended.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(
        lines,
        ["0 of 4: 6", "1 of 4: 6", "2 of 4: 6", "3 of 4: 6"],
        "{}",
        text(&ended.stderr)
    );
    assert!(ended.status.success());
}

#[test]
fn the_first_failure_is_the_jobs_with_its_host() {
    let Some(lab) = Lab::pair("the_first_failure_is_the_jobs_with_its_host", 1500) else {
        return;
    };
    for (script, code, said) in [
        (
            "test $PMI_RANK = 2 && exit 7; exec sleep 300",
            7,
            "rank 2 ended with exit status 7",
        ),
        (
            "test $PMI_RANK = 2 && kill -SEGV $$; exec sleep 300",
            139,
            "rank 2 was killed by SIGSEGV",
        ),
    ] {
        let ended = run(shell(&lab, 4, &[], script));
        assert_eq!(ended.status.code(), Some(code), "{}", text(&ended.stderr));
        let said = format!("{said} (11)").replace("status 7 (11)", "status 7")
            + &format!(" on host {}", lab.name(1));
        assert!(sentence(&ended.stderr).contains(&said), "{}", text(&ended.stderr));
    }
    let mut command = job(&lab, 4, &[]);
    command.arg("/nowhere/program");
    let ended = run(command);
    assert_eq!(ended.status.code(), Some(127), "{}", text(&ended.stderr));
    let ended = run(shell(&lab, 4, &["--timeout", "0.5"], "exec sleep 300"));
    assert_eq!(ended.status.code(), Some(5), "{}", text(&ended.stderr));
}

#[test]
fn all_that_ranks_write_arrives_once_and_in_order() {
    let Some(lab) = Lab::pair("all_that_ranks_write_arrives_once_and_in_order", 1500) else {
        return;
    };
    let ended = run(shell(&lab, 4, &[], "seq 1 50000; seq 50001 60000 >&2"));
    assert!(ended.status.success());
    for (bytes, numbers) in [(&ended.stdout, 1..=50_000), (&ended.stderr, 50_001..=60_000)] {
        // Without the ends of lines: where a rank stops in the middle of a number for long, on a busy
        // machine, its start is shown by itself.
        let expected: String = numbers.map(|number| number.to_string()).collect();
        let mut written = [const { String::new() }; 4];
        for line in text(bytes).lines() {
            let (rank, digits) = line
                .strip_prefix('[')
                .and_then(|line| line.split_once("] "))
                .unwrap_or_else(|| panic!("no rank: {line}"));
            written[rank.parse::<usize>().unwrap()].push_str(digits);
        }
        for (rank, written) in written.iter().enumerate() {
            let alike = written
                .bytes()
                .zip(expected.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            let end = (alike + 20).min(written.len());
            assert!(
                *written == expected,
                "of rank {rank}, at {alike}: {}",
                &written[alike..end]
            );
        }
    }
}

/// Starts a job with its standard output and error piped, and what it is given to read.
fn piped(mut command: Command, stdin: Stdio) -> Running {
    let command = command.stdin(stdin).stdout(Stdio::piped());
    Running(Some(command.stderr(Stdio::piped()).spawn().unwrap()))
}

/// Waits until a count grows no more for a while; what it is then.
fn settled(count: impl Fn() -> u64) -> u64 {
    const STILL: Duration = Duration::from_secs(2);
    let begun = Instant::now();
    let (mut last, mut since) = (count(), Instant::now());
    // Nothing is counted at first.
    while last == 0 || since.elapsed() < STILL {
        assert!(begun.elapsed() < LIMIT, "it stands at {last}");
        std::thread::sleep(Duration::from_millis(50));
        let now = count();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// What a test's ranks have appended to a file, in bytes.
fn length(file: &std::path::Path) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.len())
}

/// The ranks wait in their writes, as in a pipe to the reader itself: nothing on the way holds more than a
/// bound.
#[test]
fn a_reader_that_is_slow_holds_the_ranks_up_and_loses_nothing() {
    const TEST: &str = "a_reader_that_is_slow_holds_the_ranks_up_and_loses_nothing";
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    // Small enough for every rank to write some of them, however the bound is shared among the ranks.
    const PIECE: usize = 100_000;
    const PIECES: usize = 240;
    let folder = tempfile::tempdir().unwrap();
    let progress = folder.path().join("progress");
    let script = format!(
        "i=0; while [ $i -lt {PIECES} ]; do head -c {PIECE} /dev/zero; printf x >> {}; i=$((i+1)); done",
        progress.display()
    );
    let job = piped(shell(&lab, 4, &["--no-prefix"], &script), Stdio::null());
    // Four pipes, and 1 MiB of each host.
    let written = settled(|| length(&progress));
    assert!(
        written <= 120,
        "{written} pieces of {PIECE} bytes are written without a reader"
    );
    let ended = job.end();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!(ended.stdout.len(), 4 * PIECES * PIECE);
}

/// Unread output holds up nothing else: a failure is seen, and what the ranks had written is still there.
#[test]
fn a_failure_behind_unread_output_is_seen() {
    const TEST: &str = "a_failure_behind_unread_output_is_seen";
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    let folder = tempfile::tempdir().unwrap();
    let [progress, fail] = ["progress", "fail"].map(|name| folder.path().join(name));
    let script = format!(
        "[ $PMI_RANK = 1 ] && {{ until [ -e {1} ]; do sleep 0.05; done; exit 7; }}; \
         while :; do head -c 100000 /dev/zero || exit; printf x >> {0}; done",
        progress.display(),
        fail.display()
    );
    let mut job = piped(shell(&lab, 2, &["--no-prefix"], &script), Stdio::null());
    let written = settled(|| length(&progress));
    std::fs::write(&fail, "").unwrap();
    let child = job.0.as_mut().unwrap();
    let mut said = String::new();
    let mut errors = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut errors, &mut said).unwrap();
    assert!(said.contains("rank 1 ended with exit status 7"), "{said}");
    let ended = job.end();
    assert_eq!(ended.status.code(), Some(7), "{said}");
    let read = ended.stdout.len() as u64;
    assert!(read >= written * 100_000, "{read} bytes of {written} pieces");
}

#[test]
fn a_signal_ends_a_job_with_unread_output() {
    const TEST: &str = "a_signal_ends_a_job_with_unread_output";
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    let folder = tempfile::tempdir().unwrap();
    let progress = folder.path().join("progress");
    let script = format!(
        "while :; do head -c 100000 /dev/zero || exit; printf x >> {}; done",
        progress.display()
    );
    let mut job = piped(shell(&lab, 2, &["--no-prefix"], &script), Stdio::null());
    settled(|| length(&progress));
    job.signal(Signal::TERM);
    let until = Instant::now() + LIMIT;
    while job.0.as_mut().unwrap().try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = job.end();
    assert_eq!(ended.status.code(), Some(143), "{}", text(&ended.stderr));
    let said = text(&ended.stderr);
    assert!(said.contains("the standard output is not read"), "{said}");
}

/// The launcher's own sentences wait with the output; what it does does not.
#[test]
fn a_job_ends_whose_two_outputs_are_one_unread_pipe() {
    const TEST: &str = "a_job_ends_whose_two_outputs_are_one_unread_pipe";
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    let folder = tempfile::tempdir().unwrap();
    for is_failure in [false, true] {
        let [progress, fail] =
            ["progress", "fail"].map(|name| folder.path().join(format!("{name}-{is_failure}")));
        let script = format!(
            "[ $PMI_RANK = 1 ] && {{ until [ -e {1} ]; do sleep 0.05; done; exit 7; }}; \
             while :; do head -c 100000 /dev/zero || exit; printf x >> {0}; done",
            progress.display(),
            fail.display()
        );
        let mark = format!("{}-{:?}", std::process::id(), Instant::now());
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut command = shell(&lab, 2, &["--no-prefix"], &script);
        command.env(MARK, &mark);
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        let mut job = Running(Some(command.spawn().unwrap()));
        drop(command);
        settled(|| length(&progress));
        let until = Instant::now() + LIMIT;
        if is_failure {
            std::fs::write(&fail, "").unwrap();
            while !ranks(&mark, "sh").is_empty() {
                assert!(Instant::now() < until, "the ranks are not ended");
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut said = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut said).unwrap();
            said.retain(|byte| *byte != 0);
            let said = text(&said);
            assert!(said.contains("rank 1 ended with exit status 7"), "{said}");
        } else {
            job.signal(Signal::TERM);
        }
        while job.0.as_mut().unwrap().try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        let code = if is_failure { 7 } else { 143 };
        assert_eq!(job.end().status.code(), Some(code));
    }
}

/// What is piped in waits with its writer, and the orders of the launcher do not wait behind it.
#[test]
fn a_rank_that_does_not_read_holds_its_writer_up_and_is_ended_all_the_same() {
    const TEST: &str = "a_rank_that_does_not_read_holds_its_writer_up_and_is_ended_all_the_same";
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    let mark = format!("{}-{:?}", std::process::id(), Instant::now());
    let mut command = shell(&lab, 2, &[], "trap 'exit 3' TERM; while :; do sleep 0.05; done");
    command.env(MARK, &mark);
    let mut job = piped(command, Stdio::piped());
    let mut stdin = job.0.as_mut().unwrap().stdin.take().unwrap();
    let given = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = given.clone();
    let writer = std::thread::spawn(move || {
        while std::io::Write::write_all(&mut stdin, &[b'x'; 10_000]).is_ok() {
            count.fetch_add(10_000, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let taken = settled(|| given.load(std::sync::atomic::Ordering::Relaxed));
    assert!(taken <= 1 << 20, "{taken} bytes are taken, and rank 0 reads none");
    job.signal(Signal::TERM);
    let ended = job.end();
    assert_eq!(ended.status.code(), Some(3), "{}", text(&ended.stderr));
    writer.join().unwrap();
    nothing_is_left(&mark);
}

#[test]
fn rank_0_reads_what_is_piped_in() {
    let Some(lab) = Lab::pair("rank_0_reads_what_is_piped_in", 1500) else {
        return;
    };
    let lines: String = (0..100_000).map(|line| format!("{line}\n")).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lines");
    std::fs::write(&file, &lines).unwrap();
    let mut command = shell(&lab, 4, &["--no-prefix"], "test $PMI_RANK = 0 && sleep 0.2; cat");
    command.stdin(std::fs::File::open(&file).unwrap());
    let ended = run(command);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!(text(&ended.stdout), lines);
    // One that does not read it all ends all the same.
    let mut command = shell(&lab, 4, &["--no-prefix"], "test $PMI_RANK != 0 || head -n 1");
    command.stdin(std::fs::File::open(&file).unwrap());
    assert_eq!(text(&run(command).stdout), "0\n");
}

#[test]
fn hosts_that_do_not_come_are_named() {
    let Some(lab) = Lab::pair("hosts_that_do_not_come_are_named", 1500) else {
        return;
    };
    let nowhere = format!("{},nowhere", lab.name(0));
    let with = |hosts: &str, more: &[&str]| {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", lab.name(0)])
            .arg(assert_cmd::cargo::cargo_bin("doorbell"))
            .args(["run", "-n", "2", "--rsh", "ip netns exec", "--hosts", hosts])
            .args(more)
            .args(["--", "true"]);
        run(command)
    };
    let ended = with(&nowhere, &[]);
    let said = sentence(&ended.stderr);
    assert_eq!(ended.status.code(), Some(4), "{said}");
    assert!(
        said.contains("host nowhere is lost: `ip netns exec nowhere"),
        "{said}"
    );
    // The daemon behind its remote shell never sends anything.
    let both = format!("{},{}", lab.name(0), lab.name(1));
    let ended = with(&both, &["--start-timeout", "1", "--doorbell", "/bin/true"]);
    assert_eq!(ended.status.code(), Some(4), "{}", text(&ended.stderr));
    lab.ip(1, "link set v0 down");
    // The first host comes in time unless this machine is very busy; then it gets more time.
    let (ended, waited) = ["4", "16", "64"]
        .into_iter()
        .map(|seconds| (with(&both, &["--start-timeout", seconds, "--nic", "v0"]), seconds))
        .find(|(ended, _)| !text(&ended.stderr).contains(&format!("no message from {}", lab.name(0))))
        .expect("the first host comes within a minute");
    let said = sentence(&ended.stderr);
    assert_eq!(ended.status.code(), Some(5), "{said}");
    assert!(
        said.contains(&format!("no message from {} within {waited} s", lab.name(1))),
        "{said}"
    );
    for (hosts, said) in [
        ("a:0", "from 1 to 1024"),
        ("a,a", "named twice"),
        ("a:1", "room for 1 ranks"),
    ] {
        let ended = with(hosts, &[]);
        assert_eq!(ended.status.code(), Some(2));
        assert!(sentence(&ended.stderr).contains(said), "{}", text(&ended.stderr));
    }
}

#[test]
fn daemons_start_daemons() {
    let Some(lab) = Lab::pair("daemons_start_daemons", 1500) else {
        return;
    };
    // One below the other: the second host hangs on the first.
    let mut command = job(
        &lab,
        4,
        &["--tree", "1", "--no-prefix", "--env", "DOORBELL_RAILS=udp:v0"],
    );
    command.arg(allgather());
    gathered(&run(command), 4, "a chain of daemons");
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", lab.name(0)])
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["run", "-n", "2", "--tree", "1", "--rsh", "ip netns exec"])
        .arg("--hosts")
        .arg(format!("{},nowhere", lab.name(0)))
        .args(["--", "true"]);
    let ended = run(command);
    let said = sentence(&ended.stderr);
    assert_eq!(ended.status.code(), Some(4), "{said}");
    assert!(
        said.contains("host nowhere is lost: `ip netns exec nowhere"),
        "{said}"
    );
}

#[test]
fn a_reader_that_goes_away_ends_the_job() {
    let Some(lab) = Lab::pair("a_reader_that_goes_away_ends_the_job", 1500) else {
        return;
    };
    let mut child = shell(&lab, 4, &[], "exec yes")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ended = Running(Some(child)).end();
    assert_eq!(ended.status.code(), Some(141), "{}", text(&ended.stderr));
    sentence(&ended.stderr);
}

#[test]
fn nothing_outlives_a_killed_launcher() {
    let Some(lab) = Lab::pair("nothing_outlives_a_killed_launcher", 1500) else {
        return;
    };
    let (job, mark) = endless(&lab, "sleep 300 & wait");
    job.signal(Signal::KILL);
    job.end();
    nothing_is_left(&mark);
}

#[test]
fn a_killed_daemon_is_a_lost_host() {
    let Some(lab) = Lab::pair("a_killed_daemon_is_a_lost_host", 1500) else {
        return;
    };
    let (job, mark) = endless(&lab, "sleep 300 & wait");
    kill_process(process(&mark, "doorbell daemon"), Signal::KILL).unwrap();
    let ended = job.end();
    assert_eq!(ended.status.code(), Some(4), "{}", text(&ended.stderr));
    assert!(
        sentence(&ended.stderr).contains("is lost: its daemon ended"),
        "{}",
        text(&ended.stderr)
    );
    nothing_is_left(&mark);
}

#[test]
fn signals_reach_the_ranks_of_all_hosts_and_the_second_is_meant() {
    let Some(lab) = Lab::pair(
        "signals_reach_the_ranks_of_all_hosts_and_the_second_is_meant",
        1500,
    ) else {
        return;
    };
    let (job, mark) = endless(
        &lab,
        "trap 'echo interrupted; exit 130' INT; while :; do sleep 0.05; done",
    );
    job.signal(Signal::INT);
    let ended = job.end();
    assert_eq!(ended.status.code(), Some(130), "{}", text(&ended.stderr));
    assert_eq!(
        text(&ended.stdout).matches("interrupted").count(),
        4,
        "{}",
        text(&ended.stdout)
    );
    nothing_is_left(&mark);
    let (job, mark) = endless(&lab, "trap '' INT TERM; while :; do sleep 0.05; done");
    job.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        ranks(&mark, "sh").len(),
        4,
        "they have received that it does not matter"
    );
    job.signal(Signal::TERM);
    let ended = job.end();
    assert_eq!(ended.status.code(), Some(137), "{}", text(&ended.stderr));
    nothing_is_left(&mark);
}

#[test]
fn the_start_up_is_printed_host_by_host() {
    let Some(lab) = Lab::pair("the_start_up_is_printed_host_by_host", 1500) else {
        return;
    };
    let mut command = job(&lab, 4, &["--timeline", "--env", "DOORBELL_RAILS=udp:v0"]);
    command.arg(allgather());
    let ended = run(command);
    let said = text(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    for host in [0, 1] {
        let line = said.lines().find(|line| line.starts_with(lab.name(host)));
        let words: Vec<&str> = line
            .unwrap_or_else(|| panic!("{said}"))
            .split_whitespace()
            .collect();
        assert_eq!(words[1], "2");
        let times: Vec<f64> = words[2..].iter().map(|word| word.parse().unwrap()).collect();
        assert!(times.len() == 4 && times.is_sorted(), "{said}");
    }
}
