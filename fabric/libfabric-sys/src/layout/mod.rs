//! The layouts as data: every structure, table and constant that is declared here, with the API level that
//! brought each field.
//!
//! The declarations are in [`abi`]. [`table`] is their text form, which is also what a header
//! folder is measured as; [`compare`] finds what differs between the two.

pub mod compare;
pub mod table;

use crate::abi;
use crate::level::Level;

/// What a declaration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A structure of data.
    Structure,
    /// A table of functions, whose first field is its own size.
    Table,
}

/// A structure or table, with its fields in the order of their offsets.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// The name, as in C.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The size with all fields that are known.
    pub size: usize,
    /// The alignment in bytes.
    pub align: usize,
    /// The first API level that has it.
    pub since: Level,
    /// The fields, by offset.
    pub fields: &'static [Field],
}

/// A field of a structure, or an entry of a table.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name, as in C.
    pub name: &'static str,
    /// The offset in bytes.
    pub offset: usize,
    /// The size in bytes.
    pub size: usize,
    /// The first API level that has it.
    pub since: Level,
    /// The field's own layout, if it is a structure that grew.
    pub inner: Option<&'static Structure>,
}

/// A constant. Its value never changed, whatever the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// The name, as in C.
    pub name: &'static str,
    /// The value, as an unsigned number.
    pub value: u64,
}

/// A type whose layout is in the lists.
///
/// # Safety
/// `STRUCTURE` describes the type, and all zeros are a valid value of it.
pub unsafe trait Layout: Copy {
    /// The layout of the type.
    const STRUCTURE: Structure;

    /// Returns a value of zeros, of a table with its size set to zero too.
    fn zeroed() -> Self {
        // SAFETY: zeros are a valid value, by the contract of the trait.
        unsafe { std::mem::zeroed() }
    }

    /// Returns how many bytes a caller of level `level` has of this structure.
    fn size_at(level: Level) -> usize {
        Self::STRUCTURE.size_at(level)
    }
}

impl Structure {
    /// Returns the field of this name.
    pub const fn field(&self, name: &str) -> Option<&'static Field> {
        let mut at = 0;
        while at < self.fields.len() {
            if is_same(self.fields[at].name, name) {
                return Some(&self.fields[at]);
            }
            at += 1;
        }
        None
    }

    /// Returns the size that the structure has at an API level; 0 where the level does not have it yet.
    pub fn size_at(&self, level: Level) -> usize {
        let known = self.fields.iter().filter(|field| level.has(field.since));
        let end = known.map(|field| field.offset + field.size_at(level)).max();
        end.unwrap_or(0).next_multiple_of(self.align)
    }

    /// Returns how many entries a table has at an API level, with the size as the first.
    pub fn entries_at(&self, level: Level) -> usize {
        self.size_at(level) / size_of::<usize>()
    }
}

impl Field {
    /// Whether a caller of this API level has the field, so that it may be read and written.
    pub const fn is_known_to(&self, level: Level) -> bool {
        level.has(self.since)
    }

    /// Returns the size that the field has at an API level.
    pub fn size_at(&self, level: Level) -> usize {
        self.inner.map_or(self.size, |inner| inner.size_at(level))
    }
}

/// Returns the API level that brought a field of `T`.
///
/// # Panics
/// If there is no such field; in a constant that is an error of compilation.
pub const fn level_of<T: Layout>(field: &'static str) -> Level {
    match T::STRUCTURE.field(plain(field)) {
        Some(field) => field.since,
        None => panic!("the structure has no such field"),
    }
}

/// Reads a field of a caller's structure if the caller's API level has the field: `Some` of a copy, else
/// `None`.
///
/// ```
/// use libfabric_sys::{Layout, Level, fi_domain_attr, field_at};
///
/// let attributes = fi_domain_attr { max_group_id: 7, ..Layout::zeroed() };
/// let pointer = &raw const attributes;
/// // SAFETY: the structure is whole.
/// let (old, new) = unsafe {
///     (
///         field_at!(pointer, fi_domain_attr, max_group_id, Level::new(1, 9)),
///         field_at!(pointer, fi_domain_attr, max_group_id, Level::new(2, 0)),
///     )
/// };
/// assert_eq!((old, new), (None, Some(7)));
/// ```
///
/// It has to stand in an `unsafe` block: the pointer must be to a structure that has at least the fields of
/// that level.
#[macro_export]
macro_rules! field_at {
    ($pointer:expr, $type:ident, $field:ident, $level:expr) => {{
        const SINCE: $crate::Level = $crate::layout::level_of::<$type>(stringify!($field));
        let pointer: *const $type = $pointer;
        if $level.has(SINCE) {
            Some((&raw const (*pointer).$field).read_unaligned())
        } else {
            None
        }
    }};
}

/// Returns every structure that is declared here.
pub fn structures() -> impl Iterator<Item = &'static Structure> {
    abi::STRUCTURES.iter().copied().flatten()
}

/// Returns every table of functions that is declared here.
pub fn tables() -> impl Iterator<Item = &'static Structure> {
    abi::TABLES.iter().copied().flatten()
}

/// Returns every constant that is declared here.
pub fn constants() -> impl Iterator<Item = &'static Constant> {
    abi::CONSTANTS.iter().copied().flatten()
}

/// Returns a name without the mark that a keyword has as a name.
pub(crate) const fn plain(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}
