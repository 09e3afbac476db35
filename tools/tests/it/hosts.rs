//! `doorbell key`, `--serve` and `--connect`: real processes, over loopback and between network namespaces as
//! hosts.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::oob::{Connection, JobKey};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{doorbell, lab_program, sentence};
use doorbell_testing::netns::{INTERFACE, Lab};

/// Nothing here takes as long, on however busy a machine.
pub(crate) const AMPLE: Duration = Duration::from_secs(60);
/// What is noticed within 20 ms is noticed within this time also when ten others want the core.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// A measurement that is over at once.
pub(crate) const SHORT: [&str; 4] = ["--sizes", "8", "--samples", "50"];
/// One that is not over before it is ended.
pub(crate) const LONG: [&str; 4] = ["--sizes", "8", "--seconds", "600"];

/// The program, on one of the hosts of a lab or on this one, without any setting of the environment it is
/// tested in.
pub(crate) fn at(host: Option<&str>, words: &[&str]) -> Command {
    program_at(Path::new(env!("CARGO_BIN_EXE_doorbell")), host, words)
}

/// Returns the command `doorbell-lab` at a host, as [`at`] does for `doorbell`.
pub(crate) fn lab_at(host: Option<&str>, words: &[&str]) -> Command {
    program_at(&lab_program(), host, words)
}

fn program_at(program: &Path, host: Option<&str>, words: &[&str]) -> Command {
    let mut command = match host {
        None => Command::new(program),
        Some(name) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name]).arg(program);
            command
        }
    };
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.to_string_lossy().starts_with("DOORBELL_")) {
        command.env_remove(name);
    }
    command.env("COLUMNS", "200").args(words).stdin(Stdio::null());
    command
}

/// A process that ends with the test, and whose output is read line by line.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    heard: Vec<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, lines) = channel();
        let streams: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        for stream in streams {
            let tell = tell.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if tell.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Self {
            child,
            lines,
            heard: Vec::new(),
        }
    }

    /// The next line that holds `word`.
    pub(crate) fn says(&mut self, word: &str) -> String {
        self.says_within(word, AMPLE)
    }

    pub(crate) fn says_within(&mut self, word: &str, limit: Duration) -> String {
        let until = Instant::now() + limit;
        loop {
            match self
                .lines
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    self.heard.push(line.clone());
                    assert!(!line.contains("panicked"), "{:#?}", self.heard);
                    if line.contains(word) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("not printed: {word}; {:#?}", self.heard),
                Err(RecvTimeoutError::Disconnected) => panic!("ended without {word}; {:#?}", self.heard),
            }
        }
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit status, which is there within `limit`.
    pub(crate) fn ends(&mut self, limit: Duration) -> Option<i32> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("still there after {limit:?}; {:#?}", self.heard);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A side that serves, and where.
pub(crate) struct Server {
    pub(crate) process: Running,
    pub(crate) address: String,
}

pub(crate) fn serve_at(host: Option<&str>, words: &[&str]) -> Server {
    Server::start(at(host, &[&["pingpong", "--serve"], words].concat()))
}

/// Serves on a free port of this host's loopback.
fn serve(words: &[&str]) -> Server {
    serve_at(None, &[&["--bind", "127.0.0.1:0"], words].concat())
}

impl Server {
    /// By a command with `--serve`.
    pub(crate) fn start(command: Command) -> Self {
        let mut process = Running::start(command);
        let line = process.says("serving on ");
        let address = line["serving on ".len()..]
            .split([',', ';'])
            .next()
            .unwrap()
            .to_owned();
        Self { process, address }
    }

    pub(crate) fn client(&self, host: Option<&str>, kind: &str, words: &[&str]) -> Command {
        at(host, &[&[kind, "--connect", &self.address], words].concat())
    }

    fn measure(&self, kind: &str, words: &[&str]) -> Output {
        finish(self.client(None, kind, words))
    }

    pub(crate) fn says(&mut self, word: &str) -> String {
        self.process.says(word)
    }

    /// Checks that it runs and serves a client.
    pub(crate) fn still_serves(&mut self, words: &[&str]) {
        let started = Instant::now();
        let out = self.measure("pingpong", &[&SHORT, words].concat());
        assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
        assert!(started.elapsed() < 3 * SOON, "{:?}", started.elapsed());
        self.says("connected: process");
        assert!(self.says("disconnected after").ends_with(": done"));
    }
}

