//! libfabric by its own fi_pingpong: a server and a client for each size. It reports a mean and nothing else.

use std::path::{Path, PathBuf};

use doorbell_bench::stats::Percentiles;
use doorbell_tools::process::{Ready, Stop};

use super::counts::Counts;
use super::find::Peer;
use super::load::{Figure, Kind, Load};
use super::stack::{Lab, Stack, complete};
use crate::compare_peers::args::Family;
use crate::place::{Place, Side, free_port};

/// This project's provider, and the name of its stack.
const OURS: (&str, &str) = ("libfabric doorbell", "doorbell");

/// The stack of one provider.
pub(crate) struct Libfabric {
    name: &'static str,
    provider: &'static str,
    /// The folder of a provider that libfabric does not have itself.
    folder: Option<PathBuf>,
    counts: Counts,
}

impl Libfabric {
    /// Its providers, over shared memory or over the network; within a host ours too, where its folder is
    /// named, and then beside those for networks.
    pub(crate) fn ways(peer: &Peer, network: bool, ours: Option<&Path>) -> Vec<Self> {
        const SHM: (&str, &str) = ("libfabric shm", "shm");
        const NETS: [(&str, &str); 2] = [("libfabric tcp", "tcp;ofi_rxm"), ("libfabric udp", "udp;ofi_rxd")];
        let providers: &[(&'static str, &'static str)] = match (peer.missing.is_none(), network, ours) {
            (false, ..) => &[],
            (true, false, None) => &[SHM],
            (true, false, Some(_)) => &[OURS, SHM, NETS[0], NETS[1]],
            (true, true, _) => &NETS,
        };
        providers
            .iter()
            .map(|(name, provider)| Self {
                name,
                provider,
                folder: ours.filter(|_| *provider == OURS.1).map(Path::to_owned),
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
            command.envs(self.folder.as_ref().map(|folder| ("FI_PROVIDER_PATH", folder)));
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
        (self.provider != OURS.1).then_some(Family::Libfabric)
    }

    fn how(&self) -> String {
        format!(
            "fi_pingpong over {}, tag-matched; it reports means alone, without a warm-up, and no rates; they are computed from its \
             MB/sec where that has more digits than its steps of 10 ns",
            self.provider
        )
    }

    fn unsupported(&self, kind: Kind) -> Option<&'static str> {
        match kind {
            Kind::Latency => None,
            Kind::Stream | Kind::Blocking => Some("fi_pingpong does not report rates of one direction"),
            Kind::Put | Kind::Am => Some("fi_pingpong exchanges messages"),
            Kind::Overlap => Some("fi_pingpong does not report overlap"),
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

/// The row under `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`: a transfer is half of a round
/// trip.
fn read(text: &str, bytes: u64) -> Option<Figure> {
    let mut lines = text.lines().map(str::trim);
    let head: Vec<&str> = lines
        .find(|line| line.starts_with("bytes"))?
        .split_whitespace()
        .collect();
    let row: Vec<&str> = lines.find(|line| !line.is_empty())?.split_whitespace().collect();
    let column = |name: &str| -> Option<f64> {
        let at = head.iter().position(|column| *column == name)?;
        let value: f64 = row.get(at)?.parse().ok()?;
        (value.is_finite() && value > 0.0).then_some(value)
    };
    let micros = column("usec/xfer")?;
    let nanos = column("MB/sec").map_or(micros * 1e3, |rate| finer(bytes, micros * 1e3, rate));
    Some(Figure {
        bytes,
        half_rtt_ns: Percentiles {
            mean: Some(nanos),
            ..Percentiles::default()
        },
        ..Figure::default()
    })
}

/// Both columns are rounded to hundredths: of the time and of the bytes per microsecond. The finer one
/// counts, unless the two are of different things.
fn finer(bytes: u64, nanos: f64, rate: f64) -> f64 {
    const STEP: f64 = 0.01;
    let by_rate = bytes as f64 / rate * 1e3;
    let (of_time, of_rate) = (STEP * 1e3, by_rate * STEP / rate);
    let alike = (by_rate - nanos).abs() <= of_time + of_rate;
    if alike && of_rate < of_time {
        by_rate
    } else {
        nanos
    }
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
        // 64 KiB in 5.23 µs: by its rate, to a part in a million.
        let large = read("bytes MB/sec usec/xfer\n64k 12531.17 5.23\n", 65_536).unwrap();
        let mean = large.half_rtt_ns.mean.unwrap();
        assert!((mean - 5_229.84).abs() < 0.01, "{mean}");
        // 8 bytes in 0.24 µs: 33.47 bytes a microsecond result in 239.02.
        let small = read("bytes MB/sec usec/xfer\n8 33.47 0.24\n", 8).unwrap();
        assert!((small.half_rtt_ns.mean.unwrap() - 239.02).abs() < 0.01);
        // Figures that do not fit together are not mixed.
        let odd = read("bytes MB/sec usec/xfer\n8 3347 0.24\n", 8).unwrap();
        assert_eq!(odd.half_rtt_ns.mean, Some(240.0));
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
