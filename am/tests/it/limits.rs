//! Every resource at its smallest: nothing blocks, and credits stay within their bounds.

use doorbell_am::credit::Chunk;
use doorbell_am::{Attaching, Config, Handlers, Remote, Segment, Settings, Source, Stall, Try};
use doorbell_fabric::memory::Region;

use crate::messages::{Seen, echo_world};
use crate::rig::{Doing, Launcher, Setting, Start, start};

/// All ranks send requests of all kinds to all, with replies of all kinds, and puts and gets beside them.
fn storm(setting: &Setting, each: u32) {
    let (mut world, seen) = echo_world(setting);
    let ranks = setting.ranks;
    let memory = Region::new(5000).expect("memory").whole();
    memory.write(0, &[7; 5000]);
    let mut next = vec![0u32; ranks as usize];
    let mut handles = vec![Vec::new(); ranks as usize];
    world.run(|rank, am, _| {
        let number = next[rank as usize];
        let mine = &mut handles[rank as usize];
        mine.retain(|handle| !am.try_sync(*handle).expect("it goes well"));
        if number == each {
            return if mine.is_empty() {
                Doing::Finished
            } else {
                Doing::Waits
            };
        }
        let to = (rank + 1 + number / 7) % ranks;
        let args = [16_384 + rank, number];
        let place = u64::from(rank) * 5000;
        let outcome = match number % 7 {
            0 => am.try_request_short(to, 1, &args),
            1 => am.try_request_medium(to, 2, &args, &vec![number as u8; am.max_request_medium(2)]),
            2 => am
                .try_request_long(to, 3, &args, memory.clone(), place)
                .map(|sent| sent.map(|sent| mine.extend(sent.source))),
            3 => am
                .try_request_long(
                    to,
                    3,
                    &args,
                    Source::Segment {
                        offset: 9,
                        length: 3000,
                    },
                    place,
                )
                .map(|sent| sent.map(|sent| mine.extend(sent.source))),
            4 => am
                .put(
                    Remote {
                        rank: to,
                        offset: place,
                    },
                    memory.clone(),
                )
                .map(|put| put.map(|put| mine.push(put))),
            5 => am
                .put(
                    Remote {
                        rank: to,
                        offset: place,
                    },
                    &[1; 100],
                )
                .map(|put| put.map(|put| mine.push(put))),
            _ => am.try_request_short(to, 4, &[]),
        };
        match outcome.expect("it can be sent") {
            Try::Done(()) => {
                next[rank as usize] += 1;
                Doing::Worked
            }
            Try::Stalled(_) => Doing::Waits,
        }
    });
    world.settle();
    let requests = seen.try_iter().filter(|one: &Seen| !one.is_reply).count() as u32;
    let puts = |number: u32| (0..number).filter(|number| matches!(number % 7, 4 | 5)).count() as u32;
    assert_eq!(requests, ranks * (each - puts(each)), "{:?}", setting.settings);
    world.assert_clean();
}

#[test]
fn all_limits_at_their_smallest() {
    storm(&Setting::minimal(2), 140);
    storm(&Setting::minimal(5), 70);
}

#[test]
fn each_limit_alone_at_its_smallest() {
    let least = Setting::minimal(3).settings;
    let set = |change: &dyn Fn(&mut Settings)| {
        let mut setting = Setting::new(3);
        change(&mut setting.settings);
        storm(&setting, 70);
    };
    set(&|settings| settings.message_limit = least.message_limit);
    set(&|settings| settings.temporaries = least.temporaries);
    set(&|settings| settings.request_chunks = least.request_chunks);
    set(&|settings| settings.reply_chunks = least.reply_chunks);
    set(&|settings| {
        settings.chunks_per_buffer = 2;
        settings.credits_per_node = Some(8);
        settings.banked_credits = Some(0);
    });
    set(&|settings| (settings.safe_limit, settings.am_limit, settings.sys_limit) = (1, 1, 1));
    set(&|settings| settings.dynamic_credits = false);
    set(&|settings| {
        settings.chunk = Chunk::Small;
        settings.credits_per_node = Some(4);
        settings.packed_long = false;
    });
}

