//! Every fault of a script, one by one: each ends in an error at opening, in a recovery, or in the end of the
//! rail, and none in a hang.

use super::*;

/// Frames pass at last, whatever was lost before.
pub(super) fn recovers(pair: &mut Pair, fault: &str) {
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
            pair.a.nic().trouble(),
            pair.b,
            pair.b.nic().trouble(),
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

/// The rail goes on by itself, frames pass again, and each of these totals of both rails has moved: the fault
/// was there, and was seen.
fn mended(fault: &str, moves: &[&str]) {
    mended_by(Options::default(), fault, moves);
}

/// Rounds of traffic after which a fault that has acted without a trace is injected again.
const AGAIN: u32 = 2_000;

fn mended_by(options: Options, fault: &str, moves: &[&str]) {
    let mut pair = Pair::new(options, &UsnicConfig::default());
    let before = totals(&pair);
    inject(&pair, fault);
    // A fault may also hit what it does nothing to: a neighbour's advertisement, or a completion of the very
    // queue that it names. Then it acts again.
    let is_seen = |pair: &Pair| {
        let mut both = totals(pair).into_iter().zip(&before);
        both.all(|(now, before)| now.1 > before.1 || !moves.contains(&now.0))
    };
    let begun = Instant::now();
    let mut rounds = 0;
    while (pair.lab.model.unfired() != Some(0) || !is_seen(&pair)) && begun.elapsed() < SOON {
        traffic(&mut pair);
        rounds += 1;
        if rounds % AGAIN == 0 && pair.lab.model.unfired() == Some(0) {
            inject(&pair, fault);
        }
    }
    pair.lab.has_fired(fault);
    recovers(&mut pair, fault);
    for (now, before) in totals(&pair).into_iter().zip(before) {
        assert!(
            now.1 > before.1 || !moves.contains(&now.0),
            "{fault}: {} did not move: {:?}",
            now.0,
            totals(&pair)
        );
    }
}

/// The rail ends: its device is gone.
fn ended(fault: &str) {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    inject(&pair, fault);
    let begun = Instant::now();
    while pair.a.nic().device().is_some() {
        assert!(
            begun.elapsed() < SOON,
            "{fault}: {:?} {:?}",
            pair.a,
            pair.a.nic().trouble()
        );
        traffic(&mut pair);
    }
    assert!(std::iter::from_fn(|| pair.a.event()).any(|event| event.kind == EventKind::DeviceGone));
    pair.lab.has_fired(fault);
}

fn inject(pair: &Pair, fault: &str) {
    let taken = pair.lab.model.inject(fault);
    taken.unwrap_or_else(|error| panic!("{fault}: {error}"));
}

/// Of both rails together.
fn totals(pair: &Pair) -> Vec<(&'static str, u64)> {
    let (a, b) = (pair.a.stats(), pair.b.stats());
    let both = a.named().zip(b.named());
    both.map(|((name, a), (_, b))| (name, a + b)).collect()
}

#[test]
fn queues_that_stop_or_do_not_hear_recover() {
    for (fault, moves) in [
        ("after 50 frames vf0.wq1 error-status 3", &["resets"][..]),
        ("after 50 frames vf0.wq0 error-status 9", &["resets"]),
        ("after 5 doorbells vf0.wq1 lost-doorbell", &[]),
        ("always vf0.wq1 lost-doorbell times 3", &[]),
        // Queues that are set up again find what an adapter's cache has kept.
        (
            "always vf1.rq1 stale times 1\nafter 50 frames vf1.rq1 error-status 3",
            &["resets"],
        ),
        ("every 20 frames vf1.rq1 truncate times 5", &["cut"]),
        ("after 0 doorbells vf1.rq0 lost-doorbell", &[]),
    ] {
        mended(fault, moves);
    }
    // A receive queue without room has nothing new to report: it completes the same index again, which the
    // rail has to read.
    let mut hears = Options::default();
    hears.behaviour.same_index = true;
    mended_by(hears, "always vf1.rq1 lost-doorbell times 3", &[]);
}

/// One frame alone: no later doorbell follows it but the rail's own, once it sees no progress.
#[test]
fn a_doorbell_without_effect_is_rung_again() {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    let fault = "always vf0.wq1 lost-doorbell times 1";
    inject(&pair, fault);
    let before = pair.a.stats().rung_again;
    pair.passes(fault);
    pair.lab.has_fired(fault);
    assert!(pair.a.stats().rung_again > before);
    assert_eq!(pair.a.stats().resets, 0, "it takes no more than that");
}

#[test]
fn completions_that_cannot_be_recover() {
    for (cq, queue) in [("vf1.cq0", 0), ("vf1.cq1", 1), ("vf0.cq2", 0)] {
        // Of queues that are there, the other one.
        let other = format!("wrong-queue {}", 1 - queue);
        for (what, moves) in [
            ("duplicate", &["nonsense"][..]),
            ("wrong-queue 5", &["nonsense"]),
            (&other, &["nonsense"]),
            ("wrong-type 1", &["nonsense"]),
            ("wrong-type 4", &["nonsense"]),
            ("wrong-type 5", &["nonsense"]),
            ("wrong-type 127", &["nonsense"]),
            ("wrong-color", &["resets"]),
            ("color-late 300us", &[]),
            ("color-early 300us", &[]),
            ("interrupt-first 300us", &[]),
        ] {
            mended(&format!("after 20 completions {cq} {what}"), moves);
        }
    }
}

#[test]
fn packets_that_are_wrong_on_their_way_are_lost_and_nothing_else() {
    for (what, moves) in [
        ("drop", &[][..]),
        ("duplicate", &[]),
        ("reorder", &[]),
        ("delay 2ms", &[]),
        ("corrupt", &["spoilt"]),
        ("bad-ip", &["malformed"]),
        ("bad-udp", &["corrupt"]),
        ("pad 20", &[]),
        ("tag", &[]),
        ("fragment", &[]),
        ("foreign-port", &[]),
        ("oversize 1000", &[]),
    ] {
        mended(&format!("probability 0.2 seed 7 switch {what} times 100"), moves);
    }
}

#[test]
fn links_and_physical_functions_that_come_and_go_recover() {
    mended("at 0s vf0 reset", &["resets"]);
    mended("at 0s vf0 mac 02:00:00:00:77:01", &[]);
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.lab.model.inject("at 0s link down").unwrap();
    pair.until("down", |pair| !pair.a.is_link_up() && !pair.b.is_link_up());
    pair.lab.model.inject("at 0s link up").unwrap();
    pair.until("up", |pair| pair.a.is_link_up() && pair.b.is_link_up());
    recovers(&mut pair, "link down and up");
    pair.lab.model.inject("at 0s link mtu 1000").unwrap();
    pair.until("too short for our frames", |pair| !pair.a.is_link_up());
    passes_nothing(&mut pair);
    pair.lab.model.inject("at 0s link mtu 9000").unwrap();
    pair.until("long enough", |pair| pair.a.is_link_up() && pair.b.is_link_up());
    recovers(&mut pair, "mtu down and up");
}

/// A rail that reports itself as down is: the peer receives nothing from it, whatever the queues could do.
fn passes_nothing(pair: &mut Pair) {
    let lost = pair.a.stats().unresolved;
    for channel in [Channel::Priority, Channel::Data] {
        pair.post(channel, b"no one receives this");
    }
    assert_eq!(pair.a.stats().unresolved, lost + 2);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(50) {
        for channel in [Channel::Priority, Channel::Data] {
            let (_, rx) = pair.b.split();
            assert_eq!(rx.poll(channel, 16), 0);
        }
        pair.turn();
    }
}

#[test]
fn a_device_that_is_pulled_out_is_gone() {
    ended("at 0s vf0 removed");
}

/// The error of a rail that cannot be opened, and how long it takes to come.
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
        lab.has_fired(fault);
    }
    // What may fail does not stop it.
    let fault = "always vf0.devcmd busy 30ms";
    let lab = Lab::new(Options::default());
    lab.model.inject(fault).unwrap();
    assert!(lab.open("vf0", &UsnicConfig::default()).unwrap().is_link_up());
    lab.has_fired(fault);
    // Of the physical function, through its agent: it does not report usNIC then, and steers all the same.
    let fault = "always pf.devcmd.2 zeros";
    let mut lab = Lab::new(Options::default());
    lab.stop_agent();
    lab.model.inject(fault).unwrap();
    lab.start_agent();
    lab.has_fired(fault);
    assert!(lab.open("vf0", &UsnicConfig::default()).unwrap().is_link_up());
}

