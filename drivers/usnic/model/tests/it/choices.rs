//! The model's choices where hardware is unknown: each option has the effect that its name describes.

use std::time::Duration;

use crate::client;
use crate::client::queues::{Pair, TLV, steer, udp_filter};
use crate::client::scene::{A, B, Scene, mac};
use crate::client::{
    ADD_FILTER, CAPABILITY, Client, DISABLE, ENABLE_WAIT, INIT, INTR, MAC_ADDR, OPEN, QP_ENABLE, RQ, WQ,
    model, rung, until,
};
use doorbell_vic::{Behaviour, Kind, Model, Options, Trap};

fn with(change: impl FnOnce(&mut Behaviour)) -> (Model, tempfile::TempDir) {
    model(|options| change(&mut options.behaviour))
}

/// A virtual function's own queue pair, programmed, and the physical function with room for a filter.
fn clients(model: &Model) -> (Client, Client, Pair) {
    let (mut pf, mut vf) = (Client::new(model, "pf"), Client::new(model, "vf0"));
    pf.share(TLV, 4096);
    let pair = Pair::new(&mut vf, 0, 1 << 32, (64, 128));
    (pf, vf, pair)
}

#[test]
fn commands_are_answered_as_chosen() {
    let (model, _folder) = with(|behaviour| behaviour.any_order = true);
    Client::new(&model, "vf0").devcmd(ENABLE_WAIT, &[0]).unwrap();
    for number in [3, 5] {
        let (model, _folder) = with(|behaviour| behaviour.vf_open = number);
        let mut vf = Client::new(&model, "vf0");
        assert_eq!(
            [OPEN, INIT, ENABLE_WAIT].map(|command| vf.devcmd(command, &[0])),
            [Err(number.into()); 3]
        );
        assert!(vf.devcmd(MAC_ADDR, &[]).is_ok());
        assert!(Client::new(&model, "pf").devcmd(OPEN, &[0]).is_ok());
    }
    let unknown = 0x4100_4fff;
    let (model, _folder) = with(|behaviour| behaviour.nowait_silent = true);
    assert!(Client::new(&model, "vf0").devcmd(unknown, &[]).is_ok());
    let (model, _folder) = with(|_| ());
    assert_eq!(Client::new(&model, "vf0").devcmd(unknown, &[]), Err(5));
    let (model, _folder) = with(|behaviour| behaviour.capability_by_error = true);
    assert_eq!(
        Client::new(&model, "vf0").devcmd(CAPABILITY, &[unknown.into()]),
        Err(5)
    );
    let (model, _folder) = with(|behaviour| behaviour.without = vec![9]);
    let mut vf = Client::new(&model, "vf0");
    assert_eq!(
        (
            vf.devcmd(MAC_ADDR, &[]),
            vf.devcmd(CAPABILITY, &[MAC_ADDR.into()]).unwrap()[0]
        ),
        (Err(5), 5)
    );
}

#[test]
fn filters_are_taken_as_chosen() {
    let (model, _folder) = with(|behaviour| behaviour.twin_filters = true);
    let (mut pf, _vf, _pair) = clients(&model);
    assert_ne!(steer(&mut pf, 0, 1, 1, 0), steer(&mut pf, 0, 1, 1, 0));
    let (model, _folder) = with(|behaviour| behaviour.qp_without_ring = true);
    Client::new(&model, "pf").proxy(0, QP_ENABLE, &[3, 0]).unwrap();
    for (highest, wanted) in [(0, Err(1)), (3, Ok(()))] {
        let (model, _folder) = with(|behaviour| behaviour.filter_type = highest);
        let (mut pf, _vf, _pair) = clients(&model);
        assert_eq!(
            pf.proxy(0, CAPABILITY, &[ADD_FILTER.into()]).unwrap()[..2],
            [1, u64::from(highest)]
        );
        pf.mem_write(TLV, &udp_filter(1, 1, 0));
        assert_eq!(pf.proxy(0, ADD_FILTER, &[TLV, 58]).map(drop), wanted);
    }
    let (model, _folder) = with(|behaviour| {
        (behaviour.filter_needs_link, behaviour.link_loses_filters) = (true, true);
    });
    let (mut pf, _vf, _pair) = clients(&model);
    let id = steer(&mut pf, 0, 1, 1, 0);
    model.inject("at 0s link down").unwrap();
    until("the link is down", || {
        pf.proxy(0, ADD_FILTER, &[TLV, 58]) == Err(9)
    });
    assert_eq!(
        pf.proxy(0, client::DEL_FILTER, &[id]),
        Err(1),
        "it went with the link"
    );
}

