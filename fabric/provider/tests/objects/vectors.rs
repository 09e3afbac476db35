//! Address vectors, as fabtests' av_test uses them, and beyond.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use doorbell_job::lobby::PmlMember;
use libfabric_sys::*;

use crate::alone::run;
use crate::events::read;
use crate::opened::{Object, Opened, hints, open, try_open};
use crate::set;

const LENGTH: usize = 56;

/// Returns addresses of another member of this host.
fn addresses(count: u8) -> Vec<u8> {
    let member = PmlMember::enter(doorbell_job::Config::default()).unwrap();
    (0..count)
        .flat_map(|endpoint| member.address(endpoint).bytes().to_vec())
        .collect()
}

fn vector(opened: &Opened, kind: fi_av_type, flags: u64) -> Object<fid_av> {
    let mut attributes = fi_av_attr {
        r#type: kind,
        count: 32,
        flags,
        ..Layout::zeroed()
    };
    // SAFETY: the domain is open.
    let vector = open("fi_av_open", |to| unsafe {
        fi_av_open(opened.domain.0, &raw mut attributes, to, ptr::null_mut())
    });
    assert!(attributes.r#type == FI_AV_MAP || attributes.r#type == FI_AV_TABLE);
    vector
}

/// Inserts addresses; returns the result and the numbers.
fn insert(
    vector: &Object<fid_av>,
    bytes: &[u8],
    flags: u64,
    context: *mut c_void,
) -> (c_int, Vec<fi_addr_t>) {
    let count = bytes.len() / LENGTH;
    let mut numbers = vec![42; count];
    // SAFETY: the vector is open, and there is a place for each number.
    let result = unsafe {
        fi_av_insert(
            vector.0,
            bytes.as_ptr().cast(),
            count,
            numbers.as_mut_ptr(),
            flags,
            context,
        )
    };
    (result, numbers)
}

fn lookup(vector: &Object<fid_av>, number: fi_addr_t, room: usize) -> (c_int, usize, Vec<u8>) {
    let (mut bytes, mut length) = (vec![0xee; LENGTH], room);
    // SAFETY: the vector is open, and the memory is longer than the room.
    let result = unsafe { fi_av_lookup(vector.0, number, bytes.as_mut_ptr().cast(), &raw mut length) };
    (result, length, bytes)
}

fn remove(vector: &Object<fid_av>, number: fi_addr_t) -> c_int {
    let mut number = number;
    // SAFETY: the vector is open.
    unsafe { fi_av_remove(vector.0, &raw mut number, 1, 0) }
}

#[test]
fn addresses_are_inserted_looked_up_and_removed_in_both_kinds() {
    run(
        "vectors::addresses_are_inserted_looked_up_and_removed_in_both_kinds",
        |library| {
            let opened = Opened::any(library);
            let names = addresses(4);
            for kind in [FI_AV_UNSPEC, FI_AV_TABLE, FI_AV_MAP] {
                let vector = vector(&opened, kind, 0);
                let (count, numbers) = insert(&vector, &names, 0, ptr::null_mut());
                assert_eq!((count, &numbers[..]), (4, &[0, 1, 2, 3][..]));
                for (at, number) in numbers.iter().enumerate() {
                    let name = &names[at * LENGTH..][..LENGTH];
                    let (result, length, bytes) = lookup(&vector, *number, LENGTH);
                    assert_eq!((result, length, &bytes[..]), (0, LENGTH, name));
                    let (result, length, bytes) = lookup(&vector, *number, 10);
                    assert_eq!((result, length), (0, LENGTH));
                    assert_eq!((&bytes[..10], &bytes[10..]), (&name[..10], &[0xee; 46][..]));
                }
                assert_eq!(remove(&vector, 2), 0);
                assert_eq!(remove(&vector, 2), -FI_EINVAL);
                assert_eq!(lookup(&vector, 2, LENGTH).0, -FI_EINVAL);
                for wrong in [4, u64::MAX, u64::MAX - 1] {
                    assert_eq!(lookup(&vector, wrong, LENGTH).0, -FI_EINVAL);
                    assert_eq!(remove(&vector, wrong), -FI_EINVAL);
                }
            }
        },
    );
}

#[test]
fn places_for_the_numbers_are_not_needed() {
    run("vectors::places_for_the_numbers_are_not_needed", |library| {
        let opened = Opened::any(library);
        let vector = vector(&opened, FI_AV_TABLE, 0);
        let names = addresses(3);
        // SAFETY: the vector is open; three addresses and no places.
        let count = unsafe {
            fi_av_insert(
                vector.0,
                names.as_ptr().cast(),
                3,
                ptr::null_mut(),
                0,
                ptr::null_mut(),
            )
        };
        assert_eq!(count, 3);
        assert_eq!(lookup(&vector, 2, LENGTH).2, &names[2 * LENGTH..]);
    });
}

#[test]
fn wrong_addresses_are_marked_one_by_one_and_the_good_ones_inserted() {
    run(
        "vectors::wrong_addresses_are_marked_one_by_one_and_the_good_ones_inserted",
        |library| {
            let opened = Opened::any(library);
            let vector = vector(&opened, FI_AV_MAP, 0);
            let mut names = addresses(5);
            names[LENGTH + 30] ^= 1;
            names[2 * LENGTH..3 * LENGTH].fill(0);
            names[3 * LENGTH + 2] = 9;
            let mut errors = [99; 5];
            let (count, numbers) = insert(&vector, &names, FI_SYNC_ERR, errors.as_mut_ptr().cast());
            assert_eq!(count, 2);
            assert_eq!(errors, [0, FI_EINVAL, FI_EINVAL, FI_EINVAL, 0]);
            let is_good: Vec<bool> = numbers.iter().map(|number| *number != FI_ADDR_NOTAVAIL).collect();
            assert_eq!(is_good, [true, false, false, false, true]);
            assert_eq!(lookup(&vector, numbers[4], LENGTH).2, &names[4 * LENGTH..]);
        },
    );
}

#[test]
fn an_address_of_another_host_is_unreachable() {
    run("vectors::an_address_of_another_host_is_unreachable", |library| {
        let opened = Opened::any(library);
        let vector = vector(&opened, FI_AV_MAP, 0);
        let mut name = addresses(1);
        name[24] ^= 1;
        name[4..6].fill(0);
        let check = crc32c::crc32c(&name) as u16;
        name[4..6].copy_from_slice(&check.to_le_bytes());
        let mut error = 0;
        let (count, numbers) = insert(&vector, &name, FI_SYNC_ERR, (&raw mut error).cast());
        assert_eq!((count, numbers[0], error), (0, FI_ADDR_NOTAVAIL, FI_EHOSTUNREACH));
    });
}

#[test]
fn a_bound_queue_gets_errors_first_and_then_the_number_of_good_ones() {
    run(
        "vectors::a_bound_queue_gets_errors_first_and_then_the_number_of_good_ones",
        |library| {
            let opened = Opened::any(library);
            let vector = vector(&opened, FI_AV_MAP, FI_EVENT);
            let mut names = addresses(3);
            names[LENGTH + 30] ^= 1;
            let context = ptr::without_provenance_mut(77);
            assert_eq!(insert(&vector, &names, 0, context).0, -FI_ENOEQ);
            let queue = opened.queue(0, 0, FI_WAIT_NONE);
            // SAFETY: both are open.
            assert_eq!(unsafe { fi_av_bind(vector.0, queue.fid(), 0) }, 0);
            assert_eq!(insert(&vector, &names, 0, context).0, 0);
            assert_eq!(read(&queue, 0).0, -(FI_EAVAIL as isize));
            let mut error: fi_eq_err_entry = Layout::zeroed();
            // SAFETY: the queue is open, and the entry is whole.
            let result = unsafe { fi_eq_readerr(queue.0, &raw mut error, 0) };
            assert_eq!(result, size_of_val(&error) as isize);
            assert_eq!((error.data, error.err, error.context.addr()), (1, FI_EINVAL, 77));
            let (_, kind, entry) = read(&queue, 0);
            assert_eq!((kind, entry.fid), (FI_AV_COMPLETE, vector.fid()));
            assert_eq!((entry.data, entry.context.addr()), (2, 77));
            assert_eq!(vector.close(), 0);
            assert_eq!(queue.close(), 0);
        },
    );
}

#[test]
fn an_address_as_a_text_has_no_token() {
    run("vectors::an_address_as_a_text_has_no_token", |library| {
        let opened = Opened::any(library);
        let vector = vector(&opened, FI_AV_MAP, 0);
        let name = addresses(1);
        let (mut room, mut length) = ([0_u8; 256], 256);
        // SAFETY: the vector is open, the address is whole, and the memory has this length.
        let text = unsafe {
            fi_av_straddr(
                vector.0,
                name.as_ptr().cast(),
                room.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        // SAFETY: a text that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        assert_eq!(length, text.len() + 1);
        assert!(text.starts_with("fi_doorbell://"), "{text}");
        let token: String = name[40..56].iter().map(|byte| format!("{byte:02x}")).collect();
        let number = u128::from_le_bytes(name[40..56].try_into().unwrap());
        assert!(
            !text.contains(&token) && !text.contains(&format!("{number:x}")),
            "{text}"
        );
    });
}

#[test]
fn four_thousand_addresses_are_inserted_by_one_call_and_no_peer_is_contacted() {
    let test = "vectors::four_thousand_addresses_are_inserted_by_one_call_and_no_peer_is_contacted";
    run(test, |library| {
        let opened = Opened::any(library);
        let vector = vector(&opened, FI_AV_TABLE, 0);
        let names = addresses(128).repeat(32);
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = descriptors();
        let (count, numbers) = insert(&vector, &names, FI_MORE, ptr::null_mut());
        assert_eq!((count, numbers[4095]), (4096, 4095));
        assert_eq!(descriptors(), before);
    });
}

#[test]
fn what_is_not_offered_is_refused() {
    run("vectors::what_is_not_offered_is_refused", |library| {
        let opened = Opened::any(library);
        let mut shared = fi_av_attr {
            name: c"/a_name".as_ptr(),
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open.
        let refused = try_open::<fid_av>(|to| unsafe {
            fi_av_open(opened.domain.0, &raw mut shared, to, ptr::null_mut())
        });
        assert_eq!(refused.unwrap_err(), -FI_ENOSYS);
        let vector = vector(&opened, FI_AV_MAP, 0);
        assert_eq!(
            insert(&vector, &addresses(1), 1 << 40, ptr::null_mut()).0,
            -FI_EBADFLAGS
        );
        let mut set = ptr::null_mut();
        // SAFETY: the vector is open.
        let result = unsafe { fi_av_set(vector.0, ptr::null_mut(), &raw mut set, ptr::null_mut()) };
        assert_eq!(result, -FI_ENOSYS);
        // SAFETY: as above.
        assert_eq!(unsafe { fi_av_set_user_id(vector.0, 0, 0, 0) }, -FI_ENOSYS);
    });
}

#[test]
fn bits_for_contexts_stand_above_the_number() {
    run("vectors::bits_for_contexts_stand_above_the_number", |library| {
        let opened = Opened::any(library);
        let mut attributes = fi_av_attr {
            rx_ctx_bits: 4,
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open.
        let vector = open::<fid_av>("fi_av_open", |to| unsafe {
            fi_av_open(opened.domain.0, &raw mut attributes, to, ptr::null_mut())
        });
        let names = addresses(2);
        let (_, numbers) = insert(&vector, &names, 0, ptr::null_mut());
        let number = fi_rx_addr(numbers[1], 3, 4);
        assert_eq!(lookup(&vector, number, LENGTH).2, &names[LENGTH..]);
    });
}

/// A domain with addresses of IPv4 sockets.
fn of_sockets(library: Library) -> Opened {
    let mut wants = hints(&library);
    set!(wants, addr_format = FI_SOCKADDR_IN);
    Opened::by(library, &wants)
}

/// An address of IPv4, as C has it.
fn socket(ip: [u8; 4], port: u16) -> Vec<u8> {
    [&2_u16.to_ne_bytes()[..], &port.to_be_bytes(), &ip, &[0; 8]].concat()
}

#[test]
fn addresses_of_sockets_are_inserted_and_those_of_other_hosts_and_families_marked() {
    let test = "vectors::addresses_of_sockets_are_inserted_and_those_of_other_hosts_and_families_marked";
    run(test, |library| {
        let opened = of_sockets(library);
        let vector = vector(&opened, FI_AV_TABLE, 0);
        let good = socket([127, 0, 0, 1], 9228);
        let list = [
            good.clone(),
            vec![0; 16],
            socket([127, 0, 0, 1], 0),
            socket([192, 0, 2, 77], 9228),
            socket([127, 0, 0, 1], 9229),
        ];
        let (mut errors, mut numbers) = ([99; 5], [42; 5]);
        // SAFETY: the vector is open, five addresses, and places for as many results.
        let count = unsafe {
            fi_av_insert(
                vector.0,
                list.concat().as_ptr().cast(),
                5,
                numbers.as_mut_ptr(),
                FI_SYNC_ERR,
                errors.as_mut_ptr().cast(),
            )
        };
        assert_eq!(count, 2);
        assert_eq!(errors, [0, FI_EINVAL, FI_EINVAL, FI_EHOSTUNREACH, 0]);
        assert_eq!(
            numbers,
            [0, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, 1]
        );
        let (result, length, bytes) = lookup(&vector, 0, LENGTH);
        assert_eq!((result, length, bytes[..8] == good[..8]), (0, 16, true));
        let (mut room, mut length) = ([0_u8; 64], 64);
        let to = room.as_mut_ptr().cast();
        // SAFETY: the vector is open, the address is whole, and the memory has this length.
        let text = unsafe { fi_av_straddr(vector.0, good.as_ptr().cast(), to, &raw mut length) };
        // SAFETY: what was written ends with a zero byte.
        let text = unsafe { CStr::from_ptr(text) };
        assert_eq!(text, c"fi_sockaddr_in://127.0.0.1:9228");
        assert_eq!(length, text.count_bytes() + 1);
    });
}

#[test]
fn a_node_and_a_service_are_inserted_one_by_one_and_counted_on() {
    let test = "vectors::a_node_and_a_service_are_inserted_one_by_one_and_counted_on";
    run(test, |library| {
        for opened in [of_sockets(library), Opened::any(library)] {
            let vector = vector(&opened, FI_AV_TABLE, 0);
            let mut numbers = [42; 6];
            let null = ptr::null_mut();
            let (node, service) = (c"127.0.0.1".as_ptr(), c"9228".as_ptr());
            // SAFETY: the vector is open, texts, and a place for the number.
            let count = unsafe { fi_av_insertsvc(vector.0, node, service, numbers.as_mut_ptr(), 0, null) };
            assert_eq!((count, numbers[0]), (1, 0));
            // SAFETY: as above, with six places.
            let count =
                unsafe { fi_av_insertsym(vector.0, node, 2, service, 3, numbers.as_mut_ptr(), 0, null) };
            assert_eq!((count, numbers), (6, [1, 2, 3, 4, 5, 6]));
            // The first is the same as before, the second has the next port.
            let address = |number| lookup(&vector, number, LENGTH).2;
            assert_eq!(address(0), address(1));
            assert_ne!(address(1), address(2));
            // SAFETY: as above.
            let count = unsafe {
                fi_av_insertsvc(
                    vector.0,
                    c"192.0.2.77".as_ptr(),
                    service,
                    numbers.as_mut_ptr(),
                    0,
                    null,
                )
            };
            assert_eq!((count, numbers[0]), (0, FI_ADDR_NOTAVAIL));
            // SAFETY: as above; a text is missing.
            let count =
                unsafe { fi_av_insertsvc(vector.0, ptr::null(), service, numbers.as_mut_ptr(), 0, null) };
            assert_eq!(count, -FI_EINVAL);
        }
    });
}
