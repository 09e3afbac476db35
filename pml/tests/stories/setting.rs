//! The stage of a story: how many ranks and rails, and how they are set.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use doorbell_fabric::message::Incarnation;
use doorbell_pml::{Pml, PmlConfig, Protocol, Rank, Resume};

use crate::air::Air;
use crate::rail::{StoryRail, address, capabilities};
use crate::stage::number;

/// What a script sets before it begins.
pub(crate) struct Setting {
    pub(crate) ranks: usize,
    rails: usize,
    /// Rails that lack an operation.
    lacks: Vec<(usize, String)>,
    one_sided: u64,
    protocol: Protocol,
    handshake: bool,
    resume: Resume,
    patience: Duration,
    pipeline: usize,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            ranks: 2,
            rails: 2,
            lacks: Vec::new(),
            one_sided: 1 << 30,
            protocol: Protocol::Auto,
            handshake: false,
            resume: Resume::Missing,
            patience: Duration::from_secs(5),
            pipeline: 8,
        }
    }
}

impl Setting {
    /// The lines before the story begins.
    pub(crate) fn sets(&mut self, words: &[&str]) -> Result<bool, String> {
        match *words {
            ["ranks", count] => self.ranks = number(count)?,
            ["rails", count] => self.rails = number(count)?,
            ["rail", rail, "cannot", what @ ("get" | "put" | "reclaim")] => {
                self.lacks.push((number(rail)?, what.to_string()));
            }
            ["set", "protocol", "get"] => self.protocol = Protocol::Get,
            ["set", "protocol", "put"] => self.protocol = Protocol::Put,
            ["set", "protocol", "fragments"] => self.protocol = Protocol::Fragments,
            ["set", "handshake", "always"] => self.handshake = true,
            ["set", "resume", "zero"] => self.resume = Resume::FromZero,
            ["set", "patience", time, "ms"] => self.patience = Duration::from_millis(number(time)?),
            ["set", "pipeline", depth] => self.pipeline = number(depth)?,
            ["set", "one-sided", bytes] => self.one_sided = number(bytes)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A PML for each rank, with its rails.
    pub(crate) fn open(&self, air: &Rc<RefCell<Air>>) -> Vec<Pml<StoryRail>> {
        let mut pmls = Vec::new();
        for rank in 0..self.ranks {
            let mut config = PmlConfig::new(Rank(rank as u32), self.ranks as u32, 1);
            config.protocol = self.protocol;
            config.handshake = self.handshake;
            config.resume = self.resume;
            config.patience = self.patience;
            config.pipeline = self.pipeline;
            let mut pml = Pml::new(config).unwrap();
            for rail in 0..self.rails {
                let mut can = capabilities(rail);
                can.limits.one_sided = self.one_sided;
                for (_, what) in self.lacks.iter().filter(|(lacking, _)| *lacking == rail) {
                    match what.as_str() {
                        "get" => can.features.get = false,
                        "reclaim" => can.features.reclaim = false,
                        _ => can.features.put = false,
                    }
                }
                let id = pml.add_rail(StoryRail::new(rail, rank, can, air)).unwrap();
                for peer in (0..self.ranks).filter(|peer| *peer != rank) {
                    pml.connect(Rank(peer as u32), id, &address(peer), Incarnation(1))
                        .unwrap();
                }
            }
            pmls.push(pml);
        }
        pmls
    }
}
