//! `doorbell run --hosts` through OpenSSH: a real `sshd` on two addresses of the loopback, with keys of its
//! own.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::sentence;
use crate::launchers::{MARK, allgather, gathered, marked, on_path, run, text};
use doorbell_testing::skipped;

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
/// The addresses of the hosts.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];

/// A server, ended with it, and what a client needs.
struct Door {
    folder: TempDir,
    server: Child,
    port: u16,
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Where `sshd` is: it must be called by its whole path.
fn sshd() -> Option<&'static Path> {
    ["/usr/sbin/sshd", "/usr/local/sbin/sshd"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.is_file())
}

fn keygen(to: &Path) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(to)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
}

impl Door {
    /// Starts the server; `None` where there is no `sshd`, which is reported as skipped.
    fn open(test: &str) -> Option<Self> {
        let Some(program) = sshd().filter(|_| on_path("ssh") && on_path("ssh-keygen")) else {
            skipped(test, "package openssh-server: sshd not found");
            return None;
        };
        // As root it gives up its rights in this folder, which its service makes elsewhere.
        if rustix::process::geteuid().is_root() {
            std::fs::create_dir_all("/run/sshd").unwrap();
        }
        let folder = tempfile::Builder::new()
            .prefix("doorbell-ssh-")
            .tempdir()
            .unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["host", "ours", "strange"] {
            keygen(&at(name));
        }
        std::fs::copy(at("ours.pub"), at("authorized")).unwrap();
        let port = TcpListener::bind((ADDRESSES[0], 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let listen = ADDRESSES
            .map(|address| format!("ListenAddress {address}:{port}\n"))
            .concat();
        let place = folder.path().display();
        let configuration = format!(
            "{listen}HostKey {place}/host\nAuthorizedKeysFile {place}/authorized\nPidFile none\nStrictModes no\n\
             UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        );
        std::fs::write(at("sshd_config"), configuration).unwrap();
        let known = std::fs::read_to_string(at("host.pub")).unwrap();
        let known = ADDRESSES
            .map(|address| format!("[{address}]:{port} {known}"))
            .concat();
        std::fs::write(at("known"), known).unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let log = std::fs::File::create(at("log")).unwrap();
        let server = Command::new(program)
            .args(["-D", "-e", "-f"])
            .arg(at("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut door = Self { folder, server, port };
        let until = Instant::now() + LIMIT;
        while ADDRESSES
            .iter()
            .any(|&address| TcpStream::connect((address, port)).is_err())
        {
            let ended = door.server.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < until,
                "{ended:?}: {}",
                door.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(door)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A job of four ranks, two on each address, with this key.
    fn job(&self, key: &str, mark: &str) -> Command {
        let place = self.folder.path().display();
        let shell = format!(
            "ssh -F none -o BatchMode=yes -o UserKnownHostsFile={place}/known -o IdentitiesOnly=yes -i {place}/{key} -p {}",
            self.port
        );
        let [one, two] = ADDRESSES;
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("doorbell"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DOORBELL_") {
                command.env_remove(name);
            }
        }
        command
            .args([
                "run",
                "-n",
                "4",
                "--no-prefix",
                "--nic",
                "127.0.0.0/8",
                "--rsh",
                &shell,
            ])
            .args(["--hosts", &format!("{one}:2,{two}:2"), "--env", MARK, "--"])
            .env(MARK, mark)
            .stdin(Stdio::null());
        command
    }
}

/// What marks the processes of a test.
fn mark() -> String {
    format!("ssh-{}-{:?}", std::process::id(), Instant::now())
}

fn nothing_is_left(mark: &str) {
    let until = Instant::now() + LIMIT;
    while !marked(mark, "PMI_RANK").is_empty() {
        assert!(Instant::now() < until, "{:?} is left", marked(mark, "PMI_RANK"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ranks_that_sshd_started_meet_and_gather() {
    let Some(door) = Door::open("ranks_that_sshd_started_meet_and_gather") else {
        return;
    };
    let mark = mark();
    let mut command = door.job("ours", &mark);
    command.arg(allgather());
    gathered(&run(command), 4, &door.log());
    let mut command = door.job("ours", &mark);
    command.args([
        "sh",
        "-c",
        "echo $PMI_RANK from ${SSH_CONNECTION%% *}; test $PMI_RANK != 3 || exit 9",
    ]);
    let ended = run(command);
    let mut lines: Vec<String> = text(&ended.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(ended.status.code(), Some(9), "{}", text(&ended.stderr));
    assert!(
        sentence(&ended.stderr).contains("on host 127.0.0.2"),
        "{}",
        text(&ended.stderr)
    );
    // Those that wrote before the fourth ended the job; each was started by the server.
    assert!(
        lines.iter().all(|line| line.contains(" from 127.0.0.")),
        "{lines:?}"
    );
    nothing_is_left(&mark);
}

#[test]
fn a_user_unknown_to_sshd_gets_its_error() {
    let Some(door) = Door::open("a_user_unknown_to_sshd_gets_its_error") else {
        return;
    };
    let mark = mark();
    let mut command = door.job("strange", &mark);
    command.arg("true");
    let ended = run(command);
    let all = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(4), "{all}");
    assert!(all.contains("Permission denied"), "ssh's own words: {all}");
    assert!(sentence(&ended.stderr).contains("is lost: `ssh"), "{all}");
    nothing_is_left(&mark);
}

#[test]
fn a_launcher_that_is_killed_leaves_nothing_behind_sshd() {
    let Some(door) = Door::open("a_launcher_that_is_killed_leaves_nothing_behind_sshd") else {
        return;
    };
    let mark = mark();
    let mut command = door.job("ours", &mark);
    command
        .args(["sleep", "300"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut launcher = command.spawn().unwrap();
    let until = Instant::now() + LIMIT;
    let ranks = || {
        let all = marked(&mark, "PMI_RANK").into_iter();
        all.filter(|(_, name, rank)| name == "sleep" && rank.is_some())
            .count()
    };
    while ranks() < 4 {
        assert!(Instant::now() < until, "{}", door.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = Pid::from_raw(i32::try_from(launcher.id()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    launcher.wait().unwrap();
    nothing_is_left(&mark);
}
