//! Every fault of a script, one by one: each ends in an error at opening, in a recovery, or in the end of the rail, and none in a hang.

use super::*;

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// The rail goes on by itself, and frames pass again.
    Recovery,
    /// The rail ends: its device is gone.
    Gone,
}

/// Frames pass at last, whatever was lost before.
fn recovers(pair: &mut Pair, fault: &str) {
    let begun = Instant::now();
    for number in 0u32.. {
        let mark = format!("{fault} {number}");
        for channel in [Channel::Priority, Channel::Data] {
            let (tx, _) = pair.a.split();
            if tx.reserve(channel, 1) == 1 {
                tx.post(channel, PeerIndex(0), &[], Body::Bytes(mark.as_bytes()))
                    .unwrap();
                tx.doorbell();
            }
        }
        let mut came = [false; 2];
        let wait = Instant::now();
        while wait.elapsed() < Duration::from_millis(100) && came != [true; 2] {
            for (at, channel) in [Channel::Priority, Channel::Data].into_iter().enumerate() {
                let (_, rx) = pair.b.split();
                for frame in 0..rx.poll(channel, 16) {
                    came[at] |= rx
                        .frame(channel, frame)
                        .is_some_and(|frame| frame.bytes.to_vec() == mark.as_bytes());
                }
            }
            pair.turn();
        }
        if came == [true; 2] {
            return;
        }
        assert!(
            begun.elapsed() < SOON,
            "{fault}: {:?} {:?} {:?} {:?} {:?}",
            pair.a,
            pair.a.trouble(),
            pair.b,
            pair.b.trouble(),
            pair.lab.model.violations().list().last()
        );
    }
}

/// A few hundred frames through whatever is wrong.
fn traffic(pair: &mut Pair) {
    for number in 0..300u32 {
        for channel in [Channel::Priority, Channel::Data] {
            let (tx, _) = pair.a.split();
            if tx.reserve(channel, 1) == 1 {
                tx.post(channel, PeerIndex(0), &[], Body::Bytes(&number.to_le_bytes()))
                    .unwrap();
                tx.doorbell();
            }
            let (_, rx) = pair.b.split();
            rx.poll(channel, 16);
        }
        pair.turn();
    }
}

fn with(fault: &str, ends: Ends) {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.lab
        .model
        .inject(fault)
        .unwrap_or_else(|error| panic!("{fault}: {error}"));
    match ends {
        Ends::Recovery => {
            traffic(&mut pair);
            recovers(&mut pair, fault);
        }
        Ends::Gone => {
            let begun = Instant::now();
            while pair.a.device().is_some() {
                assert!(
                    begun.elapsed() < SOON,
                    "{fault}: {:?} {:?}",
                    pair.a,
                    pair.a.trouble()
                );
                traffic(&mut pair);
            }
            assert!(std::iter::from_fn(|| pair.a.event()).any(|event| event.kind == EventKind::DeviceGone));
        }
    }
}

#[test]
fn queues_that_stop_or_do_not_hear_recover() {
    for fault in [
        "after 50 frames vf0.wq1 error-status 3",
        "after 50 frames vf0.wq0 error-status 9",
        "after 40 doorbells vf0.wq1 lost-doorbell",
        "always vf0.wq1 lost-doorbell times 3",
        "always vf1.rq1 stale times 1",
        "every 20 frames vf1.rq1 truncate times 5",
    ] {
        with(fault, Ends::Recovery);
    }
    // Not tried: a receive queue's lost doorbell. It has nothing new to say while nothing comes, and says the same again, which the
    // model takes for no doorbell.
}

#[test]
fn completions_that_cannot_be_recover() {
    for cq in ["vf1.cq0", "vf1.cq1", "vf0.cq2"] {
        for what in [
            "duplicate",
            "wrong-queue 5",
            "wrong-queue 1",
            "wrong-type 1",
            "wrong-type 4",
            "wrong-type 5",
            "wrong-type 127",
            "wrong-color",
            "color-late 300us",
            "color-early 300us",
            "interrupt-first 300us",
        ] {
            with(&format!("after 20 completions {cq} {what}"), Ends::Recovery);
        }
    }
}

