//! The installed headers, and headers that were changed on purpose.

use std::path::Path;

use libfabric_sys::layout::compare;
use libfabric_sys::layout::table::Table;

use super::probe::{self, Headers};

/// Where Debian's libfabric-dev puts the headers.
const INSTALLED: &str = "/usr/include";

/// The reason for a skip where the headers or the compiler are missing.
fn missing() -> Option<String> {
    let headers = Path::new(INSTALLED).join("rdma/fabric.h");
    if !headers.is_file() {
        return Some(format!("package libfabric-dev: {} not found", headers.display()));
    }
    doorbell_testing::skip::lacking("gcc", "gcc")
}

fn measured(folder: &Path) -> Table {
    let work = tempfile::tempdir().unwrap();
    probe::measure(&Headers::find(folder).unwrap(), work.path()).unwrap()
}

/// The table of a release, if it is in the repository.
fn kept(table: &Table) -> Option<Table> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fabric/libfabric-sys/layouts");
    let text = std::fs::read_to_string(folder.join(format!("{}.txt", table.release))).ok()?;
    Some(text.parse().unwrap())
}

#[test]
fn the_installed_headers_are_as_we_declare_them_and_as_their_table_says() {
    if let Some(reason) = missing() {
        return doorbell_testing::skipped(
            "the_installed_headers_are_as_we_declare_them_and_as_their_table_says",
            &reason,
        );
    }
    let table = measured(Path::new(INSTALLED));
    let comparison = compare::with(&table);
    println!("libfabric {}: {comparison}", table.release);
    assert_eq!(comparison.differences, [], "{comparison}");
    assert!(
        comparison.structures > 60 && comparison.tables >= 18 && comparison.fields > 400,
        "{comparison}"
    );
    assert!(comparison.constants > 300, "{comparison}");
    if let Some(mut kept) = kept(&table) {
        // What an installation may lack.
        let is_there = |name: &str| table.structure(name).is_some();
        kept.structures
            .retain(|structure| is_there(&structure.name) || !structure.name.starts_with("fi_usnic_"));
        assert_eq!(table.structures, kept.structures);
    }
}

#[test]
fn a_field_that_was_moved_or_removed_in_the_headers_is_named() {
    if let Some(reason) = missing() {
        return doorbell_testing::skipped(
            "a_field_that_was_moved_or_removed_in_the_headers_is_named",
            &reason,
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let rdma = folder.path().join("rdma");
    std::fs::create_dir_all(rdma.join("providers")).unwrap();
    for below in ["", "providers"] {
        for entry in std::fs::read_dir(Path::new(INSTALLED).join("rdma").join(below))
            .unwrap()
            .flatten()
        {
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), rdma.join(below).join(entry.file_name())).unwrap();
            }
        }
    }
    let file = rdma.join("fi_eq.h");
    let text = std::fs::read_to_string(&file).unwrap();
    let changed = text.replacen(
        "struct fi_cq_msg_entry {",
        "struct fi_cq_msg_entry {\n\tint added;",
        1,
    );
    let changed = changed.replacen("\tint\t(*seterr)", "\tint\t(*renamed)", 1);
    let without_call = changed.replace("cntr->ops->seterr", "cntr->ops->renamed");
    let without_call = without_call.replace("struct fi_ops_cntr, seterr", "struct fi_ops_cntr, renamed");
    assert_ne!(text, without_call);
    std::fs::write(&file, without_call).unwrap();
    let differences = compare::with(&measured(folder.path())).differences;
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "fi_cq_msg_entry: size 24 here, 32 in the headers",
            "fi_cq_msg_entry.op_context: offset 0 here, 8 in the headers",
            "fi_cq_msg_entry.flags: offset 8 here, 16 in the headers",
            "fi_cq_msg_entry.len: offset 16 here, 24 in the headers",
            "fi_ops_cntr.seterr: offset 56 here, none in the headers",
        ]
    );
}

#[test]
fn a_folder_without_headers_is_refused_with_the_package_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let error = Headers::find(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("rdma/fabric.h") && error.contains("libfabric-dev"),
        "{error}"
    );
}

#[test]
fn headers_that_do_not_compile_are_refused_with_the_compiler_s_words() {
    if let Some(reason) = doorbell_testing::skip::lacking("gcc", "gcc") {
        let name = "headers_that_do_not_compile_are_refused_with_the_compiler_s_words";
        return doorbell_testing::skipped(name, &reason);
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("rdma")).unwrap();
    std::fs::write(folder.path().join("rdma/fabric.h"), "#error no such machine\n").unwrap();
    let work = tempfile::tempdir().unwrap();
    let error = probe::measure(&Headers::find(folder.path()).unwrap(), work.path()).unwrap_err();
    assert!(error.to_string().contains("no such machine"), "{error}");
}
