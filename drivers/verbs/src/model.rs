//! Rails and management datagrams over a library in this process, whose devices reach each other without a
//! kernel: to count what a message costs (`cargo xtask instructions`), and for tests of what is above. No
//! part of a program for users.

use doorbell_fabric::error::RailError;

use crate::config::VerbsConfig;
use crate::mads::{MadError, MadPlace, MadPort};
use crate::ports::fake;
use crate::rc::RcRail;
use crate::sys::model::{self, Spec};
use crate::sys::{Library, numbers};
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

/// A device of the model, by its name.
#[derive(Clone, Debug)]
pub struct ModelDevice(Library, String);

impl ModelDevice {
    /// Makes a device with one port that has an IPv4 address as its GID; a LID makes it one of InfiniBand.
    #[must_use]
    pub fn new(name: &str, address: [u8; 4], lid: u16) -> Self {
        let spec = Spec {
            lid,
            ..Spec::new(name, address)
        };
        Self(model::library(spec), name.to_owned())
    }

    /// Opens a queue pair for management datagrams, which holds `depth` of them.
    ///
    /// # Errors
    /// Those of [`MadPort::open`].
    pub fn mad_port(&self, depth: usize) -> Result<MadPort, MadError> {
        let place = MadPlace::Port {
            device: self.1.clone(),
            port: 1,
            partition: 0xffff,
        };
        let source = Source {
            library: self.0.clone(),
            tree: fake::everything(),
        };
        MadPort::open_from(&place, depth, source)
    }

    /// Raises the event CLIENT_REREGISTER of its port.
    pub fn require_renewal(&self) {
        model::raise_of_port(&self.1, numbers::EVENT_CLIENT_REREGISTER);
    }

    /// Moves all queue pairs of the device to the state of error.
    pub fn break_pairs(&self) {
        model::break_pairs(&self.1);
    }
}
