//! Every violation, provoked once by a client that does what no driver should.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::client;
use crate::client::queues::{Pair, TLV, steer};
use crate::client::scene::Scene;
use crate::client::{CQ, Client, DEVCMD, MAC_ADDR, QP_DISABLE, RQ, memory, model, until};
use doorbell_vic::{Kind, Model, Options, Trap};

/// What a driver does, on a model with these options.
struct Case {
    kind: Kind,
    options: fn(&mut Options),
    deed: fn(&Model),
}

fn usual(_: &mut Options) {}

fn strict(options: &mut Options) {
    options.trap = Trap::All;
    (options.behaviour.strict_disable, options.behaviour.strict_hint) = (true, true);
}

/// Waits until something was seen: what goes away is not looked at any more.
fn settle(model: &Model) {
    until("a violation", || !model.violations().counts().is_empty());
}

/// Sends one frame on a scene that was changed before.
fn send(model: &Model, change: impl FnOnce(&mut Scene)) {
    let mut scene = Scene::new(model, (64, 128));
    change(&mut scene);
    let frame = scene.frame(b"x");
    scene.at_a.send(&mut scene.a, &frame);
    settle(model);
}

/// Posts one descriptor.
fn describe(model: &Model, length: u16, flags: u16, mss: u16) {
    let mut scene = Scene::new(model, (64, 128));
    let at = scene.at_a.tx(0);
    scene.at_a.describe(&scene.a, at, length, flags, mss);
    scene.at_a.ring(&mut scene.a);
    settle(model);
}

/// Enables a send queue with a register changed.
fn enable(model: &Model, at: u64, value: u32) {
    let mut scene = Scene::stopped(model, (64, 128));
    let wq = scene.at_a.wq;
    scene.a.write32(wq + at, value);
    scene.a.write32(wq + 0x20, 1);
    until("the error is reported", || scene.a.read32(wq + 0x50) != 0);
    assert_eq!(scene.a.read32(wq + 0x28), 0, "it does not run");
}

