//! Every fault of a script, provoked and seen by a client.

use std::time::{Duration, Instant};

use crate::client;
use crate::client::queues::{Pair, is_good};
use crate::client::scene::Scene;
use crate::client::{
    ADD_FILTER, Client, DEV_SPEC, DEVCMD, FW_INFO, INIT, INIT_STATUS, INTR, MAC_ADDR, NOTIFY, OPEN,
    OPEN_STATUS, WQ, model, rung, until,
};
use doorbell_vic::Model;

/// A scene under a script, with buffers at the receiver.
fn under(script: &str) -> (Model, tempfile::TempDir, Scene) {
    let (model, folder) = model(|options| options.script = script.to_owned());
    let mut scene = Scene::new(&model, (64, 128));
    scene.at_b.post(&mut scene.b, 40, 2048, 0);
    (model, folder, scene)
}

/// A scene under a script that comes only now.
fn later(script: &str) -> (Model, tempfile::TempDir, Scene) {
    let (model, folder, scene) = under("");
    model.inject(script).unwrap();
    (model, folder, scene)
}

/// Sends frames with these payloads, each completed.
fn send(scene: &mut Scene, payloads: &[&[u8]]) {
    for payload in payloads {
        let frame = scene.frame(payload);
        scene.at_a.send(&mut scene.a, &frame);
        scene.at_a.wait(&scene.a);
    }
}

/// The payload's first bytes of what is received next.
fn payload(scene: &mut Scene, length: usize) -> Vec<u8> {
    let done = scene.at_b.wait(&scene.b);
    assert_eq!(done.flags(), 0xab);
    scene.at_b.received(&scene.b, done.index(), 42 + length)[42..].to_vec()
}

