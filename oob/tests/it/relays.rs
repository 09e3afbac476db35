//! Four hosts in network namespaces, and relays between their networks.
//!
//! reference: oob, section 10.

use std::time::Duration;

use doorbell_oob::config::Transport;
use doorbell_oob::event::Status;
use doorbell_oob::name::{From, Name};
use doorbell_oob::plane::{Inbox, Message, Oob};

use crate::hosts::{assert_no_peer_was_lost, begin, counters, started, wait_for_address};
use crate::job::{TAG, config, finish, introduce, number, receive_all, say, send_all};
use crate::side::{JOB, PATIENCE};
use doorbell_testing::netns::Lab;

/// Four hosts in a row, none of which forwards packets.
///
/// ```text
///   0 ── v0: 10.77.0.0/24, fd77::/64 ── 1 ── w0: IPv6 alone ── 2 ── v0: 10.79.0.0/24 ── 3
/// ```
struct Row {
    left: Lab,
    right: Lab,
}

impl Row {
    fn new(test: &str) -> Option<Self> {
        let row = Self {
            left: Lab::pair(test, 1500)?,
            right: Lab::pair(test, 1500)?,
        };
        for host in [2, 3] {
            row.ip(host, "address flush dev v0");
            row.ip(host, &format!("address add 10.79.0.{host}/24 dev v0"));
        }
        row.cable("w0");
        for host in [1, 2] {
            row.ip(host, &format!("address add fd78::{host}/64 dev w0 nodad"));
        }
        Some(row)
    }

    /// A cable between the two in the middle.
    fn cable(&self, name: &str) {
        let other = self.right.name(0).to_owned();
        self.ip(
            1,
            &format!("link add {name} type veth peer name {name} netns {other}"),
        );
        [1, 2]
            .iter()
            .for_each(|&host| self.ip(host, &format!("link set {name} up")));
        self.left.wait_until_up(1, name);
        self.right.wait_until_up(0, name);
    }

    fn of(&self, host: usize) -> (&Lab, usize) {
        if host < 2 {
            (&self.left, host)
        } else {
            (&self.right, host - 2)
        }
    }

    fn ip(&self, host: usize, arguments: &str) {
        let (lab, host) = self.of(host);
        lab.ip(host, arguments);
    }

    /// A rank on each; the tree is a chain, unless they may only talk directly.
    fn job(&self, transport: &Transport) -> Vec<Oob> {
        let start = |rank: u32| {
            let mut config = config(rank, 4);
            config.radix = 1;
            config.transports = vec![transport.clone()];
            let (lab, host) = self.of(rank as usize);
            started(lab, host, config, &["v0", "w0", "w1"])
        };
        (0..4).map(start).collect()
    }
}

/// There and back, over three hops.
fn there_and_back(all: &[Oob], count: u32, then: impl FnMut(u32) + Send) {
    let (first, last) = (all[0].name(), all[3].name());
    let there = all[3].inbox(From::only(first), TAG, 64 << 10).unwrap();
    let back = all[0].inbox(From::only(last), TAG, 64 << 10).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&all[0], last, count, 300));
        scope.spawn(|| send_all(&all[3], first, count, 300));
        scope.spawn(|| receive_all(&there, count, then));
        receive_all(&back, count, |_| ());
    });
}

#[test]
fn relays_pass_messages_on_between_networks_three_hops_far() {
    let Some(row) = Row::new("relays_pass_messages_on_between_networks_three_hops_far") else {
        return;
    };
    let all = row.job(&Transport::tree("tcp"));
    begin(&all);
    const COUNT: u32 = 2_000;
    there_and_back(&all, COUNT, |_| ());
    for relay in &all[1..3] {
        let relayed = counters(relay).node.relayed;
        assert!(relayed >= 2 * u64::from(COUNT), "{relayed}");
    }
    let broadcasts: Vec<Inbox<Message>> = all.iter().map(Oob::broadcasts).collect();
    let spread = all[3].broadcast(TAG, b"to all".into(), PATIENCE).unwrap();
    assert_eq!(spread.wait(PATIENCE * 2), Some(Ok(Vec::new())));
    assert!(broadcasts.iter().all(|inbox| inbox.wait(PATIENCE).is_some()));
    let gathers: Vec<_> = all
        .iter()
        .map(|oob| oob.gather(1, number(oob.name().rank), PATIENCE).unwrap())
        .collect();
    for gather in gathers {
        let gathered = gather.wait(PATIENCE * 2).unwrap();
        assert_eq!(
            gathered.table.map(|table| table.len()),
            Some(4),
            "{:?}",
            gathered.missing
        );
    }
    finish(all);
}

#[test]
fn relays_whose_cables_are_cut_one_after_the_other_lose_nothing() {
    let Some(row) = Row::new("relays_whose_cables_are_cut_one_after_the_other_lose_nothing") else {
        return;
    };
    row.cable("w1");
    for host in [1, 2] {
        row.ip(host, &format!("address add 10.78.0.{host}/24 dev w1"));
    }
    let all = row.job(&Transport::tree("tcp"));
    begin(&all);
    let events: Vec<_> = all.iter().map(Oob::events).collect();
    let trouble = |nth| match nth {
        1_000 => row.ip(1, "link set w1 down"),
        2_000 => {
            row.ip(1, "link set w1 up");
            all[1..3].iter().for_each(|oob| wait_for_address(oob, "10.78.0."));
        }
        3_000 => row.ip(2, "link set w0 down"),
        _ => {}
    };
    there_and_back(&all, 5_000, trouble);
    events.iter().for_each(assert_no_peer_was_lost);
    finish(all);
}

#[test]
fn peers_without_a_shared_network_are_unreachable_without_a_relay() {
    let Some(row) = Row::new("peers_without_a_shared_network_are_unreachable_without_a_relay") else {
        return;
    };
    let all = row.job(&Transport::direct("tcp"));
    introduce(&all);
    say(&all[0], all[1].name(), TAG, b"the neighbour is there");
    let far = all[0]
        .send(Name::new(JOB, 3), TAG, b"x".into(), Some(Duration::from_secs(1)))
        .unwrap();
    assert_eq!(far.wait(PATIENCE), Some(Ok(Status::Unreachable)));
    finish(all);
}
