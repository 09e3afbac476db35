//! `doorbell-lab acm-perf`: shows the counters of a service.

use std::fmt::Write as _;
use std::process::ExitCode;

use doorbell_acm::client::Client;
use doorbell_acm::query::{CounterScope, Counters};
use doorbell_acm::status::Status;
use doorbell_fabric::error::Exit;
use doorbell_tools::acm::{client, json, service, written};
use doorbell_tools::console;
use doorbell_tools::error::ToolError;
use serde::Serialize;

use super::args::PerfArgs;

/// The JSON of `doorbell-lab acm-perf`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    version: &'static str,
    service: String,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// The scope: `service`, an endpoint's number, or an address.
    of: String,
    errors: u64,
    resolves: u64,
    no_data: u64,
    address_queries: u64,
    address_hits: u64,
    route_queries: u64,
    route_hits: u64,
}

impl Row {
    fn new(of: String, counters: Counters) -> Self {
        Self {
            of,
            errors: counters.errors,
            resolves: counters.resolves,
            no_data: counters.no_data,
            address_queries: counters.address_queries,
            address_hits: counters.address_hits,
            route_queries: counters.route_queries,
            route_hits: counters.route_hits,
        }
    }
}

/// Runs `doorbell-lab acm-perf`.
pub(crate) fn perf(args: &PerfArgs) -> Result<ExitCode, ToolError> {
    let mut client = client(args.service.as_deref())?;
    let rows = match args.source.as_deref() {
        Some(word) => {
            let address = written::own(word)?;
            let counters = client.counters(CounterScope::Owner(address.clone()))?;
            vec![Row::new(address.to_string(), counters)]
        }
        None => all(&mut client, args.all)?,
    };
    let text = if args.json {
        json(&Report {
            schema: "doorbell.acm-perf/1",
            version: env!("CARGO_PKG_VERSION"),
            service: service(args.service.as_deref())?.to_string(),
            rows,
        })
    } else {
        table(&rows)
    };
    console::print(&text)?;
    Ok(Exit::Done.into())
}

fn all(client: &mut Client, endpoints: bool) -> Result<Vec<Row>, ToolError> {
    let mut rows = vec![Row::new(
        "service".to_owned(),
        client.counters(CounterScope::Service)?,
    )];
    // Another service may answer for every number, of which there are no more than these.
    for index in 1..=u8::MAX {
        if !endpoints {
            break;
        }
        match client.counters(CounterScope::Index(index)) {
            Ok(counters) => rows.push(Row::new(format!("endpoint {index}"), counters)),
            Err(error) if error.status() == Some(Status::SourceAddress) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rows)
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.of.chars().count()).max().unwrap_or(0);
    let mut text = format!(
        "{:width$}  {:>10} {:>10} {:>10}  {:>9} {:>9}  {:>9} {:>9}\n{:width$}  {:>10} {:>10} {:>10}  {:>9} {:>9}  {:>9} {:>9}\n",
        "",
        "resolved",
        "errors",
        "no data",
        "addresses",
        "",
        "routes",
        "",
        "",
        "",
        "",
        "",
        "asked",
        "known",
        "asked",
        "known"
    );
    for row in rows {
        let _ = writeln!(
            text,
            "{:width$}  {:>10} {:>10} {:>10}  {:>9} {:>9}  {:>9} {:>9}",
            row.of,
            row.resolves,
            row.errors,
            row.no_data,
            row.address_queries,
            row.address_hits,
            row.route_queries,
            row.route_hits
        );
    }
    text
}
