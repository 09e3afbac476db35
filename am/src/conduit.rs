//! The conduit of one process and its state.

use std::collections::VecDeque;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::ni::{MdHandle, Ni, Process};

use crate::barrier::Barrier;
use crate::boot::{Alike, Boot, RemoteSegment};
use crate::chunks::{ChunkUse, Chunks};
use crate::config::{Config, Ranks};
use crate::credit::{Ask, CreditState};
use crate::deferred::Deferred;
use crate::error::{AmError, Fault};
use crate::exit::{Exit, Leaving};
use crate::handler::Handlers;
use crate::long_cache::{Half, LidCache};
use crate::objects::{self, Memories, Objects};
use crate::ops::Ops;
use crate::reqrb::ReqRb;
use crate::resources::{Held, Temporaries};
use crate::settings::Settings;
use crate::stats::{self, Resources, Stats};
use crate::tickets::Tickets;
use crate::token::Outbox;

/// Active messages, puts, gets and barriers of one process, over an interface that it owns. One thread owns
/// the conduit: it is `Send` and not `Sync`. Made by [`Attaching`](crate::Attaching).
#[derive(Debug)]
pub struct Conduit<N> {
    pub(crate) ni: N,
    pub(crate) me: u32,
    pub(crate) ranks: Ranks,
    pub(crate) settings: Settings,
    pub(crate) objects: Objects,
    pub(crate) segment: RegionSlice,
    pub(crate) boot_table: RegionSlice,
    pub(crate) boot: Boot,
    pub(crate) remotes: Box<[RemoteSegment]>,
    pub(crate) tickets: Tickets,
    pub(crate) temporaries: Temporaries,
    pub(crate) reqsb: Chunks,
    pub(crate) uses: Box<[ChunkUse]>,
    pub(crate) rplsb: Chunks,
    pub(crate) held: Held,
    pub(crate) reqrb: ReqRb,
    pub(crate) lids: LidCache,
    pub(crate) next_lid: u32,
    pub(crate) ops: Ops,
    pub(crate) credits: CreditState,
    /// The request to each rank that waits for credits, three bytes each.
    pub(crate) asks: Box<[Ask]>,
    pub(crate) handlers: Handlers,
    pub(crate) outbox: Outbox,
    pub(crate) replies_under_way: u32,
    pub(crate) deferred: VecDeque<Deferred>,
    /// Processes that had no room when deferred operations were last tried.
    pub(crate) full: Vec<Process>,
    pub(crate) begun: bool,
    pub(crate) barrier: Barrier,
    pub(crate) exit: Exit,
    pub(crate) lost: Vec<(u32, DownReason)>,
    pub(crate) fault: Option<Fault>,
    pub(crate) stats: Stats,
}

