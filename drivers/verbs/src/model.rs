//! Rails over a library in this process, whose devices reach each other without a kernel: to count what a
//! message costs (`cargo xtask instructions`). No part of a program for users.

use doorbell_fabric::error::RailError;

use crate::config::VerbsConfig;
use crate::ports::fake;
use crate::rc::RcRail;
use crate::sys::model::{self, Spec};
use crate::ud::open::Source;

/// Opens two rails of reliable connections, each over a device of its own, with one key.
///
/// # Errors
/// Those of [`RcRail::open`].
pub fn rails() -> Result<[RcRail; 2], RailError> {
    let config = VerbsConfig::default();
    let rail = |number: u8| -> Result<RcRail, RailError> {
        let device = format!("model{number}");
        let source = Source {
            library: model::library(Spec::new(&device, [127, 0, 1, number])),
            tree: fake::everything(),
        };
        let name = format!("verbs:{device}:1").parse()?;
        let mut rail = RcRail::open_over(&name, &config, &source)?;
        rail.set_key(&[7; 32]);
        // The tree is not a machine's: looking through it would be counted.
        rail.watch.rest();
        Ok(rail)
    };
    Ok([rail(1)?, rail(2)?])
}
