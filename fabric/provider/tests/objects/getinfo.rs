//! fi_getinfo as its own tests use it: every subset of bits, limits and names.

use libfabric_sys::*;

use crate::alone::{run, run_with};
use crate::opened::{hints, text};
use crate::{get, set};

/// Returns every subset of some bits.
fn subsets(bits: u64) -> impl Iterator<Item = u64> {
    let all: Vec<u64> = (0..64)
        .map(|bit| 1 << bit)
        .filter(|bit| bits & bit != 0)
        .collect();
    (0..1_u64 << all.len()).map(move |chosen| {
        let each = all.iter().enumerate();
        each.filter(|(at, _)| chosen >> at & 1 != 0)
            .fold(0, |set, (_, bit)| set | bit)
    })
}

fn ask(library: &Library, hints: &InfoList) -> Result<InfoList, i32> {
    library
        .getinfo(library.level(), None, None, 0, Some(hints))
        .map_err(|error| error.number)
}

const OFFERED: u64 = FI_MSG
    | FI_TAGGED
    | FI_SEND
    | FI_RECV
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_SOURCE_ERR
    | FI_RMA
    | FI_ATOMIC
    | ACCESSES
    | FI_RMA_EVENT
    | FI_LOCAL_COMM
    | FI_REMOTE_COMM;
const THREE: i32 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
const ACCESSES: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

#[test]
fn without_hints_everything_is_shown() {
    run("getinfo::without_hints_everything_is_shown", |library| {
        let info = library.getinfo(library.level(), None, None, 0, None).unwrap();
        assert_eq!(info.names()[0].domain, "shm");
        // MPICH takes an entry that it has found without hints as it is: with FI_SOURCE_ERR, messages of
        // processes which are not inserted yet would be failures.
        assert_eq!(get!(info, caps), OFFERED & !FI_SOURCE_ERR);
        assert!(get!(info, src_addrlen) > 0 && !get!(info, src_addr).is_null());
        assert_eq!(get!(info, fabric_attr.api_version), library.level().version());
    });
}

#[test]
fn no_layer_is_answered() {
    run("getinfo::no_layer_is_answered", |library| {
        // OFI_CORE_PROV_ONLY, which libfabric's layers set when they look for a provider.
        let error = library
            .getinfo(library.level(), None, None, 1 << 59, None)
            .unwrap_err();
        assert_eq!(error.number, FI_ENODATA);
    });
}

#[test]
fn every_subset_of_the_capabilities_is_answered_by_itself_and_what_is_free() {
    let test = "getinfo::every_subset_of_the_capabilities_is_answered_by_itself_and_what_is_free";
    run(test, |library| {
        let of_messages = subsets(OFFERED & !(FI_RMA | FI_ATOMIC | ACCESSES | FI_RMA_EVENT));
        let of_memory = subsets(FI_MSG | FI_SEND | FI_RMA | FI_ATOMIC | ACCESSES | FI_RMA_EVENT);
        for caps in of_messages.chain(of_memory) {
            let mut hints = hints(&library);
            set!(hints, caps = caps);
            let info = ask(&library, &hints).unwrap();
            let answer = get!(info, caps);
            assert_eq!(answer & caps, caps);
            if caps != 0 {
                let free = FI_MULTI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SEND | FI_RECV;
                let reaches = caps & (FI_RMA | FI_ATOMIC) != 0;
                let all_ways = if reaches && caps & ACCESSES == 0 {
                    ACCESSES
                } else {
                    0
                };
                assert_eq!(answer & !(caps | free | all_ways), 0, "{caps:#x}: {answer:#x}");
                assert_eq!(answer & all_ways, all_ways, "{caps:#x}: {answer:#x}");
            }
            let (tx, rx) = (get!(info, tx_attr.caps), get!(info, rx_attr.caps));
            assert_eq!((tx | rx) & !answer, 0);
            assert_eq!(tx & (FI_RECV | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE), 0);
            assert_eq!(tx & (FI_REMOTE_READ | FI_REMOTE_WRITE | FI_RMA_EVENT), 0);
            assert_eq!(rx & (FI_SEND | FI_READ | FI_WRITE), 0);
            assert_eq!(
                (tx & answer & FI_TAGGED, rx & FI_TAGGED),
                (caps_or_all(caps) & FI_TAGGED, tx & FI_TAGGED)
            );
        }
    });
}