impl<N: Ni> Conduit<N> {
    pub(crate) fn new(mut ni: N, config: Config, handlers: Handlers) -> Result<Self, AmError> {
        let shares = config.shares()?;
        let segment = config.segment(&shares)?;
        let settings = config.settings.clone().checked()?;
        let nodes = config.ranks.count();
        let memories = objects::memories(&config, segment)?;
        let mut reqrb = objects::receive_buffers(&config, &shares)?;
        let objects = Objects::new(&mut ni, &config, &shares, &memories, &mut reqrb)?;
        let credits = CreditState::new(&settings.terms(nodes, config.me))?;
        let Memories {
            segment,
            reqsb,
            rplsb,
            boot: boot_table,
        } = memories;
        let chunk = settings.chunk.bytes() as u32;
        let mine = RemoteSegment {
            base: segment.address() as u64,
            size: segment.len() as u64,
        };
        // Halves of requests are bounded by their credits, those of replies by the chunks that they are for:
        // at most as many headers as data.
        let halves = 2 * (shares.events as usize + settings.request_chunks as usize);
        let wait = settings.exit.wait(nodes);
        Ok(Self {
            ni,
            me: config.me,
            boot: Boot::new(
                config.me,
                nodes,
                &boot_table,
                mine,
                Alike::new(&settings, &shares),
            ),
            ranks: config.ranks,
            outbox: Outbox {
                memory: rplsb.clone(),
                offset: 0,
                chunk: chunk as usize,
                segment: segment.clone(),
                their_segment: 0,
                requester: config.me,
                me: config.me,
                packed_long: settings.packed_long,
                most: objects.most,
                draft: None,
            },
            objects,
            boot_table,
            segment,
            remotes: Box::default(),
            tickets: Tickets::new(settings.message_limit),
            temporaries: Temporaries::new(settings.temporaries),
            reqsb: Chunks::new(reqsb, chunk, settings.request_chunks),
            uses: (0..settings.request_chunks).map(|_| ChunkUse::Free).collect(),
            rplsb: Chunks::new(rplsb, chunk, settings.reply_chunks),
            held: Held::default(),
            reqrb,
            lids: LidCache::new(halves, nodes as usize),
            next_lid: 0,
            ops: Ops::new(settings.thread, settings.message_limit as usize),
            credits,
            asks: vec![Ask::new(1); nodes as usize].into(),
            handlers,
            replies_under_way: 0,
            deferred: VecDeque::with_capacity(
                settings.message_limit as usize + settings.reply_chunks as usize,
            ),
            full: Vec::with_capacity(nodes as usize),
            begun: false,
            barrier: Barrier::new(config.me, nodes),
            exit: Exit::new(config.me, nodes, wait, config.exit_flag),
            lost: Vec::new(),
            fault: None,
            stats: Stats::default(),
            settings,
        })
    }

