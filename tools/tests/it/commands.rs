//! Every command: help with examples, output that parses, errors of one sentence, exit statuses.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{doorbell, sentence};
use doorbell_fabric::pcapng::{Block, Blocks};
use serde_json::Value;

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)))
}

fn schema() -> jsonschema::Validator {
    let text = include_str!("../../../bench/schema/bench-1.schema.json");
    jsonschema::validator_for(&json(text.as_bytes())).unwrap()
}

#[test]
fn two_names_of_one_interface_are_no_two_rails() {
    let out = doorbell()
        .args([
            "stream",
            "--rail",
            "udp:lo",
            "--rail",
            "udp:127.0.0.1",
            "--sizes",
            "8",
        ])
        .args(["--samples", "10"])
        .output()
        .unwrap();
    let said = sentence(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(
        said.contains("`udp:lo` and `udp:127.0.0.1` are the same interface"),
        "{said}"
    );
    for (words, told) in [
        (
            &["--rail", "shm", "--rail", "shm"][..],
            "(--rail): expected each rail once",
        ),
        (&["--rail", "shm,udp:lo"], "--rail once for each rail"),
    ] {
        let out = doorbell().arg("stream").args(words).output().unwrap();
        let said = sentence(&out.stderr);
        assert!(out.status.code() == Some(2) && said.contains(told), "{said}");
    }
    let out = doorbell()
        .args(["why", "::1", "--rail", "udp:[::1]"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("udp:::1"), "{said}{}", sentence(&out.stderr));
}

#[test]
fn help_shows_examples_and_version_the_version() {
    for command in ["run", "info", "pingpong", "stream", "rate", "compare"] {
        let out = doorbell().args([command, "--help"]).assert().success();
        let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
        assert!(
            text.contains("Examples:")
                && text.contains(&format!("doorbell {command}"))
                && text.contains("128 + n"),
            "{text}"
        );
    }
    let out = doorbell().arg("--help").assert().success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    assert!(
        text.contains("Exit status") && !text.contains("exec-rank"),
        "{text}"
    );
    let out = doorbell().arg("--version").assert().success();
    assert!(out.get_output().stdout.starts_with(b"doorbell 0."));
}

#[test]
fn wrong_usage_names_the_nearest_right_one() {
    let cases: [(&[&str], &str); 32] = [
        (&["pingpong", "--rate", "0"], "from 1 to 1G"),
        (&["pingpong", "--rate", "fast"], "200k"),
        (&["pingpong", "--rate", "5", "--open-loop"], "cannot be used with"),
        (&["stream", "--rate", "5"], "--rate"),
        (&["compare", "a.json"], "SECOND"),
        (&["pingpong", "--spoil", "5"], "--verify"),
        (&["rate", "--verify", "--spoil", "0"], "a whole number from 1"),
        (&["pinpong"], "pingpong"),
        (&["pingpnog"], "exists: 'pingpong'"),
        (&["help", "pingpnog"], "exists: 'pingpong'"),
        (&["counters", "abc"], "give the number of a process"),
        (&["why", "1", "--job", "-5"], "give the number of a process"),
        (&["doctor", "--peer", "node7"], "give an address and no name"),
        (&["acm", "serve", "--tcp", "x"], "a whole number from 0 to 65535"),
        (&["pingpong", "--size", "8"], "--sizes"),
        (&["pingpong", "--rail", "shmem"], "shm"),
        (&["pingpong", "--sizes", "0"], "at least one byte"),
        (&["pingpong", "--sizes", "8,,9"], "not a message size"),
        (&["pingpong", "--seconds", "0"], "above 0"),
        (
            &["pingpong", "--seconds", "1", "--samples", "9"],
            "cannot be used with",
        ),
        (&["pingpong", "--plot", "x.png"], ".svg or .html"),
        (&["pingpong", "--json", "-", "--csv", "-"], "only one output"),
        (&["stream", "--cores", "0,99999"], "99999"),
        (&["stream", "--cores", "a,b"], "two cores by their numbers"),
        (&["pingpong", "--sizes", "-1"], "below one byte"),
        (&["pingpong", "--seconds", "-1"], "above 0"),
        (&["pingpong", "--samples", "x"], "a whole number from 1"),
        (&["run", "-n", "x", "--", "true"], "a whole number from 1 to 1024"),
        (&["pingpong", "--window", "5"], "--window"),
        (&["stream", "--hgrm", "x"], "--hgrm"),
        (&["stream", "--posted", "5"], "--posted"),
        (&["rate", "--posted", "5", "--window", "5"], "cannot be used with"),
    ];
    for (args, word) in cases {
        let out = doorbell().args(args).assert().code(2);
        let said = sentence(&out.get_output().stderr);
        assert!(said.contains(word), "{args:?}: {said}");
        assert!(out.get_output().stdout.is_empty());
    }
}

/// The table at `doorbell_fabric::error::Exit`.
#[test]
fn files_and_devices_that_are_not_there_end_with_the_status_of_the_table() {
    let cases: [(&[&str], i32); 12] = [
        (&["compare", "/nosuch0/a.json", "/nosuch0/b.json"], 2),
        (&["key", "/nosuch0/job.key"], 2),
        (
            &[
                "pingpong",
                "--connect",
                "127.0.0.1",
                "--key-file",
                "/nosuch0/job.key",
            ],
            2,
        ),
        (&["pingpong", "--json", "/nosuch0/a.json"], 2),
        (&["acm", "serve", "--socket", "/nosuch0/socket"], 2),
        (&["pingpong", "--rail", "udp:nosuch0"], 3),
        (&["run", "-n", "1", "--rail", "xdp:nosuch0", "--", "true"], 3),
        (&["pingpong", "--rail", "usnic:model/nosuch0/vf0"], 3),
        (&["agent", "usnic", "--pf", "model/nosuch0/pf"], 3),
        // These judge it, and their verdict is no.
        (&["doctor", "udp:nosuch0"], 1),
        (&["links", "--rail", "udp:nosuch0"], 1),
        (&["why", "127.0.0.1", "--rail", "udp:nosuch0"], 1),
    ];
    for (args, status) in cases {
        let out = doorbell().args(args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{args:?}: {said}");
    }
}

#[test]
fn a_rail_that_cannot_be_used_is_refused_before_any_traffic() {
    let out = doorbell()
        .args(["pingpong", "--rail", "udp:nosuch0", "--sizes", "8"])
        .assert()
        .code(3);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("udp:nosuch0") && said.trim().lines().count() == 1,
        "{said}"
    );
}

#[test]
fn a_bad_name_of_a_verbs_rail_is_one_sentence() {
    let devices = std::fs::read_dir("/sys/class/infiniband_verbs");
    let has_devices = devices.into_iter().flatten().flatten().count() > 0;
    for (name, word) in [
        ("verbs", "it names no device"),
        ("verbs:", "it names no device"),
        ("verbs:nosuch", "it names no port"),
        ("verbs:nosuch9:0", "ports are counted from 1"),
        ("verbs:nosuch9:1", "no RDMA device"),
        ("verbs:nosuch9:1:rc2", "what follows its port is not `ud`"),
        ("verbs:eth0", "it names no port"),
        ("verbs:nosuch9:1:ud", "no RDMA device"),
    ] {
        let out = doorbell()
            .args(["pingpong", "--rail", name, "--sizes", "8"])
            .assert()
            .code(3);
        let said = sentence(&out.get_output().stderr);
        assert!(
            said.contains(word) && said.trim().lines().count() == 1,
            "{name}: {said}"
        );
        // Beside devices, the nearest name; without one, how names look or how a device is made.
        let valid = if has_devices {
            "verbs:"
        } else {
            "name verbs:DEVICE:PORT, or verbs:DEVICE:PORT:ud"
        };
        assert!(
            said.contains(valid) || said.contains("rdma link add"),
            "{name}: {said}"
        );
    }
    let out = doorbell()
        .args(["pingpong", "--rail", "verbs:nosuch9:1:ud"])
        .env("DOORBELL_VERBS_SEND", "100")
        .assert()
        .code(2);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("verbs.send") && said.contains("from 64 to 16384"),
        "{said}"
    );
}

#[test]
fn info_lists_every_kind_with_its_reason() {
    let out = doorbell().arg("info").assert().success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    for kind in [
        "shm", "udp", "xdp", "usnic", "igbvf", "verbs", "ofi", "portals", "sim",
    ] {
        assert!(text.lines().any(|line| line.starts_with(kind)), "{kind}: {text}");
    }
    let out = doorbell().args(["info", "--json"]).assert().success();
    let info = json(&out.get_output().stdout);
    assert_eq!(info["schema"], "doorbell.info/1");
    let shm = info["kinds"]
        .as_array()
        .unwrap()
        .iter()
        .find(|kind| kind["kind"] == "shm")
        .unwrap();
    assert_eq!(shm["candidates"][0]["verdict"]["is"], "usable");
}

#[test]
fn settings_are_shown_with_their_origin() {
    let out = doorbell()
        .args(["info", "--config"])
        .env("DOORBELL_EAGER", "2048")
        .assert()
        .success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("pml.eager")).unwrap();
    assert!(line.contains("DOORBELL_EAGER"), "{line}");
    let out = doorbell().args(["info", "--config", "--json"]).assert().success();
    let listed = json(&out.get_output().stdout);
    assert!(
        listed
            .as_array()
            .unwrap()
            .iter()
            .all(|line| line["origin"] == "default")
    );
}

