//! The faults of the network: the classes that the reliable layer has to survive.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use doorbell_sim::Faults;

/// One class of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Class {
    /// There are no faults.
    None,
    /// 1 % of all frames are lost.
    Loss1,
    /// 10 % of all frames are lost.
    Loss10,
    /// 10 % of all frames arrive twice.
    Duplicate10,
    /// 10 % of all frames are overtaken by up to 64 later ones.
    Reorder64,
    /// In 0.1 % of all frames up to three bits are flipped.
    Corrupt,
    /// 1 % loss, 10 % duplication, reordering by 64, 0.1 % corruption, all at once.
    All,
}

impl Class {
    /// Every class, in the order in which they are run.
    pub const EACH: [Self; 7] = [
        Self::None,
        Self::Loss1,
        Self::Loss10,
        Self::Duplicate10,
        Self::Reorder64,
        Self::Corrupt,
        Self::All,
    ];

    /// What this class does, on top of a network that does nothing wrong.
    pub fn faults(self, calm: Faults) -> Faults {
        let loss = match self {
            Self::Loss1 | Self::All => 0.01,
            Self::Loss10 => 0.1,
            _ => 0.0,
        };
        let on = |classes: [Self; 2], rate| if classes.contains(&self) { rate } else { 0.0 };
        Faults {
            loss,
            duplicate: on([Self::Duplicate10, Self::All], 0.1),
            reorder: on([Self::Reorder64, Self::All], 0.1),
            overtake: 64,
            reorder_window: Duration::from_micros(100),
            corrupt: on([Self::Corrupt, Self::All], 0.001),
            ..calm
        }
    }
}

/// As on the command line.
impl fmt::Display for Class {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        out.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}