#[test]
fn commands_fail_as_scripted() {
    let script = "
        always vf0.devcmd.9 error 7 times 1
        always vf0.devcmd.24 pending
        always vf0.devcmd.31 errno 8
        always vf0.devcmd.2 zeros
        always vf0.devcmd.1 busy 150ms times 1
        always vf1.devcmd.58 error 10       # by the proxy
        always pf.devcmd.23 busy forever";
    let (model, _folder, mut scene) = scene_without_pairs(script);
    let vf = &mut scene.1;
    assert_eq!(vf.devcmd(MAC_ADDR, &[]), Err(7));
    assert!(vf.devcmd(MAC_ADDR, &[]).is_ok(), "once");
    vf.devcmd(OPEN, &[0]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(vf.devcmd(OPEN_STATUS, &[]).unwrap()[0], 1);
    vf.devcmd(INIT, &[0]).unwrap();
    assert_eq!(vf.devcmd(INIT_STATUS, &[]).unwrap()[..2], [0, 8]);
    assert_eq!(vf.devcmd(DEV_SPEC, &[12, 2]).unwrap()[0], 0);
    vf.share(0x1000, 4096);
    let begun = Instant::now();
    vf.devcmd(FW_INFO, &[0x1000, 132]).unwrap();
    assert!(begun.elapsed() > Duration::from_millis(150));
    let pf = &mut scene.0;
    assert_eq!(pf.proxy(1, ADD_FILTER, &[0, 0]), Err(10));
    assert_eq!(pf.proxy(0, ADD_FILTER, &[0, 0]), Err(1));
    pf.command(OPEN, &[0; 15]);
    let at = pf.find(DEVCMD, 0);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(pf.read32(at), 1, "busy for ever");
    pf.reset();
    assert_eq!(pf.read32(at), 0);
    drop(model);
}

fn scene_without_pairs(script: &str) -> (Model, tempfile::TempDir, (Client, Client)) {
    let (model, folder) = model(|options| options.script = script.to_owned());
    let clients = (Client::new(&model, "pf"), Client::new(&model, "vf0"));
    (model, folder, clients)
}

#[test]
fn tables_are_spoilt() {
    for (script, wanted) in [
        ("at 0s vf0 bad-magic", 0),
        ("at 0s vf0 bad-version", 1),
        ("at 0s vf0 small-bar", 2),
        ("at 0s vf0 table-cut 2", 3),
        ("at 0s vf0 missing 2", 4),
        ("at 0s vf0 count-zero 3", 5),
    ] {
        let (model, _folder) = model(|options| options.layout.strange = false);
        let mut before = Client::new(&model, "vf0");
        let (length, table) = (before.length, before.table.clone());
        model.inject(script).unwrap();
        until("it is spoilt", || match wanted {
            0 => before.read32(0) == 0x1234_5678,
            1 => before.read32(4) == 7,
            2 => true,
            3 => before.read32(8 + 24) == 0,
            4 => before.read32(8 + 12) == 200,
            _ => before.read32(8 + 24 + 8) == 0,
        });
        drop(before);
        if wanted < 2 {
            // A reset does not mend it: the client, which reads tables, would not come through.
            continue;
        }
        let mut after = Client::new(&model, "vf0");
        match wanted {
            2 => assert_eq!(
                (after.length, after.bar.is_none(), length),
                (4096, true, 64 << 10)
            ),
            3 => assert_eq!(after.table, table[..2]),
            4 => assert!(after.table.iter().all(|entry| entry.0 != 2)),
            _ => assert_eq!(after.table.iter().find(|entry| entry.0 == 3).unwrap().3, 0),
        }
        assert!(after.read32(0) == 0x766e_6963);
    }
}

#[test]
fn a_function_that_is_pulled_out_reads_as_ones() {
    let (_model, _folder, mut scene) = under("after 1 frames vf0 removed");
    send(&mut scene, &[b"the last"]);
    let frame = scene.frame(b"too late");
    scene.at_a.send(&mut scene.a, &frame);
    let (wq, devcmd) = (scene.at_a.wq, scene.a.find(DEVCMD, 0));
    until("it is gone", || {
        [wq, wq + 0x10, wq + 0x28, devcmd].map(|at| scene.a.read32(at)) == [u32::MAX; 4]
    });
    scene.a.write32(wq + 0x20, 1);
    scene.a.write32(devcmd + 4, MAC_ADDR);
    assert_eq!(scene.a.read32(devcmd), u32::MAX);
    // The other one goes on.
    assert!(scene.b.devcmd(MAC_ADDR, &[]).is_ok());
}

#[test]
fn queues_stick_break_and_miss_doorbells() {
    let (_model, _folder, mut scene) = later("always vf0.wq stuck-running times 1");
    let wq = scene.at_a.wq;
    scene.a.write32(wq + 0x20, 0);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(scene.a.read32(wq + 0x28), 1, "for ever");

    let (model, folder) = model(|options| options.script = "always vf0.rq0 stuck-stopped".to_owned());
    let mut stopped = Scene::stopped(&model, (64, 128));
    let rq = stopped.at_a.rq;
    stopped.a.write32(rq + 0x20, 1);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(stopped.a.read32(rq + 0x28), 0);
    drop((stopped, model, folder));

    let (_model, _folder, mut scene) = later("after 2 frames vf0.wq0 error-status 77");
    send(&mut scene, &[b"one", b"two"]);
    let frame = scene.frame(b"three");
    scene.at_a.send(&mut scene.a, &frame);
    let wq = scene.at_a.wq;
    until("it breaks", || scene.a.read32(wq + 0x50) == 77);
    assert_eq!((scene.a.read32(wq + 0x28), scene.at_a.poll(&scene.a)), (0, None));

    let (_model, _folder, mut scene) = later("after 1 frames vf1.rq1 error-status 5");
    send(&mut scene, &[b"one", b"two"]);
    let rq = scene.at_b.rq;
    until("it breaks", || scene.b.read32(rq + 0x48) == 5);

    let (_model, _folder, mut scene) = later("always vf0.wq0 lost-doorbell times 1");
    let frame = scene.frame(b"unheard");
    scene.at_a.send(&mut scene.a, &frame);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(scene.at_a.poll(&scene.a), None);
    scene.at_a.send(&mut scene.a, &frame);
    assert_eq!(
        [
            scene.at_a.wait(&scene.a).index(),
            scene.at_a.wait(&scene.a).index()
        ],
        [0, 1]
    );
}

#[test]
fn a_stale_descriptor_is_used_once() {
    let (_model, _folder, mut scene) = later("always vf1.rq1 stale times 1");
    scene.at_b.disable(&mut scene.b);
    scene.at_b.set_up(&mut scene.b);
    scene.at_b.enable(&mut scene.b);
    // New descriptors lead elsewhere: to the buffers behind the old ones.
    let old = scene.at_b.rx(0);
    let mut desc = [0; 16];
    desc[..8].copy_from_slice(&scene.at_b.rx(50).to_le_bytes());
    desc[8..10].copy_from_slice(&2048u16.to_le_bytes());
    for slot in 0..2 {
        scene.b.mem_write(scene.at_b.base + 0x10000 + slot * 16, &desc);
    }
    let rq = scene.at_b.rq;
    scene.b.write32(rq + 0x10, 2);
    send(&mut scene, &[b"stale", b"fresh"]);
    scene.at_b.wait(&scene.b);
    scene.at_b.wait(&scene.b);
    let mut bytes = [0; 5];
    scene.b.mem_read(old + 42, &mut bytes);
    assert_eq!(&bytes, b"stale");
    scene.b.mem_read(scene.at_b.rx(50) + 42, &mut bytes);
    assert_eq!(&bytes, b"fresh");
}

#[test]
fn completions_come_wrong() {
    let (_model, _folder, mut scene) =
        later("always vf1.cq1 wrong-queue 33 times 1\nalways vf0.cq0 wrong-type 127 times 1");
    let frame = scene.frame(b"x");
    scene.at_a.send(&mut scene.a, &frame);
    assert_eq!(scene.at_a.wait(&scene.a).kind(), 127);
    assert_eq!(scene.at_b.wait(&scene.b).queue(), 33);

    let (_model, _folder, mut scene) = later("always vf1.cq1 duplicate times 1");
    send(&mut scene, &[b"once"]);
    let twice = [scene.at_b.wait(&scene.b), scene.at_b.wait(&scene.b)];
    assert_eq!(twice[0], twice[1]);

    let (_model, _folder, mut scene) = later("always vf1.cq1 wrong-color times 1");
    send(&mut scene, &[b"one", b"two"]);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(scene.at_b.poll(&scene.b), None, "the first looks old");
}

#[test]
fn a_queue_that_overran_looks_old_for_a_lap() {
    let (model, _folder, mut scene) = later("after 1 completions vf1.cq1 overrun");
    send(&mut scene, &[b"one"]);
    scene.at_b.wait(&scene.b);
    send(&mut scene, &[b"two", b"three"]);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(
        scene.at_b.poll(&scene.b),
        None,
        "a lap and one entry were written over"
    );
    let mut word = [0; 2];
    scene.b.mem_read(scene.at_b.base + 0x20000 + 16 + 8, &mut word);
    assert_eq!(u16::from_le_bytes(word), 60, "an entry stands there");
    assert_eq!(model.violations().list(), [], "it is not the driver's doing");
}

#[test]
fn filters_are_lost_without_a_word() {
    let (model, _folder, mut scene) = later("at 0s link lose-filters");
    send(&mut scene, &[b"unsteered"]);
    until("it meets none", || model.summary().functions["vf1"].dropped == 1);
    let filter = scene.filters.1;
    assert_eq!(scene.pf.proxy(1, client::DEL_FILTER, &[filter]), Err(1));
}

#[test]
fn what_is_held_back_is_bounded_and_the_rest_counted() {
    let (model, _folder, mut scene) = under("always switch delay 60s");
    let frame = scene.frame(b"x");
    let at = scene.at_a.tx(0);
    scene.a.mem_write(at, &frame);
    for batch in 0..100 {
        for one in 0..50 {
            let flags = if one == 49 { 0x3000 } else { 0x1000 };
            scene.at_a.describe(&scene.a, at, frame.len() as u16, flags, 7);
        }
        scene.at_a.ring(&mut scene.a);
        scene.at_a.wait(&scene.a);
        assert_eq!(model.summary().overflowed > 0, batch >= 81, "{batch}");
    }
    assert_eq!(model.summary().overflowed, 5000 - 4096);
}

#[test]
fn colours_come_late_or_early() {
    let (_model, _folder, mut scene) = later("always vf1.cq1 color-late 100ms times 1");
    let begun = Instant::now();
    send(&mut scene, &[b"late"]);
    let mut word = [0; 2];
    until("the rest is there", || {
        scene.b.mem_read(scene.at_b.base + 0x20000 + 8, &mut word);
        u16::from_le_bytes(word) == 60
    });
    assert_eq!(scene.at_b.poll(&scene.b), None, "without its colour");
    scene.at_b.wait(&scene.b);
    assert!(begun.elapsed() >= Duration::from_millis(100));

    let (_model, _folder, mut scene) = later("always vf1.cq1 color-early 300ms times 1");
    send(&mut scene, &[b"early"]);
    let early = scene.at_b.wait(&scene.b);
    assert_eq!((early.length(), early.kind()), (0, 7), "what no hardware does");

    let (_model, _folder, mut scene) = later("always vf1.cq1 interrupt-first 100ms times 1");
    let bell = scene.b.bell(2);
    let cq = scene.at_b.cq;
    scene.b.write32(cq + 0x38, 1);
    scene.b.write32(cq + 0x50, 2);
    send(&mut scene, &[b"x"]);
    until("the interrupt", || rung(&bell) > 0);
    assert_eq!(scene.at_b.poll(&scene.b), None);
    scene.at_b.wait(&scene.b);
}

#[test]
fn packets_are_lost_doubled_late_and_out_of_order() {
    let (_model, _folder, mut scene) = under("every 2 frames switch drop");
    send(&mut scene, &[b"0", b"1", b"2", b"3"]);
    assert_eq!([payload(&mut scene, 1), payload(&mut scene, 1)], [b"0", b"2"]);

    let (_model, _folder, mut scene) = under("always switch duplicate times 1");
    send(&mut scene, &[b"0", b"1"]);
    assert_eq!([0, 1, 2].map(|_| payload(&mut scene, 1)), [b"0", b"0", b"1"]);

    let (_model, _folder, mut scene) = under("always switch reorder times 1");
    // In one go, so that the second one comes before the first gives up waiting.
    let frames = [scene.frame(b"0"), scene.frame(b"1")];
    for frame in &frames {
        let at = scene.at_a.tx(u32::from(frame[42] - b'0'));
        scene.a.mem_write(at, frame);
        scene.at_a.describe(&scene.a, at, frame.len() as u16, 0x3000, 7);
    }
    scene.at_a.ring(&mut scene.a);
    assert_eq!([payload(&mut scene, 1), payload(&mut scene, 1)], [b"1", b"0"]);

    let (_model, _folder, mut scene) = under("always switch delay 100ms times 1");
    let begun = Instant::now();
    send(&mut scene, &[b"0", b"1"]);
    assert_eq!([payload(&mut scene, 1), payload(&mut scene, 1)], [b"1", b"0"]);
    assert!(begun.elapsed() >= Duration::from_millis(100));

    let (_model, _folder, mut scene) = under("probability 0.5 seed 3 switch drop");
    for _ in 0..200 {
        send(&mut scene, &[b"x"]);
        while scene.at_b.poll(&scene.b).is_some() {
            scene.at_b.post(&mut scene.b, 1, 2048, 0);
        }
    }
    until("about half", || {
        let received = _model.summary().functions["vf1"].received;
        (60..140).contains(&received)
    });
}

#[test]
fn packets_are_spoilt() {
    let of = |script: &str| {
        let (_model, _folder, mut scene) = under(script);
        send(&mut scene, &[b"spoilt or not"]);
        let done = scene.at_b.wait(&scene.b);
        let bytes = scene.at_b.received(&scene.b, done.index(), done.length());
        (done, bytes)
    };
    let (done, _) = of("always switch corrupt");
    assert_eq!(
        (done.flags() & 0x80, done.is_cut(), done.length()),
        (0, true, 60),
        "a bad FCS"
    );
    let (done, bytes) = of("always switch bad-ip");
    assert_eq!((done.flags(), is_good(&bytes)), (0xa3, false));
    let (done, bytes) = of("always switch bad-udp");
    assert_eq!((done.flags(), is_good(&bytes)), (0xaa, false));
    let (done, bytes) = of("always switch pad 100");
    assert_eq!((done.length(), done.flags(), is_good(&bytes)), (160, 0xab, true));
    let (done, bytes) = of("always switch tag");
    assert_eq!((done.length(), bytes[12..16].to_vec()), (64, vec![0x81, 0, 0, 0]));
    let (done, _) = of("always vf1.rq1 truncate");
    assert_eq!((done.flags() & 0x80, done.is_cut(), done.length()), (0, true, 0));
    // What does not meet the filter any more.
    for script in [
        "always switch fragment",
        "always switch foreign-port",
        "always switch oversize 59",
    ] {
        let (model, _folder, mut scene) = under(script);
        send(&mut scene, &[b"x"]);
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(scene.at_b.poll(&scene.b), None, "{script}");
        let dropped = u64::from(!script.contains("oversize"));
        assert_eq!(model.summary().functions["vf1"].dropped, dropped, "{script}");
    }
}

#[test]
fn interrupts_are_lost_late_and_spurious() {
    let (model, _folder, mut scene) =
        later("always vf1.intr2 lost times 1\nafter 1 interrupts vf1.intr2 late 100ms times 1");
    let bell = scene.b.bell(2);
    let (cq, intr) = (scene.at_b.cq, scene.b.find(INTR, 2));
    scene.b.write32(intr + 0x18, 1);
    scene.b.write32(cq + 0x50, 2);
    scene.b.write32(cq + 0x38, 1);
    send(&mut scene, &[b"lost"]);
    until("it masks itself", || scene.b.read32(intr + 0x20) == 1);
    assert_eq!(rung(&bell), 0);
    scene.b.write32(intr + 0x20, 0);
    let begun = Instant::now();
    send(&mut scene, &[b"late"]);
    until("the late one", || rung(&bell) == 1);
    assert!(begun.elapsed() >= Duration::from_millis(100));
    // Masked: held until it is unmasked.
    send(&mut scene, &[b"masked"]);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(rung(&bell), 0);
    scene.b.write32(intr + 0x20, 0);
    until("the held one", || rung(&bell) == 1);
    assert_eq!(scene.b.read32(intr + 0x28), 3, "three credits are out");
    scene.b.write32(intr + 0x30, 2 | 1 << 16);
    until("they are back", || {
        scene.b.read32(intr + 0x28) == 1 && scene.b.read32(intr + 0x20) == 0
    });
    model.inject("at 0s vf1.intr2 spurious").unwrap();
    until("the spurious one", || rung(&bell) == 1);
}

#[test]
fn memory_is_out_of_reach_or_slow() {
    let (_model, _folder, mut scene) = later("always vf0.dma unmapped times 1");
    let frame = scene.frame(b"x");
    scene.at_a.send(&mut scene.a, &frame);
    let wq = scene.at_a.wq;
    until("the queue stops", || scene.a.read32(wq + 0x50) == 4);

    let (_model, _folder, mut scene) =
        later("always vf0.dma slow 100ms times 1\nalways vf0.dma unmap-late 100ms times 1");
    let begun = Instant::now();
    send(&mut scene, &[b"slow"]);
    assert!(begun.elapsed() >= Duration::from_millis(100));
    let begun = Instant::now();
    scene.a.dma_unmap(0x1_0000_0000, 1 << 40).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(100));
}

