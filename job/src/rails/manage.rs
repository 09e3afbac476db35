//! What a job does with a rail beside moving messages over it: key, captures, counters, diagnosis,
//! injected faults. None of it is on the path of a message.

use std::borrow::Cow;
use std::net::SocketAddr;

use doorbell_btl::{Btl, Diagnosis, JobKey};
use doorbell_fabric::addr::{Address, RailAddress};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::error::RailError;
use doorbell_fabric::message::{Incarnation, Message, PeerIndex, RailReport};
use doorbell_fabric::pairs::Place;
use doorbell_fabric::rail::Rail as _;
use doorbell_igbvf::IgbvfRail;
use doorbell_inet::CaptureWriter;
use doorbell_shm::ShmRail;
use doorbell_sim::{SimDatagram, SimRail};
use doorbell_udp::UdpRail;
use doorbell_usnic::UsnicRail;
use doorbell_verbs::subnet::PathRecord;
use doorbell_verbs::{RcRail, UdRail};
use doorbell_xdp::XdpRail;

use super::capture::{self, Capture};
use crate::config::Config;
use crate::error::Error;
use crate::files::files_needed;
use crate::meet::Key;
use crate::random;

/// A rail as a job manages it.
pub trait Manage: Message {
    /// Returns the life of the rail: peers of another life are refused.
    fn incarnation(&self) -> Incarnation;

    /// Sets the job's key, before any peer is opened. Rails within a host ignore it: they identify peers by
    /// process and user, which the kernel guarantees.
    fn set_job_key(&mut self, _: &Key) {}

    /// Returns the mode that the rail was opened in, where its kind has several.
    fn how(&self) -> Option<String> {
        None
    }

    /// Ends the rail's capture, if it has one.
    fn end_capture(&mut self, _: &Config) -> Option<Capture> {
        None
    }

    /// Returns the length of the longest message, its head included, that fits one frame, or one piece of a
    /// rail without frames.
    fn in_one_frame(&self) -> usize {
        let limits = self.capabilities().limits;
        limits.eager.min(limits.message)
    }

    /// Calls `each` with every counter's name, unit and total. Names and order never change.
    fn counts(&self, each: &mut dyn FnMut(&str, &'static str, u64));

    /// Whether the rail is waiting for overdue answers of a peer.
    fn is_suspect(&self, _: PeerIndex) -> bool {
        false
    }

    /// Returns whether the probe with frames of two sizes has shown that frames pass both ways, and a
    /// description; `None` where the rail makes no such probe, or it is not over.
    fn probed(&self, _: PeerIndex) -> Option<(bool, &'static str)> {
        None
    }

    /// Whether the kernel reports the end of the peer's process to the rail, so that nothing else has to look
    /// for it.
    fn shows_end(&self, _: PeerIndex) -> bool {
        false
    }

    /// Returns the trouble on the path to a peer, as far as the rail has found any.
    fn trouble(&self, _: PeerIndex) -> Option<Cow<'static, str>> {
        None
    }

    /// Whether the connection to a peer is refused, here or there, because both choose different pairs of
    /// GIDs: the tables of both explain it.
    fn refuses_gids(&self, _: PeerIndex) -> bool {
        false
    }

    /// Returns why the rail is down and what to do, where its driver can state more than that its link is
    /// down.
    fn own_reason(&self) -> Option<String> {
        None
    }

    /// Breaks the path to one peer, or to all, like a real failure. A simulated rail reports no event of it.
    fn inject_failure(&mut self, peer: Option<PeerIndex>);

    /// Whether an injected fault has broken the rail.
    fn is_broken_on_purpose(&self) -> bool {
        false
    }

    /// Returns the last `most` notable events on the path to a peer, one line each, newest last.
    fn recent(&self, _: PeerIndex, _: usize) -> Vec<String> {
        Vec::new()
    }

    /// Returns the rail's network and limits, by which peers judge it.
    fn place(&self) -> Place {
        Place::default()
    }

    /// Returns the report about the path to a peer, with the driver's part.
    fn rail_report(&self, peer: PeerIndex) -> RailReport {
        self.report(peer)
    }

    /// Sets the key of the peer at this address, in this life, which holds for the connection to it instead
    /// of the job's: both ends need the same one. Before the peer is opened. Rails within a host ignore it,
    /// as they ignore the job's.
    fn set_peer_key(&mut self, _: &RailAddress, _: Incarnation, _: &Key) {}

    /// Takes a path that the address service gave, from a port of InfiniBand to one of a peer's. Other rails
    /// have no use for it.
    fn give_path(&mut self, _: &PathRecord) {}

    /// Reports to a peer at once all that was taken of its messages, for an owner that may not call again for
    /// long: the peer may wait for it. A rail that has no report to make later has none to make here.
    fn acknowledge(&mut self, _: PeerIndex) {}

    /// Longest hello (a frame of first contact), in bytes; 0 for a rail that carries none.
    fn hello_room(&self) -> usize {
        0
    }

    /// Returns the address at which processes of other hosts can send hellos to this rail; `None` for a rail
    /// that carries none, or that leads nowhere beyond this host.
    fn door(&self) -> Option<SocketAddr> {
        None
    }

    /// Opens a door: hellos under this number are kept for [`Manage::next_hello`]. Four may be open; one more
    /// takes the place of the oldest.
    fn open_door(&mut self, _: u64) {}

    /// Closes a door: hellos under this number are dropped, as frames of strangers are.
    fn close_door(&mut self, _: u64) {}

    /// Sends one hello to the rail at `address`, under the number of a door there. It leaves at once, may be
    /// lost, and is not repeated. The peer need not be open, and is not opened.
    ///
    /// # Errors
    /// When the rail carries no hellos, or is being closed; when the address is not one of this rail's or
    /// cannot be reached, with the reason; when there are more bytes than [`Manage::hello_room`].
    fn send_hello(&mut self, _: &RailAddress, _: u64, _: &[u8]) -> Result<(), RailError> {
        let name = self.name().to_string();
        Err(RailError::misuse("rail", &name, "carries no hellos"))
    }

    /// Takes the oldest hello that came through a door into `bytes`, which is cleared first; `false` when
    /// there is none. To be called after polls: hellos are in no poll's count, and those that wait do not
    /// keep the owner from sleeping.
    fn next_hello(&mut self, bytes: &mut Vec<u8>) -> bool {
        bytes.clear();
        false
    }
}

impl Manage for ShmRail {
    fn incarnation(&self) -> Incarnation {
        self.incarnation()
    }