pub(crate) fn finish(command: Command) -> Output {
    assert_cmd::Command::from_std(command)
        .timeout(AMPLE)
        .output()
        .unwrap()
}

/// The exit status and the one sentence of a command that fails; behind it there may be what its rails
/// recorded. On a busy machine waits are long, and no notice of one is to stand before the sentence.
pub(crate) fn fails(mut command: Command) -> (Option<i32>, String) {
    if !command
        .get_envs()
        .any(|(name, value)| name == "DOORBELL_QUIET" && value.is_some())
    {
        command.env("DOORBELL_QUIET", "60 s");
    }
    let out = finish(command);
    let said = sentence(&out.stderr);
    let (sentence, recorded) = said.split_once('\n').unwrap_or((&said, ""));
    assert!(recorded.lines().all(|line| line.starts_with("  ")), "{said}");
    (out.status.code(), sentence.to_owned())
}

/// The link-local address of `interface` of a host, as soon as no other one has it.
fn link_local(host: &str, interface: &str) -> String {
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        let mut command = Command::new("ip");
        command.args([
            "-n", host, "-6", "-o", "addr", "show", "dev", interface, "scope", "link",
        ]);
        let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let mut words = shown.split_whitespace();
        if !shown.contains("tentative") && words.any(|word| word == "inet6") {
            return words.next().unwrap().split('/').next().unwrap().to_owned();
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("{host} {interface} has no link-local address");
}

#[test]
fn hosts_meet_at_link_local_addresses() {
    let Some((lab, _folder, key)) = two_hosts("hosts::hosts_meet_at_link_local_addresses") else {
        return;
    };
    let [here, there] = [0, 1].map(|host| link_local(lab.name(host), INTERFACE));
    let (bind, rail) = (
        format!("[{here}%{INTERFACE}]:7200"),
        format!("udp:{here}%{INTERFACE}"),
    );
    let words = ["--bind", &bind, "--rail", &rail, "--key-file", &key];
    let mut server = serve_at(Some(lab.name(0)), &words);
    let rail = format!("udp:{there}%{INTERFACE}");
    let words = [
        "pingpong",
        "--connect",
        &bind,
        "--rail",
        &rail,
        "--key-file",
        &key,
    ];
    let out = finish(at(Some(lab.name(1)), &[&words[..], &SHORT].concat()));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    assert!(server.says("disconnected after").ends_with(": done"));
}

#[test]
fn a_server_without_a_rail_for_others_reports_it_and_its_clients_print_what_to_do() {
    let test = "hosts::a_server_without_a_rail_for_others_reports_it_and_its_clients_print_what_to_do";
    let Some((lab, _folder, key)) = two_hosts(test) else {
        return;
    };
    let mut server = serve_at(Some(lab.name(0)), &["--bind", "10.77.0.1", "--key-file", &key]);
    server.says("no client of another host can be served");
    for rail in [&["--rail", "udp:v0"][..], &[]] {
        let words = [&["--key-file", &key], rail, &SHORT].concat();
        let (code, said) = fails(server.client(Some(lab.name(1)), "pingpong", &words));
        assert!(code == Some(3) && said.contains("--rail udp:INTERFACE"), "{said}");
        server.says("disconnected after");
    }
}

/// Each side cuts messages for its own MTU; what the other one sends may be longer.
#[test]
fn rails_of_unlike_mtu_work_together() {
    for (ours, theirs) in [("800", "auto"), ("auto", "800")] {
        let mut serving = at(
            None,
            &["pingpong", "--serve", "--bind", "127.0.0.1:0", "--rail", "udp:lo"],
        );
        serving.env("DOORBELL_UDP_MTU", theirs);
        let server = Server::start(serving);
        let words = [
            "--sizes",
            "8,100k",
            "--samples",
            "50",
            "--rail",
            "udp:lo",
            "--verify",
        ];
        let mut command = server.client(None, "pingpong", &words);
        command.env("DOORBELL_UDP_MTU", ours);
        let out = finish(command);
        assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    }
}

pub(crate) fn key_in(folder: &Path, name: &str) -> String {
    let path = folder.join(name).display().to_string();
    doorbell().args(["key", &path]).assert().success();
    path
}

#[test]
fn a_key_is_made_once_and_one_that_is_open_to_others_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let key = key_in(folder.path(), "key");
    let mode = || fs::metadata(&key).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o600);
    let first = fs::read(&key).unwrap();
    let (code, said) = fails(at(None, &["key", &key]));
    assert!(code == Some(2) && said.contains("--force"), "{said}");
    assert_eq!(fs::read(&key).unwrap(), first);
    let out = doorbell().args(["key", "--force", &key]).assert().success();
    let told = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    assert!(
        told.contains("scp") && told.contains("--connect") && !told.contains("doorbell-key 1"),
        "{told}"
    );
    assert!(fs::read(&key).unwrap() != first && mode() == 0o600);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    for side in [["--serve", "--bind=127.0.0.1:0"], ["--connect", "127.0.0.1:1"]] {
        let (code, said) = fails(at(None, &[&["pingpong", "--key-file", &key], &side[..]].concat()));
        assert!(
            code == Some(2) && said.contains("0640") && said.contains("chmod 600"),
            "{said}"
        );
    }
    let (code, said) = fails(at(None, &["pingpong", "--key-file", &key]));
    assert!(code == Some(2) && said.contains("--serve"), "{said}");
    let (code, said) = fails(at(None, &["pingpong", "--serve", "--key-file", "/nowhere/key"]));
    assert!(code == Some(2) && said.contains("/nowhere/key"), "{said}");
}

