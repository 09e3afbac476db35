//! A minute of the soak over a modelled VIC, with programs as they are built for tests. It takes the minute
//! that the others together do not, and so is run by name: `cargo test --workspace --test soak -- --ignored`.

use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "takes a minute; a step of its own in `cargo xtask test`"]
fn a_minute_of_mixed_traffic_breaks_nothing_and_lets_nothing_grow() {
    let soak = Path::new(env!("CARGO_BIN_EXE_doorbell-soak"));
    // The tests of all packages have built it.
    let doorbell = soak.with_file_name("doorbell");
    assert!(
        doorbell.exists(),
        "{} is not built: `cargo build --workspace --bins`",
        doorbell.display()
    );
    let ended = Command::new(soak)
        .args(["usnic", "--minutes", "1", "--program"])
        .arg(doorbell)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    print!("{said}");
    assert!(
        ended.status.success() && said.contains("0 violations"),
        "{}: {said}{}",
        ended.status,
        String::from_utf8_lossy(&ended.stderr)
    );
}