/// As `mended`, over a function whose filters and queues are set up again meanwhile.
fn set_up_again(fault: &str, word: &str) {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.lab.model.inject(fault).unwrap();
    pair.lab
        .model
        .inject("after 0 frames vf0.wq1 error-status 3")
        .unwrap();
    pair.post(Channel::Data, b"the last straw");
    let mut reasons = Vec::new();
    pair.until(fault, |pair| {
        reasons.extend(pair.a.nic().trouble().map(str::to_owned));
        pair.a.stats().resets >= 1 && pair.a.is_link_up()
    });
    reasons.dedup();
    assert!(
        reasons.iter().any(|reason| reason.contains(word)),
        "{fault}: {reasons:?}"
    );
    recovers(&mut pair, fault);
    pair.lab.has_fired(fault);
}

#[test]
fn commands_that_fail_while_queues_are_set_up_again_are_reported_and_tried_again() {
    for (fault, word) in [
        ("always vf0.devcmd.58 error 10 times 2", "full"),
        ("always vf0.devcmd.58 error 3 times 2", "may not do that"),
        ("always vf0.devcmd.58 error 9 times 2", "link is down"),
        ("always vf0.devcmd.60 error 6 times 2", "wrong state"),
        ("always vf0.devcmd.24 busy 2s times 1", "OPEN_STATUS"),
        ("always vf0.devcmd.31 errno 7 times 1", "no memory left"),
        ("always pf.devcmd.43 busy 2s times 1", "does not answer"),
        ("always vf0.wq1 stuck-running times 1", "does not stop"),
        ("always vf0.rq0 stuck-running times 1", "does not stop"),
        ("always vf0.wq0 stuck-stopped times 1", "does not start"),
        ("always vf0.rq1 stuck-stopped times 1", "does not start"),
    ] {
        set_up_again(fault, word);
    }
}