#[test]
fn the_link_goes_and_comes_and_notify_reports_it() {
    let (model, _folder, mut scene) = under("");
    let bell = scene.b.bell(4);
    scene.b.share(0x9000, 4096);
    scene.b.devcmd(NOTIFY, &[0x9000, 4 << 32 | 40]).unwrap();
    let read = |scene: &Scene| {
        let mut area = [0; 40];
        scene.b.mem_read(0x9000, &mut area);
        let word = |index: usize| u32::from_le_bytes(area[4 * index..4 * index + 4].try_into().unwrap());
        let sum = (1..10).fold(0u32, |sum, index| sum.wrapping_add(word(index)));
        (word(0) == sum, word(1), word(3), word(6), word(8))
    };
    assert_eq!(read(&scene), (true, 1, 9000, 0, 0));
    model.inject("at 0s link down").unwrap();
    until("it is notified", || rung(&bell) == 1);
    assert_eq!(read(&scene), (true, 0, 9000, 0, 1));
    send(&mut scene, &[b"into the dark"]);
    model.inject("at 0s link up").unwrap();
    until("it is notified", || rung(&bell) == 1);
    send(&mut scene, &[b"again"]);
    assert_eq!(payload(&mut scene, 5), b"again");
    model.inject("at 0s link mtu 1500").unwrap();
    until("it is notified", || rung(&bell) == 1);
    assert_eq!(read(&scene), (true, 1, 1500, 0, 1));
    model.inject("at 0s link torn 50ms").unwrap();
    until("it is notified", || rung(&bell) == 1);
    assert!(!read(&scene).0);
    until("it is whole", || read(&scene).0);
    model
        .inject("at 0s link fatal\nat 0s vf1 mac 02:00:00:00:00:77")
        .unwrap();
    until("it is notified", || read(&scene).3 == 1);
    until("its address", || {
        scene.b.devcmd(MAC_ADDR, &[]).unwrap()[0].to_le_bytes()[5] == 0x77
    });
    model.inject("at 0s link torn forever").unwrap();
    until("it is torn", || !read(&scene).0);
}

