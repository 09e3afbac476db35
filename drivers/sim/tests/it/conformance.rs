//! The contracts' promises, over the simulator in several moods.

use doorbell_sim::conformance::datagram::Ends;
use doorbell_sim::conformance::{Apart, cutter};
use doorbell_sim::{Faults, SimConfig, SimDatagram, SimNet, SimRail};

fn pair(config: SimConfig) -> Apart<SimRail> {
    let net = SimNet::new(11, config);
    let (a, b) = (net.attach(), net.attach());
    let incarnations = (a.incarnation(), b.incarnation());
    let clock = net.clone();
    let pair = Apart::new((a, incarnations.0), (b, incarnations.1), move |_, _| {
        clock.advance_to_next_event();
    });
    pair.with_cut(cutter(net))
}

mod calm {
    fn pair() -> super::Apart<super::SimRail> {
        super::pair(super::SimConfig::default())
    }
    doorbell_sim::message_conformance!(pair);
}

mod out_of_order {
    use std::time::Duration;

    fn pair() -> super::Apart<super::SimRail> {
        let faults = super::Faults {
            reorder: 0.5,
            reorder_window: Duration::from_micros(50),
            jitter: Duration::from_micros(3),
            ..super::Faults::NONE
        };
        super::pair(super::SimConfig {
            faults,
            ..super::SimConfig::default()
        })
    }
    doorbell_sim::message_conformance!(pair);
}

mod narrow {
    fn pair() -> super::Apart<super::SimRail> {
        let faults = super::Faults {
            bandwidth: Some(100_000_000),
            queue: 4096,
            ..super::Faults::NONE
        };
        let config = super::SimConfig {
            faults,
            queue_depth: 5,
            operations: 4,
            ..super::SimConfig::default()
        };
        super::pair(config)
    }
    doorbell_sim::message_conformance!(pair);
}

mod plain_messages_only {
    fn pair() -> super::Apart<super::SimRail> {
        let mut config = super::SimConfig::default();
        let features = &mut config.capabilities.features;
        (features.get, features.put, features.atomics, features.gather) = (false, false, false, false);
        super::pair(config)
    }
    doorbell_sim::message_conformance!(pair);
}

mod get_only {
    fn pair() -> super::Apart<super::SimRail> {
        let mut config = super::SimConfig::default();
        let features = &mut config.capabilities.features;
        (features.put, features.atomics) = (false, false);
        super::pair(config)
    }
    doorbell_sim::message_conformance!(pair);
}

mod datagrams {
    fn ends() -> super::Ends<super::SimDatagram> {
        let net = super::SimNet::new(12, super::SimConfig::default());
        let (a, b) = (net.attach_datagram(), net.attach_datagram());
        let incarnations = (a.incarnation(), b.incarnation());
        super::Ends::connect((a, incarnations.0), (b, incarnations.1), move |_, _| {
            net.advance_to_next_event();
        })
    }
    doorbell_sim::datagram_conformance!(ends);
}
