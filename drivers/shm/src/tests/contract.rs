//! The promises of the `Message` contract, by the suite that the simulator passes as well.

use std::time::Instant;

use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::Apart;

use super::rail;
use crate::{ShmConfig, ShmRail};

fn connected() -> Apart<ShmRail> {
    let config = ShmConfig {
        cells: 64,
        data: 64 << 10,
        eager: 4096,
        fragment: 8192,
        ..ShmConfig::default()
    };
    let (a, b) = (rail(&config), rail(&config));
    let epochs = (a.incarnation(), b.incarnation());
    let start = Instant::now();
    Apart::new(
        (a, epochs.0),
        (b, epochs.1),
        move |a: &mut ShmRail, b: Option<&mut ShmRail>| {
            std::thread::sleep(std::time::Duration::from_micros(200));
            let now = Time::ZERO + start.elapsed();
            a.progress(now);
            if let Some(b) = b {
                b.progress(now);
            }
        },
    )
}

doorbell_sim::message_conformance!(connected);
