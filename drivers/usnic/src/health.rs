//! Health of a function: its link, its queues, the owner of its filters. A poll every 20 ms finds what is not
//! reported otherwise.
//!
//! | what is seen | what is done |
//! |---|---|
//! | a register reads as ones, or a read gets no reply; also while the queues are set up again | the rail ends: the device is gone |
//! | `error_status` is set, or a queue does not run | the queues are set up again |
//! | completions that cannot be, with some missing before; a completion queue that stands still | the same |
//! | a doorbell has no effect | it is rung again; after a second the queues are set up again |
//! | the link went away and is back | the same: filters may be gone with it |
//! | who steers is gone, or has lost everything | down until it is back, then the same |
//! | the firmware has failed, or the vNIC's MTU is below ours | nothing is sent, and the rail is down, until that is over |
//!
//! What the values of `error_status` mean is unknown `[U]`: not 0 is what counts.

use memoffset::offset_of;

use doorbell_packet::SendRing as _;

use crate::bringup::Since;
use crate::cq::CompletionRing;
use crate::errno::Fault;
use crate::notify::{News, NotifyRead};
use crate::open::Held;
use crate::rail::{UsnicRx, UsnicTx};
use crate::regs::{GONE, ReceiveQueue, WorkQueue};
use crate::window::Window;

/// Polls without any progress of a send queue after which it is set up again.
const STALLED_MOST: u32 = 50;

/// What a look comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Well,
    Restart,
    Gone,
}

/// Whether the queues run, and whether the device may be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Running {
    Yes,
    No,
    /// The function is being reset.
    Untouchable,
}

/// What was seen at the last look.
#[derive(Debug)]
pub(crate) struct Health {
    mtu: usize,
    /// The last news of the function itself, and of its physical one.
    own: Option<News>,
    parent: Option<News>,
    since: Since,
    is_steered: bool,
    sent: [(u64, u64); 2],
    stalled: u32,
    received: [u64; 2],
    was_stuck: bool,
    pub(crate) rung_again: u64,
    pub(crate) torn: u64,
}

impl Health {
    pub(crate) fn new(mtu: usize) -> Self {
        Self {
            mtu,
            own: None,
            parent: None,
            since: Since::default(),
            is_steered: true,
            sent: [(0, 0); 2],
            stalled: 0,
            received: [0; 2],
            was_stuck: false,
            rung_again: 0,
            torn: 0,
        }
    }

    /// The function's own news, or else its physical one's.
    pub(crate) fn news(&self) -> Option<News> {
        self.own.or(self.parent)
    }

    /// Whether the link is up, as far as that is known: where neither the function nor its physical one
    /// reports it, it is taken to be up `[I]`.
    pub(crate) fn is_up(&self) -> bool {
        let fits = |news: News| {
            let mtu = news.mtu as usize;
            news.link && !news.fatal && (mtu == 0 || mtu >= self.mtu)
        };
        self.is_steered && [self.own, self.parent].into_iter().flatten().all(fits)
    }

    /// The queues have just begun to run.
    pub(crate) fn begin(&mut self, held: &mut Held) {
        (self.stalled, self.was_stuck) = (0, false);
        self.first(held);
    }

    /// Records what is known at the beginning.
    pub(crate) fn first(&mut self, held: &mut Held) {
        self.read_news(held);
        self.since = held.since;
    }

    /// Whether an owner of filters serves the function, as far as that is known.
    pub(crate) fn is_steered(&self) -> bool {
        self.is_steered
    }

    /// Reads what the device and its physical function report.
    fn read_news(&mut self, held: &mut Held) {
        match held.look() {
            Some(NotifyRead::News(news)) => self.own = Some(news),
            // The last that was whole counts.
            Some(NotifyRead::Torn) => self.torn += 1,
            Some(NotifyRead::Nothing) | None => {}
        }
        match held.steering.parent() {
            Ok(parent) => {
                self.is_steered = true;
                self.parent = parent.news;
            }
            Err(_) => self.is_steered = false,
        }
    }

