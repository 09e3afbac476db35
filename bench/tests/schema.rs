//! Real reports against the published schema.

use std::sync::Mutex;

use doorbell_bench::job::{Cores, measure};
use doorbell_bench::plan::{Kind, Plan};
use doorbell_bench::size::Size;
use serde_json::Value;

fn schema() -> jsonschema::Validator {
    let text = include_str!("../schema/bench-1.schema.json");
    let schema: Value = serde_json::from_str(text).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

/// A report of two ranks in two threads, which are bound to cores: one such job at a time, or each waits for
/// the other's threads to give a core away.
fn report(kind: Kind) -> Value {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|held| held.into_inner());
    let worlds = doorbell::local(2, &doorbell::Config::default()).unwrap();
    let ranks: Vec<_> = worlds
        .into_iter()
        .map(|world| {
            std::thread::spawn(move || {
                let plan = Plan {
                    sizes: [1, 8, 20_000].into_iter().filter_map(Size::new).collect(),
                    samples: Some(300),
                    window: 16,
                    ..Plan::new(kind)
                };
                measure(&world, &plan, Cores::default(), &mut ()).unwrap()
            })
        })
        .collect();
    let reports: Vec<_> = ranks
        .into_iter()
        .filter_map(|rank| rank.join().unwrap())
        .collect();
    assert_eq!(reports.len(), 1);
    serde_json::from_str(&reports[0].json()).unwrap()
}

#[test]
fn reports_of_every_kind_follow_the_schema() {
    let schema = schema();
    for kind in [Kind::Pingpong, Kind::Stream, Kind::Rate] {
        let report = report(kind);
        let faults: Vec<String> = schema
            .iter_errors(&report)
            .map(|fault| fault.to_string())
            .collect();
        assert!(faults.is_empty(), "{kind}: {faults:#?}");
        assert_eq!(report["results"].as_array().unwrap().len(), 3);
    }
}

#[test]
fn the_schema_refuses_what_it_should() {
    let schema = schema();
    let good = report(Kind::Pingpong);
    assert!(schema.is_valid(&good));
    type Break = fn(&mut Value);
    let breaks: [(&str, Break); 5] = [
        ("schema", |v| v["schema"] = "doorbell.bench/2".into()),
        ("kind", |v| v["kind"] = "dance".into()),
        ("percentile", |v| {
            v["results"][0]["half_rtt_ns"]["p50"] = "fast".into()
        }),
        ("negative", |v| {
            v["results"][0]["half_rtt_ns"]["p50"] = (-1).into()
        }),
        ("missing", |v| {
            v["results"][0].as_object_mut().unwrap().remove("bytes");
        }),
    ];
    for (what, break_it) in breaks {
        let mut bad = good.clone();
        break_it(&mut bad);
        assert!(!schema.is_valid(&bad), "{what}");
    }
}
