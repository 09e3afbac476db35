//! The memory of ten thousand idle peers: the whole stack of a rank (PML, BTL, driver), counted by the
//! allocator. Each of its parts has a test or an assertion of its own; this one counts the sum.

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::message::Incarnation;
use doorbell_fabric::rail::Rail;
use doorbell_pml::{Pml, PmlConfig, Rank};
use doorbell_sim::{Plane, SimConfig, SimNet};
use doorbell_testing::alloc::{self, Counting};
use doorbell_udp::{UdpConfig, UdpRail};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PEERS: u32 = 10_000;
/// The design's budget for the PML and the BTL together; here it includes the driver.
const BUDGET: i64 = 1024;

/// A rank's stack with `peers` peers, none of which is used.
fn stack<D: Datagram>(driver: D, peers: u32, address: impl Fn(u32) -> RailAddress) -> Pml<Btl<D>> {
    let config = BtlConfig {
        max_peers: peers as usize,
        ..BtlConfig::default()
    };
    let mut btl = Btl::new(driver, config, Incarnation(1)).unwrap();
    btl.set_key(JobKey::from_bytes([1; 32]));
    let mut pml = Pml::new(PmlConfig::new(Rank(0), peers + 1, 1)).unwrap();
    let rail = pml.add_rail(btl).unwrap();
    for rank in 1..=peers {
        pml.connect(Rank(rank), rail, &address(rank), Incarnation(7))
            .unwrap();
    }
    pml
}

/// Returns the bytes of one more idle peer, as the difference between a stack with one and one with all.
fn each<D: Datagram>(name: &str, open: impl Fn() -> D, address: impl Fn(u32) -> RailAddress) -> i64 {
    let with = |peers| {
        // What all stacks share (a simulated network, a clock) is made before the count begins.
        let driver = open();
        let before = alloc::of_thread().held;
        let pml = stack(driver, peers, &address);
        let bytes = alloc::of_thread().held - before;
        assert_eq!(pml.rails().count(), 1, "the stack lives until here");
        bytes
    };
    let (one, all) = (with(1), with(PEERS));
    let each = (all - one) / i64::from(PEERS - 1);
    println!("{name}: {each} bytes per idle peer, of {BUDGET}; {one} bytes for a stack with one");
    each
}

#[test]
fn ten_thousand_idle_peers_over_udp_take_a_kibibyte_each() {
    let open = || UdpRail::open(&"udp:lo".parse().unwrap(), &UdpConfig::default()).unwrap();
    // None of them need exist: an idle peer is never written to. The first 64 have sockets of their own,
    // whose memory is the kernel's.
    let address = |rank: u32| {
        let host = [127, 1, (rank >> 8) as u8, rank as u8];
        RailAddress::inet("udp", (host, 56080).into())
    };
    let each = each("udp", open, address);
    assert!((100..=BUDGET).contains(&each), "{each} bytes");
}

#[test]
fn ten_thousand_idle_peers_over_the_simulator_take_a_kibibyte_each() {
    let config = SimConfig {
        priority_ring: 4,
        data_ring: 4,
        ..SimConfig::default()
    };
    let net = SimNet::new(1, config);
    // An address can be given to a rank that existed once.
    let address_of = |rank| net.attach_datagram_rank(rank, Plane::FIRST).address();
    let addresses: Vec<RailAddress> = (0..=PEERS).map(address_of).collect();
    let open = || net.attach_datagram_rank(PEERS + 1, Plane::FIRST);
    let each = each("sim", open, |rank| addresses[rank as usize].clone());
    assert!((100..=BUDGET).contains(&each), "{each} bytes");
}
