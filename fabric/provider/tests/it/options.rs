//! Options of endpoints: fi_setopt and fi_getopt.

use std::ffi::{c_int, c_void};

use libfabric_sys::*;

use crate::client::{Client, Object, Room, Wants, pattern};
use crate::pair::run;

fn set(client: &Client, option: c_int, value: &[u8]) -> c_int {
    let (value, length) = (value.as_ptr().cast::<c_void>(), value.len());
    // SAFETY: the value has this length.
    unsafe { fi_setopt(client.endpoint.0.cast(), FI_OPT_ENDPOINT, option, value, length) }
}

/// The bytes of an option that has at most eight.
fn get(client: &Client, option: c_int, room: usize) -> Result<Vec<u8>, (c_int, usize)> {
    let (mut value, mut length) = ([0xee_u8; 8], room);
    let to = value.as_mut_ptr().cast();
    // SAFETY: the value has room for more than is announced.
    match unsafe { fi_getopt(client.endpoint.0.cast(), FI_OPT_ENDPOINT, option, to, &mut length) } {
        0 => Ok(value[..length].to_vec()),
        errno => Err((errno, length)),
    }
}

#[test]
fn an_option_is_set_read_or_refused_by_its_number() {
    run(
        "options::an_option_is_set_read_or_refused_by_its_number",
        |_, library| {
            let client = Client::open(library, &Wants::default());
            let size = |bytes: usize| bytes.to_ne_bytes();
            assert_eq!(set(&client, FI_OPT_MIN_MULTI_RECV, &size(100)), 0);
            assert_eq!(get(&client, FI_OPT_MIN_MULTI_RECV, 8), Ok(size(100).to_vec()));
            assert_eq!(get(&client, FI_OPT_MIN_MULTI_RECV, 7), Err((-FI_ETOOSMALL, 8)));
            assert_eq!(set(&client, FI_OPT_MIN_MULTI_RECV, &[1; 4]), -FI_EINVAL);
            let inject = get(&client, FI_OPT_INJECT_MSG_SIZE, 8).unwrap();
            assert_eq!(set(&client, FI_OPT_INJECT_MSG_SIZE, &inject), 0);
            assert_eq!(
                set(&client, FI_OPT_INJECT_TAGGED_SIZE, &size(usize::MAX)),
                -FI_EINVAL
            );
            for (most, injected) in [
                (FI_OPT_MAX_TAGGED_SIZE, FI_OPT_INJECT_TAGGED_SIZE),
                (FI_OPT_MAX_RMA_SIZE, FI_OPT_INJECT_RMA_SIZE),
                (FI_OPT_MAX_ATOMIC_SIZE, FI_OPT_INJECT_ATOMIC_SIZE),
            ] {
                let bytes = if most == FI_OPT_MAX_ATOMIC_SIZE {
                    4096
                } else {
                    1 << 40
                };
                assert_eq!(get(&client, most, 8), Ok(size(bytes).to_vec()));
                assert_eq!(get(&client, injected, 8), Ok(inject.clone()));
                assert_eq!(set(&client, most, &size(1)), -FI_ENOPROTOOPT);
            }
            assert_eq!(set(&client, FI_OPT_MAX_MSG_SIZE, &size(1)), -FI_ENOPROTOOPT);
            // All rails are shared memory.
            assert_eq!(get(&client, FI_OPT_SHARED_MEMORY_PERMITTED, 1), Ok(vec![1]));
            assert_eq!(set(&client, FI_OPT_SHARED_MEMORY_PERMITTED, &[1]), 0);
            assert_eq!(set(&client, FI_OPT_SHARED_MEMORY_PERMITTED, &[0]), -FI_EOPNOTSUPP);
            assert_eq!(set(&client, FI_OPT_SHARED_MEMORY_PERMITTED, &size(1)), -FI_EINVAL);
            for option in [
                FI_OPT_CM_DATA_SIZE,
                FI_OPT_BUFFERED_MIN,
                FI_OPT_FI_HMEM_P2P,
                FI_OPT_CUDA_API_PERMITTED,
                FI_OPT_FIREWALL_ADDR,
                FI_OPT_FIREWALL_ADDR + 1,
                -1,
            ] {
                assert_eq!(set(&client, option, &size(1)), -FI_ENOPROTOOPT, "{option}");
                assert_eq!(get(&client, option, 8), Err((-FI_ENOPROTOOPT, 8)), "{option}");
            }
        },
    );
}

