//! What the ranks have written, written here: by a thread of its own, so that a reader who is slow stops the ranks and not the launcher.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use doorbell::oob::plane::{Inbox, Message, Oob};

use super::bell::Told;
use super::credit::{self, Returns};
use super::head::Heard;
use super::words::Output;
use crate::run::prefix::Lines;
use crate::run::{Launch, Output as Wants};

/// How long the thread sleeps before it looks whether it is still wanted.
const NAP: Duration = Duration::from_secs(1);

/// Writes what comes, until the control plane has ended.
pub(super) fn write(
    oob: &Oob,
    inbox: Inbox<Message>,
    heard: Told<Heard>,
    launch: &Launch,
    hosts: usize,
) -> io::Result<()> {
    let writer = Writer {
        oob: oob.clone(),
        inbox,
        heard,
        returns: BTreeMap::new(),
        most: credit::of_output(hosts),
        lines: BTreeMap::new(),
        wants: launch.output,
        is_told: false,
    };
    let thread = std::thread::Builder::new().name("output".to_owned());
    thread.spawn(move || writer.run()).map(drop)
}

struct Writer {
    oob: Oob,
    inbox: Inbox<Message>,
    heard: Told<Heard>,
    /// What is given back to each daemon.
    returns: BTreeMap<u32, Returns>,
    /// What each of them may have on the way.
    most: usize,
    /// What ranks have said of lines that have not ended.
    lines: BTreeMap<(u32, usize), Lines>,
    wants: Wants,
    /// That the standard output takes nothing any more.
    is_told: bool,
}

impl Writer {
    fn run(mut self) {
        // It ends with the control plane.
        while self.inbox.ended().is_none() || self.inbox.waiting() > 0 {
            let Some(message) = self.inbox.wait(NAP) else {
                continue;
            };
            match Output::read(&message.body) {
                Some(Output::Done(orders)) => self.heard.tell(Heard::Done(message.from.rank, orders)),
                Some(Output::Of(rank, stream, bytes)) => {
                    if let Err(error) = self.write(rank, stream, bytes)
                        && stream == 0
                        && !std::mem::replace(&mut self.is_told, true)
                    {
                        self.heard.tell(Heard::Unwritten(error));
                    }
                }
                None => {}
            }
            let from = message.from;
            let returns = self.returns.entry(from.rank);
            let returns = returns.or_insert_with(|| Returns::new(&self.oob, from, self.most));
            if returns.used(message.body.len()).is_err() {
                // What waits in the inbox is still to be written.
                continue;
            }
        }
    }

    fn write(&mut self, rank: u32, stream: usize, bytes: &[u8]) -> io::Result<()> {
        let mut to: Box<dyn Write> = match stream {
            0 => Box::new(io::stdout().lock()),
            _ => Box::new(io::stderr().lock()),
        };
        match self.wants {
            Wants::Inherited => to.write_all(bytes).and_then(|()| to.flush()),
            Wants::Prefixed if bytes.is_empty() => match self.lines.remove(&(rank, stream)) {
                Some(mut lines) => lines.end(&mut to),
                None => Ok(()),
            },
            Wants::Prefixed => {
                let lines = self.lines.entry((rank, stream));
                lines.or_insert_with(|| Lines::new(rank)).push(bytes, &mut to)
            }
        }
    }
}
