//! Puts and active messages from outside: every measurement over every kind of rail that this machine has,
//! links that break under their traffic, and a rank that is killed.

use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{doorbell, sentence};
use crate::hosts::{LONG, Running, SOON, finish, serve_at, two_hosts};
use doorbell_testing::netns::Lab;

const LAYERS: [&str; 2] = ["portals", "am"];

/// A report, of a measurement in which every message arrived whole, once and in order.
fn clean(layer: &str, out: &std::process::Output) -> serde_json::Value {
    assert_eq!(out.status.code(), Some(0), "{layer}: {}", sentence(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["layer"], layer);
    for row in report["results"].as_array().unwrap() {
        let verified = &row["verified"];
        if verified.is_null() {
            continue;
        }
        assert!(verified["messages"].as_u64().unwrap() > 0, "{verified}");
        for what in ["lost", "duplicated", "misordered", "corrupt"] {
            assert_eq!(verified[what], 0, "{layer}, {what}: {verified}");
        }
    }
    report
}

#[test]
fn puts_and_active_messages_are_measured_over_shared_memory() {
    for layer in LAYERS {
        for (kind, sizes, more) in [
            ("pingpong", "8,100k", &["--no-reference"][..]),
            ("stream", "500", &["--window", "8"]),
            ("rate", "8,100k", &["--verify", "--no-reference"]),
        ] {
            let words = [
                kind,
                "--layer",
                layer,
                "--rail",
                "shm",
                "--sizes",
                sizes,
                "--samples",
                "60",
            ];
            let out = doorbell()
                .args(words)
                .args(more)
                .args(["--json", "-"])
                .output()
                .unwrap();
            let report = clean(layer, &out);
            assert_eq!(report["rail"], "shm");
            assert_eq!(
                report["results"].as_array().unwrap().len(),
                sizes.split(',').count()
            );
        }
    }
    let out = doorbell()
        .args(["rate", "--layer", "am", "--plain"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(sentence(&out.stderr).contains("leave one of them out"));
}

/// Requests leave at intended times, whatever carries them: each is answered, and the times count from then.
#[test]
fn open_loops_of_puts_and_active_messages_answer_each_request() {
    for layer in LAYERS {
        for (rail, more) in [
            ("shm", &[][..]),
            ("shm", &["--verify"]),
            ("shm", &["--mode", "dedicated"]),
            ("udp:lo", &[]),
        ] {
            let out = doorbell()
                .args(["pingpong", "--layer", layer, "--rail", rail, "--rate", "2000"])
                .args(["--sizes", "8,600,100k", "--samples", "40", "--no-reference"])
                .args(more)
                .args(["--json", "-"])
                .output()
                .unwrap();
            let report = clean(layer, &out);
            for row in report["results"].as_array().unwrap() {
                let open = &row["open"];
                assert_eq!(open["asked_per_second"], 2_000.0, "{layer} over {rail}");
                assert!(
                    open["sent"].as_u64().unwrap() >= 40 && open["unsent"] == 0,
                    "{open}"
                );
                assert_eq!(row["samples"], open["sent"], "{row}");
                let of = |times: &serde_json::Value| times["p50"].as_f64().unwrap();
                assert!(of(&row["rtt_ns"]) >= of(&open["actual_rtt_ns"]), "{row}");
            }
        }
    }
    let out = doorbell()
        .args(["pingpong", "--layer", "am", "--rail", "shm", "--open-loop"])
        .args([
            "--sizes",
            "8",
            "--seconds",
            "0.2",
            "--no-reference",
            "--json",
            "-",
        ])
        .output()
        .unwrap();
    let rows = clean("am", &out)["results"].clone();
    assert_eq!(rows.as_array().unwrap().len(), 3, "of the knee");
    assert!(rows[0]["open"]["knee_per_second"].as_f64().unwrap() > 1_000.0);
}

/// A message's time in each direction: an active message's is that until its handler begins, and back from
/// its end.
#[test]
fn single_directions_of_puts_and_active_messages_make_up_an_exchange() {
    for layer in LAYERS {
        let out = doorbell()
            .args(["pingpong", "--layer", layer, "--rail", "shm", "--one-way"])
            .args(["--sizes", "8,600,100k", "--samples", "200", "--no-reference"])
            .args(["--json", "-"])
            .output()
            .unwrap();
        for row in clean(layer, &out)["results"].as_array().unwrap() {
            let one_way = &row["one_way"];
            for direction in ["there_ns", "back_ns"] {
                assert!(
                    one_way[direction]["p50"].as_f64().unwrap() > 0.0,
                    "{layer}: {row}"
                );
            }
            assert!(one_way["samples"].as_u64().unwrap() >= 20, "{one_way}");
        }
    }
}

/// A follower that dies under an open loop is named, and the loop ends.
#[test]
fn an_open_loop_ends_when_its_peer_is_killed() {
    for layer in LAYERS {
        let mut job = doorbell()
            .args(["run", "--no-prefix", "-n", "2", "--", "/bin/sh", "-c"])
            .arg(format!(
                "[ $DOORBELL_RANK = 1 ] && {{ (sleep 1; kill -9 $$) & }}; exec {} pingpong --layer {layer} --rail shm \
                 --rate 1000 --seconds 60 --sizes 8",
                assert_cmd::cargo::cargo_bin("doorbell").display()
            ))
            .timeout(Duration::from_secs(40))
            .assert();
        job = job.failure();
        let said = String::from_utf8_lossy(&job.get_output().stderr).into_owned();
        assert!(said.contains("rank 1"), "{layer}: {said}");
        assert!(!said.contains("panicked"), "{layer}: {said}");
    }
}

/// Commands, layers, and the threads that run handlers. A named core shows in the report.
#[test]
fn layers_are_measured_beside_a_progress_thread() {
    let core = doorbell_bench::pin::allowed()[0];
    for (command, layer, handlers) in [
        ("pingpong", "portals", "owner"),
        ("rate", "portals", "owner"),
        ("pingpong", "am", "owner"),
        ("stream", "am", "progress"),
    ] {
        let out = doorbell()
            .args([
                command,
                "--layer",
                layer,
                "--mode",
                "dedicated",
                "--rail",
                "shm",
                "--json",
                "-",
            ])
            .args(["--sizes", "8,3000", "--samples", "20", "--no-reference"])
            .env("DOORBELL_PROGRESS_CORE", core.to_string())
            .env("DOORBELL_AM_HANDLERS", handlers)
            .output()
            .unwrap();
        let environment = clean(layer, &out)["environment"].clone();
        assert_eq!(environment["mode"], "dedicated", "{command} {layer}");
        for rank in environment["ranks"].as_array().unwrap() {
            assert_eq!(rank["progress_core"], core, "{command} {layer}: {environment}");
        }
    }
}

/// Each side's error names the option that it gave, or the default of the one that gave none.
#[test]
fn two_sides_with_different_layers_are_named_by_their_options() {
    for (ours, theirs, options) in [("am", "pml", &[][..]), ("portals", "am", &["--layer", "am"])] {
        let server = serve_at(None, &["--bind", "127.0.0.1:0", "--rail", "shm", "--layer", ours]);
        let out = finish(server.client(
            None,
            "pingpong",
            &[&["--rail", "shm", "--sizes", "8"], options].concat(),
        ));
        assert_eq!(out.status.code(), Some(2));
        let said = sentence(&out.stderr);
        let says = format!("the layer above the rails is {ours} at rank 1 and {theirs} at rank 0");
        assert!(said.contains(&says), "{said}");
    }
}

#[test]
fn two_hosts_put_and_send_over_udp_and_past_the_kernel() {
    let test = "layers::two_hosts_put_and_send_over_udp_and_past_the_kernel";
    let Some((lab, _folder, key)) = two_hosts(test) else {
        return;
    };
    for (layer, rail, kind) in [
        ("portals", "udp:v0", "stream"),
        ("portals", "xdp:v0", "pingpong"),
        ("am", "udp:v0", "pingpong"),
        ("am", "xdp:v0", "stream"),
    ] {
        let words = ["--rail", rail, "--key-file", &key, "--layer", layer];
        let server = serve_at(
            Some(lab.name(0)),
            &[&["--bind", "10.77.0.1:0"], &words[..]].concat(),
        );
        let more = ["--sizes", "8,100k", "--samples", "100", "--verify", "--json", "-"];
        let out = finish(server.client(Some(lab.name(1)), kind, &[&words[..], &more].concat()));
        assert_eq!(clean(layer, &out)["rail"], rail);
        // Both sides must request the same.
        let other = ["--rail", rail, "--key-file", &key, "--sizes", "8"];
        let out = finish(server.client(Some(lab.name(1)), "pingpong", &other));
        assert_eq!(out.status.code(), Some(2), "{}", sentence(&out.stderr));
        assert!(
            sentence(&out.stderr).contains("the layer above the rails"),
            "{}",
            sentence(&out.stderr)
        );
    }
}

/// A second link between the two hosts.
fn second_link(lab: &Lab) {
    lab.ip(
        1,
        &format!("link add v1 type veth peer name v1 netns {}", lab.name(0)),
    );
    for host in 0..2 {
        lab.ip(host, &format!("address add 10.78.0.{}/24 dev v1", host + 1));
        lab.ip(host, "link set v1 up");
    }
    lab.wait_until_up(1, "v1");
}

#[test]
fn a_link_that_goes_down_under_puts_and_active_messages_loses_and_doubles_nothing() {
    let test = "layers::a_link_that_goes_down_under_puts_and_active_messages_loses_and_doubles_nothing";
    let Some((lab, _folder, key)) = two_hosts(test) else {
        return;
    };
    second_link(&lab);
    for layer in LAYERS {
        let words = [
            "--rail",
            "udp:v0",
            "--rail",
            "udp:v1",
            "--key-file",
            &key,
            "--layer",
            layer,
        ];
        let mut server = serve_at(
            Some(lab.name(0)),
            &[&["--bind", "10.77.0.1:0"], &words[..]].concat(),
        );
        let more = ["--sizes", "500,100k", "--seconds", "1", "--verify", "--json", "-"];
        let client = server.client(Some(lab.name(1)), "stream", &[&words[..], &more].concat());
        let measured = thread::spawn(move || finish(client));
        server.says("connected: process");
        // The connection of the two sides goes over v0, which stays.
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(400));
            lab.ip(0, "link set v1 down");
            thread::sleep(Duration::from_millis(300));
            lab.ip(0, "link set v1 up");
        }
        let report = clean(layer, &measured.join().unwrap());
        assert_eq!(report["environment"]["rails"].as_array().unwrap().len(), 2);
        assert!(server.says("disconnected after").ends_with(": done"));
    }
}

#[test]
fn a_killed_rank_ends_the_other_with_its_name() {
    for layer in LAYERS {
        let mut server = serve_at(
            None,
            &["--bind", "127.0.0.1:0", "--rail", "shm", "--layer", layer],
        );
        // The bare exchange has a wait of its own, and other words for a side that fell silent.
        let words = [&LONG[..], &["--rail", "shm", "--layer", layer, "--no-reference"]].concat();
        let mut client = Running::start(server.client(None, "pingpong", &words));
        server.says("connected: process");
        // Both are past their meeting by then, also on a busy machine: what is lost in it has other words.
        thread::sleep(Duration::from_millis(1500));
        server.process.signal(Signal::KILL);
        assert_eq!(client.ends(SOON), Some(4));
        client.says("rank 1 is lost");
    }
}
