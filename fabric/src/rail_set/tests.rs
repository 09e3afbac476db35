//! Sets over a driver that is made up.

use super::*;
use crate::caps::Capabilities;
use crate::discover::discover;

fn name(text: &str) -> RailName {
    text.parse().unwrap()
}

fn names(texts: &[&str]) -> Vec<RailName> {
    texts.iter().map(|text| name(text)).collect()
}

/// Functions of a card of which one is not bound, and one is another process's.
struct Card;

impl Driver for Card {
    fn kind(&self) -> &'static str {
        "igbvf"
    }

    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        let usable = |text: &str| Candidate::usable(name(text), Capabilities::of_a_test());
        Ok(vec![
            usable("igbvf:0000:01:10.0"),
            usable("igbvf:0000:01:10.2"),
            Candidate::rejected(name("igbvf:0000:01:10.4"), "it is not bound", "bind it"),
            usable("igbvf:0000:81:10.0"),
            usable("igbvf:0000:81:10.2"),
        ])
    }

    fn holder(&self, rail: &RailName) -> Option<String> {
        (rail.object() == "0000:81:10.2").then(|| "process 7 (other)".to_owned())
    }
}

/// Two packages of two nodes: 0 and 1, 2 and 3. The card on bus 01 is on node 0, that on bus 81 on node 2.
struct Cards;

impl Layout for Cards {
    fn node(&self, rail: &RailName) -> Option<usize> {
        Some(if rail.object().starts_with("0000:01") {
            0
        } else {
            2
        })
    }

    fn distance(&self, from: usize, to: usize) -> Option<usize> {
        Some(match (from, to) {
            _ if from == to => 10,
            _ if from / 2 == to / 2 => 16,
            _ => 32,
        })
    }
}

fn set(text: &str, holders: Holders) -> RailSet {
    let named = name(text);
    let found = discover(&[&Card], std::slice::from_ref(&named));
    RailSet::of(&named, &[&Card], &found, &Cards, holders)
}

fn shared(
    list: &[&str],
    sets: &[RailSet],
    taken: &[&str],
    ranks: &[Option<usize>],
) -> Result<Vec<String>, RailError> {
    let each = shares(Wanted {
        list: &names(list),
        sets,
        taken: &names(taken),
        ranks,
        layout: &Cards,
        more: &|_, count| Some(format!("`make {count}` makes more")),
    })?;
    let joined = |rails: Vec<RailName>| {
        let rails: Vec<&str> = rails.iter().map(RailName::as_str).collect();
        rails.join(" ").replace("igbvf:0000:", "")
    };
    Ok(each.into_iter().map(joined).collect())
}

#[test]
fn a_star_stands_for_any_letters() {
    for (pattern, rail, fits) in [
        ("udp:veth*", "udp:veth0", true),
        ("udp:veth*", "udp:veth", true),
        ("udp:veth*", "udp:eth0", false),
        ("udp:veth*", "xdp:veth0", false),
        ("udp:*", "udp:lo", true),
        ("udp:e*0", "udp:eth10", true),
        ("udp:e*0", "udp:eth01", false),
        ("udp:*th*p*", "udp:eth0np1", true),
        ("udp:a*a", "udp:a", false),
        ("udp:eth0", "udp:eth0", false),
        ("igbvf:0000:01:10.*", "igbvf:0000:01:10.6", true),
        ("igbvf:*", "igbvf:0000:01:10.6", true),
        ("verbs:mlx5_*", "verbs:mlx5_0:1", true),
        ("verbs:mlx5_*", "verbs:mlx5_0:1:ud", false),
        ("verbs:mlx5_*:ud", "verbs:mlx5_0:1:ud", true),
        ("verbs:mlx5_*:ud", "verbs:mlx5_0:1", false),
    ] {
        assert_eq!(name(pattern).contains(&name(rail)), fits, "{pattern} {rail}");
    }
}

#[test]
fn a_set_is_what_matches_and_can_be_taken() {
    let all = set("igbvf:*", Holders::Count);
    let members: Vec<(&str, Option<usize>)> = all
        .members
        .iter()
        .map(|member| (member.rail.object(), member.node))
        .collect();
    assert_eq!(
        members,
        [
            ("0000:01:10.0", Some(0)),
            ("0000:01:10.2", Some(0)),
            ("0000:81:10.0", Some(2))
        ]
    );
    let out: Vec<&str> = all.left_out.iter().map(|out| out.reason.as_str()).collect();
    assert_eq!(out, ["it is not bound; bind it", "process 7 (other) has it"]);
    // A rank of another launcher does not know who of its job has a rail already.
    assert_eq!(set("igbvf:*", Holders::Ignored).members.len(), 4);
    assert_eq!(
        (all.node(), set("igbvf:0000:01:*", Holders::Count).node()),
        (None, Some(0))
    );
}

#[test]
fn the_nearest_rank_takes_a_rail_and_no_two_take_one() {
    let sets = [set("igbvf:*", Holders::Ignored)];
    let of = |ranks: &[Option<usize>]| shared(&["shm", "igbvf:*"], &sets, &[], ranks).unwrap();
    assert_eq!(of(&[Some(2), Some(0)]), ["shm 81:10.0", "shm 01:10.0"]);
    // Rank 0 has no card near to it, and leaves those of the others to them.
    assert_eq!(
        of(&[Some(3), Some(2), Some(2), Some(0)]),
        ["shm 01:10.2", "shm 81:10.0", "shm 81:10.2", "shm 01:10.0"]
    );
    // Node 1 is nearer to node 0 than to node 2.
    assert_eq!(of(&[Some(1), Some(3)]), ["shm 01:10.0", "shm 81:10.0"]);
    // Where no cores are known, by number: every rank computes this for all of them.
    assert_eq!(
        of(&[None; 4]),
        ["shm 01:10.0", "shm 01:10.2", "shm 81:10.0", "shm 81:10.2"]
    );
    for ranks in 1..=4 {
        for nodes in 0..5usize.pow(ranks) {
            let node = |rank: u32| Some(nodes / 5usize.pow(rank) % 5).filter(|node| *node < 4);
            let mut taken = of(&(0..ranks).map(node).collect::<Vec<_>>());
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), ranks as usize, "{nodes}");
        }
    }
}

