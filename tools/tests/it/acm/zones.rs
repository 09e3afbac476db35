//! Addresses of a link, with the interface behind them; and destinations that lead nowhere, each with its own
//! reason.

use super::Service;
use crate::hosts::finish;
use doorbell_testing::netns::Lab;

/// A client on a host of the lab: its exit status, and what it wrote.
fn asked(lab: &Lab, service: &Service, words: &[&str]) -> (Option<i32>, String) {
    let own = ["acm", "resolve", "--timeout", "5", "--service", &service.socket];
    let out = finish(crate::hosts::at(Some(lab.name(0)), &[&own[..], words].concat()));
    let text = [out.stdout, out.stderr].concat();
    (out.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn an_address_of_a_link_is_found_by_its_interface() {
    let test = "doorbell::it::acm::zones::an_address_of_a_link_is_found_by_its_interface";
    let Some(lab) = Lab::four(test, 1500) else { return };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (host, folder) in folders.iter().enumerate() {
        lab.ip(
            host,
            &format!("address add fe80::77:{}/64 dev v0 nodad", host + 1),
        );
        // Nothing but this one and the one that the kernel makes of the hardware address.
        std::fs::write(folder.path().join("ibacm_opts.cfg"), "timeout 500\nretries 1\n").unwrap();
    }
    let start =
        |host: usize, words: &[&str]| Service::start(Some(lab.name(host)), folders[host].path(), words);
    let mut own = start(0, &["--nic", "v0"]);
    let _other = start(1, &["--nic", "v0"]);
    own.until("v0 is served", |state| {
        let all = state["endpoints"].as_array().unwrap();
        all.iter()
            .any(|end| end["device"] == "v0" && end["unserved"].is_null())
    });
    let number = lab.inside(0, || {
        std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default()
    });
    let line = number.lines().find(|line| line.ends_with(" v0")).unwrap();
    let number = u32::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
    for to in [
        "fe80::77:2%v0".to_owned(),
        format!("fe80::77:2%{number}"),
        // One interface is served: no other could be meant.
        "fe80::77:2".to_owned(),
    ] {
        let (code, text) = asked(&lab, &own, &[&to]);
        assert_eq!(code, Some(0), "{to}: {text}");
        assert!(text.starts_with(&format!("{to} from fe80::")), "{text}");
        assert!(text.contains("-> fe80::77:2,"), "{to}: {text}");
    }
    let (code, text) = asked(&lab, &own, &["fe80::77:2", "--source", "fe80::77:1%v0"]);
    assert_eq!(code, Some(0), "{text}");
    for (words, wanted) in [
        (&["fe80::77:2%v9"][..], "no interface v9"),
        (&["fe80::77:2%"], "is not an address"),
        (&["10.77.0.2%v0"], "is not an address"),
        (
            &["10.77.0.2", "--source", "fe80::99%v0"],
            "is not an address of the interface v0",
        ),
    ] {
        let (code, text) = asked(&lab, &own, words);
        assert_eq!(code, Some(2), "{words:?}: {text}");
        assert!(text.contains(wanted), "{words:?}: {text}");
    }
    own.ends();

    // With two of them, the command has to name one.
    lab.ip(0, "link add w0 type veth peer name w1");
    lab.ip(0, "address add fe80::88:1/64 dev w0 nodad");
    lab.ip(0, "link set w1 up");
    lab.ip(0, "link set w0 up");
    let own = start(0, &["--nic", "v0", "--nic", "w0"]);
    own.until("both are served", |state| {
        let all = state["endpoints"].as_array().unwrap();
        let served = all.iter().filter(|end| end["unserved"].is_null());
        served.filter(|end| end["link"] == "ethernet").count() == 2
    });
    let (code, text) = asked(&lab, &own, &["fe80::77:2"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("append the interface"), "{text}");
    let (code, text) = asked(&lab, &own, &["fe80::77:2%v0"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn each_way_to_nowhere_has_its_own_sentence_and_status() {
    let test = "doorbell::it::acm::zones::each_way_to_nowhere_has_its_own_sentence_and_status";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(Some(lab.name(0)), folder.path(), &["--nic", "v0"]);
    for (words, status, wanted) in [
        (
            &["10.77.0.1", "--source", "10.77.0.99"][..],
            7,
            "the source is not an address of this host",
        ),
        (&["203.0.113.9"], 9, "the destination cannot be reached"),
        (&["2001:db8::9"], 9, "the destination cannot be reached"),
        (&["224.0.0.1"], 10, "it is not a host address"),
        (&["ff02::1"], 10, "it is not a host address"),
        (&["0.0.0.0"], 10, "it is not a host address"),
        (&["::"], 10, "it is not a host address"),
    ] {
        let told = service.told(&[&["resolve"], words].concat());
        let row = &told["paths"][0];
        assert_eq!(row["status"], status, "{words:?}: {told:#}");
        let error = row["error"].as_str().unwrap();
        assert!(error.contains(wanted), "{words:?}: {error}");
    }
    let counted = service.told(&["perf"]);
    assert_eq!(counted["rows"][0]["errors"], 7, "{counted:#}");
}
