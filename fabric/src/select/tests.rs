//! Tests of rail selection: each reason by name, and that named rails are never replaced.

use proptest::prelude::*;

use super::*;
use crate::caps::{Capabilities, Estimate, Features, Limits};

fn name(text: &str) -> RailName {
    text.parse().unwrap()
}

fn usable(text: &str, wire: &str) -> Candidate {
    let limits = Limits {
        head: 64,
        message: 1 << 16,
        inline: 24,
        eager: 4096,
        fragment: 8192,
        get_from: 65536,
        parts: 4,
        one_sided: 1 << 30,
    };
    let estimate = Estimate {
        latency_ns: 100,
        bandwidth: 1,
    };
    let capabilities = Capabilities {
        features: Features::default(),
        limits,
        estimate,
    };
    let mut candidate = Candidate::usable(name(text), capabilities);
    candidate.wire = wire.to_owned();
    candidate
}

fn offer(text: &str, wire: &str) -> Offer {
    let rail = name(text);
    Offer {
        address: RailAddress::native(rail.kind(), text.as_bytes()),
        wire: wire.to_owned(),
        rail,
    }
}

/// A latency by the names at both ends; zero means unreachable.
fn by_table(table: &'static [(&str, &str, u64)]) -> impl FnMut(&Candidate, &Offer) -> Reach {
    move |ours, theirs| {
        let row = table
            .iter()
            .find(|row| row.0 == ours.rail.as_str() && row.1 == theirs.rail.as_str());
        match row.map(|row| row.2) {
            Some(0) => Reach::No {
                reason: "no answer".into(),
            },
            Some(latency_ns) => Reach::Yes {
                latency_ns,
                measured: true,
            },
            None => panic!("{} and {} do not speak the same", ours.rail, theirs.rail),
        }
    }
}

fn ours() -> Vec<Candidate> {
    vec![
        usable("sim:1", "sim").only_when_named(),
        Candidate::rejected(name("xdp:eth0"), "no right", "give CAP_NET_RAW"),
        usable("udp:eth1", "udp"),
        usable("usnic:0000:3b:00.2", "udp"),
        usable("udp:eth2", "udp"),
        usable("verbs:mlx5_0:1", "verbs"),
        usable("shm", "shm"),
    ]
}

fn theirs() -> Vec<Offer> {
    vec![
        offer("udp:em1", "udp"),
        offer("udp:em2", "udp"),
        offer("shm", "shm"),
        offer("sim:1", "sim"),
    ]
}

const TABLE: &[(&str, &str, u64)] = &[
    ("shm", "shm", 200),
    ("udp:eth1", "udp:em1", 9000),
    ("udp:eth1", "udp:em2", 8000),
    ("usnic:0000:3b:00.2", "udp:em1", 3000),
    ("usnic:0000:3b:00.2", "udp:em2", 0),
    ("udp:eth2", "udp:em1", 0),
    ("udp:eth2", "udp:em2", 0),
    ("sim:1", "sim:1", 50),
];

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

#[test]
fn unnamed_rails_are_ranked_and_every_loser_has_its_one_reason() {
    let selection = select("rank 1", &ours(), &theirs(), &Policy::default(), by_table(TABLE));
    assert_eq!(
        chosen(&selection),
        [("shm", "shm"), ("usnic:0000:3b:00.2", "udp:em1")]
    );
    assert_eq!(*reason(&selection, "sim:1"), Lost::OnlyWhenNamed);
    assert!(
        matches!(reason(&selection, "xdp:eth0"), Lost::Rejected { remedy, .. } if remedy.contains("CAP_NET_RAW"))
    );
    assert!(matches!(reason(&selection, "udp:eth2"), Lost::Unreachable { reason } if reason == "no answer"));
    assert_eq!(
        *reason(&selection, "verbs:mlx5_0:1"),
        Lost::PeerLacks { wire: "verbs".into() }
    );
    let slower = Lost::Slower {
        than: name("usnic:0000:3b:00.2"),
        theirs_ns: 3000,
        ours_ns: 8000,
    };
    assert_eq!(*reason(&selection, "udp:eth1"), slower);
    assert_eq!(selection.rails.len(), ours().len());
    assert_eq!(selection.require().unwrap().len(), 2);
}

