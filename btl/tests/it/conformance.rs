//! The promises of `Message`, over a simulated network in several moods.

use std::time::Duration;

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::rail::Rail;
use doorbell_sim::conformance::{Apart, cutter};
use doorbell_sim::{Faults, SimConfig, SimDatagram, SimNet};

fn config() -> BtlConfig {
    BtlConfig {
        give_up: Duration::from_secs(2),
        keep_alive: Duration::from_millis(100),
        ..BtlConfig::default()
    }
}

fn pair(seed: u64, faults: Faults, config: BtlConfig) -> Apart<Btl<SimDatagram>> {
    let net = SimNet::new(
        seed,
        SimConfig {
            faults,
            ..SimConfig::default()
        },
    );
    let end = || {
        let driver = net.attach_datagram();
        let life = driver.incarnation();
        let mut btl = Btl::new(driver, config.clone(), life).expect("the settings are right");
        btl.set_key(JobKey::from_bytes([1; 32]));
        (btl, life)
    };
    let (a, b) = (end(), end());
    let clock = net.clone();
    let pair = Apart::new(a, b, move |a, b| {
        let deadlines = [a.next_deadline(), b.as_ref().and_then(|b| b.next_deadline())];
        // A turn is at most a millisecond: a peer that a check does not poll has not been silent for long
        // then.
        let most = clock.now() + Duration::from_millis(1);
        clock.advance_to(
            deadlines
                .into_iter()
                .flatten()
                .chain([most])
                .min()
                .unwrap_or(most),
        );
        a.progress(clock.now());
        if let Some(b) = b {
            b.progress(clock.now());
        }
    });
    pair.with_cut(cutter(net))
}

mod calm {
    fn pair() -> super::Apart<super::Btl<super::SimDatagram>> {
        super::pair(1, super::Faults::NONE, super::config())
    }
    doorbell_sim::message_conformance!(pair);
}

mod rough {
    fn pair() -> super::Apart<super::Btl<super::SimDatagram>> {
        super::pair(2, super::Faults::ROUGH, super::config())
    }
    doorbell_sim::message_conformance!(pair);
}

mod authenticated {
    fn pair() -> super::Apart<super::Btl<super::SimDatagram>> {
        let config = super::BtlConfig {
            frame_mac: true,
            ..super::config()
        };
        super::pair(3, super::Faults::ROUGH, config)
    }
    doorbell_sim::message_conformance!(pair);
}

mod unchecked_and_small {
    fn pair() -> super::Apart<super::Btl<super::SimDatagram>> {
        let config = super::BtlConfig {
            connectivity_check: false,
            window: 64,
            segments: 256,
            operations: 4,
            max_reassemblies: 4,
            initial_window: 2,
            eager_limit: 16 * 1024,
            first_sequence: Some(u32::MAX - 3),
            ..super::config()
        };
        super::pair(4, super::Faults::NONE, config)
    }
    doorbell_sim::message_conformance!(pair);
}
