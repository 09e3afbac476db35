use std::collections::BTreeMap;

use doorbell_fabric::ni::Process;

use super::place::{Place, address_of, seqpacket};
use super::table::MOST_SILENT;
use super::*;
use crate::lobby::address::PeerId;
use crate::meet::RankInfo;

/// Ends a test that hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn info() -> RankInfo {
    RankInfo::of_this_process(0, 1, BTreeMap::new(), Vec::new()).unwrap()
}

/// Opens a listener at the first free id from a random one on.
fn desk() -> Desk {
    let mut pid = 0x4000_0000 | (random::number().unwrap() as u32 & 0xfff_ffff);
    let place = loop {
        match Place::of_process(Process::physical(1, pid)).unwrap() {
            Some(place) => break place,
            None => pid += 1,
        }
    };
    let card = Card::new(place.name, info());
    Desk::open(place, card).unwrap()
}

/// Opens a listener with a random name and a token.
fn with_token() -> Desk {
    let peer = PeerId::new(1, &random::bytes().unwrap());
    let place = Place::of_peer(peer).unwrap().unwrap();
    let card = Card::new(place.name, info());
    Desk::open(place, card).unwrap()
}

fn process(desk: &Desk) -> Process {
    desk.process().unwrap()
}

fn name(desk: &Desk) -> Name {
    desk.card().name
}

fn until() -> Instant {
    Instant::now() + LIMIT
}

/// Serves desks until one of them has news; returns these.
fn news(desk: &Desk, others: &[&Desk]) -> Vec<News> {
    let until = until();
    while !desk.any() {
        assert!(Instant::now() < until, "no news");
        desk.serve();
        others.iter().for_each(|other| other.serve());
    }
    desk.take()
}

fn names(news: &[News]) -> Vec<(&'static str, Name)> {
    let of = |news: &News| match news {
        News::Called(card) => ("called", card.name),
        News::Answered(card) => ("answered", card.name),
        News::Failed(name, _) => ("failed", *name),
        News::Left(name) => ("left", *name),
        News::Ended(name) => ("ended", *name),
    };
    news.iter().map(of).collect()
}

#[test]
fn an_id_is_one_process_until_it_is_gone() {
    let desk = desk();
    let process = process(&desk);
    assert!(Place::of_process(process).unwrap().is_none());
    drop(desk);
    assert!(Place::of_process(process).unwrap().is_some());
}

#[test]
fn two_that_call_each_other_at_once_both_know_both() {
    let (one, two) = (desk(), desk());
    let (first, second) = thread::scope(|scope| {
        let (from, to) = (one.clone(), process(&two));
        let first = scope.spawn(move || from.call(to, until()));
        let (from, to) = (two.clone(), process(&one));
        let second = scope.spawn(move || from.call(to, until()));
        // The one that has its answer goes on serving the other.
        while !first.is_finished() || !second.is_finished() {
            one.serve();
            two.serve();
        }
        (first.join().unwrap().unwrap(), second.join().unwrap().unwrap())
    });
    assert_eq!((&first, &second), (two.card(), one.card()));
    assert!(one.any() && two.any());
    assert_eq!(one.take(), [News::Called(two.card().clone())]);
    assert_eq!(two.take(), [News::Called(one.card().clone())]);
    assert!(!one.any() && one.take().is_empty());
    // The end of one is reported to the other, once.
    let gone = name(&two);
    drop(two);
    assert_eq!(news(&one, &[]), [News::Ended(gone)]);
    assert!(one.idle().is_none());
}