fn caps_or_all(caps: u64) -> u64 {
    if caps == 0 { OFFERED } else { caps }
}

#[test]
fn one_capability_more_than_is_offered_is_refused() {
    run(
        "getinfo::one_capability_more_than_is_offered_is_refused",
        |library| {
            for bit in (0..64).map(|bit| 1_u64 << bit).filter(|bit| bit & OFFERED == 0) {
                let mut hints = hints(&library);
                set!(hints, caps = FI_MSG | bit);
                assert_eq!(ask(&library, &hints).unwrap_err(), FI_ENODATA, "{bit:#x}");
            }
        },
    );
}

#[test]
fn every_subset_of_the_orders_and_of_the_modes_of_registration_is_answered() {
    let test = "getinfo::every_subset_of_the_orders_and_of_the_modes_of_registration_is_answered";
    run(test, |library| {
        for order in subsets(FI_ORDER_STRICT) {
            let mut hints = hints(&library);
            set!(hints, tx_attr.msg_order = order);
            set!(hints, rx_attr.msg_order = order);
            let info = ask(&library, &hints).unwrap();
            assert_eq!(get!(info, tx_attr.msg_order) & order, order);
            assert_eq!(get!(info, rx_attr.msg_order) & order, order);
        }
        let modes = FI_MR_LOCAL
            | FI_MR_RAW
            | FI_MR_VIRT_ADDR
            | FI_MR_ALLOCATED
            | FI_MR_PROV_KEY
            | FI_MR_MMU_NOTIFY
            | FI_MR_RMA_EVENT
            | FI_MR_ENDPOINT;
        for mode in subsets(modes as u64) {
            let mut hints = hints(&library);
            set!(hints, domain_attr.mr_mode = mode as i32);
            let info = ask(&library, &hints).unwrap();
            assert_eq!(get!(info, domain_attr.mr_mode) & !(mode as i32), 0, "{mode:#x}");
        }
        for (caps, answer) in [(FI_RMA, THREE), (FI_RMA | FI_RMA_EVENT, 0)] {
            let mut hints = hints(&library);
            set!(hints, caps = caps);
            set!(hints, domain_attr.mr_mode = THREE | FI_MR_LOCAL);
            let info = ask(&library, &hints).unwrap();
            assert_eq!(get!(info, domain_attr.mr_mode), answer, "{caps:#x}");
        }
        for (mode, is_met) in [
            (FI_MR_BASIC, true),
            (FI_MR_SCALABLE, true),
            (FI_MR_BASIC | FI_MR_LOCAL, false),
        ] {
            let mut hints = hints(&library);
            set!(hints, domain_attr.mr_mode = mode);
            match ask(&library, &hints) {
                Ok(info) => assert_eq!((is_met, get!(info, domain_attr.mr_mode)), (true, mode)),
                Err(errno) => assert_eq!((is_met, errno), (false, FI_ENODATA)),
            }
        }
    });
}

