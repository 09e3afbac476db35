//! The tree: parents, children, and their loss.
//!
//! A rank attaches to its nearest reachable planned ancestor, reports the last broadcast it received, and
//! gets the missing ones, the contacts of all ancestors further up (which it may need one day), and the
//! failure notices. A parent whose child disconnects does not report a loss at once: perhaps only the path
//! between the two has failed. It *checks*: it sends a message through the whole tree, to the child and to
//! the child's children, which should attach elsewhere. A rank that this does not reach within the grace
//! period is reported to the root as lost.

use std::collections::BTreeSet;

use super::codec::{
    ATTACH, ATTACHED, CAST, CAST_ENDED, CAST_REQUEST, CHECK, CONTACT, DETACH, GATHER, LOOK_UP, MOVED, NEWS,
    REACHED, REPORT, Reader, Writer,
};
use super::{Key, Node, Purpose};
use crate::bytes::Bytes;
use crate::config::Policy;
use crate::contact::Contact;
use crate::event::{Event, Status};
use crate::wire::Lane;

/// Maximum number of ancestors in a message.
const ANCESTORS_MAX: usize = 64;

/// The state of the search for a parent.
#[derive(Debug, Default)]
pub(super) struct Life {
    seeking: Option<u32>,
    /// Ancestors that could not be reached since there was a parent.
    tried: BTreeSet<u32>,
    /// Whether the loss of the lifeline was reported.
    lost: bool,
    checking: BTreeSet<u32>,
    /// Number of tries of a nearer ancestor, since something changed.
    pub(super) homeward: u32,
}

impl Life {
    pub(super) fn is_about(&self, rank: u32, parent: Option<u32>) -> bool {
        self.seeking == Some(rank) || parent == Some(rank)
    }

    pub(super) fn is_seeking(&self) -> bool {
        self.seeking.is_some()
    }

    pub(super) fn seek_no_more(&mut self) {
        self.seeking = None;
    }
}

impl Node {
    /// Sends a control message.
    pub(super) fn send_control(&mut self, ix: u32, tag: u32, body: Bytes, purpose: Option<Purpose>) {
        if self.of(ix).name == self.config.name {
            return self.local.push_back((tag, body));
        }
        let patience = match purpose {
            Some(Purpose::Check(_)) => self.config.grace,
            _ => self.config.give_up,
        };
        let deadline = self.now + patience;
        let send = self.queue(ix, Lane::Control, tag, body, deadline);
        if let Some(purpose) = purpose {
            self.purposes.insert(send, purpose);
        }
    }

    /// Handles a control message.
    pub(super) fn control(&mut self, ix: u32, tag: u32, body: &Bytes) {
        let read = match tag {
            ATTACH => self.on_attach(ix, body),
            ATTACHED => self.on_attached(ix, body),
            DETACH => self.on_detach(ix),
            REPORT => self.on_report(body),
            NEWS => self.on_news(body),
            CAST_REQUEST => self.on_cast_request(ix, body),
            CAST => self.on_cast(body),
            REACHED => self.on_reached(ix, body),
            CAST_ENDED => self.on_cast_ended(body),
            GATHER => self.on_gather(body),
            LOOK_UP => self.on_look_up(ix, body),
            CONTACT => self.on_contact(body),
            MOVED => self.on_moved(ix, body),
            CHECK => self.on_check(ix),
            crate::rml::VOID => Some(()),
            _ => None,
        };
        self.counters.malformed += u64::from(read.is_none());
    }

    fn on_look_up(&mut self, ix: u32, body: &Bytes) -> Option<()> {
        let asker = Contact::decode(&mut Reader::new(body).rest)?;
        if asker.name != self.of(ix).name {
            return None;
        }
        self.learned(asker);
        let mut writer = Writer::default();
        self.contact().encode(&mut writer.0);
        self.send_control(ix, CONTACT, writer.done(), None);
        Some(())
    }

    fn on_contact(&mut self, body: &Bytes) -> Option<()> {
        let contact = Contact::decode(&mut Reader::new(body).rest)?;
        self.learned(contact.clone());
        self.emit(Event::Found { contact });
        Some(())
    }

