//! Two virtual functions exchange frames through the model, each by a client that was written by hand; the
//! physical function steers.

use crate::client;
use crate::client::queues::{is_good, udp};
use crate::client::scene::{A, B, Scene};
use crate::client::{STATS_DUMP, model};
use doorbell_vic::Trap;

#[test]
fn a_frame_goes_from_ring_to_ring_with_its_checksums() {
    for trap in [Trap::Devcmd, Trap::Control, Trap::All, Trap::None] {
        for seed in [None, Some(7)] {
            let (model, _folder) = model(|options| (options.trap, options.layout.seed) = (trap, seed));
            let mut scene = Scene::new(&model, (64, 128));
            scene.at_b.post(&mut scene.b, 63, 2048, 0);
            let frame = scene.frame(b"through the adapter and what is called a switch");
            let slot = scene.at_a.send(&mut scene.a, &frame);
            let sent = scene.at_a.wait(&scene.a);
            assert_eq!((sent.kind(), sent.index(), sent.queue()), (0, slot as u16, 0));
            let done = scene.at_b.wait(&scene.b);
            assert_eq!((done.kind(), done.index(), done.queue()), (7, 0, 1));
            assert_eq!(
                (done.flags(), done.length(), done.is_cut()),
                (0xab, frame.len(), false)
            );
            assert!(done.is_sop() && done.is_eop());
            let received = scene.at_b.received(&scene.b, 0, done.length());
            assert!(is_good(&received), "{received:x?}");
            let without = |frame: &[u8]| {
                let mut frame = frame.to_vec();
                frame[24..26].fill(0);
                frame[40..42].fill(0);
                frame
            };
            assert_eq!(without(&received), frame);
            assert_eq!(model.violations().list(), [], "{trap:?}");
        }
    }
}

#[test]
fn lengths_arrive_as_they_were_sent_and_short_ones_padded() {
    let (model, _folder) = model(|_| ());
    let mut scene = Scene::new(&model, (64, 128));
    for length in [0, 1, 17, 18, 19, 950, 951, 1472, 1473, 8972, 9208 - 42] {
        scene.at_b.post(&mut scene.b, 1, 9300, 0);
        let payload: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
        let frame = scene.frame(&payload);
        scene.at_a.send(&mut scene.a, &frame);
        let done = scene.at_b.wait(&scene.b);
        assert_eq!(
            (done.flags(), done.length()),
            (0xab, frame.len().max(60)),
            "{length}"
        );
        let received = scene.at_b.received(&scene.b, done.index(), done.length());
        assert!(is_good(&received));
        assert_eq!(received[42..42 + length], payload);
        assert!(
            received[42 + length..].iter().all(|byte| *byte == 0),
            "padded with zeroes"
        );
        assert_eq!(scene.at_a.wait(&scene.a).kind(), 0);
    }
    assert_eq!(model.violations().list(), []);
}

#[test]
fn rings_wrap_and_colours_flip() {
    for (entries, cq_entries, count) in [
        (32, 64, 300),
        (4096, 8192, 9000),
        (64, 4096, 5000),
        (32, 65_536, 500),
    ] {
        let (model, _folder) = model(|_| ());
        let mut scene = Scene::new(&model, (entries, cq_entries));
        for round in 0..count as u32 {
            scene.at_b.post(&mut scene.b, 1, 256, 0);
            let frame = scene.frame(&round.to_le_bytes());
            scene.at_a.send(&mut scene.a, &frame);
            let done = scene.at_b.wait(&scene.b);
            assert_eq!(u32::from(done.index()), round % entries);
            assert_eq!(
                scene.at_b.received(&scene.b, done.index(), 46)[42..],
                round.to_le_bytes()
            );
            assert_eq!(u32::from(scene.at_a.wait(&scene.a).index()), round % entries);
        }
        assert_eq!(model.violations().list(), [], "{entries} {cq_entries}");
        let a = &model.summary().functions["vf0"];
        assert_eq!((a.sent, a.errors), (count as u64, 0));
    }
}

