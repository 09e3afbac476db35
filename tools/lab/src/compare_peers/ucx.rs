//! UCX by its own perftest: a server and a client for each size, tag-matched.

use std::process::Command;

use doorbell_bench::stats::Percentiles;
use doorbell_tools::process::{Ready, Stop};

use super::counts::Counts;
use super::find::Peer;
use super::load::{Figure, Kind, Load};
use super::stack::{Lab, Stack, complete};
use crate::compare_peers::args::Family;
use crate::place::{INTERFACE, Place, Side, free_port};

/// UCX over shared memory or TCP.
pub(crate) struct Ucx {
    name: String,
    peer: Peer,
    counts: Counts,
}

impl Ucx {
    pub(crate) fn of(peer: &Peer, network: bool) -> Option<Self> {
        peer.missing.is_none().then(|| Self {
            name: format!("{}{}", peer.name, if network { " tcp" } else { "" }),
            peer: peer.clone(),
            counts: Counts::default(),
        })
    }

    /// `iterations` of one size, after a fifth of them that do not count.
    fn once(&self, lab: &Lab<'_>, load: &Load, bytes: u64, iterations: u64) -> Result<Figure, Stop> {
        let port = free_port()?;
        let program = self.peer.path.clone().unwrap_or_default();
        let side = |side| {
            let mut command = lab.place.bound(lab.setting, side, &program);
            self.peer.at_home(&mut command);
            settings(&mut command, lab.setting.is_network());
            command.args(["-p", &port.to_string()]);
            command
        };
        let mut client = side(Side::One);
        let test = match load.kind {
            Kind::Latency => "tag_lat",
            Kind::Put => "ucp_put_lat",
            Kind::Am => "ucp_am_lat",
            Kind::Stream | Kind::Blocking | Kind::Overlap => "tag_bw",
        };
        client.args([
            "-t",
            test,
            "-s",
            &bytes.to_string(),
            "-n",
            &iterations.to_string(),
        ]);
        client.args(["-w", &(iterations / 5).max(1).to_string(), "-f", "-v"]);
        if load.kind == Kind::Stream {
            client.args(["-O", &load.window.to_string()]);
        }
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
}

fn settings(command: &mut Command, network: bool) {
    if network {
        command
            .env("UCX_TLS", "tcp,self")
            .env("UCX_NET_DEVICES", INTERFACE);
    } else {
        command.env("UCX_TLS", "posix,sysv,cma,self");
    }
    command.env("UCX_WARN_UNUSED_ENV_VARS", "n");
}

impl Stack for Ucx {
    fn name(&self) -> &str {
        &self.name
    }

    fn family(&self) -> Option<Family> {
        Some(Family::Ucx)
    }

    fn how(&self) -> String {
        "ucx_perftest tag_lat and tag_bw, tag-matched, out of one buffer and into another, after a fifth of the iterations that \
         does not count; ucp_put_lat, which writes into memory that the other polls, and ucp_am_lat, a message each way to a \
         handler; its p50 is that of its last exchanges, and it reports no other percentile beside it"
            .to_owned()
    }

    fn unsupported(&self, kind: Kind) -> Option<&'static str> {
        match kind {
            Kind::Latency | Kind::Stream | Kind::Put | Kind::Am => None,
            Kind::Blocking => Some("ucx_perftest has no blocking sends"),
            Kind::Overlap => Some("ucx_perftest does not report overlap"),
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

/// The last line of `ucx_perftest -f -v`, under its head: iterations, the p50, then averages and overall
/// figures of latency (µs, half round trips), bandwidth and message rate.
fn read(text: &str, bytes: u64, kind: Kind) -> Option<Figure> {
    let mut lines = text.lines().map(str::trim);
    let head: Vec<&str> = lines
        .find(|line| line.starts_with("iterations,"))?
        .split(',')
        .collect();
    let row: Vec<&str> = lines
        .rfind(|line| line.starts_with(|c: char| c.is_ascii_digit()))?
        .split(',')
        .collect();
    let column = |name: &str| {
        let at = head.iter().position(|column| *column == name)?;
        row.get(at)?.parse::<f64>().ok().filter(|value| value.is_finite())
    };
    let micros = |name| column(name).map(|micros| micros * 1e3);
    let latency = kind.is_latency();
    Some(Figure {
        bytes,
        half_rtt_ns: Percentiles {
            mean: micros("overall_lat").filter(|_| latency),
            p50: micros("50.0_percentile_lat").filter(|_| latency),
            ..Percentiles::default()
        },
        messages_per_second: column("overall_mr").filter(|_| !latency),
        overlap: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As UCX 1.13.1 printed it.
    const LATENCY: &str = "\
iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
500000,0.585,0.625,0.627,12.22,12.20,1601245,1601240
";

    #[test]
    fn latencies_and_rates_are_read() {
        let latency = read(LATENCY, 8, Kind::Latency).unwrap();
        assert_eq!(
            (latency.half_rtt_ns.mean, latency.half_rtt_ns.p50),
            (Some(627.0), Some(585.0))
        );
        assert_eq!(
            (latency.half_rtt_ns.p99, latency.messages_per_second),
            (None, None)
        );
        let stream = read(LATENCY, 8, Kind::Stream).unwrap();
        assert_eq!(
            (stream.messages_per_second, stream.half_rtt_ns.mean),
            (Some(1_601_240.0), None)
        );
    }

    #[test]
    fn the_newer_release_prints_the_same_columns() {
        // As UCX 1.22.0 printed it, with `-O 64`.
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    100000,0.070,1.159,1.159,52.66,52.66,862828,862828\n";
        let stream = read(text, 64, Kind::Stream).unwrap();
        assert_eq!(stream.messages_per_second, Some(862_828.0));
        let latency = read(text, 64, Kind::Latency).unwrap();
        assert_eq!(latency.half_rtt_ns.p50, Some(70.0));
    }

    proptest! {
        #[test]
        fn rubbish_is_no_figure(text in "(iterations,50.0_percentile_lat\n)?\\PC{0,200}\n?[0-9,.]{0,40}") {
            if let Some(figure) = read(&text, 8, Kind::Latency) {
                prop_assert!(figure.half_rtt_ns.mean.is_none());
            }
        }
    }
}
