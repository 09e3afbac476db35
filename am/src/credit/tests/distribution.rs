//! The start: table, rounding, every combination of settings, and the seed's figures.

use crate::credit::{
    Chunk, CreditConfig, CreditConfigError, CreditState, Limits, SEED_EVENT_BYTES, Shares, credits_for,
    defaults,
};

fn terms(nodes: u32) -> CreditConfig {
    CreditConfig::new(nodes, 0, Chunk::Small)
}

fn shares(terms: CreditConfig) -> Shares {
    Shares::new(&terms).unwrap()
}

#[test]
fn the_table_is_the_seeds_with_straight_lines_between_its_rows() {
    for (nodes, small, large) in [
        (1, (200, 400), (200, 200)),
        (64, (170, 25_600), (170, 12_800)),
        (96, (170, 38_400), (170, 19_200)),
        (128, (170, 51_200), (170, 25_600)),
        (320, (117, 51_200), (117, 25_600)),
        (512, (64, 51_200), (64, 25_600)),
        (1024, (32, 51_200), (32, 25_600)),
        (1536, (24, 51_200), (24, 25_600)),
        (2048, (16, 51_200), (16, 25_600)),
        (3072, (12, 51_200), (12, 25_600)),
        (4096, (8, 51_200), (8, 25_600)),
        (4608, (6, 51_200), (8, 25_600)),
        (5120, (4, 51_200), (8, 25_600)),
        (20_480, (4, 51_200), (8, 25_600)),
        (1_000_000, (4, 51_200), (8, 25_600)),
    ] {
        assert_eq!(defaults(nodes, Chunk::Small), small, "{nodes}");
        assert_eq!(defaults(nodes, Chunk::Large), large, "{nodes}");
    }
    for nodes in 2..6000 {
        assert!(defaults(nodes, Chunk::Small).0 >= 4 && defaults(nodes, Chunk::Large).0 >= 8);
    }
}

#[test]
fn the_wish_is_rounded_up_to_whole_buffers_and_the_rest_is_banked() {
    // 63 × 170 + 25,600 = 36,310 credits; a buffer gives 1,023 × 4.
    let shares = shares(terms(64));
    assert_eq!((shares.per_node, shares.total), (170, 9 * 4092));
    assert_eq!(shares.banked, 9 * 4092 - 63 * 170);
    assert_eq!((shares.buffers, shares.events), (10, 9 * 4092));
    assert_eq!(shares.receive_bytes(), 10 * 1024 * 1024);
}

#[test]
fn each_combination_of_settings_where_credits_migrate() {
    let with = |per_node, banked, space| {
        let terms = CreditConfig {
            per_node,
            banked,
            space,
            ..terms(65)
        };
        Shares::new(&terms).map(|shares| (shares.per_node, shares.banked, shares.total))
    };
    let table = defaults(65, Chunk::Small);
    let adjusted = |per_node: u16, banked: u32| {
        let lent = 64 * u32::from(per_node);
        let total = (lent + banked).div_ceil(4092) * 4092;
        Ok((per_node, total - lent, total))
    };
    assert_eq!(with(None, None, None), adjusted(table.0, table.1));
    assert_eq!(with(Some(10), None, None), adjusted(10, table.1));
    assert_eq!(with(None, Some(77), None), adjusted(table.0, 77));
    assert_eq!(with(None, None, Some(64 * 256 * 9 + 255)), adjusted(9, 0));
    assert_eq!(with(Some(10), Some(77), None), adjusted(10, 77));
    assert_eq!(
        with(Some(10), Some(77), Some(1)),
        adjusted(10, 77),
        "SPACE is ignored"
    );
    assert_eq!(with(Some(10), None, Some(64 * 10 * 256)), adjusted(10, 0));
    assert_eq!(with(None, Some(64), Some(64 * 11 * 256)), adjusted(10, 64));

    let below = |name, value, enough| {
        Err(CreditConfigError::BelowLeast {
            name,
            value,
            enough,
            others: 64,
            given: 3,
            least: 4,
        })
    };
    let per_node = below("GASNET_PORTAL_CRED_PER_NODE", 3, 4);
    assert_eq!(with(Some(3), None, None), per_node);
    assert_eq!(with(Some(3), Some(77), None), per_node);
    assert_eq!(with(Some(3), None, Some(1 << 30)), per_node);
    let space = |value, enough| below("GASNET_PORTAL_AMRECV_SPACE", value, enough);
    assert_eq!(with(None, None, Some(65_535)), space(65_535, 65_536));
    assert!(
        with(None, None, Some(65_536)).is_ok(),
        "the value that the error names is enough"
    );
    assert_eq!(with(None, Some(64), Some(65_536)), space(65_536, 81_920));
    assert!(with(None, Some(64), Some(81_920)).is_ok(), "with a bank, too");
    let small = with(Some(10), None, Some(64 * 10 * 256 - 1));
    assert!(matches!(
        small,
        Err(CreditConfigError::SpaceTooSmall { needed: 163_840, .. })
    ));
    let small = with(None, Some(100), Some(100 * 256 - 1));
    assert!(matches!(
        small,
        Err(CreditConfigError::BankTooLarge { needed: 25_600, .. })
    ));
}

