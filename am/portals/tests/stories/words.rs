//! Words of a story, read one after the other.

use std::str::FromStr;

use doorbell_fabric::ni::{
    AtomicKind, Datatype, EntryOptions, EventKind, MdOptions, NiError, NiFail, NiLimits, PtOptions,
};

/// What went wrong, in words.
pub(crate) type Told<T = ()> = Result<T, String>;

/// The words of a line that are left: settings in pairs, in any order.
pub(crate) struct Words<'a> {
    rest: Vec<&'a str>,
}

impl<'a> Words<'a> {
    pub(crate) fn new(words: &[&'a str]) -> Self {
        Self { rest: words.to_vec() }
    }

    /// The next word.
    pub(crate) fn next(&mut self) -> Told<&'a str> {
        if self.rest.is_empty() {
            return Err("the line is too short".to_string());
        }
        Ok(self.rest.remove(0))
    }

    pub(crate) fn next_number(&mut self) -> Told<u64> {
        number(self.next()?)
    }

    /// The word behind this one, wherever it stands.
    pub(crate) fn value(&mut self, key: &str) -> Told<Option<&'a str>> {
        let Some(at) = self.rest.iter().position(|word| *word == key) else {
            return Ok(None);
        };
        self.rest.remove(at);
        if at == self.rest.len() {
            return Err(format!("`{key}` of what?"));
        }
        Ok(Some(self.rest.remove(at)))
    }

    pub(crate) fn number(&mut self, key: &str, otherwise: u64) -> Told<u64> {
        match self.value(key)? {
            Some(word) => number(word),
            None => Ok(otherwise),
        }
    }

    pub(crate) fn has(&mut self, key: &str) -> bool {
        let at = self.rest.iter().position(|word| *word == key);
        at.map(|at| self.rest.remove(at)).is_some()
    }

    /// Everything that is left.
    pub(crate) fn all(&mut self) -> Vec<&'a str> {
        std::mem::take(&mut self.rest)
    }

    /// Whether nothing is left.
    pub(crate) fn end(&self) -> Told {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(format!("what is {:?}?", self.rest))
    }
}

/// Decimal, `0x…`, or `-1` and the like.
pub(crate) fn number(word: &str) -> Told<u64> {
    let parsed = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => u64::from_str(word)
            .ok()
            .or_else(|| i64::from_str(word).ok().map(|n| n as u64)),
    };
    parsed.ok_or_else(|| format!("`{word}` is no number"))
}

pub(crate) fn small<N: TryFrom<u64>>(word: &str) -> Told<N> {
    N::try_from(number(word)?).map_err(|_| format!("`{word}` is too large"))
}

macro_rules! named {
    ($name:ident -> $type:ty { $($word:literal => $value:expr,)* }) => {
        pub(crate) fn $name(word: &str) -> Told<$type> {
            match word {
                $($word => Ok($value),)*
                _ => Err(format!("`{word}` is none of {:?}", [$($word),*])),
            }
        }
    };
}

named! { table_option -> PtOptions {
    "only-use-once" => PtOptions::ONLY_USE_ONCE,
    "flow-control" => PtOptions::FLOWCTRL,
    "only-truncate" => PtOptions::ONLY_TRUNCATE,
    "match-unordered" => PtOptions::MATCH_UNORDERED,
    "disabled" => PtOptions::ALLOC_DISABLED,
    "unknown" => PtOptions(1 << 20),
} }

