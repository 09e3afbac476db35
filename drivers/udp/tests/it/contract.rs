//! The promises of `Datagram`, over the loopback: with connected sockets, without, and by IPv6.

use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::datagram::Ends;
use doorbell_udp::{Family, UdpConfig, UdpRail};

fn pair(config: &UdpConfig) -> Ends<UdpRail> {
    let open = || {
        let rail = UdpRail::open(&"udp:lo".parse().unwrap(), config).unwrap();
        let life = rail.incarnation();
        (rail, life)
    };
    let mut now = 0;
    Ends::connect(open(), open(), move |a, b| {
        now += 1_000;
        a.progress(Time::from_nanos(now));
        b.progress(Time::from_nanos(now));
    })
}

mod connected {
    use super::*;

    fn ends() -> Ends<UdpRail> {
        pair(&UdpConfig::default())
    }

    doorbell_sim::datagram_conformance!(ends);
}

mod shared_sockets {
    use super::*;

    fn ends() -> Ends<UdpRail> {
        pair(&UdpConfig {
            connected: 0,
            ..UdpConfig::default()
        })
    }

    doorbell_sim::datagram_conformance!(ends);
}

mod without_offloads {
    use super::*;

    fn ends() -> Ends<UdpRail> {
        pair(&UdpConfig {
            gso: false,
            gro: false,
            batch: 1,
            ..UdpConfig::default()
        })
    }

    doorbell_sim::datagram_conformance!(ends);
}

mod ipv6 {
    use super::*;

    fn ends() -> Ends<UdpRail> {
        pair(&UdpConfig {
            family: Family::V6,
            ..UdpConfig::default()
        })
    }

    doorbell_sim::datagram_conformance!(ends);
}
