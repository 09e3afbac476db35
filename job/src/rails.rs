//! Rails of every built-in kind behind one type, by static match. `find` discovers and opens them;
//! `config::drivers` converts their settings; `sets` takes this rank's rails of sets.

mod capture;
mod fault_rail;
mod find;
mod manage;
pub mod sets;

pub use capture::{Capture, capture_file};

use std::borrow::Cow;
use std::net::SocketAddr;

use doorbell_btl::{Btl, BtlError};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::discover::Candidate;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::memory::{RegionSlice, Room, SharedBytes, View};
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Caller, Exposure, FenceScope, Incarnation, Landing, Look, Message,
    MsgId, OpId, PeerIndex, RailReport, Refused, Remote, RemoteKey, Watch,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::Place;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_igbvf::IgbvfRail;
use doorbell_shm::ShmRail;
use doorbell_sim::{SimDatagram, SimRail};
use doorbell_udp::UdpRail;
use doorbell_usnic::UsnicRail;
use doorbell_verbs::subnet::PathRecord;
use doorbell_verbs::{PortName, RcRail, Service, UdRail};
use doorbell_xdp::XdpRail;

use fault_rail::FaultRail;
pub use find::discover;
pub use find::{leading_out, open_all, reason_of, udp_rails, way};
pub(crate) use find::{leads_out, would_lead_out};
pub use manage::{Manage, ManageDriver};

use crate::config::Config;
use crate::config::drivers::{
    btl_config, igbvf_config, shm_config, udp_config, usnic_config, verbs_config, xdp_config,
};
use crate::error::Error;
use crate::meet::{Key, RailEntry};

/// A rail of any kind that this build contains. Every call is one predictable branch, never a dynamic call.
// The sizes differ, but rails are few, and they are moved once.
#[allow(clippy::large_enum_variant)]
pub enum AnyRail {
    /// Shared memory of one host.
    Shm(ShmRail),
    /// UDP sockets, made reliable.
    Udp(Btl<UdpRail>),
    /// AF_XDP queues, made reliable.
    Xdp(Btl<XdpRail>),
    /// Rings of a virtual function, made reliable.
    Igbvf(Btl<IgbvfRail>),
    /// Queues of a usNIC function, made reliable.
    Usnic(Btl<UsnicRail>),
    /// Reliable connections of a verbs device.
    VerbsRc(RcRail),
    /// Datagrams of queue pairs of a verbs device, made reliable.
    VerbsUd(Btl<UdRail>),
    /// A simulated network that carries messages.
    Sim(SimRail),
    /// A simulated network that loses datagrams, made reliable.
    SimBtl(Btl<SimDatagram>),
    /// Any of these, with faults injected for tests.
    Faulty(FaultRail),
}

macro_rules! each {
    ($self:expr, $rail:ident => $do:expr) => {
        each!($self, $rail => $do, AnyRail::Faulty($rail))
    };
    ($self:expr, $rail:ident => $do:expr, $faulty:pat) => {
        match $self {
            AnyRail::Shm($rail) => $do,
            AnyRail::Udp($rail) => $do,
            AnyRail::Xdp($rail) => $do,
            AnyRail::Igbvf($rail) => $do,
            AnyRail::Usnic($rail) => $do,
            AnyRail::VerbsRc($rail) => $do,
            AnyRail::VerbsUd($rail) => $do,
            AnyRail::Sim($rail) => $do,
            AnyRail::SimBtl($rail) => $do,
            $faulty => $do,
        }
    };
}

/// As `each!`, for calls beside the data path: those of a rail with faults are the calls of the rail inside
/// it.
macro_rules! each_whole {
    ($self:expr, $rail:ident => $do:expr) => {
        each!($self, $rail => $do, AnyRail::Faulty(FaultRail { rail: $rail, .. }))
    };
}

impl AnyRail {
    /// Opens a rail by its name. A name that cannot be opened is an error: no other rail takes its place.
    pub fn open(name: &RailName, config: &Config) -> Result<Self, Error> {
        let rail = Self::open_whole(name, config)?;
        Ok(FaultRail::wrap(rail, &config.fault.inject.get().0))
    }