#[test]
fn the_oldest_filter_or_the_most_specific_wins() {
    for (oldest, queue) in [(false, 1), (true, 3)] {
        let (model, _folder) = with(|behaviour| behaviour.oldest_filter = oldest);
        let (mut pf, mut a, mut b) = (
            Client::new(&model, "pf"),
            Client::new(&model, "vf0"),
            Client::new(&model, "vf1"),
        );
        pf.share(TLV, 4096);
        let mut sender = Pair::new(&mut a, 0, 1 << 32, (64, 128));
        let mut wide = Pair::new(&mut b, 3, 1 << 33, (64, 128));
        let mut narrow = Pair::new(&mut b, 1, 1 << 34, (64, 128));
        steer(&mut pf, 0, A, 4000, 0);
        // To the port, whatever the address; then to both.
        let mut any = udp_filter(0, 5000, 3);
        any[12] = 0x11;
        pf.mem_write(TLV, &any);
        pf.proxy(1, ADD_FILTER, &[TLV, 58]).unwrap();
        pf.proxy(1, QP_ENABLE, &[3, 0]).unwrap();
        steer(&mut pf, 1, B, 5000, 1);
        sender.enable(&mut a);
        for pair in [&mut wide, &mut narrow] {
            pair.enable(&mut b);
            pair.post(&mut b, 4, 2048, 0);
        }
        let (to, from) = (mac(&mut b), mac(&mut a));
        sender.send(
            &mut a,
            &client::queues::udp(to, from, (A, B), (4000, 5000), b"whose?"),
        );
        let pair = if queue == 3 { &mut wide } else { &mut narrow };
        assert_eq!(pair.wait(&b).queue(), queue);
        assert_eq!(model.violations().list(), []);
    }
}

#[test]
fn frames_are_sent_and_received_as_chosen() {
    let (model, _folder) = with(|behaviour| behaviour.transmit_needs_qp = false);
    let mut scene = Scene::new(&model, (64, 128));
    scene.pf.proxy(0, client::QP_DISABLE, &[0, 0]).unwrap();
    let frame = scene.frame(b"sent");
    scene.at_a.send(&mut scene.a, &frame);
    scene.at_a.wait(&scene.a);

    let (model, _folder) = with(|behaviour| behaviour.vf_needs_enable = true);
    let mut scene = Scene::new(&model, (64, 128));
    scene.at_b.post(&mut scene.b, 4, 2048, 0);
    scene.at_a.send(&mut scene.a, &frame);
    until("it is dropped", || model.summary().functions["vf1"].dropped == 1);
    scene.b.devcmd(OPEN, &[0]).unwrap();
    scene.b.devcmd(INIT, &[0]).unwrap();
    scene.b.devcmd(ENABLE_WAIT, &[0]).unwrap();
    scene.at_a.send(&mut scene.a, &frame);
    scene.at_b.wait(&scene.b);
    scene.b.devcmd(DISABLE, &[]).unwrap();
    scene.at_a.send(&mut scene.a, &frame);
    until("it is dropped", || model.summary().functions["vf1"].dropped == 2);

    let (model, _folder) = with(|behaviour| behaviour.fragments = 2);
    let mut scene = Scene::new(&model, (64, 128));
    let at = scene.at_a.tx(0);
    for flags in [0, 0, 0x1000] {
        scene.at_a.describe(&scene.a, at, 20, flags, 0);
    }
    scene.at_a.ring(&mut scene.a);
    let wq = scene.at_a.wq;
    until("too many", || scene.a.read32(wq + 0x50) == 3);

    // 16384 are more than a frame may have: another error than no length.
    let (model, _folder) = with(|behaviour| behaviour.zero_is_16k = true);
    let mut scene = Scene::new(&model, (64, 128));
    scene.at_a.describe(&scene.a, at, 0, 0x1000, 0);
    scene.at_a.ring(&mut scene.a);
    let wq = scene.at_a.wq;
    until("too long", || scene.a.read32(wq + 0x50) == 5);

    let (model, _folder) = with(|behaviour| behaviour.skip_unused = false);
    let mut scene = Scene::new(&model, (64, 128));
    scene.at_b.post(&mut scene.b, 1, 100, 1);
    scene.at_a.send(&mut scene.a, &frame);
    let rq = scene.at_b.rq;
    until("it does not fit", || scene.b.read32(rq + 0x48) == 3);

    let (model, _folder) = with(|behaviour| behaviour.needs_bus_master = false);
    let mut scene = Scene::new(&model, (64, 128));
    scene.a.config_write(4, &[2, 0]);
    scene.at_a.send(&mut scene.a, &frame);
    scene.at_a.wait(&scene.a);
    assert_eq!(model.violations().list(), []);
}

