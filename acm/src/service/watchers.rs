//! Hearing of changes: of this host, and of the files of the configuration.
//!
//! Where the system does not let something be watched, that is shown, and tried again: until then nothing of it is taken up.

use std::path::PathBuf;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::select;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::actor::Mail;
use super::config::Written;
use crate::config::{AddressEntry, Watch};
use crate::host::{HostWatch, Sources};

/// Until what cannot be watched is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// How often files are read that name other files each time.
const ROUNDS: usize = 4;

type Post = mpsc::UnboundedSender<Mail>;
type Watching = std::io::Result<AsyncFd<Watch>>;

/// The files of the configuration, and what the command line says besides.
pub(super) struct Files {
    folder: PathBuf,
    interfaces: Vec<String>,
}

impl Files {
    pub(super) fn new(folder: PathBuf, interfaces: Vec<String>) -> Self {
        Self { folder, interfaces }
    }

    fn read(&self) -> Written {
        Written::read(&self.folder).with_interfaces(&self.interfaces)
    }

    /// What is written, and the watch that hears of everything that is written after.
    pub(super) fn watched(&self) -> (Watching, Written) {
        let mut written = self.read();
        for _ in 0..ROUNDS {
            let files = written.files(&self.folder);
            let watching = Watch::new(&files).and_then(Watch::registered);
            written = self.read();
            if written.files(&self.folder) == files {
                return (watching, written);
            }
        }
        let files = written.files(&self.folder);
        (Watch::new(&files).and_then(Watch::registered), written)
    }
}

/// Tells what this host has whenever it is not what it was.
pub(super) async fn host(host: HostWatch, mut renames: watch::Receiver<Vec<AddressEntry>>, post: Post) {
    let mut host = match host.registered() {
        Ok(host) => host,
        Err(error) => {
            let what = format!(
                "changes of interfaces and addresses are not heard of ({error}); start the service again"
            );
            let _ = post.send(Mail::Trouble(what));
            return;
        }
    };
    loop {
        select! {
            biased;
            changed = HostWatch::changed(&mut host) => {
                if let Err(error) = changed {
                    let what = format!("changes of interfaces and addresses are not heard of ({error})");
                    let _ = post.send(Mail::Trouble(what));
                    sleep(AGAIN).await;
                    continue;
                }
            }
            renamed = renames.changed() => {
                // All senders of names are gone: the service ends.
                if renamed.is_err() {
                    return;
                }
                let entries = renames.borrow_and_update().clone();
                host.get_mut().rename(Sources::of_system(entries));
                if !matches!(host.get_mut().look(), Ok(Some(_))) {
                    continue;
                }
            }
        }
        let found = Box::new(host.get_ref().found().clone());
        if post.send(Mail::Host(found)).is_err() {
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
            Ok(watching) => Watch::changed(watching).await,
            Err(error) => Err(std::io::Error::from(error.kind())),
        };
        let failed = changed.is_err();
        if let Err(error) = changed {
            let what = format!(
                "changes of the configuration are not heard of ({error}); see fs.inotify in sysctl(8)"
            );
            let _ = post.send(Mail::Trouble(what));
            sleep(AGAIN).await;
        }
        let mut written = files.read();
        let now = Some(written.files(&files.folder));
        if failed || now != names {
            (watching, written) = files.watched();
            names = Some(written.files(&files.folder));
        }
        renamed.send_if_modified(|entries| {
            let differs = *entries != written.entries;
            entries.clone_from(&written.entries);
            differs
        });
        if post.send(Mail::Written(Box::new(written), !failed)).is_err() {
            return;
        }
    }
}