named! { entry_option -> EntryOptions {
    "put" => EntryOptions::OP_PUT,
    "get" => EntryOptions::OP_GET,
    "use-once" => EntryOptions::USE_ONCE,
    "header-disable" => EntryOptions::UNEXPECTED_HDR_DISABLE,
    "accessible" => EntryOptions::IS_ACCESSIBLE,
    "link-disable" => EntryOptions::EVENT_LINK_DISABLE,
    "comm-disable" => EntryOptions::EVENT_COMM_DISABLE,
    "flow-disable" => EntryOptions::EVENT_FLOWCTRL_DISABLE,
    "success-disable" => EntryOptions::EVENT_SUCCESS_DISABLE,
    "over-disable" => EntryOptions::EVENT_OVER_DISABLE,
    "unlink-disable" => EntryOptions::EVENT_UNLINK_DISABLE,
    "ct-comm" => EntryOptions::EVENT_CT_COMM,
    "ct-overflow" => EntryOptions::EVENT_CT_OVERFLOW,
    "ct-bytes" => EntryOptions::EVENT_CT_BYTES,
    "manage-local" => EntryOptions::MANAGE_LOCAL,
    "no-truncate" => EntryOptions::NO_TRUNCATE,
    "may-align" => EntryOptions::MAY_ALIGN,
    "ack-disable" => EntryOptions::ACK_DISABLE,
    "inc-rlength" => EntryOptions::LOCAL_INC_UH_RLENGTH,
    "unknown" => EntryOptions(1 << 30),
} }

named! { md_option -> MdOptions {
    "ct-send" => MdOptions::EVENT_CT_SEND,
    "ct-reply" => MdOptions::EVENT_CT_REPLY,
    "ct-ack" => MdOptions::EVENT_CT_ACK,
    "unordered" => MdOptions::UNORDERED,
    "success-disable" => MdOptions::EVENT_SUCCESS_DISABLE,
    "volatile" => MdOptions::VOLATILE,
    "send-disable" => MdOptions::EVENT_SEND_DISABLE,
    "unreliable" => MdOptions::UNRELIABLE,
    "ct-bytes" => MdOptions::EVENT_CT_BYTES,
    "unknown" => MdOptions(1 << 20),
} }

named! { event_kind -> EventKind {
    "GET" => EventKind::Get,
    "GET_OVERFLOW" => EventKind::GetOverflow,
    "PUT" => EventKind::Put,
    "PUT_OVERFLOW" => EventKind::PutOverflow,
    "ATOMIC" => EventKind::Atomic,
    "ATOMIC_OVERFLOW" => EventKind::AtomicOverflow,
    "FETCH_ATOMIC" => EventKind::FetchAtomic,
    "FETCH_ATOMIC_OVERFLOW" => EventKind::FetchAtomicOverflow,
    "REPLY" => EventKind::Reply,
    "SEND" => EventKind::Send,
    "ACK" => EventKind::Ack,
    "PT_DISABLED" => EventKind::PtDisabled,
    "LINK" => EventKind::Link,
    "AUTO_UNLINK" => EventKind::AutoUnlink,
    "AUTO_FREE" => EventKind::AutoFree,
    "SEARCH" => EventKind::Search,
} }

named! { fail -> NiFail {
    "OK" => NiFail::Ok,
    "UNDELIVERABLE" => NiFail::Undeliverable,
    "DROPPED" => NiFail::Dropped,
    "PT_DISABLED" => NiFail::PtDisabled,
    "PERM_VIOLATION" => NiFail::PermViolation,
    "OP_VIOLATION" => NiFail::OpViolation,
    "NO_MATCH" => NiFail::NoMatch,
    "SEGV" => NiFail::Segv,
} }

named! { atomic_kind -> AtomicKind {
    "min" => AtomicKind::Min,
    "max" => AtomicKind::Max,
    "sum" => AtomicKind::Sum,
    "prod" => AtomicKind::Prod,
    "lor" => AtomicKind::Lor,
    "land" => AtomicKind::Land,
    "bor" => AtomicKind::Bor,
    "band" => AtomicKind::Band,
    "lxor" => AtomicKind::Lxor,
    "bxor" => AtomicKind::Bxor,
    "swap" => AtomicKind::Swap,
    "cswap" => AtomicKind::Cswap,
    "cswap-ne" => AtomicKind::CswapNe,
    "cswap-le" => AtomicKind::CswapLe,
    "cswap-lt" => AtomicKind::CswapLt,
    "cswap-ge" => AtomicKind::CswapGe,
    "cswap-gt" => AtomicKind::CswapGt,
    "mswap" => AtomicKind::Mswap,
} }