#[test]
fn packets_that_are_wrong_on_their_way_are_lost_and_nothing_else() {
    for what in [
        "drop",
        "duplicate",
        "reorder",
        "delay 2ms",
        "corrupt",
        "bad-ip",
        "bad-udp",
        "pad 20",
        "tag",
        "fragment",
        "foreign-port",
        "oversize 1000",
    ] {
        with(
            &format!("probability 0.2 seed 7 switch {what} times 100"),
            Ends::Recovery,
        );
    }
}

#[test]
fn links_and_physical_functions_that_come_and_go_recover() {
    for fault in [
        "at 0s link torn 300ms",
        "at 0s link torn forever",
        "at 0s vf0 reset",
        "at 0s vf0 mac 02:00:00:00:77:01",
    ] {
        with(fault, Ends::Recovery);
    }
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.lab.model.inject("at 0s link down").unwrap();
    pair.until("down", |pair| !pair.a.is_link_up() && !pair.b.is_link_up());
    pair.lab.model.inject("at 0s link up").unwrap();
    pair.until("up", |pair| pair.a.is_link_up() && pair.b.is_link_up());
    recovers(&mut pair, "link down and up");
    pair.lab.model.inject("at 0s link mtu 1000").unwrap();
    pair.until("too short for our frames", |pair| !pair.a.is_link_up());
    pair.lab.model.inject("at 0s link mtu 9000").unwrap();
    pair.until("long enough", |pair| pair.a.is_link_up() && pair.b.is_link_up());
    recovers(&mut pair, "mtu down and up");
}

#[test]
fn a_device_that_is_pulled_out_is_gone() {
    with("at 0s vf0 removed", Ends::Gone);
}

/// What a rail says that cannot be opened, and how long it takes to say it.
#[test]
fn what_is_wrong_at_opening_is_an_error_with_its_reason_in_time() {
    for (fault, word) in [
        ("always vf0.devcmd busy forever", "does not end"),
        ("always vf0.devcmd busy 3s", "does not end"),
        ("always vf0.devcmd.9 busy 3s", "MAC_ADDR"),
        ("always vf0.devcmd.24 pending", "OPEN_STATUS"),
        ("always vf0.devcmd.31 errno 6", "wrong state"),
        ("always vf0.devcmd.31 errno 12", "under way"),
        ("always vf0.devcmd.58 error 1", "argument"),
        ("always vf0.devcmd.58 error 10", "full"),
        ("always vf0.devcmd.58 error 9", "link is down"),
        ("always vf0.devcmd.60 error 6", "QP_ENABLE"),
        ("at 0s vf0 bad-magic", "no header"),
        ("at 0s vf0 bad-version", "no header"),
        ("at 0s vf0 small-bar", "resource table"),
        ("at 0s vf0 table-cut 3", "resource table"),
        ("at 0s vf0 missing 3", "no completion queues"),
        ("at 0s vf0 count-zero 1", "no work queues"),
        ("always vf0.wq0 stuck-stopped", "does not start"),
        ("always vf0.rq1 stuck-stopped", "does not start"),
    ] {
        let lab = Lab::new(Options::default());
        lab.model
            .inject(fault)
            .unwrap_or_else(|error| panic!("{fault}: {error}"));
        let begun = Instant::now();
        match lab.open("vf0", &UsnicConfig::default()) {
            Err(error) => assert!(error.contains(word), "{fault}: {error}"),
            Ok(rail) => panic!("{fault}: {rail:?}"),
        }
        assert!(begun.elapsed() < SOON, "{fault}");
    }
    // What may fail does not stop it.
    for fault in [
        "always vf0.devcmd busy 30ms",
        "always vf0.devcmd.2 zeros",
        "always vf0.intr0 lost",
    ] {
        let lab = Lab::new(Options::default());
        lab.model.inject(fault).unwrap();
        assert!(
            lab.open("vf0", &UsnicConfig::default()).unwrap().is_link_up(),
            "{fault}"
        );
    }
}
