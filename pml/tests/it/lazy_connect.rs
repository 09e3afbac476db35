//! Peers that are connected when they are needed.

use std::time::Duration;

use doorbell_fabric::rail::Rail as _;
use doorbell_pml::{LostReason, Pml, PmlConfig, PmlError, RailId, Rank, Source, Waiting};
use doorbell_sim::{SimConfig, SimNet, SimRail};

use crate::world::{bytes, empty};

const SIZE: u32 = 3;

/// Ranks that were not introduced to each other.
struct Strangers {
    net: SimNet,
    pmls: Vec<Pml<SimRail>>,
    addresses: Vec<(
        doorbell_fabric::addr::RailAddress,
        doorbell_fabric::message::Incarnation,
    )>,
}

fn strangers() -> Strangers {
    let net = SimNet::new(7, SimConfig::default());
    let rails: Vec<SimRail> = (0..SIZE).map(|_| net.attach()).collect();
    let addresses = rails
        .iter()
        .map(|rail| (rail.address(), rail.incarnation()))
        .collect();
    let pml = |(rank, rail)| {
        let mut config = PmlConfig::new(Rank(rank), SIZE, 1);
        config.lazy = true;
        let mut pml = Pml::new(config).unwrap();
        pml.add_rail(rail).unwrap();
        pml
    };
    let pmls = (0..SIZE).zip(rails).map(pml).collect();
    Strangers { net, pmls, addresses }
}

impl Strangers {
    fn meet(&mut self, rank: usize, other: usize) {
        let (address, life) = &self.addresses[other];
        let other = Rank(other as u32);
        self.pmls[rank].connect(other, RailId(0), address, *life).unwrap();
    }

    fn run(&mut self) {
        for _ in 0..200 {
            let now = self.net.now();
            self.pmls.iter_mut().for_each(|pml| _ = pml.progress(now));
            self.net.advance_to_next_event();
        }
    }
}

#[test]
fn what_is_sent_before_the_peer_was_met_waits_and_is_sent_then_in_order() {
    let mut all = strangers();
    assert!(all.pmls[0].is_unmet(Rank(1)) && all.pmls[0].wanted().is_none());
    for number in 0..5_u8 {
        all.pmls[0].inject(Rank(1), 0, 7, &[number; 40]).unwrap();
    }
    assert_eq!(all.pmls[0].wanted(), Some(Rank(1)));
    assert_eq!(all.pmls[0].wanted(), None, "reported once");
    assert!(all.pmls[0].is_wanted(Rank(1)) && !all.pmls[0].is_wanted(Rank(2)));
    all.run();
    assert_eq!(all.pmls[0].peer(Rank(1)).unwrap().queued, 5);
    // A rank that is called is connected by its own side.
    all.meet(1, 0);
    all.meet(0, 1);
    assert!(!all.pmls[0].is_unmet(Rank(1)) && !all.pmls[0].is_wanted(Rank(1)));
    all.run();
    for number in 0..5_u8 {
        let room = empty(64);
        let got = all.pmls[1].recv_loan(Source::Any, 0, 7, 0, room.room()).unwrap();
        let status = all.pmls[1].test(got).unwrap().unwrap();
        assert_eq!((status.source, status.length), (Rank(0), 40));
        assert_eq!(bytes(&room)[..40], [number; 40]);
    }
    assert!(
        all.pmls[1].wanted().is_none(),
        "a receive from any rank needs none"
    );
}

#[test]
fn a_receive_by_name_wants_its_sender_and_one_that_is_unmet_is_not_looked_at_as_another() {
    let mut all = strangers();
    all.meet(1, 0);
    all.meet(0, 1);
    // Rank 0 has sent what would be the first message of rank 2 as well.
    all.pmls[0].inject(Rank(1), 0, 7, b"of rank 0").unwrap();
    all.run();
    let room = empty(16);
    assert_eq!(all.pmls[1].recv_directly(Rank(2), 0, 7, room.room(), 64), None);
    let got = all.pmls[1]
        .recv_loan(Rank(2).into(), 0, 7, 0, room.room())
        .unwrap();
    assert_eq!(all.pmls[1].wanted(), Some(Rank(2)));
    all.run();
    assert!(all.pmls[1].test(got).is_none());
    all.meet(1, 2);
    all.meet(2, 1);
    all.pmls[2].inject(Rank(1), 0, 7, b"of rank 2").unwrap();
    all.run();
    let status = all.pmls[1].test(got).unwrap().unwrap();
    assert_eq!((status.source, &bytes(&room)[..9]), (Rank(2), &b"of rank 2"[..]));
}

