//! `doorbell onesided` from outside: figures by its schema, and a rail that is not there.

use serde_json::Value;

use crate::common::{doorbell, sentence};

#[test]
fn every_operation_has_a_figure_and_a_rail_that_is_not_there_a_reason() {
    let words = ["onesided", "--json", "--seconds", "0.1", "--size", "64Ki"];
    let rails = ["--rail", "shm", "--rail", "udp:nosuch0", "--rail", "udp:lo"];
    let out = doorbell().args(words).args(rails).output().unwrap();
    sentence(&out.stderr);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let schema = include_str!("../../../bench/schema/onesided-1.schema.json");
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let faults: Vec<String> = schema
        .iter_errors(&report)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}\n{report:#}");
    assert_eq!(out.status.code(), Some(1), "{report:#}");
    let rails = report["rails"].as_array().unwrap();
    for (rail, figures) in rails.iter().zip([(4, 6), (0, 0), (4, 6)]) {
        let count = |of: &str| rail[of].as_array().unwrap().len();
        assert_eq!((count("latency"), count("bandwidth")), figures, "{rail:#}");
    }
    assert!(rails[1]["diagnosis"].as_str().unwrap().contains("nosuch0"));
    let words = [
        "onesided",
        "--layer",
        "am",
        "--json",
        "--seconds",
        "0.1",
        "--size",
        "64Ki",
    ];
    let out = doorbell().args(words).output().unwrap();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(schema.is_valid(&report), "{report:#}");
    let of_am = &report["rails"][0];
    let count = |of: &str| of_am[of].as_array().unwrap().len();
    assert_eq!((count("latency"), count("bandwidth")), (3, 5), "{report:#}");
    for (layer, last) in [("pml", "fetch and add"), ("am", "get")] {
        let dedicated = ["onesided", "--seconds", "0.05", "--mode", "dedicated"];
        let out = doorbell()
            .args(dedicated)
            .args(["--layer", layer])
            .output()
            .unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(
            out.status.success() && text.contains(last),
            "{text}{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}