    /// Handles new addresses of a process, which reports its own only.
    fn on_moved(&mut self, ix: u32, body: &Bytes) -> Option<()> {
        let contact = Contact::decode(&mut Reader::new(body).rest)?;
        if contact.name != self.of(ix).name {
            return None;
        }
        self.learned(contact);
        Some(())
    }

    /// Looks for the nearest ancestor that has not failed yet.
    pub(super) fn seek(&mut self) {
        if self.is_root() || self.ended || self.routed.parent.is_some() || self.life.seeking.is_some() {
            return;
        }
        for rank in self.routed.tree.ancestors(self.config.name.rank) {
            let ix = self.rank(rank);
            let peer = self.of(ix);
            let known = peer.contact.is_some() || peer.hop.as_ref().is_some_and(|hop| !hop.links.is_empty());
            if known && !self.life.tried.contains(&rank) {
                return self.attach_to(rank);
            }
        }
        if !std::mem::replace(&mut self.life.lost, true) {
            self.emit(Event::LifelineLost);
        }
        match self.config.policy {
            Policy::End => self.end(self.now),
            Policy::Persist => {
                self.life.tried.clear();
                self.timers.set(Key::Seek, self.now + self.config.retry_max);
            }
        }
    }

    pub(super) fn attach_to(&mut self, rank: u32) {
        self.life.seeking = Some(rank);
        let ix = self.rank(rank);
        let (epoch, last) = self.casts.last_received();
        let mut writer = Writer::default();
        writer.long(epoch.0).long(last);
        self.contact().encode(&mut writer.0);
        self.send_control(ix, ATTACH, writer.done(), Some(Purpose::Attach(rank)));
        self.set_neighbour(ix, true);
    }

    /// Handles an ancestor that did not answer, or the time for another search.
    pub(super) fn seek_due(&mut self) {
        match self.life.seeking {
            Some(rank) => self.parent_gone(rank),
            None => self.seek(),
        }
    }

    /// Tries the next ancestor when the parent, or the one to become it, cannot be reached.
    pub(super) fn parent_gone(&mut self, rank: u32) {
        if self.stays(rank) {
            return;
        }
        let ix = self.rank(rank);
        self.life.seeking = None;
        self.routed.parent = None;
        self.life.tried.insert(rank);
        self.timers.clear(Key::Seek);
        self.set_neighbour(ix, false);
        self.fail(ix, Lane::Control, Status::Unreachable);
        self.touch_all();
        self.seek();
    }

    fn on_attach(&mut self, ix: u32, body: &Bytes) -> Option<()> {
        let mut reader = Reader::new(body);
        let (epoch, last) = (reader.epoch()?, reader.long()?);
        let contact = Contact::decode(&mut reader.rest)?;
        let child = self.of(ix).name;
        if contact.name != child || child.job != self.config.name.job || child.rank == self.config.name.rank {
            return None;
        }
        if !self.routed.tree.is_below(child.rank, self.config.name.rank) {
            return None;
        }
        self.learned(contact);
        self.routed.children.insert(child.rank);
        self.set_neighbour(ix, true);
        let answer = self.attached();
        self.send_control(ix, ATTACHED, answer, None);
        self.cast_again(ix, epoch, last);
        self.touch_all();
        Some(())
    }

    /// Encodes what a new child is sent: the contacts of this rank and of its ancestors, and the failure
    /// notices.
    fn attached(&mut self) -> Bytes {
        let mut contacts = vec![self.contact()];
        for rank in self
            .routed
            .tree
            .ancestors(self.config.name.rank)
            .take(ANCESTORS_MAX)
        {
            let ix = self.rank(rank);
            contacts.extend(self.of(ix).contact.as_deref().cloned());
        }
        let mut writer = Writer::default();
        writer.byte(contacts.len() as u8);
        contacts.iter().for_each(|contact| contact.encode(&mut writer.0));
        self.write_news(&mut writer);
        writer.done()
    }