    fn open_whole(name: &RailName, config: &Config) -> Result<Self, Error> {
        match name.kind() {
            "shm" => Ok(Self::Shm(ShmRail::open(name, &shm_config(config))?)),
            "udp" => reliable(UdpRail::open(name, &udp_config(config))?, config).map(Self::Udp),
            "xdp" => reliable(XdpRail::open(name, &xdp_config(config))?, config).map(Self::Xdp),
            "igbvf" => reliable(IgbvfRail::open(name, &igbvf_config(config))?, config).map(Self::Igbvf),
            "usnic" => reliable(UsnicRail::open(name, &usnic_config(config))?, config).map(Self::Usnic),
            // Frames on its wire are the device's: there is no capture of them.
            "verbs" => match PortName::of(name)?.service {
                Service::Connections => Ok(Self::VerbsRc(RcRail::open(name, &verbs_config(config))?)),
                Service::Datagrams => {
                    made_reliable(UdRail::open(name, &verbs_config(config))?, config).map(Self::VerbsUd)
                }
            },
            // Discovery has judged every name before, so that no other kind comes here.
            _ => Err(Error::Rail(RailError::Unusable {
                rail: name.to_string(),
                reason: "this build cannot open it by name".to_owned(),
                remedy: "name another rail, or none to have them chosen".to_owned(),
            })),
        }
    }

    /// Makes a rail of a simulated network that loses datagrams.
    pub fn simulated_datagrams(rail: SimDatagram, config: &Config) -> Result<Self, Error> {
        made_reliable(rail, config).map(Self::SimBtl)
    }

    /// Returns what selection judges, for a rail that is open already.
    pub fn candidate(&self) -> Candidate {
        Candidate::usable(self.name().clone(), *self.capabilities())
    }

    // The functions below serve all rails but shm, and are not inlined: sending 8 bytes over shm takes some
    // 40 nanoseconds, and inlined code of other rails would cost it registers.

    #[inline(never)]
    fn send_farther(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        each!(self, rail => rail.send(peer, head, body))
    }

    #[inline(never)]
    fn poll_farther<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        each!(self, rail => rail.poll(budget, sink))
    }

    /// Returns what this rank publishes about the rail.
    pub fn entry(&self) -> RailEntry {
        let capabilities = self.capabilities();
        let features = [
            ("get", capabilities.features.get),
            ("put", capabilities.features.put),
            ("atomics", capabilities.features.atomics),
        ];
        RailEntry {
            name: self.name().to_string(),
            wire: self.name().wire().to_owned(),
            address: self.address(),
            incarnation: self.incarnation().0,
            features: features
                .iter()
                .filter(|(_, has)| *has)
                .map(|(name, _)| (*name).to_owned())
                .collect(),
            eager: capabilities.limits.eager as u64,
            place: self.place(),
        }
    }
}

/// Makes a rail of messages from a driver that was opened by its name, with the capture that the
/// configuration has.
fn reliable<D: ManageDriver>(mut driver: D, config: &Config) -> Result<Btl<D>, Error> {
    let name = driver.name().clone();
    capture::begin(&name, config, |writer, clock| driver.set_capture(writer, clock))?;
    made_reliable(driver, config)
}

/// Makes a rail of messages from a driver of datagrams.
fn made_reliable<D: ManageDriver>(driver: D, config: &Config) -> Result<Btl<D>, Error> {
    let (name, life) = (driver.name().to_string(), driver.life()?);
    Btl::new(driver, btl_config(config), life).map_err(|error| match error {
        BtlError::Rail(error) => Error::Rail(error),
        error => Error::Rail(RailError::Unusable {
            rail: name,
            reason: error.to_string(),
            remedy: "change the btl.* settings".to_owned(),
        }),
    })
}

impl Rail for AnyRail {
    fn name(&self) -> &RailName {
        each!(self, rail => rail.name())
    }

    #[inline]
    fn capabilities(&self) -> &Capabilities {
        each!(self, rail => rail.capabilities())
    }

    fn address(&self) -> RailAddress {
        each!(self, rail => rail.address())
    }

    #[inline]
    fn progress(&mut self, now: Time) -> Work {
        each!(self, rail => rail.progress(now))
    }

    #[inline]
    fn next_deadline(&self) -> Option<Time> {
        each!(self, rail => rail.next_deadline())
    }

    #[inline]
    fn wants_time(&self) -> bool {
        each!(self, rail => rail.wants_time())
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        each!(self, rail => rail.arm())
    }

