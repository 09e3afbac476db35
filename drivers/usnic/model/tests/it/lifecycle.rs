//! Clients that come, go, are killed, and misbehave; the states that devcmd leads a function through.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::client;
use crate::client::queues::{Pair, TLV, steer};
use crate::client::scene::Scene;
use crate::client::{
    ADD_FILTER, CAPABILITY, CLOSE, CQ, Client, DEV_SPEC, DEVCMD, DISABLE, ENABLE_WAIT, FW_INFO, INIT,
    INIT_STATUS, INTR, MAC_ADDR, NOTIFY, OPEN, OPEN_STATUS, PROXY_BY_INDEX, QP_ENABLE, RQ, SOFT_RESET,
    SOFT_RESET_STATUS, WQ, memory, model, until,
};
use doorbell_vic::{Kind, Policy, Trap};

#[test]
fn tables_are_read_whatever_their_order() {
    for seed in 0..40 {
        let (model, _folder) = model(|options| {
            options.layout.seed = Some(seed);
            options.layout.management = seed % 2 == 1;
            options.layout.mem = 5000 * (seed as usize % 4);
            options.layout.group_interrupts = seed % 5 == 0;
            (options.counts.wq, options.counts.intr) = (2 + seed as usize % 5, 1);
            options.trap = [Trap::None, Trap::Devcmd, Trap::Control, Trap::All][seed as usize % 4];
        });
        let mut vf = Client::new(&model, "vf1");
        let count = |kind: u8| {
            vf.table
                .iter()
                .find(|entry| entry.0 == kind && entry.1 == 0)
                .map(|entry| entry.3)
        };
        let counts = [WQ, RQ, CQ, INTR, DEVCMD].map(count);
        assert_eq!(
            counts,
            [Some(2 + seed as u32 % 5), Some(6), Some(6), Some(1), Some(128)]
        );
        assert!(vf.table.iter().any(|entry| entry.0 == 200) && vf.table.iter().any(|entry| entry.1 == 5));
        assert_eq!(
            vf.devcmd(MAC_ADDR, &[]).unwrap()[0].to_le_bytes()[5],
            2,
            "the second one's"
        );
        assert_eq!(model.violations().list(), []);
    }
}

#[test]
fn the_states_of_a_function_are_kept() {
    let (model, _folder) = model(|options| options.timing.two_part = Duration::from_millis(500));
    let mut vf = Client::new(&model, "vf0");
    assert_eq!(vf.devcmd(INIT, &[0]), Err(6), "before OPEN");
    assert_eq!(vf.devcmd(ENABLE_WAIT, &[0]), Err(6), "before INIT");
    let begun = Instant::now();
    vf.devcmd(OPEN, &[0]).unwrap();
    let status = vf.devcmd(OPEN_STATUS, &[]).unwrap()[0];
    // On a busy machine the two commands may be further apart than the opening takes.
    if begun.elapsed() < Duration::from_millis(500) {
        assert_eq!(status, 1, "in progress");
    }
    until("it is open", || vf.devcmd(OPEN_STATUS, &[]).unwrap()[0] == 0);
    assert_eq!(vf.devcmd(ENABLE_WAIT, &[0]), Err(6));
    vf.devcmd(INIT, &[1]).unwrap();
    until("it is initialised", || {
        vf.devcmd(INIT_STATUS, &[]).unwrap()[..2] == [0, 0]
    });
    vf.devcmd(ENABLE_WAIT, &[0]).unwrap();
    vf.devcmd(DISABLE, &[]).unwrap();
    vf.devcmd(CLOSE, &[]).unwrap();
    assert_eq!(vf.devcmd(INIT, &[0]), Err(6));
    vf.devcmd(SOFT_RESET, &[]).unwrap();
    until("it is reset", || {
        vf.devcmd(SOFT_RESET_STATUS, &[]).unwrap()[0] == 0
    });
    vf.devcmd(OPEN, &[0]).unwrap();
    assert_eq!(vf.devcmd(0xC000_404D, &[0, 0]), Err(5), "ADD_ADV_FILTER");
    assert_eq!(
        model.violations().counts().into_iter().collect::<Vec<_>>(),
        [(Kind::Devcmd, 5)]
    );
}

