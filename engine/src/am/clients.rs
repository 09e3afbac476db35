//! Sending from other threads through the one that owns the [`Am`](super::Am): its mailbox
//! ([`doorbell_am::threads`]), and the bell that wakes it where it sleeps.

use std::sync::Arc;

use doorbell_am::Conduit;
use doorbell_am::threads::{self, Desk, NotTaken, Ticket, Work};
use doorbell_fabric::map::process::Maker;
use doorbell_fabric::ni::Ni;
use doorbell_job::error::Error;
use rustix::fd::{AsFd, BorrowedFd};

use crate::progress::Bell;

/// The handle of another thread that sends through an [`Am`](super::Am): cloned for each thread, or shared.
/// See [`Am::client`](super::Am::client).
#[derive(Clone, Debug)]
pub struct Client {
    client: threads::Client,
    // Dropped after `client`: the thread that the bell wakes then finds the client gone.
    rope: Rope,
}

impl Client {
    /// Hands an operation over; the ticket shows how it ends.
    ///
    /// # Errors
    /// [`NotTaken`]. A child of `fork` gets [`NotTaken::Closed`]: no thread serves its copy of the mailbox.
    pub fn begin(&self, ticket: &mut Ticket, work: Work) -> Result<(), NotTaken> {
        if !self.rope.maker.is_running() {
            return Err(NotTaken::Closed);
        }
        self.client.begin(ticket, work)?;
        self.rope.ring();
        Ok(())
    }
}

#[derive(Clone)]
struct Rope {
    bell: Arc<Bell>,
    /// The process that made the bell: a child of `fork` inherits the descriptor and must not ring it.
    maker: Maker,
}

impl Rope {
    #[inline]
    fn ring(&self) {
        if self.maker.is_running() {
            self.bell.ring();
        }
    }
}

impl Drop for Rope {
    fn drop(&mut self) {
        self.ring();
    }
}

impl std::fmt::Debug for Rope {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Rope")
    }
}

/// The receiving end of the mailbox, in the thread that owns the conduit.
pub(super) struct Counter {
    desk: Desk,
    bell: Arc<Bell>,
}

impl Counter {
    pub(super) fn open(capacity: usize) -> Result<(Client, Self), Error> {
        let (client, desk) = threads::desk(capacity).map_err(|error| Error::Interface {
            what: "a mailbox for other threads",
            reason: error.to_string(),
        })?;
        let bell = Arc::new(Bell::new("the mailbox of an active-message job")?);
        let rope = Rope {
            bell: Arc::clone(&bell),
            maker: Maker::this(),
        };
        Ok((Client { client, rope }, Self { desk, bell }))
    }

    #[inline]
    pub(super) fn serve<N: Ni>(&mut self, conduit: &mut Conduit<N>) -> usize {
        self.desk.serve(conduit)
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.desk.is_abandoned()
    }

    /// Prepares to sleep; returns whether there is work already.
    pub(super) fn arm(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.bell.prepare();
        each(self.bell.descriptor().as_fd());
        self.desk.has_news()
    }

    pub(super) fn disarm(&self) {
        self.bell.finish();
    }
}

#[cfg(test)]
mod tests {
    use doorbell_am::threads::Args;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Returns whether the bell was rung.
    fn is_rung(counter: &Counter) -> bool {
        let bell = counter.bell.descriptor();
        let mut descriptors = [PollFd::new(&bell, PollFlags::IN)];
        poll(&mut descriptors, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn an_operation_and_the_end_of_the_last_client_wake_a_sleeper() {
        let work = Work::Short {
            to: 0,
            handler: 200,
            args: Args::default(),
        };
        let (client, counter) = Counter::open(4).unwrap();
        let mut shown = 0;
        assert!(!counter.arm(&mut |_| shown += 1), "nothing has arrived");
        assert_eq!((shown, is_rung(&counter)), (1, false));
        client.begin(&mut Ticket::new(), work.clone()).unwrap();
        assert!(is_rung(&counter));
        counter.disarm();
        assert!(!is_rung(&counter));
        client.begin(&mut Ticket::new(), work).unwrap();
        assert!(!is_rung(&counter), "the thread is awake");
        assert!(counter.arm(&mut |_| ()), "there is work already");
        drop((client, counter));

        let (client, counter) = Counter::open(4).unwrap();
        let other = client.clone();
        assert!(!counter.arm(&mut |_| ()));
        drop(client);
        assert!(!counter.is_abandoned());
        counter.disarm();
        assert!(!counter.arm(&mut |_| ()), "one is left");
        drop(other);
        assert!(is_rung(&counter) && counter.is_abandoned());
        counter.disarm();
        assert!(counter.arm(&mut |_| ()), "the end is no reason to sleep");
    }
}
