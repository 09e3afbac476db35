//! Peers that join and leave a PML without a job.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::rail::Rail as _;
use doorbell_pml::{
    InUse, LostReason, MultiArgs, Payload, Pml, PmlConfig, PmlError, Protocol, RailId, Rank, SendArgs,
    SendMode, Sent, Source, Status, Target,
};
use doorbell_sim::{SimConfig, SimRail};
use doorbell_testing::alloc;

use crate::lobby::Lobby;
use crate::world::{Memory, bytes, empty, filled, pattern, send_args, sim};

const LONG: usize = 100_000;

fn lobby(members: usize) -> Lobby {
    Lobby::new(members, 1, 7, sim(true, true, true), |_| ())
}

fn closed<T: std::fmt::Debug>(ended: &Result<T, PmlError>) -> bool {
    let reason = LostReason::Peer(DownReason::Closed);
    matches!(ended, Err(PmlError::PeerLost { reason: found, .. }) if *found == reason)
}

fn word(into: &Memory) -> u64 {
    let mut word = [0; 8];
    into.read(0, &mut word);
    u64::from_le_bytes(word)
}

#[test]
fn peers_are_added_when_they_are_known_and_each_member_numbers_them_by_itself() {
    let mut lobby = lobby(4);
    assert_eq!(lobby.members[0].pml.peers(), 1, "ourselves");
    // Member 3 knows 2, 1, 0 in this order; they do not know it.
    for other in [2, 1, 0] {
        lobby.inject(3, other, 5, other as u64).unwrap();
    }
    assert_eq!(lobby.members[3].rank_of(2), Rank(1));
    assert_eq!(lobby.members[3].rank_of(0), Rank(3));
    for at in 0..3 {
        let into = empty(8);
        let got = lobby.members[at].recv(Source::Any, 5, &into);
        let status = lobby.wait(at, got).unwrap();
        assert_eq!(lobby.members[at].member_of(status.source), Some(3));
        assert_eq!((status.source, word(&into)), (Rank(1), at as u64));
        // It is answered under the number that it was given here.
        lobby.members[at]
            .pml
            .inject(status.source, 0, 6, &[at as u8])
            .unwrap();
    }
    for other in 0..3 {
        let into = empty(1);
        let from = lobby.members[3].rank_of(other);
        let got = lobby.members[3].recv(from.into(), 6, &into);
        assert_eq!(lobby.wait(3, got).unwrap().source, from);
        assert_eq!(bytes(&into), [other as u8]);
    }
}

#[test]
fn there_are_at_most_as_many_as_the_setting_says() {
    let mut config = PmlConfig::new(Rank(0), 1, 1);
    config.peers_most = 3;
    let mut pml: Pml<SimRail> = Pml::new(config.clone()).unwrap();
    assert_eq!(
        (pml.add_peer().unwrap(), pml.add_peer().unwrap()),
        (Rank(1), Rank(2))
    );
    let full = pml.add_peer().unwrap_err();
    assert!(matches!(full, PmlError::TooManyPeers { most: 3 }), "{full}");
    pml.forget(Rank(1));
    assert_eq!(pml.add_peer().unwrap(), Rank(1));
    config.peers_most = (1 << 24) + 1;
    let refused = Pml::<SimRail>::new(config).unwrap_err();
    assert!(matches!(
        refused,
        PmlError::BadConfig {
            name: "peers_most",
            ..
        }
    ));
    // A job has as many as it is large.
    let mut pml: Pml<SimRail> = Pml::new(PmlConfig::new(Rank(0), 5, 1)).unwrap();
    assert!(matches!(pml.add_peer(), Err(PmlError::TooManyPeers { most: 5 })));
}

