//! `doorbell acm endpoints`: lists the endpoints of a service's host.

use std::fmt::Write as _;
use std::process::ExitCode;

use doorbell_bench::report::printable;
use doorbell_fabric::error::Exit;
use serde::Serialize;

use super::args::EndpointsArgs;
use super::{client, json, service};
use crate::console;
use crate::error::ToolError;

/// The JSON of `doorbell acm endpoints`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    version: &'static str,
    service: String,
    endpoints: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// As text: JSON's numbers have 53 bits.
    guid: String,
    port: u8,
    pkey: u16,
    index: u8,
    provider: String,
    addresses: Vec<String>,
}

/// Runs `doorbell acm endpoints`.
pub(super) fn endpoints(args: &EndpointsArgs) -> Result<ExitCode, ToolError> {
    let all = client(args.service.as_deref())?.endpoints()?;
    let rows: Vec<Row> = all
        .into_iter()
        .map(|endpoint| Row {
            guid: format!("{:#018x}", endpoint.guid),
            port: endpoint.port,
            pkey: endpoint.pkey,
            index: endpoint.index,
            provider: endpoint.provider,
            addresses: endpoint.addresses,
        })
        .collect();
    let text = if args.json {
        json(&Report {
            schema: "doorbell.acm-endpoints/1",
            version: env!("CARGO_PKG_VERSION"),
            service: service(args.service.as_deref())?.to_string(),
            endpoints: rows,
        })
    } else {
        table(&rows)
    };
    console::print(&text)?;
    Ok(Exit::Done.into())
}

fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "the service has no endpoints: no interface of its host has an address\n".to_owned();
    }
    let mut text = String::new();
    for row in rows {
        let _ = writeln!(
            text,
            "{} port {} index {}  pkey {:#06x}  {}",
            row.guid,
            row.port,
            row.index,
            row.pkey,
            printable(&row.provider)
        );
        for address in &row.addresses {
            let _ = writeln!(text, "  {}", printable(address));
        }
    }
    text
}
