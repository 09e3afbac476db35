//! Failure notices: which ranks are lost and which are back, as decided by the root.
//!
//! Parents report, the root decides, and notices go down the tree. A notice is a state with a version, not a
//! history: the highest (epoch, version) holds, whatever the order of arrival, and a rank that attaches gets
//! all of them. So a rank that was cut off for a while is up to date as soon as it is back.

use super::Node;
use super::codec::{NEWS, REPORT, Reader, Writer};
use crate::bytes::Bytes;
use crate::name::Epoch;

/// The state of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Notice {
    epoch: Epoch,
    version: u32,
    lost: bool,
}

impl Node {
    /// Reports to the root that a rank is lost, or is not.
    pub(super) fn report(&mut self, rank: u32, epoch: Epoch, lost: bool) {
        if self.is_root() {
            return self.decide(rank, epoch, lost);
        }
        let root = self.rank(0);
        let body = Writer::default()
            .word(rank)
            .long(epoch.0)
            .byte(u8::from(lost))
            .done();
        self.send_control(root, REPORT, body, None);
    }

    pub(super) fn on_report(&mut self, body: &Bytes) -> Option<()> {
        let mut reader = Reader::new(body);
        let (rank, epoch, lost) = (reader.word()?, reader.epoch()?, reader.byte()?);
        if !self.is_root() || rank >= self.config.ranks {
            return None;
        }
        self.decide(rank, epoch, lost != 0);
        Some(())
    }

    fn decide(&mut self, rank: u32, epoch: Epoch, lost: bool) {
        let ix = self.rank(rank);
        let before = self.notices.get(&rank).copied().unwrap_or_default();
        let latest = before.epoch.max(self.of(ix).epoch);
        let outdated = epoch.is_known() && epoch < latest;
        let contradicted = lost && (rank == 0 || self.routed.children.contains(&rank));
        if outdated || contradicted || before.lost == lost && (lost || before.epoch >= epoch) {
            return;
        }
        let news = Notice {
            epoch: latest.max(epoch),
            version: before.version + 1,
            lost,
        };
        self.notices.insert(rank, news);
        self.believe(rank, news);
        self.spread(&[rank]);
        if !lost {
            // Ranks below it may have been cut off with it.
            for below in self.routed.tree.branch(rank) {
                if self.notices.get(&below).is_some_and(|news| news.lost) {
                    self.check(below);
                }
            }
        }
    }

    fn spread(&mut self, ranks: &[u32]) {
        let mut writer = Writer::default();
        writer.word(ranks.len() as u32);
        for rank in ranks {
            let news = self.notices.get(rank).copied().unwrap_or_default();
            write(&mut writer, *rank, news);
        }
        let body = writer.done();
        for child in self.routed.children.clone() {
            let ix = self.rank(child);
            self.send_control(ix, NEWS, body.clone(), None);
        }
    }

    /// Encodes all notices, for a new child.
    pub(super) fn write_news(&self, writer: &mut Writer) {
        writer.word(self.notices.len() as u32);
        for (rank, news) in &self.notices {
            write(writer, *rank, *news);
        }
    }

    pub(super) fn on_news(&mut self, body: &Bytes) -> Option<()> {
        self.read_news(&mut Reader::new(body))
    }

    pub(super) fn read_news(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        let mut new = Vec::new();
        for _ in 0..reader.word()? {
            let rank = reader.word()?;
            let news = Notice {
                epoch: reader.epoch()?,
                version: reader.word()?,
                lost: reader.byte()? != 0,
            };
            if rank >= self.config.ranks {
                return None;
            }
            let before = self.notices.get(&rank).copied().unwrap_or_default();
            if (news.epoch, news.version) > (before.epoch, before.version) {
                self.notices.insert(rank, news);
                new.push((rank, news));
            }
        }
        let ranks: Vec<u32> = new.iter().map(|&(rank, _)| rank).collect();
        if !ranks.is_empty() {
            self.spread(&ranks);
        }
        new.into_iter().for_each(|(rank, news)| self.believe(rank, news));
        Some(())
    }

    /// Applies a notice.
    fn believe(&mut self, rank: u32, news: Notice) {
        if rank == self.config.name.rank {
            if news.lost && news.epoch <= self.config.epoch {
                self.report(rank, self.config.epoch, false);
            }
            return;
        }
        let ix = self.rank(rank);
        if !news.lost {
            if news.epoch.is_known() {
                self.meet(ix, news.epoch);
            }
            if self.of(ix).lost && news.epoch >= self.of(ix).epoch {
                self.mark_back(ix);
            }
            return self.touch(ix);
        }
        if self.of(ix).epoch > news.epoch && news.epoch.is_known() {
            return;
        }
        let near = self.routed.children.contains(&rank) || self.routed.parent == Some(rank);
        let linked = self.of(ix).hop.as_ref().is_some_and(|hop| !hop.links.is_empty());
        if near && linked {
            // The epoch that we know is more recent.
            let epoch = self.of(ix).epoch;
            return self.report(rank, epoch, false);
        }
        self.mark_lost(ix);
    }

    /// Handles a message from a rank that was lost.
    pub(super) fn proved_alive(&mut self, ix: u32) {
        let (name, epoch) = (self.of(ix).name, self.of(ix).epoch);
        let lost = self.notices.get(&name.rank).is_some_and(|news| news.lost);
        if name.job == self.config.name.job && lost {
            self.report(name.rank, epoch, false);
        }
    }

    pub(super) fn is_lost(&self, rank: u32) -> bool {
        self.notices.get(&rank).is_some_and(|news| news.lost)
    }
}

fn write(writer: &mut Writer, rank: u32, news: Notice) {
    writer
        .word(rank)
        .long(news.epoch.0)
        .word(news.version)
        .byte(u8::from(news.lost));
}
