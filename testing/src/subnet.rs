//! An InfiniBand subnet of simulated nodes with a real manager: `ibsim` is the fabric, `opensm` its manager
//! and administration, and `libumad2sim`, loaded before a program's other libraries, answers libibumad's
//! system
//! calls as the kernel of one node would. It takes neither a kernel with InfiniBand nor root.
//!
//! The subnet has one switch and the nodes `node1` (the manager's), `node2` and `node3`, each with port 1 of
//! the
//! device `ibsim0`. What a node does is done by a program of its own: a test starts itself again with
//! [`Subnet::again`].

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::skip::{lacking, skipped};

/// Set in a program that a test has started for a node.
const INSIDE: &str = "DOORBELL_TEST_NODE";
/// How long the manager may take to begin.
const PATIENCE: Duration = Duration::from_secs(30);
const MANAGER: &str = "/usr/sbin/opensm";
/// Prints the state of a node's port.
const STATE: &str = "/usr/sbin/ibstat";

const NODES: &str = r#"Switch 8 "switch"
[1] "node1"[1]
[2] "node2"[1]
[3] "node3"[1]

Hca 2 "node1"
[1] "switch"[1]

Hca 2 "node2"
[1] "switch"[2]

Hca 2 "node3"
[1] "switch"[3]
"#;

/// A subnet that runs until it is dropped.
#[derive(Debug)]
pub struct Subnet {
    folder: PathBuf,
    name: String,
    library: PathBuf,
    programs: Vec<Child>,
}

/// Returns the name of the node that this program is, if a test has started it as one.
pub fn node() -> Option<String> {
    std::env::var(INSIDE).ok()
}

/// Returns the library that stands for a node's kernel.
fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?;
    let mut files = folders
        .flatten()
        .map(|entry| entry.path().join("umad2sim/libumad2sim.so"));
    files.find(|file| file.is_file())
}

/// Returns why there is no subnet here.
fn missing() -> Result<PathBuf, String> {
    if let Some(reason) = lacking("ibsim", "ibsim-utils") {
        return Err(reason);
    }
    for (program, package) in [(MANAGER, "opensm"), (STATE, "infiniband-diags")] {
        if !Path::new(program).is_file() {
            return Err(format!("package {package}: {program} not found"));
        }
    }
    library().ok_or_else(|| "package libumad2sim0: libumad2sim.so not found".to_owned())
}

impl Subnet {
    /// Starts a subnet whose manager reads `partitions` (the format is opensm's), or reports that `test` is
    /// skipped.
    ///
    /// # Panics
    /// When the programs are there and do not start.
    pub fn start(test: &str, partitions: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let library = match missing() {
            Ok(library) => library,
            Err(reason) => {
                skipped(test, &reason);
                return None;
            }
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("doorbell-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir_all(&folder).expect("a folder for the subnet");
        let mut subnet = Self {
            folder,
            name,
            library,
            programs: Vec::new(),
        };
        subnet.write("net", NODES);
        subnet.write("partitions", partitions);
        let mut fabric = Command::new("ibsim");
        fabric.args(["-s", "net"]).env("IBSIM_SOCKNAME", &subnet.name);
        subnet.spawn(fabric, "fabric.log");
        subnet.wait_for("fabric.log", "parsed");
        subnet.manage();
        Some(subnet)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.folder.join(file), text).expect("a file of the subnet");
    }

    fn spawn(&mut self, mut command: Command, log: &str) {
        let log = File::create(self.folder.join(log)).expect("a log of the subnet");
        let errors = log.try_clone().expect("a log of the subnet");
        // The fabric ends when its standard input does.
        command
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors);
        self.programs
            .push(command.spawn().expect("a program of the subnet starts"));
    }

    /// Starts the manager, which knows nothing of an earlier one's groups.
    fn manage(&mut self) {
        let mut manager = self.command(MANAGER, "node1");
        manager.args(["-f", "manager.log", "-P", "partitions", "-Q", "-e"]);
        manager.env("OSM_CACHE_DIR", ".").env("OSM_TMP_DIR", ".");
        self.spawn(manager, "manager.out");
        self.wait_for("manager.out", "Entering MASTER state");
        ["node2", "node3"]
            .iter()
            .for_each(|node| self.wait_until_up(node));
    }

    /// Waits until the manager has brought a node's port up. A program sees it as it was when it began.
    fn wait_until_up(&self, node: &str) {
        let begun = Instant::now();
        loop {
            let output = self.command(STATE, node).output().expect("ibstat starts");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if text.contains("State: Active") && !text.contains("SM lid: 0") {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{node} is not up after {PATIENCE:?}: {text}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the manager and starts another one.
    ///
    /// # Panics
    /// When it does not start.
    pub fn replace_manager(&mut self) {
        if let Some(mut manager) = self.programs.pop() {
            end(&mut manager);
        }
        self.manage();
    }

    fn wait_for(&self, log: &str, words: &str) {
        let begun = Instant::now();
        loop {
            let text = fs::read_to_string(self.folder.join(log)).unwrap_or_default();
            if text.contains(words) {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{log} lacks {words:?} after {PATIENCE:?}: {text}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns a command that runs a program at a node.
    pub fn command(&self, program: impl AsRef<Path>, node: &str) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .current_dir(&self.folder)
            .env("LD_PRELOAD", &self.library)
            .env("IBSIM_SOCKNAME", &self.name)
            .env("SIM_HOST", node)
            .env(INSIDE, node);
        command
    }

    /// Runs the test `name` of this program again, as a node; [`node`] returns which one there.
    ///
    /// # Errors
    /// When the program cannot be started.
    ///
    /// # Panics
    /// When the test does not pass there.
    pub fn again(&self, name: &str, node: &str) -> io::Result<()> {
        let mut command = self.command(std::env::current_exe()?, node);
        let output = command.args(["--exact", name, "--nocapture"]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "at {node}: {text}\n{errors}");
        assert!(text.contains("1 passed"), "no test {name}: {text}");
        Ok(())
    }
}

fn end(program: &mut Child) {
    // One that has ended by itself cannot be ended again.
    let _ = program.kill();
    let _ = program.wait();
}

impl Drop for Subnet {
    fn drop(&mut self) {
        self.programs.iter_mut().rev().for_each(end);
        // A folder that stays harms nothing.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
