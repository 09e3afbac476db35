//! Atomic operations on peers' memory: fi_atomic(3).

use std::ffi::{c_int, c_void};

use doorbell_fabric::atomics::{Arithmetic, Element, is_defined};
use doorbell_fabric::memory::ConstLoan;
use libfabric_sys::*;

use crate::domain::{self, State};
use crate::ep::{Access, Bytes, Compute, EndpointNumber, Remote, endpoint, flags, limits};
use crate::errno::{Errno, Result};
use crate::memory::{elements, lent_pieces, room_pieces};
use crate::refuse::Table;

/// The table of endpoints.
pub(crate) static ATOMIC: Table<fi_ops_atomic> = Table::new(fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
});

/// The types of elements, by libfabric's numbers. The floats of 8 and 16 bits behind them are not offered.
const ELEMENTS: [Element; 16] = [
    Element::Int8,
    Element::Uint8,
    Element::Int16,
    Element::Uint16,
    Element::Int32,
    Element::Uint32,
    Element::Int64,
    Element::Uint64,
    Element::Float,
    Element::Double,
    Element::FloatComplex,
    Element::DoubleComplex,
    Element::LongDouble,
    Element::LongDoubleComplex,
    Element::Int128,
    Element::Uint128,
];

/// The operations, by libfabric's numbers. `FI_DIFF` behind them is not offered.
const ARITHMETIC: [Arithmetic; 19] = [
    Arithmetic::Min,
    Arithmetic::Max,
    Arithmetic::Sum,
    Arithmetic::Prod,
    Arithmetic::Lor,
    Arithmetic::Land,
    Arithmetic::Bor,
    Arithmetic::Band,
    Arithmetic::Lxor,
    Arithmetic::Bxor,
    Arithmetic::Read,
    Arithmetic::Swap,
    Arithmetic::Cswap,
    Arithmetic::CswapNe,
    Arithmetic::CswapLe,
    Arithmetic::CswapLt,
    Arithmetic::CswapGe,
    Arithmetic::CswapGt,
    Arithmetic::Mswap,
];

/// The three families of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Those that return nothing.
    Base,
    /// Those that return what was there before.
    Fetch,
    /// Those that compare first, and return what was there before.
    Compare,
}

impl Family {
    /// The operation of a call, and the type of its elements.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for numbers of none, for operations of another family, and where the operation has no
    /// meaning on the type.
    #[inline]
    fn computes(self, datatype: fi_datatype, op: fi_op) -> Result<(Arithmetic, Element)> {
        let arithmetic = ARITHMETIC.get(op as usize);
        let found = arithmetic.zip(ELEMENTS.get(datatype as usize));
        let (&arithmetic, &element) = found.ok_or(Errno(FI_EOPNOTSUPP))?;
        let is_here = match self {
            Self::Base => !arithmetic.has_operand() && arithmetic != Arithmetic::Read,
            Self::Fetch => !arithmetic.has_operand(),
            Self::Compare => arithmetic.has_operand(),
        };
        match is_here && is_defined(arithmetic, element) {
            true => Ok((arithmetic, element)),
            false => Err(Errno(FI_EOPNOTSUPP)),
        }
    }

    /// What one call of this family takes of elements, at most, and how large each is.
    fn limits(self, state: &State, datatype: fi_datatype, op: fi_op) -> Result<fi_atomic_attr> {
        let (_, element) = self.computes(datatype, op)?;
        let (most, size) = (state.atomic_most(), element.size());
        Ok(fi_atomic_attr {
            count: most / size,
            size,
        })
    }
}

/// Pieces of one's own memory, in elements.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    start: *const fi_ioc,
    count: usize,
}

impl Pieces {
    const NONE: Self = Self {
        start: std::ptr::null(),
        count: 0,
    };

    /// Returns the pieces of a call that has one.
    fn one(piece: &fi_ioc) -> Self {
        Self {
            start: &raw const *piece,
            count: 1,
        }
    }
}

/// The peer's memory that a call names.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// As many elements as there are here, at an address, by a key.
    One(u64, u64),
    /// Pieces of it, one behind the other.
    Pieces(*const fi_rma_ioc, usize),
}

