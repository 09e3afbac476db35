//! Watches configuration files for changes, by inotify(7) on their folders.
//!
//! ```text
//!   /etc/rdma/ibacm_opts.cfg    an editor writes .ibacm_opts.cfg.swp and renames it  ──►  a change
//!   └ watched                   (a watch on the file itself would stay with the old inode)
//! ```
//!
//! Neither the file nor its folder need exist: the nearest existing folder is watched until they do.
//! [`FileWatch::changed`] reports a change once nothing has happened for [`SETTLE`], so that a file is not
//! read while it is being written.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::register::registered;

/// How long nothing may happen before a change is reported.
pub const SETTLE: Duration = Duration::from_millis(50);
/// How many times that is waited for: a file that is written continuously is read all the same.
const PATIENCE: u32 = 20;
/// Maximum number of files watched.
const FILES_MAX: usize = 64;
/// Maximum events read at a time, so that continuous writing in a folder does not occupy a thread.
const EVENTS: u32 = 256;

/// A file, and the folder watched for it.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    /// The folder that is watched: the file's own, or the nearest existing one above.
    folder: PathBuf,
    /// The name in it that is waited for.
    name: OsString,
    number: i32,
}

/// The result of reading events.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// Whether any of the files may have changed.
    any: bool,
    /// Whether all events were read.
    all: bool,
}

/// Watches files for changes.
#[derive(Debug)]
pub struct FileWatch {
    descriptor: OwnedFd,
    files: Vec<Watched>,
}

impl FileWatch {
    /// Watches these files from now on.
    ///
    /// # Errors
    /// When the system refuses a watch, or there are more than 64 files.
    pub fn new<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> io::Result<Self> {
        let descriptor = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut all = Vec::new();
        for file in files {
            if all.len() == FILES_MAX {
                return Err(io::Error::other(format!(
                    "cannot watch more than {FILES_MAX} files"
                )));
            }
            all.push(watch(&descriptor, std::path::absolute(file)?)?);
        }
        Ok(Self {
            descriptor,
            files: all,
        })
    }

    /// Reads the events, and returns whether any of the files may have changed; never blocks.
    ///
    /// # Errors
    /// When a folder cannot be watched any more.
    pub fn poll(&mut self) -> io::Result<bool> {
        let mut any = false;
        loop {
            let looked = self.take()?;
            any |= looked.any;
            if looked.all {
                return Ok(any);
            }
        }
    }

