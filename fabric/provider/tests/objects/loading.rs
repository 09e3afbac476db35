//! The file, and how libfabric's own programs see it.

use std::process::Command;

use doorbell_testing::skip::lacking;
use doorbell_testing::skipped;

use crate::alone::{folder, text, with_provider};

/// Runs a program with the provider; `None` where it is not installed.
fn run(test: &str, package: &str, program: &str, arguments: &[&str]) -> Option<String> {
    if let Some(reason) = lacking(program, package) {
        skipped(test, &reason);
        return None;
    }
    let mut command = Command::new(program);
    let output = with_provider(command.args(arguments)).output().unwrap();
    Some(text(&output, program))
}

#[test]
fn the_file_exports_one_symbol_and_needs_no_libfabric() {
    let test = "loading::the_file_exports_one_symbol_and_needs_no_libfabric";
    let file = folder().join("libdoorbell_fi.so");
    let file = file.to_str().unwrap();
    if let Some(symbols) = run(test, "binutils", "nm", &["-D", "--defined-only", file]) {
        let names: Vec<&str> = symbols
            .lines()
            .filter_map(|line| line.split(' ').next_back())
            .collect();
        assert_eq!(names, ["fi_prov_ini"]);
    }
    if let Some(entries) = run(test, "binutils", "readelf", &["-d", file]) {
        assert!(entries.contains("NODELETE"), "{entries}");
        assert!(!entries.contains("libfabric"), "{entries}");
    }
}

#[test]
fn fi_info_lists_it() {
    let test = "loading::fi_info_lists_it";
    let Some(listed) = run(test, "libfabric-bin", "fi_info", &["-p", "doorbell"]) else {
        return;
    };
    for line in [
        "provider: doorbell",
        "fabric: doorbell",
        "domain: shm",
        "type: FI_EP_RDM",
    ] {
        assert!(listed.contains(line), "{line} in {listed}");
    }
}

#[test]
fn fi_info_lists_each_parameter_with_a_sentence() {
    let test = "loading::fi_info_lists_each_parameter_with_a_sentence";
    let Some(listed) = run(test, "libfabric-bin", "fi_info", &["-e"]) else {
        return;
    };
    for name in [
        "RAILS",
        "CONFIG",
        "CLOSE",
        "PATIENCE",
        "UNEXPECTED",
        "BUFFER",
        "SPINS",
        "SHM_CMA",
    ] {
        let at = listed
            .find(&format!("FI_DOORBELL_{name}: "))
            .unwrap_or_else(|| panic!("{name} in {listed}"));
        let help = listed[at..].lines().nth(1).unwrap();
        assert!(
            help.trim().starts_with("# doorbell: ") && help.contains('.'),
            "{help}"
        );
    }
}

#[test]
fn a_rail_that_is_not_there_is_one_line_and_no_other_rail() {
    let test = "loading::a_rail_that_is_not_there_is_one_line_and_no_other_rail";
    if let Some(reason) = lacking("fi_info", "libfabric-bin") {
        return skipped(test, &reason);
    }
    for (rails, line) in [
        ("shm,udp:no-such-name", "udp:lo"),
        ("shm,shm", "twice"),
        ("ofi:tcp", "`ofi:tcp` would be this provider under itself"),
        ("sim:plane", "a simulated network lives in one process"),
        ("verbs:mlx5_0", "it names no port"),
        ("nothing", "(kinds: shm, udp, xdp, usnic, igbvf, verbs)"),
        ("usnic", "its name has no function behind the kind"),
        ("igbvf", "its name has no function behind the kind"),
        ("a\nFI_DOORBELL_RAILS", "`a\\nFI_DOORBELL_RAILS` is no value"),
    ] {
        let mut command = Command::new("fi_info");
        let output = with_provider(command.args(["-p", "doorbell"]))
            .env("FI_DOORBELL_RAILS", rails)
            .env("FI_LOG_LEVEL", "warn")
            .output()
            .unwrap();
        assert!(!output.status.success(), "{rails}");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours: Vec<&str> = printed
            .lines()
            .filter(|other| other.contains("FI_DOORBELL_RAILS"))
            .collect();
        assert!(ours.len() == 1 && ours[0].contains(line), "{rails}: {printed}");
    }
}

#[test]
fn a_setting_that_is_not_there_is_one_line_with_the_next_step() {
    let test = "loading::a_setting_that_is_not_there_is_one_line_with_the_next_step";
    if let Some(reason) = lacking("fi_info", "libfabric-bin") {
        return skipped(test, &reason);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("d.toml");
    for (text, line) in [
        ("[pml]\neagr = 1\n", "the nearest is `pml.eager`"),
        (
            "[zzzz]\nzzzzzzzzzz = 1\n",
            "there is no setting `zzzz.zzzzzzzzzz`",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("fi_info");
        let output = with_provider(command.args(["-p", "doorbell"]))
            .env("FI_DOORBELL_CONFIG", &file)
            .env("FI_LOG_LEVEL", "warn")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours = printed.lines().find(|line| line.contains("there is no setting"));
        let ours = ours.unwrap_or_else(|| panic!("{printed}"));
        assert!(
            ours.contains(line) && ours.contains("`doorbell info --config`"),
            "{ours}"
        );
    }
}