impl Place {
    /// The memory, with elements of this size.
    ///
    /// # Safety
    /// There are as many pieces as it states.
    ///
    /// # Errors
    /// `FI_EINVAL` for no pieces, and for too many.
    #[inline]
    unsafe fn remote(self, size: usize) -> Result<Remote> {
        match self {
            Self::One(address, key) => Ok(Remote::One(address, key)),
            Self::Pieces(start, count) if !start.is_null() && (1..=limits::PIECES).contains(&count) => {
                // SAFETY: by the contract of this function.
                Remote::elements(unsafe { std::slice::from_raw_parts(start, count) }, size)
            }
            Self::Pieces(..) => Err(Errno(FI_EINVAL)),
        }
    }
}

/// A call of a client.
#[derive(Clone, Copy, Debug)]
struct Call {
    family: Family,
    datatype: fi_datatype,
    op: fi_op,
    operands: Pieces,
    compare: Pieces,
    result: Pieces,
    peer: fi_addr_t,
    place: Place,
    context: *mut c_void,
}

impl Call {
    /// Begins the operation.
    ///
    /// # Safety
    /// The pieces and their memory are the caller's, lent until the operation has ended.
    #[inline]
    unsafe fn begin(&self, state: &mut State, from: EndpointNumber, flags: u64) -> Result<isize> {
        let computes = self.family.computes(self.datatype, self.op)?;
        let size = computes.1.size();
        // SAFETY: by the contract of this function, here and below.
        let remote = unsafe { self.place.remote(size) }?;
        let compute = Compute {
            computes,
            operands: match computes.0 {
                // They are ignored, and need not be there.
                Arithmetic::Read => Bytes::One(ConstLoan::EMPTY),
                // SAFETY: as above.
                _ => unsafe { lent(self.operands, size) }?,
            },
            compare: match self.family {
                // SAFETY: as above.
                Family::Compare => unsafe { lent(self.compare, size) }?,
                _ => Bytes::One(ConstLoan::EMPTY),
            },
            result: match self.family {
                Family::Base => None,
                _ => {
                    // SAFETY: as above.
                    let pieces = unsafe { elements(self.result.start, self.result.count, size) }?;
                    // SAFETY: as above.
                    Some(unsafe { room_pieces(pieces.0.as_ptr(), pieces.1) }?)
                }
            },
        };
        let access = Access {
            peer: self.peer,
            context: self.context.expose_provenance(),
            flags,
            data: None,
        };
        state.compute(from, remote, compute, &access)
    }

    /// Runs a call without flags: those of the endpoint count.
    ///
    /// # Safety
    /// `ep` is an open endpoint; what [`Call::begin`] needs.
    #[inline]
    unsafe fn run(&self, name: &'static str, ep: *mut fid_ep) -> isize {
        // SAFETY: by the contract of this function.
        let endpoint = unsafe { endpoint(ep) };
        let flags = endpoint.send_flags() & flags::ATOMIC;
        // SAFETY: as above.
        endpoint.run(name, |state| unsafe {
            self.begin(state, endpoint.number(), flags)
        })
    }
}

/// Lends pieces to be sent from.
///
/// # Safety
/// The pieces and their memory are the caller's, lent until the operation has ended.
#[inline]
unsafe fn lent(pieces: Pieces, size: usize) -> Result<Bytes> {
    // SAFETY: by the contract of this function.
    let pieces = unsafe { elements(pieces.start, pieces.count, size) }?;
    // SAFETY: as above.
    unsafe { lent_pieces(pieces.0.as_ptr(), pieces.1) }
}

/// One piece of one's own memory.
fn piece(start: *const c_void, count: usize) -> fi_ioc {
    fi_ioc {
        addr: start.cast_mut(),
        count,
    }
}