#[test]
fn a_shared_address_leaves_it_to_filters() {
    let (model, _folder) = model(|options| options.identity.shared_mac = true);
    let mut scene = Scene::new(&model, (64, 128));
    assert_eq!(scene.mac_a, scene.mac_b);
    scene.at_b.post(&mut scene.b, 4, 2048, 0);
    let frame = scene.frame(b"to one it meets.");
    scene.at_a.send(&mut scene.a, &frame);
    assert_eq!(scene.at_b.wait(&scene.b).flags(), 0xab);
    assert_eq!(model.violations().list(), []);
}

#[test]
fn rings_that_are_rewritten_take_effect_wrongly_where_that_is_chosen() {
    for stale in [false, true] {
        let (model, _folder) = with(|behaviour| behaviour.stale_cache = stale);
        let mut scene = Scene::new(&model, (64, 128));
        let frame = scene.frame(b"x");
        let wq = scene.at_a.wq;
        scene.a.write64(wq, 0xdead_0000);
        scene.at_a.send(&mut scene.a, &frame);
        until("it is recorded", || {
            model.violations().count(Kind::RingWhileRunning) == 1
        });
        until("as chosen", || match stale {
            true => scene.a.read32(wq + 0x50) == 4,
            false => scene.at_a.poll(&scene.a).is_some(),
        });
    }
}

#[test]
fn interrupts_with_credits_fire_until_these_are_back() {
    let (model, _folder) = with(|behaviour| behaviour.gated_by_credits = true);
    let mut scene = Scene::new(&model, (64, 128));
    let bell = scene.a.bell(0);
    let (cq, intr) = (scene.at_a.cq, scene.a.find(INTR, 0));
    scene.a.write32(intr + 0x18, 1);
    scene.a.write32(cq + 0x50, 0);
    scene.a.write32(cq + 0x38, 1);
    let frame = scene.frame(b"x");
    scene.at_a.send(&mut scene.a, &frame);
    for _ in 0..3 {
        until("again", || rung(&bell) > 0);
        until("it is masked", || scene.a.read32(intr + 0x20) == 1);
        scene.a.write32(intr + 0x20, 0);
    }
    until("it is masked", || scene.a.read32(intr + 0x20) == 1);
    scene.a.write32(intr + 0x30, 1 | 1 << 16);
    until("it is unmasked", || scene.a.read32(intr + 0x20) == 0);
    rung(&bell);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(rung(&bell), 0);
}

#[test]
fn a_coalescing_timer_holds_interrupts_back() {
    let (model, _folder) = model(|_: &mut Options| ());
    let mut scene = Scene::new(&model, (64, 128));
    let bell = scene.a.bell(0);
    let (cq, intr) = (scene.at_a.cq, scene.a.find(INTR, 0));
    // 40,000 ticks of 1.5 µs after the last event.
    scene.a.write32(intr, 40_000);
    scene.a.write32(intr + 0x10, 1);
    scene.a.write32(cq + 0x50, 0);
    scene.a.write32(cq + 0x38, 1);
    let frame = scene.frame(b"x");
    let begun = std::time::Instant::now();
    scene.at_a.send(&mut scene.a, &frame);
    until("it comes", || rung(&bell) == 1);
    assert!(begun.elapsed() >= Duration::from_millis(60));
}

