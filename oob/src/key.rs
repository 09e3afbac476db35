//! The key of a job, and its file.
//!
//! The file is one line of text, at most [`LONGEST`] bytes, readable and writable by its owner only:
//!
//! ```text
//! doorbell-key 1 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff
//! └ what it is  └ version           └ 32 random bytes as 64 hexadecimal digits
//! ```
//!
//! Any user or process that has the file can join the job and read its control traffic: copy it over a
//! channel as secret as the job (`scp -p`). Files that others can read, files of other users, links, pipes
//! and devices are refused.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use rustix::fs::{Mode, OFlags};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

use crate::error::OobError;

/// Bytes of a key.
pub const BYTES: usize = 32;
/// Maximum bytes of a key file.
pub const LONGEST: usize = 128;
/// The start of a key file: its format and version.
const HEAD: &str = "doorbell-key 1 ";
/// The start of a key file of any version.
const ANY_HEAD: &str = "doorbell-key ";

/// The secret that all processes of a job share. It is wiped when dropped, never printed, and compared in
/// constant time.
#[derive(Clone)]
pub struct JobKey([u8; BYTES]);

impl JobKey {
    /// Generates a key with the kernel's random numbers.
    ///
    /// # Errors
    /// [`OobError::Random`].
    pub fn generate() -> Result<Self, OobError> {
        let mut key = Self([0; BYTES]);
        getrandom::fill(&mut key.0).map_err(|error| OobError::Random(error.to_string()))?;
        Ok(key)
    }

    /// Creates a key from existing bytes.
    pub fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the secret itself, to derive others from it.
    pub fn expose(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// Derives a key for another purpose, from which this one cannot be computed.
    ///
    /// ```
    /// use doorbell_oob::JobKey;
    /// let key = JobKey::from_bytes([7; 32]);
    /// assert_ne!(key.derive("control").expose(), key.derive("another").expose());
    /// assert_eq!(key.derive("control").expose(), key.derive("control").expose());
    /// ```
    #[must_use]
    pub fn derive(&self, purpose: &str) -> Self {
        let mac = Blake2sMac256::new((&self.0).into());
        let mac = mac.chain_update("doorbell key 1 ").chain_update(purpose);
        Self(mac.finalize().into_bytes().into())
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// [`OobError::KeyOpen`] when others can read or write it, [`OobError::KeyOwner`], [`OobError::KeyFile`]
    /// when it is a link, not a regular file, too long or malformed, [`OobError::KeyIo`].
    pub fn read(path: &Path) -> Result<Self, OobError> {
        let io = |step| {
            move |source| OobError::KeyIo {
                step,
                path: path.to_owned(),
                source,
            }
        };
        let bad = |reason: &str| OobError::KeyFile {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        // Do not follow links, and do not block on a pipe.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(rustix::io::Errno::LOOP) => return Err(bad("it is a link; give the file itself")),
            Err(error) => return Err(io("open")(error.into())),
            Ok(file) => File::from(file),
        };
        // Check the opened file, whatever has its name now.
        let found = file.metadata().map_err(io("inspect"))?;
        if found.is_dir() {
            return Err(bad("it is a directory; give the file in it"));
        }
        if !found.is_file() {
            return Err(bad("it is not a regular file"));
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(OobError::KeyOwner {
                path: path.to_owned(),
                owner: found.uid(),
            });
        }
        let mode = found.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(OobError::KeyOpen {
                path: path.to_owned(),
                mode,
            });
        }
        let mut text = Zeroizing::new(Vec::with_capacity(LONGEST + 1));
        file.take(LONGEST as u64 + 1)
            .read_to_end(&mut text)
            .map_err(io("read"))?;
        Self::parse(&text).map_err(bad)
    }

    /// Parses the text of a key file.
    fn parse(text: &[u8]) -> Result<Self, &'static str> {
        if text.len() > LONGEST {
            return Err("it is too long");
        }
        let Some(digits) = text.strip_prefix(HEAD.as_bytes()) else {
            return Err(if text.starts_with(ANY_HEAD.as_bytes()) {
                "it is of another version of doorbell"
            } else {
                "it does not begin with `doorbell-key 1`"
            });
        };
        let digits = digits.strip_suffix(b"\n").unwrap_or(digits);
        if digits.len() != 2 * BYTES {
            return Err("its key is not 64 hexadecimal digits");
        }
        let mut key = Self([0; BYTES]);
        for (byte, pair) in key.0.iter_mut().zip(digits.chunks_exact(2)) {
            let value = digit(pair[0]).zip(digit(pair[1]));
            let (high, low) = value.ok_or("its key is not 64 hexadecimal digits")?;
            *byte = high << 4 | low;
        }
        Ok(key)
    }

