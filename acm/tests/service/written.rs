//! Configuration files that change while the service runs.

use std::sync::Arc;

use doorbell_acm::address::Address;
use doorbell_acm::status::Status;

use crate::common::Running;
use doorbell_testing::netns::Lab;

#[test]
fn what_is_read_at_the_start_only_is_said() {
    let service = Running::start("server_port 6125\n", None);
    service.write("server_port 7000\nnonsense 1\n");
    let state = service.until("a warning", |state| {
        state["warnings"].as_array().is_some_and(|all| all.len() == 2)
    });
    let warnings = state["warnings"].to_string();
    assert!(warnings.contains("server_port has changed"), "{warnings}");
    // Written again, it still differs.
    service.write("server_port 7000\nretries 3\n");
    service.until("the other one is gone", |state| {
        state["warnings"].as_array().is_some_and(|all| all.len() == 1)
    });
    service.write("server_port 6125\n");
    service.until("all is well", |state| {
        state["warnings"].as_array().is_some_and(Vec::is_empty)
    });
}

#[test]
fn questions_that_are_open_while_options_change_are_answered() {
    let Some(lab) = Lab::pair("questions_that_are_open_while_options_change", 1500) else {
        return;
    };
    let lab = Arc::new(lab);
    let options = "doorbell_interfaces all\nroute_prot acm\nretries 2\n";
    let service = Running::start(&format!("{options}timeout 60000\n"), Some((&lab, 0)));
    service.until("it queries by v0", |state| {
        let ends = state["endpoints"].as_array();
        ends.is_some_and(|ends| {
            ends.iter()
                .any(|end| end["device"] == "v0" && end["unserved"].is_null())
        })
    });
    let mut client = service.client();
    let asked = std::thread::spawn(move || {
        let unreachable: std::net::IpAddr = [10, 77, 0, 99].into();
        client.resolve(None, Address::from(unreachable), false)
    });
    service.until("it has the query", |state| state["waiting"].as_u64() > Some(0));
    service.write(&format!("{options}timeout 50\n"));
    let answer = asked.join().unwrap();
    let error = answer.expect_err("no host has that address");
    assert_eq!(error.status(), Some(Status::TimedOut), "{error}");
    service.until("no client waits", |state| state["waiting"] == 0);
}
