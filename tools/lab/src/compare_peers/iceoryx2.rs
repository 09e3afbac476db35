//! iceoryx2 by a small program of ours (tools/peers/iceoryx2): a server and a client for all sizes of a turn.

use std::cell::Cell;

use doorbell_tools::process::{Ready, Stop};

use super::find::Peer;
use super::load::{Figure, Kind, Load};
use super::mpi;
use super::stack::{Lab, Stack, complete};
use crate::compare_peers::args::Family;
use crate::place::Side;

/// How messages are written and read: the program's word, and what the stack's name is followed by.
const METHODS: [(&str, &str); 2] = [("copy", ""), ("loan", " loan")];

/// iceoryx2 in one of its ways.
pub(crate) struct Iceoryx2 {
    name: String,
    peer: Peer,
    method: &'static str,
    /// Turns so far: each has services of its own, as what a killed one leaves would be in the way.
    turns: Cell<u32>,
}

impl Iceoryx2 {
    /// Its ways, within a host.
    pub(crate) fn ways(peer: &Peer, network: bool) -> Vec<Self> {
        if network || peer.missing.is_some() {
            return Vec::new();
        }
        METHODS
            .iter()
            .map(|(method, name)| Self {
                name: format!("{}{name}", peer.name),
                peer: peer.clone(),
                method,
                turns: Cell::new(0),
            })
            .collect()
    }
}

impl Stack for Iceoryx2 {
    fn name(&self) -> &str {
        &self.name
    }

    fn family(&self) -> Option<Family> {
        Some(Family::Iceoryx2)
    }

    fn how(&self) -> String {
        let method = match self.method {
            "copy" => "copied from and into the user's memory, as every other stack has it",
            _ => {
                "by loan: one byte is written in place and one is read in place, and nothing is copied, whatever the size; doorbell \
                 has no call for that, and every other stack hands over all bytes"
            }
        };
        format!(
            "publish-subscribe of bytes, a service each way, without overflow; {method}; our own benchmark, which warms up and \
             times exchanges as doorbell does"
        )
    }

    fn unsupported(&self, kind: Kind) -> Option<&'static str> {
        match kind {
            Kind::Latency | Kind::Stream => None,
            Kind::Blocking => Some("a publisher that waits for room is what its window is measured with"),
            Kind::Put | Kind::Am => Some("our benchmark of it exchanges messages"),
            Kind::Overlap => Some("our benchmark of it does not report overlap"),
        }
    }

    fn measure(&self, lab: &Lab<'_>, load: &Load) -> Result<Vec<Figure>, Stop> {
        self.turns.set(self.turns.get() + 1);
        let folder = lab.place.folder.path().join("iceoryx2");
        let name = format!("{}-{}-{}", self.method, load.kind.name(), self.turns.get());
        let most = load.sizes.iter().copied().max().unwrap_or(1);
        let program = self.peer.path.clone().unwrap_or_default();
        let side = |side, verb: &str| {
            let mut command = lab.place.bound(lab.setting, side, &program);
            self.peer.at_home(&mut command);
            command.arg(verb).arg(&folder);
            command.args([&name, self.method, &load.window.to_string(), &most.to_string()]);
            command
        };
        let mut client = side(Side::One, load.kind.name());
        client.arg(load.seconds.to_string());
        client.args(load.sizes.iter().map(u64::to_string));
        let server = side(Side::Two, "serve");
        let ended = lab
            .runner
            .pair(&self.name, server, Ready::Speaks, client, load.deadline())?;
        complete(&self.name, load, mpi::read(&ended.good(&self.name)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare_peers::report::samples;

    #[test]
    fn its_rows_are_read() {
        // As it printed them with iceoryx2 0.10.0.
        let text = "row latency bytes=1024 mean_ns=8979.26 p50_ns=756.5 p90_ns=861.5 p99_ns=1032.0 p999_ns=154785.5 p9999_ns=- \
                    samples=13112\nrow stream bytes=65536 per_second=9596.78\n";
        let [latency, stream] = &mpi::read(text)[..] else {
            panic!("two rows")
        };
        assert_eq!(
            (latency.half_rtt_ns.p50, latency.half_rtt_ns.p9999),
            (Some(756.5), None)
        );
        assert_eq!(
            (stream.bytes, stream.messages_per_second),
            (65_536, Some(9_596.78))
        );
    }

    #[test]
    fn it_is_measured_within_a_host_with_copies_and_by_loan() {
        let peer = Peer {
            family: Family::Iceoryx2,
            name: "iceoryx2".to_owned(),
            ..samples::report().peers.remove(0)
        };
        let names: Vec<String> = Iceoryx2::ways(&peer, false)
            .iter()
            .map(|stack| stack.name().to_owned())
            .collect();
        assert_eq!(names, ["iceoryx2", "iceoryx2 loan"]);
        assert!(Iceoryx2::ways(&peer, true).is_empty());
    }
}
