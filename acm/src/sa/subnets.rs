//! The administrators of this host's InfiniBand subnets: paths, and memberships in multicast groups.
//!
//! ```text
//!   path(id, …)  ──►┌───────── Subnets ─────────┐ ask     Line: one port of a device
//!   join(group)  ──►│ queried: until, again      │──────►  mlx5_0 port 1   (libibumad)
//!   leave(group) ──►│ memberships                │──────►  mlx5_0 port 2
//!   turn(now)    ──►│ manager of each port       │◄──────  replies
//!                   └────────────┬───────────────┘
//!                                └──► SubnetEvent: a path, or a group with its properties
//! ```
//!
//! A group that exists is joined with its own properties, so that an administrator decides them, the service
//! level included; if there is none, it is created as the original creates it. A manager that has taken over
//! does not know the memberships of its predecessor: all are joined again when the port has another manager.
//!
//! A request to a busy administrator is repeated, at growing intervals. Every request ends: after all
//! attempts of the kernel it is answered by [`NoPath::Silent`].
//!
//! reference: acm, section 10; verbs, section 10.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_verbs::mads::QKEY;
use doorbell_verbs::subnet::{
    Answer, Components, MemberRecord, PathRecord, Refusal, Reply, Request, SubnetPort,
};
use zerocopy::FromZeros;

use super::{NoPath, QueryId};
use crate::address::Gid;
use crate::endpoint::Endpoint;
use crate::mad::Group;
use crate::path::{Mtu, Path, Rate};
use crate::resolver::{EndpointId, Membership};

/// Site-local scope, full member.
const SCOPE_AND_STATE: u8 = 0x51;
/// The selector "exactly".
const EXACTLY: u8 = 2 << 6;
/// Bits of a value behind its selector.
const VALUE: u8 = 0x3f;
/// How long the first replies are looked for at short intervals.
const SOON: Duration = Duration::from_millis(20);
/// The pauses between two looks for replies: soon after a request, and later.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];
/// The pause before a request to a busy administrator is repeated, at first; each is twice as long.
const BUSY: Duration = Duration::from_millis(50);
/// How long a port that could not be opened is not tried again.
const CLOSED: Duration = Duration::from_secs(5);
/// How often the manager of a port with memberships is looked up.
const WATCH: Duration = Duration::from_secs(1);
/// How long after a refusal a group is tried again.
const REFUSED: Duration = Duration::from_secs(10);
/// Requests in flight at most; each port's endpoints have few credits each.
const ASKED_MAX: usize = 4096;

/// A port from which requests go to the administrator of its subnet.
pub trait Line {
    /// Sends a request, which is repeated `retries` times, each after `timeout`.
    ///
    /// # Errors
    /// Why it cannot be sent, in words.
    fn ask(
        &mut self,
        transaction: u32,
        request: &Request,
        timeout: Duration,
        retries: u32,
    ) -> Result<(), String>;

    /// Returns the next reply, if one has arrived; it does not wait.
    ///
    /// # Errors
    /// Why the port is of no more use, in words.
    fn next_reply(&mut self) -> Result<Option<Reply>, String>;

    /// Returns the LID of the subnet's manager; 0 for none.
    ///
    /// # Errors
    /// Why it is not known, in words.
    fn manager(&self) -> Result<u16, String>;
}

impl Line for SubnetPort {
    fn ask(
        &mut self,
        transaction: u32,
        request: &Request,
        timeout: Duration,
        retries: u32,
    ) -> Result<(), String> {
        Self::ask(self, transaction, request, timeout, retries).map_err(|error| error.to_string())
    }

    fn next_reply(&mut self) -> Result<Option<Reply>, String> {
        Self::next_reply(self).map_err(|error| error.to_string())
    }

    fn manager(&self) -> Result<u16, String> {
        Self::manager(self).map_err(|error| error.to_string())
    }
}