#[test]
fn without_a_key_nothing_but_loopback_is_served_or_called() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1"] {
        let (code, said) = fails(at(None, &["stream", "--serve", "--bind", address]));
        assert!(code == Some(2) && said.contains("doorbell key FILE"), "{said}");
    }
    for address in ["192.0.2.1", "[2001:db8::1]:5"] {
        let started = Instant::now();
        let (code, said) = fails(at(None, &["rate", "--connect", address]));
        assert!(
            code == Some(2) && said.contains("only loopback is used"),
            "{said}"
        );
        assert!(started.elapsed() < SOON);
    }
}

#[test]
fn one_server_serves_every_kind_one_after_another_over_both_families() {
    let folder = tempfile::tempdir().unwrap();
    let key = key_in(folder.path(), "key");
    for (bind, key) in [("127.0.0.1:0", None), ("[::1]:0", Some(&key))] {
        let key: Vec<&str> = key.into_iter().flat_map(|key| ["--key-file", key]).collect();
        let mut server = serve_at(None, &[&["--bind", bind, "--rail", "shm"], &key[..]].concat());
        for kind in ["pingpong", "stream", "rate"] {
            let words = [
                &SHORT[..],
                &["--rail", "shm", "--verify", "--json", "-"],
                &key[..],
            ]
            .concat();
            let out = server.measure(kind, &words);
            assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
            let report = String::from_utf8(out.stdout).unwrap();
            // Its options rule.
            for part in [
                &format!("\"kind\":\"{kind}\""),
                "\"rail\":\"shm\"",
                "\"bytes\":8",
                "\"lost\":0",
            ] {
                let found = report.replace(": ", ":").contains(part);
                assert!(found, "{part}: {report}");
            }
            assert!(
                report.contains("the two ranks are programs of their own"),
                "{report}"
            );
            server.says("connected: process");
            assert!(server.says("disconnected after").ends_with(": done"));
        }
    }
}

#[test]
fn another_key_or_none_is_reported_on_both_sides_and_the_next_client_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| key_in(folder.path(), name));
    let mut server = serve(&["--key-file", &one]);
    let (code, said) = fails(server.client(None, "rate", &["--key-file", &other]));
    assert!(code == Some(2) && said.contains("a different key"), "{said}");
    assert!(said.contains(&server.address), "{said}");
    assert!(server.says("was refused").contains("a different key"));
    let (code, said) = fails(server.client(None, "rate", &[]));
    assert!(code == Some(2) && said.contains("--key-file"), "{said}");
    assert!(server.says("was refused").contains("has none"));
    server.still_serves(&["--key-file", &one]);
    let mut server = serve(&[]);
    let (code, said) = fails(server.client(None, "rate", &["--key-file", &one]));
    assert!(code == Some(2) && said.contains("--key-file"), "{said}");
    server.says("was refused");
    server.still_serves(&[]);
}

