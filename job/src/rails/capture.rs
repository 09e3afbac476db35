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

/// The result of a capture that has ended (`World::end_captures`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The rail whose frames the file has.
    pub rail: String,
    /// The path of the file.
    pub file: PathBuf,
    /// Number of frames in the file.
    pub frames: u64,
    /// Length of the file in bytes; where frames are missing, part of one more may follow.
    pub bytes: u64,
    /// Number of frames that are missing.
    pub lost: u64,
    /// Why they are missing.
    pub error: Option<String>,
}

/// Begins the capture that the configuration names, if any: `set` gives its writer to the rail.
///
/// # Errors
/// When the file cannot be created.
pub(super) fn begin(
    name: &RailName,
    config: &Config,
    set: impl FnOnce(CaptureWriter, Clock),
) -> Result<(), Error> {
    let Some(path) = path(name, config) else {
        return Ok(());
    };
    let file = open(&path).map_err(|source| Error::Io {
        step: "create the capture file",
        object: path.display().to_string(),
        source,
        remedy: "name a plain file of your own, or a new one in a folder that can be written to (udp.capture)",
    })?;
    let clock = Clock::start();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = (since_1970.as_nanos() as u64).saturating_sub(clock.now().nanos());
    let application = concat!("doorbell ", env!("CARGO_PKG_VERSION"));
    let reporting = ReportingFile {
        file,
        length: 0,
        path,
        failed: None,
    };
    set(Writer::new(Box::new(reporting), application, epoch), clock);
    Ok(())
}

/// Returns the result of a rail's capture, if it had one.
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

/// Opens a plain file for this user only, since it will hold what the program sends; restricts the mode of
/// one that exists.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .mode(0o600)
        // Without this flag, opening a pipe would wait for a reader.
        .custom_flags((rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits() as i32)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no plain file"));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(file)
}

/// A file that prints one line when it is dropped, if a write failed: the program may never look at the
/// capture's result.
struct ReportingFile {
    file: File,
    length: u64,
    path: PathBuf,
    failed: Option<String>,
}

impl Write for ReportingFile {
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

impl Drop for ReportingFile {
    fn drop(&mut self) {
        let Some(error) = &self.failed else {
            return;
        };
        // Control characters of a name could change the terminal's state.
        let path: String = self.path.display().to_string().escape_debug().collect();
        let line = format!(
            "doorbell: the capture `{path}` is incomplete: {error}; make room there, name a file elsewhere, or capture less\n"
        );
        // One write for the whole line, since several ranks may print at once. stderr may be closed: there is
        // nowhere to report that.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Returns the file for the frames of the rail `name`; each further rail of a list has a file of its own.
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

/// Returns the file of a rank's capture: `trace.pcapng` becomes `trace.3.pcapng` for rank 3.
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
