//! `doorbell-lab scaling` from outside: every curve by the schema, its page, and what is refused.

use serde_json::Value;

use crate::common::sentence;
use crate::lab;

#[test]
fn every_curve_is_measured_by_schema_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("scaling.html");
    let out = lab()
        .args(["scaling", "--quick", "--peers", "2,300", "--entries", "1,1000"])
        .args(["--ranks", "2,4", "--json", "-", "--html"])
        .arg(&page)
        .assert()
        .success();
    let report: Value = serde_json::from_slice(&out.get_output().stdout).unwrap();
    let schema = include_str!("../../../../bench/schema/scaling-1.schema.json");
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let faults: Vec<String> = schema
        .iter_errors(&report)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(report["missing"], serde_json::json!([]), "{report:#}");
    let curves = report["curves"].as_array().unwrap();
    assert_eq!(curves.len(), 11, "{report:#}");
    for curve in curves {
        // One round shows no growth, whatever the machine does meanwhile.
        assert!(curve["growth"].is_null(), "{curve:#}");
        let points = curve["points"].as_array().unwrap();
        assert_eq!(points.len(), 2, "{curve:#}");
        for point in points {
            // A process that grew by nothing at all for two peers is possible; one that shrank is not.
            let least = if curve["unit"] == "bytes" { -0.5 } else { 0.1 };
            assert!(point["figure"].as_f64().unwrap() > least, "{curve:#}");
        }
    }
    let memory = curves.iter().find(|curve| curve["key"] == "idle-memory").unwrap();
    let each = memory["slope"]["each"].as_f64().unwrap_or(0.0);
    // 300 peers of at most a kibibyte, with pages around them.
    assert!((0.0..20_000.0).contains(&each), "{memory:#}");
    let page = std::fs::read_to_string(&page).unwrap();
    assert_eq!(page.matches("<svg").count(), 5);
}

#[test]
fn what_makes_no_sense_is_refused_in_one_sentence() {
    for (args, word) in [
        (&["--ranks", "3"][..], "leaves one over"),
        (&["--peers", "0"], "whole number"),
        (&["--entries", "x"], "whole number"),
        (&["--only", "everything"], "everything"),
        (&["--json", "/no/such/folder/x.json"], "/no/such/folder"),
    ] {
        let out = lab().arg("scaling").args(args).assert().code(2);
        let said = sentence(&out.get_output().stderr);
        assert!(said.contains(word), "{args:?}: {said}");
    }
}
