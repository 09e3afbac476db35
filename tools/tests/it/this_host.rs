//! `doorbell run --hosts` with this host in the list, by any of its names: no remote shell is started to
//! oneself.

use crate::common::{doorbell, sentence};
use doorbell_testing::netns::Lab;

/// A remote shell that would fail.
const NO_SHELL: &str = "/bin/false";

#[test]
fn this_host_needs_no_remote_shell_whatever_it_is_called() {
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let own = [
        "localhost",
        "LOCALHOST",
        "Localhost.",
        "127.0.0.1",
        "[::1]",
        &node,
        &node.to_uppercase(),
    ];
    for name in own {
        let out = doorbell()
            .args([
                "run",
                "-n",
                "2",
                "--rsh",
                NO_SHELL,
                "--hosts",
                &format!("{name}:2"),
            ])
            .args(["--", "sh", "-c", "echo $PMI_RANK"])
            .output()
            .unwrap();
        let said = sentence(&out.stderr);
        assert_eq!(out.status.code(), Some(0), "{name}: {said}");
    }
    let out = doorbell()
        .args([
            "run", "-n", "1", "--rsh", NO_SHELL, "--hosts", "::1", "--", "true",
        ])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
}

#[test]
fn an_address_of_an_interface_is_this_host_too() {
    let Some(lab) = Lab::pair("this_host::an_address_of_an_interface_is_this_host_too", 1500) else {
        return;
    };
    for (address, code) in [("10.77.0.1", 0), ("10.77.0.2", 4)] {
        let out = std::process::Command::new("ip")
            .args(["netns", "exec", lab.name(0)])
            .arg(assert_cmd::cargo::cargo_bin("doorbell"))
            .args([
                "run", "-n", "1", "--rsh", NO_SHELL, "--hosts", address, "--", "true",
            ])
            .output()
            .unwrap();
        let said = sentence(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{address}: {said}");
    }
}

#[test]
fn one_host_by_two_names_is_refused() {
    for (list, said) in [
        ("LOCALHOST,localhost", "host `localhost` is named twice"),
        ("node1,NODE1.:2", "named twice"),
        (
            "127.0.0.1,localhost:2",
            "`127.0.0.1` and `localhost` are both this host",
        ),
        ("localhost:2,[::1]:2", "write it once, as in localhost:4"),
    ] {
        let out = doorbell()
            .args(["run", "-n", "2", "--rsh", NO_SHELL, "--hosts", list, "--", "true"])
            .output()
            .unwrap();
        let text = sentence(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{list}: {text}");
        assert!(text.contains(said), "{list}: {text}");
    }
    // Several addresses of the loopback are hosts of a trial, which the remote shell is to reach.
    let out = doorbell()
        .args([
            "run",
            "-n",
            "2",
            "--rsh",
            NO_SHELL,
            "--hosts",
            "127.0.0.1,127.0.0.2",
            "--",
            "true",
        ])
        .output()
        .unwrap();
    let text = sentence(&out.stderr);
    assert!(
        out.status.code() == Some(4) && text.contains("is lost: `/bin/false"),
        "{text}"
    );
}