/// One rank that all others send to without a pause never needs the catch basin, in whatever order they poll.
#[test]
fn a_full_fan_in_never_reaches_the_catch_basin() {
    let mut setting = Setting::new(9);
    setting.settings.credits_per_node = Some(8);
    setting.settings.banked_credits = Some(40);
    setting.settings.credits.epoch = 64;
    let (mut world, seen) = echo_world(&setting);
    let mut next = [0u32; 9];
    let mut passes = 0u32;
    world.run(|rank, am, _| {
        if rank == 0 {
            passes += 1;
            return Doing::Finished;
        }
        let number = next[rank as usize];
        if number == 200 {
            return Doing::Finished;
        }
        let payload = vec![rank as u8; if rank % 2 == 0 { 2000 } else { 100 }];
        match am
            .try_request_medium(0, 2, &[number], &payload)
            .expect("it can be sent")
        {
            Try::Done(()) => {
                next[rank as usize] += 1;
                Doing::Worked
            }
            Try::Stalled(_) => Doing::Waits,
        }
    });
    world.settle();
    assert_eq!(seen.try_iter().filter(|one| !one.is_reply).count(), 8 * 200);
    assert_eq!(world.am(0).stats().basin, 0);
    world.assert_clean();
}

/// A rank that stalls gets credits from the bank, and, once that is empty, from ranks that do not use theirs.
#[test]
fn credits_go_where_they_are_used() {
    let mut setting = Setting::new(4);
    setting.settings.credits_per_node = Some(30);
    setting.settings.banked_credits = Some(0);
    setting.settings.credits.epoch = 64;
    let (mut world, _seen) = echo_world(&setting);
    let at_first = world.am(0).credits().peer(1).expect("a peer").loan();
    let mut sent = 0;
    let mut waited = 0;
    world.run(|rank, am, _| {
        if rank != 1 || sent == 3000 {
            return Doing::Finished;
        }
        match am.try_request_short(0, 1, &[]).expect("it can be sent") {
            Try::Done(()) => {
                sent += 1;
                Doing::Worked
            }
            Try::Stalled(stall) => {
                waited += u32::from(stall == Stall::Credits);
                Doing::Waits
            }
        }
    });
    world.settle();
    let at_last = world.am(0).credits().peer(1).expect("a peer").loan();
    assert!(
        waited > 0 && at_last > at_first,
        "{at_first} at first, {at_last} at last"
    );
    let counters = *world.am(0).credits().counters();
    assert!(counters.revocations > 0 && counters.returned > 0, "{counters:?}");
    let text = world.am(0).statistics();
    for says in ["rank 0 of 4", "requests: short", "revocations:", "rank lent used"] {
        assert!(text.contains(says), "{text}");
    }
    world.assert_clean();
}

#[test]
fn what_cannot_be_made_is_refused_with_figures_and_remedies() {
    let segment = || Region::new(1 << 20).expect("memory").whole();
    let refused = |change: &dyn Fn(&mut Config)| {
        let mut config = Config::new(0, 2, segment());
        change(&mut config);
        let net = doorbell_sim::SimNet::new(1, doorbell_sim::SimConfig::default());
        let node = doorbell_am_portals::Config::new(doorbell_fabric::ni::Process::physical(0, 1));
        let mut node: doorbell_am_portals::Node<doorbell_sim::SimRail> = doorbell_am_portals::Node::new(node);
        node.add_rail(net.attach_rank(0, doorbell_sim::Plane::FIRST))
            .expect("a rail");
        let kind = doorbell_fabric::ni::Kind::MATCHING_LOGICAL;
        node.ni_init(kind, None).expect("the defaults");
        match Attaching::new(node.into_ni(kind), config, Handlers::new()) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    };
    let text = refused(&|config| config.memlock = Some(1 << 20));
    assert!(
        text.contains("bytes would be pinned") && text.contains("ulimit -l") && text.contains("1048576"),
        "{text}"
    );
    let text = refused(&|config| config.memory = Some(1 << 20));
    assert!(
        text.contains("1048576 bytes of memory left") && text.contains("GASNET_PORTAL_BANKED_CREDITS"),
        "{text}"
    );
    let text = refused(&|config| config.segment = Segment::Everything);
    assert!(text.contains("EVERYTHING") && text.contains("FAST"), "{text}");
    // The interface has its defaults: 1,024 descriptors, and the conduit wants ten more.
    let text = refused(&|_| ());
    assert!(
        text.contains("max_mds=1024") && text.contains("NUM_TMPMD"),
        "{text}"
    );
    let text = refused(&|config| config.settings.credits_per_node = Some(3));
    assert!(text.contains("CRED_PER_NODE"), "{text}");
    let text = refused(&|config| config.me = 2);
    assert!(text.contains("rank 2 is not in this job of 2"), "{text}");
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let setting = Setting::new(3);
    let Start { net, mut making, .. } = start(&setting, |_| Handlers::new()).expect("the objects are made");
    let launcher = Launcher::default();
    let mut barriers: Vec<_> = (0..3).map(|_| launcher.barrier(3)).collect();
    let mut ended: Vec<String> = Vec::new();
    // Rank 2 comes to the launcher's barrier, and then does nothing more.
    for turn in 0..40_000u64 {
        for rank in 0..3 {
            if rank == 2 && turn > 0 {
                continue;
            }
            match making[rank].step(net.now(), &mut barriers[rank]) {
                Ok(ready) => assert!(!ready),
                Err(error) => ended.push(error.to_string()),
            }
        }
        if ended.len() >= 2 {
            break;
        }
        net.advance_to(net.now() + std::time::Duration::from_micros(100));
    }
    assert_eq!(ended.len(), 2, "both give up");
    // Rank 1 has what it needs of rank 2, and waits for rank 0, which does not.
    assert!(
        ended[0].contains("rank 2 did not respond within 1 s, while exchanging segments"),
        "{ended:?}"
    );
    assert!(
        ended[1].contains("rank 0 did not respond within 1 s"),
        "{ended:?}"
    );
}

