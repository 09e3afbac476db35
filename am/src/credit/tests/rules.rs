//! Rule by rule, between two or a few processes.

use crate::credit::mutants::Mutants;
use crate::credit::{
    Ask, Chunk, CreditByte, CreditConfig, CreditState, Limits, Memory, NoCredits, Return, Revoke, Violation,
};

/// Peers begin with `per_node`; `banked` is exact, for a buffer gives four credits only.
fn terms(nodes: u32, per_node: u16, banked: u32) -> CreditConfig {
    CreditConfig {
        chunks_per_buffer: 2,
        per_node: Some(per_node),
        banked: Some(banked),
        ..CreditConfig::new(nodes, 0, Chunk::Small)
    }
}

fn node(terms: CreditConfig, me: u32) -> CreditState {
    CreditState::new(&CreditConfig { me, ..terms }).unwrap()
}

fn limited(terms: CreditConfig, limits: Limits) -> CreditConfig {
    CreditConfig { limits, ..terms }
}

fn byte(epoch: bool, extra: u8, credits: u8) -> CreditByte {
    CreditByte::new(epoch, extra, credits).unwrap()
}

/// Delivers a request of `rank`, which lacks `need` credits, to `from`; returns what it grants. The request
/// is answered at once.
fn ask(from: &mut CreditState, rank: u32, need: u8) -> u8 {
    let due = from.arrived(rank, byte(false, need, 1)).unwrap();
    from.answer(rank, due).extra()
}

/// Requests of others, until the epoch is over.
fn end_epoch(node: &mut CreditState, of: u32) {
    let before = node.epoch();
    while node.epoch() == before {
        ask(node, of, 0);
    }
}

fn next(node: &mut CreditState) -> Option<u32> {
    node.next_revoke().map(|revoke| revoke.to)
}

#[test]
fn the_byte_has_an_epoch_three_bits_and_four() {
    assert_eq!(byte(true, 5, 9).wire(), 0b1101_1001);
    let read = CreditByte::from_wire(0b0011_1111);
    assert_eq!((read.epoch(), read.extra(), read.credits()), (false, 3, 15));
    assert_eq!(CreditByte::new(false, 8, 1), None);
    assert_eq!(CreditByte::new(false, 0, 16), None);
    for wire in 0..=u8::MAX {
        let read = CreditByte::from_wire(wire);
        assert_eq!(byte(read.epoch(), read.extra(), read.credits()).wire(), wire);
    }
}

#[test]
fn a_request_stalls_while_it_wants_more_than_there_is_and_reports_what_it_lacked_at_first() {
    let mut x = node(terms(2, 6, 0), 0);
    let mut first = Ask::new(4);
    assert_eq!(x.take(1, &mut first), Ok(byte(false, 0, 4)));
    let mut second = Ask::new(4);
    for _ in 0..3 {
        assert_eq!(x.take(1, &mut second), Err(NoCredits::Stalled));
    }
    assert!(second.has_stalled() && second.need() == 2);
    assert_eq!((x.peer(1).unwrap().stalls(), x.counters().stalls), (1, 1), "once");
    assert!(x.has(1, 2) && !x.has(1, 3));
    assert_eq!(x.replied(1, byte(false, 0, 4)), Ok(0));
    assert_eq!(x.take(1, &mut second), Ok(byte(false, 2, 4)));
    let peer = x.peer(1).unwrap();
    assert_eq!((peer.in_use(), peer.peak(), peer.send()), (4, 4, 6));
}

#[test]
fn a_request_of_eight_lacks_seven_at_most() {
    let large = CreditConfig {
        chunk: Chunk::Large,
        ..terms(2, 8, 0)
    };
    let mut x = node(large, 0);
    assert!(x.take(1, &mut Ask::new(8)).is_ok());
    let mut ask = Ask::new(8);
    assert!(x.take(1, &mut ask).is_err());
    assert_eq!(ask.need(), 7);
}

#[test]
fn what_can_never_be_had_is_refused_at_once() {
    let mut x = node(terms(3, 6, 0), 1);
    let refused = x.take(0, &mut Ask::new(5));
    assert_eq!(refused, Err(NoCredits::TooMany { asked: 5, most: 4 }));
    assert_eq!(
        x.take(0, &mut Ask::new(0)),
        Err(NoCredits::TooMany { asked: 0, most: 4 })
    );
    for stranger in [1, 3, u32::MAX] {
        assert_eq!(
            x.take(stranger, &mut Ask::new(1)),
            Err(NoCredits::NoPeer(stranger))
        );
        assert!(!x.has(stranger, 1));
    }
}