#[test]
fn long_frames_take_many_buffers_and_are_cut_where_they_have_no_more() {
    let (model, _folder) = model(|_| ());
    let mut scene = Scene::new(&model, (64, 128));
    // Start, two continuations, and a new start.
    for kind in [0, 1, 1, 0] {
        scene.at_b.post(&mut scene.b, 1, 100, kind);
    }
    let frame = scene.frame(&[0x5a; 250 - 42]);
    scene.at_a.send(&mut scene.a, &frame);
    let parts: Vec<_> = (0..3).map(|_| scene.at_b.wait(&scene.b)).collect();
    let told: Vec<_> = parts
        .iter()
        .map(|part| (part.index(), part.is_sop(), part.is_eop(), part.length()))
        .collect();
    assert_eq!(
        told,
        [
            (0, true, false, 100),
            (1, false, false, 100),
            (2, false, true, 50)
        ]
    );
    assert_eq!(parts[2].flags(), 0xab);
    // One start is left: what does not fit is cut.
    scene.at_a.send(&mut scene.a, &frame);
    let cut = scene.at_b.wait(&scene.b);
    assert_eq!(
        (cut.index(), cut.is_cut(), cut.length(), cut.is_eop()),
        (3, true, 0, true)
    );
    assert_eq!(cut.flags() & 0x80, 0, "FCS_OK is clear");
    // A short one skips continuations that it does not need: only the next start takes it.
    for kind in [0, 1, 1, 0] {
        scene.at_b.post(&mut scene.b, 1, 100, kind);
    }
    let short = scene.frame(b"short");
    for index in [4, 7] {
        scene.at_a.send(&mut scene.a, &short);
        assert_eq!(scene.at_b.wait(&scene.b).index(), index);
    }
    assert_eq!(model.violations().list(), []);
}

#[test]
fn a_frame_of_many_descriptors_waits_for_its_end() {
    let (model, _folder) = model(|_| ());
    let mut scene = Scene::new(&model, (64, 128));
    scene.at_b.post(&mut scene.b, 4, 2048, 0);
    let frame = scene.frame(b"in three parts");
    let at = scene.at_a.tx(0);
    scene.a.mem_write(at, &frame);
    scene.at_a.describe(&scene.a, at, 14, 0, 7);
    scene.at_a.describe(&scene.a, at + 14, 28, 0, 7);
    scene.at_a.ring(&mut scene.a);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(scene.at_b.poll(&scene.b), None, "no end yet");
    scene.at_a.describe(&scene.a, at + 42, 14, 0x1000, 7);
    // Not signalled: the next one's completion stands for it.
    scene.at_a.ring(&mut scene.a);
    let done = scene.at_b.wait(&scene.b);
    assert_eq!((done.length(), done.flags()), (60, 0xab));
    assert_eq!(scene.at_b.received(&scene.b, 0, 56)[42..], *b"in three parts");
    assert_eq!(scene.at_a.poll(&scene.a), None);
    let slot = scene.at_a.send(&mut scene.a, &frame);
    assert_eq!((slot, scene.at_a.wait(&scene.a).index()), (3, 3));
}

#[test]
fn a_wide_doorbell_is_its_index_and_a_hint() {
    let (model, _folder) = model(|_| ());
    let mut scene = Scene::new(&model, (64, 128));
    scene.at_b.post(&mut scene.b, 4, 2048, 0);
    let frame = scene.frame(b"hinted");
    let at = scene.at_a.tx(0);
    scene.a.mem_write(at, &frame);
    scene.at_a.describe(&scene.a, at, frame.len() as u16, 0x3000, 7);
    let lines = (at % 32 + frame.len() as u64).div_ceil(32);
    scene
        .a
        .write64(scene.at_a.wq + 0x10, 1 | lines << 16 | (at >> 5) << 21);
    assert_eq!(scene.at_b.wait(&scene.b).length(), 60);
    assert_eq!(model.violations().list(), []);
}

#[test]
fn without_buffers_filters_or_an_enabled_pair_nothing_arrives_and_all_is_counted() {
    let (model, _folder) = model(|_| ());
    let mut scene = Scene::new(&model, (64, 128));
    let frame = scene.frame(b"no buffer");
    scene.at_a.send(&mut scene.a, &frame);
    scene.at_a.wait(&scene.a);
    scene.at_b.post(&mut scene.b, 4, 2048, 0);
    let other = udp(scene.mac_b, scene.mac_a, (A, B), (4000, 5001), b"another port");
    scene.at_a.send(&mut scene.a, &other);
    scene.at_a.wait(&scene.a);
    scene.pf.proxy(1, client::QP_DISABLE, &[1, 0]).unwrap();
    scene.at_a.send(&mut scene.a, &frame);
    scene.at_a.wait(&scene.a);
    let summary = model.summary();
    let b = &summary.functions["vf1"];
    assert_eq!((b.received, b.dropped, b.no_bufs), (0, 1, 2));
    scene.b.share(0x9000_0000, 4096);
    scene.b.devcmd(STATS_DUMP, &[0x9000_0000, 512]).unwrap();
    let mut counter = [0; 8];
    for (at, wanted) in [(216, 0), (224, 3), (288, 1), (296, 2)] {
        scene.b.mem_read(0x9000_0000 + at, &mut counter);
        assert_eq!(u64::from_le_bytes(counter), wanted, "{at}");
    }
    assert_eq!(scene.at_b.poll(&scene.b), None);
}
