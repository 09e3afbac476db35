//! The benchmark for the MPIs, over an MPI of one process that watches its buffers (`tests/fake_mpi`).

use std::path::Path;
use std::process::Command;

use doorbell_testing::skipped;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// Compiles it; why that cannot be done here.
fn compiled(program: &Path) -> Result<(), String> {
    let built = Command::new("cc")
        .args(["-O1", "-Wall", "-Wno-unused-function", "-Werror", "-I"])
        .arg(format!("{FOLDER}/tests/fake_mpi"))
        .arg("-o")
        .arg(program)
        .arg(format!("{FOLDER}/peers/mpi_pair.c"))
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Ok(())
}

#[test]
fn what_is_sent_never_changes_and_is_received_into_other_memory() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("mpi_pair");
    if let Err(why) = compiled(&program) {
        return skipped(
            "what_is_sent_never_changes_and_is_received_into_other_memory",
            &why,
        );
    }
    for rank in ["0", "1"] {
        for kind in ["latency", "stream", "blocking", "overlap"] {
            let ended = Command::new(&program)
                .args([kind, "0.001", "4", "100", "0", "8:10", "65536:10"])
                .env("FAKE_RANK", rank)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success(), "rank {rank}, {kind}: {said}");
            let told = String::from_utf8_lossy(&ended.stdout);
            let rows = told
                .lines()
                .filter(|line| line.starts_with(&format!("row {kind} bytes=")));
            assert_eq!(rows.count(), if rank == "0" { 2 } else { 0 }, "{told}");
            if rank == "0" {
                assert!(told.starts_with("library Fake MPI 1\nread_ns "), "{told}");
            }
        }
    }
}
