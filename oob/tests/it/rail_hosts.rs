//! The transport `rail` over real udp rails between hosts, beside `tcp` on another cable: NICs are killed,
//! and come back.
//!
//! reference: oob, section 10.

use std::time::Duration;

use doorbell_btl::{Btl, BtlConfig, JobKey as BtlKey};
use doorbell_fabric::error::RailError;
use doorbell_oob::config::{Config, Policy, Transport};
use doorbell_oob::event::{Event, Status};
use doorbell_oob::lines::rail::{self, Endpoint, endpoint};
use doorbell_oob::name::From;
use doorbell_oob::plane::{Carried, Oob};
use doorbell_oob::runner;
use doorbell_udp::{UdpConfig, UdpRail};

use crate::hosts::{assert_no_peer_was_lost, begin, is_lost, nics, wait_until};
use crate::job::{TAG, finish, introduce, number, receive_all, say, send_all, until};
use crate::namespaces::second_cable;
use crate::rails::{both, carriage, linked, rail_counters, with};
use crate::side::{PATIENCE, key};
use doorbell_testing::netns::Lab;

/// Opens a udp rail, made reliable.
pub fn udp(
    name: &'static str,
    key: [u8; 32],
) -> impl FnOnce() -> Result<Box<dyn Endpoint>, RailError> + Send {
    move || {
        let name = name.parse()?;
        let driver = UdpRail::open(&name, &UdpConfig::default())?;
        let life = driver.incarnation();
        let rail = Btl::new(driver, BtlConfig::default(), life);
        let mut rail = rail.map_err(|error| RailError::Unusable {
            rail: name.to_string(),
            reason: error.to_string(),
            remedy: "change the settings of the BTL".to_owned(),
        })?;
        rail.set_key(BtlKey::from_bytes(key));
        Ok(endpoint(rail, life))
    }
}

/// The rail on v1, `tcp` on v0, on both hosts; the rail is preferred, or `tcp` is.
fn pair(lab: &Lab, transports: &[Transport], change: impl Fn(&mut Config)) -> Vec<Oob> {
    second_cable(lab);
    let start = |rank: u32| {
        let mut config = with(rank, 2, transports.to_vec());
        change(&mut config);
        lab.inside(rank as usize, || {
            let rails: Vec<rail::Open> = vec![Box::new(udp("udp:v1", [9; 32]))];
            let settings = rail::Settings::default();
            let carried = match &*transports[0].name {
                "tcp" => Carried::new().tcp(nics(&["v0"])).rail(settings, rails),
                _ => Carried::new().rail(settings, rails).tcp(nics(&["v0"])),
            };
            Oob::start(config, carried, key(7), runner::Settings::default()).unwrap()
        })
    };
    let all = vec![start(0), start(1)];
    begin(&all);
    all
}

fn stream(all: &[Oob], count: u32, then: impl FnMut(u32)) {
    let inbox = all[1].inbox(From::only(all[0].name()), TAG, 64 << 10).unwrap();
    let to = all[1].name();
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&all[0], to, count, 400));
        receive_all(&inbox, count, then);
    });
}

#[test]
fn the_nic_of_the_rail_is_killed_and_returns_and_nothing_is_lost() {
    let test = "the_nic_of_the_rail_is_killed_and_returns_and_nothing_is_lost";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    let all = pair(&lab, &both(), |_| ());
    let events = [all[0].events(), all[1].events()];
    stream(&all, 10_000, |nth| match nth {
        0 => wait_until("the rail carries", || linked(&all[0], "rail")),
        3_000 => lab.ip(0, "link set v1 down"),
        6_000 => {
            wait_until("tcp carries", || linked(&all[0], "tcp"));
            assert!(!linked(&all[0], "rail"));
            lab.ip(0, "link set v1 up");
            let back = || all.iter().all(|oob| linked(oob, "rail"));
            wait_until("the rail is back", back);
        }
        _ => {}
    });
    let before = carriage(&all[0], "rail").frames_sent;
    stream(&all, 1_000, |_| ());
    wait_until("by the rail", || {
        carriage(&all[0], "rail").frames_sent >= before + 1_000
    });
    events.iter().for_each(assert_no_peer_was_lost);
    finish(all);
}

