//! Writes the ranks' output in a thread of its own, so that a slow reader stops the ranks and not the
//! launcher.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use doorbell::oob::plane::{Inbox, Message, Oob};

use super::credit::{self, Returns};
use super::launcher::Incoming;
use super::protocol::Output;
use super::sentences::Shared;
use super::wakeup::Mailbox;
use crate::run::prefix::Lines;
use crate::run::{Launch, Output as Wants};

/// How long the thread sleeps before it checks whether it is still needed.
const NAP: Duration = Duration::from_secs(1);

/// Writes what arrives, until the control plane has ended.
pub(super) fn write(
    oob: &Oob,
    inbox: Inbox<Message>,
    incoming: Mailbox<Incoming>,
    launch: &Launch,
    hosts: usize,
    unfinished: Shared,
) -> io::Result<()> {
    let writer = Writer {
        oob: oob.clone(),
        inbox,
        incoming,
        returns: BTreeMap::new(),
        most: credit::of_output(hosts),
        lines: BTreeMap::new(),
        unfinished,
        wants: launch.output,
        is_told: false,
    };
    let thread = std::thread::Builder::new().name("output".to_owned());
    thread.spawn(move || writer.run()).map(drop)
}

struct Writer {
    oob: Oob,
    inbox: Inbox<Message>,
    incoming: Mailbox<Incoming>,
    /// The credit returned to each daemon.
    returns: BTreeMap<u32, Returns>,
    /// The credit of each daemon.
    most: usize,
    /// The unfinished lines of the ranks.
    lines: BTreeMap<(u32, usize), Lines>,
    unfinished: Shared,
    wants: Wants,
    /// Whether a failure of standard output was reported.
    is_told: bool,
}

impl Writer {
    fn run(mut self) {
        // It ends with the control plane.
        while self.inbox.ended().is_none() || self.inbox.waiting() > 0 {
            if let Some(message) = self.inbox.wait(self.nap()) {
                self.take(&message);
                self.give_back(&message);
            }
            // Handle arrivals first: they may be the rest of a line.
            if self.inbox.waiting() == 0 {
                self.show_begun();
            }
        }
    }

    fn take(&mut self, message: &Message) {
        match Output::read(&message.body) {
            Some(Output::Done(commands)) => self.incoming.post(Incoming::Done(message.from.rank, commands)),
            Some(Output::Of(rank, stream, bytes)) => {
                if let Err(error) = self.write(rank, stream, bytes)
                    && stream == 0
                    && !std::mem::replace(&mut self.is_told, true)
                {
                    self.incoming.post(Incoming::Unwritten(error));
                }
            }
            None => {}
        }
    }

    /// Returns the credit of a written message to its daemon.
    fn give_back(&mut self, message: &Message) {
        let from = message.from;
        let returns = self.returns.entry(from.rank);
        let returns = returns.or_insert_with(|| Returns::new(&self.oob, from, self.most));
        // It fails once the control plane has ended; what waits in the inbox is still to be written.
        let _ = returns.used(message.body.len());
    }

    fn nap(&self) -> Duration {
        let due = self.lines.values().filter_map(Lines::due).min();
        due.map_or(NAP, |due| due.saturating_duration_since(Instant::now()).min(NAP))
    }

    /// Passes on the starts of lines whose rest does not come.
    fn show_begun(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut unfinished = self.unfinished.lock();
        for ((_, stream), lines) in &mut self.lines {
            // A failing output is reported when a line is complete.
            let _ = lines.show(now, &mut unfinished, &mut output(*stream));
        }
    }

    fn write(&mut self, rank: u32, stream: usize, bytes: &[u8]) -> io::Result<()> {
        if self.wants == Wants::Inherited {
            let mut to = output(stream);
            return to.write_all(bytes).and_then(|()| to.flush());
        }
        // Lock this before the output's own lock, as for messages.
        let mut unfinished = self.unfinished.lock();
        let mut to = output(stream);
        if bytes.is_empty() {
            let lines = self.lines.remove(&(rank, stream));
            return lines.map_or(Ok(()), |mut lines| lines.end(&mut unfinished, &mut to));
        }
        let lines = self.lines.entry((rank, stream));
        let lines = lines.or_insert_with_key(|source| Lines::new(*source));
        lines.push(bytes, Instant::now(), &mut unfinished, &mut to)
    }
}

fn output(stream: usize) -> Box<dyn Write> {
    match stream {
        0 => Box::new(io::stdout().lock()),
        _ => Box::new(io::stderr().lock()),
    }
}
