//! Captures of a rail's frames into files, for Wireshark.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use doorbell_fabric::clock::Clock;
use doorbell_fabric::error::check_file_size;
use doorbell_fabric::name::RailName;
use doorbell_fabric::pcapng::Writer;
use doorbell_inet::CaptureWriter;

use crate::config::Config;
use crate::error::Error;

/// A capture that has ended (`World::end_captures`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The rail whose frames it holds.
    pub rail: String,
    /// The file.
    pub file: PathBuf,
    /// Frames in it.
    pub frames: u64,
    /// Its length; when frames are missing, there may be a piece of one more behind it.
    pub bytes: u64,
    /// Frames that are missing.
    pub lost: u64,
    /// Why they are.
    pub error: Option<String>,
}

/// Begins the capture that the configuration asks for, if it does: `set` gives its writer to the rail.
///
/// # Errors
/// When the file cannot be made.
pub(super) fn begin(
    name: &RailName,
    config: &Config,
    set: impl FnOnce(CaptureWriter, Clock),
) -> Result<(), Error> {
    let Some(path) = path(name, config) else {
        return Ok(());
    };
    let file = open(&path).map_err(|source| Error::Io {
        step: "make the capture",
        object: path.display().to_string(),
        source,
        remedy: "name a plain file of your own, or a new one in a folder that can be written to (udp.capture)",
    })?;
    let clock = Clock::start();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = (since_1970.as_nanos() as u64).saturating_sub(clock.now().nanos());
    let application = concat!("doorbell ", env!("CARGO_PKG_VERSION"));
    let told = Told {
        file,
        length: 0,
        path,
        failed: None,
    };
    set(Writer::new(Box::new(told), application, epoch), clock);
    Ok(())
}

/// What the capture of a rail came to, if it had one.
pub(super) fn end(writer: Option<CaptureWriter>, name: &RailName, config: &Config) -> Option<Capture> {
    let mut writer = writer?;
    Some(Capture {
        rail: name.to_string(),
        file: path(name, config)?,
        frames: writer.written(),
        bytes: writer.bytes(),
        lost: writer.lost(),
        error: writer.take_error().map(|error| error.to_string()),
    })
}

/// A plain file for its user only: it holds what the program sends. One that is there keeps no wider mode.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .mode(0o600)
        // A pipe would wait for a reader.
        .custom_flags((rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits() as i32)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no plain file"));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(file)
}

/// A file that says at its end, once, when not everything could be written: nobody else may be there to say it.
struct Told {
    file: File,
    length: u64,
    path: PathBuf,
    failed: Option<String>,
}

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Beyond the limit of file sizes, the system would end the process with SIGXFSZ.
        let written = check_file_size(self.length + bytes.len() as u64).and_then(|()| self.file.write(bytes));
        self.length += *written.as_ref().unwrap_or(&0) as u64;
        if let Err(error) = &written
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.failed.get_or_insert_with(|| error.to_string());
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let Some(error) = &self.failed else {
            return;
        };
        // Control characters in a name are for the terminal, and not for the reader.
        let path: String = self.path.display().to_string().escape_debug().collect();
        let line = format!(
            "doorbell: the capture `{path}` is incomplete: {error}; make room there, name a file elsewhere, or capture less\n"
        );
        // In one write, as several ranks may say something at once; nobody can be told that nobody can be told.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Where the frames of the rail `name` go; the second rail of a list has a file of its own.
fn path(name: &RailName, config: &Config) -> Option<PathBuf> {
    let path = capture_file(
        Path::new(config.udp.capture.get().as_ref()?),
        config.job.rank.get().unwrap_or(0),
    );
    let mut udp = config
        .rails
        .list
        .get()
        .0
        .iter()
        .filter(|rail| rail.wire() == name.wire());
    match udp.position(|rail| rail == name) {
        None | Some(0) => Some(path),
        Some(nth) => Some(before_ending(&path, nth)),
    }
}

/// The file that the capture of `rank` is written to: `trace.pcapng` of rank 3 is `trace.3.pcapng`.
///
/// ```
/// # use std::path::Path;
/// # use doorbell_job as doorbell;
/// assert_eq!(doorbell::capture_file(Path::new("a/trace"), 0), Path::new("a/trace.0.pcapng"));
/// ```
pub fn capture_file(path: &Path, rank: u32) -> PathBuf {
    before_ending(path, rank as usize)
}

fn before_ending(path: &Path, number: usize) -> PathBuf {
    let mut named = std::ffi::OsString::from(format!("{number}."));
    named.push(path.extension().unwrap_or("pcapng".as_ref()));
    path.with_extension(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_stands_before_the_ending() {
        assert_eq!(
            capture_file(Path::new("/a/trace.pcapng"), 3),
            Path::new("/a/trace.3.pcapng")
        );
        assert_eq!(capture_file(Path::new("trace"), 0), Path::new("trace.0.pcapng"));
    }

    #[test]
    fn each_rail_of_a_list_has_a_file() {
        let variable = |name: &str, value: &str| (name.into(), value.into());
        let config = Config::from_variables(
            [
                variable("DOORBELL_RAILS", "shm,udp:lo,udp:eth0"),
                variable("DOORBELL_UDP_CAPTURE", "t.pcapng"),
                variable("DOORBELL_RANK", "1"),
                variable("DOORBELL_SIZE", "2"),
            ],
            None,
        )
        .unwrap();
        let of = |name: &str| path(&name.parse().unwrap(), &config);
        assert_eq!(of("udp:lo"), Some("t.1.pcapng".into()));
        assert_eq!(of("udp:eth0"), Some("t.1.1.pcapng".into()));
        assert_eq!(path(&"udp:lo".parse().unwrap(), &Config::default()), None);
    }

    #[test]
    fn only_a_plain_file_is_taken_and_it_is_for_its_user_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("old");
        std::fs::write(&file, "something longer").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        drop(open(&file).unwrap());
        let found = std::fs::metadata(&file).unwrap();
        assert_eq!((found.permissions().mode() & 0o777, found.len()), (0o600, 0));
        assert!(open(folder.path()).is_err());
        assert!(
            open(Path::new("/dev/full"))
                .unwrap_err()
                .to_string()
                .contains("plain")
        );
    }
}