#[test]
fn a_request_that_is_not_sent_leaves_nothing_behind() {
    let short = Limits {
        epoch: 2,
        ..Limits::DEFAULT
    };
    let mut x = node(limited(terms(3, 6, 0), short), 0);
    end_epoch(&mut x, 2);
    let taken = x.take(1, &mut Ask::new(3)).unwrap();
    assert!(taken.epoch());
    x.untake(1, taken);
    assert_eq!((x.peer(1).unwrap().in_use(), x.counters().taken), (0, 0));
    assert!(
        x.take(1, &mut Ask::new(1)).unwrap().epoch(),
        "still to be reported"
    );
    assert!(!x.take(1, &mut Ask::new(1)).unwrap().epoch());
}

#[test]
fn a_grant_is_lent_from_the_bank_as_far_as_it_goes() {
    let mut y = node(terms(2, 4, 8), 0);
    assert_eq!(ask(&mut y, 1, 5), 5);
    assert_eq!((y.bank(), y.peer(1).unwrap().loan()), (3, 9));
    assert_eq!(ask(&mut y, 1, 7), 3, "partly");
    assert_eq!((y.bank(), y.peer(1).unwrap().loan()), (0, 12));
    assert!(!y.is_searching());
    assert_eq!(ask(&mut y, 1, 1), 0);
    let peer = y.peer(1).unwrap();
    assert_eq!(
        (peer.given(), peer.requested()),
        (8, 3),
        "requests are counted, not credits"
    );
    assert_eq!(
        (y.counters().grants, y.counters().granted, y.counters().dry),
        (2, 8, 1)
    );
}

#[test]
fn limits_refuse_a_request_for_more_as_a_whole() {
    let limits = Limits {
        lend: 12,
        most_per_node: 20,
        epoch: 8,
        ..Limits::DEFAULT
    };
    let mut y = node(limited(terms(2, 4, 100), limits), 0);
    assert_eq!(
        (ask(&mut y, 1, 7), ask(&mut y, 1, 7), ask(&mut y, 1, 5)),
        (7, 0, 5)
    );
    assert_eq!(y.peer(1).unwrap().given(), 12);
    end_epoch(&mut y, 1);
    assert_eq!(ask(&mut y, 1, 5), 0, "three are remembered, and 21 would be lent");
    assert_eq!(y.peer(1).unwrap().given(), 3);
    assert_eq!(ask(&mut y, 1, 4), 4);
    assert_eq!(y.peer(1).unwrap().loan(), 20);
    assert_eq!((y.counters().limited, y.counters().dry), (2, 0));
    assert!(!y.is_searching(), "a limit takes nothing from others");
}

#[test]
fn credits_that_stay_are_never_granted() {
    let fixed = CreditConfig {
        dynamic: false,
        ..terms(2, 4, 8)
    };
    let mut y = node(fixed, 0);
    assert_eq!(ask(&mut y, 1, 5), 0);
    assert_eq!(y.returned(1, 1, false), Err(Violation::NotDynamic { rank: 1 }));
}

#[test]
fn an_epoch_is_announced_once_to_each_with_the_next_message() {
    let limits = Limits {
        epoch: 4,
        ..Limits::DEFAULT
    };
    let mut y = node(limited(terms(5, 6, 0), limits), 0);
    end_epoch(&mut y, 1);
    assert!(y.take(2, &mut Ask::new(1)).unwrap().epoch());
    assert!(!y.take(2, &mut Ask::new(1)).unwrap().epoch());
    assert!(y.revoked(3, false).unwrap().epoch);
    assert!(!y.revoked(3, false).unwrap().epoch);
    // The last of the epoch's requests was answered after its end.
    let due = y.arrived(1, byte(false, 0, 1)).unwrap();
    assert!(!y.answer(1, due).epoch());
    let due = y.arrived(4, byte(false, 1, 1)).unwrap();
    assert!(y.answer(4, due).epoch());
    let all: Vec<Revoke> = std::iter::from_fn(|| y.next_revoke()).collect();
    // 2 and 3 were notified; 4 lacked credits itself and is no victim.
    let asked: Vec<_> = all.iter().map(|revoke| (revoke.to, revoke.epoch)).collect();
    assert_eq!(asked, [(1, false), (2, false), (3, false)]);
}

