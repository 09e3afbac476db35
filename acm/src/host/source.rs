//! The source address that the kernel would choose for a destination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::status::Status;

/// Any port will do: nothing is sent.
const PORT: u16 = 9;

/// Returns the source address for a destination, by the kernel's routing table. It does not block: connecting
/// a UDP socket only looks up the route.
///
/// ```
/// use doorbell_acm::host::source_for;
/// let lo = std::net::IpAddr::from([127, 0, 0, 1]);
/// assert_eq!(source_for(lo), Ok(lo));
/// ```
///
/// # Errors
/// [`Status::DestinationType`] if it is not a host address; [`Status::DestinationAddress`] if there is no
/// route, and [`Status::NoMemory`] if no descriptor is left. (The original returns the system's number:
/// reference: acm, section 5.)
pub fn source_for(destination: IpAddr) -> Result<IpAddr, Status> {
    if destination.is_unspecified() || destination.is_multicast() {
        return Err(Status::DestinationType);
    }
    // An IPv4-mapped address is looked up in its own family, like this host's addresses.
    let destination = destination.to_canonical();
    let socket = doorbell_inet::unbound(destination.is_ipv4()).map_err(|_| Status::NoMemory)?;
    let lost = |_| Status::DestinationAddress;
    rustix::net::connect(&socket, &SocketAddr::new(destination, PORT)).map_err(lost)?;
    let own = rustix::net::getsockname(&socket).map_err(lost)?;
    let own = SocketAddr::try_from(own)
        .map_err(|_| Status::DestinationAddress)?
        .ip();
    let none = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
    if none.contains(&own) {
        Err(Status::DestinationAddress)
    } else {
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unowned_address_has_no_source() {
        for stranger in ["0.0.0.0", "::", "224.0.0.1", "ff02::1"] {
            assert_eq!(
                source_for(stranger.parse().unwrap()),
                Err(Status::DestinationType),
                "{stranger}"
            );
        }
        // An address class that is not routed.
        assert_eq!(
            source_for([240, 0, 0, 1].into()).err(),
            Some(Status::DestinationAddress).filter(|_| no_way())
        );
        let mapped: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
        assert_eq!(source_for(mapped), Ok([127, 0, 0, 1].into()));
    }

    /// Whether the system has no route to it either.
    fn no_way() -> bool {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("240.0.0.1:9").is_err()
    }
}
