//! libfabric by its own fi_pingpong, or by the programs of fabtests where they are: a server and a client for
//! each size. They report means and nothing else; fabtests' have rates of one direction, too.

use std::path::{Path, PathBuf};
use std::process::Command;

use doorbell_bench::stats::Percentiles;
use doorbell_tools::process::{Ready, Stop};

use super::counts::Counts;
use super::find::{FABTESTS, Peer};
use super::load::{Figure, Kind, Load};
use super::stack::{Lab, Stack, complete};
use crate::compare_peers::args::Family;
use crate::place::{Place, Side, free_port};

/// A provider, with what its stack is called behind the peer's name.
type Provider = (&'static str, &'static str);

/// This project's provider.
const OURS: Provider = ("doorbell", "doorbell");
/// Those within a host; a libfabric whose providers are not known has the first.
const SHM: [Provider; 2] = [("shm", "shm"), ("sm2", "sm2")];
/// Those of TCP without a layer above them; the older name is that of releases in which tcp had none.
const TCP: [Provider; 2] = [("tcp", "tcp"), ("net", "net")];
/// Those with a layer above them.
const LAYERED: [Provider; 2] = [("tcp;ofi_rxm", "tcp rxm"), ("udp;ofi_rxd", "udp rxd")];

/// The stack of one provider.
pub(crate) struct Libfabric {
    name: String,
    provider: &'static str,
    peer: Peer,
    /// The folder of a provider that libfabric does not have itself.
    folder: Option<PathBuf>,
    counts: Counts,
}

impl Libfabric {
    /// Its providers, over shared memory or over the network; within a host ours too, where its folder is
    /// named, and then beside those for networks.
    pub(crate) fn ways(peer: &Peer, network: bool, ours: Option<&Path>) -> Vec<Self> {
        if peer.missing.is_some() {
            return Vec::new();
        }
        let nets = || [&known(peer, &TCP, 0)[..], &known(peer, &LAYERED, 2)].concat();
        let providers = match (network, ours) {
            (false, None) => known(peer, &SHM, 1),
            (false, Some(_)) => [vec![OURS], known(peer, &SHM, 1), nets()].concat(),
            (true, _) => nets(),
        };
        providers
            .into_iter()
            .map(|(provider, name)| Self {
                name: format!("{} {name}", peer.name),
                provider,
                peer: peer.clone(),
                folder: ours.filter(|_| provider == OURS.0).map(Path::to_owned),
                counts: Counts::default(),
            })
            .collect()
    }

    /// Whether it is measured by fabtests' programs.
    fn has_fabtests(&self) -> bool {
        self.peer
            .path
            .as_ref()
            .is_some_and(|path| path.ends_with(FABTESTS[0]))
    }

    fn once(&self, lab: &Lab<'_>, load: &Load, bytes: u64, iterations: u64) -> Result<Figure, Stop> {
        let port = free_port()?;
        let mut program = self.peer.path.clone().unwrap_or_default();
        if load.kind == Kind::Stream {
            program.set_file_name(FABTESTS[1]);
        }
        let side = |side| {
            let mut command = lab.place.bound(lab.setting, side, &program);
            self.peer.at_home(&mut command);
            self.options(&mut command, load, [bytes, iterations], (port, side));
            command.envs(self.folder.as_ref().map(|folder| ("FI_PROVIDER_PATH", folder)));
            command
        };
        let mut client = side(Side::One);
        client.arg(Place::address(lab.setting, Side::Two));
        let ended = lab.runner.pair(
            &self.name,
            side(Side::Two),
            Ready::Listens(port),
            client,
            load.deadline(),
        )?;
        let text = ended.good(&self.name)?;
        read(&text, bytes, load.kind)
            .ok_or_else(|| Stop::Failed(format!("{} ended well and its figures cannot be read", self.name)))
    }