#[test]
fn an_unknown_variable_is_a_warning_with_the_nearest_once_per_tree_of_processes() {
    let run = |words: &[&str]| {
        let mut command = doorbell();
        command
            .args(words)
            .env("DOORBELL_EAGRE", "1")
            .env("DOORBELL_SERVICE_HOST", "10.96.0.7")
            .env("DOORBELL_SERVICE_PORT", "7")
            .env("DOORBELL_PORT", "tcp://10.96.0.7:7");
        let out = command.assert().code(0);
        let said = sentence(&out.get_output().stderr);
        assert_eq!(said.matches("DOORBELL_EAGRE").count(), 1, "{words:?}: {said}");
        assert!(
            said.contains("the nearest is `DOORBELL_EAGER`"),
            "{words:?}: {said}"
        );
        assert_eq!(said.matches("enableServiceLinks").count(), 1, "{words:?}: {said}");
        String::from_utf8_lossy(&out.get_output().stdout).into_owned()
    };
    let own = env!("CARGO_BIN_EXE_doorbell");
    run(&["info"]);
    run(&["pingpong", "--rail", "shm", "--sizes", "8", "--seconds", "0.05"]);
    run(&["links", "--rail", "shm", "--rail", "udp:lo"]);
    // Programs of a job that read the settings themselves, one after the other; their variables are as they
    // were.
    let script = format!("{own} info --config; {own} info --config; echo $DOORBELL_PORT");
    let out = run(&["run", "-n", "2", "--no-prefix", "--", "sh", "-c", &script]);
    assert_eq!(out.matches("tcp://10.96.0.7:7").count(), 2, "{out}");
    let out = run(&[
        "run",
        "-n",
        "2",
        "--hosts",
        "localhost:2",
        "--",
        "sh",
        "-c",
        &script,
    ]);
    assert_eq!(out.matches("tcp://10.96.0.7:7").count(), 2, "{out}");
}

