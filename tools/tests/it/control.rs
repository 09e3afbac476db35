//! The control plane of ranks and of `doorbell run --hosts` by its settings: threads, cores, transports,
//! routes; and what happens when `tcp` is cut. Network namespaces are the hosts.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use doorbell_bench::pin;
use doorbell_testing::netns::Lab;
use doorbell_testing::skipped;

use crate::common::{doorbell, sentence};
use crate::launchers::{allgather, example, gathered, run, text};
use crate::run_hosts::{job, over};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The example that sends numbered messages.
fn program() -> PathBuf {
    static FRESH: OnceLock<PathBuf> = OnceLock::new();
    FRESH.get_or_init(|| example("control")).clone()
}

/// The lines of `doorbell run … control`, sorted.
fn under_run(flags: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
    let out = doorbell()
        .args(["run", "--no-prefix", "--timeout", "100"])
        .args(flags)
        .arg("--")
        .arg(program())
        .env("DOORBELL_CONTROL", "on")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{} {}",
        text(&out.stdout),
        text(&out.stderr)
    );
    let mut lines: Vec<String> = text(&out.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn ranks_exchange_messages_by_each_transport_and_route() {
    for transports in ["tcp", "rail", "tcp,rail", "rail,tcp"] {
        for (routes, wait) in [("tree", "block"), ("direct", "block"), ("tree", "spin")] {
            let settings = [
                ("DOORBELL_CONTROL_TRANSPORTS", transports),
                ("DOORBELL_CONTROL_ROUTES", routes),
                ("DOORBELL_CONTROL_WAIT", wait),
            ];
            let lines = under_run(&["-n", "2"], &settings);
            let preferred = transports.split(',').next().unwrap();
            let frames = |rank: u32| {
                let start = format!("rank {rank}: {preferred} sent ");
                let found = lines.iter().find_map(|line| line.strip_prefix(start.as_str()));
                let count = found.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
                count.unwrap_or_else(|| panic!("{transports} {routes}: {lines:#?}"))
            };
            assert!(
                frames(0) >= 2_000 && frames(1) >= 2_000,
                "{transports} {routes}: {lines:#?}"
            );
        }
    }
}

#[test]
fn the_threads_are_those_of_the_settings_and_have_the_cores_that_are_named() {
    let of_rank = |variables: &[(&str, &str)], flags: &[&str]| {
        let lines = under_run(&[&["-n", "1"], flags].concat(), variables);
        lines[0].strip_prefix("rank 0: ").map(str::to_owned).unwrap()
    };
    let names = |line: &str| -> Vec<String> {
        let threads = line.split("; ");
        threads
            .filter_map(|thread| Some(thread.split_once(" on ")?.0.to_owned()))
            .collect()
    };
    let line = of_rank(&[], &[]);
    assert_eq!(
        names(&line),
        ["own thread", "doorbell-oob"],
        "one thread by default: {line}"
    );
    let line = of_rank(&[("DOORBELL_CONTROL_THREADS", "nic")], &[]);
    assert_eq!(names(&line), ["own thread", "doorbell-oob", "oob-lo"], "{line}");
    let [one, two, ..] = pin::apart()[..] else {
        return skipped(
            "control::the_threads_are_those_of_the_settings_and_have_the_cores_that_are_named",
            "one core: two threads of a rank have to share it",
        );
    };
    let spin = ("DOORBELL_CONTROL_WAIT", "spin");
    let number = two.to_string();
    for core in ["next", &number] {
        let settings = [
            spin,
            ("DOORBELL_CONTROL_CORE", core),
            ("DOORBELL_CONTROL_THREADS", "nic"),
        ];
        let line = of_rank(&settings, &["--cores-per-rank", "2"]);
        let expected = format!("own thread on {one}; doorbell-oob on {two}; oob-lo on {one}");
        assert_eq!(line, expected, "control.core = {core}");
    }
    // As it is shown before a job starts.
    let shown = doorbell()
        .args(["run", "-n", "1", "--show-binding", "--json"])
        .env("DOORBELL_CONTROL", "on")
        .env("DOORBELL_CONTROL_WAIT", "spin")
        .env("DOORBELL_CONTROL_TRANSPORTS", "tcp,rail")
        .output()
        .unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["ranks"][0]["control"], two, "{shown:#}");
    assert_eq!(
        shown["control"]["transports"],
        serde_json::json!(["tcp", "rail"]),
        "{shown:#}"
    );
    let line = of_rank(&[spin], &[]);
    assert!(line.ends_with(&format!("doorbell-oob on {two}")), "auto: {line}");
}

