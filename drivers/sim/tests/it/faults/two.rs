//! The bench of these tests: two NICs, numbered frames, and rates.

use std::time::Duration;

use doorbell_fabric::datagram::{Channel, Datagram, FrameId, Receive, Transmit};
use doorbell_fabric::message::{Body, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::{Faults, SimConfig, SimDatagram, SimNet, Stats};

/// Two datagram NICs, and what the second one has received.
pub(crate) struct Two {
    pub(crate) net: SimNet,
    pub(crate) a: SimDatagram,
    pub(crate) b: SimDatagram,
    pub(crate) to_b: PeerIndex,
    pub(crate) got: Vec<(Time, Vec<u8>)>,
}

pub(crate) fn two(seed: u64, faults: Faults) -> Two {
    let config = SimConfig {
        faults,
        ..SimConfig::default()
    };
    let net = SimNet::new(seed, config);
    let (mut a, b) = (net.attach_datagram(), net.attach_datagram());
    let to_b = a.open(&b.address(), b.incarnation()).unwrap();
    Two {
        net,
        a,
        b,
        to_b,
        got: Vec::new(),
    }
}

impl Two {
    pub(crate) fn post(&mut self, bytes: &[u8]) -> FrameId {
        let (tx, _) = self.a.split();
        while tx.reserve(Channel::Data, 1) == 0 {
            self.net.advance_to_next_event();
        }
        let (head, body) = bytes.split_at(bytes.len().min(8));
        let id = tx
            .post(Channel::Data, self.to_b, head, Body::Bytes(body))
            .unwrap();
        tx.doorbell();
        id
    }

    pub(crate) fn take(&mut self) {
        let (_, rx) = self.b.split();
        loop {
            let shown = rx.poll(Channel::Data, 64);
            for i in 0..shown {
                self.got
                    .push((self.net.now(), rx.frame(Channel::Data, i).unwrap().bytes.to_vec()));
            }
            if shown == 0 {
                return;
            }
        }
    }

    pub(crate) fn play(&mut self) {
        while self.net.advance_to_next_event().is_some() {
            self.take();
        }
        self.take();
    }

    /// Posts numbered frames of 32 bytes, a microsecond apart.
    pub(crate) fn run(&mut self, frames: u64) -> Stats {
        for n in 0..frames {
            let bytes: Vec<u8> = n.to_le_bytes().repeat(4);
            self.post(&bytes);
            self.net.advance_to(self.net.now() + Duration::from_micros(1));
            self.take();
        }
        self.play();
        self.net.total()
    }
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Whether `hits` of `n` fits the probability `p`, within four standard deviations of the binomial
/// distribution.
pub(crate) fn assert_rate(hits: u64, n: u64, p: f64) {
    let (mean, deviation) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
    let off = (hits as f64 - mean).abs();
    assert!(
        off <= 4.0 * deviation,
        "{hits} of {n} does not fit {p}: {mean} ± {deviation}"
    );
    assert!(hits > 0);
}