#[test]
fn each_combination_where_credits_stay() {
    let with = |per_node, banked, space| {
        let terms = CreditConfig {
            dynamic: false,
            per_node,
            banked,
            space,
            ..terms(65)
        };
        Shares::new(&terms).map(|shares| (shares.per_node, shares.one_more, shares.banked))
    };
    // 64 others: of 4,092 credits each has 63, and 60 have one more.
    let one_buffer = Ok((63, 60, 0));
    assert_eq!(with(Some(10), None, None), one_buffer);
    assert_eq!(with(Some(10), Some(9999), Some(1)), one_buffer);
    assert_eq!(with(None, None, Some(256)), one_buffer, "raised to the least");
    assert_eq!(with(None, None, None).unwrap().2, 0);
    assert!(with(Some(3), None, None).is_err());
}

#[test]
fn a_remainder_goes_to_the_same_peers_on_every_rank() {
    let terms = CreditConfig {
        dynamic: false,
        per_node: Some(10),
        ..terms(65)
    };
    let node = |me| CreditState::new(&CreditConfig { me, ..terms }).unwrap();
    let nodes: Vec<CreditState> = (0..65).map(node).collect();
    for lender in &nodes {
        let mut lent = 0;
        for borrower in nodes.iter().filter(|node| node.me() != lender.me()) {
            let loan = lender.peer(borrower.me()).unwrap().loan();
            assert_eq!(loan, borrower.peer(lender.me()).unwrap().send());
            lent += u32::from(loan);
        }
        assert_eq!(lent + lender.bank(), lender.shares().total);
    }
}

#[test]
fn without_flow_control_or_company_there_are_no_credits() {
    let off = CreditConfig {
        flow_control: false,
        per_node: Some(10),
        ..terms(65)
    };
    let off = shares(off);
    assert_eq!((off.per_node, off.total), (0, 0));
    assert_eq!((off.events, off.buffers), (500 + 4092, 2));
    let alone = shares(terms(1));
    assert_eq!((alone.buffers, alone.events, alone.total), (1, 10, 0));
    assert!(!CreditState::new(&terms(1)).unwrap().counts());
}

#[test]
fn nonsense_is_an_error() {
    let refused = |terms: CreditConfig| Shares::new(&terms).unwrap_err();
    assert_eq!(refused(terms(0)), CreditConfigError::NoNodes);
    assert_eq!(
        refused(CreditConfig { me: 4, ..terms(4) }),
        CreditConfigError::NotANode { me: 4, nodes: 4 }
    );
    for chunks_per_buffer in [0, 1, u32::MAX] {
        let wrong = refused(CreditConfig {
            chunks_per_buffer,
            ..terms(4)
        });
        assert_eq!(wrong, CreditConfigError::ChunksPerBuffer(chunks_per_buffer));
    }
    assert_eq!(
        refused(CreditConfig {
            spares: 65,
            ..terms(4)
        }),
        CreditConfigError::Spares(65)
    );
}

/// Each names the variable as it is set, its value, and what to do.
#[test]
fn refusals_name_the_variable_its_value_and_the_remedy() {
    let says = |terms: CreditConfig, words: &[&str]| {
        let text = Shares::new(&terms).unwrap_err().to_string();
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
        // A name without its prefix is one that cannot be set.
        for short in [
            "CRED_PER_NODE",
            "BANKED_CREDITS",
            "AMRECV_SPACE",
            "EPOCH_DURATION",
            "NUM_SCAVENGE",
            "CHUNKS_PER_BUFFER",
        ] {
            let whole = text.matches(&format!("GASNET_PORTAL_{short}")).count();
            assert_eq!(text.matches(short).count(), whole, "{text}");
        }
    };
    let chunks = CreditConfig {
        chunks_per_buffer: 1,
        ..terms(4)
    };
    says(
        chunks,
        &["GASNET_PORTAL_CHUNKS_PER_BUFFER=1 ", "2 to 1048576", "set it"],
    );
    let never = |limits| CreditConfig { limits, ..terms(4) };
    let (epoch, fan_out, steps) = (
        Limits {
            epoch: 0,
            ..Limits::DEFAULT
        },
        Limits {
            fan_out: 0,
            ..Limits::DEFAULT
        },
        Limits {
            steps: 0,
            ..Limits::DEFAULT
        },
    );
    says(never(epoch), &["GASNET_PORTAL_EPOCH_DURATION=0", "set it to 1"]);
    says(never(fan_out), &["GASNET_PORTAL_NUM_SCAVENGE=0", "set it to 1"]);
    says(never(steps), &["Limits::steps=0", "set it to 1"]);
    let few = CreditConfig {
        per_node: Some(3),
        ..terms(65)
    };
    says(
        few,
        &[
            "GASNET_PORTAL_CRED_PER_NODE=3 ",
            "set GASNET_PORTAL_CRED_PER_NODE to 4",
        ],
    );
    let space = |space, few: CreditConfig| CreditConfig {
        space: Some(space),
        ..few
    };
    says(
        space(1000, terms(65)),
        &[
            "GASNET_PORTAL_AMRECV_SPACE=1000 ",
            "set GASNET_PORTAL_AMRECV_SPACE to 65536",
        ],
    );
    let (ten, bank) = (
        CreditConfig {
            per_node: Some(10),
            ..terms(65)
        },
        CreditConfig {
            banked: Some(100),
            ..terms(65)
        },
    );
    says(
        space(1000, ten),
        &["GASNET_PORTAL_CRED_PER_NODE=10 ", "AMRECV_SPACE is 1000", "raise"],
    );
    says(
        space(1000, bank),
        &[
            "GASNET_PORTAL_BANKED_CREDITS=100 ",
            "AMRECV_SPACE is 1000",
            "raise",
        ],
    );
    let all = CreditConfig {
        per_node: Some(u16::MAX),
        ..terms(u32::MAX)
    };
    says(
        all,
        &["GASNET_PORTAL_CRED_PER_NODE=65535 ", "lower GASNET_PORTAL_CRED"],
    );
    let rich = CreditConfig {
        banked: Some(u32::MAX),
        ..terms(2)
    };
    says(
        rich,
        &[
            "GASNET_PORTAL_BANKED_CREDITS=4294967295 ",
            "lower GASNET_PORTAL_BANKED",
        ],
    );
    says(
        space(u64::MAX, terms(2)),
        &["GASNET_PORTAL_AMRECV_SPACE=18446744073709551615 ", "lower"],
    );
}

