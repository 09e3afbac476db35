//! Commands by the ring (devcmd2): the same rail, the same model, another way to its firmware.

use super::*;

use doorbell_usnic::Commands;

fn ringed() -> Options {
    let mut options = Options::default();
    options.layout.devcmd2 = true;
    options
}

fn by_ring() -> UsnicConfig {
    UsnicConfig {
        commands: Commands::Devcmd2,
        ..UsnicConfig::default()
    }
}

#[test]
fn rails_live_and_begin_anew_by_the_ring_and_nothing_is_to_be_forgiven() {
    for trap in [Trap::Devcmd, Trap::All] {
        for seed in 0..3 {
            let mut options = ringed();
            (options.trap, options.layout.seed) = (trap, Some(seed));
            let mut pair = Pair::new(options, &by_ring());
            assert!(pair.a.how().contains("devcmd2"), "{}", pair.a.how());
            pair.passes("by the ring");
            // More commands than the ring has entries: it wraps, and colours flip.
            for round in 0..4u64 {
                pair.lab
                    .model
                    .inject("after 0 frames vf0.wq1 error-status 3")
                    .unwrap();
                pair.post(Channel::Data, b"the last straw");
                pair.until("set up again", |pair| {
                    pair.a.stats().resets == round + 1 && pair.a.is_link_up()
                });
                faults::recovers(&mut pair, &format!("{round} "));
            }
            pair.lab.model.inject("at 0s vf0 reset").unwrap();
            pair.until("set up again after a reset", |pair| {
                pair.a.stats().resets == 5 && pair.a.is_link_up()
            });
            faults::recovers(&mut pair, "reset");
            pair.a.close(Time::ZERO, Time::ZERO);
            pair.b.close(Time::ZERO, Time::ZERO);
            pair.lab.has_fired("devcmd2");
            pair.lab.is_forgiven("devcmd2");
        }
    }
}

#[test]
fn the_block_is_taken_where_there_is_one_and_the_ring_where_that_is_alone() {
    let lab = Lab::new(ringed());
    let how = |config: &UsnicConfig| lab.open("vf0", config).map(|rail| rail.how());
    assert!(
        how(&UsnicConfig::default())
            .unwrap()
            .contains("commands by devcmd,")
    );
    lab.model.inject("at 0s vf0 missing 16").unwrap();
    assert!(how(&UsnicConfig::default()).unwrap().contains("devcmd2"));
    let block = UsnicConfig {
        commands: Commands::Devcmd,
        ..UsnicConfig::default()
    };
    let error = how(&block).unwrap_err();
    assert!(
        error.contains("no command block") && error.contains("usnic.commands"),
        "{error}"
    );
    lab.is_forgiven("either");
    let error = Lab::new(Options::default()).open("vf0", &by_ring()).unwrap_err();
    assert!(error.contains("no second command block"), "{error}");
}

#[test]
fn a_physical_function_with_nothing_but_the_ring_steers_by_it() {
    let mut lab = Lab::new(ringed());
    lab.stop_agent();
    lab.model.inject("at 0s pf missing 16").unwrap();
    lab.start_agent();
    assert!(lab.open("vf0", &UsnicConfig::default()).unwrap().is_link_up());
    let mut options = ringed();
    options.policy = Policy::Permissive;
    let lab = Lab::new(options);
    let direct = UsnicConfig {
        control: Control::Direct,
        ..by_ring()
    };
    let rail = lab.open("vf0", &direct).unwrap();
    assert!(rail.is_link_up() && rail.nic().has_arp(), "{}", rail.how());
    drop(rail);
    lab.is_forgiven("steered by the ring");
}

#[test]
fn what_goes_wrong_by_the_ring_is_an_error_with_its_reason_in_time() {
    for (fault, word) in [
        ("always vf0.devcmd busy forever", "INITIALIZE_DEVCMD2"),
        ("always vf0.devcmd.9 busy 3s", "MAC_ADDR"),
        ("always vf0.devcmd.57 error 6", "wrong state"),
        ("always vf0.devcmd.24 pending", "OPEN_STATUS"),
        ("always vf0.devcmd.31 errno 6", "wrong state"),
        ("always vf0.devcmd.24 error 7", "no memory left"),
        ("at 0s vf0 count-zero 24", "no second command block"),
    ] {
        let lab = Lab::new(ringed());
        lab.model.inject(fault).unwrap();
        let begun = Instant::now();
        match lab.open("vf0", &by_ring()) {
            Err(error) => assert!(error.contains(word), "{fault}: {error}"),
            Ok(rail) => panic!("{fault}: {rail:?}"),
        }
        assert!(begun.elapsed() < SOON, "{fault}");
        lab.has_fired(fault);
    }
    for (vf_open, policy, opens) in [
        (3, VfCommands::Try, true),
        (5, VfCommands::Try, true),
        (3, VfCommands::Need, false),
        (0, VfCommands::Need, true),
        (0, VfCommands::Skip, true),
    ] {
        let mut options = ringed();
        options.behaviour.vf_open = vf_open;
        let config = UsnicConfig {
            vf_commands: policy,
            ..by_ring()
        };
        let opened = Lab::new(options).open("vf0", &config);
        assert_eq!(opened.is_ok(), opens, "{vf_open} {policy:?}: {opened:?}");
    }
}

#[test]
fn a_ring_that_hangs_later_is_made_anew_with_the_function() {
    let mut pair = Pair::new(ringed(), &by_ring());
    pair.lab
        .model
        .inject("always vf0.devcmd.24 busy 2s times 1\nafter 0 frames vf0.wq1 error-status 3")
        .unwrap();
    pair.post(Channel::Data, b"the last straw");
    let mut reason = None;
    pair.until("set up again", |pair| {
        reason = reason
            .take()
            .or_else(|| pair.a.nic().trouble().map(str::to_owned));
        pair.a.stats().resets == 1 && pair.a.is_link_up()
    });
    assert!(reason.is_some_and(|reason| reason.contains("OPEN_STATUS")));
    pair.lab.has_fired("by the ring");
    faults::recovers(&mut pair, "by the ring");
}