    fn text(&self) -> Zeroizing<String> {
        // Reserve at once: growing would leave copies behind.
        let mut text = Zeroizing::new(String::with_capacity(LONGEST));
        text.push_str(HEAD);
        for byte in &self.0 {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
            }
        }
        text.push('\n');
        text
    }

    /// Writes a key file that only its owner can read. With `force`, an existing regular file is replaced
    /// atomically.
    ///
    /// # Errors
    /// [`OobError::KeyExists`] without `force`; [`OobError::KeyFile`] when the existing one is not a regular
    /// file; [`OobError::KeyIo`], and then nothing is left behind.
    pub fn write(&self, path: &Path, force: bool) -> Result<(), OobError> {
        // Also through a link: a directory is meant to contain the file.
        if path.is_dir() {
            return Err(OobError::KeyFile {
                path: path.to_owned(),
                reason: "it is a directory; give a file in it".to_owned(),
            });
        }
        match fs::symlink_metadata(path) {
            Ok(_) if !force => {
                return Err(OobError::KeyExists {
                    path: path.to_owned(),
                });
            }
            Ok(found) if !found.is_file() => {
                return Err(OobError::KeyFile {
                    path: path.to_owned(),
                    reason: "the existing file is not a regular file, and is not replaced".to_owned(),
                });
            }
            _ => {}
        }
        self.put(path, force)
            .map_err(|(step, source)| match source.kind() {
                io::ErrorKind::AlreadyExists if !force => OobError::KeyExists {
                    path: path.to_owned(),
                },
                _ => OobError::KeyIo {
                    step,
                    path: path.to_owned(),
                    source,
                },
            })
    }

    /// Writes to a temporary name first, so that no partial key is visible.
    fn put(&self, path: &Path, force: bool) -> Result<(), (&'static str, io::Error)> {
        let beside = beside(path).ok_or_else(|| ("create", io::Error::other("the path has no file name")))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Mode 0600 before the first byte is written; the umask can only remove bits.
        let file = rustix::fs::open(&beside, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| ("make", error.into()))?;
        let mut file = File::from(file);
        let written = file
            .set_permissions(fs::Permissions::from_mode(0o600))
            .and_then(|()| file.write_all(self.text().as_bytes()))
            .and_then(|()| file.sync_all())
            // A hard link fails if the name exists; a rename replaces it.
            .and_then(|()| {
                if force {
                    fs::rename(&beside, path)
                } else {
                    fs::hard_link(&beside, path)
                }
            })
            .map_err(|error| ("write", error));
        if written.is_err() || !force {
            let _ = fs::remove_file(&beside);
        }
        written
    }
}

fn beside(path: &Path) -> Option<PathBuf> {
    path.file_name()?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).ok()?;
    Some(path.with_file_name(format!(".doorbell-key-{:016x}.tmp", u64::from_le_bytes(random))))
}

fn digit(byte: u8) -> Option<u8> {
    // Upper and lower case are both accepted, since people type keys.
    char::from(byte).to_digit(16).map(|value| value as u8)
}

impl PartialEq for JobKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for JobKey {}