impl<L: Line + ?Sized> Line for Box<L> {
    fn ask(
        &mut self,
        transaction: u32,
        request: &Request,
        timeout: Duration,
        retries: u32,
    ) -> Result<(), String> {
        (**self).ask(transaction, request, timeout, retries)
    }

    fn next_reply(&mut self) -> Result<Option<Reply>, String> {
        (**self).next_reply()
    }

    fn manager(&self) -> Result<u16, String> {
        (**self).manager()
    }
}

/// What an administrator has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubnetEvent {
    /// The answer to a query for a path.
    Path {
        /// The number of the query.
        id: QueryId,
        /// The path, or why there is none.
        answer: super::Answer,
    },
    /// An endpoint is in a group, for the first time or again.
    Joined {
        /// The endpoint that is in the group.
        endpoint: EndpointId,
        /// The GID of the group.
        group: Gid,
        /// The LID of the group.
        lid: u16,
        /// The properties of the group.
        like: Membership,
    },
    /// An endpoint could not join a group.
    NotJoined {
        /// The endpoint that is not in the group.
        endpoint: EndpointId,
        /// The GID of the group.
        group: Gid,
        /// Why, in words.
        why: String,
    },
}

/// Name of a device and number of a port.
type Place = (String, u8);

/// A port, open or not.
struct Port<L> {
    line: Result<L, String>,
    /// When a port that could not be opened is tried again.
    again: Time,
    /// The LID of the manager that knows the memberships.
    manager: u16,
    /// When the manager is looked up again.
    watch: Time,
}

/// What a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Purpose {
    Path(QueryId),
    /// Join a group that exists, or else create it.
    Join(EndpointId, Gid),
    Create(EndpointId, Gid),
    /// Take this GID out of the group.
    Leave(Gid, Gid),
}

/// A request that is not answered yet.
struct Asked {
    place: Place,
    request: Request,
    purpose: Purpose,
    begun: Time,
    until: Time,
    /// When the request to a busy administrator is repeated, and the pause after that.
    again: Option<Time>,
    pause: Duration,
}

/// A group that an endpoint is to be in.
struct Member {
    place: Place,
    gid: Gid,
    /// When an endpoint that could not join tries again.
    again: Option<Time>,
}

/// Opens a port of a device.
type Opener<L> = Box<dyn FnMut(&str, u8) -> Result<L, String>>;

/// The administrators of this host's subnets.
pub struct Subnets<L> {
    open: Opener<L>,
    ports: BTreeMap<Place, Port<L>>,
    asked: BTreeMap<u32, Asked>,
    members: BTreeMap<(EndpointId, Gid), Member>,
    events: VecDeque<SubnetEvent>,
    transaction: u32,
    attempt: Duration,
    retries: u32,
    looked: Time,
}

impl Subnets<Box<dyn Line>> {
    /// Returns the administrators that libibumad reaches; nothing is loaded or opened before the first query.
    /// An attempt takes `attempt` at most and is followed by `retries` others.
    #[must_use]
    pub fn of_system(attempt: Duration, retries: u32) -> Self {
        let open = |device: &str, port: u8| {
            let line: Box<dyn Line> =
                Box::new(SubnetPort::open(device, port).map_err(|error| error.to_string())?);
            Ok(line)
        };
        Self::new(Box::new(open), attempt, retries)
    }
}

impl<L: Line> Subnets<L> {
    /// Creates them; `open` opens a port of a device.
    #[must_use]
    pub fn new(open: Opener<L>, attempt: Duration, retries: u32) -> Self {
        Self {
            open,
            ports: BTreeMap::new(),
            asked: BTreeMap::new(),
            members: BTreeMap::new(),
            events: VecDeque::new(),
            transaction: 0,
            attempt,
            retries,
            looked: Time::ZERO,
        }
    }

