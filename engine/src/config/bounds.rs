//! What a value may be beyond what its type says. Checked as soon as a text is read, so that the error can name the
//! text and where it stands; and once more before a world is made, for values that code has set.

use std::collections::BTreeMap;

use doorbell_shm::ShmConfig;

use super::value::{Size, Value};
use super::{Config, FACTS};
use crate::bootstrap::MOST_RANKS;
use crate::error::Error;

/// Fewest bytes of `pml.unexpected`: one envelope must fit many times.
const LEAST_UNEXPECTED: usize = 1 << 10;
/// Most bytes of `pml.unexpected`: the PML's hard bound is sixteen times this, and has 36 bits.
const MOST_UNEXPECTED: usize = 4 << 30;
/// Most commands in the mailbox of a dedicated thread.
const MOST_COMMANDS: u32 = 1 << 20;

/// What both ends of the PML's protocol compute with: the window, and the hard bound that follows from it. All other
/// settings concern one direction or one process: each sender has its own eager limit and protocol, each lane carries
/// its own geometry, and whether pulls work is found out for each pair.
const AGREED: [&str; 1] = ["pml.unexpected"];

impl Config {
    /// The settings that must be the same at all ranks of a job, by their two names.
    pub(crate) fn agreed(&self) -> BTreeMap<String, String> {
        let all = FACTS.iter().zip(self.all());
        all.filter(|(fact, _)| AGREED.contains(&fact.name))
            .map(|(fact, setting)| (format!("{} ({})", fact.name, fact.variable), setting.show()))
            .collect()
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`Error::BadValue`] for the first that cannot be.
    pub(crate) fn verify(&self) -> Result<(), Error> {
        let all = self.all();
        for (fact, setting) in FACTS.iter().zip(all) {
            if let Some(expected) = self.out_of_bounds(fact.name) {
                return Err(Error::BadValue {
                    name: fact.name,
                    given: setting.show(),
                    origin: setting.came_from().to_string(),
                    expected,
                });
            }
        }
        Ok(())
    }

    /// What is expected instead of the present value of `name`; `None` when it may be so.
    pub(super) fn out_of_bounds(&self, name: &str) -> Option<String> {
        let (job, shm) = (&self.job, &self.shm);
        match name {
            "job.size" => {
                let refused = job.size.get().is_some_and(|size| size == 0 || size > MOST_RANKS);
                refused.then(|| format!("a number of ranks from 1 to {MOST_RANKS}"))
            }
            "job.rank" => {
                let refused = job.rank.get().is_some_and(|rank| rank >= MOST_RANKS);
                refused.then(|| format!("a rank from 0 to {}", MOST_RANKS - 1))
            }
            "progress.mailbox" => {
                let commands = *self.progress.mailbox.get();
                let refused = commands == 0 || commands > MOST_COMMANDS;
                refused.then(|| format!("a number of commands from 1 to {MOST_COMMANDS}"))
            }
            "pml.unexpected" => {
                let bytes = self.pml.unexpected.get().0;
                let refused = !(LEAST_UNEXPECTED..=MOST_UNEXPECTED).contains(&bytes);
                let (least, most) = (Size(LEAST_UNEXPECTED).show(), Size(MOST_UNEXPECTED).show());
                refused.then(|| format!("a size from {least} to {most}"))
            }
            "shm.cells" => {
                let (least, most) = ShmConfig::CELLS;
                let refused = shm.cells.get().map(|cells| cells as usize);
                refused
                    .filter(|cells| !fits(*cells, (least, most)))
                    .map(|_| format!("a power of two from {least} to {most}, or `auto`"))
            }
            "shm.data" => {
                let (least, most) = ShmConfig::DATA;
                let refused = shm.data.get().map(|data| data.0);
                let (low, high) = (Size(least).show(), Size(most).show());
                refused
                    .filter(|data| !fits(*data, (least, most)))
                    .map(|_| format!("a power of two from {low} to {high}, or `auto`"))
            }
            _ => None,
        }
    }
}

fn fits(value: usize, (least, most): (usize, usize)) -> bool {
    value.is_power_of_two() && (least..=most).contains(&value)
}