#[test]
fn what_needs_a_forgotten_peer_ends_and_all_else_goes_on() {
    for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
        let mut lobby = Lobby::new(3, 1, 7, sim(true, true, true), move |config| {
            config.protocol = protocol
        });
        let (gone, stays) = (lobby.members[0].rank_of(1), lobby.members[0].rank_of(2));
        let into: Vec<Memory> = (0..5).map(|_| empty(LONG)).collect();
        let member = &mut lobby.members[0];
        let of_gone = member.recv(gone.into(), 1, &into[0]);
        let of_other = member.recv(stays.into(), 1, &into[1]);
        let of_any = member.recv(Source::Any, 2, &into[2]);
        let out = filled(LONG, 9);
        let sends: Vec<_> = [(gone, 3), (stays, 3), (gone, 4)]
            .into_iter()
            .map(
                |(to, tag)| match member.pml.send_loan(to, 0, tag, out.loan()).unwrap() {
                    Sent::Pending(id) => id,
                    Sent::Done => panic!("it is long"),
                },
            )
            .collect();
        lobby.passes(20);
        // One is announced there, one is being transferred.
        let at_gone = lobby.members[1].recv(Source::Any, 3, &into[3]);
        lobby.passes(2);
        lobby.members[0].forget(1);
        for request in [of_gone, sends[0], sends[2]] {
            let ended = lobby.wait(0, request);
            assert!(closed(&ended), "{protocol:?}: {ended:?}");
        }
        let other_end = lobby.wait(1, at_gone);
        assert!(
            other_end.is_err() || bytes(&into[3]) == pattern(LONG, 9),
            "{other_end:?}"
        );
        assert!(
            !lobby.members[1].knows(0),
            "the other end found it gone, and forgot it"
        );
        // Others are not touched.
        let at_other = lobby.members[2].recv(Source::Any, 3, &into[4]);
        lobby.wait(2, at_other).unwrap();
        assert_eq!(bytes(&into[4]), pattern(LONG, 9));
        lobby.wait(0, sends[1]).unwrap();
        lobby.inject(2, 0, 1, 11).unwrap();
        assert_eq!(lobby.wait(0, of_other).unwrap().source, stays);
        lobby.inject(2, 0, 2, 12).unwrap();
        assert_eq!(lobby.wait(0, of_any).unwrap().source, stays);
        lobby.passes(50);
        assert_eq!(lobby.members[0].pml.in_use(), InUse::default());
    }
}

#[test]
fn one_that_was_never_met_ends_as_such_and_what_waits_for_it_is_dropped() {
    let mut pml: Pml<SimRail> = Pml::new(PmlConfig {
        lazy: true,
        peers_most: 9,
        ..PmlConfig::new(Rank(0), 1, 1)
    })
    .unwrap();
    let peer = pml.add_peer().unwrap();
    let into = empty(8);
    pml.inject(peer, 0, 1, b"waits").unwrap();
    let got = pml.recv_loan(peer.into(), 0, 1, 0, into.room()).unwrap();
    pml.set_immediate(peer, Some(3)).unwrap();
    pml.forget(peer);
    assert_eq!(pml.wanted(), None);
    let ended = pml.test(got).unwrap();
    let unmet = LostReason::Unmet;
    assert!(matches!(ended, Err(PmlError::PeerLost { reason, .. }) if reason == unmet));
    assert_eq!(pml.lost(peer), Some(unmet));
    assert!(matches!(
        pml.inject(peer, 0, 1, b"no"),
        Err(PmlError::PeerLost { .. })
    ));
    assert!(matches!(
        pml.set_immediate(peer, Some(4)),
        Err(PmlError::PeerLost { .. })
    ));
    assert_eq!(pml.in_use(), InUse::default());
    // Without effect: twice, ourselves, no peer.
    for rank in [peer, Rank(0), Rank(7)] {
        pml.forget(rank);
    }
    pml.inject(Rank(0), 0, 1, b"to ourselves").unwrap();
    assert_eq!(pml.add_peer().unwrap(), peer);
    assert_eq!(pml.lost(peer), None);
    assert_eq!(pml.add_peer().unwrap(), Rank(2), "it was given out once");
}

#[test]
fn kept_and_claimed_messages_go_with_their_sender() {
    let mut lobby = lobby(3);
    let out = filled(LONG, 1);
    for from in [1, 2] {
        lobby.inject(from, 0, 1, 7).unwrap();
        lobby.inject(from, 0, 2, 8).unwrap();
        let to = lobby.members[from].rank_of(0);
        let _ = lobby.members[from].pml.send_loan(to, 0, 3, out.loan()).unwrap();
    }
    lobby.passes(30);
    let member = &mut lobby.members[0];
    let gone = member.rank_of(1);
    let claimed = [1, 3].map(|tag| member.pml.claim(gone.into(), 0, tag, 0).unwrap().message);
    let other = member.pml.claim(Source::Any, 0, 1, 0).unwrap();
    assert_ne!(other.envelope.source, gone);
    member.forget(1);
    let into = empty(8);
    for message in claimed {
        assert!(matches!(member.pml.discard(message), Err(PmlError::StaleMessage)));
        let received = member.pml.recv_claimed(message, Target::Loan(into.room()), false);
        assert!(matches!(received, Err(PmlError::StaleMessage)));
    }
    let left = member.pml.probe(Source::Any, 0, 2, 0).unwrap();
    assert_eq!(left.source, other.envelope.source);
    assert!(member.pml.probe(gone.into(), 0, 0, u64::MAX).is_none());
    assert_eq!(member.pml.discard(other.message).unwrap().length, 8);
    assert_eq!(member.pml.in_use().records, 2, "the other one's");
}