    /// Queries the path that matches a question from this endpoint; zero fields are open.
    pub fn path(&mut self, now: Time, endpoint: &Endpoint, id: QueryId, question: &Path) {
        let request = Request::Path(PathRecord::from(question), components(question));
        self.ask(now, place(endpoint), request, Purpose::Path(id));
    }

    /// Makes an endpoint a full member of a group, and keeps it one until it leaves.
    pub fn join(&mut self, now: Time, id: EndpointId, endpoint: &Endpoint, group: Gid) {
        let place = place(endpoint);
        let gid = endpoint.gid;
        let member = Member {
            place: place.clone(),
            gid,
            again: None,
        };
        self.members.insert((id, group), member);
        self.ask_to_join(now, id, group, place, gid);
    }

    fn ask_to_join(&mut self, now: Time, id: EndpointId, group: Gid, place: Place, gid: Gid) {
        let (record, few, _) = membership(group, gid);
        self.ask(now, place, Request::Join(record, few), Purpose::Join(id, group));
    }

    /// Takes an endpoint out of a group.
    pub fn leave(&mut self, now: Time, id: EndpointId, group: Gid) {
        let Some(member) = self.members.remove(&(id, group)) else {
            return;
        };
        // An endpoint of the same port may need the group as well.
        let stays = self
            .members
            .iter()
            .any(|((_, other), own)| *other == group && own.place == member.place && own.gid == member.gid);
        if !stays {
            let (record, few, _) = membership(group, member.gid);
            let purpose = Purpose::Leave(group, member.gid);
            self.ask(now, member.place, Request::Leave(record, few), purpose);
        }
    }

    /// Takes all endpoints out of their groups. The requests are sent; answers are not waited for.
    pub fn leave_all(&mut self, now: Time) {
        let all: Vec<(EndpointId, Gid)> = self.members.keys().copied().collect();
        all.into_iter().for_each(|(id, group)| self.leave(now, id, group));
    }

    /// Joins all groups of a device's port again: its manager requires that, or another one is in its
    /// place.
    pub fn join_again(&mut self, now: Time, device: &str, port: u8) {
        let here = |member: &Member| member.place.0 == device && member.place.1 == port;
        let each = self.members.iter().filter(|(_, member)| here(member));
        let all: Vec<_> = each
            .map(|((id, group), member)| (*id, *group, member.gid))
            .collect();
        for (id, group, gid) in all {
            self.ask_to_join(now, id, group, (device.to_owned(), port), gid);
        }
    }

    /// Sends a request, or ends it where that cannot be done.
    fn ask(&mut self, now: Time, place: Place, request: Request, purpose: Purpose) {
        self.transaction = self.transaction.wrapping_add(1);
        let asked = Asked {
            place,
            request,
            purpose,
            begun: now,
            until: now + self.attempt * self.retries.saturating_add(1).min(1000),
            again: None,
            pause: BUSY,
        };
        if self.asked.len() >= ASKED_MAX {
            return self.end(now, asked, Err(NoPath::Silent), "too many requests are waiting");
        }
        self.looked = now;
        match self.send(now, &asked) {
            Ok(()) => _ = self.asked.insert(self.transaction, asked),
            Err(why) => self.end(now, asked, Err(NoPath::NoAdministrator), &why),
        }
    }

    fn send(&mut self, now: Time, asked: &Asked) -> Result<(), String> {
        let (transaction, attempt, retries) = (self.transaction, self.attempt, self.retries);
        let line = self.line(now, &asked.place)?;
        line.ask(transaction, &asked.request, attempt, retries)
    }

    /// Returns an open port.
    fn line(&mut self, now: Time, place: &Place) -> Result<&mut L, String> {
        let again = match self.ports.get(place) {
            None => true,
            Some(port) => port.line.is_err() && port.again <= now,
        };
        if again {
            let line = (self.open)(&place.0, place.1);
            let manager = line
                .as_ref()
                .ok()
                .and_then(|line| line.manager().ok())
                .unwrap_or(0);
            let port = Port {
                line,
                again: now + CLOSED,
                manager,
                watch: now + WATCH,
            };
            self.ports.insert(place.clone(), port);
        }
        match self.ports.get_mut(place).map(|port| &mut port.line) {
            Some(Ok(line)) => Ok(line),
            Some(Err(why)) => Err(why.clone()),
            None => Err("the port is gone".to_owned()),
        }
    }