#[test]
fn the_weaker_level_of_threading_is_echoed_and_progress_is_as_wanted() {
    let test = "getinfo::the_weaker_level_of_threading_is_echoed_and_progress_is_as_wanted";
    run(test, |library| {
        for level in [
            FI_THREAD_SAFE,
            FI_THREAD_FID,
            FI_THREAD_ENDPOINT,
            FI_THREAD_COMPLETION,
            FI_THREAD_DOMAIN,
        ] {
            let mut hints = hints(&library);
            set!(hints, domain_attr.threading = level);
            let info = ask(&library, &hints).unwrap();
            assert_eq!(get!(info, domain_attr.threading), level);
        }
        let unspecified = ask(&library, &hints(&library)).unwrap();
        assert_eq!(get!(unspecified, domain_attr.data_progress), FI_PROGRESS_MANUAL);
        for progress in [FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO] {
            let mut hints = hints(&library);
            set!(hints, domain_attr.data_progress = progress);
            let info = ask(&library, &hints).unwrap();
            assert_eq!(get!(info, domain_attr.data_progress), progress);
            assert_eq!(get!(info, domain_attr.control_progress), FI_PROGRESS_MANUAL);
        }
    });
}

#[test]
fn each_subset_of_the_domains_capabilities_is_answered() {
    run(
        "getinfo::each_subset_of_the_domains_capabilities_is_answered",
        |library| {
            for caps in subsets(FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV) {
                let mut hints = hints(&library);
                set!(hints, domain_attr.caps = caps);
                match ask(&library, &hints) {
                    Ok(info) => assert_eq!(get!(info, domain_attr.caps) & caps, caps),
                    Err(errno) => assert_eq!((errno, caps & FI_SHARED_AV), (FI_ENODATA, FI_SHARED_AV)),
                }
            }
        },
    );
}

/// Changes hints so that one of them cannot be met.
type Spoil = fn(&mut InfoList);