#[test]
fn a_number_is_used_again_when_no_request_refers_to_it() {
    let mut lobby = lobby(3);
    let gone = lobby.members[0].rank_of(1);
    let into = [empty(8), empty(8)];
    // One that succeeded, one that ends with the peer: neither was tested.
    let received = lobby.members[0].recv(Source::Any, 1, &into[0]);
    lobby.inject(1, 0, 1, 77).unwrap();
    lobby.passes(20);
    assert!(lobby.members[0].pml.is_done(received));
    let lost = lobby.members[0].recv(gone.into(), 2, &into[1]);
    lobby.members[0].forget(1);
    let member = &mut lobby.members[0];
    assert!(member.pml.is_done(lost));
    assert_eq!(member.pml.add_peer().unwrap(), Rank(2));
    assert!(closed(&member.pml.test(lost).unwrap()));
    assert_eq!(member.pml.add_peer().unwrap(), Rank(3));
    let status = member.pml.test(received).unwrap().unwrap();
    assert_eq!((status.source, word(&into[0])), (gone, 77));
    assert_eq!(member.pml.add_peer().unwrap(), gone);
}

#[test]
fn a_number_is_used_again_when_no_delivery_refers_to_it() {
    let mut lobby = lobby(2);
    let buffer = empty(1024);
    lobby.members[0]
        .pml
        .recv_multi(MultiArgs {
            from: Source::Any,
            context: 0,
            tag: 1,
            ignore: 0,
            target: Target::Region(buffer.whole()),
            min_free: 1,
            notify: false,
        })
        .unwrap();
    let gone = lobby.members[0].rank_of(1);
    lobby.inject(1, 0, 1, 77).unwrap();
    lobby.inject(1, 0, 1, 78).unwrap();
    lobby.passes(20);
    lobby.members[0].forget(1);
    let member = &mut lobby.members[0];
    assert_eq!(member.pml.add_peer().unwrap(), Rank(2));
    let delivery = member.pml.next_delivery().unwrap();
    assert_eq!((delivery.status.source, delivery.intact), (gone, true));
    assert_eq!(member.pml.add_peer().unwrap(), Rank(3));
    assert_eq!(member.pml.next_delivery().unwrap().status.source, gone);
    assert_eq!(member.pml.add_peer().unwrap(), gone);
}

#[test]
fn a_number_is_used_again_when_no_operation_refers_to_it() {
    let mut config = sim(true, true, true);
    config.execution = std::time::Duration::from_micros(500);
    let mut lobby = Lobby::new(2, 1, 7, config, |config| config.protocol = Protocol::Get);
    let out = filled(LONG, 1);
    let to = lobby.members[1].rank_of(0);
    let _ = lobby.members[1].pml.send_loan(to, 0, 1, out.loan()).unwrap();
    let into = empty(LONG);
    let gone = lobby.members[0].rank_of(1);
    let got = lobby.members[0].recv(gone.into(), 1, &into);
    lobby.passes(20);
    assert_eq!(lobby.members[0].pml.in_use().operations, 1, "it reads");
    lobby.members[0].forget(1);
    let member = &mut lobby.members[0];
    assert!(member.pml.test(got).is_none(), "its memory may be written");
    assert_eq!(member.pml.add_peer().unwrap(), Rank(2));
    assert!(closed(&lobby.wait(0, got)));
    assert_eq!(lobby.members[0].pml.add_peer().unwrap(), gone);
}

/// The books of the window, the sequence and immediate data start over with each peer of a number.
#[test]
fn a_number_that_is_used_again_is_that_of_a_fresh_peer() {
    let mut lobby = Lobby::new(3, 1, 7, SimConfig::default(), |config| {
        (config.window, config.hard_window) = (1024, 1024);
    });
    for round in 0..20 {
        let peer = 1 + round % 2;
        let rank = lobby.members[0].rank_of(peer);
        assert_eq!(rank, Rank(1));
        lobby.members[0]
            .pml
            .set_immediate(rank, Some(round as u64))
            .unwrap();
        for number in 0..10 {
            lobby.inject(0, peer, 1, number).unwrap();
        }
        let back = lobby.members[peer].rank_of(0);
        assert_eq!(back, Rank(1));
        for number in 0..10 {
            let into = empty(8);
            let got = lobby.members[peer].recv(back.into(), 1, &into);
            let Status { data, .. } = lobby.wait(peer, got).unwrap();
            assert_eq!((data, word(&into)), (Some(round as u64), number));
            lobby.inject(peer, 0, 2, number).unwrap();
            let got = lobby.members[0].recv(Source::Any, 2, &into);
            let status = lobby.wait(0, got).unwrap();
            assert_eq!((status.data, status.source), (None, rank));
        }
        // Some are left behind: in the window, kept, or on their way.
        for number in 0..round % 14 {
            lobby.inject(0, peer, 3, number as u64).unwrap();
            lobby.inject(peer, 0, 3, number as u64).unwrap();
        }
        lobby.passes(round % 5);
        let ends = if round % 3 == 0 { [0, peer] } else { [peer, 0] };
        for end in ends {
            let other = ends[0] + ends[1] - end;
            lobby.members[end].forget(other);
            lobby.passes(round % 4);
        }
        assert_eq!(lobby.members[0].pml.in_use(), InUse::default());
    }
}

