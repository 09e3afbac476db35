//! Both ranks in one thread: PMLs on BTLs on rails, with everything that a seed can set in them.

use std::time::Duration;

use doorbell_btl::{Btl, BtlConfig, InUse, JobKey};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::time::Time;
use doorbell_pml::{Pml, Rank};
use doorbell_sim::Random;
use doorbell_usnic::UsnicRail;

use super::shape::Shape;
use super::{FUNCTION, Lab, RANKS, UsnicOutcome, config, damaged};
use crate::failure::Kind;
use crate::job::know_each_other;
use crate::plan::Plan;
use crate::player::Player;

/// If nothing is received for this long, what is missing is lost. Longer than a machine with much else to do
/// keeps a thread waiting.
const STANDSTILL: Duration = Duration::from_secs(30);
/// The longest time after the last message until nothing is left.
const SETTLES: Duration = Duration::from_secs(10);
/// The longest time of an orderly end.
const FAREWELL: Duration = Duration::from_secs(5);

/// How many events of a rail a failure is reported with.
const RECENT: usize = 20;

type Seat = Player<Pml<Btl<UsnicRail>>>;

struct Table<'a> {
    plan: &'a Plan,
    players: Vec<Seat>,
    clock: Clock,
    began: Time,
}

pub(super) fn play(seed: u64, shape: &Shape, plan: &Plan, lab: &Lab) -> Result<UsnicOutcome, Kind> {
    let seat = |(rank, pml)| Player::new(pml, plan, rank, RANKS, seed, shape.manners);
    let clock = Clock::start();
    let mut table = Table {
        plan,
        players: (0..).zip(pmls(seed, shape, lab)?).map(seat).collect(),
        began: clock.now(),
        clock,
    };
    table
        .play()
        .and_then(|()| table.settle())
        .map_err(|kind| table.with_reasons(kind))?;
    let outcome = table.count();
    table.part()?;
    Ok(outcome)
}

impl Table<'_> {
    /// Players count from 0.
    fn now(&self) -> Time {
        Time::ZERO + self.clock.now().since(self.began)
    }

    fn step(&mut self) -> Result<Time, Kind> {
        let now = self.now();
        let mut worked = false;
        for player in &mut self.players {
            worked |= player.step(self.plan, now)?;
        }
        if !worked {
            // The engines want a core, too.
            std::thread::yield_now();
        }
        Ok(now)
    }

    fn play(&mut self) -> Result<(), Kind> {
        while !self.players.iter().all(|player| player.is_done(self.plan)) {
            let now = self.step()?;
            let last = self.players.iter().map(Player::last).max();
            if last.is_some_and(|last| now.since(last) > STANDSTILL) {
                return Err(Kind::Lost(self.explain()));
            }
        }
        Ok(())
    }

    fn explain(&self) -> String {
        let waits = self.players.iter().filter(|player| !player.is_done(self.plan));
        let texts: Vec<String> = waits.map(|player| player.explain(self.plan)).collect();
        texts.join("\n")
    }

    /// How the rails are, behind what was found.
    fn with_reasons(&self, kind: Kind) -> Kind {
        let mut text = String::new();
        for (rank, player) in (0..).zip(&self.players) {
            let other = Rank(1 - rank);
            for (_, rail) in player.end.rails() {
                let driver = rail.driver();
                text.push_str(&format!(
                    "\nrank {rank}: {:?}; {driver:?}, trouble {:?}; {:?}\n  {}",
                    player.end.lost(other),
                    driver.nic().trouble(),
                    rail.counters(),
                    rail.recent(PeerIndex(0), RECENT).join("\n  ")
                ));
            }
        }
        match kind {
            Kind::Lost(what) => Kind::Lost(what + &text),
            Kind::Other(what) => Kind::Other(what + &text),
            told => told,
        }
    }

    /// What is acknowledged late is waited for.
    fn settle(&mut self) -> Result<(), Kind> {
        let by = self.now() + SETTLES;
        while let Some(what) = self.leftovers() {
            if self.step()? > by {
                return Err(Kind::Other(what));
            }
        }
        Ok(())
    }

    /// What is taken and should not be.
    fn leftovers(&self) -> Option<String> {
        for (rank, player) in self.players.iter().enumerate() {
            let used = player.end.in_use();
            if used != doorbell_pml::InUse::default() {
                return Some(format!("rank {rank} is left with {used:?}"));
            }
            for (_, rail) in player.end.rails() {
                let used = rail.in_use();
                // A room for the one peer, which is looked after.
                let rooms = used.rooms.saturating_sub(1);
                if (InUse { rooms, ..used }) != InUse::default() {
                    return Some(format!("rank {rank}: its rail is left with {used:?}"));
                }
            }
            let drops = player.end.counters().drops;
            if drops.total() > 0 {
                return Some(format!("rank {rank} has dropped {drops:?}"));
            }
        }
        None
    }

    fn count(&self) -> UsnicOutcome {
        let (mut resends, mut twice, mut bad) = (0, 0, 0);
        for (_, rail) in self.players.iter().flat_map(|player| player.end.rails()) {
            resends += rail.counters().resends;
            twice += rail.counters().dropped_duplicate;
            bad += damaged(&rail.driver().stats());
        }
        UsnicOutcome {
            resends: Some(resends),
            twice: Some(twice),
            damaged: Some(bad),
            ..UsnicOutcome::default()
        }
    }

    /// Closes both ranks, and gives the devices back.
    fn part(mut self) -> Result<(), Kind> {
        let by = self.now() + FAREWELL;
        let mut closed = vec![false; self.players.len()];
        while closed.contains(&false) {
            let now = self.now();
            for (player, closed) in self.players.iter_mut().zip(&mut closed) {
                *closed = *closed || player.end.close(now, by);
            }
            if now > by + FAREWELL {
                return Err(Kind::Endless("the end of a rail".to_owned()));
            }
        }
        Ok(())
    }
}

fn pmls(seed: u64, shape: &Shape, lab: &Lab) -> Result<Vec<Pml<Btl<UsnicRail>>>, Kind> {
    let rails = (0..lab.adapters.len()).map(|side| rail(seed, shape, lab, side));
    let rails = rails.collect::<Result<Vec<_>, _>>()?;
    know_each_other(seed, shape.protocol, rails)
}

fn rail(seed: u64, shape: &Shape, lab: &Lab, side: usize) -> Result<(Btl<UsnicRail>, Incarnation), Kind> {
    let driver = lab.adapters[side].open(FUNCTION, &config(shape, side));
    let driver = driver.map_err(Kind::Other)?;
    let life = driver.incarnation();
    let config = BtlConfig {
        first_sequence: shape.wraps.then_some(u32::MAX - 1_000),
        frame_mac: shape.frame_mac,
        ..BtlConfig::default()
    };
    let mut btl = Btl::new(driver, config, life).map_err(other)?;
    let mut key = [0; 32];
    let mut random = Random::for_part(seed, &[5]);
    key.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
    btl.set_key(JobKey::from_bytes(key));
    Ok((btl, life))
}

fn other(error: impl ToString) -> Kind {
    Kind::Other(error.to_string())
}
