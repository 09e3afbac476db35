//! Settings and devices that do not fit: each refused with its limit, or lived with.

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Body, Message};
use doorbell_fabric::rail::Rail;

use super::{connect, counts, device, fresh, pair_of, rail};
use crate::config::VerbsConfig;
use crate::ports::fake::{self, Fake};
use crate::rc::core::Sizes;
use crate::rc::rail::RcRail;
use crate::sys::model::{self, Limits, Spec};
use crate::ud::open::Source;

/// Opens a rail on a device with these limits.
fn open(limits: Limits, config: &VerbsConfig) -> Result<RcRail, String> {
    let number = fresh();
    let mut spec = Spec::new(&device(number), [127, 3, (number >> 8) as u8, number as u8]);
    spec.limits = limits;
    let source = Source {
        library: model::library(spec),
        tree: fake::everything(),
    };
    let name = format!("verbs:{}:1", device(number)).parse().unwrap();
    let opened = RcRail::open_from(&name, config, Sizes::of(config), &source);
    if opened.is_err() {
        assert_eq!(model::outcome(&device(number)).1, 0, "objects are left");
    }
    let mut opened = opened.map_err(|error| error.to_string())?;
    opened.set_key(&[7; 32]);
    Ok(opened)
}

#[test]
fn settings_that_a_device_cannot_follow_are_refused_with_its_limit() {
    type Change = &'static dyn Fn(&mut Limits, &mut VerbsConfig);
    let all: [(Change, &str, &str); 7] = [
        (
            &|limits, _| limits.max_qp_wr = 64,
            "have 64 entries at most, and a connection needs 65",
            ":ud",
        ),
        (
            &|limits, _| limits.max_srq_wr = 700,
            "verbs.receive is 1024, and shared receive queues of",
            "from 64 to 512",
        ),
        (
            &|limits, _| limits.max_cqe = 1023,
            "verbs.receive is 1024, and completion queues of",
            "from 64 to 512",
        ),
        (
            &|limits, config| (limits.max_cqe, config.send, config.receive) = (1024, 512, 64),
            "verbs.send is 512, and completion queues of",
            "from 64 to 256",
        ),
        (
            &|limits, config| (limits.max_msg_sz, config.slot) = (16 << 10, 32 << 10),
            "verbs.slot is 32768, and messages of",
            "set verbs.slot lower",
        ),
        (
            &|limits, _| limits.max_mr_size = 1 << 20,
            "is 2097152 bytes, and registrations of",
            "lower",
        ),
        (
            &|limits, _| limits.max_srq_wr = 20,
            "verbs.receive is 1024",
            ":ud",
        ),
    ];
    for (change, what, remedy) in all {
        let (mut limits, mut config) = (Limits::default(), VerbsConfig::default());
        change(&mut limits, &mut config);
        let refused = open(limits, &config).unwrap_err();
        assert!(refused.contains(what) && refused.contains(remedy), "{refused}");
    }
}

#[test]
fn queries_that_succeed_with_nonsense_are_refused() {
    type Change = &'static dyn Fn(&mut Limits);
    let all: [(Change, &str); 7] = [
        (&|limits| limits.max_srq_wr = -1, "max_srq_wr of -1"),
        (&|limits| limits.max_cqe = i32::MIN, "max_cqe of -2147483648"),
        (&|limits| limits.max_sge = -5, "max_sge of -5"),
        (&|limits| limits.gids = -3, "a table of -3 GIDs"),
        (
            &|limits| limits.lacks[0] = 1,
            "a queue pair of 64 sends where 65 were requested",
        ),
        (&|limits| limits.lacks[1] = 3, "entries where 1024 were requested"),
        (&|limits| limits.lacks[2] = 3, "entries where 1024 were requested"),
    ];
    for (change, what) in all {
        let mut limits = Limits::default();
        change(&mut limits);
        let refused = open(limits, &VerbsConfig::default()).unwrap_err();
        assert!(
            refused.contains(what) && refused.contains("cannot be"),
            "{refused}"
        );
    }
}