/// A queue that goes on running is no reason not to leave, nor to keep its filters.
#[test]
fn queues_that_do_not_stop_delay_the_end_by_a_bound() {
    let pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.lab
        .model
        .inject("always vf0.wq stuck-running\nalways vf0.rq stuck-running")
        .unwrap();
    let Pair { mut a, lab, .. } = pair;
    let begun = Instant::now();
    a.close(Time::ZERO, Time::ZERO);
    lab.has_fired("stuck-running");
    assert!(begun.elapsed() < SOON && a.nic().device().is_none());
    assert!(lab.open("vf0", &UsnicConfig::default()).unwrap().is_link_up());
}

/// `ADD_FILTER` needs the link, and the link has gone with all filters.
#[test]
fn a_link_that_takes_its_filters_along_is_waited_for() {
    let mut options = Options::default();
    options.behaviour.filter_needs_link = true;
    options.behaviour.link_loses_filters = true;
    let mut pair = Pair::new(options, &UsnicConfig::default());
    pair.lab
        .model
        .inject("at 0s link down\nafter 0 frames vf0.wq1 error-status 3")
        .unwrap();
    // Before the rail knows.
    pair.post(Channel::Data, b"the last straw");
    pair.until("down", |pair| !pair.a.is_link_up());
    pair.until("refused while it is down", |pair| {
        pair.a
            .nic()
            .trouble()
            .is_some_and(|why| why.contains("link is down"))
    });
    pair.lab.model.inject("at 0s link up").unwrap();
    pair.until("up", |pair| pair.a.is_link_up() && pair.b.is_link_up());
    recovers(&mut pair, "the link is back");
}