    fn on_attached(&mut self, ix: u32, body: &Bytes) -> Option<()> {
        let parent = self.of(ix).name;
        if self.life.seeking != Some(parent.rank) {
            return Some(());
        }
        let mut reader = Reader::new(body);
        let contacts = reader.byte()?;
        let contacts: Option<Vec<Contact>> =
            (0..contacts).map(|_| Contact::decode(&mut reader.rest)).collect();
        self.life.seeking = None;
        self.life.lost = false;
        let before = self.routed.parent.replace(parent.rank);
        self.timers.clear(Key::Seek);
        if let Some(before) = before.filter(|&before| before != parent.rank) {
            self.leave_parent(before);
        }
        self.emit(Event::LifelineUp { parent });
        contacts?.into_iter().for_each(|contact| self.learned(contact));
        self.read_news(&mut reader)?;
        // An ancestor that was tried without an answer may still take us for its child.
        for rank in std::mem::take(&mut self.life.tried) {
            let ix = self.rank(rank);
            if rank != parent.rank && self.of(ix).epoch.is_known() {
                let deadline = self.now + self.config.grace;
                self.queue(ix, Lane::Control, DETACH, Bytes::default(), deadline);
            }
        }
        self.report_all();
        self.touch_all();
        self.plan_home(before.is_none());
        Some(())
    }

    fn on_detach(&mut self, ix: u32) -> Option<()> {
        let rank = self.of(ix).name.rank;
        if self.routed.children.remove(&rank) {
            self.set_neighbour(ix, false);
            self.touch_all();
        }
        Some(())
    }

    /// Checks a child that disconnected, and its children.
    pub(super) fn child_gone(&mut self, rank: u32) {
        self.routed.children.remove(&rank);
        let ix = self.rank(rank);
        self.set_neighbour(ix, false);
        self.touch_all();
        self.check(rank);
        for child in self.routed.tree.children(rank) {
            self.check(child);
        }
    }

    /// Handles a check, whose delivery is the answer. If it comes from our parent, that has given us up, and
    /// we are no longer its child.
    fn on_check(&mut self, ix: u32) -> Option<()> {
        let name = self.of(ix).name;
        if name.job == self.config.name.job && self.routed.parent == Some(name.rank) {
            self.routed.parent = None;
            self.attach_to(name.rank);
        }
        Some(())
    }

    pub(super) fn check(&mut self, rank: u32) {
        if !self.routed.children.contains(&rank) && self.life.checking.insert(rank) {
            let ix = self.rank(rank);
            self.send_control(ix, CHECK, Bytes::default(), Some(Purpose::Check(rank)));
        }
    }

    /// Handles the end of a control message with a purpose.
    pub(super) fn purpose_ended(&mut self, purpose: Purpose, status: Status) {
        match purpose {
            Purpose::Attach(rank) if self.life.seeking != Some(rank) => {}
            Purpose::Attach(_) if status == Status::Delivered => {
                self.timers.set(Key::Seek, self.now + self.config.grace);
            }
            // It has restarted; the request is repeated.
            Purpose::Attach(_) if status == Status::PeerRestarted => {}
            Purpose::Attach(rank) => self.parent_gone(rank),
            Purpose::Check(rank) => self.checked(rank, status),
            Purpose::CastRequest(_) if status == Status::Delivered => {}
            Purpose::CastRequest(op) => self.op_due(op),
        }
    }

    fn checked(&mut self, rank: u32, status: Status) {
        self.life.checking.remove(&rank);
        let is_alive = matches!(status, Status::Delivered | Status::PeerRestarted | Status::Ended);
        if is_alive || self.routed.children.contains(&rank) {
            return;
        }
        let ix = self.rank(rank);
        let epoch = self.of(ix).epoch;
        self.report(rank, epoch, true);
        for child in self.routed.tree.children(rank) {
            let ix = self.rank(child);
            if !self.of(ix).lost {
                self.check(child);
            }
        }
    }

    /// Handles the restart of a neighbour in the tree, which knows nothing of us.
    pub(super) fn kin_restarted(&mut self, ix: u32) {
        let (name, epoch) = (self.of(ix).name, self.of(ix).epoch);
        if name.job != self.config.name.job {
            return;
        }
        if self.life.is_about(name.rank, self.routed.parent) {
            self.routed.parent = self.routed.parent.filter(|&parent| parent != name.rank);
            self.life.seeking = None;
            self.attach_to(name.rank);
        } else if self.routed.tree.is_below(name.rank, self.config.name.rank) {
            if self.routed.children.remove(&name.rank) {
                self.set_neighbour(ix, false);
            }
            self.report(name.rank, epoch, false);
        }
    }
}