#[test]
fn bad_settings_are_refused_by_name_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    for (settings, name, remedy) in [
        (
            &[("DOORBELL_CONTROL_THREADS", "two")][..],
            "control.threads",
            "one|nic",
        ),
        (
            &[("DOORBELL_CONTROL_WAIT", "sleep")],
            "control.wait",
            "block|spin",
        ),
        (
            &[("DOORBELL_CONTROL_ROUTES", "ring")],
            "control.routes",
            "tree|direct",
        ),
        (
            &[("DOORBELL_CONTROL_TRANSPORTS", "udp")],
            "control.transports",
            "`tcp,rail`",
        ),
        (
            &[("DOORBELL_CONTROL_CORE", "0")],
            "control.core",
            "control.wait = spin",
        ),
        (
            &[("DOORBELL_CONTROL_RAILS", "shm")],
            "control.rails",
            "control.transports = tcp,rail",
        ),
        (
            &[
                ("DOORBELL_CONTROL_WAIT", "spin"),
                ("DOORBELL_CONTROL_CORE", "4095"),
            ],
            "control.core",
            "taskset",
        ),
        (
            &[
                ("DOORBELL_CONTROL_TRANSPORTS", "rail"),
                ("DOORBELL_CONTROL_THREADS", "nic"),
            ],
            "control.threads",
            "add tcp",
        ),
        (
            &[
                ("DOORBELL_CONTROL_TRANSPORTS", "tcp,rail"),
                ("DOORBELL_CONTROL_RAILS", "udp:nosuch0"),
            ],
            "udp:nosuch0",
            "nosuch0",
        ),
    ] {
        // `doorbell run` starts nothing.
        let file = folder.path().join("started");
        let mut launcher = doorbell();
        launcher.args(["run", "-n", "1", "--", "touch"]).arg(&file);
        launcher.envs(settings.iter().copied());
        // Ranks that have their settings from elsewhere.
        let mut ranks = doorbell();
        ranks.args(["run", "-n", "1", "--", "env"]);
        ranks
            .args(settings.iter().map(|(name, value)| format!("{name}={value}")))
            .arg(program());
        for (mut command, by) in [(launcher, "the launcher"), (ranks, "a rank")] {
            let out = command.env("DOORBELL_CONTROL", "on").output().unwrap();
            let said = sentence(&out.stderr);
            assert!(
                !out.status.success() && out.stdout.is_empty(),
                "{by}, {settings:?}: {said}"
            );
            assert!(
                said.contains(name) && said.contains(remedy),
                "{by}, {settings:?}: {said}"
            );
        }
        assert!(!file.exists(), "{settings:?}: started");
    }
}

#[test]
fn the_launcher_refuses_what_daemons_cannot_do() {
    for (settings, name, remedy) in [
        (
            &[("DOORBELL_CONTROL_THREADS", "two")][..],
            "control.threads",
            "one|nic",
        ),
        (
            &[("DOORBELL_CONTROL_TRANSPORTS", "rail")],
            "control.transports",
            "--env DOORBELL_CONTROL_TRANSPORTS=rail",
        ),
        (
            &[
                ("DOORBELL_CONTROL_WAIT", "spin"),
                ("DOORBELL_CONTROL_CORE", "next"),
            ],
            "control.core",
            "--env DOORBELL_CONTROL_CORE=next",
        ),
        (
            &[("DOORBELL_CONTROL_TRANSPORTS", "tcp,rail")],
            "control.rails",
            "`udp:eth0`",
        ),
    ] {
        let out = doorbell()
            .args([
                "run",
                "-n",
                "2",
                "--rsh",
                "false",
                "--hosts",
                "node1.invalid,node2.invalid",
            ])
            .args(["--", "true"])
            .envs(settings.iter().copied())
            .output()
            .unwrap();
        let said = sentence(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(
            said.contains(name) && said.contains(remedy),
            "{settings:?}: {said}"
        );
    }
}

/// Two hosts, each with a second interface `v1` to the other.
fn two_cables(test: &str) -> Option<Lab> {
    let lab = Lab::pair(test, 1500)?;
    let other = lab.name(1).to_owned();
    lab.ip(0, &format!("link add v1 type veth peer name v1 netns {other}"));
    for host in 0..2 {
        lab.ip(host, &format!("address add 10.78.0.{}/24 dev v1", host + 1));
        lab.ip(host, "link set v1 up");
    }
    (0..2).for_each(|host| lab.wait_until_up(host, "v1"));
    Some(lab)
}

/// A running job, killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a job whose output is read line by line: at the first one with `word` the cable is cut. Returns all
/// lines.
fn cut_at(mut command: Command, word: &str, cut: impl FnOnce()) -> Vec<String> {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut running = Running(child.unwrap());
    let (tell, told) = channel();
    let lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    std::thread::spawn(move || {
        lines.map_while(Result::ok).for_each(|line| _ = tell.send(line));
    });
    let mut errors = running.0.stderr.take().unwrap();
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = errors.read_to_string(&mut text);
        text
    });
    let (until, mut cut, mut all) = (Instant::now() + LIMIT, Some(cut), Vec::new());
    while let Ok(line) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if line.contains(word)
            && let Some(cut) = cut.take()
        {
            cut();
        }
        all.push(line);
    }
    assert!(Instant::now() < until, "it does not end: {all:#?}");
    let status = running.0.wait().unwrap();
    let errors = errors.join().unwrap();
    assert!(status.success(), "{status}: {errors} {all:#?}");
    assert!(cut.is_none(), "not printed: {word}; {errors} {all:#?}");
    all
}

