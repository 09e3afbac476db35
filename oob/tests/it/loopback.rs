//! Two processes on loopback, which is all that is listened on when nothing is named.

use std::time::Duration;

use doorbell_oob::OobError;
use doorbell_oob::bytes::Bytes;
use doorbell_oob::connect;
use doorbell_oob::lines::tcp::{Chosen, Families, Pattern, Ports, Settings, Tcp};
use doorbell_oob::lines::{Clock, Limits, Who};
use doorbell_oob::name::{Epoch, Name};
use doorbell_oob::runner::Carrier;
use doorbell_oob::transport::{Command, Loss, Refusal};

use crate::side::{JOB, Side, drive, key, pair, runtime, who};

fn bytes(length: usize, seed: u32) -> Bytes {
    let byte = |at: usize| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) as u8;
    (0..length).map(byte).collect::<Vec<u8>>().into()
}

fn families(families: Families) -> Settings {
    Settings {
        nics: Chosen::new(Vec::new(), Vec::new(), families).unwrap(),
        ..Settings::default()
    }
}

/// Sends `count` messages each way, at once; all arrive, once, in order, unchanged.
async fn flood(one: &mut Side, two: &mut Side, count: u32, length: impl Fn(u32) -> usize) {
    let mut given = [0; 2];
    let mut heard = [0; 2];
    let links = [one.link().unwrap(), two.link().unwrap()];
    drive(&mut [one, two], "all messages", |sides| {
        for (side, given) in given.iter_mut().enumerate() {
            while *given < count && sides[side].has_room(links[side]) {
                let body = bytes(length(*given), *given + side as u32);
                sides[side].send(links[side], body);
                *given += 1;
            }
        }
        for (side, heard) in heard.iter_mut().enumerate() {
            for (_, body) in std::mem::take(&mut sides[side].bodies) {
                assert_eq!(body, bytes(length(*heard), *heard + 1 - side as u32), "{heard}");
                *heard += 1;
            }
        }
        let sent = |side: usize| sides[side].links[&links[side]].sent == u64::from(count);
        heard == [count; 2] && sent(0) && sent(1)
    })
    .await;
}

#[test]
fn ten_thousand_messages_each_way_arrive_once_and_in_order_and_are_reported_as_sent() {
    runtime().block_on(async {
        let (mut one, mut two) = pair(Settings::default()).await;
        flood(&mut one, &mut two, 10_000, |nth| (nth * 37 % 1500) as usize).await;
        assert_eq!(one.tcp.counters().strangers() + two.tcp.counters().strangers(), 0);
        assert_eq!(two.links.values().next().unwrap().epoch, Epoch(1000));
    });
}

#[test]
fn modules_with_threads_of_their_own_do_the_same() {
    runtime().block_on(async {
        let settings = Settings {
            threads: true,
            ..families(Families::V6)
        };
        let (mut one, mut two) = pair(settings).await;
        flood(&mut one, &mut two, 2_000, |nth| (nth % 300) as usize).await;
        assert!(one.addresses().iter().all(|address| address.starts_with("[::1/")));
    });
}

#[test]
fn long_messages_arrive_and_longer_ones_end_the_link() {
    runtime().block_on(async {
        let settings = Settings {
            limits: Limits {
                longest: 300 << 10,
                ..Limits::default()
            },
            ..Settings::default()
        };
        let mut one = Side::start(Settings::default(), who(0));
        let mut two = Side::start(settings, who(1));
        one.call(two.name, two.addresses());
        let linked = |sides: &mut [&mut Side]| sides.iter().all(|side| side.link().is_some());
        drive(&mut [&mut one, &mut two], "a link", linked).await;
        flood(&mut one, &mut two, 4, |_| 300 << 10).await;
        let link = one.link().unwrap();
        one.send(link, bytes((300 << 10) + 100, 0));
        drive(&mut [&mut one, &mut two], "an end", |sides| {
            sides.iter().all(|side| side.link().is_none())
        })
        .await;
        assert_eq!(two.links.values().next().unwrap().lost, Some(Loss::Protocol));
        assert_eq!(two.tcp.counters().forged, 1);
    });
}

