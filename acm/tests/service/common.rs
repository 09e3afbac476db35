//! A service in a thread, with a folder of its own.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_acm::client::{Client, ClientError, Route, Service as At};
use doorbell_acm::config::OPTIONS_FILE;
use doorbell_acm::serve::SocketPaths;
use doorbell_acm::service::{Service, Settings};
use serde_json::Value;
use tokio::sync::watch;

use doorbell_testing::netns::Lab;

/// Far beyond what anything here takes.
pub const LONG: Duration = Duration::from_secs(60);

/// A service that runs until it is dropped.
pub struct Running {
    folder: tempfile::TempDir,
    pub watch: PathBuf,
    socket: PathBuf,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// One with these options, on a host of a lab or on this one.
    pub fn start(options: &str, place: Option<(&Arc<Lab>, usize)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(OPTIONS_FILE), options).unwrap();
        let settings = Settings {
            folder: folder.path().to_owned(),
            ..Settings::at(SocketPaths::within(folder.path()))
        };
        let (watch, socket) = (settings.watch.clone(), settings.places.socket.clone());
        let (stop, stopped) = watch::channel(false);
        let place = place.map(|(lab, host)| (Arc::clone(lab), host));
        let run = move || {
            if let Some((lab, host)) = place {
                assert!(lab.enter(host), "the namespace is there");
            }
            let service = Service::open(settings, Vec::new()).expect("it has its sockets");
            service.run(stopped).expect("it serves");
        };
        let thread = std::thread::spawn(run);
        let running = Self {
            folder,
            watch,
            socket,
            stop,
            thread: Some(thread),
        };
        running.until("it serves", |state| !state["endpoints"].is_null());
        running
    }

    /// Writes new options.
    pub fn write(&self, options: &str) {
        std::fs::write(self.folder.path().join(OPTIONS_FILE), options).unwrap();
    }

    pub fn client(&self) -> Client {
        Client::connect(&At::Unix(self.socket.clone()), LONG).unwrap()
    }

    pub fn resolve(&self, destination: &str) -> Result<Route, ClientError> {
        let ip: std::net::IpAddr = destination.parse().unwrap();
        self.client().resolve(None, ip.into(), false)
    }

    /// What it shows of itself; null while there is no socket, or no room.
    pub fn state(&self) -> Value {
        let Ok(mut door) = UnixStream::connect(&self.watch) else {
            return Value::Null;
        };
        door.set_read_timeout(Some(LONG)).unwrap();
        let mut line = String::new();
        // Where there are too many clients it is disconnected, before or after its query.
        let asked = door.write_all(b"state\n");
        let read = asked.and_then(|()| BufReader::new(door).read_line(&mut line));
        let state = read.ok().and_then(|_| serde_json::from_str(&line).ok());
        state.unwrap_or(Value::Null)
    }

    /// Waits until it shows that.
    pub fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let state = self.state();
            if is(&state) {
                return state;
            }
            assert!(start.elapsed() < LONG, "never happened: {what}: {state}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it knows a path to there.
    pub fn until_resolved(&self, destination: &str) -> Route {
        let start = Instant::now();
        loop {
            match self.resolve(destination) {
                Ok(route) => return route,
                Err(error) => assert!(start.elapsed() < LONG, "{destination}: {error}: {}", self.state()),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().expect("it ends as it should");
            assert!(
                !self.watch.exists() && !self.socket.exists(),
                "its files are gone"
            );
        }
    }
}