#[test]
fn strangers_and_their_garbage_keep_no_client_out() {
    let mut server = serve(&[]);
    let stranger = |words: &[u8]| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(words).unwrap();
        stream
    };
    // Clients of another protocol, clients that stop in the middle, and more of them than there is room for.
    let mut crowd = vec![stranger(b"GET / HTTP/1.1\r\n\r\n"), stranger(&[0xff; 4096])];
    crowd.extend((0..100).map(|_| stranger(b"bell-oo")));
    crowd.extend((0..10).map(|_| stranger(b"")));
    // One head with a length that is not, and one with garbage behind it.
    crowd.push(stranger(b"bell-oob\x01\x00\x01\x00\x01\x00\xff\xff"));
    crowd.push(stranger(
        &[&b"bell-oob\x01\x00\x01\x00\x01\x00\x38\x00"[..], &[7; 56]].concat(),
    ));
    assert!(
        server
            .says("was refused")
            .contains("does not speak doorbell's protocol")
    );
    server.still_serves(&[]);
    drop(crowd);
    server.still_serves(&[]);
}

#[test]
fn a_client_of_another_version_or_without_manners_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = key_in(folder.path(), "key");
    let key = JobKey::read(Path::new(&path)).unwrap();
    let mut server = serve(&["--key-file", &path]);
    let call = |word: &[u8]| {
        let terms = doorbell::terms(Some(key.clone())).unwrap();
        let mut call = Connection::connect(&server.address.parse().unwrap(), &terms, AMPLE).unwrap();
        call.send(word, AMPLE).unwrap();
        call
    };
    let mut other = call(br#"{"hello":{"version":"99.0.0","news":{}}}"#);
    // What the client receives: our hello, and the reason of the refusal.
    let heard = [other.receive(AMPLE).unwrap(), other.receive(AMPLE).unwrap()].concat();
    assert!(String::from_utf8_lossy(&heard).contains("rank 0 runs 99.0.0"));
    let line = server.process.says("disconnected after");
    assert!(line.contains("rank 0 runs 99.0.0"), "{line}");
    let rude = call(b"[[[");
    let line = server.process.says("disconnected after");
    assert!(line.contains("could not meet"), "{line}");
    drop(rude);
    server.still_serves(&["--key-file", &path]);
}

#[test]
fn a_silent_client_is_not_waited_for_forever() {
    let mut command = at(None, &["pingpong", "--serve", "--bind", "127.0.0.1:0"]);
    command.env("DOORBELL_JOB_TIMEOUT", "200 ms");
    let mut process = Running::start(command);
    let line = process.says("serving on ");
    let address = line["serving on ".len()..].split(',').next().unwrap().to_owned();
    let terms = doorbell::terms(None).unwrap();
    let silent = Connection::connect(&address.parse().unwrap(), &terms, AMPLE).unwrap();
    let line = process.says_within("disconnected after", SOON);
    assert!(line.contains("did not answer within 0.2 s"), "{line}");
    drop(silent);
}

#[test]
fn a_killed_client_is_noticed_and_the_next_one_is_served() {
    let mut server = serve(&["--rail", "shm"]);
    for signal in [Signal::KILL, Signal::INT] {
        let mut client =
            Running::start(server.client(None, "pingpong", &[&LONG[..], &["--rail", "shm"]].concat()));
        server.says("connected: process");
        client.signal(signal);
        let line = server.process.says_within("disconnected after", SOON);
        assert!(line.contains("rank 0 is lost"), "{line}");
        client.ends(SOON);
        server.still_serves(&["--rail", "shm"]);
    }
}