#[test]
fn named_rails_are_used_in_the_order_of_naming() {
    let policy = Policy {
        named: vec![name("udp:eth1"), name("sim:1"), name("shm")],
        most: 1,
    };
    let selection = select("rank 1", &ours(), &theirs(), &policy, by_table(TABLE));
    assert_eq!(
        chosen(&selection),
        [("udp:eth1", "udp:em2"), ("sim:1", "sim:1"), ("shm", "shm")]
    );
    assert_eq!(*reason(&selection, "usnic:0000:3b:00.2"), Lost::NotNamed);
    assert!(selection.require().is_ok());
}

#[test]
fn a_named_rail_that_cannot_be_used_is_refused_and_not_replaced() {
    for (rail, what) in [
        ("xdp:eth0", "no right"),
        ("udp:eth2", "no answer"),
        ("verbs:mlx5_0:1", "speaks `verbs`"),
        ("udp:eth9", "no such rail"),
    ] {
        let policy = Policy {
            named: vec![name("shm"), name(rail)],
            most: 2,
        };
        let selection = select("rank 1", &ours(), &theirs(), &policy, by_table(TABLE));
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
fn no_rail_at_all_names_every_reason() {
    let none = |_: &Candidate, _: &Offer| Reach::No {
        reason: "no answer".into(),
    };
    let selection = select("rank 9", &ours(), &theirs(), &Policy::default(), none);
    let error = selection.require().unwrap_err();
    assert_eq!(error.code(), "no-rail");
    let text = error.to_string();
    assert!(
        ours().iter().all(|one| text.contains(one.rail.as_str())),
        "{text}"
    );
    let empty = select("rank 9", &[], &[], &Policy::default(), none);
    assert!(
        empty
            .require()
            .unwrap_err()
            .to_string()
            .contains("no rail at all")
    );
}

#[test]
fn a_peer_that_offers_without_end_is_looked_at_so_far() {
    let many: Vec<Offer> = (0..1000).map(|at| offer(&format!("udp:e{at}"), "udp")).collect();
    let mut asked = 0;
    select(
        "rank 1",
        &[usable("udp:eth0", "udp")],
        &many,
        &Policy::default(),
        |_, _| {
            asked += 1;
            Reach::No {
                reason: String::new(),
            }
        },
    );
    assert_eq!(asked, OFFERS_MAX);
}

#[test]
fn the_selection_is_data_and_every_reason_one_line() {
    let selection = select("rank 1", &ours(), &theirs(), &Policy::default(), by_table(TABLE));
    let json = serde_json::to_value(&selection).unwrap();
    assert_eq!(
        (&json["rails"][0]["rail"], &json["rails"][0]["is"]),
        (&"shm".into(), &"chosen".into())
    );
    assert_eq!(json["rails"][2]["reason"]["because"], "only-when-named");
    for one in &selection.rails {
        if let Choice::Lost { reason } = &one.choice {
            assert!(!reason.to_string().is_empty() && !reason.to_string().contains('\n'));
        }
    }
    let text = serde_json::to_string(&theirs()).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Offer>>(&text).unwrap(), theirs());
}

proptest! {
    /// Whatever the latencies: nothing that lost is faster than something that was chosen, nobody is left out, and
    /// the answer does not depend on the order in which candidates are listed.
    #[test]
    fn the_fastest_are_chosen(latencies in prop::collection::vec(prop::option::of(1u64..50), 0..8), most in 0usize..5) {
        let ours: Vec<_> = (0..latencies.len()).map(|at| usable(&format!("udp:e{at}"), "udp")).collect();
        let theirs = [offer("udp:em1", "udp")];
        let policy = Policy { named: Vec::new(), most };
        let latency = |rail: &RailName| latencies[rail.object()[1..].parse::<usize>().unwrap()];
        let reach = |one: &Candidate, _: &Offer| match latency(&one.rail) {
            Some(latency_ns) => Reach::Yes { latency_ns, measured: false },
            None => Reach::No { reason: "no answer".into() },
        };
        let selection = select("peer", &ours, &theirs, &policy, reach);
        prop_assert_eq!(selection.rails.len(), ours.len());
        let picked: Vec<_> = selection.chosen().map(|(rail, _)| latency(rail).unwrap()).collect();
        let mut sorted: Vec<_> = latencies.iter().flatten().copied().collect();
        sorted.sort_unstable();
        sorted.truncate(most.max(1));
        prop_assert_eq!(picked, sorted);
        let turned: Vec<_> = ours.iter().rev().cloned().collect();
        let again = select("peer", &turned, &theirs, &policy, reach);
        prop_assert_eq!(chosen(&selection), chosen(&again));
        prop_assert_eq!(selection.require().is_ok(), latencies.iter().any(Option::is_some));
    }
}