    /// Polls the device and its queues once.
    pub(crate) fn look(
        &mut self,
        tx: &mut UsnicTx,
        rx: &mut UsnicRx,
        held: &mut Held,
        state: Running,
    ) -> Verdict {
        self.read_news(held);
        match state {
            Running::Yes => {}
            Running::No if is_gone(tx, rx) => return Verdict::Gone,
            Running::No | Running::Untouchable => return Verdict::Well,
        }
        match queues(tx, rx) {
            Ok(true) => {}
            Ok(false) => return Verdict::Restart,
            Err(_) => return Verdict::Gone,
        }
        if self.has_lost(held) || self.is_astray(tx, rx) {
            return Verdict::Restart;
        }
        self.push(tx, rx);
        if self.stalled > STALLED_MOST {
            return Verdict::Restart;
        }
        Verdict::Well
    }

    /// Whether what was steered is not any more, or may not be.
    fn has_lost(&mut self, held: &mut Held) -> bool {
        let life = held.steering.parent().ok().map(|parent| parent.life);
        let is_up = self.is_up();
        let mut was_down = false;
        for (before, news) in self.since.link_downs.iter_mut().zip([self.own, self.parent]) {
            let Some(news) = news else { continue };
            // The first report only sets the count from which later ones are compared.
            was_down |= *before.get_or_insert(news.link_downs) != news.link_downs;
        }
        // While it is down nothing can be done; the count shows it when it is up again.
        !self.is_steered || life != self.since.life || was_down && is_up
    }

    /// Whether the completion queues are out of step with us. One that does not advance may be in the middle
    /// of a write: it counts only when two checks in a row find it so.
    fn is_astray(&mut self, tx: &UsnicTx, rx: &UsnicRx) -> bool {
        let is_stuck = tx.completions.as_ref().is_some_and(CompletionRing::is_stuck) || rx.queues.is_stuck();
        let twice = std::mem::replace(&mut self.was_stuck, is_stuck) && is_stuck;
        rx.queues.is_astray || twice
    }

    /// Rings again where nothing came of a doorbell.
    fn push(&mut self, tx: &mut UsnicTx, rx: &UsnicRx) {
        // All of them report by one queue.
        tx.reap(0);
        let mut is_stalled = false;
        for (ring, last) in tx.rings.iter().zip(&mut self.sent) {
            let now = ring.slots().progress();
            let (told, done) = now;
            if told != done && *last == now {
                ring.ring_again();
                self.rung_again += 1;
                is_stalled = true;
            }
            *last = now;
        }
        self.stalled = if is_stalled { self.stalled + 1 } else { 0 };
        // A receive queue that is full of free chunks reports nothing: the doorbell is rung again when
        // nothing comes.
        for (ring, last) in rx.queues.rings.iter().zip(&mut self.received) {
            let now = ring.count();
            if *last == now {
                ring.ring_again();
            }
            *last = now;
        }
    }
}

/// Whether a device whose queues are off is not there any more. Registers that are mapped stay readable when
/// the process is gone that modelled them: the rail looks at its line apart from this.
fn is_gone(tx: &UsnicTx, rx: &UsnicRx) -> bool {
    queues(tx, rx).is_err_and(|fault| fault.is_gone())
}

/// Whether all queues run without an error.
fn queues(tx: &UsnicTx, rx: &UsnicRx) -> Result<bool, Fault> {
    let look = |window: &Window, running: usize, error: usize| -> Result<bool, Fault> {
        let (running, error) = (window.read32(running)?, window.read32(error)?);
        if running == GONE && error == GONE {
            return Err(Fault::Gone);
        }
        Ok(running != 0 && error == 0)
    };
    let mut is_well = true;
    for ring in &tx.rings {
        let (running, error) = (
            offset_of!(WorkQueue, running),
            offset_of!(WorkQueue, error_status),
        );
        is_well &= look(ring.window(), running, error)?;
    }
    for ring in &rx.queues.rings {
        let (running, error) = (
            offset_of!(ReceiveQueue, running),
            offset_of!(ReceiveQueue, error_status),
        );
        is_well &= look(ring.window(), running, error)?;
    }
    Ok(is_well)
}