    /// Reports the outcome of a request.
    fn end(&mut self, now: Time, asked: Asked, answer: Result<Answer, NoPath>, why: &str) {
        match (asked.purpose, answer) {
            (Purpose::Path(id), answer) => {
                let answer = answer.and_then(|answer| match answer {
                    Answer::Path(record) => Ok(Path::from(&record)),
                    _ => Err(NoPath::Unknown),
                });
                self.events.push_back(SubnetEvent::Path { id, answer });
            }
            (
                Purpose::Join(id, group),
                Ok(Answer::Refused(Refusal::Insufficient | Refusal::NoRecords | Refusal::Invalid)),
            ) => {
                let gid = self.members.get(&(id, group)).map(|member| member.gid);
                if let Some(gid) = gid {
                    let (record, _, many) = membership(group, gid);
                    let purpose = Purpose::Create(id, group);
                    self.ask(now, asked.place, Request::Join(record, many), purpose);
                }
            }
            (Purpose::Join(id, group) | Purpose::Create(id, group), Ok(Answer::Joined(record))) => {
                self.joined(now, id, group, &record);
            }
            (Purpose::Join(id, group) | Purpose::Create(id, group), answer) => {
                let why = match answer {
                    Ok(Answer::Refused(refusal)) => refusal.to_string(),
                    Ok(_) => "the answer is of another kind".to_owned(),
                    Err(_) if !why.is_empty() => why.to_owned(),
                    Err(reason) => reason.to_string(),
                };
                if let Some(member) = self.members.get_mut(&(id, group)) {
                    member.again = Some(now + REFUSED);
                }
                self.events.push_back(SubnetEvent::NotJoined {
                    endpoint: id,
                    group,
                    why,
                });
            }
            (Purpose::Leave(group, gid), _) => self.join_behind(now, &asked.place, group, gid),
        }
    }

    /// A request to leave has ended: the kernel repeats requests, so it may have been carried out behind a
    /// later one to join.
    fn join_behind(&mut self, now: Time, place: &Place, group: Gid, gid: Gid) {
        let back: Vec<EndpointId> = self
            .members
            .iter()
            .filter(|((_, other), member)| *other == group && member.place == *place && member.gid == gid)
            .map(|((id, _), _)| *id)
            .collect();
        for id in back {
            self.ask_to_join(now, id, group, place.clone(), gid);
        }
    }

    /// Takes a membership, if it is still wanted and of the requested group.
    fn joined(&mut self, now: Time, id: EndpointId, group: Gid, record: &MemberRecord) {
        let Some(member) = self.members.get(&(id, group)) else {
            // It has left meanwhile.
            return;
        };
        let (place, gid) = (member.place.clone(), member.gid);
        let like = like(group, record).filter(|_| record.group == group.0);
        match like {
            Some(like) => self.events.push_back(SubnetEvent::Joined {
                endpoint: id,
                group,
                lid: record.lid.get(),
                like,
            }),
            None => {
                self.members.remove(&(id, group));
                let (record, few, _) = membership(group, gid);
                self.ask(
                    now,
                    place,
                    Request::Leave(record, few),
                    Purpose::Leave(group, gid),
                );
                self.events.push_back(SubnetEvent::NotJoined {
                    endpoint: id,
                    group,
                    why: "the answer is about another group, or has an unknown rate or MTU".to_owned(),
                });
            }
        }
    }