/// What is sent over `tcp` on v0 is lost from then on, without a sign of it.
fn drop_tcp(lab: &Lab) {
    for host in 0..2 {
        lab.nft(
            host,
            "add table inet cut\nadd chain inet cut in { type filter hook input priority 0; }\n\
             add rule inet cut in iifname \"v0\" meta l4proto tcp counter drop\n",
        );
    }
}

/// Two ranks, one on each host, that exchange numbered messages over the control plane: `tcp` is on v0, and
/// everything else on v1, also the rails of the messages and the launcher.
fn talking(lab: &Lab, transports: &[(&str, &str)], words: &[&str]) -> Command {
    let hosts = format!("{}:1,{}:1", lab.name(0), lab.name(1));
    let common = [("DOORBELL_RAILS", "udp:v1"), ("DOORBELL_CONTROL", "on")];
    let variables: Vec<String> = common
        .iter()
        .chain(transports)
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut more = vec![
        "--no-prefix",
        "--timeout",
        "110",
        "--nic",
        "v1",
        "--hosts",
        &hosts,
    ];
    for variable in &variables {
        more.extend(["--env", variable]);
    }
    let mut command = on_hosts(lab, &more);
    command.arg(program()).args(words);
    command
}

/// Both have received all that was sent, in order.
fn all_arrived(lines: &[String]) {
    for rank in 0..2 {
        let start = format!("rank {rank}: sent ");
        let counts = lines.iter().find_map(|line| line.strip_prefix(start.as_str()));
        assert!(
            counts.is_some_and(|counts| counts.ends_with(" in order")),
            "{lines:#?}"
        );
    }
}

const NICS: (&str, &str) = ("DOORBELL_CONTROL_NICS", "v0");
const RAILS: (&str, &str) = ("DOORBELL_CONTROL_RAILS", "udp:v1");

/// The transport `tcp` is cut among the messages, and `rail` takes over.
fn tcp_is_cut(test: &str, cut: impl FnOnce(&Lab)) {
    let Some(lab) = two_cables(test) else { return };
    let settings = [NICS, RAILS, ("DOORBELL_CONTROL_TRANSPORTS", "tcp,rail")];
    let command = talking(&lab, &settings, &["--until-rail"]);
    all_arrived(&cut_at(command, "rank 0: under way", || cut(&lab)));
}

/// `doorbell run` on the first host, for two ranks.
fn on_hosts(lab: &Lab, more: &[&str]) -> Command {
    let mut command = Command::new("ip");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DOORBELL_") {
            command.env_remove(name);
        }
    }
    command
        .args(["netns", "exec", lab.name(0)])
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["run", "-n", "2", "--rsh", "ip netns exec"])
        .args(more)
        .arg("--")
        .stdin(Stdio::null());
    command
}

#[test]
fn ranks_lose_no_message_when_the_cable_of_tcp_is_unplugged() {
    let test = "ranks_lose_no_message_when_the_cable_of_tcp_is_unplugged";
    tcp_is_cut(test, |lab| lab.ip(0, "link set v0 down"));
}

#[test]
fn ranks_lose_no_message_when_what_tcp_sends_is_dropped() {
    tcp_is_cut("ranks_lose_no_message_when_what_tcp_sends_is_dropped", drop_tcp);
}

/// What the tests above cut is all that there is without a rail.
#[test]
fn without_a_rail_the_same_cut_loses_the_rank() {
    let Some(lab) = two_cables("without_a_rail_the_same_cut_loses_the_rank") else {
        return;
    };
    let mut command = talking(&lab, &[NICS], &["--until-rail"]);
    let mut running = Running(
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("under way")));
    lab.ip(0, "link set v0 down");
    std::thread::spawn(move || lines.for_each(drop));
    let mut errors = String::new();
    running
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    assert!(!running.0.wait().unwrap().success());
    assert!(errors.contains("a message was not delivered"), "{errors}");
}