/// What was posted before the queue was enabled, with and without future firmware; messages and memory see
/// the same.
#[test]
fn what_is_posted_before_enable_is_taken_or_not_as_chosen() {
    for (future, same, trap) in [
        (false, false, Trap::Devcmd),
        (true, false, Trap::Devcmd),
        (true, true, Trap::Devcmd),
        (true, false, Trap::All),
        (true, true, Trap::All),
    ] {
        let (model, _folder) = model(|options| {
            options.trap = trap;
            (options.behaviour.future, options.behaviour.same_index) = (future, same);
        });
        let mut scene = Scene::stopped(&model, (64, 128));
        scene.at_b.post(&mut scene.b, 4, 2048, 0);
        let seen = || model.violations().count(Kind::PostedBeforeEnable);
        if future {
            until("it is recorded", || seen() == 1);
        }
        scene.at_a.enable(&mut scene.a);
        scene.at_b.enable(&mut scene.b);
        let frame = scene.frame(b"into what was posted early");
        scene.at_a.send(&mut scene.a, &frame);
        let lost = u64::from(future);
        until("taken, or not", || {
            let summary = model.summary();
            let found = &summary.functions["vf1"];
            (found.received, found.no_bufs) == (1 - lost, lost)
        });
        if future {
            // The same index again, and then another one.
            let rq = scene.at_b.rq;
            scene.b.write32(rq + 0x10, 4);
            scene.at_a.send(&mut scene.a, &frame);
            let heard = u64::from(same);
            until("as chosen", || {
                let summary = model.summary();
                let found = &summary.functions["vf1"];
                (found.received, found.no_bufs) == (heard, 2 - heard)
            });
            scene.at_b.post(&mut scene.b, 1, 2048, 0);
            scene.at_a.send(&mut scene.a, &frame);
            assert_eq!(scene.at_b.wait(&scene.b).index(), 0);
        }
        assert_eq!(seen(), lost, "and nothing else is early");
    }
}

#[test]
fn what_is_posted_while_a_queue_runs_is_never_early() {
    let (model, _folder) = with(|behaviour| behaviour.future = true);
    let mut scene = Scene::new(&model, (64, 128));
    // No frame comes, so the doorbell is not read before the queue stops.
    scene.at_b.post(&mut scene.b, 40, 2048, 0);
    scene.at_b.disable(&mut scene.b);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(model.violations().list(), []);
}

/// A lost doorbell is seen with the next other index; with the same one again only where that is chosen.
#[test]
fn a_lost_doorbell_comes_back_as_chosen() {
    for (same, trap) in [
        (false, Trap::Devcmd),
        (true, Trap::Devcmd),
        (false, Trap::All),
        (true, Trap::All),
    ] {
        let (model, _folder) = model(|options| {
            (options.trap, options.behaviour.same_index) = (trap, same);
        });
        let mut scene = Scene::new(&model, (64, 128));
        let frame = scene.frame(b"x");
        let counts = || {
            let summary = model.summary();
            (
                summary.functions["vf1"].received,
                summary.functions["vf1"].no_bufs,
            )
        };
        model.inject("always vf1.rq1 lost-doorbell times 1").unwrap();
        scene.at_b.post(&mut scene.b, 4, 2048, 0);
        scene.at_a.send(&mut scene.a, &frame);
        until("it is lost", || counts() == (0, 1));
        let rq = scene.at_b.rq;
        scene.b.write32(rq + 0x10, 4);
        scene.at_a.send(&mut scene.a, &frame);
        let heard = u64::from(same);
        until("as chosen", || counts() == (heard, 2 - heard));
        scene.at_b.post(&mut scene.b, 1, 2048, 0);
        scene.at_a.send(&mut scene.a, &frame);
        until("by another index", || counts() == (heard + 1, 2 - heard));
        // And of a send queue.
        while scene.at_a.poll(&scene.a).is_some() {}
        model.inject("always vf0.wq0 lost-doorbell times 1").unwrap();
        let posted = scene.at_a.send(&mut scene.a, &frame) + 1;
        until("the doorbell has come to the fault", || {
            model.unfired() == Some(0)
        });
        assert_eq!(scene.at_a.poll(&scene.a), None);
        let wq = scene.at_a.wq;
        scene.a.write32(wq + 0x10, posted);
        if same {
            assert_eq!(u32::from(scene.at_a.wait(&scene.a).index()) + 1, posted);
        } else {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(scene.at_a.poll(&scene.a), None);
            scene.at_a.send(&mut scene.a, &frame);
            scene.at_a.wait(&scene.a);
        }
        assert_eq!(model.violations().list(), []);
    }
}

