//! What a rail records and counts for the explanation of a failure.

use doorbell_fabric::event::EventKind;
use doorbell_fabric::gid;
use doorbell_fabric::message::{Body, Message};

use super::{RcRail, connected, counts, device_of, rail, small};
use crate::rc::record::{DROPS, Drop, RECORDED};
use crate::sys::model::{self, Fault};
use crate::sys::numbers;

/// The words of the lines, without their times.
fn words(lines: &[String]) -> Vec<&str> {
    let words = lines.iter().filter_map(|line| line.split_once(": "));
    words.map(|(_, words)| words).collect()
}

#[test]
fn the_recorder_has_the_story_of_a_connection_and_of_its_end() {
    let mut pair = connected();
    let to_b = pair.to_b;
    let begin = pair.a.recent(to_b, 16);
    assert_eq!(
        words(&begin),
        [
            "a queue pair was made for a connection",
            "it is connected to the peer's, for packets of 1024 bytes",
            "up: it answers",
        ]
    );
    let fault = Fault {
        after: 0,
        status: numbers::RETRY_EXC_ERR,
        is_carried: false,
    };
    model::fail_request(&device_of(&pair.a), fault);
    pair.a.send(to_b, b"lost", Body::Empty).unwrap();
    pair.until("the end is reported", |pair| {
        let is_down = |kind| matches!(kind, EventKind::PeerDown(_));
        pair.events.iter().any(|event| is_down(event.kind))
    });
    let all = pair.a.recent(to_b, 16);
    let end: Vec<&str> = words(&all).split_off(begin.len());
    assert!(
        end[0].starts_with("a request failed: repeated in vain, nothing was acknowledged (status 12"),
        "{all:?}"
    );
    assert_eq!(end[1], "the connection ends: it did not answer");
    assert_eq!(end.last(), Some(&"down: it did not answer"));
    assert_eq!(counts(&pair.a).retries, 1);
    // The last lines alone, and nothing of another peer.
    assert_eq!(pair.a.recent(to_b, 1), all[all.len() - 1..]);
    let other = doorbell_fabric::message::PeerIndex(7);
    assert!(pair.a.recent(other, 16).is_empty());
}

#[test]
fn a_rail_keeps_256_events_and_counts_by_names_that_are_all_different() {
    assert_eq!(RECORDED, 256);
    let (rail, _) = rail(small());
    let mut names = Vec::new();
    rail.each_count(&mut |name, _| names.push(name));
    for name in [
        "sent",
        "received",
        "inline",
        "coalesced",
        "doorbells",
        "asked",
        "granted",
        "stalls",
        "rnr",
        "retries",
        "flushed",
        "stale",
        "registrations",
        "registered_bytes",
        "pinned",
        "pinned_bytes",
        "windows_bound",
        "gets",
        "puts",
        "atomics",
    ] {
        assert!(names.contains(&name), "{name}");
    }
    assert_eq!(Drop::NAMES.len(), DROPS);
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn ends_that_choose_different_gids_refuse_and_both_have_the_reason_and_their_table() {
    let mut pair = connected();
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    // As if the table of `a` were another one by now, which `b` alone knows.
    pair.b().connector.mistake_gids(to_a);
    pair.a.abandon(to_b);
    pair.until("the connection is over at both ends", |pair| {
        let is_open = |rail: &RcRail, peer: u32| rail.core.is_up(peer);
        !is_open(&pair.a, to_b.0) && !is_open(pair.b(), to_a.0)
    });
    pair.a.revive(to_b);
    pair.until("both ends refuse", |pair| {
        pair.a.refuses_gids(to_b) && pair.b().refuses_gids(to_a)
    });
    let table = |rail: &RcRail| gid::table(&rail.place().port.unwrap().gids);
    let shown = |rail: &RcRail, peer, who: &str| {
        let findings = rail.findings(peer).unwrap();
        let own = format!("(this port's GIDs: {})", table(rail));
        assert!(
            findings.starts_with(who) && findings.ends_with(&own),
            "{findings}"
        );
        let recent = rail.recent(peer, 16);
        assert!(recent.iter().any(|line| line.contains(who)), "{recent:?}");
    };
    shown(&pair.a, to_b, "refused by the peer: ");
    shown(pair.b(), to_a, "refused here: ");
}
