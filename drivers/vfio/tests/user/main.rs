//! A device behind vfio-user: against the server of crate `vfio_user`, and against servers that err, fall
//! silent and die.

mod model;
mod scripted;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use doorbell_vfio::{
    Backend, Claim, Device, Error, Event, Irq, Put, RegionIndex, Slab, UserDevice, after_completion,
    before_doorbell,
};
use model::{DOORBELL, Model, PAGE, REFUSED, TRAPPED, VECTORS};
use scripted::{Scripted, Then, usual, words};
use volatile_register::{RO, RW};

/// Longer than anything takes here, on a machine with other work.
const SOON: Duration = Duration::from_secs(10);
/// For waits that have to end by themselves.
const SHORT: Duration = Duration::from_millis(200);

fn bar0() -> RegionIndex {
    RegionIndex::bar(0).unwrap()
}

#[test]
fn a_model_is_described_as_it_is() {
    let model = Model::start(true);
    let device = UserDevice::connect(&model.socket).unwrap();
    assert!(device.is_resettable() && device.backend() == Backend::User);
    let bar = device.region(bar0()).unwrap();
    let areas: Vec<_> = bar.areas.iter().map(|area| (area.at, area.length)).collect();
    assert_eq!((bar.length, bar.readable, bar.writable), (4 * PAGE, true, true));
    assert_eq!(areas, [(0, PAGE), (2 * PAGE, 2 * PAGE)]);
    assert_eq!(device.region(RegionIndex::ROM).unwrap().length, 0);
    assert_eq!(device.irq(Irq::Msix).unwrap().count, VECTORS);
    assert!(device.irq(Irq::Msix).unwrap().by_event);
    assert_eq!(device.irq(Irq::Msi).unwrap().count, 0);
}

#[test]
fn a_claim_resets_then_masters_and_leaves_in_order() {
    let model = Model::start(true);
    let claim = Claim::connect(&model.socket).unwrap();
    assert!(claim.was_reset());
    assert_eq!(claim.config().identity().unwrap(), (0x8086, 0x10ca));
    assert_eq!(claim.config().msix_vectors().unwrap(), VECTORS);
    {
        let state = model.state.lock().unwrap();
        assert_eq!(
            (state.resets, state.config[4]),
            (1, 0b110),
            "bus master after the reset, which clears it"
        );
    }
    claim.reset().unwrap();
    assert!(claim.config().is_bus_master().unwrap());
    claim.close().unwrap();
    let state = model.state.lock().unwrap();
    assert_eq!(
        (state.resets, state.config[4]),
        (2, 0b010),
        "no bus master any more"
    );
}

#[test]
fn a_model_without_a_reset_is_taken_as_it_is() {
    let model = Model::start(false);
    let claim = Claim::connect(&model.socket).unwrap();
    assert!(!claim.was_reset() && !claim.device().is_resettable());
    assert_eq!(claim.device().reset().unwrap_err().code(), "refused");
    assert_eq!(model.state.lock().unwrap().resets, 0);
    assert_eq!(
        claim
            .device()
            .write(RegionIndex::CONFIG, 0x40, &[1])
            .map_err(|error| error.code()),
        Ok(())
    );
}

#[test]
fn registers_are_shared_memory_where_they_can_be_and_messages_elsewhere() {
    let model = Model::start(true);
    let claim = Claim::connect(&model.socket).unwrap();
    let bar = claim.bar(0).unwrap();
    let shared = bar.block::<[RW<u32>; 4]>(2 * PAGE).unwrap();
    shared[1].put(0xfeed);
    let again = claim.bar(0).unwrap();
    assert_eq!(
        again.block::<RO<u32>>(2 * PAGE + 4).unwrap().read(),
        0xfeed,
        "one memory"
    );
    assert!(bar.block::<RO<u32>>(TRAPPED).is_err(), "that page is not shared");
    let device = claim.device();
    device.write(bar0(), TRAPPED + 8, &7u32.to_le_bytes()).unwrap();
    let mut back = [0; 4];
    device.read(bar0(), TRAPPED + 8, &mut back).unwrap();
    assert_eq!(u32::from_le_bytes(back), 7);
    for bad in [4 * PAGE - 2, 4 * PAGE, u64::MAX] {
        assert_eq!(
            device.read(bar0(), bad, &mut back).unwrap_err().code(),
            "out-of-region"
        );
    }
    assert_eq!(claim.bar(1).unwrap_err().code(), "out-of-region");
    assert_eq!(claim.bar(6).unwrap_err().code(), "out-of-region");
}