/// Hints that cannot be met, and the line that names it.
const SPOILT: &[(&str, Spoil)] = &[
    ("ep_attr.type wants 1,", |hints| {
        set!(hints, ep_attr.r#type = FI_EP_MSG)
    }),
    ("ep_attr.protocol wants 16,", |hints| {
        set!(hints, ep_attr.protocol = FI_PROTO_SHM)
    }),
    ("ep_attr.max_msg_size wants", |hints| {
        set!(hints, ep_attr.max_msg_size = usize::MAX)
    }),
    ("ep_attr.max_order_waw_size wants", |hints| {
        set!(hints, caps = FI_RMA);
        set!(hints, ep_attr.max_order_waw_size = 1 << 20)
    }),
    ("ep_attr.tx_ctx_cnt wants", |hints| {
        set!(hints, ep_attr.tx_ctx_cnt = FI_SHARED_CONTEXT)
    }),
    ("ep_attr.rx_ctx_cnt wants 2,", |hints| {
        set!(hints, ep_attr.rx_ctx_cnt = 2)
    }),
    ("ep_attr.auth_key_size wants 8,", |hints| {
        set!(hints, ep_attr.auth_key_size = 8)
    }),
    ("tx_attr.inject_size wants 4097,", |hints| {
        set!(hints, tx_attr.inject_size = 4097)
    }),
    ("tx_attr.iov_limit wants 5,", |hints| {
        set!(hints, tx_attr.iov_limit = 5)
    }),
    ("tx_attr.rma_iov_limit wants 5,", |hints| {
        set!(hints, tx_attr.rma_iov_limit = 5)
    }),
    ("tx_attr.op_flags wants FI_COMMIT_COMPLETE,", |hints| {
        set!(hints, tx_attr.op_flags = FI_COMMIT_COMPLETE);
    }),
    ("tx_attr.comp_order wants FI_ORDER_RAR", |hints| {
        set!(hints, tx_attr.comp_order = FI_ORDER_STRICT)
    }),
    ("rx_attr.total_buffered_recv wants 1,", |hints| {
        set!(hints, rx_attr.total_buffered_recv = 1)
    }),
    ("rx_attr.size wants", |hints| {
        set!(hints, rx_attr.size = usize::MAX)
    }),
    ("domain_attr.cq_data_size wants 9,", |hints| {
        set!(hints, domain_attr.cq_data_size = 9)
    }),
    ("domain_attr.ep_cnt wants 129,", |hints| {
        set!(hints, domain_attr.ep_cnt = 129)
    }),
    ("domain_attr.max_ep_stx_ctx wants 1,", |hints| {
        set!(hints, domain_attr.max_ep_stx_ctx = 1)
    }),
    ("domain_attr.mr_iov_limit wants 5,", |hints| {
        set!(hints, domain_attr.mr_iov_limit = 5)
    }),
    ("domain_attr.mr_mode wants 0x5,", |hints| {
        set!(hints, domain_attr.mr_mode = FI_MR_BASIC | FI_MR_LOCAL);
    }),
    ("domain_attr.threading wants 77,", |hints| {
        set!(hints, domain_attr.threading = 77)
    }),
    ("domain_attr.name wants no_such_domain,", |hints| {
        set!(hints, domain_attr.name = text(c"no_such_domain"));
    }),
    ("fabric_attr.name wants no_such_fabric,", |hints| {
        set!(hints, fabric_attr.name = text(c"no_such_fabric"));
    }),
    ("fabric_attr.prov_version wants", |hints| {
        set!(hints, fabric_attr.prov_version = u32::MAX)
    }),
    ("info.addr_format wants 9,", |hints| {
        set!(hints, addr_format = FI_ADDR_STR)
    }),
    ("info.caps wants FI_TRIGGER,", |hints| {
        set!(hints, caps = FI_MSG | FI_TRIGGER)
    }),
];

#[test]
fn a_hint_that_is_not_met_is_no_data_and_one_line_that_names_it() {
    let test = "getinfo::a_hint_that_is_not_met_is_no_data_and_one_line_that_names_it";
    let printed = run_with(test, &[], |library| {
        for (line, spoil) in SPOILT {
            let mut hints = hints(&library);
            spoil(&mut hints);
            assert_eq!(ask(&library, &hints).unwrap_err(), FI_ENODATA, "{line}");
        }
    });
    if let Some(printed) = printed {
        for (line, _) in SPOILT {
            let ours = format!("not offered: the hint {line}");
            let count = printed.lines().filter(|line| line.contains(&ours)).count();
            assert!(count >= 1, "{line}: {printed}");
        }
    }
}

#[test]
fn sizes_that_are_requested_are_given() {
    run("getinfo::sizes_that_are_requested_are_given", |library| {
        let mut hints = hints(&library);
        set!(hints, tx_attr.size = 5000);
        set!(hints, rx_attr.size = 10_000);
        set!(hints, tx_attr.inject_size = 16);
        set!(hints, tx_attr.tclass = FI_TC_BULK_DATA);
        let info = ask(&library, &hints).unwrap();
        assert_eq!(get!(info, tx_attr.size), 5000);
        assert_eq!(get!(info, rx_attr.size), 10_000);
        assert!(get!(info, tx_attr.inject_size) >= 16);
        assert_eq!(get!(info, tx_attr.tclass), FI_TC_BULK_DATA);
    });
}

#[test]
fn an_address_of_hints_comes_back_in_our_format() {
    run(
        "getinfo::an_address_of_hints_comes_back_in_our_format",
        |library| {
            let first = library.getinfo(library.level(), None, None, 0, None).unwrap();
            let mut hints = hints(&library);
            // SAFETY: libfabric frees the memory with the hints.
            let memory = unsafe { libc::malloc(56) };
            // SAFETY: the memory is new and as long.
            unsafe { memory.cast::<u8>().write_bytes(7, 56) };
            set!(hints, addr_format = get!(first, addr_format));
            set!(hints, dest_addr = memory);
            set!(hints, dest_addrlen = 56);
            let info = ask(&library, &hints).unwrap();
            assert_eq!(get!(info, dest_addrlen), 56);
            let address = get!(info, dest_addr).cast::<u8>();
            // SAFETY: an address of the answer, with this length.
            let bytes = unsafe { std::slice::from_raw_parts(address, 56) };
            assert_eq!(bytes, [7; 56]);
        },
    );
}

/// The bytes of an address of an entry.
macro_rules! address {
    ($info:expr, $start:ident, $length:ident) => {{
        let (start, length) = (get!($info, $start), get!($info, $length));
        assert!(!start.is_null() && length > 0);
        // SAFETY: an address of the answer, with this length.
        unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }.to_vec()
    }};
}