/// Runs a call whose operation a structure describes.
///
/// # Safety
/// `ep` is an open endpoint; `msg` is null or the caller's structure; the pieces and their memory are the
/// caller's, lent until the operation has ended.
unsafe fn run_message(
    name: &'static str,
    ep: *mut fid_ep,
    family: Family,
    msg: *const fi_msg_atomic,
    [compare, result]: [Pieces; 2],
    flags: u64,
) -> isize {
    // SAFETY: by the contract of this function.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run(name, |state| {
        flags::check(flags, flags::ATOMIC)?;
        // SAFETY: as above.
        let message = unsafe { msg.as_ref() }.ok_or(Errno(FI_EINVAL))?;
        let call = Call {
            family,
            datatype: message.datatype,
            op: message.op,
            operands: Pieces {
                start: message.msg_iov,
                count: message.iov_count,
            },
            compare,
            result,
            peer: message.addr,
            place: Place::Pieces(message.rma_iov, message.rma_iov_count),
            context: message.context,
        };
        // SAFETY: as above.
        unsafe { call.begin(state, endpoint.number(), flags) }
    })
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let operand_piece = piece(buf, count);
    let call = Call {
        family: Family::Base,
        datatype,
        op,
        operands: Pieces::one(&operand_piece),
        compare: Pieces::NONE,
        result: Pieces::NONE,
        peer: dest_addr,
        place: Place::One(addr, key),
        context,
    };
    // SAFETY: an endpoint of this table, and the caller's memory, lent until the operation has ended.
    unsafe { call.run("fi_atomic", ep) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let call = Call {
        family: Family::Base,
        datatype,
        op,
        operands: Pieces { start: iov, count },
        compare: Pieces::NONE,
        result: Pieces::NONE,
        peer: dest_addr,
        place: Place::One(addr, key),
        context,
    };
    // SAFETY: as for `write`.
    unsafe { call.run("fi_atomicv", ep) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    let none = [Pieces::NONE; 2];
    // SAFETY: as for `write`.
    unsafe { run_message("fi_atomicmsg", ep, Family::Base, msg, none, flags) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
) -> isize {
    // SAFETY: an endpoint of this table.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_inject_atomic", |state| {
        let computes = Family::Base.computes(datatype, op)?;
        let piece = piece(buf, count);
        // SAFETY: the caller's memory: an injected operation keeps no loan.
        let operands = unsafe { lent(Pieces::one(&piece), computes.1.size()) }?;
        let remote = Remote::One(addr, key);
        state.inject_compute(endpoint.number(), remote, computes, operands, dest_addr)
    })
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let operand_piece = piece(buf, count);
    let result_piece = piece(result, count);
    let call = Call {
        family: Family::Fetch,
        datatype,
        op,
        operands: Pieces::one(&operand_piece),
        compare: Pieces::NONE,
        result: Pieces::one(&result_piece),
        peer: dest_addr,
        place: Place::One(addr, key),
        context,
    };
    // SAFETY: as for `write`.
    unsafe { call.run("fi_fetch_atomic", ep) }
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let call = Call {
        family: Family::Fetch,
        datatype,
        op,
        operands: Pieces { start: iov, count },
        compare: Pieces::NONE,
        result: Pieces {
            start: resultv,
            count: result_count,
        },
        peer: dest_addr,
        place: Place::One(addr, key),
        context,
    };
    // SAFETY: as for `write`.
    unsafe { call.run("fi_fetch_atomicv", ep) }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let result = Pieces {
        start: resultv,
        count: result_count,
    };
    let pieces = [Pieces::NONE, result];
    // SAFETY: as for `write`.
    unsafe { run_message("fi_fetch_atomicmsg", ep, Family::Fetch, msg, pieces, flags) }
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let operand_piece = piece(buf, count);
    let compare_piece = piece(compare, count);
    let result_piece = piece(result, count);
    let call = Call {
        family: Family::Compare,
        datatype,
        op,
        operands: Pieces::one(&operand_piece),
        compare: Pieces::one(&compare_piece),
        result: Pieces::one(&result_piece),
        peer: dest_addr,
        place: Place::One(addr, key),
        context,
    };
    // SAFETY: as for `write`.
    unsafe { call.run("fi_compare_atomic", ep) }
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let call = Call {
        family: Family::Compare,
        datatype,
        op,
        operands: Pieces { start: iov, count },
        compare: Pieces {
            start: comparev,
            count: compare_count,
        },
        result: Pieces {
            start: resultv,
            count: result_count,
        },
        peer: dest_addr,
        place: Place::One(addr, key),
        context,
    };
    // SAFETY: as for `write`.
    unsafe { call.run("fi_compare_atomicv", ep) }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let compare = Pieces {
        start: comparev,
        count: compare_count,
    };
    let result = Pieces {
        start: resultv,
        count: result_count,
    };
    let pieces = [compare, result];
    // SAFETY: as for `write`.
    unsafe { run_message("fi_compare_atomicmsg", ep, Family::Compare, msg, pieces, flags) }
}

