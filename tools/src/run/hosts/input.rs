//! What is piped into the launcher is for rank 0: read by a thread here, written by one on its host. Neither reads ahead of a rank that
//! does not read, by more than the control plane holds.

use std::io::{self, Read, Write};
use std::process::ChildStdin;
use std::time::Duration;

use doorbell::oob::bytes::Bytes;
use doorbell::oob::name::Name;
use doorbell::oob::plane::{Inbox, Message, Oob};

use super::words::INPUT;

/// Bytes of one message.
const PIECE: usize = 32 << 10;
/// A rank may take this long to read.
const EVER: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long the writer sleeps before it looks whether it is still wanted.
const NAP: Duration = Duration::from_secs(1);

/// Bytes that wait on the host of rank 0.
pub(super) const ROOM: usize = 256 << 10;

/// Whether there is anything to be read: a terminal is the launcher's own, for Ctrl-C.
pub(super) fn is_there() -> bool {
    !io::IsTerminal::is_terminal(&io::stdin())
}

/// Reads, until there is no more, for the daemon `to`. The thread is not waited for: reading has no end of its own.
pub(super) fn read(oob: Oob, to: Name) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("input".to_owned());
    let pass = move || {
        let mut buffer = vec![0; PIECE];
        loop {
            let count = match io::stdin().lock().read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            let sent = oob.send(to, INPUT, Bytes::from(&buffer[..count]), Some(EVER));
            // One piece at a time: the next one when this has arrived.
            if count == 0 || sent.ok().and_then(|sent| sent.wait(EVER)).is_none() {
                return;
            }
        }
    };
    thread.spawn(pass).map(drop)
}

/// Writes what comes to a rank, until it is all or the rank reads no more.
pub(super) fn write(inbox: Inbox<Message>, mut to: ChildStdin) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("input".to_owned());
    let pass = move || {
        while inbox.ended().is_none() {
            if let Some(message) = inbox.wait(NAP)
                && (message.body.is_empty() || to.write_all(&message.body).is_err())
            {
                return;
            }
        }
    };
    thread.spawn(pass).map(drop)
}
