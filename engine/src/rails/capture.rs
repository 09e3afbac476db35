//! Captures of a rail's frames into files, for Wireshark.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use doorbell_fabric::clock::Clock;
use doorbell_fabric::pcapng::Writer;
use doorbell_udp::UdpRail;

use crate::config::Config;
use crate::error::Error;

/// Begins the capture that the configuration asks for, if it does.
///
/// # Errors
/// When the file cannot be made.
pub(super) fn begin(rail: &mut UdpRail, config: &Config) -> Result<(), Error> {
    let Some(path) = config.udp.capture.get() else {
        return Ok(());
    };
    let path = of_rank(Path::new(path), config.job.rank.get().unwrap_or(0));
    // It holds what the program sends: for its user only.
    let mut options = OpenOptions::new();
    let opened = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path);
    let file = opened.map_err(|source| Error::Io {
        step: "make the capture",
        object: path.display().to_string(),
        source,
        remedy: "name a file in a folder that can be written to (udp.capture)",
    })?;
    let clock = Clock::start();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = (since_1970.as_nanos() as u64).saturating_sub(clock.now().nanos());
    let application = concat!("doorbell ", env!("CARGO_PKG_VERSION"));
    rail.set_capture(Writer::new(Box::new(file), application, epoch), clock);
    Ok(())
}

/// `trace.pcapng` of rank 3 is `trace.3.pcapng`.
fn of_rank(path: &Path, rank: u32) -> PathBuf {
    let ending = path.extension().unwrap_or("pcapng".as_ref());
    let mut named = format!("{rank}.").into_bytes();
    named.extend_from_slice(ending.as_encoded_bytes());
    path.with_extension(std::ffi::OsString::from(
        String::from_utf8_lossy(&named).into_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_stands_before_the_ending() {
        assert_eq!(
            of_rank(Path::new("/a/trace.pcapng"), 3),
            Path::new("/a/trace.3.pcapng")
        );
        assert_eq!(of_rank(Path::new("trace"), 0), Path::new("trace.0.pcapng"));
    }
}
