//! The files of a service: written for a host, read, and followed while they change.

use std::fs;

use serde_json::Value;

use super::{Service, addresses, serve};
use crate::common::sentence;
use crate::hosts::{Running, at, fails, finish};
use doorbell_testing::netns::Lab;

fn warnings(state: &Value) -> Vec<&str> {
    let all = state["warnings"].as_array().unwrap().iter();
    all.filter_map(Value::as_str).collect()
}

#[test]
fn what_config_writes_is_read_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    let shown = finish(at(None, &["acm", "config", "--nodes", "300"]));
    assert_eq!(shown.status.code(), Some(0), "{}", sentence(&shown.stderr));
    let shown = String::from_utf8(shown.stdout).unwrap();
    let words = ["acm", "config", "--nodes", "300", "--dir", &place];
    let out = finish(at(None, &words));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    for name in ["ibacm_opts.cfg", "ibacm_addr.cfg"] {
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(shown.contains(&text), "{name}");
        assert!(text.lines().all(|line| line.len() <= 119), "{text}");
        assert!(text.starts_with('#'), "{text}");
    }
    // No file is overwritten.
    let (code, said) = fails(at(None, &words));
    assert!(code == Some(2) && said.contains("--force"), "{said}");
    let out = finish(at(None, &[&words[..], &["--force"]].concat()));
    assert_eq!(out.status.code(), Some(0));

    let mut service = Service::start(None, folder.path(), &[]);
    let state = service.state();
    assert_eq!(warnings(&state), [""; 0]);
    service.ends();
    let mut plain = serve(None, folder.path(), &["--seconds", "0.1"]);
    plain.stdin(std::process::Stdio::null());
    assert_eq!(sentence(&finish(plain).stderr), "");
}

#[test]
fn what_cannot_be_used_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let options = "# ours\nretries many\nno_such_option 1\ntimeout 100\n";
    fs::write(folder.path().join("ibacm_opts.cfg"), options).unwrap();
    let mut running = Running::start(serve(None, folder.path(), &[]));
    assert!(running.says("ibacm_opts.cfg:2:").contains("retries"));
    assert!(running.says("ibacm_opts.cfg:3:").contains("no_such_option"));
    drop(running);
    let service = Service::start(None, folder.path(), &[]);
    let all = service.state();
    assert_eq!(warnings(&all).len(), 2, "{all:#}");
    // Mended while it runs, and spoiled again.
    fs::write(folder.path().join("ibacm_opts.cfg"), "timeout 100\n").unwrap();
    service.until("no warnings", |state| warnings(state).is_empty());
    fs::write(
        folder.path().join("ibacm_addr.cfg"),
        "\nnode1 lo\nnode2 lo 1 default\n",
    )
    .unwrap();
    service.until("a warning about the second line", |state| {
        warnings(state)
            .iter()
            .any(|line| line.contains("ibacm_addr.cfg:2:"))
            && addresses(state).contains(&"node2")
    });
}

#[test]
fn names_come_and_go_with_the_file_of_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ibacm_addr.cfg");
    let service = Service::start(None, folder.path(), &[]);
    fs::write(&file, "first lo 1 default\n").unwrap();
    service.until("it has its first name", |state| {
        addresses(state).contains(&"first")
    });
    let path = service.path("first", &["--source", "127.0.0.1"]);
    assert_eq!(path["dgid"], "::ffff:127.0.0.1");
    // As an editor does it: another file under its name.
    let other = folder.path().join("other");
    fs::write(&other, "second lo 1 default\n").unwrap();
    fs::rename(&other, &file).unwrap();
    service.until("it has its second name alone", |state| {
        addresses(state).contains(&"second") && !addresses(state).contains(&"first")
    });
    let path = service.path("second", &["--source", "127.0.0.1"]);
    assert_eq!(path["dgid"], "::ffff:127.0.0.1");
    assert!(service.has_no_path("first", &["--source", "127.0.0.1"]));
    fs::remove_file(&file).unwrap();
    service.until("it has no name of the file", |state| {
        !addresses(state).contains(&"second")
    });
}

#[test]
fn hosts_that_are_written_down_are_known_and_followed() {
    // Not on the loopback, which leads nowhere else.
    let test = "doorbell::it::acm::files::hosts_that_are_written_down_are_known_and_followed";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("hosts.data");
    let options = format!("addr_preload acm_hosts\naddr_data_file {}\n", data.display());
    fs::write(&data, "# nobody yet\n").unwrap();
    fs::write(folder.path().join("ibacm_opts.cfg"), "timeout 100\nretries 0\n").unwrap();
    let service = Service::start(Some(lab.name(0)), folder.path(), &[]);
    let ask = || service.path("far", &["--source", "10.77.0.1"]);
    assert!(ask().is_null());
    // The option first, then what is in the file that it names.
    fs::write(
        folder.path().join("ibacm_opts.cfg"),
        options + "timeout 100\nretries 0\n",
    )
    .unwrap();
    for gid in ["::ffff:10.77.0.7", "::ffff:10.77.0.8"] {
        fs::write(&data, format!("far {gid}\nnonsense\n")).unwrap();
        service.until("its place is the one that is written", |_| ask()["dgid"] == gid);
        let state = service.state();
        let about = format!("{}:2:", data.display());
        assert!(
            warnings(&state).iter().any(|line| line.contains(&about)),
            "{state:#}"
        );
    }
    fs::write(&data, "\n").unwrap();
    service.until("it is not known any more", |_| ask().is_null());
}
