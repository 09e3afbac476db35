//! Hosts made of files and of lists of interfaces.

use std::fs;
use std::path::Path;
use std::time::Duration;

use doorbell_inet::NicAddress;

use super::*;
use crate::address::Address;
use crate::config::Pkey;

/// A tree as a host with a card of two ports has it, of which one is connected; the second card is Ethernet.
fn tree(root: &Path) {
    let port = |device: &str, port: u8, layer: &str, state: &str| {
        let folder = root.join(format!("class/infiniband/{device}/ports/{port}"));
        fs::create_dir_all(folder.join("gids")).unwrap();
        fs::create_dir_all(folder.join("pkeys")).unwrap();
        let put = |file: &str, text: &str| fs::write(folder.join(file), format!("{text}\n")).unwrap();
        put("link_layer", layer);
        put("state", state);
        put("lid", "0x5");
        put("rate", "100 Gb/sec (4X EDR)");
        put("gids/0", "fe80:0000:0000:0000:b859:9f03:00d4:6f1e");
        put("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000");
        for (index, key) in ["0xffff", "0x8001", "0x0000", "0x7fff"].into_iter().enumerate() {
            put(&format!("pkeys/{index}"), key);
        }
        fs::write(
            root.join(format!("class/infiniband/{device}/node_guid")),
            "b859:9f03:00d4:6f1e\n",
        )
        .unwrap();
    };
    port("mlx5_0", 1, "InfiniBand", "4: ACTIVE");
    port("mlx5_0", 2, "InfiniBand", "1: DOWN");
    port("mlx5_1", 1, "Ethernet", "4: ACTIVE");
    let ib0 = root.join("class/net/ib0");
    fs::create_dir_all(ib0.join("device/infiniband/mlx5_0")).unwrap();
    for (file, text) in [
        ("type", "32\n"),
        ("dev_port", "0\n"),
        ("dev_id", "0x0\n"),
        ("pkey", "0xffff\n"),
    ] {
        fs::write(ib0.join(file), text).unwrap();
    }
}

fn nic(index: u32, name: &str, ip: &str) -> Nic {
    let mut flags = libc::IFF_UP | libc::IFF_RUNNING;
    if name == "lo" {
        flags |= libc::IFF_LOOPBACK;
    }
    Nic {
        index,
        name: name.to_owned(),
        alternatives: Vec::new(),
        flags: flags as u32,
        addresses: vec![NicAddress {
            ip: ip.parse().unwrap(),
            prefix: 24,
            usable: true,
        }],
    }
}

fn sources(root: &Path, entries: Vec<AddressEntry>) -> Sources {
    Sources {
        sys: root.to_owned(),
        net: root.join("net"),
        hosts: root.join("hosts"),
        name: "node1".to_owned(),
        entries,
    }
}

fn look_at(sources: &Sources, all: &[Nic]) -> HostInventory {
    found(sources, all, |_| {
        Some(Facts {
            mac: None,
            mtu: 65_536,
            megabits: None,
        })
    })
}

#[test]
fn infiniband_has_an_endpoint_for_each_partition_of_each_active_port() {
    let root = tempfile::tempdir().unwrap();
    tree(root.path());
    let found = look_at(
        &sources(root.path(), Vec::new()),
        &[nic(1, "lo", "127.0.0.1"), nic(7, "ib0", "10.1.0.1")],
    );
    let keys: Vec<(String, u8, u16)> = found
        .endpoints
        .iter()
        .map(|end| (end.device.clone(), end.port, end.pkey))
        .collect();
    let expected = [("lo", 0xffff), ("mlx5_0", 0xffff), ("mlx5_0", 0x8001)];
    assert_eq!(keys, expected.map(|(device, key)| (device.to_owned(), 1, key)));
    let first = &found.endpoints[1];
    assert_eq!(
        (first.guid, first.lid, first.ports),
        (0xb859_9f03_00d4_6f1e, 5, 2)
    );
    assert_eq!(first.rate.megabits(), 100_000);
    assert_eq!(first.interface, 7, "its own interface carries its frames");
    assert!(first.is_near([10, 1, 0, 9].into()));
    assert_eq!(first.gid_of(&Address::V4([10, 1, 0, 1].into())), first.gid);
    assert_eq!(first.name().map(ToString::to_string).as_deref(), Some("node1"));
    assert!(found.endpoints[2].addresses.is_empty());
}