#[test]
fn a_command_is_busy_for_a_while_and_the_block_is_closed_meanwhile() {
    let (model, _folder) = model(|options| options.timing.devcmd = Duration::from_millis(60));
    let mut vf = Client::new(&model, "vf0");
    let at = vf.find(DEVCMD, 0);
    let begun = Instant::now();
    vf.command(MAC_ADDR, &client::args(&[5]));
    assert_eq!(vf.read32(at), 1, "BUSY when the write returns");
    vf.write64(at + 8, 77);
    vf.write32(at + 4, OPEN);
    assert_eq!((vf.read64(at + 8), vf.read32(at)), (5, 1), "no effect");
    vf.write32(at, 0);
    until("it is done", || vf.read32(at) == 0);
    assert!(begun.elapsed() >= Duration::from_millis(60));
    assert_eq!(vf.read64(at + 8) & 0xffff, 2);
    assert_eq!(vf.devcmd(OPEN_STATUS, &[]).unwrap()[0], 0, "never opened");
    assert_eq!(
        (
            model.violations().count(Kind::DevcmdBusy),
            model.violations().count(Kind::ReadOnly)
        ),
        (3, 1)
    );
}

#[test]
fn a_virtual_functions_own_filters_are_a_matter_of_policy() {
    for (policy, wanted) in [
        (Policy::Real, Some(3)),
        (Policy::Hidden, Some(5)),
        (Policy::Permissive, None),
    ] {
        let (model, _folder) = model(|options| options.policy = policy);
        let mut vf = Client::new(&model, "vf0");
        vf.share(TLV, 4096);
        let _pair = Pair::new(&mut vf, 0, 1 << 32, (64, 128));
        vf.mem_write(TLV, &client::queues::udp_filter(1, 2, 0));
        for (command, given) in [
            (ADD_FILTER, vec![TLV, 58]),
            (CAPABILITY, vec![ADD_FILTER.into()]),
            (QP_ENABLE, vec![0, 0]),
        ] {
            assert_eq!(
                vf.devcmd(command, &given).err(),
                wanted,
                "{policy:?} {command:#x}"
            );
        }
        assert_eq!(vf.devcmd(CAPABILITY, &[ENABLE_WAIT.into()]).unwrap()[0], 0);
        assert_eq!(vf.devcmd(CAPABILITY, &[0xC000_404D]).unwrap()[0], 5);
        assert_eq!(
            vf.devcmd(PROXY_BY_INDEX, &[0, ADD_FILTER.into()]),
            Err(3),
            "it is no physical function"
        );
    }
}

#[test]
fn the_physical_function_answers_for_the_others() {
    let (model, _folder) = model(|options| options.behaviour.filters = 2);
    let (mut pf, mut vf) = (Client::new(&model, "pf"), Client::new(&model, "vf1"));
    pf.share(TLV, 4096);
    assert_eq!(pf.proxy(1, QP_ENABLE, &[0, 0]), Err(6), "nothing is programmed");
    let _pair = Pair::new(&mut vf, 0, 1 << 32, (64, 128));
    assert_eq!(pf.proxy(1, QP_ENABLE, &[6, 0]), Err(1), "there are six");
    assert_eq!(
        pf.devcmd(PROXY_BY_INDEX, &[2, QP_ENABLE.into()]),
        Err(1),
        "there are two"
    );
    let first = steer(&mut pf, 1, 1, 1, 0);
    assert_eq!(pf.proxy(1, ADD_FILTER, &[TLV, 58]), Err(1), "twice");
    pf.mem_write(TLV, &client::queues::udp_filter(1, 2, 6));
    assert_eq!(pf.proxy(1, ADD_FILTER, &[TLV, 58]), Err(1), "no such queue");
    assert_eq!(
        pf.proxy(1, ADD_FILTER, &[TLV + 4096, 58]),
        Err(2),
        "a bad address"
    );
    assert_eq!(pf.proxy(1, ADD_FILTER, &[TLV, 57]), Err(1), "cut short");
    let second = steer(&mut pf, 1, 1, 2, 0);
    assert_ne!(first, second);
    pf.mem_write(TLV, &client::queues::udp_filter(1, 3, 0));
    assert_eq!(pf.proxy(1, ADD_FILTER, &[TLV, 58]), Err(10), "full");
    assert_eq!(pf.proxy(0, client::DEL_FILTER, &[first]), Err(1), "another's");
    pf.proxy(1, client::DEL_FILTER, &[first]).unwrap();
    assert_eq!(pf.proxy(1, client::DEL_FILTER, &[first]), Err(1), "gone");
    let capability = pf.proxy(1, CAPABILITY, &[ADD_FILTER.into()]).unwrap();
    assert_eq!(capability[..2], [1, 1]);
    assert_eq!(pf.proxy(1, DEV_SPEC, &[12, 2]).unwrap()[0], 9000);
}