#[test]
fn a_rank_that_cannot_be_connected_is_lost_for_all_that_waits() {
    let mut all = strangers();
    let room = empty(16);
    all.pmls[0].inject(Rank(1), 0, 7, b"x").unwrap();
    let got = all.pmls[0]
        .recv_loan(Rank(1).into(), 0, 7, 0, room.room())
        .unwrap();
    let of_other = all.pmls[0]
        .recv_loan(Rank(2).into(), 0, 7, 0, room.room())
        .unwrap();
    all.pmls[0].not_met(Rank(1));
    let unmet = |error| {
        matches!(
            error,
            PmlError::PeerLost {
                rank: Rank(1),
                reason: LostReason::Unmet,
            }
        )
    };
    assert!(unmet(all.pmls[0].test(got).unwrap().unwrap_err()));
    assert!(unmet(all.pmls[0].inject(Rank(1), 0, 7, b"x").unwrap_err()));
    assert_eq!(all.pmls[0].lost(Rank(1)), Some(LostReason::Unmet));
    assert!(all.pmls[0].test(of_other).is_none());
    assert_eq!(
        all.pmls[0].wanted(),
        Some(Rank(2)),
        "and no more the one that is lost"
    );
    assert_eq!(all.pmls[0].wanted(), None);
}

#[test]
fn a_rank_opened_over_one_rail_and_not_over_the_other_is_lost() {
    let mut all = strangers();
    all.meet(0, 1);
    all.pmls[0].not_met(Rank(1));
    assert_eq!(all.pmls[0].lost(Rank(1)), Some(LostReason::Unmet));
    // No rank is lost to itself, and one that is not in the job is none.
    all.pmls[0].not_met(Rank(0));
    all.pmls[0].not_met(Rank(9));
    assert_eq!(all.pmls[0].lost(Rank(0)), None);
    all.pmls[0].inject(Rank(0), 0, 7, b"x").unwrap();
}

#[test]
fn the_end_waits_for_a_meeting_that_something_waits_for() {
    let mut all = strangers();
    all.pmls[0].inject(Rank(1), 0, 7, b"last words").unwrap();
    let by = all.net.now() + Duration::from_secs(1);
    assert!(!all.pmls[0].close(all.net.now(), by));
    all.meet(0, 1);
    all.meet(1, 0);
    while !all.pmls[0].close(all.net.now(), by) {
        let now = all.net.now();
        all.pmls[1].progress(now);
        assert!(now < by, "it was delivered before");
        all.net.advance_to_next_event();
    }
    all.pmls[1].progress(all.net.now());
    let room = empty(16);
    let got = all.pmls[1].recv_loan(Source::Any, 0, 7, 0, room.room()).unwrap();
    assert_eq!(all.pmls[1].test(got).unwrap().unwrap().length, 10);
}

#[test]
fn a_send_that_waits_for_a_connection_is_explained() {
    let mut all = strangers();
    let word = empty(8);
    let sent = all.pmls[0].send_loan(Rank(1), 0, 7, word.loan()).unwrap();
    let doorbell_pml::Sent::Pending(sent) = sent else {
        panic!("no rank can take it");
    };
    assert_eq!(all.pmls[0].explain(sent).unwrap().waiting, Waiting::Path);
}

/// What waits for one rank is bounded, short messages too; another one is wanted all the same.
#[test]
fn injects_that_fill_what_one_unmet_rank_may_hold_leave_others_theirs() {
    let mut all = strangers();
    let limit = all.pmls[0].config().inject_limit;
    let mut waiting = 0;
    let full = loop {
        match all.pmls[0].inject(Rank(1), 0, 7, &[]) {
            Ok(()) => waiting += 1,
            Err(error) => break error,
        }
        assert!(waiting <= limit / 64, "nothing bounds messages without bytes");
    };
    assert!(matches!(full, PmlError::InjectFull { .. }), "{full}");
    all.pmls[0].inject(Rank(2), 0, 7, b"x").unwrap();
    assert_eq!(
        [(); 2].map(|()| all.pmls[0].wanted()),
        [2, 1].map(|rank| Some(Rank(rank)))
    );
    all.meet(0, 2);
    all.meet(2, 0);
    all.run();
    let room = empty(1);
    let got = all.pmls[2].recv_loan(Source::Any, 0, 7, 0, room.room()).unwrap();
    assert_eq!(all.pmls[2].test(got).unwrap().unwrap().length, 1);
    // Those of a rank that cannot be met are all reported.
    all.pmls[0].not_met(Rank(1));
    let lost = all.pmls[0].next_lost_sends().unwrap();
    assert_eq!(
        (lost.rank, lost.reason, lost.count as usize),
        (Rank(1), LostReason::Unmet, waiting)
    );
    assert!(all.pmls[0].next_lost_sends().is_none());
    assert_eq!(all.pmls[0].in_use().bytes, 0);
}
