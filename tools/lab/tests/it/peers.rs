//! `doorbell-lab compare-peers` from outside: beside the peers that are installed, and beside peers that
//! misbehave.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::sentence;
use crate::lab;
use crate::picture::Picture;
use doorbell_testing::skipped;

fn report(text: &[u8]) -> Value {
    let report: Value = serde_json::from_slice(text).unwrap();
    let schema = include_str!("../../../../bench/schema/compare-peers-2.schema.json");
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let faults: Vec<String> = schema
        .iter_errors(&report)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:?}");
    report
}

/// Why no namespace can be made here, in which peers may listen.
fn lacking() -> Option<String> {
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    let tried = unshare.args([
        "--net",
        "--mount",
        "sh",
        "-c",
        "mount -t sysfs sysfs /sys && ip link set lo up",
    ]);
    match tried.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "no network namespace here: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .any(|folder| Path::new(folder).join(program).is_file())
}

/// Why nothing can be compared here.
pub(crate) fn alone(cores: usize) -> Option<String> {
    (cores < 2)
        .then(|| "two processes need a core each".to_owned())
        .or_else(lacking)
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A program of this name that is a shell script, in a folder that comes first on the PATH.
fn fake(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn path_with(folder: &Path) -> String {
    format!(
        "{}:{}",
        folder.display(),
        std::env::var("PATH").unwrap_or_default()
    )
}

#[test]
fn peers_that_are_not_here_are_named_with_their_packages() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().display().to_string();
    let listed = lab()
        .args(["compare-peers", "--list"])
        .env("PATH", &nowhere)
        .output()
        .unwrap();
    assert!(listed.status.success());
    let text = String::from_utf8(listed.stdout).unwrap();
    for package in [
        "openmpi-bin libopenmpi-dev",
        "mpich libmpich-dev",
        "ucx-utils",
        "libfabric-bin",
    ] {
        assert!(text.contains(&format!("apt-get install {package}")), "{text}");
    }
    let none = lab().arg("compare-peers").env("PATH", &nowhere).output().unwrap();
    assert_eq!(none.status.code(), Some(2));
    assert!(sentence(&none.stderr).contains("no peer to compare with"));
}

#[test]
fn peers_of_a_folder_are_listed_beside_those_of_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let (path, peers) = (folder.path().join("path"), folder.path().join("peers"));
    let packages = peers.join("ucx/lib/python3.11/site-packages/libucx/bin");
    let intel = peers.join("intel-mpi/bin");
    for folder in [&path, &packages, &intel] {
        fs::create_dir_all(folder).unwrap();
    }
    for (folder, version) in [(&path, "1.13.1"), (&packages, "1.22.0")] {
        fake(folder, "ucx_perftest", "exit 1");
        fake(
            folder,
            "ucx_info",
            &format!("echo '# Library version: {version}'"),
        );
    }
    // As Intel MPI 2021.19 prints it; its libraries are found by a variable.
    let launcher =
        "echo \"Intel(R) MPI Library for Linux* OS, Version 2021.19 Build 20260929 (id: $I_MPI_ROOT)\"";
    fake(&intel, "mpiexec.hydra", launcher);
    fake(
        &intel,
        "mpicc",
        "echo 'mpigcc for the Intel(R) MPI Library 2021.19 for Linux*'",
    );
    let listed = lab()
        .args(["compare-peers", "--list", "--peers-from"])
        .arg(&peers)
        .env("PATH", &path)
        .output()
        .unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.status.success(), "{text}");
    let line = |start: &str| {
        let found = text.lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("{start}: {text}")).to_owned()
    };
    assert!(line("UCX 1.22.0").ends_with("libucx/bin/ucx_perftest"), "{text}");
    assert!(line("UCX 1.13.1").ends_with("path/ucx_perftest"), "{text}");
    assert!(line("Intel MPI ").contains("2021.19"), "{text}");
    assert!(
        line("Open MPI ").contains("apt-get install openmpi-bin"),
        "{text}"
    );
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    for (arguments, word) in [
        (&["--rail", "udp"][..], "--network"),
        (&["--network", "--rail", "udp:eth0"], "--rail udp"),
        (&["--network", "--rail", "nosuch"], "nosuch"),
        (&["--loss", "0"], "percent"),
        (&["--cores", "0,0"], "two different cores"),
        (&["--json", "/nonexistent/x.json"], "--json"),
        (&["--osu", "/nonexistent", "--only", "osu"], "cannot be opened"),
        (&["--only", "nosuch"], "open-mpi"),
        (&["--only", "osu"], "add `--osu DIR`"),
        (&["--peers-from", "/nonexistent"], "cannot be opened"),
        (
            &["--peers-from", "/proc/self/net"],
            "there is no peer in this folder",
        ),
        (&["--markdown", "/nonexistent/x.md"], "--markdown"),
        (&["--loss", "1", "--sizes", "8"], "`--sizes`"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fake(folder.path(), "ucx_perftest", "exit 1");
        let refused = lab()
            .arg("compare-peers")
            .args(arguments)
            .env("PATH", path_with(folder.path()))
            .output()
            .unwrap();
        let said = sentence(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}

#[test]
fn peers_that_hang_die_or_print_rubbish_are_rows_with_the_reason() {
    if let Some(why) = alone(cores()) {
        return skipped(
            "peers_that_hang_die_or_print_rubbish_are_rows_with_the_reason",
            &why,
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join("left");
    // Hangs, and what it started in a session of its own would go on.
    let hangs = format!(
        "setsid sh -c 'while :; do sleep 0.1; touch {}; done' & sleep 1000",
        left.display()
    );
    fake(folder.path(), "ucx_perftest", &hangs);
    fake(folder.path(), "ucx_info", "echo '# Version 7.7.7'");
    // Dies before it listens.
    fake(
        folder.path(),
        "fi_pingpong",
        "echo 'fi_getinfo: -61' >&2; exit 61",
    );
    fake(folder.path(), "fi_info", "echo 'fi_info: 6.6.6'");
    // Prints without end, and nothing that can be parsed.
    let rubbish = "case \"$1\" in --version) echo 'mpirun (Open MPI) 9.9.9';; *) \
                   head -c 3000000 /dev/urandom; echo; echo row latency bytes=8 mean_ns=NaN;; esac";
    fake(folder.path(), "mpirun.openmpi", rubbish);
    fake(
        folder.path(),
        "mpicc.openmpi",
        "case \"$1\" in --showme:version) echo 'mpicc: Open MPI 9.9.9 (Language: C)';; *) while [ \"$1\" != -o ]; do shift; done; echo >\"$2\";; esac",
    );
    let begun = Instant::now();
    let ended = lab()
        .args([
            "compare-peers",
            "--rounds",
            "1",
            "--seconds",
            "0.02",
            "--sizes",
            "8",
            "--timeout",
            "2",
        ])
        .args([
            "--only",
            "ucx",
            "--only",
            "libfabric",
            "--only",
            "open-mpi",
            "--json",
            "-",
        ])
        .env("PATH", path_with(folder.path()))
        .output()
        .unwrap();
    let said = sentence(&ended.stderr);
    // None of them could be compared.
    assert_eq!(ended.status.code(), Some(6), "{said}");
    assert!(said.contains("nothing could be compared"), "{said}");
    let report = report(&ended.stdout);
    let why = |what: &str| -> String {
        let skipped = report["skipped"].as_array().unwrap();
        let row = skipped
            .iter()
            .find(|row| row["failed"] == true && row["what"].as_str().unwrap().starts_with(what));
        row.unwrap_or_else(|| panic!("{what}: {skipped:?}"))["why"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(
        why("UCX, latency").contains("did not listen"),
        "{}",
        why("UCX, latency")
    );
    assert!(
        why("libfabric shm, latency").contains("fi_getinfo: -61"),
        "{}",
        why("libfabric shm, latency")
    );
    let rubbish = why("Open MPI sm, latency");
    assert!(rubbish.contains("without a readable figure"), "{rubbish}");
    assert!(
        report["turns"]["failed"].as_u64() >= Some(3),
        "{}",
        report["turns"]
    );
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    // Nothing of what hung goes on.
    let _ = fs::remove_file(&left);
    std::thread::sleep(Duration::from_millis(400));
    assert!(!left.exists(), "what a peer started is still running");
}

#[test]
fn an_interrupted_comparison_ends_what_it_started() {
    if let Some(why) = alone(cores()) {
        return skipped("an_interrupted_comparison_ends_what_it_started", &why);
    }
    let folder = tempfile::tempdir().unwrap();
    let (begun, left) = (folder.path().join("begun"), folder.path().join("left"));
    let hangs = format!(
        "touch {}; while :; do sleep 0.1; touch {}; done",
        begun.display(),
        left.display()
    );
    fake(folder.path(), "ucx_perftest", &hangs);
    let mut child = Command::new(env!("CARGO_BIN_EXE_doorbell-lab"))
        .args(["compare-peers", "--quick", "--only", "ucx", "--sizes", "8"])
        .env("PATH", path_with(folder.path()))
        .spawn()
        .unwrap();
    let since = Instant::now();
    while !begun.exists() && since.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.exists(), "the peer was never started");
    let group = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(group, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let _ = fs::remove_file(&left);
    std::thread::sleep(Duration::from_millis(400));
    assert!(!left.exists(), "the peer is still running");
}

#[test]
fn installed_peers_are_compared_and_the_page_can_be_looked_at() {
    const TEST: &str = "installed_peers_are_compared_and_the_page_can_be_looked_at";
    if let Some(why) = alone(cores()) {
        return skipped(TEST, &why);
    }
    let peers = [
        ("ucx_perftest", "ucx-utils"),
        ("fi_pingpong", "libfabric-bin"),
        ("mpirun.openmpi", "openmpi-bin"),
        ("mpicc.openmpi", "libopenmpi-dev"),
    ];
    if let Some((program, package)) = peers.into_iter().find(|(program, _)| !on_path(program)) {
        return skipped(TEST, &format!("package {package}: {program} not found"));
    }
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("peers.html");
    let ended = lab()
        .args(["compare-peers", "--quick", "--sizes", "8,64Ki", "--json", "-"])
        .arg("--html")
        .arg(&page)
        .timeout(Duration::from_secs(400))
        .output()
        .unwrap();
    let said = sentence(&ended.stderr);
    assert!(
        ended_well(ended.status.code(), &said),
        "{:?}: {said}",
        ended.status
    );
    let report = report(&ended.stdout);
    let rows = report["results"].as_array().unwrap();
    let left_out = report["skipped"].as_array().unwrap();
    // Which shared memory Open MPI has depends on its release.
    for stack in ["doorbell", "UCX", "libfabric shm", "Open MPI "] {
        let row = rows
            .iter()
            .find(|row| row["stack"].as_str().unwrap().starts_with(stack) && row["kind"] == "latency");
        // On a machine whose cores move all the time it may be that no turn counts; the report lists that
        // then.
        let told = left_out.iter().any(|row| {
            row["what"].as_str().unwrap().starts_with(stack)
                && row["why"].as_str().unwrap().contains("none of its turns")
        });
        match row {
            Some(row) => assert!(row["figure"]["median"].as_f64() > Some(10.0), "{row}"),
            None => assert!(told, "{stack}: {left_out:?}"),
        }
    }
    if !on_path("chromium") {
        return skipped(TEST, "package chromium: chromium not found");
    }
    look_at(&page, folder.path());
}

/// Whether a comparison ended as one does: with a verdict, or, on a machine whose cores move all the time,
/// without any turns that could be compared.
fn ended_well(code: Option<i32>, said: &str) -> bool {
    let moved = said.contains("none of its turns counted") || said.contains("in the same band");
    matches!(code, Some(0 | 1)) || code == Some(6) && moved
}

/// Runs it without the programs that make a namespace; the report and the exit status.
fn without_namespaces(script: &str, words: &[&str]) -> (Value, Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    fake(folder.path(), "ucx_perftest", script);
    let ended = lab()
        .args([
            "compare-peers",
            "--rounds",
            "1",
            "--seconds",
            "0.02",
            "--sizes",
            "8",
            "--only",
            "ucx",
            "--json",
            "-",
        ])
        .args(words)
        .env("PATH", folder.path())
        .output()
        .unwrap();
    (
        report(&ended.stdout),
        ended.status.code(),
        sentence(&ended.stderr),
    )
}

#[test]
fn peers_that_would_listen_on_all_addresses_are_rows_with_the_reason() {
    const TEST: &str = "peers_that_would_listen_on_all_addresses_are_rows_with_the_reason";
    if cores() < 2 {
        return skipped(TEST, "two processes need a core each");
    }
    let (report, code, said) = without_namespaces("exit 1", &[]);
    let rows = report["skipped"].as_array().unwrap();
    let row = rows.iter().find(|row| row["what"] == "UCX, shared memory");
    let why = row.unwrap_or_else(|| panic!("{rows:?}"))["why"].as_str().unwrap();
    assert!(
        why.contains("connections from all users and hosts") && why.contains("unshare"),
        "{why}"
    );
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("nothing could be compared: UCX"), "{said}");
}

#[test]
fn losses_between_two_namespaces_are_compared_with_the_lossless_run() {
    const TEST: &str = "losses_between_two_namespaces_are_compared_with_the_lossless_run";
    if let Some(why) = alone(cores()) {
        return skipped(TEST, &why);
    }
    for (program, package) in [
        ("ucx_perftest", "ucx-utils"),
        ("ip", "iproute2"),
        ("nft", "nftables"),
    ] {
        if !on_path(program) {
            return skipped(TEST, &format!("package {package}: {program} not found"));
        }
    }
    let ended = lab()
        .args([
            "compare-peers",
            "--loss",
            "2",
            "--only",
            "ucx",
            "--rounds",
            "1",
            "--seconds",
            "0.05",
            "--json",
            "-",
        ])
        .timeout(Duration::from_secs(300))
        .output()
        .unwrap();
    let said = sentence(&ended.stderr);
    assert!(
        ended_well(ended.status.code(), &said),
        "{:?}: {said}",
        ended.status
    );
    let report = report(&ended.stdout);
    let rows = report["results"].as_array().unwrap();
    let left_out = report["skipped"].as_array().unwrap();
    let told = left_out
        .iter()
        .any(|row| row["why"].as_str().unwrap().contains("none of its turns"));
    for kind in ["latency", "stream"] {
        let row = rows
            .iter()
            .find(|row| row["setting"] == "loss" && row["stack"] == "doorbell udp" && row["kind"] == kind);
        match row {
            Some(row) => {
                assert_eq!(row["loss_percent"], 2.0);
                assert!(told || row["against_lossless"].as_f64() > Some(0.0), "{row}");
            }
            None => assert!(told, "{kind}: {left_out:?}"),
        }
    }
}

/// Opens a page as a person would, and looks at it.
fn look_at(page: &Path, folder: &Path) {
    let shot = folder.join("page.png");
    let shown = assert_cmd::Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1200,3000",
        ])
        .args(["--enable-logging=stderr", "--v=0"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("--screenshot={}", shot.display()))
        .arg(format!("file://{}", page.display()))
        .timeout(Duration::from_secs(90))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&shown.stderr);
    // What a page does wrong is logged by its console.
    assert!(!said.contains("CONSOLE"), "{said}");
    let picture = Picture::read(&fs::read(&shot).unwrap_or_else(|error| panic!("{error}: {said}")));
    assert_eq!((picture.width, picture.height), (1200, 3000));
    assert!(picture.colours() > 50, "{} colours", picture.colours());
    let inked = picture.inked();
    assert!((0.01..0.6).contains(&inked), "{inked} of the page is not white");
}