#[test]
fn its_status_is_written_where_it_is_requested() {
    let (model, _folder) = model(|_| ());
    let mut vf = Client::new(&model, "vf0");
    vf.share(0x5000, 4096);
    let info = vf.devcmd(FW_INFO, &[0x5000, 132]).unwrap();
    assert_eq!(info[1], 132);
    let mut text = [0; 132];
    vf.mem_read(0x5000, &mut text);
    assert!(text.starts_with(b"model"));
    assert_eq!(text[128..130], [3, 0]);
    assert_eq!(vf.devcmd(FW_INFO, &[0xffff_0000, 132]), Err(2));
    assert_eq!(
        vf.devcmd(NOTIFY, &[0x5100, 0xffff_0000_0000 | 40]).unwrap()[1],
        40
    );
    let mut area = [0; 40];
    vf.mem_read(0x5100, &mut area);
    let word = |index: usize| u32::from_le_bytes(area[4 * index..4 * index + 4].try_into().unwrap());
    assert_eq!((word(1), word(2), word(3)), (1, 40_000, 9000));
    assert_eq!(
        word(0),
        (1..10).fold(0u32, |sum, index| sum.wrapping_add(word(index)))
    );
}

#[test]
fn one_client_at_a_time_and_the_next_finds_a_function_as_new() {
    let (model, _folder) = model(|_| ());
    let mut pf = Client::new(&model, "pf");
    pf.share(TLV, 4096);
    let path = model.sockets()[1].path.clone();
    let mut first = Client::connect(&path).unwrap();
    let pair = Pair::new(&mut first, 0, 1 << 32, (64, 128));
    steer(&mut pf, 0, 1, 1, 0);
    pair.enable(&mut first);
    let wq = first.find(WQ, 0);
    assert_eq!(Client::connect(&path).err(), Some(16), "EBUSY");
    // As a client is killed: its socket closes, and no message was sent.
    drop(first);
    let mut second = Client::connect(&path).unwrap();
    assert_eq!([0, 8, 0x20, 0x28].map(|at| second.read32(wq + at)), [0; 4]);
    assert_eq!(second.devcmd(OPEN_STATUS, &[]).unwrap()[0], 0);
    // Its filter went, too.
    let _pair = Pair::new(&mut second, 0, 1 << 32, (64, 128));
    steer(&mut pf, 0, 1, 1, 0);
    assert_eq!(model.violations().list(), []);
}

#[test]
fn what_was_counted_outlives_clients_and_resets() {
    let (model, _folder) = model(|_| ());
    let mut scene = Scene::new(&model, (64, 128));
    let frame = scene.frame(b"counted");
    scene.at_a.send(&mut scene.a, &frame);
    scene.at_a.wait(&scene.a);
    scene.a.reset();
    drop(scene);
    let summary = model.stop();
    assert_eq!(
        (summary.functions["vf0"].sent, summary.functions["vf1"].no_bufs),
        (1, 1)
    );
}

#[test]
fn a_reset_by_message_or_by_its_capability_clears_registers_and_keeps_maps() {
    let (model, _folder) = model(|_| ());
    let mut vf = Client::new(&model, "vf0");
    for way in 0..2 {
        let at = (1 + way) << 32;
        let pair = Pair::new(&mut vf, 0, at, (64, 128));
        pair.enable(&mut vf);
        match way {
            0 => vf.reset(),
            _ => vf.config_write(0x48, &[0, 0x80]),
        }
        assert_eq!(
            [0, 8, 0x20, 0x28].map(|register| vf.read32(pair.wq + register)),
            [0; 4]
        );
        let mut command = [0; 2];
        vf.config_read(4, &mut command);
        assert_eq!(command, [2, 0], "no bus master any more");
        vf.config_write(4, &[6, 0]);
        let pair = Pair::over(&mut vf, 0, at, (64, 128));
        pair.enable(&mut vf);
        pair.disable(&mut vf);
    }
    assert_eq!(model.violations().list(), []);
}

