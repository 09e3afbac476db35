//! Paths of an InfiniBand subnet to the ports of peers: LID, service level, MTU, rate, and the hop limit
//! where routers lie between.
//!
//! | a path is | if |
//! |---|---|
//! | what the resolver of addresses (acm) gave | it gave one for this peer |
//! | the answer of the subnet's administration | it can be requested, and answers within two seconds |
//! | assumed: the peer's LID, service level 0 or the set one, the port's MTU | else, with the reason |
//!
//! Requests are sent a few at a time, and answers are polled: nothing waits. After another manager, LID or a
//! re-registration, all paths are requested again, of an administration that is opened again where it had
//! failed.
//!
//! reference: verbs, section 10; InfiniBand Architecture Specification, volume 1, 15.2.5.16 (PathRecord).

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use doorbell_fabric::gid::{Gid, share_partition};
use doorbell_fabric::time::Time;
use rustc_hash::FxHashMap;
use zerocopy::FromZeros;

use crate::subnet::{Answer, Components, PathRecord, Reply, Request, SubnetError, SubnetPort};

/// Requests under way at a time.
const MOST: usize = 32;
/// The time after which the kernel repeats a request, and how often it does.
const REPEATED: (Duration, u32) = (Duration::from_millis(400), 3);
/// After this time, an answer is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(2);
/// LIDs of ports end here: those of groups follow.
const LIDS: u16 = 0xc000;
/// The value in a byte with a selector.
const VALUE: u8 = 0x3f;

/// What is requested for paths.
pub(crate) trait Administration: Send {
    /// Sends a request, and does not wait.
    fn ask(&mut self, transaction: u32, request: &Request) -> Result<(), SubnetError>;

    /// The next reply, if one has come.
    fn next_reply(&mut self) -> Result<Option<Reply>, SubnetError>;
}

impl Administration for SubnetPort {
    fn ask(&mut self, transaction: u32, request: &Request) -> Result<(), SubnetError> {
        Self::ask(self, transaction, request, REPEATED.0, REPEATED.1)
    }

    fn next_reply(&mut self) -> Result<Option<Reply>, SubnetError> {
        Self::next_reply(self)
    }
}

/// Where a path comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Resolver,
    Administration,
    /// It is none, for this reason.
    Assumption(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolver => out.write_str("given by the address service"),
            Self::Administration => out.write_str("given by the subnet's administration"),
            Self::Assumption(reason) => write!(out, "assumed, with the MTU of the port: {reason}"),
        }
    }
}

/// How packets reach the port of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
    /// The code of its rate; 0 for that of the port.
    pub(crate) rate: u8,
    /// The code of its MTU; `None` for that of the port.
    pub(crate) mtu: Option<u8>,
    /// More than one where routers lie between.
    pub(crate) hops: u8,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
    pub(crate) origin: Origin,
}

impl fmt::Display for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lid, service_level, ..
        } = self;
        write!(out, "LID {lid}, service level {service_level}")?;
        if let Some(mtu) = self.mtu {
            write!(out, ", MTU {}", 128 << mtu)?;
        }
        if self.hops > 1 {
            out.write_str(", by routers")?;
        }
        write!(out, ", {}", self.origin)
    }
}

/// The ends of a path: the LID that the peer has published, and the GIDs that both ports use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) lid: u16,
    pub(crate) ours: Gid,
    pub(crate) theirs: Gid,
}

impl Ends {
    /// The names of paths that were given for it.
    fn names(&self) -> [[[u8; 16]; 2]; 2] {
        [[self.ours.0, self.theirs.0], [[0; 16], self.theirs.0]]
    }
}

/// What has become of a path that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Known,
    /// Its answer, or those of others, are waited for.
    Requested,
    /// It can be requested in the next pass.
    Later,
}

enum State {
    Requested,
    Known(Path),
}

/// A request that has no answer yet.
struct UnderWay {
    transaction: u32,
    peer: u32,
    /// When it is not waited for any more.
    until: Time,
}

/// Opens what answers requests.
type Opener = Box<dyn FnMut() -> Result<Box<dyn Administration>, String> + Send>;