    fn counts(&self, each: &mut dyn FnMut(&str, &'static str, u64)) {
        let stats = self.stats();
        each("sent", "messages", stats.sent);
        each("received", "messages", stats.received);
        each("pulls", "operations", stats.pulls);
        each("refused", "connections", stats.refused);
    }

    fn shows_end(&self, peer: PeerIndex) -> bool {
        self.is_connected(peer) && !self.is_connecting(peer)
    }

    fn trouble(&self, peer: PeerIndex) -> Option<Cow<'static, str>> {
        self.was_out_of_files(peer)
            .then(|| files_needed(self.unconnected()).into())
    }

    fn inject_failure(&mut self, peer: Option<PeerIndex>) {
        self.sever(peer);
    }

    fn place(&self) -> Place {
        Place {
            network: doorbell_inet::network(),
            ..Place::default()
        }
    }
}

impl Manage for RcRail {
    fn incarnation(&self) -> Incarnation {
        self.incarnation()
    }

    fn set_job_key(&mut self, key: &Key) {
        self.set_key(key.bytes());
    }

    fn how(&self) -> Option<String> {
        Some(self.describe())
    }

    fn counts(&self, each: &mut dyn FnMut(&str, &'static str, u64)) {
        self.each_count(&mut |name, count| each(name, unit(name), count));
    }

    fn trouble(&self, peer: PeerIndex) -> Option<Cow<'static, str>> {
        self.reason().or_else(|| self.findings(peer)).map(Cow::Owned)
    }

    fn refuses_gids(&self, peer: PeerIndex) -> bool {
        self.refuses_gids(peer)
    }

    fn own_reason(&self) -> Option<String> {
        self.reason()
    }

    fn inject_failure(&mut self, peer: Option<PeerIndex>) {
        self.sever(peer);
    }

    fn recent(&self, peer: PeerIndex, most: usize) -> Vec<String> {
        self.recent(peer, most)
    }

    fn place(&self) -> Place {
        self.place()
    }

    fn set_peer_key(&mut self, address: &RailAddress, life: Incarnation, key: &Key) {
        self.set_key_of(address, life, key.bytes());
    }

    fn give_path(&mut self, record: &PathRecord) {
        self.give_path(record);
    }

