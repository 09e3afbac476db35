//! C programs of Portals 4, on `libportals`, as ranks of `doorbell run`. (Under other launchers:
//! am/portals/abi/tests.)

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{doorbell, is_fresh};
use crate::launchers::on_path;
use doorbell_testing::skipped;

/// The folder of the library, which none of our programs links and cargo so does not build for them.
fn library() -> PathBuf {
    let program = assert_cmd::cargo::cargo_bin("doorbell");
    let folder = program.parent().unwrap().to_owned();
    if !is_fresh(&folder.join("libportals.so")) {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--locked", "-p", "doorbell-portals-abi"]);
        let profile = folder.file_name().unwrap();
        if profile != "debug" {
            build.arg("--profile").arg(profile);
        }
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
    }
    folder
}

#[test]
fn c_programs_of_portals_run_as_ranks() {
    const TEST: &str = "portals::c_programs_of_portals_run_as_ranks";
    if !on_path("gcc") {
        return skipped(TEST, "package gcc: gcc not found");
    }
    let library = library();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../am/portals/abi");
    let folder = tempfile::tempdir().unwrap();
    for (name, ranks) in [("put", "2"), ("atomic", "4"), ("independent", "2")] {
        let program = folder.path().join(name);
        let built = Command::new("gcc")
            .args(["-std=gnu11", "-O1", "-pthread", "-I"])
            .arg(sources.join("include"))
            .arg(sources.join("tests/c").join(format!("{name}.c")))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&library)
            .arg(format!("-Wl,-rpath,{}", library.display()))
            .arg("-lportals")
            .output()
            .unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let ended = doorbell()
            .args(["run", "-n", ranks, "--"])
            .arg(&program)
            .output()
            .unwrap();
        assert!(
            ended.status.success(),
            "{name}: {}\n{}{}",
            ended.status,
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
    }
}
