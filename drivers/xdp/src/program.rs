//! The program that the kernel runs for each frame that comes in: ours go to our socket, everything else goes
//! on to the kernel.
//!
//! ```text
//!   EtherType? ─► IP, no options or fragments? ─► UDP? ─► to our address? ─► to one of our two ports?
//!       │ no            │ no                        │ no       │ no               │ no      │ yes
//!       └───────────────┴───────────────────────────┴──────────┴──────────────────┴─► PASS  └─► our socket
//!                                                                           of the frame's queue, else PASS
//! ```
//!
//! Address and ports are constants of the program: it is made for one rail and goes with it. The instructions
//! are those of RFC 9669; registers as there: r0 the verdict, r1 to r5 arguments, r6 to r9 kept.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use doorbell_fabric::ether::{ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_UDP};

/// An instruction, as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    code: u8,
    /// The destination in the low half, the source in the high half.
    registers: u8,
    offset: i16,
    constant: i32,
}
const _: () = assert!(size_of::<Instruction>() == 8);

// Opcodes (RFC 9669, sections 4 and 5): loads of 1, 2 and 4 bytes, and what is used of the rest.
const LOAD_1: u8 = 0x71;
const LOAD_2: u8 = 0x69;
const LOAD_4: u8 = 0x61;
const LOAD_MAP: u8 = 0x18;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const TO_BIG: u8 = 0xdc;
const IF_ABOVE: u8 = 0x2d;
/// Compare the lower halves of a register and a constant.
const IF_OTHER_32: u8 = 0x56;
const IF_ABOVE_32: u8 = 0x26;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// The source "register" of [`LOAD_MAP`] that marks the constant as a descriptor.
const BY_DESCRIPTOR: u8 = 1;
/// The number of the function `bpf_redirect_map`.
const REDIRECT: i32 = 51;
/// What the program answers: the frame goes on to the kernel.
const PASS: i32 = 2;

// `struct xdp_md`: where the bytes of the frame begin and end, and the queue that it came in by.
const BEGIN: i16 = 0;
const END: i16 = 4;
const QUEUE: i16 = 16;

/// A jump whose target is "pass", to be filled in.
const TO_PASS: i16 = i16::MIN;

const fn instruction(code: u8, to: u8, from: u8, offset: i16, constant: i32) -> Instruction {
    Instruction {
        code,
        registers: from << 4 | to,
        offset,
        constant,
    }
}

/// Bytes of a field in the frame as the program sees them in a register.
const fn raw(value: u16) -> i32 {
    u16::from_ne_bytes(value.to_be_bytes()) as i32
}

/// The program of a rail at `address` with the ports `port` and the next one, whose sockets are in `map`.
pub(crate) fn steering(address: IpAddr, port: u16, map: BorrowedFd<'_>) -> Vec<Instruction> {
    let i = instruction;
    let at = |offset: usize| (ETHERNET + offset) as i16;
    // The offsets of the fields of both IP versions, and the lengths of the headers.
    let (kind, protocol, ports, whole) = match address {
        IpAddr::V4(_) => (ETHERTYPE_IPV4, at(9), at(20 + 2), ETHERNET + 20 + 8),
        IpAddr::V6(_) => (ETHERTYPE_IPV6, at(6), at(40 + 2), ETHERNET + 40 + 8),
    };
    let mut program = vec![
        i(MOVE, 6, 1, 0, 0),
        i(LOAD_4, 2, 6, BEGIN, 0),
        i(LOAD_4, 3, 6, END, 0),
        i(MOVE, 4, 2, 0, 0),
        i(ADD, 4, 0, 0, whole as i32),
        i(IF_ABOVE, 4, 3, TO_PASS, 0),
        i(LOAD_2, 5, 2, 12, 0),
        i(IF_OTHER_32, 5, 0, TO_PASS, raw(kind)),
        i(LOAD_1, 5, 2, protocol, 0),
        i(IF_OTHER_32, 5, 0, TO_PASS, PROTOCOL_UDP.into()),
    ];
    let mut same_word = |offset: i16, word: [u8; 4]| {
        program.push(i(LOAD_4, 5, 2, offset, 0));
        program.push(i(IF_OTHER_32, 5, 0, TO_PASS, i32::from_ne_bytes(word)));
    };
    match address {
        IpAddr::V4(ip) => {
            same_word(at(16), ip.octets());
            program.extend([
                // Version 4 and no options.
                i(LOAD_1, 5, 2, at(0), 0),
                i(IF_OTHER_32, 5, 0, TO_PASS, 0x45),
                // The first fragment of several, or a later one.
                i(LOAD_2, 5, 2, at(6), 0),
                i(AND, 5, 0, 0, raw(0x3fff)),
                i(IF_OTHER_32, 5, 0, TO_PASS, 0),
            ]);
        }
        IpAddr::V6(ip) => {
            for (number, word) in ip.octets().as_chunks::<4>().0.iter().enumerate() {
                same_word(at(24 + 4 * number), *word);
            }
        }
    }
    program.extend([
        i(LOAD_2, 5, 2, ports, 0),
        i(TO_BIG, 5, 0, 0, 16),
        i(ADD, 5, 0, 0, -i32::from(port)),
        // Below the first port it is a very large number.
        i(IF_ABOVE_32, 5, 0, TO_PASS, 1),
        i(LOAD_4, 2, 6, QUEUE, 0),
        i(LOAD_MAP, 1, BY_DESCRIPTOR, 0, map.as_raw_fd()),
        i(0, 0, 0, 0, 0),
        // The map has no socket for the queue.
        i(SET, 3, 0, 0, PASS),
        i(CALL, 0, 0, 0, REDIRECT),
        i(EXIT, 0, 0, 0, 0),
        i(SET, 0, 0, 0, PASS),
        i(EXIT, 0, 0, 0, 0),
    ]);
    let pass = program.len() - 2;
    for (at, one) in program.iter_mut().enumerate() {
        if one.offset == TO_PASS {
            one.offset = (pass - at - 1) as i16;
        }
    }
    program
}
