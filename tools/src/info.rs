//! `doorbell info`: every kind of rail with its verdict and reason; every setting with its value and origin.

use std::fmt::Write;
use std::process::ExitCode;

use doorbell::Config;
use doorbell_fabric::discover::{Candidate, Discovery, Outcome, Verdict};
use doorbell_fabric::error::Exit;
use serde::Serialize;

use crate::cli::InfoArgs;
use crate::error::ToolError;
use crate::out;

/// The JSON of `doorbell info`.
#[derive(Serialize)]
struct Info<'a> {
    schema: &'static str,
    version: &'static str,
    #[serde(flatten)]
    found: &'a Discovery,
}

/// `doorbell info`.
pub(crate) fn info(args: &InfoArgs) -> Result<ExitCode, ToolError> {
    let config = Config::from_environment()?;
    let text = match (args.config, args.json) {
        (true, true) => config.to_json() + "\n",
        (true, false) => settings(&config),
        (false, json) => {
            let found = doorbell::discover(&config);
            if json { as_json(&found)? } else { rails(&found) }
        }
    };
    out::print(&text)?;
    Ok(Exit::Done.into())
}

fn as_json(found: &Discovery) -> Result<String, ToolError> {
    let info = Info {
        schema: "doorbell.info/1",
        version: env!("CARGO_PKG_VERSION"),
        found,
    };
    let text = serde_json::to_string_pretty(&info).map_err(|error| ToolError::System {
        what: "write what was found as JSON",
        source: error.into(),
    })?;
    Ok(text + "\n")
}

/// One line for each rail and for each kind without one.
fn rails(found: &Discovery) -> String {
    let mut text = format!(
        "doorbell {}\n\n{:<18} {:<10} {}\n",
        env!("CARGO_PKG_VERSION"),
        "rail",
        "verdict",
        "why"
    );
    for report in &found.kinds {
        match &report.outcome {
            Outcome::Probed if report.candidates.is_empty() => {
                line(
                    &mut text,
                    report.kind,
                    "none",
                    "its driver found nothing that it could use without being named",
                );
            }
            Outcome::Probed => {}
            Outcome::Failed { reason, remedy } => {
                line(&mut text, report.kind, "failed", &format!("{reason}; {remedy}"))
            }
            Outcome::NotBuilt { reason } => line(&mut text, report.kind, "not built", reason),
        }
        for candidate in &report.candidates {
            let (verdict, why) = judged(candidate);
            line(&mut text, candidate.rail.as_str(), verdict, &why);
        }
    }
    text.push_str("\n`--config` shows every setting, `--json` everything that was found out\n");
    text
}

fn line(text: &mut String, rail: &str, verdict: &str, why: &str) {
    // Writing into memory cannot fail.
    let _ = writeln!(text, "{rail:<18} {verdict:<10} {why}");
}

fn judged(candidate: &Candidate) -> (&'static str, String) {
    match &candidate.verdict {
        Verdict::Rejected { reason, remedy } => ("rejected", format!("{reason}; {remedy}")),
        Verdict::Usable => {
            let mut facts: Vec<String> = Vec::new();
            if let Some(capabilities) = &candidate.capabilities {
                let limits = &capabilities.limits;
                facts.push(format!("eager up to {} B", limits.eager));
                facts.push(format!("about {} ns", capabilities.estimate.latency_ns));
            }
            facts.extend(
                candidate
                    .facts
                    .iter()
                    .map(|fact| format!("{}: {}", fact.name, fact.value)),
            );
            if !candidate.automatic {
                facts.push("only when named".to_owned());
            }
            ("usable", facts.join(", "))
        }
    }
}

/// Every setting: name, value, origin, and below them what it does.
fn settings(config: &Config) -> String {
    let listed = config.list();
    let widest = |cell: fn(&doorbell::config::Listed) -> usize| listed.iter().map(cell).max().unwrap_or(0);
    let name = widest(|line| line.name.len());
    let value = widest(|line| line.value.chars().count()).min(24);
    let mut text = String::new();
    for line in &listed {
        let _ = writeln!(
            text,
            "{:<name$}  {:<value$}  {}",
            line.name, line.value, line.origin
        );
        let _ = writeln!(
            text,
            "{:<name$}  {} ({}; {})",
            "", line.help, line.unit, line.variable
        );
    }
    text
}
