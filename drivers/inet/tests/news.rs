//! The kernel's notifications about an interface, and what happens when their buffer is full: in network
//! namespaces.

use doorbell_inet::{Interface, InterfaceQuery, LinkMonitor, NicMonitor, nics};
use doorbell_testing::netns::Lab;

/// Many changes to interfaces of a host, one for each line.
fn storm(lab: &Lab, lines: usize) {
    lab.ip_batch(0, (0..lines).map(|at| format!("link set lo alias storm-{at}")));
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
        let found = Interface::find(&"udp:v0".parse().unwrap(), &InterfaceQuery::default()).unwrap();
        LinkMonitor::watch(&found).unwrap()
    });
    lab.ip(0, "link set v0 down");
    lab.ip(0, "link set v0 name w0");
    lab.ip(0, "link set w0 up mtu 1400");
    lab.wait_until_up(0, "w0");
    storm(&lab, 2000);
    let mut told = Vec::new();
    for _ in 0..100 {
        lab.inside(0, || link.poll(|kind| told.push(kind)));
        // News that were lost may have brought the answer's place with them.
        link.request_state();
    }
    assert!(link.is_up(), "{told:?}");
    assert_eq!(link.mtu(), 1400);
}

/// One look takes all that came: an event library that reports edges reports nothing for what is left.
#[test]
fn a_look_leaves_nothing_of_a_swarm_of_changes() {
    let Some(lab) = Lab::pair("a_look_leaves_nothing_of_a_swarm_of_changes", 1500) else {
        return;
    };
    let watch = lab.inside(0, NicMonitor::new).unwrap();
    // The kernel may announce something of its own at any time, but not each time.
    let is_taken = |lines| {
        storm(&lab, lines);
        watch.drain() && !watch.drain()
    };
    assert!((0..10).any(|_| is_taken(150)));
    // More than the socket holds: the kernel drops whatever comes until it is empty.
    assert!((0..10).any(|_| is_taken(5000)));
    lab.ip(0, "address add 10.77.0.79/24 dev v0");
    assert!(watch.drain(), "the next change");
    let all = lab.inside(0, nics).unwrap();
    let has = |ip: &str| {
        let mut addresses = all.iter().flat_map(|nic| &nic.addresses);
        addresses.any(|own| own.ip.to_string() == ip)
    };
    assert!(has("10.77.0.79"), "{all:?}");
}

/// Announcements that were lost are made up for without another request: the interface is queried when the
/// socket is empty, since the kernel drops answers before.
#[test]
fn lost_notifications_of_an_interface_are_queried() {
    let Some(lab) = Lab::pair("lost_notifications_of_an_interface_are_queried", 1500) else {
        return;
    };
    let mut link = lab.inside(0, || {
        let found = Interface::find(&"udp:v0".parse().unwrap(), &InterfaceQuery::default()).unwrap();
        LinkMonitor::watch(&found).unwrap()
    });
    storm(&lab, 2000);
    lab.ip(0, "link set v0 mtu 1400");
    // Each look takes a bounded number of them.
    (0..100).for_each(|_| link.poll(|_| {}));
    assert_eq!(link.mtu(), 1400);
}