#[test]
fn seven_retries_are_refused_where_they_mean_for_ever() {
    let config = VerbsConfig {
        retry: 7,
        ..VerbsConfig::default()
    };
    assert!(open(Limits::default(), &config).is_ok(), "a card counts them");
    let fake = Fake::new();
    fake.plug();
    let number = fresh();
    fake.file(&format!("class/infiniband/{}/parent", device(number)), "lo");
    let spec = Spec::new(&device(number), [127, 3, (number >> 8) as u8, number as u8]);
    let source = Source {
        library: model::library(spec),
        tree: fake.tree(),
    };
    let name = format!("verbs:{}:1", device(number)).parse().unwrap();
    let refused = RcRail::open_from(&name, &config, Sizes::of(&config), &source);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("soft-RoCE takes for \"for ever\"") && refused.contains("0 to 6"),
        "{refused}"
    );
}

#[test]
fn what_goes_with_a_request_is_what_the_device_grants() {
    // It refuses 128 bytes and grants 64, or none, or answers with more than was requested.
    for (inline, expected) in [
        ((64, 0), 64),
        ((100, 0), 64),
        ((0, 0), 0),
        ((u32::MAX, 1 << 20), 128),
    ] {
        let limits = Limits {
            inline,
            ..Limits::default()
        };
        let opened = open(limits, &VerbsConfig::default()).unwrap();
        assert_eq!(opened.core.sizes.inline, expected);
        let shown = opened.capabilities().limits.inline;
        assert_eq!(shown, expected.saturating_sub(18));
        let life = opened.incarnation();
        let mut pair = connect(pair_of((opened, life), rail(super::small())));
        let count = pair.at_b.messages.len();
        for length in [0, 10, 60, 110, 200, 3000] {
            pair.a
                .send(pair.to_b, b"of", Body::Bytes(&vec![7; length]))
                .unwrap();
            pair.a.flush();
        }
        pair.until("all are shown", |pair| pair.at_b.messages.len() == count + 6);
    }
}

#[test]
fn a_device_of_one_piece_for_each_request_copies() {
    let limits = Limits {
        max_sge: 1,
        ..Limits::default()
    };
    let opened = open(limits, &VerbsConfig::default()).unwrap();
    let life = opened.incarnation();
    let mut pair = connect(pair_of((opened, life), rail(super::small())));
    let region = Region::new(6000).unwrap().whole();
    let count = pair.at_b.messages.len();
    pair.a.send(pair.to_b, b"long", Body::Region(&region)).unwrap();
    pair.until("it is shown", |pair| pair.at_b.messages.len() == count + 1);
    assert_eq!(counts(&pair.a).zero_copy, 0);
}

#[test]
fn settings_are_what_the_rail_uses() {
    let config = VerbsConfig {
        slot: 16 << 10,
        send: 128,
        receive: 64,
        zero_copy: 1000,
        retry: 3,
        timeout: 10,
        keep_alive: std::time::Duration::from_millis(50),
        ..VerbsConfig::default()
    };
    let rail = open(Limits::default(), &config).unwrap();
    let sizes = &rail.core.sizes;
    assert_eq!(
        (sizes.slot, sizes.sends, sizes.receives),
        (16 << 10, 128, (64, 64))
    );
    assert_eq!((sizes.zero_copy, sizes.keep_alive), (1000, config.keep_alive));
    assert_eq!((sizes.retries.count, sizes.retries.timeout), (3, 10));
    assert_eq!(rail.capabilities().limits.message, (16 << 10) - 18);
}

#[test]
fn a_partition_that_is_set_is_used_or_refused() {
    let open = |partition: u16| {
        let number = fresh();
        let mut spec = Spec::new(&device(number), [127, 3, (number >> 8) as u8, number as u8]);
        spec.partitions = vec![0xffff, 0x0012, 0x8034];
        let source = Source {
            library: model::library(spec),
            tree: fake::everything(),
        };
        let config = VerbsConfig {
            partition: Some(partition),
            ..VerbsConfig::default()
        };
        let name = format!("verbs:{}:1", device(number)).parse().unwrap();
        let rail = RcRail::open_from(&name, &config, Sizes::of(&config), &source);
        rail.map(|rail| rail.core.port.1)
            .map_err(|error| error.to_string())
    };
    assert_eq!((open(0x8034), open(0x0034), open(0x8012)), (Ok(2), Ok(2), Ok(1)));
    assert!(open(0x8055).unwrap_err().contains("not in the partition 0x8055"));
}