#[test]
fn several_epochs_without_a_message_are_announced_as_one_and_decay_as_many() {
    let limits = Limits {
        epoch: 2,
        ..Limits::DEFAULT
    };
    let mut y = node(limited(terms(3, 4, 100), limits), 0);
    (0..4).for_each(|_| _ = ask(&mut y, 1, 7));
    let given = y.peer(1).unwrap().given();
    (0..2).for_each(|_| end_epoch(&mut y, 2));
    ask(&mut y, 1, 0);
    assert_eq!(y.peer(1).unwrap().given(), given >> 4);
    (0..40).for_each(|_| end_epoch(&mut y, 2));
    ask(&mut y, 1, 0);
    assert_eq!(y.peer(1).unwrap().given(), 0);
}

#[test]
fn a_borrower_forgets_when_its_lender_announces_it() {
    for (memory, stalls) in [(Memory::Flags, 0), (Memory::Counters, 1), (Memory::Mixed, 1)] {
        let limits = Limits {
            memory,
            ..Limits::DEFAULT
        };
        let mut x = node(limited(terms(2, 40, 0), limits), 0);
        let all: Vec<CreditByte> = (0..10).map(|_| x.take(1, &mut Ask::new(4)).unwrap()).collect();
        (0..5).for_each(|_| assert!(x.take(1, &mut Ask::new(1)).is_err()));
        for byte in all {
            x.replied(1, CreditByte::new(false, 0, byte.credits()).unwrap())
                .unwrap();
        }
        x.take(1, &mut Ask::new(2)).unwrap();
        let before = x.peer(1).unwrap();
        assert_eq!((before.peak(), before.stalls()), (40, 5));
        let due = x.arrived(1, byte(true, 0, 1)).unwrap();
        let after = x.peer(1).unwrap();
        assert_eq!((after.peak(), after.stalls()), (10, stalls), "{memory:?}");
        let _ = x.answer(1, due);
    }
}

#[test]
fn a_revocation_takes_what_was_not_used_lately_down_to_the_least_and_up_to_the_limit() {
    let give = |returned: Result<Return, Violation>| returned.unwrap().give;
    let mut x = node(terms(2, 60, 0), 0);
    assert_eq!(give(x.revoked(1, false)), 32);
    assert_eq!(give(x.revoked(1, false)), 0, "the limit of the lender's epoch");
    assert_eq!(
        give(x.revoked(1, true)),
        24,
        "which ended: 8 are remembered; 4 stay"
    );
    assert_eq!(x.peer(1).unwrap().send(), 4);
    assert_eq!(give(x.revoked(1, true)), 0, "never below the least");

    let mut x = node(terms(2, 20, 0), 0);
    let used: Vec<CreditByte> = (0..3).map(|_| x.take(1, &mut Ask::new(4)).unwrap()).collect();
    used.iter().for_each(|byte| _ = x.replied(1, *byte));
    assert_eq!(give(x.revoked(1, false)), 8, "12 were in use lately");
    let mut stalled = Ask::new(4);
    (0..4).for_each(|_| _ = x.take(1, &mut stalled));
    assert!(stalled.has_stalled());
    assert_eq!(give(x.revoked(1, false)), 0, "who stalled gives nothing");
}

/// gasnet.md section 9, "Defect of seed and code".
#[test]
fn credits_in_use_are_not_given_back_however_long_the_request_takes() {
    for (wrong, give, send) in [
        (Mutants::NONE, 8, 12),
        (Mutants(Mutants::REVOKES_WHAT_IS_IN_USE), 16, 4),
    ] {
        let mut x = node(terms(2, 20, 0), 0);
        x.mutants = wrong;
        (0..3).for_each(|_| _ = x.take(1, &mut Ask::new(4)).unwrap());
        (0..3).for_each(|_| _ = x.revoked(1, true).unwrap());
        let peer = x.peer(1).unwrap();
        assert_eq!((20 - peer.send(), peer.send(), peer.in_use()), (give, send, 12));
    }
}

