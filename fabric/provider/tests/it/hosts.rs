//! Members whose rails lead to other hosts, found by node and service, and by their names.

use libfabric_sys::*;

use crate::addresses::{client, port, server, take};
use crate::client::Client;
use crate::pair::run_on;

/// Rails that lead to the other host, and stay within one.
const RAILS: [(&str, &str); 1] = [("FI_DOORBELL_RAILS", "shm,udp:v0")];

#[test]
fn a_service_is_a_port_of_its_host_also_of_a_member_with_rails_to_other_hosts() {
    let test = "hosts::a_service_is_a_port_of_its_host_also_of_a_member_with_rails_to_other_hosts";
    run_on(test, [0, 0], &RAILS, |mut role, library| {
        let port = port(&mut role);
        if role.is_first() {
            let mut here = Client::open(library, &server(FI_FORMAT_UNSPEC, port));
            role.exchange(&here.name());
            let (name, sender) = take(&here);
            assert_eq!(sender, FI_ADDR_NOTAVAIL);
            here.peer = here.insert(&name);
            here.send(b"by your name", None);
            assert_eq!(take(&here), (b"by mine".to_vec(), here.peer));
            role.meet(&here);
        } else {
            let theirs = role.exchange(&[0; 56]);
            let mut here = Client::open(library, &client(FI_FORMAT_UNSPEC, port));
            let port = here.destination();
            // The name that it gives has its doors and a token, and is of the same peer.
            assert!(theirs != port && theirs[6..24] != [0; 18] && port[6..24] == [0; 18]);
            here.peer = here.insert(&port);
            let by_name = here.insert(&theirs);
            here.send(&here.name(), None);
            let (text, sender) = take(&here);
            assert_eq!(text, b"by your name");
            assert!([here.peer, by_name].contains(&sender));
            here.peer = by_name;
            here.send(b"by mine", None);
            role.meet(&here);
        }
    });
}

#[test]
fn the_name_of_a_member_at_a_port_leads_to_it_from_another_host() {
    let test = "hosts::the_name_of_a_member_at_a_port_leads_to_it_from_another_host";
    run_on(test, [0, 1], &RAILS, |mut role, library| {
        // Programs that exchange names pass the same service on both sides.
        let port = port(&mut role);
        let here = Client::meet(&mut role, library, &server(FI_FORMAT_UNSPEC, port));
        if role.is_first() {
            here.send(b"over the link", None);
        } else {
            assert_eq!(take(&here), (b"over the link".to_vec(), here.peer));
        }
        role.meet(&here);
    });
}
