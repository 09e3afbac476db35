//! `doorbell-lab raw-udp`: what the sockets below a udp rail take by themselves, between two hosts.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use doorbell_bench::pin;
use doorbell_bench::size::Size;
use doorbell_bench::stats::Spread;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::error::Exit;
use doorbell_tools::cli::values::an_hour;
use doorbell_tools::error::ToolError;
use doorbell_tools::exits;
use doorbell_tools::{console, report_files};
use serde::Serialize;

use crate::probes::{
    Answered, Burst, raw_udp_answer, raw_udp_ask, raw_udp_end, raw_udp_socket, raw_xdp_queues,
};

/// Measure what the sockets below a udp or xdp rail take by themselves
#[derive(Debug, Args)]
#[command(after_help = concat!("\
A busy ping-pong of bare datagrams over connected sockets: no rail can be faster over the same sockets, so what a rail \
takes is reported as a multiple of this. Start the side with `--answer` first; it ends when the other side has done, or 5 s \
after the last datagram; with status 5 when none came. It accepts datagrams of the given address only, has no key, and sends back what it receives.\n\n", exits!(), "\
Examples:\n  doorbell-lab raw-udp --from 10.0.0.1:7118 --to 10.0.0.2:7118 --answer\n  \
doorbell-lab raw-udp --from 10.0.0.2:7118 --to 10.0.0.1:7118 --sizes 8,64 --seconds 1\n  \
doorbell-lab raw-udp --from 10.0.0.1:7118 --to 10.0.0.2:7118 --answer --xdp\n  \
doorbell-lab raw-udp --from 10.0.0.2:7118 --to 10.0.0.1:7118 --xdp --sizes 1450 --frames 45   # some 64 KiB"))]
pub(crate) struct RawUdpArgs {
    /// The address and port of this side
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) from: SocketAddr,
    /// The address and port of the other side
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) to: SocketAddr,
    /// Be the side that answers
    #[arg(long, conflicts_with_all = ["sizes", "seconds", "json"])]
    pub(crate) answer: bool,
    /// Over the queues of the interface, past the kernel (AF_XDP), instead of a socket; both sides alike
    #[arg(long)]
    pub(crate) xdp: bool,
    /// Datagrams that go one way before as many come back, with one doorbell: what a message of N frames
    /// takes past the kernel; both sides alike
    #[arg(long, value_name = "N", default_value_t = 1, requires = "xdp",
          value_parser = clap::value_parser!(u32).range(1..=MOST_FRAMES))]
    pub(crate) frames: u32,
    /// Sizes of the datagrams [default: 8,64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) sizes: Vec<Size>,
    /// Time for each size, in seconds
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = an_hour, default_value_t = 0.5)]
    pub(crate) seconds: f64,
    /// The core to run on; by default the first for the side that measures and the second for the other
    #[arg(long, value_name = "N")]
    pub(crate) core: Option<usize>,
    /// Write the report as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// The most datagrams that go one way: 1 MiB in the frames of an Ethernet.
const MOST_FRAMES: i64 = 1024;
/// The name and version of the JSON.
const SCHEMA: &str = "doorbell.raw-udp/2";
/// Sizes when none are named.
const SIZES: [usize; 2] = [8, 64];

/// What was measured.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    /// Of each datagram.
    bytes: usize,
    /// Datagrams of one direction.
    frames: u32,
    /// Over rounds of 1,000 datagrams.
    half_rtt_ns: Spread,
}