/// A lender of five; all but the last have more than the least.
fn lender(limits: Limits) -> CreditState {
    let mut y = node(limited(terms(6, 4, 12), limits), 0);
    for rank in 1..5 {
        assert_eq!(ask(&mut y, rank, 3), 3);
    }
    assert_eq!((y.bank(), y.listed()), (0, 4));
    y
}

const SHORT: Limits = Limits {
    epoch: 16,
    ..Limits::DEFAULT
};

#[test]
fn an_empty_bank_looks_for_victims_among_peers_without_recent_requests() {
    let mut y = lender(SHORT);
    assert_eq!(ask(&mut y, 5, 2), 0);
    assert!(y.is_searching());
    assert_eq!(next(&mut y), None, "all were tried in this epoch");
    assert!(!y.is_searching(), "once around");
    end_epoch(&mut y, 5);
    assert_eq!(ask(&mut y, 1, 2), 0);
    let victims: Vec<u32> = std::iter::from_fn(|| next(&mut y)).collect();
    assert_eq!((victims, y.revoking()), (vec![2, 3, 4], 3));
    assert_eq!(ask(&mut y, 5, 2), 0);
    assert_eq!(next(&mut y), None, "one at a time for each");
}

#[test]
fn at_most_the_fan_out_is_under_way_and_the_next_search_goes_on_where_the_last_ended() {
    let mut y = lender(Limits { fan_out: 2, ..SHORT });
    end_epoch(&mut y, 5);
    assert_eq!(ask(&mut y, 5, 2), 0);
    assert_eq!(
        (next(&mut y), next(&mut y), next(&mut y)),
        (Some(1), Some(2), None)
    );
    assert_eq!(ask(&mut y, 5, 2), 0);
    assert_eq!(next(&mut y), None, "two are not answered");
    y.returned(1, 3, false).unwrap();
    assert_eq!(
        (y.bank(), y.listed(), y.revoking()),
        (3, 3, 1),
        "1 has the least, and left"
    );
    assert_eq!(ask(&mut y, 5, 7), 3);
    assert_eq!(ask(&mut y, 5, 7), 0);
    assert_eq!((next(&mut y), next(&mut y)), (Some(3), None));
}

#[test]
fn a_search_is_cut_into_pieces_that_no_poll_is_long_for() {
    let mut y = lender(Limits {
        steps: 1,
        fan_out: 9,
        ..SHORT
    });
    end_epoch(&mut y, 5);
    (1..3).for_each(|rank| _ = ask(&mut y, rank, 1));
    let looks: Vec<Option<u32>> = (0..5).map(|_| next(&mut y)).collect();
    assert_eq!(looks, [None, None, Some(3), Some(4), None]);
}

#[test]
fn a_peer_with_nothing_to_give_is_spared_for_one_epoch_or_two() {
    for (memory, epochs) in [(Memory::Flags, 1), (Memory::Mixed, 1), (Memory::Counters, 2)] {
        let mut y = lender(Limits { memory, ..SHORT });
        (0..2).for_each(|_| end_epoch(&mut y, 5));
        assert_eq!(ask(&mut y, 5, 1), 0);
        while let Some(rank) = next(&mut y) {
            y.returned(rank, 0, false).unwrap();
        }
        assert_eq!((y.counters().revocations, y.counters().refusals), (4, 4));
        for passed in 1..=epochs {
            assert_eq!(ask(&mut y, 5, 1), 0);
            assert_eq!(next(&mut y), None, "{memory:?} {passed}");
            end_epoch(&mut y, 5);
        }
        assert_eq!(ask(&mut y, 5, 1), 0);
        assert!(next(&mut y).is_some(), "{memory:?}");
    }
}

#[test]
fn a_peer_with_many_requests_is_spared_longer_by_counters_and_as_long_by_flags() {
    for (memory, spared) in [
        (Memory::Flags, false),
        (Memory::Counters, true),
        (Memory::Mixed, true),
    ] {
        let mut y = lender(Limits { memory, ..SHORT });
        (0..5).for_each(|_| _ = ask(&mut y, 1, 1));
        end_epoch(&mut y, 5);
        assert_eq!(ask(&mut y, 5, 1), 0);
        let victims: Vec<u32> = std::iter::from_fn(|| next(&mut y)).collect();
        assert_eq!(victims.contains(&1), !spared, "{memory:?}");
        assert!(victims.contains(&2));
    }
}

