//! Many clients at once, for a short time: all are answered, and nothing is kept of them.

use super::Service;

/// Pages that a process may come to use between two readings, for whatever reason: far below what is kept by
/// mistake here, where even 100 bytes for each question would be more.
const GROWTH_KIB: u64 = 512;
const QUESTIONS: u64 = 8000;

#[test]
fn all_questions_of_many_clients_are_answered_and_memory_stays() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(None, folder.path(), &[]);
    let load = |seconds| {
        let words = [
            "load",
            "127.0.0.1",
            "::1",
            "--clients",
            "50",
            "--rate",
            "2000",
            "--seconds",
            seconds,
        ];
        service.told(&words)
    };
    // Until all is there that 50 clients take.
    load("1");
    let report = load("4");
    assert_eq!(report["failed"], 0, "{report:#}");
    assert_eq!(report["answered"], QUESTIONS, "{report:#}");
    assert_eq!((&report["clients"], &report["rate"]), (&50.into(), &2000.into()));
    let times = &report["latency_ns"];
    let times = ["min", "p50", "p90", "p99", "p99_9", "max"].map(|at| times[at].as_u64().unwrap());
    assert!(times.is_sorted() && times[0] > 0, "{times:?}");
    let [before, after] = [0, 1].map(|at| report["resident_kib"][at].as_u64().unwrap());
    assert!(after <= before + GROWTH_KIB, "{before} KiB, then {after} KiB");
    let state = service.until("all clients are gone", |state| state["clients_now"] == 0);
    assert_eq!(state["waiting"], 0);
    assert_eq!(state["clients"]["refused"], 0);
}

#[test]
fn a_load_of_what_is_not_known_fails_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(None, folder.path(), &[]);
    let (code, _, said) = service.asked(&["load", "nobody-has-this-name", "--seconds", "1"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("refuses"), "{said}");
}
