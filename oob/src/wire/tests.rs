use proptest::prelude::*;

use super::*;

fn data() -> Head {
    Head {
        kind: Kind::Data,
        lane: Lane::Control,
        origin: Name::new(7, 0x0102_0304),
        epoch: Epoch(0x1112_1314_1516_1718),
        destination: Name::new(7, 0x0506_0708),
        to_epoch: Epoch(0x2122_2324_2526_2728),
        tag: 0x3132_3334,
        sequence: Seq(0x4142_4344),
        back: 0x5152,
        ack: Some((Seq(0x6162_6364), 0x7172)),
        gap: false,
        hops: 3,
    }
}

const GOLDEN: [u8; HEAD + 2] = [
    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 1, 2, 3,
    4, 5, 6, 7, 8, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44, 0x61, 0x62, 0x63, 0x64, 0, 0, 0, 2, 0x51,
    0x52, 0x71, 0x72, 1, 3, 3, 0, b'h', b'i',
];

#[test]
fn golden_bytes_of_a_message() {
    let frame = Frame::new(&data(), Some(7), Bytes::from(b"hi"));
    assert_eq!(&*frame.joined(), &GOLDEN);
    let (head, body) = Head::read(&Bytes::from(&GOLDEN), Some(7), 2).expect("a frame");
    assert_eq!((head, &*body), (data(), &b"hi"[..]));
}

#[test]
fn golden_bytes_of_a_foreign_acknowledgement() {
    let head = Head {
        kind: Kind::Ack,
        lane: Lane::User,
        origin: Name::new(9, 1),
        epoch: Epoch(2),
        destination: Name::new(7, 3),
        to_epoch: Epoch(4),
        tag: 0,
        sequence: Seq(6),
        back: 0,
        ack: Some((Seq(5), 8)),
        gap: true,
        hops: 0,
    };
    let bytes = Frame::new(&head, Some(7), Bytes::default()).joined();
    let mut golden = [0; HEAD_MAX];
    for (at, byte) in [
        (7, 2),
        (15, 4),
        (19, 1),
        (23, 3),
        (31, 6),
        (35, 5),
        (43, 8),
        (44, 2),
        (45, 14),
        (55, 9),
        (63, 7),
    ] {
        golden[at] = byte;
    }
    assert_eq!(&*bytes, &golden);
    for job in [Some(7), Some(9), None] {
        assert_eq!(Head::read(&bytes, job, 0), Ok((head, Bytes::default())));
    }
}

/// What is wrong with the golden message when `change` has been at it.
fn wrong(change: impl Fn(&mut Vec<u8>)) -> Malformed {
    let mut bytes = GOLDEN.to_vec();
    change(&mut bytes);
    Head::read(&bytes.into(), Some(7), 100).expect_err("it was changed")
}

#[test]
fn what_is_not_exactly_a_frame_is_refused() {
    assert_eq!(wrong(|bytes| bytes.truncate(47)), Malformed::Short(47));
    assert_eq!(
        wrong(|bytes| bytes.push(0)),
        Malformed::Length { said: 2, come: 3 }
    );
    assert_eq!(
        wrong(|bytes| bytes.resize(HEAD + 101, 0)),
        Malformed::Long {
            length: 101,
            limit: 100
        }
    );
    let fields: [(usize, &[u8], &str); 6] = [
        (0, &[0; 8], "epoch"),
        (8, &[0; 8], "destination's epoch"),
        (44, &[9], "kind"),
        (45, &[0x83], "flags"),
        (46, &[33], "hops"),
        (47, &[1], "the reserved byte"),
    ];
    for (at, with, name) in fields {
        let error = wrong(|bytes| bytes[at..at + with.len()].copy_from_slice(with));
        assert!(
            matches!(error, Malformed::Value { field, .. } if field == name),
            "{name}: {error}"
        );
    }
    let gap = wrong(|bytes| bytes[45] |= flags::GAP);
    assert!(matches!(gap, Malformed::Value { field: "flags", .. }), "{gap}");
    let ack = wrong(|bytes| bytes[45] &= !flags::ACKS);
    assert!(matches!(ack, Malformed::Value { field: "ack", .. }), "{ack}");
    let back = wrong(|bytes| bytes[44] = 2);
    assert!(matches!(back, Malformed::Value { field: "back", .. }), "{back}");
    let jobs = wrong(|bytes| bytes[45] |= flags::FOREIGN);
    assert_eq!(jobs, Malformed::Short(HEAD + 2));
    let job = Head::read(&Bytes::from(&GOLDEN), None, 2);
    assert!(
        matches!(job, Err(Malformed::Value { field: "flags", .. })),
        "a link between jobs is what names them"
    );
}

#[test]
fn places_are_compared_across_the_wrap() {
    let last = Seq(u32::MAX);
    assert!(last.is_before(last.plus(1)) && !last.plus(1).is_before(last) && !last.is_before(last));
    assert_eq!(last.plus(3), Seq(2));
    assert_eq!((last.until(Seq(2)), Seq(2).until(last)), (3, -3));
}

fn any_name() -> impl Strategy<Value = Name> {
    (0..3u64, any::<u32>()).prop_map(|(job, rank)| Name::new(job, rank))
}

fn any_head() -> impl Strategy<Value = Head> {
    let names = (any_name(), any_name(), 1..u64::MAX, 1..u64::MAX);
    let ack = proptest::option::of((any::<u32>(), any::<u16>()));
    let rest = (
        0..4usize,
        any::<bool>(),
        any::<[u32; 2]>(),
        any::<u16>(),
        ack,
        any::<bool>(),
        0..=HOPS_MAX,
    );
    (names, rest).prop_map(
        |(names, (kind, control, [tag, sequence], back, ack, gap, hops))| {
            let kind = [Kind::Data, Kind::Ack, Kind::Probe, Kind::Nack][kind];
            Head {
                kind,
                lane: Lane::ALL[usize::from(control)],
                origin: names.0,
                destination: names.1,
                epoch: Epoch(names.2),
                to_epoch: Epoch(names.3),
                tag,
                sequence: Seq(sequence),
                back: if kind == Kind::Data { back } else { 0 },
                ack: ack.map(|(ack, window)| (Seq(ack), window)),
                gap: gap && kind == Kind::Ack && ack.is_some(),
                hops,
            }
        },
    )
}

proptest! {
    #[test]
    fn what_was_written_is_read(head in any_head(), body in proptest::collection::vec(any::<u8>(), 0..50)) {
        let frame = Frame::new(&head, Some(1), body.clone().into());
        let bytes = frame.joined();
        prop_assert_eq!(bytes.len(), frame.length());
        let (read, rest) = Head::read(&bytes, Some(1), 50).expect("what was written is a frame");
        prop_assert_eq!(read, head);
        prop_assert_eq!(&*rest, &body[..]);
    }

    #[test]
    fn what_is_read_would_be_written_so(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let bytes = Bytes::from(bytes);
        if let Ok((head, body)) = Head::read(&bytes, Some(1), 100) {
            let again = Frame::new(&head, (bytes[45] & flags::FOREIGN == 0).then_some(1), body).joined();
            prop_assert_eq!(&*again, &*bytes);
        }
    }
}
