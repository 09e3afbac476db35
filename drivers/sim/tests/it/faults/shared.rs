//! Bandwidths and queues that flows share: a trunk, the port before a receiver.

use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::{Change, Faults, Pipe, Plane, SimConfig, SimDatagram, SimNet, Stats};

const PIPE: Pipe = Pipe {
    bandwidth: 100_000_000,
    queue: 10_000,
};

struct Flow {
    from: SimDatagram,
    peer: PeerIndex,
}

/// One flow per pair; ranks that occur twice are one NIC.
fn flows(faults: Faults, pairs: &[(u32, u32)]) -> (SimNet, Vec<Flow>, Vec<SimDatagram>) {
    let net = SimNet::new(3, SimConfig::default());
    net.change(Change::Faults(Plane::FIRST, faults));
    let mut receivers: Vec<SimDatagram> = Vec::new();
    let mut flows = Vec::new();
    for &(from, to) in pairs {
        if !receivers.iter().any(|nic| nic.rank() == to) {
            receivers.push(net.attach_datagram_rank(to, Plane::FIRST));
        }
        let receiver = receivers.iter().find(|nic| nic.rank() == to).unwrap();
        let mut from = net.attach_datagram_rank(from, Plane::FIRST);
        let peer = from.open(&receiver.address(), receiver.incarnation()).unwrap();
        flows.push(Flow { from, peer });
    }
    (net, flows, receivers)
}

/// Every flow posts a frame of 1000 bytes each `gap` ns, in turn; returns the frames per receiver, and the
/// time.
fn load(
    net: &SimNet,
    flows: &mut [Flow],
    receivers: &mut [SimDatagram],
    gap: u64,
    rounds: u64,
) -> Vec<usize> {
    let mut got = vec![0; receivers.len()];
    let mut take = |receivers: &mut [SimDatagram]| {
        for (nic, got) in receivers.iter_mut().zip(&mut got) {
            while let n @ 1.. = nic.split().1.poll(Channel::Data, 64) {
                *got += n;
            }
        }
    };
    for round in 1..=rounds {
        for flow in &mut *flows {
            let (tx, _) = flow.from.split();
            assert_eq!(tx.reserve(Channel::Data, 1), 1);
            tx.post(Channel::Data, flow.peer, &[0; 64], Body::Bytes(&[0; 936]))
                .unwrap();
            tx.doorbell();
        }
        net.advance_to(Time::from_nanos(round * gap));
        take(receivers);
    }
    while net.advance_to_next_event().is_some() {
        take(receivers);
    }
    got
}

#[test]
fn eight_to_one_share_the_port_and_drop_what_it_cannot_hold() {
    let faults = Faults {
        port: Some(PIPE),
        ..Faults::NONE
    };
    let pairs: Vec<(u32, u32)> = (1..=8).map(|from| (from, 0)).collect();
    let (net, mut senders, mut receivers) = flows(faults, &pairs);
    let got = load(&net, &mut senders, &mut receivers, 40_000, 100);
    // 8 kB each 40 us are 200 MB/s: twice what passes.
    let passed = got[0] as f64 / 800.0;
    assert!((0.49..=0.53).contains(&passed), "{passed}");
    let Stats {
        frames_sent,
        frames_delivered,
        port_dropped,
        ..
    } = net.total();
    assert_eq!((frames_sent, frames_delivered + port_dropped), (800, 800));
    // The last leaves the port when all that passed has been serialised, and not earlier.
    assert!(net.now().nanos() >= got[0] as u64 * 10_000);
}

#[test]
fn a_port_is_one_receivers_and_a_trunk_is_shared() {
    let pairs = [(1, 10), (2, 20)];
    let ports = Faults {
        port: Some(PIPE),
        ..Faults::NONE
    };
    // 1 kB each 10 us: exactly what one pipe carries.
    let (net, mut senders, mut receivers) = flows(ports, &pairs);
    assert_eq!(load(&net, &mut senders, &mut receivers, 10_000, 100), [100, 100]);
    let trunk = Faults {
        trunk: Some((4, PIPE)),
        ..Faults::NONE
    };
    let (net, mut senders, mut receivers) = flows(trunk, &pairs);
    let got = load(&net, &mut senders, &mut receivers, 10_000, 100);
    let total = net.total();
    assert_eq!(got.iter().sum::<usize>() as u64 + total.trunk_dropped, 200);
    assert!((100..=115).contains(&got.iter().sum::<usize>()), "{got:?}");
}

#[test]
fn the_queue_of_a_pipe_delays_before_it_drops() {
    let faults = Faults {
        port: Some(PIPE),
        ..Faults::NONE
    };
    let (net, mut senders, mut receivers) = flows(faults, &[(1, 0)]);
    let peer = senders[0].peer;
    let (tx, _) = senders[0].from.split();
    assert_eq!(tx.reserve(Channel::Data, 20), 20);
    for _ in 0..20 {
        tx.post(Channel::Data, peer, &[0; 64], Body::Bytes(&[0; 936]))
            .unwrap();
    }
    tx.doorbell();
    let mut times = Vec::new();
    while net.advance_to_next_event().is_some() {
        for _ in 0..receivers[0].split().1.poll(Channel::Data, 64) {
            times.push(net.now().nanos());
        }
    }
    // One microsecond of way; then 10 us each, for the ten that the queue holds.
    assert_eq!(times, (1..=10).map(|n| 1_000 + n * 10_000).collect::<Vec<_>>());
    assert_eq!(net.total().port_dropped, 10);
}