    fn disarm(&mut self) {
        each!(self, rail => rail.disarm());
    }

    #[inline]
    fn poll_cost(&self) -> PollCost {
        each!(self, rail => rail.poll_cost())
    }

    #[inline]
    fn event(&mut self) -> Option<RailEvent> {
        each!(self, rail => rail.event())
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        each!(self, rail => Rail::close(rail, now, by))
    }
}

impl Message for AnyRail {
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError> {
        each!(self, rail => Message::open(rail, address, incarnation))
    }

    #[inline]
    fn stranger(&mut self) -> Option<Caller> {
        each!(self, rail => rail.stranger())
    }

    fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        each!(self, rail => rail.caller(address, incarnation))
    }

    fn await_next(&mut self, peer: PeerIndex) {
        each!(self, rail => rail.await_next(peer));
    }

    #[inline(always)]
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        match self {
            Self::Shm(rail) => rail.send(peer, head, body),
            other => other.send_farther(peer, head, body),
        }
    }

    #[inline]
    fn flush(&mut self) {
        each!(self, rail => rail.flush());
    }

    #[inline]
    fn flush_soon(&mut self, peer: PeerIndex) -> bool {
        each!(self, rail => rail.flush_soon(peer))
    }

    #[inline]
    fn flush_for(&mut self, peer: PeerIndex) -> bool {
        each!(self, rail => rail.flush_for(peer))
    }

    #[inline]
    fn holds_back(&mut self, peer: Option<PeerIndex>) -> bool {
        each!(self, rail => rail.holds_back(peer))
    }

    #[inline]
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        match self {
            Self::Shm(rail) => rail.poll(budget, sink),
            other => other.poll_farther(budget, sink),
        }
    }

    #[inline(always)]
    fn look(&mut self, peer: PeerIndex, head: [u64; 2], room: Room<'_>, watch: Watch) -> Look {
        match self {
            Self::Shm(rail) => rail.look(peer, head, room, watch),
            Self::Faulty(rail) => rail.look(peer, head, room, watch),
            // These rails take microseconds to look at: they are only polled.
            _ => Look::Other,
        }
    }

    #[inline(always)]
    fn linger(&mut self, looks: u32) -> bool {
        match self {
            Self::Shm(rail) => rail.linger(looks),
            _ => true,
        }
    }

    #[inline]
    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        each!(self, rail => rail.handed_over(peer))
    }

    fn accepted(&self, peer: PeerIndex) -> MsgId {
        each!(self, rail => rail.accepted(peer))
    }

    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        each!(self, rail => rail.reclaim(peer, each));
    }

    fn abandon(&mut self, peer: PeerIndex) {
        each!(self, rail => rail.abandon(peer));
    }

    fn forget(&mut self, peer: PeerIndex) {
        each!(self, rail => rail.forget(peer));
    }

    fn revive(&mut self, peer: PeerIndex) {
        each!(self, rail => rail.revive(peer));
    }

    fn proved_alive(&mut self, peer: PeerIndex) {
        each!(self, rail => Message::proved_alive(rail, peer));
    }

    fn report(&self, peer: PeerIndex) -> RailReport {
        each_whole!(self, rail => rail.rail_report(peer))
    }

    fn prefers_get(&mut self, peer: PeerIndex, length: usize) -> bool {
        each!(self, rail => rail.prefers_get(peer, length))
    }

    fn expose(&mut self, memory: Exposure, access: Access, to: Option<PeerIndex>) -> Result<Remote, Refused> {
        each!(self, rail => rail.expose(memory, access, to))
    }

    fn withdraw(&mut self, key: RemoteKey) {
        each!(self, rail => rail.withdraw(key));
    }

    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused> {
        each!(self, rail => rail.get(peer, op, from, into))
    }

    fn view(&mut self, peer: PeerIndex, from: &Remote) -> Option<View> {
        each!(self, rail => rail.view(peer, from))
    }

    fn expose_now(&mut self, memory: &RegionSlice, to: PeerIndex) -> Option<Remote> {
        each!(self, rail => rail.expose_now(memory, to))
    }

    #[inline]
    fn put_now(&mut self, peer: PeerIndex, bytes: SharedBytes<'_>, to: &Remote) -> bool {
        each!(self, rail => rail.put_now(peer, bytes, to))
    }

    #[inline]
    fn get_now(&mut self, peer: PeerIndex, from: &Remote, into: Room<'_>) -> bool {
        each!(self, rail => rail.get_now(peer, from, into))
    }

    fn end_now(&mut self, key: RemoteKey) -> bool {
        each!(self, rail => rail.end_now(key))
    }

    fn put(&mut self, peer: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused> {
        each!(self, rail => rail.put(peer, op, from, to))
    }

    fn atomic(&mut self, peer: PeerIndex, op: OpId, at: &Remote, what: AtomicOp) -> Result<(), Refused> {
        each!(self, rail => rail.atomic(peer, op, at, what))
    }

    fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused> {
        each!(self, rail => rail.fence(scope, op))
    }
}

