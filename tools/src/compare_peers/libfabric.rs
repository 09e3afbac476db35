//! libfabric by its own fi_pingpong: a server and a client for each size. It tells a mean and nothing else.

use doorbell_bench::stats::Percentiles;

use super::counts::Counts;
use super::find::Peer;
use super::load::{Figure, Kind, Load};
use super::stack::{Lab, Stack, complete};
use crate::cli::Family;
use crate::place::process::{Ready, Stop};
use crate::place::{Place, Side, free_port};

/// One provider.
pub(crate) struct Libfabric {
    name: &'static str,
    provider: &'static str,
    counts: Counts,
}

impl Libfabric {
    pub(crate) fn ways(peer: &Peer, network: bool) -> Vec<Self> {
        let providers: &[(&str, &str)] = match (peer.missing.is_none(), network) {
            (false, _) => &[],
            (true, false) => &[("libfabric shm", "shm")],
            (true, true) => &[("libfabric tcp", "tcp;ofi_rxm"), ("libfabric udp", "udp;ofi_rxd")],
        };
        providers
            .iter()
            .map(|(name, provider)| Self {
                name,
                provider,
                counts: Counts::default(),
            })
            .collect()
    }

    fn once(&self, lab: &Lab<'_>, load: &Load, bytes: u64, iterations: u64) -> Result<Figure, Stop> {
        let port = free_port()?;
        let side = |side| {
            let mut command = lab.place.bound(lab.setting, side, "fi_pingpong");
            command.args(["-p", self.provider, "-e", "rdm", "-m", "tagged"]);
            command.args(["-S", &bytes.to_string(), "-I", &iterations.to_string()]);
            command.args([if side == Side::One { "-P" } else { "-B" }, &port.to_string()]);
            command
        };
        let mut client = side(Side::One);
        client.arg(Place::address(lab.setting, Side::Two));
        let ended = lab.runner.pair(
            self.name,
            side(Side::Two),
            Ready::Listens(port),
            client,
            load.deadline(),
        )?;
        let text = ended.good(self.name)?;
        read(&text, bytes)
            .ok_or_else(|| Stop::Failed(format!("{} ended well and its figures cannot be read", self.name)))
    }
}

impl Stack for Libfabric {
    fn name(&self) -> &str {
        self.name
    }

    fn family(&self) -> Option<Family> {
        Some(Family::Libfabric)
    }

    fn how(&self) -> String {
        format!(
            "fi_pingpong over {}, tag-matched; it tells means alone, without a warm-up, and no rates",
            self.provider
        )
    }

    fn untold(&self, kind: Kind) -> Option<&'static str> {
        match kind {
            Kind::Latency => None,
            Kind::Stream | Kind::Blocking => Some("fi_pingpong does not tell rates of one direction"),
            Kind::Overlap => Some("fi_pingpong does not tell overlap"),
        }
    }

    fn measure(&self, lab: &Lab<'_>, load: &Load) -> Result<Vec<Figure>, Stop> {
        let mut figures = Vec::with_capacity(load.sizes.len());
        for bytes in &load.sizes {
            let figure = self.counts.measured(lab.setting, load, *bytes, |iterations| {
                self.once(lab, load, *bytes, iterations)
            })?;
            figures.push(figure);
        }
        complete(self.name, load, figures)
    }
}

/// The row under `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`: a transfer is half of a round trip.
fn read(text: &str, bytes: u64) -> Option<Figure> {
    let mut lines = text.lines().map(str::trim);
    let head: Vec<&str> = lines
        .find(|line| line.starts_with("bytes"))?
        .split_whitespace()
        .collect();
    let row: Vec<&str> = lines.find(|line| !line.is_empty())?.split_whitespace().collect();
    let at = head.iter().position(|column| *column == "usec/xfer")?;
    let micros: f64 = row
        .get(at)?
        .parse()
        .ok()
        .filter(|micros: &f64| micros.is_finite())?;
    Some(Figure {
        bytes,
        half_rtt_ns: Percentiles {
            mean: Some(micros * 1e3),
            ..Percentiles::default()
        },
        ..Figure::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As libfabric 1.17.0 printed it.
    const OUTPUT: &str = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      20k     =20k     2.4m        0.43s      5.89      10.86       0.09
";

    #[test]
    fn the_mean_is_read_and_nothing_is_made_up() {
        let figure = read(OUTPUT, 64).unwrap();
        assert_eq!(figure.half_rtt_ns.mean, Some(10_860.0));
        assert_eq!((figure.half_rtt_ns.p50, figure.messages_per_second), (None, None));
        assert_eq!(read("bytes usec/xfer\n", 8), None);
        assert_eq!(read("fi_getinfo: -61\n", 8), None);
    }

    proptest! {
        #[test]
        fn rubbish_is_no_figure(text in "(bytes usec/xfer\n)?\\PC{0,120}") {
            read(&text, 8);
        }
    }
}