#[test]
fn a_doorbell_lets_the_device_read_and_write_our_memory_and_interrupt_us() {
    let model = Model::start(true);
    let claim = Claim::connect(&model.socket).unwrap();
    let slab = claim
        .share(Slab::new(2 * PAGE as usize).unwrap())
        .map_err(|(_, error)| error)
        .unwrap();
    let events = [(); VECTORS as usize].map(|()| Event::new().unwrap());
    claim.enable_msix(&events.each_ref()).unwrap();
    assert_eq!(
        model.state.lock().unwrap().settings,
        VECTORS,
        "a descriptor a message, as the server takes them"
    );
    let at = slab.bus_address(PAGE as usize, 16).unwrap();
    assert_eq!(slab.bus_address(PAGE as usize, PAGE as usize + 1), None);

    slab.region().write(PAGE as usize, &41u64.to_le_bytes());
    let doorbell = claim.bar(0).unwrap().block::<RW<u64>>(DOORBELL).unwrap();
    before_doorbell();
    doorbell.put(at);
    assert_eq!(events[0].wait(SOON).unwrap(), 1);
    after_completion();
    assert_eq!(
        slab.slice(PAGE as usize + 8, 8).unwrap().as_shared().read(0),
        Some(42u64.to_le_bytes())
    );

    slab.region().write(0, &99u64.to_le_bytes());
    claim
        .device()
        .write(bar0(), TRAPPED, &slab.iova().to_le_bytes())
        .unwrap();
    assert_eq!(events[0].wait(SOON).unwrap(), 1);
    assert_eq!(
        slab.slice(8, 8).unwrap().as_shared().read(0),
        Some(100u64.to_le_bytes())
    );
    assert_eq!(events[1].take() + events[2].take(), 0);

    claim.device().raise(Irq::Msix, 2).unwrap();
    assert_eq!((events[2].wait(SOON).unwrap(), events[0].take()), (1, 0));
    assert_eq!(
        claim.device().raise(Irq::Msix, 3).unwrap_err().code(),
        "no-interrupt"
    );

    claim.disable_msix().unwrap();
    claim
        .device()
        .write(bar0(), TRAPPED, &slab.iova().to_le_bytes())
        .unwrap();
    assert_eq!(events[0].wait(SHORT).unwrap(), 0, "no interrupt any more");
    let ours = slab.unshare().unwrap();
    assert!(model.state.lock().unwrap().maps.is_empty());
    ours.region().write(8, &[0; 8]);
    claim.device().write(bar0(), TRAPPED, &at.to_le_bytes()).unwrap();
    assert_eq!(
        ours.region().whole().as_shared().read(8),
        Some([0; 8]),
        "the device does not reach it any more"
    );
}

#[test]
fn what_a_model_refuses_is_an_error_and_the_line_goes_on() {
    let model = Model::start(true);
    let claim = Claim::connect(&model.socket).unwrap();
    let (slab, error) = claim.share(Slab::new(REFUSED as usize).unwrap()).unwrap_err();
    assert_eq!((error.code(), slab.region().len() as u64), ("refused", REFUSED));
    let mut byte = [0];
    let error = claim.device().read(bar0(), 0, &mut byte).unwrap_err();
    assert!(error.to_string().contains("read a region"), "{error}");
    assert_eq!(
        claim.config().identity().unwrap(),
        (0x8086, 0x10ca),
        "it still answers"
    );
    let good = claim
        .share(Slab::new(PAGE as usize).unwrap())
        .map_err(|(_, error)| error)
        .unwrap();
    assert_eq!(model.state.lock().unwrap().maps.len(), 1);
    drop(good);
    assert_eq!((model.state.lock().unwrap().maps.len(), claim.leaked()), (0, 0));
    let event = Event::new().unwrap();
    let many = [event.as_fd(); 4];
    let error = claim.device().enable(Irq::Msix, &many).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoInterrupt {
                has: 3,
                wanted: 4,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        claim.device().enable(Irq::Intx, &many[..1]).unwrap_err().code(),
        "no-interrupt"
    );
}

