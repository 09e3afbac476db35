//! All rules together, over a whole small workspace that cargo itself reads.

use std::fs;
use std::path::Path;

use super::*;

const WORKSPACE: &str = "[workspace]\nresolver = \"3\"\nmembers = [\"ring\", \"fabric\", \"pml\"]\n";

fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn package(name: &str, dependencies: &str) -> String {
    format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{dependencies}")
}

/// A workspace in which nothing is wrong.
fn good_tree() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let forbid = "//! A crate.\n#![forbid(unsafe_code)]\n";
    let on_fabric = "[dependencies]\ndoorbell-fabric = { path = \"../fabric\" }\n";
    write(root.path(), "Cargo.toml", WORKSPACE);
    write(root.path(), "ring/Cargo.toml", &package("doorbell-ring", ""));
    write(
        root.path(),
        "ring/src/lib.rs",
        "// SAFETY: it is never called\nunsafe impl Send for X {}\nstruct X;\n",
    );
    write(root.path(), "fabric/Cargo.toml", &package("doorbell-fabric", ""));
    write(
        root.path(),
        "fabric/src/lib.rs",
        "#![deny(unsafe_code)]\n#[allow(unsafe_code)]\nmod clock;\n",
    );
    write(
        root.path(),
        "fabric/src/clock.rs",
        "// SAFETY: it is never called\nunsafe impl Send for X {}\nstruct X;\n",
    );
    write(root.path(), "pml/Cargo.toml", &package("doorbell-pml", on_fabric));
    write(root.path(), "pml/src/lib.rs", forbid);
    root
}

fn findings(root: &Path) -> Vec<String> {
    let workspace = Workspace::load(root).unwrap();
    let outcome = check(&workspace).unwrap();
    assert!(outcome.packages == 3 && outcome.files >= 7, "{outcome:?}");
    outcome.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_good_tree_has_no_findings() {
    let root = good_tree();
    assert_eq!(findings(root.path()), Vec::<String>::new());
}

#[test]
fn each_wrong_thing_is_named_with_its_file_and_line() {
    let root = good_tree();
    let on_ring = "[dependencies]\ndoorbell-ring = { path = \"../ring\" }\n";
    write(root.path(), "pml/Cargo.toml", &package("doorbell-pml", on_ring));
    write(
        root.path(),
        "pml/src/lib.rs",
        "//! A crate.\nfn f() {\n    todo!()\n}\n",
    );
    write(
        root.path(),
        "pml/tests/peek.rs",
        "fn f() {\n    // SAFETY: none\n    unsafe { g() }\n}\n",
    );
    write(
        root.path(),
        "ring/src/lib.rs",
        "fn f() {\n    unsafe { g() }\n}\n",
    );
    write(root.path(), "ring/README.md", "# ring\n\nFIXME\n");
    write(root.path(), "hotel/Cargo.toml", &package("doorbell-hotel", ""));
    write(root.path(), "notes.txt", "");
    let found = findings(root.path());
    let starts = [
        "hotel/Cargo.toml:1: hotel is no member",
        "notes.txt:1: this does not belong at the top",
        "pml/Cargo.toml:6: doorbell-pml (floor 4) depends on doorbell-ring (floor 0)",
        "pml/src/lib.rs:1: this crate lacks #![forbid(unsafe_code)]",
        "pml/src/lib.rs:3: todo marks unfinished work",
        "pml/tests/peek.rs:3: unsafe stands outside its rooms",
        "ring/README.md:3: FIXME marks unfinished work",
        "ring/src/lib.rs:2: no SAFETY comment",
    ];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (finding, start) in found.iter().zip(starts) {
        assert!(
            finding.starts_with(start),
            "{finding}\nshould start with\n{start}"
        );
    }
}

#[test]
fn files_that_are_not_text_and_broken_links_are_passed_over() {
    let root = good_tree();
    fs::write(root.path().join("ring/picture.bin"), [0xff, 0xfe, 0]).unwrap();
    std::os::unix::fs::symlink("nowhere", root.path().join("ring/link.rs")).unwrap();
    assert_eq!(findings(root.path()), Vec::<String>::new());
}