#[test]
fn lines_that_end_and_models_that_begin_anew_end_the_rail_and_the_next_one_works() {
    for fault in ["at 0s vf0 disconnect", "at 0s model restart"] {
        ended(fault);
        let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
        pair.lab.model.inject(fault).unwrap();
        pair.until(fault, |pair| pair.a.nic().device().is_none());
        let begun = Instant::now();
        // The agent finds its own device again before it can steer.
        let rail = loop {
            match pair.lab.open("vf0", &UsnicConfig::default()) {
                Ok(rail) => break rail,
                Err(error) => assert!(begun.elapsed() < SOON, "{fault}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(rail.is_link_up(), "{fault}");
    }
}

/// Nothing ends a fatal error but the firmware's own restart: the rail is down, reports it, and can be
/// closed.
#[test]
fn a_firmware_that_has_failed_takes_the_link_down() {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.lab.model.inject("at 0s link fatal").unwrap();
    pair.until("down", |pair| !pair.a.is_link_up() && !pair.b.is_link_up());
    passes_nothing(&mut pair);
    assert!(
        pair.a
            .nic()
            .news()
            .is_some_and(|news| news.fatal && news.error != 0)
    );
    assert!(std::iter::from_fn(|| pair.a.event()).any(|event| event.kind == EventKind::LinkDown));
    assert!(pair.a.close(Time::ZERO, Time::ZERO));
}

#[test]
fn a_torn_notify_area_is_counted_and_what_was_whole_counts() {
    for (fault, ends) in [
        ("at 0s link torn 200ms", true),
        ("at 0s link torn forever", false),
    ] {
        let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
        let before = pair.a.nic().news();
        pair.lab.model.inject(fault).unwrap();
        pair.until("it is seen", |pair| pair.a.stats().torn > 2);
        assert!(pair.a.is_link_up() && pair.a.nic().news() == before, "{fault}");
        pair.passes(fault);
        if ends {
            pair.until("whole again", |pair| {
                let torn = pair.a.stats().torn;
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(50) {
                    pair.turn();
                }
                pair.a.stats().torn == torn
            });
        }
        pair.lab.is_forgiven(fault);
    }
}

/// The rail's own frames carry its old address until it restarts.
#[test]
fn another_hardware_address_is_taken_in_when_the_queues_are_made_anew() {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.lab
        .model
        .inject("at 0s vf0 mac 02:00:00:00:77:01\nafter 0 frames vf0.wq1 error-status 3")
        .unwrap();
    pair.post(Channel::Data, b"the last straw");
    pair.until("the new one", |pair| {
        pair.a.mac() == [2, 0, 0, 0, 0x77, 1] && pair.a.is_link_up()
    });
    let mut came = false;
    pair.until("frames to it", |pair| {
        let (tx, _) = pair.b.split();
        if tx.reserve(Channel::Data, 1) == 1 {
            tx.post(Channel::Data, PeerIndex(0), &[], Body::Bytes(b"to the new one"))
                .unwrap();
            tx.doorbell();
        }
        let (_, rx) = pair.a.split();
        came |= rx.poll(Channel::Data, 16) > 0;
        came
    });
}

/// After a reset by another process, the first try works: bus mastering is on again, and interrupts lead
/// here.
#[test]
fn a_function_reset_by_another_process_is_set_up_again_at_the_first_try() {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.lab.model.inject("at 0s vf0 reset").unwrap();
    pair.until("set up again", |pair| {
        assert_eq!(pair.a.nic().trouble(), None);
        pair.a.stats().resets == 1 && pair.a.is_link_up()
    });
    assert_eq!(pair.a.nic().check_interrupt(SOON), Some(true));
    recovers(&mut pair, "reset");
    pair.lab.is_forgiven("reset");
}

/// A thread that sleeps until it is woken, or until the rail is due: frames come, whatever becomes of
/// interrupts.
#[test]
fn interrupts_that_are_lost_late_early_or_for_nothing_lose_no_frame() {
    for fault in [
        "always vf1.intr0 lost",
        "probability 0.5 seed 3 vf1.intr0 lost",
        "always vf1.intr0 late 30ms",
        "always vf1.intr1 late 5ms",
        "always vf1.cq0 interrupt-first 300us",
        "at 0s vf1.intr0 spurious\nat 0s vf1.intr1 spurious",
    ] {
        let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
        pair.lab.model.inject(fault).unwrap();
        let all = Instant::now();
        for number in 0u32.. {
            let is_enough = number >= 40 && pair.lab.model.unfired() == Some(0);
            if is_enough || all.elapsed() > SOON {
                break;
            }
            let mark = [number as u8; 20];
            let channel = [Channel::Priority, Channel::Data][number as usize % 2];
            pair.post(channel, &mark);
            let begun = Instant::now();
            while !doze(&mut pair, channel, &mark) {
                assert!(begun.elapsed() < SOON, "{fault}: {number} never came");
            }
        }
        pair.lab.has_fired(fault);
        pair.lab.is_forgiven(fault);
    }
}

/// Sleeps once, as an owner does, and looks; whether the frame was there.
fn doze(pair: &mut Pair, channel: Channel, mark: &[u8]) -> bool {
    let now = || Time::from_nanos(pair.clock.elapsed().as_nanos() as u64);
    let at = now();
    let due = pair
        .b
        .next_deadline()
        .map_or(Duration::from_secs(1), |due| due - at);
    if let Armed::Sleep(fd) = pair.b.arm().unwrap() {
        let mut waits = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec {
            tv_sec: due.as_secs() as i64,
            tv_nsec: due.subsec_nanos().into(),
        };
        rustix::event::poll(&mut waits, Some(&limit)).unwrap();
    }
    pair.b.disarm();
    pair.turn();
    let (_, rx) = pair.b.split();
    for frame in 0..rx.poll(channel, 16) {
        if rx.frame(channel, frame).unwrap().bytes.to_vec() == mark {
            return true;
        }
    }
    false
}

#[test]
fn memory_that_cannot_be_reached_or_is_slow_recovers() {
    for (fault, moves) in [
        // What is lost by it, and so what becomes of it, hangs on which access that is.
        ("after 100 accesses vf0.dma unmapped", &[][..]),
        ("every 150 accesses vf0.dma unmapped times 4", &[]),
        ("every 150 accesses vf1.dma unmapped times 4", &[]),
        ("every 100 accesses vf0.dma slow 30ms times 5", &[]),
        ("every 100 accesses vf1.dma slow 30ms times 5", &[]),
        // The physical function reads the filters that are installed again.
        (
            "always pf.dma unmapped times 3\nafter 50 frames vf0.wq1 error-status 3",
            &["resets"],
        ),
    ] {
        mended(fault, moves);
    }
}

/// The model reports late that it has released a mapping, and goes on using it until then: a rail that closes
/// waits for the report.
#[test]
fn a_mapping_that_is_released_late_delays_the_end_by_a_bound() {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.lab.model.inject("always vf0.dma unmap-late 300ms").unwrap();
    let (tx, _) = pair.a.split();
    let room = tx.reserve(Channel::Data, usize::MAX);
    for _ in 0..room {
        tx.post(Channel::Data, PeerIndex(0), &[], Body::Bytes(&[7; 1000]))
            .unwrap();
    }
    tx.doorbell();
    let begun = Instant::now();
    let Pair { a, lab, .. } = pair;
    drop(a);
    assert!(begun.elapsed() < SOON);
    lab.has_fired("let go of late");
    assert!(lab.open("vf0", &UsnicConfig::default()).unwrap().is_link_up());
    lab.is_forgiven("let go of late");
}