#[test]
fn requests_take_a_credit_for_each_256_bytes() {
    for (bytes, credits) in [(0, 1), (1, 1), (256, 1), (257, 2), (1024, 4)] {
        assert_eq!(credits_for(Chunk::Small, bytes), Some(credits));
    }
    assert_eq!(credits_for(Chunk::Small, 1025), None);
    assert_eq!(credits_for(Chunk::Large, 2048), Some(8));
    assert_eq!(Chunk::of(1024).map(Chunk::least), Some(4));
    assert_eq!(Chunk::of(2048).map(Chunk::least), Some(8));
    assert_eq!(Chunk::of(4096), None);
}

/// gasnet.md section 6, "Figures to test": a credit is 256 bytes of buffer and an event of 128. What is
/// attached is that, in whole buffers, and a spare one; of each buffer the last chunk lends nothing.
#[test]
fn memory_attached_for_credits_is_the_seeds_and_less_than_two_buffers_more() {
    const BUFFER: u64 = 1 << 20;
    for (others, per_node, figure) in [
        (1, 640, 240 << 10),
        (16, 4096, 24 << 20),
        (1024, 640, 240 << 20),
        (10_000, 4, 15_360_000),
        (10_000, 6, 23_040_000),
        (10_000, 640, 2_457_600_000_u64),
    ] {
        let each = shares(CreditConfig {
            per_node: Some(per_node),
            banked: Some(0),
            ..terms(others + 1)
        });
        assert_eq!(each.per_node, per_node);
        let bytes = each.receive_bytes() + each.event_bytes(SEED_EVENT_BYTES);
        let unlent = each.receive_bytes() / 1024;
        let rounded = 2 * BUFFER + 4092 * SEED_EVENT_BYTES as u64;
        assert!(
            (figure..figure + unlent + rounded).contains(&bytes),
            "{others} × {per_node}: {bytes} bytes, {figure} in the table"
        );
    }
}

#[test]
fn a_bank_of_20_000_lends_200_more_to_each_of_100_partners() {
    let each = shares(CreditConfig {
        per_node: Some(4),
        banked: Some(20_000),
        ..terms(10_000)
    });
    assert!((20_000..20_000 + 4092).contains(&each.banked), "{}", each.banked);
}

/// The same with what is really attached: whole buffers, a spare one, and this conduit's events.
#[test]
fn four_credits_for_each_of_ten_thousand_fit_in_15_360_000_bytes() {
    let lean = shares(CreditConfig {
        per_node: Some(4),
        banked: Some(0),
        ..terms(10_000)
    });
    assert_eq!(lean.per_node, 4);
    let event = size_of::<doorbell_fabric::ni::Event>();
    let bytes = lean.receive_bytes() + lean.event_bytes(event);
    assert!(bytes <= 15_360_000, "{bytes} with events of {event} bytes");
}

#[test]
fn the_state_of_ten_thousand_peers_takes_less_than_400_000_bytes() {
    let credits = CreditState::new(&terms(10_000)).unwrap();
    assert!(size_of::<crate::credit::Peer>() <= 40);
    assert_eq!(credits.bytes(), 10_000 * size_of::<crate::credit::Peer>());
    assert!(credits.bytes() < 400_000);
}
