//! The arguments that a call accepts (reference: portals, sections 4, 5 and 10).

use doorbell_fabric::ni::{
    AtomicKind, Datatype, Entry, EqHandle, Md, MdHandle, Memory, NiError, PtOptions, Triggered,
};

use super::state::Interface;

type Checked = Result<(), NiError>;

fn ensure(so: bool, what: &'static str) -> Checked {
    if so {
        Ok(())
    } else {
        Err(NiError::ArgInvalid(what))
    }
}

fn pieces(ni: &Interface, memory: &Memory) -> Checked {
    match memory {
        Memory::Many(pieces) => ensure(pieces.len() <= ni.limits.max_iovecs as usize, "iovec"),
        _ => Ok(()),
    }
}

pub(crate) fn entry(ni: &mut Interface, pt_index: u32, entry: &Entry) -> Checked {
    ensure(ni.pt(pt_index).is_some(), "pt_index")?;
    ensure(entry.options.is_known(), "options")?;
    ensure(ni.has_ct(entry.ct), "ct")?;
    pieces(ni, &entry.memory)
}

pub(crate) fn md(ni: &Interface, md: &Md) -> Checked {
    ensure(md.options.is_known(), "options")?;
    ensure(ni.has_ct(md.ct), "ct")?;
    ensure(ni.has_eq(md.eq), "eq")?;
    pieces(ni, &md.memory)
}

pub(crate) fn table(ni: &Interface, options: PtOptions, eq: Option<EqHandle>, index: Option<u32>) -> Checked {
    ensure(options.is_known(), "options")?;
    ensure(ni.has_eq(eq), "eq")?;
    ensure(index.is_none_or(|index| index <= ni.limits.max_pt_index), "index")?;
    if options.has(PtOptions::FLOWCTRL) && eq.is_none() {
        return Err(NiError::PtEqNeeded);
    }
    Ok(())
}

/// Bytes of a descriptor.
pub(crate) fn range(ni: &Interface, md: MdHandle, offset: u64, length: u64) -> Checked {
    let Some(md) = ni.md(md) else {
        return Err(NiError::ArgInvalid("md"));
    };
    let end = offset.checked_add(length);
    ensure(end.is_some_and(|end| end <= md.memory.len() as u64), "range")?;
    ensure(length <= ni.limits.max_msg_size, "length")
}

/// Operation, type and length of an atomic; only the fetching call takes swaps.
pub(crate) fn atomic(kind: AtomicKind, datatype: Datatype, length: u64, most: u64, fetches: bool) -> Checked {
    use AtomicKind as A;
    use Datatype as D;
    let floats = matches!(
        datatype,
        D::Float | D::Double | D::FloatComplex | D::DoubleComplex | D::LongDouble | D::LongDoubleComplex
    );
    let complex = matches!(
        datatype,
        D::FloatComplex | D::DoubleComplex | D::LongDoubleComplex
    );
    let size = datatype.size() as u64;
    let there_is = match kind {
        A::Min | A::Max | A::CswapLe | A::CswapLt | A::CswapGe | A::CswapGt => !complex,
        A::Lor | A::Land | A::Bor | A::Band | A::Lxor | A::Bxor | A::Mswap => !floats,
        _ => true,
    };
    ensure(there_is, "operation")?;
    ensure(fetches || (kind as u8) < A::Swap as u8, "operation")?;
    ensure(length.is_multiple_of(size) && length <= most, "length")?;
    ensure(kind as u8 <= A::Swap as u8 || length == size, "length")
}

/// Arguments of what is triggered are judged when it is set.
pub(crate) fn triggered(ni: &mut Interface, what: &Triggered) -> Checked {
    let (most, most_fetched) = (ni.limits.max_atomic_size, ni.limits.max_fetch_atomic_size);
    match what {
        Triggered::Put(put) => range(ni, put.from.md, put.from.offset, put.length),
        Triggered::Get(get) => range(ni, get.into.md, get.into.offset, get.length),
        Triggered::Atomic(it) => {
            range(ni, it.put.from.md, it.put.from.offset, it.put.length)?;
            atomic(it.kind, it.datatype, it.put.length, most, false)
        }
        Triggered::FetchAtomic(it) => {
            range(ni, it.into.md, it.into.offset, it.length)?;
            range(ni, it.from.md, it.from.offset, it.length)?;
            atomic(it.kind, it.datatype, it.length, most_fetched, true)
        }
        Triggered::CtInc(ct, by) => {
            ensure(ni.has_ct(Some(*ct)), "ct")?;
            ensure(by.success == 0 || by.failure == 0, "count")
        }
        Triggered::CtSet(ct, _) => ensure(ni.has_ct(Some(*ct)), "ct"),
        Triggered::Append {
            pt_index, entry: it, ..
        } => entry(ni, *pt_index, it),
        Triggered::Unlink(slot) => ensure(matches!(ni.entries.get(slot.0 as usize), Some(Some(_))), "entry"),
    }
}