#[test]
fn the_loopback_bit_takes_frames_back_as_chosen() {
    for (loopback, here, there) in [(true, 1, 0), (false, 0, 1)] {
        let (model, _folder) = with(|behaviour| behaviour.loopback = loopback);
        let mut scene = Scene::new(&model, (64, 128));
        steer(&mut scene.pf, 0, B, 5000, 0);
        scene.at_a.post(&mut scene.a, 4, 2048, 0);
        scene.at_b.post(&mut scene.b, 4, 2048, 0);
        let (frame, at) = (scene.frame(b"to the other one"), scene.at_a.tx(0));
        scene.a.mem_write(at, &frame);
        let slot = scene.at_a.describe(&scene.a, at, frame.len() as u16, 0x3000, 7);
        // Bit 1 of the word that has mss above it.
        let mut word = [0; 2];
        let desc = scene.at_a.base + u64::from(slot) * 16 + 10;
        scene.a.mem_read(desc, &mut word);
        scene.a.mem_write(desc, &[word[0] | 2, word[1]]);
        scene.at_a.ring(&mut scene.a);
        until("it came", || {
            let summary = model.summary();
            (
                summary.functions["vf0"].received,
                summary.functions["vf1"].received,
            ) == (here, there)
        });
    }
}

#[test]
fn identity_and_resets_are_as_chosen() {
    let (model, _folder) = model(|options| {
        options.behaviour.no_flr = true;
        (options.identity.class, options.identity.vf_device) = (0x02_8000, 0x02b7);
        (options.counts.spare, options.layout.wide, options.layout.bar) = (3, false, 1 << 20);
    });
    let mut vf = Client::new(&model, "vf0");
    let pair = Pair::new(&mut vf, 0, 1 << 32, (64, 128));
    let mut bytes = [0; 12];
    vf.config_read(0, &mut bytes);
    assert_eq!(
        bytes,
        [0x37, 0x11, 0xb7, 0x02, 6, 0, 0x10, 0, 0xa2, 0, 0x80, 0x02]
    );
    vf.config_write(0x48, &[0, 0x80]);
    assert_eq!(vf.read32(pair.wq + 8), 64, "no reset");
    assert_eq!(vf.length, 1 << 20);
    let mut bytes = [0; 4];
    vf.config_read(0x10, &mut bytes);
    assert_eq!(bytes, [0; 4], "32 bits");
    vf.config_read(0x82, &mut bytes);
    assert_eq!(bytes[0], 8, "nine vectors");
}

#[test]
fn odd_accesses_are_done_where_that_is_chosen() {
    let (model, _folder) = model(|options| {
        (options.trap, options.behaviour.loose_access) = (Trap::All, true);
    });
    let mut vf = Client::new(&model, "vf0");
    let (wq, rq) = (vf.find(WQ, 0), vf.find(RQ, 0));
    vf.region_write(0, wq + 8, &[64, 0]).unwrap();
    vf.region_write(0, rq + 8, &[1; 16]).unwrap();
    assert_eq!((vf.read32(wq + 8), vf.read32(rq + 16)), (64, 0x0101_0101));
    assert_eq!(model.violations().count(Kind::AccessShape), 2);
}
