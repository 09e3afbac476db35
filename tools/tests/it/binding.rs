//! The cores that the threads of ranks have: chosen by `doorbell run`, taken from other launchers, refused,
//! shown.

use std::path::PathBuf;
use std::sync::OnceLock;

use doorbell_bench::pin;
use doorbell_testing::skipped;
use serde_json::Value;

use crate::common::{clean, doorbell, sentence};
use crate::launchers::{Launcher, example, hydra, job, lacking, open_mpi, run, text};

/// The example that prints the cores of both threads.
fn binding() -> PathBuf {
    static FRESH: OnceLock<PathBuf> = OnceLock::new();
    FRESH.get_or_init(|| example("binding")).clone()
}

/// Two cores that this process may use: the first two in the order in which ranks take them.
fn two_cores(test: &str) -> Option<[usize; 2]> {
    match pin::apart()[..] {
        [one, two, ..] => Some([one, two]),
        _ => {
            skipped(test, "one core: two threads of a rank have to share it");
            None
        }
    }
}

/// The lines of the ranks of `doorbell run … binding`, in order, and the standard error.
fn under_run(flags: &[&str], variables: &[(&str, &str)]) -> (Vec<String>, String) {
    let out = doorbell()
        .args(["run", "--no-prefix"])
        .args(flags)
        .arg("--")
        .arg(binding())
        .env("DOORBELL_PROGRESS", "dedicated")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = text(&out.stderr);
    assert!(out.status.success(), "{said}");
    let mut lines: Vec<String> = text(&out.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    (lines, said)
}

#[test]
fn each_rank_s_two_threads_have_different_cores() {
    let Some([one, two]) = two_cores("binding::each_rank_s_two_threads_have_different_cores") else {
        return;
    };
    let line =
        |rank: u32, own: usize, progress: usize| format!("rank {rank}: own {own}, progress {progress}");
    for flags in [&["-n", "1", "--cores-per-rank", "2"][..], &["-n", "1"]] {
        let (lines, said) = under_run(flags, &[]);
        assert_eq!((lines, said.as_str()), (vec![line(0, one, two)], ""), "{flags:?}");
    }
    let whole = doorbell_fabric::cores::Topology::read().whole_cores();
    if whole >= 4 {
        let (lines, said) = under_run(&["-n", "2", "--cores-per-rank", "2"], &[]);
        let mut cores: Vec<String> = lines
            .iter()
            .flat_map(|line| {
                line.split([' ', ','])
                    .filter(|word| word.parse::<usize>().is_ok())
            })
            .map(str::to_owned)
            .collect();
        cores.sort();
        cores.dedup();
        assert!(cores.len() == 4 && said.is_empty(), "{lines:?} {said}");
    }
}

#[test]
fn threads_that_share_a_core_say_so_once() {
    let Some([one, two]) = two_cores("binding::threads_that_share_a_core_say_so_once") else {
        return;
    };
    // By request, one core for each rank: both threads are there.
    let (lines, said) = under_run(&["-n", "2", "--bind", "core"], &[]);
    assert_eq!(
        lines,
        [
            format!("rank 0: own {one}, progress {one}"),
            format!("rank 1: own {two}, progress {two}")
        ]
    );
    assert!(
        said.lines().count() == 1
            && said.contains("no core of its own")
            && said.contains(&format!("core {one}")),
        "{said}"
    );
    // By name, each on the other rank's core.
    if pin::allowed().len() == 2 {
        let list = format!("{two},{one}");
        let (lines, said) = under_run(
            &["-n", "2", "--bind", "none"],
            &[("DOORBELL_PROGRESS_CORE", &list)],
        );
        assert_eq!(
            lines,
            [
                format!("rank 0: own {one}, progress {two}"),
                format!("rank 1: own {two}, progress {one}")
            ]
        );
        assert!(
            said.lines().count() == 1 && said.contains("share 2 cores"),
            "{said}"
        );
    }
}

#[test]
fn reports_have_the_binding_and_whether_a_core_is_shared() {
    let out = doorbell()
        .args([
            "pingpong",
            "--mode",
            "dedicated",
            "--sizes",
            "8",
            "--samples",
            "50",
            "--json",
            "-",
        ])
        .assert()
        .success();
    let out = out.get_output();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let environment = &report["environment"];
    let doubts = environment["doubts"].as_array().unwrap();
    let is_crowded = doubts.iter().any(|doubt| doubt["code"] == "crowded");
    let is_few = doorbell_fabric::cores::Topology::read().usable().len() < 4;
    assert_eq!(is_crowded, is_few, "{doubts:?}");
    assert_eq!(text(&out.stderr).contains("no core of its own"), is_few);
    for rank in environment["ranks"].as_array().unwrap() {
        assert_eq!(rank["core"] == rank["progress_core"], is_few, "{rank}");
        assert_eq!(rank["shares"].is_string(), is_few, "{rank}");
    }
}

#[test]
fn too_few_cores_are_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("started");
    let out = doorbell()
        .args(["run", "-n", "1024", "--cores-per-rank", "1024", "--", "touch"])
        .arg(&file)
        .assert()
        .code(2);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("1024 ranks with 1024 cores each need 1048576") && said.contains("start fewer ranks"),
        "{said}"
    );
    assert!(!file.exists());
    for (flags, part) in [
        (&["--cores-per-rank", "2", "--bind", "none"][..], "`--bind none`"),
        (&["--json"], "--show-binding"),
    ] {
        let out = doorbell()
            .args(["run", "-n", "1"])
            .args(flags)
            .args(["--", "true"])
            .assert()
            .code(2);
        let said = text(&out.get_output().stderr);
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn the_binding_is_shown_before_or_instead_of_a_job() {
    let shown = |flags: &[&str]| {
        let out = doorbell()
            .args(["run", "-n", "1", "--show-binding"])
            .args(flags)
            .assert();
        let out = out.success();
        (text(&out.get_output().stdout), text(&out.get_output().stderr))
    };
    let (table, _) = shown(&[]);
    assert!(
        table.contains("rank   own  progress") && table.contains("whole cores"),
        "{table}"
    );
    let (json, _) = shown(&["--json"]);
    let schema = include_str!("../../../bench/schema/binding-1.schema.json");
    let rules = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let faults: Vec<String> = rules.iter_errors(&json).map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(json["ranks"][0]["own"], pin::apart()[0]);
    // The standard output is the program's.
    let (out, said) = shown(&["--no-prefix", "--", "echo", "here"]);
    assert_eq!((out.as_str(), said.trim_end()), ("here\n", table.trim_end()));
}

/// The line of one rank under a launcher that gives it two cores.
fn one_with_two_cores(launcher: &Launcher, words: &[&str]) {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = job(launcher, 1, scratch.path());
    command.args(words).arg(binding());
    command.env("DOORBELL_PROGRESS", "dedicated");
    let out = run(command);
    let (shown, said) = (text(&out.stdout), text(&out.stderr));
    let cores = shown
        .trim()
        .strip_prefix("rank 0: own ")
        .and_then(|rest| rest.split_once(", progress "));
    let (own, progress) = cores.unwrap_or_else(|| panic!("{shown} {said}"));
    assert!(own != progress && progress.parse::<usize>().is_ok(), "{shown}");
}

/// The refusal of two ranks under a launcher that gives each one core.
fn two_with_one_core(launcher: &Launcher, words: &[&str], option: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = job(launcher, 2, scratch.path());
    command.args(words).arg(binding());
    command.env("DOORBELL_PROGRESS", "dedicated");
    let out = run(command);
    let said = text(&out.stderr);
    assert!(!out.status.success() && said.contains(option), "{said}");
    assert!(said.contains("alone, and it has two threads"), "{said}");
}

#[test]
fn what_other_launchers_have_bound_is_divided_or_refused_with_their_option() {
    if let Some(why) = lacking() {
        return skipped(
            "binding::what_other_launchers_have_bound_is_divided_or_refused_with_their_option",
            &why,
        );
    }
    if two_cores("binding::what_other_launchers_have_bound_is_divided_or_refused_with_their_option").is_none()
    {
        return;
    }
    let bind = ["--bind-to", "core"];
    one_with_two_cores(&open_mpi(), &["--map-by", "slot:pe=2", bind[0], bind[1]]);
    two_with_one_core(&open_mpi(), &bind, "`mpirun --map-by slot:pe=2`");
    one_with_two_cores(&hydra(), &["-bind-to", "core:2"]);
    two_with_one_core(&hydra(), &["-bind-to", "core:1"], "`mpiexec -bind-to core:2`");
}

#[test]
fn a_mask_of_the_user_is_obeyed() {
    let Some([one, _]) = two_cores("binding::a_mask_of_the_user_is_obeyed") else {
        return;
    };
    if !crate::launchers::on_path("taskset") {
        return skipped(
            "binding::a_mask_of_the_user_is_obeyed",
            "package util-linux: taskset not found",
        );
    }
    let out = clean(PathBuf::from("taskset"))
        .args(["-c", &one.to_string()])
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["run", "-n", "1", "--cores-per-rank", "2", "--", "true"])
        .output()
        .unwrap();
    let said = text(&out.stderr);
    assert!(
        out.status.code() == Some(2) && said.contains(&format!("1 is here (cores {one} of ")),
        "{said}"
    );
}
