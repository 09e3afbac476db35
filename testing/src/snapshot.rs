//! Tables of transitions as text: what the code has is compared with a file of the repository, so that no
//! transition changes unnoticed in a review. With `DOORBELL_SNAPSHOTS=write` in the environment, the tests
//! write the files again.

use std::fmt::{Debug, Write};

/// Compares a list of transitions with the text `known` of the file `file`, one line for each.
///
/// # Panics
/// When they differ.
pub fn check<S: Debug, T: Debug>(file: &str, known: &str, transitions: &[(S, T, S)]) {
    let mut text = String::new();
    for (from, by, to) in transitions {
        writeln!(text, "{from:?} -- {by:?} -> {to:?}").expect("a string takes everything");
    }
    compare(file, known, &text);
}

/// Compares the same transitions as a graph for Graphviz with the text `known` of the file `file`.
///
/// # Panics
/// When they differ.
pub fn check_graph<S: Debug, T: Debug>(file: &str, known: &str, name: &str, transitions: &[(S, T, S)]) {
    let mut text = format!("digraph {name} {{\n");
    for (from, by, to) in transitions {
        writeln!(text, "    {from:?} -> {to:?} [label=\"{by:?}\"];").expect("a string takes everything");
    }
    text.push_str("}\n");
    compare(file, known, &text);
}

fn compare(file: &str, known: &str, text: &str) {
    if std::env::var("DOORBELL_SNAPSHOTS").is_ok_and(|what| what == "write") {
        std::fs::write(file, text).expect("the snapshot can be written");
        return;
    }
    assert_eq!(text, known, "{file}: see the head of testing/src/snapshot.rs");
}
