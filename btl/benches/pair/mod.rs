//! Two BTLs over a driver that hands frames over in memory.

#![allow(dead_code, unreachable_pub, missing_docs)] // each bench uses what it needs

use std::time::Duration;

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::message::{Arrivals, Body, Inbound, Incarnation, Message, OpError, OpId, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;

#[path = "../../tests/common/lane.rs"]
pub mod lane;

use lane::Lane;

#[derive(Default)]
pub struct Sink(pub u64);

impl Arrivals for Sink {
    #[inline]
    fn message(&mut self, _: PeerIndex, message: Inbound<'_>) {
        self.0 += message.read(0).map_or(0, u64::from_le_bytes);
    }
    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

pub struct Two {
    pub ends: [Btl<Lane>; 2],
    pub to: [PeerIndex; 2],
    pub sink: Sink,
    pub now: Time,
}

pub fn two(checked: bool, frame_mac: bool) -> Two {
    let config = BtlConfig {
        connectivity_check: false,
        frame_mac,
        ..BtlConfig::default()
    };
    let mut life = 0;
    let mut ends = lane::pair(checked).map(|lane| {
        life += 1;
        let mut btl = Btl::new(lane, config.clone(), Incarnation(life)).expect("the settings are right");
        btl.set_key(JobKey::from_bytes([1; 32]));
        btl
    });
    let addresses = [ends[1].address(), ends[0].address()];
    let to = [0, 1].map(|i: usize| {
        ends[i]
            .open(&addresses[i], Incarnation(2 - i as u64))
            .expect("it is there")
    });
    Two {
        ends,
        to,
        sink: Sink::default(),
        now: Time::ZERO,
    }
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
        while self.ends[i].poll(1, &mut self.sink) == 0 {
            // The window is closed: its sender has acknowledgements to read.
            self.ends[1 - i].poll(1, &mut self.sink);
        }
    }
}
