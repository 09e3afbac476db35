//! `doorbell acm resolve`: resolves names and addresses to paths.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use doorbell_acm::address::Address;
use doorbell_acm::client::{ClientError, query_all};
use doorbell_acm::path::Path;
use doorbell_acm::query::Question;
use doorbell_acm::wire::Response;
use doorbell_bench::report::printable;
use doorbell_fabric::error::Exit;
use serde::Serialize;

use super::args::ResolveArgs;
use super::written::Place;
use super::{json, service, written};
use crate::console;
use crate::error::ToolError;

/// The JSON of `doorbell acm resolve`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    version: &'static str,
    service: String,
    paths: Vec<Row>,
}

/// The outcome for one destination.
#[derive(Debug, Serialize)]
struct Row {
    destination: String,
    /// The source that was requested or chosen.
    source: Option<String>,
    path: Option<Shown>,
    /// Whether the path was verified; `None` if that was not requested.
    verified: Option<bool>,
    /// Why there is no path, or why it was not verified.
    error: Option<String>,
    /// The number of the status, if the service refused.
    status: Option<u8>,
    #[serde(skip)]
    exit: Exit,
}

impl Row {
    fn fail(&mut self, error: &ClientError, before: &str) {
        self.status = error.status().map(|status| status.code());
        self.error = Some(format!("{before}{error}"));
        self.exit = crate::error::acm(error);
    }
}

/// A path, in common units.
#[derive(Debug, Serialize)]
struct Shown {
    dgid: String,
    sgid: String,
    dlid: u16,
    slid: u16,
    flow_label: u32,
    hop_limit: u8,
    tclass: u8,
    reversible: bool,
    pkey: u16,
    sl: u8,
    /// The payload of a packet (bytes).
    mtu: Option<u32>,
    /// The rate (Mb/s).
    rate: Option<u32>,
    /// The lifetime of a packet (µs).
    packet_lifetime_us: f64,
}

impl From<&Path> for Shown {
    fn from(path: &Path) -> Self {
        Self {
            dgid: path.dgid.to_string(),
            sgid: path.sgid.to_string(),
            dlid: path.dlid,
            slid: path.slid,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            tclass: path.tclass,
            reversible: path.reversible,
            pkey: path.pkey,
            sl: path.sl,
            mtu: path.mtu.map(|mtu| mtu.bytes()),
            rate: path.rate.map(|rate| rate.megabits()),
            packet_lifetime_us: 4.096 * f64::from(path.packet_lifetime).exp2(),
        }
    }
}

/// Runs `doorbell acm resolve`.
pub(super) fn resolve(args: &ResolveArgs) -> Result<ExitCode, ToolError> {
    let source = args.source.as_deref().map(written::own).transpose()?;
    let destinations = written::all(&args.destinations, args.format)?;
    let sources = destinations.iter().map(|to| match &source {
        Some(source) => Ok(Some(source.clone())),
        None => to.source(),
    });
    let sources: Vec<Option<Address>> = sources.collect::<Result<_, _>>()?;
    let ways = || destinations.iter().zip(&sources);
    let service = service(args.service.as_deref())?;
    let limit = Duration::from_secs_f64(args.timeout);
    let mut rows = Vec::new();
    for turn in 0..args.repeat {
        if turn > 0 && console::is_closed() {
            break;
        }
        let question = |(to, source): (&Place, &Option<Address>)| Question::Resolve {
            source: source.clone(),
            destination: to.address.clone(),
            no_delay: args.cached,
        };
        let found = query_all(&service, ways().map(question).collect(), limit)?;
        let mut paths = Vec::new();
        rows = ways()
            .zip(found)
            .map(|((to, source), found)| row(to, source.as_ref(), found, &mut paths))
            .collect();
        if args.verify {
            verify(&service, &mut rows, paths, limit)?;
        }
        if !args.json {
            console::print(&table(&rows))?;
        }
    }
    let exit = exit(&rows);
    if args.json {
        let report = Report {
            schema: "doorbell.acm-resolve/1",
            version: env!("CARGO_PKG_VERSION"),
            service: service.to_string(),
            paths: rows,
        };
        console::print(&json(&report))?;
    }
    Ok(exit.into())
}

/// Returns the exit status: that of the first row for which the service failed, else of the first that it
/// refused.
fn exit(rows: &[Row]) -> Exit {
    let mut bad = rows.iter().map(|row| row.exit).filter(|exit| *exit != Exit::Done);
    let first = bad.next().unwrap_or(Exit::Done);
    std::iter::once(first)
        .chain(bad)
        .find(|exit| *exit != Exit::Verdict)
        .unwrap_or(first)
}

fn row(
    destination: &Place,
    source: Option<&Address>,
    found: Result<Response, ClientError>,
    paths: &mut Vec<Option<Path>>,
) -> Row {
    let mut row = Row {
        destination: destination.to_string(),
        source: source.map(Address::to_string),
        path: None,
        verified: None,
        error: None,
        status: None,
        exit: Exit::Done,
    };
    let mut known = None;
    match found {
        Ok(Response::Path { path, source: chosen }) => {
            row.path = Some(Shown::from(&*path));
            row.source = row.source.or_else(|| chosen.map(|address| address.to_string()));
            known = Some(*path);
        }
        Ok(_) => {
            row.error = Some("the service answered another question".to_owned());
            row.exit = Exit::System;
        }
        Err(error) => row.fail(&error, ""),
    }
    paths.push(known);
    row
}

/// Verifies the paths that were found.
fn verify(
    service: &doorbell_acm::client::Service,
    rows: &mut [Row],
    paths: Vec<Option<Path>>,
    limit: Duration,
) -> Result<(), ToolError> {
    let known = rows.iter_mut().zip(paths);
    let (rows, questions): (Vec<&mut Row>, Vec<Question>) = known
        .filter_map(|(row, path)| {
            Some((
                row,
                Question::Path {
                    path: path?,
                    verify: true,
                },
            ))
        })
        .unzip();
    for (row, told) in rows.into_iter().zip(query_all(service, questions, limit)?) {
        row.verified = Some(told.is_ok());
        if let Err(error) = told {
            row.fail(&error, "not verified: ");
        }
    }
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let _ = write!(text, "{}", printable(&row.destination));
        if let Some(source) = &row.source {
            let _ = write!(text, " from {}", printable(source));
        }
        if let Some(path) = &row.path {
            let _ = write!(text, ": {}", line(path));
        }
        if row.verified == Some(true) {
            text.push_str(", verified");
        }
        if let Some(error) = &row.error {
            let _ = write!(text, ": {}", printable(error));
        }
        text.push('\n');
    }
    text
}

fn line(path: &Shown) -> String {
    let mut text = format!("{} -> {}", path.sgid, path.dgid);
    if path.dlid != 0 {
        let _ = write!(text, ", LID {} -> {}", path.slid, path.dlid);
    }
    if let Some(mtu) = path.mtu {
        let _ = write!(text, ", MTU {mtu}");
    }
    if let Some(rate) = path.rate {
        let _ = write!(text, ", {} Gb/s", f64::from(rate) / 1000.0);
    }
    let _ = write!(text, ", pkey {:#06x}", path.pkey);
    if path.sl != 0 {
        let _ = write!(text, ", SL {}", path.sl);
    }
    if path.hop_limit != 0 {
        let _ = write!(text, ", through routers (hop limit {})", path.hop_limit);
    }
    text
}
