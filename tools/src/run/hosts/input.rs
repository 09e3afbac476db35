//! Standard input of the launcher is for rank 0: one thread here reads it, another one on its host writes it.
//! Neither gets ahead of a slow rank by more than its credit.

use std::io::{self, Read, Write};
use std::process::ChildStdin;
use std::time::Duration;

use doorbell::oob::bytes::Bytes;
use doorbell::oob::name::Name;
use doorbell::oob::plane::{Inbox, Message, Oob};

use super::credit::{Credit, Returns};
use super::protocol::INPUT;

/// Bytes of one message.
const PIECE: usize = 32 << 10;
/// How long a rank may take to read.
const EVER: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long the writer sleeps before it checks whether it is still needed.
const NAP: Duration = Duration::from_secs(1);

/// Whether there is anything to read: a terminal belongs to the launcher, for Ctrl-C.
pub(super) fn is_there() -> bool {
    !io::IsTerminal::is_terminal(&io::stdin())
}

/// Reads to the end of the input, for the daemon `to`. The thread is not joined, since a read has no time
/// limit.
pub(super) fn read(oob: Oob, to: Name, credit: Credit) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("input".to_owned());
    let pass = move || {
        let mut buffer = vec![0; PIECE];
        loop {
            let count = match io::stdin().lock().read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            credit.take(count);
            let sent = oob.send(to, INPUT, Bytes::from(&buffer[..count]), Some(EVER));
            if count == 0 || sent.is_err() {
                return;
            }
            // The end of the process ends this too.
            while !credit.wait(EVER) {}
        }
    };
    thread.spawn(pass).map(drop)
}

/// Writes to a rank what arrives, until the input ends or the rank stops reading.
pub(super) fn write(inbox: Inbox<Message>, mut to: ChildStdin, mut returns: Returns) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("input".to_owned());
    let pass = move || {
        while inbox.ended().is_none() {
            let Some(message) = inbox.wait(NAP) else { continue };
            let is_over = message.body.is_empty() || to.write_all(&message.body).is_err();
            if is_over || returns.used(message.body.len()).is_err() {
                return;
            }
        }
    };
    thread.spawn(pass).map(drop)
}
