//! The rendezvous of independent processes: two of them meet when one first needs the other; there is no
//! barrier of all.
//!
//! ```text
//!   Member<L> ── owns ── L: a Portals node, or a PML    used by one thread at a time, which makes progress
//!     │                     └── rails
//!     └── Desk ◄── processes of this host that call it (`desk`); any thread may serve it
//! ```
//!
//! A job of ranks meets as a whole; an independent process does not know the members of its job before it
//! names one, and may name one of another job. So every process listens on its host, under a name that the
//! others know:
//!
//! | member | layer | its name |
//! |---|---|---|
//! | [`PortalsMember`] | a Portals node | the process id that the program names, {nid, pid} |
//! | [`PmlMember`] | a PML | a random one, in the [`Address`] that programs pass to each other, with a token |
//!
//! A process that first needs another one connects there and sends its card; from then on both have each
//! other's card, open each other over their rails, and notice each other's end. This takes neither the
//! launcher nor a barrier of all.
//!
//! A network namespace of a host counts as a host: neither abstract names nor sockets pass between two. A PML
//! member meets those of other hosts in the frames of its rails (`hello`): its address has their doors.
//! Processes with Portals interfaces publish their cards for other hosts in the launcher's key-value
//! store, where the launcher speaks PMI-1 and a rail leads out of the host (`words`).

mod address;
mod book;
mod card;
mod counters;
mod desk;
#[cfg(fuzzing)]
pub mod fuzzing;
mod hello;
mod host;
mod layer;
mod meeting_key;
mod naming;
mod pml;
mod portals;
mod remote;
mod words;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use doorbell_fabric::discover::Candidate;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::map::process::Kept;
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Rail as _;
use doorbell_fabric::time::Time;

pub use self::address::{Address, AddressError, ENDPOINTS, PeerId};
pub use self::card::Card;
use self::card::Name;
pub use self::counters::MemberCounters;
pub use self::desk::{Desk, DeskCounts};
use self::desk::{News, Place};
pub use self::hello::HelloCounts;
use self::layer::Toward;
pub use self::layer::{MemberLayer, PeerName, PeerNews};
pub use self::meeting_key::MeetingKey;
pub use self::pml::{PmlLayer, PmlMember};
pub use self::portals::{PortalsLayer, PortalsMember, Taken};
pub use self::words::finish;
use crate::config::{Config, Rails};
use crate::connect::{PeerPath, add_rails, connect};
use crate::error::Error;
use crate::meet::{Key, RankInfo};
use crate::rails::sets::{Among, take_own};
use crate::rails::{AnyRail, open_all};
use crate::wait::turns::Clock;

/// A process that belongs to no job, as its owner drives it: the layer above its rails, and its listener.
pub struct Member<L: MemberLayer> {
    layer: Kept<L>,
    desk: Desk,
    config: Config,
    candidates: Vec<Candidate>,
    clock: Clock,
    /// Processes that have ended, each with the time when the layer is notified.
    leaving: Vec<(Time, Name)>,
}

/// Rails that are open, before there is a layer above them.
struct Prepared {
    config: Config,
    rails: Vec<AnyRail>,
    info: RankInfo,
    clock: Clock,
}

/// Opens the rails that `config` names.
fn prepare(mut config: Config) -> Result<Prepared, Error> {
    if config.rails.list.get().0.iter().any(RailName::is_set) {
        let among = Among::of_member(&config)?;
        take_own(&mut config, among)?;
    }
    let (mut rails, _) = open_all(&config)?;
    // Discovery has an order of its own. The first one that is named is the first door, which is what members
    // of other hosts with a key know.
    let named = &config.rails.list.get().0;
    let place = |rail: &AnyRail| named.iter().position(|name| name == rail.name());
    rails.sort_by_key(|rail| place(rail).unwrap_or(named.len()));
    let clock = Clock::Machine(doorbell_fabric::clock::Clock::start());
    prepare_over(config, rails, clock)
}

/// Takes rails that are open.
fn prepare_over(mut config: Config, rails: Vec<AnyRail>, clock: Clock) -> Result<Prepared, Error> {
    // All rails that were named are open now, and each leads to some of the processes only: shared memory to
    // those of this host, a network to those behind it. With the names kept, each of them would have to reach
    // every process.
    config.rails.list.set(Rails::default());
    let entries = rails.iter().map(AnyRail::entry).collect();
    let mut info = RankInfo::of_this_process(0, 1, config.agreed(), entries)?;
    info.host = host::name();
    Ok(Prepared {
        config,
        rails,
        info,
        clock,
    })
}

impl<L: MemberLayer> Member<L> {
    /// Puts a layer, which `make` makes without rails, above the rails, and opens the listener.
    fn assemble(
        place: Place,
        prepared: Prepared,
        key: &Key,
        make: impl FnOnce(&Desk, &[AnyRail]) -> Result<L, Error>,
    ) -> Result<Self, Error> {
        let Prepared {
            config,
            rails,
            info,
            clock,
        } = prepared;
        let card = Card::new(place.name, info);
        let desk = Desk::open(place, card).map_err(|source| io_error("open the desk", source))?;
        let candidates = rails.iter().map(AnyRail::candidate).collect();
        let mut layer = make(&desk, &rails)?;
        let mut owner = Toward {
            layer: &mut layer,
            peer: None,
        };
        add_rails(&mut owner, rails, key)?;
        Ok(Self {
            layer: Kept::new(layer),
            desk,
            config,
            candidates,
            clock,
            leaving: Vec::new(),
        })
    }

