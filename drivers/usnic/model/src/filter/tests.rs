use super::*;
use proptest::prelude::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| byte.is_ascii_hexdigit()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// The reference's vector (3.8): UDP, to 10.0.0.5:5000, RQ 2.
fn vector() -> Vec<u8> {
    hex(
        "00000000 22000000 01000000 15000000 00000000 00000000 0500000a 0000 8813 00000000000000000000 01000000 08000000 00000000 02000000",
    )
}

fn tuple(destination: Option<u32>, port: Option<u16>) -> Match {
    Match::Tuple {
        protocol: Some(0),
        source: None,
        destination,
        source_port: None,
        destination_port: port,
    }
}

#[test]
fn the_references_filter_is_read_as_specified() {
    assert_eq!(vector().len(), 58);
    let wanted = tuple(Some(0x0a00_0005), Some(5000));
    assert_eq!(parse(&vector(), 1), Ok(FilterRequest { wanted, rq: 2 }));
    assert_eq!(
        parse(&vector(), 0),
        Err(errno::INVALID),
        "a type above the highest"
    );
    // The newer form: a filter as long as it must be, and another action.
    let newer = hex(
        "00000000 18000000 01000000 15000000 00000000 00000000 0500000a 0000 8813 01000000 2e000000 01000000 02000000 01000000 0000",
    );
    let mut newer = newer;
    newer.extend([0; 32]);
    assert_eq!(newer.len(), 8 + 24 + 8 + 46);
    assert_eq!(parse(&newer, 1), Ok(FilterRequest { wanted, rq: 2 }));
}

#[test]
fn lengths_that_lie_are_refused() {
    let good = vector();
    for cut in 0..good.len() {
        assert!(parse(&good[..cut], 1).is_err(), "{cut}");
    }
    for (at, value) in [(4, 0x23), (4, 0xff), (46, 9), (0, 1), (42, 0), (42, 2)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(parse(&bad, 1).is_err(), "{at} {value}");
    }
    let mut huge = good.clone();
    huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(parse(&huge, 1).is_err());
    let mut long = good;
    long.extend([0; 60]);
    assert_eq!(parse(&long, 1), Err(errno::INVALID));
}

/// A frame from 10.0.0.1, port 7.
fn frame(destination: u32, port: u16) -> Vec<u8> {
    let mut frame = hex("020000000005 020000000001 0800 4500 001c 0000 4000 08 11 0000 0a000001");
    frame.extend(destination.to_be_bytes());
    frame.extend([0, 7]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 8, 0, 0]);
    frame
}

#[test]
fn the_most_specific_filter_wins_and_owners_are_kept_apart() {
    let mut filters = Filters::new(4, false);
    let add =
        |filters: &mut Filters, owner, wanted, rq| filters.add(owner, FilterRequest { wanted, rq }, false);
    let any = add(&mut filters, 1, tuple(None, None), 0).unwrap();
    let port = add(&mut filters, 1, tuple(None, Some(5000)), 1).unwrap();
    let both = add(&mut filters, 2, tuple(Some(0x0a00_0005), Some(5000)), 2).unwrap();
    let best = |filters: &Filters, owner, destination, to| {
        let frame = frame(destination, to);
        filters
            .best(owner, &frame, &frame::parse(&frame))
            .map(|filter| filter.id)
    };
    assert_eq!(best(&filters, None, 0x0a00_0005, 5000), Some(both));
    assert_eq!(best(&filters, Some(1), 0x0a00_0005, 5000), Some(port));
    assert_eq!(best(&filters, Some(1), 0x0a00_0005, 5001), Some(any));
    assert_eq!(best(&filters, Some(2), 0x0a00_0006, 5000), None);
    assert_eq!(
        add(&mut filters, 1, tuple(None, None), 0),
        Err(errno::INVALID),
        "twice"
    );
    // Another one may have the same.
    add(&mut filters, 3, tuple(None, None), 0).unwrap();
    assert_eq!(
        add(&mut filters, 3, tuple(None, Some(2)), 0),
        Err(errno::NO_RESOURCES)
    );
    assert_eq!(
        filters.remove(1, u64::from(both)),
        Err(errno::INVALID),
        "another's"
    );
    assert_eq!(filters.remove(2, u64::from(both)), Ok(()));
    assert_eq!(
        filters.remove(2, u64::from(both)),
        Err(errno::INVALID),
        "gone already"
    );
    assert!(filters.has(1, 1) && !filters.has(2, 2));
    filters.clear(Some(1));
    assert_eq!(filters.rows.len(), 1);
    filters.clear(None);
    assert_eq!(filters.rows.len(), 0);
}

#[test]
fn fragments_and_other_types_meet_no_ports() {
    let mut part = frame(0x0a00_0005, 5000);
    part[20] = 0x20;
    let parts = frame::parse(&part);
    assert_eq!(tuple(None, Some(5000)).meets(&part, &parts), None);
    assert_eq!(tuple(None, None).meets(&part, &parts), Some(1));
    let arp = hex("ffffffffffff 020000000001 0806 0001 0800 0604 0001");
    assert_eq!(tuple(None, None).meets(&arp, &frame::parse(&arp)), None);
    let id = Match::UsnicId {
        vlan: None,
        ethertype: Some(0x8915),
        version: Some(0x81),
        id: Some(7),
    };
    let custom = hex("020000000005 020000000001 8915 81 00000007 00");
    assert_eq!(id.meets(&custom, &frame::parse(&custom)), Some(3));
    assert_eq!(id.meets(&arp, &frame::parse(&arp)), None);
    let mac = Match::MacVlan {
        vlan: None,
        mac: Some([2, 0, 0, 0, 0, 5]),
    };
    assert_eq!(mac.meets(&custom, &frame::parse(&custom)), Some(1));
}

proptest! {
    #[test]
    fn whatever_comes_is_judged(bytes in prop::collection::vec(any::<u8>(), 0..110), at in 0usize..58, byte in any::<u8>()) {
        let _ = parse(&bytes, 3);
        let mut near = vector();
        near[at] = byte;
        if let Ok(asked) = parse(&near, 3) {
            let frame = frame(1, 2);
            let _ = asked.wanted.meets(&frame, &frame::parse(&frame));
        }
    }
}