const CASES: &[Case] = &[
    Case {
        kind: Kind::PostedBeyondRing,
        options: usual,
        deed: |model| {
            let mut scene = Scene::new(model, (64, 128));
            scene.a.write32(scene.at_a.wq + 0x10, 100);
            settle(model);
        },
    },
    Case {
        kind: Kind::PostedPassesFetch,
        options: usual,
        deed: |model| {
            let mut scene = Scene::new(model, (64, 128));
            scene.pf.proxy(0, QP_DISABLE, &[0, 0]).unwrap();
            scene.a.write32(scene.at_a.wq + 0x10, 10);
            until("it is seen", || model.violations().count(Kind::NoQpEnable) > 0);
            scene.a.write32(scene.at_a.wq + 0x10, 5);
            until("it is seen", || {
                model.violations().count(Kind::PostedPassesFetch) > 0
            });
        },
    },
    Case {
        kind: Kind::RingMisaligned,
        options: usual,
        deed: |model| enable(model, 0, 0x100),
    },
    Case {
        kind: Kind::RingSize,
        options: usual,
        deed: |model| [0, 33, 8192].into_iter().for_each(|size| enable(model, 8, size)),
    },
    Case {
        kind: Kind::FetchWhileRunning,
        options: usual,
        deed: |model| send(model, |scene| scene.a.write32(scene.at_a.wq + 0x30, 9)),
    },
    Case {
        kind: Kind::RingWhileRunning,
        options: usual,
        deed: |model| send(model, |scene| scene.a.write64(scene.at_a.wq, 0x1000)),
    },
    Case {
        kind: Kind::PostedBeforeEnable,
        options: |options| options.behaviour.future = true,
        deed: |model| {
            let mut scene = Scene::stopped(model, (64, 128));
            scene.at_b.post(&mut scene.b, 3, 100, 0);
            settle(model);
        },
    },
    Case {
        kind: Kind::DisabledOnce,
        options: strict,
        deed: |model| {
            let mut scene = Scene::new(model, (64, 128));
            scene.at_b.post(&mut scene.b, 3, 100, 0);
            let frame = scene.frame(b"x");
            scene.at_a.send(&mut scene.a, &frame);
            scene.at_b.wait(&scene.b);
            let rq = scene.at_b.rq;
            scene.b.write32(rq + 0x20, 0);
            until("it stops", || scene.b.read32(rq + 0x28) == 0);
            scene.b.write32(rq + 0x20, 1);
            settle(model);
        },
    },
    Case {
        kind: Kind::ChangedInFlight,
        options: |options| options.timing.recheck = Duration::from_millis(100),
        deed: |model| {
            let mut scene = Scene::new(model, (64, 128));
            let frame = scene.frame(b"before");
            scene.at_a.send(&mut scene.a, &frame);
            until("it was sent", || model.summary().functions["vf0"].sent == 1);
            scene.a.mem_write(scene.at_a.tx(0) + 42, b"behind");
            scene.at_a.wait(&scene.a);
        },
    },
    Case {
        kind: Kind::Hint,
        options: strict,
        deed: |model| {
            let mut scene = Scene::new(model, (64, 128));
            let at = scene.at_a.tx(0);
            scene.at_a.describe(&scene.a, at, 100, 0x3000, 0);
            scene
                .a
                .write64(scene.at_a.wq + 0x10, 1 | 5 << 16 | (at >> 5) << 21);
        },
    },
    Case {
        kind: Kind::DmaUnmapped,
        options: usual,
        deed: |model| {
            let mut scene = Scene::new(model, (64, 128));
            scene.at_a.describe(&scene.a, 0xdead_0000, 100, 0x3000, 0);
            scene.at_a.ring(&mut scene.a);
            let wq = scene.at_a.wq;
            until("the queue stops", || scene.a.read32(wq + 0x50) == 4);
            assert_eq!((scene.a.read32(wq + 0x28), scene.at_a.poll(&scene.a)), (0, None));
        },
    },
    Case {
        kind: Kind::DmaRights,
        options: usual,
        deed: |model| {
            let mut vf = Client::new(model, "vf0");
            vf.dma_map(0x8000_0000, 4096, 1, Some(&memory(4096, true)))
                .unwrap();
            assert_eq!(vf.devcmd(client::FW_INFO, &[0x8000_0000, 132]), Err(2));
        },
    },
    Case {
        kind: Kind::BusMaster,
        options: usual,
        deed: |model| send(model, |scene| scene.a.config_write(4, &[2, 0])),
    },
    Case {
        kind: Kind::CqOverrun,
        options: usual,
        deed: |model| {
            let mut scene = Scene::new(model, (64, 32));
            let frame = scene.frame(b"x");
            for _ in 0..33 {
                scene.at_a.send(&mut scene.a, &frame);
            }
            until("all are sent", || model.summary().functions["vf0"].sent == 33);
        },
    },
    Case {
        kind: Kind::CqIndex,
        options: usual,
        deed: |model| enable(model, 0x18, 6),
    },
    Case {
        kind: Kind::InterruptIndex,
        options: usual,
        deed: |model| {
            send(model, |scene| {
                let cq = scene.a.find(CQ, 0);
                scene.a.write32(cq + 0x38, 1);
                scene.a.write32(cq + 0x50, 6);
            });
        },
    },
    Case {
        kind: Kind::AccessShape,
        options: strict,
        deed: |model| {
            let mut vf = Client::new(model, "vf0");
            let rq = vf.find(RQ, 0);
            let mut bytes = [0; 2];
            vf.region_read(0, rq, &mut bytes).unwrap();
            assert_eq!(bytes, [0xff; 2]);
            vf.region_write(0, rq + 8, &[1; 16]).unwrap();
            vf.region_write(0, rq + 4, &[1; 8]).unwrap();
            assert_eq!(vf.read32(rq + 8), 0, "dropped");
        },
    },
    Case {
        kind: Kind::AccessOutside,
        options: strict,
        deed: |model| {
            let mut vf = Client::new(model, "vf0");
            let end = vf.length;
            assert_eq!(vf.read32(end - 4), u32::MAX);
        },
    },
    Case {
        kind: Kind::ReadOnly,
        options: strict,
        deed: |model| {
            let mut vf = Client::new(model, "vf0");
            let rq = vf.find(RQ, 0);
            vf.write32(rq + 0x28, 1);
            assert_eq!(vf.read32(rq + 0x28), 0);
        },
    },
    Case {
        kind: Kind::DevcmdBusy,
        options: |options| options.timing.devcmd = Duration::from_millis(50),
        deed: |model| {
            let mut vf = Client::new(model, "vf0");
            let at = vf.find(DEVCMD, 0);
            vf.command(MAC_ADDR, &[0; 15]);
            vf.write32(at + 8, 1);
        },
    },
    Case {
        kind: Kind::Devcmd,
        options: usual,
        deed: |model| assert_eq!(Client::new(model, "vf0").devcmd(0x4000_0fff, &[]), Err(5)),
    },
    Case {
        kind: Kind::NoQpEnable,
        options: usual,
        deed: |model| {
            send(model, |scene| {
                scene.pf.proxy(0, QP_DISABLE, &[0, 0]).unwrap();
            });
        },
    },
    Case {
        kind: Kind::NoFilter,
        options: usual,
        deed: |model| {
            let mut pf = Client::new(model, "pf");
            let mut vf = Client::new(model, "vf0");
            pf.share(TLV, 4096);
            let mut pair = Pair::new(&mut vf, 0, 1 << 32, (64, 128));
            let id = steer(&mut pf, 0, 1, 1, 0);
            pf.proxy(0, client::DEL_FILTER, &[id]).unwrap();
            pair.enable(&mut vf);
            pair.send(&mut vf, &[0; 60]);
            pair.wait(&vf);
        },
    },
    Case {
        kind: Kind::Descriptor,
        options: usual,
        deed: |model| {
            describe(model, 0, 0x3000, 0);
            // Segments of no size.
            describe(model, 100, 0x3c00, 0);
        },
    },
    Case {
        kind: Kind::FrameLength,
        options: usual,
        deed: |model| {
            describe(model, 9209, 0x3000, 0);
            describe(model, 13, 0x3000, 0);
        },
    },
    Case {
        kind: Kind::NotModelled,
        options: usual,
        deed: |model| describe(model, 100, 0x3c00, 100),
    },
    Case {
        kind: Kind::Protocol,
        options: usual,
        deed: |model| assert!(Client::new(model, "vf0").ask(77, &[], &[]).is_err()),
    },
];