/// Runs `doorbell-lab raw-udp`.
pub(crate) fn raw_udp(args: &RawUdpArgs) -> Result<ExitCode, ToolError> {
    let named: Vec<report_files::Named<'_>> = args.json.iter().map(|name| ("--json", &**name)).collect();
    report_files::check(&named)?;
    if let Some(reason) = misused(args) {
        return Err(ToolError::Usage(reason));
    }
    let allowed = pin::apart();
    // The two sides may be on one machine after all.
    let unnamed = allowed.get(usize::from(args.answer) % allowed.len().max(1));
    if let Some(core) = args.core.or(unnamed.copied()) {
        pin::bind(core)?;
    }
    let mut line = if args.xdp {
        raw_xdp_queues(args.from, args.to, None)?
    } else {
        raw_udp_socket(args.from, args.to)?
    };
    if args.answer {
        console::print(&format!("answering {} on {}\n", args.to, args.from))?;
        if raw_udp_answer(&mut line, args.frames)? == Answered::Silent {
            console::print(&format!("{} fell silent without a last datagram\n", args.to))?;
        }
        return Ok(Exit::Done.into());
    }
    let sizes = if args.sizes.is_empty() {
        SIZES.into_iter().filter_map(Size::new).collect()
    } else {
        args.sizes.clone()
    };
    let longest = line.longest();
    if let Some(size) = sizes.iter().find(|size| size.bytes() > longest) {
        return Err(ToolError::Usage(format!(
            "{} bytes (`--sizes`) do not fit one datagram here: {longest} are the most; name smaller sizes",
            size.bytes()
        )));
    }
    let clock = Clock::start();
    let mut report = Report {
        schema: SCHEMA,
        results: Vec::new(),
    };
    let mut steps = console::Steps::timed(sizes.len() as u64, args.seconds);
    for size in sizes {
        steps.begin(&size.to_string());
        let bytes = size.bytes();
        let burst = Burst {
            bytes,
            frames: args.frames,
        };
        report.results.push(Row {
            bytes,
            frames: args.frames,
            half_rtt_ns: raw_udp_ask(&mut line, &clock, burst, args.seconds)?,
        });
    }
    console::pass("");
    raw_udp_end(&mut line)?;
    match &args.json {
        Some(name) => report_files::write(name, &json(&report), &mut io::stdout().lock())?,
        None => console::print(&table(&report))?,
    }
    Ok(Exit::Done.into())
}

/// Returns why the command line can never work, whatever the system is like.
fn misused(args: &RawUdpArgs) -> Option<String> {
    let (from, to) = (args.from, args.to);
    if from == to {
        return Some(format!(
            "`--from` and `--to` are both {from}: it would measure itself; name the address and port of the other side"
        ));
    }
    if from.port() == 0 || to.port() == 0 {
        return Some("port 0 stands for none: name the same two ports on both sides, crosswise".to_owned());
    }
    if from.is_ipv4() != to.is_ipv4() {
        return Some(format!(
            "`--from` {from} and `--to` {to} are of two families of IP addresses: name two of one"
        ));
    }
    for (option, ip) in [("--from", from.ip()), ("--to", to.ip())] {
        if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Some(format!(
                "`{option}` {ip} is not the address of one host: name the address that `ip address` shows there"
            ));
        }
    }
    // Past the kernel, the rail reports that itself.
    let is_strange = |error: io::Error| error.kind() == io::ErrorKind::AddrNotAvailable;
    let strange = !args.xdp && UdpSocket::bind((from.ip(), 0)).is_err_and(is_strange);
    strange.then(|| {
        format!(
            "`--from` {} is no address of this host: `ip address` shows which there are",
            from.ip()
        )
    })
}

fn json(report: &Report) -> String {
    // Strings and numbers only: writing them into memory cannot fail.
    let mut text = serde_json::to_string_pretty(report).expect("a report is plain data");
    text.push('\n');
    text
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "{:>9} {:>9} {:>9} {:>9} {:>9}\n",
        "size", "mean", "min", "p50", "max"
    );
    for row in &report.results {
        let nanos = &row.half_rtt_ns;
        let size = Size::new(row.bytes).map_or_else(String::new, |size| size.to_string());
        text.push_str(&format!("{size:>9}"));
        for value in [nanos.mean, nanos.min, nanos.p50, nanos.max] {
            let micros = value.map_or_else(|| "-".to_owned(), |nanos| format!("{:.3}", nanos / 1e3));
            text.push_str(&format!(" {micros:>9}"));
        }
        text.push('\n');
    }
    text + "\nhalf round trips in µs, over rounds of 1,000 datagrams\n"
}