/// The rest of a frame never comes: nothing of it is delivered, and the link is lost once (the book checks
/// that).
#[test]
fn a_peer_that_ends_in_the_middle_of_a_frame_is_lost_and_nothing_of_it_delivered() {
    runtime().block_on(async {
        let (mut one, mut two) = pair(Settings::default()).await;
        let link = one.link().unwrap();
        one.send(link, bytes(8, 1));
        // More than both sockets' buffers hold.
        one.send(link, bytes(15 << 20, 2));
        let mut two = {
            drive(&mut [&mut one, &mut two], "the first", |sides| {
                !sides[1].bodies.is_empty()
            })
            .await;
            drop(one);
            two
        };
        drive(&mut [&mut two], "a loss", |sides| sides[0].link().is_none()).await;
        assert_eq!(two.bodies.len(), 1);
        assert_eq!(two.links.values().next().unwrap().lost, Some(Loss::Broken));
    });
}

#[test]
fn a_link_that_is_closed_sends_the_rest_before_and_both_know_that_it_was_closed() {
    runtime().block_on(async {
        let (mut one, mut two) = pair(Settings::default()).await;
        let link = one.link().unwrap();
        for nth in 0..50 {
            one.send(link, bytes(5000, nth));
        }
        one.command(Command::Close {
            link,
            why: Loss::Finished,
        });
        drive(&mut [&mut one, &mut two], "both ends", |sides| {
            sides.iter().all(|side| side.link().is_none())
        })
        .await;
        assert_eq!(two.bodies.len(), 50);
        assert_eq!(one.links[&link].lost, Some(Loss::Finished));
        assert_eq!(one.links[&link].sent, 50);
        assert_eq!(two.links.values().next().unwrap().lost, Some(Loss::Closed));
        // And again.
        two.call(one.name, one.addresses());
        drive(&mut [&mut one, &mut two], "another link", |sides| {
            sides.iter().all(|side| side.link().is_some())
        })
        .await;
    });
}

#[test]
fn a_process_that_leaves_closes_everything() {
    runtime().block_on(async {
        let (mut one, mut two) = pair(Settings::default()).await;
        one.tcp.leave(one.clock.now());
        drive(&mut [&mut one, &mut two], "quiet", |sides| {
            sides[0].tcp.is_quiet() && sides[1].link().is_none()
        })
        .await;
        let attempt = two.call(one.name, one.addresses());
        drive(&mut [&mut one, &mut two], "nobody there", |sides| {
            !sides[1].refused.is_empty()
        })
        .await;
        assert_eq!(two.refused, [(attempt, Refusal::NotListening)]);
    });
}

/// What becomes of a call of `one`, as `who`, to a process that others take for `two`.
async fn refused(one: Who, settings: Settings, two: Who, called: Name) -> (Refusal, Side, Side) {
    let mut one = Side::start(settings, one);
    let mut two = Side::start(Settings::default(), two);
    one.call(called, two.addresses());
    drive(&mut [&mut one, &mut two], "a refusal", |sides| {
        !sides[0].refused.is_empty()
    })
    .await;
    assert!(one.links.is_empty() && two.links.is_empty());
    (one.refused[0].1, one, two)
}

#[test]
fn another_key_none_another_name_and_an_old_life_are_refused_with_the_reason_on_both_sides() {
    runtime().block_on(async {
        let two = Name::new(JOB, 1);
        let other = Who {
            key: key(9),
            ..who(0)
        };
        let (why, mut one, there) = refused(other, Settings::default(), who(1), two).await;
        assert_eq!(why, Refusal::WrongKey);
        assert!(there.tcp.counters().wrong_key >= 2, "{:?}", there.tcp.counters());
        let said = one.tcp.trouble().expect("a word about it").to_string();
        assert!(said.contains("a different key"), "{said}");

        let none = Who { key: None, ..who(0) };
        let (why, _, there) = refused(none, Settings::default(), who(1), two).await;
        assert_eq!(why, Refusal::WrongKey);
        assert!(
            there.tcp.counters().key_missing >= 2,
            "{:?}",
            there.tcp.counters()
        );

        let (why, _, there) = refused(who(0), Settings::default(), who(5), two).await;
        assert_eq!(why, Refusal::WrongName);
        assert!(
            there.tcp.counters().meeting.nacks >= 1,
            "{:?}",
            there.tcp.counters()
        );
    });
}