#[test]
fn each_is_seen_and_named() {
    let mut seen = BTreeSet::new();
    for case in CASES {
        let (model, _folder) = model(case.options);
        (case.deed)(&model);
        until(case.kind.name(), || model.violations().count(case.kind) > 0);
        let first = model
            .violations()
            .list()
            .into_iter()
            .find(|violation| violation.kind == case.kind)
            .unwrap();
        assert!(first.function == "vf0" || first.function == "vf1", "{first}");
        seen.insert(case.kind);
    }
    let missing: Vec<_> = Kind::ALL.iter().filter(|kind| !seen.contains(kind)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn frames_that_are_too_long_may_be_lost_without_a_word() {
    let (model, _folder) = model(|options| options.behaviour.silent_drop = true);
    let mut scene = Scene::new(&model, (64, 128));
    scene.at_b.post(&mut scene.b, 4, 2048, 0);
    let at = scene.at_a.tx(0);
    scene.at_a.describe(&scene.a, at, 9209, 0x3000, 0);
    scene.at_a.ring(&mut scene.a);
    let frame = scene.frame(b"the next one");
    let slot = scene.at_a.send(&mut scene.a, &frame);
    assert_eq!(
        u32::from(scene.at_a.wait(&scene.a).index()),
        slot,
        "no completion for the long one"
    );
    assert_eq!(scene.at_b.wait(&scene.b).length(), 60);
}

#[test]
fn an_error_raises_its_interrupt_and_the_queue_can_be_used_again() {
    let (model, _folder) = model(|_| ());
    let mut scene = Scene::new(&model, (64, 128));
    scene.at_b.post(&mut scene.b, 4, 2048, 0);
    let bell = scene.a.bell(3);
    let wq = scene.at_a.wq;
    scene.a.write32(wq + 0x40, 1);
    scene.a.write32(wq + 0x48, 3);
    scene.at_a.describe(&scene.a, 0xdead_0000, 100, 0x3000, 0);
    scene.at_a.ring(&mut scene.a);
    until("the interrupt", || client::rung(&bell) == 1);
    assert_eq!(scene.a.read32(wq + 0x50), 4);
    scene.at_a.disable(&mut scene.a);
    scene.at_a.set_up(&mut scene.a);
    scene.a.write32(wq + 0x50, 0);
    scene.at_a.enable(&mut scene.a);
    let frame = scene.frame(b"again");
    scene.at_a.send(&mut scene.a, &frame);
    assert_eq!(scene.at_b.wait(&scene.b).length(), 60);
}
