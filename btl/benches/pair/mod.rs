//! Two BTLs over a driver that hands frames over in memory.

#![allow(dead_code, unreachable_pub, missing_docs)] // each bench uses what it needs

use std::time::Duration;

use doorbell_btl::BtlConfig;
use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, OpError, OpId, PeerIndex};
use doorbell_fabric::rail::Rail;

#[path = "../../tests/common/lane.rs"]
pub mod lane;

/// Adds up the first words of messages, so that they are read.
#[derive(Default)]
pub struct Sink(pub u64);

impl Arrivals for Sink {
    #[inline]
    fn message(&mut self, _: PeerIndex, message: Inbound<'_>) {
        self.0 += message.read(0).map_or(0, u64::from_le_bytes);
    }
    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

pub type Two = lane::Two<Sink>;

pub fn two(checked: bool, frame_mac: bool) -> Two {
    let config = BtlConfig {
        connectivity_check: false,
        frame_mac,
        ..BtlConfig::default()
    };
    Two::new(checked, &config)
}

impl Two {
    pub fn tick(&mut self) {
        self.now += Duration::from_micros(5);
        self.ends.iter_mut().for_each(|end| {
            end.progress(self.now);
        });
    }

    /// One message from `i` to the other end.
    #[inline]
    pub fn send(&mut self, i: usize, bytes: &[u8]) {
        let sent = self.ends[i].send(self.to[i], &bytes[..8], Body::Bytes(&bytes[8..]));
        assert!(sent.is_ok());
        self.ends[i].flush();
    }

    #[inline]
    pub fn receive(&mut self, i: usize) {
        while self.ends[i].poll(1, &mut self.sinks[i]) == 0 {
            // The window is closed: its sender has acknowledgements to read.
            self.ends[1 - i].poll(1, &mut self.sinks[1 - i]);
        }
    }
}
