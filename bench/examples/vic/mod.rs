//! A modelled VIC with its agent in another process, so that what is measured here is the driver alone: this
//! program starts itself.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use doorbell_usnic::{Agent, Pf, UsnicConfig, UsnicRail};
use doorbell_vic::{Idle, Model, Options};

/// The word that makes this program the model.
pub(crate) const ROLE: &str = "be-a-vic";

/// The model, which ends when it is dropped.
pub(crate) struct Vic {
    child: Child,
    folder: PathBuf,
}

impl Vic {
    /// Starts one whose engine looks for doorbells all the time.
    pub(crate) fn start() -> Self {
        let own = std::env::current_exe().expect("this program has a file");
        let mut command = Command::new(own);
        command.arg(ROLE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program starts");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        out.read_line(&mut line).expect("it prints its folder");
        let folder = PathBuf::from(line.trim_end());
        Self { child, folder }
    }

    /// Opens the rail over one of its functions.
    pub(crate) fn open(&self, function: &str) -> UsnicRail {
        let name = format!("usnic:model/{}/{function}", self.folder.display());
        let name = name.parse().expect("a name");
        UsnicRail::open(&name, &UsnicConfig::default()).expect("the model works")
    }
}

impl Drop for Vic {
    fn drop(&mut self) {
        // Its end of standard input is its sign to go.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs the model, as the other process, until its starter is gone.
pub(crate) fn serve() {
    let options = Options {
        idle: Idle::Spin,
        ..Options::default()
    };
    let model = Model::start(options).expect("a model starts");
    let folder = model.dir().to_owned();
    let pf = Pf::connect(&folder.join("pf.sock")).expect("it has a physical function");
    let mut agent = Agent::new(pf, &folder.join("agent.sock")).expect("the path is free");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) && agent.turn(Duration::from_millis(50)).is_ok() {}
    });
    println!("{}", folder.display());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    stop.store(true, Ordering::Relaxed);
    let _ = thread.join();
    drop(model);
}
