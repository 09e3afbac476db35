//! How often a rail is polled: one whose poll costs a system call every n-th pass by its cost, one of several
//! in memory rarely while it is quiet; at once while it has something, and at once after it was armed.

use doorbell_fabric::message::Message;
use doorbell_fabric::rail::{PollCost, Rail};
use doorbell_pml::{Pml, RailId, Rank};

use crate::world::{World, bytes, empty, sim};
use crate::wrap::Tuned;

const CHEAP: RailId = RailId(0);
const DEAR: RailId = RailId(1);

/// Two rails, of which a poll of the second costs `nanoseconds`.
fn world(nanoseconds: u32) -> World<Tuned> {
    let dear = |rail: doorbell_sim::SimRail| {
        let second = rail.plane() != doorbell_sim::Plane::FIRST;
        let mut rail = Tuned::new(rail);
        if second {
            rail.cost = PollCost::SystemCall(nanoseconds);
        }
        rail
    };
    World::wrapped(2, 2, 3, sim(true, true, true), dear, |_| ())
}

fn polls<M: Message>(pml: &Pml<M>, rail: RailId, of: impl Fn(&M) -> u32) -> u32 {
    pml.rail(rail).map_or(0, of)
}

#[test]
fn idle_passes_poll_a_dear_rail_by_its_cost_and_never_less_than_every_sixty_fourth() {
    for (cost, every) in [(0, 1), (49, 1), (100, 2), (500, 10), (3200, 64), (u32::MAX, 64)] {
        let mut world = world(cost);
        for _ in 0..640 {
            world.pmls[0].poll();
        }
        let of = |rail| polls(&world.pmls[0], rail, |rail| rail.polls);
        // Quiet after 256 polls, and then polled on every sixteenth pass at most.
        let quiet = |every: u32| match 640 / every {
            few @ ..=256 => few,
            _ => 256 + (640 - 256 * every) / every.max(16),
        };
        let each = [of(CHEAP), of(DEAR)];
        let expected = [quiet(1), quiet(every)];
        for (found, expected) in each.iter().zip(expected) {
            assert!(
                found.abs_diff(expected) <= 1,
                "{cost} ns: {each:?} against {expected}"
            );
        }
    }
}

#[test]
fn a_quiet_rail_among_others_is_polled_rarely_until_it_has_something() {
    let mut world = world(0);
    let both =
        |world: &World<Tuned>| [CHEAP, DEAR].map(|rail| polls(&world.pmls[0], rail, |rail| rail.polls));
    for _ in 0..1000 {
        world.pmls[0].poll();
    }
    let before = both(&world);
    for _ in 0..160 {
        world.pmls[0].poll();
    }
    let quiet = both(&world);
    assert_eq!([quiet[0] - before[0], quiet[1] - before[1]], [10, 10]);
    // What comes is found within sixteen passes, and from then on every pass looks.
    world.pmls[1].inject(Rank(0), 0, 1, &[1; 8]).unwrap();
    world.pmls[1].flush();
    let later = world.net.now() + std::time::Duration::from_millis(1);
    world.net.advance_to(later);
    world.pmls.iter_mut().for_each(|pml| _ = pml.housekeep(later));
    let passes = (0..).find(|_| world.pmls[0].poll() > 0).unwrap();
    assert!(passes < 16, "{passes}");
    let before = both(&world);
    for _ in 0..100 {
        world.pmls[0].poll();
    }
    let after = both(&world);
    let mut looks = [after[0] - before[0], after[1] - before[1]];
    looks.sort_unstable();
    assert!(looks[0] <= 7 && looks[1] == 100, "{looks:?}");
}

#[test]
fn a_rail_that_is_alone_is_polled_on_every_pass() {
    let mut world = World::wrapped(2, 1, 3, sim(true, true, true), Tuned::new, |_| ());
    for _ in 0..2000 {
        world.pmls[0].poll();
    }
    assert_eq!(polls(&world.pmls[0], CHEAP, |rail| rail.polls), 2000);
}

#[test]
fn a_dear_rail_that_found_something_is_polled_in_the_next_pass_again() {
    let mut world = world(3200);
    // Only the dear rail carries.
    let first = world.planes[0];
    world.net.change(doorbell_sim::Change::PlaneDown(first));
    world.until("the first rail is down", |world| {
        world.pmls.iter().all(|pml| pml.counters().paths_down == 1)
    });
    for at in 0..40 {
        world.pmls[1].inject(Rank(0), 0, 1, &[at; 8]).unwrap();
    }
    world.pmls[1].flush();
    let later = world.net.now() + std::time::Duration::from_millis(1);
    world.net.advance_to(later);
    world.pmls.iter_mut().for_each(|pml| _ = pml.housekeep(later));
    // A budget of 16 a pass, so three passes, one after the other, once it is its turn.
    let before = world.pmls[0].counters().arrived;
    let found: Vec<usize> = (0..70)
        .map(|_| world.pmls[0].poll())
        .filter(|work| *work > 0)
        .collect();
    assert_eq!(world.pmls[0].counters().arrived - before, 40, "{found:?}");
    // Besides them, at most a probe and an answer.
    assert!(
        found.len() == 3 && found[..2] == [16, 16] && (8..=10).contains(&found[2]),
        "{found:?}"
    );
}

#[test]
fn an_armed_rail_is_polled_in_the_next_pass() {
    let mut world = world(3200);
    world.pmls[0].poll();
    let before = polls(&world.pmls[0], DEAR, |rail| rail.polls);
    for (_, rail) in world.pmls[0].rails_mut() {
        let _ = rail.arm();
        rail.disarm();
    }
    world.pmls[0].poll();
    assert_eq!(polls(&world.pmls[0], DEAR, |rail| rail.polls), before + 1);
    world.pmls[0].poll();
    assert_eq!(polls(&world.pmls[0], DEAR, |rail| rail.polls), before + 1, "once");
}

#[test]
fn messages_over_a_dear_rail_arrive() {
    let mut world = world(3200);
    let first = world.planes[0];
    world.net.change(doorbell_sim::Change::PlaneDown(first));
    world.pmls[1].inject(Rank(0), 0, 1, b"dear one").unwrap();
    let into = empty(8);
    let request = world.recv(0, Rank(1), 1, &into);
    world.wait(0, request).unwrap();
    assert_eq!(bytes(&into), b"dear one");
}