#[test]
fn a_stopped_client_is_not_waited_for_longer_than_the_deadline() {
    let mut command = at(None, &["pingpong", "--serve", "--bind", "127.0.0.1:0"]);
    command.env("DOORBELL_DEADLINE", "1 s");
    let mut process = Running::start(command);
    let line = process.says("serving on ");
    let address = line["serving on ".len()..].split(',').next().unwrap().to_owned();
    let client = Running::start(at(
        None,
        &[&["pingpong", "--connect", &address], &LONG[..]].concat(),
    ));
    process.says("connected: process");
    thread::sleep(Duration::from_millis(300));
    client.signal(Signal::STOP);
    let line = process.says_within("disconnected after", SOON);
    assert!(line.contains("deadline passed"), "{line}");
    client.signal(Signal::CONT);
}

#[test]
fn a_killed_server_ends_its_client_and_an_interrupted_one_ends_well() {
    for (signal, code) in [
        (Signal::KILL, None),
        (Signal::INT, Some(0)),
        (Signal::TERM, Some(0)),
    ] {
        let mut server = serve(&[]);
        let mut client = Running::start(server.client(None, "pingpong", &LONG));
        server.says("connected: process");
        server.process.signal(signal);
        assert_eq!(client.ends(SOON), Some(4));
        client.says("rank 1 is lost");
        assert_eq!(server.process.ends(SOON), code);
    }
    let mut idle = serve(&[]);
    idle.process.signal(Signal::INT);
    assert_eq!(idle.process.ends(SOON), Some(0));
}

#[test]
fn a_client_that_comes_while_another_is_served_waits_and_is_served_then() {
    let mut server = serve(&[]);
    let first = Running::start(server.client(None, "pingpong", &LONG));
    server.says("connected: process");
    let mut second = Running::start(server.client(None, "rate", &SHORT));
    let told = second.says("is occupied");
    assert!(told.contains("is being served"), "{told}");
    first.signal(Signal::KILL);
    assert_eq!(second.ends(AMPLE), Some(0));
    server.says("rank 0 is lost");
    assert!(server.says("disconnected after").ends_with(": done"));
}

#[test]
fn once_means_one_measurement_and_its_exit_status() {
    let mut server = serve(&["--once"]);
    // Strangers do not count.
    drop(TcpStream::connect(&server.address).unwrap());
    assert_eq!(server.measure("rate", &SHORT).status.code(), Some(0));
    assert_eq!(server.process.ends(SOON), Some(0));
    let mut server = serve(&["--once"]);
    let client = Running::start(server.client(None, "pingpong", &LONG));
    server.says("connected: process");
    client.signal(Signal::KILL);
    assert_eq!(server.process.ends(SOON), Some(4));
}

#[test]
fn rails_that_do_not_fit_are_refused_on_the_side_that_knows() {
    let (code, said) = fails(at(None, &["pingpong", "--serve", "--rail", "verbs:mlx5_9:1"]));
    assert!(code == Some(3) && said.contains("verbs:mlx5_9:1"), "{said}");
    let mut server = serve(&["--rail", "udp:lo"]);
    let (code, said) = fails(server.client(None, "pingpong", &["--rail", "shm"]));
    assert!(code == Some(3) && said.contains("shm"), "{said}");
    assert!(server.says("disconnected after").contains("udp:lo"));
    let (code, said) = fails(server.client(None, "pingpong", &["--rail", "verbs:mlx5_9:1"]));
    assert!(code == Some(3) && said.contains("verbs:mlx5_9:1"), "{said}");
    server.still_serves(&["--rail", "udp:lo"]);
}

#[test]
fn wrong_use_and_a_missing_server_are_one_sentence_each() {
    let (code, said) = fails(at(None, &["pingpong", "--connect", "127.0.0.1:1"]));
    assert!(
        code == Some(6) && said.contains("nothing listens there"),
        "{said}"
    );
    let server = serve(&[]);
    let (code, said) = fails(at(None, &["pingpong", "--serve", "--bind", &server.address]));
    assert!(code == Some(6) && said.contains("ss -ltnp"), "{said}");
    let (code, said) = fails(at(None, &["pingpong", "--serve", "--hgrm", "/tmp/x"]));
    assert!(code == Some(2) && said.contains("side that connects"), "{said}");
    let mut rank = at(None, &["pingpong", "--serve"]);
    rank.env("DOORBELL_RANK", "0");
    let (code, said) = fails(rank);
    assert!(code == Some(2) && said.contains("doorbell run"), "{said}");
}

