//! The counter file of a process with open domains, as `doorbell counters` reads it from outside.

use std::path::PathBuf;

use doorbell_fabric::counters::{NO_RANK, Reader, Snapshot, Value, find};

use crate::alone::{run, run_with};
use crate::everything::Everything;

/// Reads the counter files of this process.
fn own() -> Vec<Snapshot> {
    let begin = format!("/proc/{}/", std::process::id());
    let is_own = |path: &PathBuf| path.to_str().is_some_and(|path| path.starts_with(&begin));
    find(None)
        .into_iter()
        .filter(is_own)
        .map(|path| Reader::open(&path).unwrap().read().unwrap())
        .collect()
}

fn number(snapshot: &Snapshot, name: &str) -> u64 {
    match snapshot.value(name) {
        Some(Value::Counter(number) | Value::Gauge(number)) => *number,
        other => panic!("{name}: {other:?}"),
    }
}

fn text(snapshot: &Snapshot, name: &str) -> String {
    match snapshot.value(name) {
        Some(Value::Text(text)) => text.clone(),
        other => panic!("{name}: {other:?}"),
    }
}

/// Whether a file has a path to the peer that another file is of.
fn has_path(file: &Snapshot, to: &Snapshot) -> bool {
    let address = text(to, "member.address");
    let name = address.rsplit_once('/').unwrap().1;
    file.value(&format!("way.{name}.shm.state")).is_some()
}

/// The sum of a counter in all files.
fn total(name: &str) -> u64 {
    own().iter().map(|file| number(file, name)).sum()
}

/// Makes progress until `done`.
fn until(all: &[&Everything], mut done: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        for one in all {
            one.advance();
        }
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("it does not come: {:?}", own());
}

#[test]
fn the_counters_of_a_domain_name_its_peers_and_why_one_was_lost() {
    let test = "counted::the_counters_of_a_domain_name_its_peers_and_why_one_was_lost";
    run(test, |library| {
        let (one, other) = (Everything::open(library), Everything::open(library));
        one.insert(&other);
        other.insert(&one);
        other.receive_empty();
        one.send_empty_to(&other);
        until(&[&one, &other], || {
            let files = own();
            files.len() == 2
                && [(0, 1), (1, 0)]
                    .iter()
                    .all(|(of, to)| has_path(&files[*of], &files[*to]))
        });
        until(&[&one, &other], || total("pml.matched") == 1);
        assert!(own().iter().all(|file| file.rank == NO_RANK));
        assert_eq!(total("pml.sent_eager"), 1);
        drop(other);
        until(&[&one], || match &own()[..] {
            [file] => text(file, "member.last_loss").contains("is lost: "),
            _ => false,
        });
        drop(one);
        assert!(own().is_empty());
    });
}

#[test]
fn no_counters_are_published_where_the_setting_says_so() {
    let test = "counted::no_counters_are_published_where_the_setting_says_so";
    run_with(test, &[("DOORBELL_COUNTERS", "off")], |library| {
        let one = Everything::open(library);
        (0..1000).for_each(|_| one.advance());
        assert!(own().is_empty());
    });
}