/// The paths to the peers of a port.
pub(crate) struct Paths {
    /// What answers requests, or why nothing does.
    administration: Result<Box<dyn Administration>, String>,
    /// Opens it again.
    open: Option<Opener>,
    /// The key of the port's partition, and the service level that is set.
    partition: u16,
    service_level: u8,
    list: FxHashMap<u32, (Ends, State)>,
    /// What the resolver gave, by the GIDs of both ends; that of ours is zero where it names none.
    given: FxHashMap<[[u8; 16]; 2], PathRecord>,
    /// Few: they alone are looked through, however many peers there are.
    under_way: Vec<UnderWay>,
    next: u32,
    /// Peers whose paths have become known.
    news: VecDeque<u32>,
}

impl Paths {
    /// The paths of a port, in the partition of this key.
    pub(crate) fn new(
        administration: Result<Box<dyn Administration>, String>,
        partition: u16,
        service_level: u8,
    ) -> Self {
        Self {
            administration,
            open: None,
            partition,
            service_level,
            list: FxHashMap::default(),
            given: FxHashMap::default(),
            under_way: Vec::new(),
            next: 0,
            news: VecDeque::new(),
        }
    }

    /// The paths of a device's port, from which requests go where the system allows it.
    pub(crate) fn of_port(device: &str, number: u8, partition: u16, service_level: u8) -> Self {
        let device = device.to_owned();
        let mut open: Opener = Box::new(move || match SubnetPort::open(&device, number) {
            Ok(port) => Ok(Box::new(port)),
            Err(error) => Err(error.to_string()),
        });
        let administration = open();
        Self {
            open: Some(open),
            ..Self::new(administration, partition, service_level)
        }
    }

    /// Takes a path that the resolver of addresses gave; it holds for the next use of its peer.
    pub(crate) fn give(&mut self, record: PathRecord) {
        self.given.insert([record.sgid, record.dgid], record);
    }