#[test]
fn no_process_and_one_that_does_not_answer_are_errors() {
    let (one, two) = (desk(), desk());
    let gone = process(&desk());
    let error = one.call(gone, until()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    let soon = Instant::now() + Duration::from_millis(20);
    let error = one.call(process(&two), soon).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    // The card that it sent is read later, though it has closed.
    assert_eq!(news(&two, &[]), [News::Called(one.card().clone())]);
    // The process has not ended: only its limit was over. Its end is noticed later.
    two.serve();
    assert!(!two.any() && two.idle().is_some());
    let gone = name(&one);
    drop(one);
    assert_eq!(news(&two, &[]), [News::Ended(gone)]);
}

#[test]
fn a_line_that_ends_is_not_a_process_that_ends() {
    let (one, two) = (desk(), desk());
    thread::scope(|scope| {
        let (from, to) = (one.clone(), process(&two));
        let caller = scope.spawn(move || from.call(to, until()));
        while !caller.is_finished() {
            two.serve();
        }
        caller.join().unwrap().unwrap();
    });
    // Closes the connection, as a process with too many of them does.
    drop(two.lock().table.take_lines(&name(&one)));
    one.serve();
    assert!(one.take().is_empty() && one.idle().is_some());
    let gone = name(&two);
    drop(two);
    assert_eq!(news(&one, &[]), [News::Ended(gone)]);
}

#[test]
fn a_line_that_ends_wakes_none_while_a_copy_of_it_is_open() {
    let (one, two) = (with_token(), with_token());
    one.begin(name(&two));
    one.serve();
    news(&two, &[]);
    news(&one, &[]);
    // As a child has one.
    let copy = rustix::io::dup(&one.lock().table.get(1).unwrap().socket).unwrap();
    let gone = name(&two);
    drop(two);
    assert_eq!(news(&one, &[]), [News::Ended(gone)]);
    let state = doorbell_fabric::poll::state(one.ready(), PollFlags::IN).unwrap();
    assert!(state.is_empty() && one.connections() == 0, "{state:?}");
    drop(copy);
}

#[test]
fn calls_do_not_block_and_several_are_under_way() {
    let one = with_token();
    let others = [with_token(), with_token(), with_token()];
    let gone = name(&with_token());
    others.iter().for_each(|other| one.begin(name(other)));
    one.begin(gone);
    one.begin(gone);
    one.serve();
    // The dead one is known at once, the others have not looked at their desks.
    assert_eq!(names(&one.take()), [("failed", gone)]);
    assert_eq!(one.connections(), 3);
    for other in &others {
        assert_eq!(names(&news(other, &[])), [("called", name(&one))]);
        assert_eq!(names(&news(&one, &[])), [("answered", name(other))]);
        assert_eq!(other.counts().answered, 1);
    }
    // Each has the other's number of the acquaintance, and one that is forgotten begins another.
    let bond = |news: Vec<News>| match &news[..] {
        [News::Called(card) | News::Answered(card)] => card.bond,
        other => panic!("{other:?}"),
    };
    let [two, ..] = &others;
    let before = [&one, two].map(|desk| desk.lock().last_bond);
    one.forget(&name(two));
    assert_eq!(names(&news(two, &[])), [("left", name(&one))]);
    one.begin(name(two));
    one.serve();
    assert_eq!(bond(news(two, &[])), before[0].wrapping_add(1));
    assert_eq!(bond(news(&one, &[])), before[1]);
}

#[test]
fn both_may_call_at_once() {
    let (one, two) = (with_token(), with_token());
    one.begin(name(&two));
    two.begin(name(&one));
    let mut heard = [Vec::new(), Vec::new()];
    let until = until();
    while heard.iter().any(|news| news.len() < 2) {
        assert!(Instant::now() < until);
        for (desk, heard) in [&one, &two].into_iter().zip(&mut heard) {
            desk.serve();
            heard.extend(desk.take());
        }
    }
    for (heard, other) in heard.iter().zip([&two, &one]) {
        let mut heard = names(heard);
        heard.sort_unstable();
        assert_eq!(heard, [("answered", name(other)), ("called", name(other))]);
    }
    // Lines that a rail makes needless are closed without a suspicion at either end.
    one.release(&name(&two));
    while two.connections() > 0 {
        assert!(Instant::now() < until);
        two.serve();
    }
    assert!(!two.any() && two.idle().is_none() && one.connections() == 0);
}

#[test]
fn a_wrong_token_gets_no_answer_and_is_counted() {
    let (one, two) = (with_token(), with_token());
    let Name::Peer(right) = name(&two) else { panic!() };
    let mut random = [0; 24];
    random[..8].copy_from_slice(&right.name().to_le_bytes());
    let wrong = Name::Peer(PeerId::new(1, &random));
    one.begin(wrong);
    let heard = news(&one, &[&two]);
    assert_eq!(names(&heard), [("failed", wrong)]);
    assert!(!two.any());
    assert_eq!((two.counts().answered, two.counts().wrong_token), (0, 4));
    assert!(one.lock().bonds.is_empty() && two.lock().bonds.is_empty());
}

#[test]
fn silent_and_senseless_calls_take_nothing_from_others() {
    for desk in [desk(), with_token()] {
        let address = address_of(&name(&desk)).unwrap();
        let call = || {
            let socket = seqpacket().unwrap();
            rustix::net::connect(&socket, &address).unwrap();
            desk.serve();
            socket
        };
        let silent: Vec<CloforkFd> = (0..MOST_SILENT + 3).map(|_| call()).collect();
        assert_eq!(desk.connections(), MOST_SILENT);
        assert_eq!(desk.counts().silent, 3);
        let mut random = doorbell_testing::Random::new(7);
        for round in 0..500 {
            let loud = call();
            let length = random.within(1..=300) as usize;
            let bytes: Vec<u8> = (0..length).map(|_| random.within(0..=255) as u8).collect();
            send(&loud, &bytes, SendFlags::NOSIGNAL).unwrap();
            desk.serve();
            assert!(!desk.any(), "round {round}");
        }
        assert!(desk.connections() <= MOST_SILENT);
        let refused = desk.counts();
        assert!(refused.nonsense + refused.wrong_token >= 500, "{refused:?}");
        let other = match name(&desk) {
            Name::Process(_) => self::desk(),
            Name::Peer(_) => with_token(),
        };
        other.begin(name(&desk));
        assert_eq!(names(&news(&desk, &[&other])), [("called", name(&other))]);
        assert_eq!(names(&news(&other, &[])), [("answered", name(&desk))]);
        drop(silent);
    }
}
