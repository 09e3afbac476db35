//! Two processes that connect to each other at the same time, over and over.

use doorbell_oob::lines::tcp::Settings;
use doorbell_oob::runner::Carrier;
use doorbell_oob::transport::{Command, Loss, Refusal};

use crate::side::{Side, drive, runtime, who};

#[test]
fn a_thousand_simultaneous_connects_leave_one_link_each() {
    runtime().block_on(async {
        let mut one = Side::start(Settings::default(), who(0));
        let mut two = Side::start(Settings::default(), who(1));
        let (mut ties, mut refusals) = (0, 0);
        for round in 0..1000 {
            let (names, addresses) = ([one.name, two.name], [one.addresses(), two.addresses()]);
            one.call(names[1], addresses[1].clone());
            two.call(names[0], addresses[0].clone());
            // Both attempts are over, and both have one link, which is the same connection.
            drive(&mut [&mut one, &mut two], "one link", |sides| {
                sides
                    .iter()
                    .all(|side| side.link().is_some() && side.open.is_empty())
            })
            .await;
            refusals += one.refused.len() + two.refused.len();
            for side in [&mut one, &mut two] {
                let yielded = side.refused.drain(..).all(|(_, why)| why == Refusal::Yielded);
                assert!(yielded, "round {round}");
            }
            let (ours, theirs) = (one.link().unwrap(), two.link().unwrap());
            let word = format!("round {round}").into_bytes();
            one.send(ours, word.clone().into());
            two.send(theirs, word.into());
            drive(&mut [&mut one, &mut two], "a word each way", |sides| {
                sides.iter().all(|side| side.bodies.len() == 1)
            })
            .await;
            for (side, link) in [(&mut one, ours), (&mut two, theirs)] {
                side.bodies.clear();
                side.command(Command::Close {
                    link,
                    why: Loss::Finished,
                });
            }
            drive(&mut [&mut one, &mut two], "no link", |sides| {
                sides
                    .iter()
                    .all(|side| side.link().is_none() && side.tcp.is_quiet())
            })
            .await;
            one.links.clear();
            two.links.clear();
            ties = one.tcp.counters().meeting.ties + two.tcp.counters().meeting.ties;
        }
        assert!(ties > 100 && refusals > 100, "{ties} ties, {refusals} refusals");
    });
}
