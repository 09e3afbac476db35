//! Options of endpoints: fi_setopt and fi_getopt.

use std::ffi::{c_int, c_void};

use libfabric_sys::*;

use crate::client::{Client, Room, Wants};
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
