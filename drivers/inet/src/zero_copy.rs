//! Queries whether an interface's driver supports zero-copy AF_XDP, from the kernel's list of driver features
//! (family `netdev` of generic netlink, linux/netdev.h, since Linux 6.3).

use std::io;

use crate::netlink::{Family, attribute, attributes, request_in};

// linux/genetlink.h: the control family, its lookup request, and the attributes of request and reply.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Size of `genlmsghdr`: command, version, reserved.
const HEADER: usize = 4;

// linux/netdev.h.
const DEVICE_GET: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_XDP: u16 = 3;
const DEVICE_ZERO_COPY_PIECES: u16 = 4;
/// Features that the kernel requires for a zero-copy bind: XDP programs, redirection, zero-copy.
const ZERO_COPY: u64 = 1 | 1 << 1 | 1 << 3;

/// Whether the driver of the interface with this index supports zero-copy sockets.
///
/// # Errors
/// When there is no such interface, or the kernel does not report driver features.
pub fn has_zero_copy(index: u32) -> io::Result<bool> {
    judge(&device(index)?).ok_or_else(untold)
}

/// Most buffers that one zero-copy frame may span: 1 unless the driver reports more (Linux 6.6).
///
/// # Errors
/// When there is no such interface, or the kernel does not report driver features.
pub fn zero_copy_pieces(index: u32) -> io::Result<u32> {
    Ok(pieces(&device(index)?))
}

/// Requests the features of an interface's driver.
fn device(index: u32) -> io::Result<Vec<u8>> {
    let mut name = Vec::new();
    attribute(&mut name, FAMILY_NAME, b"netdev\0");
    let family = generic(CONTROL, GET_FAMILY, &name)?;
    let family =
        find(&family, FAMILY_ID).and_then(|value| value.first_chunk().map(|two| u16::from_ne_bytes(*two)));
    let mut device = Vec::new();
    attribute(&mut device, DEVICE_INDEX, &index.to_ne_bytes());
    generic(family.ok_or_else(untold)?, DEVICE_GET, &device)
}

/// Sends a request of a generic family and returns the attributes of the reply.
fn generic(family: u16, command: u8, body: &[u8]) -> io::Result<Vec<u8>> {
    let question = [&[command, 1, 0, 0], body].concat();
    let answer = request_in(Family::Generic, family, family, &question)?;
    let answer = answer.map_err(io::Error::from_raw_os_error)?;
    Ok(answer.get(HEADER..).unwrap_or(&[]).to_vec())
}

fn find(body: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut all = attributes(body);
    all.find(|(what, _)| *what == wanted).map(|(_, value)| value)
}

fn judge(device: &[u8]) -> Option<bool> {
    let can = find(device, DEVICE_XDP)?.first_chunk()?;
    Some(u64::from_ne_bytes(*can) & ZERO_COPY == ZERO_COPY)
}

fn pieces(device: &[u8]) -> u32 {
    let told = find(device, DEVICE_ZERO_COPY_PIECES).and_then(|value| value.first_chunk());
    told.map_or(1, |told| u32::from_ne_bytes(*told).max(1))
}

fn untold() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the kernel does not report driver features, which Linux 6.3 and later do",
    )
}

/// Entry point for the fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzing(body: &[u8]) {
    let _ = judge(body);
    assert!(pieces(body) > 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_abilities_are_needed() {
        let device = |can: u64| {
            let mut body = Vec::new();
            attribute(&mut body, DEVICE_INDEX, &7u32.to_ne_bytes());
            attribute(&mut body, DEVICE_XDP, &can.to_ne_bytes());
            body
        };
        assert_eq!(judge(&device(0b1111)), Some(true));
        for lacking in [0, 0b0111, 0b1000, 0b1110] {
            assert_eq!(judge(&device(lacking)), Some(false), "{lacking:b}");
        }
        let whole = device(0b1111);
        for cut in 0..whole.len() {
            assert_eq!(judge(&whole[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_frame_is_in_one_piece_unless_more_are_reported() {
        let device = |pieces: &[u8]| {
            let mut body = Vec::new();
            attribute(&mut body, DEVICE_ZERO_COPY_PIECES, pieces);
            body
        };
        for (told, meant) in [(0u32, 1), (1, 1), (8, 8)] {
            assert_eq!(pieces(&device(&told.to_ne_bytes())), meant);
        }
        assert_eq!((pieces(&device(&[9])), pieces(&[])), (1, 1), "cut off, untold");
    }

    #[test]
    fn the_loopback_has_none_and_what_is_not_there_is_an_error() {
        // Before Linux 6.3 both are errors.
        assert!(!has_zero_copy(1).unwrap_or(false));
        assert!(has_zero_copy(1 << 30).is_err());
    }
}