    /// Takes replies and does what is due; returns how much it did.
    pub fn turn(&mut self, now: Time) -> usize {
        self.looked = now;
        let places: Vec<Place> = self.ports.keys().cloned().collect();
        let mut done = 0;
        for place in &places {
            done += self.replies(now, place);
            self.watch(now, place);
        }
        done += self.join_refused(now);
        let due = |asked: &Asked| asked.until <= now || asked.again.is_some_and(|again| again <= now);
        let all: Vec<u32> = self
            .asked
            .iter()
            .filter(|(_, asked)| due(asked))
            .map(|(transaction, _)| *transaction)
            .collect();
        for transaction in all {
            done += 1;
            let Some(mut asked) = self.asked.remove(&transaction) else {
                continue;
            };
            if asked.until <= now {
                self.end(now, asked, Err(NoPath::Silent), "");
                continue;
            }
            (asked.again, asked.pause) = (None, 2 * asked.pause);
            self.transaction = self.transaction.wrapping_add(1);
            match self.send(now, &asked) {
                Ok(()) => _ = self.asked.insert(self.transaction, asked),
                Err(why) => self.end(now, asked, Err(NoPath::NoAdministrator), &why),
            }
        }
        done
    }

    /// Tries again to join the groups that were refused.
    fn join_refused(&mut self, now: Time) -> usize {
        let due = self.members.iter_mut().filter_map(|((id, group), member)| {
            member.again.take_if(|again| *again <= now)?;
            Some((*id, *group, member.place.clone(), member.gid))
        });
        let due: Vec<_> = due.collect();
        let count = due.len();
        for (id, group, place, gid) in due {
            self.ask_to_join(now, id, group, place, gid);
        }
        count
    }

    fn replies(&mut self, now: Time, place: &Place) -> usize {
        let mut done = 0;
        loop {
            let Some(Port { line: Ok(line), .. }) = self.ports.get_mut(place) else {
                return done;
            };
            let reply = match line.next_reply() {
                Ok(Some(reply)) => reply,
                Ok(None) => return done,
                Err(why) => {
                    self.close(now, place, why);
                    return done + 1;
                }
            };
            done += 1;
            let is_ours = |asked: &Asked| asked.place == *place && asked.again.is_none();
            if !self.asked.get(&reply.transaction).is_some_and(is_ours) {
                continue;
            }
            let Some(mut asked) = self.asked.remove(&reply.transaction) else {
                continue;
            };
            match reply.answer {
                Some(Answer::Refused(Refusal::Busy)) => {
                    asked.again = Some(now + asked.pause);
                    self.asked.insert(reply.transaction, asked);
                }
                Some(answer) => self.end(now, asked, Ok(answer), ""),
                None => self.end(now, asked, Err(NoPath::Silent), ""),
            }
        }
    }

    /// Closes a port that does not work any more; requests that went out by it have no answer.
    fn close(&mut self, now: Time, place: &Place, why: String) {
        if let Some(port) = self.ports.get_mut(place) {
            (port.line, port.again) = (Err(why.clone()), now + CLOSED);
        }
        let of_port = |(number, asked): (&u32, &Asked)| (asked.place == *place).then_some(*number);
        let lost: Vec<u32> = self.asked.iter().filter_map(of_port).collect();
        let lost: Vec<Asked> = lost
            .iter()
            .filter_map(|number| self.asked.remove(number))
            .collect();
        for asked in lost {
            self.end(now, asked, Err(NoPath::NoAdministrator), &why);
        }
    }

    /// Joins all groups of a port again when it has another manager.
    fn watch(&mut self, now: Time, place: &Place) {
        if !self.members.values().any(|member| member.place == *place) {
            return;
        }
        let Some(port) = self.ports.get_mut(place).filter(|port| port.watch <= now) else {
            return;
        };
        port.watch = now + WATCH;
        let Ok(manager) = port.line.as_ref().map_or(Ok(0), Line::manager) else {
            return;
        };
        if manager != 0 && manager != port.manager {
            port.manager = manager;
            self.join_again(now, &place.0, place.1);
        }
    }