/// A Long that would have to wait for the credits of a packed one goes unpacked, if that has what it needs.
#[test]
fn packing_never_makes_a_long_wait() {
    let (mut world, seen) = echo_world(&Setting::new(2));
    let long = || Source::Segment {
        offset: 0,
        length: 1900,
    };
    let am = world.am(0);
    let send = |am: &mut crate::rig::Am| {
        am.try_request_long(1, 3, &[4096], long(), 8192)
            .expect("it can be sent")
    };
    // Of 24 credits, 8 and 8 and 3: a packed one of 8 would wait, an unpacked one takes 2.
    assert!(
        send(am).done().is_some_and(|sent| sent.source.is_none()),
        "packed"
    );
    for length in [2040, 700] {
        let sent = am.try_request_medium(1, 2, &[1], &vec![0; length]);
        assert!(sent.expect("it can be sent").is_done());
    }
    let handles: Vec<_> = (0..2).filter_map(|_| send(am).done()?.source).collect();
    assert_eq!(handles.len(), 2, "unpacked");
    assert!(
        matches!(send(am), Try::Stalled(Stall::Credits)),
        "one credit is left"
    );
    world.settle();
    assert!(
        handles
            .into_iter()
            .all(|handle| world.am(0).try_sync(handle).expect("it went well"))
    );
    assert_eq!(seen.try_iter().count(), 10);
    world.assert_clean();
}

#[test]
fn a_rank_that_dies_while_they_come_together_is_named() {
    let setting = Setting::new(3);
    let Start { net, mut making, .. } = start(&setting, |_| Handlers::new()).expect("the objects are made");
    let launcher = Launcher::default();
    let mut barriers: Vec<_> = (0..3).map(|_| launcher.barrier(3)).collect();
    let mut ended: Vec<String> = Vec::new();
    for turn in 0..40_000u64 {
        for rank in 0..2 {
            match making[rank].step(net.now(), &mut barriers[rank]) {
                Ok(ready) => assert!(!ready),
                Err(error) => ended.push(error.to_string()),
            }
        }
        match turn {
            0 => assert!(!making[2].step(net.now(), &mut barriers[2]).expect("it lives")),
            1 => net.change(doorbell_sim::Change::RankDeath(2)),
            _ if ended.len() >= 2 => break,
            _ => {}
        }
        net.advance_to(net.now() + std::time::Duration::from_micros(100));
    }
    assert_eq!(ended.len(), 2, "both give up");
    assert!(
        ended.iter().all(|text| text.contains("rank 2 is lost")),
        "{ended:?}"
    );
    // And where the launcher knows more, its reason is reported.
    let Start { net, mut making, .. } = start(&setting, |_| Handlers::new()).expect("the objects are made");
    let mut refuses = || {
        Err(doorbell_am::ExternalError {
            rank: Some(1),
            reason: "it exited with status 3".into(),
        })
    };
    let error = making[0].step(net.now(), &mut refuses).expect_err("it cannot be");
    assert!(
        error.to_string().contains("at rank 1: it exited with status 3"),
        "{error}"
    );
}
