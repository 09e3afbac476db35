//! This process and one on another host, which serves there (`doorbell pingpong --serve`), over one rail
//! after another.

use std::thread;
use std::time::{Duration, Instant};

use doorbell::oob::{Connection, Endpoint, JobKey};
use doorbell::{PathStatus, World};
use doorbell_bench::job::{Cores, measure};
use doorbell_bench::plan::{Kind, Plan};
use doorbell_bench::size::Size;
use doorbell_fabric::name::RailName;

use super::rank::first_line;
use super::{Half, Over, PATIENCE, Pair};
use crate::error::ToolError;
use crate::links::args::LinksArgs;
use crate::measure::with_rails;

/// Time for the other side to answer.
const CONNECT: Duration = Duration::from_secs(5);
/// The time between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(50);
const SAMPLES: u64 = 60;
const SMALL: usize = 8;
const RANKS: [u32; 2] = [0, 1];

/// Measures the pair over each rail.
pub(super) fn over(args: &LinksArgs, to: &Endpoint, rails: &[RailName]) -> Result<Vec<Over>, ToolError> {
    let mut all = Vec::new();
    for rail in rails {
        // A key that cannot be read is no fault of a rail.
        let key = args.key_file.as_deref().map(JobKey::read).transpose()?;
        let pair = match meet(to, key, rail) {
            Ok(pair) => pair,
            Err(error) => Pair::failed(RANKS, &first_line(&error)),
        };
        all.push(Over {
            rail: rail.to_string(),
            pairs: vec![pair],
        });
    }
    Ok(all)
}

/// Meets the other side over this rail.
fn meet(to: &Endpoint, key: Option<JobKey>, rail: &RailName) -> Result<Pair, ToolError> {
    let terms = doorbell::terms(key)?;
    let began = Instant::now();
    let world = loop {
        let connection = Connection::connect(to, &terms, CONNECT)?;
        let built = with_rails(doorbell::Builder::new(), std::slice::from_ref(rail))
            .configure(|config| {
                let deadline = PATIENCE.min(*config.wait.deadline.get());
                config.wait.deadline.set(deadline);
                config.wait.close.set(deadline.min(*config.wait.close.get()));
            })
            .on_quiet(|_| {})
            .build_over(connection);
        match built {
            // With our own job over the rail before, which it has not put away yet.
            Err(doorbell::Error::Occupied { .. }) if began.elapsed() < CONNECT => thread::sleep(AGAIN),
            built => break built?,
        }
    };
    let path = |world: &World| world.paths(1).ok().and_then(|ways| ways.into_iter().next());
    let full = path(&world).map_or(SMALL, |path| path.longest.max(SMALL));
    let plan = Plan {
        sizes: [SMALL, full].into_iter().filter_map(Size::new).collect(),
        samples: Some(SAMPLES),
        reference: false,
        verify: true,
        ..Plan::new(Kind::Pingpong)
    };
    let measured = measure(&world, &plan, Cores::default(), &mut ());
    let path = path(&world);
    world.close();
    let mut pair = Pair::failed(RANKS, "");
    match measured {
        Ok(Some(report)) => {
            let mut halves = report.results.iter().map(|row| Half {
                bytes: row.bytes as usize,
                half_rtt_ns: row.half_rtt_ns.p50.or(row.half_rtt_ns.mean).unwrap_or(0.0) as u64,
            });
            (pair.small, pair.full) = (halves.next(), halves.next());
            pair.works = report.unclean().next().is_none();
            pair.diagnosis = match pair.works {
                true => "both sizes pass".to_owned(),
                false => "a message was lost, changed or out of order".to_owned(),
            };
        }
        Ok(None) => pair.diagnosis = "nothing was measured".to_owned(),
        Err(error) => pair.diagnosis = diagnosis(path, &first_line(&error)),
    }
    Ok(pair)
}

fn diagnosis(way: Option<PathStatus>, why: &str) -> String {
    let known = way.and_then(|way| match (way.passes, way.probed) {
        (Some(false), Some(probed)) => Some(probed.to_owned()),
        _ => way.facts,
    });
    super::diagnosis(known, why)
}
