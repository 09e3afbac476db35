//! Tests of rail selection: each reason by name, and that named rails are never replaced.

use super::*;
use crate::caps::Capabilities;

fn name(text: &str) -> RailName {
    text.parse().unwrap()
}

fn usable(text: &str, wire: &str) -> Candidate {
    let mut candidate = Candidate::usable(name(text), Capabilities::of_a_test());
    candidate.wire = wire.to_owned();
    candidate
}

fn offer(text: &str, wire: &str, address: &str) -> Offer {
    let rail = name(text);
    let address = match format!("{address}:56080").parse() {
        Ok(socket) => RailAddress::inet(wire, socket),
        Err(_) => RailAddress::native(wire, text.as_bytes()),
    };
    let place = Place {
        interface: rail.object().to_owned(),
        prefix: 24,
        ..Place::default()
    };
    Offer {
        address,
        wire: wire.to_owned(),
        place,
        rail,
    }
}

fn ours() -> Vec<Candidate> {
    vec![
        usable("sim:1", "sim").only_when_named("it is simulated"),
        Candidate::rejected(name("xdp:eth0"), "no right", "give CAP_NET_RAW"),
        usable("udp:eth1", "udp"),
        usable("usnic:0000:3b:00.2", "udp"),
        usable("udp:eth2", "udp"),
        usable("udp:eth6", "udp"),
        usable("verbs:mlx5_0:1", "verbs"),
        usable("shm", "shm"),
    ]
}

fn published() -> Vec<Offer> {
    vec![
        offer("udp:eth1", "udp", "10.1.0.1"),
        offer("usnic:0000:3b:00.2", "udp", "10.2.0.1"),
        offer("udp:eth2", "udp", "10.3.0.1"),
        offer("udp:eth6", "udp", "[fd00::1]"),
        offer("verbs:mlx5_0:1", "verbs", ""),
        offer("shm", "shm", ""),
    ]
}

fn theirs() -> Vec<Offer> {
    vec![
        offer("udp:em2", "udp", "10.2.0.2"),
        offer("udp:em1", "udp", "10.1.0.2"),
        offer("sim:1", "sim", ""),
        offer("shm", "shm", ""),
    ]
}

/// The selection of a side that opens everything, with a latency by the rail; zero means that it cannot.
fn choose(named: &[&str], table: &[(&str, u64)]) -> Selection {
    let (ours_published, theirs) = (published(), theirs());
    let named: Vec<RailName> = named.iter().map(|text| name(text)).collect();
    let sides = Published {
        ours: Side {
            host: "a",
            rails: &ours_published,
        },
        theirs: Side {
            host: "a",
            rails: &theirs,
        },
        lower: true,
    };
    // One host, and two networks on it: as two containers.
    let mut apart = theirs.clone();
    apart
        .iter_mut()
        .filter(|one| one.wire == "udp")
        .for_each(|one| one.place.network = 2);
    let sides = Published {
        theirs: Side {
            host: "a",
            rails: &apart,
        },
        ..sides
    };
    select("rank 1", &ours(), sides, &named, |rail, _| {
        match table.iter().find(|row| row.0 == rail.as_str()).map(|row| row.1) {
            Some(0) => Reach::No {
                reason: "no answer".into(),
            },
            found => Reach::Yes {
                latency_ns: found.unwrap_or(500),
                measured: false,
            },
        }
    })
}

fn chosen(selection: &Selection) -> Vec<(&str, &str)> {
    selection
        .chosen()
        .map(|(rail, to)| (rail.as_str(), to.rail.as_str()))
        .collect()
}

fn reason<'a>(selection: &'a Selection, rail: &str) -> &'a Lost {
    let one = selection.rails.iter().find(|one| one.rail == name(rail)).unwrap();
    match &one.choice {
        Choice::Lost { reason } => reason,
        choice => panic!("{rail}: {choice:?}"),
    }
}

const TABLE: &[(&str, u64)] = &[("shm", 200), ("udp:eth1", 9000), ("usnic:0000:3b:00.2", 3000)];

#[test]
fn all_pairs_are_used_and_every_loser_has_its_one_reason() {
    let selection = choose(&[], TABLE);
    assert_eq!(
        chosen(&selection),
        [
            ("shm", "shm"),
            ("usnic:0000:3b:00.2", "udp:em2"),
            ("udp:eth1", "udp:em1")
        ]
    );
    let pair = |at: usize| match &selection.rails[at].choice {
        Choice::Chosen { pair, quality, .. } => (*pair, *quality),
        lost => panic!("{lost:?}"),
    };
    assert_eq!(
        [pair(0), pair(1), pair(2)],
        [
            (2, Quality::Direct),
            (1, Quality::SameNetwork),
            (0, Quality::SameNetwork)
        ]
    );
    assert!(
        matches!(reason(&selection, "sim:1"), Lost::OnlyWhenNamed { reason } if reason == "it is simulated")
    );
    assert!(
        matches!(reason(&selection, "xdp:eth0"), Lost::Rejected { remedy, .. } if remedy.contains("CAP_NET_RAW"))
    );
    assert_eq!(*reason(&selection, "udp:eth2"), Lost::NoneLeft);
    assert!(
        matches!(reason(&selection, "udp:eth6"), Lost::Unreachable { reason } if reason.contains("families"))
    );
    assert_eq!(
        *reason(&selection, "verbs:mlx5_0:1"),
        Lost::PeerLacks { wire: "verbs".into() }
    );
    assert_eq!(selection.rails.len(), ours().len());
    assert_eq!(selection.require().unwrap().len(), 3);
}

