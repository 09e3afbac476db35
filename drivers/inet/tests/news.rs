//! What the kernel tells of an interface, and what it has no room to tell: in network namespaces.

#[path = "../../udp/tests/netns/mod.rs"]
mod netns;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use doorbell_inet::{Interface, Link, Wanted};
use netns::Lab;

/// Many changes to interfaces of a host, one for each line.
fn storm(lab: &Lab, lines: usize) {
    let mut script = String::new();
    for at in 0..lines {
        writeln!(script, "link set lo alias storm-{at}").unwrap();
    }
    let mut ip = Command::new("ip")
        .args(["-n", lab.name(0), "-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    ip.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success());
}

/// An interface whose name is another one by now is still there when news were lost.
#[test]
fn an_interface_that_was_renamed_is_not_gone_when_news_are_lost() {
    let Some(lab) = Lab::pair(
        "an_interface_that_was_renamed_is_not_gone_when_news_are_lost",
        1500,
    ) else {
        return;
    };
    let mut link = lab.inside(0, || {
        let found = Interface::find(&"udp:v0".parse().unwrap(), &Wanted::default()).unwrap();
        Link::watch(&found).unwrap()
    });
    lab.ip(0, "link set v0 down");
    lab.ip(0, "link set v0 name w0");
    lab.ip(0, "link set w0 up mtu 1400");
    lab.wait_until_up(0, "w0");
    storm(&lab, 2000);
    let mut told = Vec::new();
    for _ in 0..100 {
        lab.inside(0, || link.look(|kind| told.push(kind)));
        // News that were lost may have brought the answer's place with them.
        link.ask();
    }
    assert!(link.is_up(), "{told:?}");
    assert_eq!(link.mtu(), 1400);
}