#[test]
fn ranks_of_two_hosts_exchange_messages_over_rails_preferred_or_alone() {
    let test = "ranks_of_two_hosts_exchange_messages_over_rails_preferred_or_alone";
    let Some(lab) = two_cables(test) else { return };
    let direct = ("DOORBELL_CONTROL_ROUTES", "direct");
    for settings in [
        &[RAILS, ("DOORBELL_CONTROL_TRANSPORTS", "rail")][..],
        &[RAILS, ("DOORBELL_CONTROL_TRANSPORTS", "rail"), direct],
        &[RAILS, NICS, ("DOORBELL_CONTROL_TRANSPORTS", "rail,tcp"), direct],
    ] {
        let out = talking(&lab, settings, &[]).output().unwrap();
        assert!(out.status.success(), "{settings:?}: {}", text(&out.stderr));
        let lines: Vec<String> = text(&out.stdout).lines().map(str::to_owned).collect();
        all_arrived(&lines);
    }
    // Rails that lead to the other host are named, or the ranks refuse to start.
    let settings = [("DOORBELL_CONTROL_TRANSPORTS", "rail")];
    let out = talking(&lab, &settings, &[]).output().unwrap();
    let said = sentence(&out.stderr);
    assert!(
        !out.status.success() && said.contains("control.rails") && said.contains("`udp:eth0`"),
        "{said}"
    );
}

/// The launcher and the daemons: what ranks write arrives once and in order.
#[test]
fn a_job_on_hosts_goes_on_over_the_rail_when_tcp_is_cut() {
    const LINES: u32 = 400;
    let Some(lab) = two_cables("a_job_on_hosts_goes_on_over_the_rail_when_tcp_is_cut") else {
        return;
    };
    for routes in ["tree", "direct"] {
        let mut command = job(&lab, 4, &["--nic", "v0", "--timeout", "110"]);
        let script = format!("for n in $(seq 1 {LINES}); do echo line $n; sleep 0.01; done");
        command
            .args(["sh", "-c", &script])
            .env("DOORBELL_CONTROL_TRANSPORTS", "tcp,rail")
            .env("DOORBELL_CONTROL_RAILS", "udp:v1")
            .env("DOORBELL_CONTROL_THREADS", "nic")
            .env("DOORBELL_CONTROL_ROUTES", routes);
        let lines = cut_at(command, "[3] line 100", || lab.ip(1, "link set v0 down"));
        for rank in 0..4 {
            let start = format!("[{rank}] line ");
            let own = lines.iter().filter_map(|line| line.strip_prefix(start.as_str()));
            let own: Vec<u32> = own.filter_map(|number| number.parse().ok()).collect();
            assert_eq!(own, (1..=LINES).collect::<Vec<_>>(), "rank {rank}, {routes}");
        }
        lab.ip(1, "link set v0 up");
        (0..2).for_each(|host| lab.wait_until_up(host, "v0"));
    }
}

/// Daemons that are deep in the tree report by connections of their own, or along it.
#[test]
fn daemons_in_a_chain_take_both_transports_and_routes() {
    let Some(lab) = Lab::four("daemons_in_a_chain_take_both_transports_and_routes", 1500) else {
        return;
    };
    for (transports, routes) in [
        ("tcp,rail", "tree"),
        ("tcp,rail", "direct"),
        ("rail,tcp", "direct"),
    ] {
        let more = [
            "--no-prefix",
            "--nic",
            "v0",
            "--tree",
            "1",
            "--env",
            "DOORBELL_RAILS=udp:v0",
        ];
        let mut command = over(&lab, 4, 8, &more);
        command
            .arg(allgather())
            .env("DOORBELL_CONTROL_TRANSPORTS", transports)
            .env("DOORBELL_CONTROL_RAILS", "udp:v0")
            .env("DOORBELL_CONTROL_ROUTES", routes);
        gathered(&run(command), 8, &format!("{transports}, {routes}"));
    }
}

#[test]
fn the_threads_of_a_daemon_have_their_names_and_cores() {
    const TEST: &str = "control::the_threads_of_a_daemon_have_their_names_and_cores";
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    let [_, two, ..] = pin::apart()[..] else {
        return skipped(TEST, "one core: it is all that threads can have");
    };
    let script = "for task in /proc/$PPID/task/*; do \
                  echo $(cat $task/comm) $(grep Cpus_allowed_list $task/status); done";
    let mut command = job(&lab, 4, &["--no-prefix", "--nic", "v0"]);
    command
        .args(["sh", "-c", script])
        .env("DOORBELL_CONTROL_THREADS", "nic")
        .env("DOORBELL_CONTROL_WAIT", "spin")
        .env("DOORBELL_CONTROL_CORE", two.to_string());
    let out = run(command);
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let cores = |name: &str| -> Vec<&str> {
        let start = format!("{name} Cpus_allowed_list: ");
        shown
            .lines()
            .filter_map(|line| line.strip_prefix(start.as_str()))
            .collect()
    };
    let two = two.to_string();
    assert_eq!(cores("doorbell-oob"), [two.as_str(); 4], "{shown}");
    let others = cores("oob-v0");
    assert!(others.len() == 4 && !others.contains(&two.as_str()), "{shown}");
}
