//! The agent and its physical function: what goes wrong with either, and rails that come back by themselves.

use super::*;

/// Whether such an event was reported by now.
fn has_told(pair: &Pair, what: impl Fn(&AgentEvent) -> bool) -> bool {
    pair.lab.told.lock().unwrap().iter().any(what)
}

/// Rails go down and come back, and frames pass again.
fn comes_back(pair: &mut Pair, fault: &str) {
    pair.passes("before");
    pair.lab.model.inject(fault).unwrap();
    pair.until(fault, |pair| {
        has_told(pair, |told| matches!(told, AgentEvent::Lost(_)))
            && has_told(pair, |told| *told == AgentEvent::Back)
    });
    pair.lab.has_fired(fault);
    pair.until(fault, |pair| {
        pair.a.stats().resets > 0 && pair.b.stats().resets > 0 && pair.a.is_link_up() && pair.b.is_link_up()
    });
    pair.passes(fault);
}

#[test]
fn a_physical_function_that_is_reset_or_cut_off_is_opened_again_and_rails_come_back() {
    for fault in ["at 0s pf reset", "at 0s pf disconnect", "at 0s pf removed"] {
        let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
        comes_back(&mut pair, fault);
        // Frames that are just being sent when all queue pairs are turned off are no fault.
        let list = pair.lab.model.violations().list();
        let mine = list.iter().find(|one| one.kind != Kind::NoQpEnable);
        assert!(mine.is_none(), "{fault}: {mine:?}");
    }
}

