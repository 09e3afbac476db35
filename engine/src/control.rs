//! The control plane of a world: its ranks exchange their control addresses over their rails.

use doorbell_job::control::{self, Member};
use doorbell_job::error::Error;
use doorbell_job::meet::Key;

use crate::world::World;

impl World {
    /// Starts the control plane, if the settings enable it. All ranks call this together.
    pub(crate) fn with_control(mut self, key: &Key) -> Result<Self, Error> {
        if !*self.config().control.mode.get() {
            return Ok(self);
        }
        let member = Member {
            config: self.config(),
            rank: self.rank(),
            directory: self.job().directory(),
            lost_peers: self.lost_peers(),
        };
        let control = control::start(&member, key, &|own, all| self.allgather(own, all))?;
        self.set_control(control);
        Ok(self)
    }
}