    fn options(
        &self,
        command: &mut Command,
        load: &Load,
        [bytes, iterations]: [u64; 2],
        (port, side): (u16, Side),
    ) {
        command.args(["-p", self.provider]);
        command.args(["-S", &bytes.to_string(), "-I", &iterations.to_string()]);
        if !self.has_fabtests() {
            command.args(["-e", "rdm", "-m", "tagged"]);
            command.args([if side == Side::One { "-P" } else { "-B" }, &port.to_string()]);
            return;
        }
        // Addresses are exchanged over a connection at this port, which the server listens on.
        command.arg(format!("-E={port}"));
        command.args(["-w", &(iterations / 5).max(1).to_string()]);
        if load.kind == Kind::Stream {
            command.args(["-W", &load.window.to_string()]);
        }
    }
}

/// The providers of a list that a libfabric has; the first few of the list where they are not known.
fn known(peer: &Peer, list: &[Provider], unknown: usize) -> Vec<Provider> {
    if peer.carriers.is_empty() {
        return list[..unknown].to_vec();
    }
    let has = list.iter().filter(|(provider, _)| peer.has_carrier(provider));
    has.copied().collect()
}

impl Stack for Libfabric {
    fn name(&self) -> &str {
        &self.name
    }

    fn family(&self) -> Option<Family> {
        (self.provider != OURS.0).then_some(Family::Libfabric)
    }

    fn how(&self) -> String {
        if self.has_fabtests() {
            return format!(
                "fi_rdm_tagged_pingpong and fi_rdm_tagged_bw of fabtests over {}, tag-matched, out of one buffer and into one, after \
                 a fifth of the iterations that does not count; they report means alone",
                self.provider
            );
        }
        format!(
            "fi_pingpong over {}, tag-matched; it reports means alone, without a warm-up, and no rates; they are computed from its \
             MB/sec where that has more digits than its steps of 10 ns",
            self.provider
        )
    }

    fn unsupported(&self, kind: Kind) -> Option<&'static str> {
        match (kind, self.has_fabtests()) {
            (Kind::Latency, _) | (Kind::Stream, true) => None,
            (Kind::Stream | Kind::Blocking, false) => {
                Some("fi_pingpong does not report rates of one direction")
            }
            (Kind::Blocking, true) => Some("fi_rdm_tagged_bw has no blocking sends"),
            (Kind::Put | Kind::Am, _) => Some("its programs that are used here exchange messages"),
            (Kind::Overlap, _) => Some("its programs do not report overlap"),
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
        complete(&self.name, load, figures)
    }
}

