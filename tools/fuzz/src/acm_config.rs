//! What address resolution reads that others have written: files of options, of addresses, of what is known
//! from the beginning; and frames from other services. What is accepted is written as it was read; warnings
//! are few and can be shown.

use std::path::Path;

use doorbell_acm::carrier::{Frame, Key, Kind, TAG};
use doorbell_acm::config::{
    Preload, WARNINGS_MAX, Warnings, read_addresses, read_hosts, read_options, read_routes, write_addresses,
    write_options,
};
use doorbell_acm::endpoint::{DEFAULT_PKEY, Endpoint, Link};
use doorbell_acm::path::{Mtu, Rate};

/// Reads the input as what its first byte selects.
pub fn run(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else {
        return;
    };
    let mut warnings = Warnings::default();
    match choice % 6 {
        0 => options(bytes, &mut warnings),
        1 => addresses(bytes, choice > 127, &mut warnings),
        2 => hosts(bytes, &mut warnings),
        3 => routes(bytes, &mut warnings),
        4 => frame(bytes, None),
        _ => signed(bytes),
    }
    assert!(warnings.iter().count() <= WARNINGS_MAX);
    for warning in warnings.iter() {
        let text = warning.to_string();
        assert!(text.len() < 1000 && !text.contains(char::is_control), "{text:?}");
    }
}

fn options(bytes: &[u8], warnings: &mut Warnings) {
    let read = read_options(bytes, Path::new("f"), warnings);
    let text = write_options(&read, |_| None);
    let again = read_options(text.as_bytes(), Path::new("f"), &mut Warnings::default());
    assert_eq!(read, again);
}

fn addresses(bytes: &[u8], ips: bool, warnings: &mut Warnings) {
    let read = read_addresses(bytes, Path::new("f"), ips, warnings);
    let text = write_addresses(&read);
    let mut none = Warnings::default();
    assert_eq!(
        read_addresses(text.as_bytes(), Path::new("f"), ips, &mut none),
        read
    );
    assert!(none.is_empty(), "{none:?}");
}

fn hosts(bytes: &[u8], warnings: &mut Warnings) {
    let read = read_hosts(bytes, Path::new("f"), warnings).expect("memory can be read");
    let table = Preload::new(read.clone(), Vec::new());
    for entry in &read {
        assert_eq!(table.gid_of(&entry.address), Some(entry.gid), "each address once");
    }
}

/// The endpoint that some of the seeds' sections are of.
fn own() -> Endpoint {
    Endpoint {
        device: "mlx4_0".to_owned(),
        other_names: Vec::new(),
        guid: 1,
        interface: 0,
        port: 1,
        ports: 1,
        pkey: DEFAULT_PKEY,
        link: Link::InfiniBand,
        gid: "fe80::2:c903:2:faed".parse().expect("a GID"),
        lid: 6,
        mtu: Mtu::MAX,
        rate: Rate::MIN,
        subnet_timeout: 18,
        addresses: Vec::new(),
        networks: Vec::new(),
    }
}

fn routes(bytes: &[u8], warnings: &mut Warnings) {
    let own = own();
    let paths = read_routes(bytes, Path::new("f"), std::slice::from_ref(&own), warnings);
    let paths = paths.expect("memory can be read");
    let table = Preload::new(Vec::new(), paths.clone());
    for path in &paths {
        assert_eq!((path.sgid, path.slid), (own.gid, own.lid));
        assert!(path.dlid != 0 && path.dlid < 0xc000 && path.sl < 16);
        assert_eq!(table.answer(path), Some(path));
    }
}

fn frame(bytes: &[u8], key: Option<&Key>) {
    let Ok(read) = Frame::read(bytes, key) else {
        return;
    };
    assert!(read.header.qpn < 1 << 24);
    assert_eq!(read.mad().is_some(), read.header.kind == Kind::Mad);
    let mut written = Vec::new();
    read.header.write(read.body, bytes.len(), key, &mut written);
    assert_eq!(written.len(), bytes.len());
    assert_eq!(Frame::read(&written, key), Ok(read));
}

/// Reads a frame of a sender that has the key, and checks that no other key verifies it.
fn signed(bytes: &[u8]) {
    let (key, other) = (Key::of_job(&[1; 32]), Key::of_job(&[2; 32]));
    frame(bytes, Some(&key));
    let Ok(read) = Frame::read(bytes, None) else {
        return;
    };
    let mut written = Vec::new();
    read.header
        .write(read.body, bytes.len() + TAG, Some(&key), &mut written);
    if let Ok(again) = Frame::read(&written, Some(&key)) {
        assert_eq!(again.header, read.header);
    }
    assert!(Frame::read(&written, Some(&other)).is_err());
    assert!(Frame::read(&written, None).is_err());
}