#[test]
fn a_forgotten_peer_is_not_connected() {
    let mut lobby = lobby(2);
    let rank = lobby.members[0].rank_of(1);
    lobby.connect(0, 1);
    lobby.members[0].pml.forget(rank);
    let rail = lobby.members[1].pml.rail(RailId(0)).unwrap();
    let (address, life) = (rail.address(), rail.incarnation());
    let refused = lobby.members[0].pml.connect(rank, RailId(0), &address, life);
    assert!(closed(&refused), "{refused:?}");
}

#[test]
fn a_synchronous_send_and_one_of_pieces_end_with_their_peer() {
    let mut lobby = lobby(2);
    let to = lobby.members[0].rank_of(1);
    let out = filled(64, 1);
    let args = SendArgs {
        mode: SendMode::Synchronous,
        notify: true,
        ..send_args(to.0, 1, Payload::Region(out.whole()))
    };
    let Sent::Pending(sent) = lobby.members[0].pml.send(args).unwrap() else {
        panic!("it was not received");
    };
    lobby.passes(20);
    lobby.members[0].forget(1);
    assert_eq!(lobby.members[0].pml.next_completion(), Some(sent));
    assert!(closed(&lobby.members[0].pml.test(sent).unwrap()));
}

#[test]
fn a_process_that_takes_the_place_of_another_is_another_peer() {
    let mut lobby = lobby(2);
    for round in 0..5 {
        lobby.inject(0, 1, 1, round).unwrap();
        let into = empty(8);
        let got = lobby.members[1].recv(Source::Any, 1, &into);
        lobby.wait(1, got).unwrap();
        assert_eq!(word(&into), round);
        lobby.restart(1);
        for _ in 0..1000 {
            lobby.passes(10);
            if !lobby.members[0].knows(1) {
                break;
            }
        }
        assert!(!lobby.members[0].knows(1), "its end was found");
    }
}

#[test]
fn ten_thousand_joins_and_leaves_leave_nothing_behind() {
    const ROUNDS: usize = 10_000;
    let mut lobby = Lobby::new(2, 2, 7, sim(true, true, true), |config| config.sources = 0xff);
    let (long, into) = (filled(LONG, 1), empty(LONG));
    let (mut held, mut sends) = (None, Vec::new());
    for round in 0..ROUNDS {
        if round == ROUNDS / 5 {
            held = Some(alloc::of_thread().held);
        }
        let ranks = [lobby.members[0].rank_of(1), lobby.members[1].rank_of(0)];
        let data = (round % 2 == 0).then_some(round as u64);
        for (at, rank) in ranks.into_iter().enumerate() {
            let member = &mut lobby.members[at].pml;
            member.set_immediate(rank, data).unwrap();
            member.inject(rank, (round % 128) as u16, 1, b"short").unwrap();
            if round % 4 == 0 {
                let Sent::Pending(id) = member.send_loan(rank, 0, 2, long.loan()).unwrap() else {
                    panic!("it is long");
                };
                sends.push((at, id));
            }
        }
        lobby.passes(5);
        let got = lobby.members[1].recv(Source::Any, 1, &into);
        let status = lobby.wait(1, got).unwrap();
        assert_eq!((usize::from(status.endpoint), status.data), (round % 128, data));
        let first = round % 2;
        lobby.members[first].forget(1 - first);
        lobby.passes(1 + round % 3);
        lobby.members[1 - first].forget(first);
        for (at, id) in sends.drain(..) {
            assert!(closed(&lobby.members[at].pml.test(id).unwrap()));
        }
        for member in &lobby.members {
            assert!(member.pml.peers() <= 3, "{} numbers", member.pml.peers());
        }
    }
    let grown = alloc::of_thread().held - held.unwrap();
    assert!(grown < 16 << 10, "{grown} bytes more");
}
