//! A server that sends whatever bytes a test sets: one client, one reply for each message.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

/// What follows on a message.
pub(crate) enum Then {
    /// A reply with this payload.
    Reply(Vec<u8>),
    /// A refusal with this number.
    Refuse(u32),
    /// Just these bytes.
    Raw(Vec<u8>),
    /// Nothing, and the line stays open.
    Silence,
    /// The end of the line.
    End,
}

pub(crate) struct Scripted {
    pub(crate) socket: PathBuf,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Scripted {
    pub(crate) fn start(mut script: impl FnMut(u16, &[u8]) -> Then + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("device");
        let listener = UnixListener::bind(&socket).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while let Some((header, payload)) = message(&mut stream) {
                let command = u16::from_le_bytes([header[2], header[3]]);
                let reply = |flags: u32, error: u32, payload: &[u8]| {
                    let mut bytes = header[..4].to_vec();
                    bytes.extend((16 + payload.len() as u32).to_le_bytes());
                    bytes.extend(flags.to_le_bytes());
                    bytes.extend(error.to_le_bytes());
                    bytes.extend(payload);
                    bytes
                };
                let bytes = match script(command, &payload) {
                    Then::Reply(payload) => reply(1, 0, &payload),
                    Then::Refuse(number) => reply(0x21, number, &[]),
                    Then::Raw(bytes) => bytes,
                    Then::Silence => Vec::new(),
                    Then::End => return,
                };
                if stream.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        Self {
            socket,
            thread: Some(thread),
            _folder: folder,
        }
    }
}

fn message(stream: &mut UnixStream) -> Option<([u8; 16], Vec<u8>)> {
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let mut header = [0; 16];
    stream.read_exact(&mut header).ok()?;
    let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
    let mut payload = vec![0; length.checked_sub(16)?];
    stream.read_exact(&mut payload).ok()?;
    Some((header, payload))
}

impl Drop for Scripted {
    fn drop(&mut self) {
        drop(UnixStream::connect(&self.socket));
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the script panicked");
        }
    }
}

/// Words of a payload.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The answers of a device with a configuration space and nothing else, that can be reset.
pub(crate) fn usual(command: u16, payload: &[u8]) -> Then {
    match command {
        1 => Then::Reply(b"\0\0\x01\0{}\0".to_vec()),
        4 => Then::Reply(words(&[16, 3, 9, 5])),
        5 => {
            let index = payload[8];
            let (flags, size) = if index == 7 { (3, 256) } else { (0, 0) };
            Then::Reply(words(&[32, flags, index.into(), 0, size, 0, 0, 0]))
        }
        7 => Then::Reply(words(&[16, 1, payload[8].into(), 3])),
        9 => {
            let count = usize::from(payload[12]);
            let mut answer = payload[..16].to_vec();
            answer.extend(vec![0x55; count]);
            Then::Reply(answer)
        }
        _ => Then::Reply(Vec::new()),
    }
}