    /// Returns the listener for other processes of this host.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Takes a sentence for the user about file descriptors that were missing, once there is one: callers
    /// wait until there are some. There is one at most in a member's life.
    #[inline]
    #[must_use]
    pub fn take_shortage(&self) -> Option<String> {
        self.desk.take_shortage()
    }

    /// Checks that the running process is the one that has entered.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of it.
    #[inline]
    pub fn here(&self) -> Result<(), Error> {
        match self.layer.is_here() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    /// Opens a peer by its card.
    fn open(&mut self, peer: L::Peer, card: &Card) -> Result<Vec<PeerPath>, Error> {
        let (own, theirs) = self.desk.card().ranked(card);
        let mut toward = Toward {
            layer: &mut *self.layer,
            peer: Some(peer),
        };
        if let Some(key) = &card.key {
            toward.set_key(&card.info, key);
        }
        let opened = connect(&mut toward, &self.config, &self.candidates, &own, &theirs);
        opened.map(|(_, paths)| paths)
    }

    /// Handles the news of the desk: opens the processes that have called or answered since the last call,
    /// and closes those whose grace time is over; returns how many.
    fn attend(&mut self, now: Time) -> usize {
        let mut count = 0;
        while let Some(at) = self.leaving.iter().position(|(when, _)| *when <= now) {
            let (_, name) = self.leaving.swap_remove(at);
            self.layer.ended(&PeerName(name), now, DownReason::Control);
            count += 1;
        }
        let PeerNews(mut news) = self.layer.news();
        if self.desk.any() {
            news.append(&mut self.desk.take());
        }
        count += news.len();
        for news in news {
            self.on_news(news, now);
        }
        count
    }

    fn on_news(&mut self, news: News, now: Time) {
        match news {
            News::Called(card) | News::Answered(card) => {
                self.leaving.retain(|(_, name)| *name != card.name);
                if let Some(peer) = self.layer.admit(&card, now) {
                    let paths = self.open(peer, &card);
                    self.layer.opened(&self.desk, peer, paths);
                }
            }
            News::Failed(name, reason) => self.layer.not_reached(&PeerName(name), reason),
            News::Left(name) => self.layer.ended(&PeerName(name), now, DownReason::Closed),
            News::Ended(name) => self.leaving.push((now + L::GRACE, name)),
        }
    }

    /// Runs what depends on the clock, and reads it; returns the work done.
    pub fn progress(&mut self) -> usize {
        if !self.layer.is_here() {
            return 0;
        }
        let now = self.clock.now();
        let work = self.layer.tend(&self.desk, now) + self.attend(now);
        work + self.layer.progress(&self.desk, now)
    }

    /// Returns how long the next call of [`Member::progress`] can wait.
    pub fn idle(&self) -> Option<Duration> {
        let leaving = self.leaving.iter().map(|(when, _)| *when).min();
        let deadline = self.layer.next_deadline().into_iter().chain(leaving).min();
        let deadline = deadline.map(|deadline| deadline.since(self.clock.now()));
        deadline.into_iter().chain(self.desk.idle()).min()
    }

    /// Prepares to sleep: every descriptor that becomes readable when there is work is passed to `each`, the
    /// listener's among them. Returns whether there is work already: then do not sleep. [`Member::disarm`]
    /// ends it.
    pub fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        if !self.layer.is_here() {
            return true;
        }
        each(self.desk.ready());
        self.layer.arm(each) || self.desk.any()
    }

    /// Ends what [`Member::arm`] has prepared.
    pub fn disarm(&mut self) {
        if self.layer.is_here() {
            self.layer.disarm();
        }
    }

    /// Rings one doorbell for everything that was started.
    #[inline]
    pub fn flush(&mut self) {
        if self.layer.is_here() {
            self.layer.flush();
        }
    }

    /// Sends what was accepted, for at most `limit`, and closes the connections to the peers.
    pub fn close(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.close_pass(until) {
            std::thread::yield_now();
        }
    }

    /// Does a part of [`Member::close`], for callers that close several. Returns whether it is done, or the
    /// time is over; then it is not to be called again.
    pub fn close_pass(&mut self, until: Instant) -> bool {
        if !self.layer.is_here() {
            return true;
        }
        let left = until.saturating_duration_since(Instant::now());
        let now = self.clock.now();
        if self.layer.close(now, now + left) || left.is_zero() {
            return true;
        }
        let now = self.clock.now();
        self.desk.serve();
        self.layer.tend(&self.desk, now);
        self.attend(now);
        self.layer.poll();
        false
    }

    /// Leaves the rails to the system at the end of the process, since dropping them may wait for a peer.
    pub fn forget(mut self) {
        // The listener closes, which others notice.
        self.layer.forget();
        std::mem::forget(self.layer);
    }
}

fn io_error(step: &'static str, source: io::Error) -> Error {
    let remedy = "raise the limit of open files (ulimit -n), and check that Unix sockets are allowed here";
    Error::io(step, "this process", source, remedy)
}

/// Whether a rail leads to other hosts.
fn leads_out(rail: &AnyRail) -> bool {
    use crate::rails::Manage as _;
    crate::rails::leads_out(rail.name().kind(), rail.place().kind)
}
