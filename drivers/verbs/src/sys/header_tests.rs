//! The structures and numbers of this folder against the headers that are installed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use super::{abi, numbers};

/// A C program that prints a line for each structure, field and number: its name, and what it measures.
fn program() -> String {
    let mut text = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    let mut line = |name: &str, value: String| {
        writeln!(text, "    printf(\"{name} %lld\\n\", (long long) ({value}));").expect("memory");
    };
    for layout in abi::LAYOUTS {
        let name = layout.name;
        line(name, format!("sizeof(struct {name})"));
        for (field, _, _) in layout.fields {
            line(
                &format!("{name}.{field}@"),
                format!("offsetof(struct {name}, {field})"),
            );
            line(
                &format!("{name}.{field}"),
                format!("sizeof(((struct {name} *) 0)->{field})"),
            );
        }
    }
    for (name, _) in numbers::NUMBERS {
        line(name, (*name).to_owned());
    }
    text + "    return 0;\n}\n"
}

/// Everything that is declared here, by the names that the program prints.
fn ours() -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for layout in abi::LAYOUTS {
        let name = layout.name;
        all.insert(name.to_owned(), layout.size as i64);
        for (field, offset, size) in layout.fields {
            all.insert(format!("{name}.{field}@"), *offset as i64);
            all.insert(format!("{name}.{field}"), *size as i64);
        }
    }
    all.extend(
        numbers::NUMBERS
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value)),
    );
    all
}

#[test]
fn every_offset_size_and_number_is_that_of_the_installed_headers() {
    const NAME: &str = "every_offset_size_and_number_is_that_of_the_installed_headers";
    if !std::path::Path::new("/usr/include/infiniband/verbs.h").exists() {
        return doorbell_testing::skipped(NAME, "package libibverbs-dev: the headers are not installed");
    }
    let folder = std::env::temp_dir().join(format!("doorbell-verbs-headers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("measure.c"), folder.join("measure"));
    std::fs::write(&source, program()).unwrap();
    let compiled = Command::new("cc")
        .args(["-w", "-o"])
        .arg(&binary)
        .arg(&source)
        .output();
    let Ok(compiled) = compiled else {
        return doorbell_testing::skipped(NAME, "package gcc: there is no C compiler");
    };
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let printed = Command::new(&binary).output().unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    let mut theirs: BTreeMap<String, i64> = String::from_utf8(printed.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect();
    // Newer headers have a longer one, which the exported function does not fill.
    let port = theirs.get_mut("ibv_port_attr").expect("it was measured");
    *port = (*port).min(size_of::<abi::PortAttr>() as i64);
    let ours = ours();
    assert!(ours.len() > 250, "{} names", ours.len());
    assert_eq!(ours, theirs);
}