impl Drop for JobKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JobKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_folder_is_reported_as_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let key = JobKey::generate().unwrap();
        for force in [false, true] {
            let said = key.write(folder.path(), force).unwrap_err().to_string();
            assert!(said.contains("it is a directory"), "{said}");
        }
        let said = JobKey::read(folder.path()).unwrap_err().to_string();
        assert!(said.contains("it is a directory"), "{said}");
    }

    #[test]
    fn what_is_written_is_read_and_only_the_owner_can() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = JobKey::generate().unwrap();
        key.write(&path, false).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(JobKey::read(&path).unwrap() == key);
        assert!(JobKey::generate().unwrap() != key);
        assert_eq!(format!("{key:?}"), "JobKey(secret)");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_text_is_this() {
        let text = JobKey::from_bytes([0xa5; BYTES]).text();
        assert_eq!(text.as_str(), format!("doorbell-key 1 {}\n", "a5".repeat(32)));
        let upper = format!("doorbell-key 1 {}", "A5".repeat(32));
        assert!(JobKey::parse(upper.as_bytes()).unwrap().0 == [0xa5; BYTES]);
    }

    #[test]
    fn a_key_is_replaced_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let (old, new) = (JobKey::generate().unwrap(), JobKey::generate().unwrap());
        old.write(&path, false).unwrap();
        assert!(matches!(new.write(&path, false), Err(OobError::KeyExists { .. })));
        assert!(JobKey::read(&path).unwrap() == old);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        new.write(&path, true).unwrap();
        assert!(JobKey::read(&path).unwrap() == new);
        let link = folder.path().join("link");
        symlink("key", &link).unwrap();
        assert!(matches!(new.write(&link, true), Err(OobError::KeyFile { .. })));
        assert!(matches!(
            new.write(folder.path(), true),
            Err(OobError::KeyFile { .. })
        ));
        let nowhere = folder.path().join("missing/key");
        assert!(matches!(new.write(&nowhere, true), Err(OobError::KeyIo { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn files_that_are_not_safe_are_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        JobKey::generate().unwrap().write(&at("key"), false).unwrap();
        for open in [0o640, 0o604, 0o620, 0o666] {
            fs::set_permissions(at("key"), fs::Permissions::from_mode(open)).unwrap();
            let said = JobKey::read(&at("key")).unwrap_err().to_string();
            assert!(
                said.contains(&format!("{open:04o}")) && said.contains("chmod 600 `"),
                "{said}"
            );
        }
        fs::set_permissions(at("key"), fs::Permissions::from_mode(0o400)).unwrap();
        JobKey::read(&at("key")).unwrap();
        symlink("key", at("link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        fs::write(at("huge"), vec![b'a'; 1 << 20]).unwrap();
        fs::set_permissions(at("huge"), fs::Permissions::from_mode(0o600)).unwrap();
        for (name, word) in [
            ("link", "link"),
            ("pipe", "regular"),
            ("huge", "too long"),
            (".", "directory"),
            ("no", "open"),
        ] {
            let said = JobKey::read(&at(name)).unwrap_err().to_string();
            assert!(said.contains(word), "{name}: {said}");
        }
        if rustix::process::geteuid().is_root() {
            rustix::fs::chown(at("key"), Some(rustix::fs::Uid::from_raw(12345)), None).unwrap();
            let said = JobKey::read(&at("key")).unwrap_err().to_string();
            assert!(said.contains("12345") && said.contains("chmod 600"), "{said}");
        }
    }

    #[test]
    fn other_texts_are_no_keys() {
        let good = format!("doorbell-key 1 {}\n", "0".repeat(64));
        JobKey::parse(good.as_bytes()).unwrap();
        for (text, word) in [
            (String::new(), "begin"),
            (good.replace(" 1 ", " 2 "), "another version"),
            (good.replace('\n', "\n\n"), "64"),
            (good.replace("00\n", "0g\n"), "64"),
            (good.replace("00\n", "0\n"), "64"),
            (format!("{good}{good}"), "too long"),
        ] {
            let said = JobKey::parse(text.as_bytes()).unwrap_err();
            assert!(said.contains(word), "{text}: {said}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..140), ours in any::<bool>()) {
            let head = if ours { HEAD.as_bytes() } else { &[] };
            let _ = JobKey::parse(&[head, &text].concat());
        }
    }
}