#[test]
fn a_known_variable_with_a_bad_value_stays_an_error_beside_unknown_ones() {
    let out = doorbell()
        .arg("info")
        .env("DOORBELL_EAGRE", "1")
        .env("DOORBELL_EAGER", "much")
        .assert()
        .code(2);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("`much` is no value for pml.eager ($DOORBELL_EAGER)"),
        "{said}"
    );
}

#[test]
fn a_short_pingpong_reports_by_schema_and_writes_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let out = doorbell()
        .args([
            "pingpong",
            "--sizes",
            "8,4Ki",
            "--samples",
            "2000",
            "--json",
            "-",
            "--csv",
        ])
        .arg(file("x.csv"))
        .arg("--hgrm")
        .arg(file("x.hgrm"))
        .arg("--hlog")
        .arg(file("x.hlog"))
        .arg("--plot")
        .arg(file("x.html"))
        .assert()
        .success();
    let report = json(&out.get_output().stdout);
    let faults: Vec<String> = schema()
        .iter_errors(&report)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(
        (report["rail"].as_str(), report["results"][1]["bytes"].as_u64()),
        (Some("shm"), Some(4096))
    );
    assert!(report["results"][0]["half_rtt_ns"]["p99"].is_number());
    assert!(report["results"][0]["half_rtt_ns"]["p9999"].is_null());
    let text = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    assert_eq!(text("x.csv").lines().count(), 3);
    assert!(text("x.hgrm").contains("bytes=4096") && text("x.hlog").contains("Tag=bytes=8;pair=0-1"));
    assert!(text("x.html").contains("<svg") && text("x.html").ends_with("</html>\n"));
}