/// The row under `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`: a transfer is half of a round
/// trip, or a message of a stream.
fn read(text: &str, bytes: u64, kind: Kind) -> Option<Figure> {
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
    let latency = kind.is_latency();
    Some(Figure {
        bytes,
        half_rtt_ns: Percentiles {
            mean: latency.then_some(nanos),
            ..Percentiles::default()
        },
        messages_per_second: (!latency).then_some(1e9 / nanos),
        overlap: None,
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
        let figure = read(OUTPUT, 64, Kind::Latency).unwrap();
        assert_eq!(figure.half_rtt_ns.mean, Some(10_860.0));
        assert_eq!((figure.half_rtt_ns.p50, figure.messages_per_second), (None, None));
        // 64 KiB in 5.23 µs: by its rate, to a part in a million.
        let large = read(
            "bytes MB/sec usec/xfer\n64k 12531.17 5.23\n",
            65_536,
            Kind::Latency,
        )
        .unwrap();
        let mean = large.half_rtt_ns.mean.unwrap();
        assert!((mean - 5_229.84).abs() < 0.01, "{mean}");
        // 8 bytes in 0.24 µs: 33.47 bytes a microsecond result in 239.02.
        let small = read("bytes MB/sec usec/xfer\n8 33.47 0.24\n", 8, Kind::Latency).unwrap();
        assert!((small.half_rtt_ns.mean.unwrap() - 239.02).abs() < 0.01);
        // Figures that do not fit together are not mixed.
        let odd = read("bytes MB/sec usec/xfer\n8 3347 0.24\n", 8, Kind::Latency).unwrap();
        assert_eq!(odd.half_rtt_ns.mean, Some(240.0));
        assert_eq!(read("bytes usec/xfer\n", 8, Kind::Latency), None);
        assert_eq!(read("fi_getinfo: -61\n", 8, Kind::Latency), None);
    }

    #[test]
    fn fabtests_report_rates_too() {
        // As fi_rdm_tagged_bw of fabtests 2.5.1 printed it.
        let text = "bytes   iters   total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64      20k     1.2m        0.05s     27.94       2.29       0.44\n";
        let stream = read(text, 64, Kind::Stream).unwrap();
        let rate = stream.messages_per_second.unwrap();
        assert!((rate - 436_562.5).abs() < 0.01, "{rate}");
        assert_eq!(stream.half_rtt_ns.mean, None);
    }

    fn peer(path: &str, carriers: &[&str]) -> Peer {
        Peer {
            family: Family::Libfabric,
            name: "libfabric".to_owned(),
            path: Some(PathBuf::from(path)),
            carriers: carriers.iter().map(|name| (*name).to_owned()).collect(),
            ..super::super::report::samples::report().peers.remove(0)
        }
    }

    #[test]
    fn each_release_is_measured_over_the_providers_that_it_has() {
        let names = |carriers: &[&str], network| -> Vec<String> {
            let ways = Libfabric::ways(&peer("/usr/bin/fi_pingpong", carriers), network, None);
            ways.iter().map(|stack| stack.name().to_owned()).collect()
        };
        // As fi_info lists them: 2.5.1, and 1.17.0, whose tcp has a layer above it and whose net has none.
        let newer = ["shm", "sm2", "sockets", "tcp", "tcp;ofi_rxm", "udp;ofi_rxd"];
        let older = [
            "net",
            "net;ofi_rxm",
            "shm",
            "sockets",
            "tcp;ofi_rxm",
            "udp;ofi_rxd",
        ];
        assert_eq!(names(&newer, false), ["libfabric shm", "libfabric sm2"]);
        assert_eq!(names(&older, false), ["libfabric shm"]);
        assert_eq!(
            names(&newer, true),
            ["libfabric tcp", "libfabric tcp rxm", "libfabric udp rxd"]
        );
        assert_eq!(
            names(&older, true),
            ["libfabric net", "libfabric tcp rxm", "libfabric udp rxd"]
        );
        // Not known: what every one has.
        assert_eq!(names(&[], false), ["libfabric shm"]);
        assert_eq!(names(&[], true), ["libfabric tcp rxm", "libfabric udp rxd"]);
    }

    #[test]
    fn windows_are_measured_where_fabtests_are() {
        let load = Load {
            kind: Kind::Stream,
            sizes: vec![64],
            seconds: 0.1,
            window: 64,
            limit: None,
        };
        let words = |path: &str| -> (bool, String) {
            let stack = Libfabric::ways(&peer(path, &["sm2"]), false, None).remove(0);
            let mut command = Command::new("x");
            stack.options(&mut command, &load, [64, 1000], (4555, Side::Two));
            let words: Vec<&str> = command.get_args().filter_map(|word| word.to_str()).collect();
            (stack.unsupported(Kind::Stream).is_none(), words.join(" "))
        };
        let (has_rates, fabtests) = words("/d/fabtests/fi_rdm_tagged_pingpong");
        assert!(has_rates);
        assert_eq!(fabtests, "-p sm2 -S 64 -I 1000 -E=4555 -w 200 -W 64");
        let (has_rates, own) = words("/usr/bin/fi_pingpong");
        assert!(!has_rates && own.ends_with("-e rdm -m tagged -B 4555"), "{own}");
    }

    proptest! {
        #[test]
        fn rubbish_is_no_figure(text in "(bytes usec/xfer\n)?\\PC{0,120}") {
            read(&text, 8, Kind::Stream);
        }
    }
}