#[test]
fn memory_that_the_device_does_not_let_go_is_leaked_and_its_address_stays_taken() {
    let model = Model::start(true);
    let claim = Claim::connect(&model.socket).unwrap();
    let share = || {
        claim
            .share(Slab::new(PAGE as usize).unwrap())
            .map_err(|(_, error)| error)
            .unwrap()
    };
    model.state.lock().unwrap().holds_on = true;
    let first = share();
    let address = first.iova();
    assert_eq!(first.unshare().unwrap_err().code(), "refused");
    assert_eq!(claim.leaked(), PAGE);
    assert_ne!(share().iova(), address);
    assert_eq!(claim.leaked(), 2 * PAGE, "dropped: the same");
    model.state.lock().unwrap().holds_on = false;
    let third = share();
    assert_eq!(third.iova(), address + 2 * PAGE);
}

#[test]
fn no_server() {
    let folder = tempfile::tempdir().unwrap();
    let error = UserDevice::connect(&folder.path().join("nobody")).unwrap_err();
    assert!(
        error.code() == "gone" && error.to_string().contains("does not exist"),
        "{error}"
    );
}

#[test]
fn a_server_that_never_answers_is_left_at_the_limit() {
    let server = Scripted::start(|_, _| Then::Silence);
    let begun = Instant::now();
    let error = UserDevice::connect_within(&server.socket, SHORT).unwrap_err();
    assert!(matches!(error, Error::Silent { waited: SHORT, .. }), "{error}");
    assert!((SHORT..SOON).contains(&begun.elapsed()));
}

#[test]
fn one_that_falls_silent_in_the_middle_of_an_answer_is_left_too_and_for_good() {
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let server = Scripted::start(move |command, payload| match command {
        9 => {
            counted.fetch_add(1, Relaxed);
            Then::Raw(vec![0; 7])
        }
        _ => usual(command, payload),
    });
    // Long enough for all the answers that do come, on a machine with other work.
    let device = UserDevice::connect_within(&server.socket, Duration::from_secs(2)).unwrap();
    let mut byte = [0];
    let mut read = || device.read(RegionIndex::CONFIG, 0, &mut byte).unwrap_err();
    assert_eq!(read().code(), "silent");
    assert_eq!(read().code(), "gone");
    drop(device);
    drop(server);
    assert_eq!(
        asked.load(Relaxed),
        1,
        "nothing is requested on a line that is out of step"
    );
}

/// One thread goes on with a device while another thread waits for a slow answer.
#[test]
fn whether_it_is_gone_is_known_during_a_wait_for_an_answer() {
    let (asked, was_asked) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let server = Scripted::start(move |command, payload| {
        if command == 13 {
            asked.send(()).unwrap();
            // Answered once the request below is.
            let _ = may_go_on.recv_timeout(SOON);
        }
        usual(command, payload)
    });
    let device = Arc::new(UserDevice::connect_within(&server.socket, 2 * SOON).unwrap());
    let waiting = Arc::clone(&device);
    let reset = std::thread::spawn(move || waiting.reset());
    was_asked.recv_timeout(SOON).unwrap();
    let begun = Instant::now();
    assert!(!device.is_gone());
    assert!(begun.elapsed() < SOON, "it waited for the answer");
    go_on.send(()).unwrap();
    reset.join().unwrap().unwrap();
    drop(device);
}

