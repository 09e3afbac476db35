//! Memory that is lent, sent as it is.

use std::mem::MaybeUninit;

use iceoryx2::prelude::ipc;
use iceoryx2::sample_mut::SampleMut;
use iceoryx2::sample_mut_uninit::SampleMutUninit;

/// Writes the first byte of a loan, and leaves the others as they are.
pub(crate) fn with_first(
    mut sample: SampleMutUninit<ipc::Service, [MaybeUninit<u8>], ()>,
    first: u8,
) -> SampleMut<ipc::Service, [u8], ()> {
    if let Some(byte) = sample.payload_mut().first_mut() {
        byte.write(first);
    }
    // SAFETY: the memory is a shared object, which the system hands out full of zeros and which this program
    // and its server write nothing but bytes into; every value of a byte is one.
    unsafe { sample.assume_init() }
}