    fn acknowledge(&mut self, peer: PeerIndex) {
        self.acknowledge(peer);
    }
}

impl Manage for SimRail {
    fn incarnation(&self) -> Incarnation {
        self.incarnation()
    }

    // The network keeps one set of counters for all its rails.
    fn counts(&self, _: &mut dyn FnMut(&str, &'static str, u64)) {}

    fn inject_failure(&mut self, peer: Option<PeerIndex>) {
        peer.into_iter().for_each(|peer| self.abandon(peer));
    }
}

/// A driver of datagrams below the BTL, as a job manages it.
pub trait ManageDriver: Datagram {
    /// The life that rails over it begin.
    ///
    /// # Errors
    /// When the kernel gives no random number.
    fn life(&self) -> Result<Incarnation, Error>;

    /// Begins a capture of the driver's frames.
    fn set_capture(&mut self, _: CaptureWriter, _: Clock) {}

    /// Ends the capture and returns its writer.
    fn end_capture(&mut self) -> Option<CaptureWriter> {
        None
    }

    /// Returns the mode that the driver was opened in.
    fn how(&self) -> Option<String> {
        None
    }

    /// Calls `each` with every counter's name and total.
    fn counts(&self, _: &mut dyn FnMut(&'static str, u64)) {}

    /// Whether the driver's link is up; rails report only changes of it.
    fn link(&self) -> Option<bool> {
        None
    }

    /// Returns the driver's network and limits, by which peers judge it.
    fn place(&self) -> Place {
        Place::default()
    }

    /// Returns why the driver is down and what to do.
    fn own_reason(&self) -> Option<String> {
        None
    }

    /// Returns a cause that affects all peers of the driver.
    fn cause(&self, _in_doubt: bool) -> Option<&'static str> {
        None
    }

    /// Returns the error that the kernel reported for a peer. Frames may be lost farther on as well.
    fn refused(&self, _: PeerIndex, _in_doubt: bool) -> Option<String> {
        None
    }
}

impl<D: ManageDriver> Manage for Btl<D> {
    fn incarnation(&self) -> Incarnation {
        self.incarnation()
    }

    fn set_job_key(&mut self, key: &Key) {
        self.set_key(JobKey::from_bytes(*key.bytes()));
    }

    fn how(&self) -> Option<String> {
        self.driver().how()
    }

    fn end_capture(&mut self, config: &Config) -> Option<Capture> {
        let name = self.name().clone();
        capture::end(self.driver_mut().end_capture(), &name, config)
    }

    fn in_one_frame(&self) -> usize {
        self.in_one_frame()
    }

    fn counts(&self, each: &mut dyn FnMut(&str, &'static str, u64)) {
        let each = &mut |name: &'static str, count| each(name, unit(name), count);
        self.counters()
            .named()
            .for_each(|(name, count)| each(name, count));
        self.driver().counts(each);
    }

    fn is_suspect(&self, peer: PeerIndex) -> bool {
        self.is_suspect(peer)
    }

    fn probed(&self, peer: PeerIndex) -> Option<(bool, &'static str)> {
        Some(match self.diagnosis(peer)? {
            Diagnosis::Works => (true, "small and full frames pass both ways"),
            other => (false, other.advice()),
        })
    }

    fn trouble(&self, peer: PeerIndex) -> Option<Cow<'static, str>> {
        if let Some(reason) = self.own_reason() {
            return Some(reason.into());
        }
        let (suspect, diagnosis) = (self.is_suspect(peer), self.diagnosis(peer));
        let in_doubt = suspect || !matches!(diagnosis, Some(Diagnosis::Works) | None);
        if let Some(cause) = self.driver().cause(in_doubt) {
            return Some(cause.into());
        }
        let advice = match diagnosis {
            Some(Diagnosis::Works) | None if suspect => Some(
                "nothing has been acknowledged for several time-outs: the peer computes without polling, or \
                 frames are dropped on the way (look for a firewall, then the route, at both ends)",
            ),
            Some(Diagnosis::Works) | None => None,
            Some(diagnosis) => Some(diagnosis.advice()),
        };
        match (advice, self.driver().refused(peer, in_doubt)) {
            (Some(advice), Some(kernel)) => Some(format!("{advice}; {kernel}").into()),
            (advice, kernel) => kernel.map(Cow::Owned).or(advice.map(Cow::Borrowed)),
        }
    }

    fn own_reason(&self) -> Option<String> {
        self.driver().own_reason()
    }

    fn inject_failure(&mut self, peer: Option<PeerIndex>) {
        self.sever(peer);
    }

    fn recent(&self, peer: PeerIndex, most: usize) -> Vec<String> {
        self.recent(peer, most)
    }

    fn place(&self) -> Place {
        self.driver().place()
    }

    fn rail_report(&self, peer: PeerIndex) -> RailReport {
        let report = self.report(peer);
        let link = report.link.or_else(|| self.driver().link());
        RailReport { link, ..report }
    }

    fn set_peer_key(&mut self, address: &RailAddress, life: Incarnation, key: &Key) {
        self.set_key_of(address, life, JobKey::from_bytes(*key.bytes()));
    }

    fn acknowledge(&mut self, peer: PeerIndex) {
        self.acknowledge(peer);
    }

    fn hello_room(&self) -> usize {
        self.hello_room()
    }

    fn door(&self) -> Option<SocketAddr> {
        match self.address().address {
            Address::Inet(socket) => Some(socket).filter(|socket| !socket.ip().is_loopback()),
            Address::Native(_) => None,
        }
    }

    fn open_door(&mut self, door: u64) {
        self.open_door(door);
    }

    fn close_door(&mut self, door: u64) {
        self.close_door(door);
    }

    fn send_hello(&mut self, address: &RailAddress, door: u64, bytes: &[u8]) -> Result<(), RailError> {
        self.send_hello(address, door, bytes)
    }

    fn next_hello(&mut self, bytes: &mut Vec<u8>) -> bool {
        self.next_hello(bytes)
    }
}

/// Returns the unit of a rail's counter, by its name.
fn unit(name: &str) -> &'static str {
    if name.starts_with("bytes") {
        "bytes"
    } else {
        "events"
    }
}

impl ManageDriver for SimDatagram {
    fn life(&self) -> Result<Incarnation, Error> {
        Ok(self.incarnation())
    }
}

/// Implements the methods that the drivers of real networks have under the same names.
macro_rules! manage_driver {
    ($rail:ty { $($more:item)* }) => {
        impl ManageDriver for $rail {
            fn set_capture(&mut self, writer: CaptureWriter, clock: Clock) {
                self.set_capture(writer, clock);
            }

            fn end_capture(&mut self) -> Option<CaptureWriter> {
                self.end_capture()
            }

            fn counts(&self, each: &mut dyn FnMut(&'static str, u64)) {
                self.stats().named().for_each(|(name, count)| each(name, count));
            }

            fn link(&self) -> Option<bool> {
                Some(self.is_link_up())
            }

            fn place(&self) -> Place {
                self.place()
            }

            $($more)*
        }
    };
}

manage_driver!(UdpRail {
    fn life(&self) -> Result<Incarnation, Error> {
        random::number().map(Incarnation)
    }

    fn refused(&self, peer: PeerIndex, in_doubt: bool) -> Option<String> {
        self.trouble(peer, in_doubt)
    }
});

manage_driver!(XdpRail {
    fn life(&self) -> Result<Incarnation, Error> {
        Ok(self.incarnation())
    }

    fn how(&self) -> Option<String> {
        Some(self.granted().to_string())
    }

    fn cause(&self, in_doubt: bool) -> Option<&'static str> {
        self.trouble(in_doubt)
    }
});

manage_driver!(IgbvfRail {
    fn life(&self) -> Result<Incarnation, Error> {
        Ok(self.incarnation())
    }

    fn how(&self) -> Option<String> {
        Some(self.how())
    }
});

impl ManageDriver for UdRail {
    fn life(&self) -> Result<Incarnation, Error> {
        Ok(self.incarnation())
    }

    fn how(&self) -> Option<String> {
        Some(self.how())
    }

    fn counts(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.stats().named().for_each(|(name, count)| each(name, count));
    }

    fn link(&self) -> Option<bool> {
        Some(self.is_link_up())
    }

    fn place(&self) -> Place {
        self.place()
    }

    fn own_reason(&self) -> Option<String> {
        self.reason()
    }
}

manage_driver!(UsnicRail {
    fn life(&self) -> Result<Incarnation, Error> {
        Ok(self.incarnation())
    }

    fn how(&self) -> Option<String> {
        Some(self.how())
    }

    fn own_reason(&self) -> Option<String> {
        let (reason, remedy) = self.nic().trouble().zip(self.nic().remedy())?;
        Some(format!("{reason}; {remedy}"))
    }
});