#[test]
fn what_is_named_or_taken_is_in_no_set() {
    let sets = [
        set("igbvf:0000:01:*", Holders::Ignored),
        set("igbvf:*", Holders::Ignored),
    ];
    let list = ["igbvf:0000:01:*", "igbvf:*"];
    assert_eq!(
        shared(&list, &sets, &[], &[None, None]).unwrap(),
        ["01:10.0 81:10.0", "01:10.2 81:10.2"]
    );
    let named = ["igbvf:0000:01:10.0", "igbvf:*"];
    assert_eq!(shared(&named, &sets, &[], &[None]).unwrap(), ["01:10.0 01:10.2"]);
    // Those of ranks that run already, and of one that is started now.
    let taken = ["igbvf:0000:01:10.0", "igbvf:0000:01:10.2", "igbvf:0000:81:10.0"];
    assert_eq!(shared(&["igbvf:*"], &sets, &taken, &[None]).unwrap(), ["81:10.2"]);
    let error = shared(&["igbvf:*"], &sets, &taken, &[None; 3])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("1 of those that it stands for is free (igbvf:0000:81:10.2); 3 are named themselves")
            && error.contains("`make 6` makes more"),
        "{error}"
    );
}

#[test]
fn of_rails_with_one_address_the_first_is_taken() {
    struct One(&'static str);
    impl Driver for One {
        fn kind(&self) -> &'static str {
            "igbvf"
        }
        fn probe(&self) -> Result<Vec<Candidate>, RailError> {
            let all = ["a0", "a1", "a2"].map(|object| {
                let candidate =
                    Candidate::usable(name(&format!("igbvf:{object}")), Capabilities::of_a_test());
                let address = if object == "a2" { "10.0.0.9/24" } else { self.0 };
                candidate.fact("address", address)
            });
            Ok(all.into())
        }
    }
    let (driver, named) = (One("10.0.0.5/24"), name("igbvf:a*"));
    let found = discover(&[&driver], std::slice::from_ref(&named));
    let set = RailSet::of(&named, &[&driver], &found, &Cards, Holders::Count);
    let members: Vec<&str> = set.members.iter().map(|member| member.rail.object()).collect();
    assert_eq!(members, ["a0", "a2"]);
    assert_eq!(
        set.left_out[0].reason,
        "igbvf:a0 has its address (10.0.0.5/24), too"
    );
}

#[test]
fn interfaces_of_one_host_need_something_between_its_ranks() {
    let member = |rail: &str| Member {
        rail: name(rail),
        node: None,
    };
    let set = RailSet {
        name: name("udp:eth*"),
        members: vec![member("udp:eth0"), member("udp:eth1")],
        left_out: Vec::new(),
        empty: None,
    };
    let of = |list: &[&str], ranks: usize| shared(list, std::slice::from_ref(&set), &[], &vec![None; ranks]);
    assert_eq!(of(&["udp:eth*"], 1).unwrap(), ["udp:eth0"]);
    assert_eq!(
        of(&["udp:eth*", "shm"], 2).unwrap(),
        ["udp:eth0 shm", "udp:eth1 shm"]
    );
    let error = of(&["udp:eth*"], 2).unwrap_err().to_string();
    assert!(
        error.contains("each of the 2 ranks of this host takes another interface")
            && error.contains("--rail shm"),
        "{error}"
    );
    assert!(
        of(&["udp:eth*"], 3)
            .unwrap_err()
            .to_string()
            .contains("2 of those")
    );
}

#[test]
fn too_few_are_refused_with_their_number_and_how_to_make_more() {
    let sets = [
        set("igbvf:*", Holders::Count),
        set("igbvf:0000:02:*", Holders::Count),
    ];
    let refused = |list: &str, ranks: usize| {
        let error = shared(&[list], &sets, &[], &vec![None; ranks]).unwrap_err();
        assert_eq!((error.code(), error.exit().number()), ("rail-unusable", 3));
        error.to_string()
    };
    assert_eq!(
        refused("igbvf:*", 6),
        "rail `igbvf:*` cannot be used: each of the 6 ranks of this host takes one, and 3 of those that it \
         stands for are free (igbvf:0000:01:10.0, igbvf:0000:01:10.2, igbvf:0000:81:10.0); \
         igbvf:0000:01:10.4 is left out: it is not bound; bind it; igbvf:0000:81:10.2 is left out: process 7 \
         (other) has it; `make 6` makes more; or start fewer ranks on each host, or name a set of more rails \
         (`doorbell info` lists them)"
    );
    // All are there, and need only be bound or given back.
    assert!(!refused("igbvf:*", 5).contains("makes more"));
    let none = refused("igbvf:0000:02:*", 1);
    assert!(
        none.contains(
            "no rail that it stands for; `make 1` makes more; or the nearest are igbvf:0000:01:10.0"
        ),
        "{none}"
    );
}
