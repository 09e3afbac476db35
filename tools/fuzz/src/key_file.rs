//! The reader of key files: what it accepts is a key, and the file that is written of it is read as the same
//! key.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use doorbell_oob::key::LONGEST;
use doorbell_oob::{JobKey, OobError};

/// Returns a folder of this process, in memory where there is one: writing a key waits until the disk has it.
fn folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let place = if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    };
    place.join(format!("doorbell-fuzz-{}", std::process::id()))
}

/// Reads the input as a key file.
pub fn run(input: &[u8]) {
    let folder = folder();
    fs::create_dir_all(&folder).expect("a temporary folder");
    judge(input, &folder);
    fs::remove_dir_all(&folder).expect("our own folder");
}

fn judge(input: &[u8], folder: &Path) {
    let path = folder.join("key");
    let mut file = File::options();
    let file = file
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path);
    file.and_then(|mut file| file.write_all(input))
        .expect("a temporary file");
    match JobKey::read(&path) {
        Ok(key) => {
            assert!(input.len() <= LONGEST);
            let again = folder.join("again");
            key.write(&again, true).expect("it can be written");
            let read = JobKey::read(&again).expect("it can be read again");
            assert_eq!(read.expose(), key.expose());
            // Digits may have been capitals, and the end of the line missing; nothing else may differ.
            let written = fs::read(&again).expect("it is there");
            let same = written.to_ascii_lowercase();
            let given = input.to_ascii_lowercase();
            assert!(
                given == same || given == same[..same.len() - 1],
                "another file than was accepted"
            );
        }
        Err(OobError::KeyFile { reason, .. }) => assert!(!reason.contains(char::is_control)),
        Err(error) => panic!("{error}"),
    }
}