named! { datatype -> Datatype {
    "int8" => Datatype::Int8,
    "uint8" => Datatype::Uint8,
    "int16" => Datatype::Int16,
    "uint16" => Datatype::Uint16,
    "int32" => Datatype::Int32,
    "uint32" => Datatype::Uint32,
    "float" => Datatype::Float,
    "int64" => Datatype::Int64,
    "uint64" => Datatype::Uint64,
    "double" => Datatype::Double,
    "float-complex" => Datatype::FloatComplex,
    "double-complex" => Datatype::DoubleComplex,
    "long-double" => Datatype::LongDouble,
    "long-double-complex" => Datatype::LongDoubleComplex,
} }

/// By the names of the public header's return codes.
pub(crate) fn error_name(error: NiError) -> &'static str {
    match error {
        NiError::ArgInvalid(_) => "ARG_INVALID",
        NiError::PtFull => "PT_FULL",
        NiError::PtInUse => "PT_IN_USE",
        NiError::PtEqNeeded => "PT_EQ_NEEDED",
        NiError::InUse => "IN_USE",
        NiError::NoSpace(_) => "NO_SPACE",
        NiError::ListTooLong => "LIST_TOO_LONG",
        NiError::NoInit => "NO_INIT",
        NiError::Ignored => "IGNORED",
        NiError::PidInUse => "PID_IN_USE",
        NiError::Fail(_) => "FAIL",
        NiError::Aborted => "ABORTED",
        NiError::Full => "FULL",
    }
}

/// Sets a limit by its name.
pub(crate) fn limit(limits: &mut NiLimits, name: &str, value: &str) -> Told {
    match name {
        "entries" => limits.max_entries = small(value)?,
        "headers" => limits.max_unexpected_headers = small(value)?,
        "mds" => limits.max_mds = small(value)?,
        "cts" => limits.max_cts = small(value)?,
        "eqs" => limits.max_eqs = small(value)?,
        "pt-index" => limits.max_pt_index = small(value)?,
        "iovecs" => limits.max_iovecs = small(value)?,
        "list-size" => limits.max_list_size = small(value)?,
        "triggered" => limits.max_triggered_ops = small(value)?,
        "message" => limits.max_msg_size = small(value)?,
        _ => return Err(format!("there is no limit `{name}`")),
    }
    Ok(())
}

/// Splits `a,b,c` and reads each part.
pub(crate) fn each<T>(words: Option<&str>, of: impl Fn(&str) -> Told<T>) -> Told<Vec<T>> {
    words
        .unwrap_or("")
        .split(',')
        .filter(|word| !word.is_empty())
        .map(of)
        .collect()
}

/// A number as its datatype has it.
pub(crate) fn value(kind: Datatype, word: &str) -> Told<Vec<u8>> {
    let no = |_| format!("`{word}` is no number");
    Ok(match kind {
        Datatype::Float => f32::from_str(word).map_err(|_| no(()))?.to_le_bytes().to_vec(),
        Datatype::Double => f64::from_str(word).map_err(|_| no(()))?.to_le_bytes().to_vec(),
        Datatype::FloatComplex => {
            let (re, im) = word.split_once('+').ok_or_else(|| no(()))?;
            let mut bytes = value(Datatype::Float, re)?;
            bytes.extend(value(Datatype::Float, im)?);
            bytes
        }
        Datatype::DoubleComplex => {
            let (re, im) = word.split_once('+').ok_or_else(|| no(()))?;
            let mut bytes = value(Datatype::Double, re)?;
            bytes.extend(value(Datatype::Double, im)?);
            bytes
        }
        Datatype::LongDouble => crate::model::of_double(f64::from_str(word).map_err(|_| no(()))?),
        Datatype::LongDoubleComplex => {
            let (re, im) = word.split_once('+').ok_or_else(|| no(()))?;
            let mut bytes = value(Datatype::LongDouble, re)?;
            bytes.extend(value(Datatype::LongDouble, im)?);
            bytes
        }
        _ => number(word)?.to_le_bytes()[..kind.size()].to_vec(),
    })
}