#[test]
fn a_node_and_a_service_are_addresses_in_the_format_of_the_answer() {
    let test = "getinfo::a_node_and_a_service_are_addresses_in_the_format_of_the_answer";
    run(test, |library| {
        let ask = |node, service, flags, format| {
            let mut hints = hints(&library);
            set!(hints, addr_format = format);
            library
                .getinfo(library.level(), node, service, flags, Some(&hints))
                .unwrap()
        };
        let port = Some(c"9228");
        for (format, given, length) in [
            (FI_FORMAT_UNSPEC, None, 56),
            (FI_SOCKADDR, Some(FI_SOCKADDR_IN), 16),
            (FI_SOCKADDR_IN, Some(FI_SOCKADDR_IN), 16),
            (FI_SOCKADDR_IN6, Some(FI_SOCKADDR_IN6), 28),
        ] {
            let node = if length == 28 { c"::1" } else { c"127.0.0.1" };
            let server = ask(None, port, FI_SOURCE, format);
            let client = ask(Some(node), port, 0, format);
            if let Some(given) = given {
                assert_eq!(get!(server, addr_format), given);
                assert_eq!(get!(client, addr_format), given);
            }
            let source = address!(server, src_addr, src_addrlen);
            let destination = address!(client, dest_addr, dest_addrlen);
            assert_eq!((source.len(), destination.len()), (length, length));
            assert_eq!(address!(client, src_addr, src_addrlen).len(), length);
            assert_eq!(get!(server, dest_addrlen), 0);
            match length {
                56 => assert_eq!(source, destination),
                _ => assert_eq!(
                    (&source[2..4], &destination[2..4]),
                    (&[0x24, 0x0c][..], &[0x24, 0x0c][..])
                ),
            }
            // A node of its own, and no port yet.
            let own = ask(Some(node), None, FI_SOURCE, format);
            assert_eq!(address!(own, src_addr, src_addrlen).len(), length);
        }
    });
}

#[test]
fn a_node_that_is_not_this_host_and_names_that_mean_nothing_are_no_data() {
    let test = "getinfo::a_node_that_is_not_this_host_and_names_that_mean_nothing_are_no_data";
    run(test, |library| {
        for (node, service, flags) in [
            (Some(c"192.0.2.77"), Some(c"9228"), FI_NUMERICHOST),
            (None, Some(c"no such service"), FI_SOURCE),
            (Some(c"g00n13s"), Some(c"1"), FI_NUMERICHOST),
        ] {
            let result = library.getinfo(library.level(), node, service, flags, None);
            assert_eq!(result.unwrap_err().number, FI_ENODATA, "{node:?} {service:?}");
        }
        // A node alone is no member either, which an insertion of its address finds.
        assert!(
            library
                .getinfo(library.level(), Some(c"127.0.0.1"), None, 0, None)
                .is_ok()
        );
    });
}

#[test]
fn as_many_queues_and_counters_are_offered_as_can_be_numbered() {
    let test = "getinfo::as_many_queues_and_counters_are_offered_as_can_be_numbered";
    run(test, |library| {
        let mut hints = hints(&library);
        set!(hints, domain_attr.cq_cnt = 65_535);
        set!(hints, domain_attr.cntr_cnt = 65_535);
        let info = ask(&library, &hints).unwrap();
        let offered = (get!(info, domain_attr.cq_cnt), get!(info, domain_attr.cntr_cnt));
        assert_eq!(offered, (65_535, 65_535));
        set!(hints, domain_attr.cq_cnt = 65_536);
        assert_eq!(ask(&library, &hints).err(), Some(FI_ENODATA));
    });
}
