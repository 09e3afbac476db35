//! The wire: frames between a virtual function and a real kernel's sockets, which check every header and
//! checksum themselves.

use std::net::UdpSocket;
use std::process::Command;

use crate::client;
use crate::client::queues::{Pair, TLV, is_good, steer, udp};
use crate::client::scene::mac;
use crate::client::{Client, until};
use doorbell_testing::netns::Lab;
use doorbell_vic::{BridgeTo, Model, Options};

/// The function's address.
const OURS: u32 = 0x0a4d_0032;

/// An interface's hardware address.
fn address(lab: &Lab, host: usize, interface: &str) -> [u8; 6] {
    let out = Command::new("ip")
        .args(["-n", lab.name(host), "-o", "link", "show", interface])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let word = text
        .split("link/ether ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    let bytes: Vec<u8> = word
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    bytes.try_into().unwrap()
}

/// Frames to and fro with a socket of the kernel in host 1.
fn exchange(model: &Model, lab: &Lab, interface: &str, theirs: [u8; 4]) {
    let (mut pf, mut vf) = (Client::new(model, "pf"), Client::new(model, "vf0"));
    pf.share(TLV, 4096);
    let mut pair = Pair::new(&mut vf, 0, 1 << 32, (64, 128));
    steer(&mut pf, 0, OURS, 5000, 0);
    pair.enable(&mut vf);
    pair.post(&mut vf, 60, 2048, 0);
    let (ours, kernels) = (mac(&mut vf), address(lab, 1, interface));
    let text = ours.map(|byte| format!("{byte:02x}")).join(":");
    lab.ip(
        1,
        &format!("neigh replace 10.77.0.50 lladdr {text} dev {interface}"),
    );
    let socket = lab.inside(1, || {
        UdpSocket::bind((std::net::Ipv4Addr::from(theirs), 7777)).unwrap()
    });
    socket.set_read_timeout(Some(client::SOON)).unwrap();
    for (round, length) in [0usize, 1, 17, 18, 19, 700, 1472].into_iter().enumerate() {
        let payload: Vec<u8> = (0..length).map(|byte| (byte + round) as u8).collect();
        let frame = udp(
            kernels,
            ours,
            (OURS, u32::from_be_bytes(theirs)),
            (5000, 7777),
            &payload,
        );
        pair.send(&mut vf, &frame);
        assert_eq!(pair.wait(&vf).kind(), 0);
        let mut room = [0; 2048];
        let (count, from) = socket
            .recv_from(&mut room)
            .expect("the kernel found its checksums good");
        assert_eq!(
            (&room[..count], from.to_string().as_str()),
            (&payload[..], "10.77.0.50:5000")
        );
        socket.send_to(&room[..count], from).unwrap();
        let done = pair.wait(&vf);
        assert_eq!((done.kind(), done.flags()), (7, 0xab), "{length}");
        let back = pair.received(&vf, done.index(), done.length());
        assert!(is_good(&back));
        assert_eq!(back[42..42 + length], payload);
        pair.post(&mut vf, 1, 2048, 0);
    }
    // What is for another address or port is the kernel's own.
    socket.send_to(b"another port", "10.77.0.50:5001").unwrap();
    until("it is dropped", || model.summary().functions["vf0"].dropped == 1);
    assert_eq!(model.violations().list(), []);
}

fn start(folder: &tempfile::TempDir, bridge: BridgeTo) -> Model {
    let dir = Some(folder.path().join("vic"));
    Model::start(Options {
        dir,
        bridge: Some(bridge),
        ..Options::default()
    })
    .unwrap()
}

#[test]
fn an_interface_leads_to_a_kernel_in_another_namespace() {
    let Some(lab) = Lab::pair("vic::an_interface_leads_to_a_kernel", 1500) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let model = lab.inside(0, || start(&folder, BridgeTo::Interface("v0".to_owned())));
    exchange(&model, &lab, "v0", [10, 77, 0, 2]);
}

#[test]
fn a_tap_is_a_kernels_end_of_a_wire() {
    let Some(lab) = Lab::pair("vic::a_tap_is_a_kernels_end", 1500) else {
        return;
    };
    if !std::path::Path::new("/dev/net/tun").exists() {
        return doorbell_testing::skipped("vic::a_tap_is_a_kernels_end", "there is no /dev/net/tun");
    }
    let folder = tempfile::tempdir().unwrap();
    let model = lab.inside(1, || start(&folder, BridgeTo::Tap("vic0".to_owned())));
    lab.ip(1, "link set v0 down");
    lab.ip(1, "address add 10.77.0.3/24 dev vic0");
    lab.ip(1, "link set vic0 up");
    exchange(&model, &lab, "vic0", [10, 77, 0, 3]);
}

#[test]
fn a_missing_interface_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        dir: Some(folder.path().join("vic")),
        bridge: Some(BridgeTo::Interface("nosuch0".to_owned())),
        ..Options::default()
    };
    let error = Model::start(options).unwrap_err().to_string();
    assert!(error.contains("`nosuch0`"), "{error}");
    assert!(!folder.path().join("vic").exists(), "nothing is left");
}