/// Answers whether there is an operation of a family, and how many elements one call of it takes.
///
/// # Safety
/// `ep` is an open endpoint; `count` is null or may be written.
unsafe fn valid(
    name: &'static str,
    ep: *mut fid_ep,
    family: Family,
    (datatype, op): (fi_datatype, fi_op),
    count: *mut usize,
) -> c_int {
    // SAFETY: by the contract of this function.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run(name, |state| {
        let found = family.limits(state, datatype, op)?;
        // SAFETY: as above.
        *unsafe { count.as_mut() }.ok_or(Errno(FI_EINVAL))? = found.count;
        Ok(0)
    })
}

unsafe extern "C" fn writevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: an endpoint of this table, and the place for the number.
    unsafe { valid("fi_atomicvalid", ep, Family::Base, (datatype, op), count) }
}

unsafe extern "C" fn readwritevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as above.
    unsafe { valid("fi_fetch_atomicvalid", ep, Family::Fetch, (datatype, op), count) }
}

unsafe extern "C" fn compwritevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        valid(
            "fi_compare_atomicvalid",
            ep,
            Family::Compare,
            (datatype, op),
            count,
        )
    }
}

/// Answers the same for a domain, with the size of an element: fi_query_atomic(3).
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    // SAFETY: the table belongs to domains.
    let domain = unsafe { domain::of(domain) };
    domain.run("fi_query_atomic", |state| {
        let family = match flags {
            0 => Family::Base,
            FI_FETCH_ATOMIC => Family::Fetch,
            FI_COMPARE_ATOMIC => Family::Compare,
            // Atomics on the buffers of tagged receives.
            _ if flags & !(FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC) == FI_TAGGED => {
                return Err(Errno(FI_EOPNOTSUPP));
            }
            _ => return Err(Errno(FI_EBADFLAGS)),
        };
        let found = family.limits(state, datatype, op)?;
        // SAFETY: null, or the caller's place for the answer.
        *unsafe { attr.as_mut() }.ok_or(Errno(FI_EINVAL))? = found;
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_types_have_the_numbers_of_libfabric() {
        let name = |debug: &dyn std::fmt::Debug| format!("{debug:?}");
        for (number, named) in [
            (FI_MIN, "Min"),
            (FI_BXOR, "Bxor"),
            (FI_ATOMIC_READ, "Read"),
            (FI_ATOMIC_WRITE, "Swap"),
            (FI_CSWAP, "Cswap"),
            (FI_CSWAP_GT, "CswapGt"),
            (FI_MSWAP, "Mswap"),
        ] {
            assert_eq!(name(&ARITHMETIC[number as usize]), named);
        }
        for (number, named, size) in [
            (FI_INT8, "Int8", 1),
            (FI_UINT32, "Uint32", 4),
            (FI_INT64, "Int64", 8),
            (FI_UINT64, "Uint64", 8),
            (FI_FLOAT, "Float", 4),
            (FI_DOUBLE_COMPLEX, "DoubleComplex", 16),
            (FI_LONG_DOUBLE, "LongDouble", 16),
            (FI_LONG_DOUBLE_COMPLEX, "LongDoubleComplex", 32),
            (FI_UINT128, "Uint128", 16),
        ] {
            let element = ELEMENTS[number as usize];
            assert_eq!((name(&element).as_str(), element.size()), (named, size));
        }
    }

    #[test]
    fn each_operation_is_of_its_families() {
        let families = [Family::Base, Family::Fetch, Family::Compare];
        let of = |datatype, op| families.map(|family| family.computes(datatype, op).is_ok());
        assert_eq!(of(FI_UINT64, FI_SUM), [true, true, false]);
        assert_eq!(of(FI_UINT64, FI_ATOMIC_WRITE), [true, true, false]);
        assert_eq!(of(FI_UINT64, FI_ATOMIC_READ), [false, true, false]);
        assert_eq!(of(FI_UINT64, FI_CSWAP), [false, false, true]);
        assert_eq!(of(FI_DOUBLE, FI_LOR), [true, true, false]);
        for (datatype, op) in [
            (FI_DOUBLE, FI_BAND),
            (FI_FLOAT, FI_MSWAP),
            (FI_FLOAT_COMPLEX, FI_MIN),
            (FI_FLOAT16, FI_SUM),
            (FI_FLOAT8_E5M2, FI_SUM),
            (FI_VOID, FI_SUM),
            (FI_INT8, FI_DIFF),
            (FI_INT8, FI_NOOP),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(of(datatype, op), [false; 3], "{datatype} {op}");
        }
    }
}