#[test]
fn the_sizes_that_are_left_agree_with_those_that_were_given() {
    let test = "options::the_sizes_that_are_left_agree_with_those_that_were_given";
    run(test, |mut role, library| {
        for depth in [0, 2000] {
            let wants = Wants {
                depth,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let entry = client.info.as_ptr();
            // SAFETY: an entry of the library, with its attributes.
            let given = unsafe { ((*(*entry).tx_attr).size, (*(*entry).rx_attr).size) };
            assert!(depth == 0 || given == (depth, depth), "{given:?}");
            let left = || {
                let endpoint = client.endpoint.0;
                // SAFETY: the endpoint is open.
                let left = unsafe { (fi_tx_size_left(endpoint), fi_rx_size_left(endpoint)) };
                (left.0 as usize, left.1 as usize)
            };
            assert_eq!(left(), given);
            let mut rooms = [8, 8, 8].map(Room::new);
            for (number, room) in rooms.iter_mut().enumerate() {
                client.receive(room, Some((7, 0)), FI_ADDR_UNSPEC, number);
            }
            assert_eq!(left(), (given.0, given.1 - 3));
            if role.is_first() {
                // It is under way until the other one takes it.
                let long = vec![1; 1 << 20];
                client.post(&long, Some(1), 9);
                assert_eq!(left(), (given.0 - 1, given.1 - 3));
                role.meet(&client);
                assert_eq!(client.next().entry().op_context.addr(), 9);
            } else {
                role.meet(&client);
                client.expect(&vec![1; 1 << 20], Some(1));
            }
            assert_eq!(left(), (given.0, given.1 - 3));
            role.meet(&client);
        }
    });
}

/// Reads or sets the flags of operations that take none.
fn ops_flags(endpoint: &Object<fid_ep>, command: c_int, flags: u64) -> Result<u64, c_int> {
    let mut word = flags;
    // SAFETY: the argument of the command is a word.
    match unsafe { fi_control(endpoint.0.cast(), command, (&raw mut word).cast()) } {
        0 => Ok(word),
        errno => Err(errno),
    }
}

fn alias(endpoint: &Object<fid_ep>, flags: u64) -> Result<Object<fid_ep>, c_int> {
    let mut alias = std::ptr::null_mut();
    // SAFETY: the endpoint is open.
    match unsafe { fi_ep_alias(endpoint.0, &raw mut alias, flags) } {
        0 => Ok(Object(alias)),
        errno => Err(errno),
    }
}

#[test]
fn default_flags_are_refused_alike_by_every_call() {
    run(
        "options::default_flags_are_refused_alike_by_every_call",
        |_, library| {
            let client = Client::open(library, &Wants::default());
            let of_one_message = [FI_REMOTE_CQ_DATA, FI_FENCE];
            let wrong = [
                (FI_TRANSMIT, FI_REMOTE_CQ_DATA, -FI_EOPNOTSUPP),
                (FI_TRANSMIT, FI_FENCE, -FI_EOPNOTSUPP),
                (FI_TRANSMIT, FI_PEEK, -FI_EOPNOTSUPP),
                (FI_RECV, FI_INJECT, -FI_EOPNOTSUPP),
                (FI_TRANSMIT, 1 << 63, -FI_EBADFLAGS),
                (FI_RECV, 1 << 63, -FI_EBADFLAGS),
                (FI_TRANSMIT | FI_RECV, FI_COMPLETION, -FI_EINVAL),
                (0, FI_COMPLETION, -FI_EINVAL),
            ];
            for (side, flags, errno) in wrong {
                let set = ops_flags(&client.endpoint, FI_SETOPSFLAG, side | flags);
                assert_eq!(set, Err(errno), "{side:#x} {flags:#x}");
                let alias = alias(&client.endpoint, side | flags).map(drop);
                assert_eq!(alias, Err(errno), "{side:#x} {flags:#x}");
            }
            // fi_getinfo refuses them, and fi_endpoint where the client has set them in the entry.
            for flags in of_one_message {
                let entry = client.info.as_ptr().cast_mut();
                // SAFETY: an entry of the client, with its attributes.
                unsafe { (*(*entry).tx_attr).op_flags = flags };
                let mut endpoint = std::ptr::null_mut();
                // SAFETY: the domain is open, and the entry is whole.
                let answer =
                    unsafe { fi_endpoint(client.domain.0, entry, &mut endpoint, std::ptr::null_mut()) };
                assert_eq!((answer, endpoint.is_null()), (-FI_EOPNOTSUPP, true));
            }
        },
    );
}

#[test]
fn default_flags_are_those_of_calls_without_flags_and_each_name_has_its_own() {
    let test = "options::default_flags_are_those_of_calls_without_flags_and_each_name_has_its_own";
    run(test, |mut role, library| {
        let wants = Wants {
            selective: true,
            ..Wants::default()
        };
        let mut client = Client::meet(&mut role, library, &wants);
        let get = |endpoint: &Object<fid_ep>, side| ops_flags(endpoint, FI_GETOPSFLAG, side);
        if !role.is_first() {
            // Messages without entries are counted by their order.
            for number in 0..4 {
                let mut room = Room::new(8);
                let flags = FI_RECV | FI_COMPLETION;
                assert!(ops_flags(&client.endpoint, FI_SETOPSFLAG, flags).is_ok());
                client.receive(&mut room, Some((1, 0)), FI_ADDR_UNSPEC, number);
                assert_eq!(client.next().entry().op_context.addr(), number);
                assert_eq!(room.bytes(), pattern(8, number));
            }
            assert_eq!(get(&client.endpoint, FI_RECV), Ok(FI_COMPLETION));
            assert_eq!(get(&client.endpoint, FI_TRANSMIT), Ok(0));
            return role.meet(&client);
        }
        let second = alias(&client.endpoint, FI_TRANSMIT | FI_COMPLETION).unwrap();
        assert_eq!(get(&second, FI_TRANSMIT), Ok(FI_COMPLETION));
        assert_eq!(
            (get(&second, FI_RECV), get(&client.endpoint, FI_TRANSMIT)),
            (Ok(0), Ok(0))
        );
        // SAFETY: it has a second name, which keeps it open.
        assert_eq!(unsafe { fi_close(client.endpoint.0.cast()) }, -FI_EBUSY);
        let bytes: Vec<Vec<u8>> = (0..4).map(|number| pattern(8, number)).collect();
        // Under the first name there is no entry, under the second one there is.
        client.post(&bytes[0], Some(1), 100);
        let first = std::mem::replace(&mut client.endpoint, second);
        client.post(&bytes[1], Some(1), 101);
        assert_eq!(client.next().entry().op_context.addr(), 101);
        let second = std::mem::replace(&mut client.endpoint, first);
        client.post(&bytes[2], Some(1), 102);
        // With other flags the first name has entries, too.
        assert!(ops_flags(&client.endpoint, FI_SETOPSFLAG, FI_TRANSMIT | FI_COMPLETION).is_ok());
        assert_eq!(get(&client.endpoint, FI_TRANSMIT), Ok(FI_COMPLETION));
        client.post(&bytes[3], Some(1), 103);
        assert_eq!(client.next().entry().op_context.addr(), 103);
        // The second name is closed, and the endpoint stays.
        drop(second);
        role.meet(&client);
        assert!(client.read().is_none(), "no entry of 100 and 102");
    });
}
