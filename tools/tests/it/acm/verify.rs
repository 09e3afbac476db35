//! The tests of a path: `doorbell_verify`, and pings to hosts behind a router, which a system may not allow.

use std::fs;

use super::Service;
use crate::hosts::at;
use crate::launchers::on_path;
use doorbell_testing::netns::Lab;
use doorbell_testing::skipped;

#[test]
fn a_path_that_no_full_packet_passes_is_named_with_what_passes_where_it_is_tried() {
    let test = "doorbell::it::acm::verify::a_path_that_no_full_packet_passes_is_named_with_what_passes_where_it_is_tried";
    let Some(lab) = Lab::four(test, 1500) else { return };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = |host: usize, verify: &str| {
        let options = format!("timeout 500\nretries 1\nroute_prot acm\ndoorbell_verify {verify}\n");
        fs::write(folders[host].path().join("ibacm_opts.cfg"), options).unwrap();
        Service::start(Some(lab.name(host)), folders[host].path(), &["--nic", "v0"])
    };
    let _other = start(1, "no");
    let probes = |own: &Service| own.state()["messages"]["probes"].as_u64().unwrap();
    for (verify, is_narrow, mtu) in [
        ("no", false, 1024),
        ("yes", false, 1024),
        ("no", true, 1024),
        ("yes", true, 512),
    ] {
        if is_narrow {
            lab.drop_longer(1, 600);
        }
        let mut own = start(0, verify);
        own.until("v0 is served", |state| {
            let all = state["endpoints"].as_array().unwrap();
            all.iter()
                .any(|end| end["device"] == "v0" && end["unserved"].is_null())
        });
        let told = own.told(&["resolve", "10.77.0.2", "--source", "10.77.0.1"]);
        let row = &told["paths"][0];
        assert_eq!(
            row["path"]["mtu"],
            mtu,
            "{verify} {is_narrow}: {told:#} {:#}",
            own.state()
        );
        assert_eq!(probes(&own) > 0, verify == "yes", "{verify} {is_narrow}");
        own.ends();
    }
}

#[test]
fn where_pings_are_not_allowed_that_is_what_is_said() {
    let test = "doorbell::it::acm::verify::where_pings_are_not_allowed_that_is_what_is_said";
    if !on_path("setpriv") {
        return skipped(test, "package util-linux: setpriv is not installed");
    }
    let Some(lab) = Lab::routed(test, 1500, 1500) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let groups = |range: &str| {
        lab.inside(0, || {
            fs::write("/proc/sys/net/ipv4/ping_group_range", range).expect("a host's own setting");
        });
    };
    let start = || {
        let plain = super::serve(None, folder.path(), &["--nic", "v0"]);
        let mut command = std::process::Command::new("ip");
        command
            .args(["netns", "exec", lab.name(0), "setpriv", "--bounding-set=-net_raw"])
            .arg("--inh-caps=-net_raw")
            .arg(plain.get_program())
            .args(plain.get_args());
        for (name, _) in at(None, &[]).get_envs().filter(|(_, value)| value.is_none()) {
            command.env_remove(name);
        }
        command.stdin(std::process::Stdio::null());
        Service::of(command)
    };
    // Beyond the router no host has a service; the system answers pings by itself.
    groups("1 0");
    let mut service = start();
    assert!(service.has_no_path("10.77.2.1", &[]));
    let state = service.state();
    let trouble = state["trouble"].as_str().unwrap_or_default();
    assert!(trouble.contains("pings are not allowed"), "{state:#}");
    service.ends();
    groups("0 2147483647");
    let service = start();
    assert_eq!(service.path("10.77.2.1", &[])["dgid"], "::ffff:10.77.2.1");
    assert!(service.state()["trouble"].is_null());
}
