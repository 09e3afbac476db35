//! Members of two hosts, which are network namespaces: nothing but their addresses leads them to each other.

use doorbell_job::lobby::Address;
use doorbell_testing::netns::Lab;

use super::node::{Node, Other, hex, name, parse};

const RAILS: &str = "shm,udp:v0,udp:v1";

/// Two hosts with two links; `None` after a skip was reported.
fn two_links(test: &str) -> Option<Lab> {
    let lab = Lab::pair(&format!("doorbell_job::members::hosts::{test}"), 1500)?;
    let other = lab.name(1).to_owned();
    lab.ip(0, &format!("link add v1 type veth peer name v1 netns {other}"));
    for host in [0, 1] {
        lab.ip(host, &format!("addr add 10.78.0.{}/24 dev v1", host + 1));
        lab.ip(host, "link set v1 up");
    }
    for host in [0, 1] {
        lab.wait_until_up(host, "v1");
    }
    Some(lab)
}

fn start(lab: &Lab, host: usize, rails: &str) -> Other {
    lab.inside(host, || Other::with_rails(rails))
}

/// Sends a text, and waits until it is there.
fn pass(from: &mut Other, to: &mut Other, tag: u64, text: &str) {
    from.send(&to.address(), tag, text);
    let got = format!("got {tag} from {}: {text}", name(&from.address()));
    assert_eq!(to.until(&format!("got {tag}")), got);
    let sent = format!("sent {tag} ");
    assert_eq!(from.until(&sent), format!("{sent}ok"));
}

#[test]
fn two_meet_at_the_first_message_and_talk_in_both_directions() {
    let Some(lab) = two_links("two_meet_at_the_first_message_and_talk_in_both_directions") else {
        return;
    };
    let (mut one, mut two) = (start(&lab, 0, RAILS), start(&lab, 1, RAILS));
    pass(&mut one, &mut two, 1, "hello");
    assert_eq!(
        two.until("appeared"),
        format!("appeared {}", name(&one.address()))
    );
    pass(&mut two, &mut one, 2, "and hello");
    assert!(one.has("appeared").is_none());
    two.tell("counts");
    assert!(two.until("counts").starts_with("counts 2 "));
    let hellos = two.until("hellos");
    assert!(
        hellos.contains("answered: 1, nonsense: 0, wrong_token: 0, unlike: 0"),
        "{hellos}"
    );
    // A third one on the first host: it meets the one over shared memory, the other over the links.
    let mut three = start(&lab, 0, RAILS);
    pass(&mut three, &mut one, 3, "beside");
    pass(&mut three, &mut two, 4, "across");
}

#[test]
fn both_may_begin_at_once_and_a_link_may_be_down() {
    let Some(lab) = two_links("both_may_begin_at_once_and_a_link_may_be_down") else {
        return;
    };
    for round in 0..6 {
        let (mut one, mut two) = (start(&lab, 0, RAILS), start(&lab, 1, RAILS));
        if round >= 3 {
            // The first door of both.
            lab.ip(0, "link set v0 down");
        }
        one.send(&two.address(), 1, "from one");
        two.send(&one.address(), 2, "from two");
        two.until("got 1");
        one.until("got 2");
        assert_eq!(one.until("sent 1"), "sent 1 ok");
        assert_eq!(two.until("sent 2"), "sent 2 ok");
        for node in [&mut one, &mut two] {
            node.tell("counts");
            let counts = node.until("counts");
            assert!(counts.starts_with("counts 2 "), "round {round}: {counts}");
            assert!(node.has("lost").is_none(), "round {round}");
        }
        lab.ip(0, "link set v0 up");
        lab.wait_until_up(0, "v0");
        lab.wait_until_up(1, "v0");
    }
}

#[test]
fn a_peer_that_leaves_is_met_again() {
    let Some(lab) = two_links("a_peer_that_leaves_is_met_again") else {
        return;
    };
    let (mut one, mut two) = (start(&lab, 0, RAILS), start(&lab, 1, RAILS));
    for round in 0..10 {
        pass(&mut one, &mut two, 10 + round, "hello");
        one.tell(&format!("leave {}", hex(&two.address())));
        assert!(two.until("lost").contains(&name(&one.address())));
    }
    pass(&mut two, &mut one, 30, "the other way");
    pass(&mut one, &mut two, 31, "and back");
}

#[test]
fn a_peer_that_is_killed_is_lost() {
    let Some(lab) = two_links("a_peer_that_is_killed_is_lost") else {
        return;
    };
    let (mut one, mut two) = (start(&lab, 0, RAILS), start(&lab, 1, RAILS));
    pass(&mut one, &mut two, 20, "hello");
    two.kill();
    one.send(&two.address(), 21, "into the dark");
    let sent = one.until("sent 21");
    assert!(sent.contains("error"), "{sent}");
    assert!(one.until("lost").contains(&name(&two.address())));
}

#[test]
fn addresses_that_lead_nowhere_end_with_their_reason() {
    let Some(lab) = two_links("addresses_that_lead_nowhere_end_with_their_reason") else {
        return;
    };
    let mut one = start(&lab, 0, RAILS);
    // A member without rails to other hosts, and one that has them and is called by one without.
    let alone = start(&lab, 1, "shm");
    one.send(&alone.address(), 1, "x");
    let sent = one.until("sent 1");
    assert!(
        sent.contains("refused: ") && sent.contains("another network namespace"),
        "{sent}"
    );
    let (mut here, two) = (Node::enter(), start(&lab, 1, RAILS));
    here.send(&two.address(), 2, "x");
    assert!(
        here.until("sent 2")
            .contains("no rail of this process leads there")
    );
    // Another token: its owner does not answer, and the caller ends after btl.give_up.
    let mut changed: Address = two.address();
    let bytes = {
        let mut bytes = changed.bytes().to_vec();
        bytes[50] ^= 1;
        let sum = {
            bytes[4..6].fill(0);
            crc32c::crc32c(&bytes) as u16
        };
        bytes[4..6].copy_from_slice(&sum.to_le_bytes());
        bytes
    };
    changed = parse(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    one.send(&changed, 3, "x");
    let lost = one.until("sent 3");
    assert!(lost.contains("error"), "{lost}");
    one.tell("counts");
    one.until("counts");
}