#[test]
fn hostile_messages_are_refused_and_the_function_goes_on() {
    let (model, _folder) = model(|options| options.most_maps = 100);
    let mut vf = Client::new(&model, "vf0");
    // Regions, lengths and commands that are not there.
    assert_eq!(vf.ask(99, &[], &[]).err(), Some(95));
    for command in [2, 3, 5, 7, 8, 9, 10] {
        assert!(vf.ask(command, &[1, 2, 3], &[]).is_err(), "{command}");
    }
    let mut bytes = [0; 8];
    let length = vf.length;
    for (region, at) in [
        (0, length),
        (0, length - 4),
        (0, u64::MAX),
        (1, 0),
        (7, 4092),
        (9, 0),
        (u32::MAX, 0),
    ] {
        assert!(
            vf.region_read(region, at, &mut bytes).is_err(),
            "{region} {at:#x}"
        );
        assert!(vf.region_write(region, at, &bytes).is_err(), "{region} {at:#x}");
    }
    // Maps: without end, one over the other, too many of them; of files that are shorter than stated.
    let file = memory(4096, true);
    assert!(vf.dma_map(u64::MAX - 10, 4096, 3, Some(&file)).is_err());
    assert!(vf.dma_map(0, 0, 3, Some(&file)).is_err());
    vf.dma_map(0, 1 << 40, 3, Some(&file)).unwrap();
    assert!(vf.dma_map(4096, 4096, 3, Some(&file)).is_err());
    for page in 0..99 {
        vf.dma_map((1 << 41) + page * 4096, 4096, 3, Some(&file)).unwrap();
    }
    assert_eq!(
        vf.dma_map(1 << 42, 4096, 3, Some(&file)).err(),
        Some(28),
        "ENOSPC"
    );
    assert!(vf.dma_unmap(1 << 43, 4096).is_err());
    // A command that writes behind the end of a file.
    assert_eq!(vf.devcmd(FW_INFO, &[1 << 39, 132]), Err(2));
    // Bells that are none: the device goes on.
    let regular: File = memory(8, false);
    let mut body = Vec::new();
    for word in [20u32, 36, 2, 0, 1] {
        body.extend(word.to_le_bytes());
    }
    vf.ask(8, &body, &[regular.as_fd()]).unwrap();
    body[12] = 7;
    assert!(
        vf.ask(8, &body, &[regular.as_fd()]).is_err(),
        "there are seven vectors"
    );
    assert!(vf.devcmd(MAC_ADDR, &[]).is_ok());
    assert!(model.violations().count(Kind::Protocol) > 20);
    // A header of an impossible length ends the line, not the model.
    vf.send(1, &[], &[]);
    drop(vf);
    let mut next = Client::new(&model, "vf0");
    assert!(next.devcmd(MAC_ADDR, &[]).is_ok());
}

#[test]
fn memory_without_a_file_is_accessed_by_messages() {
    let (model, _folder) = model(|_| ());
    let mut vf = Client::new(&model, "vf0");
    vf.dma_map(0x9000, 4096, 3, None).unwrap();
    vf.command(FW_INFO, &client::args(&[0x9000, 132]));
    let ((number, command, flags, _), body, _) = vf.receive().unwrap();
    assert_eq!((command, flags & 0xf, body.len()), (12, 0, 16 + 132), "DMA_WRITE");
    assert_eq!(u64::from_le_bytes(body[..8].try_into().unwrap()), 0x9000);
    vf.reply((number, command), 1, &body[..16]);
    let at = vf.find(DEVCMD, 0);
    until("it is done", || vf.read32(at) == 0);
    // A client that refuses: a bad address.
    vf.command(FW_INFO, &client::args(&[0x9000, 132]));
    let ((number, command, ..), ..) = vf.receive().unwrap();
    vf.reply((number, command), 0x21, &[]);
    until("it is done", || vf.read32(at) & 1 == 0);
    assert_eq!((vf.read32(at), vf.read64(at + 8)), (2, 2));
}