    /// Reads some events.
    fn take(&mut self) -> io::Result<Taken> {
        let (mut any, mut all, mut moved) = (false, false, false);
        let mut bytes = [std::mem::MaybeUninit::uninit(); 8192];
        let mut events = Reader::new(&self.descriptor, &mut bytes);
        let mut count = 0;
        // Events that the reader has buffered are read too.
        while count < EVENTS || !events.is_buffer_empty() {
            count += 1;
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    all = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                (any, moved) = (true, true);
                continue;
            }
            let gone = ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF;
            let own = event.events().intersects(gone);
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            let ours = self.files.iter().filter(|file| file.number == event.wd());
            for file in ours.filter(|file| own || name == Some(file.name.as_os_str())) {
                moved |= own || !file.is_there();
                any = true;
            }
        }
        if moved {
            self.watch_again()?;
        }
        Ok(Taken { any, all })
    }

    /// Renews the watches after folders appeared or disappeared.
    fn watch_again(&mut self) -> io::Result<()> {
        for file in &mut self.files {
            let path = std::mem::take(&mut file.path);
            *file = watch(&self.descriptor, path)?;
        }
        Ok(())
    }

    /// Waits until a file has changed and nothing has happened for [`SETTLE`], at most a second after the
    /// first change.
    ///
    /// # Errors
    /// When a folder cannot be watched any more.
    pub async fn changed(watch: &mut AsyncFd<Self>) -> io::Result<()> {
        while !Self::next(watch).await? {}
        for _ in 0..PATIENCE {
            match tokio::time::timeout(SETTLE, Self::next(watch)).await {
                Ok(more) => _ = more?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    async fn next(watch: &mut AsyncFd<Self>) -> io::Result<bool> {
        let mut ready = watch.readable_mut().await?;
        let taken = ready.get_inner_mut().take()?;
        // tokio reports edges: unread events keep it ready. Later ones cause another edge, which this does
        // not clear.
        if taken.all {
            ready.clear_ready();
        }
        Ok(taken.any)
    }

    /// Registers the watch with tokio; call it within a runtime.
    ///
    /// # Errors
    /// When the runtime cannot register the descriptor.
    pub fn registered(self) -> io::Result<AsyncFd<Self>> {
        registered(self)
    }
}

impl Watched {
    /// Whether the folder of the file itself is watched.
    fn is_there(&self) -> bool {
        self.path.parent() == Some(&self.folder)
    }
}

/// Watches the folder of a file, or the nearest existing one above.
fn watch(descriptor: &OwnedFd, path: PathBuf) -> io::Result<Watched> {
    let what = WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "the file has no name");
    let mut below = path.as_path();
    while let (Some(folder), Some(name)) = (below.parent(), below.file_name()) {
        match inotify::add_watch(descriptor, folder, what) {
            Ok(number) => {
                let (folder, name) = (folder.to_owned(), name.to_owned());
                return Ok(Watched {
                    path,
                    folder,
                    name,
                    number,
                });
            }
            Err(Errno::NOENT | Errno::NOTDIR) => below = folder,
            Err(error) => return Err(error.into()),
        }
    }
    Err(no_name())
}

impl AsFd for FileWatch {
    /// Readable when there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for FileWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn writing_renaming_and_removing_are_reported_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("opts");
        let mut watch = FileWatch::new([&file]).unwrap();
        assert!(!watch.poll().unwrap());
        fs::write(folder.path().join("other"), "x").unwrap();
        assert!(!watch.poll().unwrap(), "another file");
        fs::write(&file, "x").unwrap();
        assert!(watch.poll().unwrap(), "a file that was not there");
        fs::rename(folder.path().join("other"), &file).unwrap();
        assert!(watch.poll().unwrap(), "an editor's way to write");
        fs::remove_file(&file).unwrap();
        assert!(watch.poll().unwrap() && !watch.poll().unwrap());
    }

    #[test]
    fn a_folder_that_is_not_there_is_waited_for() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("etc/rdma");
        let mut watch = FileWatch::new([folder.join("opts")]).unwrap();
        fs::create_dir_all(&folder).unwrap();
        assert!(watch.poll().unwrap());
        fs::write(folder.join("opts"), "x").unwrap();
        assert!(watch.poll().unwrap());
        fs::remove_dir_all(top.path().join("etc")).unwrap();
        assert!(watch.poll().unwrap());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("opts"), "y").unwrap();
        assert!(watch.poll().unwrap());
    }

    /// tokio reports edges: unread events cause none.
    #[test]
    fn a_change_behind_many_others_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("opts");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut watch = FileWatch::new([&file]).unwrap().registered().unwrap();
            for at in 0..2000 {
                fs::write(folder.path().join(format!("other-{at}")), "x").unwrap();
            }
            fs::write(&file, "x").unwrap();
            let heard = tokio::time::timeout(Duration::from_secs(20), FileWatch::changed(&mut watch)).await;
            heard.expect("a change is reported").unwrap();
        });
    }

    #[test]
    fn changes_are_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("opts");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut watch = FileWatch::new([&file]).unwrap().registered().unwrap();
            let quiet = tokio::time::timeout(SETTLE, FileWatch::changed(&mut watch)).await;
            assert!(quiet.is_err(), "nothing has changed");
            fs::write(&file, "x").unwrap();
            let heard = tokio::time::timeout(Duration::from_secs(20), FileWatch::changed(&mut watch)).await;
            heard.expect("a change is reported").unwrap();
            let quiet = tokio::time::timeout(SETTLE, FileWatch::changed(&mut watch)).await;
            assert!(quiet.is_err(), "it is reported once");
        });
    }
}
