//! State machines as text: what the code has is compared with what the repository says, so that no move changes
//! without being seen in a review. `DOORBELL_SNAPSHOTS=write cargo test -p doorbell-pml snapshot` writes them anew.

use std::fmt::{Debug, Write};

/// Compares a list of moves, one line each.
pub(crate) fn check<S: Debug, T: Debug>(file: &str, known: &str, moves: &[(S, T, S)]) {
    let mut text = String::new();
    for (from, by, to) in moves {
        writeln!(text, "{from:?} -- {by:?} -> {to:?}").unwrap();
    }
    compare(file, known, &text);
}

/// Compares the same as a graph for Graphviz.
pub(crate) fn check_graph<S: Debug, T: Debug>(file: &str, known: &str, name: &str, moves: &[(S, T, S)]) {
    let mut text = format!("digraph {name} {{\n");
    for (from, by, to) in moves {
        writeln!(text, "    {from:?} -> {to:?} [label=\"{by:?}\"];").unwrap();
    }
    text.push_str("}\n");
    compare(file, known, &text);
}

#[allow(clippy::disallowed_methods)] // the tests' own files
fn compare(file: &str, known: &str, text: &str) {
    if std::env::var("DOORBELL_SNAPSHOTS").is_ok_and(|what| what == "write") {
        let path = format!("{}/src/snapshots/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, text).unwrap();
        return;
    }
    assert_eq!(text, known, "{file}: see the head of snapshot.rs");
}