#[test]
fn a_physical_function_that_is_reset_loses_all_filters() {
    let (model, _folder, mut scene) = later("after 1 frames pf reset");
    scene.pf.proxy(1, client::QP_ENABLE, &[1, 0]).unwrap();
    model.inject("at 0s pf reset").unwrap();
    until("it is reset", || {
        let mut command = [0];
        scene.pf.config_read(4, &mut command);
        command[0] & 4 == 0
    });
    send_unanswered(&mut scene);
    until("the pair is disabled", || {
        model.violations().count(doorbell_vic::Kind::NoQpEnable) == 1
    });
    assert_eq!(
        scene.pf.proxy(1, client::DEL_FILTER, &[scene.filters.1]),
        Err(1),
        "it is gone already"
    );
}

/// One more frame, completed or not: its pair is not enabled any more.
fn send_unanswered(scene: &mut Scene) {
    let frame = scene.frame(b"x");
    scene.at_a.send(&mut scene.a, &frame);
}

#[test]
fn a_model_restarts_or_dies_and_a_client_notices() {
    let (model, _folder) = model(|_| ());
    let mut vf = Client::new(&model, "vf0");
    let pair = Pair::new(&mut vf, 0, 1 << 32, (64, 128));
    pair.enable(&mut vf);
    model.inject("at 0s model restart").unwrap();
    until("the line ends", || vf.receive().is_none());
    let mut again = Client::new(&model, "vf0");
    let wq = again.find(WQ, 0);
    assert_eq!(again.read32(wq + 0x28), 0);
    model.inject("at 0s vf0 disconnect").unwrap();
    until("the line ends", || again.receive().is_none());
    let mut last = Client::new(&model, "vf0");
    model.inject("at 0s model die").unwrap();
    until("it has ended", || !model.is_running());
    assert!(last.receive().is_none());
    let path = model.sockets()[1].path.clone();
    drop(model);
    assert!(!path.exists());
}
