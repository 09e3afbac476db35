//! How a member gets its name: a random one, or that of a port, and the identity that goes with it on other
//! hosts.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use doorbell_fabric::error::RailError;
use rustix::io::Errno;

use super::address::PeerId;
use super::desk::Place;
use super::hello::Doors;
use super::meeting_key::MeetingKey;
use super::{host, io_error, leads_out};
use crate::error::Error;
use crate::rails::{AnyRail, Manage as _};
use crate::random;

/// The bits that ports have which are chosen here: they are those of private use, 49152 and above.
pub(super) const FREE_PORTS: NonZeroU16 = NonZeroU16::MIN.saturating_add(0xbfff);

/// Returns the identity that a member with these rails has in its address. A port is known to every process
/// of its host, so that it is no permission on others: the token follows from the key, or is random.
pub(super) fn for_other_hosts(
    here: PeerId,
    rails: &[AnyRail],
    key: Option<&MeetingKey>,
) -> Result<PeerId, Error> {
    let (Some(port), Some(door)) = (here.port(), first_door(rails)) else {
        return Ok(here);
    };
    match key.filter(|_| door.port() == port.get()) {
        Some(key) => Ok(here.keyed(key.token(door))),
        None => Ok(here.with_token(random::bytes()?)),
    }
}

/// Returns the first place where a member with these rails can be reached from other hosts.
pub(super) fn first_door(rails: &[AnyRail]) -> Option<SocketAddr> {
    let doors = rails
        .iter()
        .filter(|rail| leads_out(rail))
        .filter_map(AnyRail::door);
    Doors::new(doors).sockets().next()
}

/// Takes a port of this host; `None` if another member has it.
pub(super) fn at_port(port: NonZeroU16) -> Result<Option<(Place, PeerId)>, Error> {
    let own = PeerId::of_port(host::number(), port);
    let place = Place::of_peer(own).map_err(|source| io_error("open the desk", source))?;
    Ok(place.map(|place| (place, own)))
}

/// Takes the first of the identities that `next` makes which no other member has.
pub(super) fn reserve(mut next: impl FnMut() -> Result<PeerId, Error>) -> Result<(Place, PeerId), Error> {
    loop {
        let own = next()?;
        let place = Place::of_peer(own).map_err(|source| io_error("open the desk", source))?;
        if let Some(place) = place {
            return Ok((place, own));
        }
    }
}

/// Returns the error of rails that were to have a service as their port, for one that names no setting.
pub(super) fn service_is_taken(error: Error, port: NonZeroU16) -> Error {
    let Error::Rail(RailError::Ports { rail, source, .. }) = error else {
        return error;
    };
    let next = port.saturating_add(1);
    Error::Io {
        step: "take the service of the address",
        object: format!("{port}, with the UDP ports {port} and {next} of rail {rail}"),
        source,
        remedy: "name another service, of 1024 or more, and two apart from others; `ss -ulnp` shows which \
                 process has a port",
    }
}

/// The error for a service that leaves no port above it.
pub(super) fn service_is_last() -> Error {
    let remedy = "with a key (ofi.key_file) the rails take the service and the next number as their UDP ports: \
                  name a service of at most 65534";
    let source = io::Error::from(Errno::INVAL);
    Error::io("take the service of the address", "65535", source, remedy)
}

/// The error for a port of the system's choice, each time one that another member has.
pub(super) fn no_port_is_free() -> Error {
    let remedy = "name a service, or end processes that have ports: `ss -xlp | grep doorbell.peer`";
    let source = io::Error::from(Errno::ADDRINUSE);
    Error::io(
        "take a port that no other member of this host has",
        "this process",
        source,
        remedy,
    )
}

/// The error for a port that another member has.
pub(super) fn port_is_taken() -> Error {
    let remedy = "name another port, or end the process that has it: `ss -xlp | grep doorbell.peer`";
    let source = io::Error::from(Errno::ADDRINUSE);
    Error::io("take the port of the address", "this process", source, remedy)
}
