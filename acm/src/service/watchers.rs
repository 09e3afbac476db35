//! Watchers: changes of this host's interfaces, and of the configuration files.
//!
//! Where the system refuses a watch, the failure is shown and retried; until then no such change takes
//! effect.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::select;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

use super::actor::Message;
use super::config::ServiceConfig;
use crate::config::{AddressEntry, FileWatch};
use crate::host::{HostWatch, Sources};

/// Pause before a watch that the system refused is retried.
const AGAIN: Duration = Duration::from_secs(5);
/// How often the files are read again when each reading names other files to watch.
const ROUNDS: usize = 4;

type Post = mpsc::UnboundedSender<Message>;
type Watching = std::io::Result<AsyncFd<FileWatch>>;

/// The configuration files, and the interfaces named on the command line.
pub(super) struct Files {
    folder: PathBuf,
    interfaces: Vec<String>,
}

impl Files {
    pub(super) fn new(folder: PathBuf, interfaces: Vec<String>) -> Self {
        Self { folder, interfaces }
    }

    fn read(&self) -> ServiceConfig {
        ServiceConfig::read(&self.folder).with_interfaces(&self.interfaces)
    }

    /// Reads the configuration, and returns the watch that reports every change made after the reading.
    pub(super) fn watched(&self) -> (Watching, ServiceConfig) {
        let mut config = self.read();
        for _ in 0..ROUNDS {
            let files = config.files(&self.folder);
            let watching = FileWatch::new(&files).and_then(FileWatch::registered);
            config = self.read();
            if config.files(&self.folder) == files {
                return (watching, config);
            }
        }
        let files = config.files(&self.folder);
        (FileWatch::new(&files).and_then(FileWatch::registered), config)
    }
}

/// Sends this host's interfaces to the service whenever they change. They are looked at again whenever
/// `again` is notified.
pub(super) async fn host(
    host: HostWatch,
    mut renames: watch::Receiver<Vec<AddressEntry>>,
    again: Rc<Notify>,
    post: Post,
) {
    let mut host = match host.registered() {
        Ok(host) => host,
        Err(error) => {
            let what =
                format!("changes of interfaces and addresses go unnoticed ({error}); restart the service");
            let _ = post.send(Message::Error(what));
            return;
        }
    };
    loop {
        select! {
            biased;
            changed = HostWatch::changed(&mut host) => {
                if let Err(error) = changed {
                    let what = format!("changes of interfaces and addresses go unnoticed ({error})");
                    let _ = post.send(Message::Error(what));
                    sleep(AGAIN).await;
                    continue;
                }
            }
            () = again.notified() => {
                host.get_mut().look_again();
                if !matches!(host.get_mut().poll(), Ok(Some(_))) {
                    continue;
                }
            }
            renamed = renames.changed() => {
                // All senders of address entries are gone: the service is ending.
                if renamed.is_err() {
                    return;
                }
                let entries = renames.borrow_and_update().clone();
                host.get_mut().rename(Sources::of_system(entries));
                if !matches!(host.get_mut().poll(), Ok(Some(_))) {
                    continue;
                }
            }
        }
        let found = Box::new(host.get_ref().found().clone());
        if post.send(Message::Host(found)).is_err() {
            return;
        }
    }
}

/// Reads the configuration again whenever its files change.
pub(super) async fn files(
    files: Files,
    mut watching: Watching,
    renamed: watch::Sender<Vec<AddressEntry>>,
    post: Post,
) {
    let mut names = None;
    loop {
        let changed = match &mut watching {
            Ok(watching) => FileWatch::changed(watching).await,
            Err(error) => Err(std::io::Error::from(error.kind())),
        };
        let failed = changed.is_err();
        if let Err(error) = changed {
            let what =
                format!("changes of the configuration go unnoticed ({error}); see fs.inotify in sysctl(8)");
            let _ = post.send(Message::Error(what));
            sleep(AGAIN).await;
        }
        let mut config = files.read();
        let now = Some(config.files(&files.folder));
        if failed || now != names {
            (watching, config) = files.watched();
            names = Some(config.files(&files.folder));
        }
        renamed.send_if_modified(|entries| {
            let differs = *entries != config.entries;
            entries.clone_from(&config.entries);
            differs
        });
        if post.send(Message::Config(Box::new(config), !failed)).is_err() {
            return;
        }
    }
}