#[test]
fn an_earlier_life_that_comes_late_is_refused_as_over() {
    runtime().block_on(async {
        let (_one, mut two) = pair(Settings::default()).await;
        let old = Who {
            epoch: Epoch(999),
            ..who(0)
        };
        let mut old = Side::start(Settings::default(), old);
        old.call(two.name, two.addresses());
        drive(&mut [&mut old, &mut two], "a refusal", |sides| {
            !sides[0].refused.is_empty()
        })
        .await;
        assert_eq!(old.refused[0].1, Refusal::OutOfDate);
        let next = Who {
            epoch: Epoch(1001),
            ..who(0)
        };
        let mut next = Side::start(Settings::default(), next);
        next.call(two.name, two.addresses());
        drive(&mut [&mut next, &mut two], "a link", |sides| {
            sides[0].link().is_some()
        })
        .await;
        let lost = |link: &crate::side::Link| link.lost == Some(Loss::Replaced);
        drive(&mut [&mut next, &mut two], "the old link's end", |sides| {
            sides[1].links.values().any(lost)
        })
        .await;
    });
}

/// Three in a ring, so that each has links of both kinds.
#[test]
fn more_than_two_talk_at_the_same_time() {
    runtime().block_on(async {
        let mut sides: Vec<Side> = (0..3)
            .map(|rank| Side::start(Settings::default(), who(rank)))
            .collect();
        for at in 0..3 {
            let (name, addresses) = (sides[(at + 1) % 3].name, sides[(at + 1) % 3].addresses());
            sides[at].call(name, addresses);
        }
        let mut all: Vec<&mut Side> = sides.iter_mut().collect();
        drive(&mut all, "a ring", |sides| {
            sides.iter().all(|side| side.links.len() == 2)
        })
        .await;
        for side in &mut all {
            side.echo = side.name.rank != 0;
        }
        for link in all[0].links.keys().copied().collect::<Vec<_>>() {
            for nth in 0..500 {
                all[0].send(link, bytes(100, nth));
            }
        }
        drive(&mut all, "echoes", |sides| sides[0].bodies.len() == 1000).await;
    });
}

fn started(settings: Settings, who: Who) -> Result<Tcp, OobError> {
    let runtime = runtime();
    let _inside = runtime.enter();
    Tcp::start(settings, who, Clock::start())
}

#[test]
fn what_cannot_be_listened_on_is_an_error_that_names_the_setting() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let settings = Settings {
        ports: Ports::range(port, port).unwrap(),
        ..families(Families::V4)
    };
    let said = started(settings, who(0)).unwrap_err().to_string();
    let wanted = format!("port of the range {port}");
    assert!(
        said.contains(&wanted) && said.contains("`control.ports`") && said.contains("127.0.0.1"),
        "{said}"
    );

    let nic = |pattern: &str| Settings {
        nics: Chosen::new(
            vec![pattern.parse::<Pattern>().unwrap()],
            Vec::new(),
            Families::Both,
        )
        .unwrap(),
        ..Settings::default()
    };
    let said = started(nic("nosuch0"), who(0)).unwrap_err().to_string();
    assert!(
        said.contains("nosuch0") && said.contains("`control.nics`"),
        "{said}"
    );
    assert!(
        Tcp::start(nic("lo"), who(0), Clock::start()).is_err(),
        "without a runtime"
    );
}

#[test]
fn an_attempt_ends_at_its_deadline_and_a_cancelled_one_at_once() {
    runtime().block_on(async {
        // Accepts, and sends nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = format!("127.0.0.1/8:{}", silent.local_addr().unwrap().port());
        let settings = Settings {
            limits: Limits {
                handshake: Duration::from_millis(200),
                meeting: connect::Limits {
                    tries: 1,
                    ..connect::Limits::default()
                },
                ..Limits::default()
            },
            ..families(Families::V4)
        };
        let mut one = Side::start(settings, who(0));
        let late = one.call(Name::new(JOB, 1), vec![at.as_str().into()]);
        drive(&mut [&mut one], "an end", |sides| sides[0].refused.len() == 1).await;
        let cancelled = one.call(Name::new(JOB, 2), vec![at.as_str().into()]);
        one.command(Command::Cancel { attempt: cancelled });
        let wanted = [(late, Refusal::TimedOut), (cancelled, Refusal::Cancelled)];
        assert_eq!(one.refused, wanted);
        drive(&mut [&mut one], "no connection left", |sides| {
            sides[0].tcp.is_quiet()
        })
        .await;
    });
}