#[test]
fn the_table_names_cores_clock_rail_and_doubts_above_the_rows() {
    let out = doorbell()
        .args(["pingpong", "--sizes", "8", "--samples", "1000"])
        .assert()
        .success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    let starts: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let at = |word: &str| {
        starts
            .iter()
            .position(|start| *start == word)
            .unwrap_or_else(|| panic!("{word}: {text}"))
    };
    assert!(at("cores") < at("clock") && at("clock") < at("rail") && at("rail") < at("size"));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn streams_and_rates_report_by_schema() {
    for (command, size) in [("stream", "64Ki"), ("rate", "8")] {
        let out = doorbell()
            .args([
                command,
                "--sizes",
                size,
                "--samples",
                "500",
                "--window",
                "16",
                "--json",
                "-",
            ])
            .assert()
            .success();
        let report = json(&out.get_output().stdout);
        assert!(schema().is_valid(&report));
        assert_eq!(
            (report["kind"].as_str(), report["window"].as_u64()),
            (Some(command), Some(16))
        );
        assert!(report["results"][0]["messages_per_second"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn every_load_can_be_verified_and_a_damaged_message_is_the_verdict() {
    for command in ["pingpong", "stream", "rate"] {
        let verify = |flags: &[&str], code: i32| {
            let out = doorbell()
                .args([
                    command,
                    "--sizes",
                    "1,8,4Ki,16Ki,128Ki",
                    "--samples",
                    "300",
                    "--verify",
                    "--json",
                    "-",
                ])
                .args(flags)
                .assert()
                .code(code);
            let report = json(&out.get_output().stdout);
            let faults: Vec<String> = schema()
                .iter_errors(&report)
                .map(|fault| fault.to_string())
                .collect();
            assert!(faults.is_empty(), "{faults:#?}");
            (report, sentence(&out.get_output().stderr))
        };
        let (report, _) = verify(&[], 0);
        for row in report["results"].as_array().unwrap() {
            let verified = &row["verified"];
            assert!(verified["messages"].as_u64().unwrap() >= 300, "{verified}");
            for fault in ["lost", "duplicated", "misordered", "corrupt"] {
                assert_eq!(verified[fault], 0, "{command}: {verified}");
            }
        }
        let (report, said) = verify(&["--spoil", "20"], 1);
        for row in report["results"].as_array().unwrap() {
            let verified = &row["verified"];
            assert!(
                verified["corrupt"].as_u64().unwrap() >= 5,
                "{command}: {verified}"
            );
            assert_eq!(verified["lost"], 0, "{command}: {verified}");
        }
        assert!(
            said.contains("did not deliver every message of 8 bytes") && said.contains("as --spoil makes it"),
            "{said}"
        );
    }
    let out = doorbell()
        .args(["rate", "--posted", "64", "--samples", "500", "--verify"])
        .assert()
        .success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    assert!(
        text.contains("verified: ") && text.contains(" 0 lost, 0 duplicated"),
        "{text}"
    );
}

#[test]
fn an_open_loop_shows_both_times_side_by_side() {
    let out = doorbell()
        .args([
            "pingpong",
            "--sizes",
            "64",
            "--rate",
            "2k",
            "--seconds",
            "0.4",
            "--json",
            "-",
        ])
        .assert()
        .success();
    let report = json(&out.get_output().stdout);
    let faults: Vec<String> = schema()
        .iter_errors(&report)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let row = &report["results"][0];
    assert_eq!(row["open"]["asked_per_second"], 2_000.0);
    assert!(
        row["rtt_ns"]["p50"].as_f64() >= row["open"]["actual_rtt_ns"]["p50"].as_f64(),
        "{row}"
    );
    assert!(row["half_rtt_ns"]["p50"].is_null() && row["open"]["knee_per_second"].is_null());
    let out = doorbell()
        .args([
            "pingpong",
            "--sizes",
            "8",
            "--open-loop",
            "--seconds",
            "0.2",
            "--verify",
        ])
        .assert()
        .success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    for word in ["asked/s", "a.p99", "knee at 8 B: ", "verified: "] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_generator_that_cannot_keep_up_is_reported() {
    let out = doorbell()
        .args(["pingpong", "--sizes", "8", "--rate", "500M", "--seconds", "0.1"])
        .assert()
        .success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("of 8 B were requested and") && words.contains("never left"),
        "{text}"
    );
    assert!(
        words.contains("the generator could not keep up") || words.contains("the queue grows"),
        "{text}"
    );
}

#[test]
fn one_way_comes_with_its_bound_or_with_a_reason() {
    let out = doorbell()
        .args([
            "pingpong",
            "--sizes",
            "4Ki",
            "--samples",
            "1000",
            "--one-way",
            "--json",
            "-",
        ])
        .assert()
        .success();
    let report = json(&out.get_output().stdout);
    assert!(schema().is_valid(&report));
    let one_way = &report["results"][0]["one_way"];
    if one_way.is_null() {
        assert!(report["environment"]["no_one_way"].is_string(), "{report}");
    } else {
        assert!(one_way["bound_ns"].as_f64().unwrap() > 0.0, "{one_way}");
        assert!(
            one_way["clocks"].as_str().unwrap().contains("one clock"),
            "{one_way}"
        );
    }
}

#[test]
fn two_reports_are_compared_or_refused_with_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let measure = |name: &str, samples: &str, flags: &[&str]| {
        let args = ["pingpong", "--samples", samples, "--sizes", "8,1Ki", "--json"];
        doorbell()
            .args(args)
            .arg(file(name))
            .args(flags)
            .assert()
            .success();
    };
    measure("a.json", "4000", &[]);
    measure("other.json", "50", &["--no-cma", "--mode", "dedicated"]);
    let compare = |a: &str, b: &str, code: &[i32]| {
        let out = doorbell()
            .arg("compare")
            .args([file(a), file(b)])
            .args(["--json", "-"])
            .output()
            .unwrap();
        assert!(code.contains(&out.status.code().unwrap()), "{a} {b}: {out:?}");
        (out.stdout, sentence(&out.stderr))
    };
    // With itself: nothing can be worse.
    let (out, _) = compare("a.json", "a.json", &[0]);
    let comparison = json(&out);
    let text = include_str!("../../../bench/schema/compare-1.schema.json");
    let rules = jsonschema::validator_for(&json(text.as_bytes())).unwrap();
    let faults: Vec<String> = rules
        .iter_errors(&comparison)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(
        comparison["lines"]
            .as_array()
            .unwrap()
            .iter()
            .all(|line| line["finding"] == "same")
    );
    // Twice as slow: worse; the other way round better.
    let slow = |value: &mut Value, by: f64| {
        for row in value["results"].as_array_mut().unwrap() {
            let scale = |value: &mut Value| {
                for (_, ns) in value.as_object_mut().unwrap() {
                    *ns = ns.as_f64().map_or(Value::Null, |ns| (ns * by).into());
                }
            };
            scale(&mut row["rtt_ns"]);
            scale(&mut row["half_rtt_ns"]);
            row["repeats"].as_array_mut().unwrap().iter_mut().for_each(scale);
        }
    };
    let mut report = json(&std::fs::read(file("a.json")).unwrap());
    // Its own noise, whatever this machine does meanwhile: slices that are alike.
    for row in report["results"].as_array_mut().unwrap() {
        let repeats = row["repeats"].as_array_mut().unwrap();
        let first = repeats[0].clone();
        repeats.iter_mut().for_each(|repeat| *repeat = first.clone());
    }
    let write = |name: &str, value: &Value| std::fs::write(file(name), value.to_string()).unwrap();
    write("base.json", &report);
    slow(&mut report, 2.0);
    write("slow.json", &report);
    let (out, _) = compare("base.json", "slow.json", &[1]);
    assert!(json(&out)["worse"].as_u64().unwrap() >= 2);
    let (out, _) = compare("slow.json", "base.json", &[0]);
    assert!(json(&out)["better"].as_u64().unwrap() >= 2);
    // What cannot be compared.
    write("strange.json", &serde_json::json!({"schema": "doorbell.info/1"}));
    std::fs::write(file("garbage.json"), "{").unwrap();
    for (b, word) in [
        ("other.json", "the modes of progress differ"),
        ("strange.json", "doorbell.info/1"),
        ("garbage.json", "it is no JSON"),
        ("missing.json", "No such file"),
    ] {
        let (out, said) = compare("a.json", b, &[2]);
        assert!(
            out.is_empty() && said.contains(word) && said.lines().count() == 1,
            "{b}: {said}"
        );
    }
    let out = doorbell()
        .arg("compare")
        .args([file("base.json"), file("slow.json")])
        .assert()
        .code(1);
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    assert!(
        text.contains("WORSE") && text.contains("order statistics"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn modes_and_copies_can_be_chosen() {
    for flags in [&["--no-cma", "--no-reference"][..], &["--mode", "dedicated"][..]] {
        let out = doorbell()
            .args(["pingpong", "--sizes", "64Ki", "--samples", "50", "--json", "-"])
            .args(flags)
            .assert()
            .success();
        let report = json(&out.get_output().stdout);
        let dedicated = flags.contains(&"dedicated");
        assert_eq!(report["environment"]["mode"] == "dedicated", dedicated);
        assert_eq!(report["environment"]["no_reference"].is_string(), !dedicated);
    }
}

#[test]
fn without_an_option_the_settings_hold() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("doorbell.toml");
    std::fs::write(&file, "[progress]\nmode = \"dedicated\"\n").unwrap();
    let file = file.to_str().unwrap();
    let measure = |variables: &[(&str, &str)], flags: &[&str]| {
        let out = doorbell()
            .args(["pingpong", "--sizes", "8", "--samples", "20", "--no-reference"])
            .args(["--json", "-"])
            .args(flags)
            .envs(variables.iter().copied())
            .assert()
            .success();
        json(&out.get_output().stdout)["environment"].clone()
    };
    let variable = ("DOORBELL_PROGRESS", "dedicated");
    assert_eq!(measure(&[], &[])["mode"], "inline");
    assert_eq!(measure(&[variable], &[])["mode"], "dedicated");
    assert_eq!(measure(&[("DOORBELL_CONFIG", file)], &[])["mode"], "dedicated");
    assert_eq!(measure(&[variable], &["--mode", "inline"])["mode"], "inline");
    // The core of the settings, and not one that was chosen here.
    let core = doorbell_bench::pin::allowed()[0];
    let named = measure(&[variable, ("DOORBELL_PROGRESS_CORE", &core.to_string())], &[]);
    for rank in named["ranks"].as_array().unwrap() {
        assert_eq!(rank["progress_core"], core, "{named}");
    }
    let am = measure(&[("DOORBELL_CONFIG", file)], &["--layer", "am"]);
    assert_eq!(am["mode"], "dedicated");
}

#[test]
fn under_run_the_ranks_work_in_pairs() {
    let program = assert_cmd::cargo::cargo_bin("doorbell");
    let out = doorbell()
        .args(["run", "-n", "4", "--no-prefix", "--"])
        .arg(&program)
        .args(["pingpong", "--sizes", "8", "--samples", "200", "--json", "-"])
        .assert()
        .success();
    let report = json(&out.get_output().stdout);
    let pairs: Vec<&Value> = report["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["pair"])
        .collect();
    assert_eq!(pairs, [&serde_json::json!([0, 1]), &serde_json::json!([2, 3])]);
    let out = doorbell()
        .args(["run", "-n", "3", "--"])
        .arg(&program)
        .args(["rate", "--samples", "10"])
        .assert()
        .code(2);
    assert!(sentence(&out.get_output().stderr).contains("3 leaves one over"));
}

#[test]
fn outputs_that_cannot_be_written_are_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_str().unwrap();
    let file = format!("{here}/x");
    let begun = Instant::now();
    let cases: [(&[&str], &str); 6] = [
        (
            &["pingpong", "--json", "/no/such/folder/x.json"],
            "/no/such/folder/x.json",
        ),
        (&["stream", "--csv", here], "is a folder"),
        (&["pingpong", "--hlog", "/no/x"], "--hlog"),
        (&["rate", "--plot", "/no/x.svg"], "--plot"),
        (&["pingpong", "--json", &file, "--csv", &file], "same file"),
        (
            &["compare", "--json", "/no/x", "a.json", "b.json"],
            "folder does not exist",
        ),
    ];
    for (args, word) in cases {
        let mut command = doorbell();
        command.args(args);
        if args[0] != "compare" {
            command.args(["--sizes", "8", "--seconds", "60"]);
        }
        let out = command.assert().code(2);
        let said = sentence(&out.get_output().stderr);
        assert!(
            said.contains(word) && said.trim().lines().count() == 1,
            "{args:?}: {said}"
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_full_standard_output_is_an_error() {
    let program = assert_cmd::cargo::cargo_bin("doorbell");
    for args in [
        &["info"][..],
        &["--help"],
        &["pingpong", "--help"],
        &["run", "-n", "2", "--", "echo", "hi"],
        &["pingpong", "--sizes", "8", "--samples", "10", "--json", "-"],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended = Command::new(&program)
            .args(args)
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = sentence(&ended.stderr);
        assert_eq!(ended.status.code(), Some(6), "{args:?}: {said}");
        assert!(
            said.contains("could not write to the standard output"),
            "{args:?}: {said}"
        );
        // It is a file like others, and no shared memory.
        let is_advised = said.contains("check that there is room") && !said.contains("shared objects");
        assert!(is_advised || args[0] == "run", "{args:?}: {said}");
    }
}

#[test]
fn without_memory_for_the_messages_it_is_an_error() {
    let program = assert_cmd::cargo::cargo_bin("doorbell");
    for args in [
        "pingpong --sizes 1g",
        "stream --sizes 1g",
        "rate --sizes 1g --posted 8",
    ] {
        let ended = Command::new("sh")
            .args(["-c", &format!("ulimit -v 400000; exec \"$0\" {args}")])
            .arg(&program)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = sentence(&ended.stderr);
        assert_eq!(ended.status.code(), Some(6), "{args}: {said}");
        assert!(
            said.starts_with("doorbell: ") && said.contains("1073741824 bytes") && said.contains("ulimit -v"),
            "{args}: {said}"
        );
    }
}

#[test]
fn each_line_of_a_diagnosis_leaves_in_one_write() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let program = assert_cmd::cargo::cargo_bin("doorbell");
    // Both ranks wait, and print so.
    let mut child = Command::new(&program)
        .args([
            "pingpong",
            "--sizes",
            "8",
            "--samples",
            "10",
            "--json",
            "/dev/full",
        ])
        .env("DOORBELL_QUIET", "1 us")
        .stdout(Stdio::null())
        .stderr(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    // Read while it works: the kernel holds few packets, and a writer waits for room.
    let mut packet = [0; 4096];
    let mut packets = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        let ended = child.try_wait().unwrap();
        while let Ok(count @ 1..) = ours.recv(&mut packet) {
            packets.push(String::from_utf8_lossy(&packet[..count]).into_owned());
        }
        if let Some(status) = ended {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("still at work after a minute: {packets:?}");
        }
    };
    assert_eq!(status.code(), Some(6), "{packets:?}");
    assert!(packets.len() >= 2, "{packets:?}");
    for packet in packets {
        assert!(
            packet.starts_with("doorbell: ") && packet.ends_with('\n') && packet.lines().count() == 1,
            "{packet:?}"
        );
    }
}

#[test]
fn a_refused_rail_is_the_first_thing_said() {
    for args in [
        &["pingpong"][..],
        &[
            "run",
            "-n",
            "2",
            "--no-prefix",
            "--",
            env!("CARGO_BIN_EXE_doorbell"),
            "pingpong",
        ],
    ] {
        let out = doorbell()
            .args(args)
            .env("DOORBELL_RAILS", "udp:nosuch0")
            .assert()
            .code(3);
        let said = sentence(&out.get_output().stderr);
        let first = said.lines().next().unwrap();
        assert!(first.starts_with("doorbell: rail `udp:nosuch0`"), "{said}");
        assert!(!said.contains("cache-line"), "{said}");
        assert_eq!(first.matches("; ").count(), 1, "one remedy: {first}");
    }
}

#[test]
fn a_far_name_is_not_suggested() {
    let out = doorbell()
        .arg("info")
        .env("DOORBELL_ZZZZZZZ", "1")
        .assert()
        .code(0);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("DOORBELL_ZZZZZZZ") && !said.contains("nearest"),
        "{said}"
    );
}

#[test]
fn info_fits_a_narrow_terminal() {
    for args in [&["info"][..], &["info", "--config"]] {
        let out = doorbell().args(args).env("COLUMNS", "60").assert().success();
        let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
        assert!(text.lines().all(|line| fits(line, 60)), "{text}");
    }
    let out = doorbell().arg("info").env("COLUMNS", "40").assert().success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    assert!(text.lines().all(|line| fits(line, 40)), "{text}");
}

/// Whether a line fits into a terminal; the path of a library, or of the folder that it is in, is not broken
/// into lines.
fn fits(line: &str, columns: usize) -> bool {
    line.chars().count() <= columns || line.contains(".so") || line.contains("FI_PROVIDER_PATH=/")
}

#[test]
fn a_measurement_takes_the_time_that_it_was_given() {
    let took = |args: &[&str]| {
        let begun = Instant::now();
        doorbell().args(args).assert().success();
        begun.elapsed().as_secs_f64()
    };
    let stream = |window| ["stream", "--sizes", "64Mi", "--window", window, "--seconds", "1"];
    // What one second of measuring the like takes on this machine, however busy it is. As many of the long
    // messages as of short ones, two windows twice, would take far longer.
    for (args, least, like) in [
        (&stream("512")[..], 0.9, &stream("4")[..]),
        (
            &["pingpong", "--sizes", "8,4Ki", "--seconds", "1"],
            1.8,
            &["pingpong", "--sizes", "8", "--seconds", "1"],
        ),
    ] {
        let (second, took) = (took(like), took(args));
        assert!(least < took, "{args:?}: {took} s");
        assert!(
            took < 5.0 * second,
            "{args:?}: {took} s, and a second of {like:?} takes {second} s"
        );
    }
}

#[test]
fn a_rate_can_be_measured_with_posted_requests() {
    let out = doorbell()
        .args([
            "rate",
            "--posted",
            "128",
            "--sizes",
            "8",
            "--seconds",
            "0.1",
            "--json",
            "-",
        ])
        .assert()
        .success();
    let report = json(&out.get_output().stdout);
    assert!(schema().is_valid(&report));
    assert_eq!(
        (report["posted"].as_bool(), report["window"].as_u64()),
        (Some(true), Some(128))
    );
    let rate = report["results"][0]["messages_per_second"].as_f64();
    assert!(rate.unwrap() > 0.0);
}

#[test]
fn a_closed_standard_output_is_no_failure() {
    let program = assert_cmd::cargo::cargo_bin("doorbell");
    for args in [
        &["info"][..],
        &["info", "--config"],
        &["--help"],
        &["pingpong", "--sizes", "8", "--samples", "10"],
    ] {
        let mut child = Command::new(&program)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let status = child.wait().unwrap();
        let mut said = Vec::new();
        child.stderr.take().unwrap().read_to_end(&mut said).unwrap();
        sentence(&said);
        assert_eq!(
            status.code(),
            Some(0),
            "{args:?}: {}",
            String::from_utf8_lossy(&said)
        );
    }
}

#[test]
fn frames_of_a_udp_rail_are_captured_and_those_of_others_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.pcapng");
    let capture = |rail: &str| {
        doorbell()
            .args([
                "pingpong",
                "--rail",
                rail,
                "--sizes",
                "8",
                "--samples",
                "50",
                "--no-reference",
                "--pcap",
            ])
            .arg(&file)
            .assert()
    };
    // A file that is there, and that others could read, as another program made it.
    let old = folder.path().join("trace.0.pcapng");
    std::fs::write(&old, "old").unwrap();
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o644)).unwrap();
    let done = capture("udp:lo").success();
    // Wrapped to the terminal's width.
    let table: Vec<_> = std::str::from_utf8(&done.get_output().stdout)
        .unwrap()
        .split_whitespace()
        .collect();
    let table = table.join(" ");
    for rank in 0..2 {
        let bytes = std::fs::read(folder.path().join(format!("trace.{rank}.pcapng"))).unwrap();
        let blocks: Result<Vec<Block<'_>>, _> = Blocks::of(&bytes).collect();
        let packets = blocks
            .unwrap()
            .iter()
            .filter(|block| matches!(block, Block::Packet(_)))
            .count();
        // Fifty round trips, each way, beside the connectivity check and the messages of the measurement
        // itself.
        assert!(packets > 100, "{packets}");
        let path = folder.path().join(format!("trace.{rank}.pcapng"));
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let told = format!("{packets} frames, {} bytes in", bytes.len());
        assert!(table.contains(&told), "{told}: {table}");
    }
    let refused = capture("shm").code(2);
    let said = sentence(&refused.get_output().stderr);
    assert!(said.contains("--rail udp:INTERFACE"), "{said}");
}

/// A disk that is full in the middle: a limit on the length of files has the same effect.
#[test]
fn a_capture_that_is_not_whole_is_a_failure_with_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.pcapng");
    let script = format!(
        "trap '' XFSZ; ulimit -f 64; exec {} pingpong --rail udp:lo --sizes 8 --samples 2000 --no-reference --json - \
         --pcap {}",
        env!("CARGO_BIN_EXE_doorbell"),
        file.display()
    );
    let out = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = sentence(&out.stderr);
    assert_eq!(out.status.code(), Some(6), "{said}");
    for rank in 0..2 {
        let words = format!("t.{rank}.pcapng` is incomplete");
        assert_eq!(said.matches(&words).count(), 1, "{said}");
        let report = json(&out.stdout);
        let captures = &report["environment"]["ranks"][rank]["captures"][0];
        assert!(captures["lost"].as_u64().unwrap() > 0, "{captures}");
        assert!(captures["error"].is_string(), "{captures}");
    }
}

#[test]
fn captures_go_to_plain_files_only() {
    for (name, word) in [("-", "standard output"), ("/dev/full", "device"), ("/", "folder")] {
        let out = doorbell()
            .args(["pingpong", "--rail", "udp:lo", "--pcap", name])
            .assert()
            .code(2);
        let said = sentence(&out.get_output().stderr);
        assert!(said.contains("--pcap") && said.contains(word), "{said}");
    }
}

#[test]
fn a_report_of_a_stranger_does_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evil\u{1b}[2J.json");
    std::fs::write(&path, r#"{"schema": "\u001b]0;x\u0007\u202e"}"#).unwrap();
    let out = doorbell().arg("compare").args([&path, &path]).assert().code(2);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.trim_end()
            .chars()
            .all(|c| !c.is_control() && c != '\u{202e}'),
        "{said:?}"
    );
    assert!(said.contains(r"\u{1b}]0;x"), "{said}");
}

#[test]
fn more_samples_than_were_requested_are_reported() {
    let out = doorbell()
        .args(["pingpong", "--sizes", "8", "--samples", "1", "--no-reference"])
        .assert()
        .success();
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("--samples 1") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn a_comparison_does_not_overwrite_its_input() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("a.json").display().to_string();
    std::fs::write(&report, "{}").unwrap();
    let out = doorbell()
        .args(["compare", "--json", &report, &report, &report])
        .assert()
        .code(2);
    let said = sentence(&out.get_output().stderr);
    assert!(said.contains("name another file"), "{said}");
}

#[test]
fn commands_of_the_lab_say_where_they_are() {
    for (words, new) in [
        (&["budgets"][..], "doorbell-lab budgets"),
        (&["compare-peers", "--list"], "doorbell-lab compare-peers"),
        (&["model", "vic"], "doorbell-lab model"),
        (&["acm", "perf"], "doorbell-lab acm-perf"),
    ] {
        let out = doorbell().args(words).assert().code(2);
        let said = sentence(&out.get_output().stderr);
        assert!(
            said.contains(&format!("`{new}`")) && said.trim().lines().count() == 1,
            "{words:?}: {said}"
        );
    }
}