#[test]
fn at_the_start_all_peers_above_the_minimum_are_listed() {
    let mut y = node(terms(5, 5, 0), 2);
    assert_eq!(y.listed(), 4);
    assert_eq!(ask(&mut y, 4, 1), 0);
    let victims: Vec<u32> = std::iter::from_fn(|| next(&mut y)).collect();
    assert_eq!(
        victims,
        [0, 1, 3],
        "around, without itself and the one that needs credits"
    );
    assert_eq!(node(terms(5, 4, 0), 2).listed(), 0);
    let mut two = node(terms(2, 5, 0), 1);
    assert_eq!(two.listed(), 1);
    two.search_for_victims();
    assert_eq!((next(&mut two), two.returned(0, 1, false)), (Some(0), Ok(())));
    assert_eq!((two.listed(), two.bank()), (0, 3 + 1));
}

#[test]
fn a_peer_that_breaks_the_protocol_is_named_and_changes_nothing() {
    let mut y = node(terms(3, 6, 0), 0);
    let first = y.arrived(1, byte(false, 0, 5)).unwrap();
    let before = format!("{y:?}");
    let overdrawn = |used| Violation::Overdrawn {
        rank: 1,
        used,
        held: 5,
        loan: 6,
    };
    assert_eq!(y.arrived(1, byte(true, 7, 2)), Err(overdrawn(2)));
    assert_eq!(y.arrived(1, byte(true, 7, 0)), Err(overdrawn(0)));
    let not = Violation::NotInUse {
        rank: 1,
        back: 1,
        in_use: 0,
    };
    assert_eq!(y.replied(1, byte(true, 0, 1)), Err(not));
    assert_eq!(y.returned(1, 1, true), Err(Violation::NotRevoked { rank: 1 }));
    for stranger in [0, 3, u32::MAX] {
        assert_eq!(
            y.arrived(stranger, byte(false, 0, 1)),
            Err(Violation::NoPeer(stranger))
        );
        assert_eq!(
            y.replied(stranger, byte(false, 0, 1)),
            Err(Violation::NoPeer(stranger))
        );
        assert_eq!(y.revoked(stranger, false), Err(Violation::NoPeer(stranger)));
        assert_eq!(y.returned(stranger, 1, false), Err(Violation::NoPeer(stranger)));
    }
    assert_eq!(format!("{y:?}"), before);
    y.search_for_victims();
    assert_eq!(next(&mut y), Some(1));
    let much = |give| Violation::TooMuchReturned {
        rank: 1,
        give,
        loan: 6,
    };
    assert_eq!(y.returned(1, 2, false), Err(much(2)), "5 are held");
    assert_eq!(y.returned(1, 7, false), Err(much(7)));
    let _ = y.answer(1, first);
    assert_eq!(y.returned(1, 3, false), Err(much(3)), "below the least");
    assert_eq!(y.returned(1, 2, false), Ok(()));
}

#[test]
fn a_peer_that_grants_without_end_is_stopped_at_the_counters() {
    let mut x = node(terms(2, 6, 0), 0);
    let granted = (0..20_000).map_while(|_| {
        x.take(1, &mut Ask::new(1)).unwrap();
        let granted = x.replied(1, byte(false, 7, 1));
        if granted.is_err() {
            assert_eq!(granted, Err(Violation::TooManyGranted { rank: 1 }));
        }
        granted.ok()
    });
    assert_eq!(granted.map(u32::from).sum::<u32>(), (65_535 - 6) / 7 * 7);
}

#[test]
fn without_credits_nothing_is_counted_and_nothing_waits() {
    let off = CreditConfig {
        flow_control: false,
        ..terms(2, 6, 0)
    };
    let mut x = node(off, 0);
    for _ in 0..1000 {
        assert_eq!(x.take(1, &mut Ask::new(4)), Ok(CreditByte::NOTHING));
        let due = x.arrived(1, CreditByte::NOTHING).unwrap();
        assert_eq!(x.answer(1, due), CreditByte::NOTHING);
        assert_eq!(x.replied(1, CreditByte::NOTHING), Ok(0));
    }
    assert_eq!(x.next_revoke(), None);
    assert!(x.revoked(1, false).is_err() && x.returned(1, 0, false).is_err());
    assert_eq!((x.epoch(), *x.counters()), (0, Default::default()));
}