impl Manage for AnyRail {
    fn incarnation(&self) -> Incarnation {
        each_whole!(self, rail => rail.incarnation())
    }

    fn set_job_key(&mut self, key: &Key) {
        each_whole!(self, rail => rail.set_job_key(key));
    }

    fn how(&self) -> Option<String> {
        each_whole!(self, rail => rail.how())
    }

    fn end_capture(&mut self, config: &Config) -> Option<Capture> {
        each_whole!(self, rail => rail.end_capture(config))
    }

    fn in_one_frame(&self) -> usize {
        each_whole!(self, rail => rail.in_one_frame())
    }

    fn counts(&self, each: &mut dyn FnMut(&str, &'static str, u64)) {
        each_whole!(self, rail => rail.counts(each));
    }

    fn is_suspect(&self, peer: PeerIndex) -> bool {
        each_whole!(self, rail => rail.is_suspect(peer))
    }

    fn probed(&self, peer: PeerIndex) -> Option<(bool, &'static str)> {
        each_whole!(self, rail => rail.probed(peer))
    }

    fn shows_end(&self, peer: PeerIndex) -> bool {
        each_whole!(self, rail => rail.shows_end(peer))
    }

    fn trouble(&self, peer: PeerIndex) -> Option<Cow<'static, str>> {
        each_whole!(self, rail => rail.trouble(peer))
    }

    fn refuses_gids(&self, peer: PeerIndex) -> bool {
        each_whole!(self, rail => rail.refuses_gids(peer))
    }

    fn own_reason(&self) -> Option<String> {
        each_whole!(self, rail => rail.own_reason())
    }

    fn inject_failure(&mut self, peer: Option<PeerIndex>) {
        each_whole!(self, rail => rail.inject_failure(peer));
    }

    fn is_broken_on_purpose(&self) -> bool {
        matches!(self, Self::Faulty(rail) if rail.broken)
    }

    fn recent(&self, peer: PeerIndex, most: usize) -> Vec<String> {
        each_whole!(self, rail => rail.recent(peer, most))
    }

    fn place(&self) -> Place {
        each_whole!(self, rail => rail.place())
    }

    fn set_peer_key(&mut self, address: &RailAddress, life: Incarnation, key: &Key) {
        each_whole!(self, rail => rail.set_peer_key(address, life, key));
    }

    fn give_path(&mut self, record: &PathRecord) {
        each_whole!(self, rail => rail.give_path(record));
    }

    fn acknowledge(&mut self, peer: PeerIndex) {
        each_whole!(self, rail => rail.acknowledge(peer));
    }

    fn hello_room(&self) -> usize {
        each_whole!(self, rail => rail.hello_room())
    }

    fn door(&self) -> Option<SocketAddr> {
        each_whole!(self, rail => rail.door())
    }

    fn open_door(&mut self, door: u64) {
        each_whole!(self, rail => rail.open_door(door));
    }

    fn close_door(&mut self, door: u64) {
        each_whole!(self, rail => rail.close_door(door));
    }

    /// A rail that was broken on purpose loses hellos.
    fn send_hello(&mut self, address: &RailAddress, door: u64, bytes: &[u8]) -> Result<(), RailError> {
        if self.is_broken_on_purpose() {
            return Ok(());
        }
        each_whole!(self, rail => rail.send_hello(address, door, bytes))
    }

    fn next_hello(&mut self, bytes: &mut Vec<u8>) -> bool {
        let is_broken = self.is_broken_on_purpose();
        let mut came = each_whole!(self, rail => rail.next_hello(bytes));
        while came && is_broken {
            came = each_whole!(self, rail => rail.next_hello(bytes));
        }
        came
    }
}