/// Two hosts, and a key that both have.
pub(crate) fn two_hosts(test: &str) -> Option<(Lab, tempfile::TempDir, String)> {
    let lab = Lab::pair(&format!("doorbell::it::{test}"), 1500)?;
    let folder = tempfile::tempdir().unwrap();
    let key = key_in(folder.path(), "key");
    Some((lab, folder, key))
}

#[test]
fn two_hosts_measure_over_udp_and_both_families() {
    let Some((lab, _folder, key)) = two_hosts("hosts::two_hosts_measure_over_udp_and_both_families") else {
        return;
    };
    for (bind, family) in [("10.77.0.1", "ipv4"), ("[fd77::1]:7200", "ipv6")] {
        let words = ["--bind", bind, "--rail", "udp:v0", "--key-file", &key];
        let mut command = at(
            Some(lab.name(0)),
            &[&["pingpong", "--serve"], &words[..]].concat(),
        );
        command.env("DOORBELL_UDP_FAMILY", family);
        let mut process = Running::start(command);
        assert!(
            process
                .says("serving on")
                .contains("for clients with the key; rail udp:v0")
        );
        for kind in ["pingpong", "stream", "rate"] {
            let words = [
                kind,
                "--connect",
                bind,
                "--rail",
                "udp:v0",
                "--key-file",
                &key,
                "--verify",
            ];
            let mut client = at(Some(lab.name(1)), &[&words[..], &SHORT].concat());
            client.env("DOORBELL_UDP_FAMILY", family);
            let out = finish(client);
            assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
            assert!(String::from_utf8_lossy(&out.stdout).contains("udp:v0, inline: it was named"));
            let came = process.says("connected: process");
            assert!(
                came.ends_with("over udp:v0")
                    && came.contains(if family == "ipv4" { "10.77.0.2" } else { "fd77::2" })
            );
            assert!(process.says("disconnected after").ends_with(": done"));
        }
    }
}

#[test]
fn two_hosts_share_no_memory_and_trust_no_process_without_the_key() {
    let Some((lab, folder, key)) =
        two_hosts("hosts::two_hosts_share_no_memory_and_trust_no_process_without_the_key")
    else {
        return;
    };
    let other = key_in(folder.path(), "other");
    let mut server = serve_at(Some(lab.name(0)), &["--bind", "10.77.0.1:0", "--key-file", &key]);
    // Both run on one kernel here, and still are two hosts.
    let words = ["--rail", "shm", "--key-file", &key];
    let (code, said) = fails(server.client(Some(lab.name(1)), "pingpong", &words));
    assert!(code == Some(3) && said.contains("on different hosts"), "{said}");
    server.says("disconnected after");
    let (code, said) = fails(server.client(Some(lab.name(1)), "pingpong", &["--key-file", &other]));
    assert!(code == Some(2) && said.contains("a different key"), "{said}");
    server.says("was refused");
    let (code, said) = fails(server.client(Some(lab.name(1)), "pingpong", &[]));
    assert!(code == Some(2) && said.contains("only loopback"), "{said}");
    let garbage = lab.inside(1, || {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(&[0xa5; 1000]).unwrap();
        stream
    });
    assert!(server.says("was refused").contains("protocol"));
    drop(garbage);
}

#[test]
fn the_end_of_either_host_is_noticed_by_the_other() {
    let Some((lab, _folder, key)) = two_hosts("hosts::the_end_of_either_host_is_noticed_by_the_other") else {
        return;
    };
    let words = ["--rail", "udp:v0", "--key-file", &key];
    let mut server = serve_at(
        Some(lab.name(0)),
        &[&["--bind", "10.77.0.1:0"], &words[..]].concat(),
    );
    let client = |server: &Server| {
        Running::start(server.client(Some(lab.name(1)), "pingpong", &[&LONG[..], &words].concat()))
    };
    let killed = client(&server);
    server.says("connected: process");
    killed.signal(Signal::KILL);
    let line = server.process.says_within("disconnected after", SOON);
    assert!(line.contains("rank 0 is lost"), "{line}");
    let mut left = client(&server);
    server.says("connected: process");
    server.process.signal(Signal::KILL);
    assert_eq!(left.ends(SOON), Some(4));
    left.says("rank 1 is lost");
}