    /// Why paths are assumed, where nothing answers requests.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.administration.as_ref().err().map(String::as_str)
    }

    /// The path to a peer, once it is known.
    pub(crate) fn get(&self, peer: u32) -> Option<&Path> {
        match self.list.get(&peer) {
            Some((_, State::Known(path))) => Some(path),
            _ => None,
        }
    }

    /// Has the path to a peer become known, now or later. Each request takes one of `left` steps of this
    /// pass.
    pub(crate) fn want(&mut self, peer: u32, ends: Ends, now: Time, left: &mut usize) -> Wanted {
        match self.list.get(&peer) {
            Some((_, State::Known(_))) => return Wanted::Known,
            Some((_, State::Requested)) => return Wanted::Requested,
            None => {}
        }
        let given = ends.names().into_iter().find_map(|name| self.given.get(&name));
        if let Some(record) = given {
            let path = self.path_of(record, Origin::Resolver);
            if let Ok(path) = path {
                self.know(peer, ends, path);
                return Wanted::Known;
            }
        }
        let Ok(administration) = &mut self.administration else {
            let reason = self.reason().unwrap_or_default().to_owned();
            self.assume(peer, ends, reason);
            return Wanted::Known;
        };
        if self.under_way.len() >= MOST {
            return Wanted::Requested;
        }
        if *left == 0 {
            return Wanted::Later;
        }
        *left -= 1;
        self.next = self.next.wrapping_add(1);
        let request = request(&ends, self.partition, self.service_level);
        match administration.ask(self.next, &request) {
            Ok(()) => {
                self.under_way.push(UnderWay {
                    transaction: self.next,
                    peer,
                    until: now + PATIENCE,
                });
                self.list.insert(peer, (ends, State::Requested));
                Wanted::Requested
            }
            Err(error) => {
                self.assume(peer, ends, error.to_string());
                Wanted::Known
            }
        }
    }

    /// Takes replies that have come, and gives up those that have not come in time.
    pub(crate) fn look(&mut self, now: Time) {
        if self.under_way.is_empty() {
            return;
        }
        let mut failed = None;
        while let Ok(administration) = &mut self.administration {
            match administration.next_reply() {
                Ok(Some(reply)) => self.take(&reply),
                Ok(None) => break,
                Err(error) => {
                    failed = Some(error.to_string());
                    break;
                }
            }
        }
        if let Some(reason) = &failed {
            self.administration = Err(reason.clone());
        }
        let is_late = |request: &mut UnderWay| failed.is_some() || now >= request.until;
        let late: Vec<UnderWay> = self.under_way.extract_if(.., is_late).collect();
        for UnderWay { peer, .. } in late {
            let reason = failed.clone();
            let silent = || "the subnet's administration does not answer".to_owned();
            if let Some((ends, _)) = self.list.get(&peer) {
                self.assume(peer, *ends, reason.unwrap_or_else(silent));
            }
        }
    }

    fn take(&mut self, reply: &Reply) {
        let is_it = |request: &UnderWay| request.transaction == reply.transaction;
        let Some(at) = self.under_way.iter().position(is_it) else {
            return;
        };
        let UnderWay { peer, .. } = self.under_way.swap_remove(at);
        let Some((ends, _)) = self.list.get(&peer) else {
            return;
        };
        let ends = *ends;
        let found = match &reply.answer {
            Some(Answer::Path(record)) => self.path_of(record, Origin::Administration),
            Some(Answer::Refused(refusal)) => Err(refusal.to_string()),
            Some(_) => Err("the subnet's administration answers another request".to_owned()),
            None => Err("the subnet's administration does not answer".to_owned()),
        };
        match found {
            Ok(path) => self.know(peer, ends, path),
            Err(reason) => self.assume(peer, ends, reason),
        }
    }

    /// A record as a path.
    ///
    /// # Errors
    /// Why it is none that can be used.
    fn path_of(&self, record: &PathRecord, origin: Origin) -> Result<Path, String> {
        let (lid, mtu, pkey) = (record.dlid.get(), record.mtu & VALUE, record.pkey.get());
        if !(1..LIDS).contains(&lid) {
            return Err(format!("a path to LID {lid} was given, which is none of a port"));
        }
        if !share_partition(pkey, self.partition) {
            return Err(format!(
                "a path in partition {pkey:#06x} was given, and the rail is in {:#06x}",
                self.partition
            ));
        }
        let flow_and_hops = record.flow_and_hops.get();
        Ok(Path {
            lid,
            service_level: (record.qos_and_sl.get() & 0xf) as u8,
            rate: record.rate & VALUE,
            mtu: (1..=5).contains(&mtu).then_some(mtu),
            hops: flow_and_hops as u8,
            traffic_class: record.tclass,
            flow_label: flow_and_hops >> 8 & 0xf_ffff,
            origin,
        })
    }

    fn assume(&mut self, peer: u32, ends: Ends, reason: String) {
        let path = Path {
            lid: ends.lid,
            service_level: self.service_level,
            rate: 0,
            mtu: None,
            hops: 0,
            traffic_class: 0,
            flow_label: 0,
            origin: Origin::Assumption(reason),
        };
        self.know(peer, ends, path);
    }

    fn know(&mut self, peer: u32, ends: Ends, path: Path) {
        self.list.insert(peer, (ends, State::Known(path)));
        self.news.push_back(peer);
    }

    /// The next peer whose path has become known.
    pub(crate) fn news(&mut self) -> Option<u32> {
        self.news.pop_front()
    }

    /// Forgets the path to a peer.
    pub(crate) fn remove(&mut self, peer: u32) {
        if let Some((_, State::Requested)) = self.list.remove(&peer) {
            self.under_way.retain(|request| request.peer != peer);
        }
    }

    /// A path that the resolver gave leads nowhere: it is not used again.
    pub(crate) fn distrust(&mut self, peer: u32) -> bool {
        let is_given = self.get(peer).is_some_and(|path| path.origin == Origin::Resolver);
        if is_given && let Some((ends, _)) = self.list.remove(&peer) {
            for name in ends.names() {
                self.given.remove(&name);
            }
        }
        is_given
    }

    /// All paths may be others. What answers requests may have come back.
    pub(crate) fn doubt(&mut self) {
        self.list.clear();
        self.given.clear();
        self.under_way.clear();
        self.news.clear();
        if let (Err(_), Some(open)) = (&self.administration, &mut self.open) {
            self.administration = open();
        }
    }
}