#[test]
fn a_physical_function_of_the_rails_own_process_is_looked_after_too() {
    for fault in ["at 0s pf reset", "at 0s pf disconnect"] {
        let model = Model::start(Options {
            vfs: 1,
            ..Options::default()
        })
        .unwrap();
        let config = UsnicConfig {
            control: Control::Proxy,
            ..UsnicConfig::default()
        };
        let name = format!("usnic:model/{}/vf0", model.dir().display());
        let mut rail = UsnicRail::open(&name.parse().unwrap(), &config).unwrap();
        model.inject(fault).unwrap();
        let (begun, mut events) = (Instant::now(), Vec::new());
        while events.len() < 2 {
            assert!(
                begun.elapsed() < SOON,
                "{fault}: {rail:?} {:?}",
                rail.nic().trouble()
            );
            rail.progress(Time::from_nanos(begun.elapsed().as_nanos() as u64));
            events.extend(std::iter::from_fn(|| rail.event()).map(|event| event.kind));
            std::thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(events, [EventKind::LinkDown, EventKind::LinkUp], "{fault}");
    }
}

/// The whole process ends, and another one has its folder: the agent goes on, and rails can be opened again.
#[test]
fn an_agent_outlives_its_model() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let options = Options {
        dir: Some(folder.path().to_owned()),
        ..Options::default()
    };
    let mut lab = Lab::new(options.clone());
    let mut rail = lab.open("vf0", &UsnicConfig::default()).unwrap();
    let clock = Instant::now();
    lab.model.inject("at 0s model die").unwrap();
    while rail.nic().device().is_some() {
        assert!(clock.elapsed() < SOON, "{rail:?} {:?}", rail.nic().trouble());
        rail.progress(Time::from_nanos(clock.elapsed().as_nanos() as u64));
        std::thread::sleep(Duration::from_micros(100));
    }
    let elsewhere = Model::start(Options::default()).unwrap();
    drop(std::mem::replace(&mut lab.model, elsewhere));
    lab.model = Model::start(options).unwrap();
    let rail = loop {
        match lab.open("vf0", &UsnicConfig::default()) {
            Ok(rail) => break rail,
            Err(error) => assert!(clock.elapsed() < SOON, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(
        rail.how().contains("agent") && rail.is_link_up(),
        "{}",
        rail.how()
    );
    drop(rail);
    lab.is_forgiven("another one");
}

/// A device that is slow, or refuses a command, is not one that was reset.
#[test]
fn slow_and_refused_questions_of_an_agent_end_nothing() {
    for fault in [
        "always pf.devcmd.21 busy 2s times 1",
        "always pf.devcmd.21 error 1 times 2",
        "always pf.devcmd.21 error 4 times 2",
    ] {
        let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
        pair.lab.model.inject(fault).unwrap();
        pair.until(fault, |pair| {
            has_told(pair, |told| matches!(told, AgentEvent::Slow(_)))
        });
        let later = Instant::now();
        while later.elapsed() < Duration::from_millis(1_500) {
            pair.turn();
            std::thread::sleep(Duration::from_micros(100));
        }
        pair.passes(fault);
        assert_eq!(pair.a.stats().resets + pair.b.stats().resets, 0, "{fault}");
        assert!(
            !has_told(&pair, |told| matches!(told, AgentEvent::Lost(_))),
            "{fault}"
        );
        pair.lab.has_fired(fault);
    }
}

/// An error alone reports the reset: the device is reset to be sure, so nothing that was installed before is
/// in the way.
#[test]
fn a_physical_function_that_reports_not_open_has_forgotten_its_filters_too() {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    let fault = "always pf.devcmd.21 error 6 times 1";
    pair.lab.model.inject(fault).unwrap();
    let mut refused = Vec::new();
    pair.until(fault, |pair| {
        for rail in [&pair.a, &pair.b] {
            refused.extend(
                rail.nic()
                    .trouble()
                    .filter(|why| why.contains("refused"))
                    .map(str::to_owned),
            );
        }
        has_told(pair, |told| *told == AgentEvent::Back)
            && [&pair.a, &pair.b]
                .into_iter()
                .all(|rail| rail.stats().resets > 0 && rail.is_link_up())
    });
    assert_eq!(refused, [""; 0], "no filter is there twice");
    pair.lab.has_fired(fault);
    assert!(pair.a.nic().has_arp() && pair.b.nic().has_arp());
    pair.passes(fault);
}

/// Functions that report no address of their own have the physical one's, which may be another one when that
/// is back.
#[test]
fn another_hardware_address_of_the_physical_function_is_received_from_an_agent_that_stays() {
    let config = UsnicConfig {
        vf_commands: VfCommands::Skip,
        ..UsnicConfig::default()
    };
    let mut pair = Pair::new(Options::default(), &config);
    assert_eq!(pair.a.mac(), pair.b.mac());
    let new = [2, 0, 0, 0, 0x77, 9];
    assert_ne!(pair.a.mac(), new);
    // It has the new one from the first command after its reset on, and reports it when queried.
    let fault = "at 0s pf reset\nevery 1 commands pf mac 02:00:00:00:77:09";
    pair.lab.model.inject(fault).unwrap();
    pair.until("set up again", |pair| {
        [&pair.a, &pair.b]
            .into_iter()
            .all(|rail| rail.stats().resets > 0 && rail.is_link_up())
    });
    assert!(
        !has_told(&pair, |told| *told == AgentEvent::Went(0, 0)),
        "it is the same line"
    );
    assert_eq!([pair.a.mac(), pair.b.mac()], [new; 2]);
    faults::recovers(&mut pair, fault);
}

/// A filter is installed after its request was given up: it is found, and taken away. There is room for no
/// other.
#[test]
fn a_filter_whose_answer_came_too_late_is_taken_away() {
    let mut options = Options {
        vfs: 1,
        ..Options::default()
    };
    options.behaviour.filters = 3;
    let lab = Lab::new(options);
    lab.model.inject("always pf.devcmd.43 busy 2s times 1").unwrap();
    let config = UsnicConfig::default();
    let error = lab.open("vf0", &config).unwrap_err();
    assert!(error.contains("does not answer"), "{error}");
    lab.has_fired("busy");
    let begun = Instant::now();
    let rail = loop {
        match lab.open("vf0", &config) {
            Ok(rail) => break rail,
            Err(error) => assert!(begun.elapsed() < SOON, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(rail.nic().has_arp() && rail.is_link_up(), "all three are there");
}

#[test]
fn an_address_is_one_functions_and_its_owner_is_named() {
    let lab = Lab::new(Options::default());
    let same = UsnicConfig {
        address: Some("10.0.0.5/24".to_owned()),
        ..UsnicConfig::default()
    };
    let first = lab.open("vf0", &same).unwrap();
    let error = lab.open("vf1", &same).unwrap_err();
    let process = format!("process {} (", std::process::id());
    assert!(
        error.contains(&process) && error.contains("has the address 10.0.0.5 already, for function 0"),
        "{error}"
    );
    // The function itself, with its number by hand.
    let number = UsnicConfig {
        function: Some(0),
        ..UsnicConfig::default()
    };
    let error = lab.open("vf1", &number).unwrap_err();
    assert!(
        error.contains("another process has function 0") && error.contains(&process),
        "{error}"
    );
    drop(first);
    assert!(lab.open("vf1", &same).unwrap().is_link_up());
    lab.is_forgiven("addresses");
}

#[test]
fn a_function_that_was_just_let_go_of_can_be_had_at_once() {
    let lab = Lab::new(Options::default());
    for round in 0..20 {
        let rail = lab.open("vf0", &UsnicConfig::default());
        assert!(rail.is_ok(), "{round}: {rail:?}");
    }
    lab.is_forgiven("again and again");
}

/// How many voluntary context switches this thread made: it waited for something.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// A process listens and never replies: the rail is down, and its caller is not held up.
#[test]
fn a_mute_agent_delays_nothing_else() {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.lab.stop_agent();
    let path = pair.lab.model.dir().join("agent.sock");
    let mute = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::bind(&mute, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&mute, 8).unwrap();
    pair.until("down", |pair| !pair.a.is_link_up());
    // A caller that is held up sleeps in the kernel, and each sleep is a voluntary switch.
    // The length of a turn proves nothing, since the test may not have the processor.
    let before = sleeps();
    let begun = Instant::now();
    let mut turns = 0u32;
    while turns < 1_000 || begun.elapsed() < Duration::from_secs(1) {
        pair.turn();
        turns += 1;
        assert!(begun.elapsed() < 6 * SOON, "hang guard: {turns} turns");
    }
    let slept = sleeps() - before;
    assert!(slept < u64::from(turns) / 100, "{slept} sleeps in {turns} turns");
    drop(mute);
    std::fs::remove_file(&path).unwrap();
    pair.lab.start_agent();
    pair.until("up", |pair| pair.a.is_link_up() && pair.b.is_link_up());
    pair.passes("after");
}

/// The link goes and comes, with all filters, while the queues are just set up again.
#[test]
fn what_is_lost_while_queues_are_made_anew_is_noticed() {
    let mut options = Options::default();
    // Long enough to be met in the middle of it, and far from what a queue may take: the model may not get a
    // core at once.
    options.timing.enable = Duration::from_millis(20);
    options.behaviour.link_loses_filters = true;
    let mut pair = Pair::new(options, &UsnicConfig::default());
    for wait in [0, 20, 60, 120, 200] {
        pair.lab
            .model
            .inject("after 0 frames vf1.rq1 error-status 3")
            .unwrap();
        pair.post(Channel::Data, b"the last straw");
        let resets = pair.b.stats().resets;
        pair.until("the queues are off", |pair| {
            !pair.b.is_link_up() || pair.b.stats().resets > resets
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(wait) {
            pair.turn();
        }
        pair.lab.model.inject("at 0s link down\nat 0s link up").unwrap();
        pair.until("set up again", |pair| {
            pair.b.stats().resets > resets && pair.b.is_link_up() && pair.a.is_link_up()
        });
        pair.lab.has_fired("the last straw, and the link");
        faults::recovers(&mut pair, &format!("{wait} ms"));
    }
}

#[test]
fn a_device_that_goes_while_its_queues_are_made_anew_is_gone() {
    for fault in ["at 0s vf0 removed", "at 0s vf0 disconnect"] {
        let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
        pair.lab.stop_agent();
        pair.until("down", |pair| !pair.a.is_link_up());
        pair.until("why", |pair| {
            pair.a.nic().trouble().is_some_and(|why| why.contains("agent"))
        });
        pair.lab.model.inject(fault).unwrap();
        pair.until(fault, |pair| pair.a.nic().device().is_none());
        assert!(std::iter::from_fn(|| pair.a.event()).any(|event| event.kind == EventKind::DeviceGone));
    }
}