#[test]
fn named_rails_are_used_in_the_order_of_naming() {
    let selection = choose(&["udp:eth1", "shm"], TABLE);
    assert_eq!(chosen(&selection), [("udp:eth1", "udp:em1"), ("shm", "shm")]);
    assert_eq!(*reason(&selection, "usnic:0000:3b:00.2"), Lost::NotNamed);
    assert!(selection.require().is_ok());
}

#[test]
fn a_named_rail_that_cannot_be_used_is_refused_and_not_replaced() {
    for (rail, what) in [
        ("xdp:eth0", "no right"),
        ("udp:eth1", "no answer"),
        ("udp:eth6", "different families"),
        ("verbs:mlx5_0:1", "wire format `verbs`"),
        ("udp:eth9", "no such rail"),
    ] {
        let selection = choose(&["shm", rail], &[("udp:eth1", 0)]);
        assert_eq!(chosen(&selection), [("shm", "shm")]);
        let error = selection.require().unwrap_err();
        assert_eq!(error.code(), "rail-unusable");
        let text = error.to_string();
        assert!(
            text.contains(rail) && text.contains(what) && text.contains("rank 1"),
            "{text}"
        );
    }
}

#[test]
fn a_named_rail_is_left_over_where_the_peer_has_fewer() {
    let selection = choose(&["shm", "udp:eth2"], &[]);
    assert_eq!(*reason(&selection, "udp:eth2"), Lost::NoneLeft);
    assert_eq!(selection.require().unwrap().len(), 1);
    let text = choose(&["udp:eth2"], &[]).require().unwrap_err().to_string();
    assert!(
        text.contains("`udp:eth2`: the peer's rails that it reaches"),
        "{text}"
    );
    assert!(
        text.contains("are paired with other rails of this side"),
        "{text}"
    );
}

#[test]
fn a_pair_that_does_not_open_is_an_error_also_when_it_was_not_named() {
    let selection = choose(&[], &[("udp:eth1", 0)]);
    assert!(matches!(reason(&selection, "udp:eth1"), Lost::Broken { to, .. } if *to == name("udp:em1")));
    let text = selection.require().unwrap_err().to_string();
    assert!(text.contains("udp:em1") && text.contains("no answer"), "{text}");
    let command = "`doorbell why HOST --rail udp:eth1` at both ends";
    assert!(text.contains(command), "the remedy is missing: {text}");
}

#[test]
fn both_ends_number_the_same_pairs() {
    let (a, b) = (published(), theirs());
    let sides = |lower| {
        let (one, other) = (Side { host: "a", rails: &a }, Side { host: "b", rails: &b });
        let (ours, theirs) = if lower { (one, other) } else { (other, one) };
        Published { ours, theirs, lower }
    };
    let turned = |pairs: Vec<(usize, usize, Quality)>| -> Vec<_> {
        pairs
            .into_iter()
            .map(|(ours, theirs, quality)| (theirs, ours, quality))
            .collect()
    };
    assert_eq!(sides(true).pairs(), turned(sides(false).pairs()));
    assert_eq!(sides(true).pairs().len(), 2);
}

#[test]
fn no_rail_at_all_names_every_reason() {
    let none = Side {
        host: "a",
        rails: &[],
    };
    let ours_published = published();
    let sides = Published {
        ours: Side {
            host: "a",
            rails: &ours_published,
        },
        theirs: none,
        lower: true,
    };
    let never = |_: &RailName, _: &Offer| panic!("nothing is paired");
    let error = select("rank 9", &ours(), sides, &[], never)
        .require()
        .unwrap_err();
    assert_eq!(error.code(), "no-rail");
    let text = error.to_string();
    // The sentence, and a line for each.
    let (sentence, lines) = text.split_once('\n').unwrap();
    assert_eq!(
        sentence,
        "no rail reaches rank 9 (`doorbell info` shows every candidate):"
    );
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), ours().len(), "{text}");
    for one in ours() {
        let begin = format!("  `{}`: ", one.rail);
        assert!(lines.iter().any(|line| line.starts_with(&begin)), "{text}");
    }
    let one = Published { ours: none, ..sides };
    let text = select("rank 9", &ours()[..1], one, &[], never)
        .require()
        .unwrap_err()
        .to_string();
    assert!(
        !text.contains('\n') && text.ends_with("; `doorbell info` shows every candidate"),
        "{text}"
    );
    let empty = select("rank 9", &[], Published { ours: none, ..sides }, &[], never);
    assert!(
        empty
            .require()
            .unwrap_err()
            .to_string()
            .contains("no rail at all")
    );
}

#[test]
fn the_selection_is_data_and_every_reason_one_line() {
    let selection = choose(&[], TABLE);
    let json = serde_json::to_value(&selection).unwrap();
    assert_eq!(
        (&json["rails"][0]["rail"], &json["rails"][0]["is"]),
        (&"shm".into(), &"chosen".into())
    );
    assert_eq!(json["rails"][1]["quality"], "same-network");
    assert_eq!(json["rails"][3]["reason"]["because"], "only-when-named");
    for one in &selection.rails {
        if let Choice::Lost { reason } = &one.choice {
            assert!(!reason.to_string().is_empty() && !reason.to_string().contains('\n'));
        }
    }
    let text = serde_json::to_string(&theirs()).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Offer>>(&text).unwrap(), theirs());
}