/// The request for the path between two ports, in a partition, of a service level where one is set.
fn request(ends: &Ends, partition: u16, service_level: u8) -> Request {
    let mut record = PathRecord::new_zeroed();
    (record.sgid, record.dgid) = (ends.ours.0, ends.theirs.0);
    record.dlid = ends.lid.into();
    record.reversible_and_count = 0x81;
    record.pkey = partition.into();
    record.qos_and_sl = u16::from(service_level).into();
    let by_gid = !ends.theirs.is_zero();
    let components = Components::NUM_PATH
        .and(Components::REVERSIBLE)
        .and(Components::PATH_PKEY)
        .and_if(!ends.ours.is_zero(), Components::SGID)
        .and_if(by_gid, Components::DGID)
        .and_if(!by_gid, Components::DLID)
        .and_if(service_level > 0, Components::PATH_SL);
    Request::Path(record, components)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// An administration whose port is lost with the first reply that is looked for.
    struct Lost;

    impl Administration for Lost {
        fn ask(&mut self, _: u32, _: &Request) -> Result<(), SubnetError> {
            Ok(())
        }

        fn next_reply(&mut self) -> Result<Option<Reply>, SubnetError> {
            Err(SubnetError::Call {
                call: "umad_recv",
                device: "lost0".to_owned(),
                port: 1,
                error: io::Error::from_raw_os_error(libc::ENODEV),
            })
        }
    }

    /// One that answers nothing.
    struct Silent;

    impl Administration for Silent {
        fn ask(&mut self, _: u32, _: &Request) -> Result<(), SubnetError> {
            Ok(())
        }

        fn next_reply(&mut self) -> Result<Option<Reply>, SubnetError> {
            Ok(None)
        }
    }

    fn ends(lid: u16) -> Ends {
        Ends {
            lid,
            ours: Gid([1; 16]),
            theirs: Gid([2; 16]),
        }
    }

    #[test]
    fn an_administration_that_failed_is_opened_again_when_all_is_doubted() {
        let mut paths = Paths::new(Ok(Box::new(Lost)), 0xffff, 0);
        paths.open = Some(Box::new(|| Ok(Box::new(Silent))));
        let now = Time::from_nanos(1);
        assert_eq!(paths.want(1, ends(5), now, &mut 9), Wanted::Requested);
        paths.look(now);
        assert!(paths.reason().is_some_and(|reason| reason.contains("umad_recv")));
        assert_eq!(
            (paths.news(), paths.get(1).map(|path| path.lid)),
            (Some(1), Some(5))
        );
        assert_eq!(
            paths.want(2, ends(6), now, &mut 9),
            Wanted::Known,
            "it is assumed"
        );
        paths.doubt();
        assert_eq!(paths.news(), None);
        assert_eq!(paths.reason(), None);
        assert_eq!(paths.want(1, ends(5), now, &mut 9), Wanted::Requested);
    }

    #[test]
    fn what_is_under_way_has_a_bound_and_ends_once() {
        let mut paths = Paths::new(Ok(Box::new(Silent)), 0xffff, 0);
        let now = Time::from_nanos(1);
        for peer in 0..2 * MOST as u32 {
            assert_eq!(paths.want(peer, ends(5), now, &mut 1), Wanted::Requested);
        }
        assert_eq!(paths.under_way.len(), MOST);
        paths.remove(3);
        assert_eq!(paths.under_way.len(), MOST - 1);
        paths.look(now + PATIENCE);
        assert!(paths.under_way.is_empty());
        let mut known: Vec<u32> = std::iter::from_fn(|| paths.news()).collect();
        known.sort_unstable();
        let expected = (0..MOST as u32).filter(|peer| *peer != 3);
        assert_eq!(known, expected.collect::<Vec<_>>());
    }
}
