//! Two hosts in network namespaces, whose NICs are killed under load.
//!
//! reference: oob, section 10.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use doorbell_oob::bytes::Bytes;
use doorbell_oob::config::{Config, Policy};
use doorbell_oob::event::{Event, Status};
use doorbell_oob::lines::tcp::{Chosen, Families, KeepAlive, Settings};
use doorbell_oob::name::From;
use doorbell_oob::plane::{Counters, Inbox, Oob};

use crate::job::{TAG, config, contact, finish, introduce, number, receive_all, say, send_all, start, until};
use crate::namespaces::{listening, second_cable};
use crate::side::PATIENCE;
use doorbell_testing::netns::Lab;

/// A link that does not get through is not lost by itself: the tests decide when.
pub fn nics(names: &[&str]) -> Settings {
    let include = names.iter().map(|name| name.parse().unwrap()).collect();
    Settings {
        nics: Chosen::new(include, Vec::new(), Families::Both).unwrap(),
        keep_alive: KeepAlive {
            unacknowledged: PATIENCE,
            idle: PATIENCE,
            ..KeepAlive::default()
        },
        ..Settings::default()
    }
}

pub fn started(lab: &Lab, host: usize, config: Config, nics_of: &[&str]) -> Oob {
    lab.inside(host, || start(config, nics(nics_of)))
}

/// Both know each other, and the second has the first for its parent.
pub fn begin(all: &[Oob]) {
    introduce(all);
    for oob in all {
        let events = oob.events();
        oob.begin().unwrap();
        if oob.name().rank > 0 {
            until(&events, "a lifeline", |event| {
                matches!(event, Event::LifelineUp { .. })
            });
        }
    }
}

fn pair(lab: &Lab, nics: &[&str], change: impl Fn(&mut Config)) -> [Oob; 2] {
    let all = [0, 1].map(|rank| {
        let mut config = config(rank, 2);
        change(&mut config);
        started(lab, rank as usize, config, nics)
    });
    begin(&all);
    all
}

pub fn counters(oob: &Oob) -> Counters {
    oob.counters().unwrap().wait(PATIENCE).unwrap()
}

pub fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The transport uses this address.
pub fn wait_for_address(oob: &Oob, beginning: &str) {
    let has = || {
        let clauses = contact(oob).clauses;
        clauses
            .values()
            .flatten()
            .any(|address| address.starts_with(beginning))
    };
    wait_until(beginning, has);
}

pub fn is_lost(event: &Event) -> bool {
    matches!(event, Event::PeerLost { .. })
}

/// Checks that no peer was reported lost.
pub fn assert_no_peer_was_lost(events: &Inbox<Event>) {
    while let Some(event) = events.take() {
        assert!(!is_lost(&event), "{event:?}");
    }
}

#[test]
fn a_hundred_thousand_messages_over_nics_that_are_killed_one_after_the_other() {
    let test = "a_hundred_thousand_messages_over_nics_that_are_killed_one_after_the_other";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    second_cable(&lab);
    const COUNT: u32 = 100_000;
    let all = pair(&lab, &["v0", "v1"], |_| ());
    let events = [all[0].events(), all[1].events()];
    let inbox = all[1].inbox(From::only(all[0].name()), TAG, 64 << 10).unwrap();
    let both_have = |address: &str| all.iter().for_each(|oob| wait_for_address(oob, address));
    let trouble = |nth| match nth {
        20_000 => lab.ip(0, "link set v0 down"),
        40_000 => {
            lab.ip(0, "link set v0 up");
            both_have("10.77.0.");
        }
        50_000 => lab.ip(1, "link set v1 down"),
        70_000 => {
            lab.ip(1, "link set v1 up");
            both_have("10.78.0.");
        }
        80_000 => lab.ip(1, "link set v0 down"),
        _ => {}
    };
    let to = all[1].name();
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&all[0], to, COUNT, 500));
        receive_all(&inbox, COUNT, trouble);
    });
    let counters = counters(&all[0]);
    eprintln!("{counters:?}");
    assert!(counters.tcp.meeting.links >= 3, "{counters:?}");
    events.iter().for_each(assert_no_peer_was_lost);
    finish(all.into());
}

/// The first NIC takes no more than the kernel's buffers hold; when it goes down, the rest goes over the
/// other one.
#[test]
fn what_a_module_had_not_sent_when_it_failed_goes_over_the_other_in_order() {
    let test = "what_a_module_had_not_sent_when_it_failed_goes_over_the_other_in_order";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    second_cable(&lab);
    lab.ip(0, "link set v1 down");
    const COUNT: u32 = 160;
    const WIDE: u32 = 12 << 20;
    let all = pair(&lab, &["v0", "v1"], |config| {
        (config.window, config.unmatched) = (WIDE, WIDE);
        (config.pending, config.link_window) = (WIDE as usize, WIDE as usize);
        (config.rto, config.rto_min, config.rto_max) = (PATIENCE, PATIENCE, PATIENCE);
    });
    say(&all[0], all[1].name(), TAG + 1, b"over v0");
    lab.ip(0, "link set v1 up");
    all.iter().for_each(|oob| wait_for_address(oob, "10.78.0."));
    introduce(&all);
    lab.drop_longer(1, 200);
    let inbox = all[1].inbox(From::ANYBODY, TAG, 16 << 20).unwrap();
    let body = |nth: u32| Bytes::from([nth.to_be_bytes().as_slice(), &[7; 64 << 10]].concat());
    let sends: Vec<_> = (0..COUNT)
        .map(|nth| {
            all[0]
                .send(all[1].name(), TAG, body(nth), Some(PATIENCE))
                .unwrap()
        })
        .collect();
    // Ten megabytes: the kernel's buffers hold four.
    wait_until("all are given", || {
        counters(&all[0]).node.frames >= u64::from(COUNT)
    });
    assert!(inbox.take().is_none(), "nothing passes");
    lab.ip(0, "link set v0 down");
    for nth in 0..COUNT {
        let message = inbox
            .wait(PATIENCE)
            .unwrap_or_else(|| panic!("message {nth} never came"));
        assert!(message.body == body(nth), "message {nth}");
    }
    assert!(
        sends
            .iter()
            .all(|sent| sent.wait(PATIENCE) == Some(Ok(Status::Delivered)))
    );
    assert!(inbox.take().is_none(), "once");
    let counters = counters(&all[0]);
    assert!(
        counters.node.messages >= u64::from(2 * COUNT),
        "each was given twice: {counters:?}"
    );
    finish(all.into());
}

