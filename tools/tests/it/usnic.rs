//! The whole story of a usnic rail without hardware: a model, an agent of its physical function, and two processes, each with a function
//! of its own; and what remains of it when the agent goes.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;

fn doorbell(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    // Three busy processes on two cores would wait for each other.
    command
        .current_dir(folder)
        .env("DOORBELL_WAIT", "sleep")
        .args(words);
    command
}

/// A program that is ready when it has said its first line.
struct Service {
    child: Child,
    said: String,
}

impl Service {
    fn start(folder: &Path, words: &[&str]) -> Self {
        let mut child = doorbell(folder, words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        // It goes on talking to nobody.
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        Self { child, said }
    }

    fn end(&mut self) -> Option<i32> {
        let id = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(id, Signal::TERM);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The port in "serving on 127.0.0.1:PORT, ...".
fn port(said: &str) -> String {
    let digits = said.split("127.0.0.1:").nth(1).unwrap_or_default();
    digits.chars().take_while(char::is_ascii_digit).collect()
}

/// A measurement between two processes with these rails, under way.
fn measured(
    folder: &Path,
    theirs: &[&str],
    ours: &[&str],
    more: impl FnOnce(&mut Command),
) -> (Service, Child) {
    let with = |rails: &[&str]| -> Vec<String> {
        let words = rails.iter().flat_map(|rail| ["--rail", rail]);
        words.map(str::to_owned).collect()
    };
    let theirs = with(theirs);
    let mut words = vec!["pingpong", "--serve", "--bind", "127.0.0.1:0"];
    words.extend(theirs.iter().map(String::as_str));
    let server = Service::start(folder, &words);
    let to = format!("127.0.0.1:{}", port(&server.said));
    let mut command = doorbell(folder, &["pingpong", "--connect", &to]);
    command
        .args(with(ours))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    more(&mut command);
    let child = command.spawn().unwrap();
    (server, child)
}

#[test]
fn two_processes_exchange_messages_over_functions_of_a_model_and_go_on_without_their_agent() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let mut model = Service::start(here, &["model", "vic", "--dir", "D", "--vfs", "2"]);
    assert_eq!(model.said, "ready: pf, vf0, vf1 in D\n");
    let mut agent = Service::start(here, &["agent", "usnic", "--pf", "model/D/pf"]);
    assert!(agent.said.contains("D/agent.sock"), "{}", agent.said);
    // Another one is refused: the physical function is taken.
    let second = doorbell(here, &["agent", "usnic", "--pf", "model/D/pf"])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(3), "{}", text(&second));
    let doctor = doorbell(here, &["doctor", "usnic:model/D/vf0"]).output().unwrap();
    let said = text(&doctor);
    assert!(
        doctor.status.success() && said.contains("usnic:model/D/vf0: usable"),
        "{said}"
    );
    let alone = ["usnic:model/D/vf1"];
    let verified = measured(here, &alone, &["usnic:model/D/vf0"], |measure| {
        measure.args(["--verify", "--sizes", "8,16Ki", "--samples", "10"]);
    });
    let output = verified.1.wait_with_output().unwrap();
    let said = text(&output);
    assert!(
        output.status.success() && said.contains("usnic:model/D/vf0"),
        "{said}"
    );
    drop(verified.0);
    // The agent goes in the middle of it, and the queue pairs with it: the other rail takes over.
    let both = (["usnic:model/D/vf1", "udp:lo"], ["usnic:model/D/vf0", "udp:lo"]);
    let (server, drilled) = measured(here, &both.0, &both.1, |measure| {
        measure.args(["--no-reference", "--sizes", "8,16Ki", "--seconds", "2"]);
    });
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(agent.end(), Some(0));
    let drilled = drilled.wait_with_output().unwrap();
    assert!(drilled.status.success(), "{}", text(&drilled));
    assert!(!here.join("D/agent.sock").exists(), "nothing is left behind");
    drop(server);
    assert_eq!(model.end(), Some(0));
}