    /// This process's rank.
    #[inline]
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.me
    }

    /// Processes of the job.
    #[inline]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.ranks.count()
    }

    /// The settings that the conduit was made with.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// This process's segment.
    #[must_use]
    pub const fn segment(&self) -> &RegionSlice {
        &self.segment
    }

    /// The bytes of this process's segment.
    #[must_use]
    pub fn segment_bytes(&self) -> SharedBytes<'_> {
        self.segment.as_shared()
    }

    /// A rank's segment.
    ///
    /// # Errors
    /// [`AmError::NoSuchRank`].
    #[inline]
    pub fn segment_of(&self, rank: u32) -> Result<RemoteSegment, AmError> {
        let remote = self.remotes.get(rank as usize).copied();
        remote.ok_or(AmError::NoSuchRank {
            rank,
            size: self.size(),
        })
    }

    /// The interface below: for its descriptors, its status and its rails. What the conduit made is its own.
    pub const fn ni(&self) -> &N {
        &self.ni
    }

    /// Returns the interface, to be changed.
    pub const fn ni_mut(&mut self) -> &mut N {
        &mut self.ni
    }

    /// Ends the conduit and returns the interface. Does not wait for operations in progress: leave by
    /// [`exit`](Self::exit) first.
    pub fn into_ni(self) -> N {
        self.ni
    }

    /// The credits, for tests and tools.
    #[must_use]
    pub const fn credits(&self) -> &CreditState {
        &self.credits
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            recycled: self.reqrb.recycled(),
            ..self.stats
        }
    }

    /// Returns how many of each resource are free. What a poll reserves for a reply counts as taken.
    #[must_use]
    pub fn resources(&self) -> Resources {
        Resources {
            tickets: (self.tickets.free(), self.tickets.limit()),
            request_chunks: (self.reqsb.free(), self.reqsb.count()),
            reply_chunks: (self.rplsb.free(), self.rplsb.count()),
            temporaries: (self.temporaries.free(), self.settings.temporaries),
            in_hand: (
                self.held.tickets,
                u32::from(self.held.temporary.is_some()),
                u32::from(self.held.chunk.is_some()),
            ),
            halves: self.lids.len(),
            operations: self.ops.live(),
        }
    }

    /// The text that [`Settings::credit_stats`] requests. The caller writes it to a file.
    #[must_use]
    pub fn statistics(&self) -> String {
        stats::text(
            (self.me, self.size()),
            &self.stats(),
            &self.resources(),
            &self.credits,
        )
    }

    /// Replies whose source or chunk is still being read: with none, payloads that Long replies were sent
    /// from may be changed.
    #[must_use]
    pub const fn replies_under_way(&self) -> u32 {
        self.replies_under_way
    }

    /// Ranks that are lost, in the order in which they were.
    #[must_use]
    pub fn lost(&self) -> &[(u32, DownReason)] {
        &self.lost
    }

    /// Whether the conduit can go on.
    ///
    /// # Errors
    /// [`AmError::Fault`].
    #[inline]
    pub fn health(&self) -> Result<(), AmError> {
        self.fault.map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Returns how far the end of the job is.
    #[must_use]
    pub const fn leaving(&self) -> Leaving {
        self.exit.leaving()
    }

    /// Notes what ends the conduit; the first counts.
    #[cold]
    pub(crate) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// A message that cannot be: dropped and counted.
    #[cold]
    pub(crate) fn hostile(&mut self) {
        self.stats.hostile += 1;
    }

    /// Returns a chunk of the requests' buffer.
    #[inline]
    pub(crate) fn free_chunk(&mut self, chunk: u32) {
        if let Some(slot) = self.uses.get_mut(chunk as usize)
            && !matches!(slot, ChunkUse::Free)
        {
            *slot = ChunkUse::Free;
            self.reqsb.give(chunk);
        }
    }

    /// Releases a temporary descriptor.
    #[inline]
    pub(crate) fn release(&mut self, number: u32) {
        let md = self.temporaries.unbind(number);
        if let Some(error) = md.and_then(|md: MdHandle| self.ni.md_release(md).err()) {
            self.fail(Fault::Interface(error));
        }
    }

    /// Handles the loss of a rank: its operations have ended, and nothing more will arrive from it.
    #[cold]
    pub(crate) fn lose(&mut self, rank: u32, reason: DownReason) {
        if self.lost.iter().any(|(known, _)| *known == rank) {
            return;
        }
        self.lost.push((rank, reason));
        // Its outstanding operations have ended as events, which are handled first, since they free what they
        // hold. So are its last messages.
        while self.poll_sys(usize::MAX) > 0 {}
        while let Some(event) = self.event(self.objects.queues.safe, "SAFE") {
            self.safe_event(&event);
        }
        for chunk in 0..self.reqsb.count() {
            if matches!(self.uses.get(chunk as usize), Some(ChunkUse::Request(to)) if *to == rank) {
                self.free_chunk(chunk);
            }
        }
        let credits = &mut self.credits;
        self.lids.forget(rank, |half| {
            if let Half::Request(header) = half {
                credits.answer(rank, header.due);
            }
        });
        self.not_returned(rank);
        self.exit.lost(rank, reason);
    }

    /// Whether something can be sent to a rank.
    #[inline]
    pub(crate) fn reachable(&self, rank: u32) -> Result<(), AmError> {
        if self.fault.is_some() || !self.lost.is_empty() || !self.exit.is_running() {
            self.why_not(rank)?;
        }
        if rank as usize >= self.remotes.len() {
            return Err(AmError::NoSuchRank {
                rank,
                size: self.size(),
            });
        }
        Ok(())
    }

    #[cold]
    fn why_not(&self, rank: u32) -> Result<(), AmError> {
        self.health()?;
        self.not_leaving()?;
        match self.lost.iter().find(|(lost, _)| *lost == rank) {
            Some(&(rank, reason)) => Err(AmError::PeerLost { rank, reason }),
            None => Ok(()),
        }
    }

    /// Whether the job is running.
    pub(crate) const fn not_leaving(&self) -> Result<(), AmError> {
        match self.exit.leaving() {
            Leaving::No => Ok(()),
            Leaving::Underway { code, by } => Err(AmError::ShuttingDown { code, by }),
            Leaving::Over(Ok(code)) => Err(AmError::ShuttingDown { code, by: self.me }),
            Leaving::Over(Err(unclean)) => Err(AmError::Unclean(unclean)),
        }
    }

    /// Whether no rank is lost, which collective operations require.
    pub(crate) fn complete(&self) -> Result<(), AmError> {
        self.lost
            .first()
            .map_or(Ok(()), |&(rank, reason)| Err(AmError::PeerLost { rank, reason }))
    }
}
