//! Options of endpoints: fi_setopt and fi_getopt.

use std::ffi::{c_int, c_void};

use libfabric_sys::*;

use crate::client::{Client, Wants};
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