    /// Returns the next event, in order.
    pub fn event(&mut self) -> Option<SubnetEvent> {
        self.events.pop_front()
    }

    /// Whether a request is in flight.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Returns when [`Subnets::turn`] is due. Replies make nothing readable that could be waited for on every
    /// system, so they are looked for while requests are in flight.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        let watched = self.members.values().filter_map(|member| {
            let port = self.ports.get(&member.place)?;
            port.line.is_ok().then_some(port.watch)
        });
        let looks = self.asked.values().map(|asked| match asked.again {
            Some(again) => again.min(asked.until),
            None => {
                let late = usize::from(self.looked.since(asked.begun) > SOON);
                (self.looked + LOOKS[late]).min(asked.until)
            }
        });
        let refused = self.members.values().filter_map(|member| member.again);
        watched.chain(refused).chain(looks).min().unwrap_or(Time::NEVER)
    }

    /// Returns why no request reaches the administrator of an endpoint's subnet, if a port could not be
    /// opened.
    #[must_use]
    pub fn trouble(&self, endpoint: &Endpoint) -> Option<&str> {
        let port = self.ports.get(&place(endpoint))?;
        port.line.as_ref().err().map(String::as_str)
    }
}

fn place(endpoint: &Endpoint) -> Place {
    (endpoint.device.clone(), endpoint.port)
}

/// Returns the components that a query gives.
fn components(question: &Path) -> Components {
    Components::default()
        .and_if(!question.dgid.is_none(), Components::DGID)
        .and_if(!question.sgid.is_none(), Components::SGID)
        .and_if(question.dlid != 0, Components::DLID)
        .and_if(question.slid != 0, Components::SLID)
        .and_if(question.reversible, Components::REVERSIBLE)
        .and_if(question.num_path != 0, Components::NUM_PATH)
        .and_if(question.pkey != 0, Components::PATH_PKEY)
        .and_if(question.sl != 0, Components::PATH_SL)
        .and_if(question.mtu.is_some(), Components::PATH_MTU)
        .and_if(question.rate.is_some(), Components::PATH_RATE)
}

/// Returns the record of a membership; the components that suffice for a group that exists, and those that
/// create one.
fn membership(group: Gid, gid: Gid) -> (MemberRecord, Components, Components) {
    let mut record = MemberRecord::new_zeroed();
    (record.group, record.port) = (group.0, gid.0);
    record.scope_and_state = SCOPE_AND_STATE;
    let few = Components::GROUP
        .and(Components::PORT)
        .and(Components::JOIN_STATE);
    let mut many = few
        .and(Components::QKEY)
        .and(Components::TCLASS)
        .and(Components::SL)
        .and(Components::FLOW_LABEL)
        .and(Components::SCOPE);
    record.qkey = QKEY.into();
    if let Some(of) = Group::of(group) {
        record.pkey = of.pkey.into();
        record.tclass = of.tos;
        (record.mtu, record.rate) = (EXACTLY | of.mtu.code(), EXACTLY | of.rate.code());
        many = many
            .and(Components::PKEY)
            .and(Components::MTU)
            .and(Components::RATE);
    }
    (record, few, many)
}

/// Returns the properties of a group by its record; what it leaves open is that of the group's GID.
fn like(group: Gid, record: &MemberRecord) -> Option<Membership> {
    let usual = Group::of(group).map(Membership::of);
    let mtu = Mtu::of(record.mtu & VALUE).or(usual.map(|usual| usual.mtu))?;
    let rate = Rate::of(record.rate & VALUE).or(usual.map(|usual| usual.rate))?;
    Some(Membership {
        sl: record.sl(),
        flow_label: record.flow_label(),
        hop_limit: record.hop_limit(),
        tclass: record.tclass,
        mtu,
        rate,
        packet_lifetime: record.packet_lifetime & VALUE,
    })
}

#[cfg(test)]
mod tests;
