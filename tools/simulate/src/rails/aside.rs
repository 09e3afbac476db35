//! Messages beside the plan, which are in no books: multi-receives that are aborted take them, or they
//! are claimed and discarded. What is checked is what they leave behind: nothing, and no byte less of
//! any rank's window.

use std::time::Duration;

use doorbell_fabric::memory::Region;
use doorbell_fabric::time::Time;
use doorbell_job::rails::AnyRail;
use doorbell_pml::{Aborted, MultiArgs, Pml, PmlError, Rank, RequestId, Source, Target};
use doorbell_sim::Random;

use super::seat::Beside;
use crate::failure::Kind;
use crate::plan::CONTEXTS;

/// No message of the plan has it.
const CONTEXT: u16 = CONTEXTS;
/// Messages of each rank, about.
const EACH: u32 = 100;
/// Room of a multi-receive: for a few of the longest messages.
const ROOM: usize = 64 << 10;
/// The longest message has fewer bytes than 2 to this.
const LONGEST: u64 = 15;

/// An open multi-receive.
struct Multi {
    request: RequestId,
    /// Kept alive for it.
    _room: Region,
    aborted: bool,
}

/// One rank's part in it.
pub(crate) struct Aside {
    rank: u32,
    ranks: u32,
    random: Random,
    pace: Duration,
    /// When the next message is sent.
    next: Time,
    multi: Option<Multi>,
    bytes: u64,
}

fn other(error: PmlError) -> Kind {
    Kind::Other(format!("beside the plan: {error}"))
}

impl Beside<Pml<AnyRail>> for Aside {
    /// Four seeds in a row have something, and the next twelve have not.
    fn of(seed: u64, rank: u32, ranks: u32, lasts: Duration) -> Option<Self> {
        (seed / 4 % 4 == 1).then(|| Self {
            rank,
            ranks,
            random: Random::for_part(seed, &[29, u64::from(rank)]),
            pace: lasts / EACH,
            next: Time::ZERO,
            multi: None,
            bytes: 0,
        })
    }

    fn open(&self) -> usize {
        usize::from(self.multi.as_ref().is_some_and(|multi| !multi.aborted))
    }

    fn step(&mut self, end: &mut Pml<AnyRail>, now: Time) -> Result<(), Kind> {
        if self.next <= now {
            self.send(end)?;
            let most = 2 * u64::try_from(self.pace.as_nanos()).unwrap_or(u64::MAX / 2);
            self.next = now + Duration::from_nanos(self.random.below(most.max(1)));
        }
        match self.random.below(32) {
            0 => self.abort(end),
            1..4 => while end.next_delivery().is_some() {},
            4..6 if self.multi.is_none() => self.open_one(end)?,
            6..8 => discard_one(end)?,
            _ => {}
        }
        self.look(end)
    }

    fn clear_up(&mut self, end: &mut Pml<AnyRail>) -> Result<(), Kind> {
        self.abort(end);
        while end.next_delivery().is_some() {}
        while end.probe(Source::Any, CONTEXT, 0, u64::MAX).is_some() {
            discard_one(end)?;
        }
        self.look(end)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Aside {
    fn send(&mut self, end: &mut Pml<AnyRail>) -> Result<(), Kind> {
        let to = (self.rank + 1 + self.random.below(u64::from(self.ranks) - 1) as u32) % self.ranks;
        let top = 1 << self.random.below(LONGEST);
        let length = self.random.below(top) as usize;
        match end.inject(Rank(to), CONTEXT, 0, &vec![0xa5; length]) {
            Ok(()) => self.bytes += length as u64,
            // A rank that is lost and should not be is found by the players.
            Err(PmlError::InjectFull { .. } | PmlError::PeerLost { .. }) => {}
            Err(error) => return Err(other(error)),
        }
        Ok(())
    }

    fn open_one(&mut self, end: &mut Pml<AnyRail>) -> Result<(), Kind> {
        let room = Region::new(ROOM).map_err(|error| Kind::Other(error.to_string()))?;
        let args = MultiArgs {
            from: Source::Any,
            context: CONTEXT,
            tag: 0,
            ignore: u64::MAX,
            target: Target::Region(room.whole()),
            min_free: 1 + self.random.below(ROOM as u64 / 2),
            notify: false,
        };
        let request = end.recv_multi(args).map_err(other)?;
        self.multi = Some(Multi {
            request,
            _room: room,
            aborted: false,
        });
        Ok(())
    }

    fn abort(&mut self, end: &mut Pml<AnyRail>) {
        if let Some(multi) = &mut self.multi {
            multi.aborted = true;
            if end.abort(multi.request) == Aborted::Now {
                self.multi = None;
            }
        }
    }

    /// Whether the multi-receive has ended, by itself or a while after it was aborted.
    fn look(&mut self, end: &mut Pml<AnyRail>) -> Result<(), Kind> {
        let Some(multi) = &self.multi else { return Ok(()) };
        if multi.aborted {
            self.abort(end);
        } else if let Some(ended) = end.test(multi.request) {
            ended.map_err(other)?;
            self.multi = None;
        }
        Ok(())
    }
}

/// Throws away the oldest message.
fn discard_one(end: &mut Pml<AnyRail>) -> Result<(), Kind> {
    if let Some(claimed) = end.claim(Source::Any, CONTEXT, 0, u64::MAX) {
        end.discard(claimed.message).map_err(other)?;
    }
    Ok(())
}