#[test]
fn the_hosts_names_are_those_of_the_endpoint_that_leads_out() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("net")).unwrap();
    let all = [
        nic(1, "lo", "127.0.0.1"),
        nic(9001, "made0", "10.1.0.1"),
        nic(9002, "made1", "10.2.0.1"),
    ];
    let named = |found: &HostInventory, at: usize| found.endpoints[at].name().map(ToString::to_string);
    let found = look_at(&sources(root.path(), Vec::new()), &all);
    assert_eq!(
        [0, 1, 2].map(|at| named(&found, at)),
        [Some("localhost".into()), Some("node1".into()), None]
    );
    let route = "made1 00000000 0100000A 0003 0 0 100 00000000 0 0 0\n";
    fs::write(root.path().join("net/route"), route).unwrap();
    let found = look_at(&sources(root.path(), Vec::new()), &all);
    assert_eq!(
        [0, 1, 2].map(|at| named(&found, at)),
        [Some("localhost".into()), None, Some("node1".into())]
    );
    let found = look_at(&sources(root.path(), Vec::new()), &all[..1]);
    assert!(found.endpoints[0].has(&Address::Name(crate::address::Name::new("node1").unwrap())));
}

#[test]
fn the_file_of_addresses_is_used_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    tree(root.path());
    let entry = |name: &str, device: &str, pkey| AddressEntry {
        address: Address::Name(crate::address::Name::new(name).unwrap()),
        device: device.to_owned(),
        port: 1,
        pkey,
        line: 0,
    };
    let entries = vec![
        entry("a", "mlx5_0", Pkey::Default),
        entry("b", "mlx5_0", Pkey::Is(1)),
        entry("c", "mlx5_7", Pkey::Default),
        entry("d", "eth0", Pkey::Default),
    ];
    let found = look_at(
        &sources(root.path(), entries.clone()),
        &[nic(2, "eth0", "10.0.0.1")],
    );
    let names: Vec<String> = found
        .endpoints
        .iter()
        .map(|end| end.name().map(ToString::to_string).unwrap_or_default())
        .collect();
    assert_eq!(names, ["d", "a", "b"]);
    assert_eq!(found.unmatched, entries[2..3]);
}

#[test]
fn a_port_of_infiniband_without_an_interface_is_followed() {
    let root = tempfile::tempdir().unwrap();
    let of_root = || Sources {
        sys: root.path().to_owned(),
        ..Sources::of_system(Vec::new())
    };
    assert!(!infiniband::may_have_ports(root.path()));
    tree(root.path());
    fs::remove_dir_all(root.path().join("class/net")).unwrap();
    assert!(infiniband::may_have_ports(root.path()));
    let mut watch = HostWatch::new(of_root()).unwrap();
    let lids = |found: &HostInventory| -> Vec<u16> {
        let ports = found.endpoints.iter().filter(|end| end.link == Link::InfiniBand);
        ports.map(|end| end.lid).collect()
    };
    assert_eq!(lids(watch.found()), [5, 5]);
    let lid = root.path().join("class/infiniband/mlx5_0/ports/1/lid");
    fs::write(&lid, "0x9\n").unwrap();
    watch.look_again();
    assert_eq!(watch.poll().unwrap().map(lids), Some(vec![9, 9]));
    // Without a notification of any kind.
    fs::write(&lid, "0xa\n").unwrap();
    watch.pause = Duration::from_millis(10);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(async {
        let mut watch = watch.registered().unwrap();
        HostWatch::changed(&mut watch).await.unwrap();
        assert_eq!(lids(watch.get_ref().found()), [10, 10]);
        // A driver that is loaded again takes its device away for a while.
        let (device, aside) = (
            root.path().join("class/infiniband/mlx5_0"),
            root.path().join("aside"),
        );
        fs::rename(&device, &aside).unwrap();
        HostWatch::changed(&mut watch).await.unwrap();
        assert_eq!(lids(watch.get_ref().found()), [0u16; 0]);
        fs::rename(&aside, &device).unwrap();
        let back = tokio::time::timeout(Duration::from_secs(20), HostWatch::changed(&mut watch)).await;
        back.expect("it is noticed").unwrap();
        assert_eq!(lids(watch.get_ref().found()), [10, 10]);
    });
}

#[test]
fn this_host_is_followed() {
    let mut watch = HostWatch::new(Sources::of_system(Vec::new())).unwrap();
    assert!(
        watch
            .found()
            .endpoints
            .iter()
            .any(|end| end.link == Link::Loopback)
    );
    let before = watch.found().clone();
    watch.rename(Sources {
        name: "another-name".to_owned(),
        ..Sources::of_system(Vec::new())
    });
    assert!(watch.is_behind());
    let after = watch.poll().unwrap().expect("it has another name").clone();
    assert_ne!(before, after);
    assert!(!watch.is_behind());
}