#[test]
fn a_server_that_dies_is_gone_and_what_it_had_is_leaked() {
    let server = Scripted::start(|command, payload| match command {
        3 => Then::End,
        _ => usual(command, payload),
    });
    let device = Arc::new(UserDevice::connect(&server.socket).unwrap());
    let mut bytes = [0; 2];
    device.read(RegionIndex::CONFIG, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [0x55; 2]);
    let region = doorbell_fabric::memory::Region::new(PAGE as usize).unwrap();
    device.share(&region, 1 << 20).unwrap();
    assert_eq!(device.unshare(1 << 20, PAGE).unwrap_err().code(), "gone");
    assert_eq!(device.reset().unwrap_err().code(), "gone");
    assert_eq!(
        device
            .enable(Irq::Msix, &[Event::new().unwrap().as_fd()])
            .unwrap_err()
            .code(),
        "gone"
    );
}

#[test]
fn a_refusal_keeps_its_number() {
    let server = Scripted::start(|command, payload| match command {
        13 => Then::Refuse(22),
        9 => Then::Refuse(0),
        _ => usual(command, payload),
    });
    let device = UserDevice::connect(&server.socket).unwrap();
    let error = device.reset().unwrap_err();
    assert!(
        matches!(&error, Error::Refused { source, .. } if source.raw_os_error() == Some(22)),
        "{error}"
    );
    // A refusal is shorter than an answer: who waits for the rest of it waits for ever.
    let error = device.read(RegionIndex::CONFIG, 0, &mut [0; 16]).unwrap_err();
    assert!(error.to_string().contains("gives no reason"), "{error}");
}

#[test]
fn a_server_that_breaks_the_rules_is_left() {
    type Script = fn(u16, &[u8]) -> Then;
    let cases: &[(&str, Script)] = &[
        ("another version", |command, payload| match command {
            1 => Then::Reply(vec![1, 0, 0, 0]),
            _ => usual(command, payload),
        }),
        ("no PCI device", |command, payload| match command {
            4 => Then::Reply(words(&[16, 1, 9, 5])),
            _ => usual(command, payload),
        }),
        (
            "more regions than there can be",
            |command, payload| match command {
                4 => Then::Reply(words(&[16, 3, u32::MAX, 5])),
                _ => usual(command, payload),
            },
        ),
        ("half a description", |command, payload| match command {
            4 => Then::Reply(words(&[16, 3])),
            _ => usual(command, payload),
        }),
        (
            "a region of capabilities that are not there",
            |command, payload| match command {
                5 => Then::Reply(words(&[4096, 15, 0, 32, 0x1000, 0, 0, 0])),
                _ => usual(command, payload),
            },
        ),
        ("another command", |_, _| {
            Then::Raw(words(&[0x0003_0000, 16, 1, 0]))
        }),
        ("another number", |_, _| {
            Then::Raw(words(&[0x0001_0009, 16, 1, 0]))
        }),
        ("no reply", |_, _| Then::Raw(words(&[0x0001_0000, 16, 0, 0]))),
        ("shorter than its header", |_, _| {
            Then::Raw(words(&[0x0001_0000, 8, 1, 0]))
        }),
        ("longer than any", |_, _| {
            Then::Raw(words(&[0x0001_0000, u32::MAX, 1, 0]))
        }),
    ];
    for (what, script) in cases {
        let server = Scripted::start(*script);
        let error = UserDevice::connect_within(&server.socket, SOON).unwrap_err();
        assert_eq!(error.code(), "hostile", "{what}: {error}");
    }
    let server = Scripted::start(|command, payload| match command {
        9 => Then::Reply(words(&[0, 0, 7, 1, 0])),
        _ => usual(command, payload),
    });
    let device = UserDevice::connect(&server.socket).unwrap();
    let error = device.read(RegionIndex::CONFIG, 0, &mut [0; 2]).unwrap_err();
    assert_eq!(error.code(), "hostile", "another number of bytes: {error}");
}