#[test]
fn the_nic_of_tcp_is_killed_and_the_rail_carries_on() {
    let test = "the_nic_of_tcp_is_killed_and_the_rail_carries_on";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    let transports = [Transport::direct("tcp"), Transport::direct("rail")];
    let all = pair(&lab, &transports, |_| ());
    let events = [all[0].events(), all[1].events()];
    stream(&all, 10_000, |nth| {
        if nth == 3_000 {
            assert!(carriage(&all[0], "rail").frames_sent < 100, "tcp is preferred");
            lab.ip(0, "link set v0 down");
        }
    });
    wait_until("the rail carried", || {
        carriage(&all[0], "rail").frames_sent >= 1_000
    });
    events.iter().for_each(assert_no_peer_was_lost);
    finish(all);
}

/// The kernel notifies the host with the cut cable; the other one detects it by itself.
#[test]
fn both_cables_are_cut_and_the_peer_is_lost_once_and_comes_back_by_either() {
    let test = "both_cables_are_cut_and_the_peer_is_lost_once_and_comes_back_by_either";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    let all = pair(&lab, &both(), |config| {
        config.policy = Policy::Persist;
        (config.rounds, config.grace) = (2, Duration::from_millis(300));
        (config.retry, config.retry_max) = (Duration::from_millis(20), Duration::from_millis(200));
    });
    let events = [all[0].events(), all[1].events()];
    let names = [all[0].name(), all[1].name()];
    say(&all[0], names[1], TAG, b"before");
    ["v0", "v1"]
        .iter()
        .for_each(|nic| lab.ip(0, &format!("link set {nic} down")));
    let sends: Vec<_> = (0..100)
        .map(|nth| all[0].send(names[1], TAG, number(nth), Some(PATIENCE)).unwrap())
        .collect();
    let back_to = all[1].send(names[0], TAG, number(0), Some(PATIENCE)).unwrap();
    for (events, other) in events.iter().zip([names[1], names[0]]) {
        let lost = until(events, "a loss", is_lost);
        assert!(
            matches!(lost, Event::PeerLost { peer, .. } if peer == other),
            "{lost:?}"
        );
    }
    for sent in sends.iter().chain([&back_to]) {
        let ended = sent.wait(PATIENCE).expect("each ends");
        let fits = matches!(ended, Ok(Status::PeerLost | Status::Delivered) | Err(_));
        assert!(fits && sent.take().is_none(), "{ended:?}");
    }
    std::thread::sleep(Duration::from_millis(1500));
    events.iter().for_each(assert_no_peer_was_lost);
    lab.ip(0, "link set v1 up");
    for events in &events {
        until(events, "its return", |event| {
            assert!(!is_lost(event), "{event:?}");
            matches!(event, Event::PeerBack { .. })
        });
    }
    say(&all[0], names[1], TAG, b"after, by the rail alone");
    finish(all);
}

/// There is no notification: the frames do not arrive any more, and that is all.
#[test]
fn a_rail_that_falls_silent_is_given_up_and_tcp_carries_on() {
    let test = "a_rail_that_falls_silent_is_given_up_and_tcp_carries_on";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    second_cable(&lab);
    // This time the rail is where the trouble is made.
    let start = |rank: u32| {
        lab.inside(rank as usize, || {
            let settings = rail::Settings {
                idle: Duration::from_millis(200),
                silence: Duration::from_secs(1),
                ..rail::Settings::default()
            };
            let rails: Vec<rail::Open> = vec![Box::new(udp("udp:v0", [9; 32]))];
            let carried = Carried::new().rail(settings, rails).tcp(nics(&["v1"]));
            Oob::start(
                with(rank, 2, both()),
                carried,
                key(7),
                runner::Settings::default(),
            )
            .unwrap()
        })
    };
    let all = vec![start(0), start(1)];
    introduce(&all);
    let events = [all[0].events(), all[1].events()];
    stream(&all, 6_000, |nth| {
        if nth == 2_000 {
            wait_until("the rail carries", || linked(&all[0], "rail"));
            (0..2).for_each(|host| lab.drop_udp(host));
        }
    });
    assert!(carriage(&all[0], "tcp").frames_sent >= 1_000);
    assert!(rail_counters(&all[0]).peers_down >= 1);
    lab.lose(0);
    wait_until("the rail is back", || all.iter().all(|oob| linked(oob, "rail")));
    events.iter().for_each(assert_no_peer_was_lost);
    finish(all);
}
