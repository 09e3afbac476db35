//! Peers that are one program.

use doorbell_tools::process::{Runner, Stop};

use super::Peer;
use super::homes::Where;
use super::programs::{number, said};
use crate::compare_peers::args::Family;

/// Such a peer.
struct Plain {
    family: Family,
    name: &'static str,
    program: &'static str,
    /// The program and the arguments that print the version.
    asked: (&'static str, &'static [&'static str]),
    /// What brings it.
    brings: &'static str,
}

const UCX: Plain = Plain {
    family: Family::Ucx,
    name: "UCX",
    program: "ucx_perftest",
    asked: ("ucx_info", &["-v"]),
    brings: "apt-get install ucx-utils",
};

const ICEORYX2: Plain = Plain {
    family: Family::Iceoryx2,
    name: "iceoryx2",
    program: "doorbell-peer-iceoryx2",
    asked: ("doorbell-peer-iceoryx2", &["--version"]),
    brings: "`cargo xtask peers --into DIR` builds it, for `--peers-from DIR`",
};

pub(super) fn iceoryx2(runner: &Runner, at: Where<'_>) -> Result<Option<Peer>, Stop> {
    ICEORYX2.find(runner, at)
}

pub(super) fn ucx(runner: &Runner, at: Where<'_>) -> Result<Option<Peer>, Stop> {
    UCX.find(runner, at)
}

impl Plain {
    fn find(&self, runner: &Runner, at: Where<'_>) -> Result<Option<Peer>, Stop> {
        let mut peer = Peer::new(self.family, self.name, at);
        peer.path = at.program(self.program);
        if peer.path.is_none() {
            peer.missing = Some(format!("{} is not {}: {}", self.program, at.words(), self.brings));
            return Ok(Some(peer).filter(|_| at.home().is_none()));
        }
        let (program, arguments) = self.asked;
        if let Some(program) = at.program(program) {
            let text = said(runner, at, &program, arguments)?;
            peer.version = text.as_deref().and_then(number);
        }
        Ok(Some(peer))
    }
}
