//! The declarations against the tables of `layouts`, and against what is known about how they grew.

use libfabric_sys::layout::table::Table;
use libfabric_sys::layout::{compare, structures, tables};
use libfabric_sys::{
    Layout, Level, fi_cq_err_entry, fi_domain_attr, fi_ep_attr, fi_info, fi_mr_attr, fi_mr_modify,
    fi_tx_attr, field_at,
};

/// The tables, each with the release that its headers name. The development branch still has that before it.
const KEPT: &[(&str, &str)] = &[
    ("1.17", include_str!("../../layouts/1.17.txt")),
    ("1.22", include_str!("../../layouts/1.22.txt")),
    ("2.5", include_str!("../../layouts/2.5.txt")),
    ("2.6", include_str!("../../layouts/2.6.txt")),
    ("2.6", include_str!("../../layouts/next.txt")),
];

#[test]
fn the_declarations_are_those_of_five_releases() {
    for (release, text) in KEPT {
        let table: Table = text.parse().unwrap();
        assert_eq!(table.release.to_string(), *release);
        let comparison = compare::with(&table);
        assert_eq!(comparison.differences, [], "{release}: {comparison}");
        assert!(
            comparison.structures >= 87 && comparison.fields >= 557,
            "{release}: {comparison}"
        );
        assert!(
            comparison.tables >= 18 && comparison.constants >= 446,
            "{release}: {comparison}"
        );
    }
}

#[test]
fn the_newest_table_has_everything_that_is_declared() {
    let (_, text) = KEPT.last().unwrap();
    let table: Table = text.parse().unwrap();
    let declared = Table::declared(Level::NEXT);
    assert_eq!(table.structures, declared.structures);
    assert_eq!(table.constants, declared.constants);
}

#[test]
fn tables_of_functions_are_as_long_as_each_release_has_them() {
    // 1.17, 1.22, 2.6, and the development branch after it
    let entries = [
        ("fi_ops", [7, 7, 7, 7]),
        ("fi_ops_fabric", [7, 7, 7, 7]),
        ("fi_ops_domain", [12, 12, 12, 13]),
        ("fi_ops_ep", [8, 8, 8, 9]),
        ("fi_ops_cm", [10, 10, 10, 10]),
        ("fi_ops_msg", [10, 10, 10, 10]),
        ("fi_ops_tagged", [10, 10, 10, 10]),
        ("fi_ops_rma", [10, 10, 10, 10]),
        ("fi_ops_atomic", [14, 14, 14, 14]),
        ("fi_ops_collective", [12, 12, 12, 12]),
        ("fi_ops_cq", [8, 8, 8, 9]),
        ("fi_ops_cntr", [8, 8, 8, 9]),
        ("fi_ops_eq", [6, 6, 6, 6]),
        ("fi_ops_av", [8, 11, 11, 12]),
        ("fi_ops_av_set", [7, 7, 7, 7]),
        ("fi_ops_mr", [4, 4, 4, 4]),
        ("fi_ops_poll", [4, 4, 4, 4]),
        ("fi_ops_wait", [2, 2, 2, 2]),
    ];
    let levels = [Level::OLDEST, Level::new(1, 22), Level::NEWEST, Level::NEXT];
    for (name, lengths) in entries {
        let table = tables().find(|table| table.name == name).unwrap();
        assert_eq!(levels.map(|level| table.entries_at(level)), lengths, "{name}");
        assert_eq!(table.fields[0].name, "size", "{name}");
    }
}

#[test]
fn structures_have_the_size_of_the_caller_s_release() {
    let sizes = |size: fn(Level) -> usize| {
        ["1.0", "1.5", "1.17", "1.22", "2.0", "2.6", "2.7"].map(|l| size(l.parse().unwrap()))
    };
    assert_eq!(sizes(fi_info::size_at), [112, 112, 120, 120, 120, 120, 120]);
    assert_eq!(sizes(fi_tx_attr::size_at), [72, 72, 80, 80, 80, 80, 80]);
    assert_eq!(sizes(fi_ep_attr::size_at), [80, 96, 96, 96, 96, 96, 104]);
    assert_eq!(
        sizes(fi_domain_attr::size_at),
        [120, 184, 192, 200, 208, 224, 232]
    );
    assert_eq!(sizes(fi_cq_err_entry::size_at), [72, 80, 80, 88, 88, 88, 88]);
    assert_eq!(sizes(fi_mr_attr::size_at), [48, 64, 80, 96, 112, 112, 112]);
    // It holds one of those before it, and did not exist at first.
    assert_eq!(sizes(fi_mr_modify::size_at), [0, 72, 88, 104, 120, 120, 120]);
}

#[test]
fn a_field_is_read_only_of_a_caller_that_has_it() {
    let level = |text: &str| text.parse::<Level>().unwrap();
    let entry = fi_cq_err_entry {
        err_data_size: 3,
        src_addr: 4,
        ..Layout::zeroed()
    };
    let pointer = &raw const entry;
    for (release, expected) in [
        ("1.4", (None, None)),
        ("1.9", (Some(3), None)),
        ("1.20", (Some(3), Some(4))),
    ] {
        // SAFETY: the structure is whole.
        let size = unsafe { field_at!(pointer, fi_cq_err_entry, err_data_size, level(release)) };
        // SAFETY: the structure is whole.
        let source = unsafe { field_at!(pointer, fi_cq_err_entry, src_addr, level(release)) };
        assert_eq!((size, source), expected, "{release}");
    }
}

#[test]
fn every_list_names_each_thing_once_and_fields_lie_in_their_structure() {
    let mut names: Vec<&str> = structures()
        .chain(tables())
        .map(|structure| structure.name)
        .collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    for structure in structures().chain(tables()) {
        let end = structure
            .fields
            .iter()
            .map(|field| field.offset + field.size)
            .max()
            .unwrap();
        assert!(end <= structure.size, "{}", structure.name);
        assert_eq!(
            structure.size_at(Level::NEXT),
            structure.size,
            "{}",
            structure.name
        );
    }
}