/// And when they come back, so does the peer.
#[test]
fn when_all_nics_are_killed_the_peer_is_lost_once_and_each_send_ends_once() {
    let test = "when_all_nics_are_killed_the_peer_is_lost_once_and_each_send_ends_once";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    second_cable(&lab);
    let all = pair(&lab, &["v0", "v1"], |config| {
        config.policy = Policy::Persist;
        (config.rounds, config.grace) = (2, Duration::from_millis(300));
        (config.retry, config.retry_max) = (Duration::from_millis(20), Duration::from_millis(200));
    });
    let events = [all[0].events(), all[1].events()];
    let names = [all[0].name(), all[1].name()];
    say(&all[0], names[1], TAG, b"before");
    ["v0", "v1"]
        .iter()
        .for_each(|nic| lab.ip(0, &format!("link set {nic} down")));
    let sends: Vec<_> = (0..100)
        .map(|nth| all[0].send(names[1], TAG, number(nth), Some(PATIENCE)).unwrap())
        .collect();
    for (events, other) in events.iter().zip([names[1], names[0]]) {
        let lost = until(events, "a loss", is_lost);
        assert!(
            matches!(lost, Event::PeerLost { peer, .. } if peer == other),
            "{lost:?}"
        );
    }
    for sent in &sends {
        let ended = sent.wait(PATIENCE).expect("each ends");
        let fits = matches!(ended, Ok(Status::PeerLost | Status::Delivered) | Err(_));
        assert!(fits && sent.take().is_none(), "{ended:?}");
    }
    // Attempts go on for a while, and fail.
    std::thread::sleep(Duration::from_millis(1500));
    events.iter().for_each(assert_no_peer_was_lost);
    ["v0", "v1"]
        .iter()
        .for_each(|nic| lab.ip(0, &format!("link set {nic} up")));
    for events in &events {
        let back = |event: &Event| {
            assert!(!is_lost(event), "{event:?}");
            matches!(event, Event::PeerBack { .. })
        };
        until(events, "its return", back);
    }
    say(&all[0], names[1], TAG, b"after");
    finish(all.into());
}

#[test]
fn over_ipv6_alone_everything_works_as_well() {
    let Some(lab) = Lab::pair("over_ipv6_alone_everything_works_as_well", 1500) else {
        return;
    };
    (0..2).for_each(|host| lab.ip(host, "-4 address flush dev v0"));
    let all = pair(&lab, &["v0"], |_| ());
    let addresses: Vec<_> = contact(&all[0]).clauses.into_values().flatten().collect();
    assert!(
        addresses.iter().all(|address| address.starts_with('[')),
        "{addresses:?}"
    );
    let inbox = all[1].inbox(From::ANYBODY, TAG, 64 << 10).unwrap();
    let to = all[1].name();
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&all[0], to, 5_000, 200));
        receive_all(&inbox, 5_000, |_| ());
    });
    finish(all.into());
}

/// Threads of this process in the network namespace of a host.
fn threads(lab: &Lab, host: usize) -> usize {
    let of = lab.inside(host, || std::fs::read_link("/proc/thread-self/ns/net").unwrap());
    let all = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let there = |path: PathBuf| std::fs::read_link(path.join("ns/net")).is_ok_and(|net| net == of);
    all.filter(|task| there(task.path())).count()
}

#[test]
fn the_end_leaves_no_thread_and_no_socket() {
    let Some(lab) = Lab::pair("the_end_leaves_no_thread_and_no_socket", 1500) else {
        return;
    };
    let mut all = Vec::from(pair(&lab, &["v0"], |_| ()));
    say(&all[0], all[1].name(), TAG, b"a word");
    assert!(!listening(&lab, 0).is_empty());
    // A thread that has ended, and was waited for, may still be seen for a moment.
    wait_until("the progress thread alone", || threads(&lab, 0) == 1);
    let two = all.pop().unwrap();
    drop(all);
    assert!(listening(&lab, 0).is_empty(), "dropped");
    wait_until("no thread", || threads(&lab, 0) == 0);
    two.finish(PATIENCE);
    assert!(listening(&lab, 1).is_empty(), "finished");
    wait_until("no thread", || threads(&lab, 1) == 0);
}
